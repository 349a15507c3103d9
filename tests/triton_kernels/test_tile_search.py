"""Tiles that are measured while a program runs: the graph launches the fastest from then on, and
later processes launch them from their first call on. Triton's interpreter runs the kernels; here the
last candidate is the fastest.
"""

from __future__ import annotations

import json
import os
import time

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

import tracer_core
from inductor_backend import limits
from inductor_backend.autotune import tile_search, tiles
from inductor_backend.ir.target import interpreted
from inductor_backend.lowering import matmul
from inductor_backend.runtime.cuda import faster_tiles, launch, measurement, measurement_store
from inductor_backend.runtime.cuda.interpreter import interpreting
from tests.support.processes import reported_by
from tracer_core.testing import compare

pytestmark = pytest.mark.skipif(
    not interpreting(), reason="Triton compiles for a GPU in this process"
)


class Launches:
    """What was launched since `clear`: (name, blocks, warps, programs)."""

    def __init__(self):
        self.all = []

    def clear(self):
        self.all.clear()

    def tiles(self):
        return {(name, blocks, warps) for name, blocks, warps, _ in self.all}


@pytest.fixture
def launches(monkeypatch):
    result, original = Launches(), launch._interpret

    def interpret(run, *arguments):
        for loaded, programs, *_ in run.described:
            kernel = loaded.kernel
            result.all.append((kernel.name, str(kernel.constants), kernel.warps, programs))
        return original(run, *arguments)

    monkeypatch.setattr(launch, "_interpret", interpret)
    return result


@pytest.fixture(autouse=True)
def measured(monkeypatch, tmp_path):
    """Kernels of any size are measured; returns the candidates of each measurement."""
    monkeypatch.setenv("TRACER_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tiles, "MIN_SEARCHED_BYTES", 0)
    monkeypatch.setattr(tiles, "can_measure", lambda target: True)
    monkeypatch.setattr(tile_search, "MAX_SEARCH_SECONDS", 60.0)  # the interpreter takes long
    result = []

    def times(candidates, quick=False):
        result.append(list(candidates))
        return {name: 1.0 / place for place, name in enumerate(candidates, 1)}

    monkeypatch.setattr(measurement, "times", times)
    monkeypatch.setattr(faster_tiles, "_loaded", {})
    with interpreted():
        yield result
    tracer_core.reset()


def program(x, w):
    y = F.layer_norm(x + 1, (x.shape[-1],), w)
    return y * w, y.sum(0), (x * x).t().contiguous()


def inputs():
    torch.manual_seed(0)
    return torch.randn(16, 40), torch.rand(40)


def called(fast, function=program, inputs=inputs):
    """Calls the compiled function, comparing, until its search has ended."""
    end = time.monotonic() + 60
    compare(function(*inputs()), fast(*inputs()))
    while any(search.due for search in tile_search.SEARCHES):
        assert time.monotonic() < end
        compare(function(*inputs()), fast(*inputs()))


def test_the_fastest_tiles_are_launched(launches, measured):
    fast = tracer_core.compile(program)
    values = inputs()
    fast(*values)
    first = launches.tiles()
    called(fast)
    launches.clear()
    compare(program(*values), fast(*values))
    assert len(measured) == len(first) >= 2
    assert launches.tiles().isdisjoint(first)
    assert {name for name, _, _ in launches.tiles()} == {name for name, _, _ in first}


def test_kernels_of_one_launch_are_measured_together(launches, measured, monkeypatch):
    monkeypatch.setattr(matmul, "MIN_LOOPED_MATRIX", 64)

    def projections(x, q, k):
        return F.linear(x, q), F.linear(x, k)

    def row_and_weights():
        torch.manual_seed(0)
        return torch.randn(1, 2048) / 50, torch.randn(48, 2048), torch.randn(12, 2048)

    fast = tracer_core.compile(projections)
    fast(*row_and_weights())
    ((name, *first),) = launches.tiles()
    called(fast, projections, row_and_weights)
    launches.clear()
    compare(projections(*row_and_weights()), fast(*row_and_weights()))
    ((faster, *tiles_of_both),) = launches.tiles()
    assert len(measured) == 1 and faster == name and tiles_of_both != first


def test_a_later_process_measures_nothing(launches, measured, monkeypatch):
    called(tracer_core.compile(program))
    chosen, count = launches.all[-1], len(measured)
    tracer_core.reset()
    monkeypatch.setattr(faster_tiles, "_loaded", {})
    launches.clear()
    fast = tracer_core.compile(program)
    fast(*inputs())
    assert launches.all[-1] == chosen
    called(fast)
    assert len(measured) == count


def test_an_equal_tile_is_left_alone(launches, measured, monkeypatch):
    monkeypatch.setattr(
        measurement, "times", lambda candidates, quick: dict.fromkeys(candidates, 1.0)
    )
    fast = tracer_core.compile(program)
    fast(*inputs())
    first = launches.tiles()
    called(fast)
    launches.clear()
    fast(*inputs())
    assert launches.tiles() == first


def test_a_candidate_with_other_results_is_left_out(measured, monkeypatch, caplog):
    original = measurement.launch
    broken = []

    def launched(kernel, programs, arguments, *rest):
        run = original(kernel, programs, arguments, *rest)
        broken.append(run)
        if len(broken) % 3 == 0:  # another kernel: its results are zeros
            return lambda: [value.zero_() for value in arguments if isinstance(value, torch.Tensor)]
        return run

    monkeypatch.setattr(measurement, "launch", launched)
    called(
        tracer_core.compile(lambda x, w: (x * 2 + 1, (x + w).exp())),
        lambda x, w: (x * 2 + 1, (x + w).exp()),
    )
    assert "gives other results" in caplog.text


def test_sums_keep_their_order_under_deterministic_algorithms(launches, measured):
    torch.use_deterministic_algorithms(True)
    try:
        fast = tracer_core.compile(lambda x, w: (x @ w[:, None]).relu() + x.sum(1, keepdim=True))
        fast(*inputs())
        first = launches.tiles()
        called(fast, lambda x, w: (x @ w[:, None]).relu() + x.sum(1, keepdim=True))
        launches.clear()
        fast(*inputs())
        sums = {item for item in first if "sum" in item[0]}
        assert sums and sums <= launches.tiles()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    "settings", [{"options": {"tile_search": False}}, {"mode": "max-autotune"}]
)
def test_the_option_and_the_modes_that_measure_at_once(settings, measured):
    fast = tracer_core.compile(program, **settings)
    for _ in range(6):
        compare(program(*inputs()), fast(*inputs()))
    assert not any(search.due for search in tile_search.SEARCHES)


def test_what_reads_at_indices_is_not_measured(measured):
    function = lambda x, w: x[(w * 15).long()] + 1
    called(tracer_core.compile(function), function)
    assert not measured


def test_dynamic_sizes_are_not_measured(measured):
    fast = tracer_core.compile(lambda x: (x + 1).exp(), dynamic=True)
    for rows in (3, 9, 27, 64, 70):
        x = torch.randn(rows, 40)
        compare((x + 1).exp(), fast(x))
    assert not measured


def test_a_measurement_that_fails_ends_the_search(launches, measured, monkeypatch, caplog):
    def times(candidates, quick):
        raise torch.OutOfMemoryError("planted")

    monkeypatch.setattr(measurement, "times", times)
    with caplog.at_level("INFO"):
        called(tracer_core.compile(program))
    assert "ended by OutOfMemoryError: planted" in caplog.text


def test_random_numbers_are_those_of_a_program_without_a_search(measured):
    fast = tracer_core.compile(program)
    torch.manual_seed(3)
    expected = torch.rand(4)
    called(fast)
    torch.manual_seed(3)
    fast(torch.ones(16, 40), torch.ones(40))
    compare(expected, torch.rand(4))


def test_more_kernels_than_are_measured(measured, monkeypatch):
    monkeypatch.setattr(tile_search, "MAX_SEARCHED_KERNELS", 1)
    called(tracer_core.compile(program))
    assert len(measured) == 1


@pytest.mark.parametrize(("rows", "measures"), [(511, 0), (512, 1)])
def test_kernels_that_move_less_are_not_measured(rows, measures, measured, monkeypatch):
    monkeypatch.setattr(tiles, "MIN_SEARCHED_BYTES", limits.MIN_SEARCHED_BYTES)
    x = torch.randn(rows, 1024)  # is read, and a result of its size is written
    fast = tracer_core.compile(lambda x: x * 2)
    for _ in range(tile_search.CALLS):
        compare(x * 2, fast(x))
    while any(search.running for search in tile_search.SEARCHES):
        compare(x * 2, fast(x))
    assert len(measured) == measures


def test_beyond_the_seconds_of_a_graph(measured, monkeypatch):
    monkeypatch.setattr(tile_search, "MAX_SEARCH_SECONDS", -1.0)
    called(tracer_core.compile(program))
    assert not measured


def test_beyond_the_free_memory(measured, monkeypatch):
    monkeypatch.setattr(tile_search, "_free", lambda device: 4 * limits.MAX_SEARCH_MEMORY)
    called(tracer_core.compile(program))
    assert not measured


@pytest.mark.parametrize("damage", [b"damaged", {"chosen": "x", "kernel": {"name": "f"}}])
def test_a_damaged_entry_is_ignored(damage, measured, monkeypatch, tmp_path, launches):
    called(tracer_core.compile(program))
    paths = [path for path in tmp_path.glob("triton-choices/*") if path.name != "lock"]
    for path in paths:
        if isinstance(damage, dict):
            measurement_store._CHOICES.write(path.name, json.dumps(damage).encode())
        else:
            path.write_bytes(damage)
    tracer_core.reset()
    monkeypatch.setattr(faster_tiles, "_loaded", {})
    assert paths and len(measured) == len(paths)
    called(tracer_core.compile(program))
    assert len(measured) == len(paths) * (1 if isinstance(damage, dict) else 2)


ENDS = """
import json, time
from collections import deque
from types import SimpleNamespace
from inductor_backend.autotune import tile_search

def compile_it(c, compiled):
    time.sleep(0.3)
    print(json.dumps("compiled"), flush=True)

tile_search._compile = compile_it
graph = SimpleNamespace(spec=SimpleNamespace(name="graph"))
tile_search._compilations().put((graph, deque()))
"""


def test_the_end_of_the_process_waits_for_kernels_that_are_being_compiled():
    """Python would stop the thread where it next takes the GIL, which inside of torch aborts."""
    assert reported_by("-c", ENDS, environment=os.environ, timeout=100) == "compiled"
