"""What kernels need not move or compute: values whose operands are smaller, sums of one-hot rows, row
values of long rows, copies behind a concatenation; run by Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from inductor_backend.ir.nodes import ExternNode, LoopNode
from inductor_backend.runtime.cuda.interpreter import interpreting
from inductor_backend.schedule import fusion
from tests.inductor.test_operators import I, R
from tests.triton_kernels.test_interpreted import checked

pytestmark = pytest.mark.skipif(
    not interpreting(), reason="Triton compiles for a GPU in this process"
)


def stored(result):
    """The dtypes and sizes of what kernels store for other kernels."""
    program = result.compilation.program
    loops = [node for node in program.nodes if isinstance(node, LoopNode)]
    names = {name for node in loops for name in node.writes} - set(program.output_names)
    return {(program.buffers[name].dtype, program.buffers[name].layout.sizes) for name in names}


def test_a_float32_norm_of_a_16_bit_input_is_computed_by_each_reader():
    """The product needs the norm in 16 bits; its row sums, after a product, in float32."""

    def fn(x, inverse, w, g):
        normed = x.float() * inverse
        y = normed.bfloat16() @ w
        return (y @ g).float() * normed, (normed * (y @ g)).sum(-1)

    x, w, g = R(48, 64).bfloat16(), R(64, 32).bfloat16(), R(32, 64).bfloat16()
    result = checked(fn, x, R(48, 1), w, g)
    assert (torch.float32, (48, 64)) not in stored(result)


def test_gathered_rows_are_gathered_by_each_reader():
    def fn(table, rows, x, to):
        picked = table[rows]
        return (picked * x).sum(-1), torch.zeros(9, 4, 32).index_add(0, to, picked * 2)

    table, x = R(9, 4, 32), R(50, 4, 32)
    result = checked(fn, table, I(0, 9, 50), x, I(0, 9, 50))
    assert (torch.float32, (50, 4, 32)) not in stored(result)


LOSSES = {
    "float32": (R(6, 5000), torch.tensor([0, 4999, 17, -100, 3, 3])),
    "bfloat16": (R(6, 5000).bfloat16(), torch.tensor([0, 4999, 17, -100, 3, 3])),
    "images": (R(2, 7, 5, 3), I(0, 7, 2, 5, 3)),
    "all ignored": (R(3, 50), torch.full((3,), -100)),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_of_a_cross_entropy_sums_no_rows(name):
    logits, target = LOSSES[name]

    def fn(logits, target):
        total = logits.float().log_softmax(1)
        weight = torch.ones((), dtype=torch.float32) * (target != -100).sum()
        gradient = (
            torch.ops.aten.nll_loss_backward
            if target.dim() == 1
            else torch.ops.aten.nll_loss2d_backward
        )
        zero = gradient(weight.new_ones(()), total, target, None, 1, -100, weight)
        return torch.ops.aten._log_softmax_backward_data(zero, total, 1, torch.float32).to(logits.dtype)  # fmt: skip

    result = checked(fn, logits, target)
    over_classes = [
        node
        for node in result.compilation.program.nodes
        if isinstance(node, LoopNode) and node.is_reduction and len(node.sizes) > target.dim()
    ]
    assert not any("in1" in node.reads() for node in over_classes)


ONE_HOT_SUMS = {
    "a class of each row": lambda t, v: torch.where(
        t[:, None] == torch.arange(300), v[:, None], 0.0
    ),
    "also where not": lambda t, v: torch.where(
        (t[:, None] == torch.arange(300)) & (v > 0)[:, None], v[:, None], 0.0
    ),
    "classes that do not exist": lambda t, v: torch.where(
        (t - 150)[:, None] * 3 == torch.arange(300), v[:, None], 0.0
    ),
}


@pytest.mark.parametrize("name", ONE_HOT_SUMS)
def test_sums_of_one_hot_rows(name):
    value = ONE_HOT_SUMS[name]
    v = R(40)
    v[3], v[5], v[7] = torch.nan, torch.inf, -0.0
    result = checked(lambda t, v: value(t, v).sum(1), I(0, 300, 40), v)
    assert not any(n.is_reduction for n in result.compilation.program.nodes)


@pytest.mark.parametrize(
    "value",
    [
        lambda t, v: torch.where(t[:, None] <= torch.arange(300), v[:, None], 0.0),
        lambda t, v: torch.where(t[:, None] == torch.arange(300), v[:, None], 1.0),
        lambda t, v: torch.where(t[:, None] == torch.arange(300), torch.arange(300.0), 0.0),
        lambda t, v: torch.where(t[:, None] == torch.arange(300) // 2, v[:, None], 0.0),
    ],
)
def test_sums_of_other_rows_stay(value):
    result = checked(lambda t, v: value(t, v).sum(1), I(0, 300, 40), R(40))
    assert any(n.is_reduction for n in result.compilation.program.nodes)


def test_a_one_hot_sum_before_a_write_to_what_it_reads():
    def fn(t, v):
        hot = torch.where(t[:, None] == torch.arange(300), v[:, None], 0.0)
        total = hot.sum(1)
        v.add_(1)
        return total, hot + v[:, None]

    checked(fn, I(0, 300, 40), R(40))


def test_values_of_long_rows_are_loaded_once_a_program():
    fn = lambda x, a, b: (x - a[:, None]).exp() * b[:, None]
    result = checked(fn, R(3, 5003), R(3), R(3))
    assert "yindex" in result.source and "// 5003" not in result.source


@pytest.mark.parametrize("number", [30, 3.0, 0.1, -7, 0])
def test_a_16_bit_quotient_by_a_number_is_a_product_as_in_eager_on_gpus(number):
    fn = lambda x: x / number
    x = (R(40) * 9).bfloat16()
    x[0] = 0
    result = checked(fn, x)
    assert "div_rn" not in result.source
    expected = (x.float() * (torch.ones(()) / number)).bfloat16()
    torch.testing.assert_close(result(x)[0], expected, rtol=0, atol=0, equal_nan=True)


def test_quotients_of_float32_are_exact():
    """41 * (1 / 41) is less than 1."""
    (result,) = checked(lambda x: (x / 41).floor(), torch.arange(200.0))(torch.arange(200.0))
    assert torch.equal(result, torch.arange(200) // 41)


JOINED = {
    "gradients of q, k and v": (
        lambda parts: torch.stack(parts).permute(1, 3, 0, 2, 4).reshape(2 * 8, 3 * 4 * 16),
        (2, 4, 8, 16),
    ),
    "heads beside each other": (
        lambda parts: torch.cat(parts, 1).permute(0, 2, 1, 3).reshape(2 * 8, 3 * 4 * 16),
        (2, 4, 8, 16),
    ),
}


@pytest.mark.parametrize("name", JOINED)
def test_parts_are_stored_as_the_permuted_copy_lies(name):
    join, shape = JOINED[name]
    parts, w = [R(*shape) for _ in range(3)], R(192, 8)
    result = checked(lambda *a: (join(a[:3]) @ a[3], join(a[:3]).sum(0)), *parts, w)
    (product,) = [n for n in result.compilation.program.nodes if isinstance(n, ExternNode)]
    writers = result.compilation.program.writers()[product.args[0].buffer]
    assert len(writers) == 3  # one a part, no copy


def test_joined_parts_that_are_returned_keep_eager_strides():
    def fn(a, b):
        both = torch.stack([a, b])
        return both, both.permute(1, 2, 0, 3).reshape(4, -1)

    checked(fn, R(4, 3, 5), R(4, 3, 5))
    checked(lambda a, b: torch.stack([a, b]).permute(1, 2, 0, 3), R(4, 3, 5), R(4, 3, 5))


def transposed(x, w, v):
    return F.conv_transpose2d(F.relu(F.conv2d(x, w, padding=1)), v, stride=2, padding=1)


def test_transposed_convolutions_are_channels_last_too(monkeypatch):
    from inductor_backend.ir import target

    monkeypatch.setattr(target, "tf32_allowed", lambda convolution: True)
    result = checked(transposed, R(2, 16, 8, 8), R(32, 16, 3, 3) / 9, R(32, 16, 4, 4) / 9)
    calls = [n for n in result.compilation.program.nodes if isinstance(n, ExternNode)]
    assert len(calls) == 2
    assert all(call.args[0].layout.strides[1] == 1 for call in calls)


@pytest.mark.parametrize("dim", [0, 2])
def test_weight_norm_is_loops(dim):
    def fn(v, g, y):
        w, norms = torch._weight_norm_interface(v, g, dim)
        return w, norms, *torch.ops.aten._weight_norm_interface_backward(y, v, g, norms, dim)

    g = R(6, 1, 1) if dim == 0 else R(1, 1, 5)
    result = checked(fn, R(6, 4, 5), g, R(6, 4, 5))
    assert not any(isinstance(n, ExternNode) for n in result.compilation.program.nodes)


def tiles(result):
    """The blocks of each kernel, by name of its axis."""
    kernels = result.compilation.module.kernels
    return [dict(kernel.constants) for kernel in kernels]


@pytest.mark.parametrize("size", [31, 33])
def test_a_normalized_image_is_stored_channels_last_by_a_kernel_of_its_own(size):
    """Rows of groups are contiguous where they are read, places in another layout are not. On both
    sides of `MIN_STORED_ACROSS`."""

    def fn(x, weight, bias):
        y = F.silu(F.group_norm(x, 8, weight, bias))
        return y.contiguous(memory_format=torch.channels_last)

    x = R(16, 16, size, size)
    assert (x.nbytes >= fusion.MIN_STORED_ACROSS) == (size == 33)
    blocks = tiles(checked(fn, x, R(16), R(16)))
    if size == 33:
        assert len(blocks) > 1 and "YBLOCK" in blocks[-1] and "RBLOCK" not in blocks[-1]
    else:
        assert len(blocks) == 1  # small: one launch is what counts


def test_blocks_of_few_rows_are_longer():
    """The nine places of a filter that becomes channels-last."""
    layout = torch.channels_last
    result = checked(lambda w: w.contiguous(memory_format=layout), R(64, 32, 3, 3).half())
    assert tiles(result) == [{"YBLOCK": 16, "XBLOCK": 256}]
    result = checked(lambda x: x.contiguous(memory_format=layout), R(2, 64, 32, 32).half())
    assert tiles(result) == [{"YBLOCK": 64, "XBLOCK": 64}]


def test_contiguous_rows_of_several_short_dimensions_are_one_row():
    """And not columns of three, each of which would be summed by itself."""
    result = checked(lambda w: w.square().sum((1, 2, 3)), R(96, 640, 3, 3))
    assert all(tile["XBLOCK"] == 1 for tile in tiles(result))
