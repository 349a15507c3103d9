"""Threads that do the same work at once.

In: work(number). Out: what each thread returned. What always holds: an error of any thread is the
test's, and threads that wait for one another for ever fail the test, with the stack of each.
"""

from __future__ import annotations

import faulthandler
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch


def together(
    work: Callable[[int], Any], threads: int = 8, seconds: float = 60, grad: bool = True
) -> list[Any]:
    """Runs work(number) on every thread, all starting at once; returns the results, raises the
    first error.
    """
    barrier = threading.Barrier(threads)
    results: list[Any] = [None] * threads
    errors: list[BaseException] = []

    def run(number: int) -> None:
        torch.set_grad_enabled(grad)
        barrier.wait()
        try:
            results[number] = work(number)
        except BaseException as error:
            errors.append(error)

    started = [
        threading.Thread(target=run, args=(number,), daemon=True) for number in range(threads)
    ]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join(seconds)
        if thread.is_alive():
            faulthandler.dump_traceback()
            pytest.fail("a thread did not finish: deadlock")
    if errors:
        raise errors[0]
    return results
