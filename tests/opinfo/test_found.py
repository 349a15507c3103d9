"""What the sweep found, as users write it: each was a wrong answer, a crash or a missing error."""

from __future__ import annotations

import pytest
import torch

import tracer_core
from tests.support.comparison import assert_same


def check_program(program, *inputs):
    """Results and the inputs afterwards, or the exception, are eager's; returns its type."""
    sides = []
    for run in (program, tracer_core.compile(program, backend="inductor")):
        arguments = [x.clone() if not (x.is_neg() or x.is_conj()) else x for x in inputs]
        try:
            sides.append((run(*arguments), arguments, None))
        except Exception as error:
            sides.append((None, arguments, type(error)))
    expected, actual = sides
    assert_same(actual, expected)
    return expected[2]


@pytest.mark.parametrize("name", ["le_", "igamma_", "gt_", "copysign_", "masked_scatter_"])
def test_in_place_result_of_other_sizes(name):
    """The fakes resized their tensor, and a kernel wrote past its end."""
    column, row = torch.rand(5, 1), torch.rand(5)
    if name == "masked_scatter_":
        assert (
            check_program(lambda x, y: x.masked_scatter_(y > 0, y), torch.rand(5), torch.rand(5, 5))
            is RuntimeError
        )
    else:
        assert check_program(lambda x, y: getattr(x, name)(y), column, row) is RuntimeError
        assert (
            check_program(lambda x, y: getattr(x, name)(y), torch.rand(5, 3), torch.rand(3)) is None
        )


@pytest.mark.parametrize("kind", ["conj", "neg"])
def test_lazily_conjugated_and_negated_inputs(kind):
    """Kernels read the memory, which holds other numbers."""
    numbers = torch.tensor([1 + 2j, 3 - 4j, 5j])
    value = numbers.conj() if kind == "conj" else numbers.conj().imag
    assert value.is_conj() if kind == "conj" else value.is_neg()
    check_program(lambda x: (x + 1, x.clone(), x.sum()), value)


def test_lazy_negation_inside():
    check_program(
        lambda z: (z.conj().imag * 2, torch.view_as_real(z.conj().resolve_conj()) + 1),
        torch.tensor([1 + 2j, 3 - 4j]),
    )


@pytest.mark.parametrize("name", ["max", "min", "aminmax"])
def test_extreme_of_nothing(name):
    assert check_program(lambda x: getattr(torch, name)(x + 1), torch.rand(0, 3)) is not None


def test_position_in_a_number():
    x = torch.tensor(3.0)
    assert check_program(lambda x, i: x.gather(0, i), x, torch.tensor(4)) is not None
    assert check_program(lambda x, i: x.index_select(0, i), x, torch.tensor([2])) is not None
    assert (
        check_program(lambda x, i: x.gather(0, i) + x.index_select(0, i), x, torch.tensor(0))
        is None
    )


def test_complex_results_into_given_memory():
    check_program(
        lambda x, out: torch.fft.fft(x, out=out),
        torch.rand(6),
        torch.zeros(6, dtype=torch.complex64),
    )
    check_program(lambda x: (x.cdouble(), x.cdouble().t()), torch.rand(2, 3))


def test_strides_of_batch_norm_and_of_logic():
    x, y = torch.randn(5, 6, 7).permute(2, 1, 0), torch.randn(7, 6, 5)
    mean, deviation = torch.zeros(6), torch.ones(6)
    norm = torch.nn.functional.batch_norm
    assert check_program(lambda x, m, v: norm(x, m, v), x, mean, deviation) is None
    assert check_program(lambda x, m, v: norm(x, m, v, training=True), x, mean, deviation) is None
    image = torch.randn(2, 6, 4, 4).to(memory_format=torch.channels_last)
    assert check_program(lambda x, m, v: norm(x, m, v), image, mean, deviation) is None
    assert (
        check_program(
            lambda x, y: (torch.logical_and(x, y), torch.copysign(x, y), torch.ldexp(x, y)), x, y
        )
        is None
    )
    z, w = torch.randn(5, 10, 5).permute(2, 1, 0), torch.randn(10, 5)
    assert (
        check_program(lambda x, y: (x // y, torch.div(x, y, rounding_mode="floor")), z, w) is None
    )


def test_checks_that_fakes_leave_out():
    assert check_program(lambda x: torch.cummax(x, 1), torch.tensor(1.0)) is IndexError
    assert check_program(lambda x: torch.cummax(x, 0)[0], torch.tensor(1.0)) is None
    wrong = torch.zeros(3, dtype=torch.float64)
    assert (
        check_program(lambda x, out: torch.complex(x, x, out=out), torch.rand(3), wrong)
        is RuntimeError
    )
    source, index = torch.rand(0, 10), torch.zeros(0, dtype=torch.int64)
    assert (
        check_program(
            lambda x, i, s: x.index_reduce(1, i, s, "amax"), torch.rand(0, 5), index, source
        )
        is RuntimeError
    )


@pytest.mark.parametrize("name", ["std", "var", "var_mean"])
def test_statistics_of_whole_numbers(name):
    refused = check_program(lambda x: getattr(torch, name)(x * 2), torch.arange(4))
    assert issubclass(refused, RuntimeError)  # NotImplementedError since torch 2.15
    assert check_program(lambda x: getattr(torch, name)(x * 2), torch.arange(4.0)) is None


def test_lerp_of_whole_numbers():
    numbers = torch.arange(4)
    assert (
        check_program(lambda x, y: torch.lerp(x, y, 2) + 1, numbers, numbers + 3)
        is NotImplementedError
    )
    assert (
        check_program(lambda x, y: torch.lerp(x, y, 0.5) + 1, numbers.float(), numbers.float() + 3)
        is None
    )


def test_given_memory_is_written_by_composed_operators():
    """Their fakes counted no write (kron), or did not write at all (matrix_rank): the call was left
    out.
    """
    a, b = torch.randn(3, 4), torch.randn(5, 2)
    assert (
        check_program(
            lambda a, b, out: torch.kron(a, b, out=out).add_(1) + out, a, b, torch.zeros(15, 8)
        )
        is None
    )
    matrix, rank = torch.randn(5, 5), torch.zeros((), dtype=torch.int64)
    assert check_program(lambda x, out: torch.linalg.matrix_rank(x, out=out), matrix, rank) is None
    assert (
        check_program(
            lambda x, out: torch.linalg.multi_dot([x, x, x], out=out) + 1, matrix, torch.zeros(5, 5)
        )
        is None
    )

    def inside(a, b):
        small, right = torch.zeros(0), torch.zeros(15, 8)
        return torch.kron(a, b, out=small) + 1, torch.kron(a, b, out=right), small, right

    assert check_program(inside, a, b) is None


def test_results_lie_in_given_memory():
    program = tracer_core.compile(
        lambda x, out: torch.linalg.matrix_rank(x, out=out), backend="inductor"
    )
    rank = torch.zeros((), dtype=torch.int64)
    for _ in range(2):
        assert program(torch.eye(4), rank) is rank and rank == 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_positions_in_nothing_of_low_precision(dtype):
    nothing, none = torch.rand(0, 5, dtype=dtype), torch.zeros(0, 5, dtype=torch.int64)
    assert check_program(lambda x, i: x.gather(0, i) + 1, nothing, none) is None
    assert check_program(lambda x, i: x.index_select(0, i) + 1, nothing, none[:, 0]) is None
    assert check_program(lambda x, i: x[i] + 1, nothing, torch.tensor([0, 2])) is IndexError


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int16, torch.int8])
def test_powers_of_narrow_integers(dtype):
    numbers = torch.arange(6).to(dtype)
    assert check_program(lambda x: (x**x, 2**x, x**3), numbers) is None


def test_ranges_of_whole_numbers_with_fractions():
    for ends in ((1.0, 5.0, 2.0), (0.1, -7.9, -4.0), (0.5, 3, 1), (1.1, 1.1, -1.0)):
        assert (
            check_program(
                lambda x, ends=ends: torch.arange(*ends, dtype=torch.int32) * x, torch.tensor(3)
            )
            is None
        )


def test_complex_numbers_as_arguments():
    x, y = torch.randn(2, 4, 3) + 1j, torch.randn(2, 3, 4) + 2j
    assert (
        check_program(
            lambda a, x, y: torch.addbmm(a, x, y, alpha=1 + 2j, beta=2j), x[0, :, :1], x, y
        )
        is None
    )
    infinite = complex(float("inf"), float("nan"))
    assert check_program(lambda x, i: x.index_fill(0, i, infinite), x, torch.tensor([1])) is None


def test_strides_that_kernels_give():
    """Fakes have others: of torch 2.11 (transforms, scattering into repeated rows), of every
    version (angles).
    """
    image = torch.rand(5, 10, 7)
    assert (
        check_program(lambda x: (torch.fft.rfft(x, dim=1), torch.fft.fft2(x, dim=(1, 0))), image)
        is None
    )
    assert (
        check_program(lambda x: (torch.fft.rfftn(x), torch.fft.ihfft2(x)), image.permute(2, 0, 1))
        is None
    )
    bands = (image + 0j).permute(1, 0, 2)
    assert (
        check_program(lambda x: (torch.fft.irfft(x, dim=2), torch.fft.hfft2(x, dim=(2, 0))), bands)
        is None
    )
    memory = torch.zeros(5, 6, 7, dtype=torch.complex64)  # eager does not write to it
    assert check_program(lambda x, out: torch.fft.ihfftn(x, dim=1, out=out), image, memory) is None
    assert check_program(torch.angle, torch.randn(4, 6, dtype=torch.complex64).t()) is None
    rows, row = torch.rand(1, 5).expand(5, 5), torch.rand(5)
    assert (
        check_program(lambda x, y: (x.diagonal_scatter(y), x.select_scatter(y, 0, 1)), rows, row)
        is None
    )
    wide = torch.randn(2, 4, 3).permute(2, 1, 0)
    assert (
        check_program(
            lambda m, s: (torch.normal(m, s) * 0, torch.normal(m, 1.0) * 0), wide, wide.exp()
        )
        is None
    )
    assert (
        check_program(lambda g: torch.ops.aten.native_dropout_backward(g, g > 0, 2.0), wide) is None
    )
    last = torch.rand(1, 2, 2, 4).to(memory_format=torch.channels_last)
    place = (
        torch.arange(8).reshape(1, 1, 2, 4).expand(1, 2, 2, 4).to(memory_format=torch.channels_last)
    )
    unpool = torch.nn.functional.max_unpool2d
    assert (
        check_program(lambda x, i: unpool(x, i, 3, (2, 1), output_size=(5, 6)), last, place) is None
    )


def gradients(program, *inputs):
    """Those of the sum of squares, eager's and ours, for inputs made anew by functions."""
    sides = []
    for run in (program, tracer_core.compile(program, backend="inductor")):
        arguments = [make().requires_grad_() for make in inputs]
        result = run(*arguments)
        weight = torch.rand(result.shape, generator=torch.Generator().manual_seed(1)).to(
            result.dtype
        )
        sides.append(torch.autograd.grad(result, arguments, weight))
    torch.testing.assert_close(sides[1], sides[0])


@pytest.mark.parametrize("name", ["select_scatter", "slice_scatter"])
def test_gradient_of_a_result_with_gaps(name):
    """The backward graph read the tangent with the gaps of the result, which it does not have."""
    wide, part = (
        torch.rand(5, 5, 5, 2),
        torch.rand(5, 5) if name == "select_scatter" else torch.rand(5, 1, 5),
    )
    more = (1, 2) if name == "select_scatter" else (1, 2, 3)
    gradients(
        lambda x, y: getattr(torch, name)(x, y, *more), lambda: wide[..., 0].detach(), part.clone
    )


def test_gradients_that_fakes_misjudge():
    """Sizes that depend on numbers (index_fill), and what operators keep for their backward."""
    index, bags = torch.tensor([0, 2, 4]), torch.tensor([0, 2])
    gradients(
        lambda x, v: x.index_fill(0, index, v), lambda: torch.ones(5, 5), lambda: torch.tensor(2.0)
    )
    table, scale = torch.rand(10, 5).bfloat16(), torch.rand(3).bfloat16()
    embed = torch.nn.functional.embedding_bag
    gradients(
        lambda w, s: embed(index, w, bags, mode="sum", per_sample_weights=s),
        table.clone,
        scale.clone,
    )
    rows = torch.rand(2, 4, 3, 8, dtype=torch.float64)
    gradients(lambda q: torch.nn.functional.scaled_dot_product_attention(q, q, q), rows.clone)


def test_gradient_of_complex_eigenvectors_looks_at_their_phases():
    def run(x):
        values, vectors = torch.linalg.eigh(x + x.mH)
        return values.sum() + vectors.real.sum() + vectors.imag.sum()

    for program in (run, tracer_core.compile(run, backend="inductor")):
        x = torch.randn(4, 4, dtype=torch.complex64, requires_grad=True)
        with pytest.raises(RuntimeError, match="specified up to multiplication"):
            program(x).backward()


def test_what_kernels_refuse():
    functional, nothing = torch.nn.functional, torch.rand(0)
    assert check_program(lambda x: x**x, torch.tensor([True, False])) is NotImplementedError
    assert check_program(lambda x: True**x, torch.tensor([True, False])) is NotImplementedError
    image = torch.rand(0, 5, 5)
    assert (
        check_program(lambda x, v: functional.batch_norm(x, None, None, v, v, True), image, nothing)
        is IndexError
    )
    assert (
        check_program(
            lambda x: functional.avg_pool3d(x, 2, divisor_override=0), torch.rand(3, 3, 3, 3)
        )
        is RuntimeError
    )
    assert (
        check_program(lambda w, i: functional.embedding(i, w), torch.rand(0, 5), torch.tensor(0))
        is RuntimeError
    )
    assert (
        check_program(lambda w, i: w.index_select(0, i) + 1, torch.rand(0, 5), torch.tensor([0]))
        is RuntimeError
    )
    item, two = torch.tensor(1.0), torch.tensor(2.0)
    assert check_program(lambda x, y: x.select_scatter(y, 0, 0), item, two) is IndexError
    assert check_program(lambda x, y: x.slice_scatter(y, 0, 1), item, two) is IndexError
    assert check_program(lambda x, y: x.select_scatter(y, 0, 7), torch.rand(3), two) is IndexError
    assert (
        check_program(lambda x, y: x.slice_scatter(y, 0, 1, 2), torch.rand(3), torch.rand(2))
        is RuntimeError
    )


def test_a_convolution_with_one_stride_for_both_dimensions():
    def run(x, w, b):
        return torch.nn.functional.conv2d(x, w, b, stride=2, padding="valid")

    assert check_program(run, torch.rand(1, 4, 5, 5), torch.rand(1, 4, 2, 3), torch.rand(1)) is None
    gradients(run, torch.rand(1, 4, 5, 5).clone, torch.rand(1, 4, 2, 3).clone, torch.rand(1).clone)


@torch.no_grad()
def test_a_convolution_of_one_image_without_a_batch():
    def run(x, w):
        return torch.nn.functional.conv2d(x, w, stride=2, padding=1)

    assert check_program(run, torch.rand(16, 9, 9), torch.rand(32, 16, 3, 3)) is None


def test_sums_of_columns_with_numbers_of_a_row():
    """What is the same for a whole row was written between a loop and its pragma."""
    exponents, bases = torch.rand(9) + 1, torch.rand(300) + 1
    gradients(lambda x: x ** exponents[:, None], bases.clone)
    gradients(lambda x: x ** exponents[:, None].half(), bases.half().clone)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32])
def test_dropout_backward_of_whole_numbers(dtype):
    """The scale was made an integer."""
    numbers, mask = torch.tensor([1, 0, 1]).to(dtype), torch.tensor([True, True, False])
    assert (
        check_program(lambda g, m: torch.ops.aten.native_dropout_backward(g, m, 1.5), numbers, mask)
        is None
    )
