"""`tracer_core.verify`: what passes, what does not, what it restores, and what it says of its limits."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tracer_core
from tracer_core.errors import OptionError, WrongResultError
from tracer_core.plugin_api import Backend, Training


def backend_with(change):
    """A backend whose floating-point results are changed."""

    def compile_graph(graph, spec):
        def run(inputs):
            return [
                change(item)
                if isinstance(item, torch.Tensor) and item.is_floating_point()
                else item
                for item in graph(*inputs)
            ]

        return run

    return Backend(name="changed", compile=compile_graph, training=Training.FORWARD_BACKWARD)


WRONG = backend_with(lambda result: result * 1.001)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Linear(32, 4))


def names_of(result):
    return [row.name for row in result.rows]


def test_a_module_in_training():
    net, x = network(), torch.randn(8, 16)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    result = tracer_core.verify(tracer_core.compile(net), x)
    assert result.ok and str(result).startswith("verify Sequential: all 10 ok; ")
    assert {"output", "1.running_mean afterwards", "gradient of 3.bias"} <= set(names_of(result))
    first = result.rows[0]
    assert first.dtype is torch.float32 and first.strides_equal
    assert 0 < first.eager_error < 1e-6 and 0 < first.error < 1e-6
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())
    result.raise_if_wrong()


def test_wrong_results_and_gradients_are_rows():
    result = tracer_core.verify(tracer_core.compile(network(), backend=WRONG), torch.randn(8, 16))
    assert not result.ok
    wrong = {row.name: row for row in result.rows if not row.ok}
    assert {"output", "gradient of 3.weight"} <= set(wrong)
    assert 9e-4 < wrong["output"].error < 2e-3 and wrong["output"].eager_error < 1e-6
    first, *rows = str(result).splitlines()
    assert f"{len(wrong)} of 10 WRONG" in first and len(rows) == len(wrong)
    with pytest.raises(WrongResultError, match="WRONG output: torch.float32"):
        result.raise_if_wrong()


def test_a_training_step_with_an_optimizer():
    net, x, y = network(), torch.randn(8, 16), torch.randint(0, 4, (8,))
    optimizer = torch.optim.Adam(net.parameters())

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    right, wrong = tracer_core.compile(step), tracer_core.compile(step, backend=WRONG)
    for _ in range(2):  # the optimizer's first step, and one with its state
        state, weights = random.getstate(), [value.clone() for value in net.parameters()]
        result = tracer_core.verify(right, x, y)
        assert result.ok, result
        assert {"net.0.weight afterwards", "gradient of net.0.weight"} <= set(names_of(result))
        assert any(row.error not in (0, row.eager_error) for row in result.rows)  # not eager itself
        assert not tracer_core.verify(wrong, x, y).ok
        assert all(map(torch.equal, net.parameters(), weights)) and random.getstate() == state
        step(x, y)


def test_random_numbers_are_the_same_and_said_to_differ_in_float64():
    fast = tracer_core.compile(lambda x: (F.dropout(x, 0.5), torch.randn_like(x)))
    x, state = torch.randn(64), torch.get_rng_state()
    dropped, noise = tracer_core.verify(fast, x).rows
    assert dropped.ok and noise.ok and noise.eager_error is None
    assert noise.detail == "random numbers of float64 differ"
    assert torch.equal(torch.get_rng_state(), state)


def test_without_float64_it_compares_with_eager_and_says_so():
    fast = tracer_core.compile(lambda x: x.to(torch.bfloat16).sin())
    (row,) = tracer_core.verify(fast, torch.randn(8)).rows
    assert row.ok and row.eager_error is None and "the program casts" in row.detail

    weight = torch.randn(4, 4, dtype=torch.float32)
    fast = tracer_core.compile(lambda x: x @ weight.detach().to(torch.float32), backend="eager")
    result = tracer_core.verify(fast, torch.randn(4, 4))
    assert result.ok and "compared with eager: float64 failed (RuntimeError" in str(result)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda result: result.clone().fill_(float("nan")), "error inf"),
        (lambda result: result * (1 + 3e-5), "error 3.0e-05"),
        (lambda result: result + (torch.arange(64.0) == 7) * 1e-3, "WRONG output"),
    ],
)
def test_what_is_found(change, said):
    fast = tracer_core.compile(lambda x: x * 3, backend=backend_with(change))
    result = tracer_core.verify(fast, torch.randn(64))
    assert not result.ok and said in str(result)


def test_integers_must_be_equal_and_objects_too():
    fast = tracer_core.compile(
        lambda x: {"index": (x * 2).argmax(-1), "name": "x", "sum": x.sum()},
        backend=Backend(
            name="other",
            compile=lambda graph, spec: (
                lambda inputs: [
                    item + 1 if item.dtype is torch.int64 else item for item in graph(*inputs)
                ]
            ),
        ),
    )
    rows = {row.name: row for row in tracer_core.verify(fast, torch.randn(8, 5)).rows}
    assert not rows["output['index']"].ok and rows["output['index']"].error == 1.0
    assert rows["output['name']"].ok and rows["output['sum']"].ok


def test_arguments_and_dictionaries_are_as_before():
    seen = {}

    def program(x, state):
        state.mul_(0.5).add_(x)
        seen["last"] = x.shape
        return state * 2

    x, state = torch.randn(4), torch.zeros(4)
    result = tracer_core.verify(tracer_core.compile(program), x, state=state)
    assert result.ok and "kwargs['state'] afterwards" in names_of(result)
    assert not state.any() and seen == {}


def test_what_the_program_raises_is_a_row():
    fast = tracer_core.compile(lambda x: x.view(5))
    (row,) = tracer_core.verify(fast, torch.randn(4)).rows
    assert row.ok and row.name == "exception" and "RuntimeError" in row.detail


def test_calls_run_what_was_compiled_where_eager_mode_has_won():
    fast, x = tracer_core.compile(lambda x: x * 1.5, backend=WRONG), torch.randn(4)
    fast(x)
    function = tracer_core.markers.compiled(fast).function
    ((key, cache),) = function.runtime.regions.starts.items()

    class Eager:
        def run(self, state):
            return state[0] * 1.5

    eager = Eager()
    function.runtime.regions.show(key, eager)
    assert not tracer_core.verify(fast, x).ok
    assert function.runtime.regions.shown(key) is eager


def test_what_did_not_run_compiled_is_a_note():
    fast = tracer_core.compile(lambda x: x + 1)
    with tracer_core.disabled():
        assert "nothing compiled ran" in str(tracer_core.verify(fast, torch.randn(2)))


def test_the_program_of_the_docs(capsys):
    page = Path(__file__).resolve().parents[2] / "docs" / "wrong_results.md"
    (program,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    exec(compile(program, str(page), "exec"), {})
    assert capsys.readouterr().out.startswith("verify Sequential: all 5 ok; nearest to its")


def test_a_function_that_is_not_compiled():
    with pytest.raises(OptionError, match="verify needs what compile"):
        tracer_core.verify(torch.sin, torch.randn(2))
