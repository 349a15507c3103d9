"""TRACER_LOGS, and the events that are logged and told to listening plug-ins."""

from __future__ import annotations

import logging
import os
import pathlib
import re

import pluggy
import pytest
import torch

import tracer_core
from tests.support import torch_server
from tracer_core.debug import logs
from tracer_core.errors import OptionError
from tracer_core.plugin_api import hookimpl
from tracer_core.registry import events


@pytest.fixture
def tracer_logs(monkeypatch):
    """Sets TRACER_LOGS for one test."""

    def set_to(value):
        monkeypatch.setenv("TRACER_LOGS", value)
        return logs.configure()

    yield set_to
    monkeypatch.delenv("TRACER_LOGS", raising=False)
    logs.configure()


def test_only_the_named_categories_are_on(tracer_logs):
    assert tracer_logs("guards, recompiles") == {"guards", "recompiles"}
    assert logs.enabled("guards") and logs.enabled("recompiles")
    assert not logs.enabled("graph_breaks")
    assert tracer_logs("") == frozenset()
    assert not logs.enabled("guards")


def test_an_unknown_name_lists_the_known_ones(tracer_logs, runtime):
    text = r"unknown 'gaurds' \(did you mean 'guards'\?\); one or more of graph_breaks, recompiles"
    with pytest.raises(OptionError, match=text):
        tracer_logs("gaurds,graph")
    with pytest.raises(OptionError, match="'gaurds'"):
        tracer_core.compile(lambda x: x, backend="eager")
    with pytest.raises(KeyError, match="no log category 'gaurds'"):
        logs.logger("gaurds")


def test_the_users_own_logging_setup_works_too():
    assert not logs.enabled("cache")
    logging.getLogger("tracer_core.cache").setLevel(logging.DEBUG)
    try:
        assert logs.enabled("cache")
    finally:
        logging.getLogger("tracer_core.cache").setLevel(logging.NOTSET)


def test_lines_go_to_stderr_in_a_program_without_logging():
    program = (
        "from tracer_core.debug import logs; from tracer_core.registry import events; logs.configure();"
        "events.graph_break(kind='item', reason='.item() on a tensor', location='m.py:3 in f', hint='none')"
    )
    done = torch_server.run(
        ["-c", program], env={"PATH": "", "TRACER_LOGS": "graph_breaks"}, timeout=60
    )
    assert done.stdout == ""
    assert done.stderr.strip() == (
        "[tracer_core.graph_breaks] m.py:3 in f: .item() on a tensor [item]; what would remove it: none"
    )


class Listener:
    def __init__(self):
        self.seen = []

    @hookimpl
    def tracer_graph_captured(self, name, gm, backend):
        self.seen.append(("graph", name, len(gm.graph.nodes), backend))

    @hookimpl
    def tracer_graph_break(self, kind, location):
        self.seen.append(("break", kind, location))

    @hookimpl
    def tracer_recompile(self, function, reason, count):
        self.seen.append(("recompile", function, reason, count))


class Raising:
    @hookimpl
    def tracer_graph_captured(self, name):
        raise OSError("disk full")


def test_a_listener_that_raises_is_named_and_stops_nobody(caplog):
    listener = Listener()
    undo = [
        tracer_core.register(Raising(), "monitor"),
        tracer_core.register(listener),
        tracer_core.register(Raising(), "other"),
    ]
    try:
        fast = tracer_core.compile(lambda x: x + 1, backend="eager")
        assert fast(torch.ones(2)).tolist() == [2, 2] and tracer_core.last_compile(fast)
    finally:
        for item in undo:
            item()
    assert [event[0] for event in listener.seen].count("graph") == 1
    said = [record.getMessage() for record in caplog.records]
    for name in ("monitor", "other"):
        assert f"tracer_graph_captured() of the plug-in {name} raised; the compile goes on" in said


def test_listeners_hear_every_event():
    listener = Listener()
    unregister = tracer_core.register(listener)
    gm = torch.fx.symbolic_trace(lambda x: x + 1)
    events.graph_captured(name="graph_0", gm=gm, backend="eager")
    events.graph_break(kind="item", reason="r", location="m.py:1 in f")
    events.recompile(function="f", reason="x.shape[0] == 3", count=2)
    unregister()
    events.recompile(function="f", reason="again", count=3)
    assert listener.seen == [
        ("graph", "graph_0", 3, "eager"),
        ("break", "item", "m.py:1 in f"),
        ("recompile", "f", "x.shape[0] == 3", 2),
    ]


def test_a_hook_that_does_not_fit_the_specification_is_refused_at_once():
    class Wrong:
        @hookimpl
        def tracer_recompile(self, function, guard):
            pass

    with pytest.raises(pluggy.PluginValidationError, match="guard"):
        tracer_core.register(Wrong())
    assert "eager" in tracer_core.list_backends()


#: A program with graph breaks, recompiles and C++, whose logging shows INFO, as many programs set
#: it up.
PROGRAM = """
import logging
import torch, tracer_core
from tests.support import torchvision_ops

logging.basicConfig(level=logging.INFO, format="%(name)s|%(levelname)s|%(message)s")
torchvision_ops.define()
import transformers

@tracer_core.compile
def broken(x):
    y = torch.sin(x) * 2
    tracer_core.graph_break()
    return torch.cos(y)

for n in (3, 4):
    broken(torch.randn(n, n))
config = transformers.BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=99)
model = tracer_core.compile(transformers.BertModel(config).eval())
with torch.no_grad():
    model(torch.randint(0, 99, (1, 12)))
"""


def printed(*, logs: str, program: str = PROGRAM) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRACER_LOGS"}
    done = torch_server.run(
        ["-c", program], env={**environment, **({"TRACER_LOGS": logs} if logs else {})}, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


def test_a_program_that_shows_info_is_told_what_was_captured():
    said = [line for line in printed(logs="") if "tracer_core" in line]
    assert said == [
        "tracer_core|WARNING|broken: 2 graphs, 1 graph break; it is at <string>:13 in broken: graph_break(); "
        "tracer_core.explain(f)(*args) tells more",
        "tracer_core|INFO|BertModel: 1 graph, 0 graph breaks",
    ]


@pytest.mark.full
def test_every_name_of_the_documentation_prints():
    page = (pathlib.Path(__file__).parents[2] / "docs" / "usage.md").read_text()
    (documented,) = re.findall(r"TRACER_LOGS=([a-z_,]+)", page)
    assert documented.split(",") == list(logs.CATEGORIES)
    small = PROGRAM.partition("config =")[0].replace("import transformers", "")
    for program in (
        small,
        small.replace("logging.basicConfig", "dict"),
    ):  # with and without logging of its own
        said = printed(logs=documented, program=program)
        for name in documented.split(","):
            own = [
                line
                for line in said
                if line.startswith((f"tracer_core.{name}|INFO|", f"[tracer_core.{name}] "))
            ]
            assert own, name
    for name, words in {
        "graph_breaks": "graph_break() [requested]", "recompiles": "broken (entry 1): ",
        "guards": "graph_0:",
        "graph": "graph_0 for backend inductor", "output_code": "graph_0:",
        "stages": "inductor_build",
        "cache": "library of graph_0: ",
    }.items():  # fmt: skip
        only = printed(logs=name, program=small)
        assert any(
            line.startswith(f"tracer_core.{name}|INFO|") and words in line for line in only
        ), (name, only[:20])
        others = [
            line
            for line in only
            if line.startswith("tracer_core.") and not line.startswith(f"tracer_core.{name}|")
        ]
        assert others == []
