"""The table of lowerings, and the context in which they run.

A lowering turns one ATen node into views, loop nodes or extern nodes through a `Lowering`. It
returns a `Ref` (or a tuple of them) with the sizes and dtype of ``node.meta["val"]``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch

from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.index_expr import Expr, Index, contiguous_strides, simplify, variables
from inductor_backend.ir.nodes import (
    Buffer,
    BufferKind,
    BufferLayout,
    ExternNode,
    LoopNode,
    LoopProgram,
    Origin,
    Store,
    Strided,
    same_strides,
)
from inductor_backend.ir.ops import COPIED_DTYPES, MEMORY_DTYPES, compute_dtype
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.values import ScalarValue, Value, cast, const, make
from inductor_backend.ir.views import Ref, broadcast
from inductor_backend.kernels import strided_copy
from inductor_backend.lowering.cat_chains import Chain
from tracer_core.plugin_api import DECOMPOSED, operators

aten = operators("aten")

LOWERINGS: dict[Any, Callable[..., Any]] = {}

Body = Callable[[Sequence[Index]], Value]
_Rule = TypeVar("_Rule", bound=Callable[..., Any])


def lower(*targets: Any) -> Callable[[_Rule], _Rule]:
    """Registers the lowering of operators; registering one twice is an error."""

    def register(fn: _Rule) -> _Rule:
        for target in targets:
            if target in LOWERINGS:
                raise ValueError(f"{target} has a lowering already: {LOWERINGS[target]}")
            LOWERINGS[target] = fn
        return fn

    return register


def from_zero(body: Body, dtype: torch.dtype) -> Body:
    """Returns the body of a sum of one element: it begins with 0, so that the sum of -0 is 0."""
    return lambda at: make("add", body(at), const(0, dtype))


class Lowering:
    """The context of lowerings: the growing program and the current `node`. Mutable.

    `refs`: what earlier nodes were lowered to; `chains`, `versions`: concatenations that share a
    buffer (`cat_chains`); `scattered`: scatters (`scatter.Target`); `in_place`: node -> the input that
    its scatter writes to; `last`: nodes whose images are channels-last; `bits`: name of a 0/1 buffer
    -> the bools that it was cast from (`dropout`). `rng_nodes`: how many dropouts generate random
    numbers in kernels (0: none may); `rng_count`: how many did so far, from `seeds`."""

    def __init__(self, program: LoopProgram, sizes: SizeVars, gpu: bool = False) -> None:
        self.program, self.sizes, self.gpu = program, sizes, gpu
        self.node: torch.fx.Node = None  # type: ignore[assignment]  # set before every lowering
        self._count = 0
        self.copies: dict[Any, Ref] = {}
        self.refs: dict[torch.fx.Node, Any] = {}
        self.chains: dict[torch.fx.Node, Chain] = {}
        self.versions: dict[torch.fx.Node, Buffer] = {}
        self.scattered: dict[torch.fx.Node, Any] = {}
        self.in_place: dict[torch.fx.Node, Buffer] = {}
        self.last: set[torch.fx.Node] = set()
        self.bits: dict[str, Ref] = {}
        self.rng_nodes, self.rng_count = 0, 0
        self.seeds: Ref | None = None

    def sum_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Returns the dtype of sums over as many terms as rows or pixels, which may cancel:
        float64, but on GPUs, which sum short parts, at least float32."""
        return torch.float32 if self.gpu and dtype != torch.float64 else torch.float64

    # facts about the current node ----------------------------------------------------------------

    def meta(self, position: int | None = None) -> torch.Tensor:
        """Returns the fake result of the node (or of its output number `position`)."""
        value = self.node.meta["val"]
        result: torch.Tensor = value if position is None else value[position]
        return result

    def shape(self, position: int | None = None) -> tuple[Expr, ...]:
        return self.sizes.exprs(self.meta(position).shape)

    def strides(self, position: int | None = None) -> tuple[Expr, ...]:
        """Returns the result's strides: eager's, or channels-last where the graph's images are."""
        if self.node in self.last and len(sizes := self.shape(position)) in (3, 4):
            return last_strides(sizes)
        return self.sizes.exprs(self.meta(position).stride())

    def used_outputs(self) -> set[int]:
        """Returns which outputs of a node with several have readers."""
        places = [user.args[1] for user in self.node.users if user.target is operator.getitem]
        return {place for place in places if isinstance(place, int)}

    def origin(self, label: str | None = None) -> Origin:
        target = self.node.target
        name = label or getattr(target, "_opname", None) or getattr(target, "__name__", str(target))
        return Origin(self.node.meta.get("user_frame", "?"), self.node.name, str(name).strip("_"))

    # making buffers and nodes --------------------------------------------------------------------

    def new_name(self, prefix: str) -> str:
        """Returns a name that is unique in the program."""
        self._count += 1
        return f"{prefix}{self._count - 1}"

    def buffer(
        self,
        sizes: Sequence[Expr],
        dtype: torch.dtype,
        strides: Sequence[Expr] | None = None,
        kind: BufferKind = BufferKind.TEMP,
        offset: Expr = 0,
    ) -> Buffer:
        """Adds a buffer, row-major unless strides are given."""
        layout = BufferLayout(
            tuple(sizes),
            tuple(strides) if strides is not None else contiguous_strides(sizes),
            offset,
        )
        result = Buffer(self.new_name("buf"), dtype, layout, kind)
        self.program.buffers[result.name] = result
        if self.node is not None:
            self.program.operators[result.name] = self.node.meta.get(DECOMPOSED, self.node.name)
        return result

    def add_loop(
        self,
        sizes: Sequence[Expr],
        reduced: Sequence[bool],
        stores: Sequence[Store],
        label: str | None = None,
        after: tuple[str, ...] = (),
    ) -> LoopNode:
        node = LoopNode(
            self.new_name("op"),
            tuple(sizes),
            tuple(reduced),
            tuple(stores),
            self.origin(label),
            after,
        )
        self.program.nodes.append(node)
        return node

    def pointwise(
        self,
        body: Body,
        sizes: Sequence[Expr] | None = None,
        dtype: torch.dtype | None = None,
        strides: Sequence[Expr] | None = None,
        label: str | None = None,
        exactly: bool = False,
    ) -> Ref:
        """Adds a buffer filled with body(index); sizes, dtype and strides default to the node's.
        exactly: keeps these strides even where they leave gaps."""
        if sizes is None:
            sizes = self.shape()
            strides = self.strides() if strides is None else strides
        dtype = self.meta().dtype if dtype is None else dtype
        assert strides is not None or not exactly
        buffer = self.buffer(sizes, dtype, strides if exactly else self.dense(sizes, strides))
        index = variables(sizes)
        self.add_loop(
            sizes,
            [False] * len(sizes),
            [Store((buffer.name,), index, cast(body(index), dtype))],
            label,
        )
        return Ref.of(buffer)

    def as_output(self, value: Ref, position: int | None = None, label: str = "to") -> Ref:
        """Returns a value in the shape and dtype of an output of the node."""
        shaped, dtype = value.reshape(self.shape(position)), self.meta(position).dtype
        if shaped.dtype == dtype:
            return shaped
        return self.pointwise(shaped.at, shaped.sizes, dtype, label=label)

    @classmethod
    def dense(cls, sizes: Sequence[Expr], strides: Sequence[Expr] | None) -> tuple[Expr, ...]:
        """Returns the strides where they fill memory without gaps or overlap; where there are gaps
        only, strides without them in the same order, as torch.empty_like has them; else row-major.
        """
        if strides is None:
            return contiguous_strides(sizes)
        if not all(isinstance(stride, int) for stride in strides):
            return tuple(strides)  # symbolic: a functional graph's result is dense
        if cls.is_dense(sizes, strides):
            return tuple(strides)
        if not all(isinstance(size, int) and size for size in sizes):
            return contiguous_strides(sizes)
        result, step, reach = dict.fromkeys(range(len(sizes)), 1), 1, 1
        # From the innermost dimension; sizes are ints here, which the checker cannot see.
        pairs: Any = zip(sizes, strides, strict=True)
        for place, (size, stride) in sorted(
            enumerate(pairs), key=lambda pair: (pair[1][1], -pair[0])
        ):
            if size == 1:
                continue
            if stride < reach:
                return contiguous_strides(sizes)  # two elements may share memory
            result[place], step, reach = step, step * size, stride * (size - 1) + reach
        return tuple(result.values())

    @staticmethod
    def is_dense(sizes: Sequence[Expr], strides: Sequence[Expr]) -> bool:
        """Checks that strides fill memory without gaps or overlap. False where symbols leave that
        open."""
        steps = [
            (stride, size)
            for size, stride in zip(sizes, strides, strict=True)
            if not (isinstance(size, int) and size == 1)
        ]
        expected: Expr = 1
        while steps:
            step = next((step for step in reversed(steps) if step[0] == expected), None)
            if step is None:
                return False
            steps.remove(step)
            expected = simplify(expected * step[1])
        return True

    def reduction(
        self,
        kind: str,
        body: Body,
        sizes: Sequence[Expr],
        dims: Iterable[int],
        dtype: torch.dtype,
        label: str | None = None,
        squares: torch.dtype | None = None,
    ) -> tuple[Ref, ...]:
        """Reduces body over dims of the domain; results keep the dims with size 1. squares: dtype of
        the second result of "welford" (None: that of the first)."""
        if all(sizes[k] == 1 for k in dims):
            return self._reduction_of_one(kind, body, sizes, dtype, label)
        reduced = [k in set(dims) for k in range(len(sizes))]
        outer_sizes = [1 if reduced[k] else size for k, size in enumerate(sizes)]
        dtypes = [dtype, squares or dtype] if kind == "welford" else [dtype]
        buffers = [self.buffer(outer_sizes, dtype) for dtype in dtypes]
        index = variables(sizes)
        place = tuple(Index() if reduced[k] else index[k] for k in range(len(sizes)))
        store = Store(tuple(buffer.name for buffer in buffers), place, body(index), kind)
        self.add_loop(sizes, reduced, [store], label)
        return tuple(Ref.of(buffer) for buffer in buffers)

    def _reduction_of_one(
        self, kind: str, body: Body, sizes: Sequence[Expr], dtype: torch.dtype, label: str | None
    ) -> tuple[Ref, ...]:
        """Computes a reduction whose reduced dims all have size 1 (or that has none) without a
        loop."""
        if kind in ("argmax", "argmin"):
            return (self.pointwise(lambda at: const(0, dtype), sizes, dtype, label=label or kind),)
        simple = kind not in ("sum", "welford") or not dtype.is_floating_point
        value = self.pointwise(
            body if simple else from_zero(body, dtype), sizes, dtype, label=label or kind
        )
        if kind != "welford":
            return (value,)
        # The squared distance of one element from its mean: 0, or NaN where it is infinite or NaN.
        squares = self.pointwise(
            lambda at: make("sub", body(at), body(at)), sizes, dtype, label=label or kind
        )
        return value, squares

    def scan(
        self,
        kind: str,
        body: Body,
        sizes: Sequence[Expr],
        dim: int,
        results: Sequence[tuple[torch.dtype, Sequence[Expr] | None]],
        label: str | None = None,
    ) -> tuple[Ref, ...]:
        """Computes the running values of body along `dim`. results: dtype and strides of each
        output."""
        buffers = [
            self.buffer(sizes, dtype, self.dense(sizes, strides)) for dtype, strides in results
        ]
        index = variables(sizes)
        store = Store(tuple(b.name for b in buffers), index, body(index), scan=kind)
        self.add_loop(sizes, [k == dim for k in range(len(sizes))], [store], label)
        return tuple(Ref.of(buffer) for buffer in buffers)

    def copy(
        self,
        ref: Ref,
        strides: Sequence[Expr] | None = None,
        label: str = "copy",
        exactly: bool = False,
        again: bool = False,
    ) -> Ref:
        """Copies the view's elements into a buffer of its own. Cached: each copy is made once.
        again: makes another one."""
        key = (
            ref.buffer.name,
            ref.sizes,
            ref.index,
            tuple(strides) if strides is not None else None,
            exactly,
        )
        if key in self.copies and not again:
            return self.copies[key]
        if ref.dtype in MEMORY_DTYPES | COPIED_DTYPES:
            result = self.pointwise(ref.at, ref.sizes, ref.dtype, strides, label, exactly)
        else:
            result = self._strided_copy(ref, strides, label, exactly)
        self.copies[key] = result
        return result

    def _strided_copy(
        self, ref: Ref, strides: Sequence[Expr] | None, label: str, exactly: bool
    ) -> Ref:
        """Copies a view of a dtype that loops do not hold."""
        layout = ref.strided()
        if layout is None:
            raise unsupported(
                "lower", f"a copy of {ref.dtype} from where no strides lead", self.node
            )
        wanted = strides if exactly else self.dense(ref.sizes, strides)
        result = self.buffer(ref.sizes, ref.dtype, wanted, BufferKind.EXTERN)
        inputs = [Strided(ref.buffer.name, layout), list(result.layout.strides)]
        self.add_call(strided_copy.copy, inputs, [result], label=label)
        return Ref.of(result)

    def strided(
        self, ref: Ref, strides: Sequence[Expr] | None = None, exactly: bool = False
    ) -> Strided:
        """Returns the view as an operator's argument, copied where no strides describe it or where
        they are not the requested ones, which include those of size-1 dimensions: some operators
        choose their result's layout by them. exactly: a copy keeps gaps between rows, too."""
        layout = ref.strided()
        if layout is None or (strides is not None and not same_strides(layout, strides)):
            ref = self.copy(ref, strides, exactly=exactly)
            layout = ref.buffer.layout
        if strides is not None and same_strides(layout, strides):
            layout = BufferLayout(layout.sizes, tuple(strides), layout.offset)
        return Strided(ref.buffer.name, layout)

    def extern(
        self, target: Any, args: Sequence[Any], kwargs: dict[str, Any] | None = None, **how: Any
    ) -> Ref:
        """Calls an operator that returns one tensor: see `externs`."""
        (result,) = self.externs(target, args, kwargs, **how)
        assert result is not None
        return result

    def externs(
        self,
        target: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any] | None = None,
        *,
        used: set[int] | None = None,
        label: str | None = None,
        strides: Sequence[Expr] | None = None,
        **traits: Any,
    ) -> tuple[Ref | None, ...]:
        """Calls an ATen operator with the node's result metadata. used: the needed outputs (None:
        all). strides: of the results, where they are not those of the metadata. traits: see
        `add_call`. Returns None for unused outputs."""
        values = self.node.meta["val"]
        metas = list(values) if isinstance(values, (tuple, list)) else [values]
        buffers = [
            self.buffer(
                self.sizes.exprs(m.shape),
                m.dtype,
                self.sizes.exprs(m.stride()) if strides is None else strides,
                BufferKind.EXTERN,
            )
            if isinstance(m, torch.Tensor) and (used is None or k in used)
            else None
            for k, m in enumerate(metas)
        ]
        for result, value in zip(buffers, metas, strict=True):
            if result is not None and value.device != self.program.device:
                self.program.elsewhere.add(result.name)
        self.add_call(
            target, args, buffers, kwargs, label, unpack=isinstance(values, (tuple, list)), **traits
        )
        return tuple(Ref.of(buffer) if buffer is not None else None for buffer in buffers)

    def add_call(
        self,
        target: Any,
        args: Sequence[Any],
        outputs: Sequence[Buffer | None],
        kwargs: dict[str, Any] | None = None,
        label: str | None = None,
        unpack: bool = False,
        **traits: Any,
    ) -> None:
        """Adds the node of an operator that fills these buffers. traits: the other fields of
        `ExternNode`."""
        names = tuple(None if buffer is None else buffer.name for buffer in outputs)
        name, origin = self.new_name("op"), self.origin(label)
        self.program.nodes.append(
            ExternNode(name, target, tuple(args), kwargs or {}, names, unpack, origin, **traits)
        )

    def meta_device(self) -> torch.device | None:
        """Returns the device of the node's (first) result."""
        values = self.node.meta["val"]
        for value in values if isinstance(values, (tuple, list)) else (values,):
            if isinstance(value, torch.Tensor):
                return value.device
        return None

    def to_device(self, ref: Ref) -> Ref:
        """Copies to the device of the loops, by ATen. Cached."""
        key = (ref.buffer.name, ref.sizes, ref.index, "device")
        if key not in self.copies:
            layout = ref.strided()
            assert layout is not None
            result = self.buffer(ref.sizes, ref.dtype, layout.strides, BufferKind.EXTERN)
            strided, to = Strided(ref.buffer.name, layout), {"device": self.program.device}
            self.add_call(aten._to_copy.default, [strided], [result], to, "to")
            self.copies[key] = Ref.of(result)
        return self.copies[key]

    def number(self, text: str) -> ScalarValue:
        """Returns a symbolic float scalar. text: the Python expression that computes it."""
        name = self.program.numbers.setdefault(text, f"number{len(self.program.numbers)}")
        if name not in self.program.buffers:
            self.program.buffers[name] = Buffer(
                name, torch.float64, BufferLayout((), ()), BufferKind.INPUT
            )
        return ScalarValue(text, name)

    # making values -------------------------------------------------------------------------------

    def element(self, operand: Any, position: Sequence[Index], dtype: torch.dtype) -> Value:
        """Returns the operand (view, scalar or size), broadcast at the position, cast to dtype."""
        if isinstance(operand, Ref):
            return cast(operand.at(broadcast(position, operand.sizes)), dtype)
        if isinstance(operand, (bool, int, float, ScalarValue)) or hasattr(operand, "free_symbols"):
            return const(operand, dtype)
        raise unsupported("lower", f"cannot use {operand!r} as an element", self.node)

    def common_dtype(self, *operands: Any) -> torch.dtype:
        """Returns torch's promoted dtype of tensors and scalars, given as arguments of the node."""
        result: Any = None
        for argument in operands:
            fake = argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument
            if isinstance(fake, (torch.SymInt, torch.SymFloat)):
                fake = 1 if isinstance(fake, torch.SymInt) else 1.0
            result = (
                fake
                if result is None
                else torch.empty((), dtype=torch.result_type(result, fake))
                if (not isinstance(result, torch.Tensor) or not isinstance(fake, torch.Tensor))
                else fake.new_empty(fake.shape, dtype=torch.result_type(result, fake))
            )
        return (
            result.dtype if isinstance(result, torch.Tensor) else torch.result_type(result, result)
        )


def last_strides(sizes: Sequence[Expr]) -> tuple[Expr, ...]:
    """Returns channels-last strides of images, or of sequences (N, C, L)."""
    _, channels, *inner = sizes
    dense = contiguous_strides((*inner, channels))
    return (simplify(dense[0] * inner[0]), 1, *dense[:-1])


def normalize_dims(dims: Any, rank: int) -> list[int]:
    """Returns dimensions as non-negative ints; all of them for None or an empty list."""
    if dims is None or dims == []:
        return list(range(rank))
    return (
        sorted({d % rank if rank else 0 for d in ([dims] if isinstance(dims, int) else dims)})
        if rank
        else []
    )


__all__ = [
    "LOWERINGS",
    "Lowering",
    "aten",
    "compute_dtype",
    "last_strides",
    "lower",
    "normalize_dims",
]
