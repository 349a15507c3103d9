"""A rank that dies says where: heap corruption ends where it happens, and the error shows the
stacks of all threads.
"""

from __future__ import annotations

import sys

import pytest

from tests.distributed.pair import RankFailed

pytestmark = pytest.mark.slow  # of the tests' own harness; each starts a fresh pair of processes


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_memory_that_two_threads_free(alone):
    with pytest.raises(RankFailed, match="died with exit status -6") as caught:
        alone.run("dying:freed_by_two_threads")
    assert "double free or corruption" in str(caught.value)
    assert "Fatal Python error: Aborted" in str(caught.value)


@pytest.mark.skipif(sys.platform != "linux", reason="torch prints native stacks on Linux")
def test_a_segmentation_fault(alone):
    with pytest.raises(RankFailed, match="died with exit status -11") as caught:
        alone.run("dying:read_where_nothing_is")
    text = str(caught.value)
    assert "in read_where_nothing_is" in text  # Python's stack
    assert "ffi_call" in text and "libc.so" in text  # the native one
