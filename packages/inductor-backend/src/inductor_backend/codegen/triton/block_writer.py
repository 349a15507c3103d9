"""Writes the values of a fused body as Triton expressions over blocks, and stores them."""

from __future__ import annotations

from collections.abc import Iterable

from inductor_backend.codegen.common.op_table import TRITON
from inductor_backend.codegen.common.value_writer import ValueWriter
from inductor_backend.codegen.common.writer import CodeWriter
from inductor_backend.codegen.triton.addressing import BlockAddressing
from inductor_backend.codegen.triton.block_sizes import Axis
from inductor_backend.codegen.triton.loads_and_stores import load_source, store_source
from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.index_expr import Expr, Index
from inductor_backend.ir.nodes import Store
from inductor_backend.ir.values import Value, topological
from inductor_backend.schedule.fused_body import KernelBody


class BlockWriter(ValueWriter):
    """Writes what a kernel computes for one block. addressing: where the block is."""

    language = TRITON

    def __init__(self, body: KernelBody, addressing: BlockAddressing) -> None:
        for phase in body.phases:
            if any(s.combine is not None and not s.atomic for s in (*phase.row, *phase.stores)):
                labels = ", ".join(origin.op for origin in body.origins)
                raise unsupported(
                    "codegen", f"scatters in order are not built for Triton: {labels}"
                )
        super().__init__(addressing.sizes, CodeWriter(), body.registers)
        self.body, self.addressing, self.program = body, addressing, addressing.program
        #: Whether it checks indices by device assertions.
        self.asserts = False

    # values --------------------------------------------------------------------------------------

    def level(self, value: Value) -> int:
        """Returns 1 for the elements of a row."""
        return int(self.addressing.in_row(value))

    def size(self, expr: Expr) -> str:
        return self.addressing.size(expr)

    def definition(self, value: Value, name: str, text: str) -> str:
        return f"{name} = {text}"

    def index_value(self, index: Index, names: dict[Value, str]) -> str:
        text = self.addressing.value_text(index, names)
        simple = index.variables() or index.terms
        return f"({text}).to(tl.int64)" if simple else f"tl.full([], {text}, tl.int64)"

    def checked_index(self, value: Value, index: str, size: str) -> str:
        """Asserts on the device as eager does, and reads nothing out of bounds."""
        self.asserts = True
        mask = self.addressing.mask(self.addressing.axes(value.variables))
        return asserted_index(self.out, index, size, mask)

    def load_text(self, value: Value, names: dict[Value, str]) -> str:
        return load_source(self.addressing, value, names, self.may_be_empty(value.attr[1]))

    def full_block(self, value: Value, names: dict[Value, str]) -> str:
        """Returns a value as a block over all axes."""
        at = self.addressing
        if len(at.axes(value.variables)) == len(at.tile.axes):
            return names[value]
        return f"tl.broadcast_to({names[value]}, {at.shape(at.tile.axes)})"

    # stores --------------------------------------------------------------------------------------

    def store(self, store: Store, names: dict[Value, str], axes: tuple[Axis, ...]) -> None:
        (name,) = store.buffers
        value = names[store.value]
        if store.value.name == "constant" or not self.addressing.axes(store.value.variables):
            value = f"tl.broadcast_to({value}, {self.addressing.shape(axes)})"
        self.out.line(store_source(self.addressing, name, store, value, names, axes))


def asserted_index(out: CodeWriter, index: str, size: str, mask: str) -> str:
    """Writes a device assertion that an index is in range where the mask holds; returns the index,
    0 where it is not."""
    inside = f"({index} >= 0) & ({index} < {size})"
    checked = f"({inside}) | (({mask}) == 0)" if mask else inside
    out.line(f'tl.device_assert({checked}, "index out of range in self")')
    return f"tl.where({inside}, {index}, 0)"


def needed(stores: Iterable[Store]) -> list[Value]:
    """Returns the values of stores and of their indices, operands first."""
    stores = list(stores)
    indirect = [v for s in stores for i in s.index for v in i.indirect_values()]
    return topological([*indirect, *(s.value for s in stores)])
