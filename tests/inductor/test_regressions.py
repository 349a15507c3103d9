"""Bugs met on the way, each by the program that showed it."""

from __future__ import annotations

import pytest
import torch

import tracer_core

REDUCTIONS = {
    "mean": lambda x: x.mean(dim=(2, 3)),
    "sum": lambda x: x.sum(dim=2),
    "amax": lambda x: x.amax(dim=(2, 3)),
    "prod": lambda x: x.prod(dim=3),
    "any": lambda x: (x > 0).any(dim=2),
    "argmax": lambda x: x.argmax(dim=2),
    "max_with_index": lambda x: x.max(dim=3),
    "var_mean": lambda x: torch.var_mean(x, dim=(2, 3), correction=0),
    "softmax": lambda x: x.softmax(dim=2),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (1, 1)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_reduction_over_dimensions_of_size_one_keeps_its_values(name):
    """resnext101 at 7x7 pixels pools 1x1 images: the reduction was taken for one over
    everything.
    """
    x = torch.randn(64, 32, 1, 1)
    expected = REDUCTIONS[name](x)
    for _ in range(2):
        torch.testing.assert_close(tracer_core.compile(REDUCTIONS[name])(x), expected)


def _pooled_channels_last(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.adaptive_avg_pool2d(x * 2, 1) + x.mean((2, 3), keepdim=True)


def _strided_transpose(x: torch.Tensor) -> torch.Tensor:
    return (x[0, 0] + 1).t().as_strided((3, 2), (2, 3)) * 2


def _strided_slice(x: torch.Tensor) -> torch.Tensor:
    return (x[0, 0] + 1)[1:].as_strided((2, 2), (1, 1)) * 2


@pytest.mark.parametrize("function", [_pooled_channels_last, _strided_transpose, _strided_slice])
def test_as_strided_counts_in_the_memory_that_eager_has(function):
    """convnext_tiny and swin_t pool channels-last images, which ATen writes as as_strided of the
    means.
    """
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    for _ in range(2):
        torch.testing.assert_close(tracer_core.compile(function)(x), function(x))


def _flipped(x, y):
    old = x.flip(1)
    x.add_(1)
    return old


def _cloned(x, y):
    old = x.clone()
    x.mul_(2)
    return old, x


def _rolled(x, y):
    old = x.roll(1, 0)
    x.copy_(y)
    return old


def _swapped(x, y):
    old = x.clone()
    x.copy_(y)
    y.copy_(old)


def _moved(x, y):
    old = x.flip(0)
    x.add_(1)
    y.copy_(old)
    return old * 2


@pytest.mark.parametrize("program", [_flipped, _cloned, _rolled, _swapped, _moved])
def test_what_was_read_before_a_write_to_an_input_keeps_its_values(program) -> None:
    fast = tracer_core.compile(program, backend="inductor", fullgraph=True)
    for _ in range(2):
        torch.manual_seed(0)
        inputs = [torch.randn(4, 6), torch.randn(4, 6)]
        ours = [item.clone() for item in inputs]
        expected, actual = program(*inputs), fast(*ours)
        tuples = [value if isinstance(value, tuple) else (value,) for value in (expected, actual)]
        assert all(
            item is other or torch.equal(item, other) for item, other in zip(*tuples, strict=True)
        )
        assert all(torch.equal(item, other) for item, other in zip(inputs, ours, strict=True))


@pytest.mark.parametrize("correction", [0, 1])
def test_the_mean_of_nothing_beside_its_variance(correction):
    def run(x):
        return torch.var_mean(x, 1, correction=correction)

    fast = tracer_core.compile(run, backend="inductor")
    for x in (torch.ones(3, 0), torch.ones(0, 3), torch.arange(10.0).reshape(2, 5)):
        for actual, expected in zip(fast(x), run(x), strict=True):
            torch.testing.assert_close(actual, expected, equal_nan=True)


def _copied_twice(x):
    y = x * 2
    return y, y.t().contiguous(), y.t().contiguous(), y[::2].clone(), y[::2].clone()


def test_equal_copies_that_are_returned_are_tensors_of_their_own():
    x = torch.randn(64, 5)
    actual = tracer_core.compile(_copied_twice, backend="inductor", fullgraph=True)(x)
    for item, expected in zip(actual, _copied_twice(x), strict=True):
        assert torch.equal(item, expected) and item.stride() == expected.stride()
    assert len({item.untyped_storage().data_ptr() for item in actual}) == 5
    actual[1].zero_()
    assert torch.equal(actual[2], (x * 2).t())


@pytest.mark.parametrize("scatter", ["diagonal", "select", "slice"])
def test_a_scatter_into_rows_with_gaps_after_other_writes(scatter):
    def run(x):
        x[5].add_(1)
        part = {"diagonal": x.diagonal(), "select": x[2], "slice": x[1:4]}[scatter]
        part.lerp_(torch.flip(part, [0]), 0.5)
        return x * 2

    wide = torch.randn(6, 12)
    ours = wide.clone()
    expected, actual = run(wide[:, :6]), tracer_core.compile(run, backend="inductor")(ours[:, :6])
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(ours, wide)


def test_numbers_are_turned_round_and_say_where_to_read():
    def run(x, values, place):
        return x.flip(0), x.add(x.flip(0)), values.gather(0, place), values.gather(-1, place) * 2

    inputs = torch.tensor(3.0), torch.arange(5.0), torch.tensor(2)
    actual = tracer_core.compile(run, backend="inductor", fullgraph=True)(*inputs)
    for item, expected in zip(actual, run(*inputs), strict=True):
        assert item.shape == expected.shape and torch.equal(item, expected)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", ["max", "min"])
def test_the_extreme_of_nothing_raises_as_in_eager(backend, name):
    def run(x):
        y = x * 2
        return getattr(y, name)(-1)

    fast = tracer_core.compile(run, backend=backend)
    assert torch.equal(fast(torch.ones(3, 2)).values, torch.full((3,), 2.0))
    with pytest.raises(IndexError, match="non-zero size"):
        fast(torch.ones(3, 0))
    assert fast(torch.ones(0, 2)).values.shape == (0,)


@pytest.mark.parametrize("exponent", [-1, -3])
def test_negative_powers_of_whole_numbers_raise_as_in_eager(exponent):
    compiled = tracer_core.compile(lambda x: x**exponent, backend="inductor")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="Integers to negative integer powers"):
            compiled(torch.tensor([1, 2, -1]))
    torch.testing.assert_close(
        compiled(torch.tensor([1.0, 2.0])), torch.tensor([1.0, 2.0]) ** exponent
    )


def test_a_size_that_guards_make_one_is_broadcast():
    """The last of two chunks of three rows is one row; its size is an expression, and it was read
    as if it had three.
    """

    def program(x):
        return torch.rsub(x, x.chunk(2, 0)[-1], alpha=2).to(torch.bfloat16)

    fast = tracer_core.compile(program, dynamic=True)
    for rows in (3, 2, 3):
        x = torch.randint(0, 100, (rows, 5), dtype=torch.uint8)
        assert torch.equal(fast(x), program(x))


@pytest.mark.parametrize("correction", [-5, 0, 1])
def test_a_variance_of_nothing(correction):
    x = torch.empty(0, 5)
    fast = tracer_core.compile(
        lambda x: (x.var(correction=correction), *torch.var_mean(x, 0, correction=correction))
    )
    assert all(result.isnan().all() for result in fast(x)) and fast(x)[1].shape == (5,)


@pytest.mark.parametrize("rows", [5, 513])
def test_a_chain_of_products_each_of_which_applies_an_activation(rows):
    """The second product was looked for as it was before it read the first one's result: ValueError
    in stage 'epilogue'.
    """
    nn = torch.nn
    model = nn.Sequential(
        nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 7), nn.SiLU()
    )
    x = torch.randn(rows, 16)
    with torch.no_grad():
        torch.testing.assert_close(tracer_core.compile(model)(x), model(x))
