"""The operators of backward graphs, called as autograd calls them: against eager, three ways."""

from __future__ import annotations

import pytest
import torch

from inductor_backend.kernels.aten_fallbacks import FALLBACKS
from inductor_backend.lowering.context import LOWERINGS
from inductor_backend.passes.decompositions import decompositions
from tests.inductor.compiling import compiled, same_three_ways
from tests.inductor.test_operators import I, R

aten = torch.ops.aten
X, DY = R(4, 6, 5, 5), R(4, 6, 5, 5) * 0.5 + 1
MEAN, VAR = X.mean((0, 2, 3)), X.var((0, 2, 3))
ROWS, SLOPES = R(3, 7, 16), R(3, 7, 16) + 0.5
NUMBERS, PIXELS = I(0, 5, 9), I(0, 5, 3, 4, 6)
ALL = [True, True, True]


def layer_norm(dy, x, weight, bias):
    _, mean, inverse = aten.native_layer_norm(x, [16], weight, bias, 1e-5)
    return aten.native_layer_norm_backward(dy, x, [16], mean, inverse, weight, bias, ALL)


def layer_norm_of_two_dims(dy, x):
    _, mean, inverse = aten.native_layer_norm(x, [7, 16], None, None, 1e-5)
    mask = [True, False, False]
    return aten.native_layer_norm_backward(dy, x, [7, 16], mean, inverse, None, None, mask)[0]


def group_norm(dy, x, weight, bias):
    _, mean, inverse = aten.native_group_norm(x, weight, bias, 4, 6, 25, 3, 1e-5)
    return aten.native_group_norm_backward(dy, x, mean, inverse, weight, 4, 6, 25, 3, ALL)


def likelihood(reduction, forward):
    def run(x, target, weight):
        loss, total = forward(x, target, weight, reduction, 2)
        return loss if reduction == 0 else (loss, total)

    return run


def likelihood_without_weights(dy, x, target, total):
    loss, counted = aten.nll_loss_forward(x, target, None, 1, -100)
    return loss, counted, aten.nll_loss_backward(dy, x, target, None, 1, -100, total)


def slope_of_likelihood(reduction, backward):
    return lambda dy, x, target, weight, total: backward(dy, x, target, weight, reduction, 2, total)


PROGRAMS = {
    "batch norm": (
        lambda dy, x, w, m, i: aten.native_batch_norm_backward(dy, x, w, None, None, m, i, True,
        1e-5, ALL),
        DY, X, R(6), MEAN, VAR.rsqrt(),
    ),
    "batch norm in evaluation": (
        lambda dy, x, w, m, v: aten.native_batch_norm_backward(dy, x, w, m, v, None, None, False,
        1e-5, ALL),
        DY, X, R(6), MEAN, VAR,
    ),
    "batch norm, the input's gradient alone": (
        lambda dy, x, m, i: aten.native_batch_norm_backward(
            dy, x, None, None, None, m, i, True, 1e-5, [True, False, False])[0],
        DY, X, MEAN, VAR.rsqrt(),
    ),
    "batch norm, the weights' gradients alone": (
        lambda dy, x, w, m, i: aten.native_batch_norm_backward(
            dy, x, w, None, None, m, i, True, 1e-5, [False, True, True])[1:],
        DY, X, R(6), MEAN, VAR.rsqrt(),
    ),
    "batch norm of rows": (
        lambda dy, x, w, m, i: aten.native_batch_norm_backward(dy, x, w, None, None, m, i, True,
        1e-5, ALL),
        R(9, 6), R(9, 6) * 2, R(6), MEAN, VAR.rsqrt(),
    ),
    "batch norm in bfloat16": (
        lambda dy, x, w, m, i: aten.native_batch_norm_backward(dy, x, w, None, None, m, i, True,
        1e-5, ALL),
        DY.bfloat16(), X.bfloat16(), R(6), MEAN, VAR.rsqrt(),
    ),
    "layer norm": (layer_norm, SLOPES, ROWS, R(16), R(16)),
    "layer norm in bfloat16": (layer_norm, SLOPES.bfloat16(), ROWS.bfloat16(), R(16).bfloat16(),
    R(16).bfloat16()),
    "layer norm of two dims": (layer_norm_of_two_dims, SLOPES, ROWS),
    "group norm": (group_norm, DY, X, R(6), R(6)),
    "softmax": (lambda dy, x: aten._softmax_backward_data(dy, x.softmax(-1), -1, x.dtype), R(5,
    33), R(5, 33) + 1),
    "softmax over columns": (
        lambda dy, x: aten._softmax_backward_data(dy, x.softmax(1), 1, x.dtype), R(5, 33, 4), R(5,
        33, 4) + 1),
    "log_softmax": (
        lambda dy, x: aten._log_softmax_backward_data(dy, x.log_softmax(-1), -1, x.dtype), R(5,
        33), R(5, 33) + 1),
    "likelihood without reduction": (likelihood(0, aten.nll_loss_forward), R(9, 5), NUMBERS,
    R(5).abs()),
    "likelihood, mean": (likelihood(1, aten.nll_loss_forward), R(9, 5), NUMBERS, R(5).abs()),
    "likelihood, sum": (likelihood(2, aten.nll_loss_forward), R(9, 5), NUMBERS, R(5).abs()),
    "likelihood of pixels": (likelihood(1, aten.nll_loss2d_forward), R(3, 5, 4, 6), PIXELS,
    R(5).abs()),
    "likelihood of one element": (likelihood_without_weights, torch.tensor(2.0), R(5),
    torch.tensor(3), torch.tensor(1.0)),
    "likelihood, all ignored": (likelihood(1, aten.nll_loss_forward), R(3, 5), torch.full((3,), 2),
    R(5).abs()),
    "slope of likelihood without reduction": (
        slope_of_likelihood(0, aten.nll_loss_backward), R(9), R(9, 5), NUMBERS, R(5).abs(),
        torch.tensor(3.0)),
    "slope of likelihood, mean": (
        slope_of_likelihood(1, aten.nll_loss_backward), torch.tensor(1.5), R(9, 5), NUMBERS,
        R(5).abs(), torch.tensor(3.0)),
    "slope of likelihood of pixels": (
        slope_of_likelihood(1, aten.nll_loss2d_backward), torch.tensor(1.5), R(3, 5, 4, 6), PIXELS,
        R(5).abs(),
        torch.tensor(3.0)),
    "dropout": (lambda dy, mask: aten.native_dropout_backward(dy, mask > 0, 2.0), R(5, 6), R(5, 6)),
    "shrinking": (
        lambda dy, x: (aten.hardshrink_backward(dy, x, 0.5), aten.softshrink_backward(dy, x, 0.5)),
        R(5, 6), R(5, 6) + 0.1),
}  # fmt: skip


@pytest.mark.sweep(keep=10)
@pytest.mark.parametrize("name", PROGRAMS)
def test_equals_eager(name):
    fn, *inputs = PROGRAMS[name]
    fused = same_three_ways(fn, *inputs)
    assert not fused.compilation.runner.artifact.externs


def test_a_class_out_of_range_raises():
    run = compiled(lambda x, t: aten.nll_loss_forward(x, t, None, 1, -100)[0], R(4, 5), I(0, 5, 4))
    with pytest.raises(IndexError):
        run(R(4, 5), torch.tensor([1, 2, 5, 3]))
    ignored = torch.tensor([1, -100, 4, 3])
    expected = torch.nn.functional.nll_loss(R(4, 5), ignored)
    torch.testing.assert_close(run(R(4, 5), ignored)[0], expected)


#: Operators named backward, with kernels for the CPU, that no backward graph of dense tensors has.
ELSEWHERE = {
    "_grid_sampler_2d_cpu_fallback_backward": "of large or double images: autograd calls grid_sampler_2d_backward",
    "_scaled_dot_product_fused_attention_overrideable_backward": "for devices of other packages",
    "_slow_conv2d_backward": "autograd calls convolution_backward",
    "batch_norm_backward": "of _batch_norm_with_update, which only torch.export makes",
    "convolution_backward_overrideable": "for devices of other packages",
    "glu_backward_jvp": "of forward-mode differentiation",
}


def test_every_backward_operator_of_the_cpu_has_a_place():
    tables, actual = (LOWERINGS, FALLBACKS, decompositions()), []
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full.partition("::")
        packet, _, overload = name.partition(".")
        if namespace != "aten" or "backward" not in packet or packet in ELSEWHERE:
            continue
        operator = getattr(getattr(aten, packet, None), overload or "default", None)
        if operator is None or operator._schema.is_mutable or not on_cpu(operator):
            continue
        if not any(operator in table for table in tables):
            actual.append(full)
    assert actual == []


def on_cpu(operator):
    keys = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key) for key in keys)
