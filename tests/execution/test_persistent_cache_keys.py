"""What an entry of the persistent cache depends on besides the program's code: settings, versions,
arguments of compile(), names and files; and entries that are damaged."""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path

import pytest
import torch

import tracer_core
from tests.support.persistent_programs import PLAIN, cache_status, captures
from tracer_core import markers
from tracer_core.execution.entry.guarded_cache import GuardedCache
from tracer_core.execution.store import persistent_cache
from tracer_core.execution.tiers.eager_or_compiled import EagerRegion, TimedRegion
from tracer_core.execution.tiers.profitability import StoredVerdict
from tracer_core.limits import MAX_VERDICT_USES

_names = (f"kept_program_{number}" for number in itertools.count())
X = torch.linspace(-2, 2, 6)


@pytest.fixture
def judged(program, monkeypatch):
    """Starts PLAIN in a process that compares the two ways; returns the compiled function."""
    monkeypatch.setenv("TRACER_STRICT", "0")

    def start():
        program.started(PLAIN)
        program.check(X)
        return markers.compiled(program.fast).function

    return start


def decide(function, native):
    threads = torch.get_num_threads()
    verdict = StoredVerdict(3e-5, 2e-5, native, False, 2e-5, False, threads)
    function.runtime.tiering.record_verdict((1,), verdict.verdict(), verdict)


def test_what_runs_natively_does_so_at_once_in_a_later_process(program, judged):
    decide(judged(), native=True)
    for _ in range(MAX_VERDICT_USES):
        function = judged()
        assert isinstance(function.runtime.regions.positional[1], EagerRegion)
        assert "an earlier process found this" in cache_status(program.fast)
        assert captures(program.fast) == 0 and not function.loaded
    x = X.clone().requires_grad_()  # the other grad mode has its own graphs
    torch.testing.assert_close(program.fast(x), torch.relu(x) * 2 + 1)
    assert captures(program.fast) == 1
    assert isinstance(judged().runtime.regions.positional[1], TimedRegion)  # it is measured again


def test_what_stays_compiled_is_not_compared_in_a_later_process(program, judged):
    decide(judged(), native=False)
    function = judged()
    assert (
        type(function.runtime.regions.positional[1]) is GuardedCache and len(function.loaded) == 1
    )
    decide(function, native=True)  # a later comparison of any process counts
    assert isinstance(judged().runtime.regions.positional[1], EagerRegion)


def test_a_verdict_belongs_to_its_code(program, judged):
    decide(judged(), native=True)
    program.started(PLAIN.replace("* 2", "* 3"))
    program.check(X)
    function = markers.compiled(program.fast).function
    assert (
        isinstance(function.runtime.regions.positional[1], TimedRegion)
        and captures(program.fast) == 1
    )


def test_other_numbers_of_threads_have_the_same_graphs_and_other_verdicts(program, judged):
    decide(judged(), native=True)
    assert isinstance(judged().runtime.regions.positional[1], EagerRegion)
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        function = judged()
        assert isinstance(function.runtime.regions.positional[1], TimedRegion)
        assert captures(program.fast) == 0 and len(function.loaded) == 1
    finally:
        torch.set_num_threads(before)


# -- what is no code


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize(
    "name, change",
    {
        "mkldnn": lambda: torch.backends.mkldnn.flags(enabled=False),
        "deterministic": lambda: _deterministic(),
        "default dtype": lambda: _default_dtype(),
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
        "precision": lambda: _precision(),
    }.items(),
)
def test_a_setting_of_torch_is_seen(program, name, change):
    text = "import torch\nW = torch.ones(6, 6)\ndef run(x):\n    return x @ W + torch.ones(6)"
    program.started(text)
    program.check(X)
    program.started(text)
    with change():
        program.check(X)
    assert captures(program.fast) == 1, name
    program.check(X)


@contextlib.contextmanager
def _deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def _default_dtype():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def _precision():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    "settings",
    [
        {"dynamic": True},
        {"fullgraph": True},
        {"options": {"fuse": False}},
        {"mode": "max-autotune-no-cudagraphs"},
    ],
)
def test_other_arguments_of_compile_have_other_entries(program, settings):
    program.started(PLAIN)
    program.check(X)
    program.started(PLAIN, **settings)
    assert program.check(X).startswith("miss")
    program.started(PLAIN, **settings)
    assert program.check(X).startswith("hit")
    program.started(PLAIN)
    assert program.check(X).startswith("hit")


def test_another_version_of_torch_has_other_entries(program, monkeypatch):
    program.started(PLAIN)
    program.check(X)
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    program.started(PLAIN)
    assert "torch was 2.1" in program.check(X)


def test_two_functions_of_one_name_have_their_own_entries(program):
    text = """
        def made(k):
            if k == 2:
                def inner(x):
                    return x * 2
            else:
                def inner(x):
                    return x * 3
            return inner
        run = made(2)
        other = made(3)
    """
    for expected in ("miss", "hit"):
        module = program.started(text)
        other = tracer_core.compile(module.other)
        assert program.check(X).startswith(expected)
        with torch.no_grad():
            torch.testing.assert_close(other(X), X * 3)
        assert cache_status(other).startswith(expected)


def test_closures_of_one_code_share_entries_whose_guards_decide(program):
    text = """
        def made(k):
            def inner(x):
                return x * k
            return inner
        run = made(2)
        other = made(3)
    """
    program.started(text)
    program.check(X)
    module = program.started(text)
    other = tracer_core.compile(module.other)
    with torch.no_grad():
        torch.testing.assert_close(other(X), X * 3)
    program.check(X)


def test_another_file_in_the_same_place(program):
    program.started(PLAIN)
    program.check(X)
    os.utime(program.folder / f"{program.name}.py", (0, 0))
    program.started("def run(x):\n    return x - 1")
    program.check(X)
    os.utime(program.folder / f"{program.name}.py", (0, 0))
    program.started(PLAIN)
    assert program.check(X).startswith("hit")


@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: data[:9] + b"X" + data[10:]]
)
def test_a_damaged_entry_is_a_miss(program, fresh_cache, damage):
    program.started(PLAIN)
    program.check(X)
    persistent_cache.flush()
    files = [path for path in (Path(fresh_cache) / "persistent_cache").iterdir() if path.is_file()]
    assert files
    for file in files:
        file.write_bytes(damage(file.read_bytes()))
    program.started(PLAIN)
    assert program.check(X).startswith("miss")
    program.started(PLAIN)
    assert program.check(X).startswith("hit")


def test_an_entry_of_another_key_is_a_miss(program, fresh_cache):
    program.started(PLAIN)
    program.check(X)
    program.started(PLAIN.replace("* 2", "* 3"))
    program.check(X)
    persistent_cache.flush()
    first, second = [
        path for path in (Path(fresh_cache) / "persistent_cache").iterdir() if len(path.name) == 64
    ]
    first_data, second_data = first.read_bytes(), second.read_bytes()
    first.write_bytes(second_data)
    second.write_bytes(first_data)
    program.started(PLAIN)
    assert program.check(X).startswith("miss")


def test_nothing_is_stored_where_that_is_switched_off(program, fresh_cache, monkeypatch):
    monkeypatch.setenv("TRACER_KEEP", "0")
    program.started(PLAIN)
    with torch.no_grad():
        program.fast(X)
    assert tracer_core.last_compile(program.fast)[0].name == "trace"
    persistent_cache.flush()
    assert not (Path(fresh_cache) / "persistent_cache").exists()


def test_a_cache_that_cannot_be_written_to_costs_nothing_else(program, monkeypatch):
    monkeypatch.setenv("TRACER_CACHE_DIR", "/proc/nowhere")
    program.started(PLAIN)
    program.check(X)
    persistent_cache.flush()
