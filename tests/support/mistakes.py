"""Runs the programs of docs/lab/mistakes.md, each with one mistake, and returns what they print.

``python -m tests.support.mistakes`` writes what is printed now into the page.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support import torch_server

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "lab" / "mistakes.md"
_BLOCK = re.compile(
    r"^### (?P<title>.+?)\n+```python(?P<variables>(?: \w+=\S*)*)\n(?P<program>.*?)^```\n+```text\n(?P<shown>.*?)^```\n",
    re.MULTILINE | re.DOTALL,
)
#: Prints the end of an uncaught error, without the frames.
_RUNS = """
import runpy, sys, traceback
try:
    runpy.run_path("program.py", run_name="__main__")
except Exception as error:
    print("".join(traceback.format_exception_only(error)), file=sys.stderr)
"""
#: What differs from run to run -> what the page has instead.
_STEADY = (
    (re.compile(re.escape(str(ROOT)) + r"/packages/[\w-]+/src"), "..."),
    (re.compile(r"(?<=[ '\"(:])/[\w/.+-]*/(?=[\w.-])"), ".../"),
    (re.compile(r"(?<=; installed: ).*"), "..."),
    (re.compile(r"0x[0-9a-f]+"), "0x..."),
    (re.compile(r"\d+(\.\d+)? (m?s|seconds)\b"), r"n \2"),
    (re.compile(r"(?<=_)[0-9a-f]{12,}(?=\.)"), "..."),
    (re.compile(r"[ \t]+$", re.MULTILINE), ""),
)


@dataclass(frozen=True)
class Mistake:
    """A program of the page. shown: what the page says that it prints."""

    title: str
    variables: dict[str, str]
    program: str
    shown: str

    def printed(self) -> str:
        """Runs the program; returns what it prints, without what differs from run to run."""
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "program.py").write_text(self.program)
            env = {name: text for name, text in os.environ.items() if name[:7] != "TRACER_"}
            env |= {"TRACER_CACHE_DIR": f"{folder}/cache", "TRACER_STRICT": "0", **self.variables}
            done = torch_server.run(["-c", _RUNS], env=env, cwd=folder, timeout=120)
        text = (done.stdout + done.stderr).replace(f"{folder}/", "")
        for pattern, steady in _STEADY:
            text = pattern.sub(steady, text)
        return re.sub(r"\n{2,}", "\n", text).strip("\n") + "\n"


def mistakes() -> list[Mistake]:
    """Returns the programs of the page, in its order."""
    return [mistake for mistake, _ in _found(PAGE.read_text())]


def _found(page: str) -> Iterator[tuple[Mistake, re.Match[str]]]:
    for match in _BLOCK.finditer(page):
        variables = dict(item.split("=", 1) for item in match["variables"].split())
        yield Mistake(match["title"], variables, match["program"], match["shown"]), match


def main() -> None:
    page = PAGE.read_text()
    for mistake, match in reversed([*_found(page)]):
        begin, end = match.span("shown")
        page = page[:begin] + mistake.printed() + page[end:]
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
