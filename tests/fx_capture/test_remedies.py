"""The remedies that messages name: a program that does what the message says has no such break.

`REMEDIES` has the words of the hint, a program with the break and one that follows the hint. A hint
that is changed needs other programs here.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import tracer_core
from tests.support.comparison import assert_same
from tracer_core.graph_breaks import BREAKS
from tracer_core.trace import unrolled_loops

X = torch.arange(4.0)


@dataclass
class Remedy:
    kind: str
    #: What the hint says.
    says: str
    #: What is compiled, before and after.
    before: Callable[..., Any]
    after: Callable[..., Any]
    #: Makes the call: takes the compiled function.
    call_before: Callable[[Any], Any] = lambda fast: fast(X)
    call_after: Callable[[Any], Any] = lambda fast: fast(X)


REMEDIES: list[Remedy] = []


def remedy(*args: Any, **calls: Any) -> None:
    REMEDIES.append(Remedy(*args, **calls))


# Values of tensors


def branch(x):
    return x * 2 if x.sum() > 0 else x - 1


def decided(x, is_positive):
    return x * 2 if is_positive else x - 1


remedy("data_dependent_branch", "use torch.where", branch,
       lambda x: torch.where(x.sum() > 0, x * 2, x - 1))  # fmt: skip
remedy("data_dependent_branch", "or torch.cond", branch,
       lambda x: torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,)))  # fmt: skip
remedy("data_dependent_branch", "move the decision out of the compiled function", branch, decided,
       call_after=lambda fast: fast(X, bool(X.sum() > 0)))  # fmt: skip
remedy("data_dependent_value", "keep the value in a tensor",
       lambda x: x / x.max().item(), lambda x: x / x.max())  # fmt: skip
remedy("data_dependent_shape", "torch.where with three arguments",
       lambda x: torch.func.grad(lambda y: y[y > 1].sum())(x),
       lambda x: torch.func.grad(lambda y: torch.where(y > 1, y, 0).sum())(x))  # fmt: skip

# Calls

#: Takes any objects that can be added: tensors, too.
added_in_c = ctypes.pythonapi.PyNumber_Add
added_in_c.restype, added_in_c.argtypes = ctypes.py_object, [ctypes.py_object, ctypes.py_object]


@torch.library.custom_op("remedies::added", mutates_args=())
def added_by_operator(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return added_in_c(x, y)


@added_by_operator.register_fake
def _(x, y):
    return torch.empty_like(x)


@tracer_core.allow_in_graph
def added_in_graph(x, y):
    return added_in_c(x, y)


def adds(x):
    return added_in_c(x, x) * 2


remedy("unknown_native", "make it an operator of torch with torch.library.custom_op and register_fake",
       adds, lambda x: added_by_operator(x, x) * 2)  # fmt: skip
remedy("unknown_native", "move the call out of the compiled function", adds, lambda y: y * 2,
       call_after=lambda fast: fast(added_in_c(X, X)))  # fmt: skip
remedy("unknown_native", "a function of tensors that is made of torch's operators may be marked with"
       " tracer_core.allow_in_graph", adds, lambda x: added_in_graph(x, x) * 2)  # fmt: skip
remedy("native_python", "move the call out of the compiled function",
       lambda x: x * eval("2"), lambda x, scale: x * scale,
       call_after=lambda fast: fast(X, eval("2")))  # fmt: skip


def timed(x):
    time.monotonic()
    return x.sin()


def timing(fast):
    time.monotonic()
    return fast(X)


remedy("side_effect_native", "move the call out of the compiled function", timed, torch.sin,
       call_after=timing)  # fmt: skip


async def twice(x):
    return x * 2


def finished(coroutine):
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    return stopped.value.value


remedy("async_function", "compile the ordinary functions that it calls", twice, lambda x: x * 2,
       call_before=lambda fast: finished(fast(X)))  # fmt: skip


def scaled(x):
    return x * 3


disabled = tracer_core.disable(scaled)
remedy("disabled", "remove the mark", lambda x: disabled(x) + 1, lambda x: scaled(x) + 1)
remedy("disabled", "move the call out of the compiled function", lambda x: disabled(x) + 1,
       lambda y: y + 1, call_after=lambda fast: fast(disabled(X)))  # fmt: skip
remedy("requested", "remove the call", lambda x: (tracer_core.graph_break(), x + 1)[1],
       lambda x: x + 1)  # fmt: skip


# Objects


def weights():
    yield from (1.0, 2.0)


def weighted(x, weights):
    return [x * weight for weight in weights]


remedy("live_iterator", "loop over a list", weighted, weighted,
       call_before=lambda fast: fast(X, weights()), call_after=lambda fast: fast(X, list(weights())))  # fmt: skip
remedy("live_iterator", "or a range that is created in the same code region",
       weighted, lambda x: [x * weight for weight in range(1, 3)],
       call_before=lambda fast: fast(X, (float(n) for n in range(1, 3))))  # fmt: skip


class Head:
    scale = 2.0


heads = {Head(), Head()}
remedy("unsupported_value", "use tensors, numbers, lists and dicts in its place",
       lambda x: sum(x * head.scale for head in heads),
       lambda x, heads: sum(x * head.scale for head in heads),
       call_after=lambda fast: fast(X, list(heads)))  # fmt: skip
remedy("unsupported_value", "create it outside the compiled function",
       lambda x: x * functools.reduce(lambda total, head: total + head.scale, heads, 0),
       lambda x, total: x * total,
       call_after=lambda fast: fast(X, sum(head.scale for head in heads)))  # fmt: skip


class Phase:
    scale = 3


class Other:
    scale = 1


phase = Phase()


def changes(x):
    phase.__class__ = Other
    return x * phase.scale


def change_first(fast):
    phase.__class__ = Other
    return fast(X)


remedy("unsupported_mutation", "change it outside the compiled function", changes,
       lambda x: x * phase.scale, call_after=change_first)  # fmt: skip


def resized(x, buffer):
    return buffer.resize_(4).copy_(x) * 2


remedy("tensor_metadata_mutation", "change it outside the compiled function", resized,
       lambda x, buffer: buffer.copy_(x) * 2,
       call_before=lambda fast: fast(X, torch.empty(0)),
       call_after=lambda fast: fast(X, torch.empty(0).resize_(4)))  # fmt: skip


class Ending:
    def __del__(self):
        pass


def drops(x):
    ending = Ending()
    y = x + 1
    del ending
    return y


class Context:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


def leaves(x):
    with Context():
        return x + 1


def outside(fast):
    ending = Ending()
    y = fast(X)
    del ending
    return y


remedy("finalizer", "use a with statement in place of __del__", drops, leaves)
remedy("finalizer", "create it outside the compiled function", drops, lambda x: x + 1,
       call_after=outside)  # fmt: skip
remedy("real_tensor_in_trace", "pass the tensor as an argument",
       lambda x: x + torch.FloatTensor(range(4)), lambda x, offset: x + offset,
       call_after=lambda fast: fast(X, torch.FloatTensor(range(4))))  # fmt: skip

# Gradients, functions of functions, modes

weight = torch.ones(4, requires_grad=True)


def gradient_of(loss):
    (result,) = torch.autograd.grad(loss, weight)
    return result * 2


def gradient(x):
    return gradient_of((weight * x).sum())


remedy("autograd_in_graph", "compute the loss and call backward() in one compiled function",
       gradient_of, gradient, call_before=lambda fast: fast((weight * X).sum()))  # fmt: skip
remedy("autograd_in_graph", "read autograd's records, and add hooks, outside of it",
       lambda x: (x._version, x * 2), lambda x: x * 2,
       call_after=lambda fast: (X._version, fast(X)))  # fmt: skip

seen: list[Any] = []


class Noting(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        seen.append(x.shape)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Doubling(Noting):
    @staticmethod
    def forward(ctx, x):
        return x * 2


def notes_itself(x):
    seen.append(x.shape)
    return Doubling.apply(x)


remedy("higher_order", "let it depend on tensors only and return its results",
       lambda x: Noting.apply(x), notes_itself)  # fmt: skip
remedy("higher_order", "call what cannot be a node outside of the compiled function",
       lambda x: torch.func.functionalize(torch.sin)(x) * 2, lambda y: y * 2,
       call_after=lambda fast: fast(torch.func.functionalize(torch.sin)(X)))  # fmt: skip


def on_the_cpu(x):
    torch.set_default_device("cpu")
    y = x + torch.ones(4)
    torch.set_default_device(None)
    return y


def with_default_device(fast):
    torch.set_default_device("cpu")
    try:
        return fast(X)
    finally:
        torch.set_default_device(None)


class Mode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def breaks_inside(x):
    with Mode():
        y = x.sin()
        y = disabled(y)
    return y


def breaks_behind(x):
    with Mode():
        y = x.sin()
    return disabled(y)


remedy("torch_mode", "enter set_default_device around the compiled function", on_the_cpu,
       lambda x: x + torch.ones(4), call_after=with_default_device)  # fmt: skip
remedy("torch_mode", "leave the other modes before what breaks the graph", breaks_inside,
       breaks_behind)  # fmt: skip


@torch.library.custom_op("remedies::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch.library.custom_op("remedies::doubled_with_fake", mutates_args=())
def doubled_with_fake(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@doubled_with_fake.register_fake
def _(x):
    return torch.empty_like(x)


@tracer_core.allow_in_graph
def first_number(x):
    return torch.full((2,), ctypes.c_float.from_address(x.data_ptr()).value)


@torch.library.custom_op("remedies::first_number", mutates_args=())
def first_number_op(x: torch.Tensor) -> torch.Tensor:
    return torch.full((2,), ctypes.c_float.from_address(x.data_ptr()).value)


@first_number_op.register_fake
def _(x):
    return x.new_empty(2)


remedy("operator_failed", "give an operator of your own a fake kernel (register_fake)",
       lambda x: doubled(x) + 1, lambda x: doubled_with_fake(x) + 1)  # fmt: skip
remedy("operator_failed", "make a function that reads memory an operator with"
       " torch.library.custom_op", lambda x: first_number(x) + 1,
       lambda x: first_number_op(x) + 1)  # fmt: skip


def counting(x):
    total = 0
    while total < 1_000:
        total += 1
    return x.sin() + total


remedy("long_loop", "move the loop out of the compiled function", counting,
       lambda x, total: x.sin() + total, call_after=lambda fast: fast(X, 1_000))  # fmt: skip


@pytest.fixture(autouse=True)
def as_users_run_it(monkeypatch):
    monkeypatch.setenv("TRACER_STRICT", "0")
    monkeypatch.setenv("TRACER_KEEP", "0")
    monkeypatch.setattr(unrolled_loops, "MAX_INSTRUCTIONS_WITHOUT_OPERATOR", 500)
    phase.__class__ = Phase
    yield
    tracer_core.reset()


def explained(program, call):
    """Returns what `explain` says of the call, and what it says as text."""
    reports = []

    def fast(*args):
        reports.append(tracer_core.explain(tracer_core.compile(program, backend="eager"))(*args))
        return reports[-1].result

    return call(fast), reports[-1]


@pytest.mark.parametrize("number", range(len(REMEDIES)), ids=lambda n: f"{n}-{REMEDIES[n].kind}")
@pytest.mark.filterwarnings("ignore")
def test_the_remedy_removes_the_break(number):
    item = REMEDIES[number]
    assert item.says in BREAKS[item.kind].hint
    expected = item.call_before(item.before)
    phase.__class__ = Phase
    result, report = explained(item.before, item.call_before)
    assert_same(result, expected)
    if item.kind == "long_loop":  # the function that has the loop runs eagerly, and says why
        assert "goes on for 500 instructions" in report.skipped[0]
    else:
        assert item.kind in {end.kind for end in report.breaks}, str(report)
        assert f"what would remove it: {BREAKS[item.kind].hint}" in str(report)
    phase.__class__ = Phase
    result, report = explained(item.after, item.call_after)
    assert_same(result, expected)
    assert report.skipped == () and report.graph_count > 0
    others = {"disabled"} if item.after is breaks_behind else set()
    assert {end.kind for end in report.breaks} == others, str(report)


def test_a_loop_in_a_function_of_its_own_keeps_the_rest_compiled():
    def count():
        total = 0
        while total < 1_000:
            total += 1
        return total

    def step(x):
        return (x.sin() + count()).cos()

    assert "a function of its own keeps what is around it compiled" in BREAKS["long_loop"].hint
    report = tracer_core.explain(tracer_core.compile(step, backend="eager"))(X)
    assert_same(report.result, step(X))
    targets = [node.target for graph in report.graphs for node in graph.graph.nodes]
    assert {"sin", "cos"} <= set(targets)


def test_most_kinds_have_their_remedies_here():
    """The others are on docs/graph_breaks.md alone."""
    assert len({item.kind for item in REMEDIES}) >= 20
