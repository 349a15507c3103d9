"""Tensors whose storages are different objects over one memory, as `torch.from_numpy` makes them,
keep what a compiled function writes through one of them visible through the others.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tracer_core
from tracer_core.testing import compare

pytestmark = pytest.mark.usefixtures("strict")


def doubled_and_read(written, read):
    written.mul_(2)
    return read + 1


def read_written_read(written, read):
    before = read.sum()
    written.add_(before)
    return read * before


def of_one_array():
    array = np.arange(6.0)
    return torch.from_numpy(array), torch.from_numpy(array)


def of_two_arrays():
    return torch.from_numpy(np.arange(6.0)), torch.from_numpy(np.arange(6.0))


def overlapping_slices():
    array = np.arange(6.0)
    return torch.from_numpy(array[:4]), torch.from_numpy(array[2:])


def the_later_slice_first():
    array = np.arange(6.0)
    return torch.from_numpy(array[2:]), torch.from_numpy(array[:4])


def separate_slices():
    array = np.arange(6.0)
    return torch.from_numpy(array[:3]), torch.from_numpy(array[3:])


def a_tensor_and_its_array():
    tensor = torch.arange(6.0)
    return tensor, torch.from_numpy(tensor.numpy()[2:])


def through_dlpack():
    tensor = torch.arange(6.0)
    return tensor, torch.from_dlpack(tensor.numpy())


def a_row_and_its_matrix():
    array = np.arange(6.0).reshape(2, 3)
    return torch.from_numpy(array), torch.from_numpy(array[1])


PAIRS = (
    of_one_array,
    of_two_arrays,
    overlapping_slices,
    the_later_slice_first,
    separate_slices,
    a_tensor_and_its_array,
    through_dlpack,
    a_row_and_its_matrix,
)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("program", [doubled_and_read, read_written_read])
def test_calls_with_arrays_that_share_memory_or_do_not(program, order, dynamic):
    compiled = tracer_core.compile(program, backend="inductor", dynamic=dynamic)
    for pair in PAIRS[::order]:
        expected, actual = pair(), pair()
        compare(program(*expected), compiled(*actual), path=f"{pair.__name__}: result")
        compare(expected, actual, path=f"{pair.__name__}: arguments")


def test_separate_slices_keep_their_graph():
    """A data loader's windows of one array need no entry each."""
    compiled = tracer_core.compile(doubled_and_read, backend="inductor")
    with tracer_core.testing.CaptureCounter() as counter:
        for _ in range(3):
            compiled(*separate_slices())
            compiled(torch.arange(3.0).double(), torch.arange(3.0).double())
    assert len(counter.graphs) == 1


def normalized(array, x):
    array += 1
    shared = torch.from_numpy(array)
    shared.mul_(2)
    return torch.as_tensor(array).sum() + x


def two_views(array, x):
    first = torch.from_numpy(array)
    first.mul_(x)
    second = torch.from_numpy(array[1:])
    second += 1
    return first * 1, torch.from_numpy(array)


@pytest.mark.parametrize("program", [normalized, two_views])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_an_array_that_the_function_writes_to_and_reads(program, backend):
    compiled = tracer_core.compile(program, backend=backend)
    for length in (4, 4, 7):
        expected, actual, x = np.arange(length * 1.0), np.arange(length * 1.0), torch.tensor(3.0)
        compare(program(expected, x), compiled(actual, x), path="result")
        np.testing.assert_array_equal(actual, expected)
