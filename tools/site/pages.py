"""The pages of the site: docs/, pages beside it, pages made from code, and the navigation."""

from __future__ import annotations

import posixpath
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from tools.site import generated

ROOT = Path(__file__).resolve().parents[2]

#: Pages beside docs/ that the site has, under `FOLDER`.
BESIDE = (
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "benchmarks/README.md",
    "changes/README.md",
    "examples/third-party-backend/README.md",
)
FOLDER = "repository"

#: The navigation: heading -> pages, or a folder with all its pages.
NAVIGATION: dict[str, tuple[str, ...]] = {
    "Tutorial": ("tutorial",),
    "How-to": (
        "howto", "usage", "migration", "features", "backends", "frameworks", "gpu", "generation",
        "report", "profiling", "wrong_results", "packages", "native_library", "writing_a_backend",
    ),
    "Reference": (
        "reference/api", "reference/settings", "graph_breaks", "limits", "limits_table", "support",
        "operators", "checks", "cpython", "ecosystem", "conformance/", "glossary",
    ),
    "Explanation": ("status", "architecture", "performance", "decisions/"),
    "Lab notebooks": ("lab/",),
    "Contributing": tuple(f"{FOLDER}/{name.removesuffix('.md')}" for name in BESIDE),
}  # fmt: skip

_FENCE = re.compile(r"^( *)(```.*?^\1```)", re.MULTILINE | re.DOTALL)
#: A link, or code in a line, which holds none.
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)|`[^`\n]*`")


def write(source: Path, repository: str) -> list[str]:
    """Writes the sources of the site.

    Args:
        source: The folder, which is made.
        repository: The address that links to other files of the repository begin with, or "".

    Returns:
        What is wrong: links to files that are not there.
    """
    shutil.copytree(ROOT / "docs", source)
    from_code = generated.pages()
    texts = {f"{FOLDER}/{name}": (ROOT / name).read_text() for name in BESIDE} | from_code
    texts |= {
        str(path.relative_to(source)): path.read_text() for path in sorted(source.rglob("*.md"))
    }
    texts["index.md"] = texts.pop("README.md") + navigation(source)
    (source / "README.md").unlink()
    for folder in sorted(path.parent for path in source.rglob("README.md")):
        name = str((folder / "README.md").relative_to(source))
        others = [path.stem for path in sorted(folder.glob("*.md")) if path.stem != "README"]
        if name in texts and others:
            texts[name] += _toctree(others)
    wrong: list[str] = []
    for name, text in texts.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        mended = text if name in from_code else mend(text, name, repository, wrong)
        path.write_text(mended)
    return wrong


def navigation(source: Path) -> str:
    """Returns the tables of contents that Sphinx reads, one a heading."""
    result = ""
    for title, entries in NAVIGATION.items():
        names: list[str] = []
        for entry in entries:
            names += _folder(source, entry) if entry.endswith("/") else [entry]
        result += _toctree(names, f":caption: {title}")
    return result


def _toctree(names: Sequence[str], *options: str) -> str:
    return "\n".join(["", "", "```{toctree}", ":hidden:", *options, "", *names, "```", ""])


def _folder(source: Path, name: str) -> Sequence[str]:
    """Returns the page of a folder that lists the others, or all its pages."""
    if (source / name / "README.md").exists():
        return [f"{name}README"]
    return [f"{name}{path.stem}" for path in sorted((source / name).glob("*.md"))]


def mend(text: str, name: str, repository: str, wrong: list[str]) -> str:
    """Points the links of a page that leave docs/ to the site's copies.

    A link to another file of the repository becomes its path, or its address where there is one.

    Args:
        text: The page.
        name: Its path in the site.
        repository: The address of the repository's files, or "".
        wrong: Gets a line for each link to a file that is not there.
    """
    beside = name.startswith(f"{FOLDER}/")
    folder = posixpath.dirname(name.removeprefix(f"{FOLDER}/") if beside else f"docs/{name}")

    def mended(match: re.Match[str]) -> str:
        picture, label, target = match.groups()
        path, hash_, anchor = (target or "").partition("#")
        if "://" in (target or "") or not path:  # code, an address, this page
            return match[0]
        place = posixpath.normpath(posixpath.join(folder, path))
        if not (ROOT / place).exists():
            wrong.append(f"{name}: {target} is not there")
            return match[0]
        if place in BESIDE:
            inside = f"{FOLDER}/{place}"
        elif place in ("README.md", "docs/README.md"):
            inside = "index.md"
        elif place.startswith("docs/") and place.endswith(".md"):
            inside = place.removeprefix("docs/")
        elif picture:
            return f"![{label}]({posixpath.relpath(str(ROOT / place), str(_site(name)))})"
        elif repository:
            return f"[{label}]({repository.rstrip('/')}/{place})"
        else:
            return f"{label} (`{place}`)" if label.strip("`") != place else f"`{place}`"
        return (
            f"[{label}]({posixpath.relpath(inside, posixpath.dirname(name) or '.')}{hash_}{anchor})"
        )

    parts = _FENCE.split(text)  # text, indent, fence, text, ...
    parts[::3] = [_LINK.sub(mended, part) for part in parts[::3]]
    return "".join(parts)


def _site(name: str) -> Path:
    """Returns the folder of a page in the copy, from which pictures are found."""
    return (ROOT / "build" / "site-source" / name).parent
