"""Writes phases of a kernel that reduces a strided dimension: contiguous outer elements are the
lanes.

Each column has its own accumulators in an array of the tile's width. Where there are too few columns
for the threads, these share the rows: each phase is a stage of its own, in which a part of the rows
leaves its accumulators in `partial`, and which begins by merging those of earlier phases in the order of
the parts. So results depend on the number of threads, but not on which one is first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from inductor_backend.codegen.common.loop_nest import COLUMN_TILE, WIDEST_TILE
from inductor_backend.codegen.cpp.column_vectors import ColumnVectors
from inductor_backend.codegen.cpp.element_writer import ElementWriter
from inductor_backend.codegen.cpp.expressions import C_TYPES
from inductor_backend.codegen.cpp.phase_loop import PhaseLoop, loop_values, row_values
from inductor_backend.codegen.cpp.reducers import ColumnReducer, column_reducer
from inductor_backend.codegen.cpp.streaming import STREAMED
from inductor_backend.ir.index_expr import product
from inductor_backend.ir.nodes import Store
from inductor_backend.ir.values import Value, topological
from inductor_backend.schedule.fused_body import Phase

#: Cost of an element up to which a column kernel adds up that many points of its rows at a time.
COLUMN_POINTS = ((10, 8), (30, 4))

#: Reductions that take several points at a time: the sign, and the C type that they are joined in.
JOINED = {"sum": ("+", "float"), "prod": ("*", "double")}

#: Of which a column's values are held in arrays.
HELD = (torch.float32, torch.float64, torch.bool)


class ColumnWriter:
    """Writes the loops of a kernel whose lanes are outer elements, around what `elements`
    writes."""

    def __init__(self, elements: ElementWriter) -> None:
        self.elements, self.loops, self.out = elements, elements.loops, elements.out
        # A kernel that rereads its tile must find it in the cache.
        once = sum(bool(phase.loop) for phase in elements.body.phases) == 1
        #: The most columns of a tile.
        self.widest = WIDEST_TILE if once else COLUMN_TILE
        #: The loop over rows that threads may share (None: they share columns alone).
        self.shared = self._shared_loop()
        #: Arrays of accumulators so far.
        self.arrays = 0
        #: Reduction result -> the array that holds it as later phases read it.
        self.results: dict[str, str] = {}

    def _shared_loop(self) -> int | None:
        """Returns the longest loop over the rows; the outermost where a reduction counts elements."""
        body, nest = self.elements.body, self.loops.nest
        kinds = {store.reduce for phase in body.phases for store in phase.reductions}
        if nest.column is None or not kinds or body.in_order or kinds & {"argmax", "argmin"}:
            return None
        if "welford" in kinds:
            return self.loops.inner[0]
        return max(self.loops.inner, key=lambda loop: self.loops.sizes.hint(nest.sizes[loop]))

    def write(self, phase: Phase, names: dict[Value, str], number: int) -> None:
        """Writes a phase. number: its stage, where threads share rows."""
        elements, shared = self.elements, self.shared is not None
        last = number + 1 == len(elements.body.phases)
        if phase.row:
            values = row_values(phase)
            elements.emit(values, 0, names)
            once = self.out.block(f"if (parts == 1 || (stage == {number} && part == 0))")
            with once if shared else contextlib.nullcontext(), self._lanes():
                scope = dict(names)
                elements.emit(values, len(self.loops.inner) + 1, scope)
                for store in phase.row:
                    elements.store(store, scope)
        if not phase.loop:
            return
        values = loop_values(phase)
        empty = "" if elements.body.is_pointwise else self.loops.empty_row()
        if not empty:
            elements.emit(values, 0, names)
        scanners = elements.declare_scans(
            phase,
            f"alignas(64) {{type}} {{name}}[{self.widest}]; for (int64_t l = 0; l < lanes; ++l)"
            " {name}[l] = {start};",
        )
        reducers = [self._reducer(store) for store in phase.reductions]
        own = self.out.block(f"if (parts == 1 || stage == {number})")
        with own if shared else contextlib.nullcontext(), self.out.unless(empty):
            scope = dict(names)
            elements.emit(values, 0, scope)
            held = self._hold(phase, values, scope)
            values = loop_values(phase, held)
            scope |= {value: f"{array}[l]" for value, array in held.items()}
            self._nest(1, PhaseLoop(phase, values, reducers, scanners, held), scope)
        if shared and not last:
            self._merge([reducer for _, reducer in reducers], number)
        for store, reducer in reducers:
            arrays = {f"{array}[l]": (kind, array) for kind, array, _ in reducer.arrays}
            for buffer, text in zip(store.buffers, reducer.results, strict=True):
                kind = C_TYPES[elements.body.registers[buffer]]
                elements.registers[buffer] = f"({kind}){text}"
                held_as, array = arrays.get(text, ("", ""))
                if held_as == kind:
                    self.results[buffer] = array

    def _hold(self, phase: Phase, values: list[Value], names: dict[Value, str]) -> dict[Value, str]:
        """Computes what the loop needs and each column has one of (a factor, a mean), once a tile.
        Returns each such value's array. Integers and what is only read stay in the loop."""
        elements, nest = self.elements, self.loops.nest
        inner, depth = set(self.loops.inner), len(self.loops.inner) + 1
        of_column = {v for v in values if elements.level(v) == depth} - {
            v for v in values if inner & {nest.place[p] for p in v.variables}
        }
        users = [v for v in values if v not in of_column]
        needed = {arg for user in users for arg in user.args}
        needed |= {value for store in phase.loop for value in store.roots}
        held: dict[Value, str] = {}
        computed: dict[Value, str] = {}
        for value in values:
            register = value.name == "load" and value.buffer in elements.body.registers
            read = value.name in ("load", "masked_load") and not register
            if value not in of_column & needed or read or value.dtype not in HELD:
                continue
            held[value] = self.results.get(value.buffer, "") if register else ""
            if not held[value]:
                held[value] = computed[value] = self.out.fresh("h")
                self.out.line(f"alignas(64) {C_TYPES[value.dtype]} {held[value]}[{self.widest}];")
        if computed:
            with self._lanes():
                scope = dict(names)
                elements.emit(topological(computed), depth, scope)
                for value, array in computed.items():
                    self.out.line(f"{array}[l] = {scope[value]};")
        return held

    def _reducer(self, store: Store) -> tuple[Store, ColumnReducer]:
        """Declares the accumulators of a reduction."""
        result = self.elements.body.registers[store.buffers[0]]
        name = self.out.fresh("a")
        length = product([self.loops.nest.sizes[loop] for loop in self.loops.inner])
        reducer = column_reducer(store.reduce or "", name, store.value.dtype, result, length)
        for kind, array, start in reducer.arrays:
            self.out.line(f"alignas(64) {kind} {array}[{self.widest}];")
            self.out.line(f"for (int64_t l = 0; l < lanes; ++l) {array}[l] = {start};")
        return store, reducer

    def _merge(self, reducers: list[ColumnReducer], number: int) -> None:
        """Writes the end of a stage, and what later stages begin with."""
        assert self.shared is not None
        places = {}
        for kind, array, _ in (array for reducer in reducers for array in reducer.arrays):
            skipped = f"{self.arrays} * parts" if self.arrays else ""
            at = " + ".join(filter(None, (skipped, "{part}")))
            places[array] = f"({kind}*)(partial + (({at}) * total + row) * width)"
            self.arrays += 1
        with self.out.block(f"if (parts > 1 && stage == {number})"):
            for array, place in places.items():
                place = place.format(part="part")
                self.out.line(f"memcpy({place}, {array}, lanes * sizeof({array}[0]));")
            self.out.line("break;")
        if not reducers:
            return
        with self.out.block("for (int64_t q = 0; parts > 1 && q < parts; ++q)"):
            size = f"n{self.shared}"
            rest = " * ".join(f"n{k}" for k in self.loops.inner if k != self.shared)
            self.out.line(f"const int64_t low = tc_cut({size}, q, parts);")
            scale = f" * ({rest})" if rest else ""
            self.out.line(f"const double before = (double)(low{scale});")
            self.out.line(
                f"const double now = (double)((tc_cut({size}, q + 1, parts) - low){scale});"
            )
            for array, place in places.items():
                self.out.line(f"const auto* {array}q = {place.format(part='q')};")
            self.out.line("#pragma omp simd")
            with self.out.block("for (int64_t l = 0; l < lanes; ++l)"):
                for reducer in reducers:
                    self.out.line(reducer.merge)

    def _bounds(self, loop: int) -> tuple[str, str]:
        return ("first", "last") if loop == self.shared else ("0", f"n{loop}")

    @contextlib.contextmanager
    def _lanes(self) -> Iterator[None]:
        self.out.line("#pragma omp simd")
        with self.out.block("for (int64_t l = 0; l < lanes; ++l)"):
            self.out.line("const int64_t c = c0 + l;")
            yield

    def _nest(self, depth: int, work: PhaseLoop[ColumnReducer], names: dict[Value, str]) -> None:
        inner, elements = self.loops.inner, self.elements
        if depth <= len(inner):
            variable = self.loops.variables[inner[depth - 1]]
            with self.out.block(""):
                start, stop = self._bounds(inner[depth - 1])
                self.out.line(f"int64_t {variable} = {start};")
                if depth == len(inner) and not self._several_points(work, names):
                    vectors = ColumnVectors(elements, work, self.widest, stop)
                    if vectors.write(names, self._position(), self._row_by_row):
                        return
                self._row_by_row(depth, work, names, stop)
            return
        with self._lanes():
            scope = dict(names)
            elements.emit(work.values, depth, scope)
            for store in work.phase.stores:
                elements.store(store, scope)
            elements.scan(work.scanners, scope, "[l]")
            for store, reducer in work.reducers:
                self.out.line(reducer.step.format(v=scope[store.value], at=self._position()))

    def _row_by_row(
        self, depth: int, work: PhaseLoop[ColumnReducer], names: dict[Value, str], stop: str
    ) -> None:
        """Writes the loop of a depth, from where its variable is."""
        variable = self.loops.variables[self.loops.inner[depth - 1]]
        with self.out.block(f"for (; {variable} < {stop}; ++{variable})"):
            if depth == len(self.loops.inner):
                self.out.line("TC_ROW_BY_ROW;")
            scope = dict(names)
            self.elements.emit(work.values, depth, scope)
            self._nest(depth + 1, work, scope)

    def _position(self) -> str:
        """Returns how many elements of the row, or of the thread's part of it, come before the current
        one."""
        if self.shared is None:
            return f"({self.loops.row_position()})"
        with self.loops.renamed(self.shared, f"({self.loops.variables[self.shared]} - first)"):
            return f"({self.loops.row_position()})"

    def _several_points(self, work: PhaseLoop[ColumnReducer], names: dict[Value, str]) -> bool:
        """Sums of floats add several elements of a column in float at a time, products multiply them in
        double, because converting, loading and storing the sum cost more than an addition. Not
        beyond the caches: there row-by-row reads reach memory bandwidth (33 GB/s; 8 rows side by
        side 27, 2 rows 17). Returns whether it wrote such a loop."""
        elements, phase = self.elements, work.phase
        if 4 * self.loops.sizes.hint(product(self.loops.nest.sizes)) >= STREAMED:
            return False
        floats = all(store.value.dtype == torch.float32 for store, _ in work.reducers)
        kinds = {store.reduce for store, _ in work.reducers}
        cost = elements.body.cost
        points = next((points for most, points in COLUMN_POINTS if cost <= most), 1)
        if "prod" in kinds:  # of more, a product may be beyond double
            points = min(points, 4)
        if (
            not floats
            or not kinds <= JOINED.keys()
            or not work.reducers
            or phase.stores
            or phase.scans
            or points == 1
        ):
            return False
        depth, loop = len(self.loops.inner), self.loops.innermost
        variable = self.loops.variables[loop]
        stop = self._bounds(loop)[1]
        with self.out.block(f"for (; {variable} + {points} <= {stop}; {variable} += {points})"):
            scopes = [dict(names) for _ in range(points)]
            for level, place in ((depth, contextlib.nullcontext), (depth + 1, self._lanes)):
                with place():
                    for number, scope in enumerate(scopes):
                        with self.loops.renamed(loop, f"({variable} + {number})"):
                            elements.emit(work.values, level, scope)
                    if level > depth:
                        for store, reducer in work.reducers:
                            terms = [scope[store.value] for scope in scopes]
                            total = _balanced(terms, *JOINED[store.reduce or ""])
                            self.out.line(reducer.step.format(v=total, at="0"))
        return True


def _balanced(terms: list[str], sign: str, kind: str) -> str:
    """Returns their sum or product in pairs, computed in a C type."""
    terms = [f"({kind}){term}" for term in terms]
    while len(terms) > 1:
        terms = [
            f"({f' {sign} '.join(pair)})"
            for pair in (terms[k : k + 2] for k in range(0, len(terms), 2))
        ]
    return terms[0]
