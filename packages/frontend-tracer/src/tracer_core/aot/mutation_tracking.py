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
from tracer_core.contract.runner import RunFunction
from tracer_core.contract.specs import CompileSpec


def versions_counted(
    run: RunFunction, spec: CompileSpec, early: frozenset[int] | None
) -> RunFunction:
    """`run` itself where the graph writes to no input. early: its runner's `mutated_on_error`."""
    if not spec.mutations:
        return run
    mutations = spec.mutations
    if early is None:

        def call(inputs: list[Any]) -> Sequence[Any]:
            # before the call: a runner may clear the list that it gets
            torch.autograd.graph.increment_version([inputs[index] for index in mutations])
            return run(inputs)

        return call

    before = [index in early for index in mutations]

    def call_knowing(inputs: list[Any]) -> Sequence[Any]:
        written = [inputs[index] for index in mutations]
        try:
            return run(inputs)
        except Exception as error:
            # which any allocation may raise, after any of the writes
            if not torch_private.is_out_of_memory(error):
                written = [one for one, is_early in zip(written, before, strict=True) if is_early]
            raise
        finally:
            torch.autograd.graph.increment_version(written)

    return call_knowing
