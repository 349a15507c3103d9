"""The tables are complete, and the IR's own arithmetic is right."""

from __future__ import annotations

import itertools
import random

import pytest
import sympy
import torch

from inductor_backend.codegen.common.op_table import CPP, KERNEL_OPS
from inductor_backend.codegen.cpp.expressions import MEMORY_TYPES
from inductor_backend.codegen.cpp.reducers import REDUCERS, column_reducer
from inductor_backend.codegen.triton.expressions import POINTER_TYPES
from inductor_backend.codegen.triton.reducers import REDUCERS as TRITON_REDUCERS
from inductor_backend.ir.index_expr import (
    FloorDiv,
    Index,
    Mod,
    Var,
    flatten,
    recombine,
    reshape,
    variables,
)
from inductor_backend.ir.nodes import BufferLayout
from inductor_backend.ir.ops import (
    COPIED_DTYPES,
    EXP_SUM,
    MEMORY_DTYPES,
    OPS,
    READ_DTYPES,
    REDUCTIONS,
)
from inductor_backend.ir.size_source import size_expression
from inductor_backend.ir.values import const, load, make
from inductor_backend.kernels.aten_fallbacks import FALLBACKS
from inductor_backend.lowering.context import LOWERINGS
from inductor_backend.schedule.memory_plan import aligned
from tests.inductor.reference import GRID_OPS, REFERENCE_OPS


def test_every_op_has_cpp_text_and_a_reference():
    assert set(CPP.ops) | KERNEL_OPS == set(OPS)
    assert set(REFERENCE_OPS) | GRID_OPS == set(OPS)


def test_every_reduction_has_a_row_and_a_column_form():
    assert set(TRITON_REDUCERS) == set(REDUCTIONS)
    assert set(REDUCERS) == set(REDUCTIONS) - {EXP_SUM}  # two reductions in C++
    for kind in REDUCERS:
        dtype = torch.bool if kind in ("any", "all") else torch.float32
        assert column_reducer(kind, "a", dtype, dtype, 10).results


def test_both_languages_have_a_type_for_what_loops_hold():
    assert MEMORY_TYPES.keys() == MEMORY_DTYPES | COPIED_DTYPES | READ_DTYPES
    assert POINTER_TYPES.keys() == MEMORY_TYPES.keys()


def test_lowerings_are_of_functional_operators():
    for target in LOWERINGS:
        schema = getattr(target, "_schema", None)
        assert schema is None or not schema.is_mutable, target


def test_fallbacks_are_functional():
    assert not [target for target in FALLBACKS if target._schema.is_mutable]


def evaluate(index: Index, point: tuple[int, ...]) -> int:
    total = index.const
    for atom, coefficient in index.terms.items():
        if isinstance(atom, Var):
            value = point[atom.position]
        elif isinstance(atom, FloorDiv):
            value = evaluate(atom.base, point) // atom.divisor
        else:
            assert isinstance(atom, Mod)
            value = evaluate(atom.base, point) % atom.divisor
        total += coefficient * value
    return total


SHAPES = [
    (24,),
    (2, 12),
    (12, 2),
    (4, 6),
    (6, 4),
    (2, 3, 4),
    (4, 3, 2),
    (1, 24),
    (24, 1),
    (2, 1, 12),
    (3, 8),
    (8, 3),
]


@pytest.mark.parametrize("old,new", list(itertools.product(SHAPES, SHAPES)))
def test_reshaped_indices_name_the_same_element(old, new):
    index = reshape(old, new, variables(new))
    again = reshape(new, old, index)
    strides = torch.empty(old).stride()
    for flat, point in enumerate(itertools.product(*map(range, new))):
        place = [evaluate(i, point) for i in index]
        assert all(0 <= p < size for p, size in zip(place, old, strict=True))
        assert sum(p * s for p, s in zip(place, strides, strict=True)) == flat
        assert evaluate(recombine(flatten(index, strides)), point) == flat
    assert [evaluate(i, (0,) * len(new)) for i in again] == [0] * len(new)


def test_random_chains_of_views_keep_their_elements():
    rng = random.Random(0)
    from inductor_backend.ir.nodes import Buffer, BufferKind
    from inductor_backend.ir.views import Ref

    for _ in range(200):
        sizes = tuple(rng.choice([1, 2, 3, 4]) for _ in range(3))
        real = torch.arange(torch.Size(sizes).numel()).view(sizes)
        ref = Ref.of(Buffer("b", torch.int64, BufferLayout(sizes, real.stride()), BufferKind.TEMP))
        view = real
        for _ in range(4):
            ref, view = random_view(rng, ref, view)
        base = real.reshape(-1)
        layout = ref.strided()
        if layout is not None:
            assert torch.equal(base.as_strided(layout.sizes, layout.strides, layout.offset), view)
        for point in itertools.product(*map(range, view.shape)):
            flat = ref.buffer.layout.flat([i for i in ref.index])
            assert base[evaluate(flat, point)] == view[point]


def random_view(rng, ref, view):
    kind = rng.choice(["permute", "reshape", "slice", "flip", "unsqueeze", "select"])
    rank = view.dim()
    if kind == "permute" and rank:
        order = rng.sample(range(rank), rank)
        return ref.permute(order), view.permute(order)
    if kind == "reshape":
        sizes = (
            rng.choice([(view.numel(),), (1, view.numel()), (*view.shape[:1], -1)])
            if rank
            else (1,)
        )
        new = view.reshape(sizes)
        return ref.reshape(tuple(new.shape)), new
    if kind == "slice" and rank:
        dim = rng.randrange(rank)
        length = max(view.shape[dim] - 1, 1)
        start = view.shape[dim] - length
        return ref.slice(dim, start, length), view.narrow(dim, start, length)
    if kind == "flip" and rank:
        dim = rng.randrange(rank)
        return ref.flip([dim]), view.flip(dim)
    if kind == "select" and rank > 1:
        return ref.select(0, view.shape[0] - 1), view[-1]
    return ref.unsqueeze(0), view.unsqueeze(0)


def test_symbolic_reshapes_need_no_division_where_dimensions_line_up():
    s = sympy.Symbol("s", positive=True, integer=True)
    index = reshape((s, 12, 64), (s, 768), variables((s, 768)))
    assert index[0] == variables((s, 768))[0]
    assert recombine(flatten(index, (768, 64, 1))) == flatten(variables((s, 768)), (768, 1))


def test_size_text_evaluates_to_the_size():
    s, t = sympy.symbols("s t", positive=True, integer=True)
    for expr in (
        s * t + 3,
        aligned(4 * s),
        s**2 * 5,
        sympy.floor(s / 2),
        sympy.Max(s, t) - 1,
        3 * s / 2 * 2,
    ):
        text = size_expression(expr, "python")
        for a, b in ((2, 3), (7, 5), (64, 1)):
            want = expr.subs({s: a, t: b})
            want = int(want) if want.is_Integer else -(-4 * a // 64) * 64
            assert eval(text, {"s": a, "t": b}) == want, text


def test_equal_values_are_one_object():
    i = variables((4, 5))
    a = make("add", load("b", i, torch.float32), const(1, torch.float32))
    assert a is make("add", load("b", i, torch.float32), const(1, torch.float32))
    assert a is not make("add", load("c", i, torch.float32), const(1, torch.float32))
    assert const(0.0, torch.float32) is not const(-0.0, torch.float32)
    assert const(1, torch.int64) is not const(True, torch.bool)


def test_an_unknown_op_cannot_be_built():
    with pytest.raises(KeyError):
        make("frobnicate", const(1, torch.float32))
    with pytest.raises(ValueError, match="takes 2 values"):
        make("add", const(1, torch.float32))
