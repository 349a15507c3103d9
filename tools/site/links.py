"""Looks up every link, picture and anchor of a built site."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    """The targets and the anchors of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.targets.append(value)


def broken(site: Path) -> tuple[list[str], int]:
    """Returns a line for each link inside the site that leads nowhere, and the number of links."""
    pages = {path: _Page(path.read_text()) for path in site.rglob("*.html")}
    result, number = [], 0
    for path, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            number += 1
            place = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            place = place / "index.html" if place.is_dir() else place
            known = pages.get(place)
            lost = (
                known is not None
                and parts.fragment
                and unquote(parts.fragment) not in known.anchors
            )
            if not place.exists() or lost:
                result.append(f"{path.relative_to(site)}: {target} leads nowhere")
    return result, number
