"""Operators of the user's own library: called by packet and by overload, writing to their
arguments, with names that torch's operators have too."""

from __future__ import annotations

import pytest
import torch

import tracer_core
from tests.support.eager_reference import compare_with_eager, same

X, Y = torch.randn(3, 4), torch.randn(3, 4)
BACKENDS = ("eager", "aten_eager", "inductor")
LIBRARY = torch.library.Library("tracer_own", "DEF")
CALLED: list[int] = []


def _add_one(x):
    x.add_(1)


def _add_one_to_all(xs):
    for x in xs:
        if x is not None:
            x.add_(1)


def _halve(x):
    return x.mul_(0.5)


def _swap(x, y):
    kept = x.clone()
    return x.copy_(y), y.copy_(kept)


#: Schema, kernel, and what it gives on fakes.
OPERATORS = (
    ("add_one(Tensor(a!) x) -> ()", _add_one, lambda x: None),
    ("add_one_to_all(Tensor(a!)[] xs) -> ()", _add_one_to_all, lambda xs: None),
    ("add_one_to_some(Tensor(a!)?[] xs) -> ()", _add_one_to_all, lambda xs: None),
    ("halve(Tensor(a!) x) -> Tensor(a!)", _halve, lambda x: x),
    ("sub_(Tensor(a!) x, Tensor y) -> Tensor(a!)", torch.Tensor.sub_, lambda x, y: x),
    ("swap(Tensor(a!) x, Tensor(b!) y) -> (Tensor(a!), Tensor(b!))", _swap, lambda x, y: (x, y)),
    (
        "doubled(Tensor x, *, Tensor(a!) out) -> Tensor(a!)",
        lambda x, out: out.copy_(x * 2),
        lambda x, out: out,
    ),
    ("either.number(Tensor(a!) x, int n) -> ()", lambda x, n: _add_one(x), lambda x, n: None),
    ("either.text(Tensor x, str s) -> Tensor", lambda x, s: x + len(s), lambda x, s: x.clone()),
    ("add(Tensor x, float n) -> Tensor", lambda x, n: x.new_full((int(n),), n),
     lambda x, n: x.new_empty(int(n))),
    ("t_(Tensor x) -> Tensor", lambda x: x + 1, torch.empty_like),
    ("report(Tensor x) -> ()", lambda x: CALLED.append(1), lambda x: None),
)  # fmt: skip
for _schema, _kernel, _on_fakes in OPERATORS:
    LIBRARY.define(_schema)
    LIBRARY.impl(_schema.partition("(")[0], _kernel, "CompositeExplicitAutograd")
    LIBRARY.impl(_schema.partition("(")[0], _on_fakes, "Meta")

OWN = torch.ops.tracer_own


def one_written(x):
    y = x * 2
    OWN.add_one(y)
    OWN.add_one(x)
    return y + x


def lists_written(x):
    y = x * 2
    OWN.add_one_to_all([x, y])
    OWN.add_one_to_some([None, y])
    return y + x, y


def result_is_an_argument(x):
    y = x * 2
    z, w = OWN.halve(y), OWN.halve(x)
    z.add_(3)
    return y, z, w, x


def written_through_views(x):
    y = x * 2
    OWN.add_one(y[0])
    OWN.sub_(x.t(), x.t() * 0.5)
    return y, x + 1


def two_written(x, y):
    z = x + 1
    OWN.swap(z, y)
    return z, y * 2


def given_memory(x):
    y = torch.empty_like(x)
    OWN.doubled(x, out=y).add_(1)
    return y


def overloads_that_differ(x):
    y = x + 1
    OWN.either(y, 2)
    return OWN.either(y, "abc"), y


def named_like_torchs(x):
    return OWN.add(x, 3.0), OWN.t_(x) + 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "program",
    [
        one_written,
        lists_written,
        result_is_an_argument,
        written_through_views,
        two_written,
        given_memory,
        overloads_that_differ,
        named_like_torchs,
    ],
)
def test_own_operators_do_what_they_do_eagerly(program, backend):
    inputs = (X, Y) if program is two_written else (X,)
    compare_with_eager(
        lambda: program, inputs, inputs, tuple(2 * value for value in inputs), backend=backend
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_operator_without_result_runs_in_each_call(backend):
    @tracer_core.compile(backend=backend)
    def program(x):
        OWN.report(x)
        return x + 1

    CALLED.clear()
    for calls in (1, 2, 3):
        assert torch.equal(program(X), X + 1)
        assert len(CALLED) == calls


def test_a_call_that_fits_no_overload_raises_torchs_error():
    same(lambda x: OWN.either(x, [1]), (X,), (X,), breaks=None)


def resized(x):
    y = torch.empty(0)
    torch.ops.aten.resize_(y, [2, 2])
    return torch.ops.aten.zero_(y)


def transposed_input(x):
    torch.ops.aten.t_.default(x)
    return x + 1


def torchs_by_packet(x):
    y = x * 1
    torch.ops.aten.add_(y, 1)
    torch.ops.aten.mul_.Tensor(y, x)
    return torch.ops.aten.add(y, x, alpha=2), y


@pytest.mark.parametrize("program", [resized, transposed_input, torchs_by_packet])
def test_torchs_operators_called_by_packet_and_overload(program):
    same(program, (X,), (X,), (Y,), breaks=None)
