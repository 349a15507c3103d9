"""Nothing advises to install from an index what is not there under our name: anybody could register
it (docs/decisions/0037). Goes when the names are ours.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = r"(tracer-core|inductor-backend|cudagraphs-backend|onnxrt-backend|tvm-backend)"
#: A command with one of our names that is no folder of a checkout, and a link to the index.
ADVICE = re.compile(
    rf"pip install [^\n]*(?<![\w/-]){OURS}(?![\w-])(?! in a|/)|pypi\.org/project/{OURS}"
)
READ = [
    *sorted(ROOT.glob("packages/*/src/**/*.py")),
    *sorted(ROOT.glob("packages/*/README.md")),
    *sorted(ROOT.glob("docs/*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
]


def test_no_text_names_a_package_that_is_on_no_index():
    advice = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in READ
        for match in ADVICE.finditer(path.read_text())
    ]
    assert advice == []


def test_the_check_finds_such_advice():
    assert ADVICE.search('python -m pip install "tracer-core[inductor]"')
    assert ADVICE.search("pip install onnxrt-backend")
    assert ADVICE.search("[tvm-backend](https://pypi.org/project/tvm-backend/)")
    assert not ADVICE.search("pip install packages/frontend-tracer packages/inductor-backend")
    assert not ADVICE.search("pip install ziglang")


@pytest.mark.parametrize("name", ["cudagraphs", "inductor", "onnxrt", "tvm"])
def test_the_message_names_a_folder_of_the_checkout(name, monkeypatch):
    from tracer_core.registry import discovery

    advice = discovery._install(name)
    folder = re.search(r"pip install (packages/[\w-]+) in a checkout", advice)
    assert folder and (ROOT / folder[1] / "pyproject.toml").exists()
