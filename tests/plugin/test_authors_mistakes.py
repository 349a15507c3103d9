"""What somebody who writes a first backend gets wrong, and what they are told."""

from __future__ import annotations

import pytest
import torch

import tracer_core
from tests.plugin.conftest import write_distribution
from tests.plugin.test_discovery import REPORT
from tracer_core.errors import BackendError
from tracer_core.plugin_api import Backend


def plain(graph, spec):
    forward = graph.forward
    return lambda inputs: forward(*inputs)


class NoDataclass:
    pass


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"name": "my backend"}, "'my backend' is not an identifier"),
        ({"ir": "ATen"}, "ir='ATen'; one of 'torch', 'aten', 'core_aten'"),
        ({"shapes": "dynamic"}, "shapes='dynamic'; one of 'static', 'symbolic'"),
        ({"params": "constant"}, "params='constant'; one of 'inputs', 'constants'"),
        ({"devices": "cpu"}, "devices='cpu'; a set"),
        ({"devices": frozenset()}, "a set"),
        ({"modes": ["default"]}, "modes="),
        ({"modes": {"fast": "quicker"}}, "'default'"),
        ({"training": "forward_backward"}, "a member of plugin_api.Training"),
        ({"options": NoDataclass}, "options=NoDataclass; a frozen dataclass"),
        ({"compile": "engine.compile_graph"}, "compile='engine.compile_graph'; a function or 'module:function'"),
        ({"supports": "engine.supports"}, "supports='engine.supports'"),
    ],
)
def test_a_field_that_cannot_be_is_named(fields, told):
    with pytest.raises(ValueError) as caught:
        Backend(**{"name": "mine", "compile": plain, **fields})
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "stage", "told"),
    [
        ({"compile": lambda graph, spec: None}, "compile", "returned NoneType, not a runner"),
        ({"compile": lambda graph: plain(graph, None)}, "compile", "takes 1 positional argument but 2 were given"),
        ({"compile": "no_such_engine:compile_graph"}, "compile", "No module named 'no_such_engine'"),
        ({"compile": "math:compile_graph"}, "compile", "module 'math' has no attribute 'compile_graph'"),
        ({"compile": lambda graph, spec: lambda inputs: torch.ones(2)}, "first call", "returned Tensor, expected a list of 1"),
        ({"supports": lambda node: True}, "compile", "supports() returned True for aten.add.Tensor"),
        ({"supports": lambda node: node.value}, "compile", "'Node' object has no attribute 'value'"),
        ({"available": lambda: False}, "available", "available() returned False"),
        ({"available": lambda: 1 / 0}, "available", "ZeroDivisionError"),
        ({"options": "no_such_engine:Options"}, "options", "No module named 'no_such_engine'"),
        ({"options": "math:sqrt"}, "options", "'math:sqrt' is no dataclass"),
    ],
)
def test_a_function_that_cannot_work_is_an_error_that_names_backend_and_stage(fields, stage, told):
    with pytest.raises(BackendError) as caught:
        fast = tracer_core.compile(lambda x: x + 1, backend=Backend(**{"name": "mine", "compile": plain, **fields}))
        fast(torch.ones(2))
    assert f"backend 'mine' failed in stage '{stage}'" in str(caught.value) and told in str(caught.value)


def test_an_entry_point_that_names_no_plugin_is_a_row_with_its_reason(environment):
    """The function instead of its module, or a module that registers nothing."""
    write_distribution(environment, "empty-plugin", "0.1", "empty", "def compile_graph(graph, spec): ...\n")
    report = environment.run(REPORT.format(name="empty"))
    ((_, distribution, _, available, told),) = report["rows"]
    assert (distribution, available) == ("empty-plugin", False)
    assert "empty_plugin has no hook of tracer_core" in told and "tracer_backends()" in told
    assert told in report["error"][1]
