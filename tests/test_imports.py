"""The runtime path needs numpy and a backend: it never imports torch, onnx or onnxscript."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "onnx", "onnx_ir", "onnxscript", "transformers")

BLOCK = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named '{{name}}'", name=name)

sys.meta_path.insert(0, Block())
"""

STEPS = {
    "feed": "s.feed([[1, 2, 3]]); s.feed([[4]]); s.reset([0]); s.fork().reorder([0]); s.memory_tensors(0)",
    "save and restore": "s.feed([[1]]); s.save(file); engine.restore(file).feed([[2]])",
    "score": "engine.score([1, 2, 3, 4])",
    "generate": "list(s.generate([1, 2], 4, temperature=1.0, top_k=5, top_p=0.9, seed=1, stop=[3]))",
    "warm up": "engine.warm_up()",
}
USE = """
import sys
bundle, file = sys.argv[1:]
import txl_export as txl
engine = txl.Engine.load(bundle, threads=1)
s = engine.session()
{steps}
heavy = [m for m in {heavy!r} if m in sys.modules]
assert not heavy, heavy
print("done")
"""


def python(script: str, *arguments: object) -> str:
    """Run a script in a fresh interpreter and give what it prints."""
    ran = subprocess.run([sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture
def bundle(exported):
    return exported("stepping", "kv", (1, 8)).path


@pytest.mark.parametrize("blocked", [False, True], ids=["installed", "absent"])
def test_runtime_imports_no_torch(bundle, tmp_path, blocked):
    script = USE.format(steps="\n".join(STEPS.values()), heavy=HEAVY)
    script = (BLOCK.format(blocked=HEAVY) if blocked else "") + script
    assert python(script, bundle, tmp_path / "s") == "done\n"


def test_import_alone_is_light():
    script = "import sys, txl_export; print([m for m in (*{heavy!r}, 'numpy', 'onnxruntime') if m in sys.modules])"
    assert python(script.format(heavy=HEAVY)) == "[]\n"


WITHOUT = """
import sys
bundle, checkpoint = sys.argv[1:]
import txl_export as txl
try:
    {what}
except txl.EnvironmentMismatch as e:
    print(e.exit_code, e)
"""


@pytest.mark.parametrize(
    "package, what, extra",
    [
        ("onnxruntime", "txl.Engine.load(bundle)", "cpu"),
        ("torch", "txl.Engine.load(checkpoint)", "export"),
        ("torch", "txl.Engine.load(checkpoint, backend='eager')", "export"),
        ("torch", "txl.export(txl.load_checkpoint(checkpoint), 'out')", "export"),
        ("onnxscript", "txl.export(txl.load_checkpoint(checkpoint), 'out')", "export"),
        ("torch", "txl.TransformerXL", "export"),
    ],
)
def test_missing_package_names_the_extra(bundle, tmp_path, package, what, extra):
    from tests.bundles import checkpoint_of
    from txl_export.checkpoints import native

    native.save(tmp_path / "m", checkpoint_of("stepping"))
    script = BLOCK.format(blocked=(package,)) + WITHOUT.format(what=what)
    code, text = python(script, bundle, tmp_path / "m").split(" ", 1)
    assert code == "3" and package in text and f"txl-export[{extra}]" in text and text.count("\n") == 1


def test_files_of_torch_save_are_read_without_torch(tmp_path):
    from tests.checkpoints.torch_models import FORMS, make

    for form in FORMS:
        make(form, tmp_path / form)
    lines = "for path in sys.argv[1:]: print(txl.load_checkpoint(path).origin)"
    script = f"{BLOCK.format(blocked=HEAVY)}\nimport txl_export as txl\n{lines}"
    origins = python(script, *(tmp_path / form for form in FORMS)).split()
    assert origins == ["kimiyoung"] * 4 + ["nvidia"] * 2
