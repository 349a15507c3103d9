"""What cannot be recorded runs without and says why; budgets, reset, nesting, and use by another
backend.
"""

from __future__ import annotations

import dataclasses
import gc
import threading

import pytest
import torch
from torch import nn

import cudagraphs_backend
import tracer_core
from cudagraphs_backend.plugin import BACKEND
from cudagraphs_backend.state import states
from tests.cudagraphs.test_results import LARGE, large, small
from tests.support.comparison import assert_equal
from tracer_core.plugin_api import OptionError, get_backend, resolve
from tracer_core.registry.eager import compile_eager


def test_the_row_says_why_it_cannot_run_here():
    (row,) = [row for row in tracer_core.backends() if row.name == "cudagraphs"]
    assert row.devices == ("cuda",) and row.training == "joint"
    if not torch.cuda.is_available():
        assert not row.available and ("CUDA" in row.reason)


def test_options_are_checked():
    backend = dataclasses.replace(BACKEND, available=None)
    for options in (
        {"outputs": "keep"},
        {"copies": -1},
        {"warmup": 0},
        {"memory_mib": 0},
        {"nothing": 1},
    ):
        with pytest.raises(OptionError):
            tracer_core.compile(small, backend=backend, options=options)


def gathered(x, at):
    return x.sin()[at] * 2


def written(x, at):
    return torch.index_put(x.sin(), (at,), x[0]) * 2


def repeated(x, times):
    return x.sin().repeat_interleave(times, 0, output_size=6) * 2


@pytest.mark.parametrize("program", [gathered, written, repeated])
def test_indices_are_recorded(world, program):
    compiled = world.compile(program)
    for values in ([3, 1, 2, 0], [1, 1, 3, 1], [0, 2, 3, 1], [2, 2, 2, 0], [3, 3, 0, 0]):
        x, index = world.randn(4, 6), torch.tensor(values, device=world.device)
        assert_equal(compiled(x, index), program(x, index))
    assert world.replays == 4


def test_a_mask_as_an_index_is_not_recorded(world, caplog):
    def program(x, mask):
        return torch.index_put((x * 2).cos(), (mask,), x[0]) + 1

    compiled = world.compile(program)
    for _ in range(4):
        x = world.randn(16)
        assert_equal(compiled(x, x > 0), program(x, x > 0))
    assert "counted on the host" in caplog.text


def test_operators_that_wait_are_left_out(world, caplog):
    def program(x):
        weights = (x * x + 1).softmax(0)
        drawn = torch.multinomial(weights, 3)
        return (x[drawn] * 2).cos()

    compiled = world.compile(program)
    for seed in range(5):
        x = world.randn(32)
        torch.manual_seed(seed)
        actual = compiled(x)
        torch.manual_seed(seed)
        assert_equal(actual, program(x))
    assert world.replays == 8  # the parts before and after
    assert "multinomial" in caplog.text and "on the host" in caplog.text


@pytest.mark.parametrize(("limits", "parts"), [((0, 3), 1), ((), 2)], ids=["given", "of data"])
def test_a_histogram_waits_for_the_range_of_its_input(world, limits, parts):
    def program(x):
        return torch.histc((x * 2).floor(), 4, *limits).cumsum(0) * 2

    compiled = world.compile(program)
    for _ in range(4):
        x = world.randn(32)
        assert_equal(compiled(x), program(x))
    assert world.replays == 3 * parts


@torch.library.custom_op("graphtests::reads", mutates_args=())
def reads(x: torch.Tensor) -> torch.Tensor:
    return x * float(x.sum().item())


@reads.register_fake
def _(x):
    return torch.empty_like(x)


def test_a_recording_that_fails(world, caplog):
    def program(x):
        return torch.ops.graphtests.reads(x.cos() + torch.rand_like(x)) + 1

    compiled = world.compile(program)
    for seed in range(4):
        x = world.randn(16)
        torch.manual_seed(seed)
        actual, after = compiled(x), torch.rand(2, device=world.device)
        torch.manual_seed(seed)
        assert_equal(actual, program(x))
        assert_equal(after, torch.rand(2, device=world.device))
    assert "runs without a recording" in caplog.text
    assert "captur" in world.reasons
    other = world.compile(small)
    for _ in range(4):
        x = world.randn(16)
        assert_equal(other(x, x), small(x, x))
    assert world.replays == 3


@torch.library.custom_op("graphtests::large", mutates_args=())
def needs_memory(x: torch.Tensor, free: int) -> torch.Tensor:
    if (
        cudagraphs_backend.report()
        and sum(row.recordings for row in cudagraphs_backend.report()) > free
    ):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    return x * 2


@needs_memory.register_fake
def _(x, free):
    return torch.empty_like(x)


def test_a_call_that_finds_no_memory_gets_that_of_the_recordings(world, caplog):
    recorded = world.compile(small)
    x, y = world.randn(8), world.randn(8)
    for _ in range(3):
        recorded(x, y)
    assert world.recordings == 1
    other = world.compile(lambda x: torch.ops.graphtests.large(x, 0) + 1)
    assert_equal(other(x), x * 2 + 1)
    assert "some was free by then" in caplog.text and "at fault" not in caplog.text
    assert world.recordings == 0
    for _ in range(3):
        assert_equal(recorded(x, y), small(x, y))
    assert world.recordings == 1


def test_the_error_of_a_program_is_its_own(world):
    @torch.library.custom_op("graphtests::fails", mutates_args=())
    def fails(x: torch.Tensor) -> torch.Tensor:
        if calls["left"] == 0:
            raise ValueError("no more")
        calls["left"] -= 1
        return x + 1

    fails.register_fake(torch.empty_like)
    calls = {"left": 1}
    compiled = world.compile(lambda x: torch.ops.graphtests.fails(x) * 2)
    x = world.randn(4)
    assert_equal(compiled(x), (x + 1) * 2)
    with pytest.raises(ValueError, match="no more"):
        compiled(x)


def test_the_least_recently_used_is_thrown_away(world):
    compiled = [world.compile(lambda x, k=k: (x * k).tanh(), recordings=2) for k in range(4)]
    kept = []
    for turn in range(24):
        which = turn // 2 % 4
        x = world.randn(LARGE)
        kept.append((compiled[which](x), (x * which).tanh()))
        kept = kept[-3:]
        for actual, expected in kept:
            assert_equal(actual, expected)
        assert world.recordings <= 2
    assert world.replays >= 12


def test_too_large_for_its_budget(world):
    compiled = world.compile(large, memory_mib=2)
    for _ in range(3):
        x = world.randn(4 * LARGE)
        assert_equal(compiled(x), large(x))
    assert world.replays == 0 and "memory_mib" in world.reasons


def test_reset_gives_memory_back(world):
    compiled = world.compile(large)
    x = world.randn(LARGE)
    if world.simulated is None:
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
    kept = [compiled(x) for _ in range(4)]
    assert world.recordings and sum(row.nbytes for row in world.rows) > 0
    tracer_core.reset()
    assert world.recordings == 0
    for item in kept:
        assert_equal(item, large(x))
    if world.simulated is not None:
        assert world.simulated.given_back
    for _ in range(3):
        assert_equal(compiled(x), large(x))
    if world.simulated is None:
        del kept, item, compiled
        gc.collect()
        tracer_core.reset()
        assert torch.cuda.memory_reserved() <= before + 2**21


def test_a_function_that_is_dropped_takes_its_recordings_along(world):
    compiled = world.compile(nn.Linear(8, 8).to(world.device).eval())
    with torch.no_grad():
        for _ in range(3):
            compiled(world.randn(4, 8))
    assert world.recordings == 1
    del compiled
    tracer_core.reset()
    gc.collect()
    assert world.recordings == 0


def test_inside_somebody_elses_recording(simulated):
    compiled = simulated.compile(small)
    x = simulated.randn(8)
    compiled(x, x), compiled(x, x)
    device = simulated.simulated
    graph, result = device.capture(lambda: compiled(x, x), device.new_pool(), ())
    graph.replay()
    assert_equal(result, small(x, x))


@pytest.mark.gpu
def test_inside_a_cuda_recording(world):
    if world.simulated is not None:
        pytest.skip("a recording of CUDA")
    compiled = world.compile(small)
    x = world.randn(8)
    compiled(x, x), compiled(x, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = compiled(x, x)
    x.copy_(world.randn(8))
    graph.replay()
    assert_equal(result, small(x, x))


def test_wrapping_another_backends_runner(world):
    calls = []

    def build(graph, spec):
        run = compile_eager(graph, spec)

        def counted(inputs):
            calls.append(spec.name)
            return run(inputs)

        return resolve(get_backend("cudagraphs").wrap)(counted, graph, spec)

    backend = dataclasses.replace(
        BACKEND,
        name="another",
        compile=build,
        available=None,
        options=None,
        supports=None,
        devices=frozenset({"cpu", "cuda"}),
    )
    compiled = tracer_core.compile(small, backend=backend)
    for _ in range(6):
        x, y = world.randn(8), world.randn(8)
        assert_equal(compiled(x, y), small(x, y))
    assert len(calls) == 2  # the plain run and the recording
    assert world.replays == 5


def test_tensors_of_another_device_run_plainly(world, caplog):
    meta = torch.empty(4, device="meta")
    compiled = world.compile(lambda x: x + 1)
    assert compiled(meta).device.type == "meta"
    assert world.replays == 0 and "works on meta tensors" in caplog.text


def test_the_report(world):
    compiled = world.compile(small)
    for _ in range(3):
        compiled(world.randn(8), world.randn(8))
    (row,) = cudagraphs_backend.report()
    assert (row.phase, row.sizes, row.recordings, row.replays, row.plain) == (
        "inference",
        1,
        1,
        2,
        1,
    )
    assert row.nbytes > 0 and row.reason == ""


def test_last_compile_and_explain_say_what_became_of_each_graph(world):
    model = nn.Linear(8, 1).to(world.device)
    compiled, x = world.compile(model), world.randn(3, 8)
    compiled(x).sum().backward()
    for graph, text in reports_of(compiled):
        assert (
            graph.startswith("graph_")
            and text == "CUDA graphs: none recorded yet; calls replayed: 0, plain: 1"
        )
    for _ in range(4):
        compiled(x).sum().backward()
    (forward, text), (backward, _) = reports_of(compiled)
    assert backward == f"{forward}_backward"
    compiles = [
        record.graph for record in tracer_core.last_compile(compiled) if record.name == "compile"
    ]
    assert compiles == [forward, backward]
    assert text.startswith("CUDA graphs: 1 recorded for 1 sizes, ") and text.endswith(
        "calls replayed: 4, plain: 1"
    )
    shown = str(tracer_core.explain(compiled)(x))
    text = text.replace("replayed: 4", "replayed: 5")  # the call that is explained
    assert f"so far: {forward}: {text}" in shown and f"{backward}: CUDA graphs: " in shown


def test_last_compile_says_why_a_graph_is_not_recorded(world):
    compiled = world.compile(lambda x: torch.ops.graphtests.reads(x + torch.rand_like(x)) + 1)
    for _ in range(3):
        compiled(world.randn(16))
    ((_, text),) = reports_of(compiled)
    assert text.startswith("runs without CUDA graphs: ") and "captur" in text


def reports_of(compiled):
    return [
        (record.graph, record.text)
        for record in tracer_core.last_compile(compiled)
        if record.name == "runs"
    ]


def chain(x):
    for _ in range(6):
        x = (x * 2).tanh() + 1
    return x, x.cos()


def test_scratch_memory_is_shared_and_results_have_their_own(simulated):
    compiled = [simulated.compile(chain) for _ in range(3)]
    kept = []
    for _ in range(3):
        for item in compiled:
            x = simulated.randn(4 * LARGE)
            kept = [*kept[-4:], (item(x), chain(x))]
            for actual, expected in kept:
                assert_equal(actual, expected)
    nbytes = 16 * LARGE  # of one tensor
    sizes = sorted(pool.nbytes for pool in simulated.simulated.pools)
    assert simulated.recordings == 6, simulated.rows
    assert sizes[:-1] == [2 * nbytes] * 6, (
        "two recordings of each that keep results, and nothing but results"
    )
    assert sizes[-1] <= 4 * nbytes, sizes  # the intermediates of one run


def test_memory_of_recordings_goes_with_the_last_of_them(simulated):
    compiled = [simulated.compile(chain), simulated.compile(small)]
    for _ in range(4):
        compiled[0](simulated.randn(4 * LARGE))
        compiled[1](simulated.randn(8), simulated.randn(8))
    assert simulated.replays and any(pool.graphs for pool in simulated.simulated.pools)
    compiled.clear()
    gc.collect()
    assert not any(pool.graphs for pool in simulated.simulated.pools)


def test_a_capture_that_fails_leaves_the_scratch_memory_of_others(simulated):
    """No further recording is made in the pool that it failed in; those that are there go on."""
    compiled = simulated.compile(chain)
    fails = simulated.compile(lambda x: torch.ops.graphtests.reads(torch.stack(chain(x))) + 1)
    for number in range(6):
        x = simulated.randn(4 * LARGE)
        assert_equal(compiled(x), chain(x))
        if number == 3:
            for _ in range(3):
                fails(simulated.randn(4 * LARGE))
    assert "captur" in simulated.reasons
    assert simulated.replays == 5


def test_results_that_are_placed_wrongly_are_noticed(simulated, monkeypatch):
    from cudagraphs_backend import pool_assignment

    monkeypatch.setattr(pool_assignment, "_owners", lambda graph: set())
    compiled = simulated.compile(large)
    other = simulated.compile(chain)
    kept = []
    for _ in range(4):
        x = simulated.randn(4 * LARGE)
        kept += [(compiled(x), large(x)), (other(x), chain(x))]
        for actual, expected in kept:
            assert_equal(actual, expected)
    assert simulated.replays == 6


@pytest.mark.parametrize("where", ["in the thread that records", "in another thread"])
def test_a_recording_that_is_thrown_away_during_another_capture(world, where):
    """By a finalizer, for instance. Destroying a graph, or waiting for the device, would end the
    capture with an error.
    """
    compiled = world.compile(large)
    for _ in range(3):
        compiled(world.randn(LARGE))
    state = states.of(world.device)
    (created,) = state.members
    x = world.randn(8)

    def body():
        first = x * 2
        if where == "in another thread":
            thread = threading.Thread(target=created.close)
            thread.start()
            thread.join()
        created.close()
        return first + 1

    with state.lock:
        graph, result = state.device.capture(body, state.device.new_pool(), ())
    assert created.closed and len(state._thrown) == 1
    graph.replay()
    assert_equal(result, x * 2 + 1)
    assert_equal(compiled(y := world.randn(LARGE)), large(y))
    assert state._thrown == []  # the next recording threw it away


def test_a_recording_that_is_thrown_away_while_another_thread_replays(simulated):
    """Its memory comes back at the next replay, though nothing is recorded any more."""
    compiled, other = simulated.compile(large), simulated.compile(lambda x: x.exp() * 2)
    for _ in range(3):
        compiled(simulated.randn(LARGE)), other(simulated.randn(LARGE))
    state = states.of(simulated.device)
    result, kept = sorted(state.members, key=lambda member: member.used)
    graph = result._graph
    with state.lock:
        thread = threading.Thread(target=result.close)
        thread.start()
        thread.join()
    assert graph.steps is not None
    assert_equal(other(x := simulated.randn(LARGE)), x.exp() * 2)
    assert graph.steps is None and kept._graph.steps is not None


def test_recordings_that_are_collected_while_they_are_listed(simulated):
    """The list is made before: a finalizer may run in the middle of the budget's sum."""
    compiled = [simulated.compile(lambda x, k=k: (x * k).tanh()) for k in range(4)]
    for item in compiled:
        for _ in range(3):
            item(simulated.randn(8))
    state = states.of(simulated.device)
    assert len(state.members) == 4
    for member in state.members:
        member.close()
    assert state.members == [] and state.held_bytes() == 0
