"""Names the values of a fused body, operands first.

A value is named once per scope; constants and values in registers get no line.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Sequence
from typing import ClassVar

from inductor_backend.codegen.common.op_table import Language
from inductor_backend.codegen.common.writer import CodeWriter
from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.index_expr import Expr, Index
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.values import Value


class ValueWriter(ABC):
    """Writes values as statements. What depends on the language and on where elements are is in
    the methods of a subclass."""

    language: ClassVar[Language]

    def __init__(self, sizes: SizeVars, out: CodeWriter, in_registers: Container[str]) -> None:
        self.sizes, self.out = sizes, out
        #: Buffers that are in registers: the results of reductions.
        self.in_registers = in_registers
        #: The text of each of them that is computed.
        self.registers: dict[str, str] = {}

    def emit(self, values: Iterable[Value], level: int, names: dict[Value, str]) -> None:
        """Writes statements for the unnamed values up to that level, operands first."""
        for value in values:
            if value in names or self.level(value) > level:
                continue
            if value.name == "constant":
                names[value] = self.language.constant(*value.attr)
                continue
            text = self.value_source(value, names)
            name = names[value] = self.out.fresh("t")
            self.out.line(self.definition(value, name, text))

    def value_source(self, value: Value, names: dict[Value, str]) -> str:
        """Returns the text of one value, whose operands have names."""
        operands = [names[arg] for arg in value.args]
        if value.name in ("load", "masked_load"):
            if value.buffer in self.in_registers:
                return self.registers[value.buffer]
            return self.load_text(value, names)
        if value.name == "index":
            return self.index_value(value.attr, names)
        if value.name == "wrap_index":
            return self.language.wrapped_index.format(operands[0], self.size(value.attr))
        if value.name == "check_index":
            return self.checked_index(value, operands[0], self.size(value.attr))
        if value.name not in self.language.ops:
            raise unsupported("codegen", f"op {value.name!r} has no text here")
        return self.language.ops[value.name](value, *operands)

    def may_be_empty(self, index: Sequence[Index]) -> list[Expr]:
        """Returns sizes of checked dimensions of an access that may be 0: an invalid index was
        replaced by 0, which an empty dimension lacks."""
        checked = [v.attr for i in index for v in i.indirect_values() if v.name == "check_index"]
        return [size for size in dict.fromkeys(checked) if not self.sizes.is_positive(size)]

    @abstractmethod
    def level(self, value: Value) -> int:
        """Returns the loop in which a value is computed, 0: once per row."""

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
    def checked_index(self, value: Value, index: str, size: str) -> str:
        """Returns the index, or 0 and an error where it is out of range."""
