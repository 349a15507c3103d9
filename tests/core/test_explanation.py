"""`explain` of a compiled object tells of the program that runs: its backend and settings, what it
speculates on, and a reason for whatever runs in eager mode.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import textwrap

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import tracer_core
from tests.support import torch_server
from tracer_core.errors import GraphBreakError, OptionError
from tracer_core.limits import MAX_INLINED_CALLS, MIN_EQUAL_PROFILES
from tracer_core.registry.discovery import get
from tracer_core.trace import assertions

X = torch.ones(4)


@pytest.fixture(autouse=True)
def as_users_run_it(monkeypatch):
    """Branches are speculated, faults end in eager mode, and no entry comes from an earlier process."""
    monkeypatch.setenv("TRACER_STRICT", "0")
    monkeypatch.setenv("TRACER_KEEP", "0")
    yield
    tracer_core.reset()


def positive_or_negative(x):
    if x.sum() > 0:
        return x + 1
    return x - 1


class TestTheProgramThatRuns:
    def test_a_branch_that_is_speculated_is_no_break(self):
        fast = tracer_core.compile(positive_or_negative)
        report = tracer_core.explain(fast)(X)
        assert (report.graph_count, report.graph_break_count) == (1, 0)
        (line,) = report.speculated
        assert line.startswith(f"{__file__}:{positive_or_negative.__code__.co_firstlineno + 1} in ")
        assert line.endswith("the branch on a tensor is True: as in the captured call")
        assert f"speculated: {line}" in str(report) and report.skipped == ()

    def test_a_call_that_goes_the_other_way_ran_eagerly(self):
        fast = tracer_core.compile(positive_or_negative)
        fast(X)
        report = tracer_core.explain(fast)(-X)
        assert torch.equal(report.result, -X - 1)
        assert report.skipped == ("a call whose data differ from what the graph assumes",)

    def test_a_branch_that_calls_decided_before_the_capture(self, monkeypatch):
        monkeypatch.setattr(assertions, "MAX_SPECULATED_BRANCHES", 0)
        fast = tracer_core.compile(positive_or_negative)
        report = tracer_core.explain(fast)(X)
        assert report.graph_break_count == 1 and not report.speculated
        for _ in range(MIN_EQUAL_PROFILES):
            fast(X)
        report = tracer_core.explain(fast)(X)
        assert (report.graph_count, report.graph_break_count) == (1, 0)
        assert report.speculated[0].endswith("is True: as in the calls before the capture")

    def test_a_branch_that_only_raises_the_other_way(self):
        def checked(x):
            if x.sum() < 0:
                raise ValueError("negative")
            return x + 1

        report = tracer_core.explain(tracer_core.compile(checked))(X)
        assert report.speculated[0].endswith("is False: the other way only raises")

    def test_a_number_that_is_read(self):
        def column(x, i):
            return x[:, i] + 1

        def chosen(x, i):
            return x + 1 if i.item() > 2 else x

        arguments = torch.ones(2, 5), torch.tensor(3)
        for program, text in ((column, "a number read from a tensor is 3"),
                              (chosen, "of numbers that depend on data, u0 > 2")):  # fmt: skip
            (line,) = tracer_core.explain(tracer_core.compile(program))(*arguments).speculated
            assert line.endswith(f"in {program.__name__}: {text}: as in the captured call")

    def test_tensors_that_are_equal(self):
        def same(x, y):
            return x + 1 if torch.equal(x, y) else y

        (line,) = tracer_core.explain(tracer_core.compile(same))(X, X.clone()).speculated
        assert "in same: torch.equal is True" in line

    def test_a_call_that_is_compiled_is_not_compiled_anew(self):
        calls = []

        def backend(gm, inputs):
            calls.append(gm)
            return gm.forward

        fast = tracer_core.compile(lambda x: x * 2, backend=backend)
        fast(X)
        report = tracer_core.explain(fast)(X)
        assert len(calls) == 1 and report.graphs == (tracer_core.explain(fast)(X).graphs[0],)
        assert "backend: " in str(report).splitlines()[0]

    def test_settings_of_the_compiled_object(self):
        fast = tracer_core.compile(lambda x: x * 2, backend="aten_eager", dynamic=True)
        report = tracer_core.explain(fast)(X)
        assert report.backend == "aten_eager"
        (placeholder, *_) = report.graphs[0].graph.nodes
        assert not isinstance(placeholder.meta["val"].shape[0], int)

    def test_the_mode_is_named(self):
        modes = get("inductor").modes
        assert "max-autotune-no-cudagraphs" in modes
        fast = tracer_core.compile(torch.sin, mode="max-autotune-no-cudagraphs")
        assert tracer_core.explain(fast)(X).backend == "inductor, mode max-autotune-no-cudagraphs"

    def test_entries_that_are_no_longer_used_are_left_out(self):
        def half(x):
            return x / 2

        fast = tracer_core.compile(half, backend="eager")
        fast(X)
        fast(X.double())
        assert tracer_core.explain(fast)(X).graph_count == 2
        tracer_core.reset()
        assert tracer_core.explain(fast)(X).graph_count == 1

    def test_a_module_a_method_and_a_callable(self):
        layer = nn.Linear(4, 2)

        class Model:
            @tracer_core.compile(backend="eager")
            def run(self, x):
                return layer(x) + 1

        partial = functools.partial(torch.add, 1)
        for fn in (tracer_core.compile(layer, backend="eager"), Model().run,
                   tracer_core.compile(partial, backend="eager")):  # fmt: skip
            report = tracer_core.explain(fn)(X)
            assert report.graph_count == 1 and report.skipped == ()

    def test_fullgraph_lists_every_break_and_says_that_it_raises(self):
        def twice(x):
            tracer_core.graph_break()
            y = x + 1
            tracer_core.graph_break()
            return y

        fast = tracer_core.compile(twice, fullgraph=True, backend="aten_eager")
        report = tracer_core.explain(fast)(X)
        assert report.graph_break_count == 2 and report.backend == "aten_eager"
        with pytest.raises(GraphBreakError) as raised:
            fast(X)
        assert report.raises == raised.value.location == report.breaks[0].location
        assert f"raises GraphBreakError, with fullgraph=True, at {report.raises}" in str(report)

    def test_effects_happen_once(self):
        seen = []

        def counts(x):
            seen.append(1)
            tracer_core.graph_break()
            return x + 1

        tracer_core.explain(tracer_core.compile(counts, fullgraph=True, backend="eager"))(X)
        tracer_core.explain(tracer_core.compile(counts, backend="eager"))(X)
        assert seen == [1, 1]

    def test_graphs_of_an_earlier_process(self, tmp_path):
        program = tmp_path / "program.py"
        program.write_text(
            textwrap.dedent("""
            import torch, tracer_core

            @tracer_core.compile
            def step(x):
                return x.sin() if x.sum() > 0 else x

            print(tracer_core.explain(step)(torch.ones(8)))
            """)
        )
        environment = {
            **os.environ,
            "TRACER_KEEP": "1",
            "TRACER_CACHE_DIR": str(tmp_path / "cache"),
        }
        first, second = (
            torch_server.run([str(program)], env=environment, timeout=120).stdout for _ in range(2)
        )
        assert "graph 0:" in first and "earlier process" not in first
        assert "captured by an earlier process: graph_0 (4 operators)" in second
        speculated = [line for line in first.splitlines() if line.startswith("speculated: ")]
        assert speculated and speculated[0] in second.splitlines()


# A reason for all that runs in eager mode


class Unhashed:
    """Fails inside the tracer, not in the program."""

    def __hash__(self):
        raise RuntimeError("hashed")

    def __call__(self, x):
        return x * 2


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def failing_in_the_tracer(x, unhashed=tracer_core.allow_in_graph(Unhashed())):
    return unhashed(x) + 1


def counted_references(x):
    return x * sys.getrefcount(x)


def deep(x, n=MAX_INLINED_CALLS + 1):
    return x + 1 if n == 0 else deep(x, n - 1)


def frames(x):
    return x + sys._getframe().f_lineno


def generator(x):
    yield x + 1


def nothing(x):
    return 3


def under_a_mode(fast):
    with Mode():
        return tracer_core.explain(fast)(X)


def in_vmap(fast):
    reports = []
    torch.vmap(lambda x: (reports.append(tracer_core.explain(fast)(x)), x)[1])(torch.ones(2, 3))
    return reports[0]


def disabled(fast):
    with tracer_core.disabled():
        return tracer_core.explain(fast)(X)


def called(fast):
    return tracer_core.explain(fast)(X)


def called_deep(fast):
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        return called(fast)
    finally:
        sys.setrecursionlimit(before)


REASONS = {
    "tracer's fault": (failing_in_the_tracer, called, "was not raised"),
    "references": (counted_references, called, "getrefcount() sees the references"),
    "frames": (frames, called, "gives frames of the program"),
    "depth": (deep, called_deep, "more than 900 nested calls"),
    "generator": (generator, called, "the generator that the call returns"),
    "mode": (torch.sin, under_a_mode, "under a TorchDispatchMode"),
    "vmap": (torch.sin, in_vmap, "inside a transform of torch.func"),
    "disabled": (torch.sin, disabled, "tracer_core.disabled()"),
}


@pytest.mark.parametrize("name", REASONS)
def test_what_ran_eagerly_has_a_reason(name):
    program, explain, reason = REASONS[name]
    report = explain(tracer_core.compile(program, backend="eager"))
    assert any(reason in text for text in report.skipped), report.skipped
    assert f"ran eagerly: {report.skipped[0]}" in str(report)


def test_the_reason_stays_for_later_calls_and_goes_with_reset():
    fast = tracer_core.compile(failing_in_the_tracer, backend="eager")
    for _ in range(3):
        (reason,) = tracer_core.explain(fast)(X).skipped
    assert "RuntimeError: hashed" in reason
    refs = tracer_core.compile(counted_references, backend="eager")
    assert len(tracer_core.explain(refs)(X).skipped) == 1
    tracer_core.reset()
    assert len(tracer_core.explain(refs)(X).skipped) == 1


def test_a_lazy_module():
    fast = tracer_core.compile(nn.LazyLinear(3), backend="eager")
    assert "lazy module" in tracer_core.explain(fast)(X).skipped[0]
    report = tracer_core.explain(fast)(X)
    assert report.skipped == () and report.graph_count == 1


def test_a_graph_that_raises():
    def failing(gm, inputs):
        def run(*args):
            raise ArithmeticError("of the backend")

        return run

    fast = tracer_core.compile(lambda x: x * 2, backend=failing)
    (reason,) = tracer_core.explain(fast)(X).skipped
    assert "ArithmeticError('of the backend')" in reason


def test_nothing_to_compile():
    assert "no operator of torch runs" in str(called(tracer_core.compile(nothing)))
    assert "no operator of torch runs" not in str(called(torch.sin))


# Advice


def test_allow_in_graph_refuses_what_cannot_be_hashed():
    class Scale:
        __hash__ = None

        def __call__(self, x):
            return x * 2

    scale = Scale()
    with pytest.raises(OptionError, match="mark a function that calls it"):
        tracer_core.allow_in_graph(scale)

    @tracer_core.allow_in_graph
    def scaled(x):
        return scale(x)

    fast = tracer_core.compile(lambda x: scaled(x) + 1, backend="eager", fullgraph=True)
    assert torch.equal(fast(X), X * 2 + 1)


# Lines of libraries


LIBRARY = """
import torch

def clipped(x, limit=1.0):
    return inner(x, limit)

def inner(x, limit):
    return x.clamp(max=limit) * x.sum().item()

class Layer(torch.nn.Module):
    def forward(self, x):
        return clipped(x)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed") / "site-packages"
    folder.mkdir()
    (folder / "clipping_library.py").write_text(LIBRARY)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        import clipping_library

        yield clipping_library


def test_the_users_line_comes_first_and_the_librarys_below(library, caplog, monkeypatch):
    def program(x):
        return library.clipped(x + 1)

    fast = tracer_core.compile(program, backend="eager")
    with caplog.at_level(logging.DEBUG, "tracer_core"):
        report = tracer_core.explain(fast)(X)
    (record,) = report.breaks
    line = program.__code__.co_firstlineno + 1
    assert record.location == f"{__file__}:{line} in program"
    assert record.library == f"{library.__file__}:8 in inner"
    lines = str(report).splitlines()
    assert lines[1:3] == [f"break 1: {record.location}", f"  in {record.library}"]
    both = f"{record.location} (in {record.library}): "
    assert sum(both in message.getMessage() for message in caplog.records) == 2


def test_a_module_of_a_library_is_called_on_the_users_line(library):
    fast = tracer_core.compile(library.Layer(), backend="eager")
    report = tracer_core.explain(fast)(X)
    (record,) = report.breaks
    assert record.location.startswith(f"{__file__}:")
    assert record.location.endswith(" in test_a_module_of_a_library_is_called_on_the_users_line")
    assert record.library == f"{library.__file__}:8 in inner"


def test_the_error_of_fullgraph_has_both_lines(library):
    fast = tracer_core.compile(lambda x: library.clipped(x), backend="eager", fullgraph=True)
    with pytest.raises(GraphBreakError, match="shape") as raised:
        tracer_core.compile(lambda x: torch.func.vmap(library.torch.nonzero)(x), backend="eager",
                            fullgraph=True)(X.reshape(2, 2))  # fmt: skip
    assert raised.value.location.startswith(__file__)
    torch.testing.assert_close(fast(X), X * 4)  # fullgraph takes a number of .item()


def test_the_report_has_both_lines(library):
    def program(x):
        return library.clipped(x)

    fast = tracer_core.compile(program, backend="eager")
    fast(X)
    report = tracer_core.report(fast)
    ((item,),) = [function["breaks"] for function in report.data["functions"]]
    assert item["function"] == "program" and item["library"]["function"] == "inner"
    assert item["library"]["code"] == "return x.clamp(max=limit) * x.sum().item()"
    page = report.to_html()
    assert page.index(item["frame"]) < page.index(item["library"]["frame"])
