"""Numbers that differ from call to call, taken out of dictionaries, lists and tuples by iteration and
by C code: inputs of one graph, as those that are read by their keys."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tracer_core
from tests.support.eager_reference import compare_with_eager
from tracer_core.testing import CaptureCounter

X = torch.linspace(-1, 1, 4)


def _loop(x: Any, values: Any) -> Any:
    for value in values:
        x = x * value + 1
    return x


def _loop_of_items(x: Any, d: Any) -> Any:
    for key, value in d.items():
        x = x * value + len(key)
    return x


def _nested(x: Any, d: Any) -> Any:
    for name, inner in {"outer": d}.items():
        for key, value in inner.items():
            x = x * value + len(name + key)
    return x


def _keywords(x: Any, **rates: float) -> Any:
    return x * rates["a"] + rates.get("b", 1.0)


def _three(x: Any, a: float, b: float, c: float) -> Any:
    return x * a + b * c


#: name -> a program of a tensor and a dictionary of floats.
OF_DICTS: dict[str, Callable[[Any, Any], Any]] = {
    "items": _loop_of_items,
    "values": lambda x, d: _loop(x, d.values()),
    "nested": _nested,
    "sum": lambda x, d: x * sum(d.values()),
    "extremes": lambda x, d: x * max(d.values()) + min(d.values()),
    "list": lambda x, d: x * list(d.values())[1],
    "tuple-of-items": lambda x, d: x * tuple(d.items())[2][1],
    "comprehension": lambda x, d: [x * value for value in d.values()],
    "of-a-dict": lambda x, d: {key: x * value for key, value in d.items()},
    "generator": lambda x, d: x * sum(value * 2 for value in d.values()),
    "zip": lambda x, d: [x * a + b for a, b in zip(d.values(), d.values(), strict=True)],
    "enumerate": lambda x, d: [x * value + i for i, value in enumerate(d.values())],
    "map": lambda x, d: [x * value for value in map(lambda value: value + 1, d.values())],
    "chain": lambda x, d: _loop(x, itertools.chain(d.values(), d.values())),
    "sorted": lambda x, d: [x * value for _, value in sorted(d.items(), reverse=True)],
    "next": lambda x, d: x * next(iter(d.values())),
    "unpacked": lambda x, d: _three(x, *d.values()),
    "display": lambda x, d: x * sum([*d.values(), 1.0]),
    "copied": lambda x, d: _loop_of_items(x, d.copy()),
    "keywords": lambda x, d: _keywords(x, **d),
    "popped": lambda x, d: x * d.copy().pop("a"),
    "any": lambda x, d: x * (2 if any(value > 1e9 for value in d.values()) else 3),
}


def _made(x: Any, d: Any) -> Any:
    """Containers that the program makes of such numbers."""
    doubled = {key: value * 2 for key, value in d.items()}
    doubled.update(z=doubled["a"])
    pairs = dict(zip(doubled, doubled.copy().values(), strict=True))
    listed = list(pairs.values())
    listed.extend(map(float, tuple(listed)))
    positive = all(value > -1e9 for value in reversed(listed))
    return [x * value for value in itertools.chain(listed, iter(listed))], positive


OF_DICTS["made"] = _made
#: name -> a program of a tensor and a list, or tuple, of floats.
OF_SEQUENCES: dict[str, Callable[[Any, Any], Any]] = {
    "loop": _loop,
    "zip": lambda x, v: [x * a + b for a, b in zip(v, v, strict=True)],
    "enumerate": lambda x, v: [x * value + i for i, value in enumerate(v)],
    "reversed": lambda x, v: _loop(x, reversed(v)),
    "slice": lambda x, v: x * v[:2][1] + v[::-1][0],
    "copied": lambda x, v: x * list(v)[0] + tuple(v)[1],
    "map": lambda x, v: [x * value for value in map(lambda value: value + 1, v)],
    "generator": lambda x, v: x * sum(value * 2 for value in v),
    "iterator": lambda x, v: (it := iter(v), x * next(it) + next(it), [x * item for item in it])[
        1:
    ],
}


def _settles(program: Callable[[Any, Any], Any], function: Callable[[int], Any]) -> None:
    compiled = tracer_core.compile(program, backend="eager")
    with CaptureCounter() as counter:
        for number in range(6):
            want, got = program(X, function(number)), compiled(X, function(number))
            torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert len(counter.graphs) == 2 and not counter.breaks


@pytest.mark.parametrize("name", OF_DICTS)
def test_a_dictionary(name: str) -> None:
    _settles(OF_DICTS[name], lambda n: {"a": 0.5 + n, "b": 1.5 + n * n, "c": -2.5 * n})


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("name", OF_SEQUENCES)
def test_a_sequence(name: str, kind: Any) -> None:
    _settles(OF_SEQUENCES[name], lambda n: kind([0.5 + n, 1.5 + n * n, -2.5 * n]))


@pytest.mark.sweep(keep=2)
@pytest.mark.parametrize(
    ("name", "count"), [("items", 600), ("zip", 600), ("sum", 600), ("list", 600), ("list", 2000)]
)
def test_hundreds_of_numbers(name: str, count: int) -> None:
    def program(x: Any, d: Any) -> Any:
        if name == "items":
            return x * sum(value * 0.5 for key, value in d.items())
        if name == "zip":
            return x * sum(a * b for a, b in zip(d.values(), d.values(), strict=True))
        return x * (sum(d.values()) if name == "sum" else sum(list(d.values())))

    _settles(program, lambda n: {f"k{i}": 0.25 * i + n for i in range(count)})


def _world() -> dict[str, float]:
    return {"a": 0.5, "b": 1.5, "c": 2.5}


def _raised(world: dict[str, float]) -> None:
    for key in world:
        world[key] += 0.25


def _writes_ahead(x: Any, d: Any) -> Any:
    for key, value in d.items():
        x = x * value
        if key == "a":
            d["c"] = 7.0
    return x, sum(d.values())


def _writes_behind(x: Any, d: Any) -> Any:
    view = d.values()
    first = list(view)
    d["a"] = d["a"] + 1
    return x * sum(view) + sum(first)


def _grows(x: Any, d: Any) -> Any:
    try:
        for value in d.values():
            x = x * value
            d["new"] = 1.0
    except RuntimeError as error:
        return x, str(error)
    finally:
        d.pop("new", None)
    return x


def _removed(x: Any, d: Any) -> Any:
    d["d"] = 4.0
    popped = [d.pop(key) for key in ("b", "d")]
    d["b"] = popped[0]
    return [x * value for value in (*popped, *d.values())]


def _returned(x: Any, d: Any) -> Any:
    rest = iter(d.values())
    return x * next(rest), rest, d.items(), [x * value for value in d.values()]


def _broken(x: Any, d: Any) -> Any:
    rest = zip(d.items(), d.values(), strict=True)
    (_, first), _ = next(rest)
    x = x * first
    tracer_core.graph_break()
    return [x * value + other for (_, value), other in rest]


def _breaks_inside(x: Any, d: Any) -> Any:
    for value in d.values():
        x = x * value
        tracer_core.graph_break()
    return x


CHANGING = (_writes_ahead, _writes_behind, _grows, _removed, _returned, _broken, _breaks_inside)


@pytest.mark.parametrize("program", CHANGING)
def test_the_dictionary_changes_meanwhile(program: Any) -> None:
    def make() -> Any:
        world = _world()
        return lambda x: _comparable(program(x, world)), world

    steps = [step for _ in range(6) for step in ((X,), _raised)]
    compare_with_eager(make, *steps, breaks=None)


def _comparable(value: Any) -> Any:
    return [list(item) if hasattr(item, "__iter__") else item for item in value] if isinstance(
        value, (tuple, list)) and not isinstance(value, torch.Tensor) else value  # fmt: skip


def _items_of_list(x: Any, v: Any) -> Any:
    total = 0.0
    for i, value in enumerate(v):
        total += value
        if i == 0:
            v[1] = 9.0
            v.append(3.0)
        if len(v) > 6:
            break
    v[:] = v[:3]
    return x * total


def test_a_list_that_changes_meanwhile() -> None:
    def make() -> Any:
        world = [0.5, 1.5, 2.5]
        return lambda x: _items_of_list(x, world), world

    def change(world: list[float]) -> None:
        world[:] = [value + 0.25 for value in world]

    compare_with_eager(make, *[step for _ in range(6) for step in ((X,), change)], breaks=None)


def test_what_a_view_shows_to_c_code_is_guarded() -> None:
    calls: list[tuple[str, Callable[[Any], Any]]] = [
        ("compared", lambda d: d.items() <= {("a", 0.5), ("b", 1.5), ("c", 2.5)}),
        ("text", lambda d: str(d.values())),
        ("member", lambda d: 2.5 in d.values()),
        ("union", lambda d: sorted(d.keys() | {"z"})),
        ("length", lambda d: len(d.values())),
        ("truth", lambda d: bool(d.values())),
        ("reversed", lambda d: list(reversed(d.values()))),
        ("set", lambda d: set(d.values())),
    ]
    for name, call in calls:
        compiled = tracer_core.compile(lambda x, d, call=call: (x + 1, call(d)), backend="eager")
        world = _world()
        for change in ({}, {"c": 2.75}, {"d": 1.0}, {"c": 2.5}):
            world.update(change)
            got = compiled(X, copy.deepcopy(world))
            assert got[1] == call(world), name
