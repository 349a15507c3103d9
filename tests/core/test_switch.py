"""Compiled objects in eager mode on demand: `tracer_core.disabled` and TRACER_DISABLE, and the way
back from a compiled object to its original.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import threading

import pytest
import torch

import tracer_core
from tests.support import torch_server
from tracer_core.errors import TracerError


def compiled_calls() -> tuple:
    """Returns a compiled function, and the list of its calls that ran in Python: a capture runs the
    body once, eager mode each time, a cache entry never."""
    calls: list[bool] = []

    def note() -> None:
        calls.append(tracer_core.is_compiling())

    note = tracer_core.assume_constant_result(note)

    @tracer_core.compile(backend="eager")
    def step(x):
        note()
        return torch.sin(x) + 1

    return step, calls


def test_a_block_runs_the_original_code():
    step, calls = compiled_calls()
    x = torch.randn(3)
    expected = step(x)
    step(x)
    n_captured = len(calls)
    with tracer_core.disabled():
        assert torch.equal(step(x), expected)
        step(torch.randn(5, 2))
        assert len(calls) == n_captured + 2
    assert torch.equal(step(x), expected)
    assert len(calls) == n_captured + 2, "the entry from before the block serves the call"


def test_a_block_may_be_entered_again_and_left_by_an_error():
    step, calls = compiled_calls()
    x = torch.randn(3)
    with pytest.raises(ZeroDivisionError), tracer_core.disabled():
        with tracer_core.disabled():
            step(x)
        step(x)
        1 / 0
    assert calls == [False, False]
    step(x), step(x), step(x)
    assert len(calls) == 3


def test_as_a_decorator():
    step, calls = compiled_calls()

    @tracer_core.disabled()
    def reference(x):
        return step(x)

    x = torch.randn(3)
    assert torch.equal(reference(x), torch.sin(x) + 1) and torch.equal(reference(x), step(x))
    assert len(calls) == 3


def test_a_compiled_module_runs_its_hooks_and_original_forward():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    fast = tracer_core.compile(model, backend="eager", fullgraph=True)
    seen = []
    fast.register_forward_hook(lambda module, args, result: seen.append(module))
    x = torch.randn(2, 3)
    with tracer_core.disabled():
        assert torch.equal(fast(x), model(x))
        fast(x).sum().backward()
    assert seen == [model] * 3
    assert model[0].weight.grad is not None
    assert "disabled" not in {row.name for row in tracer_core.last_compile(fast)}


def test_other_threads_stay_compiled():
    step, calls = compiled_calls()
    x = torch.randn(3)
    step(x)
    before = len(calls)
    with tracer_core.disabled():
        thread = threading.Thread(target=step, args=(x,))
        thread.start()
        thread.join()
        assert len(calls) == before
        step(x)
        assert len(calls) == before + 1


def test_other_tasks_stay_compiled():
    step, calls = compiled_calls()
    x = torch.randn(3)
    step(x)
    before = len(calls)

    async def reference(entered, done):
        with tracer_core.disabled():
            entered.set()
            await done.wait()
            step(x)

    async def main():
        entered, done = asyncio.Event(), asyncio.Event()
        task = asyncio.ensure_future(reference(entered, done))
        await entered.wait()
        step(x)
        assert len(calls) == before
        done.set()
        await task
        assert len(calls) == before + 1

    asyncio.run(main())


def test_a_block_inside_a_compiled_function():
    def program(x):
        y = torch.sin(x)
        with tracer_core.disabled():
            z = torch.cos(y) if not tracer_core.is_compiling() else y
        return torch.exp(z) + 1

    fast = tracer_core.compile(program, backend="eager")
    x = torch.randn(3)
    for _ in range(3):
        assert torch.equal(fast(x), program(x))
    report = tracer_core.explain(program)(x)
    operators = [node.target for graph in report.graphs for node in graph.graph.nodes]
    assert torch.sin in operators and torch.exp in operators and torch.cos not in operators
    assert "tracer_core.disabled() switches capture off" in report.breaks[0].reason
    assert all("disabled()" in item.reason for item in report.breaks)
    with pytest.raises(tracer_core.errors.GraphBreakError, match=r"disabled\(\)"):
        tracer_core.compile(program, backend="eager", fullgraph=True)(x)


def test_what_reports_say_in_a_block(tmp_path):
    step, _ = compiled_calls()
    x = torch.randn(3)
    step(x)
    with tracer_core.disabled():
        assert "disabled()" in tracer_core.explain(step)(x).skipped[0]
        row = tracer_core.last_compile(step)[0]
        assert row.name == "disabled" and "disabled()" in row.text
        with pytest.raises(TracerError, match="package needs a capture, but tracer_core.disabled"):
            tracer_core.package(torch.sin, (x,), tmp_path / "sin.pack")
        tracer_core.warmup(step, torch.randn(7))
    assert tracer_core.explain(step)(x).skipped == ()


PROGRAM = """
import torch, tracer_core

@tracer_core.compile(fullgraph=True, options={"freeze": True})
def step(x):
    if float(x.sum()) > 0:  # a graph break, if it were captured
        print("eager")
    return x + 1

model = torch.nn.Linear(2, 2)
fast = tracer_core.compile(model, options={"freeze": True})
x = torch.ones(1, 2)
print(step(x).tolist(), step.__wrapped__(x).tolist(), torch.equal(fast(x), model(x)))
print(step.refresh(), fast.refresh(), list(fast.state_dict()), tracer_core.original(fast) is model)
print(tracer_core.last_compile(step))
print(tracer_core.explain(fast)(x))
"""


def run(program: str, **environment: str):
    return torch_server.run(["-c", program], env={**os.environ, **environment}, timeout=120)


def test_the_variable_switches_a_process_off():
    done = run(PROGRAM, TRACER_DISABLE="1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["eager", "eager"]
    assert lines[2] == "[[2.0, 2.0]] [[2.0, 2.0]] True"
    assert lines[3] == "None None ['weight', 'bias'] True"
    assert "disabled" in lines[4] + lines[5] and "graphs: 0" in done.stdout
    assert "ran eagerly: TRACER_DISABLE=1" in done.stdout
    on = run(PROGRAM, TRACER_DISABLE="0", TRACER_STRICT="0")
    assert "GraphBreakError" in on.stderr


def test_a_wrong_value_of_the_variable_is_an_error_of_compile():
    done = run("import tracer_core\ntracer_core.compile(abs)", TRACER_DISABLE="banana")
    assert "OptionError: TRACER_DISABLE='banana': 1 or 0" in done.stderr


def add(x):
    return x + 1


class Doubler(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.scale * x

    def other(self, x):
        return x - self.scale


def test_the_original_of_what_is_compiled():
    fast = tracer_core.compile(add, backend="eager")
    assert fast.__wrapped__ is add and tracer_core.original(fast) is add
    assert tracer_core.original(add) is add
    model = Doubler()
    method = tracer_core.compile(model.other, backend="eager")
    assert tracer_core.original(method) == model.other


def test_the_original_of_a_module_is_beside_its_state():
    model = Doubler()
    fast = tracer_core.compile(model, backend="eager")
    assert tracer_core.original(fast) is model and tracer_core.original(model) is model
    assert type(fast) is Doubler and list(fast.state_dict()) == ["scale"]
    assert type(pickle.loads(pickle.dumps(fast))) is Doubler
    alone = tracer_core.original(tracer_core.compile(Doubler(), backend="eager"))
    assert type(alone) is Doubler and alone(torch.tensor(3.0)).item() == 6.0
