"""Names the loop variables, sizes and addresses of a C++ kernel.

Sizes and strides are arguments, so kernels that differ only in them have the same text.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from inductor_backend.codegen.common.index_source import index_source
from inductor_backend.codegen.common.loop_nest import LoopNest, walk
from inductor_backend.codegen.common.op_table import CPP
from inductor_backend.ir.index_expr import Expr, Index, contiguous_strides, simplify
from inductor_backend.ir.nodes import LoopProgram
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.values import Value

#: Constants up to this size stay in the text; larger ones become arguments.
LITERAL = 8


class LoopAddressing:
    """The loops of a kernel and where its elements are. Arguments are added on first use."""

    def __init__(self, program: LoopProgram, nest: LoopNest, sizes: SizeVars) -> None:
        self.program, self.nest, self.sizes = program, nest, sizes
        #: Storage -> pointer argument.
        self.pointers: dict[str, str] = {}
        #: The values of the integer arguments: the loops' sizes, then other sizes and strides.
        self.arguments: list[Expr] = list(nest.sizes)
        self._size_names = _stride_names(nest.sizes)
        #: Numbers of the loops that threads share, and of those inside. A pointwise kernel's last
        #: loop is inside; a column kernel's vectorized loop is neither.
        self.rows = [k for k in range(len(nest.outer)) if k != nest.column]
        self.inner = list(range(len(nest.outer), len(nest.sizes)))
        if not self.inner:
            self.rows, self.inner = self.rows[:-1], self.rows[-1:]
        #: The text of each loop's variable.
        self.variables = ["c"] * len(nest.sizes)
        for letter, loops in (("r", self.rows), ("i", self.inner)):
            for place, loop in enumerate(loops):
                self.variables[loop] = f"{letter}{place}"

    @property
    def innermost(self) -> int:
        """Returns the number of the innermost loop."""
        return self.inner[-1]

    @property
    def vector(self) -> int:
        """Returns the number of the loop whose elements are the lanes of vectors."""
        return self.inner[-1] if self.nest.column is None else self.nest.column

    @contextlib.contextmanager
    def renamed(self, loop: int, text: str) -> Iterator[None]:
        """Gives a loop's variable another text."""
        before, self.variables[loop] = self.variables[loop], text
        yield
        self.variables[loop] = before

    def pointer(self, buffer: str) -> str:
        storage = self.program.buffers[buffer].storage
        return self.pointers.setdefault(storage, f"p{len(self.pointers)}")

    def size(self, expr: Expr) -> str:
        """Returns the text of a size, stride or offset."""
        if isinstance(expr, int) and abs(expr) <= LITERAL and expr not in self._size_names:
            return f"{expr}" if expr >= 0 else f"({expr})"
        if expr not in self._size_names:
            self._size_names[expr] = f"s{len(self.arguments)}"
            self.arguments.append(expr)
        return self._size_names[expr]

    def flat(self, buffer: str, index: Sequence[Index]) -> Index:
        """Returns the address of an element over the loops of the nest."""
        return walk(self.program.buffers[buffer].layout.flat(index), self.nest)

    def index_text(self, index: Index, names: dict[Value, str]) -> str:
        """Returns the text of an index over the domain's variables."""
        flat = walk(index, self.nest)
        return index_source(flat, self.variables, names.__getitem__, self.size, CPP.floor)

    def address(self, buffer: str, index: Sequence[Index], names: dict[Value, str]) -> str:
        return self.index_text(self.program.buffers[buffer].layout.flat(index), names)

    def element(self, buffer: str, index: Sequence[Index], names: dict[Value, str]) -> str:
        """Returns the memory of an element."""
        return f"{self.pointer(buffer)}[{self.address(buffer, index, names)}]"

    def level(self, value: Value) -> int:
        """Returns 0: once per row; k: in the k-th inner loop; one more than those: depends on the
        column."""
        loops = {self.nest.place[p] for p in value.variables}
        if self.nest.column in loops:
            return len(self.inner) + 1
        return max((self.inner.index(k) + 1 for k in loops if k in self.inner), default=0)

    def row_position(self) -> str:
        """Returns the position of the current element within the row."""
        strides = contiguous_strides([self.nest.sizes[k] for k in self.inner])
        parts = [
            self.variables[k] if stride == 1 else f"{self.size(stride)} * {self.variables[k]}"
            for k, stride in zip(self.inner, strides, strict=True)
        ]
        return " + ".join(parts) or "0"

    def empty_row(self) -> str:
        """Returns the condition that the inner loops are empty, or "" if they cannot be."""
        sizes = [k for k in self.inner if not self.sizes.is_positive(self.nest.sizes[k])]
        return " || ".join(f"n{k} == 0" for k in sizes)


def _stride_names(sizes: Sequence[Expr]) -> dict[Expr, str]:
    """Returns the texts of products of the last loops' sizes: a stride that is one is written so,
    and is the same text for other sizes."""
    result: dict[Expr, str] = {}
    running: Expr = 1
    text: list[str] = []
    for loop in reversed(range(len(sizes))):
        running = simplify(running * sizes[loop])
        text.insert(0, f"n{loop}")
        if not (isinstance(running, int) and running <= 1):
            result.setdefault(running, f"({' * '.join(text)})" if len(text) > 1 else text[0])
    return result
