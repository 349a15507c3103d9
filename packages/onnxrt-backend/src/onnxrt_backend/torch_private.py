"""The one door to names that torch and onnxruntime do not promise to keep.

Out: `translate`, an fx graph of ATen operators as an ONNX model, and the exporter's table of
operators. It is torch.onnx's own translator, entered below torch.export: the graph is exported
already. `raw_*`: what ONNX Runtime's Python classes call, without their work of every call (a new
device object, checks for WebGPU).

Tried on torch 2.13.0 with onnxscript 0.7.2 and onnxruntime 1.31.1.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from onnxrt_backend.plain import make_plain

#: The version of ONNX's operators that models use: torch.onnx.export's own; from 20 on GELU is one
#: of them.
OPSET = 20


@functools.cache
def registry() -> Any:
    """torch.onnx's table from ATen operators to ONNX functions (made once: it takes 0.6 s)."""
    from torch.onnx._internal.exporter import _registration

    return _registration.ONNXRegistry.from_torchlib(opset_version=OPSET)


def has_translation(target: Any) -> bool:
    """Whether the exporter knows an operator on real numbers."""
    return any(not entry.is_complex for entry in registry().get_decomps(target))


def element_type(dtype: torch.dtype) -> int:
    """The ONNX number of a dtype. Raises KeyError for one that ONNX has not."""
    from torch.onnx._internal.exporter import _core

    return int(_core.torch_dtype_to_onnx_dtype(dtype))


def translate(graph: torch.fx.Graph, name: str) -> bytes:
    """The ONNX model of a graph whose nodes carry ``meta["val"]``, serialised: its inputs are the
    placeholders that are read, its outputs the tensors of the output node, under the nodes' names.
    """
    import onnx_ir as ir
    from onnx_ir.passes import common
    from onnxscript import version_converter
    from torch.onnx._internal.exporter import _constants, _core, _ir_passes

    model = ir.Model(
        graph=ir.Graph([], [], nodes=[], name=name),
        ir_version=_constants.ONNX_IR_VERSION,
        producer_name="tracer onnxrt-backend",
    )
    for node in graph.nodes:
        node.meta.setdefault(
            "nn_module_stack", {}
        )  # the translator warns about each node without one
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # the translator's own deprecations are not the user's affair
        _core._translate_fx_graph(
            graph,
            model,
            graph_like=model.graph,
            owned_graphs={},
            lower="at_conversion",
            registry=registry(),
        )
    _ir_passes.add_opset_imports(model)
    version_converter.convert_version(model, OPSET)
    make_plain(model)
    # ONNX Runtime lays out pools in blocks, and fuses what is round them, only where nothing but
    # the maxima is made.
    common.RemoveUnusedNodesPass()(model)
    return bytes(ir.to_proto(model).SerializeToString())


def raw_device(kind: str, index: int) -> Any:
    """A device as `raw_binding` takes it."""
    from onnxruntime.capi.onnxruntime_inference_collection import OrtDevice

    return OrtDevice.make(kind, index)._get_c_device()


def raw_binding(session: Any) -> tuple[Any, Callable[[], Any]]:
    """(an IOBinding of a session: bind_input and bind_output take a name, a `raw_device`, an
    element type, a shape and an address; a function that runs the session on what is bound)."""
    public = session.io_binding()
    raw, inner = public._iobinding, session._sess
    captures = getattr(inner, "is_webgpu_graph_capture_enabled", None)
    if captures is not None and captures():
        return raw, functools.partial(session.run_with_iobinding, public)
    return raw, functools.partial(inner.run_with_iobinding, raw, None)
