"""What a first call waits for: what starts early, what is paused, what is not done twice."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

import tracer_core
from inductor_backend.passes import kernel_prebuild
from tracer_core.aot import lower as lower_module
from tracer_core.debug.gc_pause import collector_paused
from tracer_core.plugin_api import Backend, BackendError


def test_our_own_kernels_are_built_while_the_graph_is_lowered(monkeypatch):
    order = []
    monkeypatch.setattr(
        kernel_prebuild.native, "prepare", lambda names: order.append(sorted({*names}))
    )
    lower = lower_module.Lowering.run
    monkeypatch.setattr(
        lower_module.Lowering,
        "run",
        lambda self, specs: order.append("lowering") or lower(self, specs),
    )
    net = torch.nn.Sequential(
        torch.nn.Conv2d(16, 64, 3, padding=1), torch.nn.Conv2d(64, 64, (3, 3), 2, groups=64),
        torch.nn.Flatten(), torch.nn.Linear(64 * 81, 100),
    ).eval()  # fmt: skip
    x = torch.randn(1, 16, 20, 20)
    with torch.no_grad():
        compiled = tracer_core.compile(net)
        torch.testing.assert_close(compiled(x), net(x))
    needed = {"run_depthwise_3", "run_linear", "run_pack", "run_packed"}
    assert (
        order[1] == "lowering" and order[0] == order[2]
    )  # the captured graph and the lowered one say the same
    assert needed <= {*order[0]}


def test_a_graph_without_products_starts_no_build(monkeypatch):
    started = []
    monkeypatch.setattr(kernel_prebuild.native, "prepare", started.extend)
    x = torch.randn(8)
    torch.testing.assert_close(tracer_core.compile(lambda x: x.cos() + 1)(x), x.cos() + 1)
    small = torch.randn(4, 4)  # a product of so few numbers is ATen's
    torch.testing.assert_close(
        tracer_core.compile(lambda x: (x @ x).sin())(small), (small @ small).sin()
    )
    net = torch.nn.Dropout().eval()  # draws nothing
    torch.testing.assert_close(tracer_core.compile(lambda x: net(x).cos())(x), x.cos())
    assert not started


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_paused_while_a_graph_is_compiled(enabled):
    seen = []

    def compile_(gm, spec):
        seen.append(gc.isenabled())
        return lambda inputs: list(gm(*inputs))

    compiled = tracer_core.compile(lambda x: x + 1, backend=Backend(name="looks", compile=compile_))
    try:
        if not enabled:
            gc.disable()
        compiled(torch.ones(2))
        assert seen == [False]
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


def test_the_collector_runs_again_after_a_failure():
    def compile_(gm, spec):
        raise RuntimeError("broken on purpose")

    compiled = tracer_core.compile(
        lambda x: x + 1, backend=Backend(name="breaks", compile=compile_)
    )
    with pytest.raises(BackendError, match="broken on purpose"):
        compiled(torch.ones(2))
    assert gc.isenabled()


def test_blocks_of_several_threads_overlap():
    entered, leave = threading.Event(), threading.Event()

    def other():
        with collector_paused():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with collector_paused():
        thread.start()
        assert entered.wait(10)
    assert not gc.isenabled()  # the other thread's block is still open
    leave.set()
    thread.join(10)
    assert gc.isenabled()


def test_memory_that_a_capture_has_freed_goes_back_to_the_system():
    def resident():
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096

    tracer_core.compile(lambda x: x.sin() - 1)(torch.randn(10))  # the compiler itself is loaded now
    held = [
        bytes(100_000) for _ in range(600)
    ]  # 60 MB below the size from which malloc maps blocks of their own
    kept = [bytes(100) for _ in range(1000)]
    before = resident()
    del held
    tracer_core.compile(lambda x: x.cos() * 3 - 1)(torch.randn(10))
    assert resident() < before - 30_000_000
    assert len(kept) == 1000
