"""The loop IR: buffers, loop nodes, extern nodes and the `LoopProgram` that holds them.

A loop node's body is a set of `Store`s over one domain (`sizes`, some of them `reduced`). Loads and
stores address buffers by logical index (one `Index` a dimension), so that a layout may still
change. A buffer is written by exactly the nodes that list it, before any node that reads it in
program order.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from inductor_backend.ir.index_expr import (
    Expr,
    Index,
    contiguous_strides,
    flatten,
    product,
    recombine,
)
from inductor_backend.ir.values import Rewriter, Value, topological


@dataclass(frozen=True, slots=True)
class BufferLayout:
    """Maps element (i, j, ...) to ``offset + i * strides[0] + ...``, in elements."""

    sizes: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    offset: Expr = 0

    def flat(self, index: Sequence[Index]) -> Index:
        return recombine(flatten(index, self.strides, self.offset))

    @property
    def numel(self) -> Expr:
        return product(self.sizes)

    @property
    def extent(self) -> Expr:
        """Returns the span from first to last element, in elements (no negative strides)."""
        if any(isinstance(size, int) and size == 0 for size in self.sizes):
            return 0
        total: Expr = 1
        for size, stride in zip(self.sizes, self.strides, strict=True):
            total = total + (size - 1) * stride
        return total if isinstance(total, int) else total.expand()


class BufferKind(enum.Enum):
    """Who owns a buffer's memory."""

    INPUT = "input"  # the caller; written only by trailing copies
    TEMP = "temp"  # the arena of the running call, or a fresh tensor where it is a graph output
    EXTERN = "extern"  # the operator that returned it


@dataclass(slots=True)
class Buffer:
    """One tensor of the program."""

    name: str
    dtype: torch.dtype
    layout: BufferLayout
    kind: BufferKind
    #: Name of the buffer whose memory it shares (its own name where it owns it). Mutable: layouts
    #: may change before scheduling.
    storage: str = ""
    #: Its memory must be zero where it is allocated: nothing fills it before a scatter adds to it.
    zero_pages: bool = False

    def __post_init__(self) -> None:
        self.storage = self.storage or self.name


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a node comes from: user_frame ``file.py:12 in forward``;"""

    user_frame: str
    #: Name of the FX node.
    fx: str
    #: A short operator name, for kernel names.
    op: str


@dataclass(frozen=True, slots=True)
class Store:
    """buffers[...][index] = value."""

    buffers: tuple[str, ...]
    index: tuple[Index, ...]
    value: Value
    #: The reduction of value over the reduced variables instead.
    reduce: str | None = None
    #: Its running value along them (`ops.SCANS`).
    scan: str | None = None
    #: A scatter; several points may share one place, and each meets what is there (`ops.COMBINES`).
    #: The variables by which places may be shared are the reduced ones, and their points come in
    #: order; the buffer is filled before, by nodes named in `after`.
    combine: str | None = None
    #: The points of a scatter come in any order, several at once.
    atomic: bool = False

    @property
    def is_assignment(self) -> bool:
        """Tells whether the store is neither a reduction nor a scan nor a scatter."""
        return self.reduce is None and self.scan is None and self.combine is None

    @property
    def roots(self) -> list[Value]:
        """Returns the values that must be computed: the stored value, and those its index reads."""
        return [self.value, *(value for index in self.index for value in index.indirect_values())]

    def rewritten(self, rewrite: Rewriter) -> Store:
        """Returns the store with its value and its index rewritten."""
        value = rewrite(self.value)
        return replace(self, index=tuple(map(rewrite.index, self.index)), value=value)


@dataclass(frozen=True, slots=True)
class LoopNode:
    """A loop nest: for each point of the domain, the stores."""

    name: str
    #: One a loop variable, in the order of the tensor's dimensions.
    sizes: tuple[Expr, ...]
    #: Which of the variables are reduced.
    reduced: tuple[bool, ...]
    stores: tuple[Store, ...]
    origin: Origin
    #: Nodes that must run before although no value flows (writes to the same storage).
    after: tuple[str, ...] = ()
    #: Origins of producers computed inside.
    inlined: tuple[Origin, ...] = ()
    #: The one store sums products of a value of rows and a value of columns, for a kernel of its
    #: own (`schedule/matmul_loops.py`).
    is_matmul: bool = False
    _loads: tuple[Value, ...] | None = field(default=None, init=False, repr=False, compare=False)
    _reads: frozenset[str] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Returns the origins of the node and of what was inlined into it, producers first."""
        return (*self.inlined, self.origin)

    @property
    def writes(self) -> tuple[str, ...]:
        return tuple(name for store in self.stores for name in store.buffers)

    @property
    def is_reduction(self) -> bool:
        """Tells whether a store reduces, scans or scatters, so that the reduced variables must be
        kept.
        """
        return not all(store.is_assignment for store in self.stores)

    def loads(self) -> tuple[Value, ...]:
        """Returns every load of the body, those inside index expressions included; cached, because
        every stage asks for it.
        """
        if self._loads is None:
            items = tuple(loads_of(value for store in self.stores for value in store.roots))
            object.__setattr__(self, "_loads", items)
        return self._loads  # type: ignore[return-value]

    def reads(self) -> frozenset[str]:
        if self._reads is None:
            object.__setattr__(self, "_reads", frozenset(load.buffer for load in self.loads()))
        return self._reads  # type: ignore[return-value]


def loads_of(values: Iterable[Value]) -> list[Value]:
    return [value for value in topological(values) if value.name in ("load", "masked_load")]


def same_strides(layout: BufferLayout, strides: Sequence[Expr]) -> bool:
    """Tells whether the strides agree in every dimension that has more than one element."""
    return all(
        a == b or (isinstance(size, int) and size <= 1)
        for size, a, b in zip(layout.sizes, layout.strides, strides, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Strided:
    """A tensor argument of an extern: a strided view of a buffer."""

    buffer: str
    layout: BufferLayout

    def __repr__(self) -> str:
        return f"{self.buffer}[{self.layout.sizes}, {self.layout.strides}, {self.layout.offset}]"


@dataclass(frozen=True, slots=True)
class ExternNode:
    """A call of an ATen operator."""

    name: str
    target: Any
    #: Constants, sizes, `Strided`, and lists of them.
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: Result buffers (None: not used).
    outputs: tuple[str | None, ...]
    #: The operator returns a tuple.
    unpack: bool
    origin: Origin
    #: Whether it has a side effect (random numbers), so that its order among such nodes is kept.
    sequential: bool = False
    #: It has no lowering. The epilogue (native matmuls only): epilogue, an activation of the
    #: result; residual, a tensor added after it; last_epilogue, an activation after that.
    fallback: bool = False
    after: tuple[str, ...] = ()
    epilogue: str = "none"
    residual: Strided | None = None
    last_epilogue: str = "none"
    #: The mutated input, whose memory the output shares.
    in_place: str | None = None
    _reads: frozenset[str] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def writes(self) -> tuple[str, ...]:
        return tuple(name for name in (*self.outputs, self.in_place) if name is not None)

    def tensors(self) -> Iterator[Strided]:
        stack: list[Any] = [*self.args, *self.kwargs.values(), self.residual]
        while stack:
            argument = stack.pop()
            if isinstance(argument, Strided):
                yield argument
            elif isinstance(argument, (list, tuple)):
                stack.extend(argument)

    def reads(self) -> frozenset[str]:
        if self._reads is None:
            object.__setattr__(
                self, "_reads", frozenset(tensor.buffer for tensor in self.tensors())
            )
        return self._reads  # type: ignore[return-value]


Node = LoopNode | ExternNode


@dataclass(slots=True)
class LoopProgram:
    """The loop IR of one graph; mutable while it is lowered and scheduled."""

    name: str
    buffers: dict[str, Buffer] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    #: The inputs for each placeholder a buffer name or, for an int, the sympy symbol it binds
    #: (None: not used).
    inputs: list[str] = field(default_factory=list)
    #: Buffer names, views of buffers, size expressions or None.
    outputs: list[str | Strided | Expr | None] = field(default_factory=list)
    output_names: set[str] = field(default_factory=set)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    #: Text of a symbolic float -> the buffer that holds it.
    numbers: dict[str, str] = field(default_factory=dict)
    #: A buffer -> an earlier version of the same storage that it contains.
    extends: dict[str, str] = field(default_factory=dict)
    #: Where loops run.
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    #: Buffers on other devices, which only operators read.
    elsewhere: set[str] = field(default_factory=set)
    #: The result of a matmul -> the dtype that its operator multiplies in.
    operands: dict[str, torch.dtype] = field(default_factory=dict)
    #: A buffer -> the operator of eager's that it is (a part of) the result of.
    operators: dict[str, Any] = field(default_factory=dict)
    #: Indices of saved outputs that are channels-last where eager's are not.
    channels_last: set[int] = field(default_factory=set)
    #: Names of the graph's convolutions whose results are.
    channels_last_outputs: frozenset[str] = frozenset()

    def add_temporary(
        self,
        name: str,
        sizes: Sequence[Expr],
        dtype: torch.dtype,
        order: Sequence[int] | None = None,
    ) -> Buffer:
        """Adds a buffer without gaps. order: its dimensions from the outermost in memory to the
        innermost."""
        order = range(len(sizes)) if order is None else order
        by_dim = dict(zip(order, contiguous_strides([sizes[k] for k in order]), strict=True))
        strides = tuple(by_dim[k] for k in range(len(sizes)))
        buffer = Buffer(name, dtype, BufferLayout(tuple(sizes), strides), BufferKind.TEMP)
        self.buffers[name] = buffer
        return buffer

    def with_earlier(self, names: Iterable[str]) -> set[str]:
        """Returns the buffers, and the earlier versions whose memory they contain."""
        texts: set[str] = set()
        for name in names:
            at: str | None = name
            while at is not None and at not in texts:
                texts.add(at)
                at = self.extends.get(at)
        return texts

    def writers(self) -> dict[str, list[Node]]:
        result: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.writes:
                result.setdefault(name, []).append(node)
        return result
