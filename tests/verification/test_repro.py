"""`tracer_core.repro`: the script runs alone, fails where the program's graph does, and stores nothing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tracer_core
from tests.support import torch_server
from tracer_core.errors import OptionError, TracerError

#: Makes inductor's tanh wrong.
PLANTED = (
    "import torch, inductor_backend.pipeline\n"
    "from inductor_backend.lowering.context import LOWERINGS as RULES\n"
    "RULES[torch.ops.aten.tanh.default] = RULES[torch.ops.aten.sigmoid.default]\n"
)


def run(path):
    return torch_server.run([path], cwd=path.parent)


def test_a_training_step_with_indices_and_a_graph_break(tmp_path):
    torch.manual_seed(0)
    table, net = nn.Embedding(10, 4), nn.Linear(4, 3)

    def program(indices, y):
        h = table(indices).sum(1)
        tracer_core.graph_break()
        return F.cross_entropy(net(h), y)

    fast = tracer_core.compile(program, options={"fuse": False})
    indices, y, before = torch.tensor([[3, 9], [1, 0]]), torch.tensor([2, 0]), torch.get_rng_state()
    path = tracer_core.repro(fast, indices, y, path=tmp_path / "wrong.py")
    assert [item.name for item in tmp_path.iterdir()] == ["wrong.py"]
    assert torch.equal(torch.get_rng_state(), before)
    text = path.read_text()
    assert "backend='inductor', mode='default', options={'fuse': False}" in text
    assert "torch.int64, 'cpu', low=0.0, high=9.0)" in text and torch.__version__ in text
    done = run(path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ok;") == 2 and "graph_1 verify graph_1: all 4 ok" in done.stdout


def test_the_script_fails_where_the_backend_is_wrong(tmp_path):
    fast = tracer_core.compile(lambda x: torch.tanh(x) * 2)
    path = tracer_core.repro(fast, torch.randn(8), path=tmp_path / "wrong.py")
    assert run(path).returncode == 0
    path.write_text(PLANTED + path.read_text())
    done = run(path)
    assert done.returncode == 1 and "WrongResultError: verify graph_0: 1 of 1 WRONG" in done.stderr


def test_frozen_parameters_and_stored_inputs(tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
    fast = tracer_core.compile(net, options={"freeze": True})
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        path = tracer_core.repro(fast, x, path=tmp_path / "wrong.py", store_inputs=True)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["wrong.pt", "wrong.py"]
    assert any(torch.equal(x, item) for item in torch.load(tmp_path / "wrong.pt")["graph_0"])
    assert "options={'freeze': True}" in path.read_text()
    done = run(path)
    assert done.returncode == 0 and "graph_0 verify Frozen: all 1 ok" in done.stdout, done.stderr


def test_what_no_script_can_show(tmp_path):
    x = torch.randn(2)
    with pytest.raises(OptionError, match="repro needs what compile"):
        tracer_core.repro(torch.sin, x)
    with pytest.raises(OptionError, match="cannot compile with 'mine'"):
        own = tracer_core.plugin_api.Backend(name="mine", compile=lambda graph, spec: graph)
        tracer_core.repro(tracer_core.compile(lambda x: x + 1, backend=own), x)
    with pytest.raises(TracerError, match="nothing was captured"):
        tracer_core.repro(tracer_core.compile(lambda x: x), x, path=tmp_path / "wrong.py")
    with pytest.raises(TracerError, match="cannot be written: No such file"):
        tracer_core.repro(tracer_core.compile(lambda x: x + 1), x, path=tmp_path / "no" / "x.py")


#: Compiles with a wrong kernel for tanh, and writes the script.
WRONG_TANH = """
import sys
net = torch.nn.Sequential(
    torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8), torch.nn.Tanh(),
    torch.nn.LayerNorm(8), torch.nn.Linear(8, 3),
)
def program(x):
    h = x.sin() + 1
    tracer_core.graph_break()
    return net(h).softmax(-1)
fast = tracer_core.compile(program)
tracer_core.repro(fast, torch.randn(4, 8), path=sys.argv[1])
tracer_core.repro(fast, torch.randn(4, 8), path=sys.argv[2], seconds=0)
"""


def test_the_smallest_part_that_is_wrong(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PLANTED + "import tracer_core\n" + WRONG_TANH)
    small, full = tmp_path / "small.py", tmp_path / "full.py"
    done = torch_server.run([program, small, full], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = small.read_text()
    calls = text.partition("def graph_0(")[2].partition("def graph_0_inputs")[0]
    assert calls.count("torch.") == calls.count("torch.tanh(") == 1 and "graph_1" not in text
    assert "torch.tanh(" in full.read_text() and "graph_1" in full.read_text()
    small.write_text(PLANTED + text)
    done = run(small)
    assert done.returncode == 1 and "WrongResultError" in done.stderr
