"""Leaves processors to the compilers beside which a captured graph runs eagerly.

OpenMP's threads wait for each other by spinning. Where compilers keep the processors busy, one of
them waits for its turn while the others spin, and a call takes many times as long.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def half_the_threads() -> Iterator[None]:
    """Context in which operators that this thread calls run on half as many threads.

    Only this thread's number changes: ``torch.set_num_threads`` would also reach each thread that
    starts meanwhile, for good. Without effect where torch was built without OpenMP.
    """
    openmp = _openmp()
    if openmp is None:
        yield
        return
    torch.get_num_threads()  # gives a new thread the number that torch.set_num_threads has set
    before = openmp.omp_get_max_threads()
    openmp.omp_set_num_threads(max(1, before // 2))
    try:
        yield
    finally:
        openmp.omp_set_num_threads(before)


@functools.cache
def _openmp() -> Any:
    """Returns the OpenMP runtime, whose functions ``import torch`` makes global; or None."""
    library = ctypes.CDLL(None)
    return library if hasattr(library, "omp_set_num_threads") else None
