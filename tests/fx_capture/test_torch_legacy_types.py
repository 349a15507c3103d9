"""Tensor types of before torch.tensor: isinstance, constructors, x.new and x.type."""

from __future__ import annotations

import pytest
import torch
from torch import overrides

from tests.support.eager_reference import same

X = torch.randn(3, 4)


def types_of_intermediates(x):
    y, z = x.double() * 1, (x * 2).long()
    return (
        y,
        [isinstance(y, kind) for kind in (torch.DoubleTensor, torch.FloatTensor, torch.Tensor)],
        isinstance(z, (torch.IntTensor, torch.LongTensor)),
        isinstance(z, torch.FloatTensor | torch.nn.Parameter),
    )


def types_of_inputs(x):
    return isinstance(x, torch.DoubleTensor), isinstance(x, torch.FloatTensor), x.type(), x + 1


def branch_on_a_type(x):
    y = x.double()
    return y * 2 if isinstance(y, torch.DoubleTensor) else y * 3


def new_of_a_size(x):
    y = x * 2
    return x.new(x.size()).zero_(), y.new(torch.Size((2, 3))).zero_(), y.new(x.shape[1:]).zero_()


def new_of_numbers_and_lists(x):
    return x.new(x.size(0), 2).zero_(), x.new([1, 2]), (x * 2).new((1.0, 2)), x.new().shape


def new_of_no_dimensions(x):
    return x.new(torch.Size([])).zero_(), x.new(x[0, 0].shape).zero_()


def constructors_of_sizes(x):
    return (
        torch.Tensor(x.size()).zero_(),
        torch.FloatTensor(x.size(0), 2).zero_(),
        torch.LongTensor(2).fill_(3),
        torch.DoubleTensor().shape,
    )


def constructors_of_lists(x):
    return (
        torch.FloatTensor([1, 2]) * x.sum(),
        torch.LongTensor([[1.5, 2]]),
        torch.Tensor((1, 2)),
        torch.BoolTensor([0, 1]),
        torch.ByteTensor([x.size(0)]),
    )


def converted(x):
    return x.type(torch.DoubleTensor), (x * 2).type(torch.LongTensor), x.type("torch.HalfTensor")


@pytest.mark.sweep(keep=8)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "program",
    [
        types_of_intermediates,
        types_of_inputs,
        branch_on_a_type,
        new_of_a_size,
        new_of_numbers_and_lists,
        new_of_no_dimensions,
        constructors_of_sizes,
        constructors_of_lists,
        converted,
    ],
)
def test_legacy_types_are_those_of_eager(program, dynamic):
    calls = [(value,) for value in (X, X + 1, torch.randn(2, 5), torch.randn(6, 2), X.double())]
    same(program, *calls, dynamic=dynamic)


class Acting:
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return "handled"


class Subclass(torch.Tensor):
    def __deepcopy__(self, memo):
        return self.clone()


def asked_of_torch_function(x, other):
    y = x * 2
    return (
        overrides.has_torch_function((x, other)),
        overrides.has_torch_function([y, 3]),
        overrides.has_torch_function_unary(other),
        overrides.has_torch_function_unary(y),
        overrides.has_torch_function_variadic(y, other),
        overrides.has_torch_function(()),
        y,
    )


@pytest.mark.parametrize("other", [3, None, X, torch.nn.Parameter(X), Acting(), Subclass(X)])
def test_has_torch_function_looks_at_its_arguments(other):
    same(asked_of_torch_function, (X, other), (X, other), (X, 2), (X, Acting()), breaks=None)


def test_has_torch_function_of_an_object_whose_class_changes():
    class Changing:
        pass

    def program(x, other):
        return overrides.has_torch_function_unary(other), x + 1

    same(program, (X, Changing()), (X, Changing()))
    Changing.__torch_function__ = Acting.__torch_function__
    same(program, (X, Changing()), (X, Changing()))
