"""What a backend may return: a plain callable, or a `Runner` with what the core is to know of
it.
"""

from __future__ import annotations

import ast
import copy
import functools
import gc
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import tracer_core
from tests.aot.programs import randn
from tracer_core import bridges
from tracer_core.debug.fallbacks import failures
from tracer_core.plugin_api import Backend, BackendError, Phase, Runner, Training, compile_graph
from tracer_core.testing import torch_graph

ROOT = Path(__file__).resolve().parents[2]


def program(x, y):
    x.add_(1)
    return (x * y).tanh()


class Callable:
    def __init__(self, forward):
        self.forward = forward

    def __call__(self, inputs):
        return self.forward(*inputs)


@dataclass(frozen=True, slots=True, eq=False)
class Counted(Runner):
    """A backend's own field beside the core's."""

    operators: int = 0


KINDS = {
    "a function": lambda graph: lambda inputs: graph.forward(*inputs),
    "a partial function": lambda graph: functools.partial(
        lambda forward, inputs: forward(*inputs), graph.forward
    ),
    "an object": lambda graph: Callable(graph.forward),
    "a bound method": lambda graph: Callable(graph.forward).__call__,
    "a Runner": lambda graph: Runner(lambda inputs: graph.forward(*inputs)),
    "a Runner round an object": lambda graph: Runner(Callable(graph.forward)),
    "a subclass": lambda graph: Counted(Callable(graph.forward), operators=len(graph.graph.nodes)),
}


@pytest.mark.parametrize("ir", ["torch", "aten"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_backend_may_return(kind, ir):
    backend = Backend(name="third", compile=lambda graph, spec: KINDS[kind](graph), ir=ir)
    fast = tracer_core.compile(program, backend=backend)
    for _ in range(3):
        x, y = torch.randn(4), torch.randn(4)
        ours, theirs = x.clone(), x.clone()
        torch.testing.assert_close(fast(ours, y), program(theirs, y))
        assert torch.equal(ours, theirs)


def test_a_runner_can_be_called():
    runner = Runner(lambda inputs: [inputs[0] + 1])
    assert torch.equal(runner([torch.ones(2)])[0], torch.full((2,), 2.0))
    compiled = compile_graph(torch_graph(lambda x: x * 2, [randn(3)]).gm, [randn(3)], "aten_eager")
    x = torch.randn(3)
    assert isinstance(compiled, Runner) and torch.equal(compiled([x])[0], x * 2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"run": 3}, "Runner: run=3; a callable that takes a list of inputs"),
        (
            {"mutated_on_error": [0]},
            r"Runner: mutated_on_error=\[0\]; None or a frozenset of indices",
        ),
        ({"mutated_on_error": frozenset({"x"})}, "Runner: mutated_on_error="),
        ({"channels_last": {0}}, r"Runner: channels_last=\{0\}; a frozenset of indices"),
        ({"channels_last": None}, "Runner: channels_last=None; a frozenset of indices"),
        ({"bind_constants": 0}, "Runner: bind_constants=0; None or a callable"),
        (
            {"constants_read": frozenset({True})},
            r"Runner: constants_read=frozenset\(\{True\}\); a frozenset of indices",
        ),
        ({"graph_traits": [1]}, r"Runner: graph_traits=\[1\]; None or a mapping"),
        ({"written_early": frozenset()}, "written_early"),
    ],
)
def test_a_wrong_field_is_named(fields, message):
    """Also where it is a backend of somebody who never looks at the core: with the backend's
    name.
    """

    def compile_wrongly(graph, spec):
        return Runner(**{"run": lambda inputs: graph.forward(*inputs), **fields})

    fast = tracer_core.compile(
        lambda x: x + 1, backend=Backend(name="careless", compile=compile_wrongly)
    )
    with pytest.raises(
        BackendError, match=f"'careless' failed in stage 'compile': .*TypeError: .*{message}"
    ):
        fast(torch.ones(2))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (None, "compile() returned NoneType, not a runner: a callable that takes a list of inputs"),
        (lambda x, y: [x], "cannot be called with one list of inputs: it takes (x, y)"),
        (Runner(lambda x, y: [x]), "cannot be called with one list of inputs: it takes (x, y)"),
    ],
)
def test_what_cannot_be_called_is_an_error_of_the_backend(made, message):
    fast = tracer_core.compile(
        lambda x: x + 1, backend=Backend(name="wrong", compile=lambda graph, spec: made)
    )
    with pytest.raises(BackendError) as caught:
        fast(torch.ones(2))
    assert message in str(caught.value) and caught.value.backend == "wrong"


# -- fields --


@pytest.mark.parametrize("known", [True, False])
def test_mutated_on_error(known):
    """The graph raises after it has written to one of two inputs. Where it says to which, and where
    it says nothing, that is undone, and the program does it all again."""
    fails = False

    def compile_failing(graph, spec):
        wrote = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
        places = [
            list(graph.graph.find_nodes(op="placeholder")).index(node.args[0]) for node in wrote
        ]
        assert sorted(places) == sorted(spec.mutations) and len(places) == 2

        def run(inputs):
            if fails:
                inputs[places[0]].add_(100)
                raise RuntimeError("the engine is out of order")
            return graph.forward(*inputs)

        return Runner(run, mutated_on_error=frozenset(places[:1]) if known else None)

    def both(x, y, index):
        x.add_(1)
        y.mul_(2)
        return (
            x[index] + y
        )  # an operator that checks values may raise: what was written before is to be undone

    fast = tracer_core.compile(
        both, backend=Backend(name="failing", compile=compile_failing, ir="aten")
    )
    index = torch.tensor([2, 0, 1])
    for call in range(5):
        fails = call >= 3
        ours, theirs = (torch.ones(3), torch.ones(3)), (torch.ones(3), torch.ones(3))
        with failures() as said:
            torch.testing.assert_close(fast(*ours, index), both(*theirs, index))
        torch.testing.assert_close(ours, theirs)
        assert bool(said) == fails


class Convs(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)

    def forward(self, x):
        return self.second(self.first(x).relu()).mean()


@pytest.mark.parametrize("declared", [True, False])
def test_channels_last(declared):
    """Saved images may come in another layout, if the runner says so: the backward is compiled for
    it.
    """
    layouts = []

    def compile_images(graph, spec):
        images = {i for i, item in enumerate(spec.outputs) if item.saved and len(item.shape) == 4}
        if spec.phase is Phase.BACKWARD:
            saved = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
            layouts.extend(
                item.stride()[1] == 1
                for item in saved
                if item.dim() == 4 and item.shape[1] == 8 and item.shape[0] == 2
            )

        def run(inputs):
            return [
                value.contiguous(
                    memory_format=torch.channels_last if i in images else torch.contiguous_format
                )
                for i, value in enumerate(graph.forward(*inputs))
            ]

        return Runner(run, channels_last=frozenset(images if declared else ()))

    backend = Backend(
        name="images", compile=compile_images, ir="aten", training=Training.FORWARD_BACKWARD
    )
    theirs = Convs()
    ours = copy.deepcopy(theirs)
    fast = tracer_core.compile(ours, backend=backend)
    x = torch.randn(2, 3, 9, 9)
    if not declared:
        with pytest.raises(BackendError, match="has strides .*, expected"):
            fast(x)
        return
    for _ in range(2):
        theirs(x).backward()
        fast(x).backward()
    assert layouts and all(layouts)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


@dataclass(frozen=True)
class Freezing:
    freeze: bool = False


def frozen_backend(bound, *, as_runner=True, reads=()):
    def compile_frozen(graph, spec):
        if not spec.constants:
            return lambda inputs: graph.forward(*inputs)

        def bind_constants(tensors):
            kept = [tensor.clone() for tensor in tensors]
            bound.append(len(kept))

            def run(inputs):
                for index, value in zip(spec.constants, kept, strict=True):
                    inputs[index] = value
                return graph.forward(*inputs)

            return Runner(run) if as_runner else run

        def run(inputs):
            raise AssertionError("called before its constants are bound")

        return Runner(run, bind_constants=bind_constants, constants_read=frozenset(reads))

    return Backend(
        name="frozen", compile=compile_frozen, ir="aten", params="constants", options=Freezing
    )


@pytest.mark.parametrize("as_runner", [True, False])
def test_bind_constants(as_runner):
    """Once for the weights that a model has, and again when they change."""
    bound = []
    model = nn.Linear(4, 3)
    fast = tracer_core.compile(
        model, backend=frozen_backend(bound, as_runner=as_runner), options={"freeze": True}
    )
    with torch.no_grad():
        for count in (1, 2, 2):
            for _ in range(3):
                x = torch.randn(2, 4)
                torch.testing.assert_close(fast(x), model(x))
            assert bound == [2] * count
            if count == 1:
                model.weight.mul_(2)


@pytest.mark.parametrize("read", [(), (0,), (0, 1)])
def test_constants_read(read):
    """The memory of what nobody reads any more can be given back."""
    model = nn.Linear(4, 3)
    nbytes = [tensor.nbytes for tensor in (model.weight, model.bias)]
    fast = tracer_core.compile(
        model, backend=frozen_backend([], reads=read), options={"freeze": True}
    )
    x = torch.randn(2, 4)
    with torch.no_grad():
        expected = model(x)
        torch.testing.assert_close(fast(x), expected)
        given_back = fast.release_originals()
        assert given_back == sum(nbytes) - sum(nbytes[place] for place in read)
        torch.testing.assert_close(fast(x), expected)


def test_constants_without_bind_constants():
    backend = Backend(
        name="forgetful", compile=lambda graph, spec: lambda inputs: graph.forward(*inputs),
        ir="aten",
        params="constants", options=Freezing,
    )  # fmt: skip
    fast = tracer_core.compile(nn.Linear(4, 3), backend=backend, options={"freeze": True})
    with (
        torch.no_grad(),
        pytest.raises(BackendError, match="'forgetful' failed .* its runner has no bind_constants"),
    ):
        fast(torch.randn(2, 4))


@pytest.mark.parametrize("restored", ["a function", "a Runner"])
def test_artifact(restored, tmp_path):
    """What a backend stores, and what it makes of that: a plain function or a runner."""

    def compile_scaled(graph, spec):
        return Runner(lambda inputs: graph.forward(*inputs), artifact=b"scaled by 3")

    def deserialize(data, spec):
        assert data == b"scaled by 3"
        run = lambda inputs: [inputs[0] * 3]
        return run if restored == "a function" else Runner(run)

    backend = Backend(
        name="stored",
        compile=compile_scaled,
        ir="aten",
        serialize=lambda runner: runner.artifact,
        deserialize=deserialize,
    )
    first = tracer_core.compile(scaled, backend=backend)
    x = torch.randn(4)
    torch.testing.assert_close(first(x), scaled(x))
    assert tracer_core.save(first, tmp_path / "stored.json").left_out == ()
    second = tracer_core.compile(scaled, backend=backend)
    assert tracer_core.load(second, tmp_path / "stored.json") == 1
    torch.testing.assert_close(second(x), scaled(x))


def scaled(x):
    return x * 3


def test_a_wrapper_hands_the_fields_on():
    runner = Counted(
        lambda inputs: inputs, mutated_on_error=frozenset({1}), channels_last=frozenset({2}),
        artifact="text",
        graph_traits={"device": 0}, operators=5,
    )  # fmt: skip
    wrapped = runner.with_run(lambda inputs: runner.run(inputs) * 2, mutated_on_error=None)
    assert wrapped([1]) == [1, 1] and runner([1]) == [1]
    assert isinstance(wrapped, Counted) and wrapped.operators == 5
    assert wrapped.mutated_on_error is None and wrapped.channels_last == {2}
    assert (wrapped.artifact, wrapped.graph_traits) == ("text", {"device": 0})
    with pytest.raises(TypeError, match="recorded_as"):
        runner.with_run(runner.run, recorded_as={})
    with pytest.raises(TypeError, match="channels_last"):
        runner.with_run(runner.run, channels_last=[2])
    with pytest.raises(AttributeError):
        runner.artifact = "another"


# -- calls, memory --


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x):
        y = self.layers(x)
        print(end="", flush=[])  # a graph break
        return y.cumsum(-1) + x


@pytest.fixture
def no_object_is_called(monkeypatch):
    """`Runner.__call__` is for people: code that runs in each call holds `Runner.run`."""

    def called(self, inputs):
        raise AssertionError("a Runner was called")

    monkeypatch.setattr(Runner, "__call__", called)


THIRD = Backend(
    name="third", compile=lambda graph, spec: Runner(Callable(graph.forward)), ir="aten"
)


@pytest.mark.sweep(keep=5)
@pytest.mark.usefixtures("no_object_is_called")
@pytest.mark.parametrize(
    ("backend", "how"),
    [
        *((backend, how) for backend in ("eager", "aten_eager", "inductor",
        "auto") for how in ("inference", "training")),
        (THIRD, "inference"), ("inductor", "freeze"), ("inductor", "stored"),
    ],
    ids=lambda value: getattr(value, "name", value),
)  # fmt: skip
def test_calls_of_compiled_code(backend, how, tmp_path):
    model = Model()
    theirs = copy.deepcopy(model)
    options = (
        {"freeze": True}
        if how == "freeze"
        else {"wait": True, "remember": False}
        if backend == "auto"
        else None
    )
    fast = tracer_core.compile(model, backend=backend, options=options)
    if how == "stored":
        with torch.no_grad():
            fast(torch.randn(3, 4))
        tracer_core.save(fast, tmp_path / "stored.json")
        fast = tracer_core.compile(model, backend=backend)
        assert tracer_core.load(fast, tmp_path / "stored.json")
    with torch.set_grad_enabled(how == "training"), failures() as said:
        for size in (3, 3, 5, 6, 7):
            x = torch.randn(size, 4)
            ours, expected = fast(x), theirs(x)
            torch.testing.assert_close(ours, expected)
            if how == "training":
                ours.sum().backward()
                expected.sum().backward()
    for mine, other in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)
    assert said == []


@pytest.mark.usefixtures("no_object_is_called")
def test_calls_through_torch_compile():
    captured = torch_graph(lambda x, y: ((x @ y).relu(), x + 1), [randn(2, 4), randn(4, 3)])
    run = bridges.torch_backend_of("inductor")(captured.gm, captured.real_inputs)
    for _ in range(3):
        x, y = torch.randn(2, 4), torch.randn(4, 3)
        torch.testing.assert_close(list(run(x, y)), [(x @ y).relu(), x + 1])


def test_a_runner_dies_with_the_compiled_function():
    result = []

    def compile_watched(graph, spec):
        runner = Runner(Callable(graph.forward), artifact=Callable(None))
        result.extend(map(weakref.ref, (runner, runner.run, runner.artifact, graph)))
        return runner

    fast = tracer_core.compile(
        lambda x: x + 1, backend=Backend(name="watched", compile=compile_watched, ir="aten")
    )
    fast(torch.ones(3))
    assert len(result) == 4 and result[1]() is not None
    del fast
    gc.collect()
    assert [item() for item in result] == [None] * 4


def test_copies_of_a_compiled_module():
    fast = tracer_core.compile(Model(), backend="inductor")
    x = torch.randn(2, 4)
    expected = fast(x)
    other = copy.deepcopy(fast)
    torch.testing.assert_close(other(x), expected)


def test_threads_share_a_runner():
    calls = []

    def compile_slow(graph, spec):
        def run(inputs):
            calls.append(threading.get_ident())
            return graph.forward(*inputs)

        return Runner(run)

    fast = tracer_core.compile(lambda x: x * 2, backend=Backend(name="slow", compile=compile_slow))
    results = {}

    def work(number):
        results[number] = fast(torch.full((3,), float(number)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(results[number], torch.full((3,), 2.0 * number)) for number in range(8))
    assert len(set(calls)) > 1


def functions_and_stores(scope):
    """The functions that a scope defines, and its own assignments to attributes of names."""
    functions, stores, waiting = set(), [], list(scope.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef):
            functions.add(node.name)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
        ):
            stores.append(node)
        else:
            waiting += ast.iter_child_nodes(node)
    return functions, stores


def test_no_attributes_are_put_on_functions():
    """What others are to know of a runner is a field."""
    actual = []
    for path in sorted(ROOT.glob("packages/*/src/**/*.py")):
        for scope in ast.walk(ast.parse(path.read_text())):
            if isinstance(scope, (ast.FunctionDef, ast.Module)):
                functions, stores = functions_and_stores(scope)
                actual += [
                    f"{path.name}:{store.lineno}: {ast.unparse(store)}"
                    for store in stores
                    if store.value.id in functions and not store.attr.startswith("__")
                ]
    assert actual == []


def test_the_search_sees_an_attribute():
    module = ast.parse(
        "def run(inputs): ...\nif True:\n    run.written_early = frozenset()\nother.field = 1"
    )
    functions, stores = functions_and_stores(module)
    assert functions == {"run"} and {ast.unparse(store) for store in stores} == {
        "run.written_early",
        "other.field",
    }
