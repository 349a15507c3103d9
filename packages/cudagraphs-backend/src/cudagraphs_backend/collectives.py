"""Collectives inside a capture: the host issues them between the captured parts.

A CUDA graph that holds collectives ties every rank to the same captures, and its communicator to
its own life. Here a capture ends before each collective and before the wait for one, and goes on
after it; a replay replays the parts and issues the collectives between them, as a plain call does.
Ranks therefore need not agree on what is captured, and every kind of process group serves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from cudagraphs_backend import torch_private
from tracer_core.plugin_api import communicates, operators

_ops = operators("_c10d_functional")

WAIT = _ops.wait_tensor.default

#: Collectives that can write over their operand, by the functional one: a copy of the operand is
#: part of the capture.
_OVER = {
    _ops.all_reduce.default: _ops.all_reduce_.default,
    _ops.broadcast.default: _ops.broadcast_.default,
}

#: Collectives that can write into a given tensor (`Missing` in older releases of torch).
_INTO = {
    item: into
    for item, into in (
        (_ops.all_gather_into_tensor.default, _ops.all_gather_into_tensor_out.default),
        (_ops.reduce_scatter_tensor.default, _ops.reduce_scatter_tensor_out.default),
    )
    if isinstance(into, torch_private.OpOverload)
}


class CollectivesBetween(torch_private.DispatchMode):
    """Active while a graph is captured. between: called with what the host is to do between two
    parts; it ends the part that is being captured and begins the next."""

    def __init__(self, between: Callable[[Callable[[], object]], None]) -> None:
        super().__init__()
        self._between = between
        #: Storage of a result -> what waits for it, and the operands, whose memory a collective
        #: reads until then.
        self._waits: dict[int, tuple[Callable[[], object], Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is WAIT:
            return self._wait(args[0])
        if communicates(func):
            return self._issue(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _wait(self, result: torch.Tensor) -> torch.Tensor:
        wait = self._waits.pop(_key(result), None)
        if wait is None:
            raise RuntimeError("it waits for a collective that is not in the graph")
        self._between(wait[0])
        return result

    def _issue(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        created = _results(func, args, kwargs)
        results = _listed(created)
        if func in _OVER:
            results[0].copy_(args[0])
        places = [torch_private.by_address(result) for result in results]
        inputs, named = torch_private.tree_map_only(
            torch.Tensor, torch_private.by_address, (args, kwargs)
        )
        if func in _OVER:
            issue = partial(_OVER[func], places[0], *inputs[1:], **named)
            waits = [partial(WAIT, places[0])]
        elif func in _INTO:
            issue = partial(_INTO[func], *inputs, **named, out=places[0])
            waits = [partial(WAIT, places[0])]
        else:
            fresh: list[Any] = []
            issue = partial(_fill, fresh, partial(func, *inputs, **named))
            waits = [partial(_take, fresh, *place) for place in enumerate(places)]
        self._between(issue)
        for result, wait in zip(results, waits, strict=True):
            if func.namespace == "_dtensor":  # done when it returns
                self._between(wait)
            else:
                self._waits[_key(result)] = wait, (args, kwargs)
        return created


def _results(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Returns uninitialised tensors for a collective's results, which are contiguous whatever its
    operands and its meta function say."""
    device = _listed(args[0])[0].device

    def empty(like: torch.Tensor, where: Any = device) -> torch.Tensor:
        return torch.empty(like.shape, dtype=like.dtype, device=where)

    with torch_private.without_modes():
        inputs = torch_private.tree_map_only(torch.Tensor, partial(empty, where="meta"), args)
        result = func(*inputs, **kwargs)
    return torch_private.tree_map_only(torch.Tensor, empty, result)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _fill(fresh: list[Any], issue: Callable[[], Any]) -> None:
    """Issues a collective; `fresh` gets its results."""
    fresh[:] = _listed(issue())


def _take(fresh: list[Any], index: int, place: torch.Tensor) -> None:
    """Waits for a result of a collective and copies it to its place."""
    result, fresh[index] = fresh[index], None
    place.copy_(WAIT(result))


def _key(tensor: torch.Tensor) -> int:
    return torch_private.storage_key(tensor.untyped_storage())
