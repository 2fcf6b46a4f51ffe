"""What a package made of a graph, compared with what the manifest says before anything is built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from txl_export.building.sizes import fixed_sizes
from txl_export.bundle import GraphSpec, Manifest, TensorSpec
from txl_export.errors import BuildError
from txl_export.number_types import TYPES
from txl_export.precision import JOINTS, MEMORY, tensor_names

# Plans hold kernels and padded copies beside the weights. Seen at 41M parameters in fp32: 13 to 15 MB, a
# twelfth of the weights; at next to none: 3.6 MB. A plan in twice the asked precision passes neither.
SPARE_SHARE, SPARE_BYTES = 0.25, 32 << 20

# Precisions by the names that their types have.
PRECISION = {t.dtype: name for name, t in TYPES.items()}


@dataclass(frozen=True)
class Network:
    """A parsed graph, or an engine.

    Attributes:
        inputs: names, types and shapes, -1 where symbolic.
        outputs: likewise.
        aliases: outputs of in-place updates -> the input that is updated.
        products: matrix products by the type that they compute in, such as {"fp16": 26}.
        weight_bytes: bytes of all constants, in their types.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    aliases: Mapping[str, str]
    products: Mapping[str, int]
    weight_bytes: int

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Network:
        """What the process that builds says."""
        tensors = {
            k: tuple(TensorSpec(t["name"], t["dtype"], tuple(t["shape"])) for t in value[k])
            for k in ("inputs", "outputs")
        }
        products = {PRECISION.get(t, t): n for t, n in value["products"].items()}
        return cls(**tensors, aliases=value["aliases"], products=products, weight_bytes=value["weight_bytes"])

    @property
    def most_bytes(self) -> int:
        """What a plan of this precision may have."""
        return int(self.weight_bytes * (1 + SPARE_SHARE)) + SPARE_BYTES


def check_network(network: Network, manifest: Manifest, graph: GraphSpec, what: str) -> None:
    """Compare inputs, outputs, in-place updates and precision with the manifest.

    Args:
        network: what was found.
        manifest: what is expected.
        graph: the graph that was parsed.
        what: the file and the package, for messages.

    Raises:
        BuildError: the first difference.
    """
    check_interface(network, manifest, graph, what)
    asked, found = manifest.precision, network.products
    if found and _asks(manifest) and asked not in found:
        told = ", ".join(f"{n} in {p}" for p, n in found.items())
        raise BuildError(f"{what}: the bundle is {asked}, none of its matrix products is ({told}): export again")
    strange = [p for p in found if p not in (asked, "fp32")]
    if strange:
        raise BuildError(f"{what}: the bundle is {asked}, {found[strange[0]]} matrix products are in {strange[0]}")


def _asks(manifest: Manifest) -> bool:
    """Whether the policy leaves any product in the bundle's precision: overrides may keep all in fp32."""
    products = (n for n in tensor_names(manifest.config.n_layer) if n not in (*JOINTS, MEMORY))
    return any(manifest.policy.of(name) == manifest.precision for name in products)


def check_interface(network: Network, manifest: Manifest, graph: GraphSpec, what: str) -> None:
    """Compare inputs, outputs and in-place updates with the manifest; raises BuildError."""
    sizes = fixed_sizes(manifest)
    for kind, found, expected in (
        ("input", network.inputs, manifest.inputs(graph)),
        ("output", network.outputs, manifest.outputs(graph)),
    ):
        _check_tensors(kind, found, [t.sized(sizes) for t in expected], what)
    if dict(network.aliases) != manifest.aliases:
        raise BuildError(
            f"{what}: it updates {_pairs(network.aliases)} in place, the manifest says {_pairs(manifest.aliases)}: "
            "export again"
        )


def _check_tensors(kind: str, found: Iterable[TensorSpec], expected: Iterable[TensorSpec], what: str) -> None:
    """Order is the graph's, but engines have their own: only names count."""
    there, wanted = {t.name: t for t in found}, {t.name: t for t in expected}
    for name in [*wanted, *there]:
        if not _agree(there.get(name), wanted.get(name), kind == "output"):
            raise BuildError(
                f"{what}: {kind} {name} is {_told(there.get(name))}, the manifest says {_told(wanted.get(name))}: "
                "export again"
            )


def _agree(found: TensorSpec | None, expected: TensorSpec | None, inferred: bool) -> bool:
    """Whether names, types and shapes agree; shapes that are inferred may leave open what the manifest knows."""
    if found is None or expected is None:
        return False
    shape = tuple(-1 if isinstance(n, str) else n for n in expected.shape)
    if inferred and len(found.shape) == len(shape):
        shape = tuple(-1 if f == -1 else e for f, e in zip(found.shape, shape, strict=True))
    return (found.dtype, found.shape) == (expected.dtype, shape)


def _told(tensor: TensorSpec | None) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}" if tensor else "absent"


def _pairs(aliases: Mapping[str, str]) -> str:
    if len(aliases) > 3:
        return f"{len(aliases)} inputs"
    return ", ".join(sorted(aliases.values())) or "nothing"


def check_size(nbytes: int, network: Network, what: str) -> None:
    """A plan holds no more than its weights in their types and what kernels need; raises BuildError."""
    if nbytes > network.most_bytes:
        raise BuildError(
            f"{what}: the engine has {nbytes:,} bytes, its weights in {' + '.join(network.products) or 'their types'} "
            f"allow {network.most_bytes:,}: the package built in a higher precision than was asked for"
        )
