"""Rows without elements: what a loop reads before it begins is not read when it has nothing to do.

Compiled without optimisation, where every read in the text is done; at -O3 most of those whose
value nobody needs vanish, but none has to.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
import torch

import tracer_core

CASES = {
    "rows": (lambda x: x.reshape(25, 0).sum(-1), (0, 3)),
    "copies": (lambda x: x.reshape(25, 0).expand(2, 25, 0).contiguous(), (0, 3)),
    "two reduced loops": (lambda x: x.transpose(0, 1).reshape(4, 7, 0).sum((1, 2)), (3, 0, 5)),
    "columns": (lambda x: x.reshape(9, 0).transpose(0, 1).sum(0), (3, 0)),
    "several passes": (
        lambda x: (x.reshape(8, 0) - x.reshape(8, 0).mean(1, keepdim=True)).square().sum(1),
        (0, 3),
    ),
    "a running sum": (lambda x: (x.reshape(4, 0) * 2).cumsum(-1).sum(-1), (0, 3)),
    "read before and after": (
        lambda x: (x.reshape(5, 0) * torch.ones(5, 1)).sum(1) + torch.arange(5.0) * 2,
        (0, 3),
    ),
}


def as_eager():
    """Runs in a process of its own, which a read at address 0 ends."""
    for name, (function, sizes) in CASES.items():
        x = torch.empty(sizes)
        assert x.data_ptr() == 0
        compiled = tracer_core.compile(function, backend="inductor")
        for _ in range(2):
            assert torch.equal(compiled(x), function(x)), name


def test_nothing_is_read_for_rows_without_elements(tmp_path):
    actual = shutil.which("g++")
    if actual is None:
        pytest.skip("needs g++")
    compiler = tmp_path / "g++"
    compiler.write_text(
        f'#!/bin/sh\ntest "$1" = --version && exec {actual} --version\nexec {actual} "$@" -O0\n'
    )
    compiler.chmod(0o755)
    command = [sys.executable, "-c", f"from {__name__} import as_eager; as_eager(); print('done')"]
    settings = {"CXX": str(compiler), "TRACER_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and done.stdout.endswith("done\n"), (
        done.returncode,
        done.stderr[-2000:],
    )
