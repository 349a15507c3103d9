"""What users and authors of backends get wrong prints what docs/lab/mistakes.md shows: what was wrong,
and what to do."""

from __future__ import annotations

import re

import pytest

from tests.support.mistakes import PAGE, mistakes

MISTAKES = mistakes()


@pytest.mark.sweep(keep=12)
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.title.replace(" ", "_"))
def test_a_mistake_prints_what_the_page_shows(mistake):
    assert mistake.printed() == mistake.shown


def test_the_page_counts_its_mistakes():
    text = PAGE.read_text()
    users, authors = (part.count("\n### ") for part in text.split("\n## Backend authors")[:2])
    assert text.count("\n### ") == len(MISTAKES) and users >= 20 and authors >= 13
    assert re.search(rf"^{users} mistakes of users and {authors} of backend authors", text, re.M)


def test_no_mistake_is_silent():
    assert [mistake.title for mistake in MISTAKES if not mistake.shown.strip()] == []
