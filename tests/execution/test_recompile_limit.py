"""The recompile limit: what happens at it and after it; the line after the first call."""

from __future__ import annotations

import copy
import dataclasses
import gc
import logging
import operator
import warnings
import weakref

import pytest
import torch

import tracer_core
from benchmarks import changing
from tests.support.eager_reference import replaced, same
from tests.support.recompile_limits import reported_limits
from tracer_core.errors import RecompileLimitError
from tracer_core.execution import activation
from tracer_core.execution.capture import trace as capturing
from tracer_core.execution.entry import guarded_cache
from tracer_core.markers import compiled as behind
from tracer_core.testing import CaptureCounter, compare
from tracer_core.trace.eager_interpreter import RealMachine

X = torch.randn(3, 4)
WORDS = [f"word{i}" for i in range(14)]


def noisy(x, word):
    y = x + 1
    print(end="", flush=[])
    return y * (2 if word == "word3" else 3), word


BOX = {"word": ""}


def says(x):
    y = x + 1
    print(end="", flush=[])
    return y * (2 if BOX["word"] == "word3" else 3)


def calls_says(x):
    return says(x - 1) + 1


def test_the_limit_warns_once_and_names_the_guard():
    compiled = tracer_core.compile(lambda x, word: x + len(word), backend="eager")
    with reported_limits(match="word == 'word7'.*'word8'") as caught:
        for word in WORDS:
            assert torch.equal(compiled(X, word), X + len(word))
    assert len(caught) == 1


def test_the_limit_ends_no_program_that_makes_errors_of_warnings():
    def words(x, word):
        return x.sin() if word == "a" else x + len(word)

    compiled = tracer_core.compile(words, backend="eager")
    with warnings.catch_warnings(), reported_limits(count=1):
        warnings.simplefilter("error")
        for word in WORDS:
            torch.testing.assert_close(compiled(X, word), words(X, word))


def test_a_function_at_its_limit_still_uses_what_was_captured():
    compiled = tracer_core.compile(lambda x, word: x + len(word), backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for word in WORDS:
            compiled(X, word)
    with CaptureCounter() as counter:
        for word in WORDS:
            assert torch.equal(compiled(X, word), X + len(word))
    assert counter.graphs == []


@pytest.mark.filterwarnings("ignore")
def test_limit_after_a_break_in_the_function_itself():
    same(noisy, *[(X, word) for word in WORDS], *[(X, word) for word in WORDS], breaks=None)


@pytest.mark.filterwarnings("ignore")
def test_a_nested_function_at_its_limit_is_called_as_plain_python():
    compiled = tracer_core.compile(calls_says, backend="eager")
    with CaptureCounter() as counter:
        for word in WORDS:
            BOX["word"] = word
            assert torch.equal(compiled(X), calls_says(X))
    assert "recompile_limit" in {kind for kind, _, _ in counter.breaks}
    with CaptureCounter() as later:
        for word in reversed(WORDS):
            BOX["word"] = word
            assert torch.equal(compiled(X), calls_says(X))
    assert later.graphs == later.recompiles == []


def halves(x):
    y = x.div(2)
    print(end="", flush=[])
    return y - 1


def halves_and_says(x):
    return says(halves(x)) + 1


@pytest.mark.filterwarnings("ignore")
def test_a_nested_function_at_its_limit_costs_only_the_entries_that_lead_there():
    compiled = tracer_core.compile(halves_and_says, backend="eager")
    with CaptureCounter() as counter:
        for word in (*WORDS, *WORDS):
            BOX["word"] = word
            assert torch.equal(compiled(X), halves_and_says(X))
    assert "recompile_limit" in {kind for kind, _, _ in counter.breaks}
    records = behind(compiled).function.records
    targets = [{node.target for node in item.graph.graph.nodes} for item in records if item.graph]
    assert sum("div" in target for target in targets) == 1  # it ends in another function
    assert sum({operator.sub, operator.add} <= target for target in targets) == 1  # it led there
    assert sum(operator.sub in target for target in targets) == 2


def test_the_limit_of_the_config_is_used():
    seen = same(lambda x, word: x + len(word), *[(X, word) for word in WORDS[:6]], graphs=6)
    assert len(seen.counter.recompiles) == 5


def line_of(caplog, fn, *args):
    with caplog.at_level(logging.INFO, logger="tracer_core"):
        tracer_core.compile(fn, backend="eager")(*args)
    return [
        (item.levelname, item.getMessage()) for item in caplog.records if item.name == "tracer_core"
    ]


# -- after the limit
# ------------------------------------------------------------------------------------


@pytest.fixture
def interpreted(monkeypatch):
    """Names of what was interpreted: traces, and activations that were run to their end by the
    machine.
    """
    actual = []

    def watched(owner, name):
        original = getattr(owner, name)

        def call(*args, **kwargs):
            actual.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    watched(capturing, "capture")
    watched(RealMachine, "finish")
    return actual


@pytest.mark.parametrize("name", changing.VALUES)
def test_after_the_limit_nothing_is_interpreted_any_more(name, interpreted):
    make = changing.VALUES[name]
    (eager, step), (function, step_compiled) = make(), make()
    compiled = tracer_core.compile(function, backend="eager")
    with reported_limits() as caught:
        for n in range(1, 30):
            compare(step(eager, n), step_compiled(compiled, n))
        interpreted.clear()
        for n in range(30, 60):
            compare(step(eager, n), step_compiled(compiled, n))
    assert interpreted == []
    compiled_functions = 3 if "compiled_one" in name else 1
    assert len(caught) == compiled_functions


@pytest.mark.parametrize("name", changing.NUMBERS)
def test_a_number_that_changes_never_reaches_the_limit(name, interpreted):
    make = changing.NUMBERS[name]
    (eager, step), (function, step_compiled) = make(), make()
    compiled = tracer_core.compile(function, backend="eager")
    with CaptureCounter() as counter:
        for n in range(5, 35):
            compare(step(eager, n), step_compiled(compiled, n))
    assert len(counter.graphs) == 2


def test_the_warning_says_what_kept_changing_and_what_helps():
    @dataclasses.dataclass
    class Config:
        name: str = ""

    config = Config()
    compiled = tracer_core.compile(lambda x, config: x + len(config.name), backend="eager")
    with reported_limits() as caught:
        for word in WORDS:
            config.name = word
            compiled(X, config)
    (item,) = caught
    assert (item.message.source, item.message.count) == ("config.name", 8)
    assert item.message.values == tuple(repr(word) for word in WORDS[:9])
    assert "config.name kept changing ('word0', 'word1', 'word2', ..., 'word7', 'word8')" in str(
        item.message
    )
    assert "tracer_core.disable" in item.message.hint
    assert item.filename == __file__


def test_the_warning_of_a_lambda_made_in_each_call():
    compiled = tracer_core.compile(lambda x, f: x if f is len else f(x), backend="eager")
    with reported_limits(match="because f kept changing.*\n.*once, outside of the call"):
        for n in range(12):
            compiled(X, lambda x, n=n: x + n)


def test_the_warning_of_sizes_that_stay_static():
    compiled = tracer_core.compile(lambda x: x + 1, backend="eager", dynamic=False)
    with reported_limits(match=r"because x kept changing(.|\n)*mark_dynamic") as caught:
        for n in range(2, 14):
            compiled(torch.ones(n, 2))
    assert caught[0].message.values[:2] == (
        "torch.float32 [2, 2]",
        "torch.float32 [3, 2]",
    )


def test_one_warning_for_many_objects():
    class Scaler:
        def scale(self, x):
            return x * len(self.word)

    compiled = tracer_core.compile(Scaler.scale, backend="eager")
    kept = [Scaler() for _ in range(3)]
    with reported_limits() as caught:
        for n, scaler in enumerate(kept):
            for word in WORDS:
                scaler.word = f"{n} {word}"
                compare(Scaler.scale(scaler, X), compiled(scaler, X))
    assert len(caught) == 1


def test_objects_made_for_each_call_reach_the_limit_together(interpreted):
    class Held:
        pass

    def holds(x, held):
        return x + 1, held is HELD[0]

    HELD = [None]
    compiled = tracer_core.compile(holds, backend="eager")
    with reported_limits(count=0):
        for n in range(40):
            HELD[0] = item = Held()
            item.word = f"word {n}"
            if n == 30:
                interpreted.clear()
            compare(holds(X, item), compiled(X, item))
    assert interpreted == []


@pytest.mark.filterwarnings("ignore")
def test_reset_brings_compilation_back_and_the_warning_too():
    compiled = tracer_core.compile(lambda x, word: x + len(word), backend="eager")
    for word in WORDS:
        compiled(X, word)
    with CaptureCounter() as counter:
        compiled(X, "another")
    assert counter.graphs == []
    tracer_core.reset()
    with CaptureCounter() as counter, reported_limits() as caught:
        for word in WORDS:
            assert torch.equal(compiled(X, word), X + len(word))
    assert len(counter.graphs) == 8 and len(caught) == 1


@pytest.mark.filterwarnings("ignore")
def test_what_was_captured_serves_until_nothing_fits_any_more():
    served = []

    def serving(gm, inputs):
        def run(*args):
            served.append(1)
            return gm.forward(*args)

        return run

    compiled = tracer_core.compile(lambda x, word: x + len(word), backend=serving)
    for word in WORDS:
        compiled(X, word)
    served.clear()
    for _ in range(300):
        assert torch.equal(compiled(X, WORDS[3]), X + 5)
    assert len(served) >= 200, "a value that was captured is served again soon"
    served.clear()
    for n in range(2000):
        compiled(X, f"new {n}")
    for _ in range(2**guarded_cache.MAX_FAILED_LOOKUPS + 100):
        assert torch.equal(compiled(X, WORDS[3]), X + 5)
    assert len(served) >= 100, "also after a long time in which nothing fitted"


@pytest.mark.filterwarnings("ignore")
def test_lookups_that_find_nothing_become_rare():
    looked = []

    def attempt(state):
        looked.append(1)
        return guarded_cache.MISS

    closed = guarded_cache.RecompileLimitReached([attempt], lambda state: state)
    assert [closed((n,)) for n in range(4096)] == [(n,) for n in range(4096)]
    assert len(looked) < 30


def test_a_place_where_a_third_of_the_lookups_find_something_runs_natively():
    served = []

    def attempt(state):
        served.append(1)
        return state if state[0] % 24 < 8 else guarded_cache.MISS

    closed = guarded_cache.RecompileLimitReached([attempt], lambda state: state)
    assert [closed((n,)) for n in range(24 * 400)] == [(n,) for n in range(24 * 400)]
    assert len(served) < 24 * 400 / 10


@pytest.mark.filterwarnings("ignore")
def test_keywords_reach_the_function_after_the_limit():
    def scales(x, /, word, *rest, by=2, **others):
        return x * len(word) * by, rest, others

    compiled = tracer_core.compile(scales, backend="eager")
    for word in WORDS * 2:
        compare(scales(X, word, by=3, more=word), compiled(X, word, by=3, more=word))
        compare(scales(X, word, 4, 5, by=1), compiled(X, word, 4, 5, by=1))


@pytest.mark.filterwarnings("ignore")
def test_exceptions_after_the_limit_are_the_program_s():
    def fails(x, word):
        if word == "word12":
            raise KeyError(word)
        return x + len(word)

    compiled = tracer_core.compile(fails, backend="eager")
    for _ in range(3):
        for word in WORDS:
            if word == "word12":
                with pytest.raises(KeyError, match="word12"):
                    compiled(X, word)
            else:
                compare(fails(X, word), compiled(X, word))


@pytest.mark.filterwarnings("ignore")
def test_training_after_the_limit_has_eager_s_gradients():
    weight = torch.randn(4, requires_grad=True)
    compiled = tracer_core.compile(
        lambda x, word: (x * weight * len(word)).sin().sum(), backend="aten_eager"
    )
    for word in WORDS * 2:
        (got,) = torch.autograd.grad(compiled(X, word), weight)
        (want,) = torch.autograd.grad((X * weight * len(word)).sin().sum(), weight)
        torch.testing.assert_close(got, want)


@pytest.mark.filterwarnings("ignore")
def test_a_closed_function_keeps_no_argument_alive():
    class Held:
        word = ""

    compiled = tracer_core.compile(lambda x, held: x * len(held.word), backend="eager")
    for n in range(40):
        held = Held()
        held.word = f"word {n}"
        compiled(X, held)
    seen = weakref.ref(held)
    del held
    gc.collect()
    assert seen() is None


def test_a_function_with_too_many_breaks_runs_natively(interpreted, caplog):
    def breaks(x):
        x = x + 1
        print(end="", flush=[])
        x = x * 2
        print(end="", flush=[])
        x = x - 3
        print(end="", flush=[])
        return x * x

    compiled = tracer_core.compile(breaks, backend="eager")
    with replaced(activation, "MAX_REGIONS", 2):
        for n in range(8):
            if n == 2:
                interpreted.clear()
            compare(breaks(X), compiled(X))
    assert interpreted == []
    assert "runs eagerly: more than 2 places" in caplog.text


def test_fullgraph_raises_at_the_limit_and_serves_what_fits():
    def says(x, word):
        return x + len(word)

    compiled = tracer_core.compile(says, backend="eager", fullgraph=True)
    for word in WORDS[:8]:
        compare(says(X, word), compiled(X, word))
    for word in WORDS[8:]:
        with pytest.raises(
            RecompileLimitError, match="word kept changing.*fullgraph=True"
        ) as caught:
            compiled(X, word)
        assert caught.value.source == "word" and caught.value.values[-1] == repr(word)
    with CaptureCounter() as counter:
        for word in WORDS[:8]:
            compare(says(X, word), compiled(X, word))
    assert counter.graphs == []


def test_first_call_without_breaks_is_an_info(caplog):
    assert line_of(caplog, lambda x: x + 1, X) == [
        (
            "INFO",
            "test_first_call_without_breaks_is_an_info.<locals>.<lambda>: 1 graph, 0 graph breaks",
        )
    ]


def test_first_call_with_breaks_is_a_warning_that_names_the_worst(caplog):
    def f(x):
        print(end="", flush=[])
        for _ in range(3):
            x = x + 1
            x.sum().item()
        return x

    ((level, text),) = line_of(caplog, f, X)
    assert level == "WARNING"
    assert (
        "graph breaks; the worst at " in text
        and "test_recompile_limit.py:" in text
        and "item()" in text
    )


def test_the_line_comes_once_and_names_the_module(caplog):
    module = torch.nn.Linear(4, 4)
    with caplog.at_level(logging.INFO, logger="tracer_core"):
        compiled = tracer_core.compile(module, backend="eager")
        for x in (X, torch.randn(5, 4), X.double().float()):
            compiled(x)
    lines = [record.getMessage() for record in caplog.records if record.name == "tracer_core"]
    assert len(lines) == 1 and "Linear" in lines[0]


def fills(a, b, x):
    a.append(x)
    return x + len(b)


def writes(x, y):
    x.add_(1)
    return y * 2


def test_the_reason_of_a_recompile_names_what_differs():
    y = torch.ones(3, 4)
    for function, before, after, reason in (
        (fills, ([], [], X), (item := [], item, X), "a is not b"),
        (
            writes,
            (X.clone(), y),
            (other := X.clone(), other),
            "alias_groups(memories((x, y,))) == [0, 1]",
        ),
        (
            torch.add,
            (X, y),
            (X, y.double()),
            "args[1].dtype is torch.float32, but it is a torch.float64 tensor",
        ),
        (
            torch.add,
            (X, y),
            (X, torch.nn.Parameter(y)),
            "type(args[1]) is torch.Tensor, but it is <class 'torch.nn.param",
        ),
        (
            torch.add,
            (X, y),
            (X, y.t().contiguous().t()),
            "args[1].stride() == (4, 1), but it is a torch.float32 tensor of",
        ),
    ):
        compiled = tracer_core.compile(function, backend="eager")
        with CaptureCounter() as counter:
            compare(function(*copy.deepcopy(before)), compiled(*before))
            compare(function(*copy.deepcopy(after)), compiled(*after))
        ((_, messages),) = counter.recompiles
        assert reason in messages


def test_the_reason_names_a_size_that_no_longer_follows_from_another():
    def both(x, y):
        return torch.cat([x, y]) if x.shape[0] == y.shape[0] else x.sum() + y.sum()

    compiled = tracer_core.compile(both, backend="eager", dynamic=True)
    with CaptureCounter() as counter:
        for n, m in ((3, 3), (5, 5), (5, 6)):
            x, y = torch.ones(n, 2), torch.ones(m, 2)
            compare(both(x, y), compiled(x, y))
    ((_, messages),) = counter.recompiles
    assert "y.shape[0] == x.shape[0]" in messages


def test_the_reason_names_a_setting_of_torch():
    compiled = tracer_core.compile(lambda x: x + 1, backend="eager")
    with CaptureCounter() as counter:
        compiled(X)
        with torch.no_grad():
            compiled(X)
    assert [messages for _, messages in counter.recompiles] == [
        "torch settings: is_grad_enabled() is True, but it is False"
    ]


class Found:
    """One of several classes that a program tries, as einops its backends."""

    fits = False


KINDS = [type(f"Kind{n}", (Found,), {"fits": n == 15}) for n in range(16)]


def tried(table, key, always):
    """Tries kinds until one fits, unless the table knows which."""
    if key in table and not always:
        return table[key]
    for kind in KINDS:
        tracer_core.graph_break()
        if kind.fits:
            table[key] = kind
            return kind
    raise KeyError(key)


@pytest.mark.parametrize("always", [False, True])
def test_a_loop_of_the_first_call_alone_leaves_later_calls_compiled(always):
    def run(x, table):
        kind = tried(table, "torch", always)
        return (x * 2).sin() if kind.fits else x

    fast = tracer_core.compile(run, backend="eager")
    x, table = torch.randn(3), {}
    with reported_limits(count=int(always)) as messages:
        for n in range(4):
            torch.testing.assert_close(fast(x, table), run(x, dict(table)))
            assert table == {"torch": KINDS[15]}
            if n == 0:
                assert not messages  # no later call may come there
    with CaptureCounter() as counter:
        fast(x, table)
    assert counter.graphs == []
    actual = behind(fast)
    assert actual is not None
    kept = [record for record in actual.function.breaks if record.kind == "recompile_limit"]
    assert bool(kept) == always


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 2.0

    def forward(self, x):
        return x * self.scale


def test_a_recompile_names_the_module_and_the_guard_under_the_calls_own_grad_mode():
    net = Scaled()
    compiled = tracer_core.compile(net, backend="eager")
    with CaptureCounter() as counter:
        compiled(X)
        with torch.no_grad():
            compiled(X)
        net.scale = 3.0
        compiled(X)
    assert counter.recompiles == [
        ("Scaled", "torch settings: is_grad_enabled() is True, but it is False"),
        ("Scaled", "(type(self.scale) is float and self.scale == 2.0), but it is 3.0"),
    ]
