"""Python versions of functions written in C that call user code: these are interpreted in their place.

In: the arguments of the original. Out: what it gives. What always holds: nothing here does more or less than the
original as its documentation describes it; nothing here is called by the tracer itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch


def count(start: Any = 0, step: Any = 1) -> Iterator[Any]:
    """itertools.count of numbers that are no plain ints or floats"""
    value = start
    while True:
        yield value
        value = value + step


_NOTHING = object()


class GroupBy:
    """itertools.groupby. Mutable."""

    def __init__(self, iterable: Iterable[Any], key: Callable[[Any], Any] | None = None) -> None:
        self.items = iter(iterable)
        self.key = key
        self.target = self.current_key = self.value = _NOTHING
        self.group: object = None

    def __iter__(self) -> GroupBy:
        return self

    def __next__(self) -> tuple[Any, Iterator[Any]]:
        self.group = object()
        while self.current_key is self.target or self.current_key == self.target:
            self.value = next(self.items)
            self.current_key = self.value if self.key is None else self.key(self.value)
        self.target = self.current_key
        return self.current_key, self._members(self.target, self.group)

    def _members(self, target: Any, group: object) -> Iterator[Any]:
        while self.group is group and (self.current_key is target or self.current_key == target):
            yield self.value
            try:
                self.value = next(self.items)
            except StopIteration:
                self.current_key = self.target = _NOTHING
                self.items = iter(())
                return
            self.current_key = self.value if self.key is None else self.key(self.value)


def use_grad_for_differentiable(step: Any, args: Any, kwargs: Any) -> Any:
    """What torch.optim's _use_grad_for_differentiable puts around Optimizer.step"""
    before = torch.is_grad_enabled()
    try:
        torch.set_grad_enabled(args[0].defaults["differentiable"])
        return step(*args, **kwargs)
    finally:
        torch.set_grad_enabled(before)


def cached_property_get(self: Any, instance: Any, owner: Any = None) -> Any:
    """functools.cached_property.__get__ without its lock, which no other thread can want in a trace"""
    if instance is None:
        return self
    if self.attrname is None:
        raise TypeError("Cannot use cached_property instance without calling __set_name__ on it.")
    if not hasattr(instance, "__dict__"):
        raise TypeError(
            f"No '__dict__' attribute on {type(instance).__name__!r} "
            f"instance to cache {self.attrname!r} property."
        )
    cache = instance.__dict__
    value = cache.get(self.attrname, _NOTHING)
    if value is _NOTHING:
        value = self.func(instance)
        cache[self.attrname] = value
    return value
