"""Triton kernels that a program launches itself: nodes of the graph, or explained breaks. Run by
Triton's interpreter.
"""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

import tracer_core
from tracer_core.native_effects import triton_launches
from tracer_core.native_effects.triton_launches import Unclear, written

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
#: On a GPU for real, with ``-m gpu`` as the others.
pytestmark = (
    pytest.mark.gpu
    if ON_GPU
    else pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") != "1", reason="no GPU, and Triton does not interpret"
    )
)


@triton.jit
def added(x_ptr, y_ptr, out_ptr, n, scale, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    x = tl.load(x_ptr + at, mask=inside)
    y = tl.load(y_ptr + at, mask=inside)
    tl.store(out_ptr + at, x + y * scale, mask=inside)


@triton.jit
def two(x_ptr, a_ptr, b_ptr, n, BLOCK: tl.constexpr = 32):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    place = b_ptr + at
    tl.store(a_ptr + at, x * 2, mask=at < n)
    tl.store(place, x * 3, mask=at < n)


@triton.jit
def _written_elsewhere(pointer, value):
    tl.store(pointer, value)


@triton.jit
def by_helper(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    _written_elsewhere(out_ptr + at, tl.load(x_ptr + at) + 1)


@triton.jit
def reads_only(x_ptr, BLOCK: tl.constexpr):
    tl.load(x_ptr + tl.arange(0, BLOCK))


@triton.jit
def by_module(x_ptr, out_ptr, n_ptr):
    here = x_ptr + 1
    elsewhere.anything(here, out_ptr)
    tl.load(n_ptr)


def launched(x, y, scale=0.5):
    x = x.sin()
    out = torch.empty_like(x)
    n = out.numel()
    added[(triton.cdiv(n, 64),)](x, y, out, n, scale, BLOCK=64)
    return out * 2


def expected(x, y, scale=0.5):
    return (x.sin() + y * scale) * 2


def R(*sizes):
    return torch.randn(*sizes, device=DEVICE)


def counted(fn, *args):
    report = tracer_core.explain(fn)(*args)
    return len(report.graphs), [record.reason for record in report.breaks]


@pytest.mark.parametrize("backend", ["inductor", "eager", "aten_eager"])
def test_a_launch_is_a_node_of_the_graph(backend):
    fast = tracer_core.compile(launched, backend=backend, fullgraph=True)
    for size in (100, 100, 37, 130):
        x, y = R(size), R(size)
        torch.testing.assert_close(fast(x, y), expected(x, y))
    torch.testing.assert_close(fast(x, y, 2.0), expected(x, y, 2.0))


def test_a_grid_that_asks_for_the_parameters():
    def program(x, y):
        out = torch.zeros_like(x)
        added[lambda inputs: (triton.cdiv(inputs["n"], inputs["BLOCK"]), 1)](
            x, y, out, x.numel(), 1.0, BLOCK=32
        )
        return out

    fast = tracer_core.compile(program, backend="eager", fullgraph=True)
    for size in (70, 10):
        x, y = R(size), R(size)
        torch.testing.assert_close(fast(x, y), x + y)


def test_several_results_defaults_and_names():
    def program(x):
        a, b = torch.zeros(40, device=x.device), torch.zeros(40, device=x.device)
        two[(1,)](b_ptr=b, n=20, x_ptr=x, a_ptr=a)
        return a + 1, b, x

    x = R(20)
    a, b, same = tracer_core.compile(program, backend="eager", fullgraph=True)(x)
    assert same is x
    torch.testing.assert_close(a[:20], x * 2 + 1)
    torch.testing.assert_close(b[:20], x * 3)
    assert not b[20:].any() and (a[20:] == 1).all()


def test_one_after_another_and_a_result_that_is_read_in_between():
    def program(x, y):
        out = torch.empty_like(x)
        added[(4,)](x, y, out, x.numel(), 1.0, BLOCK=32)
        between = out * 2
        added[(4,)](x, between, out, x.numel(), 1.0, BLOCK=32)
        return out, between

    x, y = R(100), R(100)
    out, between = tracer_core.compile(program, fullgraph=True)(x, y)
    torch.testing.assert_close(between, (x + y) * 2)
    torch.testing.assert_close(out, x + (x + y) * 2)


def writes_to_an_input(x, y):
    added[(4,)](x, x, y, x.numel(), 1.0, BLOCK=32)
    return y * 2


def writes_to_a_view(x, y):
    flat = y.view(10, 10)
    added[(4,)](x, x, flat, x.numel(), 1.0, BLOCK=32)
    return y * 2


def a_part(x, y):
    out = torch.zeros(200, device=x.device)
    added[(4,)](x, y, out[50:150], 100, 1.0, BLOCK=32)
    return out * 2


def twice_the_same(x, y):
    out = x * 1
    added[(4,)](out, y, out, x.numel(), 1.0, BLOCK=32)
    return out + 1


def no_writes(x, y):
    reads_only[(1,)](x, BLOCK=64)
    return x + y


BROKEN = {
    "writes to an input": (writes_to_an_input, "before this segment"),
    "writes to a view of an input": (writes_to_a_view, "before this segment"),
    "a part": (a_part, "part of its memory"),
    "twice the same": (twice_the_same, "share the memory"),
    "no writes": (no_writes, "writes to none"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_node_is_launched_by_the_program(name):
    fn, reason = BROKEN[name]
    x, y = R(100), R(100)
    fast = tracer_core.compile(fn, backend="eager")
    for _ in range(3):
        mine, theirs = y.clone(), y.clone()
        torch.testing.assert_close(fast(x, mine), fn(x, theirs))
        torch.testing.assert_close(mine, theirs)
    count, reasons = counted(fn, x, y.clone())
    assert len(reasons) == 1 and reason in reasons[0], reasons


def test_gradients_are_eagers():
    x, y = R(100).requires_grad_(), R(100)
    fast = tracer_core.compile(launched, backend="eager")
    assert fast(x, y).requires_grad == launched(x, y).requires_grad
    assert "gradients" in counted(launched, x, y)[1][0]
    with torch.no_grad():
        assert counted(launched, x, y) == (1, [])


def test_what_a_kernel_writes_is_read_from_its_source():
    def pointers(kernel):
        return {name for name in written(kernel) if name.endswith("_ptr")}

    assert pointers(added) == {"out_ptr"} and pointers(two) == {"a_ptr", "b_ptr"}
    assert pointers(by_helper) == {"out_ptr"} and pointers(reads_only) == set()
    assert pointers(by_module) == {"x_ptr", "out_ptr"}  # another module's function may write to all


def test_a_helper_that_is_given_a_pointer_may_write():
    def program(x):
        out = torch.zeros_like(x)
        by_helper[(1,)](x, out, BLOCK=16)
        return out * 2

    x = R(16)
    torch.testing.assert_close(
        tracer_core.compile(program, backend="eager", fullgraph=True)(x), (x + 1) * 2
    )


def test_sources_that_hide_what_is_written():
    class Kernel:
        @staticmethod
        def fn(x_ptr):
            f = lambda p: tl.store(p, 0)
            f(x_ptr)

    with pytest.raises(Unclear):
        written(Kernel)


def test_one_operator_a_kernel_and_layout():
    block = triton_launches.Constant(32, "int 32")
    tensors = tuple((name, "Tensor", None) for name in ("x_ptr", "a_ptr", "b_ptr"))
    layout = triton_launches.LaunchLayout(
        (*tensors, ("n", "SymInt", None), ("BLOCK", "constant", block)), ()
    )
    first = triton_launches.operator_for(two, layout)
    assert triton_launches.operator_for(two, layout) is first and first[1] == (4, 5)


@triton.jit
def typed(x_ptr, out_ptr, value: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at) / value)


def with_kernel(kernel, x, *constants):
    out = torch.empty_like(x)
    kernel[(1,)](x, out, *constants, BLOCK=16)
    return out


@triton.jit
def doubled(x_ptr, out_ptr, value: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at) * 2)


def test_another_kernel_and_other_constants_are_other_graphs():
    x = R(16)
    fast = tracer_core.compile(with_kernel, backend="eager", fullgraph=True)
    for kernel, constant in (
        (typed, 2),
        (doubled, 2),
        (typed, 4),
        (typed, 2.0),
        (doubled, 2),
        (typed, 0.5),
    ):
        torch.testing.assert_close(fast(kernel, x, constant), with_kernel(kernel, x, constant))


def test_a_kernel_that_is_replaced(monkeypatch):
    class Holder:
        kernel = typed

        def __call__(self, x):
            return with_kernel(self.kernel, x, 2)

    holder, x = Holder(), R(16)
    fast = tracer_core.compile(holder, backend="eager", fullgraph=True)
    torch.testing.assert_close(fast(x), x / 2)
    holder.kernel = doubled
    torch.testing.assert_close(fast(x), x * 2)


def _benchmark(function, quantiles=None, **unused):
    function()
    return [1.0, 1.0, 1.0]


@triton.autotune(
    configs=[triton.Config({"BLOCK": 16}, num_warps=2), triton.Config({"BLOCK": 32}, num_warps=4)],
    key=["n"],
    restore_value=["out_ptr"],
    do_bench=_benchmark,
)
@triton.jit
def tuned(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(out_ptr + at, mask=inside) + tl.load(x_ptr + at, mask=inside)
    tl.store(out_ptr + at, total, mask=inside)


def with_tuner(x):
    out = torch.ones_like(x)
    tuned[lambda inputs: (triton.cdiv(inputs["n"], inputs["BLOCK"]),)](x, out, x.numel())
    return out * 2


def test_a_tuned_kernel_is_a_node_too():
    fast = tracer_core.compile(with_tuner, backend="eager", fullgraph=True)
    for size in (100, 70, 100):
        x = R(size)
        torch.testing.assert_close(fast(x), (x + 1) * 2)


def test_a_value_that_the_tuner_would_give_is_the_programs_error():
    def program(x):
        out = torch.ones_like(x)
        tuned[(7,)](x, out, x.numel(), BLOCK=16)
        return out

    with pytest.raises(Exception, match="BLOCK"):
        tracer_core.compile(program, backend="eager")(R(100))
