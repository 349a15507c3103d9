"""Packages in processes without the program's source, on a GPU, and as libraries."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

import tracer_core
from inductor_backend.plugin import BACKEND
from tests.support.packaged_programs import Mixer, eager, mixer_inputs
from tracer_core.errors import (
    BackendError,
    InputMismatchError,
    PackageError,
    StoredError,
)

WITHOUT_SOURCE = """
import sys
import torch
import tracer_core

loaded = tracer_core.load_package(sys.argv[1])
inputs = torch.load(sys.argv[2])
result = loaded(**inputs)
torch.save(dict(result), sys.argv[3])
banned = ("sympy", "transformers", "torchvision", "tests", "tracer_core.trace", "tracer_core.bytecode",
          "tracer_core.fx_capture", "tracer_core.execution.capture.trace", "tracer_core.export.save",
          "tracer_core.native_functions", "torch._inductor")
found = sorted(n for n in sys.modules if any(n == b or n.startswith(b + ".") for b in banned))
print(type(result).__name__, "found:", found)
"""


def in_another_process(path, inputs, folder):
    torch.save(inputs, folder / "inputs.pt")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WITHOUT_SOURCE), path, folder / "inputs.pt",
         folder / "result.pt"],
        capture_output=True, text=True, cwd=folder, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(folder / "result.pt"), done.stdout


def test_a_factory_of_a_size_that_changes(tmp_path):
    def positions(x):
        return {"y": torch.linspace(0, 1, x.shape[0])[:, None] * x}

    tracer_core.package(positions, (torch.ones(5, 4),), tmp_path / "p", dynamic={"x": {0: (2, 9)}})
    inputs = {"x": torch.randn(7, 4)}
    result, _ = in_another_process(tmp_path / "p", inputs, tmp_path)
    torch.testing.assert_close(result, positions(**inputs))


def test_bert_runs_in_a_process_without_transformers_the_tracer_and_sympy(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=32,
    )  # fmt: skip
    model = transformers.BertModel(config).eval()
    path = tmp_path / "bert.tracer"
    ids = torch.randint(0, 50, (3, 7))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    sizes = {0: (2, 16), 1: (2, 32)}
    dynamic = {"input_ids": sizes, "attention_mask": sizes}
    tracer_core.package(model, (), path, kwargs=inputs, dynamic=dynamic)
    ids = torch.randint(0, 50, (5, 9))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    got, said = in_another_process(path, inputs, tmp_path)
    assert said.split() == ["Fields", "found:", "[]"]
    want = eager(model, **inputs)
    torch.testing.assert_close(got["last_hidden_state"], want.last_hidden_state)
    torch.testing.assert_close(got["pooler_output"], want.pooler_output)
    here = tracer_core.load_package(path)(**inputs)
    assert type(here) is type(want)
    torch.testing.assert_close(here.last_hidden_state, want.last_hidden_state)


def test_llama_with_tied_weights_and_any_length(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, intermediate_size=32, tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    path = tmp_path / "llama.tracer"
    ids = torch.randint(0, 50, (2, 7))
    tracer_core.package(
        model, (), path, kwargs={"input_ids": ids, "use_cache": False},
        dynamic={"input_ids": {1: (2, 64)}},
    )  # fmt: skip
    loaded = tracer_core.load_package(path)
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= set(loaded.weights())
    tied = [row for row in loaded.manifest["states"] if len(row["names"]) == 2]
    assert len(tied) == 1
    for length in (2, 7, 64):
        ids = torch.randint(0, 50, (2, length))
        want = eager(model, input_ids=ids, use_cache=False)
        got = loaded(input_ids=ids, use_cache=False)
        torch.testing.assert_close(got.logits, want.logits)
    with pytest.raises(InputMismatchError, match=r"input_ids.shape\[1\]: .*2 to 64, not for 65"):
        loaded(input_ids=torch.zeros(2, 65, dtype=torch.int64), use_cache=False)


def test_a_residual_net(tmp_path):
    class Block(nn.Module):
        def __init__(self, n_in, n_out, stride):
            super().__init__()
            self.first = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
            self.second = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
            self.norms = nn.ModuleList([nn.BatchNorm2d(n_out), nn.BatchNorm2d(n_out)])
            self.shortcut = nn.Conv2d(n_in, n_out, 1, stride, bias=False)

        def forward(self, x):
            y = self.norms[0](self.first(x)).relu()
            return (self.norms[1](self.second(y)) + self.shortcut(x)).relu()

    model = nn.Sequential(
        nn.Conv2d(3, 8, 7, 2, 3), nn.MaxPool2d(3, 2, 1), Block(8, 8, 1), Block(8, 16, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    ).eval()  # fmt: skip
    path = tmp_path / "net.tracer"
    tracer_core.package(model, (torch.randn(2, 3, 32, 32),), path)
    loaded = tracer_core.load_package(path)
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(loaded(x), eager(model, x), rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_a_package_for_a_gpu(tmp_path):
    model = Mixer().eval().cuda()
    path = tmp_path / "gpu.tracer"
    rows = {0: (1, 64)}
    batch = {name: value.cuda() for name, value in mixer_inputs(4).items()}
    dynamic = {"batch['ids']": rows, "batch['weights']": rows}
    tracer_core.package(model, (batch,), path, dynamic=dynamic)
    loaded = tracer_core.load_package(path)
    assert loaded.manifest["needs"]["gpu"]["architecture"].startswith("sm_")
    for n_rows in (1, 3, 64, 64, 64):
        batch = {name: value.cuda() for name, value in mixer_inputs(n_rows).items()}
        torch.testing.assert_close(loaded(batch).best, eager(model, batch).best)
    with pytest.raises(InputMismatchError, match="on cuda:0, not for .*on cpu"):
        loaded(mixer_inputs(4))


@pytest.mark.gpu
def test_a_package_for_a_gpu_needs_neither_triton_nor_a_compiler(tmp_path):
    major, minor = torch.cuda.get_device_capability()
    x, path = torch.rand(300, 500, device="cuda"), tmp_path / "gpu.tracer"
    for architectures in ((), ("sm_80", f"sm_{major}{minor}")):
        tracer_core.package(
            lambda x: (x.softmax(1) + 1).sum(0), (x,), path, architectures=architectures
        )
        done = subprocess.run(
            [sys.executable, "-c", _ELSEWHERE, path], capture_output=True, text=True, timeout=120,
            env={**os.environ, "TRACER_CACHE_DIR": str(tmp_path / f"cache {len(architectures)}"),
                 "CXX": "/nowhere/c++", "CC": "/nowhere/cc"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
    other = "sm_80" if major != 8 else "sm_90"
    tracer_core.package(lambda x: x.softmax(1), (x,), path, architectures=(other,))
    with pytest.raises(StoredError, match=f"machine code for {other}, and .* is sm_{major}{minor}"):
        tracer_core.load_package(path)


_ELSEWHERE = """
import sys
sys.modules["triton"] = None
import torch, tracer_core
loaded = tracer_core.load_package(sys.argv[1])
for rows in (torch.rand(300, 500, device="cuda"), torch.rand(301 * 500, device="cuda")[500:].view(300, 500)[:],
             torch.rand(300 * 500 + 1, device="cuda")[1:].view(300, 500)):
    torch.testing.assert_close(loaded(rows), (rows.softmax(1) + 1).sum(0))
"""


# libraries
# ---------------------------------------------------------------------------------------------


def test_a_library_is_written_by_a_backend_that_can(tmp_path):
    written = []
    backend = dataclasses.replace(
        BACKEND, name="writes", write_library=lambda *arguments: written.append(arguments)
    )
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU()).eval()
    x = torch.randn(3, 4)
    tracer_core.package_library(model, (x,), tmp_path, backend=backend)
    ((gm, spec, directory),) = written
    assert directory == tmp_path
    assert [value.source for value in spec.inputs] == ["input"]
    assert len(gm.graph.find_nodes(op="placeholder")) == 1
    torch.testing.assert_close(gm(x)[0], eager(model, x))
    with pytest.raises(PackageError, match="returns a view of an input"):
        tracer_core.package_library(lambda x: (x.t(), x + 1), (x,), tmp_path, backend=backend)
    with pytest.raises(PackageError, match="'eager' does not offer write_library"):
        tracer_core.package_library(model, (x,), tmp_path, backend="eager")
    with pytest.raises(PackageError, match="sizes that depend on data"):
        tracer_core.package_library(lambda x: x.nonzero(), (x,), tmp_path, backend=backend)


def test_inductor_writes_a_library(tmp_path):
    folder = tmp_path / "norm"
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8)).eval()
    tracer_core.package_library(model, (torch.randn(3, 4),), folder)
    assert {"norm.so", "norm.h", "norm.json"} <= set(os.listdir(folder))
    described = json.loads((folder / "norm.json").read_text())
    assert [item["sizes"] for item in described["inputs"]] == [[3, 4]]
    assert [item["sizes"] for item in described["outputs"]] == [[3, 8]]
    with pytest.raises(BackendError, match="sort"):
        tracer_core.package_library(lambda x: x.sort().values, (torch.randn(9),), folder)
