"""Autograd is told what a graph writes to.

In: what a backend runs and its `CompileSpec`. Out: the same, counting up the version of each input
that the graph writes to. What always holds: after a call, whoever compares versions sees the write:
a backward that saved the tensor raises as it does in eager mode, and constants made from it are
made again. After a call that raised, those that it may have written to are counted. Kernels of a
backend write through addresses, which autograd does not see; operators of torch count by
themselves, and a second count does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.contract.branch_prediction import Mispredicted, committing
from tracer_core.contract.runner import RunFunction
from tracer_core.contract.specs import CompileSpec
from tracer_core.ops.calls import RESHAPE_IN_PLACE, name_of


def versions_counted(
    run: RunFunction, spec: CompileSpec, early: frozenset[int] | None
) -> RunFunction:
    """`run` itself where the graph writes to no input. early: its runner's `mutated_on_error`."""
    if not spec.mutations:
        return run
    mutations = spec.mutations
    before = [early is None or index in early for index in mutations]

    def call(inputs: list[Any]) -> Sequence[Any]:
        written = [inputs[index] for index in mutations]  # a runner may clear the list
        try:
            return run(inputs)
        except Mispredicted:
            written = []
            raise
        except Exception as error:
            # which any allocation may raise, after any of the writes
            if not torch_private.is_out_of_memory(error):
                written = [item for item, is_early in zip(written, before, strict=True) if is_early]
            raise
        finally:
            torch.autograd.graph.increment_version(written)

    return committing(call, run)


def reshapes_counted(run: RunFunction, graph: torch.fx.Graph) -> RunFunction:
    """Returns `run`, which counts up the versions of inputs whose views get other sizes or strides in
    place (``x[:].t_()``): that leaves nothing in a functional form of the captured graph."""
    places = _reshaped(graph)
    if not places:
        return run

    def call(inputs: list[Any]) -> Sequence[Any]:
        torch.autograd.graph.increment_version(
            [inputs[at] for at in places if not inputs[at].is_inference()]
        )
        return run(inputs)

    return call


def _reshaped(graph: torch.fx.Graph) -> list[int]:
    """Returns the positions of these inputs, once for each such operator."""
    reshaping = [
        node.meta["writes"]
        for node in graph.nodes
        if "writes" in node.meta and name_of(node.target) in RESHAPE_IN_PLACE
    ]
    if not reshaping:
        return []
    values = [node.meta.get("val") for node in graph.find_nodes(op="placeholder")]
    return [
        at
        for writes in reshaping
        for at, value in enumerate(values)
        if isinstance(value, torch.Tensor) and torch_private.storage_id(value) in writes
    ]
