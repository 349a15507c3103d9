"""`tracer_core.report`: what it says of programs, its three forms, and its errors."""

from __future__ import annotations

import json
import os
import re
import time

import pytest
import torch

import tracer_core
from tests.reporting import programs
from tests.support import torch_server
from tracer_core.errors import OptionError, TracerError
from tracer_core.reporting import collect, measured


@pytest.fixture(autouse=True)
def captures_anew(monkeypatch):
    """No entry comes from an earlier process, which has no graphs to show."""
    monkeypatch.setenv("TRACER_KEEP", "0")


def row_of(report):
    (row,) = report.data["functions"]
    return row


def test_a_program_with_breaks_and_recompiles():
    report = tracer_core.report(programs.broken_program())
    row = row_of(report)
    assert row["name"] == "broken" and row["backend"] == "eager"
    (only,) = row["breaks"]
    assert only["kind"] == "requested" and only["remedy"] == "remove the call"
    assert [line["text"].strip() for line in only["source"] if line["is_meant"]] == [
        "tracer_core.graph_break()"
    ]
    assert [call["code"] for call in only["chain"]] == [
        "return helper(x * scale).cos()",
        "tracer_core.graph_break()",
    ]
    last = row["recompiles"][-1]
    assert "[4]" in last["seen"] and "[5]" in last["now"] and "mark_dynamic" in last["hint"]
    lines = [line["code"] for line in row["graphs"][0]["lines"]]
    assert lines == ["return helper(x * scale).cos()", "y = x.sin()"]
    first, *_ = str(report).splitlines()
    assert first.startswith("1 compiled function: 6 graphs captured") and "1 graph break" in first
    assert "What hurts most: the graph break at" in str(report)
    page = report.to_html()
    assert "What helps:" in page and "remove the call" in page and "programs.py" in page


def test_a_training_step():
    report = tracer_core.report(programs.training_step())
    row = row_of(report)
    assert row["name"] == "step" or row["name"].endswith(".step")
    assert row["kernels"] and all(
        kernel["bytes"] > 0 and kernel["code"] for kernel in row["kernels"]
    )
    assert (
        any(
            line["code"] == "loss = model(x).square().mean()"
            for graph in row["graphs"]
            for line in graph["lines"]
        )
        or row["graphs"]
    )
    assert row["memory"] and row["stages"] and row["guards"]
    assert row["kernels"][0]["name"] in report.to_html()
    assert any(re.match(r"graph_\d+: kernels: (hit|miss): ", line) for line in row["cache"])


def test_a_berts_page_is_small_and_made_at_once():
    pytest.importorskip("transformers")
    fast = programs.bert()
    begin = time.perf_counter()
    page = tracer_core.report(fast).to_html()
    assert time.perf_counter() - begin < 2 and len(page.encode()) < 3e6
    row = row_of(tracer_core.report(fast))
    assert row["name"] == "BertModel" and not row["breaks"]
    assert any("modeling_bert.py" in line["file"] for line in row["graphs"][0]["lines"])
    assert any("layer_norm" in kernel["operators"] for kernel in row["kernels"])
    assert {item["kernel"] for item in row["operators"]} and all(
        item["reason"] for item in row["operators"]
    )


def test_what_was_not_measured_is_said():
    report = tracer_core.report(programs.broken_program())
    assert row_of(report)["verdicts"] == []
    assert "Speed relative to eager mode was not measured in this process." in str(report)
    assert "kernels: backend 'eager' records none" in row_of(report)["not_recorded"]


def test_a_measured_speed(monkeypatch):
    fast = programs.broken_program()
    from tracer_core.execution.tiers.profitability import Verdict
    from tracer_core.markers import compiled

    compiled(fast).function.verdicts.append(Verdict(10e-6, 25e-6, False))
    report = tracer_core.report(fast)
    assert row_of(report)["verdicts"][0]["speed"] == pytest.approx(2.5)
    assert "Compiled calls ran at 2.50 times eager's speed" in str(report)


def test_backends_that_were_tried():
    fast = tracer_core.compile(lambda x: x.sin() + 1, backend=["aten_eager", "eager"])
    fast(torch.ones(8))
    fast.choices(wait=60)
    (choice,) = row_of(tracer_core.report(fast))["choices"]
    assert choice["decided"] and {"chosen"} <= {item["status"] for item in choice["rows"]}


def weighted(x, w):
    y = (x @ w).softmax(-1)
    return torch.sort(y)[0].sum(0)


def test_times_of_a_profile(monkeypatch, tmp_path):
    monkeypatch.setattr(collect, "bandwidth", lambda device: 1e9)
    fast = tracer_core.compile(weighted, backend="inductor")
    x, w = torch.randn(64, 64), torch.randn(64, 64)
    fast(x, w)
    without = row_of(tracer_core.report(fast))
    assert all(item["seconds"] is None for item in [*without["kernels"], *without["operators"]])
    assert any("profile= takes" in text for text in without["not_recorded"])
    with torch.profiler.profile() as profile:
        for _ in range(3):
            fast(x, w)
    report = tracer_core.report(fast, tmp_path / "out.html", profile=profile)
    row = row_of(report)
    assert row["kernels"] and {item["operator"] for item in row["operators"]} >= {
        "aten.sort.default"
    }
    assert all(0 < item["seconds"] < 1 for item in [*row["kernels"], *row["operators"]])
    for kernel in row["kernels"]:
        assert kernel["share"] == pytest.approx(kernel["bytes"] / kernel["seconds"] / 1e9)
    assert not any("time of single kernels" in text for text in row["not_recorded"])
    page = (tmp_path / "out.html").read_text()
    assert page.count(" % of the bandwidth") == len(row["kernels"])
    assert "Times are those of the profile" in page
    (slowest,) = [text for text in str(report).splitlines() if text.startswith("The slowest")]
    assert f"{__file__}:" in slowest and "in weighted: " in slowest and "% of all" in slowest
    assert "The slowest" not in str(tracer_core.report(fast))


def test_the_bandwidth_of_the_memory():
    assert 1e8 < measured.bandwidth("cpu") < 1e13
    assert measured.bandwidth("cpu") == measured.bandwidth("cpu")


def test_the_measured_cost_of_a_break():
    fast = programs.broken_program()
    assert row_of(tracer_core.report(fast))["breaks"][0]["seconds"] is None
    with torch.profiler.profile() as profile:
        fast(torch.ones(4), 2.0)
    assert "graph break (programs.py:12)" in {item.key for item in profile.key_averages()}
    report = tracer_core.report(fast, profile=profile)
    assert 0 < row_of(report)["breaks"][0]["seconds"] < 1
    assert " each</span>" in report.to_html()


def test_guards_by_line_with_the_one_that_failed_last():
    report = tracer_core.report(programs.broken_program())
    row = row_of(report)
    lines = {line["code"]: line["guards"] for line in row["guards"][0]["lines"]}
    assert any("x.shape == (3,)" in text for text in lines["return helper(x * scale).cos()"])
    last = row["recompiles"][-1]
    assert last["line"].endswith("programs.py:13 in helper")
    page = report.to_html()
    assert "failed last</span> <code>y</code>: torch.float32 [4] → torch.float32 [5]" in page


@pytest.mark.parametrize("profile", [3, torch.profiler.profile()])
def test_a_wrong_profile(profile):
    fast = programs.broken_program()
    with pytest.raises(OptionError, match="profile=.*: a torch.profiler.profile that has ended is"):
        tracer_core.report(fast, profile=profile)


def test_json_has_a_versioned_schema(tmp_path):
    path = tmp_path / "out.json"
    report = tracer_core.report(programs.broken_program(), path)
    data = json.loads(path.read_text())
    assert (data["schema"], data["version"]) == ("tracer_core.report", 1)
    assert data == json.loads(report.to_json())
    assert set(data) == {"schema", "version", "made", "environment", "summary", "functions"}
    assert set(data["functions"][0]) == {
        "id", "name", "file", "line", "backend", "mode", "graphs", "loaded", "breaks", "kernels",
        "operators", "memory", "eager", "guards", "recompiles", "stages", "cache", "verdicts",
        "choices", "limits", "runs", "background", "not_recorded",
    }  # fmt: skip


def test_a_chrome_trace_of_the_stages(tmp_path):
    path = tmp_path / "out.trace.json"
    tracer_core.report(programs.broken_program(), path)
    events = json.loads(path.read_text())["traceEvents"]
    stages = [event for event in events if event["ph"] == "X"]
    assert "trace" in {event["name"] for event in stages} and all(
        event["dur"] > 0 for event in stages
    )
    assert any(event["name"] == "recompile" for event in events)


def test_texts_of_programs_are_escaped():
    text = "</script><script>alert(1)</script>"

    def program(x, name):
        return x + len(name)

    program.__qualname__ = program.__name__ = text
    fast = tracer_core.compile(program, backend="eager")
    fast(torch.ones(3), text)
    fast(torch.ones(3), text * 2)
    report = tracer_core.report(fast)
    assert text in report.to_json()
    assert "alert(1)" in report.to_html() and text not in report.to_html()
    assert report.to_html().count("<script>") == 1
    assert "<script>" not in report._repr_html_()


def test_the_page_needs_no_network():
    page = tracer_core.report(programs.broken_program()).to_html()
    assert "http://" not in page and "https://" not in page and '<link rel="stylesheet' not in page


def test_a_report_runs_nothing():
    calls = []

    def program(x):
        calls.append(1)
        return x + 1

    fast = tracer_core.compile(program, backend="eager")
    assert row_of(tracer_core.report(fast))["graphs"] == [] and calls == []


def test_reset_empties_it():
    fast = programs.broken_program()
    tracer_core.reset()
    row = row_of(tracer_core.report(fast))
    assert row["graphs"] == [] and row["recompiles"] == [] and row["stages"] == []


def test_the_oldest_records_go(monkeypatch):
    from tracer_core.debug import recompiles, stages

    monkeypatch.setattr(recompiles, "MAX_HISTORY", 1)
    monkeypatch.setattr(stages, "MAX_HISTORY", 2)
    row = row_of(tracer_core.report(programs.broken_program()))
    assert len(row["stages"]) == 2
    assert len(row["recompiles"]) == 1 and "[5]" in row["recompiles"][0]["now"]


def test_mistakes_are_named(tmp_path):
    with pytest.raises(OptionError, match="report needs what compile\\(\\) returned"):
        tracer_core.report(programs.broken)
    fast = programs.broken_program()
    with pytest.raises(OptionError, match=r"out.pdf.*ends in one of .trace.json, .json, .html"):
        tracer_core.report(fast, tmp_path / "out.pdf")
    with pytest.raises(TracerError, match="cannot be written to .*No such file or directory"):
        tracer_core.report(fast, tmp_path / "missing" / "out.html")


PROGRAM = """
import torch, tracer_core
def double(x):
    return x * 2
def dropped():
    tracer_core.compile(double, backend="eager")(torch.ones(2))
dropped()
fast = tracer_core.compile(torch.nn.ReLU(), backend="eager")
print(fast(torch.ones(2)).tolist())
"""


def process(path):
    env = {**os.environ, "TRACER_REPORT": str(path), "TRACER_KEEP": "0"}
    return torch_server.run(["-c", PROGRAM], env=env, timeout=120)


def test_a_whole_process(tmp_path):
    done = process(tmp_path / "report-{pid}.json")
    assert done.returncode == 0 and done.stdout == "[1.0, 1.0]\n", done.stderr
    (path,) = tmp_path.glob("report-*.json")
    assert [row["name"] for row in json.loads(path.read_text())["functions"]] == ["double", "ReLU"]


def test_a_process_that_compiles_nothing_writes_none(tmp_path):
    """Its file would take the place of that of the process that started it."""
    path = tmp_path / "report.html"
    env = {**os.environ, "TRACER_REPORT": str(path)}
    done = torch_server.run(["-c", "import tracer_core"], env=env, timeout=120)
    assert done.returncode == 0 and done.stderr == "" and not path.exists()


def test_wrong_files_of_a_whole_process(tmp_path):
    wrong = process("report.txt")
    assert wrong.returncode == 1
    assert "TRACER_REPORT='report.txt': a file: .html, .json or .trace.json" in wrong.stderr
    missing = process(tmp_path / "missing" / "report.html")
    assert (
        missing.returncode == 0
        and "TRACER_REPORT: the report cannot be written to" in missing.stderr
    )
