"""Calls of cached functions as objects, which guards make again."""

from __future__ import annotations

from typing import Any


class WithRest:
    """A cached function whose first argument is given later."""

    def __init__(self, cached: Any, *rest: Any, **kwargs: Any) -> None:
        self.cached, self.rest, self.kwargs = cached, rest, kwargs
        self.__qualname__ = getattr(cached, "__qualname__", "cached")

    def __call__(self, first: Any) -> Any:
        return self.cached(first, *self.rest, **self.kwargs)
