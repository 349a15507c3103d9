"""Prints programs, groups, kernel bodies and plans as text for stage dumps. The text names every
buffer, index and refused fusion, so that a dump can be read without the code that made it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inductor_backend.ir.index_expr import render
from inductor_backend.ir.nodes import ExternNode, LoopNode, LoopProgram, Node, Store
from inductor_backend.ir.values import Value, topological

if TYPE_CHECKING:
    from inductor_backend.kernels.selection import KernelChoice
    from inductor_backend.schedule.fused_body import KernelBody
    from inductor_backend.schedule.fusion import FusionPlan
    from inductor_backend.schedule.memory_plan import MemoryPlan


def _index(index: Sequence[Any]) -> str:
    return "[" + ", ".join(render(i) for i in index) + "]"


def statements(stores: Sequence[Store]) -> list[str]:
    """Prints a body as SSA, one statement a line."""
    names: dict[Value, str] = {}
    lines: list[str] = []
    for value in topological(value for store in stores for value in store.roots):
        names[value] = f"t{len(names)}"
        attr = value.attr
        if value.name in ("load", "masked_load"):
            attr = f"{value.buffer}{_index(value.attr[1])}"
        elif value.name == "constant":
            attr = value.attr[0]
        arguments = [names[arg] for arg in value.args] + ([str(attr)] if attr is not None else [])
        lines.append(
            f"{names[value]}: {str(value.dtype)[6:]} = {value.name}({', '.join(arguments)})"
        )
    for store in stores:
        kind = store.reduce or (store.scan and f"running {store.scan} of") or store.combine
        how = f"{kind} " if kind else ""
        lines.append(f"{', '.join(store.buffers)}{_index(store.index)} = {how}{names[store.value]}")
    return lines


def node(written: Node) -> str:
    where = f"  # {written.origin.op} {written.origin.user_frame}"
    if isinstance(written, ExternNode):
        kind = "fallback" if written.fallback else "extern"
        return (
            f"{written.name}: {kind} {written.target}({written.args}, {written.kwargs}) ->"
            f" {written.outputs}{where}"
        )
    assert isinstance(written, LoopNode)
    loops = ", ".join(
        f"{s}{'*' if r else ''}" for s, r in zip(written.sizes, written.reduced, strict=True)
    )
    return "\n    ".join([f"{written.name}: for [{loops}]{where}", *statements(written.stores)])


def program(p: LoopProgram) -> str:
    """Prints all buffers and nodes (a size followed by ``*`` is a reduction dimension)."""
    lines = [
        f"{b.name}: {b.kind.value} {b.dtype} {b.layout.sizes} strides {b.layout.strides}"
        for b in p.buffers.values()
    ]
    return "\n".join(
        [*lines, "", *(node(each) for each in p.nodes), "", f"outputs: {p.outputs}", ""]
    )


def inlined(p: LoopProgram, reasons: Sequence[tuple[str, str]]) -> str:
    return (
        program(p)
        + "\nnot inlined:\n"
        + "\n".join(f"  {name}: {why}" for name, why in reasons)
        + "\n"
    )


def plan(p: FusionPlan) -> str:
    """Prints the groups in order, then every refused fusion with its reason."""
    lines = []
    for number, group in enumerate(p.groups):
        members = ", ".join(f"{n.name} ({n.origin.op})" for n in group.nodes)
        lines.append(f"group {number} {'extern' if group.extern else group.domain}: {members}")
    lines += ["", "refused:"] + [
        f"  {node} into the group of {first}: {why}" for node, first, why in p.reasons
    ]
    return "\n".join(lines) + "\n"


def externs(p: LoopProgram, choices: Mapping[str, KernelChoice]) -> str:
    """Prints which kernel each operator call uses, and why."""
    lines = []
    for extern in p.nodes:
        if isinstance(extern, ExternNode):
            choice = choices[extern.name]
            lines.append(
                f"{extern.name}: {extern.target} -> {choice.kind.text} ({choice.reason}) epilogue {extern.epilogue}"
            )
    return "\n".join(lines) + "\n"


def bodies(items: Sequence[KernelBody | None]) -> str:
    lines: list[str] = []
    for number, body in enumerate(items):
        if body is None:
            continue
        lines.append(
            f"kernel of group {number}: {body.domain} registers {list(body.registers)} rows"
            f" {list(body.row_buffers)}"
        )
        for count, phase in enumerate(body.phases):
            lines.append(f"  phase {count}")
            for title, stores in (("row", phase.row), ("loop", phase.loop)):
                lines += [f"    {title}: {line}" for line in statements(stores)]
    return "\n".join(lines) + "\n"


def memory(m: MemoryPlan) -> str:
    lines = [f"{name}: offset {offset}" for name, offset in m.offsets.items()]
    return "\n".join([f"arena of {m.size} bytes", *lines, f"drop after: {m.drop_after}", ""])
