"""docs/gpu.md is what happens: its programs run, one after the other; on a GPU (-m gpu) with its
device.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.page_programs import blocks, printed_by

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "gpu.md").read_text()


@pytest.mark.full
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_page(device):
    if torch.cuda.is_available() != (device == "cuda"):
        pytest.skip("the page takes the GPU where there is one")
    assert len(printed_by("gpu.md")) == 5


def test_every_block_is_executed():
    assert len(blocks("gpu.md")) == PAGE.count("\n```python") == 5
