"""Trains a model eagerly and compiled on every rank, and compares everything: with eager, and from
rank to rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from tests.distributed.models import MODELS, batches, loss_of
from tracer_core.plugin_api import hookimpl
from tracer_core.registry.discovery import manager
from tracer_core.testing import CaptureCounter, Tolerance, compare

#: With the backend "eager" the compiled model runs eager's own operators.
EXACT = Tolerance(rtol=0, atol=0)
CLOSE = Tolerance(rtol=2e-5, atol=1e-6)

#: step(model, optimizer, loss(x, y), batches) -> what is compared beside the model.
Step = Callable[[Any, Any, Callable[..., torch.Tensor], Any], Any]


def whole(tensor: Any) -> Any:
    """A plain copy: of a tensor that is split over the ranks, all of it."""
    if isinstance(tensor, torch.Tensor):
        full = getattr(tensor, "full_tensor", None)
        return (tensor if full is None else full()).detach().clone()
    return tensor


def state_of(model: torch.nn.Module) -> dict[str, Any]:
    """Parameters, their gradients, buffers."""
    actual: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        actual[name] = whole(parameter)
        actual[f"{name}.grad"] = whole(parameter.grad)
    for name, buffer in model.named_buffers():
        actual[name] = whole(buffer)
    return actual


def plain_step(
    model: Any, optimizer: Any, loss: Callable[..., torch.Tensor], x: Any, y: Any
) -> list[Any]:
    optimizer.zero_grad()
    value = loss(x, y)
    value.backward()
    seen = [whole(value)]
    seen += [whole(parameter.grad) for parameter in model.parameters()]
    optimizer.step()
    return seen


def train(
    name: str, model: Any, data: Sequence[Any], step: Any = plain_step, call: Any = None
) -> list[Any]:
    """What each step saw, and what the model is in the end. call(x, y): the loss, where it is not
    the model's own.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    seen: list[Any] = []
    for x, y in data:
        loss = call or (lambda x, y: loss_of(name, model, x, y))
        torch.manual_seed(1)  # dropout
        seen.append(step(model, optimizer, loss, x, y))
    seen.append(state_of(model))
    return seen


def compare_training(
    name: str,
    eager: Callable[[torch.nn.Module], Any],
    compiled: Callable[[torch.nn.Module], Any],
    *,
    steps: int = 3,
    step: Any = plain_step,
    tolerance: Tolerance = EXACT,
    size: int | None = None,
    shared: bool = True,
) -> dict[str, Any]:
    """Trains ``eager(model)`` and ``compiled(model)``. shared: the parameters must be equal on all
    ranks. Returns how often capture did what."""
    data = list(batches(name, steps, size or 5))
    make = MODELS[name][0]
    want = train(name, eager(make()), data, step)
    with CaptureCounter() as counter, no_fallbacks():
        model = compiled(make())
        got = train(name, model, data, step)
    compare(want, got, tolerance)
    if shared:
        same_on_all_ranks([whole(parameter) for parameter in model.parameters()])
    return counts_of(counter)


class _Fallbacks:
    """What ran without its backend, although that trains."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    @hookimpl
    def tracer_stage_finished(self, stage: str, text: str) -> None:
        if stage == "fallback" and not text.startswith(
            "training:"
        ):  # a backend for inference only says so
            self.texts.append(text)


@contextmanager
def no_fallbacks() -> Iterator[None]:
    """Fails if a graph that is compiled meanwhile runs without its backend."""
    listener = _Fallbacks()
    manager().register(listener)
    try:
        yield
    finally:
        manager().unregister(listener)
    assert not listener.texts, listener.texts


def same_on_all_ranks(mine: Any) -> None:
    """Fails on the ranks that have something else than rank 0."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    compare(everyone[0], mine, EXACT, "across ranks: ")


def counts_of(counter: CaptureCounter) -> dict[str, Any]:
    return {
        "graphs": len(counter.graphs),
        "breaks": [kind for kind, _, _ in counter.breaks],
        "recompiles": len(counter.recompiles),
    }
