"""Runs a compiled object and its original with equal inputs, and compares the outcomes.

In: a compiled object and the arguments of a call. Out: a `Verification`. The three runs (compiled,
eager, eager with float64) have equal inputs, random states and program state, which are restored
afterwards; what the program does besides (prints, files) happens in each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tracer_core import preparation
from tracer_core.api import original
from tracer_core.autoselect.candidates import plan_of
from tracer_core.autoselect.verification import TOLERANCES, Tolerance
from tracer_core.execution.call import name_of
from tracer_core.execution.compiled_function import CompiledFunction
from tracer_core.explanation import eager_parts
from tracer_core.switch import disabled, reason_for_eager
from tracer_core.torch_private.memory_layout import same_strides
from tracer_core.torch_private.needed import pytree
from tracer_core.verification.result import Verification, VerificationRow
from tracer_core.verification.state import ProgramState, copied, equal, is_rounded, widened

#: The tolerance of dtypes that `TOLERANCES` does not have (float8).
COARSE = Tolerance(0.25, 0.25)
#: A result may be so many times as far from float64 as eager's; without float64, so many tolerances
#: from eager's.
FACTOR = 4.0
#: A gradient is measured relative to the largest one of the program if it is smaller by this factor.
NEGLIGIBLE = 1e-3
#: Calls until nothing is captured or compiled any more, and seconds to wait for graphs in the
#: background.
CALLS, WAIT = 4, 600.0
_GRADIENT = "gradient of "


@dataclass(frozen=True, slots=True)
class _Outcome:
    """One run. error: what it raised. uses_rng: random numbers were noise."""

    values: Mapping[str, Any] = field(default_factory=dict)
    error: Exception | None = None
    uses_rng: bool = False


def compared(
    fast: Callable[..., Any], function: CompiledFunction, args: Any, kwargs: Any
) -> Verification:
    """Does `verify`. function: behind `fast`."""
    program = original(fast)
    state, inputs = ProgramState(program, (args, kwargs)), {"args": args, "kwargs": kwargs}
    autocast = [torch.autocast(device, enabled=False) for device in ("cpu", "cuda")]
    try:
        with _compiled_calls(function):
            actual = _steady(fast, function, state, inputs)
        notes = list(_ran_eagerly(function))
        with disabled():
            eager = _outcome(program, state, inputs)
            with autocast[0], autocast[1]:
                exact = _outcome(program, state, inputs, wide=True)
    finally:
        state.restore()
    if exact.error is not None and eager.error is None:
        first = str(exact.error).strip().partition("\n")[0][:150]
        notes.append(f"compared with eager: float64 failed ({type(exact.error).__name__}: {first})")
    title = name_of(program) if hasattr(program, "__name__") else type(program).__name__
    return Verification(title, tuple(_rows(actual, eager, exact)), tuple(notes))


def _outcome(
    call: Callable[..., Any], state: ProgramState, inputs: Mapping[str, Any], wide: bool = False
) -> _Outcome:
    """Runs the program once, from the first state."""
    state.restore()
    own, before = copied(inputs, wide), _named(inputs)
    arguments = {name: item for name, item in _named(own).items() if isinstance(item, torch.Tensor)}
    with state.in_double_precision() if wide else contextlib.nullcontext():
        try:
            results = _named({"output": call(*own["args"], **own["kwargs"])})
        except Exception as error:  # what the program raises is compared
            return _Outcome(error=error)
        values, uses_rng = state.changed(), state.rng_moved()
        if not any(name.startswith(_GRADIENT) for name in values):
            values |= _gradients(results, {**state.tensors, **arguments})
    written = {name: item for name, item in arguments.items() if not equal(item, before[name])}
    values |= {f"{name} afterwards": item.detach() for name, item in written.items()}
    return _Outcome(
        {**copied(results), **values}, uses_rng=uses_rng
    )  # results may be what is restored


def _named(value: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the leaves of structures with names: ``args[0]``, ``output.logits``."""
    leaves = (
        (root, *leaf)
        for root, item in value.items()
        for leaf in pytree.tree_flatten_with_path(item)[0]
    )
    return {root + pytree.keystr(path): leaf for root, path, leaf in leaves}


def _gradients(outputs: Mapping[str, Any], candidates: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the gradients of leaves for gradients of the results that are equal in all runs; none
    where the program has run its backward itself."""
    results = [v for v in outputs.values() if isinstance(v, torch.Tensor) and v.grad_fn is not None]
    leaves = {
        name: item for name, item in candidates.items() if item.requires_grad and item.is_leaf
    }
    if not results or not leaves:
        return {}
    source = torch.Generator().manual_seed(0)
    noise = [torch.randn(v.shape, generator=source, dtype=torch.float64).to(v) for v in results]
    try:
        gradients = torch.autograd.grad(results, [*leaves.values()], noise, allow_unused=True)
    except RuntimeError:
        return {}
    return {_GRADIENT + name: item for name, item in zip(leaves, gradients, strict=True)}


@contextlib.contextmanager
def _compiled_calls(function: CompiledFunction) -> Iterator[None]:
    """Context in which no call is made in eager mode because that is faster."""
    regions = function.runtime.regions
    shown = [
        (key, cache, region)
        for key, cache in regions.starts.items()
        if (region := regions.shown(key))
    ]
    for key, cache, region in shown:
        regions.replace(key, region, cache)
    try:
        yield
    finally:
        for key, cache, region in shown:
            regions.replace(key, cache, region)


def _steady(
    fast: Callable[..., Any],
    function: CompiledFunction,
    state: ProgramState,
    inputs: Mapping[str, Any],
) -> _Outcome:
    """Returns the outcome of a call that captures and compiles nothing, and waits for no graph."""
    plan = plan_of(function.config)
    for _ in range(CALLS):
        before = function.runtime.tiering.n_changes
        result = _outcome(fast, state, inputs)
        preparation.progress(function, WAIT)
        for trial in () if plan is None else tuple(plan.trials):
            trial.wait(WAIT)
        if function.runtime.tiering.n_changes == before:
            break
    return result


def _ran_eagerly(function: CompiledFunction) -> Iterator[str]:
    if not function.records and not function.loaded:
        yield f"nothing compiled ran: {reason_for_eager() or 'nothing was captured'}"
    for reason in dict.fromkeys(reason for _, reason in eager_parts(function)):
        yield f"ran in eager mode: {reason}"


def _rows(actual: _Outcome, eager: _Outcome, exact: _Outcome) -> Iterator[VerificationRow]:
    if actual.error is not None or eager.error is not None:
        ok = type(actual.error) is type(eager.error)
        yield _equal_row("exception", ok, f"{actual.error!r}, eager {eager.error!r}"[:300])
    names = dict.fromkeys([*eager.values, *actual.values])
    gradients = [
        item
        for name in names
        if name.startswith(_GRADIENT) and (item := eager.values.get(name)) is not None
    ]
    largest = max((_rms(widened(item)) for item in gradients), default=0.0)
    for name in names if actual.error is None and eager.error is None else ():
        floor = NEGLIGIBLE * largest if name.startswith(_GRADIENT) else 0.0
        yield _row(
            name, [item.values.get(name) for item in (actual, eager, exact)], floor, eager.uses_rng
        )


def _equal_row(
    name: str, ok: bool, detail: str, dtype: torch.dtype | None = None
) -> VerificationRow:
    """Returns the row of what has to be equal."""
    return VerificationRow(name, dtype, float(not ok), None, 0.0, True, ok, detail)


def _row(name: str, values: Sequence[Any], floor: float, uses_rng: bool) -> VerificationRow:
    """Returns the row of a value of the three runs. floor: the least size that errors are relative to."""
    actual, eager, exact = values
    if not isinstance(actual, torch.Tensor) or not isinstance(eager, torch.Tensor):
        return _equal_row(name, *_same_object(actual, eager))
    for what in ("shape", "dtype", "device", "layout", "requires_grad"):
        value, expected = getattr(actual, what), getattr(eager, what)
        if value != expected:
            return _equal_row(name, False, f"{what} {value}, eager's {expected}", eager.dtype)
    strides = eager.layout is not torch.strided or same_strides(eager, actual)
    fits = strides or not name.startswith("output")
    details = [] if strides else [f"strides {actual.stride()}, eager's {eager.stride()}"]
    tolerance = TOLERANCES.get(eager.dtype, COARSE).exact
    own: float | None = None
    if not is_rounded(eager.dtype):
        tolerance = 0.0
    elif isinstance(exact, torch.Tensor) and exact.shape == eager.shape:
        own = _error(eager, exact, eager, floor)
        casts = exact.dtype is not widened(eager).dtype
        if casts or (uses_rng and own > tolerance):
            why = f"the program casts: no float64 but {exact.dtype}"
            details.append(why if casts else "random numbers of float64 differ")
            own = None
    error = _error(actual, eager if own is None else exact, eager, floor)
    allowed = FACTOR * tolerance if own is None else max(tolerance, FACTOR * own)
    ok = error <= allowed and fits
    return VerificationRow(name, eager.dtype, error, own, allowed, strides, ok, "; ".join(details))


def _same_object(actual: Any, eager: Any) -> tuple[bool, str]:
    """Returns whether objects are equal, as far as they can be compared, and what is not."""
    if actual is None or eager is None:  # no gradient and zeros are equivalent
        other = eager if actual is None else actual
        if isinstance(other, torch.Tensor):
            return not other.any(), "one of the two has none"
    if type(actual) is type(eager) and type(eager).__eq__ is object.__eq__:  # type: ignore[comparison-overlap]
        return True, "an object without equality: only its type was compared"
    same = type(actual) is type(eager) and bool(actual == eager or actual != actual)
    return same, "" if same else f"{actual!r}, eager's {eager!r}"[:200]


def _error(
    value: torch.Tensor, reference: torch.Tensor, eager: torch.Tensor, floor: float
) -> float:
    """Returns the largest error of an element. Where eager's is NaN or infinite, so must this be."""
    if not is_rounded(eager.dtype):
        return float((value != eager).double().mean()) if eager.numel() else 0.0
    wide = (widened(item) for item in (value, reference, eager))
    result, exact, own = (torch.view_as_real(item) if item.is_complex() else item for item in wide)
    odd = ~(own.isfinite() & exact.isfinite())
    if not torch.equal(result[odd].nan_to_num(0.5), own[odd].nan_to_num(0.5)):
        return float("inf")
    result, exact = result[~odd], exact[~odd]
    least = max(_rms(exact), floor) or torch.finfo(torch.float64).tiny
    worst = (
        float(((result - exact).abs() / exact.abs().clamp(min=least)).max())
        if exact.numel()
        else 0.0
    )
    return float("inf") if worst != worst else worst


def _rms(value: torch.Tensor) -> float:
    return float(value.abs().square().mean().sqrt()) if value.numel() else 0.0
