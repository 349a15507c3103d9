"""A release of torch that lacks names, or has something else under them: what remains runs, and
runs rightly.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT

CORE = ROOT / "packages/frontend-tracer/src/tracer_core"
#: Parts into which the names are dealt; each part is missing from a process of its own.
PARTS = 3


def processes(
    hidden: list[list[str]], how: str = "gone", backend: str = "eager", **environment: str
):
    """What `tests.torch_private.missing_names` says of each list of names, and what was written to
    stderr.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.torch_private.missing_names"],
        input=json.dumps({"hidden": hidden, "how": how, "backend": backend}),
        cwd=ROOT, env={**os.environ, "TRACER_STRICT": "", **environment}, capture_output=True,
        text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.fixture(scope="module")
def looked_up():
    """Every name that tracer_core looks up in the programs of `missing_names`, and that it can do
    without.
    """
    from tracer_core.torch_private import releases

    ((full,), _) = processes([[]], backend="aten_eager")
    assert full["wrong"] == {} and full["told"] == []
    return sorted(set(full["asked"]) - {f"torch.{path}" for path in releases._NEEDED.split()})


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_part_of_the_names_is_gone(looked_up, part):
    hidden = looked_up[part::PARTS]
    ((seen,), _) = processes([hidden], backend="aten_eager")
    assert seen["wrong"] == {}
    (lines,) = seen["told"]
    assert [name for name in hidden if f"{name}," not in lines and f"{name}:" not in lines] == []


@pytest.mark.full
def test_something_else_is_under_the_names(looked_up):
    ((seen,), _) = processes([looked_up[::2]], how="other", backend="aten_eager")
    assert seen["wrong"] == {} and seen["told"]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
def test_each_name_alone_is_gone(looked_up, backend):
    for start in range(0, len(looked_up), 8):
        names = looked_up[start : start + 8]
        actual, _ = processes([[name] for name in names], backend=backend)
        assert [
            (name, item["wrong"]) for name, item in zip(names, actual, strict=True) if item["wrong"]
        ] == []


def test_without_a_name_that_everything_needs_programs_run_natively():
    ((seen,), written) = processes([["torch._C._len_torch_function_stack"]])
    assert seen["wrong"] == {}
    (line,) = [line for line in written.splitlines() if "captures nothing" in line]
    assert (
        "has no torch._C._len_torch_function_stack" in line and "Install torch 2.11 to 2." in line
    )


NATIVE = """
import logging, sys
import torch

def vanish(owner, *names):
    for name in names:
        delattr(owner, name)

{vanish}
import tracer_core
{program}
fast = tracer_core.compile(program, backend="aten_eager")
wanted, x = None, torch.randn(3, 4)
for _ in range(2):
    wanted, given = program(x), fast(x)
    assert torch.equal(wanted, given), (wanted, given)
for one in tracer_core.explain(program)(x).breaks:
    print("break:", one.kind, one.reason)
for record in tracer_core.last_compile(fast):
    if record.name == "missing_in_torch":
        print("told:", record.text)
"""

#: What is deleted from torch -> a program that comes by it, and what is said.
DELETED = {
    "torch.func.jacrev has another name": (
        "import torch.func; torch.func.moved = torch.func.jacrev; vanish(torch.func, 'jacrev')\n",
        "def program(x):\n    return torch.func.moved(torch.sin)(x[0]) + 1",
        ("torch.func.jacrev", "break: higher_order"),
    ),
    "a question to C++": (
        "vanish(torch._C, '_group_tensors_by_device_and_dtype', '_log_api_usage_once')\n",
        "def program(x):\n    return torch.nn.functional.layer_norm(x, (4,)).relu() * 2",
        ("torch._C._group_tensors_by_device_and_dtype, torch._C._log_api_usage_once",),
    ),
    "the type of attention's backends": (
        "vanish(torch._C, '_SDPBackend')\n",
        "def program(x):\n    q = x[None, None]\n    return torch.nn.functional.scaled_dot_product_attention(q, q, q)",
        ("torch._C._SDPBackend",),
    ),
    "the shield from torch's own tracer": (
        "import torch._compile; del torch._compile; import sys; sys.modules['torch._compile'] = None\n",
        "def program(x):\n    return torch.nn.functional.softplus(x).std()",
        ("torch._compile",),
    ),
}


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("case", DELETED)
def test_names_deleted_from_torch_itself(case):
    vanish, program, said = DELETED[case]
    done = subprocess.run(
        [sys.executable, "-c", NATIVE.format(vanish=vanish, program=program)],
        cwd=ROOT, env={**os.environ, "TRACER_STRICT": ""}, capture_output=True, text=True,
        timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert all(line in done.stdout for line in said), done.stdout + done.stderr


# -- every name goes through the one place --

#: What torch promises and the tracer is made of, and what `releases.refusal` asks for before the
#: tracer is imported.
GROUND = frozenset(
    """
    library.Library library.register_fake
    Generator Size SymBool SymFloat SymInt Tensor __path__ device dtype empty finfo iinfo layout memory_format preserve_format
    rand_like bfloat16 bool complex128 complex64 float16 float32 float64 int16 int32 int64 int8 uint8 ops.aten
    amp.is_autocast_available autograd.Function autograd.function.FunctionCtx autograd.profiler.record_function
    compiler.is_compiling distributed.is_available fx fx.GraphModule fx.Interpreter fx.Node fx.node.map_aggregate
    nn nn.Buffer nn.Module
    Tensor.register_hook Tensor.register_post_accumulate_grad_hook utils.hooks.RemovableHandle
    nn.Module.__call__ nn.Module.__getattr__ nn.Parameter nn.parallel.DistributedDataParallel overrides.TorchFunctionMode
    """.split()
)


def direct_lookups(path: Path) -> list[str]:
    """Names of torch, other than those of `GROUND`, that a module looks up itself when it is
    imported.
    """
    tree = ast.parse(path.read_text())
    texts: list[str] = []
    aliases: dict[str, str] = {}

    class Visitor(ast.NodeVisitor):
        def visit_Import(self, node: ast.Import) -> None:
            aliases.update({(name.asname or name.name.partition(".")[0]): (name.name if name.asname else "torch")
                            for name in node.names if name.name.partition(".")[0] == "torch"})  # fmt: skip

        def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
            if (node.module or "").partition(".")[0] == "torch":
                aliases.update(
                    {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
                )
                texts.extend(f"{node.module}.{name.name}" for name in node.names)

        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            for part in (
                *node.decorator_list,
                *node.args.defaults,
                *filter(None, node.args.kw_defaults),
            ):
                self.visit(part)

        def visit_Lambda(self, node: ast.Lambda) -> None:
            pass

        def visit_If(self, node: ast.If) -> None:
            if ast.unparse(node.test) != "TYPE_CHECKING":
                self.generic_visit(node)

        def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
            if node.value is not None:
                self.visit(node.value)

        def visit_Attribute(self, node: ast.Attribute) -> None:
            parts, inner = [node.attr], node.value
            while isinstance(inner, ast.Attribute):
                parts.insert(0, inner.attr)
                inner = inner.value
            if isinstance(inner, ast.Name) and inner.id in aliases:
                texts.append(".".join([aliases[inner.id], *parts]))
            else:
                self.visit(inner)

    Visitor().visit(tree)
    return [
        name
        for name in texts
        if name.removeprefix("torch.") not in GROUND
        and not name.startswith("torch.ops.tracer_core.")
    ]


FILES = sorted(
    path
    for path in CORE.rglob("*.py")
    if "torch_private" not in path.parts and "testing" not in path.parts
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CORE)))
def test_what_a_release_may_lack_is_looked_up_in_one_place(path):
    assert direct_lookups(path) == []


def test_the_check_sees_direct_lookups(tmp_path):
    file = tmp_path / "table.py"
    file.write_text(
        "import torch\n\nROWS = {torch._C._get_tracing_state, torch.ops.aten.add.Tensor, torch.Tensor, torch.cond}\n"
    )
    assert direct_lookups(file) == [
        "torch._C._get_tracing_state",
        "torch.ops.aten.add.Tensor",
        "torch.cond",
    ]
