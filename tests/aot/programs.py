"""Small programs with what makes lowering hard: writes, views, aliases, random numbers, layouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from tracer_core.testing import compare, compare_aliasing


@dataclass(frozen=True)
class Program:
    name: str
    fn: Callable[..., Any]
    inputs: Callable[[], tuple[Any, ...]]


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def two(*shape: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (randn(*shape), randn(*shape) * 2)


def one(*shape: int) -> Callable[[], tuple[Any, ...]]:
    return lambda: (randn(*shape),)


def write_view(x):
    x[0].add_(1)
    return x.t()


def write_strided_view(x):
    x[:, ::2].mul_(2)
    return x.sum(0)


def write_and_read(x, y):
    x.copy_(y)
    return x, y + x


def swap(x, y):
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)
    return x + y


def build_in_place(x):
    z = torch.zeros(6, 3)
    z.add_(x)
    z[1] = 5.0
    return z.t_()


def y_and_views(x):
    y = x + 1
    return y, y.t(), y[0], y.view(-1), y


def parts_of_one(x, w):
    return F.linear(x, w).split(2, -1)


def write_to_shared(x):
    y = x * 2
    z = y[0]
    y.mul_(3)
    return z, y


def random_in_order(x):
    return torch.rand_like(x), F.dropout(x, 0.5, True), torch.randn(3), x.clone().bernoulli_(0.3)


def dropout_transposed(x):
    y = x.transpose(0, 1)
    drawn = (
        torch.bernoulli(y, 0.5),
        y.clone().bernoulli_(0.5),
        torch.rand_like(y),
        torch.randn_like(y),
    )
    return (
        F.dropout(y, 0.5, True),
        *drawn,
        y.clone().uniform_(),
        y.clone().normal_(),
        y.clone().exponential_(),
    )


def unused_random(x):
    torch.rand(3)
    return x + torch.rand(1)


def batch_norm(x, mean, var):
    return F.batch_norm(x, mean, var, training=True)


def out_argument(x, y):
    return torch.add(x, 1, out=y)


def set_item(x):
    x[0, :] = 5.0
    return x * 1


def channels_last(x, w):
    return F.conv2d(x, w, padding=1).relu()


PROGRAMS = [
    Program("pointwise", lambda x, y: x.cos() + y.sin(), two(5, 3)),
    Program("write", lambda x: x.add_(1).sum(), one(5, 3)),
    Program("write and return", lambda x: x.mul_(2), one(5, 3)),
    Program("write a view", write_view, one(5, 3)),
    Program("write a strided view", write_strided_view, one(4, 6)),
    Program("write a transposed input", lambda x: x.add_(1) * 2, lambda: (randn(5, 3).t(),)),
    Program("write, read and return", write_and_read, two(5, 3)),
    Program("swap", swap, two(5, 3)),
    Program("set item", set_item, one(5, 3)),
    Program("out=", out_argument, two(5, 3)),
    Program(
        "index_put_",
        lambda x, i: x.index_put_((i,), x[:2] * 2),
        lambda: (randn(5, 3), torch.tensor([0, 3])),
    ),
    Program("build in place", build_in_place, one(6, 3)),
    Program("input as it is", lambda x, y: (y, x + y, x), two(5, 3)),
    Program("view of an input", lambda x: (x.t(), x[1:], x.detach()), one(5, 3)),
    Program("view of an input with an offset", lambda x: (x[0], x + 1), lambda: (randn(4, 3)[1:],)),
    Program("views of one result", y_and_views, one(5, 3)),
    Program("same output twice", lambda x: (x + 1,) * 2, one(5, 3)),
    Program("parts of one result", parts_of_one, lambda: (randn(3, 6), randn(6, 6))),
    Program("parts of a hidden result", lambda x: x.softmax(0).unbind(0), one(3, 6)),
    Program("write to a shared result", write_to_shared, one(5, 3)),
    Program("no-op cast", lambda x: (x.to(torch.float32), x.contiguous()), one(5, 3)),
    Program("eval dropout", lambda x: F.dropout(x, 0.5, False), one(5, 3)),
    Program("expanded output", lambda x: (x + 1).expand(4, 5, 3), one(5, 3)),
    Program("permuted output", lambda x: (x + 1).permute(2, 0, 1), one(5, 3, 2)),
    Program("transposed input", lambda x: (x * 2, x.exp()), lambda: (randn(5, 3).t(),)),
    Program("random numbers", random_in_order, one(30, 4)),
    Program("dropout of a transposed tensor", dropout_transposed, one(6, 5, 4)),
    Program("random numbers unused", unused_random, one(5, 3)),
    Program("batch norm", batch_norm, lambda: (randn(6, 3, 4), torch.zeros(3), torch.ones(3))),
    Program(
        "constants", lambda x: (x + torch.tensor([1.0, 2, 3]), torch.tensor(4), 7, None), one(5, 3)
    ),
    Program("factories", lambda x: x + torch.arange(3) + torch.ones(3), one(5, 3)),
    Program(
        "channels last",
        channels_last,
        lambda: (randn(2, 3, 8, 8).to(memory_format=torch.channels_last), randn(4, 3, 3, 3)),
    ),
    Program("several results", lambda x: (*x.topk(2), *x.sort(), *x.max(1)), one(5, 3)),
    Program("complex inside", lambda x: torch.fft.rfft(x).abs(), one(5, 6)),
    Program("bfloat16 inside", lambda x: x.to(torch.bfloat16).float(), one(5, 3)),
    Program("empty", lambda x: (x[:0] + 1, x.new_zeros(0)), one(5, 3)),
    Program("number from a tensor", lambda x: x.sum() * x.shape[0], one(5, 3)),
    Program("attention", lambda q: F.scaled_dot_product_attention(q, q, q), one(2, 4, 5, 16)),
]


def runs_as_eager(program: Program, runner: Callable[[list[Any]], Any], extra: list[Any]) -> None:
    """Asserts that a runner (extra: inputs after the program's own) does what the program does,
    twice: values, writes to inputs, aliasing."""
    for _ in range(2):
        ours, eager = program.inputs(), program.inputs()
        with torch.no_grad():
            torch.manual_seed(0)
            expected = program.fn(*eager)
            torch.manual_seed(0)
            actual = tuple(runner([*ours, *extra]))
        expected = tuple(expected) if isinstance(expected, (tuple, list)) else (expected,)
        compare(expected, actual)
        compare(eager, ours, path="inputs")
        compare_aliasing([eager, expected], [ours, actual])
