"""The code blocks of README.md run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path

import torch

import tracer_core
from tracer_core.plugin_api import compile_graph

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
)


def test_the_usage_example(capsys):
    names = {}
    exec(compile(BLOCKS[0], "README.md", "exec"), names)
    assert capsys.readouterr().out == f"{names['gated'](torch.ones(3), torch.zeros(3))}\n"


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
    assert len(BLOCKS) == 2
