"""What holds while compiled graphs run: memory, threads, caches, stored entries, errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from inductor_backend.artifact import FORMAT, deserialize, serialize
from inductor_backend.debug import verify
from inductor_backend.ir.nodes import Store
from inductor_backend.pipeline import compile_graph
from tests.inductor.compiling import compiled
from tests.support import torch_server
from tests.support.threads import together
from tracer_core.plugin_api import BackendError, Runner, VerifyError


def network(x, w1, w2):
    h = F.gelu(F.layer_norm(x @ w1, (96,)))
    return (h @ w2).softmax(-1) + h.mean()


def weights():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(40, 96, generator=generator), torch.randn(96, 40, generator=generator)


def inputs(seed=0):
    return torch.randn(30, 40, generator=torch.Generator().manual_seed(seed)), *weights()


def test_intermediates_share_one_arena_and_results_survive_the_next_call():
    c = compiled(network, *inputs())
    assert c.compilation.memory.size > 0
    first = c(*inputs(0))[0]
    kept = first.clone()
    second = c(*inputs(5))[0]
    assert torch.equal(first, kept) and not torch.equal(first, second)


def test_the_arena_is_smaller_than_its_buffers():
    def chain(x, w):
        for _ in range(6):
            x = (x @ w).sin()
        return x @ w

    c = compiled(chain, torch.randn(64, 64), torch.randn(64, 64) / 8)
    total = sum(64 * 64 * 4 for _ in c.compilation.memory.offsets)
    assert len(c.compilation.memory.offsets) >= 4 and c.compilation.memory.size <= total // 2


def test_the_verifier_of_the_plan_sees_an_overlap():
    c = compiled(network, *inputs()).compilation
    assert len(c.memory.offsets) >= 2
    for name in c.memory.offsets:
        c.memory.offsets[name] = 0
    with pytest.raises(VerifyError, match="overlap"):
        verify.memory(c.program, c.plan, c.kernels, c.memory)


def test_the_verifier_names_a_read_before_a_write_and_a_wrong_dtype():
    c = compiled(network, *inputs(), until="lower").compilation
    c.program.nodes.reverse()
    with pytest.raises(VerifyError, match="before it is written"):
        verify.program(c.program)
    c = compiled(lambda x: x + 1, torch.randn(5), until="lower").compilation
    (node,) = c.program.nodes
    c.program.buffers[node.writes[0]].dtype = torch.int64
    with pytest.raises(VerifyError, match="stores torch.float32"):
        verify.program(c.program)
    assert isinstance(node.stores[0], Store)


def test_threads_and_recursion_have_an_arena_each():
    c = compiled(network, *inputs())
    expected = {seed: c(*inputs(seed))[0].clone() for seed in range(4)}
    wrong = []

    def work(seed):
        for _ in range(50):
            if not torch.equal(c(*inputs(seed))[0], expected[seed]):
                wrong.append(seed)

    together(work, threads=4)
    assert not wrong


def test_inputs_are_taken_from_the_list():
    c = compiled(lambda x: x + 1, torch.randn(5))
    args = [torch.randn(5)]
    c.compilation.runner(args)
    assert args == []


def test_a_second_compile_finds_the_kernels_on_disk(fresh_cache):
    x = torch.randn(31)
    first = compiled(lambda x: (x * 3.125).sin(), x).compilation.runner.artifact.library
    second = compiled(lambda x: (x * 3.125).sin(), x).compilation.runner.artifact.library
    assert not first.hit and second.hit, (first.reason, second.reason)


@pytest.mark.full
def test_the_text_of_a_module_is_the_same_in_every_process():
    code = (
        "import hashlib, torch\nfrom tests.inductor.compiling import compiled\n"
        "from tests.inductor.test_running import network, inputs\n"
        "c = compiled(network, *inputs(), until='module')\nprint(hashlib.sha256(c.text.encode()).hexdigest())\n"
    )
    seen = set()
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        seen.add(
            subprocess.run(
                [sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True
            ).stdout
        )
    assert len(seen) == 1


def test_a_stored_entry_is_json_and_runs_in_a_process_without_a_compiler(tmp_path):
    c = compiled(network, *inputs())
    data = serialize(c.compilation.runner)
    assert json.loads(data)["format"] == FORMAT
    path = tmp_path / "entry.json"
    path.write_bytes(data)
    torch.save(c(*inputs())[0], tmp_path / "expected.pt")
    code = (
        "import sys, torch\nfrom types import SimpleNamespace\n"
        "from inductor_backend.artifact import deserialize\n"
        "from tests.inductor.test_running import inputs\n"
        f"runner = deserialize(open({str(path)!r}, 'rb').read(), SimpleNamespace(name='g'))\n"
        f"expected = torch.load({str(tmp_path / 'expected.pt')!r})\n"
        "assert torch.equal(runner(list(inputs()))[0], expected)\nprint('same')\n"
    )
    env = {
        **os.environ,
        "CXX": "/nonexistent/g++",
        "PATH": "",
        "TRACER_CACHE_DIR": str(tmp_path / "empty"),
    }
    done = torch_server.run(["-c", code], env=env)
    assert done.stdout == "same\n", done.stderr


def test_damaged_and_foreign_entries_are_refused():
    spec = compiled(lambda x: x + 1, torch.randn(3)).compilation.spec
    for data in (b"nonsense", b'{"format": 99}'):
        with pytest.raises(BackendError, match="deserialize"):
            deserialize(data, spec)
    with pytest.raises(BackendError, match="not made by this backend"):
        serialize(Runner(lambda args: args))


def test_the_module_runs_alone(tmp_path):
    c = compiled(network, *inputs())
    path = tmp_path / "output_code.py"
    path.write_text(c.text)
    done = torch_server.run([str(path)], cwd=tmp_path)
    assert "ms" in done.stdout, done.stderr


def test_a_failing_stage_is_named_with_the_users_line(monkeypatch):
    from inductor_backend.lowering import context

    def broken(*args):
        raise RuntimeError("on purpose")

    monkeypatch.setitem(context.LOWERINGS, torch.ops.aten.sin.default, broken)
    with pytest.raises(
        BackendError, match=r"stage 1/\d+ 'lower' failed.*on purpose.*test_running\.py:\d+"
    ) as caught:
        compiled(lambda x: x.sin(), torch.randn(3))
    assert caught.value.backend == "inductor"


def test_fuel_limits_the_number_of_fusions(monkeypatch):
    x = torch.randn(50, 60)
    kernels = []
    for fuel in ("0", "1", "100"):
        monkeypatch.setenv("TRACER_FUEL", fuel)
        c = compiled(lambda x: x.softmax(-1), x)
        kernels.append(c.kernels)
        torch.testing.assert_close(c(x)[0], x.softmax(-1))
    assert kernels == sorted(kernels, reverse=True) and kernels[0] > kernels[-1] == 1


def test_constants_of_a_graph_are_stored_with_it():
    c = compiled(lambda x: x * x.new_ones(3), torch.randn(3), until="lower")
    runner = compile_graph(graph_with_constant(c.lowered.graph), c.compilation.spec)
    x = torch.randn(3)
    expected = x * torch.tensor([1.0, 2.0, 3.0])
    result = runner([x])
    assert torch.equal(result[0], expected)
    again = deserialize(serialize(runner), c.compilation.spec)
    assert torch.equal(again([x])[0], expected)


def graph_with_constant(like: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """x * c with c an attribute of the module, and fake values from a lowered graph of one
    input.
    """
    (fake,) = (node.meta["val"] for node in like.graph.find_nodes(op="placeholder"))
    root = torch.nn.Module()
    root.c = torch.tensor([1.0, 2.0, 3.0])
    graph = torch.fx.Graph()
    x, c = graph.placeholder("x"), graph.get_attr("c")
    product = graph.call_function(torch.ops.aten.mul.Tensor, (x, c))
    for node in (x, c, product):
        node.meta["val"] = fake
    graph.output((product,))
    return torch.fx.GraphModule(root, graph)
