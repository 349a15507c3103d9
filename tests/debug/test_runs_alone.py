"""Every .py file of the debug folder is a program that runs alone."""

from __future__ import annotations

import runpy
import subprocess
import sys

import pytest
import torch
from torch import nn

import tracer_core


def inference():
    fast = tracer_core.compile(lambda x, w: torch.softmax(x @ w, -1).sum(0) + torch.arange(4))
    fast(torch.randn(8, 16), torch.randn(16, 4))


def training():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    tracer_core.compile(net)(torch.randn(2, 3, 8, 8)).sum().backward()
    fast = tracer_core.compile(step)
    for _ in range(2):
        fast(torch.randn(2, 3, 8, 8))


def dynamic_size():
    fast = tracer_core.compile(
        lambda x: (x + x.shape[0]).cumsum(0)[x.shape[0] // 2 :], dynamic=True
    )
    fast(torch.randn(9, 3))


@pytest.mark.parametrize("program", [inference, training, dynamic_size])
def test_every_file_of_the_debug_folder(program, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRACER_DEBUG", str(tmp_path))
    monkeypatch.setenv("TRACER_KEEP", "0")
    program()
    files = sorted(tmp_path.rglob("*.py"))
    assert {path.name.partition("_")[2] for path in files} >= {"lower.py", "inductor_module.py"}
    grad = torch.is_grad_enabled()
    for path in files:
        runpy.run_path(str(path), run_name="__main__")
        torch.set_grad_enabled(grad)
        assert capsys.readouterr().out, path


def test_in_a_process_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACER_DEBUG", str(tmp_path))
    monkeypatch.setenv("TRACER_KEEP", "0")
    inference()
    (path,) = tmp_path.rglob("*lower.py")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "(4,) torch.float32" in done.stdout


def test_a_graph_that_names_an_object_of_the_process_says_so():
    def held(x):
        return x

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(2)
    graph.output((graph.call_function(held, (x,)),))
    from tracer_core.plugin_api import graph_listing

    text = graph_listing([("graph_0", torch.fx.GraphModule(nn.Module(), graph))])
    with pytest.raises(SystemExit, match="names an object of its process: .*held"):
        exec(compile(text, "listing", "exec"), {"__name__": "__main__"})
