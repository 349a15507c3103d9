"""Flags, counters and tables that a program keeps in small tensors decide its way without a graph
break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tracer_core
from tests.support.eager_reference import compare_with_eager

BACKENDS = ("eager", "aten_eager", "inductor")


def rows(n: int, seed: int = 0) -> list[tuple[torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(2, 3, generator=generator),) for _ in range(n)]


class RunningMean(torch.nn.Module):
    """The first call fills the mean, later ones move it."""

    n: torch.Tensor
    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.tensor(0))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.n == 0:
            self.mean.copy_(x.mean(0))
        else:
            self.mean.lerp_(x.mean(0), 0.25)
        self.n += 1
        return x - self.mean


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_counter_chooses_the_branch(backend: str) -> None:
    seen = compare_with_eager(RunningMean, *rows(4), graphs=2, breaks=0, backend=backend)
    state = seen.compiled.state_dict()
    assert state["n"] == 4


def _set(value: float) -> Callable[[Any], None]:
    return lambda module: module.n.fill_(value)


def test_a_counter_that_the_program_sets_back_is_asked_in_each_call() -> None:
    data = rows(5)
    compare_with_eager(
        RunningMean, data[0], data[1], _set(0), data[2], data[3], _set(0), data[4], graphs=2
    )


def test_another_tensor_in_its_place_is_asked() -> None:
    def replace(module: Any) -> None:
        module.n = torch.tensor(0)

    compare_with_eager(RunningMean, *rows(2), replace, *rows(2, 1), graphs=2, breaks=0)


def test_a_write_without_a_version_is_seen() -> None:
    """NumPy and ``.data`` change a tensor without its version counter."""

    def by_numpy(module: Any) -> None:
        module.n.numpy()[...] = 0

    def by_data(module: Any) -> None:
        module.n.data.zero_()

    compare_with_eager(
        RunningMean, *rows(2), by_numpy, *rows(2, 1), by_data, *rows(2, 2), graphs=2, breaks=0
    )


class Schedule(torch.nn.Module):
    """A warm-up that is read after the step of this call was counted."""

    step: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> Any:
        begun = self.step.item()
        self.step += 1
        epoch = (self.step - 2).clamp(min=0.0)
        decay = 1 - (1 + epoch / 2.0) ** -0.7
        if epoch.item() <= 0:
            return x, 0.0
        return x * decay.item(), begun, int(self.step), float(decay)


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_are_read_behind_writes(backend: str) -> None:
    seen = compare_with_eager(Schedule, *rows(8), breaks=0, backend=backend)
    assert len(seen.counter.graphs) <= 4


class Sampler:
    """Walks over a table of steps, as the schedulers of diffusers do."""

    def __init__(self) -> None:
        self.steps = torch.tensor([9, 6, 3, 0])
        self.alphas = torch.linspace(0.9, 0.1, 12)
        self.names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]

    def __call__(self, x: torch.Tensor) -> Any:
        said = []
        for t in self.steps:
            before = t - 3
            alpha = self.alphas[t]
            last = self.alphas[before] if before >= 0 else self.alphas[0]
            x = x * alpha + last
            said.append(self.names[t])
        return x, said, [i for i in range(self.steps[2])]


@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_of_a_table_are_indices(backend: str) -> None:
    def other(sampler: Any) -> None:
        sampler.steps = torch.tensor([8, 5, 2, 1])

    seen = compare_with_eager(Sampler, *rows(2), other, *rows(2, 1), breaks=0, backend=backend)
    assert len(seen.counter.graphs) <= 3


class Padded(torch.nn.Module):
    kernel: torch.Tensor
    stride: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kernel", torch.tensor(4), persistent=False)
        self.register_buffer("stride", torch.tensor(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = self.kernel - self.stride
        frames = torch.ceil((x.shape[-1] - self.kernel + total) / self.stride + 1).to(torch.int64)
        extra = (frames - 1) * self.stride + self.kernel - total - x.shape[-1]
        right = total // 2
        if x.shape[-1] <= max(total - right, right):
            x = x * 2
        return torch.nn.functional.pad(x, (total - right, right + extra))


def test_sizes_of_padding_are_numbers() -> None:
    compare_with_eager(Padded, (torch.randn(2, 7),), (torch.randn(2, 7),), graphs=1, breaks=0)


def test_arguments_are_not_read() -> None:
    """What is passed in is data: the graph ends at a branch on it, and no entry is made for each
    value."""

    def run(x: torch.Tensor, flag: torch.Tensor) -> torch.Tensor:
        if flag:
            return x + 1
        return x - 1

    x = torch.randn(3)
    compare_with_eager(lambda: run, (x, torch.tensor(True)), (x, torch.tensor(False)), breaks=1)


def test_a_branch_that_goes_every_way_becomes_a_break() -> None:
    class Coin(torch.nn.Module):
        side: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("side", torch.tensor(0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for bit in range(4):
                if (self.side // 2**bit) % 2 == 1:
                    x = x + 2**bit
            self.side += 1
            return x

    seen = compare_with_eager(Coin, *rows(20))
    assert seen.counter.breaks


def test_two_buffers_of_one_memory() -> None:
    class Shared(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            both = torch.zeros(2, dtype=torch.int64)
            self.register_buffer("one", both[:1])
            self.register_buffer("both", both)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.both += 1  # type: ignore[operator]
            if self.one > 1:  # type: ignore[operator]
                return x + 1
            return x - 1

    compare_with_eager(Shared, *rows(4))


def test_a_view_that_is_written_to() -> None:
    class Slots(torch.nn.Module):
        slots: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("slots", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.slots[1:3].add_(1)
            self.slots[0] = 5
            if self.slots[2] > 2:
                return x + self.slots.sum()
            return x - self.slots.sum().item()

    compare_with_eager(Slots, *rows(5), breaks=0)


def test_what_the_graph_computes_of_data_is_not_read() -> None:
    class Peak(torch.nn.Module):
        peak: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("peak", torch.tensor(0.5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.peak.copy_(torch.maximum(self.peak, x.max()))
            if self.peak > 1.0:
                return x / self.peak
            return x

    compare_with_eager(Peak, *rows(6))


def test_nan_and_negative_zero() -> None:
    class Edge(torch.nn.Module):
        value: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("value", torch.tensor(float("nan")))

        def forward(self, x: torch.Tensor) -> Any:
            return (x + 1 if self.value else x - 1), self.value.item()

    def negative_zero(module: Any) -> None:
        module.value.fill_(-0.0)

    seen = compare_with_eager(Edge, *rows(2), negative_zero, *rows(2, 1), breaks=0)
    assert str(seen.results[-1][1]) == "-0.0"


def test_inside_autocast_and_no_grad() -> None:
    class Frozen(torch.nn.Module):
        ready: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.lin = torch.nn.Linear(3, 3)
            self.register_buffer("ready", torch.tensor(False))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad(), torch.autocast("cuda", enabled=False):
                if not self.ready:
                    self.lin.weight.mul_(2)
                    self.ready.fill_(True)
            return self.lin(x)

    torch.manual_seed(3)
    result = Frozen().state_dict()

    def make() -> Frozen:
        module = Frozen()
        module.load_state_dict(result)
        return module

    compare_with_eager(make, *rows(3), graphs=2, breaks=0)


def test_learned_numbers_are_data() -> None:
    """A parameter changes with each step of an optimizer."""

    class Gate(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = torch.nn.Parameter(torch.tensor(0.5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if self.gate > 0 else x

    compare_with_eager(Gate, *rows(2), breaks=1)


def test_counters_that_come_to_share_memory() -> None:
    """A write of the graph to one is then one to the other, whose value is read before."""

    class Counters(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.counts = [torch.tensor(2), torch.tensor(0)]

        def forward(self, x: torch.Tensor) -> Any:
            first, second = self.counts
            first.add_(1)
            x = x * second.item()
            return x, second.item()

    ours, eager = Counters(), Counters()
    compiled = tracer_core.compile(ours, backend="eager")
    for number in range(12):
        x = torch.full((3,), float(number))
        actual, expected = compiled(x), eager(x)
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
        torch.testing.assert_close(ours.counts, eager.counts)
        if number == 4:
            ours.counts[0], eager.counts[0] = ours.counts[1], eager.counts[1]
        if number == 8:
            ours.counts[0], eager.counts[0] = torch.tensor(1), torch.tensor(1)


class Picks(torch.nn.Module):
    """An index in a small tensor: an element, or a mask where it is a byte or a bool."""

    index: torch.Tensor

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("index", torch.tensor(1, dtype=dtype))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        names = ("first", "second")
        x = x * 2 if names[self.index] == "second" else x
        return x[self.index], x[0, self.index], x[: self.index], x[(self.index, 0)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", (torch.uint8, torch.bool, torch.int8, torch.int64), ids=str)
@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
def test_indices_that_are_elements_and_masks(dtype: torch.dtype, backend: str) -> None:
    model = Picks(dtype)
    if dtype is torch.bool:
        model.forward = lambda x: (x[model.index], x[0, model.index])  # type: ignore[method-assign]
    fast = tracer_core.compile(model, backend=backend)
    for _ in range(3):
        for (x,) in rows(2):
            for actual, wanted in zip(fast(x), model(x), strict=True):
                assert actual.shape == wanted.shape and torch.equal(actual, wanted)
