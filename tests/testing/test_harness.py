"""The differential harness finds each kind of difference: a check that cannot fail checks
nothing.
"""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch

from tests.aot.programs import randn
from tracer_core.plugin_api import Backend
from tracer_core.testing import (
    CaptureCounter,
    Case,
    CountingBackend,
    Mismatch,
    check,
    compare,
    compare_aliasing,
    conformance,
    error_ratio,
)


def altering(change):
    """A torch.compile-style backend whose outputs go through `change(outputs, inputs)`."""

    def backend(gm, example_inputs):
        return lambda *inputs: change(list(gm(*inputs)), inputs)

    return backend


def test_a_right_backend_passes_and_is_counted():
    counting = CountingBackend()
    report = check(
        lambda x, y: (x.cos() + y.sin(), x.add_(1)), randn(5), randn(5), backend=counting, graphs=1
    )
    assert (counting.calls, counting.op_count, len(report.outcomes)) == (3, 4, 3)
    assert report.counter.breaks == []


FAULTS = {
    "value": (lambda out, inputs: [out[0] * 1.01, *out[1:]], r"call 0: result\[0\]: Tensor-likes"),
    "dtype": (
        lambda out, inputs: [out[0].double(), *out[1:]],
        "dtype torch.float64, expected torch.float32",
    ),
    "shape": (lambda out, inputs: [out[0][:1], *out[1:]], "shape"),
    "aliasing": (lambda out, inputs: [out[0], out[0].t().clone()], "expected that of output 0"),
    "random state": (lambda out, inputs: (torch.rand(1), out)[1], "random state"),
    "argument": (lambda out, inputs: (inputs[0].add_(1), out)[1], r"arguments\[0\]"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_backend_is_found(fault):
    change, message = FAULTS[fault]

    def program(x):
        y = x * 2
        return y, y.t() if fault == "aliasing" else x + 3

    with pytest.raises(Mismatch, match=message):
        check(program, randn(3, 3), backend=altering(change))


def test_a_fault_of_a_later_call_is_found():
    calls = []

    def change(out, inputs):
        calls.append(1)
        return [o * (1 if len(calls) < 3 else 2) for o in out]

    with pytest.raises(Mismatch, match="call 2"):
        check(lambda x: x + 1, randn(3), backend=altering(change))


def test_exceptions_must_be_equal_in_type_and_text():
    def raising(x):
        raise ValueError(f"no {tuple(x.shape)}")

    check(raising, randn(3))
    state = {"runs": 0}

    def unequal(x):
        state["runs"] += 1
        raise ValueError(state["runs"])

    with pytest.raises(Mismatch, match="exception"):
        check(unequal, randn(3))


def test_gradients_are_compared():
    layer = torch.nn.Linear(3, 3)
    report = check(layer, randn(2, 3).requires_grad_(), grad=True)
    assert len(report.outcomes[0].grads) == 3

    def halved(gm, example_inputs):
        class Half(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, grad):
                return grad / 2

        return lambda *inputs: [Half.apply(out) for out in gm(*inputs)]

    with pytest.raises(Mismatch, match="gradients"):
        check(layer, randn(2, 3), grad=True, backend=halved)


def test_module_state_is_compared():
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen += 1
            return x + self.seen

    with torch.no_grad():
        report = check(Counting(), randn(3))
    assert [float(outcome.state["seen"]) for outcome in report.outcomes] == [1.0, 2.0, 3.0]


def test_pythons_random_numbers_are_compared():
    with pytest.raises(Mismatch, match="random state"):
        check(
            lambda x: x + 1,
            randn(3),
            backend=altering(lambda out, inputs: (random.random(), out)[1]),
        )


def test_numbers_of_graphs_and_breaks():
    with pytest.raises(Mismatch, match="graphs: 1, expected 2"):
        check(lambda x: x + 1, randn(3), graphs=2)


def test_error_against_float64():
    report = check(torch.nn.Linear(64, 64), randn(8, 64), truth=True)
    assert 0 < report.error_ratio <= 3
    with pytest.raises(Mismatch, match="error against float64"):
        rough = altering(lambda out, inputs: [o + 1e-5 for o in out])
        with torch.no_grad():
            check(torch.nn.Linear(64, 64), randn(8, 64), backend=rough, truth=True, rtol=1, atol=1)


def test_error_ratio():
    truth = torch.tensor([1.0, 2.0], dtype=torch.float64)
    eager, worse = truth.float() + 1e-6, truth.float() + 5e-6
    assert error_ratio(truth, eager, eager) == pytest.approx(1)
    assert error_ratio(truth, eager, worse) == pytest.approx(5, rel=0.2)
    assert error_ratio(truth, truth.float(), truth.float()) == 0


@dataclass
class Pair:
    left: object
    right: object


def test_structures_are_compared_by_type_and_place():
    compare({"a": [1, Pair(randn(2), None)]}, {"a": [1, Pair(randn(2), None)]})
    with pytest.raises(Mismatch, match=r"result\['a'\]\[1\]\.left"):
        compare({"a": [1, Pair(randn(2), None)]}, {"a": [1, Pair(randn(2) + 1, None)]})
    with pytest.raises(Mismatch, match="type list, expected tuple"):
        compare((1, 2), [1, 2])
    with pytest.raises(Mismatch, match="strides"):
        compare(randn(3, 2), randn(3, 2).t().contiguous().t())


def test_aliasing_is_compared_as_a_relation():
    x, y = randn(3), randn(3)
    compare_aliasing([x, x, x[1:]], [y, y, y[1:]])
    with pytest.raises(Mismatch, match="same object"):
        compare_aliasing([x, x], [y, y[:]])
    with pytest.raises(Mismatch, match="same memory"):
        compare_aliasing([x, x[:]], [y, y.clone()])


def test_conformance_shows_faults_and_fallbacks():
    cases = (
        Case(
            "add",
            lambda x: x + 1,
            lambda dtype, shape: (torch.ones(shape),),
            (torch.float32,),
            ((3,),),
        ),
    )

    def rows(backend):
        return [(row.status, row.detail) for row in conformance(backend, cases=cases)]

    def compile_with(change):
        return lambda graph, spec: lambda inputs: [change(out) for out in graph(*inputs)]

    right = Backend(name="right", compile=compile_with(lambda out: out))
    wrong = Backend(name="wrong", compile=compile_with(lambda out: out + 1))
    broken = Backend(name="broken", compile=compile_with(lambda out: out.double()))
    partly = Backend(
        name="partly", compile=compile_with(lambda out: out), supports=lambda node: "not mine"
    )
    assert rows(right) == [("ok", "")]
    assert rows(wrong)[0][0] == "wrong"
    assert rows(broken)[0][0] == "error" and "dtype" in rows(broken)[0][1]
    assert rows(partly)[0] == (
        "partly",
        "1 of 1 operators run eagerly: aten.add.Tensor (1x: not mine)",
    )


def test_the_counter_stops_counting():
    import tracer_core

    with CaptureCounter() as counter:
        tracer_core.compile(lambda x: x + 1, backend="eager")(randn(3))
    tracer_core.compile(lambda x: x + 2, backend="eager")(randn(3))
    assert len(counter.graphs) == 1


def test_importing_the_harness_imports_no_test_framework():
    program = "import sys, tracer_core.testing; assert 'pytest' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
