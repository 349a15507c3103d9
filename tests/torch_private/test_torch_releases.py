"""What users are told of the torch that is installed, and that the releases that count as tested
are the tested ones.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import torch

import tracer_core
from tests.support import torch_server
from tests.support.processes import ROOT
from tracer_core import api, torch_private
from tracer_core.torch_private import releases

RESULTS = ROOT / "benchmarks" / "results" / "torch_versions.json"

PROGRAM = """
import logging
import torch

torch.__version__ = {version!r}
import tracer_core

def program(x):
    return torch.nn.functional.silu(x).sum() + x.max().item()

x = torch.randn(5)
for _ in range(2):
    fast = tracer_core.compile(program, backend="aten_eager")
    assert torch.allclose(fast(x), program(x)) and torch.allclose(fast(x + 1), program(x + 1))
print(tracer_core.explain(program)(x).graph_count)
"""


def printed(version: str) -> tuple[str, list[str]]:
    """(stdout, lines on stderr that name torch's version) of a program under a torch that says it
    is this release.
    """
    done = torch_server.run(
        ["-c", PROGRAM.format(version=version)],
        cwd=ROOT,
        env={**os.environ, "TRACER_STRICT": "1"},
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip(), [
        line for line in done.stderr.splitlines() if f"torch {version}" in line
    ]


def test_a_newer_torch_is_said_to_be_untested_once_and_programs_are_captured():
    graphs, lines = printed("3.2.0.dev20270101+cu150")
    assert graphs == "2" and len(lines) == 1
    newest = releases.TESTED[-1]
    assert (
        f"newer than {newest}, the newest that this release of tracer-core was tested with"
        in lines[0]
    )


def test_nothing_is_said_of_a_tested_release():
    assert printed(f"{releases.TESTED[-1]}.7+cpu") == ("2", [])


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("2.10.1", "older than 2.11, the oldest"),
        ("4.0.0a0+git1234", "newer than"),
        ("2.13.1+rocm7", None),
    ],
)
def test_remark(monkeypatch, version, words):
    monkeypatch.setattr(torch, "__version__", version)
    remark = torch_private.remark()
    assert remark is None if words is None else words in remark


def test_fullgraph_is_refused_where_nothing_can_be_captured(monkeypatch):
    monkeypatch.setattr(torch_private, "refusal", lambda: "torch 9 has no torch._C.x")
    program = torch.nn.Linear(2, 2)
    assert tracer_core.compile(program) is program
    with pytest.raises(
        tracer_core.errors.TracerError, match="fullgraph=True: torch 9 has no torch._C.x"
    ):
        tracer_core.compile(program, fullgraph=True)


def test_the_installed_torch_has_every_name():
    assert torch_private.not_found() == ()


def test_tested_releases_are_those_of_the_session_and_of_its_results():
    text = (ROOT / "noxfile.py").read_text()
    assert set(re.findall(r'^    "(2\.\d+)": \(', text, re.M)) >= set(releases.TESTED)
    rows = json.loads(RESULTS.read_text())
    assert set(rows) == set(releases.TESTED)
    # "mended": what failed in that run -> the commit at which it passes
    failing = {
        release: {*row["failures"]} - row.get("mended", {}).keys() for release, row in rows.items()
    }
    assert {release: sorted(names) for release, names in failing.items() if names} == {}


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("packages/*/pyproject.toml")), ids=lambda path: path.parent.name
)
def test_packages_ask_for_the_oldest_tested_release_or_newer(path: Path):
    asked = re.findall(r'"torch([^"]*)"', path.read_text())
    assert set(asked) <= {f">={releases.TESTED[0]}"}


def test_a_python_that_the_tracer_does_not_know(monkeypatch, caplog, tmp_path):
    """Programs run eagerly there, and rightly; it is said once."""
    monkeypatch.setattr(releases, "PYTHONS", ((3, 9), (3, 10)))
    releases.refusal.cache_clear()
    api._say_what_is_untested.cache_clear()
    try:
        with caplog.at_level("WARNING", logger="tracer_core"):
            layer, x = torch.nn.Linear(3, 2), torch.randn(4, 3)
            fast = tracer_core.compile(layer)
            torch.testing.assert_close(fast(x), layer(x))
            fast(x).sum().backward()
            assert layer.weight.grad is not None

            @tracer_core.compile(backend="eager")
            def doubled(y):
                return y * 2

            torch.testing.assert_close(doubled(x), x * 2)
        (said,) = [record.getMessage() for record in caplog.records]
        assert "programs on Python 3.9 to 3.10; on Python" in said
        assert [(row.name, row.text) for row in tracer_core.last_compile(fast)] == [
            ("native", said)
        ]
        for refused in (
            lambda: tracer_core.compile(layer, fullgraph=True),
            lambda: tracer_core.explain(layer),
            lambda: tracer_core.save(fast, tmp_path / "stored"),
            lambda: tracer_core.load(fast, tmp_path / "stored"),
        ):
            with pytest.raises(tracer_core.errors.TracerError, match=r"Python 3\.9 to 3\.10"):
                refused()
    finally:
        releases.refusal.cache_clear()
        api._say_what_is_untested.cache_clear()


def test_places_that_ask_about_sizes_are_texts():
    """torch 2.11 has no text for a missing place: its error about a size that depends on data was an
    AttributeError, which counted as the program's."""
    env = torch_private.new_shape_env(lambda: "?", data_sizes=True)
    place, _ = env._get_stack_summary()
    assert isinstance(place.framework_loc, str)
