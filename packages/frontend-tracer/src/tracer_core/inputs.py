"""`Inputs`: the arguments of a call that is made before the program makes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Inputs:
    """The arguments of a call, for `warmup` and `compile_many`.

    Args:
        *args: The positional arguments.
        **kwargs: The keyword arguments.

    Examples:
        >>> tracer_core.warmup(fast, tracer_core.Inputs(x, mask=mask))
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs

    @classmethod
    def of(cls, value: Any) -> Inputs:
        """Returns the arguments that a user wrote as an `Inputs`.

        Args:
            value: An `Inputs`, a tuple or list of positional arguments, a dictionary of keyword
                arguments, or a single argument.
        """
        if isinstance(value, Inputs):
            return value
        if isinstance(value, (tuple, list)):
            return cls(*value)
        return cls(**value) if isinstance(value, Mapping) else cls(value)
