"""Settings of every test run: strict mode, all verifiers on, a cache folder of the run's own.

They are set when pytest loads this file, before any test module imports tracer_core, and reach the
processes that tests start.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest

os.environ["TRACER_STRICT"] = "1"
os.environ["TRACER_CHECK"] = "1"
os.environ.pop("TRACER_LOGS", None)
os.environ.pop("TRACER_DEBUG", None)

_CACHE = tempfile.mkdtemp(prefix="tracer-tests-")
os.environ["TRACER_CACHE_DIR"] = _CACHE
atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)

if not os.path.exists("/dev/nvidia0"):
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is imported

from tests.support import torchvision_ops  # noqa: E402  (after the environment is set)

torchvision_ops.define()


@pytest.fixture
def fresh_cache(tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty cache folder for one test; its path."""
    folder = os.path.join(tmp_path, "cache")
    monkeypatch.setenv("TRACER_CACHE_DIR", folder)
    yield folder
