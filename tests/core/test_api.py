"""`tracer_core.compile` and its siblings, as users call them; the tracer is a stand-in that
records.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect

import pytest
import torch

import tracer_core
from tracer_core.debug.stages import StageRecord, StageRecords
from tracer_core.errors import BackendError, BackendNotFoundError, OptionError
from tracer_core.plugin_api import Backend
from tracer_core.registry.eager import EAGER


def scale(x, factor=2, *, shift=0):
    """Scales."""
    return x * factor + shift


def test_function_form_keeps_name_signature_and_meaning(runtime):
    fast = tracer_core.compile(scale, backend="eager")
    assert torch.equal(fast(torch.ones(3), 4, shift=1), torch.full((3,), 5.0))
    assert fast is not scale
    assert (fast.__name__, fast.__doc__) == ("scale", "Scales.")
    assert inspect.signature(fast) == inspect.signature(scale)
    assert inspect.isfunction(fast)
    assert runtime.compiled[0].fn is scale


def test_decorator_forms(runtime, monkeypatch):
    # About compile(), not about inductor: the default name means a plain backend here.
    stand_in = dataclasses.replace(EAGER, name="inductor")
    monkeypatch.setattr(
        "tracer_core.dispatch.validation.get", {"inductor": stand_in, "eager": EAGER}.__getitem__
    )

    @tracer_core.compile
    def first(x):
        return x + 1

    @tracer_core.compile(backend="eager", fullgraph=True, dynamic=False)
    def second(x):
        return x + 2

    assert first(1) == 2 and second(1) == 3
    assert [item.fn.__name__ for item in runtime.compiled] == ["first", "second"]
    config = runtime.compiled[1].config
    assert (config.backend.name, config.fullgraph, config.dynamic, config.mode) == (
        "eager",
        True,
        False,
        "default",
    )


class Counter:
    def __init__(self, step):
        self.step = step

    def __call__(self, x):
        return x + self.step

    def twice(self, x):
        return self(self(x))

    @tracer_core.compile(disable=True)
    def plain(self, x):
        return x


def test_bound_method_passes_its_object_first(runtime):
    counter = Counter(3)
    fast = tracer_core.compile(counter.twice, backend="eager")
    assert fast(1) == 7
    assert fast.__self__ is counter
    assert runtime.compiled[0].fn is Counter.twice
    assert runtime.calls == [(counter, 1)]


def test_decorated_method_binds(runtime):
    class Model:
        bias = 10

        @tracer_core.compile(backend="eager")
        def run(self, x):
            return x + self.bias

        @tracer_core.compile(backend="eager")
        @staticmethod
        def free(x):
            return x + 1

    assert Model().run(1) == 11
    assert Model.free(1) == Model().free(1) == 2


def test_callable_objects_partials_and_builtins(runtime):
    counter = Counter(5)
    assert tracer_core.compile(counter, backend="eager")(1) == 6
    assert runtime.calls[-1] == (counter, 1)
    assert tracer_core.compile(functools.partial(scale, factor=3), backend="eager")(2) == 6
    assert torch.equal(
        tracer_core.compile(torch.neg, backend="eager")(torch.ones(2)), -torch.ones(2)
    )


def test_callable_object_keeps_its_own_state_apart(runtime):
    counter = Counter(5)
    fast = tracer_core.compile(counter, backend="eager")
    counter.step = 7
    assert fast(1) == 8
    assert not hasattr(fast, "step"), "the object's attributes are its state, not the function's"


def test_compiling_again_starts_from_the_original(runtime):
    once = tracer_core.compile(scale, backend="eager")
    twice = tracer_core.compile(once, backend="eager", fullgraph=True)
    assert runtime.compiled[-1].fn is scale
    assert runtime.compiled[-1].config.fullgraph
    twice(1)
    assert len(runtime.calls) == 1, "the call went through two compiled layers"
    method = tracer_core.compile(Counter(1).twice, backend="eager")
    tracer_core.compile(method, backend="eager")
    assert runtime.compiled[-1].fn is Counter.twice


def test_a_decorator_above_compile_is_not_skipped(runtime):
    """functools.wraps copies attributes; the outer function must not pass for the compiled one."""

    def doubled(fn):
        @functools.wraps(fn)
        def outer(*args):
            return 2 * fn(*args)

        return outer

    outer = doubled(tracer_core.compile(scale, backend="eager"))
    again = tracer_core.compile(outer, backend="eager")
    assert runtime.compiled[-1].fn is outer
    assert again(1) == 4


def test_disable_argument_is_a_no_op(runtime):
    assert tracer_core.compile(scale, disable=True) is scale
    assert tracer_core.compile(disable=True)(scale) is scale
    assert Counter(1).plain(4) == 4
    assert runtime.compiled == []


def test_compiling_what_is_disabled_leaves_it_alone(runtime):
    native = tracer_core.disable(scale)
    assert tracer_core.compile(native, backend="eager") is native
    assert runtime.compiled == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fullgraph": 1}, "fullgraph must be bool, not 1"),
        ({"dynamic": "yes"}, "dynamic must be bool or None, not 'yes'"),
        ({"mode": 3}, "mode must be str or None, not 3"),
        ({"disable": None}, "disable must be bool"),
        ({"backend": 7}, "backend must be a name, a Backend or a callable, not int"),
        ({"backend": "eager", "mode": "fastest"}, "mode 'fastest' is unknown to backend 'eager'"),
        (
            {"backend": "eager", "mode": "max-autotune"},
            "with backend 'eager'; available: 'default'",
        ),
        ({"backend": "eager", "options": {"x": 1}}, "backend 'eager' has no options"),
    ],
)
@pytest.mark.parametrize("as_decorator", [False, True])
def test_every_mistake_is_found_at_compile(runtime, arguments, message, as_decorator):
    with pytest.raises(OptionError, match=message):
        if as_decorator:
            tracer_core.compile(**arguments)
        else:
            tracer_core.compile(scale, **arguments)
    assert runtime.compiled == []


@pytest.mark.parametrize("model", [3, "model", torch.nn.Linear, [scale]])
def test_what_cannot_be_compiled(model, runtime):
    with pytest.raises(OptionError):
        tracer_core.compile(model, backend="eager")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("hidet", "python -m pip install hidet"),
        ("aot_eager", "backend='aten_eager'"),
        ("ipex", "backend='inductor'"),
        ("tensorrt", "backend='torch_tensorrt' (python -m pip install torch-tensorrt)"),
        ("tracer_eager", "backend='eager'"),
        ("eagr", "Did you mean 'eager'?"),
        ("nothing_like_it", "tracer_core.backends()"),
    ],
)
def test_unknown_backend_says_what_to_do(runtime, name, hint):
    with pytest.raises(BackendNotFoundError) as caught:
        tracer_core.compile(scale, backend=name)
    assert caught.value.name == name
    assert "eager" in caught.value.installed
    assert hint in str(caught.value)


def test_a_backend_object_is_accepted_and_its_check_is_called(runtime):
    seen = []
    backend = Backend(
        name="mine",
        compile=lambda graph, spec: None,
        check=lambda options, mode: seen.append((options, mode)),
        modes={"default": "plain", "max-autotune": "slow"},
    )
    tracer_core.compile(scale, backend=backend, mode="max-autotune")
    assert seen == [(None, "max-autotune")]

    def no_compiler(options, mode):
        raise BackendError("mine", "toolchain", "no C++ compiler")

    broken = Backend(name="mine", compile=lambda graph, spec: None, check=no_compiler)
    with pytest.raises(BackendError, match="no C\\+\\+ compiler"):
        tracer_core.compile(scale, backend=broken)


def test_a_backend_that_cannot_run_here_is_refused_at_compile(runtime):
    backend = Backend(name="mine", compile="no.such:engine", available=lambda: "needs a licence")
    with pytest.raises(BackendError, match="needs a licence"):
        tracer_core.compile(scale, backend=backend)


def test_reset_reaches_the_tracer_and_the_backends_that_were_used(runtime):
    calls = []
    used = Backend(
        name="used", compile=lambda graph, spec: None, reset=lambda: calls.append("used")
    )
    unused = Backend(
        name="unused", compile=lambda graph, spec: None, reset=lambda: calls.append("unused")
    )
    tracer_core.compile(scale, backend=used)
    assert unused.name == "unused"
    tracer_core.reset()
    assert (calls, runtime.resets) == (["used"], 1)


def test_records_of_a_compile_are_printed_as_a_table():
    records = StageRecords([
        StageRecord("inner", 0.0015, "first line\nsecond line", "graph_0", 1), StageRecord("outer",
        0.25, "", "graph_0"),
    ])  # fmt: skip
    assert str(records).splitlines()[1:] == records.table().splitlines()
    inner, outer = records.table().splitlines()
    assert inner.split() == [
        "inner",
        "graph_0",
        "1.5",
        "ms",
        "first",
        "line",
        "...",
    ] and inner.startswith("  ")
    assert outer.split() == ["outer", "graph_0", "250.0", "ms"]
    assert str(StageRecords()).startswith("nothing was compiled: ")


def test_last_compile_wants_a_compiled_object(runtime):
    assert tracer_core.last_compile(tracer_core.compile(scale, backend="eager")) == ()
    with pytest.raises(OptionError, match="what compile\\(\\) returned"):
        tracer_core.last_compile(scale)
