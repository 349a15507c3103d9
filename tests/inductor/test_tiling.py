"""Operands that are read across the innermost loop: same values, tile by tile."""

from __future__ import annotations

import pytest
import torch

import tracer_core
from inductor_backend.codegen.cpp import tiling
from inductor_backend.runtime import generated_support
from tests.support.comparison import assert_same_calls


def _channels_last(x):
    return (x * 2).to(memory_format=torch.channels_last)


def _in_place(x, y):
    x.add_(y.t() * 2)
    return x


#: name -> (function, shapes of the inputs, each with sizes that tiles do not divide)
PROGRAMS = {
    "matrix": (lambda x, y: x + y.t(), [(150, 211), (211, 150)]),
    "lines of one cache set": (lambda x: x.t().contiguous(), [(64, 1024)]),
    "two operands": (lambda x, y, z: x.t() * y.t() - z, [(211, 150), (211, 150), (150, 211)]),
    "one operand twice": (lambda x: x + x.t(), [(180, 180)]),
    "to channels last": (_channels_last, [(2, 20, 33, 35)]),
    "from channels last": (lambda x: x.permute(0, 3, 1, 2).contiguous() + 1, [(2, 33, 35, 20)]),
    "broadcast": (lambda x, y: x.t() + y, [(211, 150), (211,)]),
    "three dimensions": (lambda x: x.permute(2, 1, 0).contiguous().exp(), [(40, 30, 50)]),
    "attention's heads": (lambda x: x.transpose(1, 2).contiguous() * 2, [(2, 70, 40, 32)]),
    "written in place": (_in_place, [(150, 211), (211, 150)]),
    "two results": (lambda x, y: (x + y.t(), (x > y.t())), [(150, 211), (211, 150)]),
}
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]


def inputs(shapes, dtype=torch.float32):
    return [(torch.randn(shape) * 10).to(dtype) for shape in shapes]


@pytest.fixture
def everything_tiled(monkeypatch):
    monkeypatch.setattr(tiling, "LINES_IN_CACHE", 0)


@pytest.fixture
def sources(monkeypatch):
    """The C++ texts that are built."""
    seen: list[str] = []
    build = generated_support.build
    monkeypatch.setattr(
        generated_support,
        "build",
        lambda texts, *, name: seen.extend(texts) or build(texts, name=name),
    )
    return seen


@pytest.mark.sweep(keep=6)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.usefixtures("everything_tiled")
def test_values_and_strides_are_eagers(name, sources):
    function, shapes = PROGRAMS[name]
    compiled = tracer_core.compile(function)
    assert_same_calls(compiled, function, *inputs(shapes), calls=1)
    assert_same_calls(compiled, function, *inputs(shapes), calls=1)
    assert any("tile_0[" in source for source in sources) is (name not in NOT_TILED)


#: Contiguous along the innermost loop after all: eager's result keeps the strides of what it is
#: made from.
NOT_TILED = {"attention's heads", "broadcast"}


@pytest.mark.usefixtures("everything_tiled")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_of_element(dtype):
    compiled = tracer_core.compile(lambda x, y: torch.where(y.t() > 0, x, y.t()))
    assert_same_calls(
        compiled,
        lambda x, y: torch.where(y.t() > 0, x, y.t()),
        *inputs([(150, 211), (211, 150)], dtype),
        calls=1,
    )


@pytest.mark.usefixtures("everything_tiled")
def test_symbolic_sizes():
    def function(x, y):
        return x + y.t()

    compiled = tracer_core.compile(function, dynamic=True)
    for rows, columns in [(200, 150), (16, 128), (3, 5), (17, 129), (1000, 2), (333, 77)]:
        assert_same_calls(compiled, function, *inputs([(rows, columns), (columns, rows)]), calls=1)


@pytest.mark.parametrize(("size", "tiled"), [(400, False), (600, True)])
def test_rows_whose_lines_stay_in_the_cache_are_not_tiled(size, tiled, sources):
    compiled = tracer_core.compile(lambda x, y: x + y.t())
    assert_same_calls(compiled, lambda x, y: x + y.t(), *inputs([(50, size), (size, 50)]), calls=1)
    assert any("tile_0[" in source for source in sources) is tiled
