"""Recordings that nobody asked for: made only where timed runs show that they pay, and safe in
every use.
"""

from __future__ import annotations

import contextlib
import copy
import types

import pytest
import torch

from cudagraphs_backend.capturability import Traits
from cudagraphs_backend.device import Timing
from cudagraphs_backend.limits import MAX_DEVICE_BOUND_CALLS
from cudagraphs_backend.options import CudaGraphsOptions
from cudagraphs_backend.policy import DEVICE_BOUND, CpuBoundCheck
from cudagraphs_backend.runner import GraphedRunner
from cudagraphs_backend.state import states
from tests.cudagraphs.test_training import Net, seeded
from tests.support.comparison import assert_equal, assert_same_training
from tracer_core.plugin_api import InputSpec, Phase, Role


def program(x):
    return (x.cos() * 2 + x.sin()).relu()


UNQUERIED = {"measured": True, "outputs": "saved"}


def calls(compiled, world, times=8, size=64):
    for _ in range(times):
        x = world.randn(size)
        assert_equal(compiled(x), program(x))


def test_recorded_where_the_host_sets_the_pace(simulated):
    compiled = simulated.compile(program, **UNQUERIED)
    calls(compiled, simulated, 4)
    assert simulated.recordings == 0  # one to warm up, three that are timed
    calls(compiled, simulated)
    assert simulated.recordings == 1 and simulated.replays == 8


@pytest.mark.parametrize(
    ("seconds", "reason"),
    [
        ((1e-3, 5e-3), "device sets its pace"),
        ((1e-3, None), "device sets its pace"),
        ((2e-5, 2e-5), "20 micro"),
    ],
)
def test_not_recorded_where_it_does_not_pay(simulated, seconds, reason):
    simulated.simulated.seconds = seconds
    others = list(_runners())  # of tests before, not collected yet
    compiled = simulated.compile(program, **UNQUERIED)
    calls(
        compiled, simulated, 80 if seconds[1] is None else 8
    )  # the device is waited for that long
    simulated.simulated.seconds = (1e-3, 1e-3)
    calls(compiled, simulated)
    assert simulated.recordings == 0
    (runner,) = (runner for runner in _runners() if all(runner is not other for other in others))
    (entry,) = runner._entries.values()
    assert reason in entry.reason


@pytest.mark.parametrize("stored", [False, True])
def test_a_size_whose_pace_the_device_set_is_timed_once_more(simulated, stored):
    """Another process may have used the device in the first calls."""
    verdicts = {}
    item = _runner_of_one(verdicts)
    simulated.simulated.seconds = (1e-3, 9e-3)

    def call(times):
        for _ in range(times):
            x = simulated.randn(64)
            assert_equal(item([x])[0], program(x))

    call(8)
    assert list(verdicts.values()) == [DEVICE_BOUND]
    if stored:  # in a later process
        item = _runner_of_one(verdicts)
    simulated.simulated.seconds = (1e-3, 1e-3)
    call(MAX_DEVICE_BOUND_CALLS - 8)
    assert item.row().replays == 0
    call(32)
    assert item.row().replays > 16 and list(verdicts.values()) == [""]


def test_a_size_is_timed_no_third_time(simulated):
    verdicts = {}
    item = _runner_of_one(verdicts)
    simulated.simulated.seconds = (1e-3, 9e-3)
    for number in range(3 * MAX_DEVICE_BOUND_CALLS):
        if number == 2 * MAX_DEVICE_BOUND_CALLS:
            simulated.simulated.seconds = (1e-3, 1e-3)
        item([simulated.randn(64)])
    assert item.row().replays == 0 and list(verdicts.values()) == [DEVICE_BOUND]


def _runner_of_one(verdicts):
    """The runner of `program`, with verdicts in a dict as in the store."""

    class Verdicts:
        known = staticmethod(verdicts.get)
        store = staticmethod(verdicts.__setitem__)

    spec = types.SimpleNamespace(
        name="one", backend="cudagraphs", phase=Phase.INFERENCE, mutations=(), sizes=(),
        inputs=(InputSpec("x", Role.USER_INPUT, "x"),),
        outputs=(types.SimpleNamespace(saved=False, gradient=False, dtype=torch.float32),),
    )  # fmt: skip
    traits = Traits(torch.device("cpu"), None, (0,), 1, 3)
    options = CudaGraphsOptions(**UNQUERIED)
    return GraphedRunner(
        lambda inputs: [program(inputs[0])], traits, spec, states.of(traits.device), options,
        verdicts=Verdicts,
    )  # fmt: skip


def test_launches_leave_gaps_that_count():
    """A device that sets the pace idles between launches: 100 of them cost 4 % of 5 ms, 20 do not."""
    for launches, pays in ((100, True), (20, False)):
        check = CpuBoundCheck(launches=launches)
        unfinished = [None]
        for _ in range(3):
            check.add(Timing(1e-3, lambda: unfinished[0]))
        assert check.against() is None and not check.decided
        unfinished[0] = 5e-3
        assert (check.against() is None) is pays and check.decided


@pytest.mark.parametrize("pace", [(1e-3, 1e-3), (1e-3, 5e-3)], ids=["host", "device"])
def test_verdicts_of_earlier_processes(simulated, pace):
    """The second process neither times calls again nor waits for that with its capture."""
    verdicts = {}
    simulated.simulated.seconds = pace
    replays = []
    for _ in range(2):  # processes
        item = _runner_of_one(verdicts)
        for _ in range(8):
            x = simulated.randn(64)
            assert_equal(item([x])[0], program(x))
        replays.append(item.row().replays)
        simulated.simulated.seconds = (1e-3, 7e-3 if pace[0] == pace[1] else 1e-3)
    assert replays == ([4, 7] if pace[0] == pace[1] else [0, 0]) and len(verdicts) == 1


def test_verdicts_are_kept_by_module_size_and_device(fresh_cache, monkeypatch):
    from cudagraphs_backend.policy import Verdicts

    name = ["H100"]
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name[0])

    def of(text, *, from_store):
        return Verdicts(text, torch.device("cuda:0"), from_store=from_store)

    of("module", from_store=False).store("(2, 3)", "")
    of("module", from_store=False).store("(4, 3)", "the device sets its pace")
    again = of("module", from_store=True)
    assert again.known("(2, 3)") == "" and again.known("(4, 3)") == "the device sets its pace"
    assert again.known("(5, 3)") is None and of("other", from_store=True).known("(2, 3)") is None
    assert of("module", from_store=False).known("(2, 3)") is None  # this process measures itself
    name[0] = "A100"
    assert of("module", from_store=True).known("(2, 3)") is None


def _runners():
    from cudagraphs_backend.runner import runners

    return runners()


def test_not_recorded_where_memory_is_short(simulated):
    simulated.simulated.free = simulated.simulated.memory // 8
    calls(simulated.compile(program, **UNQUERIED), simulated)
    assert simulated.recordings == 0


def test_parameters_in_new_memory_in_each_call(simulated):
    """As those that fully_shard gathers: it gives up, and holds no memory."""

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(64))

        def forward(self, x):
            return (x.cos() * self.weight + x.sin()).relu()

    module, others, held = Scaled(), list(_runners()), []
    compiled = simulated.compile(module, **UNQUERIED)
    for _ in range(60):
        held.append(module.weight.data)
        module.weight.data = torch.randn(64)
        x = simulated.randn(64)
        with torch.no_grad():
            assert_equal(compiled(x), module(x))
    (runner,) = (runner for runner in _runners() if all(runner is not other for other in others))
    (entry,) = runner._entries.values()
    assert "fit a recording" in entry.reason and simulated.recordings == 0
    captures = simulated.simulated.captures
    for _ in range(8):
        module.weight.data = torch.randn(64)
        x = simulated.randn(64)
        with torch.no_grad():
            assert_equal(compiled(x), module(x))
    assert simulated.simulated.captures == captures


def test_results_that_share_memory_are_not_recorded(simulated):
    def shares(x):
        y = x.cos() * 2
        return y, y[3:]

    compiled = simulated.compile(shares, **UNQUERIED)
    for _ in range(8):
        x = simulated.randn(16)
        full, part = compiled(x)
        assert_equal(full, x.cos() * 2)
        full.zero_()
        assert not part.any()


def test_what_the_program_sees_is_its_own(world):
    """Large results too: they may be dropped while another stream reads them."""
    compiled = world.compile(program, **UNQUERIED)
    if world.simulated is None:
        pytest.skip("whether a GPU's host sets the pace of this program is not certain")
    kept = []
    for _ in range(8):
        x = world.randn(300_000)
        kept.append((compiled(x), program(x)))
    assert world.replays
    places = {result.data_ptr() for result, _ in kept}
    assert len(places) == len(kept)
    for result, expected in kept:
        assert_equal(result, expected)
        assert not any(pool.holds(result) for pool in world.simulated.pools)


def test_training(world):
    torch.manual_seed(0)
    model = Net().to(world.device)
    reference = copy.deepcopy(model)
    compiled = world.compile(model, **UNQUERIED)
    for number in range(9):
        x = world.randn(8, 32)
        for net in (compiled, reference):
            net.zero_grad()
            seeded(number, net, x).square().mean().backward()
        assert_same_training(model, reference)
    if world.simulated is not None:
        assert world.replays >= 8
        assert _in_a_pool(world, model) == 1  # no copy of them


def _in_a_pool(world, model):
    """The part of the gradients that a recording holds."""
    held = [p.grad for p in model.parameters()]
    return sum(any(pool.holds(grad) for pool in world.simulated.pools) for grad in held) / len(held)


def _steps(world, model, compiled, reference, numbers, after=lambda grad: None):
    for number in numbers:
        x = world.randn(8, 32)
        for net in (compiled, reference):
            net.zero_grad()
            seeded(number, net, x).square().mean().backward()
        assert_same_training(model, reference)
        after(model.first.weight.grad)


def _trained(world):
    torch.manual_seed(0)
    model = Net().to(world.device)
    return model, world.compile(model, **UNQUERIED), copy.deepcopy(model)


def test_gradients_that_are_kept_stay_valid(simulated):
    nets = _trained(simulated)
    kept = []
    _steps(simulated, *nets, range(12), lambda grad: kept.append((grad, grad.clone())))
    for grad, expected in kept:
        assert torch.equal(grad, expected)


def test_gradients_are_summed_over_several_steps(simulated):
    model, compiled, reference = _trained(simulated)
    for number in range(14):
        x = simulated.randn(8, 32)
        for net in (compiled, reference):
            if number % 3 == 0:
                net.zero_grad()
            seeded(number, net, x).square().mean().backward()
        assert_same_training(model, reference)
    assert simulated.replays >= 12


@pytest.mark.parametrize("mode", [contextlib.nullcontext, torch.no_grad, torch.inference_mode])
def test_gradients_that_another_stream_reads_are_copied_from_then_on(simulated, mode):
    """The allocator would know when the other stream is done; a recording does not."""
    model, compiled, reference = _trained(simulated)
    _steps(simulated, model, compiled, reference, range(8))
    assert _in_a_pool(simulated, model) == 1
    with mode(), pytest.raises(NotImplementedError):  # CPU tensors have no streams
        model.last.bias.grad.detach().record_stream(torch.Stream(device="cpu"))
    before = simulated.replays
    _steps(simulated, model, compiled, reference, range(8))
    assert _in_a_pool(simulated, model) == 0 and simulated.replays >= before + 8


@pytest.mark.parametrize("reason", ["stream", "sent", "collectives"])
def test_gradients_are_copied_where_their_uses_cannot_be_seen(simulated, monkeypatch, reason):
    model, compiled, reference = _trained(simulated)
    _steps(simulated, model, compiled, reference, range(8))
    monkeypatch.setattr(
        torch.multiprocessing.reductions, "shared_cache", {(1, 2): "a batch of a loader's worker"}
    )
    _steps(simulated, model, compiled, reference, range(2))
    assert _in_a_pool(simulated, model) == 1
    if reason == "sent":
        monkeypatch.setattr(
            torch.multiprocessing.reductions, "shared_cache", {b"a handle of CUDA's": None}
        )
    if reason == "collectives":
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    if reason == "stream":
        monkeypatch.setattr(simulated.simulated, "current_stream", lambda: 7)
    _steps(simulated, model, compiled, reference, range(8))
    assert _in_a_pool(simulated, model) == 0
