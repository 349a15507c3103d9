"""One pair of processes for all tests of a run: starting them costs more than most tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.distributed.pair import Pair


@pytest.fixture(scope="session")
def pair() -> Iterator[Pair]:
    result = Pair()
    yield result
    result.close()


@pytest.fixture(scope="session")
def alone() -> Iterator[Pair]:
    """One process, outside of torch.distributed."""
    pair = Pair(ranks=1)
    yield pair
    pair.close()
