"""Messages name a symbolic size as the program does, and its value, never a symbol."""

from __future__ import annotations

import re

import pytest
import torch

import tracer_core
from tracer_core.errors import GraphBreakError

SYMBOL = re.compile(r"\b[su]\d+\b")


def message_of(function, *inputs, **settings):
    fast = tracer_core.compile(function, fullgraph=True, dynamic=True, **settings)
    with pytest.raises(GraphBreakError) as caught:
        fast(*inputs)
    return str(caught.value)


def test_both_sizes_of_a_mismatch():
    def add(left, right):
        return left + right

    text = message_of(add, torch.ones(5), torch.ones(7))
    assert "(left.shape[0]) must match the size of tensor b (right.shape[0])" in text
    assert "(in this call left.shape[0] is 5, right.shape[0] is 7)" in text
    assert not SYMBOL.search(text)


def test_a_size_inside_an_expression():
    def halves(x):
        return x.reshape(x.shape[0] // 2, 7)

    text = message_of(halves, torch.ones(5, 3))
    assert "(x.shape[0]//2)" in text and "x.shape[0] is 5" in text and not SYMBOL.search(text)


def test_a_number_of_the_program():
    def shaped(x, n):
        return x.view(n, 3)

    fast = tracer_core.compile(shaped, fullgraph=True)
    fast(torch.ones(2, 3), 2)
    with pytest.raises(GraphBreakError) as caught:
        fast(torch.ones(4, 3), 5)
    assert "n is 5" in str(caught.value) and not SYMBOL.search(str(caught.value))


def test_a_message_without_symbols_is_unchanged():
    def named(x):
        return torch.einsum("s99->s99", x)

    assert "in this call" not in message_of(named, torch.ones(3))


def test_a_size_that_depends_on_data():
    def pairs(x):
        return x[x > 0].reshape(2, -1) + 1

    text = message_of(pairs, torch.tensor([1.0, 2.0, 3.0]))
    assert re.search(r"; u0 is a size of what getitem\w* returns", text), text


def test_a_number_that_depends_on_data():
    def zeros(x):
        return torch.zeros(int(x.sum().item())) + torch.ones(5)

    text = message_of(zeros, torch.tensor([1, 2]))
    assert re.search(r"; u0 is the number that item returns", text), text
