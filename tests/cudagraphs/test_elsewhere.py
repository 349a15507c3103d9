"""Recordings and what goes on beside them: other threads, other streams, other processes."""

from __future__ import annotations

import pytest
import torch

from tests.cudagraphs.test_results import LARGE, large, small
from tests.support.comparison import assert_equal
from tests.support.threads import together


def test_threads_share_a_compiled_function(world):
    compiled = world.compile(large)
    x = world.randn(LARGE // 4)
    compiled(x), compiled(x)
    if world.simulated is not None:
        world.simulated.delay = 0.002

    def work(seed):
        generator = torch.Generator(device=world.device).manual_seed(seed)
        kept = []
        for _ in range(6):
            x = torch.randn(LARGE // 4, device=world.device, generator=generator)
            kept.append((compiled(x), large(x)))
            for actual, expected in kept[-2:]:
                assert_equal(actual, expected)

    together(work, threads=4)
    assert world.replays > 6


def test_streams_take_turns(simulated):
    compiled = simulated.compile(small)
    other = simulated.compile(lambda x: x.exp() * 2)
    for turn in range(8):
        with simulated.simulated.stream(turn % 3):
            x = simulated.randn(32)
            assert_equal(compiled(x, x), small(x, x))
            assert_equal(other(x), x.exp() * 2)


def test_a_recording_waits_for_the_stream_that_read_its_result(simulated):
    """Not only for that of the replay before, which was another graph's."""
    compiled, other = simulated.compile(large), simulated.compile(lambda x: x.exp() * 2)
    for turn in range(9):
        with simulated.simulated.stream(turn % 3):
            x = simulated.randn(LARGE)
            results = compiled(x)
        with simulated.simulated.stream((turn + 1) % 3):  # where `compiled` is called next
            assert_equal(other(x), x.exp() * 2)
        with simulated.simulated.stream(turn % 3):
            assert_equal(results, large(x))
            del results
    assert simulated.recordings == 2


def test_results_that_another_process_may_read_are_copied(simulated, monkeypatch):
    """It may do so when they are dropped here; recordings that kept results until then are not used
    again.
    """

    def in_a_pool():
        for _ in range(4):
            x = simulated.randn(LARGE)
            results = compiled(x)
            assert_equal(results, large(x))
        return [any(pool.holds(result) for pool in simulated.simulated.pools) for result in results]

    compiled = simulated.compile(large)
    assert in_a_pool() == [True, True]
    monkeypatch.setattr(
        torch.multiprocessing.reductions, "shared_cache", {b"a handle of CUDA's": None}
    )
    before = simulated.replays
    assert in_a_pool() == [False, False] and simulated.replays == before + 4


def _reader(results, answers):
    """What the other process does: it looks at a result when it is told to."""
    result = results.get()
    answers.put("has it")
    results.get()
    answers.put(result[:8].tolist())
    del result


@pytest.mark.gpu
def test_a_result_that_another_process_reads(world):
    if world.simulated is not None:
        pytest.skip("memory that CUDA shares")
    processes = torch.multiprocessing.get_context("spawn")
    results, answers = processes.Queue(), processes.Queue()
    other = processes.Process(target=_reader, args=(results, answers))
    other.start()
    compiled = world.compile(large)
    for _ in range(3):
        compiled(world.randn(LARGE))
    x = world.randn(LARGE)
    results.put(compiled(x)[0])
    assert answers.get(timeout=120) == "has it"
    for _ in range(3):
        compiled(world.randn(LARGE))
    torch.cuda.synchronize()
    results.put("now")
    assert answers.get(timeout=120) == large(x)[0][:8].tolist()
    other.join(60)
    # Nobody reads it any more; other tests of this process expect that results may stay in
    # recordings.
    shared = torch.multiprocessing.reductions.shared_cache
    for handle in [key for key in shared if isinstance(key, bytes)]:
        del shared[handle]


@pytest.mark.gpu
def test_a_result_that_another_stream_still_reads(world):
    """The reader is behind a long wait on its stream when the next call, on another stream, writes
    the result again.
    """
    if world.simulated is not None:
        pytest.skip("streams of a GPU")
    compiled, other = world.compile(large), world.compile(lambda x: x.exp() * 2)
    streams = [torch.cuda.Stream() for _ in range(2)]
    inputs = [world.randn(LARGE) for _ in range(8)]
    read = []
    for _ in range(2):
        for x in inputs[:3]:
            compiled(x), other(x)
    torch.cuda.synchronize()
    for turn, x in enumerate(inputs):
        mine, next_one = streams[turn % 2], streams[1 - turn % 2]
        with torch.cuda.stream(mine):
            first, second = compiled(x)
        with torch.cuda.stream(next_one):
            other(x)
        with torch.cuda.stream(mine):
            torch.cuda._sleep(20_000_000)
            read.append((first + 0, second + 0))
            del first, second
    torch.cuda.synchronize()
    for x, actual in zip(inputs, read, strict=True):
        assert_equal(actual, large(x))
    assert world.recordings == 2


@pytest.mark.gpu
def test_cuda_streams_take_turns(world):
    if world.simulated is not None:
        pytest.skip("streams of a GPU")
    compiled = world.compile(lambda x: (x @ x).relu() @ x)
    streams = [torch.cuda.Stream() for _ in range(3)]
    kept = []
    for turn in range(24):
        with torch.cuda.stream(streams[turn % 3]):
            x = world.randn(512, 512) / 20
            kept.append((compiled(x), (x @ x).relu() @ x))
    torch.cuda.synchronize()
    for actual, expected in kept:
        torch.testing.assert_close(actual, expected)
