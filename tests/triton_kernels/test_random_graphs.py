"""A sample of the random graphs; many more: ``nox -s random_graphs -- --count 5000 --jobs 8``, on a
GPU ``python -m tests.triton_kernels.random_graphs --device cuda --count 2000 --jobs 16``."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import tracer_core
from inductor_backend.pipeline import compile_graph
from inductor_backend.runtime.cuda.interpreter import interpreting
from tests.random_programs.minimise import minimise, statement_edits, step_edits
from tests.triton_kernels.random_graphs import beside_eager
from tests.triton_kernels.random_graphs.beside_eager import run
from tests.triton_kernels.random_graphs.program import Program, generate, result_edits

interpreted_only = pytest.mark.skipif(
    not interpreting(), reason="Triton compiles for a GPU in this process"
)


@interpreted_only
def test_programs_give_eagers_answer(monkeypatch):
    kernels = []

    def compile(gm, spec):
        runner = compile_graph(gm, spec)
        kernels.append(runner.artifact)  # not of one that has several
        return runner

    monkeypatch.setattr(beside_eager, "compile_graph", compile)
    results = [run(generate(seed), 60.0) for seed in range(1, 18)]
    assert [result for result in results if result.status != "same"] == []
    assert (
        sum(kernel.kernels for kernel in kernels if kernel is not None) > 15
    )  # else the sample would pass because nothing was compiled


@pytest.mark.gpu
@pytest.mark.parametrize("start", range(0, 100, 20))
def test_programs_give_eagers_answer_on_a_gpu(start):
    results = [run(generate(seed), 60.0, "cuda") for seed in range(start, start + 20)]
    assert [result for result in results if result.status != "same"] == []


def test_a_seed_stands_for_one_program():
    assert [str(generate(seed)) for seed in range(30)] == [
        str(generate(seed)) for seed in range(30)
    ]


def test_a_wrong_answer_is_a_mismatch_and_made_smaller(monkeypatch):
    """A compiled function that gives another last result."""
    source = "def program(i0):\n    t0 = i0 + 1\n    t1 = i0 * 2\n    t2 = t1 - 1\n    return (t0, t1, t2)\n"
    program = Program(0, ("filled('float32', s0, s1)",), source, ((2, 3, 1, 0), (4, 3, 1, 0)))

    def wrong(function, **_):
        def call(x):
            *others, last = function(x)
            return (*others, last + 1e-3)

        return call

    monkeypatch.setattr(tracer_core, "compile", lambda function, **_: function)
    assert run(program, 60.0).status == "same"
    monkeypatch.setattr(tracer_core, "compile", wrong)
    result = run(program, 60.0)
    assert result.status == "mismatch" and "of 6 differ" in result.where
    small = minimise(
        program,
        lambda p: run(p, 60.0).status == "mismatch",
        60.0,
        (step_edits, result_edits, statement_edits),
    )
    assert len(small.steps) == 1 and "t0" not in small.source
