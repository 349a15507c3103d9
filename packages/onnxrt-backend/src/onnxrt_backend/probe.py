"""How ONNX Runtime runs a graph of one operator, for the question whether it can.

In: an fx graph of one ATen operator. Out: a function of its inputs. Raises what the exporter or
ONNX Runtime raises. What always holds: one thread; optimised as a whole graph is, because what the
probe lets pass must not fail there (without, ONNX Runtime overlooks axes of tensors that have
none).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from onnxrt_backend import torch_private
from onnxrt_backend.attention import forbidden_rows_are_zeros
from onnxrt_backend.bounds import single_bounds
from onnxrt_backend.value_checks import fault, total
from tracer_core.plugin_api import add_value_check, promote


def build(graph: torch.fx.Graph) -> Callable[[list[Any]], Sequence[torch.Tensor]]:
    """graph: placeholders, one operator (with the items of it that are read), output. It is
    changed.
    """
    import onnxruntime

    names = [node.name for node in graph.find_nodes(op="placeholder")]
    forbidden_rows_are_zeros(graph)
    single_bounds(graph)
    n_results = len(graph.output_node().args[0])  # type: ignore[arg-type]
    add_value_check(graph, fault, lambda: None, total)
    promote(graph)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.intra_op_num_threads = 1
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    model = torch_private.translate(graph, "one_node")
    session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    fed = {item.name for item in session.get_inputs()}

    def run(inputs: list[Any]) -> list[torch.Tensor]:
        pairs = zip(names, inputs, strict=True)
        feed = {name: torch.as_tensor(value).numpy() for name, value in pairs if name in fed}
        return [torch.from_numpy(_writable(item)) for item in session.run(None, feed)[:n_results]]

    return run


def _writable(array: Any) -> Any:
    return array if array.flags.writeable else array.copy()
