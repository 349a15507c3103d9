"""Programs in which something changes with every call: the group ``after_limit`` of `overhead`.

`NUMBERS` and `VALUES` map a name to a maker of (function, step), where step(f, n) is call number n
of f: the function, or a compiled form of it. What always holds: a program computes next to nothing,
so that what is left is what the change costs; each call brings a value that no call before had.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import sys
import types
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]
Change = Callable[[int], Any]
Step = Callable[[Function, int], Any]
Maker = Callable[[], tuple[Function, Step]]

#: Numbers: inputs of one graph from their second value on.
NUMBERS: dict[str, Maker] = {}
#: What a graph is captured for: at the recompile limit the program itself runs.
VALUES: dict[str, Maker] = {}

N = 0
WORD = ""


@dataclasses.dataclass
class Config:
    step: Any = 0
    word: str = ""


class Slotted:
    __slots__ = ("step",)


class Scaler:
    word = ""

    def scale(self, x: Any) -> Any:
        return x * len(self.word)


class Counter:
    n = 0


class Whole(int):
    """A subclass of a number: by value."""


Pair = collections.namedtuple("Pair", "step other")
CONFIG, SLOTTED, SCALER = Config(), Slotted(), Scaler()
SETTINGS: Any = types.ModuleType("benchmarks_settings")
sys.modules[SETTINGS.__name__] = SETTINGS


def _x() -> Any:
    import torch

    return torch.ones(10)


def _changed(
    table: dict[str, Maker], name: str, function: Function, change: Change, *more: Any
) -> None:
    """The program function(x, *more), before each call of which change(n) is called."""

    def maker() -> tuple[Function, Step]:
        x = _x()

        def step(call: Function, n: int) -> Any:
            change(n)
            return call(x, *more)

        return function, step

    table[name] = maker


def _given(table: dict[str, Maker], name: str, function: Function, make: Change) -> None:
    """The program function(x, make(n))."""

    def maker() -> tuple[Function, Step]:
        x = _x()
        return function, lambda call, n: call(x, make(n))

    table[name] = maker


def _sets(owner: Any, name: str, make: Change = lambda n: n) -> Change:
    return lambda n: setattr(owner, name, make(n))


def _word(n: int) -> str:
    return f"word {n}"


# Functions of the programs


def _times(n: Any, x: Any) -> Any:
    return n * x


def _loops(x: Any, items: Any) -> Any:
    for item in items:
        x = x * item
    return x


def _default(x: Any, n: int = 0) -> Any:
    return x * n


def _breaks(x: Any, word: str) -> Any:
    x = x * 2
    print(end="")
    return x * len(word)


def _breaks_in_a_loop(x: Any, words: list[str]) -> Any:
    for word in words:
        x = x * len(word)
        print(end="")
    return x


def _nested(x: Any) -> Any:
    x = x * 2
    print(end="")
    return x * len(WORD)


_given(NUMBERS, "argument", lambda x, n: x * n, lambda n: n)
_given(NUMBERS, "float_argument", lambda x, n: x * n, lambda n: n + 0.5)
_given(NUMBERS, "fresh_dataclass", lambda x, config: x * config.step, lambda n: Config(n))
_given(NUMBERS, "named_tuple", lambda x, pair: x * pair.step, lambda n: Pair(n, 2))
_given(NUMBERS, "list_item", lambda x, items: x * items[0], lambda n: [n, 2])
_given(NUMBERS, "tuple_item", lambda x, items: x * items[0], lambda n: (n, 2))
_given(NUMBERS, "loop_over_a_list", _loops, lambda n: [n, n + 0.5])
_given(NUMBERS, "dict_item", lambda x, held: x * held["n"], lambda n: {"n": n})
_given(NUMBERS, "lambda_with_a_closure", lambda x, f: f(x), lambda n: lambda x: x * n)
_given(NUMBERS, "lambda_with_a_default", lambda x, f: f(x), lambda n: lambda x, k=n: x * k)
_given(NUMBERS, "partial", lambda x, f: f(x), lambda n: functools.partial(_times, n))
_changed(NUMBERS, "attribute", lambda x, config: x * config.step, _sets(CONFIG, "step"), CONFIG)
_changed(NUMBERS, "class_attribute", lambda x: x * Counter.n, _sets(Counter, "n"))
_changed(NUMBERS, "global", lambda x: x * N, _sets(sys.modules[__name__], "N"))
_changed(NUMBERS, "global_of_a_module", lambda x: x * SETTINGS.n, _sets(SETTINGS, "n"))
_changed(NUMBERS, "slot", lambda x, slotted: x * slotted.step, _sets(SLOTTED, "step"), SLOTTED)
_changed(NUMBERS, "default", _default, _sets(_default, "__defaults__", lambda n: (n,)))

_given(VALUES, "string", lambda x, word: x * len(word), _word)
_given(VALUES, "list_length", lambda x, items: x * len(items), lambda n: [0] * (n % 100_000))
_given(VALUES, "dict_keys", lambda x, held: x * len(list(held)), lambda n: {f"key {n}": 1})
_given(VALUES, "lambda", lambda x, f: x if f is len else f(x), lambda n: lambda x: x * n)
_given(
    VALUES, "object_made_anew", lambda x, value: x * len(value.word), lambda n: Config(0, _word(n))
)
_given(VALUES, "subclass_of_int", lambda x, n: x * n, Whole)
_given(VALUES, "string_after_a_break", _breaks, _word)
_given(VALUES, "string_in_a_loop_with_a_break", _breaks_in_a_loop, lambda n: [_word(n), f"a {n}"])
_changed(VALUES, "string_attribute", lambda x, value: x * len(value.word), _sets(CONFIG, "word", _word),
         CONFIG)  # fmt: skip
_changed(VALUES, "method", SCALER.scale, _sets(SCALER, "word", _word))
_changed(VALUES, "type_of_a_number", lambda x, config: x * len(str(config.step)),
         _sets(CONFIG, "step", lambda n: (n, n + 0.5, Whole(n), f"{n}", None)[n % 5]),
         CONFIG)  # fmt: skip
_changed(VALUES, "string_after_a_break_in_a_nested_function", lambda x: _nested(x - 1) + 1,
         _sets(sys.modules[__name__], "WORD", _word))  # fmt: skip


def _closure() -> tuple[Function, Step]:
    x, held = _x(), 0

    def step(call: Function, n: int) -> Any:
        nonlocal held
        held = n
        return call(x)

    return lambda x: x * held, step


def _class_counter() -> tuple[Function, Step]:
    x = _x()

    class Own:
        n = 0

    def counts(x: Any) -> Any:
        Own.n += 1
        return x * Own.n

    return counts, lambda call, n: call(x)


def _module(name: str, make: Change, train: bool = False) -> Maker:
    """A module of eight layers whose result depends on its attribute `name`."""

    def maker() -> tuple[Function, Step]:
        import torch
        from torch import nn

        class Scaled(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(8))
                setattr(self, name, make(0))

            def forward(self, x: Any) -> Any:
                for layer in self.layers:
                    x = layer(x)
                return x * self.n if name == "n" else x * len(self.word)

        torch.manual_seed(0)
        module, x = Scaled(), torch.ones(2, 4)

        def step(call: Function, n: int) -> Any:
            setattr(module, name, make(n))
            if not train:
                return call(x)
            with torch.enable_grad():
                return call(x).sum().backward()

        return module, step

    return maker


def _rank_and_dtype() -> tuple[Function, Step]:
    import torch

    dtypes = (torch.float32, torch.float64)
    kinds = [torch.ones([2] * (n % 12), dtype=dtypes[n % 2]) for n in range(24)]
    return lambda x: x + 1, lambda call, n: call(kinds[n % 24])


def _compiled_in_compiled() -> tuple[Function, Step]:
    import tracer_core

    x = _x()
    inner = tracer_core.compile(lambda x, word: x * len(word), backend="eager")
    return lambda x, word: inner(x, word) + 1, lambda call, n: call(x, _word(n))


NUMBERS |= {
    "closure": _closure,
    "class_counter": _class_counter,
    "module_attribute": _module("n", lambda n: n),
}
VALUES |= {
    "string_of_a_module": _module("word", _word),
    "string_of_a_module_in_training": _module("word", _word, train=True),
    "rank_and_dtype": _rank_and_dtype,
    "string_of_a_compiled_function_called_by_a_compiled_one": _compiled_in_compiled,
}
