"""Running a bundle's graph on its backend with intermediate values kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from txl_export.errors import BundleError, InputError
from txl_export.verification.bisection.parts import output_of, parts_of

if TYPE_CHECKING:
    import onnx

    from txl_export.backends.base import LoadedModel
    from txl_export.backends.typed import TypedModel
    from txl_export.bundle import Bundle, GraphSpec

Arrays = dict[str, np.ndarray]
_KEPT = 2  # the graph as it is, and the graph with the ends of all parts


class Probe(Protocol):
    """A graph that can be asked for any of its values."""

    def run(self, feeds: Mapping[str, np.ndarray], names: Iterable[str]) -> Arrays:
        """The graph's outputs and the values of these names; those that cannot be read are left out."""
        ...


class OnnxRuntimeProbe:
    """A copy of the graph in memory whose wanted values are outputs; the weights are read where they lie."""

    def __init__(self, model: onnx.ModelProto, folder: Path) -> None:
        """Take the graph as it is in the file, and the folder of its weights."""
        self._model, self._folder = model, folder
        self._readable = _readable(model)
        self._sessions: dict[tuple[str, ...], Any] = {}

    def run(self, feeds: Mapping[str, np.ndarray], names: Iterable[str]) -> Arrays:
        """See `Probe`; raises BundleError when ONNX Runtime refuses the graph."""
        try:
            session = self._session(tuple(dict.fromkeys(n for n in names if n in self._readable)))
            wanted = [o.name for o in session.get_outputs()]
            return dict(zip(wanted, session.run(wanted, dict(feeds)), strict=True))
        except Exception as e:  # its errors have no public base class
            raise BundleError(f"{self._folder}: {str(e).splitlines()[0][:200]}: export again") from None

    def _session(self, names: tuple[str, ...]) -> Any:
        """The graph with these values as outputs; the last few are kept, each holds all weights."""
        if names not in self._sessions:
            while len(self._sessions) >= _KEPT:
                self._sessions.pop(next(iter(self._sessions)))
            self._sessions[names] = self._load(names)
        return self._sessions[names]

    def _load(self, names: tuple[str, ...]) -> Any:
        import onnx
        import onnxruntime as ort

        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        there = {o.name for o in model.graph.output}
        for name in names:
            if name not in there:
                model.graph.output.add().name = name
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(self._folder))
        return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _readable(model: onnx.ModelProto) -> set[str]:
    """Values that are tensors of types that numpy knows; where the type is not known, it is worth a try."""
    import onnx
    from onnx import TensorProto as Type

    types = {}
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
        types = {v.name: v.type for v in inferred.graph.value_info}
    except Exception:  # an unknown operator stops the inference, not the search
        types = {}
    known = {Type.FLOAT, Type.FLOAT16, Type.DOUBLE, Type.BOOL, Type.INT8, Type.UINT8, Type.INT32, Type.INT64}
    names = [v for node in model.graph.node for v in node.output if v]
    return {n for n in names if n not in types or types[n].tensor_type.elem_type in known}


class TypedProbe:
    """The module of a half precision in PyTorch, which shows what comes out of each part."""

    def __init__(self, model: TypedModel, spec: GraphSpec) -> None:
        """Take the loaded module and the graph whose head is asked."""
        self._model, self._spec = model, spec

    def run(self, feeds: Mapping[str, np.ndarray], names: Iterable[str]) -> Arrays:
        """See `Probe`; all ends of parts are given, whichever are asked for."""
        from txl_export.verification.bisection.judge import values_of

        del names
        m = self._model.manifest
        values = values_of(self._model.module, m, self._spec.head, feeds)
        ends = [output_of(part) or "" for part in parts_of(m, self._spec)]
        return dict(zip(ends, values.hidden, strict=False)) | values.answers | values.states


def _of_onnxruntime(model: Any, bundle: Bundle, spec: GraphSpec, proto: onnx.ModelProto) -> Probe:
    del model, spec
    return OnnxRuntimeProbe(proto, bundle.path)


def _of_typed(model: Any, bundle: Bundle, spec: GraphSpec, proto: onnx.ModelProto) -> Probe:
    del bundle, proto
    return TypedProbe(model, spec)


# One line per backend that can show intermediate values.
PROBES: dict[str, Callable[[Any, Bundle, GraphSpec, onnx.ModelProto], Probe]] = {
    "onnxruntime": _of_onnxruntime,
    "typed": _of_typed,
}


def probe(model: LoadedModel, bundle: Bundle, spec: GraphSpec, proto: onnx.ModelProto) -> Probe:
    """The probe of a loaded model; raises InputError for a backend that keeps intermediate values to itself."""
    if model.name not in PROBES:
        there = " or ".join(PROBES)
        raise InputError(f"backend {model.name!r} shows no intermediate values: bisect with --backend {there}")
    return PROBES[model.name](model, bundle, spec, proto)
