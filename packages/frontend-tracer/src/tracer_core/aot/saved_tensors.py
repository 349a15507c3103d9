"""Saved-tensor packing: keeps 0/1 masks as bools, and indices of max pooling as int8 offsets in
their windows.

Unpacking restores the value bit for bit. Indices of max pooling are int64, but a 3x3 window has
nine places only. They are packed on GPUs, where backends that fuse compute packing and unpacking
inside the kernels that write and read them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.memory_owners import NodeWriter
from tracer_core.contract.specs import OFFSETS_IN_WINDOWS
from tracer_core.torch_private.names import operators

aten = operators("aten")
Node = torch.fx.Node

#: Operators whose results are zeros and ones, in the dtype of their argument: dropout's masks.
BITS = frozenset({aten.bernoulli.default, aten.bernoulli.p, aten.bernoulli.Tensor})

#: Devices on which unpacking fuses into the kernel that reads.
FUSES_INTEGERS = {"cuda"}


@dataclass(frozen=True, slots=True)
class Bits:
    """Zeros and ones, kept as bools."""

    dtype = torch.bool

    def pack(self, write: NodeWriter, value: Node) -> Node:
        return write(aten._to_copy.default, value, dtype=torch.bool)

    def unpack(self, write: NodeWriter, bits: Node) -> Node:
        return write(aten._to_copy.default, bits, dtype=write.origin.meta["val"].dtype)


@dataclass(frozen=True, slots=True)
class SavedPlaces:
    """Indices into images of this width, chosen by windows of this kernel, stride and padding; kept
    as offsets.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    width: int

    dtype = torch.int8

    def _first(self, write: NodeWriter) -> tuple[Node, Node]:
        """Returns the row and the column at which each window begins."""
        value = write.origin.meta["val"]
        result = []
        for k, count in enumerate(value.shape[-2:]):
            start, step = -self.padding[k], self.stride[k]
            how = {"dtype": torch.int64, "device": value.device}
            result.append(write(aten.arange.start_step, start, start + count * step, step, **how))
        return write(aten.unsqueeze.default, result[0], -1), result[1]

    def _parts(self, write: NodeWriter, value: Node, size: int) -> tuple[Node, Node]:
        """Returns quotient and remainder."""
        quotient = write(aten.div.Tensor_mode, value, size, rounding_mode="floor")
        return quotient, write(aten.sub.Tensor, value, write(aten.mul.Tensor, quotient, size))

    def pack(self, write: NodeWriter, value: Node) -> Node:
        parts = zip(self._parts(write, value, self.width), self._first(write), strict=True)
        row, column = (write(aten.sub.Tensor, part, first) for part, first in parts)
        place = write(aten.add.Tensor, write(aten.mul.Tensor, row, self.kernel[1]), column)
        return write(aten._to_copy.default, place, dtype=torch.int8)

    def unpack(self, write: NodeWriter, places: Node) -> Node:
        wide = write(aten._to_copy.default, places, dtype=torch.int64)
        parts = zip(self._parts(write, wide, self.kernel[1]), self._first(write), strict=True)
        row, column = (write(aten.add.Tensor, part, first) for part, first in parts)
        result = write(aten.add.Tensor, write(aten.mul.Tensor, row, self.width), column)
        result.meta[OFFSETS_IN_WINDOWS] = (self.kernel, self.stride, self.padding, self.width)
        return result


Form = Bits | SavedPlaces


def forms(nodes: Iterable[Node], fuses: bool) -> dict[Node, Form]:
    """Returns the values that can be packed, with their forms. fuses: see `Backend.fuses`."""
    result: dict[Node, Form] = {}
    for node in nodes:
        if node.target in BITS and node.meta["val"].dtype is not torch.bool:
            result[node] = Bits()
        elif fuses and node.target is operator.getitem and node.args[1] == 1:
            places = _places(node)
            if places is not None:
                result[node] = places
    return result


def _places(node: Node) -> SavedPlaces | None:
    pool = node.args[0]
    if not isinstance(pool, Node) or pool.target is not aten.max_pool2d_with_indices.default:
        return None
    image, kernel, *rest = pool.args
    stride, padding, dilation = (*rest, *((), 0, 1)[len(rest) :])[:3]
    sizes = [*image.meta["val"].shape[-2:], *node.meta["val"].shape[-2:]]  # type: ignore[union-attr]
    static = all(isinstance(size, int) for size in sizes)
    if not static or node.meta["val"].device.type not in FUSES_INTEGERS:
        return None
    two = _pair(kernel)
    if any(item != 1 for item in _pair(dilation)) or math.prod(two) > 127:
        return None
    if not _exact_in_arithmetic(node.meta["val"]):
        return None
    return SavedPlaces(two, _pair(stride or kernel), _pair(padding), sizes[1])


def _exact_in_arithmetic(value: torch.Tensor) -> bool:
    """Whether a sum has the strides of its operands; those of sizes of 1 may differ."""
    with torch_private.fake_mode_of(value):
        return (value + value).stride() == value.stride()


def _pair(value: Any) -> tuple[int, int]:
    numbers: Sequence[int] = [value] if isinstance(value, int) else list(value)
    return (numbers[0], numbers[-1])


def packed(graph: torch.fx.Graph, value: Node, form: Form) -> Node:
    """Adds nodes at the end of the graph that pack a value."""
    return form.pack(NodeWriter(graph, value), value)


def unpacked(graph: torch.fx.Graph, stored: Node, like: Node, form: Form) -> Node:
    """Adds nodes at the end of the graph that restore the value of `like`."""
    node = form.unpack(NodeWriter(graph, like), stored)
    node.meta["val"] = like.meta["val"]
    return node


def as_stored(value: torch.Tensor, form: Form) -> torch.Tensor:
    """Returns the fake of the packed form of a fake."""
    with torch_private.fake_mode_of(value):
        result: Any = aten._to_copy.default(value, dtype=form.dtype)
    return result  # type: ignore[no-any-return]
