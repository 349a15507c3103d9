"""A compiled library is mapped as long as something can call it, and no longer."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tracer_core
from inductor_backend.runtime.cpp import build as build_cpp
from inductor_backend.runtime.cpp.build import build
from tests.support import torch_server
from tests.support.threads import together

#: Adds a number to each element, on several threads.
TEXT = """#include "prelude.h"
TC_EXPORT void run_add(const int64_t* a) {{
    float* x = (float*)a[0];
#pragma omp parallel for
    for (int64_t i = 0; i < a[1]; i++) x[i] += {number};
}}
"""


#: The first library of a process stays, and serves the launchers of all.
STAYS: set[str] = set()


@pytest.fixture(autouse=True)
def own_folder(fresh_cache: str) -> Iterator[Path]:
    folder = Path(fresh_cache)
    build(['#include "prelude.h"\n'], name="first")
    STAYS.update(libraries(folder))
    yield folder
    build_cpp.forget_loaded()


def libraries(folder: Path) -> set[str]:
    """The libraries of a cache folder that are mapped."""
    gc.collect()
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split(None, 5)[5] for line in lines if f"{folder}/inductor-cpp/" in line}


def mapped(folder: Path) -> int:
    return len(libraries(folder) - STAYS)


def of_number(number: int) -> build_cpp.Library:
    return build([TEXT.format(number=number)], name="add")


def test_a_launcher_keeps_its_library(own_folder: Path) -> None:
    launch = of_number(3).function("run_add", 2)
    assert mapped(own_folder) == 1
    build_cpp.forget_loaded()
    x = torch.zeros(4)
    launch(x, 4)
    assert mapped(own_folder) == 1 and x.tolist() == [3.0] * 4
    del launch
    assert mapped(own_folder) == 0


def test_a_library_in_use_is_not_loaded_twice(own_folder: Path) -> None:
    first = of_number(3)
    again = of_number(3)
    assert again.reason == "already loaded in this process"
    del first
    assert of_number(3).reason == "already loaded in this process"
    assert mapped(own_folder) == 1
    del again
    assert mapped(own_folder) == 0
    later = of_number(3)
    assert later.hit and "found in the cache" in later.reason
    x = torch.zeros(4)
    later.function("run_add", 2)(x, 4)
    assert x.tolist() == [3.0] * 4


def test_compiled_functions_that_are_dropped(own_folder: Path) -> None:
    def dropped(number: int, train: bool) -> None:
        x = torch.randn(8, requires_grad=train)
        fast = tracer_core.compile(lambda x: (x * number).sin() + number)
        actual, expected = fast(x), (x * number).sin() + number
        torch.testing.assert_close(actual, expected)
        if train:
            got, true = (torch.autograd.grad(value.sum(), x)[0] for value in (actual, expected))
            torch.testing.assert_close(got, true)

    for number in range(4):
        dropped(number + 7, train=number == 3)
        assert mapped(own_folder) == 0
    kept = [tracer_core.compile(lambda x, n=n: x * n + n) for n in range(3)]
    x = torch.randn(8)
    actual = [fast(x) for fast in kept]
    assert mapped(own_folder) > 0
    tracer_core.reset()
    assert mapped(own_folder) == 0
    for n, item in enumerate(actual):
        torch.testing.assert_close(item, x * n + n)
        torch.testing.assert_close(kept[n](x), x * n + n)  # compiled again


def test_a_graph_of_autograd_keeps_the_backward_of_what_was_dropped(own_folder: Path) -> None:
    x = torch.randn(8, requires_grad=True)
    actual = tracer_core.compile(lambda x: (x * 5).sin())(x)
    tracer_core.reset()
    gc.collect()
    (got,) = torch.autograd.grad(actual.sum(), x)
    torch.testing.assert_close(got, 5 * (x * 5).cos())
    del actual, got
    assert mapped(own_folder) == 0


class Last:
    """Calls a function when it is collected."""

    def __init__(self, launch, x) -> None:
        self.launch, self.x, self.cycle = launch, x, self

    def __del__(self) -> None:
        self.launch(self.x, self.x.numel())


def test_what_is_collected_in_a_cycle_may_call_its_kernel(own_folder: Path) -> None:
    x = torch.zeros(16)
    for number in range(1, 4):
        library = of_number(number)
        inside = [library, library.function("run_add", 2), library.function("run_add", 2)]
        inside += [Last(inside[1], x), inside]
        del library, inside
        assert mapped(own_folder) == 0
    assert x.tolist() == [6.0] * 16


def test_threads_call_while_others_drop(own_folder: Path) -> None:
    """Each thread drops a library right after its kernel has run on several threads of OpenMP."""
    for number in range(8):
        of_number(number)
    wrong = []

    def work(turn: int) -> None:
        for step in range(60):
            number, x = (turn + step) % 8, torch.zeros(5000)
            of_number(number).function("run_add", 2)(x, x.numel())
            if not bool((x == number).all()):
                wrong.append((turn, step))
            if step % 10 == turn:
                gc.collect()

    together(work, threads=4)
    assert not wrong and mapped(own_folder) == 0


def test_a_call_that_runs_keeps_its_library(own_folder: Path) -> None:
    text = (
        '#include "prelude.h"\nTC_EXPORT void run_wait(const int64_t* a)'
        " { while (!__atomic_load_n((int*)a[0], __ATOMIC_SEQ_CST)); ((int*)a[0])[1] = 7; }\n"
    )
    launches = [build([text], name="wait").function("run_wait", 1)]
    flag = torch.zeros(2, dtype=torch.int32)
    thread = threading.Thread(target=lambda: launches.pop()(flag), daemon=True)
    thread.start()
    while launches:
        pass
    build_cpp.forget_loaded()
    assert mapped(own_folder) == 1  # nothing refers to it but the call
    flag[0] = 1
    thread.join(timeout=20)
    assert not thread.is_alive() and flag.tolist() == [1, 7]
    assert mapped(own_folder) == 0


AT_EXIT = """
import threading, torch, tracer_core
x = torch.randn(64, 64)
fasts = [tracer_core.compile(lambda x, n=n: (x * n).sin().sum(-1)) for n in range(3)]
for fast in fasts:
    fast(x)

def forever():
    while True:
        for fast in fasts:
            fast(x)

class Cycle:
    def __del__(self, call=fasts[0]):
        call(x)

cycle = Cycle(); cycle.itself = cycle
threading.Thread(target=forever, daemon=True).start()
print("ends")
"""


def test_the_end_of_a_process_with_a_thread_in_a_kernel() -> None:
    for _ in range(3):
        done = torch_server.run(["-c", AT_EXIT], timeout=120)
        assert done.returncode == 0 and done.stdout == "ends\n", done.stderr
