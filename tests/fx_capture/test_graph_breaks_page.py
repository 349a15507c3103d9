"""docs/graph_breaks.md: its programs are run. The first one of a section breaks with the kind of the
section, the second one is one graph; both do what they do in eager mode.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import tracer_core
from tracer_core.errors import GraphBreakError
from tracer_core.graph_breaks import BREAKS
from tracer_core.testing import CaptureCounter
from tracer_core.trace import unrolled_loops

PAGE = Path(__file__).parents[2] / "docs" / "graph_breaks.md"
BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
#: What a section says whose kind no program avoids.
NO_REMEDY = ("No program avoids it", "No change of the program removes it")
#: Programs that reach a limit: the limit to lower, and a number in the text -> one for that limit.
LOWERED = {
    "long_loop": ("MAX_INSTRUCTIONS_WITHOUT_OPERATOR", 2_000, "100_000", "2_000"),
    "step_limit": ("MAX_TRACED_INSTRUCTIONS", 600, "1_000_000", "100"),
}
#: Kinds that a program has besides its own, without `fullgraph=True`: a function reaches the recompile
#: limit at a break, and where the limit of steps ends a graph in a loop, the loop goes on behind it.
WITH_IT = {"recompile_limit": {"requested"}, "step_limit": {"live_iterator"}}


@dataclass
class Section:
    text: str
    #: What breaks, and what does not, if there is a remedy.
    programs: list[str]


def sections():
    _, *parts = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    return {
        (kind := part.partition("\n")[0]): Section(
            part.removeprefix(f"{kind}\n\n"), BLOCK.findall(part)
        )
        for part in parts
    }


SECTIONS = sections()
WITH_REMEDY = [kind for kind, section in SECTIONS.items() if "\nOne graph:\n" in section.text]


@pytest.fixture(autouse=True)
def as_users_run_it(monkeypatch):
    monkeypatch.setenv("TRACER_STRICT", "0")
    monkeypatch.setenv("TRACER_KEEP", "0")
    yield
    tracer_core.reset()


@pytest.fixture
def program(request, monkeypatch):
    """Returns a program of a section, with lower limits where it would run for minutes."""

    def text(kind, number):
        result = SECTIONS[kind].programs[number]
        if kind in LOWERED:
            limit, value, old, new = LOWERED[kind]
            monkeypatch.setattr(unrolled_loops, limit, value)
            assert old in result
            result = result.replace(old, new)
        return result

    return text


def printed(program, compile):
    """Runs a program with another `tracer_core.compile`; returns what it prints."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as output:
        patch.setattr(tracer_core, "compile", compile)
        try:
            exec(compile_text(program), {"__name__": "page"})
        finally:
            if torch.distributed.is_initialized():  # by a program that raised
                torch.distributed.destroy_process_group()
    return output.getvalue()


def compile_text(program):
    return compile(program, "<program of the page>", "exec")


def in_eager_mode(function=None, **settings):
    return function or (lambda function: function)


def breaking(function=None, fullgraph=False):
    """Compiles without `fullgraph`."""
    return COMPILE(function, backend="eager")


COMPILE = tracer_core.compile
as_written = functools.partial(COMPILE, backend="eager")


def test_every_kind_has_a_section():
    assert list(SECTIONS) == list(BREAKS)


@pytest.mark.parametrize("kind", BREAKS)
def test_a_section_begins_with_the_row_of_the_table(kind):
    why, helps, *_ = (part.replace("\n", " ") for part in SECTIONS[kind].text.split("\n\n"))
    assert why == f"Why: {BREAKS[kind].why}."
    assert helps == f"What helps: {BREAKS[kind].hint}."


@pytest.mark.parametrize("kind", WITH_REMEDY)
def test_the_first_program_breaks_with_this_kind(kind, program):
    text = program(kind, 0)
    expected = printed(text, in_eager_mode)
    with CaptureCounter() as counter:
        assert printed(text, breaking) == expected
    assert {kind for kind, _, _ in counter.breaks} == {kind, *WITH_IT.get(kind, ())}
    if "fullgraph=True" in text:
        with pytest.raises(GraphBreakError) as raised:
            printed(text, as_written)
        assert raised.value.kind == kind


@pytest.mark.parametrize("kind", WITH_REMEDY)
def test_the_second_program_is_one_graph(kind, program):
    text = program(kind, 1)
    assert "fullgraph=True" in text
    expected = printed(text, in_eager_mode)
    with CaptureCounter() as counter:
        assert printed(text, as_written) == expected != ""
    assert counter.breaks == [] and counter.graphs


@pytest.mark.parametrize("kind", WITH_REMEDY)
def test_both_programs_compute_the_same(kind, program):
    first, second = (printed(program(kind, number), in_eager_mode) for number in (0, 1))
    assert first == second


@pytest.mark.parametrize("kind", sorted({*BREAKS} - {*WITH_REMEDY}))
def test_a_section_without_a_remedy_says_so(kind):
    text = re.sub(r"\s+", " ", SECTIONS[kind].text)
    assert any(phrase in text for phrase in NO_REMEDY)
    assert len(SECTIONS[kind].programs) < 2


def test_what_the_program_raises_is_no_break():
    (text,) = SECTIONS["raises"].programs
    with pytest.raises(ValueError, match="scale is 0"):
        printed(text, in_eager_mode)
    with CaptureCounter() as counter, pytest.raises(ValueError, match="scale is 0"):
        printed(text, as_written)
    assert counter.breaks == []


def test_a_custom_operator_takes_ten_lines():
    (_, text) = SECTIONS["unknown_native"].programs
    definition = text[text.index("@torch.library.custom_op") : text.index("@tracer_core.compile")]
    assert len([line for line in definition.splitlines() if line]) <= 10
