"""Writes a phase of a C++ kernel as a loop over each row's contiguous elements.

The loop uses explicit vectors where `vectors.fits` allows, else the compiler vectorizes it. A
phase's reductions are named values afterwards. One long row is split into a fixed number of chunks
that are merged in order, so that results do not depend on the number of threads.
"""

from __future__ import annotations

import contextlib

from inductor_backend.codegen.cpp import vectors
from inductor_backend.codegen.cpp.element_writer import SPECIAL_HEADER, ElementWriter
from inductor_backend.codegen.cpp.expressions import C_TYPES, memory_type
from inductor_backend.codegen.cpp.ordered import SCANNERS, SPECIAL_SCANS, Scanner
from inductor_backend.codegen.cpp.reducers import BLOCK, REDUCERS, Reducer
from inductor_backend.ir.index_expr import product
from inductor_backend.ir.nodes import Store
from inductor_backend.ir.values import Value, topological
from inductor_backend.schedule.fused_body import Phase

#: Least elements of a row that is shared among threads, and the number of its chunks.
LONG_ROW = 131_072
ROW_PARTS = 16


def loop_values(phase: Phase) -> list[Value]:
    """Returns the values of the loop over a row, operands first."""
    return topological(value for store in phase.loop for value in store.roots)


class RowWriter(ElementWriter):
    """Writes the loops of a kernel whose rows are contiguous."""

    def _phase(self, phase: Phase, names: dict[Value, str], whole: bool) -> None:
        """Writes the row's own stores, then the loop over the row. whole: the loop covers the row
        (else begin to end, one thread's chunk)."""
        needed = loop_values(phase)
        row_values = topological(v for s in phase.row for v in s.roots)
        empty = self._empty()
        self.emit(row_values if empty else [*row_values, *needed], 0, names)
        for store in phase.row:
            self.store(store, names)
        if not phase.loop:
            return
        reducers = [self._reducer(store, k) for k, store in enumerate(phase.reductions)]
        self._start(reducers)
        self.scanners = self._scanners(phase, "{type} {name} = {start};")
        with self._unless(empty):
            scope = dict(names)
            self.emit(needed, 0, scope)
            if self._is_long(phase, reducers):
                self._in_parts(phase, needed, reducers, scope)
            else:
                self._nest(
                    1, phase, needed, reducers, scope, ("0", "") if whole else ("begin", "end")
                )
        for store, reducer in reducers:
            for buffer, text in zip(store.buffers, reducer.results, strict=True):
                register = self.out.fresh("x")
                kind = C_TYPES[self.body.registers[buffer]]
                self.out.line(f"const {kind} {register} = ({kind}){text};")
                self.registers[buffer] = register

    def _empty(self) -> str:
        """Returns the condition that the inner loops are empty, or "" if they cannot be. Loads are
        hoisted before these loops where possible, but an operand without elements must not be read.
        """
        if self._is_pointwise():  # the kernel has already returned
            return ""
        sizes = [k for k in self.inner if not self.sizes.is_positive(self.nest.sizes[k])]
        return " || ".join(f"n{k} == 0" for k in sizes)

    def _unless(self, condition: str) -> contextlib.AbstractContextManager[None]:
        return self.out.block(f"if (!({condition}))") if condition else contextlib.nullcontext()

    def _is_pointwise(self) -> bool:
        return all(not phase.row and not phase.reductions for phase in self.body.phases)

    def _start(self, reducers: list[tuple[Store, Reducer]]) -> None:
        for _, reducer in reducers:
            for line in reducer.start:
                self.out.line(line)

    def _is_long(self, phase: Phase, reducers: list[tuple[Store, Reducer]]) -> bool:
        """Returns whether the kernel has a single, splittable row, long enough to share among
        threads."""
        simple = not phase.stores and not phase.scans
        one_row = not self.rows and len(self.inner) == 1 and self.nest.column is None and simple
        long = self.sizes.hint(product(self.nest.sizes)) >= LONG_ROW
        return one_row and long and bool(reducers) and all(reducer.merge for _, reducer in reducers)

    def _in_parts(
        self,
        phase: Phase,
        values: list[Value],
        reducers: list[tuple[Store, Reducer]],
        names: dict[Value, str],
    ) -> None:
        """Writes the row as `ROW_PARTS` chunks, merged in order: the result does not depend on the
        number of threads."""
        for _, reducer in reducers:
            for kind, name in reducer.state:
                self.out.line(f"{kind} {name}s[{ROW_PARTS}];")
        self.out.line("#pragma omp parallel for schedule(static)")
        with self.out.block(f"for (int64_t q = 0; q < {ROW_PARTS}; ++q)"):
            size = f"n{self.inner[0]}"
            self.out.line(
                f"const int64_t low = tc_part({size}, q, {ROW_PARTS}), high = tc_part({size}, q +"
                f" 1, {ROW_PARTS});"
            )
            self._start(reducers)
            self._nest(1, phase, values, reducers, dict(names), ("low", "high"))
            for _, reducer in reducers:
                for _, name in reducer.state:
                    self.out.line(f"{name}s[q] = {name};")
        with self.out.block(f"for (int64_t q = 0; q < {ROW_PARTS}; ++q)"):
            for _, reducer in reducers:
                self.out.line(reducer.merge)

    def _reducer(self, store: Store, number: int) -> tuple[Store, Reducer]:
        assert store.reduce is not None
        name = self.out.fresh("a")
        return store, REDUCERS[store.reduce](
            name, store.value.dtype, self.body.registers[store.buffers[0]]
        )

    def _nest(
        self,
        depth: int,
        phase: Phase,
        values: list[Value],
        reducers: list[tuple[Store, Reducer]],
        names: dict[Value, str],
        bounds: tuple[str, str],
    ) -> None:
        if not self.inner:  # a scalar kernel
            self._open(reducers)
            self._elements(phase, values, reducers, names, 0, "0")
            self._close(reducers, "1")
            return
        loop = self.inner[depth - 1]
        variable, size = self.variables[loop], f"n{loop}"
        if depth < len(self.inner):
            with self.out.block(f"for (int64_t {variable} = 0; {variable} < {size}; ++{variable})"):
                scope = dict(names)
                self.emit(values, depth, scope)
                self._nest(depth + 1, phase, values, reducers, scope, bounds)
            return
        start, stop = bounds[0], bounds[1] or size
        if any(r.blocked for _, r in reducers) or self.streams(phase):
            with self.out.block(f"for (int64_t b = {start}; b < {stop}; b += {BLOCK})"):
                self.out.line(f"const int64_t length = tc_least({BLOCK}, {stop} - b);")
                self._vector_loop(phase, values, reducers, names, loop, "b", "b + length", "length")
        else:
            with self.out.block(""):
                self._vector_loop(
                    phase, values, reducers, names, loop, start, stop, f"({stop} - {start})"
                )

    def _vector_loop(
        self,
        phase: Phase,
        values: list[Value],
        reducers: list[tuple[Store, Reducer]],
        names: dict[Value, str],
        loop: int,
        start: str,
        stop: str,
        length: str,
    ) -> None:
        variable = self.variables[loop]
        streams = self.streams(phase)
        self.block_start = start
        if vectors.fits(self, phase, values, reducers, names, loop):
            self.in_vectors = True
            vectors.write(self, phase, values, reducers, names, loop, (start, stop, length))
            return
        for store in streams:
            kind = memory_type(self.program.buffers[store.buffers[0]].dtype)
            self.out.line(f"alignas(64) {kind} {self.streamed[store.buffers[0]]}[{BLOCK}];")
        self._open(reducers)
        clauses = [r.clause for _, r in reducers]
        one_by_one = phase.in_order and self.nest.reduced
        # GCC makes memset of it, unless told how
        fills = all(s.value.name == "constant" for s in phase.loop)
        if not one_by_one and not fills and all(clause is not None for clause in clauses):
            self.out.line(" ".join(["#pragma omp simd", *(c for c in clauses if c)]))
        with self.out.block(
            f"for (int64_t {variable} = {start}; {variable} < {stop}; ++{variable})"
        ):
            self._elements(
                phase, values, reducers, dict(names), len(self.inner), f"{variable} - {start}"
            )
        self._close(reducers, length)
        self.variables[loop] = start
        for store in streams:
            (name,) = store.buffers
            place = f"{self.pointer(name)} + {self.address(name, store.index, {})}"
            block = self.streamed[name]
            self.out.line(f"tc_stream({place}, {block}, {length} * (int64_t)sizeof({block}[0]));")
        self.variables[loop] = variable

    def _scanners(self, phase: Phase, declaration: str) -> list[tuple[Store, Scanner]]:
        """Declares the loop-carried variables of the phase's scans."""
        result = []
        for store in phase.scans:
            name = self.out.fresh("a")
            dtype = self.program.buffers[store.buffers[0]].dtype
            scanner = SCANNERS[store.scan or ""](name, store.value.dtype, dtype)
            if store.scan in SPECIAL_SCANS:
                self.headers.add(SPECIAL_HEADER)
            for kind, state, start in scanner.state:
                self.out.line(declaration.format(type=kind, name=state, start=start))
            result.append((store, scanner))
        return result

    def _scan(self, names: dict[Value, str], lane: str) -> None:
        """Writes one step of every scan, and its result."""
        for store, scanner in self.scanners:
            at = f"({self.row_position()})"
            self.out.line(scanner.step.format(v=names[store.value], at=at, l=lane))
            for buffer, text in zip(store.buffers, scanner.results, strict=True):
                self.write_to(buffer, store, text.format(l=lane), names)

    def _open(self, reducers: list[tuple[Store, Reducer]]) -> None:
        for _, reducer in reducers:
            for line in reducer.open:
                self.out.line(line)

    def _close(self, reducers: list[tuple[Store, Reducer]], length: str) -> None:
        for _, reducer in reducers:
            for line in reducer.close:
                self.out.line(line.format(length=length, moments="tc_moments_of"))

    def _elements(
        self,
        phase: Phase,
        values: list[Value],
        reducers: list[tuple[Store, Reducer]],
        names: dict[Value, str],
        level: int,
        local: str,
    ) -> None:
        self.emit(values, level, names)
        for store in phase.stores:
            self.store(store, names)
        self._scan(names, "")
        for store, reducer in reducers:
            self.out.line(
                reducer.step.format(v=names[store.value], at=self.row_position(), local=local)
            )
