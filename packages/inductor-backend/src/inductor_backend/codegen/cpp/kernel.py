"""Writes one fused body as one C++ function.

Sizes and strides are run-time arguments, so kernels that differ only in them have the same text and
are compiled once. A value is computed in the outermost loop that has all its variables. Rows are
shared among threads when there is enough work.
"""

from __future__ import annotations

from inductor_backend.codegen.common.loop_nest import LoopNest
from inductor_backend.codegen.common.module import NAME, kernel_label
from inductor_backend.codegen.common.writer import CodeWriter
from inductor_backend.codegen.cpp.addressing import LoopAddressing
from inductor_backend.codegen.cpp.column_writer import ColumnWriter
from inductor_backend.codegen.cpp.element_writer import ElementWriter
from inductor_backend.codegen.cpp.expressions import C_TYPES, memory_type
from inductor_backend.codegen.cpp.row_writer import RowWriter
from inductor_backend.codegen.cpp.tile_writer import TileWriter
from inductor_backend.codegen.cpp.tiling import ACROSS
from inductor_backend.ir.index_expr import product
from inductor_backend.ir.kernel_source import KernelSource
from inductor_backend.ir.nodes import LoopProgram
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.values import Value, may_fail, topological
from inductor_backend.schedule.fused_body import KernelBody

#: Work (rough scalar instructions) from which a parallel region pays.
PARALLEL_WORK = 120_000

#: The same for vectorized loops, which are several times as fast. Threads are used from about 5 us
#: on (an addition of 68,000 elements); a parallel region takes 1 to 3.
VECTOR_WORK = 480_000


class KernelWriter:
    """Writes one kernel: the function around its rows, columns or tiles."""

    def __init__(
        self, program: LoopProgram, body: KernelBody, nest: LoopNest, sizes: SizeVars
    ) -> None:
        self.program, self.body, self.nest, self.sizes = program, body, nest, sizes
        self.loops = LoopAddressing(program, nest, sizes)
        self.elements = ElementWriter(body, self.loops)
        self.rows, self.columns = RowWriter(self.elements), ColumnWriter(self.elements)
        self.tiling, self.out = self.elements.tiling, self.elements.out

    def write(self) -> KernelSource:
        """Returns the text of the kernel."""
        with self.out.indented():
            self._rows()
            if self.elements.streamed:
                self.out.line("tc_stream_end();")
        count, pointers = len(self.nest.sizes), self.loops.pointers
        sizes = [f"{'n' if k < count else 's'}{k}" for k in range(len(self.loops.arguments))]
        written = {self.program.buffers[name].storage for name in self.body.writes}
        types = [
            f"{'' if storage in written else 'const '}"
            f"{memory_type(self.program.buffers[storage].dtype)}* __restrict {name}"
            for storage, name in pointers.items()
        ]
        parameters = ", ".join([*types, *(f"int64_t {name}" for name in sizes)])
        head = CodeWriter()
        # Where GCC puts constants in place of parameters, it forgets that a loop is `omp simd`: sums
        # of rows were 3 to 17 times slower.
        attributes = "noinline, noipa" if self.nest.reduced else "noinline"
        width = "int64_t width, " if self.nest.column is not None else ""
        if self.columns.shared is not None:
            width += "int64_t stage, int64_t part, int64_t parts, double* partial, "
        head.line(
            f"static __attribute__(({attributes})) void {NAME}_range(int64_t begin, int64_t end,"
            f" {width}{parameters}) {{"
        )
        head.lines += self.out.lines
        head.line("}")
        self._dispatch(head, parameters, ", ".join([*pointers.values(), *sizes]))
        return KernelSource(
            head.text(), tuple(pointers), tuple(self.loops.arguments),
            kernel_label(self.body.origins),
            tuple(place for place, storage in enumerate(pointers) if storage in written),
            any(map(may_fail, topological(self.body.values()))),
            headers=frozenset(self.elements.headers),
        )  # fmt: skip

    def _dispatch(self, out: CodeWriter, parameters: str, names: str) -> None:
        """Writes the function that shares the range among threads."""
        sizes = " * ".join(f"n{k}" for k in range(len(self.nest.sizes))) or "1"
        column = self.nest.column
        work = VECTOR_WORK if self.rows.in_vectors else PARALLEL_WORK
        most = max(work // self.body.cost, 1)
        with out.block(f"static void {NAME}({parameters})"):
            if column is not None:
                others = " * ".join(f"n{k}" for k in self.loops.rows) or "1"
                out.line(
                    f"const int64_t width = tc_width(n{column} * {others}, n{column}, {sizes} >"
                    f" {most}, {self.columns.widest});"
                )
                operands = names
                one_part = ", -1, 0, 1, nullptr" if self.columns.shared is not None else ""
                names = f"width{one_part}, {operands}"
            out.line(f"const int64_t total = {self._total()};")
            # Without any point, operands may be empty: nothing may be read.
            empty = f"{sizes} == 0" if self.body.is_pointwise else "total == 0"
            out.line(
                f"if ({empty}) return;  // the first row would be divided out of a size that may"
                " be 0"
            )
            if self.columns.shared is not None:
                many = f"{sizes} > {4 * max(VECTOR_WORK // self.body.cost, 1)}"
                self._share_rows(out, many, operands)
            several = "tc_threads() > 1"
            if self.rows.in_parts:  # each row is shared where threads would have unequally many
                several += " && (total >= 4 * tc_threads() || total % tc_threads() == 0)"
            with out.block(f"if (total > 1 && {sizes} > {most} && {several})"):
                out.line("const int64_t parts = tc_threads();")
                out.line("#pragma omp parallel for schedule(static) num_threads(parts)")
                with out.block("for (int64_t part = 0; part < parts; ++part)"):
                    out.line(
                        f"{NAME}_range(tc_part(total, part, parts), tc_part(total, part + 1,"
                        f" parts), {names});"
                    )
            with out.block("else"):
                out.line(f"{NAME}_range(0, total, {names});")

    def _share_rows(self, out: CodeWriter, many: str, operands: str) -> None:
        """Writes the stages in which threads share the rows of few columns."""
        column, phases = self.nest.column, self.body.phases
        others = " * ".join(f"n{k}" for k in self.loops.rows) or "1"
        cells = f"n{column} * {others}"
        out.line(
            f"const int64_t rows_parts = tc_row_parts({cells}, n{self.columns.shared}, {many});"
        )
        with out.block("if (rows_parts > 1)"):
            widest = self.columns.widest
            out.line(f"const int64_t width = tc_least({widest}, (n{column} + 63) / 64 * 64);")
            out.line(f"const int64_t total = {self._total()}, parts = rows_parts;")
            count = self.columns.arrays
            out.line(
                f"double* const partial = (double*)__builtin_malloc({count} * parts * total * width * 8);"
            )
            with out.block("if (partial)"):
                for number, phase in enumerate(phases):
                    part = "part" if phase.loop else "0"
                    stage = f"width, {number}, {part}, parts, partial, {operands}"
                    head = "#pragma omp parallel for schedule(static) num_threads(parts)"
                    if phase.loop:
                        out.line(head)
                        with out.block("for (int64_t part = 0; part < parts; ++part)"):
                            out.line(f"{NAME}_range(0, total, {stage});")
                    else:
                        out.line(f"{head} if (total > 1 && total * width * parts > 32768)")
                        with out.block("for (int64_t tile = 0; tile < total; ++tile)"):
                            out.line(f"{NAME}_range(tile, tile + 1, {stage});")
                out.line("__builtin_free(partial);")
                out.line("return;")

    def _tiles(self) -> str:
        return f"((n{self.nest.column} + width - 1) / width)"

    def _total(self) -> str:
        """Returns the number of rows, or of elements where there is only one row."""
        rows = [self._row_count(k) for k in self.loops.rows]
        if self.nest.column is not None:
            rows.append(self._tiles())
        elif not rows and not self.nest.reduced:
            rows = [f"n{k}" for k in self.loops.inner]
        return " * ".join(rows) or "1"

    def _rows(self) -> None:
        if not self.loops.rows and not self.nest.reduced:
            self.rows.write(self.body.phases[0], {}, chunk=True)
            return
        loops = self._counters()
        self._start_counters(loops)
        shared = self.columns.shared is not None
        if shared:
            size = f"n{self.columns.shared}"
            self.out.line(f"const int64_t total = {self._total()};")
            self.out.line(f"const int64_t first = tc_cut({size}, part, parts);")
            self.out.line(f"const int64_t last = tc_cut({size}, part + 1, parts);")
        with self.out.block("for (int64_t row = begin; row < end; ++row)"):
            if shared:
                self.out.line("do {  // a stage")
            if self.nest.column is not None:
                self.out.line("const int64_t c0 = tile * width;")
                self.out.line(f"const int64_t lanes = tc_least(width, n{self.nest.column} - c0);")
            for buffer, name in self.elements.row_buffers.items():
                kind = C_TYPES[self.body.row_buffers[buffer]]
                self.out.line(f"alignas(64) {kind} {name}[{self._row_capacity()}];")
            names: dict[Value, str] = {}
            for number, phase in enumerate(self.body.phases):
                if self.tiling is not None:
                    TileWriter(self.rows, self.tiling).write(phase)
                elif self.nest.column is not None:
                    self.columns.write(phase, names, number)
                else:
                    self.rows.write(phase, names, chunk=False)
            if shared:
                self.out.line("} while (false);")
            self._step_counters(loops)

    def _counters(self) -> list[tuple[str, str]]:
        """Returns (variable, size) of what the row number counts, outermost first."""
        loops = [(self._row_variable(loop), self._row_count(loop)) for loop in self.loops.rows]
        if self.nest.column is not None:
            loops.append(("tile", self._tiles()))
        return loops

    def _row_count(self, loop: int) -> str:
        """Returns the iterations of a loop over rows: a tiled one counts tiles."""
        tiled = self.tiling is not None and loop == self.tiling.across
        return f"((n{loop} + {ACROSS - 1}) / {ACROSS})" if tiled else f"n{loop}"

    def _row_variable(self, loop: int) -> str:
        tiled = self.tiling is not None and loop == self.tiling.across
        return "tile" if tiled else self.loops.variables[loop]

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
        bound = self.sizes.upper(product(self.nest.sizes[k] for k in self.loops.inner))
        assert bound is not None
        capacity = 16
        while capacity < bound:
            capacity *= 2
        return capacity
