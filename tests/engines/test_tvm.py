"""The backend tvm: what is its own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import tracer_core
from tests.aot.programs import randn
from tests.engines.running import compiled, peak_growth
from tests.support import torch_server
from tests.support.tvm_builds import builds
from tracer_core.dispatch.validation import build_config
from tracer_core.errors import BackendError, OptionError

pytestmark = pytest.mark.sweep(keep=4)


pytest.importorskip("tvm")


def test_options_and_their_mistakes():
    runner, _ = compiled(
        "tvm", lambda x: x + 1, randn(3), target='{"kind": "llvm", "mcpu": "x86-64"}'
    )
    torch.testing.assert_close(runner([torch.ones(3)])[0], torch.full((3,), 2.0))
    with pytest.raises(BackendError, match="'no such thing' is no TVM target"):
        build_config(backend="tvm", options={"target": "no such thing"})
    with pytest.raises(OptionError, match="cost_model='best': one of xgb, random"):
        build_config(backend="tvm", options={"cost_model": "best"})


def _flags() -> set[str]:
    """Returns the instructions of this processor that Linux lists; x86 only, else empty."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    actual = next((line for line in lines if line.startswith("flags")), "")
    return {flag.replace("_", "") for flag in actual.split()}


@pytest.mark.skipif(not _flags(), reason="this system lists no instructions of its processor")
def test_vector_instructions_that_the_processor_hides_are_not_used():
    """LLVM goes by the processor's model: in a virtual machine without AVX-512 on a processor that
    has it, kernels ended in illegal instructions.
    """
    import tvm

    from tvm_backend.build import target_of

    target = target_of(None, "cpu")
    flags, off = _flags(), {name[1:] for name in target.attrs["mattr"] if name.startswith("-")}
    with target:
        used = {str(name) for name in tvm.target.codegen.llvm_get_cpu_features()} - off
    for name in ("avx2", "avx512f", "avx512bw", "avx512vnni", "avx512bf16", "avx512fp16"):
        assert name not in used or name in flags, name


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no processors to choose here")
def test_the_program_keeps_its_processors():
    """TVM's thread pool, which a process has once, bound the thread that called it to the first
    one.
    """
    program = """
import os, torch, tracer_core
before = os.sched_getaffinity(0)
compiled = tracer_core.compile(lambda x, w: (x @ w).relu(), backend="tvm")
x, w = torch.randn(64, 256), torch.randn(256, 256)
torch.testing.assert_close(compiled(x, w), (x @ w).relu(), atol=1e-3, rtol=1e-3)
assert os.sched_getaffinity(0) == before, os.sched_getaffinity(0)
"""
    done = torch_server.run(["-c", program], timeout=120)
    assert done.returncode == 0, done.stderr


def test_what_tvm_does_not_check_is_left_to_pytorch():
    """TVM reads past the end of a table, and an integer divided by zero ends the process."""
    table = torch.randn(5, 3)
    look_up = tracer_core.compile(lambda i: table[i] * 2, backend="tvm")
    divide = tracer_core.compile(lambda x, y: x // y, backend="tvm")
    for _ in range(2):
        torch.testing.assert_close(look_up(torch.tensor([4, 0])), table[[4, 0]] * 2)
        with pytest.raises(IndexError):
            look_up(torch.tensor([7, 0]))
        assert divide(torch.tensor([7]), torch.tensor([2])).item() == 3
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            divide(torch.tensor([7]), torch.tensor([0]))


@torch.no_grad()
def test_sums_of_half_precision_are_added_up_as_in_eager():
    """The short product comes first: what is known of it must not stand for the long one."""
    x, y = torch.rand(3, 4096).half(), torch.rand(4096, 5).half()

    def program(x, y):
        short = x[:, :4] @ y[:4]
        convolved = F.conv2d(
            x.view(1, 3072, 2, 2), y[:1024].reshape(1, -1)[:, :3072].view(1, 3072, 1, 1)
        )
        return short, x @ y, (x * 2).sum(1), convolved, torch.cat([x, x]) + 1

    fast = tracer_core.compile(program, backend="tvm")
    for ours, expected in zip(fast(x, y), program(x, y), strict=True):
        torch.testing.assert_close(ours, expected, rtol=2e-3, atol=1e-3)


def test_cubes_of_negative_numbers():
    runner, _ = compiled("tvm", lambda x: x**3 + x**2, randn(64))
    x = torch.linspace(-3, 3, 64)
    assert runner.fallback is None
    torch.testing.assert_close(runner([x])[0], x**3 + x**2)


@pytest.mark.parametrize("missing", ["cloudpickle", "psutil", "xgboost"])
def test_a_search_names_the_package_that_it_lacks(missing, monkeypatch, tmp_path):
    """Without cloudpickle TVM ends the process."""
    import importlib.util

    real = importlib.util.find_spec
    has = lambda name, *rest: (
        None
        if name == missing
        else real(name, *rest) or name in ("cloudpickle", "psutil", "xgboost")
    )
    monkeypatch.setattr(importlib.util, "find_spec", has)
    with pytest.raises(BackendError, match=f"pip install {missing}"):
        compiled("tvm", lambda x: x + 1, randn(3), trials=2, records=str(tmp_path))


@pytest.mark.slow  # importing TVM's MetaSchedule takes half a minute
def test_tuned_schedules_are_recorded_and_used_again(tmp_path):
    pytest.importorskip("cloudpickle")
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64).eval()
    x = torch.randn(8, 64)
    records = str(tmp_path / "records")
    tuned = tracer_core.compile(
        model, backend="tvm", options={"trials": 4, "cost_model": "random", "records": records}
    )
    with torch.no_grad():
        torch.testing.assert_close(tuned(x), model(x))
        found = list(tmp_path.glob("records/*/database_tuning_record.json"))
        assert len(found) == 1 and len(found[0].read_text().splitlines()) >= 4
        before = found[0].read_bytes()
        within = {"trials": 4, "cost_model": "random", "records": records}
        torch.testing.assert_close(
            tracer_core.compile(model, backend="tvm", options=within)(x), model(x)
        )
        assert found[0].read_bytes() == before  # the budget is spent
        again = tracer_core.compile(model, backend="tvm", options={"records": records})
        torch.testing.assert_close(again(x), model(x))
    assert found[0].read_bytes() == before


def test_records_are_used_where_they_are_right_and_quicker(tmp_path):
    import tvm
    from tvm import te

    from tvm_backend import schedule_selection, schedules
    from tvm_backend.build import target_of

    def function(element):
        a, b = (te.placeholder((128, 128), name=name) for name in "ab")
        k = te.reduce_axis((0, 128), name="k")
        result = te.compute(
            (128, 128), lambda i, j: te.sum(element(a[i, k], b[k, j]), axis=k), name="result"
        )
        return te.create_prim_func([a, b, result])

    def recorded(result):
        return result.with_attr(schedules.DONE, True)

    def chosen():
        kept = schedule_selection.choose(irmodule, tvm.IRModule(dict(after)), tmp_path)
        return {
            name.name_hint for name, item in kept.functions_items() if schedules.is_scheduled(item)
        }

    product, total = function(lambda a, b: a * b), function(lambda a, b: a * b + 1)
    irmodule = tvm.IRModule({"slow": product, "wrong": total})
    after = {"slow": recorded(product), "wrong": recorded(product)}  # as written: no tiles
    assert chosen() == {"slow", "wrong"}  # nothing was measured
    target = target_of(None, "cpu")
    schedule_selection.benchmark(irmodule, tvm.IRModule(dict(after)), target, tmp_path)
    assert chosen() == set()
    path = tmp_path / schedule_selection.FILE
    figures = json.loads(path.read_text())
    assert {entry["name"]: entry["agree"] for entry in figures.values()} == {
        "slow": True,
        "wrong": False,
    }
    for entry in figures.values():
        entry["us"] = {"default": 2.0, "recorded": 1.0}
    path.write_text(json.dumps(figures))
    before = path.read_bytes()
    assert chosen() == {"slow"}
    schedule_selection.benchmark(
        irmodule, tvm.IRModule(dict(after)), target, tmp_path
    )  # known: not measured again
    assert path.read_bytes() == before
    for broken in ("", "[1]", json.dumps({"0": {"agree": True}})):
        path.write_text(broken)
        assert chosen() == set()  # nobody knows which are right
    schedule_selection.benchmark(irmodule, tvm.IRModule(dict(after)), target, tmp_path)
    assert json.loads(path.read_text()).keys() == figures.keys()


@torch.no_grad()
def test_frozen_parameters_are_constants_and_changes_are_seen(monkeypatch):
    built = builds(monkeypatch)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.BatchNorm2d(8),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 36, 5),
    ).eval()
    fast = tracer_core.compile(model, backend="tvm", options={"freeze": True})
    x = torch.randn(2, 3, 8, 8)
    for _ in range(3):
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(built) == 1
    model[3].weight.mul_(2)
    model[1].running_mean.add_(1)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(built) == 3
    model[3].weight.data.mul_(3)  # leaves no trace
    fast.refresh()
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_one_build_serves_batches_from_2_to_32(monkeypatch):
    built = builds(monkeypatch)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(512, 4),
    )
    fast = tracer_core.compile(model.eval(), backend="tvm", dynamic=True)
    for batch in (4, 2, 32, 17, 8, 31):
        x = torch.randn(batch, 3, 8, 8)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(built) == 1
    x = torch.randn(1, 3, 8, 8)  # a size of 1 is a graph of its own, as everywhere
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(built) == 2


@torch.no_grad()
def test_tensors_that_begin_anywhere():
    """TVM's vectors are loaded from whole multiples of their size: without care the process
    ends.
    """
    torch.manual_seed(0)
    weight = torch.randn(48 * 64 + 3)[3:].view(48, 64)
    program = lambda x: F.linear(x, weight).relu() + x[:, :48]
    for options in ({}, {"freeze": True}):
        fast = tracer_core.compile(program, backend="tvm", options=options)
        for start in (0, 1, 2, 16):
            x = torch.randn(12 * 64 + start)[start:].view(12, 64)
            torch.testing.assert_close(fast(x), program(x), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_hundred_megabytes_of_inputs_are_not_copied():
    fast = tracer_core.compile(lambda x: x.sum(-1), backend="tvm")
    x = torch.randn(1024, 25600)  # 105 MB
    torch.testing.assert_close(fast(x), x.sum(-1), rtol=1e-3, atol=1e-2)
    if peak_growth(x.clone) < 90:
        pytest.skip("the system does not tell the peak of memory")
    assert peak_growth(lambda: [fast(x) for _ in range(3)]) < 50


@torch.no_grad()
def test_code_for_cuda_is_generated(monkeypatch):
    """Generated here, where there is no GPU; that it runs was not tried."""
    from tvm_backend import build
    from tvm_backend.options import Options

    modules = []
    real = build.build
    monkeypatch.setattr(
        build, "build", lambda module, *rest: modules.append(module) or real(module, *rest)
    )
    model = torch.nn.Sequential(
        torch.nn.Conv2d(4, 16, 3, padding=1, groups=2), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(256, 8), torch.nn.Softmax(-1),
    ).eval()  # fmt: skip
    tracer_core.compile(model, backend="tvm")(torch.randn(2, 4, 8, 8))
    sizes = {
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 49152,
        "thread_warp_size": 32,
    }
    text = json.dumps({"kind": "cuda", "arch": "sm_90", "max_num_threads": 1024, **sizes})
    target = build.target_of(text, "cuda")
    executable = real(modules[0], target, Options(), "graph")

    def sources(module):
        yield from [module.inspect_source()] if module.kind == "cuda" else ()
        for part in module.imports:
            yield from sources(part)

    (source,) = sources(executable.mod)
    kernels = source.count('extern "C" __global__')
    assert kernels >= 4 and "threadIdx.x" in source and "blockIdx.x" in source
