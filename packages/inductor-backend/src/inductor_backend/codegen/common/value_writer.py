"""Base of the C++ and Triton kernel writers: names the values of a fused body, operands first.

Lines go to `ValueWriter.out`. A value is named once per scope; constants and values in registers
get no line.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from inductor_backend.codegen.common.spelling import Spelling
from inductor_backend.codegen.common.writer import CodeWriter
from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.index_expr import Expr, Index
from inductor_backend.ir.nodes import LoopProgram
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.values import Value
from inductor_backend.schedule.fused_body import KernelBody

#: Most letters of a kernel's label.
LABEL = 48


class ValueWriter(ABC):
    """Writes what a kernel computes. spellings: the language's column of the op table. pointers:
    storage -> argument. registers: buffer -> the text of the reduction's result."""

    spellings: ClassVar[Mapping[str, Spelling]]

    def __init__(self, program: LoopProgram, body: KernelBody, sizes: SizeVars) -> None:
        self.program, self.body, self.sizes = program, body, sizes
        self.out = CodeWriter()
        self.pointers: dict[str, str] = {}
        self.registers: dict[str, str] = {}

    @property
    def label(self) -> str:
        """Returns the operators that the kernel computes, for its name."""
        return "_".join(dict.fromkeys(origin.op for origin in self.body.origins))[:LABEL] or "empty"

    def pointer(self, buffer: str) -> str:
        storage = self.program.buffers[buffer].storage
        return self.pointers.setdefault(storage, f"p{len(self.pointers)}")

    def emit(self, values: Iterable[Value], level: int, names: dict[Value, str]) -> None:
        """Writes statements for the unnamed values up to that level, operands first."""
        for value in values:
            if value in names or self.level(value) > level:
                continue
            if value.name == "constant":
                names[value] = self.constant(value)
                continue
            text = self.value_source(value, names)
            name = names[value] = self.out.fresh("t")
            self.out.line(self.definition(value, name, text))

    def value_source(self, value: Value, names: dict[Value, str]) -> str:
        """Returns the text of one value, whose operands have names."""
        operands = [names[arg] for arg in value.args]
        if value.name in ("load", "masked_load"):
            if value.buffer in self.body.registers:
                return self.registers[value.buffer]
            return self.load_text(value, names)
        if value.name == "index":
            return self.index_value(value.attr, names)
        if value.name == "wrap_index":
            return self.wrapped_index(operands[0], self.size(value.attr))
        if value.name == "check_index":
            return self.checked_index(value, operands[0], self.size(value.attr))
        if value.name not in self.spellings:
            raise unsupported("codegen", f"op {value.name!r} has no text here")
        return self.spellings[value.name](value, *operands)

    def may_be_empty(self, index: Sequence[Index]) -> list[Expr]:
        """Returns sizes of checked dimensions of an access that may be 0: an invalid index was
        replaced by 0, which an empty dimension lacks."""
        checked = [v.attr for i in index for v in i.indirect_values() if v.name == "check_index"]
        return [size for size in dict.fromkeys(checked) if not self.sizes.is_positive(size)]

    @abstractmethod
    def level(self, value: Value) -> int:
        """Returns the loop in which a value is computed, 0: once per row."""

    @abstractmethod
    def constant(self, value: Value) -> str:
        """Returns the literal of a constant."""

    @abstractmethod
    def definition(self, value: Value, name: str, text: str) -> str:
        """Returns the statement that names a value."""

    @abstractmethod
    def size(self, expr: Expr) -> str:
        """Returns the text of a size, stride or offset."""

    @abstractmethod
    def load_text(self, value: Value, names: dict[Value, str]) -> str:
        """Returns the text of a load that is in no register."""

    @abstractmethod
    def index_value(self, index: Index, names: dict[Value, str]) -> str:
        """Returns an index as an integer value of the kernel."""

    @abstractmethod
    def wrapped_index(self, index: str, size: str) -> str:
        """Returns the index, plus the size where it is negative."""

    @abstractmethod
    def checked_index(self, value: Value, index: str, size: str) -> str:
        """Returns the index, or 0 and an error where it is out of range."""
