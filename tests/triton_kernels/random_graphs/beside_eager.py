"""Runs a random program beside eager, or builds the machine code of its kernels.

In: a `Program`. Out: a `Result` as the random programs of the tracer have: "same", "mismatch",
"crash" (a call or a build failed), "late" or "invalid" (eager refuses it). What always holds: every
call is judged as the operator sweep judges one (`tests.opinfo.judge`): by eager, and by what is
true in double precision.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import torch

import tracer_core
from inductor_backend.ir.target import interpreted
from inductor_backend.pipeline import compile_graph
from inductor_backend.plugin import BACKEND
from tests.opinfo.judge import Outcome, differs
from tests.opinfo.values import Rounding, copied, leaves, nudged, tensors, widened
from tests.random_programs.run import OutOfTime, Result, time_limit
from tests.triton_kernels.random_graphs.program import Program

#: Half a unit in the last place of the types that a program names, the coarsest first.
_EPSILONS = (("bfloat16", 2.0**-9), ("float16", 2.0**-12), ("", 2.0**-25))
#: How often the truth is computed again with other roundings.
_MOVES = 3


def _compile(gm: torch.fx.GraphModule, spec: Any) -> Any:
    with interpreted():
        return compile_graph(gm, spec)


#: Inductor with Triton kernels for tensors on the CPU, which Triton's interpreter runs.
INTERPRETED = dataclasses.replace(BACKEND, compile=_compile)


def run(program: Program, seconds: float, device: str = "cpu") -> Result:
    """device: "cpu": by the interpreter."""
    tracer_core.reset()
    backend = INTERPRETED if device == "cpu" else "inductor"
    try:
        eager = program.function()
        ours = tracer_core.compile(
            program.function(), backend=backend, dynamic=program.dynamic or None
        )
        with time_limit(seconds), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for call in range(len(program.steps)):
                status, where = _call(program, call, eager, ours, device)
                if status != "same":
                    return Result(program.seed, status, f"call {call}: {where}")
    except OutOfTime:
        return Result(program.seed, "late", "")
    except (SyntaxError, KeyError) as error:  # made smaller, it is no program any more
        return Result(program.seed, "invalid", repr(error))
    return Result(program.seed, "same")


def _call(program: Program, call: int, eager: Any, ours: Any, device: str) -> tuple[str, str]:
    inputs = program.arguments(call, device)
    expected = _outcome(eager, copied(inputs), program.gradients)
    if expected.error is not None:  # a later call's sizes may not fit
        return ("same" if call else "invalid"), repr(expected.error)
    actual = _outcome(ours, copied(inputs), program.gradients)
    if actual.error is not None:
        return "crash", repr(actual.error)
    result = differs(expected, actual, lambda: _exact(program, inputs))
    return ("mismatch", result) if result else ("same", "")


def _outcome(function: Any, inputs: Sequence[Any], gradients: bool) -> Outcome:
    torch.manual_seed(0)
    try:
        with contextlib.nullcontext() if gradients else torch.no_grad():
            result = function(*inputs)
        actual = _gradients(result, inputs) if gradients else []
    except Exception as error:
        return Outcome(error=error)
    return Outcome(result, list(leaves(list(inputs))), actual)


def _gradients(result: Any, inputs: Sequence[Any]) -> list[Any]:
    ends = [x for x in tensors(result) if x.requires_grad]
    starts = [x for x in inputs if x.requires_grad]
    if not ends:
        return []
    return list(
        torch.autograd.grad(ends, starts, [torch.ones_like(x) for x in ends], allow_unused=True)
    )


def _exact(program: Program, inputs: Sequence[torch.Tensor]) -> tuple[Outcome, list[Outcome]]:
    """What the program gives in double precision, and how far that moves with rounding."""
    function, wide = program.function(wide=True), widened(inputs)
    epsilon = next(size for name, size in _EPSILONS if name in str(program))
    moved = []
    for seed in range(_MOVES):
        with Rounding(seed, epsilon):
            moved.append(_outcome(function, nudged(copied(wide), seed, epsilon), program.gradients))
    return _outcome(function, copied(wide), program.gradients), moved


def build(program: Program, seconds: float) -> Result:
    """Machine code of its kernels for sm_80 and sm_90, without a GPU and without running them."""
    from tests.triton_kernels import offline
    from tracer_core import torch_private

    mode = torch_private.fake_tensor_mode(None)
    try:
        inputs = offline.fakes(mode, *program.arguments(0))
        with time_limit(seconds):
            c = offline.program(mode, program.function(), *inputs)
            for capability in (80, 90):
                offline.cubins(c, capability)
    except OutOfTime:
        return Result(program.seed, "late", "")
    except (SyntaxError, KeyError) as error:
        return Result(program.seed, "invalid", repr(error))
    except Exception as error:
        return Result(program.seed, "crash", repr(error))
    return Result(program.seed, "same")


def run_eagerly(program: Program, seconds: float, device: str = "cpu") -> bool:
    """Whether eager alone comes to its end in time."""
    try:
        with time_limit(seconds):
            for call in range(len(program.steps)):
                _outcome(program.function(), program.arguments(call, device), program.gradients)
    except OutOfTime:
        return False
    return True
