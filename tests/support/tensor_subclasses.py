"""Tensor subclasses that wrap tensors or hold data, and what compares results of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing

import tracer_core
from tracer_core.testing import CaptureCounter

SIZES = (3, 4)


class Scaled(torch.Tensor):
    """A number and a tensor of integers, quantized as torchao does."""

    @staticmethod
    def __new__(cls, data, scale, kind="plain"):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=torch.float32)

    def __init__(self, data, scale, kind="plain"):
        self.data_, self.scale, self.kind = data, scale, kind

    def __tensor_flatten__(self):
        return ["data_", "scale"], {"kind": self.kind}

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["data_"], inner["scale"], context["kind"])

    def dequantize(self):
        factor = 2 if self.kind == "double" else 1
        return self.data_.to(torch.float32) * self.scale * factor

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is nn.functional.linear:
            x, weight, bias = (*args, None)[:3]
            result = x @ weight.dequantize().t()
            return result if bias is None else result + bias
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            arg = args[0]
            result = cls(func(arg.data_), func(arg.scale), arg.kind)
            return return_and_correct_aliasing(func, args, kwargs or {}, result)
        args, kwargs = pytree.tree_map_only(cls, cls.dequantize, (args, kwargs or {}))
        return func(*args, **kwargs)


class Special(nn.Parameter):
    pass


def two(seed: int, *sizes: int, grad: bool = False) -> TwoTensor:
    draws = torch.Generator().manual_seed(seed)
    parts = (torch.randn(sizes or SIZES, generator=draws) for _ in range(2))
    tensor = TwoTensor(*parts)
    return tensor.requires_grad_() if grad else tensor


def scaled(seed: int, kind: str = "plain") -> Scaled:
    draws = torch.Generator().manual_seed(seed)
    return Scaled(
        torch.randint(-8, 8, (4, 4), generator=draws, dtype=torch.int8),
        torch.rand((), generator=draws),
        kind,
    )


def random_tensor(seed: int, *sizes: int) -> torch.Tensor:
    return torch.randn(sizes or SIZES, generator=torch.Generator().manual_seed(seed))


def described(value: Any) -> list[Any]:
    """What two results must agree in: classes, metadata, and the inner tensors' values."""
    if isinstance(value, TwoTensor):
        return [type(value), described(value.a), described(value.b), *facts(value)]
    if isinstance(value, Scaled):
        return [type(value), value.kind, described(value.data_), described(value.scale)]
    if isinstance(value, torch.Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            attributes = sorted(vars(value).items()) if type(value) is not torch.Tensor else []
            data = value.detach().as_subclass(torch.Tensor)
            return [type(value), data.tolist(), str(data.dtype), *facts(value), attributes]
    if isinstance(value, (list, tuple)):
        return [type(value), *map(described, value)]
    return [type(value), value]


def facts(value: torch.Tensor) -> list[Any]:
    return [tuple(value.shape), value.stride(), value.storage_offset(), value.requires_grad]


def alike(want: Any, got: Any, rel: float = 1e-4, least: float = 1e-6) -> None:
    want, got = described(want), described(got)
    flat, other = pytree.tree_leaves(want), pytree.tree_leaves(got)
    assert len(flat) == len(other), (want, got)
    for leaf, two_ in zip(flat, other, strict=True):
        if isinstance(leaf, float):
            assert leaf == pytest.approx(two_, rel=rel, abs=least), (want, got)
        else:
            assert leaf == two_, (want, got)


def check_subclass_program(function, *calls, backend="eager", graphs=1, kinds=(), grad=False):
    """calls: functions that make the arguments of one call each. Results, arguments after the call
    and what was captured."""
    compiled = tracer_core.compile(function, backend=backend)
    with CaptureCounter() as counter, torch.set_grad_enabled(grad):
        for make in calls:
            args, others = make(), make()
            want, got = function(*args), compiled(*others)
            alike(want, got)
            alike(args, others)
    assert {kind for kind, _, _ in counter.breaks} == set(kinds)
    assert len(counter.graphs) == graphs, counter.recompiles
    return counter
