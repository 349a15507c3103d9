"""Memory layouts of intermediate buffers, copies of operators' operands, and what a convolution's bias
and a group norm cost on GPUs; run by the interpreter."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from inductor_backend.ir.nodes import ExternNode, LoopNode
from inductor_backend.ir.target import interpreted
from inductor_backend.runtime.cuda.interpreter import interpreting
from tests.inductor.compiling import compiled

pytestmark = pytest.mark.skipif(
    not interpreting(), reason="Triton compiles for a GPU in this process"
)
aten = torch.ops.aten


def on_gpu(fn, *inputs):
    with interpreted():
        return compiled(fn, *inputs)


def check(result, fn, *inputs, **tolerance):
    actual, expected = result(*inputs), fn(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, **tolerance)
        assert a.stride() == b.stride()


def copies(result):
    program = result.compilation.program
    return [n for n in program.nodes if isinstance(n, LoopNode) and n.origin.op == "copy"]


def residual_stream(image, a, b):
    """A patch embedding's image becomes a sequence, to which layers add."""
    x = image.flatten(2).transpose(1, 2)
    for weight in (a, b, a, b, a):
        x = x + F.layer_norm(x, (64,)) @ weight
    return F.layer_norm(x, (64,)) @ a


def test_a_residual_stream_behind_an_image_is_row_major():
    image, a, b = torch.randn(4, 64, 8, 8), torch.randn(64, 64) / 8, torch.randn(64, 64) / 8
    result = on_gpu(residual_stream, image, a, b)
    check(result, residual_stream, image, a, b, rtol=1e-4, atol=1e-4)
    program = result.compilation.program
    written = {name for node in program.nodes for name in node.writes}
    layouts = [program.buffers[name].layout for name in written]
    sequences = [layout.strides for layout in layouts if layout.sizes == (4, 64, 64)]
    assert len(sequences) > 6 and all(strides[-1] == 1 for strides in sequences)


def test_results_keep_eagers_strides():
    def fn(image, weight):
        x = image.flatten(2).transpose(1, 2) * 2
        return x, F.layer_norm(x, (32,)) @ weight

    image, weight = torch.randn(2, 32, 8, 8), torch.randn(32, 32)
    check(on_gpu(fn, image, weight), fn, image, weight, rtol=1e-4, atol=1e-4)


def test_rows_that_cross_an_operand_are_read_several_at_a_time():
    """A row kernel whose operand is contiguous along the rows' other dimension."""
    fn = lambda x, y: F.layer_norm(x + y.transpose(1, 2), (64,))
    x, y = torch.randn(2, 32, 64), torch.randn(2, 64, 32)
    result = on_gpu(fn, x, y)
    check(result, fn, x, y, rtol=1e-4, atol=1e-5)
    assert "XBLOCK': 16" in result.text or '"XBLOCK": 16' in result.text


def test_both_matmuls_of_a_gradient_share_a_copy():
    """What a linear layer's backward does with the gradient of heads: dy @ w and dy.t() @ x."""

    def fn(heads, w, x):
        dy = (heads * 2).permute(0, 2, 1, 3).reshape(2 * 16, 3 * 8)
        return dy @ w, dy.t() @ x

    heads = torch.randn(2, 3, 16, 8)  # [batch, heads, tokens, width]
    w, x = torch.randn(24, 5), torch.randn(32, 7)
    result = on_gpu(fn, heads, w, x)
    check(result, fn, heads, w, x, rtol=1e-4, atol=1e-4)
    assert len(copies(result)) == 1


@pytest.mark.parametrize(("begin", "copied"), [(1, 1), (8, 0)])
def test_operands_at_odd_addresses_are_copied(begin, copied):
    fn = lambda x, w: x[:, begin:][:, :256] @ w
    x, w = torch.randn(512, 272).bfloat16(), torch.randn(256, 64).bfloat16()
    result = on_gpu(fn, x, w)
    check(result, fn, x, w)
    assert len(copies(result)) == copied


def test_a_transposed_sequence_is_copied_for_a_convolution():
    fn = lambda x, w: F.conv1d(x.transpose(1, 2), w, groups=16, padding=1)
    x, w = torch.randn(2, 20, 16), torch.randn(16, 1, 3)
    result = on_gpu(fn, x, w)
    check(result, fn, x, w, rtol=1e-4, atol=1e-5)
    (call,) = (n for n in result.compilation.program.nodes if isinstance(n, ExternNode))
    assert call.args[0].layout.strides == (320, 20, 1)


@pytest.mark.sweep(keep=3)
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_convolutions_bias_is_added_with_what_follows(dims, transposed):
    name = f"conv{'_transpose' if transposed else ''}{dims}d"
    fn = lambda x, w, b: getattr(F, name)(x, w, b).relu()
    x, w = torch.randn(2, 4, *[6] * dims), torch.randn(4, 4, *[3] * dims)
    b = torch.randn(4)
    result = on_gpu(fn, x, w, b)
    check(result, fn, x, w, b, rtol=1e-4, atol=1e-4)
    (call,) = (n for n in result.compilation.program.nodes if isinstance(n, ExternNode))
    assert call.args[2] is None and result.kernels == 1


def group_norm(x, weight, bias):
    return F.silu(F.group_norm(x, 8, weight, bias))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_group_norm_of_channels_last_images(dtype):
    """The statistics are of pieces of the image, each as wide as its channels lie in memory."""
    x = (torch.randn(2, 32, 32, 32) * 3 + 1).to(dtype, memory_format=torch.channels_last)
    weight, bias = torch.randn(32, dtype=dtype), torch.randn(32, dtype=dtype)
    result = on_gpu(group_norm, x, weight, bias)
    (actual,) = result(x, weight, bias)
    expected = group_norm(x.double(), weight.double(), bias.double())
    eager = group_norm(x, weight, bias)
    error, allowed = (actual - expected).abs().max(), (eager - expected).abs().max()
    assert error <= 2 * allowed + 1e-6
    assert actual.stride() == eager.stride()
    first = next(n for n in result.compilation.program.nodes if "parts" in n.name)
    reduced = [size for size, r in zip(first.sizes, first.reduced, strict=True) if r]
    assert max(reduced) < 1024  # of the 1,024 pixels, a part; no program reads a whole image


def test_statistics_of_large_numbers():
    """Welford's update by the number of the iteration, not of each lane's elements."""
    x = torch.randn(3, 20_000, dtype=torch.float64) + 1e6
    fn = lambda x: torch.var_mean(x, 1)
    check(on_gpu(fn, x), fn, x)


def test_eye_is_a_kernel(recwarn):
    fn = lambda x: (x @ x.t()).masked_fill(torch.eye(600, dtype=torch.bool), 0) + torch.eye(600)
    x = torch.randn(600, 4)
    result = on_gpu(fn, x)
    check(result, fn, x, rtol=1e-4, atol=1e-4)
    assert result.compilation.runner.artifact.fallbacks == ()


def test_the_kernel_table_is_logged(caplog):
    import tracer_core

    with caplog.at_level(logging.DEBUG, "tracer_core.kernels"), interpreted():
        tracer_core.compile(lambda x: x.softmax(1))(torch.randn(8, 64))
    (record,) = (r for r in caplog.records if r.name == "tracer_core.kernels")
    (row,) = record.args[1].rows
    assert (row.loops, row.nbytes, row.operators) == ("[8, 64*]", 2 * 8 * 64 * 4, ("softmax",))
    assert {"XBLOCK", "RBLOCK", "warps"} <= set(row.blocks) and row.name in record.getMessage()
