"""Saved values that fewer bytes can hold: masks of zeros and ones are bools, positions of maxima
are places in their window.

In: nodes of a joint graph. Out: which are kept in another form, what they take then, and the nodes
that pack and unpack them. What always holds: what is unpacked is what was packed, bit for bit.

The positions that max pooling chose are int64; their place in the window of 3x3, say, is one of
nine. On GPUs, where backends that fuse compute both inside the kernels that make and read them, one
byte is saved.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.contract.specs import OFFSETS_IN_WINDOWS
from tracer_core.torch_private.names import operators

aten = operators("aten")
Node = torch.fx.Node

#: Operators whose results are zeros and ones, in the dtype of their argument: dropout's masks.
BITS = frozenset({aten.bernoulli.default, aten.bernoulli.p, aten.bernoulli.Tensor})

#: Devices on which unpacking is part of the kernel that reads.
FUSES_INTEGERS = {"cuda"}


@dataclass(frozen=True, slots=True)
class Bits:
    """Zeros and ones."""

    dtype = torch.bool

    def pack(self, write: _Writer, value: Node) -> Node:
        return write(aten._to_copy.default, value, dtype=torch.bool)

    def unpack(self, write: _Writer, bits: Node) -> Node:
        return write(aten._to_copy.default, bits, dtype=write.origin.meta["val"].dtype)


@dataclass(frozen=True, slots=True)
class Places:
    """Positions in images of this width, which windows of this kernel, stride and padding chose."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    width: int

    dtype = torch.int8

    def _first(self, write: _Writer) -> tuple[Node, Node]:
        """The row and the column at which each window begins."""
        value = write.origin.meta["val"]
        found = []
        for k, count in enumerate(value.shape[-2:]):
            start, step = -self.padding[k], self.stride[k]
            how = {"dtype": torch.int64, "device": value.device}
            found.append(write(aten.arange.start_step, start, start + count * step, step, **how))
        return write(aten.unsqueeze.default, found[0], -1), found[1]

    def _parts(self, write: _Writer, value: Node, size: int) -> tuple[Node, Node]:
        """Quotient and remainder."""
        quotient = write(aten.div.Tensor_mode, value, size, rounding_mode="floor")
        return quotient, write(aten.sub.Tensor, value, write(aten.mul.Tensor, quotient, size))

    def pack(self, write: _Writer, value: Node) -> Node:
        parts = zip(self._parts(write, value, self.width), self._first(write), strict=True)
        row, column = (write(aten.sub.Tensor, part, first) for part, first in parts)
        place = write(aten.add.Tensor, write(aten.mul.Tensor, row, self.kernel[1]), column)
        return write(aten._to_copy.default, place, dtype=torch.int8)

    def unpack(self, write: _Writer, places: Node) -> Node:
        wide = write(aten._to_copy.default, places, dtype=torch.int64)
        parts = zip(self._parts(write, wide, self.kernel[1]), self._first(write), strict=True)
        row, column = (write(aten.add.Tensor, part, first) for part, first in parts)
        found = write(aten.add.Tensor, write(aten.mul.Tensor, row, self.width), column)
        found.meta[OFFSETS_IN_WINDOWS] = True
        return found


Form = Bits | Places


def forms(nodes: Iterable[Node], fuses: bool) -> dict[Node, Form]:
    """The values that can be kept in another form. fuses: see `Backend.fuses`."""
    found: dict[Node, Form] = {}
    for node in nodes:
        if node.target in BITS and node.meta["val"].dtype is not torch.bool:
            found[node] = Bits()
        elif fuses and node.target is operator.getitem and node.args[1] == 1:
            places = _places(node)
            if places is not None:
                found[node] = places
    return found


def _places(node: Node) -> Places | None:
    pool = node.args[0]
    if not isinstance(pool, Node) or pool.target is not aten.max_pool2d_with_indices.default:
        return None
    image, kernel, *rest = pool.args
    stride, padding, dilation = (*rest, *((), 0, 1)[len(rest) :])[:3]
    sizes = [*image.meta["val"].shape[-2:], *node.meta["val"].shape[-2:]]  # type: ignore[union-attr]
    if node.meta["val"].device.type not in FUSES_INTEGERS or not all(
        isinstance(size, int) for size in sizes
    ):
        return None
    two = _pair(kernel)
    if any(one != 1 for one in _pair(dilation)) or math.prod(two) > 127:
        return None
    return Places(two, _pair(stride or kernel), _pair(padding), sizes[1])


def _pair(value: Any) -> tuple[int, int]:
    given: Sequence[int] = [value] if isinstance(value, int) else list(value)
    return (given[0], given[-1])


class _Writer:
    """Appends operators to a graph, with the fakes that they give. origin: the node whose value it
    is about.
    """

    def __init__(self, graph: torch.fx.Graph, origin: Node) -> None:
        self.graph, self.origin = graph, origin
        self._mode = torch_private.fake_mode_of(origin.meta["val"])

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        node = self.graph.call_function(target, args, kwargs)
        with self._mode:
            given = [one.meta["val"] if isinstance(one, Node) else one for one in args]
            node.meta["val"] = target(*given, **kwargs)
        node.meta["user_frame"] = self.origin.meta.get("user_frame", "")
        return node


def packed(graph: torch.fx.Graph, value: Node, form: Form) -> Node:
    """A node at the end of the graph that holds a value in its form."""
    return form.pack(_Writer(graph, value), value)


def unpacked(graph: torch.fx.Graph, stored: Node, like: Node, form: Form) -> Node:
    """A node at the end of the graph with the value that `like` had."""
    node = form.unpack(_Writer(graph, like), stored)
    node.meta["val"] = like.meta["val"]
    return node


def as_stored(value: torch.Tensor, form: Form) -> torch.Tensor:
    """The fake of what stands for a fake."""
    with torch_private.fake_mode_of(value):
        found: Any = aten._to_copy.default(value, dtype=form.dtype)
    return found  # type: ignore[no-any-return]
