"""Writes the innermost loop of a column kernel in explicit vectors, a few rows at a time.

What the columns add up stays in float for these rows, because a sum in double costs two conversions,
loads and stores for each vector. Operands and results that are contiguous along the row, not along the
columns, are transposed for these rows, so that memory is read and written in whole cache lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from inductor_backend.codegen.cpp import vectors
from inductor_backend.codegen.cpp.element_writer import ElementWriter
from inductor_backend.codegen.cpp.phase_loop import Bounds, PhaseLoop
from inductor_backend.codegen.cpp.reducers import ColumnReducer
from inductor_backend.ir.index_expr import Index, Var
from inductor_backend.ir.nodes import Store
from inductor_backend.ir.values import Value

#: Rows whose elements explicit vectors add up in float before they are added to a double, and transpose
#: at a time.
PART_ROWS = 16

Names = dict[Value, str]


class ColumnVectors:
    """One such loop, from where its variable is to `stop`. widest: the most columns of a tile."""

    def __init__(
        self, elements: ElementWriter, work: PhaseLoop[ColumnReducer], widest: int, stop: str
    ) -> None:
        self.elements, self.loops, self.out = elements, elements.loops, elements.out
        self.widest, self.stop = widest, stop
        self.work = replace(work, transposed=self._transposed(work))

    def write(
        self,
        names: Names,
        position: str,
        without_vectors: Callable[[int, PhaseLoop[ColumnReducer], Names, str], None],
    ) -> bool:
        """Returns whether it wrote the loop: not where vectors do not fit. position: the number of
        elements before the current one. without_vectors: writes the loop without vectors."""
        elements, out, work = self.elements, self.out, self.work
        depth, variable = len(self.loops.inner), self.loops.variables[self.loops.innermost]
        known = names | dict.fromkeys((v for v in work.values if elements.level(v) <= depth), "")
        outside = {value: text for value, text in known.items() if value not in work.held}
        if not vectors.fits(elements, work, outside):
            return False
        names = {value: text for value, text in names.items() if value not in work.held}
        reducers = [reducer for _, reducer in work.reducers]
        parts = [part for reducer in reducers for part in reducer.parts]
        for part in parts:
            out.line(f"alignas(64) float {part}[{self.widest}];")
        self._arrays()
        with out.block(f"while ({variable} < {self.stop})"):
            for part in parts:
                out.line(f"memset({part}, 0, lanes * sizeof(float));")
            several = parts or work.transposed
            until = f"tc_least({variable} + {PART_ROWS}, {self.stop})" if several else self.stop
            out.line(f"const int64_t low = {variable}, until = {until};")
            self._turn_in()
            with out.block(f"for (; {variable} < until; ++{variable})"):
                out.line(f"const bool begins = {variable} == low;")
                scope = dict(names)
                elements.emit(work.values, depth, scope)
                vectors.write(elements, work, scope, Bounds("c0", "(c0 + lanes)", "lanes"))
            self._turn_out()
            squares = [reducer.parts[-1] for reducer in reducers if len(reducer.parts) > 1]
            if squares:  # of what is not finite, too
                (overflown,) = squares
                out.line("bool finite = true;")
                out.line("for (int64_t l = 0; l < lanes; ++l)")
                out.line(f"    finite &= {overflown}[l] < TC_INF_F;")
                with out.block("if (!finite)"):
                    out.line(f"{variable} = low;")
                    again = {value: f"{array}[l]" for value, array in work.held.items()}
                    without_vectors(depth, replace(work, transposed={}), names | again, "until")
                    out.line("continue;")
            for reducer in reducers:
                self._add(reducer, position)
        return True

    def _add(self, reducer: ColumnReducer, position: str) -> None:
        """Adds what a few rows amount to."""
        out = self.out
        if not reducer.add:
            return
        with out.block(""):
            if len(reducer.parts) > 1:
                out.line("const double count = (double)(until - low);")
                out.line(f"const double before = (double)({position}) - count;")
                out.line("const double share = count / (before + count);")
            out.line("#pragma omp simd")
            out.line(f"for (int64_t l = 0; l < lanes; ++l) {{ {reducer.add} }}")

    # ---- what crosses the columns

    def _transposed(self, work: PhaseLoop[ColumnReducer]) -> dict[Value | str, str]:
        """Returns the loads and stores that are contiguous along the innermost loop, not along the
        columns."""
        elements, loops = self.elements, self.loops
        buffers, body = elements.program.buffers, elements.body
        read, written = (
            {buffers[name].storage for name in names} for names in (body.reads(), body.writes)
        )
        crossing: list[Value | str] = []
        for value in work.values:
            memory = value.name == "load" and value.buffer in buffers
            if memory and value.buffer not in body.registers and self._crosses(value):
                if buffers[value.buffer].storage not in written:
                    crossing.append(value)
        for store in work.phase.stores:
            (name,) = store.buffers
            if store.is_assignment and name not in body.row_buffers and self._crosses(store):
                if buffers[name].storage not in read:
                    crossing.append(name)
        row = f"({loops.variables[loops.innermost]} - low) * {self.widest}"
        return {key: f"u{number} + {row}" for number, key in enumerate(crossing)}

    def _crosses(self, access: Value | Store) -> bool:
        loops, hint, (buffer, index) = self.loops, self.loops.sizes.hint, _place(access)
        flat = loops.flat(buffer, index)
        if self.elements.program.buffers[buffer].dtype not in vectors.MEMORY:
            return False
        if not all(isinstance(atom, Var) for atom in flat.terms):
            return False
        several = hint(loops.nest.sizes[loops.innermost]) >= PART_ROWS
        far = abs(hint(flat.coefficient(loops.vector))) >= PART_ROWS
        return several and far and flat.coefficient(loops.innermost) == 1

    def _arrays(self) -> None:
        for number in range(len(self.work.transposed)):
            self.out.line(f"alignas(64) float u{number}[{PART_ROWS * self.widest}];")

    def _turn_in(self) -> None:
        for number, key in enumerate(self.work.transposed):
            if isinstance(key, Value):
                self._turn("in", number, key)

    def _turn_out(self) -> None:
        stores = {store.buffers[0]: store for store in self.work.phase.stores}
        for number, key in enumerate(self.work.transposed):
            if isinstance(key, str):
                self._turn("out", number, stores[key])

    def _turn(self, way: str, number: int, access: Value | Store) -> None:
        loops, (buffer, index) = self.loops, _place(access)
        with loops.renamed(loops.innermost, "low"), loops.renamed(loops.vector, "c0"):
            place = f"{loops.pointer(buffer)} + ({loops.address(buffer, index, {})})"
        step = loops.size(loops.flat(buffer, index).coefficient(loops.vector))
        self.elements.headers.add(vectors.HEADER)
        self.out.line(
            f"tc_turn_{way}<{self.widest}>({place}, {step}, u{number}, lanes, until - low);"
        )


def _place(access: Value | Store) -> tuple[str, Sequence[Index]]:
    if isinstance(access, Value):
        return access.attr[0], access.attr[1]
    return access.buffers[0], access.index
