"""Numbers and sizes that change from call to call, through inductor's kernels: one compile, eager's
values.
"""

from __future__ import annotations

import contextlib
import math

import pytest
import torch
from torch.nn import functional as F

import tracer_core
from inductor_backend.ir.target import interpreted
from inductor_backend.runtime.cuda.interpreter import interpreting
from tracer_core.plugin_api import Backend, BackendError, Role
from tracer_core.testing import CaptureCounter

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
FLOATS = (0.1, 0.25, 1.7, -0.6, 3.3, 0.0, 1.0, 2.0, 0.1)


def graphs_of(program, calls, exact=True, backend="inductor"):
    """How many graphs these calls took; each gives what eager gives."""
    fast = tracer_core.compile(program, backend=backend)
    with torch.no_grad(), CaptureCounter() as counter:
        for call in calls:
            want_args = [a.clone() if isinstance(a, torch.Tensor) else a for a in call]
            got_args = [a.clone() if isinstance(a, torch.Tensor) else a for a in call]
            want, got = program(*want_args), fast(*got_args)
            coarse = any(isinstance(a, torch.Tensor) and a.dtype == torch.bfloat16 for a in call)
            tolerance = dict.fromkeys(("rtol", "atol"), 0.02 if coarse else 0 if exact else 1e-5)
            torch.testing.assert_close(got, want, equal_nan=True, **tolerance)
            torch.testing.assert_close(got_args, want_args, equal_nan=True, **tolerance)
    assert not counter.breaks
    return len(counter.graphs)


ARITHMETIC = {
    "product": lambda x, a: x * a,
    "sum_and_difference": lambda x, a: (x + a, a - x),
    "alpha": lambda x, a: torch.add(x, x.abs(), alpha=a),
    "comparison": lambda x, a: (x > a, x == a),
    "clamp": lambda x, a: x.clamp(min=-a, max=a + 1),
    "full": lambda x, a: torch.full((3,), a) + x[:3, 0],
    "a_number_computed_in_python": lambda x, a: x * (1 - a * 0.5),
    "steps_of_an_optimizer": lambda x, a: x.add_(x.sign(), alpha=-a),
    "into_an_operator_that_runs_as_it_is": lambda x, a: torch.addmm(x @ x.t(), x, x.t(), alpha=a),
    "a_tensor_made_of_it": lambda x, a: torch.tensor(a) * x,
    "a_product_of_lists": lambda x, a: torch._foreach_mul([x, x + 1], a),
}


@pytest.mark.sweep(keep=8)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
@pytest.mark.parametrize(
    "name", ["product", "sum_and_difference", "comparison", "full", "a_number_computed_in_python"]
)
def test_a_float_that_changes_has_eagers_dtype_and_rounding(name, dtype):
    x = (X * 4).to(dtype)
    assert graphs_of(ARITHMETIC[name], [(x, a) for a in FLOATS]) == 2


@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize("name", ARITHMETIC)
def test_one_compile_serves_every_value_of_a_float(name):
    exact = name != "into_an_operator_that_runs_as_it_is"
    assert graphs_of(ARITHMETIC[name], [(X, a) for a in FLOATS], exact) == 2


def test_the_bias_correction_of_adam():
    def step(p, g, m, v, lr, count):
        m.lerp_(g, 0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        size = lr / (1 - 0.9**count)
        denominator = (v.sqrt() / math.sqrt(1 - 0.999**count)).add_(1e-8)
        p.addcdiv_(m, denominator, value=-size)
        return p + 0

    calls = [(X, X.sin(), X * 0, X * 0, 0.1 / k, k) for k in (1, 2, 3, 4, 5, 6)]
    assert graphs_of(step, calls, exact=False) == 2


INTS = (2, 3, 4, 1, 5, 0, 2)
WITH_INTS = {
    "product": lambda x, k: (x * k, x + k, k // 2),
    "roll": lambda x, k: x.roll(k, 0),
    "row": lambda x, k: x[k] * 2,
    "triangle": lambda x, k: torch.tril(x, k),
    "columns": lambda x, k: x[:, k:].sum(),
    "clamp": lambda x, k: x.clamp(max=k),
    "repetition": lambda x, k: x.repeat(k, 1),
}


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize("name", WITH_INTS)
def test_one_compile_serves_every_value_of_an_int(name):
    assert graphs_of(WITH_INTS[name], [(X, k) for k in INTS], exact=False) == 2


def test_a_backend_that_cannot_take_a_number_gets_it_as_a_constant():
    def compile_it(graph, spec):
        if any(item.role in (Role.SIZE, Role.NUMBER) for item in spec.inputs):
            raise BackendError("picky", "compile", "no numbers, please")
        return lambda inputs: graph(*inputs)

    picky = Backend(name="picky", compile=compile_it, shapes="symbolic", numbers="inputs")
    assert graphs_of(lambda x, a: x * a, [(X, a) for a in (0.1, 0.2, 0.3, 0.2)], backend=picky) == 3


#: name -> (program, argument of one size, sizes from 2 on that two graphs serve)
SIZES = {
    "interpolate_by_a_factor": (lambda x: F.interpolate(x, scale_factor=1.5, mode="bicubic"),
    lambda n: (2, 3, n + 4, n + 5)),
    "interpolate_to_a_size": (lambda x: F.interpolate(x, size=(7, 9), mode="bilinear"),
    lambda n: (2, 3, n + 4, n + 5)),
    "interpolate_to_twice_its_size": (
        lambda x: F.interpolate(x, size=(x.shape[2] * 2, x.shape[3] * 2), mode="nearest"),
        lambda n: (2, 3, n + 4, n + 5)),
    "scaled_by_its_size": (lambda x: x * (1.0 / x.shape[0]) / math.sqrt(x.shape[0]), lambda n: (n,
    8)),
    "padded": (lambda x: F.pad(x, (1, 2, 0, 1)) * 2, lambda n: (n, 8)),
    "padded_to_a_multiple": (lambda x: F.pad(x, (0, 0, 0, -x.shape[0] % 8)), lambda n: (n, 8)),
    "unfolded": (lambda x: F.unfold(x, 3), lambda n: (2, 3, n + 4, n + 5)),
    "causal_mask": (
        lambda x: (x @ x.transpose(1, 2)).masked_fill(torch.ones(x.shape[1],
        x.shape[1]).triu(1).bool(), -1e9).softmax(-1),
        lambda n: (2, n, 16)),
    "positions": (lambda x: x + torch.arange(x.shape[1], dtype=torch.float32)[None, :, None],
    lambda n: (2, n, 16)),
    "convolution": (lambda x: F.relu(F.conv2d(x, torch.ones(4, 3, 3, 3), padding=1)), lambda n: (n,
    3, 8, 8)),
    "halves": (lambda x: x.view(x.shape[0] // 2, 2, 8).mean(1) + x[::2], lambda n: (2 * n, 8)),
    "attention": (
        lambda x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None],
        is_causal=True), lambda n: (2, n, 16)),
}  # fmt: skip


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize("name", SIZES)
def test_one_compile_serves_every_size(name):
    program, shape = SIZES[name]
    torch.manual_seed(0)
    assert (
        graphs_of(program, [(torch.randn(shape(n)),) for n in (4, 6, 9, 17, 33, 2)], exact=False)
        == 2
    )


@pytest.mark.parametrize("name", ["positions", "causal_mask", "scaled_by_its_size"])
def test_sizes_zero_and_one(name):
    program, shape = SIZES[name]
    sizes = [n for n in (5, 7, 1, 0, 9) if n or name != "scaled_by_its_size"]
    assert (
        graphs_of(program, [(torch.randn(shape(n)),) for n in sizes], exact=False) == len(sizes) - 1
    )


def test_an_empty_tensor_is_indexed_as_eager_does():
    def program(x, i):
        return x.index_select(0, i) * 2

    fast = tracer_core.compile(program, backend="inductor")
    with torch.no_grad(), pytest.raises(RuntimeError, match="should be positive"):
        fast(torch.zeros(0, 8), torch.tensor([0, 1]))


def test_a_number_expanded_to_a_size():
    assert (
        graphs_of(
            lambda x: x.sum().expand(x.shape[0]),
            [(torch.randn(n, 2),) for n in (4, 6, 9)],
            exact=False,
        )
        == 2
    )


#: Inputs whose strides say more than their sizes do.
LAYOUTS = {
    "columns_of_a_wider_tensor": lambda n: torch.randn(n, 100)[:, :50],
    "transposed": lambda n: torch.randn(20, n).t(),
    "permuted": lambda n: torch.randn(n, 3, 4, 5).permute(0, 2, 3, 1),
    "expanded": lambda n: torch.randn(1, 8).expand(n, 8),
    "every_other_row": lambda n: torch.randn(2 * n, 8)[::2],
    "a_window_of_a_cache": lambda n: torch.randn(3, 100, 8)[:, :n],
}


@pytest.mark.sweep(keep=3)
@pytest.mark.parametrize("name", LAYOUTS)
def test_one_compile_serves_every_size_of_a_view(name):
    torch.manual_seed(0)
    calls = [(LAYOUTS[name](n),) for n in (4, 6, 9, 17, 2)]
    fast = tracer_core.compile(lambda x: (x * 2 + 1, x.sum(0)), backend="inductor")
    with torch.no_grad(), CaptureCounter() as counter:
        for (x,) in calls:
            got, want = fast(x), (x * 2 + 1, x.sum(0))
            torch.testing.assert_close(got, want)
            assert [item.stride() for item in got] == [item.stride() for item in want]
    assert len(counter.graphs) == 2


def test_an_empty_batch_of_images_of_unknown_size():
    def program(x):
        x = F.max_pool2d(F.relu(F.conv2d(x, torch.ones(4, 3, 3, 3))), 2)
        return F.conv2d(x, torch.ones(2, 4, 3, 3)).mean((2, 3))

    fast = tracer_core.compile(program, backend="inductor", dynamic=True)
    with torch.no_grad(), CaptureCounter() as counter:
        for n, size in ((4, 16), (7, 20), (0, 16), (0, 20), (2, 18)):
            x = torch.randn(n, 3, size, size)
            torch.testing.assert_close(fast(x), program(x))
    assert len(counter.graphs) == 2 and not counter.breaks


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_an_index_that_changes_its_sign(backend):
    calls = [(X, k) for k in (2, 3, -1, 4, -3, 0, 5, -6)]
    assert graphs_of(lambda x, k: (x[k] * 2, x.select(1, k)), calls, backend=backend) == 3


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_row_at_a_changing_index_is_written_to(backend):
    calls = [(X, k) for k in (2, 3, 4, 5)]
    assert graphs_of(lambda x, k: (x[k].add_(1), x * 2), calls, backend=backend) == 2


COMPARED = {
    "reached": lambda x, most: x.shape[1] >= most,
    "both": lambda x, most: x.shape[0] == 2 and x.shape[1] > most,
    "not": lambda x, most: not x.shape[1] < most,
}


@pytest.mark.parametrize("name", COMPARED)
@pytest.mark.parametrize("triton", [False, True])
def test_a_tensor_is_filled_with_a_comparison_of_a_size(name, triton):
    """`generate()` of transformers asks so whether a text is as long as it may be."""

    def program(x, most):
        done = COMPARED[name](x, most)
        return torch.full((3,), done, dtype=torch.bool, device=x.device) | (x[:1, :3] > 0)

    if triton and not interpreting():
        pytest.skip("Triton compiles for a GPU in this process")
    with interpreted() if triton else contextlib.nullcontext():
        calls = [(torch.randn(2, size), 7) for size in (4, 5, 6, 7, 8, 9)]
        assert graphs_of(program, calls) <= 3
