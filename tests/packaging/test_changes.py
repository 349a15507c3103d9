"""The files in changes/, of which towncrier makes the changelog."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
KINDS = [kind["directory"] for kind in SETTINGS["type"]]


def test_every_file_is_named_by_issue_and_kind():
    names = [
        path.name for path in (ROOT / "changes").iterdir() if path.name not in SETTINGS["ignore"]
    ]
    pattern = re.compile(rf"(\d+|\+[\w-]+)\.({'|'.join(KINDS)})(\.\d+)?\.md")
    assert [name for name in names if not pattern.fullmatch(name)] == []


def test_the_readme_explains_every_kind():
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "changes" / "README.md").read_text(), re.MULTILINE)
    assert rows == KINDS


def test_the_changelog_has_one_place_for_releases_and_a_section_of_this_one():
    text = (ROOT / SETTINGS["filename"]).read_text()
    assert text.count(SETTINGS["start_string"]) == 1
    version = tomllib.loads((ROOT / "packages/frontend-tracer/pyproject.toml").read_text())[
        "project"
    ]["version"]
    assert re.search(rf"^## {re.escape(version)} \(", text, re.MULTILINE)
