"""torch.onnx's exporter: its registry of decompositions from ATen to ONNX, and its translator.

`translate` enters the translator below torch.export, because the graph is exported already."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch

from onnxrt_backend.onnx_simplification import make_static

#: ONNX opset of the models: torch.onnx.export's default; 20 is the first with GELU.
OPSET = 20


@functools.cache
def registry() -> Any:
    """Returns torch.onnx's table from ATen operators to ONNX functions (cached: building takes
    0.6 s)."""
    from torch.onnx._internal.exporter import _registration

    return _registration.ONNXRegistry.from_torchlib(opset_version=OPSET)


def has_translation(target: Any) -> bool:
    """Returns whether the exporter knows an operator on real numbers."""
    return any(not entry.is_complex for entry in registry().get_decomps(target))


def element_type(dtype: torch.dtype) -> int:
    """Returns the ONNX element type of a dtype. Raises KeyError for a dtype that ONNX lacks."""
    from torch.onnx._internal.exporter import _core

    return int(_core.torch_dtype_to_onnx_dtype(dtype))


def translate(graph: torch.fx.Graph, name: str) -> bytes:
    """Returns the serialised ONNX model of a graph whose nodes carry ``meta["val"]``. Its inputs
    are the placeholders that are read, its outputs the tensors of the output node, under the
    nodes' names."""
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
        # the translator warns about each node without one
        node.meta.setdefault("nn_module_stack", {})
    with warnings.catch_warnings():
        # the translator's own deprecation warnings would confuse the user
        warnings.simplefilter("ignore")
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
    make_static(model)
    # ONNX Runtime uses the blocked layout for pools, and fuses their neighbours, only where the
    # indices of the maxima are not computed.
    common.RemoveUnusedNodesPass()(model)
    return bytes(ir.to_proto(model).SerializeToString())
