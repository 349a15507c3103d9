"""The code blocks of README.md run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

import torch

import tracer_core
from tracer_core.plugin_api import compile_graph

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
OUTPUTS = re.findall(r"^```text\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_first_program_prints_what_is_shown(capsys):
    exec(compile(BLOCKS[0], "README.md", "exec"), {})
    texts = (capsys.readouterr().out, OUTPUTS[0])
    # The number of guards differs from one release of Python to the next.
    printed, shown = (re.sub(r"guards: \d+", "guards: n", text) for text in texts)
    assert printed == shown


def test_the_backend_example():
    names = {}
    exec(compile(BLOCKS[1], "README.md", "exec"), names)
    unregister = tracer_core.register(
        type("Plugin", (), {"tracer_backends": staticmethod(names["tracer_backends"])})
    )
    try:
        assert "mine" in tracer_core.list_backends()
        x = torch.randn(3)
        run = compile_graph(torch.fx.symbolic_trace(lambda x: x.exp() + 1), [x], "mine")
        assert torch.equal(run([x])[0], x.exp() + 1)
    finally:
        unregister()


def test_every_block_is_tested():
    assert (len(BLOCKS), len(OUTPUTS)) == (2, 1)
