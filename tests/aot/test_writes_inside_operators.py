"""Operators whose native kernels write to tensors that they have just made (`_fused_rms_norm` adds
to a mean): lowering meets them below functionalization."""

from __future__ import annotations

import pytest
import torch

import tracer_core
from tracer_core.aot.aten_recorder import functional_form

aten = torch.ops.aten


@pytest.fixture(scope="module")
def operators():
    """Operators made of others, with a kernel of their own for autograd, as rms_norm has on GPUs."""
    library = torch.library.Library("writes_inside", "DEF")

    def define(name, kernel):
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, kernel, "CompositeImplicitAutograd")

        def below_autograd(x):
            with torch._C._AutoDispatchBelowAutograd():
                return getattr(torch.ops.writes_inside, name)(x)

        library.impl(name, below_autograd, "AutogradCPU")
        return getattr(torch.ops.writes_inside, name)

    yield define
    library._destroy()


def spread(x):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True).add_(1e-6))


def several(x):
    mean = x.mean(0)
    old = mean * 1
    mean.mul_(2).sub_(old).clamp_(min=0.1)
    return x - mean + old


def another_dtype(x):
    counts = (x > 0).sum(0).to(torch.int32)
    return counts.add_(torch.ones_like(counts)) * x


def through_a_view(x):
    result = x * 2
    result[0].add_(1)
    return result.sum(0)


@pytest.mark.parametrize("kernel", [spread, several, another_dtype])
@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
def test_the_write_is_made_functional(operators, kernel, backend):
    op = operators(f"{kernel.__name__}_{backend}", kernel)
    fast = tracer_core.compile(lambda x: op(x.sin()).cos(), backend=backend)
    x = torch.randn(5, 8)
    torch.testing.assert_close(fast(x), op(x.sin()).cos())
    assert not [record for record in tracer_core.last_compile(fast) if record.name == "fallback"]


def test_a_write_through_a_view_is_not(operators):
    op = operators("through_a_view", through_a_view)
    fast = tracer_core.compile(lambda x: op(x.sin()).cos(), backend="aten_eager")
    x = torch.randn(5, 8)
    torch.testing.assert_close(fast(x), op(x.sin()).cos())


def test_which_operators_have_a_functional_form():
    assert functional_form(aten.add_.Scalar) is aten.add.Scalar
    assert functional_form(aten.index_put_.default) is aten.index_put.default
    assert functional_form(aten.bernoulli_.float) is None  # draws in another order
    assert functional_form(aten.resize_.default) is None
    assert functional_form(aten._fused_adamw_.default) is None  # several lists
