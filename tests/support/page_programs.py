"""Runs the Python blocks of a page one after the other, as its reader would, in a process of its own:
what they mark and register does not outlive the page.

Prints a JSON list of what each block printed, as the last line: ``python -m
tests.support.page_programs docs/tutorial.md``.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from pathlib import Path

from tests.support.processes import ROOT, reported_by

#: A block and, where the page shows it, what it prints.
BLOCK = re.compile(
    r"^```python(?: run)?\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL
)


def blocks(page: str) -> list[tuple[str, str]]:
    """The blocks of docs/`page` and what the page says that they print."""
    return BLOCK.findall((ROOT / "docs" / page).read_text())


def printed_by(page: str) -> list[str]:
    """What each block of docs/`page` prints."""
    return reported_by(
        "-m", "tests.support.page_programs", page, environment=os.environ, timeout=300
    )


def _run(page: str) -> list[str]:
    import torch

    torch.manual_seed(0)
    names: dict[str, object] = {}
    printed = []
    for number, (block, _) in enumerate(blocks(page)):
        stream = io.StringIO()
        with contextlib.redirect_stdout(stream):
            exec(compile(block, f"docs/{page}, block {number}", "exec"), names)
        printed.append(stream.getvalue())
    return printed


if __name__ == "__main__":
    from tests.support import torchvision_ops

    torchvision_ops.define()
    print(json.dumps(_run(Path(sys.argv[1]).name)))
