"""Classes that set a special method to None: Python raises, whatever other method would do instead."""

from __future__ import annotations

import pytest

from tests.support.eager_reference import same
from tests.support.named_programs import X


class NoTruth:
    __bool__ = None

    def __len__(self):
        return 0


class NoLength(list):
    __len__ = None


class NoItems(list):
    __iter__ = None


class NoItemsOfDict(dict):
    __iter__ = None


class NoReverse:
    __reversed__ = None

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return index


class NoHash(str):
    __hash__ = None


class NoExit:
    __exit__ = None

    def __init__(self):
        self.log = []

    def __enter__(self):
        self.log.append("entered")


def entered(manager):
    try:
        with manager:
            manager.log.append("inside")
    except TypeError as error:
        manager.log.append(str(error))
    return manager.log


CALLS = {
    "bool": lambda: bool(NoTruth()),
    "not": lambda: not NoTruth(),
    "if": lambda: 1 if NoTruth() else 2,
    "and": lambda: NoTruth() and 1,
    "any": lambda: any([NoTruth()]),
    "filter": lambda: list(filter(None, [NoTruth()])),
    "len": lambda: len(NoLength()),
    "list": lambda: list(NoItems([1])),
    "star": lambda: [*NoItems([1])],
    "for": lambda: [item for item in NoItems([1])],
    "sum": lambda: sum(NoItems([1])),
    "keys": lambda: list(NoItemsOfDict(a=1)),
    "reversed": lambda: list(reversed(NoReverse())),
    "hash": lambda: hash(NoHash("a")),
    "key": lambda: {NoHash("a"): 1},
    "with": lambda: entered(NoExit()),
    "sum of texts": lambda: sum(["a"], ""),
    "sum of bytes": lambda: sum([b"a"], b""),
    "sum of bytearrays": lambda: sum([bytearray(b"a")], bytearray()),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_disabled_method(name):
    def program(x):
        try:
            text = CALLS[name]()
        except TypeError as error:
            text = str(error)
        return text, x * 2

    same(program, (X,), (X,), breaks=None)


def test_sum_refuses_its_start_before_it_takes_an_item():
    def program(x):
        items = iter([b"a", b"b"])
        try:
            return sum(items, b"")
        except TypeError as error:
            return str(error), next(items), x * 2

    same(program, (X,), (X,))
