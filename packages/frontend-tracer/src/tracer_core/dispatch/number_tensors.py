"""Numbers of the program that change from call to call, as inputs of graphs for backends of
torch.compile's convention: 0-d tensors on the CPU, which a node of the graph reads.

Such a backend is given tensors, and what it builds may keep a Python number of the first call for
ever. The node raises where that is about to happen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.fx_capture.size_nodes import IS_NUMBER


def read_number(tensor: torch.Tensor) -> int | float:
    """Returns the number in a 0-d tensor. Target of a graph node.

    Raises RuntimeError while the graph is recorded by torch.jit.trace or a CUDA graph, for which the
    number is a constant.
    """
    recorded = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    if recorded or torch.jit.is_tracing():
        raise RuntimeError("a number that changes from call to call would become a constant")
    number: int | float = tensor.item()
    return number


def take_tensors(gm: torch.fx.GraphModule) -> dict[int, torch.dtype]:
    """Makes the placeholders of numbers take 0-d tensors; returns the index of each and its dtype."""
    dtypes: dict[int, torch.dtype] = {}
    for index, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        if not node.meta.get(IS_NUMBER):
            continue
        symbol = node.meta["val"]
        dtypes[index] = torch.int64 if isinstance(symbol, torch.SymInt) else torch.float64
        last = gm.graph.find_nodes(op="placeholder")[-1]
        with gm.graph.inserting_after(last):
            read = gm.graph.call_function(read_number, (node,))
        node.replace_all_uses_with(read, lambda user, read=read: user is not read)
        read.meta.update(node.meta)
        node.meta["val"] = _fake(gm.graph, dtypes[index])
    if dtypes:
        gm.recompile()
    return dtypes


def _fake(graph: torch.fx.Graph, dtype: torch.dtype) -> Any:
    """Returns a fake 0-d tensor of the graph's mode."""
    values = (node.meta.get("val") for node in graph.nodes)
    mode = next(torch_private.fake_mode_of(item) for item in values if torch_private.is_fake(item))
    return torch_private.new_fake_like_real(mode, torch.empty((), dtype=dtype, device="cpu"))


def as_tensors(inputs: Sequence[Any], dtypes: dict[int, torch.dtype]) -> list[Any]:
    """Returns the inputs of the graph with 0-d tensors in place of numbers."""
    return [
        torch.tensor(value, dtype=dtypes[index], device="cpu") if index in dtypes else value
        for index, value in enumerate(inputs)
    ]


def given_tensors(
    function: Callable[..., Sequence[Any]], dtypes: dict[int, torch.dtype]
) -> Callable[[list[Any]], Sequence[Any]]:
    """Returns a runner that calls `function` with 0-d tensors in place of numbers."""
    if not dtypes:
        return lambda inputs: function(*inputs)
    return lambda inputs: function(*as_tensors(inputs, dtypes))
