"""What is installed, listed for people: backends, their options and modes, and the public names."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field

import pytest
import torch

import tracer_core
from tests.support import torch_server
from tracer_core.errors import BackendNotFoundError
from tracer_core.plugin_api import Backend

COMMAND = "import sys; from tracer_core.command import main; sys.exit(main(sys.argv[1:]))"


def run(*arguments: str):
    return torch_server.run(["-c", COMMAND, *arguments], env=dict(os.environ), timeout=120)


def test_the_options_of_a_backend():
    listed = tracer_core.backend_options("inductor")
    rows = {row.name: row for row in listed.options}
    assert rows["freeze"].type == "bool" and rows["freeze"].default == "False"
    assert rows["freeze"].doc.startswith("Makes parameters and buffers constants in inference:")
    assert rows["numerics"].type == "one of 'fused', 'eager'"
    assert "reduce-overhead" in listed.modes and "default" in listed.modes
    text = str(listed)
    assert "  freeze: bool = False\n      Makes parameters" in text and "  max-autotune: " in text


def test_every_option_of_an_installed_backend_is_documented():
    for row in tracer_core.backends():
        listed = tracer_core.backend_options(row.name)
        assert listed.modes, row.name
        assert all(option.doc[:1].isupper() for option in listed.options), str(listed)


def test_what_is_listed_is_what_compile_takes():
    for row in tracer_core.backend_options("inductor").options:
        tracer_core.compile(abs, backend="inductor", options={row.name: eval(row.default)})


@dataclass(frozen=True)
class Settings:
    """Options of a backend of this process."""

    #: How many
    #: at most.
    limit: int
    names: tuple[str, ...] = field(default_factory=lambda: ("a",))
    pairs: tuple[tuple[str, int], ...] | None = None  # a comment that documents nothing


def passing(graph, spec):
    return lambda inputs: graph(*inputs)


def test_options_of_a_backend_object_and_of_a_callable():
    mine = Backend(name="mine", compile=passing, options=Settings)
    limit, names, pairs = tracer_core.backend_options(mine).options
    assert (limit.default, limit.doc) == ("required", "How many at most.")
    assert (names.default, names.doc, pairs.doc) == ("('a',)", "", "")
    (any_option,) = tracer_core.backend_options(lambda gm, example_inputs: gm).options
    assert "the callable" in any_option.doc
    assert str(tracer_core.backend_options("eager")).startswith(
        "backend eager: 0 options, 1 mode\noptions: none\nmodes:"
    )
    with pytest.raises(BackendNotFoundError, match="Did you mean 'inductor'"):
        tracer_core.backend_options("inducter")


def test_lists_are_taken_for_tuples():
    received = []

    def note(graph, spec):
        received.append(spec.options)
        return lambda inputs: graph(*inputs)

    mine = Backend(name="mine", compile=note, options=Settings)
    options = {"limit": 1, "names": ["x", "y"], "pairs": [["a", 1], ("b", 2)]}
    tracer_core.compile(lambda x: x + 1, backend=mine, options=options)(torch.ones(2))
    tracer_core.compile(lambda x: x + 2, backend=mine, options=Settings(2, ["z"]))(torch.ones(2))
    assert received == [Settings(1, ("x", "y"), (("a", 1), ("b", 2))), Settings(2, ("z",))]
    assert options["names"] == ["x", "y"], "the program's own dictionary stays as it is"
    wrong = {"names": [1]}, {"pairs": [["a"]]}, {"pairs": ["ab"]}, {"names": "xy"}
    for item in wrong:
        with pytest.raises(tracer_core.errors.OptionError, match="must be tuple"):
            tracer_core.compile(abs, backend=mine, options={"limit": 1, **item})


def test_backends_print_as_a_table():
    rows = tracer_core.backends()
    lines = repr(rows).splitlines()
    available = sum(row.available for row in rows)
    assert lines[0] == f"{len(rows)} backends, {available} can run here"
    assert [line.split()[0] for line in lines[1:]] == [row.name for row in rows]
    assert all(len(line) < 200 for line in lines)
    by_name = dict(zip([row.name for row in rows], lines[1:]))
    assert "tracer-core" in by_name["eager"] and "cpu" in by_name["eager"]
    for row in rows:
        assert row.available or f"cannot run here: {row.reason}" in by_name[row.name]


def test_the_commands():
    listed = run("backends")
    assert listed.returncode == 0 and listed.stdout.rstrip() == repr(tracer_core.backends())
    shown = run("options", "inductor")
    assert shown.stdout.rstrip() == str(tracer_core.backend_options("inductor"))
    wrong = run("options", "inducter")
    assert wrong.returncode == 1 and "Did you mean 'inductor'" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_the_package_runs_as_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "tracer_core", "options", "eager"], capture_output=True, text=True
    )
    assert (
        done.stdout.startswith("backend eager: 0 options, 1 mode\noptions: none")
        and done.returncode == 0
    )
    wrong = run("docter")
    assert wrong.returncode == 2 and "usage: tracer-core" in wrong.stderr


def test_the_public_names_alone_are_listed():
    assert sorted(dir(tracer_core)) == sorted(tracer_core.__all__)
    assert {"compile", "disabled", "original", "backend_options", "errors"} <= set(dir(tracer_core))
    assert all(getattr(tracer_core, name) is not None for name in dir(tracer_core))
