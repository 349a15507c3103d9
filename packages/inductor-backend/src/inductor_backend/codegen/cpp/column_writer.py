"""Writes phases of a kernel that reduces a strided dimension: contiguous outer elements are the
lanes.

Each column has its own accumulators in an array of the tile's width.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from inductor_backend.codegen.common.writer import CodeWriter
from inductor_backend.codegen.cpp.expressions import C_TYPES
from inductor_backend.codegen.cpp.reducers import column_reducer
from inductor_backend.codegen.cpp.row_writer import RowWriter, loop_values
from inductor_backend.codegen.cpp.streaming import STREAMED
from inductor_backend.ir.index_expr import product
from inductor_backend.ir.values import Value, topological
from inductor_backend.schedule.fused_body import Phase

#: Cost of an element up to which a column kernel adds up that many points of its rows at a time.
COLUMN_POINTS = ((10, 8), (30, 4))


class ColumnWriter(RowWriter):
    """Writes the loops of a kernel whose lanes are outer elements."""

    def _column_phase(self, phase: Phase, names: dict[Value, str]) -> None:
        if phase.row:
            values = topological(v for s in phase.row for v in s.roots)
            self.emit(values, 0, names)
            with self._lanes():
                scope = dict(names)
                self.emit(values, len(self.inner) + 1, scope)
                for store in phase.row:
                    self.store(store, scope)
        if not phase.loop:
            return
        values, empty = loop_values(phase), self._empty()
        if not empty:
            self.emit(values, 0, names)
        lanes = (
            f"{{type}} {{name}}[{self.widest}]; for (int64_t l = 0; l < lanes; ++l) {{name}}[l] ="
            " {start};"
        )
        self.scanners = self._scanners(phase, "alignas(64) " + lanes)
        reducers = []
        for store in phase.reductions:
            name = self.out.fresh("a")
            kind = self.body.registers[store.buffers[0]]
            reducer = column_reducer(store.reduce or "", name, store.value.dtype, kind)
            reducers.append((store, reducer))
            for type_, array, start in reducer.arrays:
                self.out.line(f"alignas(64) {type_} {array}[{self.widest}];")
                self.out.line(f"for (int64_t l = 0; l < lanes; ++l) {array}[l] = {start};")
        with self._unless(empty):
            scope = dict(names)
            self.emit(values, 0, scope)
            self._column_nest(1, phase, values, reducers, scope)
        for store, reducer in reducers:
            for buffer, text in zip(store.buffers, reducer.results, strict=True):
                self.registers[buffer] = f"({C_TYPES[self.body.registers[buffer]]}){text}"

    def _lanes(self) -> contextlib.AbstractContextManager[Any]:
        self.out.line("#pragma omp simd")
        block = self.out.block("for (int64_t l = 0; l < lanes; ++l)")
        return _WithLine(block, self.out, "const int64_t c = c0 + l;")

    def _column_nest(
        self,
        depth: int,
        phase: Phase,
        values: list[Value],
        reducers: list[Any],
        names: dict[Value, str],
    ) -> None:
        if depth <= len(self.inner):
            loop = self.inner[depth - 1]
            variable = self.variables[loop]
            with self.out.block(""):
                self.out.line(f"int64_t {variable} = 0;")
                if depth == len(self.inner):
                    self._column_steps(phase, values, reducers, names)
                with self.out.block(f"for (; {variable} < n{loop}; ++{variable})"):
                    if depth == len(self.inner):
                        self.out.line("TC_ROW_BY_ROW;")
                    scope = dict(names)
                    self.emit(values, depth, scope)
                    self._column_nest(depth + 1, phase, values, reducers, scope)
            return
        with self._lanes():
            scope = dict(names)
            self.emit(values, depth, scope)
            for store in phase.stores:
                self.store(store, scope)
            self._scan(scope, "[l]")
            for store, reducer in reducers:
                self.out.line(
                    reducer.step.format(v=scope[store.value], at=f"({self.row_position()})")
                )

    def _column_steps(
        self, phase: Phase, values: list[Value], reducers: list[Any], names: dict[Value, str]
    ) -> None:
        """Sums of floats add several elements of a column in float at a time, because converting,
        loading and storing the sum cost more than an addition. Not beyond the caches: there
        row-by-row reads reach memory bandwidth (33 GB/s; 8 rows side by side 27, 2 rows 17)."""
        if 4 * self.sizes.hint(product(self.nest.sizes)) >= STREAMED:
            return
        sums = all(s.reduce == "sum" and s.value.dtype == torch.float32 for s, _ in reducers)
        points = next((points for most, points in COLUMN_POINTS if self._cost() <= most), 1)
        if not sums or not reducers or phase.stores or phase.scans or points == 1:
            return
        depth, loop = len(self.inner), self.inner[-1]
        variable = self.variables[loop]
        with self.out.block(f"for (; {variable} + {points} <= n{loop}; {variable} += {points})"):
            scopes = [dict(names) for _ in range(points)]
            for level, place in ((depth, contextlib.nullcontext), (depth + 1, self._lanes)):
                with place():
                    for number, scope in enumerate(scopes):
                        self.variables[loop] = f"({variable} + {number})"
                        self.emit(values, level, scope)
                    if level > depth:
                        for store, reducer in reducers:
                            total = _balanced([scope[store.value] for scope in scopes])
                            self.out.line(reducer.step.format(v=total, at="0"))
        self.variables[loop] = variable


def _balanced(terms: list[str]) -> str:
    """Returns their sum, added in pairs."""
    while len(terms) > 1:
        terms = [
            f"({' + '.join(pair)})" for pair in (terms[k : k + 2] for k in range(0, len(terms), 2))
        ]
    return terms[0]


class _WithLine:
    """A block whose first line is given."""

    def __init__(self, block, out: CodeWriter, line: str) -> None:  # type: ignore[no-untyped-def]
        self.block, self.out, self.first = block, out, line

    def __enter__(self) -> None:
        self.block.__enter__()
        self.out.line(self.first)

    def __exit__(self, *error: object) -> None:
        self.block.__exit__(*error)
