"""Values at the edge of a dtype: NaN in gradients, statistics of numbers near the largest."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import tracer_core
from inductor_backend.runtime.cpp.toolchain import processor

NAN, INF = float("nan"), float("inf")
#: Gradients for which vectors of ATen's kernels choose another branch at NaN than single elements.
AT_NAN = {
    "elu": F.elu,
    "selu": F.selu,
    "hardswish": F.hardswish,
    "hardtanh": F.hardtanh,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
}
EDGES = torch.tensor([NAN, 1.0, 2.0, INF, 0.0, -INF, -0.5, 0.25, 3.0, -0.0] * 3)


def smooth_l1(x):
    return F.smooth_l1_loss(x, torch.ones_like(x), reduction="none")


def smooth_l1_mean(x):
    return F.smooth_l1_loss(x, torch.ones_like(x), beta=0.5)


def absolute(x):
    return F.smooth_l1_loss(x, torch.ones_like(x), beta=0.0)


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("program", [smooth_l1, smooth_l1_mean, absolute])
def test_gradients_at_nan_and_infinity(program, dtype):
    compiled = tracer_core.compile(program)
    for size in (30, 7):
        x = EDGES[:size].to(dtype).requires_grad_()
        want, got = (torch.autograd.grad(fn(x).sum(), x)[0] for fn in (program, compiled))
        torch.testing.assert_close(got, want, equal_nan=True)


def statistics(x):
    return torch.var_mean(x), torch.var_mean(x, 0), torch.var_mean(x, -1), torch.std_mean(x * 0.5)


@pytest.mark.sweep(keep=6)
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-8])
@pytest.mark.parametrize("shape", [(4, 4), (2, 700), (300, 5)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_statistics_near_the_largest_number(dtype, shape, scale):
    compiled = tracer_core.compile(statistics, dynamic=False)
    largest = torch.finfo(dtype).max * scale * 0.4
    for x in (torch.full(shape, largest, dtype=dtype), torch.rand(shape, dtype=dtype) * largest):
        torch.testing.assert_close(compiled(x), statistics(x), rtol=1e-5, atol=0)


ENLARGED = {
    "rows": ("linear", (2, 3, 5), {"scale_factor": 2}),
    "picture": ("bilinear", (1, 2, 4, 5), {"scale_factor": 2.0}),
    "fraction": ("bilinear", (1, 2, 4, 5), {"scale_factor": 1.5, "align_corners": False}),
    "again": ("bilinear", (1, 2, 4, 5), {"scale_factor": 1.5, "recompute_scale_factor": True}),
    "corners": ("bilinear", (1, 2, 4, 5), {"scale_factor": 2, "align_corners": True}),
    # Not 3, a third of which is rounded: whether a position is whole then depends on torch's build.
    "volume": ("trilinear", (1, 2, 3, 4, 2), {"scale_factor": (2, 4, 8)}),
}


@pytest.mark.sweep(keep=3)
@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
@pytest.mark.parametrize("name", ENLARGED)
def test_infinities_are_enlarged_at_sizes_that_change(name, backend):
    mode, shape, how = ENLARGED[name]

    def program(x):
        return F.interpolate(x, mode=mode, **how)

    compiled = tracer_core.compile(program, backend=backend, dynamic=True)
    for more in (0, 1, 3):
        x = torch.randn(*shape[:-1], shape[-1] + more)
        x[0, 0] = -INF
        for value in (x, x.transpose(1, -1).contiguous().transpose(1, -1)):
            inputs = [value.clone().requires_grad_() for _ in range(2)]
            got, want = (fn(value) for fn, value in zip((compiled, program), inputs, strict=True))
            torch.testing.assert_close(got, want, equal_nan=True)
            assert got.stride() == want.stride()
            for item in (got, want):
                (item * item).nan_to_num(0, 0, 0).sum().backward()
            torch.testing.assert_close(*(value.grad for value in inputs), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_powers_of_a_number_that_the_dtype_rounds_to_zero(dtype):
    def program(x):
        return 1e-45**x, 1e-30 ** (x * x), torch.pow(3e-8, x)

    x = torch.tensor([0.0, 1e-4, 0.01, 0.5, 1.0, 2.0, -1.0, INF, -INF, NAN], dtype=dtype)
    for got, want in zip(tracer_core.compile(program)(x), program(x), strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.sweep(keep=3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("alpha", [2, -2.5, 1e10])
def test_a_scaled_number_beyond_the_dtype_is_added_before_it_is_rounded(alpha, dtype):
    """As in eager's vectors; what is left of a row it rounds twice."""
    large = torch.finfo(dtype).max * 0.9

    def program(x):
        return torch.add(x, large, alpha=alpha), torch.sub(x, large, alpha=alpha)

    x = torch.tensor([-INF, -large, large, 1.0, INF, NAN], dtype=dtype).repeat(20)
    for got, want in zip(tracer_core.compile(program)(x), program(x.double()), strict=True):
        assert got.dtype is dtype
        torch.testing.assert_close(got, want.to(dtype), equal_nan=True)


@pytest.mark.sweep(keep=3)
@pytest.mark.parametrize("name", AT_NAN)
def test_gradients_at_nan_follow_the_width_of_vectors(name):
    """Sizes without a remainder, at which eager computes in vectors of 64 or 32 bytes, or does not."""
    program = AT_NAN[name]
    for dtype, size in ((torch.float32, 8), (torch.float32, 16), (torch.float32, 64),
                        (torch.float64, 4), (torch.float64, 8), (torch.float64, 32)):  # fmt: skip
        compiled = tracer_core.compile(program, dynamic=False)
        x = torch.full((size,), NAN, dtype=dtype, requires_grad=True)
        want, got = (
            torch.autograd.grad(fn(x), x, torch.ones(size, dtype=dtype))[0]
            for fn in (program, compiled)
        )
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="sets a level of x86-64")
@pytest.mark.skipif(processor()[0] == "avx2", reason="the test above has run on such a processor")
def test_gradients_at_nan_on_a_processor_with_narrow_vectors():
    """The test above where ATen's vectors have 32 bytes."""
    names = " or ".join(f"vectors[{name}]" for name in AT_NAN)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", __file__, "-k", names],
        env=os.environ | {"ATEN_CPU_CAPABILITY": "avx2", "TRACER_CPU": "x86-64-v3"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_square_roots_written_as_powers(dtype):
    """ATen computes float16's as any other power, which is inf at -inf, and the others as roots."""

    def program(x):
        return x**0.5, x**-0.5, (x * 1) ** 0.5 + 1

    x = EDGES.to(dtype)
    got, want = tracer_core.compile(program)(x), program(x)
    torch.testing.assert_close(got, want, equal_nan=True)
    for a, b in zip(got, want, strict=True):
        assert torch.equal(torch.signbit(a) & ~a.isnan(), torch.signbit(b) & ~b.isnan())
