"""`Inputs`: the arguments of a call that is made before the program makes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Inputs:
    """The arguments of a call, for `warmup` and `compile_many`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs

    @classmethod
    def of(cls, given: Any) -> Inputs:
        """Returns the arguments that a user wrote: an `Inputs`, a tuple or list of positional ones, a
        dictionary of keyword arguments, or the only one."""
        if isinstance(given, Inputs):
            return given
        if isinstance(given, (tuple, list)):
            return cls(*given)
        return cls(**given) if isinstance(given, Mapping) else cls(given)
