"""What libraries do around tensors: pickled cache keys, late imports, descriptors called by hand,
messages of objects."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import logging
import pickle
import types
from typing import Any

import pytest
import torch

import tracer_core
from tests.support.eager_reference import compare_with_eager

X = torch.arange(6.0).reshape(2, 3) - 2.0


# -- pickle --


def test_a_cache_with_pickled_keys() -> None:
    def make() -> Any:
        cache: dict[Any, Any] = {}

        def fn(x: torch.Tensor, size: int, **named: Any) -> Any:
            key = "name", pickle.dumps(named), pickle.dumps((size, None, [2.5], torch.float32))
            if key not in cache:
                cache[key] = x * size
            return cache[key] + 1, key

        return fn, cache

    compare_with_eager(make, (X, 2), (X, 2), (X, 3), breaks=0)


def test_pickles_that_depend_on_identity_break() -> None:
    text = "".join(["some ", "text"])

    def fn(x: torch.Tensor, a: str, b: str) -> Any:
        return x + 1, pickle.dumps([a, b])

    seen = tracer_core.explain(fn)(X, text, text)
    assert seen.graph_break_count == 1 and seen.result[1] == fn(X, text, text)[1]
    assert pickle.dumps([text, text]) != pickle.dumps([text, "".join(["some ", "text"])])


def test_plain_data_is_loaded() -> None:
    def make() -> Any:
        def fn(x: torch.Tensor) -> Any:
            data = pickle.loads(pickle.dumps({"a": 2, "b": [1.5, "c"]}))
            data["b"].append(1)
            return x * data["a"], data

        return fn

    compare_with_eager(make, (X,), (X,), graphs=1, breaks=0)


def test_what_a_pickle_calls_is_not_run_in_a_trace() -> None:
    data = pickle.dumps(pytest.approx)  # by name

    def fn(x: torch.Tensor) -> Any:
        return x + 1, pickle.loads(data)

    compiled = tracer_core.compile(fn, backend="eager")
    assert compiled(X)[1] is pytest.approx
    assert tracer_core.explain(fn)(X).graph_break_count == 1


# -- imports --


def test_modules_that_are_imported_already() -> None:
    def make() -> Any:
        def fn(x: torch.Tensor) -> Any:
            module = importlib.import_module("torch.nn.functional")
            actual = importlib.util.find_spec("torch") is not None
            return module.relu(x) + actual

        return fn

    compare_with_eager(make, (X,), (X,), graphs=1, breaks=0)


# -- descriptors --


class Slotted:
    __slots__ = ("value", "other")

    @property
    def twice(self) -> Any:
        return self.value * 2

    def more(self) -> Any:
        return self.value + 1


def test_descriptors_called_by_hand() -> None:
    def make() -> Any:
        world = Slotted()
        world.value = 2.0
        namespace = types.SimpleNamespace()

        def fn(x: torch.Tensor) -> Any:
            Slotted.value.__set__(world, Slotted.value.__get__(world) + 1)
            Slotted.other.__set__(world, x)
            Slotted.other.__delete__(world)
            object.__setattr__.__get__(namespace)("k", 3)
            try:
                Slotted.other.__get__(world)
            except AttributeError:
                x = x + 1
            y = x * Slotted.twice.fget(world) + Slotted.more.__get__(world)()
            return y + namespace.k, Slotted.value.__get__(None, Slotted) is Slotted.value

        return fn

    compare_with_eager(make, (X,), (X,), (X,), breaks=0)


def test_a_slot_of_another_class_raises() -> None:
    def make() -> Any:
        def fn(x: torch.Tensor) -> Any:
            return Slotted.value.__get__(x, torch.Tensor)

        return fn

    compare_with_eager(make, (X,), (X,))


def test_methods_written_in_c_are_bound_and_called() -> None:
    def make() -> Any:
        def fn(x: torch.Tensor) -> Any:
            y = torch.Tensor.__add__.__get__(x)(1) + torch.Tensor.add.__get__(x)(2)
            held = list.append.__get__([])
            held.__call__(3)
            return y, len.__call__(held.__self__), "a".upper.__call__(), (3).__add__.__call__(4)

        return fn

    compare_with_eager(make, (X,), (X,), graphs=1, breaks=0)


# -- messages --


@dataclasses.dataclass
class Setting:
    size: int = 1
    name: str = "a"


def _said(make: Any, calls: int, capture: Any) -> None:
    """Compares what is shown, in its order, by the eager and the compiled function."""
    eager, fn = make(), make()
    compiled = tracer_core.compile(fn, backend="eager")
    for _ in range(calls):
        want = eager(X), capture()
        got = compiled(X), capture()
        assert torch.equal(want[0], got[0])
        assert want[1] == got[1]
    assert tracer_core.explain(make())(X).graph_break_count == 0


def test_prints_of_objects_and_tensors(capsys: Any) -> None:
    def make() -> Any:
        setting, seen = Setting(), [1, (2, "b")]

        def fn(x: torch.Tensor) -> Any:
            y = x * 2
            print("before", setting, seen, {"a": None}, Setting, sep=" | ")
            print(y, "and", x.shape, x)
            y.add_(1)
            setting.size += 1
            seen.append(setting.size)
            print(y, seen, end="!\n")
            return y

        return fn

    _said(make, 3, lambda: capsys.readouterr().out)


def test_a_print_of_a_tensor_with_gradients_breaks(capsys: Any) -> None:
    weight = torch.ones(3, requires_grad=True)

    def fn(x: torch.Tensor) -> Any:
        y = x * weight
        print(y)
        return y

    want = fn(X), capsys.readouterr().out
    got = tracer_core.compile(fn, backend="eager")(X), capsys.readouterr().out
    assert torch.equal(want[0], got[0]) and "grad_fn=<MulBackward0>" in got[1] == want[1]


def test_logs_of_objects(caplog: Any) -> None:
    import io

    stream = io.StringIO()
    logger = logging.getLogger("tests.idioms")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(funcName)s %(lineno)d %(message)s"))
    logger.addHandler(handler)
    adapter = logging.LoggerAdapter(logger, {"run": 1})

    def capture() -> str:
        text = stream.getvalue()
        stream.seek(0)
        stream.truncate()
        return text

    def make() -> Any:
        setting, seen = Setting(), {"a": [1]}

        def fn(x: torch.Tensor) -> Any:
            logger.info("is %s of %d: %s", setting, 3, seen)
            logger.warning("values %s", x * 2)
            logger.warning("one %s", seen)
            logger.info(setting)
            logger.error("%5.1f %r", 2.5, "text", extra={"step": 1})
            adapter.info("by %s", seen)
            adapter.debug("not shown %s", seen)
            setting.size += 1
            seen["a"].append(setting.size)
            return x + logger.hasHandlers()

        return fn

    try:
        _said(make, 3, capture)
    finally:
        logger.removeHandler(handler)


def test_a_repr_in_a_log_message_breaks() -> None:
    logger = logging.getLogger("tests.idioms.other")
    logger.setLevel(logging.INFO)

    def fn(x: torch.Tensor) -> Any:
        logger.info("%r", Setting())
        return x + 1

    assert tracer_core.explain(fn)(X).graph_break_count == 1


def test_the_functions_of_the_root_logger(caplog: Any) -> None:
    caplog.set_level(logging.INFO)

    def make() -> Any:
        def fn(x: torch.Tensor) -> Any:
            logging.debug("not shown %s", x.shape)
            logging.log(5, "neither")
            return x + 1

        return fn

    compare_with_eager(make, (X,), (X,), graphs=1, breaks=0)


# -- classes that look at their instances --


class OfShape(type):
    """jaxtyping: isinstance() looks at the shape and dtype of a tensor."""

    def __instancecheck__(cls, obj: Any) -> bool:
        return isinstance(obj, torch.Tensor) and obj.dim() == cls.dims and obj.is_floating_point()


class Matrix(metaclass=OfShape):
    dims = 2


class Vector(metaclass=OfShape):
    dims = 1


def test_isinstance_looks_at_a_tensor_of_the_graph() -> None:
    def make() -> Any:
        def fn(x: torch.Tensor) -> Any:
            y = x * 2
            messages = isinstance(y, Matrix), isinstance(y, Vector), isinstance(y, (Vector, Matrix))
            row = y.sum(0)
            return y, messages, isinstance(row, Vector), isinstance(row > 0, (Vector, int))

        return fn

    seen = compare_with_eager(make, (X,), (X,), graphs=1, breaks=0)
    assert seen.results[0][1:] == ((True, False, True), True, False)


# -- cached functions after a change of state --


def test_a_cached_function_asked_after_a_change() -> None:
    def make() -> Any:
        @functools.lru_cache(256)
        def recipe(pattern: str, names: tuple[str, ...] = (), ndim: int = 0) -> Any:
            parts = {name: [i, len(pattern)] for i, name in enumerate(names)}
            parts["all"] = sorted(pattern.split())
            return tuple(parts), parts["all"][0], ndim * 2

        world = types.SimpleNamespace(calls=0)

        def fn(x: torch.Tensor) -> Any:
            world.calls += 1
            result = recipe("b c a", names=("b", "c"), ndim=x.dim())
            return x * result[2] + world.calls, result, recipe("b c a", ("b", "c"), ndim=2)

        return fn, world

    compare_with_eager(make, (X,), (X,), (X,), breaks=0)


def test_a_cached_function_that_changes_something_after_a_change() -> None:
    def make() -> Any:
        world = types.SimpleNamespace(calls=0, made=0)

        def note() -> None:
            world.made += 1

        @functools.lru_cache(None)
        def recipe(size: int) -> int:
            note()
            return size * 2 + world.calls

        def fn(x: torch.Tensor) -> Any:
            world.calls += 1
            return x * recipe(3), world.made

        return fn, world

    compare_with_eager(make, (X,), (X,), (X,))


def test_a_cached_partial_has_no_name() -> None:
    def scaled(scale: Any, size: Any) -> Any:
        return scale, size

    def make() -> Any:
        recipe = functools.lru_cache(None)(functools.partial(scaled, 2))

        def fn(x: torch.Tensor, key: Any) -> Any:
            return x * recipe(key)[0]

        return fn

    seen = compare_with_eager(make, (X, 3), (X, 3), (X, [3].__class__))
    assert len(seen.counter.graphs) >= 1

    def of_objects() -> Any:
        recipe = functools.lru_cache(None)(functools.partial(scaled, 2))

        def fn(x: torch.Tensor) -> Any:
            return x * recipe(object())[0]

        return fn

    seen = compare_with_eager(of_objects, (X,), (X,))
    assert len(seen.counter.graphs) >= 1


# -- torch's own idioms --


def test_marks_that_torch_compile_reads() -> None:
    import torch._dynamo

    def make() -> Any:
        def fn(x: torch.Tensor) -> Any:
            torch._dynamo.maybe_mark_dynamic(x, 0)
            torch._dynamo.mark_static_address(x)
            return x + 1

        return fn

    fn, x = make(), X.clone()
    seen = tracer_core.explain(fn)(x)
    assert torch.equal(seen.result, X + 1) and seen.graph_break_count == 0
    assert x._dynamo_weak_dynamic_indices == {0} and x._dynamo_static_input_type == "unguarded"


def test_the_module_of_an_exported_program() -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    module = torch.export.export(layer, (X,)).module()

    def fn(x: torch.Tensor) -> Any:
        return module(x * 2) + 1

    seen = tracer_core.explain(fn)(X)
    assert torch.equal(seen.result, fn(X))
    assert {record.kind for record in seen.breaks} <= {"native_python", "live_iterator"}
    assert seen.graph_count == 2 and seen.graph_break_count <= 2
    with pytest.raises(AssertionError, match="Guard failed"):
        tracer_core.compile(fn, backend="eager")(torch.ones(5, 3))


def test_a_tensor_is_shown_as_the_program_has_set_it(capsys: pytest.CaptureFixture[str]) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x / 3
        torch.set_printoptions(precision=2)
        print(y)
        torch.set_printoptions(profile="default")
        print(y)
        return y * 2

    fn(X)
    wanted = capsys.readouterr().out
    compiled = tracer_core.compile(fn, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(X), fn(X))
        ours, theirs = (capsys.readouterr().out, wanted)
        assert ours == theirs * 2
