"""Programs in files of their own, whose later processes are played by importing them anew."""

from __future__ import annotations

import importlib
import itertools
import sys
import textwrap

import pytest
import torch

import tracer_core
from tracer_core.execution.store import persistent_cache

_names = (f"kept_program_{number}" for number in itertools.count())


class Program:
    """A program in a file, which `started` imports as a new process would."""

    def __init__(self, folder):
        self.folder, self.name = folder, next(_names)
        self.fast = None

    def started(self, text, **settings):
        """Runs the program's text anew; returns its module, whose `run` is compiled as `fast`."""
        persistent_cache.flush()
        persistent_cache._WRITER.written.clear()
        tracer_core.reset()
        (self.folder / f"{self.name}.py").write_text(textwrap.dedent(text))
        sys.modules.pop(self.name, None)
        importlib.invalidate_caches()
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        try:
            module = importlib.import_module(self.name)
        finally:
            sys.dont_write_bytecode = before
        self.fast = tracer_core.compile(module.run, **settings)
        return module

    def check(self, *args):
        """Calls the compiled function and the original; returns what was said about stored entries."""
        module = sys.modules[self.name]
        with torch.no_grad():
            got, want = self.fast(*args), module.run(*args)
        torch.testing.assert_close(got, want)
        return cache_status(self.fast)


def cache_status(fast):
    rows = tracer_core.last_compile(fast)
    assert rows, "nothing was looked up"
    return rows[0].text if rows[0].name == "persistent_cache" else ""


def captures(fast):
    return sum(row.name == "trace" for row in tracer_core.last_compile(fast))


@pytest.fixture
def program(tmp_path, monkeypatch, fresh_cache):
    monkeypatch.setenv("TRACER_KEEP", "1")
    monkeypatch.syspath_prepend(str(tmp_path))
    result = Program(tmp_path)
    yield result
    persistent_cache.flush()
    tracer_core.reset()
    sys.modules.pop(result.name, None)


PLAIN = """
    import torch

    def run(x):
        return torch.relu(x) * 2 + 1
"""
