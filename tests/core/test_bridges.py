"""Both directions of torch.compile's backend convention."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
import torch

import tracer_core
from tracer_core import bridges
from tracer_core.dispatch.validation import build_config
from tracer_core.errors import BackendError, OptionError
from tracer_core.plugin_api import Runner
from tracer_core.registry import torch_style
from tracer_core.registry.torch_style import TorchStyle


def plain(gm, example_inputs):
    return gm.forward


def with_mode(gm, example_inputs, *, mode=None):
    plain.seen = mode
    return gm.forward


def with_everything(gm, example_inputs, **kwargs):
    with_everything.seen = kwargs
    return gm.forward


@pytest.fixture
def gm():
    return torch.fx.symbolic_trace(lambda x: x + 1)


def test_a_function_written_for_torch_compile(gm):
    config = build_config(backend=plain)
    style = config.backend.compile
    assert isinstance(style, TorchStyle)
    assert (config.backend.name, config.backend.ir) == ("plain", "torch")
    x = torch.ones(2)
    assert torch.equal(style.build(gm, (x,), config)(x), x + 1)


def test_real_inputs_and_settings_reach_it(gm):
    seen = {}

    def backend(gm, example_inputs, **kwargs):
        seen.update(kwargs, inputs=example_inputs)
        return gm.forward

    x = torch.ones(2)
    options = {"precision": "f16"}
    config = build_config(backend=backend, mode="max-autotune", options=options)
    config.backend.compile.build(gm, (x,), config)
    assert seen == {"mode": "max-autotune", "options": {"precision": "f16"}, "inputs": [x]}
    assert seen["options"] is not options, "the backend must not be able to change the user's dict"


@pytest.mark.parametrize(
    ("backend", "settings", "message"),
    [
        (plain, {"mode": "max-autotune"}, "'plain' takes no mode: .*\\(gm, example_inputs\\)"),
        (plain, {"options": {"a": 1}}, "'plain' takes no options"),
        (
            with_mode,
            {"mode": "max-autotune", "options": {"a": 1}},
            "no options: .*inputs, mode\\)",
        ),
        (with_everything, {"mode": "fastest"}, "unknown mode 'fastest'"),
        (with_everything, {"options": 3}, "must be a dict, not int"),
    ],
)
def test_settings_it_does_not_take_are_found_at_compile(backend, settings, message):
    with pytest.raises(OptionError, match=message):
        build_config(backend=backend, **settings)


def test_lambdas_and_objects_get_a_name():
    class Engine:
        def __call__(self, gm, example_inputs):
            return gm.forward

    assert build_config(backend=lambda gm, inputs: gm.forward).backend.name == "lambda"
    assert build_config(backend=Engine()).backend.name == "Engine"


def test_failures_name_the_backend(gm):
    def broken(gm, example_inputs):
        raise RuntimeError("engine exploded")

    def useless(gm, example_inputs):
        return None

    for backend, message in (
        (broken, "RuntimeError: engine exploded"),
        (useless, "returned NoneType"),
    ):
        config = build_config(backend=backend)
        with pytest.raises(BackendError, match=message) as caught:
            config.backend.compile.build(gm, (), config)
        assert caught.value.backend == backend.__name__


def test_it_cannot_be_called_like_a_plugin(gm):
    with pytest.raises(BackendError, match="example inputs"):
        build_config(backend=plain).backend.compile(gm, None)


def entry(value, name="theirs"):
    return EntryPoint(name, value, torch_style.GROUP)


def test_an_entry_point_is_loaded_only_when_it_is_used(gm):
    backend = torch_style.from_entry_point(entry(f"{__name__}:with_everything"))
    assert isinstance(backend.compile, TorchStyle)
    assert backend.available() is None
    missing = torch_style.from_entry_point(entry("no_such_package.deep:backend"))
    assert missing.available() == (
        "module 'no_such_package' of its entry point 'no_such_package.deep:backend' is not installed"
    )
    with pytest.raises(BackendError, match="no_such_package"):
        missing.compile.function()


def test_our_backends_for_torch(monkeypatch, gm):
    seen = {}

    def compile_graph(graph, inputs, backend, **kwargs):
        seen.update(kwargs, backend=backend, inputs=inputs)
        return Runner(lambda flat: [graph.forward(*flat)])

    monkeypatch.setattr(bridges.plugin_api, "compile_graph", compile_graph)
    function = bridges.tracer_inductor
    assert function.__name__ == "tracer_inductor"
    x = torch.ones(2)
    (result,) = function(gm, (x,), options={"a": 1})(x)
    assert torch.equal(result, x + 1)
    assert seen == {"backend": "inductor", "inputs": [x], "mode": None, "options": {"a": 1}}
    with pytest.raises(AttributeError):
        _ = bridges.something_else


def test_third_party_entries_are_listed_and_ours_are_not():
    names = {row.name for row in tracer_core.backends()}
    assert not any(name.startswith(torch_style.PREFIX) for name in names)
