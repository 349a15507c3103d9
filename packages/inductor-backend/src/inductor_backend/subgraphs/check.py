"""Verifies that subgraph replication yields the program that lowering the whole graph yields, up to
buffer names. It costs the time that replication saves, so it runs only under TRACER_CHECK.
"""

from __future__ import annotations

from collections.abc import Sequence

from inductor_backend.ir.kernel_source import KernelSource
from inductor_backend.ir.nodes import BufferKind, LoopProgram, Strided
from inductor_backend.schedule.fusion import FusionPlan
from inductor_backend.subgraphs.replication import form
from tracer_core.plugin_api import VerifyError

#: A program, its plan, and its kernels (one a group).
Made = tuple[LoopProgram, FusionPlan, Sequence[KernelSource | None]]


def same_plans(small: Made, full: Made) -> None:
    """Raises VerifyError unless two programs make the same calls in the same order on the same
    inputs, up to a one-to-one renaming of buffers.
    """
    pairs: dict[str, str] = {}
    back: dict[str, str] = {}

    def pair(a: str, b: str) -> None:
        fixed = small[0].buffers[a].kind is BufferKind.INPUT and a not in small[0].constants
        if (
            pairs.setdefault(a, b) != b
            or (a not in small[0].constants and back.setdefault(b, a) != a)
            or (fixed and a != b)
        ):
            raise VerifyError(f"repeated regions: {a} stands for {b} and {pairs[a]}")
        if small[0].buffers[a].layout != full[0].buffers[b].layout:
            raise VerifyError(f"repeated regions: {a} and {b} have different layouts")

    if len(small[1].groups) != len(full[1].groups):
        raise VerifyError(
            f"repeated regions: {len(small[1].groups)} groups instead of {len(full[1].groups)}"
        )
    for mine, theirs, kernel, wanted in zip(
        small[1].groups, full[1].groups, small[2], full[2], strict=True
    ):
        if kernel is not None and wanted is not None:
            if form(kernel) != form(wanted):
                raise VerifyError(
                    f"repeated regions: kernel {kernel.label} in place of {wanted.label}"
                )
            names = zip(kernel.pointers, wanted.pointers, strict=True)
        else:
            a, b = mine.extern, theirs.extern
            if (
                a is None
                or b is None
                or (a.target, a.epilogue, a.last_epilogue)
                != (b.target, b.epilogue, b.last_epilogue)
            ):
                raise VerifyError(f"repeated regions: {a} in place of {b}")
            tensors = zip(a.tensors(), b.tensors(), strict=True)
            names = zip([*a.writes], [*b.writes], strict=True)
            for left, right in tensors:
                if left.layout != right.layout:
                    raise VerifyError(f"repeated regions: {left} in place of {right}")
                pair(left.buffer, right.buffer)
        for left_name, right_name in names:
            pair(left_name, right_name)
    for mine_out, their_out in zip(small[0].outputs, full[0].outputs, strict=True):
        if type(mine_out) is not type(their_out):
            raise VerifyError(f"repeated regions: output {mine_out} in place of {their_out}")
        if isinstance(mine_out, Strided) and isinstance(their_out, Strided):
            if mine_out.layout != their_out.layout:
                raise VerifyError(f"repeated regions: output {mine_out} in place of {their_out}")
            pair(mine_out.buffer, their_out.buffer)
        elif isinstance(mine_out, str) and isinstance(their_out, str):
            pair(mine_out, their_out)
