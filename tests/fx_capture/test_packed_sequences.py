"""Packed sequences: packing, recurrent layers over them and unpacking are one graph, whatever the
lengths are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.support.eager_reference import same
from tests.support.gradients import same_gradients

LENGTHS = [[9, 7, 4], [9, 9, 9], [6, 3, 2], [7, 7, 1]]


class Net(nn.Module):
    def __init__(self, kind: Any, ordered: bool, batch_first: bool, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = kind(5, 4, batch_first=batch_first, **options).double()
        self.ordered, self.batch_first = ordered, batch_first

    def forward(self, x: Any, lengths: Any, state: Any = None) -> Any:
        options = {"batch_first": self.batch_first}
        packed = pack_padded_sequence(x * 2, lengths, enforce_sorted=self.ordered, **options)
        actual, state = self.inner(packed, state)
        padded, sizes = pad_packed_sequence(actual, padding_value=0.5, **options)
        return padded + 1, sizes, state


def calls(batch_first: bool = True, ordered: bool = True, tensors: bool = True) -> list[Any]:
    actual = []
    for lengths in LENGTHS:
        torch.manual_seed(sum(lengths))
        x = torch.randn(3, 9, 5, dtype=torch.float64)
        x = (x if batch_first else x.transpose(0, 1)).requires_grad_()
        lengths = lengths if ordered else lengths[1:] + lengths[:1]
        actual.append((x, torch.tensor(lengths) if tensors else lengths))
    return actual


KINDS = {
    "lstm": (nn.LSTM, {}),
    "lstm of two layers both ways": (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    "lstm with a projection": (nn.LSTM, {"proj_size": 2}),
    "gru": (nn.GRU, {"bidirectional": True}),
    "rnn": (nn.RNN, {}),
    "relu": (nn.RNN, {"nonlinearity": "relu", "bias": False}),
}


@pytest.mark.sweep(keep=6)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_layers(kind: str, backend: str) -> None:
    of, options = KINDS[kind]
    for ordered, batch_first in ((True, True), (False, False)):

        def make(ordered: bool = ordered, batch_first: bool = batch_first) -> Any:
            return Net(of, ordered, batch_first, **options)

        full = 1 if backend == "inductor" else None  # the other one breaks at such sizes
        inputs = calls(batch_first, ordered)
        same_gradients(make, *inputs, graphs=full, breaks=full and 0, backend=backend)


def test_without_gradients_and_whole() -> None:
    net = Net(nn.LSTM, True, True)
    with torch.no_grad():
        same(net, *calls(), graphs=1, backend="inductor", fullgraph=True)


def test_lengths_in_a_list() -> None:
    inputs = calls(tensors=False)
    same_gradients(lambda: Net(nn.LSTM, True, True), *inputs, backend="inductor", graphs=None)


def test_a_state_that_is_given() -> None:
    state = tuple(torch.randn(1, 3, 4, dtype=torch.float64) for _ in range(2))
    inputs = [(*call, state) for call in calls()]
    same_gradients(lambda: Net(nn.LSTM, True, True), *inputs, graphs=1, backend="inductor")
    inputs = [(*call, state[0]) for call in calls()]
    same_gradients(lambda: Net(nn.GRU, True, True), *inputs, graphs=1, backend="inductor")


def test_other_numbers_of_sequences() -> None:
    inputs = [
        (torch.randn(n, 9, 5, dtype=torch.float64), torch.arange(n, 0, -1) + 1)
        for n in (3, 5, 4, 6)
    ]
    same_gradients(lambda: Net(nn.LSTM, True, True), *inputs, graphs=2, backend="inductor")


def test_one_step_and_one_sequence() -> None:
    x = torch.randn(3, 9, 5, dtype=torch.float64)
    inputs = [
        (x, torch.tensor([4, 2, 2])),
        (x, torch.tensor([1, 1, 1])),
        (x[:1], torch.tensor([1])),
    ]
    same_gradients(lambda: Net(nn.LSTM, True, True), *inputs, breaks=None, backend="inductor")


def test_wrong_lengths_raise_as_in_eager() -> None:
    x, good = calls()[0]
    net = Net(nn.LSTM, True, True)
    x = x.detach()
    bad = [torch.tensor(value) for value in ([4, 7, 9], [10, 2, 1], [3, 2, 0], [3, 2])]
    steps = [(x, good), *((x, item) for item in bad), (x, good)]
    with torch.no_grad():
        same(net, *steps, breaks=None, backend="inductor")


def test_total_length() -> None:
    def program(x: Any, lengths: Any) -> Any:
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        return pad_packed_sequence(packed, batch_first=True, total_length=12)[0].sin()

    same_gradients(lambda: program, *calls(), breaks=None, backend="inductor")


def test_dropout_draws_eagers_numbers() -> None:
    def make() -> Any:
        return Net(nn.LSTM, True, True, num_layers=2, dropout=0.5)

    same_gradients(make, *calls(), graphs=1, backend="inductor")
