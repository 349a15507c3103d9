"""Settings of every test run: strict mode, all verifiers on, a cache folder of the run's own.

They are set when pytest loads this file, before any test module imports tracer_core, and reach the
processes that tests start.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import sys
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

import tracer_core  # noqa: E402, F401  (after the environment is set)
from tests.support import torchvision_ops  # noqa: E402

torchvision_ops.define()

# Each `reset()` forgets what is installed, and reading the entry points of a hundred distributions again costs as much as
# a short test. Nothing is installed into this process: the tests of discovery start others (tests/plugin).
_discovery = sys.modules["tracer_core.backends"]
_discovery.entry_points = functools.cache(_discovery.entry_points)


@pytest.fixture
def fresh_cache(tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty cache folder for one test; its path."""
    folder = os.path.join(tmp_path, "cache")
    monkeypatch.setenv("TRACER_CACHE_DIR", folder)
    yield folder
