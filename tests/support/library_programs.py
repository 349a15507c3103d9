"""Objects and functions of programs that use the standard library."""

from __future__ import annotations

import dataclasses
import enum
import functools
import logging


@dataclasses.dataclass
class Config:
    n: int = 1
    names: list = dataclasses.field(default_factory=list)
    inner: object = None


class Color(enum.Enum):
    RED = 1
    BLUE = 2


def with_default(x, k=7, *, m=None):
    return k


@functools.total_ordering
class Size:
    def __init__(self, n):
        self.n = n

    def __lt__(self, other):
        return self.n < other.n

    def __eq__(self, other):
        return self.n == other.n


class Holder:
    pass


@functools.lru_cache
def remember(*args, **kwargs):
    return len(args)


LOGGER = logging.getLogger("tracer.tests.natives")
