"""Runs a program eagerly and compiled, with a backward pass after each call, and compares gradients
too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tracer_core
from tracer_core.testing import CaptureCounter, compare
from tracer_core.testing.compare import tensors_in


def same_gradients(
    make: Callable[[], Any],
    *calls: tuple[Any, ...],
    graphs: int | None = None,
    breaks: int | None = 0,
    steps: dict[int, Callable[[Any], Any]] | None = None,
    backend: Any = "eager",
) -> CaptureCounter:
    """make() -> a function or module, anew for each side. steps: call number -> change made to it
    before that call. Results, gradients of arguments and of parameters, and random numbers must be
    eager's."""
    eager, target = make(), make()
    compiled = tracer_core.compile(target, backend=backend)
    with CaptureCounter() as counter:
        for number, call in enumerate(calls):
            for side in (eager, target) if steps and number in steps else ():
                steps[number](side)
            want, got = _run(eager, eager, call), _run(compiled, target, call)
            compare(want, got, path=f"call {number}: ")
    messages = f"graphs {counter.graphs}, breaks {counter.breaks}, recompiles {counter.recompiles}"
    assert breaks is None or len(counter.breaks) == breaks, messages
    assert graphs is None or len(counter.graphs) == graphs, messages
    return counter


def _run(fn: Any, owner: Any, call: tuple[Any, ...]) -> tuple[Any, ...]:
    args = [
        a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a
        for a in call
    ]
    torch.manual_seed(0)
    result = fn(*args)
    wanted = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    if isinstance(owner, torch.nn.Module):
        wanted += [p for p in owner.parameters() if p.requires_grad]
    roots = [t for t in tensors_in(result) if t.requires_grad]
    grads: tuple[Any, ...] = ()
    if roots and wanted:
        for tensor in wanted:
            tensor.grad = None
        torch.stack(
            [(root * (i + 1)).float().sum() for i, root in enumerate(roots)]
        ).sum().backward()
        grads = tuple(tensor.grad for tensor in wanted)
    return result, grads, torch.get_rng_state()


class OperatorCount(TorchDispatchMode):
    """How often each ATen operator ran while entered."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.counts[name] = self.counts.get(name, 0) + 1
        return func(*args, **(kwargs or {}))
