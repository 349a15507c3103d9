"""What somebody who writes a first backend gets wrong, and what they are told."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import tracer_core
from tests.plugin.conftest import write_distribution
from tests.plugin.test_discovery import REPORT
from tracer_core.errors import BackendError
from tracer_core.plugin_api import Backend
from tracer_core.testing.conformance import PROGRAMS
from tracer_core.testing.conformance.programs import Subject
from tracer_core.testing.conformance.run import program_row


@dataclass(frozen=True)
class Unreadable:
    limit: NoSuchType = 1  # which no module knows


@dataclass(frozen=True)
class Raising:
    limit: int = 1

    def __post_init__(self):
        raise KeyError("limit")


def plain(graph, spec):
    forward = graph.forward
    return lambda inputs: forward(*inputs)


class NoDataclass:
    pass


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "my backend"}, "'my backend' is not an identifier"),
        ({"name": 3}, "3 is not an identifier"),
        (
            {"api": "0"},
            "backend 'mine' is written for version 0 of the plug-in API, and this tracer-core has version 1",
        ),
        ({"preserved_ops": "aten.gelu.default"}, "preserved_ops='aten.gelu.default'; a set"),
        ({"ir": "ATen"}, "ir='ATen'; one of 'torch', 'aten', 'core_aten'"),
        ({"shapes": "dynamic"}, "shapes='dynamic'; one of 'static', 'symbolic'"),
        ({"params": "constant"}, "params='constant'; one of 'inputs', 'constants'"),
        ({"devices": "cpu"}, "devices='cpu'; a set"),
        ({"devices": frozenset()}, "a set"),
        ({"modes": ["default"]}, "modes="),
        ({"modes": {"fast": "quicker"}}, "'default'"),
        ({"training": "forward_backward"}, "a member of plugin_api.Training"),
        ({"options": NoDataclass}, "options=NoDataclass; a frozen dataclass"),
        (
            {"compile": "engine.compile_graph"},
            "compile='engine.compile_graph'; a function or 'module:function'",
        ),
        ({"supports": "engine.supports"}, "supports='engine.supports'"),
    ],
)
def test_a_field_that_cannot_be_is_named(fields, message):
    with pytest.raises(ValueError) as caught:
        Backend(**{"name": "mine", "compile": plain, **fields})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "stage", "message"),
    [
        ({"compile": lambda graph, spec: None}, "compile", "returned NoneType, not a runner"),
        (
            {"compile": lambda graph: plain(graph, None)},
            "compile",
            "takes 1 positional argument but 2 were given",
        ),
        (
            {"compile": "no_such_engine:compile_graph"},
            "compile",
            "No module named 'no_such_engine'",
        ),
        (
            {"compile": "math:compile_graph"},
            "compile",
            "module 'math' has no attribute 'compile_graph'",
        ),
        (
            {"compile": lambda graph, spec: lambda inputs: torch.ones(2)},
            "first call",
            "returned Tensor, expected a list of 1",
        ),
        (
            {"supports": lambda node: True},
            "compile",
            "supports() returned True for aten.add.Tensor",
        ),
        (
            {"supports": lambda node: node.value},
            "compile",
            "'Node' object has no attribute 'value'",
        ),
        ({"available": lambda: False}, "available", "available() returned False"),
        ({"available": lambda: 1 / 0}, "available", "ZeroDivisionError"),
        ({"options": "no_such_engine:Options"}, "options", "No module named 'no_such_engine'"),
        ({"options": "math:sqrt"}, "options", "'math:sqrt' is no dataclass"),
        ({"options": Unreadable}, "options", "NameError: name 'NoSuchType' is not defined"),
        ({"options": Raising}, "options", "Raising() raised KeyError: 'limit'"),
        ({"check": lambda options: None}, "check", "takes 1 positional argument but 2 were given"),
        (
            {"compile": lambda graph, spec: lambda x, y: [x]},
            "compile",
            "with one list of inputs: it takes (x, y)",
        ),
        (
            {"compile": lambda graph, spec: lambda inputs: [inputs[0].add_(1).clone()]},
            "first call",
            "it wrote to input 0 (x)",
        ),
        (
            {"preserved_ops": frozenset({"aten.no_such_operator"})},
            "lower",
            "names 'aten.no_such_operator', which is no operator",
        ),
        ({"decompositions": lambda: None}, "lower", "decompositions() raised TypeError"),
        (
            {"decompositions": lambda: {torch.ops.aten.gelu: plain}},
            "lower",
            "{torch.ops.aten.gelu.default: function}",
        ),
    ],
)
def test_a_function_that_cannot_work_is_an_error_that_names_backend_and_stage(
    fields, stage, message
):
    with pytest.raises(BackendError) as caught:
        fast = tracer_core.compile(
            lambda x: x + 1, backend=Backend(**{"name": "mine", "compile": plain, **fields})
        )
        fast(torch.ones(2))
    assert f"backend 'mine' failed in stage '{stage}'" in str(caught.value) and message in str(
        caught.value
    )


def test_tensors_of_a_device_that_the_backend_does_not_run_on_are_pytorch_s():
    calls = []
    backend = Backend(
        name="mine", compile=lambda graph, spec: calls.append(graph), devices=frozenset({"cuda"})
    )
    fast = tracer_core.compile(lambda x: x + 1, backend=backend)
    assert fast(torch.ones(2)).tolist() == [2, 2] and not calls
    (messages,) = [
        record.text for record in tracer_core.last_compile(fast) if record.name == "fallback"
    ]
    assert "aten.add.Tensor (1x: the backend runs on cuda, and its tensors are on cpu)" in messages


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (lambda: 1 / 0, "ZeroDivisionError"),
        (lambda: [("graph_0", None)], "pairs of texts"),
        (lambda: ["graph_0"], "unpack"),
    ],
)
def test_a_report_that_is_none_is_an_error_that_names_the_backend(rows, message):
    fast = tracer_core.compile(
        lambda x: x + 1, backend=Backend(name="mine", compile=plain, report=rows)
    )
    fast(torch.ones(2))
    with pytest.raises(BackendError, match="backend 'mine' failed in stage 'report'") as caught:
        tracer_core.last_compile(fast)
    assert message in str(caught.value)


def test_a_runner_that_raises_is_named_and_does_not_conform(caplog):
    def failing(inputs):
        raise ValueError("engine is out")

    backend = Backend(name="mine", compile=lambda graph, spec: failing)
    fast = tracer_core.compile(lambda x: x + 1, backend=backend)
    assert fast(torch.ones(2)).tolist() == [2, 2]
    (said,) = [
        record.getMessage() for record in caplog.records if "engine is out" in record.getMessage()
    ]
    assert "backend 'mine' is at fault" in said
    (item,) = [item for item in PROGRAMS if item.name == "one size changes from call to call"]
    row = program_row(item, Subject(backend))
    assert row.status == "error" and "engine is out" in row.detail


def test_an_entry_point_that_names_no_plugin_is_a_row_with_its_reason(environment):
    """The function instead of its module, or a module that registers nothing."""
    write_distribution(
        environment, "empty-plugin", "0.1", "empty", "def compile_graph(graph, spec): ...\n"
    )
    report = environment.run(REPORT.format(name="empty"))
    ((_, distribution, _, available, messages),) = report["rows"]
    assert (distribution, available) == ("empty-plugin", False)
    assert "empty_plugin has no hook of tracer_core" in messages and "tracer_backends()" in messages
    assert messages in report["error"][1]
