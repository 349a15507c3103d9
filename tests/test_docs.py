"""The index of docs/ lists every page, and links between pages and into the tree lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *DOCS.rglob("*.md"),
        ROOT / "benchmarks" / "README.md",
        ROOT / "changes" / "README.md",
        *ROOT.glob("packages/*/README.md"),
        *ROOT.glob("examples/*/README.md"),
    ]
)

#: Pages that programs write from results.
GENERATED = {
    *DOCS.glob("conformance/*.md"),
    *(
        DOCS / f"{name}.md"
        for name in ("checks", "cpython", "ecosystem", "limits_table", "operators")
    ),
}


def links(page):
    """Targets of the page's links that are no addresses: (path, anchor)."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", prose)
    return [target.partition("#")[::2] for target in targets if "://" not in target]


def anchors(page):
    """GitHub's anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        if anchor:
            assert anchor in anchors(target), f"{path}#{anchor}"


def test_the_index_lists_every_page():
    listed = {(DOCS / path).resolve() for path, _ in links(DOCS / "README.md")}
    decisions = {
        (DOCS / "decisions" / path).resolve() for path, _ in links(DOCS / "decisions" / "README.md")
    }
    assert set(DOCS.rglob("*.md")) - listed - decisions == {DOCS / "README.md"}


@pytest.mark.parametrize(("name", "lines"), [("status", 60), ("limits", 100)])
def test_pages_for_a_first_look_are_short(name, lines):
    assert len((DOCS / f"{name}.md").read_text().splitlines()) <= lines


@pytest.mark.parametrize(
    "page", sorted({*PAGES} - GENERATED), ids=lambda page: str(page.relative_to(ROOT))
)
def test_prose_has_at_most_100_columns(page):
    """Tables, headings, code and lines of one long word may be longer."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    prose = [line for line in text.splitlines() if not re.match(r" *\||#|    |!\[", line)]
    breakable = [line for line in prose if re.search(r"\S +\S", re.sub(r"`[^`]*`", "", line))]
    assert [line for line in breakable if len(line) > 100] == []
