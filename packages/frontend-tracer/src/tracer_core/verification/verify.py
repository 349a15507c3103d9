"""`verify`: a compiled object beside its original in eager mode, and in eager mode with float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracer_core.api import demand_capture
from tracer_core.errors import OptionError
from tracer_core.markers import compiled
from tracer_core.verification.result import Verification


def verify(fast: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Verification:
    """Compares a compiled object with eager mode on one call's arguments.

    Runs the compiled graphs (never eager mode because that is faster), the original, and the
    original with float64 in place of all floating-point numbers. Each run has copies of the tensor
    arguments, the same random states, and the same state of modules, optimizers and tensors that the
    program reaches; all of it is restored afterwards. Other effects (prints, files) happen in each.

    Where a result requires grad, gradients of parameters and arguments are compared for random
    gradients of the results. Where the program computes gradients itself, its ``.grad`` are.

    A row passes if its error against float64 is at most the tolerance of its dtype, or four times
    eager's own. Without a float64 reference (the program casts, an operator has no float64 kernel,
    random numbers differ) it is compared with eager, and says so. Integers must be equal, results
    must have eager's strides.

    Args:
        fast: What `compile` returned.
        *args: Arguments of the call.
        **kwargs: Keyword arguments of the call.

    Returns:
        A `Verification`: ``ok``, ``rows``, ``notes``, ``raise_if_wrong()``. What the program raises
        is a row.

    Raises:
        OptionError: `fast` is not a compiled object.

    Examples:
        >>> fast = tracer_core.compile(model)
        >>> print(tracer_core.verify(fast, x))
        >>> tracer_core.verify(fast, x).raise_if_wrong()
    """
    demand_capture("verify")
    behind = compiled(fast)
    if behind is None:
        raise OptionError(f"verify needs what compile() returned, not {fast!r}")
    from tracer_core.verification import runs  # heavy: the tracer

    return runs.compared(fast, behind.function, args, kwargs)
