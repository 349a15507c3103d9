"""Writes one fused body as one Triton kernel.

A value is computed once where a row is in registers, so each row is read once. `addressing`
computes where the elements are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from inductor_backend.codegen.common.module import NAME
from inductor_backend.codegen.common.op_table import TRITON_OPS
from inductor_backend.codegen.common.writer import CodeWriter
from inductor_backend.codegen.triton.addressing import Addressing
from inductor_backend.codegen.triton.block_sizes import Axis, Tile
from inductor_backend.codegen.triton.expressions import constant_source
from inductor_backend.codegen.triton.reducers import REDUCERS, Reducer
from inductor_backend.codegen.triton.scanners import SCANNERS, Scanner
from inductor_backend.codegen.triton.tensor_descriptors import BULK, Matrix
from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.index_expr import Expr, Index
from inductor_backend.ir.nodes import LoopProgram, Store
from inductor_backend.ir.ops import COMPUTE_DTYPE, READ_DTYPES, compute_dtype
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.values import Value, topological
from inductor_backend.schedule.fused_body import KernelBody, Phase
from inductor_backend.schedule.inplace_reuse import overtakes


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """text: the function, with `@NAME@` for its name. pointers: storages, in argument order; types:
    their element types. sizes: the int64 arguments that follow. grid: number of programs, (numel,
    block) of each axis. constants: block sizes. warps: of one program. label: for the name. looped:
    a point may be computed more than once. stages: of software pipelining. reusable: (written
    pointer, pointers only read, at the same points), by their numbers. matrices: tensor
    descriptors, arguments after the sizes. most: limit on programs of a persistent kernel (0: one
    program per block). written: numbers of the pointers that it stores to. asserts: it
    checks indices by device assertions."""

    text: str
    pointers: tuple[str, ...]
    types: tuple[str, ...]
    sizes: tuple[Expr, ...]
    grid: tuple[tuple[Expr, int], ...]
    constants: tuple[tuple[str, int], ...]
    warps: int
    label: str
    looped: bool = False
    stages: int = 1
    reusable: tuple[tuple[int, tuple[int, ...]], ...] = ()
    matrices: tuple[Matrix, ...] = ()
    most: int = 0
    written: tuple[int, ...] = ()
    asserts: bool = field(default=False, repr=False)  # the kernel's name is made from its repr


class TritonKernelWriter(Addressing):
    """Writes one kernel."""

    spellings = TRITON_OPS
    stages = 1
    most = 0
    asserts = False

    def __init__(
        self, program: LoopProgram, body: KernelBody, sizes: SizeVars, tile: Tile | None = None
    ) -> None:
        for phase in body.phases:
            if any(s.combine is not None and not s.atomic for s in (*phase.row, *phase.stores)):
                labels = ", ".join(origin.op for origin in body.origins)
                raise unsupported(
                    "codegen", f"scatters in order are not built for Triton: {labels}"
                )
        super().__init__(program, body, sizes, tile)
        self.matrices: list[Matrix] = []
        self.written: set[str] = set()

    # values --------------------------------------------------------------------------------------

    def level(self, value: Value) -> int:
        """Returns 1 for the elements of a row."""
        return int(self.in_row(value))

    def constant(self, value: Value) -> str:
        return constant_source(*value.attr)

    def definition(self, value: Value, name: str, text: str) -> str:
        return f"{name} = {text}"

    def index_value(self, index: Index, names: dict[Value, str]) -> str:
        text = self.number_text(index, names)
        simple = index.variables() or index.terms
        return f"({text}).to(tl.int64)" if simple else f"tl.full([], {text}, tl.int64)"

    def wrapped_index(self, index: str, size: str) -> str:
        return f"tl.where({index} < 0, {index} + {size}, {index})"

    def checked_index(self, value: Value, index: str, size: str) -> str:
        """Asserts on the device as eager does, and reads nothing out of bounds."""
        inside = f"({index} >= 0) & ({index} < {size})"
        mask = self.mask(self.axes(value.variables))
        checked = f"({inside}) | (({mask}) == 0)" if mask else inside
        self.asserts = True
        self.out.line(f'tl.device_assert({checked}, "index out of range in self")')
        return f"tl.where({inside}, {index}, 0)"

    def load_text(self, value: Value, names: dict[Value, str]) -> str:
        buffer = value.buffer
        address = self.address(buffer, value.attr[1], names)
        dtype = self.program.buffers[buffer].dtype
        widen = ".to(tl.float32)" if dtype in COMPUTE_DTYPE else ""
        axes = self.axes(value.variables)
        empty = self.program.buffers[buffer].layout.numel == 0
        if empty and all(axis.numel != 0 for axis in self.tile.outer):
            # A masked load gives its other value everywhere; any other stands before a row, of
            # which nothing is read.
            other = (
                names[value.args[1]]
                if value.name == "masked_load"
                else constant_source(0, value.dtype)
            )
            return f"tl.broadcast_to({other}, {self.shape(axes)})" if axes else other
        if value.name == "masked_load":
            condition, other = (names[arg] for arg in value.args)
            address = self.spread(address, (), axes) if axes else address
            mask = self.mask(axes, condition)
            zero = "0.0" if dtype in READ_DTYPES else "0"  # no cast makes an 8-bit float of 0
            return (
                f"tl.where({condition}, tl.load({self.pointer(buffer)} + ({address}), {mask},"
                f" other={zero}){widen}, {other})"
            )
        checks = [f"{self.size(size)} > 0" for size in self.may_be_empty(value.attr[1])]
        mask = self.mask(axes, " & ".join(f"({check})" for check in checks))
        mask = f", {mask}" if mask else ""
        address = self.whole(buffer, value.attr[1], address, axes) if axes else address
        return f"tl.load({self.pointer(buffer)} + ({address}){mask}){widen}"

    def store(self, store: Store, names: dict[Value, str], axes: tuple[Axis, ...]) -> None:
        (name,) = store.buffers
        value = names[store.value]
        if store.value.name == "constant" or not self.axes(store.value.variables):
            value = f"tl.broadcast_to({value}, {self.shape(axes)})"
        self._store_at(name, store, value, names, axes)

    def _store_at(
        self, name: str, store: Store, value: str, names: dict[Value, str], axes: tuple[Axis, ...]
    ) -> None:
        self.written.add(self.program.buffers[name].storage)
        address = self.whole(name, store.index, self.address(name, store.index, names), axes)
        mask = self.mask(axes)
        where = f"{self.pointer(name)} + ({address}), {value}{f', {mask}' if mask else ''}"
        self.out.line(
            f'tl.atomic_add({where}, sem="relaxed")'
            if store.combine == "add"
            else f"tl.store({where})"
        )

    # the function --------------------------------------------------------------------------------

    def write(self) -> TritonKernel:
        """Returns the text of the kernel."""
        with self.out.indented():
            self._body()
        constants = self._constants()
        parameters = [*self.pointers.values(), *self.arguments.values()]
        parameters += [matrix.name for matrix in self.matrices]
        parameters += [f"{name}: tl.constexpr" for name, _ in constants]
        if self.matrices:
            parameters.append(f"{BULK}: tl.constexpr")
        head = CodeWriter()
        head.line("@triton.jit")
        head.line(f"def {NAME}({', '.join(parameters)}):")
        head.lines += self.out.lines
        return TritonKernel(
            head.text(),
            tuple(self.pointers),
            tuple(self.types[storage] for storage in self.pointers),
            tuple(self.arguments),
            self._grid(),
            constants,
            self.tile.warps,
            self.label,
            self.tile.looped,
            self.stages,
            matrices=tuple(self.matrices),
            most=self.most,
            asserts=self.asserts,
            written=tuple(
                number for number, storage in enumerate(self.pointers) if storage in self.written
            ),
        )

    def _body(self) -> None:
        self.write_indices()
        self._phases()

    def _constants(self) -> tuple[tuple[str, int], ...]:
        return tuple((axis.constant, axis.block) for axis in self.tile.axes)

    def _grid(self) -> tuple[tuple[Expr, int], ...]:
        return tuple((axis.numel, axis.block) for axis in self.tile.outer)

    def _phases(self) -> None:
        names: dict[Value, str] = {}
        if self.tile.reduced is None:
            (phase,) = self.body.phases
            stores = (*phase.row, *phase.stores)
            self.emit(needed(stores), 1, names)
            self._wait(stores)
            for store in stores:
                self.store(store, names, self.tile.outer)
            return
        for phase in self.body.phases:
            self._phase(phase, names)

    def _phase(self, phase: Phase, names: dict[Value, str]) -> None:
        self.emit(needed(phase.row), 0, names)
        self._wait(phase.row)
        for store in phase.row:
            self.store(store, names, self.tile.outer)
        if not phase.loop:
            return
        reducers = [self._reducer(store) for store in phase.reductions]
        scanners = [self._scanner(store) for store in phase.scans]
        stored = needed([*phase.stores, *phase.scans])
        values = topological([*stored, *(value for _, value, _ in reducers)])
        self.emit(values, 0, names)
        if self.tile.looped:
            self._loop(phase, reducers, scanners, values, names)
        else:
            self.emit(values, 1, names)
            for store in phase.stores:
                self.store(store, names, self.tile.axes)
            for store, scanner in scanners:
                self._lines(scanner.whole, self._element(store.value, names), names)
                self._scanned(store, scanner, names)
            for _, value, reducer in reducers:
                self._lines(reducer.whole, self._element(value, names), names)
        for store, _, reducer in reducers:
            for buffer, text in zip(store.buffers, reducer.results, strict=True):
                register = self.out.fresh("s")
                self.out.line(f"{register} = {text}")
                self.registers[buffer] = register

    def _wait(self, stores: Sequence[Store]) -> None:
        """Writes a barrier before stores to what the block reads: a thread may store elements that
        another one loads."""
        if overtakes(self.program, self.body, stores, once_a_row=self.tile.reduced is not None):
            self.out.line("tl.debug_barrier()")

    def _reducer(self, store: Store) -> tuple[Store, Value, Reducer]:
        """Returns the reducer and the accumulated value: a float that is widened only to be added
        stays narrow."""
        assert store.reduce is not None
        value, result = store.value, self.body.registers[store.buffers[0]]
        if store.reduce == "sum" and value.name == "cast" and value.args[0].dtype == torch.float32:
            if value.dtype == torch.float64:
                value = value.args[0]
        name = self.out.fresh("a")
        return store, value, REDUCERS[store.reduce](name, value.dtype, result)

    def _scanner(self, store: Store) -> tuple[Store, Scanner]:
        name = self.out.fresh("c")
        dtype = compute_dtype(self.program.buffers[store.buffers[0]].dtype)
        return store, SCANNERS[store.scan or ""](name, store.value.dtype, dtype)

    def _scanned(self, store: Store, scanner: Scanner, names: dict[Value, str]) -> None:
        """Stores a scan's result at each element. (Nothing in this kernel reads it again.)"""
        for buffer, text in zip(store.buffers, scanner.results, strict=True):
            self._store_at(buffer, store, text, names, self.tile.axes)

    def _loop(
        self,
        phase: Phase,
        reducers: list[tuple[Store, Value, Reducer]],
        scanners: list[tuple[Store, Scanner]],
        values: list[Value],
        names: dict[Value, str],
    ) -> None:
        reduced = self.tile.reduced
        assert reduced is not None
        for _, _, reducer in reducers:
            self._lines(reducer.start, "", names)
        for _, scanner in scanners:
            self._lines(scanner.start, "", names)
        with self.passes(reduced):
            self.write_axis(reduced, "start")
            scope = dict(names)
            self.emit(values, 1, scope)
            for store in phase.stores:
                self.store(store, scope, self.tile.axes)
            for store, scanner in scanners:
                self._lines(scanner.each, self._element(store.value, scope), scope)
                self._scanned(store, scanner, scope)
            for _, value, reducer in reducers:
                self._lines(reducer.each, self._element(value, scope), scope)
        for _, _, reducer in reducers:
            self._lines(reducer.finish, "", names)

    def _element(self, value: Value, names: dict[Value, str]) -> str:
        """Returns the reduced value as a whole block."""
        text = names[value]
        if len(self.axes(value.variables)) == len(self.tile.axes):
            return text
        return f"tl.broadcast_to({text}, {self.shape(self.tile.axes)})"

    def _lines(self, lines: Iterable[str], element: str, names: dict[Value, str]) -> None:
        reduced = self.tile.reduced
        assert reduced is not None
        mask = "rmask" if not reduced.exact else "True"
        at = f"({self.index_source(self.position, names)})" if self.position is not None else ""
        if self.position is not None:
            at = f"(tl.zeros({self.shape(self.tile.axes)}, tl.int64) + {at})"
        for line in lines:
            text = line.format(
                v=element,
                shape=self.shape(self.tile.axes),
                mask=mask,
                at=at,
                count=f"({self.size(reduced.numel)})",
                rows=self.shape(self.tile.outer),
                last=f"({reduced.letter}index - start == {reduced.constant} - 1)",
            )
            self.out.line(text)


def needed(stores: Iterable[Store]) -> list[Value]:
    """Returns the values of stores and of their indices, operands first."""
    stores = list(stores)
    indirect = [v for s in stores for i in s.index for v in i.indirect_values()]
    return topological([*indirect, *(s.value for s in stores)])
