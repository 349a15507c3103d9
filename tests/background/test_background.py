"""``when="background"``: the captured graph serves at once, the compiled one as soon as it is there."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shutil
import threading
import time
import weakref

import pytest
import torch

import tracer_core
from tests.support import torch_server
from tests.support.recompile_limits import reported_limits
from tests.support.threads import together
from tracer_core.background import gil_yielding
from tracer_core.errors import BackendError, OptionError
from tracer_core.plugin_api import Backend, Training


class Gate:
    """A backend whose compilations wait until they may go on. runs: calls of compiled graphs, by
    the graph's phase; threads: in which graphs were compiled; change: what is done to each graph."""

    def __init__(self, shapes="symbolic", change=lambda graph: None):
        self.open = threading.Event()
        self.begun = threading.Event()
        self.runs, self.threads, self.graphs = [], [], []
        self.change = change
        self.backend = Backend(
            "gate",
            self.compile,
            training=Training.FORWARD_BACKWARD,
            shapes=shapes,
            numbers="inputs",
        )

    def compile(self, graph, spec):
        self.threads.append(threading.current_thread())
        self.begun.set()
        assert self.open.wait(60)
        self.change(graph)
        self.graphs.append(spec.phase.value)
        forward = graph.forward

        def run(inputs):
            self.runs.append(spec.phase.value)
            return forward(*inputs)

        return run


@pytest.fixture
def gate():
    result = Gate()
    yield result
    result.open.set()
    tracer_core.progress(wait=60)


def compiled(function, gate, **settings):
    return tracer_core.compile(function, backend=gate.backend, when="background", **settings)


def passed(gate, fast):
    """Lets the compilations of `fast` end."""
    gate.open.set()
    actual = tracer_core.progress(fast, wait=60)
    assert actual.is_done, actual
    return actual


def captures(fast):
    return tracer_core.markers.compiled(fast).function.runtime.tiering.n_captures


def twice(x):
    return torch.sin(x) * 2


def test_eager_serves_until_the_graph_is_compiled_which_is_captured_once(gate):
    fast, x = compiled(twice, gate), torch.randn(3)
    for _ in range(3):
        assert torch.equal(fast(x), twice(x))
    assert gate.runs == [] and gate.begun.wait(60)
    (actual,) = tracer_core.progress(fast)
    assert (actual.state, actual.function) == ("compiling", "twice")
    assert "runs eagerly meanwhile" in str(tracer_core.last_compile(fast))
    passed(gate, fast)
    assert torch.equal(fast(x), twice(x)) and gate.runs == ["inference"]
    assert captures(fast) == 1 and gate.threads[0] is not threading.current_thread()
    assert "compiled in the background; serves since" in str(tracer_core.last_compile(fast))
    assert [item.state for item in tracer_core.progress(fast)] == ["compiled"]


def test_the_last_entry_serves_its_calls_while_another_one_compiles(gate):
    fast, x, wide = compiled(twice, gate), torch.randn(3), torch.randn(2, 5)
    fast(x)
    passed(gate, fast)
    gate.open.clear()
    assert torch.equal(fast(wide), twice(wide)) and torch.equal(fast(x), twice(x))
    assert gate.runs == ["inference"]  # of x
    passed(gate, fast)
    assert torch.equal(fast(wide), twice(wide))
    assert len(gate.runs) == 2 and captures(fast) == 2


def test_sizes_that_change_become_symbolic_and_serve_eagerly_meanwhile(gate):
    fast = compiled(twice, gate)
    for n in (3, 4, 5, 6):
        x = torch.randn(n)
        assert torch.equal(fast(x), twice(x))
    assert captures(fast) == 2
    passed(gate, fast)
    x = torch.randn(7)
    assert torch.equal(fast(x), twice(x)) and gate.runs and captures(fast) == 2


def test_guards_that_compiling_adds_hold_from_then_on(gate):
    def by_four(graph):
        (x, *_) = [n.meta["val"] for n in graph.graph.find_nodes(op="placeholder")
                   if isinstance(n.meta["val"], torch.Tensor)]  # fmt: skip
        gate.seen.append(bool(x.shape[0] % 4 == 0))

    gate.seen, gate.change = [], by_four
    fast, x = compiled(twice, gate, dynamic=True), torch.randn(8)
    fast(x)
    assert torch.equal(fast(torch.ones(6)), twice(torch.ones(6)))  # eager takes any size
    assert captures(fast) == 1
    passed(gate, fast)
    assert torch.equal(fast(x), twice(x)) and gate.seen == [True] and captures(fast) == 1
    six = torch.randn(6)
    assert torch.equal(fast(six), twice(six))
    assert captures(fast) == 2  # what was compiled for multiples of four did not take it
    passed(gate, fast)
    assert torch.equal(fast(six), twice(six)) and gate.seen == [True, False]
    twelve = torch.randn(12)
    assert torch.equal(fast(twelve), twice(twelve)) and captures(fast) == 2


def test_random_numbers_and_mutations_are_eager_s_before_and_after(gate):
    def step(x, seen):
        x.add_(1)
        y = torch.nn.functional.dropout(x, 0.5)
        x.mul_(2)
        seen.append(int(y.shape[0]))
        return y

    fast = compiled(step, gate)
    mine, theirs, mine_seen, theirs_seen = torch.zeros(64), torch.zeros(64), [], []
    for call in range(6):
        if call == 3:
            passed(gate, fast)
        torch.manual_seed(call)
        want = step(theirs, theirs_seen)
        state = torch.get_rng_state()
        torch.manual_seed(call)
        assert torch.equal(fast(mine, mine_seen), want)
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(mine, theirs) and mine_seen == theirs_seen
        assert mine._version == theirs._version
    assert gate.runs


def test_a_backward_is_compiled_before_its_forward_serves(gate):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    exact = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    exact.load_state_dict(model.state_dict())
    exact.double()
    fast = compiled(model, gate)
    for call in range(4):
        if call == 2:
            passed(gate, fast)
            assert sorted(gate.graphs) == ["backward", "forward"] and gate.runs == []
        x = torch.randn(3, 4)
        model.zero_grad(), exact.zero_grad()
        fast(x).sum().backward()
        exact(x.double()).sum().backward()
        for mine, theirs in zip(model.parameters(), exact.parameters(), strict=True):
            torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-5, atol=1e-6)
    assert gate.runs == ["forward", "backward"] * 2
    assert all(thread is not threading.current_thread() for thread in gate.threads)


def test_what_changes_meanwhile_does_not_reach_the_graph(gate):
    """requires_grad of a parameter is as it was at the capture, whatever the program does to it."""
    model = torch.nn.Linear(3, 3)
    fast, x = compiled(model, gate), torch.randn(2, 3)
    fast(x)
    assert gate.begun.wait(60)
    other = tracer_core.compile(twice, backend=gate.backend, when="background")
    other(torch.nn.Parameter(torch.ones(3)))  # waits behind the first
    parameter = torch.nn.Parameter(torch.ones(4))
    other(parameter)
    parameter.requires_grad_(False)
    passed(gate, fast)
    passed(gate, other)
    parameter.requires_grad_(True)
    other(parameter).sum().backward()
    torch.testing.assert_close(parameter.grad, 2 * torch.cos(torch.ones(4)))
    assert gate.runs[-2:] == ["forward", "backward"]


def test_a_setting_that_changes_meanwhile_has_the_graph_captured_again(gate):
    def made(x):
        return x + torch.ones(3)

    fast, x = compiled(made, gate), torch.zeros(3)
    fast(x)
    assert gate.begun.wait(60)
    try:
        torch.set_default_dtype(torch.float64)
        assert [item.state for item in passed(gate, fast)] == ["dropped"]
        assert fast(x).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert fast(x).dtype == torch.float32
    passed(gate, fast)
    assert fast(x).dtype == torch.float32 and gate.runs


def test_a_setting_that_is_set_during_the_compilation_stays(monkeypatch):
    """Lowering restores the settings that a graph changes, but not the program's."""
    from tracer_core import torch_private

    begun, go_on = threading.Event(), threading.Event()
    restored = torch_private.settings_restored

    @contextlib.contextmanager
    def slow():
        with restored():
            yield
            if threading.current_thread() is not threading.main_thread():
                begun.set()
                assert go_on.wait(60)

    monkeypatch.setattr(torch_private, "settings_restored", slow)
    fast = tracer_core.compile(lambda x: x * 2 + 1, backend="inductor", when="background")
    with torch.no_grad():
        fast(torch.ones(3))
        assert begun.wait(60)
        try:
            torch.set_default_dtype(torch.float64)
            go_on.set()
            assert tracer_core.progress(fast, wait=60).is_done
            assert torch.get_default_dtype() is torch.float64
        finally:
            torch.set_default_dtype(torch.float32)


def test_inputs_die_when_the_program_drops_them(gate):
    fast, x = compiled(twice, gate), torch.randn(3)
    fast(x)
    alive = weakref.ref(x)
    del x
    assert alive() is None
    passed(gate, fast)


def refusing(graph):
    raise RuntimeError("no such instruction")


def test_a_graph_that_cannot_be_compiled_goes_on_eagerly_and_says_so(gate, monkeypatch, caplog):
    monkeypatch.delenv("TRACER_STRICT")
    gate.change = refusing
    fast, x = compiled(twice, gate, dynamic=False), torch.randn(3)
    fast(x)
    with caplog.at_level(logging.WARNING, "tracer_core"):
        (actual,) = passed(gate, fast)
    assert actual.state == "failed" and "no such instruction" in actual.detail
    assert "no such instruction" in caplog.text and "runs eagerly from now on" in caplog.text
    assert torch.equal(fast(x), twice(x)) and captures(fast) == 1
    (row,) = [record for record in tracer_core.last_compile(fast) if record.name == "background"]
    assert "no such instruction" in row.text


def test_a_backend_that_interrupts_ends_nothing_else(gate, monkeypatch):
    monkeypatch.delenv("TRACER_STRICT")

    def interrupting(graph):
        raise KeyboardInterrupt

    gate.change = interrupting
    fast, x = compiled(twice, gate, dynamic=False), torch.randn(3)
    fast(x)
    (actual,) = passed(gate, fast)
    assert actual.state == "failed" and "KeyboardInterrupt" in actual.detail
    gate.change = lambda graph: None
    other = compiled(twice, gate)
    other(x)
    assert [item.state for item in passed(gate, other)] == ["compiled"]
    assert torch.equal(other(x), twice(x)) and gate.runs


def test_fullgraph_goes_on_eagerly_too(gate, monkeypatch):
    monkeypatch.delenv("TRACER_STRICT")
    gate.change = refusing
    fast, x = compiled(twice, gate, fullgraph=True, dynamic=False), torch.randn(3)
    for _ in range(2):
        assert torch.equal(fast(x), twice(x))
        passed(gate, fast)
    assert any("backend_failed" in record.text for record in tracer_core.last_compile(fast))


def test_strict_fullgraph_raises_the_error_at_the_next_calls_that_it_concerns(gate):
    gate.change = refusing
    fast, x = compiled(twice, gate, fullgraph=True, dynamic=False), torch.randn(3)
    assert torch.equal(fast(x), twice(x))
    passed(gate, fast)
    for _ in range(2):
        with pytest.raises(BackendError, match="no such instruction"):
            fast(x)
    gate.change = lambda graph: None
    wide = torch.randn(2, 2)
    assert torch.equal(fast(wide), twice(wide))


def test_a_backend_that_fails_on_symbols_gets_constants(gate):
    def static_only(graph):
        if any(isinstance(n.meta["val"], torch.SymInt) or
               any(isinstance(s, torch.SymInt) for s in getattr(n.meta["val"], "shape", ()))
               for n in graph.graph.find_nodes(op="placeholder")):  # fmt: skip
            raise RuntimeError("no symbols here")

    gate.change = static_only
    fast = compiled(twice, gate, dynamic=True)
    x = torch.randn(5)
    fast(x)
    passed(gate, fast)
    assert torch.equal(fast(x), twice(x)) and captures(fast) == 2
    passed(gate, fast)
    assert torch.equal(fast(x), twice(x)) and gate.runs == ["inference"]


def test_a_program_that_raises_raises_before_and_after(gate):
    def pick(x, at):
        return x[at] + 1

    fast, x = compiled(pick, gate), torch.arange(3.0)
    good, bad = torch.tensor([0, 2]), torch.tensor([0, 7])
    for ready in (False, True):
        if ready:
            passed(gate, fast)
        assert torch.equal(fast(x, good), pick(x, good))
        with pytest.raises(IndexError):
            fast(x, bad)
    assert gate.runs


def test_graph_breaks_keep_their_order(gate):
    said = []

    def noisy(x):
        y = torch.sin(x)
        said.append(f"{y.sum().item():.3f}")
        tracer_core.graph_break()
        return torch.cos(y)

    fast, x = compiled(noisy, gate), torch.ones(3)
    for _ in range(2):
        assert torch.equal(fast(x), torch.cos(torch.sin(x)))
    passed(gate, fast)
    assert torch.equal(fast(x), torch.cos(torch.sin(x)))
    assert len(gate.runs) >= 2 and len(said) == 3


def test_reset_drops_what_is_being_compiled(gate):
    fast, x = compiled(twice, gate), torch.randn(3)
    fast(x)
    assert gate.begun.wait(60)
    tracer_core.reset()
    gate.open.set()
    assert torch.equal(fast(x), twice(x))
    passed(gate, fast)
    assert torch.equal(fast(x), twice(x)) and len(gate.runs) == 1


def test_a_function_that_dies_is_not_compiled(gate):
    blocker, x = compiled(lambda x: x + 1, gate), torch.randn(3)
    blocker(x)
    assert gate.begun.wait(60)
    fast = compiled(lambda x: x - 1, gate)
    fast(x)
    del fast
    passed(gate, blocker)
    tracer_core.progress(wait=60)
    assert len(gate.threads) == 1


def test_calls_of_many_threads_during_the_change(gate):
    fast, x = compiled(twice, gate), torch.randn(50)
    want, wrong = twice(x), []

    def call(thread):
        for number in range(300):
            if number == 100:
                gate.open.set()
            if not torch.equal(fast(x), want):
                wrong.append(number)

    together(call, 4)
    passed(gate, fast)
    assert torch.equal(fast(x), want) and wrong == [] and gate.runs and captures(fast) == 1


def test_a_place_at_its_recompile_limit_gets_the_compiled_entries_too(gate, monkeypatch):
    monkeypatch.delenv("TRACER_STRICT")
    fast = compiled(lambda x, how: torch.sin(x) if how else x, gate, dynamic=False)
    shapes = [torch.randn(n) for n in range(1, 11)]
    with reported_limits():
        for x in shapes:
            assert torch.equal(fast(x, True), torch.sin(x))
    passed(gate, fast)
    gate.runs.clear()
    assert torch.equal(fast(shapes[0], True), torch.sin(shapes[0])) and gate.runs


def test_saving_waits(gate, tmp_path):
    fast, x = tracer_core.compile(twice, when="background"), torch.randn(3)
    fast(x)
    report = tracer_core.save(fast, tmp_path / "kept")
    assert len(report.stored) == 1 and not report.left_out
    again = tracer_core.compile(twice)
    assert tracer_core.load(again, tmp_path / "kept") == 1
    torch.testing.assert_close(again(x), twice(x))
    assert captures(again) == 0


def test_inductor_s_results_are_those_of_a_call_that_waits():
    def program(x, y):
        return torch.softmax(x @ y, -1).sum(0), torch.relu(x)

    now = tracer_core.compile(program)
    later = tracer_core.compile(program, when="background")
    x, y = torch.randn(6, 8), torch.randn(8, 4)
    for a, b in zip(later(x, y), program(x, y), strict=True):
        assert torch.equal(a, b)  # the captured operators
    assert tracer_core.progress(later, wait=120).is_done
    for a, b in zip(later(x, y), now(x, y), strict=True):
        assert torch.equal(a, b) and a.stride() == b.stride()


def test_eager_mode_is_not_compared_before_the_graph_is_compiled(monkeypatch):
    """What runs meanwhile is slower than eager mode, which says nothing of what is being compiled."""
    monkeypatch.delenv("TRACER_STRICT")
    gate = Gate()
    gate.backend = dataclasses.replace(gate.backend, fuses=True)
    fast, x = compiled(twice, gate), torch.randn(3)
    with torch.no_grad():
        for _ in range(200):
            fast(x)
        function = tracer_core.markers.compiled(fast).function
        assert function.verdicts == []
        passed(gate, fast)
        for _ in range(200):
            fast(x)
    assert len(function.verdicts) >= 1 and gate.runs


@pytest.mark.parametrize(("setting", "said"), [
    ({"when": "later"}, "when must be one of 'now', 'background'"),
    ({"when": "background", "backend": "auto", "options": {"wait": True}}, "one of them"),
])  # fmt: skip
def test_wrong_settings_are_errors_of_compile(setting, said):
    with pytest.raises(OptionError, match=said):
        tracer_core.compile(twice, **setting)


def test_compilers_give_way_to_served_calls():
    """While a call is served, background work stands still, but for a slice now and then."""
    counted, stop = [0], threading.Event()

    def work():
        with gil_yielding.yielding_gil():
            while not stop.is_set():
                step()

    def step():
        counted[0] += 1

    def serve(inputs):
        before = counted[0]
        time.sleep(0.3)
        return counted[0] - before

    thread = threading.Thread(target=work)
    thread.start()
    try:
        alone = serve([])
        beside = gil_yielding.in_foreground(serve)([])
    finally:
        stop.set()
        thread.join()
    assert 0 < beside < 0.6 * alone


CHILD = """
import os, sys, threading, time
import torch, tracer_core
from tracer_core.plugin_api import Backend

opened, runs = threading.Event(), []
def build(graph, spec):
    opened.wait(60)
    def run(inputs):
        runs.append(os.getpid())
        return graph.forward(*inputs)
    return run
def twice(x):
    return torch.sin(x) * 2
fast = tracer_core.compile(twice, backend=Backend("own", build), when="background")
x = torch.randn(3)
assert torch.equal(fast(x), twice(x))
"""


def run(text, **environment):
    return torch_server.run(["-c", CHILD + text], timeout=120, env={**os.environ, **environment})


def test_a_forked_child_compiles_for_itself():
    done = run("""
torch.set_num_threads(1)
child = os.fork()
if child == 0:
    opened.set()
    assert torch.equal(fast(x), twice(x))
    assert tracer_core.progress(fast, wait=60).is_done
    assert torch.equal(fast(x), twice(x)) and runs == [os.getpid()], runs
    os._exit(7)
_, status = os.waitpid(child, 0)
opened.set()
assert tracer_core.progress(fast, wait=60).is_done
assert torch.equal(fast(x), twice(x)) and runs == [os.getpid()]
print(os.waitstatus_to_exitcode(status))
""")
    assert done.returncode == 0 and done.stdout.split() == ["7"], done.stderr


def test_a_program_ends_while_it_compiles():
    done = run("""
threading.Timer(0.5, opened.set).start()
other = tracer_core.compile(lambda x: torch.cos(x) + x, when="background")
other(x)
print("end")
sys.exit(3)
""")
    assert (done.returncode, done.stdout, done.stderr) == (3, "end\n", "")


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_compiler_that_takes_long_holds_up_no_end(tmp_path):
    compiler = tmp_path / "g++"
    compiler.write_text('#!/bin/sh\ncase "$*" in *-o*) sleep 100;; *) exec g++ "$@";; esac\n')
    compiler.chmod(0o755)
    begin = time.monotonic()
    done = run("""
opened.set()
other = tracer_core.compile(lambda x: torch.cos(x) + x, when="background")
other(x)
while not any(one.stage == "inductor_build" for one in tracer_core.progress(other)):
    time.sleep(0.05)
time.sleep(1)
print("end")
sys.exit(3)
""", CXX=str(compiler), TRACER_CACHE_DIR=str(tmp_path / "cache"))  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (3, "end\n", "")
    assert time.monotonic() - begin < 90


def test_what_was_compiled_in_the_background_is_kept(tmp_path):
    program = """
import os, sys, torch, tracer_core
def program(x):
    return torch.softmax(x, -1) * 2
fast, x = tracer_core.compile(program, when="background"), torch.ones(3, 5)
assert torch.allclose(fast(x), program(x))
assert tracer_core.progress(fast, wait=100).is_done
assert torch.allclose(fast(x), program(x))
print(tracer_core.markers.compiled(fast).function.runtime.tiering.n_captures)
"""
    (tmp_path / "program.py").write_text(program)
    settings = {"TRACER_CACHE_DIR": str(tmp_path / "cache"), "TRACER_KEEP": "1"}
    environment = {k: v for k, v in os.environ.items() if k != "TRACER_CHECK"} | settings
    for n_captures in ("1", "0"):
        done = torch_server.run([tmp_path / "program.py"], env=environment, timeout=200)
        assert (done.returncode, done.stdout.strip()) == (0, n_captures), done.stderr
