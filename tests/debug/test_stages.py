"""Stage records, the debug folder, and what listens to them."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

import tracer_core
from tracer_core.debug import stages
from tracer_core.plugin_api import hookimpl


class Owner:
    """Stands for a compiled function."""


@pytest.fixture(autouse=True)
def no_debug_folder(monkeypatch):
    monkeypatch.delenv("TRACER_DEBUG", raising=False)


def test_records_hold_name_text_time_and_depth():
    owner = Owner()
    with stages.recording(owner):
        with stages.stage("lower", graph="graph_0") as outer:
            with stages.stage("decompose", graph="graph_0"):
                pass
            outer.text = "the graph"
    inner, full = stages.records_of(owner)
    assert (inner.name, inner.depth, inner.text) == ("decompose", 1, "")
    assert (full.name, full.depth, full.text, full.graph) == (
        "lower",
        0,
        "the graph",
        "graph_0",
    )
    assert 0 <= inner.seconds <= full.seconds


def test_a_stage_that_fails_is_recorded_with_its_reason():
    owner = Owner()
    with pytest.raises(ZeroDivisionError), stages.recording(owner), stages.stage("fuse") as fuse:
        fuse.text = "so far"
        _ = 1 / 0
    (record,) = stages.records_of(owner)
    assert record.text == "so far\nstopped by ZeroDivisionError: division by zero"


def test_recordings_nest_and_threads_do_not_mix():
    outer, inner, other = Owner(), Owner(), Owner()

    def elsewhere():
        with stages.recording(other), stages.stage("third"):
            pass

    with stages.recording(outer), stages.stage("first"):
        with stages.recording(inner), stages.stage("second"):
            pass
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert [r.name for r in stages.records_of(outer)] == ["second", "first"]
    assert [r.name for r in stages.records_of(inner)] == ["second"]
    assert [r.name for r in stages.records_of(other)] == ["third"]


def test_records_do_not_keep_their_owner_alive():
    owner = Owner()
    with stages.recording(owner), stages.stage("a"):
        pass
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None


def test_the_debug_folder_numbers_the_files(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACER_DEBUG", str(tmp_path))
    for name, suffix in (("graph", ".py"), ("aten", ".py"), ("odd / name", ".txt")):
        with stages.stage(name, graph="graph_0", suffix=suffix) as s:
            s.text = f"text of {name}"
    with stages.stage("silent", graph="graph_0"):
        pass
    with stages.stage("graph", graph="graph_1") as s:
        s.text = "other"
    written = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*"))
    assert written == [
        "graph_0/010_graph.py",
        "graph_0/020_aten.py",
        "graph_0/030_odd_name.txt",
        "graph_1/010_graph.txt",
    ]
    assert (tmp_path / "graph_0" / "020_aten.py").read_text() == "text of aten"


def test_the_files_of_many_stages_sort_as_the_stages_finished(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACER_DEBUG", str(tmp_path))
    for number in range(12):
        with stages.stage(f"stage{number}", graph="graph_0") as s:
            s.text = "text"
    names = [path.stem.partition("_")[2] for path in sorted((tmp_path / "graph_0").iterdir())]
    assert names == [f"stage{number}" for number in range(12)]


def test_an_earlier_runs_folder_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / "graph_0").mkdir()
    (tmp_path / "graph_0" / "10_graph.txt").write_text("earlier")
    monkeypatch.setenv("TRACER_DEBUG", str(tmp_path))
    with stages.stage("graph", graph="graph_0") as s:
        s.text = "later"
    assert (tmp_path / "graph_0" / "10_graph.txt").read_text() == "earlier"
    assert (tmp_path / "graph_0.1" / "010_graph.txt").read_text() == "later"
    assert stages.debug_folder("graph_0") == tmp_path / "graph_0.1"


def test_wants_text_says_whether_anybody_reads(tmp_path, monkeypatch):
    assert not stages.wants_text()
    with stages.recording(Owner()):
        assert not stages.wants_text(), "times are always kept; texts would cost every compile"
    undo = stages.observe(lambda record: None)
    assert stages.wants_text()
    undo()
    monkeypatch.setenv("TRACER_DEBUG", str(tmp_path))
    assert stages.wants_text()


class StageListener:
    """A plug-in that only listens."""

    def __init__(self):
        self.seen = []

    @hookimpl
    def tracer_stage_finished(self, stage, text):
        self.seen.append((stage, text))


def test_plugins_hear_of_stages_only_if_they_listen(runtime):
    tracer_core.compile(lambda x: x, backend="eager")
    assert not stages._observers
    listener = StageListener()
    unregister = tracer_core.register(listener)
    tracer_core.compile(lambda x: x, backend="eager")
    with stages.stage("lower") as s:
        s.text = "text"
    unregister()
    tracer_core.compile(lambda x: x, backend="eager")
    with stages.stage("lower"):
        pass
    assert listener.seen == [("lower", "text")]
    assert not stages._observers
