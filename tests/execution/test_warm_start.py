"""Stored variants run in a fresh process without tracing, lowering or compiling."""

from __future__ import annotations

import json
import textwrap

import pytest
import torch

import tracer_core
from tests.support import torch_server
from tracer_core.errors import StoredError
from tracer_core.execution import artifact
from tracer_core.storage import archive

MODELS = {
    "resnet18": """
        from torchvision.models import resnet18
        model, inputs = resnet18().eval(), torch.randn(1, 3, 64, 64)
    """,
    "bert": """
        from transformers import BertConfig, BertModel
        model, inputs = BertModel(BertConfig(num_hidden_layers=4)).eval(), torch.randint(0, 30000, (1, 12))
    """,
}
PRELUDE = """
import sys, torch
from tests.support import torchvision_ops
torchvision_ops.define()
import tracer_core
torch.manual_seed(0)
"""
STORE = """
with torch.no_grad():
    fast = tracer_core.compile(model)
    fast(inputs)
report = tracer_core.save(fast, sys.argv[1])
assert report.stored and not report.left_out, report
"""
LOAD = """
from tracer_core.bytecode import interpreter as machine
from tracer_core.dispatch import compile_graph as dispatch
from tracer_core.execution.capture import trace as capturing
from inductor_backend.runtime.cpp import build as build_cpp

def forbidden(*args, **kwargs):
    raise AssertionError("a stored variant needs none of this")

machine.Machine.run = capturing.capture = dispatch.compile_graph = build_cpp.build = forbidden
with torch.no_grad():
    fast = tracer_core.compile(model)
    count = tracer_core.load(fast, sys.argv[1])
    results = [fast(inputs), fast(inputs)]
    expected = model(inputs)
assert count >= 1
for result in results:
    assert type(result) is type(expected)
    pairs = [(result, expected)] if isinstance(expected, torch.Tensor) else [
        (result[k], expected[k]) for k in expected.keys()]
    for got, want in pairs:
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
print("loaded", count)
"""


def run(program: str, path: str) -> str:
    done = torch_server.run(["-c", program, path], timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_starts_warm_in_another_process(name, tmp_path):
    path = str(tmp_path / f"{name}.json")
    model = textwrap.dedent(MODELS[name])
    run(PRELUDE + model + STORE, path)
    assert "loaded 1" in run(PRELUDE + model + LOAD, path)


def double(x):
    return x * 2 + 1


def test_a_stored_function_still_checks_its_guards(tmp_path):
    path = tmp_path / "double.json"
    first = tracer_core.compile(double)
    first(torch.ones(3))
    tracer_core.save(first, path)
    tracer_core.reset()
    second = tracer_core.compile(double)
    assert tracer_core.load(second, path) == 1
    torch.testing.assert_close(second(torch.ones(3)), double(torch.ones(3)))
    torch.testing.assert_close(
        second(torch.ones(5)), double(torch.ones(5))
    )  # another shape: captured anew


def test_a_file_of_other_code_is_refused(tmp_path):
    path = tmp_path / "double.json"
    first = tracer_core.compile(double)
    first(torch.ones(3))
    tracer_core.save(first, path)
    with archive.opened_archive(path, "load", artifact.FORMAT, False) as file:
        manifest, entries = file.manifest, json.loads(file.read("entries.json"))

    def write():
        archive.write_archive(path, manifest, {"entries.json": [json.dumps(entries).encode()]})

    entries[0]["code"][0][1] = "0" * 64
    write()
    with pytest.raises(StoredError, match="has changed since"):
        tracer_core.load(tracer_core.compile(double), path)
    manifest["made_by"]["torch"] = "1.0"
    write()
    with pytest.raises(StoredError, match=r"torch was 1\.0 and is"):
        tracer_core.load(tracer_core.compile(double), path)


def refused(path, says):
    with pytest.raises(StoredError, match=says):
        tracer_core.load(tracer_core.compile(double), path)


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "double.tracer"
    path.write_text("{")
    refused(path, "is damaged, or is no file of tracer_core: it has 1 bytes")
    path.unlink()
    refused(path, "cannot be read")
    first = tracer_core.compile(double)
    first(torch.ones(3))
    tracer_core.save(first, path)
    data = path.read_bytes()
    for position in (0, len(data) // 3, len(data) - 200):
        path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        refused(path, "double.tracer is damaged")
    path.write_bytes(data)
    assert tracer_core.load(tracer_core.compile(double), path) == 1


def test_a_package_is_no_file_of_entries(tmp_path):
    path = tmp_path / "double.tracer"
    tracer_core.package(double, (torch.ones(3),), path)
    refused(path, "has format package 3, this version reads entries")
    first = tracer_core.compile(double)
    first(torch.ones(3))
    tracer_core.save(first, path)
    with pytest.raises(StoredError, match="has format entries .*, this version reads package"):
        tracer_core.load_package(path)


SIZES, PLACES = frozenset({2, float("inf"), 1j}), {7, 8}


def members(x):
    y = x + len(SIZES) if 1j in SIZES and 7 in PLACES else x - 1
    return y, SIZES


def test_a_function_that_reads_sets_is_stored(tmp_path, monkeypatch):
    path, x = tmp_path / "members.tracer", torch.ones(3)
    first = tracer_core.compile(members)
    first(x)
    assert tracer_core.save(first, path).left_out == ()
    for sizes, places in [
        (SIZES, PLACES),
        (frozenset({2}), PLACES),
        (frozenset({1j}), {7}),
        (SIZES, {8}),
    ]:
        monkeypatch.setitem(globals(), "SIZES", sizes)
        monkeypatch.setitem(globals(), "PLACES", places)
        tracer_core.reset()
        second = tracer_core.compile(members)
        assert tracer_core.load(second, path) == 1
        for _ in range(2):
            got, want = second(x), members(x)
            assert torch.equal(got[0], want[0])
            assert got[1] is want[1]


def mixed(x):
    with torch.autocast("cpu", enabled=False):
        exact = x @ x
    return exact + x @ x


def test_a_graph_of_a_call_inside_autocast_is_stored(tmp_path):
    path, x = tmp_path / "mixed.json", torch.randn(16, 16, requires_grad=True)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        first = tracer_core.compile(mixed)
        first(x)
        assert tracer_core.save(first, path).left_out == ()
        tracer_core.reset()
        second = tracer_core.compile(mixed)
        assert tracer_core.load(second, path) == 1
        torch.testing.assert_close(second(x), mixed(x), rtol=1e-6, atol=1e-6)
    assert not tracer_core.last_compile(second)  # nothing was captured


def asks(x):
    return x + 1 if torch.get_autocast_dtype("cpu") is torch.bfloat16 else x - 1


def test_a_stored_function_asks_for_the_settings_that_it_read(tmp_path):
    path, x = tmp_path / "asks.json", torch.ones(3)
    first = tracer_core.compile(asks)
    first(x)
    assert tracer_core.save(first, path).left_out == ()
    tracer_core.reset()
    second = tracer_core.compile(asks)
    assert tracer_core.load(second, path) == 1
    torch.testing.assert_close(second(x), x + 1)
    assert not tracer_core.last_compile(second)
    with torch.autocast("cpu", torch.float16):
        torch.testing.assert_close(second(x), x - 1)


def test_a_training_graph_is_stored_once_its_backward_has_run(tmp_path):
    path = tmp_path / "double.json"
    fast = tracer_core.compile(double)
    result = fast(torch.ones(3, requires_grad=True))
    ((_, why),) = tracer_core.save(fast, path).left_out
    assert "its backward was not run yet" in why
    result.sum().backward()
    assert tracer_core.save(fast, path).left_out == ()
    tracer_core.reset()
    second = tracer_core.compile(double)
    assert tracer_core.load(second, path) == 1
    x = torch.ones(3, requires_grad=True)
    second(x).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0)) and not tracer_core.last_compile(second)


def turned(x):
    return x.t(), x.view(-1)


def test_a_graph_of_views_is_stored(tmp_path):
    path, x = tmp_path / "turned.json", torch.arange(6.0).view(2, 3)
    with torch.no_grad():
        first = tracer_core.compile(turned)
        first(x)
        report = tracer_core.save(first, path)
        assert report.stored and not report.left_out
        second = tracer_core.compile(turned)
        assert tracer_core.load(second, path) == 1
        for got, want in zip(second(x), turned(x), strict=True):
            assert torch.equal(got, want)
            assert got.stride() == want.stride() and got.data_ptr() == x.data_ptr()
    assert not tracer_core.last_compile(second)


def test_what_cannot_be_stored_is_named(tmp_path):
    fast = tracer_core.compile(double, backend="eager")
    fast(torch.ones(3))
    with pytest.raises(StoredError, match="eager"):
        tracer_core.save(fast, tmp_path / "x.json")
