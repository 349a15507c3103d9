"""Programs that write to memory which the same call reads, or writes to, by another name, are
eager's.
"""

from __future__ import annotations

import itertools
import random

import pytest
import torch

import tracer_core
from tests.support.releases import RELEASE
from tracer_core import plugin_api
from tracer_core.aot import memory_overlap
from tracer_core.testing import compare, compare_aliasing, torch_graph

pytestmark = pytest.mark.usefixtures("strict")

LOWERED = {
    "foreach: reads what it wrote": lambda a, b, c: torch._foreach_add_([a, b], [c, a]),
    "foreach: one tensor twice": lambda a, b, c: torch._foreach_mul_([a, b, a], 2.0),
    "foreach: one tensor twice, values": lambda a, b, c: torch._foreach_add_([a, a], [b, c],
    alpha=0.5),
    "foreach: numbers of a list": lambda a, b, c: torch._foreach_mul_([a, b, a], [2.0, 3.0, 5.0]),
    "foreach: same places": lambda a, b, c: torch._foreach_mul_([a, b], [a, b]),
    "foreach: a row and a column": lambda a, b, c: torch._foreach_add_([a[0], a[:, 0]], [b[0], b[:,
    0]]),
    "foreach: rows of one": lambda a, b, c: torch._foreach_add_([a[0], a[1]], [a[2], a[3]]),
    "foreach: rows of each other": lambda a, b, c: torch._foreach_sub_([a[0], a[1]], [a[1], a[0]]),
    "foreach: swap": lambda a, b, c: torch._foreach_copy_([a, b], [b, a]),
    "foreach: three lists": lambda a, b, c: torch._foreach_addcmul_([a, b], [b, c], [c, a], [0.5,
    2.0]),
    "foreach: between": lambda a, b, c: torch._foreach_lerp_([a, b], [b, a], 0.3),
    "foreach: the overload": lambda a, b, c: torch.ops.aten._foreach_add_.List([a, b], [c, a]),
    "foreach: zeros": lambda a, b, c: torch._foreach_zero_([a, b, a]),
    "foreach: copy of integers": lambda a, b, c: torch._foreach_copy_([a, b], [b.long(),
    a.double()]),
    "itself": lambda a, b, c: (a.mul_(a), b.sub_(b)),
    "other columns": lambda a, b, c: a[:, :2].add_(a[:, 2:4]),
    "every second column": lambda a, b, c: a[:, ::2].copy_(a[:, 1:2]),
    "a row, augmented": lambda a, b, c: a[1:].__iadd__(1),
    "halves": lambda a, b, c: [item.mul_(other) for item, other in [a[:, :4].chunk(2, 1)]],
    "real and imaginary": lambda a, b, c: torch.view_as_complex(a[:,
    :2]).real.add_(torch.view_as_complex(a[:, :2]).imag),
}  # fmt: skip
REFUSED = {
    "foreach: a number of its own": lambda a, b, c: torch._foreach_mul_([a, b], a[0, 0]),
    "transposed": lambda a, b, c: a.add_(a.t()),
    "copy of the transposed": lambda a, b, c: a.copy_(a.t()),
    "rows moved": lambda a, b, c: a[1:].copy_(a[:-1]),
    "columns moved": lambda a, b, c: a[:, 1:].copy_(a[:, :-1]),
    "its first column": lambda a, b, c: a.sub_(a[:, :1]),
    "its first row": lambda a, b, c: a.div_(a[0]),
    "its corner": lambda a, b, c: a.div_(a[0, 0]),
    "a product into itself": lambda a, b, c: torch.mm(a, b, out=a),
    "a product of itself": lambda a, b, c: a.addmm_(a, b),
    "parts into the whole": lambda a, b, c: torch.cat([a[2:], a[:2]], out=a),
    "two results in one": lambda a, b, c: torch.aminmax(a, dim=0, out=(b[0], b[0])),
    "rows in reverse": lambda a, b, c: torch.unbind_copy(a, 0, out=[a[4], a[3], a[2], a[1], a[0]]),
    "a sum into its row": lambda a, b, c: torch.sum(a, 0, out=a[1]),
    "rows by index": lambda a, b, c: a.index_put_((torch.tensor([0, 1]),), a[1:3]),
    "scatter of itself": lambda a, b, c: a.scatter_add_(0, torch.zeros(5, 5, dtype=torch.long), a),
    "overlapping windows": lambda a, b, c: a.as_strided((3, 3), (1, 1)).add_(1),
}
if RELEASE >= (2, 15):  # refuses it itself
    del REFUSED["two results in one"]


def setitem_moved(a, b, c):
    a[:, 1:] = a[:, :-1]


def setitem_augmented(a, b, c):
    a[1:] += a[0].clone()
    a[:, 2] *= 3
    a[0], a[1] = a[1], a[0]
    for i in range(1, 5):
        a[i] += a[i - 1]


def setitem_moved_inside(a, b, c):
    return torch.utils.checkpoint.checkpoint(
        lambda x: setitem_moved(x, b, c), a, use_reentrant=False
    )


def one_statistic(a, b, c):
    return torch.nn.functional.batch_norm(a, b[0], b[0], training=True)


LOWERED["items"] = setitem_augmented
REFUSED |= {
    "items moved": setitem_moved,
    "items moved, in a checkpoint": setitem_moved_inside,
    "one running statistic": one_statistic,
}


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(5, 5, generator=generator) for _ in range(3)]


def outcome(fn, value):
    try:
        return fn(*value), None
    except RuntimeError as error:
        return None, str(error)


def is_eager(fn, backend, **options) -> None:
    def program(a, b, c):
        result = fn(a, b, c)
        return result, a + b

    compiled = tracer_core.compile(program, backend=backend, **options)
    for _ in range(3):
        eager, ours = inputs(), inputs()
        expected, actual = outcome(program, eager), outcome(compiled, ours)
        assert expected[1] == actual[1]
        compare(expected[0], actual[0])
        compare(eager, ours)
        compare_aliasing([eager, expected[0]], [ours, actual[0]])


@pytest.mark.sweep(keep=20)
@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
@pytest.mark.parametrize("name", LOWERED)
def test_what_has_an_order_is_lowered_in_it(name, backend, fallbacks):
    is_eager(LOWERED[name], backend)
    assert not fallbacks


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_none_runs_as_it_was_captured_and_says_so(name, fallbacks):
    is_eager(REFUSED[name], "aten_eager")
    assert fallbacks and "memory" in fallbacks[0].reason


@pytest.mark.parametrize("name", ["items", "other columns", "foreach: rows of one"])
def test_symbolic_sizes_are_lowered_too(name, fallbacks):
    is_eager(LOWERED[name], "aten_eager", dynamic=True)
    assert not fallbacks


def test_with_symbolic_sizes_an_overlap_is_seen(fallbacks):
    is_eager(REFUSED["columns moved"], "aten_eager", dynamic=True)
    assert fallbacks


def test_sizes_that_depend_on_data(fallbacks):
    def program(a, b, c):
        rows = a[b[:, 0] > 0]
        rows[1:] += 1
        rows[:, :2].add_(rows[:, 2:4])
        return rows

    is_eager(program, "aten_eager")


@pytest.mark.parametrize("backend", ["eager", "aten_eager"])
def test_lists_of_views_of_inputs_are_undone_before_an_error(backend):
    def program(a, b, c):
        torch._foreach_mul_([c[1:3], a], [0.5, 2.0])
        b.mul_(3)
        a.index_add_(0, torch.tensor([0, 0, 3]), a[1:4])

    is_eager(program, backend)


def test_counters_of_steps_that_are_one_tensor():
    def steps(x, count):
        torch._foreach_add_([count, count], 1)
        return x * count.item()

    compiled = tracer_core.compile(steps, backend="aten_eager")
    for start in range(3):
        eager, ours = torch.tensor(float(start)), torch.tensor(float(start))
        assert torch.equal(steps(torch.ones(2), eager), compiled(torch.ones(2), ours))
        assert torch.equal(eager, ours)


def test_a_parameter_given_twice_is_clipped_and_updated_twice():
    weight = torch.nn.Parameter(torch.ones(4))
    other = torch.nn.Parameter(torch.ones(4))

    def step(parameter, x):
        loss = (parameter * x).sum()
        loss.backward()
        with torch.no_grad():
            torch._foreach_mul_([parameter.grad, parameter.grad], 0.5)
            torch._foreach_add_(
                [parameter, parameter], [parameter.grad, parameter.grad], alpha=-0.1
            )
        return loss.detach()

    compiled = tracer_core.compile(step, backend="inductor")
    for _ in range(3):
        x = torch.arange(4.0)
        assert torch.equal(step(weight, x), compiled(other, x))
        assert torch.equal(weight, other) and torch.equal(weight.grad, other.grad)


def test_lowering_without_the_tracer_refuses_it():
    from tracer_core.contract.lowering_errors import LoweringUnsupported

    captured = torch_graph(lambda a: a.add_(a.t()), (torch.ones(3, 3),))
    with pytest.raises(LoweringUnsupported, match="by another name"):
        plugin_api.lower(
            captured.gm, captured.real_inputs, "aten_eager", input_specs=captured.inputs
        )


def elements(tensor: torch.Tensor) -> list[int]:
    size = tensor.element_size()
    indices = itertools.product(*map(range, tensor.shape))
    starts = [
        tensor.storage_offset() + sum(map(int.__mul__, index, tensor.stride())) for index in indices
    ]
    return [start * size + byte for start in starts for byte in range(size)]


def test_places_of_random_views():
    rng = random.Random(0)
    memory = torch.arange(1000)

    def view() -> torch.Tensor:
        dims = range(rng.randint(0, 3))
        base = memory if rng.random() < 0.7 else memory.view(torch.int32)
        sizes, steps = (
            [rng.randint(1, 4) for _ in dims],
            [rng.choice([0, 1, 2, 3, 5, 8, 12, 40]) for _ in dims],
        )
        return base.as_strided(sizes, steps, rng.randint(0, 40))

    for _ in range(1000):
        item, other = view(), view()
        common = set(elements(item)) & set(elements(other))
        assert memory_overlap.apart(
            memory_overlap.MemoryRange.of(item), memory_overlap.MemoryRange.of(other)
        ) == (not common)
        assert memory_overlap.overlaps_itself(item) or len(set(elements(item))) == len(
            elements(item)
        )
        if memory_overlap.same(item, other):
            assert elements(item) == elements(other)
