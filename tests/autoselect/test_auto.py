"""``backend="auto"`` and lists of backends: the fastest right candidate serves, and nothing happens
twice.
"""

from __future__ import annotations

import logging
import threading
import time

import pytest
import torch

import tracer_core
from tests.support import torch_server
from tests.support.callable_backends import eager_graph
from tests.support.threads import together
from tracer_core.autoselect.alternating_rounds import AlternatingRounds
from tracer_core.errors import BackendNotFoundError, OptionError
from tracer_core.plugin_api import Backend, Store

MANY = 60


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACER_CACHE_DIR", str(tmp_path / "cache"))


def additions(x):
    """Sixty operators in eager mode; a compiler that sees through it needs one."""
    for _ in range(MANY):
        x = x + 1
    return x


def clever(gm, example_inputs):
    """Right for `additions` only."""
    return lambda x: (x + MANY,)


def slow(gm, example_inputs):
    def run(*inputs):
        time.sleep(0.01)
        return gm.forward(*inputs)

    return run


def wrong(gm, example_inputs):
    return lambda *inputs: tuple(value + 1 for value in gm.forward(*inputs))


def broken(gm, example_inputs):
    raise RuntimeError("no such engine")


def decided(fast):
    """The one choice, which must have been made."""
    (choice,) = fast.choices()
    assert choice.decided
    return choice


def statuses(choice):
    return {row.name: row.status for row in choice.rows}


def test_the_fastest_right_one_is_kept_and_each_has_a_row(caplog):
    with caplog.at_level(logging.WARNING, logger="tracer_core"):
        fast = tracer_core.compile(
            additions, backend=[slow, wrong, broken, clever], options={"wait": True}
        )
        for size in (8, 8):
            x = torch.randn(size)
            torch.testing.assert_close(fast(x), additions(x))
    choice = decided(fast)
    assert statuses(choice) == {
        "slow": "slower", "wrong": "wrong", "broken": "failed", "clever": "chosen",
        "eager": "slower"
    }  # fmt: skip
    assert "relative error" in choice.row("wrong").detail
    assert "no such engine" in choice.row("broken").detail
    assert choice.row("slow").ms > 10 and choice.row("clever").ms < choice.row("clever").eager_ms
    assert "broken failed" in caplog.text and "wrong is wrong" in caplog.text
    assert "no such engine" in str(choice)
    assert str(choice) == tracer_core.last_compile(fast)[-1].text
    assert "clever (decided)" in str(tracer_core.explain(fast)(torch.randn(3)))


def test_the_table_says_what_of_a_candidate_runs_eagerly():
    def no_sine(node):
        return "no sine here" if node.target is torch.ops.aten.sin.default else None

    def compile_graph(graph, spec):
        return lambda inputs: graph.forward(*inputs)

    part = Backend(name="part", compile=compile_graph, ir="aten", supports=no_sine)
    fast = tracer_core.compile(
        lambda x: x.sin() * 2, backend=[part, eager_graph], options={"wait": True}
    )
    x = torch.randn(4)
    torch.testing.assert_close(fast(x), x.sin() * 2)
    choice = decided(fast)
    assert (
        choice.row("part").detail
        == "1 of 2 operators run eagerly: aten.sin.default (1x: no sine here)"
    )
    assert "no sine here" in str(choice)
    assert choice.row("eager_graph").detail == ""


def test_eager_serves_until_a_candidate_is_ready_and_stays_where_none_is_better():
    gate = threading.Event()

    def late(gm, example_inputs):
        gate.wait(60)
        return clever(gm, example_inputs)

    fast = tracer_core.compile(additions, backend=[late])
    x = torch.randn(4)
    torch.testing.assert_close(fast(x), additions(x))
    (choice,) = fast.choices()
    assert choice.chosen == "eager" and not choice.decided and "still trying" in str(choice)
    gate.set()
    (choice,) = fast.choices(wait=60)
    assert choice.chosen == "late" and choice.decided
    torch.testing.assert_close(fast(x), additions(x))
    unlucky = tracer_core.compile(additions, backend=[slow], options={"wait": True})
    torch.testing.assert_close(unlucky(x), additions(x))
    assert decided(unlucky).chosen == "eager"


class Counts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        x.mul_(2)
        return x.view(-1), x + self.calls


@pytest.mark.parametrize("wait", [True, False])
def test_writes_happen_once_a_call(wait):
    module, reference = Counts(), Counts()
    fast = tracer_core.compile(module, backend=[eager_graph, slow], options={"wait": wait})
    x, y = torch.ones(2, 3), torch.ones(2, 3)
    for number in range(4):
        with torch.no_grad():
            view, other = fast(x)
            expected_view, expected = reference(y)
        assert torch.equal(x, y) and torch.equal(other, expected)
        assert view.data_ptr() == x.data_ptr() and torch.equal(view, expected_view)
        assert module.calls == number + 1
        fast.choices(wait=60)
    assert x[0, 0] == 16


@pytest.mark.parametrize("wait", [True, False])
def test_random_numbers_are_drawn_once_a_call(wait):
    def noisy(x):
        return torch.nn.functional.dropout(x, 0.5) + torch.rand(3)

    x = torch.ones(3)
    torch.manual_seed(1)
    expected = [noisy(x) for _ in range(6)]
    end = torch.get_rng_state()
    fast = tracer_core.compile(noisy, backend=[eager_graph, slow, wrong], options={"wait": wait})
    torch.manual_seed(1)
    for item in expected:
        assert torch.equal(fast(x), item)
        time.sleep(0.3 if not wait else 0)  # so that candidates are ready between the calls
    assert torch.equal(torch.get_rng_state(), end)
    actual = statuses(decided(fast))
    assert actual["wrong"] == "wrong" and actual["slow"] == "slower"


def test_training_compares_gradients_and_calls_hooks_once():
    pytest.importorskip("onnxruntime")

    def loses_gradients(gm, example_inputs):
        return lambda *inputs: tuple(
            value.detach().requires_grad_() if value.requires_grad else value
            for value in gm.forward(*inputs)
        )

    def halves_gradients(gm, example_inputs):
        def halved(value):
            return value.detach() * 0.5 + value * 0.5 if value.requires_grad else value

        return lambda *inputs: tuple(halved(value) for value in gm.forward(*inputs))

    torch.manual_seed(0)
    model, reference = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    reference.load_state_dict(model.state_dict())
    heard = []
    model.weight.register_hook(lambda gradient: heard.append(gradient))
    fast = tracer_core.compile(
        model,
        backend=["aten_eager", halves_gradients, loses_gradients, "onnxrt"],
        options={"wait": True},
    )
    for _ in range(3):
        x = torch.randn(5, 3)
        for item in (fast, reference):
            item.zero_grad()
            item(x).square().sum().backward()
        torch.testing.assert_close(model.weight.grad, reference.weight.grad)
        torch.testing.assert_close(model.bias.grad, reference.bias.grad)
    assert len(heard) == 3
    rows = {row.name: row for row in decided(fast).rows}
    assert rows["halves_gradients"].status == "wrong", str(decided(fast))
    assert "gradient" in rows["halves_gradients"].detail
    assert rows["loses_gradients"].status in ("wrong", "failed")
    assert rows["aten_eager"].error < 1e-5
    assert (rows["onnxrt"].status, rows["onnxrt"].detail) == ("refused", "it is for inference only")


def test_the_choice_is_remembered_and_still_checked(caplog):
    compiled = []

    def build(name, make):
        def backend(gm, example_inputs):
            compiled.append(name)
            return make(gm, example_inputs)

        backend.__name__ = backend.__qualname__ = name
        return backend

    def run(first, second):
        compiled.clear()
        tracer_core.reset()
        fast = tracer_core.compile(
            additions,
            backend=[build("first", first), build("second", second)],
            options={"wait": True},
        )
        torch.testing.assert_close(fast(torch.zeros(4)), torch.full((4,), 60.0))
        torch.testing.assert_close(fast(torch.zeros(4)), torch.full((4,), 60.0))
        return decided(fast)

    assert not run(slow, clever).remembered and compiled == ["first", "second"]
    again = run(slow, clever)
    assert again.remembered and again.chosen == "second" and compiled == ["second"]
    assert again.row("first").status == "slower" and again.row("first").ms > 10
    changed = run(clever, wrong)  # under the same names: the key does not see it, the check does
    assert (
        not changed.remembered
        and changed.chosen == "first"
        and changed.row("second").status == "wrong"
    )
    assert run(clever, wrong).remembered


def test_a_damaged_memory_is_measured_again(tmp_path):
    for text in (None, "{", '{"chosen": "clever", "rows": [{"name": "x"}]}', "[]", "damaged"):
        for file in (tmp_path / "cache" / "auto").glob("*"):
            if text == "damaged":
                file.write_bytes(file.read_bytes()[:-1])
            else:
                Store("auto").write(file.name, text.encode())
        fast = tracer_core.compile(additions, backend=[clever], options={"wait": True})
        torch.testing.assert_close(fast(torch.zeros(4)), torch.full((4,), 60.0))
        choice = decided(fast)
        assert choice.chosen == "clever" and not choice.remembered


def test_a_spent_budget_leaves_eager_and_says_so():
    fast = tracer_core.compile(
        additions, backend=[clever], options={"wait": True, "budget": 0.0, "remember": False}
    )
    torch.testing.assert_close(fast(torch.zeros(4)), torch.full((4,), 60.0))
    choice = decided(fast)
    assert choice.chosen == "eager"
    assert choice.row("clever").detail == "the budget of 0 s was spent"


def test_sizes_that_change_and_several_graphs():
    def program(x):
        y = additions(x)
        tracer_core.graph_break()
        return y * 2

    fast = tracer_core.compile(program, backend=["aten_eager", eager_graph], options={"wait": True})
    for rows in (3, 4, 5, 9):
        x = torch.randn(rows, 2)
        torch.testing.assert_close(fast(x), program(x))
    assert {choice.decided for choice in fast.choices()} == {True}
    assert len(fast.choices()) >= 3


def test_threads_are_served_right_while_candidates_are_tried():
    fast = tracer_core.compile(additions, backend=[slow, clever])
    failures = []

    def work(number):
        x = torch.full((5,), float(number))
        for _ in range(30):
            if not torch.equal(fast(x), x + MANY):
                failures.append(number)

    together(work)
    assert not failures
    assert fast.choices(wait=60)[0].chosen == "clever"


def test_modes_of_the_thread_reach_the_trial():
    def program(x):
        return x @ x

    fast = tracer_core.compile(program, backend=["aten_eager"])
    x = torch.randn(4, 4)
    for context in (
        torch.inference_mode(),
        torch.autocast("cpu", dtype=torch.bfloat16),
        torch.no_grad(),
    ):
        with context:
            torch.testing.assert_close(fast(x), program(x), rtol=0, atol=0)
            assert all(choice.decided for choice in fast.choices(wait=60))
            torch.testing.assert_close(fast(x), program(x), rtol=0, atol=0)
    for choice in fast.choices():
        assert choice.row("aten_eager").status in ("chosen", "slower"), str(choice)


def test_a_call_waits_for_one_timed_call_at_most():
    turns, ended, seconds, timed = AlternatingRounds(), threading.Event(), [], []

    def measure():
        while not ended.is_set():
            with turns.timed():
                time.sleep(0.03)
                timed.append(1)

    thread = threading.Thread(target=measure)
    thread.start()
    for _ in range(12):
        start = time.perf_counter()
        with turns.in_foreground():
            seconds.append(time.perf_counter() - start)
            time.sleep(0.01)
    ended.set()
    thread.join()
    assert max(seconds) < 0.6, seconds  # starved calls wait for MAX_TURN_SECONDS, 2 s
    assert len(timed) >= 6  # and the program's calls do not keep the measurement from going on


def test_mistakes_are_found_at_compile():
    for settings, error, message in (
        ({"backend": ["no_such_backend"]}, BackendNotFoundError, "no_such_backend"),
        ({"backend": []}, OptionError, "the list is empty"),
        ({"backend": ["eager", "auto"]}, OptionError, "no candidate of itself"),
        ({"backend": ["aten_eager", "aten_eager"]}, OptionError, "given twice"),
        ({"backend": [("aten_eager", {"speed": 1})]}, OptionError, "no option 'speed'"),
        ({"backend": "auto", "options": {"candidates": ("aten_eager",),
        "settings": {"onnxrt": {}}}}, OptionError, "onnxrt"),
        ({"backend": "auto", "options": {"budget": -1.0}}, OptionError, "not negative"),
        ({"backend": "auto", "options": {"seconds": 1}}, OptionError, "no option 'seconds'"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            tracer_core.compile(additions, **settings)
    tracer_core.compile(additions, backend=[("aten_eager", {"memory_budget": 0.5}), "aten_eager"])


def test_it_is_listed():
    (row,) = [row for row in tracer_core.backends() if row.name == "auto"]
    assert row.available and row.distribution == "tracer-core"
    assert "auto" in tracer_core.list_backends()


def test_auto_with_the_installed_engines_and_settings_of_one():
    pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 8)
    ).eval()
    options = {
        "candidates": ("inductor", "onnxrt"),
        "settings": {"inductor": {"freeze": True}},
        "wait": True,
    }
    fast = tracer_core.compile(model, backend="auto", options=options)
    x = torch.randn(16, 64)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
        choice = decided(fast)
        for name in ("inductor(freeze=True)", "onnxrt"):
            assert choice.row(name).error < 1e-4 and choice.row(name).ms > 0, str(choice)
        model[0].weight.data.mul_(2)  # not seen by constants: the user says so
        fast.refresh()
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_program_may_end_while_candidates_are_tried():
    program = (
        "import time, torch, tracer_core\n"
        "def slow(gm, inputs):\n    time.sleep(1)\n    return gm.forward\n"
        "fast = tracer_core.compile(lambda x: x + 1, backend=[slow, ('eager', {}), 'aten_eager'])\n"
        "print(fast(torch.ones(2)).tolist())\n"
    )
    done = torch_server.run(["-c", program], timeout=120)
    assert done.returncode == 0 and done.stdout == "[2.0, 2.0]\n", done.stderr
    assert "Error" not in done.stderr


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ([torch.nan, 1.0], [0.0, 1.0]),
        ([0.0, 1.0], [torch.nan, 1.0]),
        ([torch.inf, 1.0], [torch.nan, 1.0]),
        ([torch.inf, 1.0], [-torch.inf, 1.0]),
        ([torch.inf, 1.0], [torch.finfo(torch.float64).max, 1.0]),
        ([torch.finfo(torch.float64).min, 1.0, 2.0], [torch.finfo(torch.float64).min, 2.0, 1.0]),
        ([torch.finfo(torch.float64).min, 1.0], [torch.finfo(torch.float64).max, 1.0]),
    ],
)
def test_odd_numbers_and_what_stands_beside_huge_ones_is_compared(wanted, found):
    def filled(values):
        return lambda x: x * 0 + torch.tensor(values, dtype=torch.float64)

    def candidate(values):
        def other(gm, example_inputs):
            return lambda *inputs: (torch.tensor(values, dtype=torch.float64),)

        return other

    for values, statuses_of in ((found, ("wrong",)), (wanted, ("chosen", "slower"))):
        fast = tracer_core.compile(
            filled(wanted), backend=[candidate(values)], options={"wait": True, "remember": False}
        )
        x = torch.ones(len(wanted), dtype=torch.float64)
        torch.testing.assert_close(fast(x), filled(wanted)(x), equal_nan=True)
        assert statuses(decided(fast))["other"] in statuses_of


def test_results_that_are_rounding_and_nothing_else_are_nobodys_fault():
    def centred(x):
        return (x - x.mean(0)).sum(0), x * 2

    def exact(gm, example_inputs):
        return lambda x: (torch.zeros(x.shape[1]), x * 2)

    def off(gm, example_inputs):
        return lambda x: (torch.full((x.shape[1],), 1e-3), x * 2)

    def careless(gm, example_inputs):
        return lambda x: (torch.zeros(x.shape[1]), x * 2.01)

    fast = tracer_core.compile(centred, backend=[exact, off, careless], options={"wait": True})
    x = torch.randn(300, 7)
    torch.testing.assert_close(fast(x), centred(x))
    choice = decided(fast)
    assert choice.row("exact").status in ("chosen", "slower") and choice.row("exact").error < 1e-6
    assert choice.row("off").status == "wrong" and "result 0" in choice.row("off").detail
    assert choice.row("careless").status == "wrong" and "result 1" in choice.row("careless").detail


def test_an_optimizer_may_write_to_parameters_while_candidates_are_tried():
    begun, stepped = threading.Event(), threading.Event()

    def second(gm, example_inputs):  # the first was compared with eager by now
        begun.set()
        assert stepped.wait(60)
        return gm.forward

    model = torch.nn.Linear(3, 2)
    fast = tracer_core.compile(model, backend=[eager_graph, second])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    fast(torch.randn(5, 3)).square().sum().backward()
    assert begun.wait(60)
    optimizer.step()
    stepped.set()
    (choice,) = fast.choices(wait=60)
    assert choice.decided
    assert {"wrong", "failed"}.isdisjoint(statuses(choice).values()), str(choice)
