"""What the sweep found, as users write it: each was a wrong answer, a crash or a missing error."""

from __future__ import annotations

import pytest
import torch

import tracer_core


def same(program, *inputs):
    """Results and the inputs afterwards, or the exception, are eager's."""
    sides = []
    for run in (program, tracer_core.compile(program, backend="inductor")):
        given = [x.clone() if not (x.is_neg() or x.is_conj()) else x for x in inputs]
        try:
            sides.append((run(*given), given, None))
        except Exception as error:
            sides.append((None, given, type(error)))
    (expected, before, refused), (actual, after, raised) = sides
    assert raised is refused
    torch.testing.assert_close(actual, expected, equal_nan=True)
    torch.testing.assert_close(after, before, equal_nan=True)
    for ours, eager in zip(
        torch.utils._pytree.tree_leaves(actual), torch.utils._pytree.tree_leaves(expected)
    ):
        if isinstance(eager, torch.Tensor):
            assert ours.stride() == eager.stride()
    return refused


@pytest.mark.parametrize("name", ["le_", "igamma_", "gt_", "copysign_", "masked_scatter_"])
def test_in_place_result_of_other_sizes(name):
    """The fakes resized their tensor, and a kernel wrote past its end."""
    column, row = torch.rand(5, 1), torch.rand(5)
    if name == "masked_scatter_":
        assert same(lambda x, y: x.masked_scatter_(y > 0, y), torch.rand(5), torch.rand(5, 5)) is RuntimeError
    else:
        assert same(lambda x, y: getattr(x, name)(y), column, row) is RuntimeError
        assert same(lambda x, y: getattr(x, name)(y), torch.rand(5, 3), torch.rand(3)) is None


@pytest.mark.parametrize("kind", ["conj", "neg"])
def test_lazily_conjugated_and_negated_inputs(kind):
    """Kernels read the memory, which holds other numbers."""
    numbers = torch.tensor([1 + 2j, 3 - 4j, 5j])
    value = numbers.conj() if kind == "conj" else numbers.conj().imag
    assert value.is_conj() if kind == "conj" else value.is_neg()
    same(lambda x: (x + 1, x.clone(), x.sum()), value)


def test_lazy_negation_inside():
    same(
        lambda z: (z.conj().imag * 2, torch.view_as_real(z.conj().resolve_conj()) + 1),
        torch.tensor([1 + 2j, 3 - 4j]),
    )


@pytest.mark.parametrize("name", ["max", "min", "aminmax"])
def test_extreme_of_nothing(name):
    assert same(lambda x: getattr(torch, name)(x + 1), torch.rand(0, 3)) is not None


def test_position_in_a_number():
    x = torch.tensor(3.0)
    assert same(lambda x, i: x.gather(0, i), x, torch.tensor(4)) is not None
    assert same(lambda x, i: x.index_select(0, i), x, torch.tensor([2])) is not None
    assert same(lambda x, i: x.gather(0, i) + x.index_select(0, i), x, torch.tensor(0)) is None


def test_complex_results_into_given_memory():
    same(lambda x, out: torch.fft.fft(x, out=out), torch.rand(6), torch.zeros(6, dtype=torch.complex64))
    same(lambda x: (x.cdouble(), x.cdouble().t()), torch.rand(2, 3))


def test_strides_of_batch_norm_and_of_logic():
    x, y = torch.randn(5, 6, 7).permute(2, 1, 0), torch.randn(7, 6, 5)
    mean, deviation = torch.zeros(6), torch.ones(6)
    norm = torch.nn.functional.batch_norm
    assert same(lambda x, m, v: norm(x, m, v), x, mean, deviation) is None
    assert same(lambda x, m, v: norm(x, m, v, training=True), x, mean, deviation) is None
    image = torch.randn(2, 6, 4, 4).to(memory_format=torch.channels_last)
    assert same(lambda x, m, v: norm(x, m, v), image, mean, deviation) is None
    assert same(lambda x, y: (torch.logical_and(x, y), torch.copysign(x, y), torch.ldexp(x, y)), x, y) is None
    z, w = torch.randn(5, 10, 5).permute(2, 1, 0), torch.randn(10, 5)
    assert same(lambda x, y: (x // y, torch.div(x, y, rounding_mode="floor")), z, w) is None


def test_checks_that_fakes_leave_out():
    assert same(lambda x: torch.cummax(x, 1), torch.tensor(1.0)) is IndexError
    assert same(lambda x: torch.cummax(x, 0)[0], torch.tensor(1.0)) is None
    wrong = torch.zeros(3, dtype=torch.float64)
    assert same(lambda x, out: torch.complex(x, x, out=out), torch.rand(3), wrong) is RuntimeError
    source, index = torch.rand(0, 10), torch.zeros(0, dtype=torch.int64)
    assert (
        same(lambda x, i, s: x.index_reduce(1, i, s, "amax"), torch.rand(0, 5), index, source) is RuntimeError
    )


@pytest.mark.parametrize("name", ["std", "var", "var_mean"])
def test_statistics_of_whole_numbers(name):
    assert same(lambda x: getattr(torch, name)(x * 2), torch.arange(4)) is RuntimeError
    assert same(lambda x: getattr(torch, name)(x * 2), torch.arange(4.0)) is None


def test_lerp_of_whole_numbers():
    numbers = torch.arange(4)
    assert same(lambda x, y: torch.lerp(x, y, 2) + 1, numbers, numbers + 3) is NotImplementedError
    assert same(lambda x, y: torch.lerp(x, y, 0.5) + 1, numbers.float(), numbers.float() + 3) is None
