"""Writes the values of a fused body as C++ expressions, and its stores as statements.

A value is named once per scope, in the outermost loop that has all its variables. Sizes and strides
are arguments, so kernels that differ only in them have the same text.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inductor_backend.codegen.common.index_source import index_source
from inductor_backend.codegen.common.loop_nest import COLUMN_TILE, WIDEST_TILE, LoopNest, walk
from inductor_backend.codegen.common.op_table import CPP_OPS, SPECIAL_OPS
from inductor_backend.codegen.common.value_writer import ValueWriter
from inductor_backend.codegen.cpp.expressions import C_TYPES, constant_source, memory_type
from inductor_backend.codegen.cpp.ordered import Scanner, combined
from inductor_backend.codegen.cpp.streaming import streamed_buffers
from inductor_backend.codegen.cpp.tiling import ALONG, tiling
from inductor_backend.ir.index_expr import Expr, Index, contiguous_strides, simplify
from inductor_backend.ir.nodes import LoopProgram, Store
from inductor_backend.ir.ops import COMPUTE_DTYPE, OPS
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.values import Value, topological
from inductor_backend.schedule.fused_body import KernelBody, Phase

#: The prelude's part with special functions.
SPECIAL_HEADER = "prelude_special.h"

#: Constants up to this size stay in the text; larger ones become arguments.
LITERAL = 8


class ElementWriter(ValueWriter):
    """Writes what a kernel computes for one element; adds names and arguments on first use."""

    spellings = CPP_OPS

    def __init__(
        self, program: LoopProgram, body: KernelBody, nest: LoopNest, sizes: SizeVars
    ) -> None:
        super().__init__(program, body, sizes)
        self.nest = nest
        self.arguments: list[Expr] = []
        self.size_names: dict[Expr, str] = {}
        self.written = {program.buffers[name].storage for name in body.writes}
        self.scanners: list[tuple[Store, Scanner]] = []
        self.streamed = streamed_buffers(program, body, nest, sizes)
        self.block_start = "0"  # of the innermost loop's current block
        self.tiling = tiling(program, body, nest, sizes)
        self.rows, self.inner = self._split()
        self.variables = self._name_loops()
        self.in_vectors = False
        self.headers: set[str] = set()
        # A kernel that rereads its tile must find it in the cache.
        once = sum(bool(phase.loop) for phase in body.phases) == 1
        self.widest = WIDEST_TILE if once else COLUMN_TILE

    # loops and sizes -----------------------------------------------------------------------------

    def streams(self, phase: Phase) -> list[Store]:
        """Returns the phase's stores that are streamed through a block."""
        return [store for store in phase.stores if store.buffers[0] in self.streamed]

    def _split(self) -> tuple[list[int], list[int]]:
        """Returns (loops shared among threads, loops inside), as loop numbers. A pointwise kernel's
        last loop is inside; a column kernel's vectorized loop is neither."""
        outer = list(range(len(self.nest.outer)))
        reduced = list(range(len(outer), len(self.nest.sizes)))
        if reduced:
            return [k for k in outer if k != self.nest.column], reduced
        return outer[:-1], outer[-1:]

    def _name_loops(self) -> list[str]:
        names = [""] * len(self.nest.sizes)
        for place, loop in enumerate(self.rows):
            names[loop] = f"r{place}"
        for place, loop in enumerate(self.inner):
            names[loop] = f"i{place}"
        if self.nest.column is not None:
            names[self.nest.column] = "c"
        self.loop_size = {}
        for loop, size in enumerate(self.nest.sizes):
            self.loop_size[loop] = f"n{loop}"
            self.arguments.append(size)
        # A stride that is the product of the last loops is written so: same text for other sizes.
        running: Expr = 1
        text: list[str] = []
        for loop in reversed(range(len(self.nest.sizes))):
            running = simplify(running * self.nest.sizes[loop])
            text.insert(0, f"n{loop}")
            if not (isinstance(running, int) and running <= 1):
                self.size_names.setdefault(
                    running, "(" + " * ".join(text) + ")" if len(text) > 1 else text[0]
                )
        return names

    def size(self, expr: Expr) -> str:
        """Returns the text of a size, stride or offset."""
        if isinstance(expr, int) and abs(expr) <= LITERAL and expr not in self.size_names:
            return f"{expr}" if expr >= 0 else f"({expr})"
        if expr not in self.size_names:
            self.size_names[expr] = f"s{len(self.arguments)}"
            self.arguments.append(expr)
        return self.size_names[expr]

    def address(self, buffer: str, index: Sequence[Index], names: dict[Value, str]) -> str:
        flat = walk(self.program.buffers[buffer].layout.flat(index), self.nest)
        return index_source(flat, self.variables, names.__getitem__, self.size, "/")

    # values --------------------------------------------------------------------------------------

    def level(self, value: Value) -> int:
        """Returns 0: once per row; k: in the k-th inner loop; one more than those: depends on the
        column."""
        loops = {self.nest.place[p] for p in value.variables}
        if self.nest.column in loops:
            return len(self.inner) + 1
        return max((self.inner.index(k) + 1 for k in loops if k in self.inner), default=0)

    def value_source(self, value: Value, names: dict[Value, str]) -> str:
        if value.name in SPECIAL_OPS:
            self.headers.add(SPECIAL_HEADER)
        return super().value_source(value, names)

    def index_value(self, index: Index, names: dict[Value, str]) -> str:
        text = index_source(
            walk(index, self.nest), self.variables, names.__getitem__, self.size, "/"
        )
        return f"(int64_t)({text})"

    def wrapped_index(self, index: str, size: str) -> str:
        return f"{index} < 0 ? {index} + {size} : {index}"

    def checked_index(self, value: Value, index: str, size: str) -> str:
        return (
            f"(uint64_t){index} < (uint64_t){size} ? {index} : (tc_fail(TC_BAD_INDEX), (int64_t)0)"
        )

    def load_text(self, value: Value, names: dict[Value, str]) -> str:
        buffer = value.buffer
        text = self.place_text(value, names)
        if buffer in self.body.row_buffers:
            return text
        for size in self.may_be_empty(value.attr[1]):
            text = f"({self.size(size)} == 0 ? {memory_type(value.attr[2])}{{}} : {text})"
        if value.attr[2] in COMPUTE_DTYPE:
            text = f"tc_to_float({text})"
        if value.name == "masked_load":
            return f"{names[value.args[0]]} ? {text} : {names[value.args[1]]}"
        return text

    def place_text(self, value: Value, names: dict[Value, str]) -> str:
        """Returns the memory that a load reads."""
        buffer = value.buffer
        if buffer in self.body.row_buffers:
            return f"row_{self.row_number(buffer)}[{self.row_position()}]"
        if self.tiling is not None and value in self.tiling.staged:
            row = f"({self.variables[self.tiling.across]} - tile_start)"
            along = f"{self.variables[self.inner[-1]]} - {self.block_start}"
            return f"{self.tiling.staged[value]}[{row} * {ALONG} + {along}]"
        return f"{self.pointer(buffer)}[{self.address(buffer, value.attr[1], names)}]"

    def row_number(self, buffer: str) -> int:
        return list(self.body.row_buffers).index(buffer)

    def row_position(self) -> str:
        """Returns the position of the current element within the row."""
        strides = contiguous_strides([self.nest.sizes[k] for k in self.inner])
        parts = [
            self.variables[k] if stride == 1 else f"{self.size(stride)} * {self.variables[k]}"
            for k, stride in zip(self.inner, strides, strict=True)
        ]
        return " + ".join(parts) or "0"

    def constant(self, value: Value) -> str:
        return constant_source(*value.attr)

    def definition(self, value: Value, name: str, text: str) -> str:
        kind = C_TYPES[value.dtype]
        narrow = value.dtype in (torch.int8, torch.uint8, torch.int16)
        return f"const {kind} {name} = {f'({kind})({text})' if narrow else text};"

    def store(self, store: Store, names: dict[Value, str]) -> None:
        (name,) = store.buffers
        self.write_to(name, store, names[store.value], names)

    def write_to(self, name: str, store: Store, text: str, names: dict[Value, str]) -> None:
        """Writes one value into one buffer of the store."""
        if name in self.body.row_buffers:
            self.out.line(f"row_{self.row_number(name)}[{self.row_position()}] = {text};")
            return
        place = f"{self.pointer(name)}[{self.address(name, store.index, names)}]"
        if name in self.streamed:
            place = f"{self.streamed[name]}[{self.variables[self.inner[-1]]} - {self.block_start}]"
        statement = combined(store.combine or "set", place, text, self.program.buffers[name].dtype)
        empty = [f"{self.size(size)} != 0" for size in self.may_be_empty(store.index)]
        self.out.line(f"if ({' && '.join(empty)}) {statement}" if empty else statement)

    def _cost(self) -> int:
        values = topological(self.body.values())
        return 2 + sum(2 if v.name in ("load", "masked_load") else OPS[v.name].cost for v in values)
