"""Writes one fused body as one C++ function.

Sizes and strides are run-time arguments, so kernels that differ only in them have the same text and
are compiled once. A value is computed in the outermost loop that has all its variables. Rows are
shared among threads when there is enough work.
"""

from __future__ import annotations

from inductor_backend.codegen.common.loop_nest import walk
from inductor_backend.codegen.common.module import NAME
from inductor_backend.codegen.common.writer import CodeWriter
from inductor_backend.codegen.cpp import vectors
from inductor_backend.codegen.cpp.column_writer import ColumnWriter
from inductor_backend.codegen.cpp.expressions import C_TYPES, memory_type
from inductor_backend.codegen.cpp.row_writer import loop_values
from inductor_backend.codegen.cpp.tiling import ACROSS, ALONG, Tiling
from inductor_backend.ir.index_expr import product
from inductor_backend.ir.kernel_source import KernelSource
from inductor_backend.ir.values import Value, may_fail, topological
from inductor_backend.schedule.fused_body import Phase

#: Work (rough scalar instructions) from which a parallel region pays.
PARALLEL_WORK = 120_000

#: The same for vectorized loops, which are several times as fast. Threads are used from about 5 us
#: on (an addition of 68,000 elements); a parallel region takes 1 to 3.
VECTOR_WORK = 480_000


class KernelWriter(ColumnWriter):
    """Writes one kernel."""

    def write(self) -> KernelSource:
        """Returns the text of the kernel."""
        with self.out.indented():
            self._rows()
            if self.streamed:
                self.out.line("tc_stream_end();")
        parameters = self._parameters()
        names = [*self.pointers.values(), *(f"n{k}" for k in range(len(self.nest.sizes)))]
        names += [f"s{k}" for k in range(len(self.nest.sizes), len(self.arguments))]
        head = CodeWriter()
        # Where GCC puts constants in place of parameters, it forgets that a loop is `omp simd`: sums
        # of rows were 3 to 17 times slower.
        row = bool(self.nest.reduced) and self.nest.column is None
        kept = "noinline, noipa" if row else "noinline"
        width = "int64_t width, " if self.nest.column is not None else ""
        head.line(
            f"static __attribute__(({kept})) void {NAME}_range(int64_t begin, int64_t end,"
            f" {width}{parameters}) {{"
        )
        head.lines += self.out.lines
        head.line("}")
        self._dispatch(head, parameters, ", ".join(names))
        return KernelSource(
            head.text(), tuple(self.pointers), tuple(self.arguments), self.label,
            tuple(place for place, storage in enumerate(self.pointers) if storage in self.written),
            any(map(may_fail, topological(self.body.values()))), headers=frozenset(self.headers),
        )  # fmt: skip

    def _parameters(self) -> str:
        parts = []
        for storage, name in self.pointers.items():
            const = "" if storage in self.written else "const "
            parts.append(
                f"{const}{memory_type(self.program.buffers[storage].dtype)}* __restrict {name}"
            )
        parts += [f"int64_t n{k}" for k in range(len(self.nest.sizes))]
        parts += [f"int64_t s{k}" for k in range(len(self.nest.sizes), len(self.arguments))]
        return ", ".join(parts)

    def _dispatch(self, out: CodeWriter, parameters: str, names: str) -> None:
        """Writes the function that shares the range among threads."""
        sizes = " * ".join(f"n{k}" for k in range(len(self.nest.sizes))) or "1"
        column = self.nest.column
        most = max((PARALLEL_WORK if not self.in_vectors else VECTOR_WORK) // self._cost(), 1)
        with out.block(f"static void {NAME}({parameters})"):
            if column is not None:
                others = " * ".join(f"n{k}" for k in self.rows) or "1"
                out.line(
                    f"const int64_t width = tc_width(n{column} * {others}, n{column}, {sizes} >"
                    f" {most}, {self.widest});"
                )
                names = f"width, {names}"
            out.line(f"const int64_t total = {self._total()};")
            # Without any point, operands may be empty: nothing may be read.
            empty = f"{sizes} == 0" if self._is_pointwise() else "total == 0"
            out.line(
                f"if ({empty}) return;  // the first row would be divided out of a size that may"
                " be 0"
            )
            with out.block(f"if (total > 1 && {sizes} > {most} && tc_threads() > 1)"):
                out.line("const int64_t parts = tc_threads();")
                out.line("#pragma omp parallel for schedule(static) num_threads(parts)")
                with out.block("for (int64_t part = 0; part < parts; ++part)"):
                    out.line(
                        f"{NAME}_range(tc_part(total, part, parts), tc_part(total, part + 1,"
                        f" parts), {names});"
                    )
            with out.block("else"):
                out.line(f"{NAME}_range(0, total, {names});")

    def _tiles(self) -> str:
        return f"((n{self.nest.column} + width - 1) / width)"

    def _total(self) -> str:
        """Returns the number of rows, or of elements where there is only one row."""
        rows = [self._row_count(k) for k in self.rows]
        if self.nest.column is not None:
            rows.append(self._tiles())
        elif not rows and not self.nest.reduced:
            rows = [f"n{k}" for k in self.inner]
        return " * ".join(rows) or "1"

    def _rows(self) -> None:
        if not self.rows and not self.nest.reduced:
            self._phase(self.body.phases[0], {}, whole=False)
            return
        loops = self._counters()
        self._start_counters(loops)
        with self.out.block("for (int64_t row = begin; row < end; ++row)"):
            if self.nest.column is not None:
                self.out.line("const int64_t c0 = tile * width;")
                self.out.line(f"const int64_t lanes = tc_least(width, n{self.nest.column} - c0);")
            for number, dtype in enumerate(self.body.row_buffers.values()):
                self.out.line(f"alignas(64) {C_TYPES[dtype]} row_{number}[{self._row_capacity()}];")
            names: dict[Value, str] = {}
            for phase in self.body.phases:
                if self.tiling is not None:
                    self._tile(phase, self.tiling)
                elif self.nest.column is not None:
                    self._column_phase(phase, names)
                else:
                    self._phase(phase, names, whole=True)
            self._step_counters(loops)

    def _counters(self) -> list[tuple[str, str]]:
        """Returns (variable, size) of what the row number counts, outermost first."""
        loops = [(self._row_variable(loop), self._row_count(loop)) for loop in self.rows]
        if self.nest.column is not None:
            loops.append(("tile", self._tiles()))
        return loops

    def _row_count(self, loop: int) -> str:
        """Returns the iterations of a loop over rows: a tiled one counts tiles."""
        tiled = self.tiling is not None and loop == self.tiling.across
        return f"((n{loop} + {ACROSS - 1}) / {ACROSS})" if tiled else f"n{loop}"

    def _row_variable(self, loop: int) -> str:
        tiled = self.tiling is not None and loop == self.tiling.across
        return "tile" if tiled else self.variables[loop]

    def _start_counters(self, loops: list[tuple[str, str]]) -> None:
        """Computes the first row's variables by division; later rows increment them, because rows
        may be short."""
        for place, (variable, size) in enumerate(loops):
            after = [other for _, other in loops[place + 1 :]]
            text = "begin" if not after else f"begin / ({' * '.join(after)})"
            self.out.line(f"int64_t {variable} = {text}" + (f" % {size};" if place else ";"))

    def _step_counters(self, loops: list[tuple[str, str]]) -> None:
        if not loops:
            return
        text = f"++{loops[0][0]};"
        for variable, size in loops[1:]:
            text = f"if (++{variable} == {size}) {{ {variable} = 0; {text} }}"
        self.out.line(text)

    def _row_capacity(self) -> int:
        bound = self.sizes.upper(product(self.nest.sizes[k] for k in self.inner))
        assert bound is not None
        capacity = 16
        while capacity < bound:
            capacity *= 2
        return capacity

    # tiles ---------------------------------------------------------------------------------------

    def _tile(self, phase: Phase, tiles: Tiling) -> None:
        """Writes a loop over tiles of `ACROSS` rows by `ALONG` elements."""
        across, inner = tiles.across, self.inner[-1]
        row, along = self.variables[across], self.variables[inner]
        self.block_start = "b"
        self.out.line(f"const int64_t tile_start = tile * {ACROSS};")
        self.out.line(f"const int64_t tile_end = tc_least(tile_start + {ACROSS}, n{across});")
        for load, name in tiles.staged.items():
            self.out.line(f"alignas(64) {memory_type(load.attr[2])} {name}[{ACROSS * ALONG}];")
        with self.out.block(f"for (int64_t b = 0; b < n{inner}; b += {ALONG})"):
            self.out.line(f"const int64_t length = tc_least({ALONG}, n{inner} - b);")
            for count in (
                str(ACROSS),
                "tile_end - tile_start",
            ):  # the first with a constant number of rows
                with self.out.block(
                    f"if (tile_end - tile_start {'==' if count.isdigit() else '!='} {ACROSS})"
                ):
                    self._stage(tiles, count, row, along)
            with self.out.block(f"for (int64_t {row} = tile_start; {row} < tile_end; ++{row})"):
                values, names = loop_values(phase), dict[Value, str]()
                self.emit(values, 0, names)
                self._vector_loop(phase, values, [], names, inner, "b", "b + length", "length")

    def _stage(self, tiles: Tiling, count: str, row: str, along: str) -> None:
        """Reads the tile of each operand along its contiguous dimension."""
        transposed = [load for load in tiles.staged if count == str(ACROSS) and vectors.turns(load)]
        self.variables[tiles.across], self.variables[self.inner[-1]] = "tile_start", "b"
        if transposed:
            self.headers.add(vectors.HEADER)
        for load in transposed:
            flat = walk(self.program.buffers[load.buffer].layout.flat(load.attr[1]), self.nest)
            source = (
                f"{self.pointer(load.buffer)} + ({self.address(load.buffer, load.attr[1], {})})"
            )
            step = self.size(flat.coefficient(self.inner[-1]))
            self.out.line(f"tc_turn({tiles.staged[load]}, {ALONG}, {source}, {step}, length);")
        self.variables[tiles.across], self.variables[self.inner[-1]] = row, along
        others = [load for load in tiles.staged if load not in transposed]
        if not others:
            return
        columns = self.out.block(f"for (int64_t {along} = b; {along} < b + length; ++{along})")
        with columns, self.out.block(f"for (int64_t q = 0; q < {count}; ++q)"):
            self.variables[tiles.across] = "(tile_start + q)"
            for load in others:
                name = tiles.staged[load]
                source = (
                    f"{self.pointer(load.buffer)}[{self.address(load.buffer, load.attr[1], {})}]"
                )
                self.out.line(f"{name}[q * {ALONG} + {along} - b] = {source};")
            self.variables[tiles.across] = row
