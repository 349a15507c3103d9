"""Writes the values of a fused body as C++ expressions, and its stores as statements.

A value is named once per scope, in the outermost loop that has all its variables.
"""

from __future__ import annotations

import torch

from inductor_backend.codegen.common.op_table import CPP, SPECIAL_OPS
from inductor_backend.codegen.common.value_writer import ValueWriter
from inductor_backend.codegen.common.writer import CodeWriter
from inductor_backend.codegen.cpp.addressing import LoopAddressing
from inductor_backend.codegen.cpp.expressions import C_TYPES, memory_type
from inductor_backend.codegen.cpp.scanners import SCANNERS, SPECIAL_SCANS, Scanner, combined
from inductor_backend.codegen.cpp.streaming import streamed_buffers
from inductor_backend.codegen.cpp.tiling import ALONG, tiling
from inductor_backend.ir.index_expr import Expr, Index
from inductor_backend.ir.nodes import Store
from inductor_backend.ir.ops import COMPUTE_DTYPE
from inductor_backend.ir.values import Value
from inductor_backend.schedule.fused_body import KernelBody, Phase

#: The prelude's part with special functions.
SPECIAL_HEADER = "prelude_special.h"


class ElementWriter(ValueWriter):
    """Writes what a kernel computes for one element. loops: where the element is."""

    language = CPP

    def __init__(self, body: KernelBody, loops: LoopAddressing) -> None:
        super().__init__(loops.sizes, CodeWriter(), body.registers)
        self.body, self.loops, self.program = body, loops, loops.program
        self.row_buffers = {name: f"row_{number}" for number, name in enumerate(body.row_buffers)}
        self.streamed = streamed_buffers(self.program, body, loops.nest, loops.sizes)
        self.tiling = tiling(self.program, body, loops.nest, loops.sizes)
        #: The start of the innermost loop's current block.
        self.block_start = "0"
        #: Files that the kernel includes.
        self.headers: set[str] = set()

    def streams(self, phase: Phase) -> list[Store]:
        """Returns the phase's stores that are streamed through a block."""
        return [store for store in phase.stores if store.buffers[0] in self.streamed]

    # values --------------------------------------------------------------------------------------

    def level(self, value: Value) -> int:
        return self.loops.level(value)

    def size(self, expr: Expr) -> str:
        return self.loops.size(expr)

    def value_source(self, value: Value, names: dict[Value, str]) -> str:
        if value.name in SPECIAL_OPS:
            self.headers.add(SPECIAL_HEADER)
        return super().value_source(value, names)

    def index_value(self, index: Index, names: dict[Value, str]) -> str:
        return f"(int64_t)({self.loops.index_text(index, names)})"

    def checked_index(self, value: Value, index: str, size: str) -> str:
        return (
            f"(uint64_t){index} < (uint64_t){size} ? {index} : (tc_fail(TC_BAD_INDEX), (int64_t)0)"
        )

    def load_text(self, value: Value, names: dict[Value, str]) -> str:
        text = self.memory_read(value, names)
        if value.buffer in self.row_buffers:
            return text
        for size in self.may_be_empty(value.attr[1]):
            text = f"({self.size(size)} == 0 ? {memory_type(value.attr[2])}{{}} : {text})"
        if value.attr[2] in COMPUTE_DTYPE:
            text = f"tc_to_float({text})"
        if value.name == "masked_load":
            return f"{names[value.args[0]]} ? {text} : {names[value.args[1]]}"
        return text

    def memory_read(self, value: Value, names: dict[Value, str]) -> str:
        """Returns the memory that a load reads."""
        if value.buffer in self.row_buffers:
            return self.in_row(value.buffer)
        if self.tiling is not None and value in self.tiling.staged:
            row = f"({self.loops.variables[self.tiling.across]} - tile_start)"
            return f"{self.tiling.staged[value]}[{row} * {ALONG} + {self.in_block()}]"
        return self.loops.element(value.buffer, value.attr[1], names)

    def in_row(self, buffer: str) -> str:
        """Returns the current element of a row buffer."""
        return f"{self.row_buffers[buffer]}[{self.loops.row_position()}]"

    def in_block(self) -> str:
        """Returns the position of the current element within the innermost loop's block."""
        return f"{self.loops.variables[self.loops.inner[-1]]} - {self.block_start}"

    def definition(self, value: Value, name: str, text: str) -> str:
        kind = C_TYPES[value.dtype]
        narrow = value.dtype in (torch.int8, torch.uint8, torch.int16)
        return f"const {kind} {name} = {f'({kind})({text})' if narrow else text};"

    # stores --------------------------------------------------------------------------------------

    def store(self, store: Store, names: dict[Value, str]) -> None:
        (name,) = store.buffers
        self.write_to(name, store, names[store.value], names)

    def write_to(self, name: str, store: Store, text: str, names: dict[Value, str]) -> None:
        """Writes one value into one buffer of the store."""
        if name in self.row_buffers:
            self.out.line(f"{self.in_row(name)} = {text};")
            return
        place = self.loops.element(name, store.index, names)
        if name in self.streamed:
            place = f"{self.streamed[name]}[{self.in_block()}]"
        statement = combined(store.combine or "set", place, text, self.program.buffers[name].dtype)
        empty = [f"{self.size(size)} != 0" for size in self.may_be_empty(store.index)]
        self.out.line(f"if ({' && '.join(empty)}) {statement}" if empty else statement)

    # scans ---------------------------------------------------------------------------------------

    def declare_scans(self, phase: Phase, declaration: str) -> list[tuple[Store, Scanner]]:
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

    def scan(
        self, scanners: list[tuple[Store, Scanner]], names: dict[Value, str], lane: str
    ) -> None:
        """Writes one step of every scan, and its result."""
        for store, scanner in scanners:
            at = f"({self.loops.row_position()})"
            self.out.line(scanner.step.format(v=names[store.value], at=at, l=lane))
            for buffer, text in zip(store.buffers, scanner.results, strict=True):
                self.write_to(buffer, store, text.format(l=lane), names)
