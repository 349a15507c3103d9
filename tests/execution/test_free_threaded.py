"""CPython without the GIL: eight threads that run at once compile and call, and the GIL stays off."""

from __future__ import annotations

import copy
import functools
import subprocess
import sys
import sysconfig

import pytest
import torch

import tracer_core
from tests.support import threads
from tests.support.guard_facts import Box
from tests.support.processes import ROOT
from tracer_core.guards import object_layout
from tracer_core.testing import compare

without_gil = pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this build of Python has the GIL"
)
THREADS, CALLS = 8, 20
together = functools.partial(threads.together, threads=THREADS, seconds=100)
each_backend = pytest.mark.parametrize("backend", ["eager", "inductor"])


def test_the_fast_path_of_guards_is_off_without_the_gil(monkeypatch):
    """It compares words of objects, whose headers differ on such builds."""
    monkeypatch.setattr(object_layout, "_IS_FREE_THREADED", True)
    assert object_layout.layout.__wrapped__() is None


FIRST_USE = """
import sys, threading, torch, tracer_core
assert not sys._is_gil_enabled()
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
wrong, begin = [], threading.Barrier(8)

def work(number):
    begin.wait()
    def program(x):
        return net(x) * number
    for backend in ("inductor", "aten_eager"):
        fast, x = tracer_core.compile(program, backend=backend), torch.randn(3, 4)
        for _ in range(3):
            if not torch.allclose(fast(x), program(x), atol=1e-5):
                wrong.append((number, backend))
        fast(x).sum().backward()

running = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for one in running: one.start()
for one in running: one.join()
assert not wrong, wrong
assert not sys._is_gil_enabled()
"""


@without_gil
def test_the_first_use_of_a_process_by_eight_threads_leaves_the_gil_off():
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", FIRST_USE],
        cwd=ROOT, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


@without_gil
@each_backend
def test_a_function(backend):
    def program(x, y):
        return torch.relu(x) * y + 1

    fast = tracer_core.compile(program, backend=backend)

    def work(number):
        for _ in range(CALLS):
            x = torch.randn(number + 2, 3)
            compare(program(x, x), fast(x, x))

    together(work)


@without_gil
@each_backend
def test_a_module(backend):
    net = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))
    fast = tracer_core.compile(net, backend=backend)

    def work(number):
        with torch.set_grad_enabled(number % 2 == 0):
            for _ in range(CALLS):
                x = torch.randn(3, 8)
                compare(net(x).detach(), fast(x).detach())

    together(work)


@without_gil
@each_backend
def test_a_training_step_of_each_thread(backend):
    def step(net, optimizer, x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def work(number):
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        reference = copy.deepcopy(net)
        mine, other = (torch.optim.SGD(n.parameters(), 0.1, momentum=0.9) for n in (net, reference))
        fast = tracer_core.compile(lambda x: step(net, mine, x), backend=backend)
        for _ in range(5):
            x = torch.randn(5, 4)
            compare(step(reference, other, x), fast(x))
        compare(dict(reference.named_parameters()), dict(net.named_parameters()))

    together(work)


@without_gil
@each_backend
def test_backwards_of_one_compiled_loss(backend):
    def loss(net, x):
        return net(x).square().mean()

    fast = tracer_core.compile(loss, backend=backend)

    def work(number):
        net = torch.nn.Linear(4, 4)
        reference = copy.deepcopy(net)
        for _ in range(CALLS):
            x = torch.randn(5, 4)
            fast(net, x).backward()
            loss(reference, x).backward()
        compare(reference.weight.grad, net.weight.grad)

    together(work)


@without_gil
@each_backend
def test_graph_breaks(backend):
    def program(x, log):
        x = x * 2
        log.append(float(x.sum()))
        x = x + 1
        tracer_core.graph_break()
        with torch.no_grad():
            return x * log[-1]

    fast = tracer_core.compile(program, backend=backend)

    def work(number):
        for _ in range(CALLS):
            x, seen, logged = torch.randn(3), [], []
            compare(program(x, seen), fast(x, logged))
            assert len(seen) == len(logged) == 1

    together(work)


@without_gil
@each_backend
def test_mutation(backend):
    def program(box, x):
        box.k += 1
        box.log.append(box.k)
        x.add_(1)
        box.last = {"k": box.k}
        return x * box.k

    fast = tracer_core.compile(program, backend=backend)

    def work(number):
        mine, other = Box(k=number, log=[]), Box(k=number, log=[])
        for _ in range(CALLS):
            x = torch.randn(3)
            y = x.clone()
            compare(program(other, y), fast(mine, x))
            compare(y, x)
        assert vars(mine) == vars(other)

    together(work)


@without_gil
@each_backend
def test_a_list_that_all_threads_append_to(backend):
    log = []

    def program(x):
        log.append(1)
        return x + 1

    fast, x = tracer_core.compile(program, backend=backend), torch.ones(2)
    fast(x), fast(x)
    log.clear()
    together(lambda number: [fast(x) for _ in range(100)])
    assert len(log) == 100 * THREADS


@without_gil
@each_backend
def test_objects_that_die_at_once(backend):
    def program(box, x):
        return x * box.k

    fast = tracer_core.compile(program, backend=backend)

    def work(number):
        for i in range(10 * CALLS):
            x = torch.randn(2)
            compare(x * float(i % 7), fast(Box(k=float(i % 7)), x))

    together(work)


@without_gil
@each_backend
def test_reset_while_others_compile_and_call(backend):
    def work(number):
        for i in range(CALLS):
            if number == 0:
                tracer_core.reset()

            def program(x):
                return x * (i % 3 + number)

            fast, x = tracer_core.compile(program, backend=backend), torch.randn(3)
            compare([program(x)] * 2, [fast(x), fast(x)])

    together(work)
