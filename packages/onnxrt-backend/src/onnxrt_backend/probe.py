"""Asks ONNX Runtime about one operator: does it load, and does it compute what PyTorch computes?

In: an fx graph of one ATen operator. Out: None, or the reason against it. The translation of some operators
is wrong for some arguments (training-mode batch norm, for one), so the model of the operator is run once on
seeded data of the captured sizes and compared with the operator itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from onnxrt_backend import torch_private
from onnxrt_backend.export import hint
from onnxrt_backend.promotion import promote

#: Above this many input elements the values are not compared: making them would take longer than a second.
MOST_ELEMENTS = 1 << 25

#: Far above rounding, far below a wrong formula.
TOLERANCE = 1e-3


def ask(graph: torch.fx.Graph) -> str | None:
    """graph: placeholders, one operator (with the items of it that are read), output."""
    values = [node.meta["val"] for node in graph.find_nodes(op="placeholder")]
    eager = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph(), class_name="OneNode")
    eager.graph.output(eager.graph.graph_copy(graph, {}))
    eager.recompile()
    promote(graph)
    try:
        model = torch_private.translate(graph, "one_node")
    except Exception as error:  # the exporter's errors have no common base; each is an answer here
        return f"torch.onnx cannot translate it: {_first_line(_root(error))}"
    return _compare(model, [node.name for node in graph.find_nodes(op="placeholder")], values, eager)


def _compare(model: bytes, names: Sequence[str], values: Sequence[Any], eager: Any) -> str | None:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.intra_op_num_threads = 1
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common base but Exception
        return f"ONNX Runtime refuses it: {_first_line(error)}"
    if sum(_elements(value) for value in values) > MOST_ELEMENTS:
        return None
    data = [sample(value, number) for number, value in enumerate(values)]
    try:
        expected = eager(*data)
    except (RuntimeError, IndexError):
        return None  # the sample is no valid argument (an index out of range): nothing to compare with
    fed = {item.name for item in session.get_inputs()}
    feed = {
        name: torch.as_tensor(value).numpy() for name, value in zip(names, data, strict=True) if name in fed
    }
    try:
        actual = session.run(None, feed)
    except Exception as error:  # see above
        return f"ONNX Runtime fails to run it: {_first_line(error)}"
    return _difference(expected, [torch.from_numpy(_writable(item)) for item in actual])


def _writable(array: Any) -> Any:
    return array if array.flags.writeable else array.copy()


def _difference(expected: Sequence[torch.Tensor], actual: Sequence[torch.Tensor]) -> str | None:
    for want, got in zip(expected, actual, strict=True):
        if got.dtype != want.dtype or got.shape != want.shape:
            ours, theirs = f"{got.dtype} {tuple(got.shape)}", f"{want.dtype} {tuple(want.shape)}"
            return f"its ONNX form gives {ours} where PyTorch gives {theirs}"
        if want.is_floating_point() and torch.allclose(got, want, TOLERANCE, TOLERANCE, equal_nan=True):
            continue
        if not torch.equal(got, want):
            return "its ONNX form computes other values than PyTorch"
    return None


def _elements(value: Any) -> int:
    return math.prod(hint(size) for size in value.shape) if isinstance(value, torch.Tensor) else 1


def sample(value: Any, seed: int) -> Any:
    """Data for a fake value: normal floats, 0 and 1 for integers (valid as most indices), booleans."""
    if not isinstance(value, torch.Tensor):
        return hint(value)
    generator = torch.Generator().manual_seed(seed)
    shape = [hint(size) for size in value.shape]
    if value.dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(value.dtype)
    return torch.randint(0, 2, shape, generator=generator).to(value.dtype)


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _first_line(error: BaseException) -> str:
    text = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__}: {text[:200]}"
