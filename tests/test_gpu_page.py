"""docs/gpu.md is what happens: its programs run, one after the other; on a GPU (-m gpu) with its
device.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import tracer_core

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "gpu.md").read_text()
BLOCKS = re.findall(r"^```python run\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.full
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_page(device):
    if torch.cuda.is_available() != (device == "cuda"):
        pytest.skip("the page takes the GPU where there is one")
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"docs/gpu.md, block {number}", "exec"), names)
    tracer_core.reset()


def test_every_block_is_executed():
    assert len(BLOCKS) == PAGE.count("\n```python") == 5
