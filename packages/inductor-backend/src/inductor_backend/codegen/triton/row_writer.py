"""Writes the phases of a Triton kernel that reduces or scans rows.

A row is one block, held in registers, or a loop covers it block by block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from inductor_backend.codegen.triton.block_sizes import Axis
from inductor_backend.codegen.triton.block_writer import BlockWriter, needed
from inductor_backend.codegen.triton.index_writer import IndexWriter
from inductor_backend.codegen.triton.loads_and_stores import store_source
from inductor_backend.codegen.triton.reducers import LANE, REDUCERS, Reducer
from inductor_backend.codegen.triton.scanners import SCANNERS, Scanner
from inductor_backend.ir.index_expr import Index
from inductor_backend.ir.nodes import Store
from inductor_backend.ir.ops import compute_dtype
from inductor_backend.ir.values import Value, topological
from inductor_backend.schedule.fused_body import Phase


@dataclass(frozen=True, slots=True)
class RowLoop:
    """What a phase computes for each element of a row."""

    stores: Sequence[Store]
    #: Operands first.
    values: list[Value]
    #: (store, accumulated value, reducer).
    reducers: list[tuple[Store, Value, Reducer]]
    scanners: list[tuple[Store, Scanner]]


class RowWriter:
    """Writes phases, around what `block` writes. reduced: the axis of the row. position: an
    element's position within it, over the nest's loops, where a reduction or scan needs it."""

    def __init__(
        self, block: BlockWriter, indices: IndexWriter, reduced: Axis, position: Index | None
    ) -> None:
        self.block, self.indices, self.reduced, self.position = block, indices, reduced, position
        self.addressing, self.out = block.addressing, block.out

    def write(self, phase: Phase, names: dict[Value, str]) -> None:
        """Writes a phase's loop over the row."""
        block, tile = self.block, self.addressing.tile
        reducers = [self._reducer(store) for store in phase.reductions]
        scanners = [self._scanner(store) for store in phase.scans]
        stored = needed([*phase.stores, *phase.scans])
        values = topological([*stored, *(value for _, value, _ in reducers)])
        block.emit(values, 0, names)
        if tile.looped:
            self._loop(RowLoop(phase.stores, values, reducers, scanners), names)
        else:
            block.emit(values, 1, names)
            for store in phase.stores:
                block.store(store, names, tile.axes)
            for store, scanner in scanners:
                self._lines(scanner.single_block, block.full_block(store.value, names), names)
                self._store_scan(store, scanner, names)
            for _, value, reducer in reducers:
                self._lines(reducer.single_block, block.full_block(value, names), names)
        for store, _, reducer in reducers:
            for buffer, text in zip(store.buffers, reducer.results, strict=True):
                register = self.out.fresh("s")
                self.out.line(f"{register} = {text}")
                block.registers[buffer] = register

    def _reducer(self, store: Store) -> tuple[Store, Value, Reducer]:
        """Returns the reducer and the accumulated value: a float that is widened only to be added
        stays narrow."""
        assert store.reduce is not None
        value, result = store.value, self.block.body.registers[store.buffers[0]]
        if store.reduce == "sum" and value.name == "cast" and value.args[0].dtype == torch.float32:
            if value.dtype == torch.float64:
                value = value.args[0]
        name = self.out.fresh("a")
        return store, value, REDUCERS[store.reduce](name, value.dtype, result)

    def _scanner(self, store: Store) -> tuple[Store, Scanner]:
        name = self.out.fresh("c")
        dtype = compute_dtype(self.block.program.buffers[store.buffers[0]].dtype)
        return store, SCANNERS[store.scan or ""](name, store.value.dtype, dtype)

    def _store_scan(self, store: Store, scanner: Scanner, names: dict[Value, str]) -> None:
        """Stores a scan's result at each element. (Nothing in this kernel reads it again.)"""
        for buffer, text in zip(store.buffers, scanner.results, strict=True):
            axes = self.addressing.tile.axes
            self.out.line(store_source(self.addressing, buffer, store, text, names, axes))

    def _loop(self, work: RowLoop, names: dict[Value, str]) -> None:
        block = self.block
        for _, _, reducer in work.reducers:
            self._lines(reducer.start, "", names)
        for _, scanner in work.scanners:
            self._lines(scanner.start, "", names)
        with self.indices.passes(self.reduced):
            self.indices.axis(self.reduced, "start")
            scope = dict(names)
            block.emit(work.values, 1, scope)
            for store in work.stores:
                block.store(store, scope, self.addressing.tile.axes)
            for store, scanner in work.scanners:
                self._lines(scanner.each, block.full_block(store.value, scope), scope)
                self._store_scan(store, scanner, scope)
            for _, value, reducer in work.reducers:
                self._lines(reducer.each, block.full_block(value, scope), scope)
        for _, _, reducer in work.reducers:
            self._lines(reducer.finish, "", names)

    def _lines(self, lines: Iterable[str], element: str, names: dict[Value, str]) -> None:
        """Writes lines of a reducer or scanner. element: the text of the reduced value."""
        reduced, addressing, at = self.reduced, self.addressing, ""
        shape = addressing.shape(addressing.tile.axes)
        if self.position is not None:
            position = addressing.index_source(self.position, names)
            at = f"(tl.zeros({shape}, tl.int64) + ({position}))"
        for line in lines:
            text = line.format(
                v=element,
                shape=shape,
                mask="rmask" if not reduced.exact else "True",
                at=at,
                count=f"({addressing.size(reduced.numel)})",
                rows=addressing.shape(addressing.tile.outer),
                lanes=shape.removesuffix("]") + f" // {LANE}]",
                turn=f"start // {reduced.constant}",
                last=f"({reduced.letter}index - start == {reduced.constant} - 1)",
            )
            self.out.line(text)
