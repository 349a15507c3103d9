"""`tracer_core.cache.save_artifacts` and `load_artifacts`: the cache folder as one value."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile

import pytest

import tracer_core
from tracer_core.errors import StoredError

PROGRAM = """
import torch, tracer_core
fast = tracer_core.compile(lambda x: x.sin() + 1)
print(fast(torch.zeros(3)).tolist(), len(tracer_core.markers.compiled(fast).function.records))
"""


def test_another_folder_captures_nothing(tmp_path, monkeypatch):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def run(folder):
        environment = {**os.environ, "TRACER_KEEP": "1", "TRACER_CACHE_DIR": str(tmp_path / folder)}
        command = [sys.executable, program]
        return subprocess.run(command, env=environment, capture_output=True, text=True).stdout

    assert run("first") == "[1.0, 1.0, 1.0] 1\n"
    monkeypatch.setenv("TRACER_CACHE_DIR", str(tmp_path / "first"))
    data = tracer_core.cache.save_artifacts()
    monkeypatch.setenv("TRACER_CACHE_DIR", str(tmp_path / "second"))
    assert tracer_core.cache.load_artifacts(data) > 1
    assert run("second") == "[1.0, 1.0, 1.0] 0\n"


def test_what_is_damaged_or_something_else(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACER_CACHE_DIR", str(tmp_path))
    with pytest.raises(
        StoredError, match="these are no entries of a cache: File is not a zip file"
    ):
        tracer_core.cache.load_artifacts(b"text")
    for name, problem in [("auto/key", "not an entry of this version"), ("../x", "this version")]:
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w") as file:
            file.writestr(name, b"damaged" * 20)
        with pytest.raises(StoredError, match=problem):
            tracer_core.cache.load_artifacts(data.getvalue())


def test_a_name_that_leads_elsewhere(tmp_path, monkeypatch):
    from tracer_core.storage.store import packed

    monkeypatch.setenv("TRACER_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("../evil", "auto/../../evil", "auto/.hidden", "/etc/evil"):
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w") as file:
            file.writestr(name, packed(b"image", "any machine     "))
        with pytest.raises(StoredError, match="not the name of an entry"):
            tracer_core.cache.load_artifacts(data.getvalue())
    assert not (tmp_path / "evil").exists()
