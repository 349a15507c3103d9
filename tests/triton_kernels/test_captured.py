"""When inductor's graphs are recorded: modes, launches, the option; without a GPU, on the stand-in
of tests/cudagraphs.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

import tracer_core
from cudagraphs_backend.limits import MIN_CALLS_OF_A_SIZE
from cudagraphs_backend.plugin import BACKEND as CUDAGRAPHS
from cudagraphs_backend.runner import GraphedRunner
from cudagraphs_backend.state import states
from cudagraphs_backend.wrapping import sentences
from inductor_backend.artifact import deserialize, serialize
from inductor_backend.ir.target import interpreted
from inductor_backend.options import InductorOptions
from inductor_backend.runtime.cuda import graphs
from inductor_backend.runtime.cuda.interpreter import interpreting
from tests.cudagraphs.simulated import SimulatedDevice
from tests.inductor.compiling import compiled
from tests.inductor.test_operators import R
from tracer_core.plugin_api import OptionError


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(
        graphs, "get_backend", lambda name: dataclasses.replace(CUDAGRAPHS, available=None)
    )
    simulated = SimulatedDevice()
    undo = states.install(torch.device("cpu"), simulated)
    yield simulated
    undo()


def many(x):
    for _ in range(6):
        x = torch.sort(x)[0]
    return x


def wrapped(fn, mode, *inputs, dynamic=False, **options):
    result = compiled(fn, *inputs, dynamic=dynamic, options=InductorOptions(**options)).compilation
    spec = dataclasses.replace(result.spec, mode=mode)
    return result.runner, graphs.with_cuda_graphs(result.runner, result.gm, spec)


def test_the_default_mode_records_many_launches_where_it_pays(device):
    _, runner = wrapped(many, "default", R(30))
    assert isinstance(runner.run, GraphedRunner)
    for number in range(9):
        x = torch.randn(30)
        (result,) = runner([x])
        torch.testing.assert_close(result, x.sort()[0])
        assert (device.replays > 0) == (number >= 4)
    assert device.replays == 5


def test_graphs_are_recaptured_at_once(device):
    """Kernels that were measured to be faster replace others: whether capturing pays is known."""
    _, runner = wrapped(many, "default", R(30))
    for _ in range(9):
        runner([torch.randn(30)])
    captures = device.captures
    runner.run.recapture()
    x = torch.randn(30)
    (result,) = runner([x])
    torch.testing.assert_close(result, x.sort()[0])
    assert device.captures > captures and device.replays == 6


@pytest.mark.parametrize(
    ("fn", "mode", "options", "why"),
    [
        (
            lambda x: torch.sort(x.cos())[0],
            "default",
            {},
            "2 launches, and in mode 'default' it takes 6",
        ),
        (many, "default", {"recordings": False}, "options={'recordings': False}"),
        (many, "max-autotune-no-cudagraphs", {}, "mode 'max-autotune-no-cudagraphs' makes none"),
    ],
)
def test_left_alone_and_said_why(device, fn, mode, options, why):
    eager, runner = wrapped(fn, mode, R(30), **options)
    assert runner is eager
    last = {rows[-1][1] for rows in (graphs.report(), sentences()) if rows}
    assert f"runs without CUDA graphs: {why}" in last


def test_a_reset_forgets_why_graphs_were_left_alone(device):
    wrapped(lambda x: x.cos(), "default", R(30))
    name, _ = graphs.report()[-1]
    tracer_core.compile(lambda x: x + 1)(R(30))
    tracer_core.reset()
    assert name not in dict(graphs.report())


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_a_mode_that_records_and_the_option_not_to_contradict_each_other(mode):
    with pytest.raises(
        OptionError, match=f"mode '{mode}' records every graph.*goes with mode 'default'"
    ):
        tracer_core.compile(many, mode=mode, options={"recordings": False})


def test_a_mode_that_cannot_record_says_why(monkeypatch, caplog):
    monkeypatch.setattr(
        graphs,
        "get_backend",
        lambda name: dataclasses.replace(CUDAGRAPHS, available=lambda: "no device"),
    )
    eager, runner = wrapped(many, "reduce-overhead", R(30))
    assert (
        runner is eager
        and "mode 'reduce-overhead' runs without CUDA graphs: no device" in caplog.text
    )
    assert graphs.report()[-1][1] == "runs without CUDA graphs: no device"


def test_modes_that_ask_for_it_record_the_second_call(device):
    for mode in ("reduce-overhead", "max-autotune"):
        _, runner = wrapped(many, mode, R(30))
        device.captures = 0
        for _ in range(3):
            runner([R(30)])
        assert device.captures >= 1
    _, runner = wrapped(lambda x: x.cos(), "reduce-overhead", R(30))
    assert isinstance(runner.run, GraphedRunner)


@pytest.mark.parametrize(
    ("mode", "replays"), [("default", 2), ("reduce-overhead", 5), ("max-autotune", 5)]
)
def test_what_was_stored_is_recorded_where_it_is_restored(device, mode, replays):
    """By the same rules, and without the graph that it was made from."""
    _, runner = wrapped(many, mode, R(30))
    spec = dataclasses.replace(compiled(many, R(30)).compilation.spec, mode=mode)
    restored = deserialize(serialize(runner), spec)
    assert isinstance(restored.run, GraphedRunner) and device.replays == 0
    for _ in range(6):
        x = torch.randn(30)
        torch.testing.assert_close(restored([x])[0], x.sort()[0])
    assert device.replays == replays
    assert serialize(restored) == serialize(runner)


def test_sizes_that_change_are_not_recorded_at_once(device):
    _, runner = wrapped(many, "default", R(30), dynamic=True)
    for size in range(20, 36):
        runner([torch.randn(size)])
    assert device.captures == 0
    for _ in range(MIN_CALLS_OF_A_SIZE + 2):
        x = torch.randn(25)
        torch.testing.assert_close(runner([x])[0], x.sort()[0])
    assert device.captures


def test_several_graphs_keep_their_recordings(device):
    """Fields of this backend's options that are named like the recorder's mean other things
    (`recordings`).
    """
    runners = [wrapped(many, "reduce-overhead", R(30 + k))[1] for k in range(3)]
    for _ in range(2):
        for k, runner in enumerate(runners):
            runner([R(30 + k)])
    captures = device.captures
    for _ in range(3):
        for k, runner in enumerate(runners):
            x = R(30 + k)
            torch.testing.assert_close(runner([x])[0], x.sort()[0])
    assert device.captures <= captures + 3  # inputs that moved are copied from then on


@pytest.mark.skipif(not interpreting(), reason="Triton compiles for a GPU in this process")
def test_recordings_share_the_memory_of_what_is_no_result(device):
    """Results have memory of their own and stay right while they are held, whatever else is
    replayed.
    """

    def program(x, w):
        parts = [x]
        for _ in range(2):
            parts.append(parts[-1] @ w)
        for part in parts:
            x = (
                x @ part
            )  # operators alone: interpreted kernels are no part of a simulated recording
        return x, x @ w

    sizes, runners, held = (660, 640), [], []  # the second fits into the blocks of the first
    for size in sizes:
        with interpreted():
            runners.append(wrapped(program, "reduce-overhead", R(size, size), R(size, size))[1])
    for _ in range(5):
        for size, runner in zip(sizes, runners, strict=True):
            x, w = torch.randn(size, size), torch.randn(size, size) / size**0.5
            held.append(
                (x, w, runner([x, w]), program(x, w))
            )  # an input that is dropped might come back at its address
    for *_, result, expected in held:
        torch.testing.assert_close(result, list(expected))
    shared, _ = states.of(torch.device("cpu")).shared_pool()
    own = [pool.nbytes for pool in device.pools if pool is not shared]
    assert sorted(own) == sorted(
        2 * [sum(_in_blocks(4 * size**2) for _ in range(2)) for size in sizes]
    )
    assert 0 < shared.nbytes <= 6 * _in_blocks(4 * 660**2)


def _in_blocks(nbytes):
    return (nbytes + 511) // 512 * 512
