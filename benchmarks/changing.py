"""Programs in which something changes with every call: rows of `benchmarks.overhead`.

In: nothing. Out: `NUMBERS` and `VALUES`: name -> a maker of (function, step), where step(f, n) is
call number n of f: the function, or a compiled form of it. What always holds: a program computes
next to nothing, so that what is left is what the change costs; each call brings a value that no
call before had.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import sys
import types
from collections.abc import Callable
from typing import Any

Step = Callable[[Callable[..., Any], int], Any]
Maker = Callable[[], tuple[Callable[..., Any], Step]]

#: Numbers: inputs of one graph from their second value on.
NUMBERS: dict[str, Maker] = {}
#: What a graph is captured for: at the recompile limit the program itself runs.
VALUES: dict[str, Maker] = {}

N = 0
WORD = ""


@dataclasses.dataclass
class Config:
    step: int = 0
    word: str = ""


class Slotted:
    __slots__ = ("step",)


Pair = collections.namedtuple("Pair", "step other")


class Whole(int):
    """A subclass of a number: by value."""


def _x() -> Any:
    import torch

    return torch.ones(10)


def _number(maker: Maker) -> Maker:
    NUMBERS[maker.__name__.strip("_")] = maker
    return maker


def _value(maker: Maker) -> Maker:
    VALUES[maker.__name__.strip("_")] = maker
    return maker


def _of_one_argument(
    name: str, table: dict[str, Maker], read: Callable[..., Any], make: Callable[[int], Any]
) -> None:
    """read(x, what changes); make(n): what changes, at call n."""

    def maker() -> tuple[Callable[..., Any], Step]:
        x = _x()
        return read, lambda call, n: call(x, make(n))

    table[name] = maker


def _reads_first(x: Any, items: Any) -> Any:
    return x * items[0]


def _loops(x: Any, items: Any) -> Any:
    for item in items:
        x = x * item
    return x


_of_one_argument("argument", NUMBERS, lambda x, n: x * n, lambda n: n)
_of_one_argument("float_argument", NUMBERS, lambda x, n: x * n, lambda n: n + 0.5)
_of_one_argument("fresh_dataclass", NUMBERS, lambda x, config: x * config.step, lambda n: Config(n))
_of_one_argument("named_tuple", NUMBERS, lambda x, pair: x * pair.step, lambda n: Pair(n, 2))
_of_one_argument("list_item", NUMBERS, _reads_first, lambda n: [n, 2])
_of_one_argument("tuple_item", NUMBERS, _reads_first, lambda n: (n, 2))
_of_one_argument("loop_over_a_list", NUMBERS, _loops, lambda n: [n, n + 0.5])
_of_one_argument("dict_item", NUMBERS, lambda x, held: x * held["n"], lambda n: {"n": n})
_of_one_argument("partial", NUMBERS, lambda x, f: f(x), lambda n: functools.partial(_times, n))

_of_one_argument("string", VALUES, lambda x, word: x * len(word), lambda n: f"word {n}")
_of_one_argument(
    "list_length", VALUES, lambda x, items: x * len(items), lambda n: [0] * (n % 100_000)
)
_of_one_argument(
    "dict_keys", VALUES, lambda x, held: x * len(list(held)), lambda n: {f"key {n}": 1}
)
_of_one_argument("lambda", VALUES, lambda x, f: f(x), lambda n: lambda x: x * 2)
_of_one_argument("lambda_with_a_closure", VALUES, lambda x, f: f(x), lambda n: lambda x: x * n)
_of_one_argument(
    "object_made_anew", VALUES, lambda x, one: x * len(one.word), lambda n: Config(0, f"word {n}")
)
_of_one_argument("subclass_of_int", VALUES, lambda x, n: x * n, Whole)


def _times(n: Any, x: Any) -> Any:
    return n * x


@_number
def attribute() -> tuple[Callable[..., Any], Step]:
    x, config = _x(), Config()

    def step(call: Callable[..., Any], n: int) -> Any:
        config.step = n
        return call(x, config)

    return lambda x, config: x * config.step, step


@_number
def class_attribute() -> tuple[Callable[..., Any], Step]:
    x = _x()

    class Counter:
        n = 0

    def step(call: Callable[..., Any], n: int) -> Any:
        Counter.n = n
        return call(x)

    return lambda x: x * Counter.n, step


@_number
def class_counter() -> tuple[Callable[..., Any], Step]:
    x = _x()

    class Counter:
        n = 0

    def counts(x: Any) -> Any:
        Counter.n += 1
        return x * Counter.n

    return counts, lambda call, n: call(x)


@_number
def global_() -> tuple[Callable[..., Any], Step]:
    x = _x()

    def step(call: Callable[..., Any], n: int) -> Any:
        global N
        N = n
        return call(x)

    return lambda x: x * N, step


@_number
def global_of_a_module() -> tuple[Callable[..., Any], Step]:
    x, settings = _x(), types.ModuleType("benchmarks_settings")
    sys.modules[settings.__name__] = settings

    def step(call: Callable[..., Any], n: int) -> Any:
        settings.__dict__["n"] = n
        return call(x)

    return lambda x: x * settings.n, step


@_number
def closure() -> tuple[Callable[..., Any], Step]:
    x, held = _x(), 0

    def step(call: Callable[..., Any], n: int) -> Any:
        nonlocal held
        held = n
        return call(x)

    return lambda x: x * held, step


@_number
def slot() -> tuple[Callable[..., Any], Step]:
    x, slotted = _x(), Slotted()

    def step(call: Callable[..., Any], n: int) -> Any:
        slotted.step = n
        return call(x, slotted)

    return lambda x, slotted: x * slotted.step, step


@_number
def default() -> tuple[Callable[..., Any], Step]:
    x = _x()

    def scales(x: Any, n: int = 0) -> Any:
        return x * n

    def step(call: Callable[..., Any], n: int) -> Any:
        scales.__defaults__ = (n,)
        return call(x)

    return scales, step


def _scaled(**fields: Any) -> Any:
    """A module of eight layers whose result depends on an attribute."""
    import torch
    from torch import nn

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(8))
            self.__dict__.update(fields)

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return x * self.n if "n" in fields else x * len(self.word)

    torch.manual_seed(0)
    return Scaled(), torch.ones(2, 4)


@_number
def module_attribute() -> tuple[Callable[..., Any], Step]:
    module, x = _scaled(n=0)

    def step(call: Callable[..., Any], n: int) -> Any:
        module.n = n
        return call(x)

    return module, step


@_value
def string_of_a_module() -> tuple[Callable[..., Any], Step]:
    module, x = _scaled(word="")

    def step(call: Callable[..., Any], n: int) -> Any:
        module.word = f"word {n}"
        return call(x)

    return module, step


@_value
def string_of_a_module_in_training() -> tuple[Callable[..., Any], Step]:
    import torch

    module, x = _scaled(word="")

    def step(call: Callable[..., Any], n: int) -> Any:
        module.word = f"word {n}"
        with torch.enable_grad():
            call(x).sum().backward()

    return module, step


@_value
def string_attribute() -> tuple[Callable[..., Any], Step]:
    x, config = _x(), Config()

    def step(call: Callable[..., Any], n: int) -> Any:
        config.word = f"word {n}"
        return call(x, config)

    return lambda x, config: x * len(config.word), step


@_value
def method() -> tuple[Callable[..., Any], Step]:
    x = _x()

    class Scaler:
        word = ""

        def scale(self, x: Any) -> Any:
            return x * len(self.word)

    scaler = Scaler()

    def step(call: Callable[..., Any], n: int) -> Any:
        scaler.word = f"word {n}"
        return call(x)

    return scaler.scale, step


@_value
def rank_and_dtype() -> tuple[Callable[..., Any], Step]:
    import torch

    kinds = [
        torch.ones([2] * (n % 12), dtype=(torch.float32, torch.float64)[n % 2]) for n in range(24)
    ]
    return lambda x: x + 1, lambda call, n: call(kinds[n % 24])


@_value
def type_of_a_number() -> tuple[Callable[..., Any], Step]:
    x, config = _x(), Config()

    def step(call: Callable[..., Any], n: int) -> Any:
        config.step = (n, n + 0.5, Whole(n), f"{n}", None)[n % 5]
        return call(x, config)

    return lambda x, config: x * len(str(config.step)), step


@_value
def string_after_a_break() -> tuple[Callable[..., Any], Step]:
    x = _x()

    def breaks(x: Any, word: str) -> Any:
        x = x * 2
        print(end="")
        return x * len(word)

    return breaks, lambda call, n: call(x, f"word {n}")


@_value
def string_in_a_loop_with_a_break() -> tuple[Callable[..., Any], Step]:
    x = _x()

    def breaks(x: Any, words: list[str]) -> Any:
        for word in words:
            x = x * len(word)
            print(end="")
        return x

    return breaks, lambda call, n: call(x, [f"word {n}", f"other {n}"])


@_value
def string_after_a_break_in_a_nested_function() -> tuple[Callable[..., Any], Step]:
    x = _x()

    def inner(x: Any) -> Any:
        x = x * 2
        print(end="")
        return x * len(WORD)

    def outer(x: Any) -> Any:
        return inner(x - 1) + 1

    def step(call: Callable[..., Any], n: int) -> Any:
        global WORD
        WORD = f"word {n}"
        return call(x)

    return outer, step


@_value
def string_of_a_compiled_function_called_by_a_compiled_one() -> tuple[Callable[..., Any], Step]:
    import tracer_core

    x = _x()
    inner = tracer_core.compile(lambda x, word: x * len(word), backend="eager")
    return lambda x, word: inner(x, word) + 1, lambda call, n: call(x, f"word {n}")
