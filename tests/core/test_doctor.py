"""``tracer-core doctor``: what it finds here, and that what is wrong is called a problem."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tracer_core
from tests.support import torch_server
from tracer_core import api
from tracer_core import command as command_module
from tracer_core.registry.discovery import BackendRow


def findings(**options):
    return {check.what: check for check in tracer_core.doctor(**options)}


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = "import sys\nfrom tracer_core.command import main\nsys.exit(main(sys.argv[1:]))"
    return torch_server.run(
        ["-c", program, *arguments], env={**os.environ, **environment}, timeout=300
    )


def test_what_is_found_here(fresh_cache):
    actual = findings(smoke=False)
    assert actual["torch"].found.startswith(torch.__version__)
    assert actual["cache"].state == "ok" and fresh_cache in actual["cache"].found
    for name in tracer_core.list_backends():
        assert actual[f"backend {name}"].state == "ok"


def test_a_backend_compiles_a_small_network(fresh_cache, monkeypatch):
    rows = [row for row in api.backends() if row.name in ("eager", "inductor")]
    monkeypatch.setattr(api, "backends", lambda: rows)
    actual = findings()
    for row in rows:
        item = actual[f"backend {row.name}"]
        assert item.state == "ok" and "compiled and right in" in item.found, item


@pytest.mark.parametrize("name", ["no_such_backend", "os"])
def test_a_backend_that_fails_is_a_problem(monkeypatch, name):
    row = BackendRow(name, "some-backend", "1.0", ("cpu",), "inference only", "static", True, None)
    monkeypatch.setattr(api, "backends", lambda: [row])
    report = tracer_core.doctor()
    assert not report.healthy
    assert report[-1].state == "problem" and name in report[-1].advice
    assert f"problem backend {name}" in repr(report).replace("  ", " ")


def test_no_compiler_is_a_problem(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", str(tmp_path / "missing"))
    item = findings(smoke=False)["C++ compiler"]
    assert item.state == "problem" and "missing" in item.found and "apt install g++" in item.advice


def test_a_cache_that_cannot_be_used_is_a_problem(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRACER_CACHE_DIR", str(tmp_path / "file"))
    finding = findings(smoke=False)["cache"]
    assert finding.state == "problem" and "TRACER_CACHE_DIR" in finding.advice
    monkeypatch.setenv("TRACER_CACHE_LIMIT", "much")
    assert "TRACER_CACHE_LIMIT" in findings(smoke=False)["cache"].found


def test_the_command(tmp_path):
    cache = str(tmp_path / "cache")
    good = command("doctor", "--quick", "--json", TRACER_CACHE_DIR=cache)
    rows = json.loads(good.stdout)
    assert good.returncode == 0 and {row["state"] for row in rows} <= {"ok", "note"}, good.stdout
    bad = command("doctor", "--quick", TRACER_CACHE_DIR=cache, CXX="/no/such")
    assert bad.returncode == 1 and "problem C++ compiler" in bad.stdout.replace("  ", " ")


def test_the_cache_command(tmp_path):
    cache = tmp_path / "cache"
    program = "from tracer_core.storage.store import Store; Store('things').write('a', bytes(99))"
    environment = {**os.environ, "TRACER_CACHE_DIR": str(cache)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    entry: Path = cache / "things" / "a"
    shown = command("cache", "info", TRACER_CACHE_DIR=str(cache)).stdout
    assert "things: 1 files" in shown and str(cache) in shown
    assert command("cache", "prune", TRACER_CACHE_DIR=str(cache)).stdout == "0 bytes freed\n"
    assert entry.exists()
    size = entry.stat().st_size
    assert command("cache", "clear", TRACER_CACHE_DIR=str(cache)).stdout == f"{size} bytes freed\n"
    assert not entry.exists()


def test_its_installed_name():
    assert command_module.main.__module__ == "tracer_core.command"
    text = (Path(__file__).parents[2] / "packages/frontend-tracer/pyproject.toml").read_text()
    assert 'tracer-core = "tracer_core.command:main"' in text


def test_a_report_to_paste(tmp_path):
    variables = {"TRACER_CACHE_DIR": str(tmp_path), "TRACER_STORE_KEY": "my-secret-key"}
    text = command("doctor", "--quick", "--report", **variables).stdout
    assert text.startswith("```text\n") and text.endswith("\n```\n") and text.count("```") == 2
    assert torch.__version__ in text and f"TRACER_CACHE_DIR={tmp_path}" in text.replace(": ", "=")
    assert "my-secret-key" not in text
