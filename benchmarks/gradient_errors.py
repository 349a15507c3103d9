"""Is one training step right, judged by float64, output by output and parameter by parameter?

In: what a step of the same module left behind (`Step`) in float64, in eager mode, and compiled.
Out: `Judged`: for each output, gradient and buffer the error of eager and of the compiled module,
and whether the latter is too large.

How it is judged:

- The error of a gradient is ||g - g64|| / ||g64||, of that parameter alone. Where g64 is zero up to
  float64's rounding (a bias before batch norm: its root mean square is under 1e-9 of the largest
  gradient's), the error is divided by what a gradient as large as the largest would have as its
  norm.
- An error passes if it is at most `ALLOWED` times eager's own, or under a floor (`FLOOR`;
  `FLOOR_OF_ZERO`).
- A decision (relu's sign, the place of a maximum, a chosen expert) can fall otherwise in float32
  than in float64 where two values are as near to each other as rounding. Eager's own error shows
  that only if its decision is the one that fell otherwise. So a step that does not pass is judged
  again beside several eager steps whose parameters and inputs are changed by less than float32's
  rounding of a few operations (`nudged`): the largest error of these counts as eager's. A wrong
  program stays wrong there, because eager's errors stay small wherever no decision is near.
- Where float64 comes to results of other shapes (boxes that are kept or not), eager in float32 is
  the reference; errors under `FLOOR` pass.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

#: Times eager's own error.
ALLOWED = 4.0
FLOOR = 1e-4
FLOOR_OF_ZERO = 1e-5
_ZERO = 1e-9
#: Of the random numbers that a step draws.
STEP_SEED = 7
#: Relative size of what `nudged` adds: a few units in the last place of float32.
_NUDGE = 3e-7


@dataclass(frozen=True, slots=True)
class Step:
    """What one step left behind, all in float64 on the CPU. gradients: None where there is none."""

    outputs: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor | None]
    buffers: dict[str, torch.Tensor]

    def everything(self) -> dict[str, torch.Tensor | None]:
        return {**self.outputs, **self.gradients, **self.buffers}


@dataclass(frozen=True, slots=True)
class Error:
    """Relative errors of one output, gradient or buffer. allowed: the largest that passes."""

    name: str
    ours: float
    eager: float
    allowed: float

    @property
    def wrong(self) -> bool:
        return not self.ours <= self.allowed

    @property
    def excess(self) -> float:
        """How many times what is allowed."""
        return self.ours / self.allowed if math.isfinite(self.ours) else math.inf


@dataclass(frozen=True, slots=True)
class Judged:
    """errors: of all that was compared. problems: what cannot be said in numbers (a gradient that
    is missing)."""

    errors: list[Error]
    problems: list[str]

    @property
    def wrong(self) -> list[Error]:
        return sorted((e for e in self.errors if e.wrong), key=lambda e: -e.excess)

    @property
    def right(self) -> bool:
        return not self.problems and not any(e.wrong for e in self.errors)

    @property
    def worst(self) -> Error | None:
        """The one that is nearest to its limit, or furthest beyond it."""
        return max(self.errors, key=lambda e: e.excess, default=None)


def outputs_of(result: Any) -> list[torch.Tensor]:
    """The floating tensors of a result, each once."""
    results: dict[int, torch.Tensor] = {}
    for tensor in _tensors(result, 0):
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        if tensor.is_floating_point() and tensor.numel():
            results.setdefault(id(tensor), tensor)
    return list(results.values())


def _tensors(value: Any, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item, depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _tensors(getattr(value, field.name), depth + 1)
    elif (
        hasattr(value, "__dict__") and depth < 3 and not isinstance(value, (type, torch.nn.Module))
    ):
        for item in vars(value).values():  # the tensors of a detached or plain object
            yield from _tensors(item, depth + 1)


class Loss:
    """A scalar that depends on each element of each output by a weight of its own, random and the
    same each time.

    Made for the outputs of one run: each output counts alike, whatever its size; what is huge or
    not finite there (masked scores) is left out.
    """

    def __init__(self, outputs: Sequence[torch.Tensor]) -> None:
        result = torch.Generator().manual_seed(5)
        self.weights: list[torch.Tensor | None] = []
        for output in outputs:
            value = output.detach().double().cpu()
            weight = torch.randn(value.shape, generator=result, dtype=torch.float64)
            kept = value.isfinite() & (value.abs() < 1e6)
            size = float(value[kept].square().mean().sqrt()) if bool(kept.any()) else 1.0
            scaled = torch.where(kept, weight, 0.0) / (max(size, 1e-6) * math.sqrt(value.numel()))
            self.weights.append(scaled if output.requires_grad else None)

    def __call__(self, outputs: Sequence[torch.Tensor]) -> torch.Tensor:
        if len(outputs) != len(self.weights):
            raise AssertionError(f"{len(outputs)} outputs, eager has {len(self.weights)}")
        parts = []
        for output, weight in zip(outputs, self.weights, strict=True):
            if (weight is not None) != output.requires_grad:
                raise AssertionError(
                    f"an output with requires_grad={output.requires_grad}, eager's has the other"
                )
            if weight is None:
                continue
            if weight.shape != output.shape:
                raise OtherShape(
                    f"an output of shape {tuple(output.shape)}, eager's has {tuple(weight.shape)}"
                )
            weight = weight.to(
                output.device, torch.float64 if output.dtype == torch.float64 else torch.float32
            )
            value = output if output.dtype == torch.float64 else output.float()
            # what is not finite has weight zero, and 0 * inf is not zero
            parts.append(torch.where(weight == 0, 0.0, value * weight).sum())
        return torch.stack(parts).sum()


class OtherShape(AssertionError):
    """An output's shape is not that for which the loss was made."""


def step(
    call: Callable[..., Any],
    module: torch.nn.Module,
    arguments: tuple[tuple[Any, ...], dict[str, Any]],
    loss: Loss | None = None,
    seed: int = STEP_SEED,
) -> tuple[Step, Loss]:
    """Forward, loss and backward. loss: None makes one for this run's outputs."""
    args, kwargs = arguments
    module.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    outputs = outputs_of(call(*args, **kwargs))
    loss = loss or Loss(outputs)
    loss(outputs).backward()
    inputs = _leaves(arguments)
    gradients = {f"gradient of {n}": _kept(p.grad) for n, p in module.named_parameters()}
    gradients |= {
        f"gradient of input {n}": _kept(t.grad) for n, t in inputs.items() if t.requires_grad
    }
    buffers = {
        f"buffer {n}": b.detach().double().cpu().clone()
        for n, b in module.named_buffers()
        if not b.is_complex()
    }
    named = {f"output {n}": o.detach().double().cpu().clone() for n, o in enumerate(outputs)}
    return Step(named, gradients, buffers), loss


def gradients_of(module: torch.nn.Module) -> Step:
    """What a step left in the module's parameters: for benchmarks, which have a loss of their
    own."""
    return Step({}, {f"gradient of {n}": _kept(p.grad) for n, p in module.named_parameters()}, {})


def true_gradients(module: torch.nn.Module, run: Callable[[torch.nn.Module], Any]) -> Step:
    """Of a copy in float64. run: the step, forward and backward, with the module that it is
    given."""
    wide = copy.deepcopy(module).double()
    wide.zero_grad(set_to_none=True)
    with InDouble():
        run(wide)
    return gradients_of(wide)


def largest_errors(truth: Step, eager: Step, ours: Step) -> dict[str, Any]:
    """For a row of a benchmark: the largest relative error of any gradient, where, eager's largest,
    and how many are wrong."""
    judged = judge(truth, [eager], ours)
    worst = max(judged.errors, key=lambda e: e.ours)
    return {
        "largest": worst.ours, "of": worst.name, "eager": max(e.eager for e in judged.errors),
        "wrong": [e.name for e in judged.wrong] + judged.problems,
    }  # fmt: skip


def told(row: dict[str, Any] | None) -> str:
    """A cell of a benchmark's table: the largest error, eager's own, and a mark where one is
    wrong."""
    if row is None:
        return ""
    mark = f" {len(row['wrong'])} WRONG" if row["wrong"] else ""
    return f"{row['largest']:.0e} ({row['eager']:.0e}){mark}"


def without_dropout(module: torch.nn.Module) -> torch.nn.Module:
    """The module with every kind of dropout switched off, so that float64 computes the same."""
    for part in module.modules():
        if (
            isinstance(part, torch.nn.modules.dropout._DropoutNd)
            or type(part).__name__ == "StochasticDepth"
        ):
            part.p = 0.0
        for name, value in list(vars(part).items()):
            off = "dropout" in name or name in (
                "drop_prob",
                "layerdrop",
                "drop_path_rate",
                "drop_path_prob",
            )
            if off and isinstance(value, float):
                setattr(part, name, 0.0)
    return module


def _kept(gradient: torch.Tensor | None) -> torch.Tensor | None:
    if gradient is None:
        return None
    gradient = (
        gradient.detach().to_dense() if gradient.layout != torch.strided else gradient.detach()
    )
    gradient = torch.view_as_real(gradient) if gradient.is_complex() else gradient
    return gradient.double().cpu().clone()


def _leaves(arguments: Any) -> dict[str, torch.Tensor]:
    return {str(number): tensor for number, tensor in enumerate(_tensors(arguments, 0))}


def judge(truth: Step, eager: Sequence[Step], ours: Step) -> Judged:
    """eager: one step, or several of which the largest errors count."""
    reference, result = truth.everything(), ours.everything()
    errors, problems = [], []
    problems += [f"{name} is missing" for name in sorted(reference.keys() - result.keys())]
    problems += [f"{name} is extra" for name in sorted(result.keys() - reference.keys())]
    largest = max((_rms(g) for g in truth.gradients.values() if g is not None), default=0.0)
    others = [item.everything() for item in eager]
    for name, exact in reference.items():
        value, beside = result.get(name), others[0].get(name)
        if exact is None or value is None or beside is None:
            if (value is None) != (beside is None) and name in result:
                problems.append(
                    f"{name} is {'None' if value is None else 'a tensor'}, eager's is not"
                )
            continue
        if value.shape != beside.shape:
            problems.append(
                f"{name} has shape {tuple(value.shape)}, eager's has {tuple(beside.shape)}"
            )
            continue
        size, floor = float(_finite(exact).norm()), FLOOR
        if name in truth.gradients and _rms(exact) < _ZERO * largest:
            size, floor = largest * math.sqrt(exact.numel()), FLOOR_OF_ZERO
        size = size or 1.0
        mine = max(
            _distance(exact, other[name], beside) / size
            for other in others
            if other.get(name) is not None
        )
        errors.append(
            Error(name, _distance(exact, value, beside) / size, mine, max(ALLOWED * mine, floor))
        )
    return Judged(errors, problems)


def _finite(value: torch.Tensor) -> torch.Tensor:
    return torch.where(value.isfinite(), value, 0.0)


def _rms(value: torch.Tensor) -> float:
    return float(_finite(value).square().mean().sqrt()) if value.numel() else 0.0


def _distance(exact: torch.Tensor, value: torch.Tensor | None, eager: torch.Tensor) -> float:
    """The norm of the difference, where truth and eager are finite; infinite if `value` is not
    finite there."""
    if value is None or value.shape != exact.shape:
        return math.inf
    counted = exact.isfinite() & eager.isfinite()
    difference = torch.where(counted, value - exact, 0.0)
    return float(difference.norm()) if bool(difference.isfinite().all()) else math.inf


@contextlib.contextmanager
def nudged(module: torch.nn.Module, seed: int) -> Iterator[None]:
    """The parameters changed by a few units in their last places, and put back after the block."""
    result = torch.Generator().manual_seed(seed)
    before = [(p, p.detach().clone()) for p in module.parameters()]
    with torch.no_grad():
        for item, _ in before:
            if item.is_floating_point():
                item.mul_((1 + _NUDGE * torch.randn(item.shape, generator=result)).to(item))
    try:
        yield
    finally:
        with torch.no_grad():
            for first, value in before:
                first.copy_(value)


class InDouble(torch.overrides.TorchFunctionMode):
    """float32 means float64 while it is entered: models that ask for float32 by name (norms,
    softmax) compute in float64 too. Random numbers stay those that float32 draws."""

    _DRAWN = frozenset({torch.rand, torch.randn, torch.rand_like, torch.randn_like})
    _WIDER = {torch.float32: torch.float64, torch.complex64: torch.complex128}

    def __enter__(self) -> Any:
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *exception: Any) -> Any:
        torch.set_default_dtype(torch.float32)
        return super().__exit__(*exception)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self._DRAWN:
            wanted = self._wide(
                kwargs.get("dtype") or (args[0].dtype if "like" in func.__name__ else torch.float64)
            )
            if wanted == torch.float64:
                return func(*args, **{**kwargs, "dtype": torch.float32}).double()
            return func(*args, **kwargs)
        if func is torch.set_default_dtype:
            return None
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        return func(
            *map(self._wide, args), **{key: self._wide(value) for key, value in kwargs.items()}
        )

    def _wide(self, value: Any) -> Any:
        return self._WIDER.get(value, value) if isinstance(value, torch.dtype) else value
