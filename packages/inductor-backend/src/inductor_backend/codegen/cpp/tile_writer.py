"""Writes a tiled pointwise C++ kernel: loops over tiles whose operands are staged, see `tiling`."""

from __future__ import annotations

from inductor_backend.codegen.cpp import vectors
from inductor_backend.codegen.cpp.expressions import memory_type
from inductor_backend.codegen.cpp.phase_loop import Bounds, PhaseLoop, loop_values
from inductor_backend.codegen.cpp.reducers import Reducer
from inductor_backend.codegen.cpp.row_writer import RowWriter
from inductor_backend.codegen.cpp.tiling import ACROSS, ALONG, Tiling
from inductor_backend.ir.values import Value
from inductor_backend.schedule.fused_body import Phase


class TileWriter:
    """Writes the loops over tiles, around the rows that `rows` writes."""

    def __init__(self, rows: RowWriter, tiling: Tiling) -> None:
        self.rows, self.elements, self.loops, self.out = rows, rows.elements, rows.loops, rows.out
        self.tiling = tiling

    def write(self, phase: Phase) -> None:
        """Writes a loop over tiles of `ACROSS` rows by `ALONG` elements."""
        across, inner, line = self.tiling.across, self.loops.innermost, self.out.line
        row = self.loops.variables[across]
        self.elements.block_start = "b"
        line(f"const int64_t tile_start = tile * {ACROSS};")
        line(f"const int64_t tile_end = tc_least(tile_start + {ACROSS}, n{across});")
        for load, name in self.tiling.staged.items():
            line(f"alignas(64) {memory_type(load.attr[2])} {name}[{ACROSS * ALONG}];")
        with self.out.block(f"for (int64_t b = 0; b < n{inner}; b += {ALONG})"):
            line(f"const int64_t length = tc_least({ALONG}, n{inner} - b);")
            # the first with a constant number of rows
            for sign, count in (("==", str(ACROSS)), ("!=", "tile_end - tile_start")):
                with self.out.block(f"if (tile_end - tile_start {sign} {ACROSS})"):
                    self._stage(count)
            with self.out.block(f"for (int64_t {row} = tile_start; {row} < tile_end; ++{row})"):
                names: dict[Value, str] = {}
                work: PhaseLoop[Reducer] = PhaseLoop(phase, loop_values(phase), [], [])
                self.elements.emit(work.values, 0, names)
                self.rows.innermost(work, names, Bounds("b", "b + length", "length"))

    def _stage(self, count: str) -> None:
        """Reads the tile of each operand along its contiguous dimension. count: rows of the tile."""
        loops, line, across, inner = (
            self.loops,
            self.out.line,
            self.tiling.across,
            self.loops.innermost,
        )
        along, in_full = loops.variables[inner], count == str(ACROSS)
        staged = self.tiling.staged
        transposed = [load for load in staged if in_full and vectors.transposes(load)]
        if transposed:
            self.elements.headers.add(vectors.HEADER)
        for load in transposed:
            buffer, index, _ = load.attr
            with loops.renamed(across, "tile_start"), loops.renamed(inner, "b"):
                source = f"{loops.pointer(buffer)} + ({loops.address(buffer, index, {})})"
            stride = loops.size(loops.flat(buffer, index).coefficient(inner))
            line(f"tc_turn({staged[load]}, {ALONG}, {source}, {stride}, length);")
        others = [load for load in staged if load not in transposed]
        if not others:
            return
        columns = self.out.block(f"for (int64_t {along} = b; {along} < b + length; ++{along})")
        rows = self.out.block(f"for (int64_t q = 0; q < {count}; ++q)")
        with columns, rows, loops.renamed(across, "(tile_start + q)"):
            for load in others:
                buffer, index, _ = load.attr
                source = loops.element(buffer, index, {})
                line(f"{staged[load]}[q * {ALONG} + {along} - b] = {source};")
