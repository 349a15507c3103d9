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
    def of(cls, given: Any) -> Inputs:
        """Returns the arguments that a user wrote as an `Inputs`.

        Args:
            given: An `Inputs`, a tuple or list of positional arguments, a dictionary of keyword
                arguments, or a single argument.
        """
        if isinstance(given, Inputs):
            return given
        if isinstance(given, (tuple, list)):
            return cls(*given)
        return cls(**given) if isinstance(given, Mapping) else cls(given)
