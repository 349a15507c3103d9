"""Threads that call and compile at once, and processes forked from one that compiled."""

from __future__ import annotations

import faulthandler
import functools
import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque

import pytest
import torch

import tracer_core
from tests.support import threads
from tests.support.eager_reference import module
from tests.support.guard_facts import Box
from tracer_core.execution import capture_lock
from tracer_core.execution.entry.guarded_cache import GuardedCache
from tracer_core.testing import CaptureCounter, compare

THREADS = 8
X = torch.randn(3, 4)

together = functools.partial(threads.together, threads=THREADS, seconds=60, grad=False)


def test_one_function_is_compiled_once():
    def program(x):
        return torch.relu(x) * 2 + 1

    fast = tracer_core.compile(program, backend="eager")
    with CaptureCounter() as counter:
        for result in together(lambda i: [fast(X) for _ in range(20)]):
            compare([program(X)] * 20, result)
    assert len(counter.graphs) == 1 and not counter.recompiles


def test_one_module_is_compiled_once():
    net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(10)))
    fast = tracer_core.compile(net, backend="eager")
    with torch.no_grad(), CaptureCounter() as counter:
        want = net(X)
        for result in together(lambda i: [fast(X) for _ in range(20)]):
            compare([want] * 20, result)
    assert len(counter.graphs) == 1


def test_a_thread_that_waited_for_the_lock_takes_what_the_other_compiled(monkeypatch):
    """The second thread has looked, and found nothing, before the first one begins to trace."""
    waiting, done = threading.Event(), threading.Event()
    original = capture_lock.can_trace

    def can_trace():
        if threading.current_thread().name == "second":
            waiting.set()
            assert done.wait(10)
        return original()

    monkeypatch.setattr(capture_lock, "can_trace", can_trace)
    fast = tracer_core.compile(lambda x: x * 2, backend="eager")
    results = []
    with CaptureCounter() as counter:
        second = threading.Thread(
            target=lambda: results.append(fast(X)), name="second", daemon=True
        )
        second.start()
        assert waiting.wait(10)
        results.append(fast(X))
        done.set()
        second.join(10)
    compare([X * 2] * 2, results)
    assert len(counter.graphs) == 1 and not counter.recompiles


def test_a_lookup_between_the_end_of_a_trace_and_its_entry(monkeypatch):
    traced, missed = threading.Event(), threading.Event()
    add, may_trace = GuardedCache.add, capture_lock.can_trace

    def add_late(self, *args):
        traced.set()
        assert missed.wait(10)
        add(self, *args)

    def can_trace():
        if threading.current_thread().name == "second":
            missed.set()
        return may_trace()

    monkeypatch.setattr(GuardedCache, "add", add_late)
    monkeypatch.setattr(capture_lock, "can_trace", can_trace)
    fast = tracer_core.compile(lambda x: x * 2, backend="eager")
    results = []
    with CaptureCounter() as counter:
        first = threading.Thread(target=lambda: results.append(fast(X)), daemon=True)
        second = threading.Thread(
            target=lambda: results.append(fast(X)), name="second", daemon=True
        )
        first.start()
        assert traced.wait(10)
        second.start()
        first.join(20)
        second.join(20)
    compare([X * 2] * 2, results)
    assert len(counter.graphs) == 1 and not counter.recompiles


@pytest.mark.parametrize("kind", ["list", "dict", "attributes", "set", "deque"])
def test_what_another_thread_adds_during_a_trace_stays(kind):
    result = {
        "list": [0], "dict": {"a": 0}, "attributes": Box(a=0), "set": {0}, "deque": deque([0])
    }[kind]  # fmt: skip
    inside, added = threading.Event(), threading.Event()

    def add(number):
        if kind in ("list", "deque"):
            result.append(number)
        elif kind == "dict":
            result[f"k{number}"] = number
        elif kind == "attributes":
            setattr(result, f"k{number}", number)
        else:
            result.add(number)

    @tracer_core.assume_constant_result
    def traced():
        inside.set()
        return float(added.wait(10))

    def program(x):
        add(1)
        x = x * traced()
        add(2)
        return x

    fast = tracer_core.compile(program, backend="eager", fullgraph=True)
    thread = threading.Thread(target=fast, args=(X,), daemon=True)
    thread.start()
    assert inside.wait(10)
    add(3)
    add(4)
    added.set()
    thread.join(20)
    values = vars(result).values() if kind == "attributes" else result
    values = result.values() if kind == "dict" else values
    assert sorted(values) == [0, 1, 2, 3, 4]


def test_a_lookup_during_the_trace_of_another_thread_is_done_again(monkeypatch):
    """The trace sets an entry that the guards of the other thread's next region read, and sets it
    back: they fail meanwhile, and hold again before that thread may trace."""
    shared = {"factor": 2.0}
    inside, missed = threading.Event(), threading.Event()
    may_trace = capture_lock.can_trace

    def can_trace():
        if threading.current_thread().name == "reader":
            missed.set()
        return may_trace()

    @tracer_core.assume_constant_result
    def traced():
        inside.set()
        return float(missed.wait(10))

    @tracer_core.disable
    def until_the_other_traces():
        if threading.current_thread().name == "reader":
            writer.start()
            assert inside.wait(10)

    def writes(x):
        shared["factor"] = 3.0
        x = x * traced()
        shared["factor"] = 2.0
        return x

    def reads(x):
        x = x + 1
        until_the_other_traces()
        return x * shared["factor"]

    write = tracer_core.compile(writes, backend="eager", dynamic=False)
    read = tracer_core.compile(reads, backend="eager", dynamic=False)
    compare((X + 1) * 2, read(X))
    monkeypatch.setattr(capture_lock, "can_trace", can_trace)
    results = {}
    writer = threading.Thread(target=lambda: results.update(writer=write(X)), daemon=True)
    reader = threading.Thread(
        target=lambda: results.update(reader=read(X)), name="reader", daemon=True
    )
    with CaptureCounter() as counter:
        reader.start()
        reader.join(20)
        writer.join(20)
    compare({"reader": (X + 1) * 2, "writer": X}, dict(sorted(results.items())))
    assert missed.is_set() and len(counter.graphs) == 1 and not counter.recompiles


def test_many_functions_compile_at_once():
    functions = [module(f"def f(x):\n    return x * {i} + torch.ones(4)\n").f for i in range(24)]
    compiled = [tracer_core.compile(f, backend="eager") for f in functions]
    with CaptureCounter() as counter:

        def work(number):
            order = [(number * 3 + i) % len(compiled) for i in range(len(compiled))]
            return {i: compiled[i](X) for i in order}

        for result in together(work):
            compare({i: f(X) for i, f in enumerate(functions)}, dict(sorted(result.items())))
    assert len(counter.graphs) == len(functions)


def test_each_thread_its_own_function():
    def work(number):
        def program(x):
            return x * number + 1

        fast = tracer_core.compile(program, backend="eager")
        return [fast(X) for _ in range(10)]

    for number, result in enumerate(together(work)):
        compare([X * number + 1] * 10, result)


def test_graph_breaks_on_every_thread():
    def program(x, log):
        x = x * 2
        log.append(float(x.sum()))
        x = x + 1
        tracer_core.graph_break()
        return x * log[-1]

    fast = tracer_core.compile(program, backend="eager")
    want = program(X, [])
    with CaptureCounter() as counter:
        for result in together(lambda i: [fast(X, []) for _ in range(10)]):
            compare([want] * 10, result)
    assert len(counter.graphs) <= 4 and len(counter.breaks) == 2, counter.breaks


def test_recursion_on_every_thread():
    source = "def f(x, n):\n    return x if n == 0 else f(x + n, n - 1) * 2\n"
    m = module(source)
    eager = module(source).f
    m.f = tracer_core.compile(m.f, backend="eager")
    for number, result in enumerate(together(lambda i: m.f(X, i))):
        compare(eager(X, number), result)


def test_exceptions_on_every_thread():
    def program(x, n):
        y = x * 2
        if n % 2:
            raise ValueError(f"odd {n}")
        return y

    fast = tracer_core.compile(program, backend="eager")

    def work(number):
        seen = []
        for _ in range(5):
            try:
                seen.append(fast(X, number))
            except ValueError as error:
                seen.append(str(error))
        return seen

    for number, result in enumerate(together(work)):
        compare([f"odd {number}" if number % 2 else X * 2] * 5, result)


def test_shapes_differ_between_threads():
    def program(x):
        return x.reshape(-1) * x.shape[0]

    fast = tracer_core.compile(program, backend="eager")
    for number, result in enumerate(
        together(lambda i: [fast(torch.ones(i + 2, 4)) for _ in range(5)])
    ):
        compare([torch.ones((number + 2) * 4) * (number + 2)] * 5, result)


def test_an_object_of_each_thread():
    def program(b, x):
        return x * b.k

    fast = tracer_core.compile(program, backend="eager", dynamic=False)
    boxes = [Box(k=float(i)) for i in range(THREADS)]
    with CaptureCounter() as counter:
        for number, result in enumerate(together(lambda i: [fast(boxes[i], X) for _ in range(10)])):
            compare([X * number] * 10, result)
    assert len(counter.graphs) == THREADS


def test_modules_of_each_thread_share_a_variant():
    built = [torch.nn.Linear(4, 4) for _ in range(THREADS)]
    fast = tracer_core.compile(
        lambda layer, x: torch.relu(layer(x)), backend="eager", dynamic=False
    )
    with CaptureCounter() as counter:
        for number, result in enumerate(together(lambda i: [fast(built[i], X) for _ in range(10)])):
            compare([torch.relu(built[number](X)).detach()] * 10, result)
    assert len(counter.graphs) == 1


def test_a_trace_hides_its_changes_from_other_threads():
    shared = {"count": 0}

    def program(x):
        shared["seen"] = 1
        for _ in range(200):  # a long trace
            x = x + 1
        del shared["seen"]
        return x

    other = tracer_core.compile(lambda x: x * (2 if "seen" in shared else 3), backend="eager")
    fast = tracer_core.compile(program, backend="eager")

    def work(number):
        return fast(X) if number == 0 else [other(X) for _ in range(20)]

    for number, result in enumerate(together(work)):
        compare(X + 200 if number == 0 else [X * 3] * 20, result)


def test_grad_mode_belongs_to_a_thread():
    weight = torch.nn.Parameter(torch.ones(4))
    fast = tracer_core.compile(lambda x: x * weight, backend="eager")

    def work(number):
        with torch.set_grad_enabled(number % 2 == 0):
            return [fast(X).requires_grad for _ in range(10)]

    for number, result in enumerate(together(work)):
        assert result == [number % 2 == 0] * 10


def test_reset_while_others_call():
    def program(x):
        return x * 2 + 1

    fast = tracer_core.compile(program, backend="eager")

    def work(number):
        for _ in range(10):
            if number == 0:
                tracer_core.reset()
            compare(program(X), fast(X))

    together(work)


def test_a_generator_backed_program_on_every_thread():
    def program(items):
        return sum(x * i for i, x in enumerate(items))

    fast = tracer_core.compile(program, backend="eager")
    for result in together(lambda i: [fast([X, X, X]) for _ in range(5)]):
        compare([X * 3] * 5, result)


def test_the_gathered_form_of_the_check_on_every_thread(monkeypatch):
    monkeypatch.setenv("TRACER_PYTHON_GUARDS", "1")
    net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(5)))
    fast = tracer_core.compile(net, backend="eager")
    with torch.no_grad():
        want = net(X)
        for result in together(lambda i: [fast(X) for _ in range(50)]):
            compare([want] * 50, result)


# -- fork
# ----------------------------------------------------------------------------------------------


def in_child(work):
    """The exit code of a forked child that runs work() (0: it raised nothing).

    A child that hangs prints where it is every 30 s, so that a slow one can be told from a
    deadlock, and is killed after two minutes.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            faulthandler.dump_traceback_later(30, repeat=True)
            signal.setitimer(signal.ITIMER_REAL, 120)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def net_and_fast():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    return net, tracer_core.compile(net, backend="eager")


def test_a_child_calls_what_the_parent_compiled():
    net, fast = net_and_fast()
    want = fast(X)

    def work():
        with CaptureCounter() as counter:
            compare(want.detach(), fast(X).detach())
        assert not counter.graphs

    assert in_child(work) == 0
    compare(want.detach(), fast(X).detach())


def test_a_child_compiles():
    def work():
        net, fast = net_and_fast()
        compare(net(X).detach(), fast(X).detach())

    assert in_child(work) == 0


def test_a_child_recompiles_and_the_parent_does_not_see_it():
    net, fast = net_and_fast()
    fast(X)

    def work():
        net[0].register_forward_hook(lambda m, a, y: y + 1)
        compare(net(X).detach(), fast(X).detach())

    with CaptureCounter() as counter:
        assert in_child(work) == 0
        compare(net(X).detach(), fast(X).detach())
    assert not counter.graphs


def test_a_fork_while_another_thread_traces():
    """The lock of a thread that does not exist in the child is not waited for."""
    inside, go_on = threading.Event(), threading.Event()

    def slow(gm, example_inputs):
        inside.set()
        assert go_on.wait(10)
        return gm.forward

    fast = tracer_core.compile(lambda x: x + 1, backend=slow)
    thread = threading.Thread(target=lambda: fast(X), daemon=True)
    thread.start()
    assert inside.wait(10)

    def work():
        net, compiled = net_and_fast()
        compare(net(X).detach(), compiled(X).detach())

    try:
        assert in_child(work) == 0
    finally:
        go_on.set()
        thread.join(10)
    compare(X + 1, fast(X))


def _in_pool(number):
    net, fast = _FORKED
    with torch.no_grad():
        return float((fast(X + number) - net(X + number)).abs().max())


_FORKED = None


@pytest.mark.parametrize("called_before", [True, False])
def test_multiprocessing_with_fork(called_before):
    global _FORKED
    _FORKED = net_and_fast()
    if called_before:
        _FORKED[1](X)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map_async(_in_pool, range(4)).get(timeout=15) == [0.0] * 4
    finally:
        torch.set_num_threads(threads)
