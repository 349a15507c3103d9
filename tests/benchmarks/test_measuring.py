"""The benchmarks' own arithmetic, storage and processes: figures are no better than these."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import math
import pathlib
import runpy
import sys
import time
import types
from typing import Any

import pytest
import torch

import benchmarks.__main__ as command
from benchmarks import demo, first_call, harness, models
from benchmarks.first_call import Recorder, Span, own_seconds
from benchmarks.harness import Grid, Store
from benchmarks.timing import Plan, alternate, speed_up

SECOND = 10**9


def test_own_seconds_leave_out_what_is_inside() -> None:
    spans = [
        Span(2 * SECOND, 3 * SECOND, "import a.b"),  # ends before the span round it, as recorded
        Span(1 * SECOND, 5 * SECOND, "import a"),
        Span(6 * SECOND, 7 * SECOND, "stage"),
        Span(0, 10 * SECOND, "call"),
        Span(11 * SECOND, 12 * SECOND, "call"),
    ]
    labels = {"import a.b": "imports", "import a": "imports", "stage": "stage", "call": "call"}
    actual = own_seconds(spans, labels.get)
    assert actual == pytest.approx({"call": 10 - 4 - 1 + 1, "imports": 4, "stage": 1})


def test_own_seconds_of_an_unlabelled_span_belong_to_what_is_round_it() -> None:
    spans = [Span(1 * SECOND, 2 * SECOND, "detail"), Span(0, 4 * SECOND, "whole")]
    assert own_seconds(spans, {"whole": "whole"}.get) == pytest.approx({"whole": 4})


def test_stages_of_a_compile_become_spans_and_build_no_texts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tracer_core.debug import stages

    monkeypatch.setattr(stages, "_finish", stages._finish)  # put back afterwards
    monkeypatch.delenv("TRACER_DEBUG", raising=False)
    recorder = Recorder()
    recorder.watch_tracer_core()
    with stages.stage("outer"), stages.stage("inner"):
        time.sleep(0.01)
    assert [span.name for span in recorder.spans] == ["inner", "outer"]
    assert not stages.wants_text()
    actual = own_seconds(recorder.spans, lambda name: name)
    assert actual["inner"] >= 0.01 > actual["outer"]


def test_a_failed_row_is_measured_again_and_a_good_one_is_not(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(harness, "commit", lambda: "abc")

    def fails() -> dict[str, object]:
        raise harness.Failed("no compiler")

    row, there = Store("steady").row("m", fails)
    assert (row["failed"], there) == ("no compiler", False)
    row, there = Store("steady").row("m", lambda: {"seconds": 1.0})
    assert (row["seconds"], there) == (1.0, False)
    store = Store("steady")
    row, there = store.row("m", fails)
    assert (row["seconds"], there) == (1.0, True)
    row, there = Store("steady", again=True).row("m", lambda: {"seconds": 2.0})
    assert (row["seconds"], there) == (2.0, False)
    document = json.loads(store.path.read_text())
    assert document["rows"]["m"]["commit"] == "abc"
    assert f"torch {importlib.metadata.version('torch')}" in document["rows"]["m"]["with"]


def test_a_row_of_another_commit_or_version_is_measured_again_in_the_same_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(harness, "commit", lambda: "abc")
    for name in ("m", "n"):
        Store("steady").row(name, lambda: {"seconds": 1.0})
    here = harness.machine()
    newer = here | {"versions": here["versions"] | {"torch": "99.0"}}
    for patched, value in (("commit", "another"), ("machine", newer)):
        monkeypatch.setattr(
            harness, patched, lambda value=value: dict(value) if isinstance(value, dict) else value
        )
        store = Store("steady")
        assert set(store.rows) == {"m", "n"} and store.stored("m") is None
        row, there = store.row("m", lambda: {"seconds": 2.0})
        assert (row["seconds"], there, store.row("m", lambda: {"seconds": 3.0})[1]) == (
            2.0,
            False,
            True,
        )
    assert [path.name for path in (tmp_path / "steady").iterdir()] == [store.path.name]
    assert {name: row["commit"] for name, row in store.rows.items()} == {"m": "another", "n": "abc"}


def test_a_child_has_empty_caches_of_its_own_and_no_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRACER_STRICT", "1")
    monkeypatch.setenv("TORCHINDUCTOR_FREEZING", "1")
    seen = [harness.fresh("tests.benchmarks.environment_child:seen", limit=60) for _ in range(2)]
    caches = {
        child["settings"][name]
        for child in seen
        for name in ("TRACER_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
    }
    assert len(caches) == 4
    assert all(
        set(child["settings"]) == {"TRACER_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"} for child in seen
    )
    assert not any(child["existing"] for child in seen)


def test_a_child_takes_the_caches_and_the_variables_that_it_is_given(
    tmp_path: pathlib.Path,
) -> None:
    inputs = {"TRACER_STRICT": "1"}
    seen = harness.fresh(
        "tests.benchmarks.environment_child:seen",
        limit=60,
        caches=str(tmp_path),
        environment=inputs,
    )["settings"]
    assert (seen["TRACER_CACHE_DIR"], seen["TRACER_STRICT"]) == (str(tmp_path / "tracer"), "1")


def test_a_worker_answers_one_question_after_another_until_it_dies() -> None:
    with harness.worker("tests.benchmarks.gradients_child:serve", {}) as child:
        assert [child.ask(name, limit=60) for name in ("zoo/opt", "zoo/t5")] == [
            {"status": "ok"}
        ] * 2
        with pytest.raises(harness.Failed):
            child.ask("zoo/bert", limit=60)
        with pytest.raises(harness.Failed):
            child.ask("zoo/opt", limit=60)


def test_what_a_failed_child_printed_is_told() -> None:
    with pytest.raises(harness.Failed, match="KeyError: 'no_such_model'"):
        harness.fresh(first_call.measure, "no_such_model", "eager", limit=60)


def test_a_child_is_given_up_after_its_limit() -> None:
    start = time.perf_counter()
    with pytest.raises(harness.Failed, match="no answer after 1 s"):
        harness.fresh("time:sleep", 60, limit=1)
    assert time.perf_counter() - start < 30


def test_every_round_gives_each_compiler_one_turn() -> None:
    calls = {"a": 0, "b": 0}

    def function(name: str) -> None:
        calls[name] += 1

    measured = alternate(
        {"a": lambda: function("a"), "b": lambda: function("b")},
        (),
        {},
        Plan(rounds=3, seconds=0.001),
    )
    assert {name: len(rounds) for name, rounds in measured.items()} == {"a": 3, "b": 3}
    assert min(calls.values()) > 3


def test_speed_up_is_of_pairs() -> None:
    # The machine became ten times slower in the last round, for both.
    assert speed_up([2.0, 2.2, 20.0], [1.0, 1.1, 10.0]) == pytest.approx(2.0)


def test_programs_are_the_same_each_time_and_in_their_mode() -> None:
    model = models.MODELS["lstm_64"]
    with model.mode():
        first, second = model.program(), model.program()
        assert torch.equal(first.call()[0], second.call()[0])
        exact = models.in_float64(first).call()[0]
    assert exact.dtype == torch.float64 and not exact.requires_grad
    seed = models.MODELS["resnet18_64_seed"]
    with seed.mode():
        assert torch.is_grad_enabled() and seed.program().function.training


@pytest.mark.parametrize(
    ("row", "good"),
    [
        ({"error_ratio": 2.9}, True),
        ({"error_ratio": 3.1}, False),
        ({"error_ratio": math.nan}, False),
        ({"failed": "x"}, False),
    ],
)
def test_the_demo_accepts_only_rows_as_exact_as_eager(row: dict[str, object], good: bool) -> None:
    assert demo.acceptable(row) is good


def test_the_demo_marks_rows_whose_rounds_disagree_and_counts_their_fastest_rounds() -> None:
    def row(compiled: list[float]) -> dict[str, Any]:
        facts = {"first_call": 1.0, "error": 0.0, "eager_error": 0.0, "error_ratio": 0.0,
        "graphs": 1, "kernels": 1,
                 "operators": 0, "fallbacks": [], "breaks": []}  # fmt: skip
        return {"seconds": {"eager": [4.0, 4.0, 4.0], "compiled": compiled}, **facts}

    rows = {
        "resnet18_64": row([2.0, 2.0, 2.1]),
        "bert_12": row([4.0, 0.5, 1.0]),
        "cos_sin": row([2.0, 1.9, 2.0]),
    }
    said = demo.report(rows, "inductor").splitlines()
    marked = [line for line in said if "~ 8.00" in line]  # 4.0 over 0.5
    assert len(marked) == 1 and marked[0].startswith("BERT") and "175%" in marked[0]
    assert any(line.startswith("~ the rounds are more than 15% apart") for line in said)
    assert demo.verdict(rows, 12.3) == (
        "Result: 2.00 times eager's speed, the median of 3 rows (2.00 to 8.00); 1 of them on a busy"
        " machine, by their fastest rounds; 12 s in all"
    )
    quiet = {**rows, "bert_12": row([0.5, 0.5, 0.5])}
    assert demo.verdict(quiet, 1.0).startswith(
        "Result: 3.17 times eager's speed, the geometric mean of 3 rows (2.00 to 8.00); 1 s"
    )
    assert demo.verdict({"bert_12": rows["bert_12"]}, 1.0).startswith("Result: 8.00 times")
    broken = {**rows, "cos_sin": {"failed": "why"}}
    assert demo.verdict(broken, 1.0).endswith("NOT RIGHT: cos_sin; 1 s in all")
    assert demo.verdict({"cos_sin": {"failed": "why"}}, 1.0).startswith("Result: no row ran;")


def test_the_demo_installs_what_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def decorator(function: Any = None, **_: Any) -> Any:
        return function if function is not None else lambda value: value

    stub: Any = types.ModuleType("nox")  # it is not installed where the tests run
    stub.options, stub.session, stub.Session = types.SimpleNamespace(), decorator, object
    stub.parametrize = lambda *_: decorator
    monkeypatch.setitem(sys.modules, "nox", stub)
    demo_session = runpy.run_path(str(pathlib.Path(__file__).parents[2] / "noxfile.py"))["demo"]

    def installed(*arguments: str) -> str:
        names: list[str] = []
        session = types.SimpleNamespace(
            posargs=arguments,
            install=lambda *value: names.extend(value),
            run=lambda *value: None,
            log=lambda text: None,
        )
        demo_session(session)
        return " ".join(names)

    assert "packages/inductor-backend" in installed() and "torch==" in installed()
    assert [word for word in ("onnx", "tvm", "cudagraphs") if word in installed()] == []
    assert all(word in installed("--backend", "tvm") for word in ("onnx", "tvm", "cudagraphs"))


def test_a_watched_backend_counts_graphs_and_kernels() -> None:
    import tracer_core
    from benchmarks.watch import Watch

    watch = Watch("inductor")
    program = models.MODELS["cos_sin"].program()
    compiled = tracer_core.compile(program.function, backend=watch.backend)
    torch.testing.assert_close(program.call(compiled), program.call())
    assert (watch.graphs, watch.runners, watch.kernels, watch.operators) == (1, 1, 1, 0)


def test_a_grid_measures_each_combination_once_and_tells_what_is_wrong(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[list[str]] = []

    def fresh(target: object, *names: str, limit: float) -> dict[str, object]:
        measured.append(list(names))
        return {"value": len(measured)}

    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(harness, "commit", lambda: "abc")
    monkeypatch.setattr(harness, "fresh", fresh)
    grid = Grid(
        "squares",
        None,
        {"models": ["a", "b", "large"], "kinds": ["x", "y"]},
        lambda model, kind: {},
        ("value",),
        lambda row: [str(row["value"])],
        left_out=frozenset({"large"}),
        wrong=lambda row, model, kind: ["not equal"] if (model, kind) == ("b", "y") else [],
    )
    assert grid.main([]) == 1
    assert measured == [["a", "x"], ["a", "y"], ["b", "x"], ["b", "y"]]
    assert "b, y: not equal" in capsys.readouterr().out
    assert grid.main(["--models", "a", "large", "--kinds", "x"]) == 0
    assert measured[4:] == [["large", "x"]]
    printed = capsys.readouterr().out
    assert [line.split() for line in printed.splitlines()[-2:]] == [
        ["a", "x", "1"],
        ["large", "x", "5"],
    ]


def test_the_command_lists_every_benchmark_and_knows_no_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.main([]) == 0
    listed = [
        line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")
    ]
    assert listed == [*command.BENCHMARKS, "all"]
    assert command.main(["fast"]) == 2
    assert "no benchmark 'fast'" in capsys.readouterr().out


@pytest.mark.parametrize("name", command.BENCHMARKS)
def test_every_benchmark_says_how_it_is_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main([name, "--help"])
    assert ended.value.code == 0
    assert f"usage: python -m benchmarks {name} " in capsys.readouterr().out


def test_the_rows_of_a_gpu_go_on_where_they_stopped(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    class Child:
        def __init__(self, row: str) -> None:
            self.row = row

        def ask(self, compiler: str, *, limit: float) -> dict[str, Any]:
            asked.append(f"{self.row} @ {compiler}")
            if compiler == "torch" and asked.count(asked[-1]) == 1:
                raise harness.Failed("no Triton")
            milliseconds = 1.0 if compiler.startswith("ours") else 3.0
            return {"latency_ms": milliseconds, "back_to_back_ms": milliseconds, "first_s": None,
            "peak_MiB": 8.0,
                    "steady_reserved_MiB": 5.0, "plain_peak_MiB": 3.0, "error": 0.0}  # fmt: skip

    monkeypatch.setattr(harness, "require_gpu", lambda: "A GPU")
    monkeypatch.setattr(
        harness, "worker", lambda target, row, caches: contextlib.nullcontext(Child(row))
    )
    out = tmp_path / "rows.json"
    options = ["gpu", "--rows", "cos+sin 10,000", "BERT-base 1x12", "--out", str(out)]
    assert command.main([*options, "--compilers", "ours", "torch"]) == 1
    assert asked == [
        f"{row} @ {kind}"
        for row in ("cos+sin 10,000", "BERT-base 1x12")
        for kind in ("ours", "torch")
    ]
    assert "BERT-base 1x12 @ torch failed: no Triton" in capsys.readouterr().out
    assert command.main([*options, "--compilers", "ours", "ours:reduce-overhead", "torch"]) == 0
    assert asked[4:] == [
        f"{row} @ {kind}"
        for row in ("cos+sin 10,000", "BERT-base 1x12")
        for kind in ("ours:reduce-overhead", "torch")
    ]
    printed = capsys.readouterr().out
    assert "BERT-base 1x12: ours beside torch: 3.00 (in a row 3.00), peak 1.00" in printed
    assert command.main(["gpu", "--show", "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == printed.splitlines()[-1]
    assert json.loads(out.read_text())["machine"]["device"] == "A GPU"


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
@pytest.mark.parametrize(
    "arguments",
    [["gpu"], ["cudagraphs"], ["kernels", "cos+sin 10,000"], ["gpu_tutorial"], ["gpu_limits"],
    ["gpu_launch"],
     ["gradients", "--device", "cuda"]],
)  # fmt: skip
def test_what_needs_a_gpu_says_so_without_one(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="needs a CUDA device"):
        command.main(arguments)
