"""Compiles small programs for the tests of inductor: through the core's lowering, stage by stage.

In: a function and inputs. Out: `Compiled`: the compilation with every stage's result, and what to
call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inductor_backend.compilation import Compilation
from inductor_backend.options import InductorOptions
from inductor_backend.pipeline import start
from inductor_backend.plugin import BACKEND
from inductor_backend.stages import run_stages
from tests.inductor import reference
from tracer_core import plugin_api
from tracer_core.testing import torch_graph


@dataclass
class Compiled:
    """One compiled program. extra: parameters that the graph takes after the function's own
    inputs.
    """

    compilation: Compilation
    finish: Callable[[Any], Any]
    extra: list[Any]
    lowered: Any

    def __call__(self, *inputs: Any) -> list[Any]:
        runner = self.finish(self.compilation.runner)
        return list(runner([*inputs, *self.extra]))

    @property
    def kernels(self) -> int:
        return self.compilation.runner.artifact.kernels

    @property
    def source(self) -> str:
        return "\n".join(self.compilation.sources)

    @property
    def text(self) -> str:
        return self.compilation.text

    def refused(self) -> list[str]:
        return [reason for _, _, reason in self.compilation.plan.reasons]


def compiled(
    fn: Callable[..., Any],
    *inputs: Any,
    dynamic: bool = False,
    options: InductorOptions | None = None,
    until: str | None = None,
    first: str = "lower",
) -> Compiled:
    with torch.no_grad():
        captured = torch_graph(fn, inputs, dynamic=dynamic)
        low = plugin_api.lower(
            captured.gm,
            captured.real_inputs,
            BACKEND,
            input_specs=captured.inputs,
            options=options or InductorOptions(),
        )
    extra = list(captured.real_inputs[len(inputs) :])
    return Compiled(
        run_stages(start(low.graph, low.spec), until, first=first), low.plan.bind, extra, low
    )


def clones(inputs: Sequence[Any]) -> list[Any]:
    return [
        torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x)
        if isinstance(x, torch.Tensor)
        else x
        for x in inputs
    ]


def flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def reference_runner(c: Compilation, fused: bool) -> Callable[[list[Any]], list[Any]]:
    """The eager executor in place of the kernels."""

    def run(args: list[Any]) -> list[Any]:
        sizes = {
            s.symbol: args[s.input_index] if s.dim is None else args[s.input_index].shape[s.dim]
            for s in c.spec.sizes
        }
        fused_parts = (c.plan, c.bodies) if fused else ()
        return reference.execute(c.program, args, sizes, *fused_parts)

    return run


def tolerance(dtype):
    if dtype in (torch.bfloat16, torch.float16):
        return {"atol": 2e-2, "rtol": 2e-2}
    return {"atol": 5e-5, "rtol": 1e-5} if dtype == torch.float32 else {}


def same_three_ways(fn: Callable[..., Any], *inputs: Any) -> Compiled:
    """Asserts that the loop IR, the fused bodies and the C++ kernels each give what eager gives."""
    before = clones(inputs)
    expected = [x.clone() if isinstance(x, torch.Tensor) else x for x in flat(fn(*before))]
    unfused = compiled(fn, *inputs, until="lower")
    fused = compiled(fn, *inputs)
    runners = {
        "loop IR": unfused.finish(reference_runner(unfused.compilation, fused=False)),
        "fused bodies": fused.finish(reference_runner(fused.compilation, fused=True)),
        "C++": fused.finish(fused.compilation.runner),
    }
    for what, runner in runners.items():
        args = clones(inputs)
        results = list(runner([*args, *fused.extra]))
        assert len(results) == len(expected)
        for ours, eager in zip(results, expected, strict=True):
            assert (ours.dtype, ours.shape, ours.stride()) == (
                eager.dtype,
                eager.shape,
                eager.stride(),
            ), what
            torch.testing.assert_close(
                ours,
                eager,
                equal_nan=True,
                msg=lambda m, what=what: f"{what}: {m}",
                **tolerance(eager.dtype),
            )
        for ours, eager in zip(args, before, strict=True):
            torch.testing.assert_close(ours, eager, equal_nan=True, **tolerance(eager.dtype))
    return fused
