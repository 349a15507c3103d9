"""A sample of the operator programs; many more: ``nox -s operator_programs -- --count 50000``."""

from __future__ import annotations

import pytest
import torch

from tests.operator_programs.layouts import Promises, programs, sweep
from tests.operator_programs.program import BLOCK, Mode, Program, generate
from tests.operator_programs.run import blocks, run, run_block


@pytest.mark.sweep(keep=3)
@pytest.mark.parametrize("block", range(40))
def test_programs_do_what_eager_does(block):
    results = run_block([generate(seed) for seed in range(block * BLOCK, (block + 1) * BLOCK)])
    assert [r for r in results if r.status not in ("same", "invalid")] == []
    assert sum(r.status == "same" for r in results) > 0.9 * BLOCK


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("first", range(0, 1200, 200))
def test_nodes_are_as_the_graph_promises(first):
    promises = Promises()
    errors = sweep(programs(first, 200, "cpu"), promises)
    assert promises.nodes > 300 and not promises.examples and not errors


def test_a_broken_promise_is_found(monkeypatch):
    from tracer_core.fx_capture import result_strides

    program = _program("return (i0.index_fill(-1, torch.tensor([0]), 1),)",
                       "filled('bool', 'special', 4).unfold(0, 3, 1)")  # fmt: skip
    wrong = lambda args: torch.empty(args[0].shape, device="meta")  # as fakes of torch 2.13 say
    monkeypatch.setitem(result_strides.LAYOUTS, torch.ops.aten.index_fill.int_Scalar, wrong)
    promises = Promises()
    sweep([program], promises)
    assert ("aten.index_fill.int_Scalar", "strides") in promises.found


def test_a_seed_stands_for_one_program():
    assert [str(generate(seed)) for seed in range(9)] == [str(generate(seed)) for seed in range(9)]
    assert list(blocks(BLOCK - 1, 3)) == [[BLOCK - 1], [BLOCK, BLOCK + 1]]


def _program(body: str, *inputs: str, **more: object) -> Program:
    names = ", ".join(f"i{k}" for k in range(len(inputs)))
    mode = Mode(**{key: more.pop(key) for key in [*more] if key in ("gradients", "dynamic")})
    source = f"def program({names}):\n    {body}\n"
    return Program(0, mode, inputs, source, ((3, 4, 5, 0), (3, 4, 5, 1)), **more)


def test_a_wrong_kernel_is_found(monkeypatch):
    from inductor_backend.codegen.common import op_table

    program = _program("return (i0 + 1.5,)", "filled('float32', 'random', s0)")
    assert run(program).status == "same"
    monkeypatch.setitem(op_table.CPP.ops, "add", lambda value, a, b: f"{a} - {b}")
    result = run(_program("return (i0 + 1.25,)", "filled('float32', 'random', s0)"))
    assert result.status == "mismatch" and "result" in result.where


@pytest.mark.parametrize(
    "change, where",
    {
        "values": (lambda x: x.mul_(1 + 1e-5), "differ"),
        "strides": (lambda x: x.t().contiguous().t(), "strides"),
        "dtype": (lambda x: x.double(), "dtype"),
        "memory": (lambda x: x.clone(), "aliases"),
        "error": (lambda x: x[7], "IndexError"),
    }.values(),
)  # fmt: skip
def test_a_wrong_answer_is_found(monkeypatch, change, where):
    """A compiled function that returns something else, in each way that is judged."""
    import tracer_core

    program = _program("return (i0[1:],)", "filled('float32', 'random', s1, s2)")
    monkeypatch.setattr(
        tracer_core,
        "compile",
        lambda function, **_: lambda inputs: [tuple(map(change, r)) for r in function(inputs)],
    )
    result = run(program)
    assert result.status in ("mismatch", "crash") and where in result.where


def test_what_rounding_decides_is_not_judged(monkeypatch):
    """But an exact value's floor is."""
    import tracer_core

    def off_by_one(function, **_):
        return lambda inputs: [tuple(x - 1 for x in r) for r in function(inputs)]

    rounded = _program(
        "return (((i0 / 3) * 3).floor().to(torch.int64),)", "filled('float32', 'exact', s0) * 8 + 3"
    )
    exact = _program("return (i0.floor().to(torch.int64),)", "filled('float32', 'exact', s0)")
    assert run(rounded).status == run(exact).status == "same"
    monkeypatch.setattr(tracer_core, "compile", off_by_one)
    assert run(exact).status == "mismatch"


def test_a_block_is_one_graph():
    """The sample would pass if every program ran eagerly: the kernels are counted."""
    import collections

    counts: collections.Counter[str] = collections.Counter()
    programs = [
        _program(f"return (i0.sin() + {k},)", "filled('float32', 'random', s0)") for k in range(3)
    ]
    programs = [
        Program(k, *[getattr(p, f) for f in ("mode", "inputs", "source", "steps")])
        for k, p in enumerate(programs)
    ]
    assert {r.status for r in run_block(programs, counts=counts)} == {"same"}
    assert counts["kernels"] >= 1 and not any(key.startswith("eager") for key in counts)
    assert torch.is_grad_enabled()
