"""Describes the generated kernels of a graph: what each computes, in which blocks, and the bytes that
it must move. Logged under the category "kernels"; ``python -m benchmarks kernels`` reads the rows.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from inductor_backend.codegen.wrapper import operator_row
from inductor_backend.ir.index_expr import CACHED_ANSWERS, Expr
from inductor_backend.ir.nodes import ExternNode
from inductor_backend.schedule.fusion_heuristics import touched_bytes
from tracer_core.plugin_api import row_label

if TYPE_CHECKING:
    from inductor_backend.compilation import Compilation
    from inductor_backend.schedule.fusion_legality import Domain


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One launch of a generated kernel, at the captured sizes."""

    #: The kernel's name, as a profiler prints it.
    name: str
    #: The short names of the operators that it computes.
    operators: tuple[str, ...]
    #: The user's lines.
    frames: tuple[str, ...]
    #: The loops, a reduced one followed by ``*``.
    loops: str
    #: Block sizes and warps; empty for C++.
    blocks: Mapping[str, int]
    #: Bytes of the buffers that it touches, each counted once, at most an element for each point of
    #: the loops and place that a point loads or stores.
    nbytes: int
    #: Its code.
    code: str = ""
    #: Its name in a profile, with the lines.
    row: str = ""

    def __str__(self) -> str:
        blocks = " ".join(f"{name}={size}" for name, size in self.blocks.items())
        return f"{self.name}: {self.loops} {blocks} {self.nbytes / 1e6:.3f} MB  {'; '.join(self.frames)}"


class KernelTable:
    """The rows of a graph, in launch order; a line each as text."""

    def __init__(self, rows: Sequence[KernelRow]) -> None:
        self.rows = tuple(rows)

    def __str__(self) -> str:
        return "\n".join(map(str, self.rows))


def kernel_table(c: Compilation) -> KernelTable:
    """Returns the table of a compilation whose module is written."""
    assert c.module is not None
    rows = []
    for group, kernel in zip(c.plan.groups, c.kernels, strict=True):
        if kernel is None or not group.loops:
            continue
        name, _ = c.module.kernels[c.module.key(kernel)]
        origins = [origin for node in group.loops for origin in node.origins]
        loops = " + ".join(
            f"[{_loops(c, part.domain)}]" for part in group.parts or [group] if part.domain
        )
        blocks = dict(getattr(kernel, "constants", ()))
        if blocks:
            blocks["warps"] = kernel.warps  # type: ignore[attr-defined]
        frames = tuple(dict.fromkeys(o.user_frame for o in origins if o.user_frame))
        rows.append(
            KernelRow(
                name,
                tuple(dict.fromkeys(origin.op for origin in origins)),
                frames,
                loops,
                blocks,
                getattr(kernel, "nbytes", 0)
                or touched_bytes(c.program, c.sizes, group.loops, kernel.pointers),
                c.module.text_of(kernel.text, name, ()),
                row_label(name, frames),
            )
        )
    return KernelTable(rows)


def _loops(c: Compilation, domain: Domain) -> str:
    return ", ".join(
        f"{c.sizes.hint(size)}{'*' if reduced else ''}"
        for size, reduced in zip(domain.sizes, domain.reduced, strict=True)
    )


def _sum_text(offset: Expr) -> str:
    """Prints an offset, a sum that has one term more for each buffer before it."""
    terms = offset.args if getattr(offset, "is_Add", False) else (offset,)  # type: ignore[union-attr]
    return " + ".join(map(_term_text, terms))


@functools.lru_cache(CACHED_ANSWERS)
def _term_text(term: Any) -> str:
    return str(term)


def report_data(c: Compilation) -> dict[str, Any]:
    """Returns what a report shows of a compilation whose module is written: its kernels, the calls
    of operators with the reason for each choice, and the memory plan."""
    operators = [
        {
            "operator": str(node.target),
            "frames": [node.origin.user_frame] if node.origin.user_frame else [],
            "kernel": c.choices[node.name].kind.text,
            "reason": c.choices[node.name].reason,
            "is_aten": not c.choices[node.name].kind.is_native,
            "row": operator_row(c.program, node, c.choices[node.name]),
        }
        for node in c.program.nodes
        if isinstance(node, ExternNode)
    ]
    offsets = c.memory.offsets.items()
    buffers = [{"buffer": name, "offset": _sum_text(at)} for name, at in offsets]
    over = [{"buffer": name, "over": other} for name, other in c.memory.over.items()]
    return {
        "kernels": [asdict(row) for row in kernel_table(c).rows],
        "operators": operators,
        "memory": {"arena": _sum_text(c.memory.size), "buffers": [*buffers, *over]},
    }
