"""Rules for operators on fakes: what they answer is what FakeTensorMode answers."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

import tracer_core
from tracer_core.fx_capture.kernel_checks import unchecked
from tracer_core.fx_capture.meta_functions import RULES, batch_norm_in_training
from tracer_core.fx_capture.result_strides import laid_out
from tracer_core.testing import compare

aten = torch.ops.aten
SHAPES = [
    (),
    (1,),
    (5,),
    (2, 3),
    (1, 4, 5, 6),
    (2, 1, 3, 3),
    (2, 3, 1, 1),
    (3, 1),
    (0, 3),
    (2, 3, 4, 5),
]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]


def facts(result):
    parts = [result] if isinstance(result, torch.Tensor) else result
    return [(tuple(part.shape), tuple(part.stride()), part.dtype, part.device) for part in parts]


def layouts(shape, dtype):
    """Tensors of a shape: as new ones are, channels last, and turned round."""
    yield torch.empty(shape, dtype=dtype)
    if len(shape) == 4:
        yield torch.empty(shape, dtype=dtype).to(memory_format=torch.channels_last)
    if len(shape) > 1:
        yield torch.empty(shape[::-1], dtype=dtype).permute(*reversed(range(len(shape))))
        yield torch.empty((shape[0], shape[1] + 2, *shape[2:]), dtype=dtype)[:, 1 : shape[1] + 1]


def answers(func, args):
    known = RULES[func](*args)
    if known is None:
        return 0
    actual = [
        (tuple(shape), tuple(stride), dtype, device) for shape, stride, dtype, device in known[1]
    ]
    assert actual == facts(func(*args)), (func, [getattr(arg, "shape", arg) for arg in args])
    return 1


BINARY = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)
UNARY = (aten.relu.default, aten.neg.default, aten.sigmoid.default, aten.tanh.default,
aten.exp.default,
         aten.silu.default, aten.gelu.default)  # fmt: skip


COMPARISONS = (aten.le.Tensor, aten.gt.Tensor, aten.eq.Tensor)
SCALARS = (aten.le.Scalar, aten.lt.Scalar, aten.ne.Scalar)


@pytest.mark.parametrize("func", [*BINARY, *UNARY, *COMPARISONS, *SCALARS], ids=str)
@pytest.mark.sweep(keep=8)
def test_operators_by_element(func):
    inputs = 0
    with FakeTensorMode():
        for shape, dtype in itertools.product(SHAPES, DTYPES):
            for layout in layouts(shape, dtype):
                others = [[]] if func in UNARY else [[2], [0.5], [True]]
                if func in BINARY or func in COMPARISONS:
                    others = [[torch.empty(3)], *([two] for two in layouts(shape, dtype)), *others]
                for rest in others:
                    try:
                        func(layout, *rest)
                    except (RuntimeError, TypeError):
                        continue  # not defined for these
                    inputs += answers(func, [layout, *rest])
    assert inputs > 20


def test_where():
    inputs = 0
    with FakeTensorMode():
        for shape, dtype in itertools.product(SHAPES, DTYPES):
            for test, item in itertools.product(layouts(shape, torch.bool), layouts(shape, dtype)):
                for other in (item, torch.empty((), dtype=dtype), torch.empty(())):
                    inputs += answers(aten.where.self, [test, item, other])
                    inputs += answers(aten.where.self, [test, other, item])
    assert inputs > 20


def test_concatenations():
    inputs = 0
    with FakeTensorMode():
        for shape, dtype in itertools.product(SHAPES[2:], DTYPES):
            for layout in layouts(shape, dtype):
                for dim in range(-len(shape), len(shape)):
                    inputs += answers(aten.cat.default, [[layout, layout, layout], dim])
    assert inputs > 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_batch_norms_in_training(dtype):
    with FakeTensorMode():
        for shape in SHAPES:
            if len(shape) < 2 or 0 in shape:
                continue
            for x in layouts(shape, dtype):
                channels = [torch.empty(shape[1], dtype=dtype) for _ in range(4)]
                answers(
                    aten._native_batch_norm_legit_functional.default,
                    [x, *channels, True, 0.1, 1e-5],
                )
                inputs = [
                    x,
                    x,
                    channels[0],
                    *channels[1:3],
                    *channels[:2],
                    True,
                    1e-5,
                    [True, True, True],
                ]
                answers(aten.native_batch_norm_backward.default, inputs)
                known = batch_norm_in_training(x, *channels, True, 0.1, 1e-5)
                if known is not None:
                    expected = facts(aten.native_batch_norm.default(x, *channels, True, 0.1, 1e-5))
                    assert [(tuple(a), tuple(b), c, d) for a, b, c, d in known[1]] == expected


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_results_lie_as_kernels_of_every_device_lay_them_out(device):
    """torch's fakes say (50, 5, 1) and (2,)."""
    with FakeTensorMode():
        turned, eager = (
            torch.empty_strided((5, 10, 5), (1, 5, 50), device=device),
            torch.empty((5, 10, 5), device=device),
        )
        gaps = torch.empty_strided((10,), (2,), device=device)
        for func, args, strides in (
            (aten.floor_divide.default, (turned, eager), (1, 5, 50)),
            (aten.uniform.default, (gaps,), (1,)),
        ):
            assert laid_out(func, args, {}, func(*args)).stride() == strides


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_results_of_ambiguous_operands_are_laid_out_as_kernels_do(device):
    """TensorIterator skips dimensions that an operand is broadcast along; fakes do not."""
    layouts = ((1, 1, 1, 17), (1, 1, 1, 1)), ((2, 3, 1), (1, 2, 6))
    for func in (aten.bitwise_and.Tensor, aten.add.Tensor):
        real = func(*(torch.empty_strided(*layout, dtype=torch.int32) for layout in layouts))
        with FakeTensorMode(), torch.no_grad():
            inputs = [
                torch.empty_strided(*layout, dtype=torch.int32, device=device) for layout in layouts
            ]
            assert laid_out(func, tuple(inputs), {}, func(*inputs)).stride() == real.stride()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_gradient_of_softmax_in_another_dtype_ends_the_graph(device):
    with FakeTensorMode() as mode:
        rows, half = (torch.empty(5, 5, dtype=t, device=device) for t in (None, torch.float16))
        for inputs, ends in ((rows, True), (half, False)):
            call = (inputs, half, 0, half.dtype)
            assert (
                unchecked(aten._softmax_backward_data, call, {}, lambda: mode) is not None
            ) is ends


def test_calls_that_cuda_kernels_refuse_end_the_graph():
    """Their fakes say nothing; the CPU has kernels for them."""
    with FakeTensorMode() as mode:
        for device, refused in (("cuda", True), ("cpu", False)):
            images = torch.empty(7, 5, 9, 2, device=device).permute(3, 2, 1, 0)
            rows = torch.empty(5, 5, device=device)
            heads, solid = (
                torch.empty(2, 16, 2, 8, device=device),
                torch.empty(2, 9, 5, 7, device=device),
            )
            shuffle, backward = torch.channel_shuffle, aten._softmax_backward_data
            calls = (
                (shuffle, images, 3),
                (aten._efficient_attention_forward, heads),
            )  # fmt: skip
            for func, *args in calls:
                assert (unchecked(func, tuple(args), {}, lambda: mode) is not None) is refused, (
                    func,
                    device,
                )
            for func, *args in ((shuffle, solid, 3), (backward, rows, rows, 0, rows.dtype)):
                assert unchecked(func, tuple(args), {}, lambda: mode) is None, (func, device)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_results_that_no_two_elements_share(device):
    """Fakes of some versions give the copy of an expanded tensor its strides of zero, those of
    random numbers the mean's.
    """
    with FakeTensorMode():
        value, part = (
            torch.empty(1, 5, 5, device=device).expand(5, 5, 5),
            torch.empty(5, 5, device=device),
        )
        args = (value, part, 0, 1)
        shared = torch.empty_strided((5, 5, 5), (0, 5, 1), device=device)
        assert laid_out(aten.select_scatter.default, args, {}, shared).stride() == (25, 5, 1)
        turned = torch.empty(2, 4, 3, device=device).permute(2, 1, 0)
        drawn = laid_out(aten.normal.Tensor_Tensor, (turned, turned), {}, torch.empty_like(turned))
        assert drawn.stride() == (8, 2, 1) and drawn.device.type == device


@pytest.mark.skipif(
    torch.__version__.startswith(("2.11.", "2.12.")),
    reason="its fakes leave the dimensions unsorted",
)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_transforms_on_gpus_are_laid_out_as_cufft_is_called(count):
    """The rule is for fakes of torch 2.11; those of later releases say the same."""
    with FakeTensorMode():
        for order in itertools.permutations(range(4)):
            value = torch.empty(
                [(3, 4, 5, 6)[dim] for dim in order], dtype=torch.complex64, device="cuda"
            )
            value = value.permute([order.index(dim) for dim in range(4)])
            for dims in itertools.permutations(range(4), count):
                args = (value, list(dims), 0, True)
                expected = aten._fft_c2c.default(*args)
                unsorted = torch.empty_like(value, memory_format=torch.contiguous_format)
                assert (
                    laid_out(aten._fft_c2c.default, args, {}, unsorted).stride()
                    == expected.stride()
                ), (order, dims)


def test_the_norm_along_a_last_dimension_of_size_1():
    """The reference of torch 2.11 keeps the dimension."""

    def program(x):
        return (
            x.norm(dim=-1),
            torch.linalg.vector_norm(x, 3, dim=(-2, -1)),
            x.norm(dim=-1, keepdim=True),
        )

    x = torch.randn(16, 2)[:, ::2]
    for backend in ("eager", "aten_eager", "inductor"):
        for rows in (16, 7):
            compare(
                program(x[:rows]),
                tracer_core.compile(program, backend=backend, fullgraph=True)(x[:rows]),
            )


def test_a_result_of_another_dtype_keeps_its_strides_with_symbolic_sizes():
    def scaled(x, y):
        return torch.addcdiv(x, x, y, value=-2.5, out=torch.empty(0))

    fast = tracer_core.compile(scaled, dynamic=True)
    for size in (8, 7, 5):
        inputs = torch.randn(size, 2, 2, 1).bfloat16().permute(3, 2, 1, 0), torch.tensor(2.0)
        compare(fast(*inputs), scaled(*inputs))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_one_hot_of_classes_in_strided_memory(backend):
    """Its result is contiguous whatever the classes' strides, which its fake takes over."""

    def best_expert(scores):
        chosen = scores.topk(2).indices
        first, both = F.one_hot(chosen[..., 0], 7), F.one_hot(chosen.transpose(0, 1), 7)
        return first, both, both.stride(), both.view(-1), first.float().mean(0)

    fast = tracer_core.compile(best_expert, backend=backend, fullgraph=True)
    for rows in (4, 3, 6):
        scores = torch.randn(rows, 5, 7)
        compare(best_expert(scores), fast(scores))
