"""TRACER_LOGS, and the events that are logged and told to listening plug-ins."""

from __future__ import annotations

import logging
import subprocess
import sys

import pluggy
import pytest
import torch

import tracer_core
from tracer_core import events, logs
from tracer_core.errors import OptionError
from tracer_core.plugin_api import hookimpl


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
    with pytest.raises(OptionError, match="unknown 'gaurds'; one or more of graph_breaks, recompiles"):
        tracer_logs("gaurds,graph")
    with pytest.raises(OptionError, match="'gaurds'"):
        tracer_core.compile(lambda x: x, backend="eager")
    with pytest.raises(KeyError, match="no log category 'gaurds'"):
        logs.logger("gaurds")


def test_the_users_own_logging_setup_works_too():
    assert not logs.enabled("cache")
    logging.getLogger("tracer_core.cache").setLevel(logging.INFO)
    try:
        assert logs.enabled("cache")
    finally:
        logging.getLogger("tracer_core.cache").setLevel(logging.NOTSET)


def test_lines_go_to_stderr_in_a_program_without_logging():
    program = (
        "from tracer_core import logs, events; logs.configure();"
        "events.graph_break(kind='item', reason='.item() on a tensor', location='m.py:3 in f', hint='none')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": "", "TRACER_LOGS": "graph_breaks"},
        capture_output=True,
        text=True,
        timeout=60,
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
    undo = [tracer_core.register(Raising(), "monitor"), tracer_core.register(listener), tracer_core.register(Raising(), "other")]
    try:
        fast = tracer_core.compile(lambda x: x + 1, backend="eager")
        assert fast(torch.ones(2)).tolist() == [2, 2] and tracer_core.last_compile(fast)
    finally:
        for one in undo:
            one()
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
