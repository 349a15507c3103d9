"""Writes graphs as Python files that run alone: the debug folder, bug reports and `tracer_core.repro`.

In: graphs, and one input per placeholder or what ``meta["val"]`` holds. Out: a program that needs
torch and our packages. What always holds: inputs are described by shape, strides, dtype and device
(with `ranges` also by the least and the largest value), and only small constants are written out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.ops.higher_order.gradients import GRADIENT_CALLS

#: Defines `tensor`, which makes an input.
_HELPER = Path(__file__).with_name("graph_script.template")
#: Elements of the largest constant that is written out.
_WRITTEN = 256


@dataclass(frozen=True, slots=True)
class GraphCode:
    """One graph as the function `name`, and ``<name>_inputs``, which makes its inputs. imports: the
    lines that it needs. lost: what it names that exists in this process alone."""

    name: str
    imports: tuple[str, ...]
    source: str
    lost: tuple[str, ...]


def graph_code(
    gm: torch.fx.GraphModule, name: str, inputs: Sequence[Any] | None = None, ranges: bool = False
) -> GraphCode:
    """Returns a graph as code.

    inputs: one tensor (real or fake) or number per placeholder; None: ``meta["val"]``. ranges: the
    least and the largest value of real inputs are written, too.
    """
    name = re.sub(r"\W", "_", name)
    code = gm.graph.python_code(f"{name}_constants", verbose=True)
    nodes = gm.graph.find_nodes(op="placeholder")
    values = [node.meta.get("val") for node in nodes] if inputs is None else inputs
    used = {k: v for k, v in code.globals.items() if re.search(rf"\b{re.escape(k)}\b", code.src)}
    lines = {key: imported(key, value) for key, value in used.items()}
    lost = [f"{key} = {used[key]!r}" for key, line in lines.items() if line is None]
    if "torch.ops.tracer_core" in code.src:
        lines["tracer_core"] = "import tracer_core.dispatch.compile_graph"
    constants = {str(node.target) for node in gm.graph.find_nodes(op="get_attr")}
    owned = [f"    {target} = {_constant(getattr(gm, target))}" for target in sorted(constants)]
    pairs = zip(nodes, values, strict=False)
    source = [
        f"\nclass {name}_constants:",
        *(owned or ["    pass"]),
        re.sub(r"\bdef forward\(self,? ?", f"def {name}(", code.src, count=1),
        f"\ndef {name}_inputs():\n    return [",
        *(f"        {describe(value, ranges)},  # {node.name}" for node, value in pairs),
        "    ]\n",
    ]
    imports = tuple(line for line in lines.values() if line is not None)
    return GraphCode(name, imports, "\n".join(source), tuple(lost))


def script(codes: Sequence[GraphCode], comment: Iterable[str], main: Iterable[str]) -> str:
    """Returns the text of a program.

    comment: lines at its beginning. main: lines that follow the graphs.
    """
    lost = [item for code in codes for item in code.lost]
    parts = [
        *(f"# {line}".rstrip() for text in comment for line in text.splitlines()),
        *dict.fromkeys(["import torch", *(line for code in codes for line in code.imports)]),
        *(f"raise SystemExit({f'the graph names an object of its process: {item}'!r})" for item in lost),
        _HELPER.read_text("utf-8"),
        *(code.source for code in codes),
        *main,
    ]  # fmt: skip
    return "\n".join([*parts, ""])


def listing(graphs: Iterable[tuple[str, torch.fx.GraphModule]]) -> str:
    """Returns graphs as a file of the debug folder, which runs them on inputs that it makes and
    prints what their results are.

    Args:
        graphs: Pairs of a name and a graph whose placeholders have fakes in ``meta["val"]``.

    Returns:
        The text of a program.
    """
    graphs = list(graphs)
    codes = [graph_code(gm, name) for name, gm in graphs]
    # a lowered graph may write to leaves of autograd
    grad = any(node.target in GRADIENT_CALLS for _, gm in graphs for node in gm.graph.nodes)
    main = ['if __name__ == "__main__":', f"    torch.set_grad_enabled({grad})"]
    main += [f"    show({code.name!r}, {code.name}(*{code.name}_inputs()))" for code in codes]
    return script(
        codes, ["runs alone: makes random inputs (integers: 0), prints the results"], main
    )


def describe(value: Any, ranges: bool = False) -> str:
    """Returns an expression that makes an input like this one."""
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        size, stride = tuple(map(_hint, value.shape)), tuple(map(_hint, value.stride()))
        more = ", True" if value.requires_grad and value.is_leaf else ""
        if ranges and value.numel() and not value.is_complex() and torch.isfinite(value).all():
            wide = value.detach().double()
            more += f", low={float(wide.min())!r}, high={float(wide.max())!r}"
        return f"tensor({size}, {stride}, {value.dtype}, {str(value.device)!r}{more})"
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return repr(_hint(value))
    if isinstance(value, float):
        return f"float({str(value)!r})"
    return (
        repr(value) if isinstance(value, (int, complex)) else f"None  # a {type(value).__name__!r}"
    )


def _hint(value: Any) -> Any:
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        value = torch_private.hint_or_guess(value)
    return value if isinstance(value, float) else int(value)


def _constant(value: Any) -> str:
    """Returns an expression for a constant of a graph; of a large one, its layout."""
    real = isinstance(value, torch.Tensor) and not torch_private.is_fake(value)
    if not real or value.layout is not torch.strided or value.numel() > _WRITTEN:
        return describe(value)
    numbers = re.sub(r"\b(nan|inf)\b", r"float('\1')", repr(value.detach().cpu().tolist()))
    return f"torch.tensor({numbers}, dtype={value.dtype}, device={str(value.device)!r})"


def imported(name: str, value: Any) -> str | None:
    """Returns the line that gives a global of a graph's code its value; None where no line can."""
    if isinstance(value, float):
        return f"{name} = float({str(value)!r})"
    module, qualified = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if isinstance(value, type(torch)):
        return f"import {value.__name__} as {name}" if name != value.__name__ else f"import {name}"
    if value is type(None):
        return f"{name} = type(None)"
    if not module or module == "__main__" or not qualified or "<" in qualified:
        return None
    first, _, rest = qualified.partition(".")
    owner = f"{name}_owner" if rest else name
    return f"from {module} import {first} as {owner}" + (
        f"; {name} = {owner}.{rest}" if rest else ""
    )
