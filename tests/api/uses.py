"""What code uses of a TensorRT package, read from its syntax: every object is followed to its class by its name.

mypy sees nothing of the package, so all of its objects are `Any` where they are named. Each variable, parameter or
attribute that is `Any` must stand in one of the tables of `tests.api.tables`: what it holds, or that it is none of the
package's.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.api.tables import ATTRIBUTES, GIVES, MODULE, OTHER, VARIABLES


@dataclass(frozen=True)
class Use:
    """A name of the package, and how it is called: `positional` is None where it is not.

    Attributes:
        owner: the class, an enum, or `MODULE`.
    """

    where: str
    owner: str
    member: str
    positional: int | None = None
    keywords: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.where}: {self.owner}.{self.member}"


class Reader(ast.NodeVisitor):
    """Follows objects through a file; visiting an expression gives the class of what it is, or None.

    Attributes:
        uses: all uses of the package's names.
        unknown: names that are `Any` and in no table, a line each.
        strays: names behind a dot after anything else, and where.
    """

    def __init__(self, file: Path, untyped: Container[str] = ()) -> None:
        """Read a file; `untyped` are our own functions that give `Any`."""
        self.file, self.uses, self.unknown = file, list[Use](), list[str]()
        self.strays: list[tuple[str, str]] = []
        self._untyped = untyped
        self._known: dict[str, str | None] = {}
        self.visit(ast.parse(file.read_text()))

    def _where(self, node: ast.AST) -> str:
        return f"{self.file.name}:{getattr(node, 'lineno', 0)}"

    def _use(self, node: ast.AST, owner: str, member: str, call: ast.Call | None = None, skip: int = 0) -> str | None:
        positional, keywords = None, ()
        if call is not None and not any(isinstance(a, ast.Starred) for a in call.args):
            positional, keywords = len(call.args) - skip, tuple(k.arg or "" for k in call.keywords)
        self.uses.append(Use(self._where(node), owner, member, positional, keywords))
        if owner == MODULE and member[:1].isupper():
            return GIVES.get((owner, member), member)
        return GIVES.get((owner, member))

    def visit_Name(self, node: ast.Name) -> str | None:
        return self._known.get(node.id)

    def visit_Attribute(self, node: ast.Attribute, call: ast.Call | None = None, skip: int = 0) -> str | None:
        owner = self.visit(node.value)
        if owner is None:
            self.strays.append((self._where(node), node.attr))
            return ATTRIBUTES.get(node.attr)
        if node.attr == "__class__":
            return None
        if node.attr == "__init__":
            skip += 1  # of the class, so that `self` is given
        return self._use(node, owner, node.attr, call, skip)

    def visit_Call(self, node: ast.Call) -> str | None:
        given = [self._argument(node, i) for i in range(len(node.args))]
        for keyword in node.keywords:
            self.visit(keyword.value)
        if isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            return self._asked(node, given)
        if isinstance(node.func, ast.IfExp):
            either = [self._called(f, node) for f in (node.func.body, node.func.orelse)]
            return either[0] or either[1]
        found = self._called(node.func, node)
        return found or next((g for g in given if g is not None and self._hands_on(node)), None)

    def _hands_on(self, node: ast.Call) -> bool:
        """Whether a method of our own gives what it was given to call: `self._made(lambda: ...)`, `self._asked`."""
        return isinstance(node.func, ast.Attribute) and node.func.attr in ("_made", "_asked")

    def _argument(self, call: ast.Call, at: int) -> str | None:
        """A method that is handed on is called with the arguments behind it."""
        node = call.args[at]
        if self._hands_on(call) and isinstance(node, ast.Attribute):
            return self.visit_Attribute(node, call, skip=at + 1)
        return self.visit(node)

    def _called(self, function: ast.expr, call: ast.Call) -> str | None:
        if isinstance(function, ast.Attribute):
            owner = self.visit_Attribute(function, call)
            made = self.uses[-1] if self.uses else None
            if owner is not None and made is not None and made.owner == MODULE and made.member == function.attr:
                self._use(function, owner, "__init__", call)
            return owner
        return self.visit(function)

    def _asked(self, node: ast.Call, given: list[str | None]) -> str | None:
        """A name that may be missing is no use; a name that is computed is a member of an enum."""
        name = node.args[1]
        if isinstance(node.func, ast.Name) and node.func.id == "getattr" and isinstance(name, ast.Constant):
            if given[0] is not None and len(node.args) == 2:
                return self._use(node, given[0], str(name.value))
            return str(name.value) if given[0] == MODULE else None
        return None

    def visit_Lambda(self, node: ast.Lambda) -> str | None:
        return self.visit(node.body)

    def visit_IfExp(self, node: ast.IfExp) -> str | None:
        self.visit(node.test)
        both = [self.visit(node.body), self.visit(node.orelse)]
        return both[0] or both[1]

    def visit_BoolOp(self, node: ast.BoolOp) -> str | None:
        found = [self.visit(value) for value in node.values]
        return next((f for f in found if f is not None), None)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> str | None:
        found: str | None = self.visit(node.value)
        self._bind(node.target, found)
        return found

    def visit_Subscript(self, node: ast.Subscript) -> str | None:
        self.visit(node.slice)
        found: str | None = self.visit(node.value)
        return None if found == "Dims" else found

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self._bind(node.target, self.visit(node.iter))
        for test in node.ifs:
            self.visit(test)

    def visit_ListComp(self, node: ast.ListComp | ast.GeneratorExp) -> str | None:
        for part in node.generators:
            self.visit(part)
        found: str | None = self.visit(node.elt)
        return found

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> str | None:
        return self.visit_ListComp(node)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        for part in node.generators:
            self.visit(part)
        self.visit(node.key), self.visit(node.value)

    def visit_For(self, node: ast.For) -> None:
        self._bind(node.target, self.visit(node.iter))
        for statement in (*node.body, *node.orelse):
            self.visit(statement)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                for one, value in zip(target.elts, node.value.elts, strict=True):
                    self._bind(one, self.visit(value))
            else:
                self._bind(target, self.visit(node.value) or self._named(target, node.value))

    def _named(self, target: ast.expr, value: ast.expr) -> str | None:
        """What a variable holds that takes what a function of our own gives as `Any`."""
        function = value.func if isinstance(value, ast.Call) else None
        name = getattr(function, "id", None) or getattr(function, "attr", None)
        if name not in self._untyped or not isinstance(target, ast.Name):
            return None
        self._check(target, ast.Name("Any"))
        return VARIABLES.get(target.id)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        found = self.visit(node.value) if node.value is not None else None
        self._check(node.target, node.annotation)
        self._bind(node.target, found)

    def _bind(self, target: ast.expr, found: str | None) -> None:
        if isinstance(target, ast.Name):
            self._known[target.id] = found
        elif isinstance(target, ast.Attribute) and target.attr == "__class__" and isinstance(target.value, ast.Name):
            self._known[target.value.id] = found
        elif isinstance(target, ast.Attribute):
            self.visit(target)
            if found is not None and self.visit(target.value) is None and ATTRIBUTES.get(target.attr) != found:
                self._tell(target, target.attr)

    def _check(self, target: ast.AST, annotation: ast.expr | None) -> None:
        name = getattr(target, "id", None) or getattr(target, "attr", None) or getattr(target, "arg", "")
        is_any = isinstance(annotation, ast.Name) and annotation.id == "Any"
        if is_any and not any(name in table for table in (VARIABLES, ATTRIBUTES, OTHER)):
            self._tell(target, name)

    def _tell(self, node: ast.AST, name: str) -> None:
        self.unknown.append(f"{self._where(node)}: {name} is Any: say in tests/api/tables.py what it is")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outer, self._known = self._known, dict(self._known)
        for parameter in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            self._check(parameter, parameter.annotation)
            named = isinstance(parameter.annotation, ast.Name) and parameter.annotation.id == "Any"
            self._known[parameter.arg] = VARIABLES.get(parameter.arg) if named else None
        for statement in node.body:
            self.visit(statement)
        self._known = outer

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for base in (self.visit(b) for b in node.bases):
            for method in node.body if base is not None else ():
                if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
                    self.uses.append(Use(self._where(method), base, method.name, len(method.args.args) - 1))
        for statement in node.body:
            self.visit(statement)


def untyped(files: Iterable[Path]) -> set[str]:
    """Names of functions that give `Any`."""
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text())))
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef))
    return {f.name for f in functions if isinstance(f.returns, ast.Name) and f.returns.id == "Any"}
