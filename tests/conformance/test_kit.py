"""The conformance kit finds what backends get wrong: each fault planted here must be a bad row."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import threading

import pytest
import torch

from tracer_core.errors import OptionError
from tracer_core.plugin_api import Backend, Training
from tracer_core.testing.conformance import (
    BAD,
    CASES,
    PROGRAMS,
    as_json,
    conformance,
    everything,
    markdown,
    table,
)
from tracer_core.testing.conformance.__main__ import Known, main
from tracer_core.testing.conformance.row import Row

FEW = dict(
    cases=[case for case in CASES if case.name in ("add", "in place", "transposed input")],
    dtypes=(torch.float32,),
)


def plain(graph, spec):
    forward = graph.forward
    return lambda inputs: forward(*inputs)


def backend(compile=plain, **settings):
    return Backend(**{"name": "tried", "compile": compile, "shapes": "symbolic", **settings})


def bad_rows(tried, **settings):
    return {row.case for row in conformance(tried, **{**FEW, **settings}) if row.status in BAD}


def programs(*names):
    actual = [program for program in PROGRAMS if program.name in names]
    assert len(actual) == len(names)
    return actual


def test_a_right_backend_conforms():
    rows = everything(backend(), **FEW)
    assert not [row for row in rows if row.status in BAD], table(rows)
    assert {row.case for row in rows if row.status == "not declared"} >= {"gradients of a model"}
    assert not bad_rows(
        backend(training=Training.FORWARD_BACKWARD), programs=programs("gradients of a model")
    )


def test_wrong_values_and_lost_writes():
    def off_by_one(graph, spec):
        return lambda inputs: [value + 1 for value in graph.forward(*inputs)]

    def never_writes(graph, spec):
        for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
            graph.graph.erase_node(node)
        graph.recompile()
        return plain(graph, spec)

    assert bad_rows(backend(off_by_one)) == {"add", "in place", "transposed input"}
    assert bad_rows(backend(never_writes)) == {"in place"}


def test_one_buffer_for_all_calls():
    def reuses(graph, spec):
        buffers = []

        def run(inputs):
            actual = graph.forward(*inputs)
            if not buffers:
                buffers.extend(value.clone() for value in actual)
            for buffer, value in zip(buffers, actual, strict=True):
                buffer.copy_(value) if buffer.shape == value.shape else None
            return list(buffers)

        return run

    assert (
        bad_rows(backend(reuses), cases=[], programs=programs("results are the caller's own"))
        != set()
    )


def test_parameters_taken_as_constants():
    def constant(graph, spec):
        kept = {}

        def run(inputs):
            for index, described in enumerate(spec.inputs):
                if described.stable_address:
                    inputs[index] = kept.setdefault(index, inputs[index].clone())
            return graph.forward(*inputs)

        return run

    assert (
        bad_rows(
            backend(constant), cases=[], programs=programs("new values of parameters are seen")
        )
        != set()
    )


def test_a_random_stream_of_its_own():
    def seeded(graph, spec):
        def run(inputs):
            torch.manual_seed(0)
            return graph.forward(*inputs)

        return run

    assert (
        bad_rows(backend(seeded), cases=[], programs=programs("dropout draws eager's stream"))
        != set()
    )


def test_the_sizes_of_the_first_call():
    def fixed(graph, spec):
        first = []

        def run(inputs):
            tensors = [value for value in inputs if isinstance(value, torch.Tensor) and value.dim()]
            first.append(tensors[0].shape[0])
            return [value[: first[0]] for value in graph.forward(*inputs)]

        return run

    assert (
        bad_rows(backend(fixed), cases=[], programs=programs("one size changes from call to call"))
        != set()
    )


def test_memory_shared_by_threads():
    def shared(graph, spec):
        slot, here = [None], threading.Event()

        def run(inputs):
            slot[0] = list(inputs)
            here.wait(1e-4)  # another thread's turn
            return graph.forward(*slot[0])

        return run

    assert (
        bad_rows(
            backend(shared), cases=[], programs=programs("eight threads on one compiled model")
        )
        != set()
    )


def test_an_index_that_is_not_checked():
    def unchecked(graph, spec):
        def run(inputs):
            return graph.forward(*(v.clamp(0, 4) if v.dtype is torch.int64 else v for v in inputs))

        return run

    assert (
        bad_rows(backend(unchecked), cases=[], programs=programs("an index out of range")) != set()
    )


def test_tensors_that_are_kept():
    def keeps(graph, spec):
        kept = []

        def run(inputs):
            kept.append(inputs[0])
            return graph.forward(*inputs)

        return run

    assert (
        bad_rows(
            backend(keeps), cases=[], programs=programs("inputs and results are not kept alive")
        )
        != set()
    )


def test_options_without_rules():
    @dataclasses.dataclass(frozen=True)
    class Undocumented:
        speed: int = 1

    @dataclasses.dataclass(frozen=True)
    class WithoutDefault:
        """speed: how fast."""

        speed: int

    assert (
        bad_rows(
            backend(options=Undocumented),
            cases=[],
            programs=programs("mistakes are found at compile()"),
        )
        != set()
    )
    with pytest.raises(
        OptionError, match="'tried': .*missing 1 required positional argument: 'speed'"
    ):
        conformance(backend(options=WithoutDefault), **FEW)


def test_wrong_gradients():
    def halves(graph, spec):
        if spec.phase.value != "backward":
            return plain(graph, spec)
        return lambda inputs: [value * 0.5 for value in graph.forward(*inputs)]

    tried = backend(halves, training=Training.FORWARD_BACKWARD)
    assert bad_rows(tried, cases=[], programs=programs("gradients of a model")) != set()


def test_an_engine_that_raises_is_a_row():
    def raises(graph, spec):
        raise RuntimeError("no such kernel")

    rows = conformance(backend(raises), **FEW)
    assert {row.status for row in rows} == {"error"} and "no such kernel" in rows[0].detail


def test_page_and_json_say_the_same():
    tried = backend(
        supports=lambda node: "not today" if node.target is torch.ops.aten.add.Tensor else None
    )
    rows = everything(tried, **FEW)
    data = as_json(tried, rows, "A note.")
    assert len(data["rows"]) == len(rows) and data["counts"]["partly"] > 0
    page = markdown(tried, rows, "A note.")
    assert "A note." in page and "not today" in page and "| add | " in page
    assert page == markdown(tried, rows, "A note.")


def test_a_sample_is_the_same_for_the_same_seed():
    names = [
        [(r.case, r.shape) for r in conformance(backend(), sample=6, seed=seed)]
        for seed in (1, 1, 2)
    ]
    assert names[0] == names[1] != names[2] and len(names[0]) == 6


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", *arguments], capture_output=True, text=True, timeout=300
    )


@pytest.mark.full
def test_the_command(tmp_path):
    page, data = tmp_path / "deep" / "eager.md", tmp_path / "eager.json"
    done = run("tracer_core.testing.conformance", "--backend", "eager", "--sample", "5",
    "--dtypes", "float32",
               "--json", str(data), "--page", str(page))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "one size changes from call to call" in done.stdout
    assert (
        json.loads(data.read_text())["backend"] == "eager"
        and "# Conformance of `eager`" in page.read_text()
    )


def test_one_row_again_with_its_traceback(tmp_path, monkeypatch, capsys):
    (tmp_path / "raising.py").write_text(
        "from tracer_core.plugin_api import Backend\n"
        "def my_engine(inputs):\n"
        "    raise RuntimeError('no such kernel')\n"
        "BACKEND = Backend(name='raising', compile=lambda graph, spec: my_engine)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    command = ["--backend", "raising:BACKEND", "--quiet", "--dtypes", "int64", "--only"]
    assert main([*command, "Whole Division int64 (3, 5)"]) == 1
    out = capsys.readouterr().out
    assert "1 error" in out and "no such kernel" in out and "in my_engine" in out
    assert main([*command, "no such case"]) == 2 and "'no such case'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such", "no backend named 'no_such'"),
        ("no_such_module:BACKEND", "No module named 'no_such_module'"),
        ("math:pi", "--backend math:pi: it is 3.14"),
    ],
)
def test_a_backend_that_is_not_there(name, message, capsys):
    assert main(["--backend", name]) == 2
    out, err = capsys.readouterr()
    assert not out and message in err and "Traceback" not in err


#: Three runs of pytest in one process, since importing torch costs more than they do: each argument
#: is one's.
SESSIONS = """
import json, sys, pytest
always = ["-p", "tracer_core.testing.pytest_plugin", "-q", "-p", "no:cacheprovider"]
for arguments in json.loads(sys.argv[1]):
    print("ENDED", int(pytest.main([*always, *arguments])), flush=True)
"""


@pytest.mark.full
def test_the_pytest_plugin(tmp_path):
    (tmp_path / "faulty.py").write_text(
        "from tracer_core.plugin_api import Backend\n"
        "def compile(graph, spec):\n"
        "    return lambda inputs: [value * 2 for value in graph.forward(*inputs)]\n"
        "BACKEND = Backend(name='faulty', compile=compile)\n"
    )
    tried = [
        ["--tracer-backend", name, "--tracer-sample", size]
        for name, size in (("eager", "4"), ("faulty:BACKEND", "8"))
    ]
    command = [sys.executable, "-c", SESSIONS, json.dumps([*tried, []])]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = re.split(r"^ENDED (\d+)$", done.stdout, flags=re.MULTILINE)
    assert parts[1::2] == ["0", "1", "5"], done.stdout + done.stderr  # 5: nothing collected
    assert ["wrong: " in text for text in parts[0:6:2]] == [False, True, False]


def test_an_interrupted_run_goes_on(tmp_path):
    path, ran = tmp_path / "rows.jsonl", []

    def trial(name):
        def run():
            ran.append(name)
            return Row(name, torch.float32, (2, 3), "ok")

        return run

    for number in range(2):
        known = Known(path, "addcmul torch 2")
        assert [known.row(name, trial(name)).case for name in ("add", "mul")] == ["add", "mul"]
        assert ran == ["add", "mul"], f"run {number}"
    path.write_text(path.read_text()[:-5])  # killed while it wrote
    known = Known(path, "addcmul torch 2")
    assert [known.row(name, trial(name)).shape for name in ("add", "mul")] == [(2, 3), (2, 3)]
    assert ran == ["add", "mul", "mul"]
    Known(path, "another torch 2").row("add", trial("add"))
    assert ran[-1] == "add" and len(path.read_text().splitlines()) == 3
