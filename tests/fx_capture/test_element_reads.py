"""Subscripts by integers that depend on data: ``table[step]``, `step` a 0-d tensor."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tracer_core
from tests.support.comparison import assert_same
from tracer_core.testing import CaptureCounter

INDICES = (3, 0, -1, 2, 3, 1, -4, 0)


def same_over_calls(fn, make, backend="inductor", indices=INDICES, dtype=torch.int64):
    """Compares results, arguments and aliasing with eager's for each index; returns the captures."""
    with CaptureCounter() as counter:
        fast = tracer_core.compile(fn, backend=backend)
        for number in indices:
            mine, others = make(), make()
            i = torch.tensor(number, dtype=dtype)
            want, got = fn(*mine, i), fast(*others, i)
            assert_same(got, want)
            assert_same(others, mine)
            for leaf, other in zip(leaves(want), leaves(got), strict=True):
                assert [shares(leaf, x) for x in mine] == [shares(other, x) for x in others]
                assert leaf.storage_offset() == other.storage_offset()
    return counter


def leaves(value):
    return [value] if isinstance(value, torch.Tensor) else list(value)


def shares(item, other):
    return item.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def table():
    torch.manual_seed(0)
    return (torch.randn(4),)


def rows():
    torch.manual_seed(0)
    return (torch.randn(4, 5),)


READS = {
    "a number": (lambda x, i: x[i] * 2 + 1, table),
    "a row": (lambda x, i: (x[i] * 2).softmax(0), rows),
    "two": (lambda x, i: x[i] + x[i - i] * x[i, 2], rows),
    "an element": (lambda x, i: x[i, i].sin() + x[2, i], rows),
    "after a write": (lambda x, i: x.mul_(2)[i] + 1, rows),
    "of what the graph made": (lambda x, i: (x @ x.t())[i].cumsum(0), rows),
    "reshaped": (lambda x, i: x[i].view(5, 1).exp() - x[i].unsqueeze(0), rows),
    "read": (lambda x, i: x[i.item()] * 2 + x[int(i)], rows),
    "read, an element": (lambda x, i: x[i.item(), 1] * x[1, i.item()], rows),
    "attribute": (lambda x, i: x.__getitem__(i) * 3, rows),
}


@pytest.mark.sweep(keep=25)
@pytest.mark.parametrize("backend", ["inductor", "eager"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8])
@pytest.mark.parametrize("name", READS)
def test_one_graph_serves_every_index(name, dtype, backend):
    fn, make = READS[name]
    counter = same_over_calls(fn, make, backend, dtype=dtype)
    assert len(counter.graphs) == 1 and not counter.breaks


def test_it_is_compiled_whole(caplog):
    fast = tracer_core.compile(lambda x, i: (x[i] * 2).softmax(0), fullgraph=True)
    for number in INDICES:
        fast(*rows(), torch.tensor(number))
    assert "eager" not in caplog.text


@pytest.mark.parametrize("read", [lambda x, i: x[i] * 2, lambda x, i: x[i, i].exp() * x[i].sum()])
def test_gradients(read):
    fast = tracer_core.compile(read)
    for number in INDICES:
        (x,) = rows()
        x, i = x.double().requires_grad_(), torch.tensor(number)
        want = torch.autograd.grad(read(x, i).sin().sum(), x)[0]
        got = torch.autograd.grad(fast(x, i).sin().sum(), x)[0]
        torch.testing.assert_close(got, want)


def returned(x, i):
    return x[i]


def part_returned(x, i):
    return x[i].view(-1)[1:], x.sum()


def detached(x, i):
    return x[i].detach()


def written(x, i):
    row = x[i]
    row.add_(1)
    return row * 2


def part_written(x, i):
    x[i][1:3].zero_()
    return x * 2


def read_and_written(x, i):
    number = i.item()
    row = x[number]
    row.add_(number)
    return row * 2, torch.full((2,), number)


def read_and_counted(x, i):
    number = i.item()
    return x[number] * number + number


def index_written(x, i):
    number = i.item()
    i.add_(1)
    row = x[number] * 2
    i.sub_(1)
    return row


def index_written_before(x, i):
    i.add_(1)
    row = x[i.item() - 1] + x[i - 1] * x[i]
    i.sub_(1)
    return row


def added(x, i):
    x[i] += 1
    return x + 1


def source_written(x, i):
    row = x[i]
    x.mul_(2)
    return row + 1


def source_written_through_a_view(x, i):
    row = x[i]
    x.t()[0].zero_()
    return row * 3


def kept(x, i):
    held = {"row": x[i]}
    x.add_(1)
    return held["row"] * 1


def between_a_break(x, i):
    row = x[i]
    print(end="", file=None)
    x.add_(1)
    tracer_core.graph_break()
    x.add_(1)
    return row * 2


def across_a_break(x, i):
    row = x[i]
    tracer_core.graph_break()
    x.add_(1)
    return row * 2


def offset(x, i):
    row = x[i]
    return row * row.storage_offset()


def is_view(x, i):
    row = x[i]
    return row * (2 if row._is_view() else 3)


def base(x, i):
    row = x[i]
    return row * (2 if row._base is None else 3)


def pointer(x, i):
    row = x[i]
    return row * (2 if row.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() else 3)


def strided(x, i):
    return x[i].as_strided((2, 2), (1, 1)) * 2


def column(x, i):
    return x[:, i] * 2, x.t()[i] * 2


def assigned(x, i):
    x[i] = 7.0
    return x * 2


@pytest.mark.sweep(keep=10)
@pytest.mark.parametrize(
    "fn",
    [index_written, index_written_before, read_and_written, read_and_counted, returned, part_returned,
     detached, written, part_written, added, source_written, source_written_through_a_view, kept,
     between_a_break, across_a_break, offset, is_view, base, pointer, strided, column, assigned],
)  # fmt: skip
def test_a_view_that_can_be_told_from_a_copy(fn, monkeypatch):
    monkeypatch.setenv("TRACER_STRICT", "0")
    same_over_calls(fn, rows, indices=(0, 1, -1, 2, 2, 0, 1))


def test_another_input_of_the_same_memory_is_written_to(monkeypatch):
    monkeypatch.setenv("TRACER_STRICT", "0")

    def fn(x, other, i):
        row = x[i]
        other.add_(1)
        return row * 2

    def make():
        (x,) = rows()
        return x, x.view(-1)

    same_over_calls(fn, make, indices=(0, 1, -1, 3, 2))


def test_an_index_out_of_range(monkeypatch):
    monkeypatch.setenv("TRACER_STRICT", "0")

    def caught(x, i):
        try:
            return x[i] * 2
        except IndexError:
            return x.sum()

    def unread(x, i):
        x[i]
        return x + 1

    read = tracer_core.compile(lambda x, i: x[i] * 2)
    for fast in (read, tracer_core.compile(unread)):
        for number in (1, 2, 4, -5, 0):
            if number in (4, -5):
                with pytest.raises(IndexError, match="out of"):
                    fast(*rows(), torch.tensor(number))
            else:
                fast(*rows(), torch.tensor(number))
    fast = tracer_core.compile(caught)
    for number in (1, 4, 0, -5, 4, 2):
        i = torch.tensor(number)
        torch.testing.assert_close(fast(*rows(), i), caught(*rows(), i))


def test_bytes_and_truths_are_masks():
    for dtype in (torch.uint8, torch.bool):
        fast = tracer_core.compile(lambda x, i: x[i] * 2, backend="eager")
        for number in (1, 0, 1):
            i = torch.tensor(number, dtype=dtype)
            torch.testing.assert_close(fast(*rows(), i), rows()[0][i] * 2)


def test_a_step_that_trains_the_table(monkeypatch):
    monkeypatch.setenv("TRACER_STRICT", "0")

    def run(compile_):
        torch.manual_seed(0)
        table = nn.Parameter(torch.randn(4, 5))
        optimizer = torch.optim.SGD([table], lr=0.1)

        def step(i):
            optimizer.zero_grad()
            loss = (table[i] * table[i // 2]).sin().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = compile_(step)
        return [step(torch.tensor(number)) for number in INDICES], table

    torch.testing.assert_close(run(tracer_core.compile), run(lambda fn: fn))


class Schedule(nn.Module):
    """As samplers of diffusion models hold their coefficients."""

    def __init__(self):
        super().__init__()
        self.register_buffer("alphas", torch.linspace(0.9, 0.1, 50))
        self.net = nn.Linear(8, 8)

    def forward(self, x, t):
        alpha = self.alphas[t]
        return alpha.sqrt() * x + (1 - alpha).sqrt() * self.net(x)


def test_a_schedule():
    model = Schedule()
    with CaptureCounter() as counter, torch.no_grad():
        fast = tracer_core.compile(model, fullgraph=True)
        for t in torch.randperm(50)[:20]:
            x = torch.randn(2, 8)
            torch.testing.assert_close(fast(x, t), model(x, t))
    assert len(counter.graphs) == 1
