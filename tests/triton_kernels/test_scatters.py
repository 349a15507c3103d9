"""Sums at indices as Triton kernels with atomic additions: against float64, and where algorithms have
to be deterministic.
"""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

import tracer_core
from inductor_backend.artifact import deserialize, serialize
from inductor_backend.ir.target import interpreted
from inductor_backend.pipeline import compile_graph
from inductor_backend.runtime.cuda.interpreter import interpreting
from tests.inductor.compiling import clones, compiled
from tests.inductor.test_operators import I, R
from tests.triton_kernels.test_interpreted import checked

pytestmark = pytest.mark.skipif(
    not interpreting(), reason="Triton compiles for a GPU in this process"
)

ATEN = torch.ops.aten

#: Of a few rows each of which many others are added to.
SUMS = {
    "index_put": (lambda y, i, x: y.index_put((i,), x, accumulate=True), R(5, 6), I(-5, 5, 300)),
    "index_put in two dimensions": (
        lambda y, i, x: y.index_put((i % 5, i % 3), x[:, 0], accumulate=True),
        R(5, 6),
        I(0, 5, 300),
    ),
    "index_put behind a slice": (
        lambda y, i, x: ATEN.index_put(y, [None, i], x.t(), True),
        R(6, 5),
        I(0, 5, 300),
    ),
    "index_add": (lambda y, i, x: y.index_add(0, i, x, alpha=2), R(5, 6), I(0, 5, 300)),
    "index_add twice": (
        lambda y, i, x: y.index_add(0, i, x).index_add(0, i.flip(0), x),
        R(5, 6),
        I(0, 5, 300),
    ),
    "scatter_add": (
        lambda y, i, x: y.scatter_add(0, i[:, None].expand(300, 6), x),
        R(5, 6),
        I(0, 5, 300),
    ),
    "embedding": (
        lambda y, i, x: ATEN.embedding_dense_backward(x, i, 5, -1, False) + y,
        R(5, 6),
        I(0, 5, 300),
    ),
    "embedding with padding": (
        lambda y, i, x: ATEN.embedding_dense_backward(x, i, 5, 2, False) + y,
        R(5, 6),
        I(0, 5, 300),
    ),
}


@contextmanager
def deterministic(warn_only=False):
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def error(actual, exact):
    return (actual.double() - exact).abs().max().item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", SUMS)
def test_sums_at_indices_are_as_exact_as_eagers(name, dtype):
    fn, y, i = SUMS[name]
    y, x = y.to(dtype), R(300, 6).to(dtype)
    with interpreted():
        result = compiled(fn, y, i, x)
    (actual,), eager = result(y, i, x), fn(y, i, x)
    assert (actual.dtype, actual.stride()) == (dtype, eager.stride())
    exact = fn(y.double(), i, x.double())
    assert error(actual, exact) <= max(error(eager, exact), exact.abs().max() * 1e-6)
    assert result.compilation.runner.artifact.externs == ()
    assert "tl.atomic_add" in result.source


@pytest.mark.parametrize("name", SUMS)
def test_sums_at_indices_are_atens_where_algorithms_must_be_deterministic(name):
    fn, y, i = SUMS[name]
    x = R(300, 6)
    with deterministic():
        result = checked(fn, y, i, x)
    assert result.compilation.runner.artifact.externs and "tl.atomic_add" not in result.source


def test_values_are_stored_at_indices_in_every_dtype():
    """One store for each element, of 8 and 16 bits, too; sums of 8 bits are ATen's."""
    for dtype in (torch.bfloat16, torch.int8, torch.bool):
        y, x = I(0, 2, 6, 3).to(dtype), I(0, 2, 4, 3).to(dtype)
        result = checked(lambda y, x: y.index_copy(0, torch.tensor([5, 0, 3, 1]), x), y, x)
        assert result.compilation.runner.artifact.externs == ()
    i = torch.tensor([1, 1, 1, 0])
    added = checked(
        lambda y, x: y.index_add(0, i, x).index_add(0, i, x),
        I(0, 2, 6, 3).to(torch.int8),
        I(0, 2, 4, 3).to(torch.int8),
    )
    assert set(added.compilation.runner.artifact.externs) == {"aten.index_add.default"}


def test_what_is_added_is_computed_where_it_is_added():
    """The gradient of a concatenation of two gathers: no copy of its halves."""

    def gradient(x, i, j, g):
        zeros = torch.zeros_like(x)
        left = zeros.index_put((i,), g[:, :4], accumulate=True)
        return left + zeros.index_put((j,), g[:, 4:].sin() * 2, accumulate=True)

    result = checked(gradient, R(5, 4), I(0, 5, 30), I(0, 5, 30), R(30, 8))
    assert "sin(" in result.source and result.compilation.runner.artifact.externs == ()
    assert result.source.count("tl.atomic_add") == 2 and result.kernels == 3  # and the zeros


SUMS_OF_GRADIENTS = {
    "two": lambda z, y, i, j, g: put(z, i, g) + put(z, j, g.sin()),
    "three": lambda z, y, i, j, g: put(z, i, g) + put(z, j, g * 2) + put(z, i, g.cos()),
    "one and rows": lambda z, y, i, j, g: y.exp() + put(z, i, g),
    "rows and two": lambda z, y, i, j, g: (put(z, j, g) + (y * 2 + put(z, i, g))) * 3,
    "rows that others read": lambda z, y, i, j, g: (y.exp() + put(z, i, g), y.exp() * 2),
    "a gradient that others read": lambda z, y, i, j, g: (
        (h := put(z, i, g)) + put(z, j, g), h.sum(0)),
    "a sum that others read": lambda z, y, i, j, g: (
        (h := put(z, i, g) + put(z, j, g)) * 2, h + put(z, i, g)),
    "twice the same": lambda z, y, i, j, g: (h := put(z, i, g)) + h,
    "an operand": lambda z, y, i, j, g: y + put(z, i, g),
    "onto a broadcast": lambda z, y, i, j, g: y[:1] + put(z, i, g),
    "onto a transposed": lambda z, y, i, j, g: (y.t().contiguous().t() + put(z, i, g)).relu(),
}  # fmt: skip


def put(zeros, index, values):
    return zeros.index_put((index,), values, accumulate=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SUMS_OF_GRADIENTS)
def test_gradients_of_gathers_are_added_where_they_are_scattered(name, dtype):
    def program(*inputs):
        return SUMS_OF_GRADIENTS[name](torch.zeros_like(inputs[0]), *inputs)

    inputs = R(5, 4).to(dtype), I(-5, 5, 30), I(0, 5, 30), R(30, 4).to(dtype)
    with interpreted():
        result = compiled(program, *inputs)
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    exact, eager = program(*wide), program(*inputs)
    single = isinstance(eager, torch.Tensor)
    for _ in range(2):
        before = clones(inputs)
        for ours, right, theirs in zip(result(*before), [exact] if single else exact,
                                       [eager] if single else eager, strict=True):  # fmt: skip
            assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())
            bound = max(error(theirs, right), right.abs().max() * torch.finfo(dtype).eps)
            assert error(ours, right) <= bound
        assert all(map(torch.equal, before, inputs))
    assert result.compilation.runner.artifact.externs == ()


def aten_calls(run):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        result = run()
    names = {event.name for event in profile.events()}
    return result, names & {"aten::embedding_dense_backward", "aten::index_put"}


def test_a_backward_honours_deterministic_algorithms_that_were_asked_for_after_its_forward():
    weight, i, j = R(7, 6).requires_grad_(), I(0, 7, 4, 5), I(0, 7, 11)

    def program(w, i, j):
        return F.embedding(i, w).tanh().square().mean() + w[j].sin().mean()

    (expected,) = torch.autograd.grad(program(weight, i, j), weight)
    with interpreted():
        fast = tracer_core.compile(program)
        for asked in (False, True, False, True):
            loss = fast(weight, i, j)
            if asked:
                with deterministic():
                    (actual,), calls = aten_calls(lambda: torch.autograd.grad(loss, weight))
            else:
                (actual,), calls = aten_calls(lambda: torch.autograd.grad(loss, weight))
            torch.testing.assert_close(actual, expected)
            assert bool(calls) is asked


def test_a_stored_graph_with_atomic_additions_says_that_it_has_no_deterministic_form():
    fn, y, i = SUMS["index_add"]
    x = R(300, 6)
    with interpreted():
        low = compiled(fn, y, i, x)
        runner = compile_graph(low.lowered.graph, low.lowered.spec)
        restored = deserialize(serialize(runner), low.lowered.spec)
        assert serialize(restored) == serialize(runner)
    torch.testing.assert_close(restored(clones([y, i, x]))[0], fn(y, i, x), atol=1e-5, rtol=1e-5)
    with deterministic(), pytest.raises(RuntimeError, match="not deterministic"):
        restored(clones([y, i, x]))
    with deterministic(warn_only=True), pytest.warns(UserWarning, match="not deterministic"):
        (actual,) = restored(clones([y, i, x]))
    torch.testing.assert_close(actual, fn(y, i, x), atol=1e-5, rtol=1e-5)


def gathered_points(x, i, g):
    """The gradient of ``x.gather(2, i)`` for one index of all channels."""
    expanded = i[:, None].expand(-1, x.shape[1], -1)
    return torch.zeros_like(x).scatter_add(2, expanded, g)


#: Programs that add along the last dimension, where another one is a loop's.
ADDED_ALONG_ROWS = {
    "read by a loop": (lambda x, i, g: gathered_points(x, i, g).sin(), True),
    "of channels-last values": (
        lambda x, i, g: gathered_points(x, i, g.transpose(1, 2).contiguous().transpose(1, 2)) * x, True),
    "added to twice": (
        lambda x, i, g: gathered_points(x, i, g).scatter_add(2, i[:, None].expand_as(g), g * 2) + 1,
        True),
    "by an index tensor": (
        lambda x, i, g: ATEN.index_put(x * 0, [None, None, i[0]], g, True).cos(), True),
    "onto other values": (
        lambda x, i, g: x.index_add(2, i[1], g).exp(), True),
    "reduced by its reader": (lambda x, i, g: gathered_points(x, i, g).sum((0, 2)), True),
    "returned": (gathered_points, False),
    "an index for each element": (
        lambda x, i, g: torch.zeros_like(x).scatter_add(2, (i[:, None] + g.abs().long()) % 10, g) * 2,
        False),
    "fewer than the result's elements": (
        lambda x, i, g: gathered_points(x, i[:, :4], g[:, :, :4]) * 2, False),
    "stored to along another dimension before": (
        lambda x, i, g: (x * 0).scatter(1, (i[:, :1, None] % 16).expand(3, 1, 10), x[:, :1])
        .scatter_add(2, i[:, None].expand_as(g), g).sin(), True),
    "few channels": (lambda x, i, g: gathered_points(x[:, :7], i, g[:, :7]).sin(), False),
    "along rows already": (
        lambda x, i, g: (x * 0).index_add(1, i[0] % 16, g.transpose(1, 2)[:, :, :10]).sin(), False),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ADDED_ALONG_ROWS)
def test_neighbouring_threads_add_to_neighbouring_elements(name, dynamic, dtype):
    fn, moved = ADDED_ALONG_ROWS[name]
    inputs = R(3, 16, 10).to(dtype), I(0, 10, 3, 40), R(3, 16, 40).to(dtype)
    with interpreted():
        result = compiled(fn, *inputs, dynamic=dynamic)
    (actual,), eager = result(*inputs), fn(*inputs)
    assert (actual.dtype, actual.stride()) == (dtype, eager.stride())
    exact = fn(*(x.double() if x.is_floating_point() else x for x in inputs))
    assert error(actual, exact) <= max(error(eager, exact), exact.abs().max() * 1e-6)
    program = result.compilation.program
    layouts = [
        program.buffers[name].layout
        for node in program.nodes
        for store in node.stores
        if store.atomic and store.combine == "add"
        for name in store.buffers
    ]
    moved = moved or (name == "returned" and dtype == torch.bfloat16)  # as float32, then rounded
    assert {layout.strides[1 if moved else 2] for layout in layouts} == {1}
