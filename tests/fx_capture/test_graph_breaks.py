"""Each kind of graph break is triggered by a program, which still gives eager's result."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import enum
import types
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import tracer_core
from tests.support.eager_reference import compare_with_eager, same
from tracer_core.errors import GraphBreakError
from tracer_core.graph_breaks import BREAKS
from tracer_core.testing import CaptureCounter

X, Y = torch.randn(3, 4), torch.randn(3, 4)
SEEN: dict[str, list] = {}


def kind(name, *programs):
    SEEN.setdefault(name, []).extend(programs)


def live(x, items=(1, 2)):
    it = iter(collections.deque(items))
    print(end="", flush=[])
    return x * next(it), [x + v for v in it]


TOLD: list[int] = []


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        TOLD.append(1)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def counted(x):
    return Scale.apply(x)


class Tenfold(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 10 if func is torch.ops.aten.sin.default else result


def in_a_mode(x):
    with Tenfold():
        y = torch.sin(x)
        tracer_core.graph_break()
    return y + torch.sin(x)


class Sub(torch.Tensor):
    pass


def resized(x):
    y = x.clone()
    y.resize_(2, 2)
    return y + 1


def writes_counted(x):
    return x._version, x * 2


def hidden(x, box=[]):
    return x


def enum_with_init(x):
    class Level(enum.Enum):
        LOW = 1

        def __init__(self, number):
            self.number = number * 2

    return x * Level.LOW.number


#: What the interactive prompt makes of a line.
PROMPT = types.FunctionType(compile("None", "<prompt>", "single"), {})


def opcode(x):
    PROMPT()
    return x * 2


async def twice(x):
    return x * 2


def event_loop(x):
    return asyncio.run(twice(x + 1)) + 1


class Before:
    k = 2


class After(Before):
    k = 3


class Ending:
    def __del__(self):
        ENDED.append(1)


ENDED: list[int] = []


def finalized(x):
    ending = Ending()
    y = x + 1
    del ending
    return y


def reclassed(x, box=[Before()]):
    box[0].__class__ = After
    return x * box[0].k


@tracer_core.disable
def disabled(x):
    return x * 3


def requested(x):
    x = x + 1
    tracer_core.graph_break()
    return x * 2


def generator_kept(x):
    g = enumerate(x * i for i in range(3))
    first = next(g)
    print(end="", flush=[])
    return first, next(g)


OBJECTS = {object(), object()}


def outside(x):
    return torch.ops.aten.add.Tensor(x, torch.from_numpy(np.ones(4, dtype="float32")))


kind(
    "data_dependent_branch",
    lambda x: x + 1 if x.sum() > 0 else x - 1,
    lambda x: x * 2 if (x * 0).any() else x,
)
kind("data_dependent_value", lambda x: x * x.sum().item(), lambda x: (x + 1).tolist(),
lambda x: float(np.cumsum(x.abs().numpy())[-1]),
     lambda x: float(x[0, 0]), lambda x: f"{x.sum()}",
     lambda x: x.to(torch.complex64).numpy())  # fmt: skip
kind("data_dependent_shape", lambda x: torch.func.vmap(lambda r: r.nonzero())(x))
kind("unknown_native", lambda x: x + len(memoryview(b"ab")), lambda x: x * len(memoryview(b"abc")))
kind(
    "native_python",
    lambda x: (x + 1, len(__import__("copy").deepcopy([{object()}]))),
    lambda x: x * eval("2"),
)
kind(
    "side_effect_native",
    lambda x: (print(end="", flush=[]), x + 1)[1],
    lambda x: (warnings.warn_explicit("w", UserWarning, "f.py", 1), x)[1],
)
kind("disabled", lambda x: disabled(x + 1) * 2)
kind("torch_mode", in_a_mode)
kind("requested", requested)
kind("live_iterator", live, generator_kept)
kind("unsupported_opcode", opcode)
kind("async_function", event_loop)
kind("processes", lambda x: x + torch.distributed.is_gloo_available())
kind("class_statement", enum_with_init)
kind("unsupported_mutation", reclassed)
kind("finalizer", finalized)
kind("unsupported_value", lambda x: [x + 1 for _ in OBJECTS])
kind(
    "tensor_subclass",
    lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8).dequantize() + 1,
    lambda x: torch.nn.Parameter(x).sum() + 1,
    lambda x: Sub([1.0]).sum() + x,
)
kind("tensor_metadata_mutation", resized)
kind("autograd_in_graph", writes_counted)
kind("higher_order", lambda x: torch.func.functionalize(torch.sin)(x) * 2, counted)

#: Kinds that user code reaches only through a limit or a fault of torch; each with the reason it
#: has no program.
ELSEWHERE = {
    "raises": "no break to the user: test_exceptions_that_leave.py",
    "recompile_limit": "test_limits.py",
    "long_loop": "takes seconds: test_unrolled_loops.py",
    "step_limit": "takes minutes: test_step_limit lowers the limit",
    "missing_in_torch": "tests/torch_private/test_missing_names.py",
    "operator_failed": "test_operator_failed",
    "real_tensor_in_trace": "test_real_tensor_in_trace",
}
CASES = [
    pytest.param(name, i, id=f"{name}-{i}")
    for name, programs in SEEN.items()
    for i in range(len(programs))
]


@pytest.mark.parametrize(("name", "number"), CASES)
@pytest.mark.filterwarnings("ignore")
def test_kind(name, number):
    seen = same(SEEN[name][number], (X,), (Y,), (X,), breaks=None)
    assert name in {kind for kind, _, _ in seen.counter.breaks}, seen.counter.breaks
    assert all(reason and location for _, reason, location in seen.counter.breaks)


def test_every_kind_has_a_program():
    assert set(BREAKS) - set(SEEN) - set(ELSEWHERE) == set()


def test_step_limit(monkeypatch):
    from tracer_core.trace import unrolled_loops

    monkeypatch.setattr(unrolled_loops, "MAX_TRACED_INSTRUCTIONS", 200)

    def f(x):
        for _ in range(100):
            x = x + 1
        return x

    seen = same(f, (X,), breaks=None)
    assert "step_limit" in {kind for kind, _, _ in seen.counter.breaks}


def test_operator_failed():
    lib = torch.library.Library("tracer_tests", "FRAGMENT")
    lib.define("no_fake(Tensor x) -> Tensor")
    lib.impl("no_fake", lambda x: x + 1, "CPU")
    seen = same(lambda x: torch.ops.tracer_tests.no_fake(x) * 2, (X,), (Y,), breaks=None)
    assert "operator_failed" in {kind for kind, _, _ in seen.counter.breaks}


def test_real_tensor_in_trace():
    seen = same(
        lambda x: x + torch.frombuffer(bytearray(16), dtype=torch.float32), (X,), breaks=None
    )
    assert seen.counter.breaks


def test_break_in_nested_inlined_calls():
    def g(x):
        y = x * 2
        print(end="", flush=[])
        return y + 1

    def h(x):
        return g(x + 1) * 3

    same(lambda x: h(x) - 1, (X,), (Y,), breaks=1, graphs=2)


def test_break_inside_with():
    class Log:
        entries = []

        def __enter__(self):
            self.n = 1

        def __exit__(self, *a):
            self.n = 2

    def f(x):
        m = Log()
        with m:
            x = x + 1
            print(end="", flush=[])
            x = x * 2
        return x, m.n

    same(f, (X,), (Y,), breaks=1, graphs=2)


def test_break_inside_no_grad():
    p = torch.ones(4, requires_grad=True)

    def f(x):
        with torch.no_grad():
            y = x * p
            print(end="", flush=[])
            z = y * p
        return y, z, x * p

    same(f, (X,), (Y,), breaks=1)


def test_break_inside_try():
    def f(x, n):
        try:
            x = x + 1
            print(end="", flush=[])
            if n:
                raise ValueError("x")
            x = x * 2
        except ValueError as error:
            return x, str(error)
        finally:
            x = x * 3
        return x

    same(f, (X, 0), (X, 1), (X, 0), breaks=None)


def test_break_raises_and_is_caught():
    def f(x):
        try:
            x = x + 1
            int("no number")
            open("/nonexistent/file")
        except ValueError:
            try:
                open("/nonexistent/file")
            except FileNotFoundError:
                return x * 2

    same(f, (X,), (Y,), breaks=None)


def test_break_inside_generator():
    def gen(x):
        yield x + 1
        print(end="", flush=[])
        yield x * 2

    same(lambda x: [v + 1 for v in gen(x)], (X,), (Y,), breaks=None)


def test_loop_with_break_inside():
    def f(x):
        for i in range(4):
            x = x + i
            print(end="", flush=[])
        return x * 2

    same(f, (X,), (Y,), breaks=None)


def test_data_dependent_while():
    def f(x):
        n = 0
        while x.sum() < 10:
            x = x + 1
            n += 1
        return x, n

    same(f, (X,), (Y,), breaks=None)


def test_break_inside_comprehension_and_callback():
    def f(x):
        a = [(x + i).sum().item() > 0 for i in range(3)]
        b = sorted([3, 1, 2], key=lambda i: (x * i).sum().item())
        return x * 2, a, b

    same(f, (X,), (Y,), breaks=None)


def test_mutation_across_breaks():
    def make():
        log = []

        def f(x):
            log.append("before")
            y = x + 1
            print(end="", flush=[])
            log.append(y)
            return y * len(log)

        return f, log

    compare_with_eager(make, (X,), (Y,), breaks=None)


def test_aliasing_across_breaks():
    def f(x):
        a = [x + 1]
        b = a
        print(end="", flush=[])
        b.append(a[0] * 2)
        return a, b is a

    same(f, (X,), (Y,), breaks=1)


def test_view_across_breaks():
    def f(x):
        y = x + 1
        v = y[0]
        print(end="", flush=[])
        v.zero_()
        return y, v

    same(f, (X,), (Y,), breaks=1)


@contextlib.contextmanager
def _raises_at(text):
    with pytest.raises(GraphBreakError) as info:
        yield
    assert text in str(info.value)


def test_fullgraph_names_the_users_line():
    def f(x):
        if x.sum() < 0:
            return x - 1
        return x + 1

    compiled = tracer_core.compile(f, backend="eager", fullgraph=True)
    with _raises_at(f"{__file__}:{f.__code__.co_firstlineno + 1}"):
        compiled(X)


def test_location_is_the_users_line():
    def f(x):
        x = x + 1
        return x * x.sum().item()

    with CaptureCounter() as counter:
        tracer_core.compile(f, backend="eager")(X)
    assert counter.breaks[0][2].startswith(f"{__file__}:{f.__code__.co_firstlineno + 2}")


def test_location_inside_a_generator_and_a_callback():
    def numbers(x):
        for i in range(2):
            print(end="", flush=[])  # the line
            yield x * i

    def f(x):
        return sum(numbers(x))

    seen = same(f, (X,), (Y,), breaks=None)
    line = next(
        n
        for n, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if text.endswith("# the line")
    )
    kind, reason, location = seen.counter.breaks[0]
    assert kind == "side_effect_native" and "print" in reason
    assert location == f"{__file__}:{line} in numbers"


def test_a_break_at_the_callee_of_a_call_with_keywords():
    """A class whose metaclass hashes in Python breaks before its call, which has its keywords."""

    class Meta(type):
        def __eq__(cls, other):
            return cls is other

        def __hash__(cls):
            return 5

    class Named(metaclass=Meta):
        def __new__(cls, first, second=2, *, name="none", scale=1):
            return first * scale, second, name

    def fn(x):
        inputs = Named(x, scale=3, name="a"), Named(first=x, second=4)
        try:
            Named(x, wrong=1)
        except TypeError:
            return inputs, Named(x), Named(x, name="b")

    same(fn, (X,), (Y,), graphs=None, breaks=None)
