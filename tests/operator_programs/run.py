"""Runs operator programs, many as one compiled function, beside eager.

In: programs of one block. Out: a `Result` for each: "same", "mismatch", "crash" (compiled, it
raises), "late" or "invalid". What always holds: each program of a block is compiled, whatever the
others do: where the block as a whole raises or differs, its programs are run one by one.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tracer_core
from tests.operator_programs.judge import Outcome, differs
from tests.operator_programs.outcome import outcomes
from tests.operator_programs.program import BLOCK, Program
from tests.opinfo.row import watching
from tests.opinfo.values import copied, rebuild, tensors, widened
from tests.random_programs.run import OutOfTime, Result, time_limit

#: The types that a program names, the coarsest first.
_COARSE = ("bfloat16", "float16", "float32")


def run(program: Program, seconds: float = 60.0) -> Result:
    return run_block([program], seconds)[0]


def run_block(
    programs: Sequence[Program], seconds: float = 60.0, counts: Counter[str] | None = None
) -> list[Result]:
    """counts: kernels, operators that ran as ATen's and graph breaks are added to it."""
    actual: Found = {}
    eager: dict[int, list[Outcome]] = {}
    for program in programs:
        try:
            with _limits(seconds):
                eager[program.seed] = _eager(program)
        except (SyntaxError, KeyError, NameError, Refused) as error:
            actual[program.seed] = (
                "invalid",
                repr(error),
            )  # made smaller, it is no program any more
        except OutOfTime:
            actual[program.seed] = ("invalid", "out of time")
    valid = [p for p in programs if p.seed not in actual]
    together = [p for p in valid if not p.alone]
    if len(together) > 1:
        actual |= _together(together, eager, seconds, counts)
    for program in valid:
        messages = actual.get(program.seed, ("alone", ""))
        if messages is not None:
            alone = _together([program], eager, seconds, counts)[program.seed]
            if messages[0] == "mismatch" and not alone:
                alone = ("mismatch", f"only together with its block: {messages[1]}")
            actual[program.seed] = alone
    return [Result(p.seed, *(actual[p.seed] or ("same", "")), raised=p.raises) for p in programs]


#: What became of a program, by seed: its status and what differs; None where all is as it should.
Found = dict[int, "tuple[str, str] | None"]


class Refused(Exception):
    """Eager refuses the program."""


@contextlib.contextmanager
def _limits(seconds: float) -> Iterator[None]:
    with time_limit(seconds), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _eager(program: Program) -> list[Outcome]:
    if program.raises and program.mode.device != "cpu":
        raise Refused("a device assertion would end the process")
    function = program.function()
    actual = []
    for call in range(len(program.steps)):
        actual += program.outcomes(function, copied(program.arguments(call)))
        if (actual[-1].error is not None) != program.raises:
            raise Refused(repr(actual[-1].error))
    return actual


def _together(
    programs: Sequence[Program],
    eager: dict[int, list[Outcome]],
    seconds: float,
    counts: Counter[str] | None,
) -> Found:
    """What differs; the same for all of them where the call raises."""
    tracer_core.reset()
    mode = programs[0].mode
    scope = {f"f{k}": program.function() for k, program in enumerate(programs)}
    calls = ", ".join(f"f{k}(*inputs[{k}])" for k in range(len(programs)))
    exec(f"def block(inputs): return [{calls}]", scope)
    try:
        with watching() as (seen, backend), _limits(seconds):
            ours = tracer_core.compile(
                scope["block"],
                backend=backend if mode.backend == "inductor" else mode.backend,
                dynamic=mode.dynamic,
            )
            found = _calls(programs, eager, ours)
    except OutOfTime:
        return {p.seed: ("late", "") for p in programs}
    if counts is not None:
        counts.update(kernels=seen.kernels, aten=sum(seen.externs.values()))
        counts.update({f"break: {kind}": n for kind, n in seen.breaks.items()})
        counts.update({f"eager: {reason}": n for reason, n in seen.eager.items()})
    return found


def _calls(programs: Sequence[Program], eager: dict[int, list[Outcome]], ours: Any) -> Found:
    result: Found = {p.seed: None for p in programs}
    for call in range(len(programs[0].steps)):
        inputs = [p.arguments(call) for p in programs]
        actual = outcomes(
            ours,
            [copied(item) for item in inputs],
            programs[0].mode.gradients,
            [p.later for p in programs],
        )
        if actual[0].error is not None and not programs[0].raises:
            return {p.seed: ("crash", f"call {call}: {actual[0].error!r}") for p in programs}
        for program, item, a in zip(programs, inputs, actual, strict=True):
            e = eager[program.seed][call]
            if program.mode.device != "cpu":
                item = program.arguments(call, "cpu")
            problem = differs(e, a, lambda moves, p=program, x=item: _exact(p, x, moves))
            if problem and result[program.seed] is None:
                result[program.seed] = ("mismatch", f"call {call}: {problem}")
    return result


#: Parts of the names of operators that add up many products: the rounding of each step moves the
#: result as moving their operands does, each by its own rounding and all by that of the sums.
_ADDING = ("sum", "mean", "var", "std", "norm", "softmax", "mm", "dot", "mv", "conv", "avg_pool",
           "prod", "upsample", "grid_sampler", "cdist", "lerp")  # fmt: skip


#: Operators that choose among equal numbers: which of 0.0 and -0.0 is the larger is not defined.
_CHOOSING = frozenset({"amax", "amin", "aminmax", "max", "min", "maximum", "minimum"})


class Rounding(TorchDispatchMode):
    """Inside, every number that an operator computes and a type cannot hold is moved by up to half a
    unit in the type's last place, and the zero that an extreme of zeros is has either sign. kind:
    the coarsest type of the program."""

    def __init__(self, seed: int, kind: torch.dtype) -> None:
        super().__init__()
        self.generator, self.kind = torch.Generator().manual_seed(seed), kind

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(part in func._schema.name for part in _ADDING) and not func._schema.is_mutable:
            args = rebuild(args, self.moved)
        result = func(*args, **(kwargs or {}))
        if any(item.alias_info and not item.alias_info.is_write for item in func._schema.returns):
            return result  # a view
        for leaf in tensors(result):
            if leaf.dtype in (torch.float64, torch.complex128) and not leaf._is_zerotensor():
                overlaps = any(n > 1 and not s for n, s in zip(leaf.shape, leaf.stride()))
                if not overlaps:
                    part = torch.view_as_real(leaf.detach()) if leaf.is_complex() else leaf.detach()
                    self.move(part)
                    if func.overloadpacket.__name__ == "gelu":  # of 1 + erf, which cancels
                        size = args[0].detach().abs() * torch.finfo(self.kind).eps
                        part.add_(torch.where(size.isfinite(), self.noise(part.shape) * size, 0.0))
                    if func.overloadpacket.__name__ in _CHOOSING and _both_zeros(args):
                        flip = (part == 0) & (self.noise(part.shape) > 0)
                        part.copy_(torch.where(flip, -part, part))
        return result

    def moved(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype is not torch.float64:
            return value
        noise, (bias,) = self.noise(value.shape), self.noise((1,))
        noise += bias * value.numel() ** 0.5
        return value.detach() * (1 + noise * torch.finfo(self.kind).eps)

    def noise(self, sizes: Sequence[int]) -> torch.Tensor:
        return torch.rand(sizes, generator=self.generator, dtype=torch.float64) * 2 - 1

    def move(self, part: torch.Tensor) -> None:
        held = part.to(self.kind).to(torch.float64) == part
        moved = part * (1 + self.noise(part.shape) * torch.finfo(self.kind).eps / 2)
        part.copy_(torch.where(held | ~part.isfinite(), part, moved))


def _both_zeros(args: Any) -> bool:
    zeros = [item[item == 0].signbit() for item in tensors(args) if item.is_floating_point()]
    return any(bool(zero.any()) for zero in zeros) and not all(bool(zero.all()) for zero in zeros)


def _exact(program: Program, value: Any, moves: int) -> tuple[Outcome, list[Outcome]]:
    """What the program gives in double precision, and with its roundings moved."""
    function, wide = program.function(wide=True), widened(value)  # on the CPU
    rounded = program.function(wide=True, rounded=True)
    text = str(program)
    kind = getattr(torch, next((name for name in _COARSE if name in text), "float32"))

    def once(mode: Any, function: Any = function) -> Outcome:
        with mode:
            return program.outcomes(function, copied(wide))[0]

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        true = once(contextlib.nullcontext())
        moved = [once(Rounding(seed, kind)) for seed in range(moves)]
        return true, [once(contextlib.nullcontext(), rounded), *moved]
    finally:
        torch.set_default_dtype(before)


def blocks(first: int, count: int) -> Iterator[list[int]]:
    """The seeds of a range by their blocks."""
    while count > 0:
        size = min(BLOCK - first % BLOCK, count)
        yield list(range(first, first + size))
        first, count = first + size, count - size
