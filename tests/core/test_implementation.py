"""tracer_core is an implementation, not a wrapper: torch's own compiler is neither named nor
called.

The first half scans the sources; the second makes torch's compiler raise while a model compiles and
runs.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SOURCES = sorted([*ROOT.glob("packages/*/src/**/*.py"), *ROOT.glob("examples/*/src/**/*.py")])

#: Modules and names that may appear neither as code nor as a string that names a module.
FORBIDDEN = ("torch._dynamo", "torch._inductor", "torch._C._dynamo", "torch.compile")

#: Calls whose string argument names a module or an attribute.
LOOKUPS = {"import_module", "__import__", "find_spec", "getattr", "resolve", "load_module"}


def is_forbidden(name: str) -> bool:
    """``torch.compile`` is forbidden, ``torch.compiler`` (public markers) is not."""
    return any(name == item or name.startswith((item + ".", item + ":")) for item in FORBIDDEN)


def dotted(node: ast.AST, aliases: dict[str, str]) -> str:
    """``torch.compile`` for the expression that reads it, through import aliases and getattr; else
    ''.
    """
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        base = dotted(node.value, aliases)
        return f"{base}.{node.attr}" if base else ""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        base, name = dotted(node.args[0], aliases), node.args[1]
        if base and isinstance(name, ast.Constant) and isinstance(name.value, str):
            return f"{base}.{name.value}"
    return ""


def import_aliases(tree: ast.AST) -> dict[str, str]:
    aliases = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                aliases[name.asname or name.name.partition(".")[0]] = (
                    name.name if name.asname else name.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for item in node.names:
                aliases[item.asname or item.name] = f"{node.module}.{item.name}"
    return aliases


def called_name(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def violations(text: str) -> list[str]:
    """Every use of a forbidden name in a source text, as ``line: what``."""
    tree = ast.parse(text)
    aliases = import_aliases(tree)
    items = set()
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or "", *(f"{node.module}.{name.name}" for name in node.names)]
        elif isinstance(node, (ast.Attribute, ast.Name)):
            names = [dotted(node, aliases)]
        elif isinstance(node, ast.Call):
            names = [dotted(node, aliases), *looked_up(node)]
        elif isinstance(node, ast.Subscript) and dotted(node.value, aliases) == "sys.modules":
            names = [c.value for c in ast.walk(node.slice) if isinstance(c, ast.Constant)]
        items |= {
            f"{node.lineno}: {name}"
            for name in names
            if isinstance(name, str) and is_forbidden(name)
        }
    return sorted(items)


def looked_up(call: ast.Call) -> list[str]:
    """The strings a call looks a module or attribute up by: import_module("..."),
    sys.modules.get("...").
    """
    strings = [
        a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)
    ]
    by_modules = (
        isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "sys.modules"
    )
    return strings if called_name(call) in LOOKUPS or by_modules else []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: "/".join(path.parts[-2:]))
def test_no_source_uses_torchs_compiler(path):
    """Group names such as ``torch_dynamo_backends`` (the bridge) are not modules, and so not
    meant.
    """
    assert violations(path.read_text()) == []


@pytest.mark.parametrize(
    "text",
    [
        "import torch._dynamo",
        "import torch._inductor.config as c",
        "from torch import _dynamo",
        "from torch._inductor import compile_fx",
        "import torch\ntorch.compile(f)",
        "import torch as t\nt._dynamo.reset()",
        "from torch import compile as c",
        "import torch\ng = torch.compile",
        "import torch\ngetattr(torch, '_dynamo').reset()",
        "import torch\ntorch._C._dynamo.eval_frame",
        "import importlib\nimportlib.import_module('torch._dynamo.utils')",
        "__import__('torch._inductor')",
        "import sys\nsys.modules['torch._dynamo'] = None",
        "import sys\nsys.modules.get('torch._dynamo.config')",
        "from tracer_core.plugin_api import resolve\nresolve('torch._inductor.compile_fx:compile_fx')",
    ],
)
def test_the_scan_finds_each_way_to_use_it(text):
    assert violations(text) != []


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch.compiler.is_compiling()",
        "GROUP = 'torch_dynamo_backends'",
        "'''As torch.compile does.'''",
        "getattr(t, '_dynamo_dynamic_indices', ())",
    ],
)
def test_the_scan_leaves_the_rest_alone(text):
    assert violations(text) == []


WITHOUT_TORCHS_COMPILER = """
import sys, torch
import torch._dynamo.convert_frame, torch._dynamo.eval_frame
import torch._inductor.compile_fx, torch._inductor.graph, torch._inductor.scheduler

def forbidden(*args, **kwargs):
    raise AssertionError("torch's own compiler was called")

torchs_own = torch.compile
torch.compile = forbidden
torch._dynamo.optimize = torch._dynamo.eval_frame.optimize = forbidden
for name in ("convert_frame", "convert_frame_assert"):
    setattr(torch._dynamo.convert_frame, name, forbidden)
torch._dynamo.convert_frame.ConvertFrame.__call__ = forbidden
torch._dynamo.convert_frame.ConvertFrameAssert.__call__ = forbidden
torch._inductor.compile_fx.compile_fx = torch._inductor.compile_fx.compile_fx_inner = forbidden
torch._inductor.graph.GraphLowering.__init__ = forbidden
torch._inductor.scheduler.Scheduler.__init__ = forbidden

try:
    torchs_own(lambda x: x + 1)(torch.ones(2))
except AssertionError as error:
    assert "torch's own compiler was called" in str(error)
else:
    raise SystemExit("the trap does not close: torch.compile still works")

from tests.support import torchvision_ops
torchvision_ops.define()
import torchvision, tracer_core

torch.manual_seed(0)
model = torchvision.models.resnet18().eval()
x = torch.randn(1, 3, 64, 64)
with torch.no_grad():
    fast = tracer_core.compile(model, backend=sys.argv[1], fullgraph=True)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-3, atol=1e-4)
print("done")
"""


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_resnet18_compiles_without_torchs_compiler(backend):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCHS_COMPILER, backend],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip().endswith("done")
