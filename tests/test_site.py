"""The documentation site: links of pages are mended, lost ones are found, and pages made from code list
what there is. `nox -s site` builds all of it."""

from __future__ import annotations

import re

import pytest

import tracer_core
from tools.site import generated, links, pages


def mended(text, name="usage.md", repository=""):
    wrong: list[str] = []
    return pages.mend(text, name, repository, wrong), wrong


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("usage.md", "[a](gpu.md#modes)", "[a](gpu.md#modes)"),
        ("usage.md", "[a](../CONTRIBUTING.md#rules)", "[a](repository/CONTRIBUTING.md#rules)"),
        ("lab/fuzzing.md", "[a](../../SECURITY.md)", "[a](../repository/SECURITY.md)"),
        ("repository/CONTRIBUTING.md", "[a](docs/usage.md)", "[a](../usage.md)"),
        ("repository/CONTRIBUTING.md", "[a](README.md)", "[a](../index.md)"),
        ("usage.md", "[the set-up](../noxfile.py)", "the set-up (`noxfile.py`)"),
        ("usage.md", "[a](https://pytorch.org) [b](#x)", "[a](https://pytorch.org) [b](#x)"),
        ("usage.md", "`[a](nowhere.md)`", "`[a](nowhere.md)`"),
        ("usage.md", "```\n[a](nowhere.md)\n```", "```\n[a](nowhere.md)\n```"),
    ],
)
def test_links_that_leave_the_folder_lead_to_the_sites_pages(name, text, expected):
    assert mended(text, name) == (expected, [])


def test_with_an_address_links_lead_to_the_repository():
    text, wrong = mended("[a](../noxfile.py)", repository="https://example.org/blob/main/")
    assert (text, wrong) == ("[a](https://example.org/blob/main/noxfile.py)", [])


def test_a_link_to_nowhere_is_named():
    _, wrong = mended("text\n[a](not_there.md)")
    assert wrong == ["usage.md: not_there.md is not there"]


def test_every_page_is_in_the_navigation(tmp_path):
    assert pages.write(tmp_path / "source", "") == []
    source = tmp_path / "source"
    listed = set()
    for path in source.rglob("*.md"):
        for names in re.findall(
            r"^```{toctree}\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL
        ):
            folder = "" if path.stem == "index" else f"{path.parent.relative_to(source)}/"
            listed |= {folder + name for name in names.split() if re.fullmatch(r"[\w/.-]+", name)}
    written = {str(path.relative_to(source).with_suffix("")) for path in source.rglob("*.md")}
    assert written - listed == {"index"}


def test_lost_links_of_a_built_site_are_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here">b</a> <a href="b.html#gone">b</a><img src="c.png">'
    )
    (tmp_path / "b.html").write_text('<p id="here"></p><a href="https://example.org/x">x</a>')
    broken, number = links.broken(tmp_path)
    assert broken == ["a.html: b.html#gone leads nowhere", "a.html: c.png leads nowhere"]
    assert number == 3


def test_the_page_of_settings_lists_variables_options_and_modes():
    page = generated.settings()
    assert "| `TRACER_CACHE_DIR` | a folder |" in page
    for row in tracer_core.backend_options("inductor").options:
        assert f"| `{row.name}` | `" in page
    assert "## Backend onnxrt" in page and "| `max-autotune` |" in page
    assert "``" not in page


def test_the_reference_names_everything_public():
    page = generated.api()
    for name in set(tracer_core.__all__) - {"__version__"}:
        assert f":: tracer_core.{name}\n" in page, name
    assert ":: tracer_core.plugin_api.compile_graph\n" in page
    assert page.count("## ") == 7
