"""The steps of scans, branches and loops (`tracer_core.ops.higher_order`) as graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.aten_recorder import AtenRecorder
from tracer_core.aot.symbolic_sizes import size_origins, size_specs
from tracer_core.contract.specs import SizeSpec
from tracer_core.ops.higher_order.scan import function_of


def step_of(
    node: torch.fx.Node,
    parts: tuple[Sequence[Any], Sequence[Any], Sequence[Any]],
    program: str,
    table: Mapping[Any, Callable[..., Any]],
) -> tuple[torch.fx.GraphModule, tuple[SizeSpec, ...]]:
    """Returns a program of an operator's call in a lowered graph, as an ATen graph with values, and
    its symbolic sizes.

    parts: of the call's arguments, the tensors that the program takes whole, those of which it takes
    slices, and numbers. table: operator -> function that runs others instead.
    """
    tensors, rows = ([item.meta["val"] for item in part] for part in parts[:2])
    mode = torch_private.fake_mode_of((*tensors, *rows)[0])
    recorder = AtenRecorder(mode, table)
    recorder.frame = node.meta.get("user_frame") or ""
    with torch.no_grad(), mode:
        inputs = [_dense(tensor.shape, tensor) for tensor in tensors]
        inputs += [_dense(row.shape[1:], row) for row in rows]
        inputs += [_value(item) for item in parts[2]]
        for k, value in enumerate(inputs):
            recorder.add_input(f"step_{k}", value)
        with recorder:
            results = function_of(program)(*inputs)
    recorder.graph.output(tuple(recorder.node_of(result) for result in results))
    gm = torch.fx.GraphModule(torch.nn.Module(), recorder.graph)
    return gm, size_specs(size_origins(recorder.inputs))


def scalars_of(program: str, dtypes: Sequence[torch.dtype]) -> torch.fx.GraphModule:
    """Returns the step of `ASSOCIATIVE` as a graph of numbers: x0, x1, ... combined with y0, y1,
    ...; it returns the results twice."""
    mode = torch_private.fake_tensor_mode()
    recorder = AtenRecorder(mode, {})
    with torch.no_grad(), mode:
        inputs = [torch.empty((), dtype=dtype) for dtype in (*dtypes, *dtypes)]
        names = [f"{side}{k}" for side in "xy" for k in range(len(dtypes))]
        for name, value in zip(names, inputs, strict=True):
            recorder.add_input(name, value)
        with recorder:
            results = function_of(program)(*inputs)
    recorder.graph.output(tuple(recorder.node_of(result) for result in results))
    return torch.fx.GraphModule(torch.nn.Module(), recorder.graph)


def _dense(sizes: Sequence[Any], like: torch.Tensor) -> torch.Tensor:
    return torch.empty(sizes, dtype=like.dtype, device=like.device)


def _value(argument: Any) -> Any:
    return argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument
