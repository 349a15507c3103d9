"""The programs that are measured on GPUs: built alike each time, and right when compiled on a CPU."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
from typing import Any

import pytest
import torch

import tracer_core
from benchmarks.gpu_programs import PROGRAMS, BuiltProgram, GpuProgram
from benchmarks.gpu_programs.program import ProgramParts

#: Programs that are compiled here; all of them are before a measurement.
SAMPLE = random.Random(46).sample(sorted(PROGRAMS), 6)


def build(name: str) -> BuiltProgram:
    library = PROGRAMS[name].library
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}")
    return PROGRAMS[name].build("cpu", small=True)


def tensors(outputs: Any) -> list[torch.Tensor]:
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


def results(program: BuiltProgram, run: Any) -> list[torch.Tensor]:
    """Outputs and gradients of an iteration with each of two batches, in float64."""
    values = []
    for batch in program.batches[:2]:
        values += tensors(program.step(run, batch))
        if program.training:
            values += [p.grad for p in program.target.parameters() if p.grad is not None]
    return [value.detach().to(torch.float64, copy=True) for value in values]


def error(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The largest difference of any tensor, relative to its largest value."""
    return max(
        float((a - b).abs().max() / b.abs().max().clamp_min(1e-6))
        for a, b in zip(actual, expected, strict=True)
    )


def test_two_halves_of_twenty_programs_have_all_precisions_and_training() -> None:
    for half in ("open", "held_out"):
        programs = [program for program in PROGRAMS.values() if program.half == half]
        assert len(programs) == 20
        assert 8 <= sum(program.training for program in programs) <= 12
        assert {program.precision for program in programs} == {
            "float32", "autocast", "bfloat16", "float16",
        }  # fmt: skip


def test_importing_the_programs_imports_no_torch() -> None:
    text = "import sys, benchmarks.gpu_programs; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", text], check=True)


@pytest.mark.sweep(keep=3)
@pytest.mark.parametrize("name", SAMPLE)
def test_a_compiled_program_has_eagers_outputs_and_gradients(name: str) -> None:
    eager, compiled = build(name), build(name)
    reference = eager.in_float64()
    exact = results(reference, reference.target)
    eager_error = error(results(eager, eager.target), exact)
    ours_error = error(results(compiled, tracer_core.compile(compiled.target)), exact)
    assert PROGRAMS[name].discontinuous or ours_error <= 3 * eager_error + 1e-5


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("name", SAMPLE)
def test_a_program_compiled_in_float64_is_exact(name: str) -> None:
    eager, compiled = build(name).in_float64(), build(name).in_float64()
    exact = results(eager, eager.target)
    # Not all is in float64: models of transformers compute norms in float32.
    assert error(results(compiled, tracer_core.compile(compiled.target)), exact) < 1e-4


def _linear(optimizer: bool, **settings: Any) -> GpuProgram:
    def parts(small: bool) -> ProgramParts:
        return ProgramParts(
            torch.nn.Conv2d(3, 4, 3),
            lambda number: (torch.randn(2, 3, 8, 8) * 100, torch.arange(number + 1)),
            lambda run, images, numbers: run(images).float().square().mean() + numbers.sum(),
        )

    precision = settings.pop("precision", "float32")
    return GpuProgram(
        "linear", "torch", True, "issue", precision, parts, optimizer=optimizer, **settings
    )


def test_two_builds_have_the_same_weights_and_inputs() -> None:
    first, second = (_linear(False, batch_count=3).build("cpu") for _ in range(2))
    assert torch.equal(first.target.weight, second.target.weight)
    assert len(first.batches) == 3
    for batch, other in zip(first.batches, second.batches, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(batch, other, strict=True))
    assert not torch.equal(first.batches[0][0], first.batches[1][0])


def test_a_build_has_the_precision_and_the_memory_format() -> None:
    built = _linear(False, precision="bfloat16", channels_last=True).build("cpu")
    images, numbers = built.batches[0]
    assert built.target.training and built.target.weight.dtype is torch.bfloat16
    assert images.dtype is torch.bfloat16 and numbers.dtype is torch.int64
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert built.target.weight.is_contiguous(memory_format=torch.channels_last)
    exact = built.in_float64()
    assert exact.target.weight.dtype is exact.batches[0][0].dtype is torch.float64
    assert torch.equal(exact.target.weight, built.target.weight.double())


def test_autocast_holds_in_the_forward_and_not_in_float64() -> None:
    built = _linear(False, precision="autocast").build("cpu")
    seen: list[torch.dtype] = []

    def run(images: torch.Tensor) -> torch.Tensor:
        result = built.target(images)
        seen.append(result.dtype)
        return result

    built.step(run, built.batches[0])
    assert built.target.weight.grad.dtype is torch.float32 and seen == [torch.bfloat16]
    exact = built.in_float64()
    exact.step(exact.target, exact.batches[0])
    assert exact.target.weight.grad.dtype is torch.float64


def test_a_program_with_an_optimizer_clips_and_steps() -> None:
    for built in (_linear(True).build("cpu"), _linear(True).build("cpu").in_float64()):
        before = built.target.weight.detach().clone()
        built.step(built.target, built.batches[0])
        norm = torch.stack([p.grad.norm() for p in built.target.parameters()]).norm()
        assert norm <= 1.0 + 1e-5 and not torch.equal(built.target.weight, before)
    without = _linear(False).build("cpu")
    before = without.target.weight.detach().clone()
    without.step(without.target, without.batches[0])
    assert torch.equal(without.target.weight, before)
