"""Writes the loads and stores of a Triton kernel: address, mask, and the dtype that is computed in."""

from __future__ import annotations

from collections.abc import Sequence

from inductor_backend.codegen.triton.addressing import BlockAddressing
from inductor_backend.codegen.triton.block_sizes import Axis
from inductor_backend.codegen.triton.expressions import constant_source
from inductor_backend.ir.index_expr import Expr
from inductor_backend.ir.nodes import Store
from inductor_backend.ir.ops import COMPUTE_DTYPE, READ_DTYPES
from inductor_backend.ir.values import Value


def load_source(
    at: BlockAddressing, value: Value, names: dict[Value, str], may_be_empty: Sequence[Expr]
) -> str:
    """Returns the text of a load or masked load. may_be_empty: sizes of which none may be 0 for
    the load to read."""
    buffer = value.buffer
    address = at.address(buffer, value.attr[1], names)
    dtype = at.program.buffers[buffer].dtype
    widen = ".to(tl.float32)" if dtype in COMPUTE_DTYPE else ""
    axes = at.axes(value.variables)
    empty = at.program.buffers[buffer].layout.numel == 0
    if empty and all(axis.numel != 0 for axis in at.tile.outer):
        # A masked load gives its other value everywhere; any other stands before a row, of
        # which nothing is read.
        masked = value.name == "masked_load"
        other = names[value.args[1]] if masked else constant_source(0, value.dtype)
        return f"tl.broadcast_to({other}, {at.shape(axes)})" if axes else other
    if value.name == "masked_load":
        condition, other = (names[arg] for arg in value.args)
        address = at.spread(address, axes) if axes else address
        mask = at.mask(axes, condition)
        zero = "0.0" if dtype in READ_DTYPES else "0"  # no cast makes an 8-bit float of 0
        return (
            f"tl.where({condition}, tl.load({at.pointer(buffer)} + ({address}), {mask},"
            f" other={zero}){widen}, {other})"
        )
    checks = [f"({at.size(size)} > 0)" for size in may_be_empty]
    mask = at.mask(axes, " & ".join(checks))
    mask = f", {mask}" if mask else ""
    address = at.broadcast_address(buffer, value.attr[1], address, axes) if axes else address
    return f"tl.load({at.pointer(buffer)} + ({address}){mask}){widen}"


def store_source(
    at: BlockAddressing,
    buffer: str,
    store: Store,
    value: str,
    names: dict[Value, str],
    axes: tuple[Axis, ...],
) -> str:
    """Returns the statement that stores a value into a buffer of the store, or adds it there."""
    at.written.add(at.program.buffers[buffer].storage)
    address = at.address(buffer, store.index, names)
    address = at.broadcast_address(buffer, store.index, address, axes)
    mask = at.mask(axes)
    where = f"{at.pointer(buffer)} + ({address}), {value}{f', {mask}' if mask else ''}"
    if store.combine == "add":
        return f'tl.atomic_add({where}, sem="relaxed")'
    return f"tl.store({where})"
