"""The programs of docs/tutorial.md, migration.md and features.md run, one after the other, and print what the
pages show; what the pages name in tables exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tracer_core
from tests.support.page_programs import BLOCK, blocks, printed_by

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = {"tutorial": 10, "migration": 1, "features": 8}


def steady(text):
    """The text without times and what depends on them."""
    return re.sub(r"\d+\.\d\d s \(slowest: .*?\)", "n s (slowest: ...)", text)


@pytest.mark.parametrize("name", PAGES)
def test_the_blocks_of_a_page(name):
    page = f"{name}.md"
    for (block, shown), printed in zip(blocks(page), printed_by(page), strict=True):
        assert steady(printed) == steady(shown), block


@pytest.mark.parametrize("name", PAGES)
def test_every_block_is_executed(name):
    text = (DOCS / f"{name}.md").read_text()
    assert len(BLOCK.findall(text)) == text.count("\n```python") == PAGES[name]
    assert sum(bool(shown) for _, shown in BLOCK.findall(text)) == text.count("\n```text")


@pytest.mark.parametrize("name", ["tutorial", "migration", "howto", "features"])
def test_names_of_tracer_core_exist(name):
    text = (DOCS / f"{name}.md").read_text()
    for path in re.findall(r"\btracer_core\.(\w+)", text):
        assert path in {*tracer_core.__all__, "testing"}, path
    from tracer_core.registry.environment import variables

    for variable in re.findall(r"\bTRACER_[A-Z_]+", text):
        assert variable in variables(), variable
