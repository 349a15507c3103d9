"""The differential check: a program must do the same eagerly and compiled, over several calls.

In: a function or module and its arguments. Out: a `Report`, or a Mismatch. Compared after each call
are the result, exceptions, the arguments, the state of modules, aliasing, the states of random
generators and, if asked, gradients.
"""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from tracer_core.testing.compare import (
    Mismatch,
    Tolerance,
    compare,
    compare_aliasing,
    error_ratio,
    tensors_in,
)
from tracer_core.testing.counting import CaptureCounter

#: What a program must not do worse than, against float64.
ERROR_LIMIT = 3.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one call."""

    #: The result, or the exception.
    result: Any
    #: Its positional arguments afterwards.
    args: tuple[Any, ...]
    #: Its keyword arguments afterwards.
    kwargs: Mapping[str, Any]
    #: The module's parameters and buffers.
    state: Mapping[str, torch.Tensor]
    #: States of torch's and Python's generators.
    rng: tuple[Any, ...]
    #: Gradients of arguments and parameters.
    grads: tuple[torch.Tensor | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """What `check` found."""

    #: The compiled function, for more calls.
    compiled: Callable[..., Any]
    #: One per call.
    outcomes: tuple[Outcome, ...]
    #: Graphs, breaks and recompiles.
    counter: CaptureCounter
    #: The error against float64 over eager's, or None.
    error_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """How the calls are made."""

    #: Whether backward runs, from the sum of the results.
    grad: bool = False
    #: The seed of all generators.
    seed: int = 0
    #: How far values may differ.
    tolerance: Tolerance = field(default_factory=Tolerance)


def check(
    fn: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    calls: int = 3,
    backend: Any = "eager",
    graphs: int | None = None,
    breaks: int | None = None,
    grad: bool = False,
    rtol: float | None = None,
    atol: float | None = None,
    truth: bool = False,
    fresh: Callable[[], Callable[..., Any]] | None = None,
    strides: bool = True,
    **compile_arguments: Any,
) -> Report:
    """Runs `fn` eagerly and compiled on copies of `args`, `calls` times each, and compares.

    backend and compile_arguments: passed to `tracer_core.compile`. graphs, breaks: how many the
    compiled side must have made in all. grad: gradients of arguments and parameters are compared
    too. rtol, atol: None takes torch.testing's for each dtype. truth: also demand that the error
    against float64 is at most 3 times eager's. fresh: makes `fn` anew for each side, for functions
    that change globals or closures; modules are copied anyway. Raises Mismatch (an AssertionError)
    naming the place of the first difference.
    """
    import tracer_core  # lazy as the public API: a harness must not load it before its user does

    setting = Setting(grad=grad, tolerance=Tolerance(rtol, atol, strides))
    simple = fresh() if fresh else copied(fn)
    target = fresh() if fresh else copied(fn)
    compiled = tracer_core.compile(target, backend=backend, **compile_arguments)
    outcomes = []
    with CaptureCounter() as counter:
        for number in range(calls):
            expected = call_once(simple, simple, args, kwargs or {}, setting)
            actual = call_once(compiled, target, args, kwargs or {}, setting)
            compare_outcomes(expected, actual, setting.tolerance, f"call {number}: ")
            outcomes.append(actual)
    _demand("graphs", graphs, len(counter.graphs), counter)
    _demand("graph breaks", breaks, len(counter.breaks), counter)
    ratio = truth_ratio(fn, compiled, args, kwargs or {}) if truth else None
    if ratio is not None and ratio > ERROR_LIMIT:
        raise Mismatch(
            "error against float64", f"{ratio:.2f} times eager's, at most {ERROR_LIMIT} allowed"
        )
    return Report(compiled, tuple(outcomes), counter, ratio)


def copied(value: Any) -> Any:
    """A module's copy; functions are shared."""
    return copy.deepcopy(value) if isinstance(value, torch.nn.Module) else value


def call_once(
    fn: Callable[..., Any],
    owner: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    setting: Setting,
) -> Outcome:
    """Makes one seeded call of `fn` on copies of its arguments.

    Args:
        fn: What is called.
        owner: The module whose state belongs to it, or None.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        setting: How the call is made.
    """
    args, kwargs = copy.deepcopy((args, dict(kwargs)))
    torch.manual_seed(setting.seed)
    random.seed(setting.seed)
    try:
        result = fn(*args, **kwargs)
    except Exception as error:
        result = error
    parameters = list(owner.parameters()) if isinstance(owner, torch.nn.Module) else []
    grads: tuple[torch.Tensor | None, ...] = ()
    if setting.grad and not isinstance(result, Exception):
        grads = _gradients(result, [*tensors_in((args, kwargs)), *parameters])
    state = dict(owner.state_dict(keep_vars=True)) if isinstance(owner, torch.nn.Module) else {}
    rng = (torch.get_rng_state(), random.getstate())
    return Outcome(
        result, args, kwargs, {k: v.detach().clone() for k, v in state.items()}, rng, grads
    )


def _gradients(result: Any, wanted: list[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
    roots = [tensor for tensor in tensors_in(result) if tensor.requires_grad]
    leaves = [tensor for tensor in wanted if tensor.requires_grad and tensor.is_leaf]
    if not roots or not leaves:
        return ()
    total = torch.stack([root.float().sum() for root in roots]).sum()
    return torch.autograd.grad(total, leaves, allow_unused=True)


def compare_outcomes(
    expected: Outcome, actual: Outcome, tolerance: Tolerance, prefix: str = ""
) -> None:
    """Raises Mismatch where two calls differ."""
    if isinstance(expected.result, Exception) or isinstance(actual.result, Exception):
        _compare_exceptions(expected.result, actual.result, prefix)
    else:
        compare(expected.result, actual.result, tolerance, f"{prefix}result")
        compare_aliasing(
            [expected.args, expected.kwargs, expected.result],
            [actual.args, actual.kwargs, actual.result],
            f"{prefix}aliasing",
        )
    compare(expected.args, actual.args, tolerance, f"{prefix}arguments")
    compare(expected.kwargs, actual.kwargs, tolerance, f"{prefix}keyword arguments")
    compare(expected.state, actual.state, tolerance, f"{prefix}module state")
    compare(expected.grads, actual.grads, tolerance, f"{prefix}gradients")
    compare(expected.rng, actual.rng, Tolerance(0, 0), f"{prefix}random state")


def _compare_exceptions(expected: Any, actual: Any, prefix: str) -> None:
    same = type(expected) is type(actual) and str(expected) == str(actual)
    if not same:
        mismatch = Mismatch(f"{prefix}exception", f"{actual!r}, expected {expected!r}")
        raise mismatch from (actual if isinstance(actual, Exception) else None)


def _demand(what: str, wanted: int | None, number: int, counter: CaptureCounter) -> None:
    if wanted is not None and wanted != number:
        detail = f"{counter.graphs}; breaks: {counter.breaks}; recompiles: {counter.recompiles}"
        raise Mismatch(what, f"{number}, expected {wanted} ({detail})")


def truth_ratio(
    fn: Callable[..., Any],
    compiled: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> float:
    """The compiled result's error against float64, as a multiple of eager's own."""
    with torch.no_grad() if not torch.is_grad_enabled() else contextlib.nullcontext():
        eager = copied(fn)(*copy.deepcopy(args), **copy.deepcopy(dict(kwargs)))
        ours = compiled(*copy.deepcopy(args), **copy.deepcopy(dict(kwargs)))
        exact_fn = copied(fn).double() if isinstance(fn, torch.nn.Module) else fn
        exact = exact_fn(*doubled(args), **doubled(dict(kwargs)))
    return error_ratio(exact, eager, ours)


def doubled(value: Any) -> Any:
    """A copy of a structure of lists, tuples and dicts with its floating tensors in float64."""
    if isinstance(value, torch.Tensor):
        return value.detach().double() if value.is_floating_point() else value.clone()
    if isinstance(value, (list, tuple)):
        return type(value)(doubled(item) for item in value)
    if isinstance(value, dict):
        return {key: doubled(item) for key, item in value.items()}
    return copy.deepcopy(value)
