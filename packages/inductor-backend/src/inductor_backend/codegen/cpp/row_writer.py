"""Writes a phase of a C++ kernel as a loop over each row's contiguous elements.

The loop uses explicit vectors where `vectors.fits` allows, else the compiler vectorizes it. A
phase's reductions are named values afterwards. Few long rows are split into a fixed number of chunks
that are merged in order, so that results do not depend on the number of threads.
"""

from __future__ import annotations

from inductor_backend.codegen.cpp import vectors
from inductor_backend.codegen.cpp.element_writer import ElementWriter
from inductor_backend.codegen.cpp.expressions import C_TYPES, memory_type
from inductor_backend.codegen.cpp.phase_loop import Bounds, PhaseLoop, loop_values, row_values
from inductor_backend.codegen.cpp.reducers import BLOCK, Reducer, reducer_of
from inductor_backend.ir.index_expr import product
from inductor_backend.ir.nodes import Store
from inductor_backend.ir.values import Value
from inductor_backend.schedule.fused_body import Phase

#: Least elements of a row that is shared among threads, and the number of its chunks: with as many rows
#: each thread has its own.
LONG_ROW = 131_072
ROW_PARTS = 16


class RowWriter:
    """Writes the loops of a kernel whose rows are contiguous, around what `elements` writes."""

    def __init__(self, elements: ElementWriter) -> None:
        self.elements, self.loops, self.out = elements, elements.loops, elements.out
        #: Whether one of the loops is written in explicit vectors.
        self.in_vectors = False
        #: Whether a row is shared among threads.
        self.in_parts = False

    def write(self, phase: Phase, names: dict[Value, str], chunk: bool) -> None:
        """Writes the row's own stores, then the loop over the row. chunk: the loop covers one
        thread's elements, from begin to end."""
        elements, values = self.elements, loop_values(phase)
        # A pointwise kernel of nothing has already returned.
        empty = "" if elements.body.is_pointwise else self.loops.empty_row()
        # An operand without elements must not be read.
        elements.emit([*row_values(phase), *([] if empty else values)], 0, names)
        for store in phase.row:
            elements.store(store, names)
        if not phase.loop:
            return
        reducers = [self._reducer(store) for store in phase.reductions]
        self._start(reducers)
        scanners = elements.declare_scans(phase, "{type} {name} = {start};")
        work = PhaseLoop(phase, values, reducers, scanners)
        with self.out.unless(empty):
            scope = dict(names)
            elements.emit(values, 0, scope)
            if self._is_long(work):
                self._in_parts(work, scope)
            else:
                shared = self.loops.inner[-1:] if chunk else []
                self._nest(1, work, scope, dict.fromkeys(shared, ("begin", "end")))
        for store, reducer in reducers:
            for buffer, text in zip(store.buffers, reducer.results, strict=True):
                register = self.out.fresh("x")
                kind = C_TYPES[elements.body.registers[buffer]]
                self.out.line(f"const {kind} {register} = ({kind}){text};")
                elements.registers[buffer] = register

    def _reducer(self, store: Store) -> tuple[Store, Reducer]:
        assert store.reduce is not None
        result = self.elements.body.registers[store.buffers[0]]
        sizes = self.loops.nest.sizes
        length = self.loops.sizes.hint(product(sizes[loop] for loop in self.loops.inner))
        name = self.out.fresh("a")
        return store, reducer_of(store.reduce, name, store.value.dtype, result, length)

    def _start(self, reducers: list[tuple[Store, Reducer]]) -> None:
        for _, reducer in reducers:
            for line in reducer.start:
                self.out.line(line)

    def _is_long(self, work: PhaseLoop[Reducer]) -> bool:
        """Returns whether the kernel has few splittable rows, long enough to share among threads."""
        nest, hint = self.loops.nest, self.loops.sizes.hint
        simple = not work.phase.stores and not work.phase.scans
        rows = hint(product(nest.sizes[loop] for loop in self.loops.rows))
        elements = hint(product(nest.sizes))
        long = 0 < rows < ROW_PARTS and elements >= rows * LONG_ROW
        splittable = bool(work.reducers) and all(reducer.merge for _, reducer in work.reducers)
        return simple and long and splittable

    def _in_parts(self, work: PhaseLoop[Reducer], names: dict[Value, str]) -> None:
        """Writes the row as `ROW_PARTS` chunks, merged in order: the result does not depend on the
        number of threads."""
        self.in_parts = True
        nest, hint = self.loops.nest, self.loops.sizes.hint
        longest = max(reversed(self.loops.inner), key=lambda loop: hint(nest.sizes[loop]))
        for _, reducer in work.reducers:
            for kind, name in reducer.state:
                self.out.line(f"{kind} {name}s[{ROW_PARTS}];")
        self.out.line("#pragma omp parallel for schedule(static)")
        with self.out.block(f"for (int64_t q = 0; q < {ROW_PARTS}; ++q)"):
            size = f"n{longest}"
            self.out.line(
                f"const int64_t low = tc_part({size}, q, {ROW_PARTS}), high = tc_part({size}, q +"
                f" 1, {ROW_PARTS});"
            )
            self._start(work.reducers)
            self._nest(1, work, dict(names), {longest: ("low", "high")})
            for _, reducer in work.reducers:
                for _, name in reducer.state:
                    self.out.line(f"{name}s[q] = {name};")
        with self.out.block(f"for (int64_t q = 0; q < {ROW_PARTS}; ++q)"):
            for _, reducer in work.reducers:
                self.out.line(reducer.merge)

    def _nest(
        self,
        depth: int,
        work: PhaseLoop[Reducer],
        names: dict[Value, str],
        bounds: dict[int, tuple[str, str]],
    ) -> None:
        """Writes the inner loops from a depth on. bounds: of loops that begin or end elsewhere."""
        inner = self.loops.inner
        if not inner:  # a scalar kernel
            self._open(work.reducers)
            self._elements(work, names, 0, "0")
            self._close(work.reducers, "1", self.loops.row_position())
            return
        loop = inner[depth - 1]
        variable, (start, stop) = self.loops.variables[loop], bounds.get(loop, ("0", f"n{loop}"))
        if depth < len(inner):
            head = f"for (int64_t {variable} = {start}; {variable} < {stop}; ++{variable})"
            with self.out.block(head):
                scope = dict(names)
                self.elements.emit(work.values, depth, scope)
                self._nest(depth + 1, work, scope, bounds)
            return
        if any(r.blocked for _, r in work.reducers) or self.elements.streams(work.phase):
            with self.out.block(f"for (int64_t b = {start}; b < {stop}; b += {BLOCK})"):
                self.out.line(f"const int64_t length = tc_least({BLOCK}, {stop} - b);")
                self.innermost(work, names, Bounds("b", "b + length", "length"))
        else:
            with self.out.block(""):
                self.innermost(work, names, Bounds(start, stop, f"({stop} - {start})"))

    def innermost(self, work: PhaseLoop[Reducer], names: dict[Value, str], bounds: Bounds) -> None:
        """Writes the innermost loop."""
        elements, phase = self.elements, work.phase
        elements.block_start = bounds.start
        if vectors.fits(elements, work, names):
            self.in_vectors = True
            vectors.write(elements, work, names, bounds)
            return
        streams, variable = elements.streams(phase), self.loops.variables[self.loops.innermost]
        for store in streams:
            kind = memory_type(elements.program.buffers[store.buffers[0]].dtype)
            self.out.line(f"alignas(64) {kind} {elements.streamed[store.buffers[0]]}[{BLOCK}];")
        self._open(work.reducers)
        clauses = [r.clause for _, r in work.reducers]
        sequential = phase.in_order and self.loops.nest.reduced
        # GCC makes memset of a loop that stores a constant, unless it is `omp simd`.
        fills = all(s.value.name == "constant" for s in phase.loop)
        if not sequential and not fills and all(clause is not None for clause in clauses):
            self.out.line(" ".join(["#pragma omp simd", *(c for c in clauses if c)]))
        with self.out.block(
            f"for (int64_t {variable} = {bounds.start}; {variable} < {bounds.stop}; ++{variable})"
        ):
            local = f"{variable} - {bounds.start}"
            self._elements(work, dict(names), len(self.loops.inner), local)
        with self.loops.renamed(self.loops.innermost, bounds.start):
            first = self.loops.row_position()
        self._close(work.reducers, bounds.length, first)
        for store in streams:
            (name,) = store.buffers
            with self.loops.renamed(self.loops.innermost, bounds.start):
                address = self.loops.address(name, store.index, {})
                place = f"{self.loops.pointer(name)} + {address}"
            block = elements.streamed[name]
            size = f"{bounds.length} * (int64_t)sizeof({block}[0])"
            self.out.line(f"tc_stream({place}, {block}, {size});")

    def _open(self, reducers: list[tuple[Store, Reducer]]) -> None:
        for _, reducer in reducers:
            for line in reducer.open:
                self.out.line(line)

    def _close(self, reducers: list[tuple[Store, Reducer]], length: str, at: str) -> None:
        for _, reducer in reducers:
            for line in reducer.close:
                self.out.line(line.format(length=length, at=at, moments="tc_moments_of"))

    def _elements(
        self, work: PhaseLoop[Reducer], names: dict[Value, str], level: int, local: str
    ) -> None:
        """Writes the body of the innermost loop. local: the element's position in its block."""
        elements = self.elements
        elements.emit(work.values, level, names)
        for store in work.phase.stores:
            elements.store(store, names)
        elements.scan(work.scanners, names, "")
        for store, reducer in work.reducers:
            at = self.loops.row_position()
            self.out.line(reducer.step.format(v=names[store.value], at=at, local=local))
