"""Version counters of mutated inputs: makes autograd see what a compiled graph writes, also when it
raises.

Kernels of a backend write through addresses, which bumps no version; torch operators bump versions
themselves, and a second bump does no harm. After a call, a backward that saved a mutated tensor
raises as in eager, and constants made from the tensor are prepared again. After a call that raised,
the inputs that it may have mutated are bumped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from tracer_core.contract.backend import Runner
from tracer_core.contract.specs import CompileSpec


def early_writes(runner: Any) -> frozenset[int] | None:
    """Indices of the inputs that a runner may have written to when it raises; None where that is
    not known.
    """
    found: frozenset[int] | None = getattr(runner, "written_early", None)
    return found


def writing_like(runner: Runner, inner: Any) -> Runner:
    """`runner`, which writes to its inputs where `inner` does, and says so."""
    early = early_writes(inner)
    if early is not None:
        runner.written_early = early  # type: ignore[attr-defined]
    return runner


def versions_counted(run: Runner, spec: CompileSpec, early: frozenset[int] | None) -> Runner:
    """`run` itself where the graph writes to no input. early: see `early_writes`."""
    if not spec.mutations:
        return run
    mutations = spec.mutations
    if early is None:

        def call(inputs: list[Any]) -> Sequence[Any]:
            # before the call: a runner may clear the list that it gets
            _count(inputs[index] for index in mutations)
            return run(inputs)

        return call

    before = [index in early for index in mutations]

    def call_knowing(inputs: list[Any]) -> Sequence[Any]:
        written = [inputs[index] for index in mutations]
        try:
            return run(inputs)
        except Exception as error:
            if not _may_come_anywhere(error):
                written = [one for one, is_early in zip(written, before, strict=True) if is_early]
            raise
        finally:
            _count(written)

    return call_knowing


def _may_come_anywhere(error: Exception) -> bool:
    """Whether any allocation raises it: a graph may have written to all of its inputs by then."""
    short = isinstance(error, (torch.OutOfMemoryError, MemoryError))
    return short or "allocate memory" in str(error)  # of the CPU's allocator: a RuntimeError


def _count(written: Iterable[torch.Tensor]) -> None:
    torch.autograd.graph.increment_version([one for one in written if not one.is_inference()])
