"""Trains one model twice, eagerly and with the whole step compiled, and compares everything, bit by
bit.

In: `make`, which builds model, optimizer and step function anew for each side. Out: the counter of
graphs, breaks and recompiles. What always holds: after each step the result, parameters, buffers,
gradients and the optimizer's state have the same bits, strides and properties on both sides.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

import tracer_core
from tracer_core.testing import CaptureCounter, Mismatch

X, Y = (
    torch.randn(6, 4, generator=torch.Generator().manual_seed(1)),
    torch.tensor([0, 1, 2, 1, 0, 2]),
)


@dataclass
class Side:
    """One of the two programs. step: what is compiled. watched: modules, optimizers, tensors,
    containers of them. changes: functions called between steps, by the number of the step that
    follows."""

    step: Callable[..., Any]
    watched: Any
    changes: Mapping[int, Callable[[], Any]] = field(default_factory=dict)


def mlp(seed: int = 0, *, bias: bool = True) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8, bias=bias), torch.nn.Tanh(), torch.nn.Linear(8, 3, bias=bias)
    )


def trained(
    make: Callable[[], Side],
    *calls: tuple[Any, ...],
    graphs: int | None = None,
    breaks: int | None = 0,
    kinds: tuple[str, ...] | None = None,
    recompiles: int | None = None,
    **options: Any,
) -> CaptureCounter:
    """Runs every call on both sides (three times (X, Y) if none is given). graphs, breaks,
    recompiles: what capture must have done, in all."""
    options.setdefault("backend", "eager")
    eager, target = make(), make()
    compiled = tracer_core.compile(target.step, **options)
    with CaptureCounter() as counter:
        for number, call in enumerate(calls or ((X, Y),) * 3):
            for side in (eager, target):
                if number in side.changes:
                    side.changes[number]()
            want, got = _outcome(eager.step, call), _outcome(compiled, call)
            _same(want, got, f"step {number}: result")
            _same(eager.watched, target.watched, f"step {number}: state")
    messages = f"graphs {counter.graphs}, breaks {counter.breaks}, recompiles {counter.recompiles}"
    for what, wanted, actual in (
        ("graphs", graphs, len(counter.graphs)),
        ("breaks", breaks, len(counter.breaks)),
        ("kinds", kinds, tuple(dict.fromkeys(kind for kind, _, _ in counter.breaks))),
        ("recompiles", recompiles, len(counter.recompiles)),
    ):
        if wanted is not None and wanted != actual:
            raise Mismatch(what, f"{actual}, expected {wanted}; {messages}")
    return counter


def _outcome(step: Callable[..., Any], call: tuple[Any, ...]) -> Any:
    args = copy.deepcopy(call)
    torch.manual_seed(0)
    try:
        result = step(*args)
    except Exception as error:
        result = (type(error), str(error))
    return result, args, torch.get_rng_state(), torch.is_grad_enabled()


def _same(want: Any, got: Any, path: str) -> None:
    wanted, items = list(_facts(want, path)), list(_facts(got, path))
    for item, other in zip(wanted, items, strict=False):
        if item != other:
            raise Mismatch(item[0], f"{other[1:]}, expected {item[1:]}")
    if len(wanted) != len(items):
        raise Mismatch(path, f"{len(items)} parts, expected {len(wanted)}")


def _facts(value: Any, path: str) -> Iterator[tuple[Any, ...]]:
    """(path, what is there) of everything in a value; tensors by their bits."""
    if isinstance(value, torch.Tensor):
        eager = value.detach()
        if eager.layout is not torch.strided:
            eager = eager.to_dense()
        bits = (
            bytes(eager.contiguous().view(-1).view(torch.uint8).numpy()) if eager.numel() else b""
        )
        yield path, value.dtype, tuple(value.shape), value.stride() if eager.layout is value.layout else None, \
            value.requires_grad, value.is_leaf, str(eager.flatten()[:4].tolist()), bits  # fmt: skip
        if value.is_leaf:
            yield from _facts(value.grad, f"{path}.grad")
    elif isinstance(value, torch.nn.Module):
        yield from _facts(
            [(name, item) for name, item in value.state_dict(keep_vars=True).items()], path
        )
    elif isinstance(
        value, (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)
    ):
        yield from _facts(value.state_dict(), path)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _facts(item, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        yield path, len(value)
        for index, item in enumerate(value):
            yield from _facts(item, f"{path}[{index}]")
    else:
        yield path, type(value), repr(value)
