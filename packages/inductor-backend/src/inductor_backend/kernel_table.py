"""Describes the generated kernels of a graph: what each computes, in which blocks, and the bytes that
it must move. Logged under the category "kernels"; ``python -m benchmarks kernels`` reads the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from inductor_backend.codegen.wrapper import operator_row
from inductor_backend.ir.index_expr import product
from inductor_backend.ir.nodes import ExternNode
from tracer_core.plugin_api import row_label

if TYPE_CHECKING:
    from inductor_backend.compilation import Compilation
    from inductor_backend.ir.nodes import LoopNode


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
        if kernel is None or group.domain is None:
            continue
        name, _ = c.module.kernels[c.module.key(kernel)]
        origins = [origin for node in group.loops for origin in node.origins]
        loops = ", ".join(
            f"{c.sizes.hint(size)}{'*' if reduced else ''}"
            for size, reduced in zip(group.domain.sizes, group.domain.reduced, strict=True)
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
                f"[{loops}]",
                blocks,
                _nbytes(c, group.loops, kernel.pointers),
                c.module.text_of(kernel.text, name, ()),
                row_label(name, frames),
            )
        )
    return KernelTable(rows)


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
    buffers = [{"buffer": name, "offset": str(at)} for name, at in c.memory.offsets.items()]
    over = [{"buffer": name, "over": other} for name, other in c.memory.over.items()]
    return {
        "kernels": [asdict(row) for row in kernel_table(c).rows],
        "operators": operators,
        "memory": {"arena": str(c.memory.size), "buffers": [*buffers, *over]},
    }


def _nbytes(c: Compilation, loops: Sequence[LoopNode], pointers: Sequence[str]) -> int:
    """Returns the bytes of the storages; of a larger one an element for each point of the loops and
    each place that a point loads or stores."""
    points = max(c.sizes.hint(product(node.sizes)) for node in loops)
    places: dict[str, set[object]] = {}
    for node in loops:
        accessed = [(load.buffer, load.attr[1]) for load in node.loads()]
        accessed += [(name, store.index) for store in node.stores for name in store.buffers]
        for name, index in accessed:
            places.setdefault(c.program.buffers[name].storage, set()).add(index)
    buffers = [c.program.buffers[name] for name in pointers if name in c.program.buffers]
    return sum(
        min(c.sizes.hint(buffer.layout.numel), points * len(places.get(buffer.storage, "1")))
        * buffer.dtype.itemsize
        for buffer in buffers
    )
