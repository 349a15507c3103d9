"""A trace that is interrupted leaves nothing behind: not in the program's objects, not in torch,
not in the tracer.

Each program changes everything that a program can change. It is interrupted at its N-th instruction
(a KeyboardInterrupt, an error of the tracer's own) and at the N-th line of the tracer's own code,
wherever that is; the world must be as before, and the next call must work. A sample of N by
default: TRACER_TEST_EVERY_STEP=1 runs all, TRACER_TEST_SAMPLES sets how many.
"""

from __future__ import annotations

import array
import collections
import dis
import logging
import os
import signal
import sys
import threading
import types

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import _DISPATCH_META_HANDLERS

import tracer_core
from tests.support.eager_reference import module
from tracer_core.errors import BackendError, TracerError
from tracer_core.execution import capture_lock
from tracer_core.execution.capture import trace as capturing
from tracer_core.testing import compare
from tracer_core.torch_private import settings
from tracer_core.trace.tracer import Tracer

X = torch.randn(3, 4)
EVERY = os.environ.get("TRACER_TEST_EVERY_STEP") == "1"
SAMPLES = int(os.environ.get("TRACER_TEST_SAMPLES", "10"))
PROGRAMS = {}


def program(make):
    """make() -> (fn, look): a program and a view of all that it may change."""
    PROGRAMS[make.__name__] = make
    return make


class Slots:
    __slots__ = ("a", "b")


@program
def containers():
    items, table, members, queue = (
        [1, 2],
        {"a": 1, "b": 2},
        {1},
        collections.deque([1, 2], maxlen=3),
    )
    ordered, default, counted = (
        collections.OrderedDict(a=1, b=2), collections.defaultdict(list),
        collections.Counter("aab"),
    )  # fmt: skip

    def f(x):
        items.append(x + 1)
        items.insert(0, len(items))
        table["c"] = x * 2
        del table["a"]
        table["a"] = 5
        members.add(2)
        members.discard(1)
        queue.appendleft(3)
        queue.append(4)
        ordered.move_to_end("a")
        default["k"].append(x)
        counted["a"] += 1
        for i, value in enumerate(list(table)):
            table[value] = i
        return x + len(items) + sum(v for v in queue)

    return f, lambda: [list(items), list(table.items()), set(members), list(queue),
    list(ordered.items()),
                       dict(default), list(counted.items())]  # fmt: skip


@program
def objects():
    class C:
        n = 0

        def __init__(self):
            C.n += 1
            self.k = C.n

        def __setattr__(self, name, value):
            object.__setattr__(self, name, value)
            log.append(name)

    log, space, slots, cell = [], types.SimpleNamespace(a=1, b=2), Slots(), 0
    slots.a = 1

    def g(x):
        nonlocal cell
        cell += 1
        g.calls = cell
        return x * cell

    def f(x):
        space.a, space.c = space.b, x
        del space.b
        slots.b, slots.a = slots.a, x
        c = C()
        c.extra = x
        try:
            C.late = g(x)
            raise ValueError(c.k)
        except ValueError as error:
            space.error = error.args
        finally:
            C.n += 10
        return C.late + c.k

    def look():
        return [list(vars(space).items()), [getattr(slots, n, None) for n in ("a", "b")], C.n,
                getattr(C, "late", None), list(log), cell, vars(g).copy()]  # fmt: skip

    return f, look


@program
def globals_and_modules():
    built = module(
        """
n = 0
hist = []
def f(x):
    global n, fresh
    n += 1
    fresh = x * n
    hist.append(fresh)
    try:
        del globals_never_there
    except NameError:
        n += 1
    return fresh + n
""".replace("del globals_never_there", "globals_never_there")
    )
    before = dict(vars(built))
    return built.f, lambda: [(k, v if k in ("n", "fresh") else None) for k, v in vars(built).items()
                            if k in before or k == "fresh"] + [list(built.hist)]  # fmt: skip


@program
def neural():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.bn, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)
            self.register_buffer("steps", torch.zeros((), dtype=torch.long))
            self.cache = []

        def forward(self, x):
            self.steps += 1
            self.train(not self.training)
            handle = self.lin.register_forward_hook(lambda m, args, out: out * 2)
            y = self.lin(x)
            handle.remove()
            self.cache.append(y.detach())
            self.tmp = nn.Identity()
            self.register_buffer("seen", y.detach())
            y = self.drop(self.bn(y))
            del self.tmp
            with torch.no_grad():
                y = y + torch.rand(4)
            return y

    torch.manual_seed(0)
    m = M()

    def look():
        return [m.state_dict(), list(m._modules), list(m._buffers), m.training,
        len(m.lin._forward_hooks),
                list(m.cache), sorted(vars(m).keys() - {"_compiled_call_impl"})]  # fmt: skip

    return m, look


@program
def tensors():
    a, b = torch.ones(3, 4), torch.zeros(3, 4)
    a.tag = "first"
    state = {"a": a, "view": a[0]}

    def f(x):
        state["view"].add_(1)
        a[x > 0] = 0
        torch.add(x, 1, out=b)
        a.tag = "second"
        a.other = x
        y = x.clone()
        y.mark = 1
        y.mul_(a)
        state["b"] = y
        with torch.autocast("cpu", enabled=False), torch.set_grad_enabled(False):
            return y + b

    return f, lambda: [
        a.clone(),
        b.clone(),
        vars(a).copy(),
        {k: v.clone() for k, v in state.items()},
    ]


@program
def generators():
    log = []

    def numbers(n):
        try:
            for i in range(n):
                log.append(i)
                yield i
        finally:
            log.append("closed")

    def f(x):
        total = x
        for i in numbers(4):
            total = total + i
        stopped = numbers(5)
        total = total * next(stopped)
        stopped.close()
        log.append("after")
        return total, list(numbers(2))

    return f, lambda: list(log)


@program
def buffers():
    data, numbers = bytearray(b"abc"), array.array("i", [1, 2])

    def f(x):
        k = len(data) + len(numbers)
        log.append(k)
        y = x * k
        log.append(y)
        return y

    log = []
    return f, lambda: [bytes(data), list(numbers), list(log)]


def torch_state():
    held = settings.snapshot()
    return {
        "settings": held, "rng": torch.get_rng_state(),
        "functions": torch._C._len_torch_function_stack(),
        "dispatchers": torch._C._len_torch_dispatch_stack(), "tracing": capture_lock.STATE.thread,
        "log": logging.getLogger("torch._subclasses.fake_tensor").disabled,
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(), "free": lock_is_free(), "handled": sys.exc_info()[0],
    }  # fmt: skip


def lock_is_free():
    actual = []
    thread = threading.Thread(target=lambda: actual.append(_take()))
    thread.start()
    thread.join()
    return actual[0]


def _take():
    taken = capture_lock.STATE.lock.acquire(blocking=False)
    if taken:
        capture_lock.STATE.lock.release()
    return taken


class Injected(KeyboardInterrupt):
    pass


class Wrong(RuntimeError):
    pass


@pytest.fixture(autouse=True)
def _time_for_all():
    if EVERY or SAMPLES > 10:
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.fixture
def at_step(monkeypatch):
    """at_step(n, error): the n-th interpreted instruction raises; at_step(None) counts them."""
    state = types.SimpleNamespace(seen=0, at=None, error=None)
    original = Tracer.before_step

    def before_step(self, base):
        state.seen += 1
        if state.seen == state.at:
            raise state.error
        original(self, base)

    monkeypatch.setattr(Tracer, "before_step", before_step)

    def set_to(at, error=None):
        state.seen, state.at, state.error = 0, at, error
        return state

    return set_to


def points(total, seed):
    """All points, or a sample that differs from program to program."""
    if EVERY or total <= SAMPLES:
        return range(1, total + 1)
    step = total / SAMPLES
    return sorted(
        {1, total, *(int(1 + i * step + (seed * 7 + i * 3) % step) for i in range(SAMPLES))}
    )


def expected(make):
    fn, look = make()
    torch.manual_seed(1)
    return fn(X.clone()), look()


def check_next_call(make, compiled, look):
    want, want_world = expected(make)
    torch.manual_seed(1)
    compare(want, compiled(X.clone()), path="next call")
    compare(want_world, look(), path="world after the next call")


def check_untouched(before, look, state):
    compare(before, look(), path="world")
    compare(state, torch_state(), path="torch")


@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize("name", PROGRAMS)
def test_at_instructions(name, at_step):
    make = PROGRAMS[name]
    counter = at_step(None)
    fn, _ = make()
    tracer_core.compile(fn, backend="eager")(X.clone())
    for n in points(counter.seen, len(name)):
        fn, look = make()
        compiled = tracer_core.compile(fn, backend="eager")
        before, state = look(), torch_state()
        at_step(n, Injected())
        with pytest.raises(Injected):
            compiled(X.clone())
        at_step(None)
        check_untouched(before, look, state)
        check_next_call(make, compiled, look)


def lines_of_the_tracer(on_line):
    """A trace function for threads that calls on_line(frame) for every line of the tracer's own
    code.
    """
    own = os.path.dirname(tracer_core.__file__) + os.sep

    def local(frame, event, arg):
        if event == "line":
            on_line(frame)
        return local

    return lambda frame, event, arg: local if frame.f_code.co_filename.startswith(own) else None


#: Called by Python when an object dies, whenever that is: what they raise is nobody's.
COLLECTED = frozenset({"_forget_source"})
#: Asked by C++ code of torch that no exception may leave (Tensor::device() of a fake): it ends the
#: process.
QUESTIONS = frozenset(_DISPATCH_META_HANDLERS)
#: Where a handler ends, as in ``except KeyError: pass``: an exception that a trace function raises
#: there leaves the handled one current in the thread, in any program. Signals do not come there.
POP_EXCEPT = dis.opmap["POP_EXCEPT"]


def leaves_with(code, at):
    """Whether a ``with`` block is left at this instruction: None, None, None for ``__exit__``. What a
    trace function raises there skips ``__exit__`` (a lock stays taken); signals do not come there."""
    load = code[at : at + 2]
    return load[0] == dis.opmap["LOAD_CONST"] and code[at : at + 6] == load * 3


@pytest.fixture
def at_line(monkeypatch):
    """at_line(n, error): the n-th line that `capture` runs raises; at_line(None) counts them."""
    state = types.SimpleNamespace(seen=0, at=None, error=None, where="")
    original = capturing.capture

    def on_line(frame):
        if frame.f_code.co_name in COLLECTED or frame.f_locals.get("func") in QUESTIONS:
            return
        code, at = frame.f_code.co_code, frame.f_lasti
        if code[at] == POP_EXCEPT or leaves_with(code, at):
            return
        state.seen += 1
        if state.seen == state.at:
            state.where = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
            raise state.error

    def capture(*args):
        # The first line of the wrapped function runs before anything that would have to be undone.
        sys.settrace(lines_of_the_tracer(on_line))
        try:
            return original(*args)
        finally:
            sys.settrace(None)

    monkeypatch.setattr(capturing, "capture", capture)

    def set_to(at, error=None):
        state.seen, state.at, state.error = 0, at, error
        return state

    return set_to


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_at_lines_of_the_tracer(name, at_line):
    make = PROGRAMS[name]
    tracer_core.compile(make()[0], backend="eager")(
        X.clone()
    )  # what is done once in a process is done now
    counter = at_line(None)
    tracer_core.compile(make()[0], backend="eager")(X.clone())
    for n in points(counter.seen, len(name)):
        fn, look = make()
        compiled = tracer_core.compile(fn, backend="eager")
        before, state = look(), torch_state()
        injected = at_line(n, Injected())
        try:
            compiled(X.clone())
        except Injected:
            pass
        else:
            assert injected.seen < n, f"swallowed at {injected.where}"
            continue
        at_line(None)
        try:
            check_untouched(before, look, state)
            check_next_call(make, compiled, look)
        except AssertionError as error:
            raise AssertionError(f"interrupted at line {n}, {injected.where}") from error


#: Not here: an error that seems to be the program's own, inside a generator, leaves it half run.
WHOLE = [name for name in PROGRAMS if name != "generators"]


@pytest.mark.parametrize("name", WHOLE)
def test_errors_of_the_tracer(name, at_line, monkeypatch):
    """An error of the tracer's own ends in eager's answer, once."""
    monkeypatch.setenv("TRACER_STRICT", "0")
    make = PROGRAMS[name]
    tracer_core.compile(make()[0], backend="eager")(X.clone())
    counter = at_line(None)
    tracer_core.compile(make()[0], backend="eager")(X.clone())
    for n in points(counter.seen, len(name) + 3):
        want, want_world = expected(make)
        fn, look = make()
        compiled = tracer_core.compile(fn, backend="eager")
        torch.manual_seed(1)
        injected = at_line(n, Wrong("injected"))
        before = look()
        try:
            try:
                got = compiled(X.clone())
            except BackendError:  # it was the backend's
                compare(before, look(), path="world")
                continue
            compare(want, got, path="result")
            compare(want_world, look(), path="world")
        except (AssertionError, Wrong, TracerError) as error:
            raise AssertionError(f"an error at line {n}, {injected.where}") from error
        finally:
            at_line(None)
        assert (
            torch._C._len_torch_function_stack() == 0
            and capture_lock.STATE.thread is None
            and lock_is_free()
        )


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError], ids=lambda e: e.__name__)
@pytest.mark.sweep(keep=7)
def test_in_the_backend(name, error):
    make = PROGRAMS[name]
    fn, look = make()
    fails = [True]

    def backend(gm, inputs):
        if fails[0]:
            torch.manual_seed(99)
            raise error("the backend")
        return gm.forward

    compiled = tracer_core.compile(fn, backend=backend)
    before, state = look(), torch_state()
    with pytest.raises((KeyboardInterrupt, BackendError)):
        compiled(X.clone())
    torch.set_rng_state(state["rng"])  # a backend's own doing
    check_untouched(before, look, state)
    fails[0] = False
    check_next_call(make, compiled, look)
