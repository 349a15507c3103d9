"""The environment variables: what is set wrong is an error that names it, a misspelt name is a
warning, and the command and the page list them all.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import tracer_core
from tests.support import torch_server
from tools.site.generated import variables_table
from tracer_core.debug import logs
from tracer_core.errors import OptionError
from tracer_core.options import env
from tracer_core.plugin_api import Variable, count, flag, seconds, size
from tracer_core.registry import environment

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, **variables: str):
    return torch_server.run([*arguments], env={**os.environ, **variables}, timeout=120)


COMMAND = "import sys; from tracer_core.command import main; sys.exit(main(sys.argv[1:]))"

COMPILES = """
import torch, tracer_core
fast = tracer_core.compile(torch.sin, backend="eager")
tracer_core.compile(torch.cos, backend="eager")
print(fast(torch.zeros(2)).tolist())
"""


@pytest.mark.parametrize(
    ("variable", "text", "takes"),
    [
        ("TRACER_KEEP", "maybe", "1 or 0"),
        ("TRACER_ALWAYS_COMPILED", "banana", "1 or 0"),
        ("TRACER_STRICT", "2", "1 or 0"),
        ("TRACER_CHECK", "full", "1 or 0"),
        ("TRACER_CACHE_LIMIT", "much", "bytes, or such as 500MB or 2GB"),
        ("TRACER_STORE_TIMEOUT", "soon", "seconds, such as 0.2"),
    ],
)
def test_a_wrong_value_is_an_error_of_compile(monkeypatch, variable, text, takes):
    monkeypatch.setenv(variable, text)
    with pytest.raises(OptionError, match=re.escape(f"{variable}={text!r}: {takes}")):
        tracer_core.compile(abs, backend="eager")


@pytest.mark.parametrize(
    ("text", "is_on"), [("1", True), ("yes", True), ("ON", True), ("0", False), ("False", False)]
)
def test_what_switches_on_and_off(monkeypatch, text, is_on):
    monkeypatch.setenv("TRACER_ALWAYS_COMPILED", text)
    monkeypatch.setenv("TRACER_KEEP", text)
    assert env().always_compiled is is_on and env().keep is is_on


def test_an_empty_variable_is_an_unset_one(monkeypatch):
    for name in environment.variables():
        monkeypatch.setenv(name, "")
    empty = env()
    for name in environment.variables():
        monkeypatch.delenv(name)
    assert env() == empty
    assert empty.keep and not empty.strict and empty.cache_limit == 2 * 10**9
    assert empty.store_timeout == 0.2 and empty.debug is None and empty.logs == frozenset()


@pytest.mark.parametrize(
    ("text", "folder"), [("1", "tracer_debug"), ("on", "tracer_debug"), ("off", None), ("a/b", "a/b")]
)  # fmt: skip
def test_the_folder_of_stages(monkeypatch, text, folder):
    monkeypatch.setenv("TRACER_DEBUG", text)
    assert env().debug == folder


def test_a_misspelt_name_is_one_warning():
    done = run("-c", COMPILES, TRACER_KEP="0", TRACER_FUEL="3")
    assert done.stdout == "[0.0, 0.0]\n"
    line = "TRACER_KEP is set, and no package reads it (did you mean 'TRACER_KEEP'?)"
    assert done.stderr.count(line) == 1 and "FUEL" not in done.stderr, done.stderr


@pytest.mark.parametrize("name", ["TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"])
def test_the_switch_of_torch_compile_counts(name):
    shown = "print(tracer_core.last_compile(fast)[0].text)"
    done = run("-c", COMPILES + shown, **{name: "1"})
    assert f"{name}=1: calls run in eager mode" in done.stdout, done


def test_a_misspelt_category_of_logs(monkeypatch):
    monkeypatch.setenv("TRACER_LOGS", "recompile,guards,cahe")
    text = r"unknown 'cahe' \(did you mean 'cache'\?\), 'recompile' \(did you mean 'recompiles'\?\); one"
    with pytest.raises(OptionError, match=text):
        tracer_core.compile(abs, backend="eager")


def test_every_category_that_is_documented_exists():
    paths = (*ROOT.glob("packages/*/src/**/*.py"), *ROOT.glob("docs/*.md"))
    texts = [path.read_text() for path in paths]
    named = {name for text in texts for name in re.findall(r"TRACER_LOGS=([a-z_,]*[a-z])", text)}
    assert {category for names in named for category in names.split(",")} == set(logs.CATEGORIES)


def test_the_command_lists_every_variable():
    done = run("-c", COMMAND, "env", TRACER_CACHE_LIMIT="5MB", TRACER_STORE_KEY="hush" * 9)
    assert done.returncode == 0 and done.stderr == ""
    assert "TRACER_CACHE_LIMIT=5MB (default 2GB)" in done.stdout
    assert "TRACER_STORE_KEY=(not shown)" in done.stdout and "hush" not in done.stdout
    assert all(f"\n{name}" in f"\n{done.stdout}" for name in environment.variables())
    wrong = run("-c", COMMAND, "env", TRACER_KEEP="maybe", TRACER_FUEL="few", TRACER_FOO="1")
    assert wrong.returncode == 1
    assert wrong.stderr.splitlines() == [
        "TRACER_KEEP='maybe': 1 or 0",
        "TRACER_FUEL='few': a number of fusions",
        "TRACER_FOO is set, and no package reads it; `tracer-core env` lists all",
    ]


def test_doctor_finds_what_is_set_wrong(monkeypatch):
    monkeypatch.setenv("TRACER_FUEL", "many")
    monkeypatch.setenv("TRACER_KEPT", "1")
    report = tracer_core.doctor(smoke=False)
    rows = [(row.state, row.found) for row in report if row.what == "environment"]
    assert rows[0] == ("problem", "TRACER_FUEL='many': a number of fusions")
    assert rows[1][0] == "note" and "did you mean 'TRACER_KEEP'?" in rows[1][1]
    assert not report.healthy


def test_the_page_lists_every_variable():
    table = variables_table()  # print it after a change, and put it into the page
    assert table in (ROOT / "docs" / "usage.md").read_text()


def test_every_variable_that_the_sources_name_is_in_the_table():
    texts = [path.read_text() for path in ROOT.glob("packages/*/src/**/*.py")]
    named = {name for text in texts for name in re.findall(r"\bTRACER_[A-Z_]*[A-Z]\b", text)}
    assert {"TRACER_DEBUG"} < named <= set(environment.variables())


def test_a_plugin_makes_variables_of_its_own(monkeypatch):
    monkeypatch.setattr("tracer_core.variable_table.VARIABLES", {})
    depth = Variable("TRACER_MY_DEPTH", count, "a depth", "How deep it looks.", "4")
    assert depth.read() == 4
    monkeypatch.setenv("TRACER_MY_DEPTH", " 7 ")
    assert depth.read() == 7
    monkeypatch.setenv("TRACER_MY_DEPTH", "deep")
    with pytest.raises(OptionError, match="TRACER_MY_DEPTH='deep': a depth"):
        depth.read()
    with pytest.raises(ValueError, match="the only one"):
        Variable("TRACER_MY_DEPTH", flag, "1 or 0", "Another.")
    with pytest.raises(ValueError, match="must begin with TRACER_"):
        Variable("MY_DEPTH", flag, "1 or 0", "Another.")


def test_what_numbers_may_be():
    assert size("1.5kb") == 1500 and size("20") == 20 and seconds("0.5") == 0.5
    for parse, text in ((size, "-1"), (seconds, "nan"), (seconds, "0"), (count, "1.5")):
        with pytest.raises(ValueError):
            parse(text)
