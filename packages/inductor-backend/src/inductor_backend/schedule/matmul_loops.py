"""Lowers matmuls and convolutions to loops, so that generated kernels may fuse their surroundings.

Chosen operator calls become loop nodes marked `is_matmul`: one sum over the last dimensions of a
value of the M dimensions times a value of the N dimensions; a bias is a separate node. The given
program is not changed. Operands are read through the strides that the operator would have seen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from inductor_backend.ir.index_expr import Expr, Index, contiguous_strides, reshape, variables
from inductor_backend.ir.nodes import (
    Buffer,
    BufferKind,
    BufferLayout,
    ExternNode,
    LoopNode,
    LoopProgram,
    Node,
    Store,
    Strided,
)
from inductor_backend.ir.ops import compute_dtype
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.values import Value, cast, const, load, make
from inductor_backend.kernels import unaligned_gemm
from tracer_core.plugin_api import operators

aten = operators("aten")

#: Element types that tensor cores multiply.
DTYPES = (torch.bfloat16, torch.float16, torch.float32)

#: Matmuls whose N or K is smaller stay with ATen, and those of fewer rows: one is a loop
#: (`lowering/matmul.py`), more are padded to a block.
LEAST, LEAST_ROWS = 16, 2

At = Sequence[Index]
Read = Callable[[At], Value]


@dataclass(frozen=True, slots=True)
class Sum:
    """A matmul over (outer dimensions..., K dimensions...)."""

    outer: tuple[Expr, ...]
    inner: tuple[Expr, ...]
    #: Its operands at a point. place: of the result in the operator's result.
    left: Callable[[At], Value]
    right: Callable[[At], Value]
    #: (operand, its index) or None.
    bias: Callable[[At], Value] | None = None


class MatmulLoops:
    """Rewrites calls of one program; `program` is a copy that grows."""

    def __init__(self, program: LoopProgram, sizes: SizeVars) -> None:
        buffers = {name: replace(buffer) for name, buffer in program.buffers.items()}
        self.program = replace(
            program, buffers=buffers, nodes=[], extends=dict(program.extends), operands={}
        )
        self.sizes = sizes

    def run(self, nodes: Sequence[Node], chosen: Collection[str] | None) -> tuple[str, ...]:
        """Rewrites the chosen calls (None: all that can be); returns their names."""
        done = []
        for node in nodes:
            result = None
            if isinstance(node, ExternNode) and (chosen is None or node.name in chosen):
                result = self.loops(node)
            if result is None:
                self.program.nodes.append(node)
            else:
                self.program.nodes += result
                done.append(node.name)
        return tuple(done)

    def loops(self, node: ExternNode) -> list[LoopNode] | None:
        """Returns the call as loops, None where it stays a call."""
        make_sum = _SUMS.get(node.target)
        if make_sum is None or node.kwargs or node.unpack or node.in_place is not None:
            return None
        (name,) = node.outputs
        tensors = list(node.tensors())
        dtypes = {self.program.buffers[tensor.buffer].dtype for tensor in tensors}
        if name is None or len(dtypes) != 1 or dtypes.pop() not in DTYPES:
            return None
        if (
            self.program.buffers[name].kind is not BufferKind.EXTERN
            or name in self.program.elsewhere
        ):
            return None
        result = make_sum(self, node)
        return None if result is None or self._small(result) else self._nodes(node, name, result)

    def _small(self, result: Sum) -> bool:
        """Returns whether the matmul is too small for tensor cores, by the captured sizes."""
        hint = self.sizes.hint
        terms = 1
        for size in result.inner:
            terms *= hint(size)
        return terms < LEAST or any(
            isinstance(size, int) and size == 0 for size in (*result.outer, *result.inner)
        )

    def _nodes(self, node: ExternNode, name: str, created: Sum) -> list[LoopNode]:
        target = self.program.buffers[name]
        target.kind = BufferKind.TEMP
        domain = (*created.outer, *created.inner)
        loops = variables(domain)
        value = make("mul", created.left(loops), created.right(loops))
        reduced = (*[False] * len(created.outer), *[True] * len(created.inner))
        place = loops[: len(created.outer)]
        result = (
            target
            if created.bias is None
            else self.program.add_temporary(f"{name}_product", created.outer, torch.float32)
        )
        self.program.operands[result.name] = self.program.buffers[
            next(iter(node.tensors())).buffer
        ].dtype
        stores = (Store((result.name,), place, value, "sum"),)
        nodes = [
            LoopNode(node.name, domain, reduced, stores, node.origin, node.after, is_matmul=True),
        ]
        if created.bias is not None:
            rows = variables(created.outer)
            total = make("add", load(result.name, rows, result.dtype), created.bias(rows))
            store = Store((name,), rows, cast(total, target.dtype))
            nodes.append(
                LoopNode(
                    f"{node.name}_bias",
                    created.outer,
                    (False,) * len(created.outer),
                    (store,),
                    node.origin,
                )
            )
        return nodes

    def read(self, operand: Strided) -> tuple[Buffer, Callable[[At], tuple[Index, ...]]]:
        """Returns the buffer to read an operand from, and the index in it. This is the buffer
        itself, in its own order of dimensions, where the operand is all of it (its computation may
        then fuse into the matmul as a prologue), else a buffer of the operand's layout on the same
        memory."""
        buffer = self.program.buffers[operand.buffer]
        order = _order(buffer.layout, operand.layout)
        if order is not None:
            return buffer, lambda at: tuple(at[k] for k in order)
        dims = _dims_in_memory(operand.layout)
        if (
            dims is not None
            and _dense(buffer.layout)
            and buffer.layout.numel == operand.layout.numel
        ):
            sizes = [operand.layout.sizes[k] for k in dims]
            return buffer, lambda at: reshape(buffer.layout.sizes, sizes, [at[k] for k in dims])
        name = f"{operand.buffer}_as{len(self.program.buffers)}"
        kind = BufferKind.INPUT if buffer.kind is BufferKind.INPUT else BufferKind.TEMP
        alias = Buffer(name, buffer.dtype, operand.layout, kind, buffer.storage)
        self.program.buffers[name] = alias
        self.program.extends[name] = operand.buffer
        return alias, tuple

    def element(self, operand: Strided) -> Read:
        """Reads an element of an operand, converted to the accumulation type."""
        buffer, place = self.read(operand)
        return lambda at: cast(load(buffer.name, place(at), buffer.dtype), torch.float32)


def _dense(layout: BufferLayout) -> bool:
    return layout.offset == 0 and layout.strides == contiguous_strides(layout.sizes)


def _dims_in_memory(layout: BufferLayout) -> tuple[int, ...] | None:
    """Returns the dimensions, outermost in memory first, of a dense layout, or of one whose last two
    dimensions are transposed; None for others."""
    *lead, rows, columns = range(len(layout.sizes))
    for dims in ((*lead, rows, columns), (*lead, columns, rows)):
        sizes, strides = ([numbers[k] for k in dims] for numbers in (layout.sizes, layout.strides))
        if _dense(BufferLayout(tuple(sizes), tuple(strides), layout.offset)):
            return dims
    return None


def _order(layout: BufferLayout, part: BufferLayout) -> tuple[int, ...] | None:
    """Returns for each dimension of a buffer the dimension of the operand that it is; None where
    the operand is another view."""
    if layout.offset != part.offset or len(layout.sizes) != len(part.sizes):
        return None
    dims = zip(layout.sizes, layout.strides, part.strides, strict=True)
    if layout.sizes == part.sizes and all(
        mine == theirs or _is_one(size) for size, mine, theirs in dims
    ):
        return tuple(range(len(layout.sizes)))
    wanted = list(zip(part.sizes, part.strides, strict=True))
    result = []
    for size, stride in zip(layout.sizes, layout.strides, strict=True):
        if (size, stride) not in wanted or wanted.count((size, stride)) > 1:
            return None
        result.append(wanted.index((size, stride)))
    return tuple(result)


def _matrices(loops: MatmulLoops, node: ExternNode) -> Sum | None:
    """Lowers mm, bmm and, with a bias first, addmm and baddbmm."""
    bias, a, b = node.args if len(node.args) == 3 else (None, *node.args)
    rows, columns, terms = a.layout.sizes[-2], b.layout.sizes[-1], a.layout.sizes[-1]
    few = loops.sizes.hint(rows) < LEAST_ROWS
    if few or any(loops.sizes.hint(size) < LEAST for size in (columns, terms)):
        return None
    batch = tuple(a.layout.sizes[:-2])
    left, right = loops.element(a), loops.element(b)
    *_, m, n, k = range(len(batch) + 3)
    lead = len(batch)
    return Sum(
        (*batch, rows, columns),
        (terms,),
        lambda at: left((*at[:lead], at[m], at[k])),
        lambda at: right((*at[:lead], at[k], at[n])),
        None if bias is None else _broadcast(loops, bias, (*batch, rows, columns)),
    )


def _broadcast(loops: MatmulLoops, bias: Strided, sizes: Sequence[Expr]) -> Read:
    read = loops.element(bias)
    lead = len(sizes) - len(bias.layout.sizes)
    shape = bias.layout.sizes

    def element(at: At) -> Value:
        return read([Index() if _is_one(shape[k]) else at[lead + k] for k in range(len(shape))])

    return element


def _is_one(size: Expr) -> bool:
    return isinstance(size, int) and size == 1


def _convolution(loops: MatmulLoops, node: ExternNode) -> Sum | None:
    """Lowers a convolution over images to an implicit matmul of patches by filters."""
    x, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
    if transposed or groups != 1 or x is None or len(x.layout.sizes) != 4:
        return None
    if not all(isinstance(n, int) for n in (*stride, *padding, *dilation)):
        return None
    (name,) = node.outputs
    assert name is not None
    images, filters, height, width = loops.program.buffers[name].layout.sizes
    _, channels, r, s = weight.layout.sizes
    if any(loops.sizes.hint(size) < LEAST for size in (filters, channels)):
        return None
    at_input, at_weight = loops.read(x), loops.element(weight)
    steps = [(list(n) * 2)[:2] for n in (stride, padding, dilation)]

    def patch(at: At) -> Value:
        tests: Value | None = None
        places = []
        for d in range(2):
            step, pad, dilate = (values[d] for values in steps)
            place = at[2 + d] * step + at[5 + d] * dilate + (-pad)
            if pad:
                test = _inside(place, x.layout.sizes[2 + d])
                tests = test if tests is None else make("bit_and", tests, test)
            places.append(place)
        buffer, order = at_input
        index = order((at[0], at[4], *places))
        if tests is None:
            return cast(load(buffer.name, index, buffer.dtype), torch.float32)
        zero = const(0, compute_dtype(buffer.dtype))
        result = make("masked_load", tests, zero, attr=(buffer.name, index, buffer.dtype))
        return cast(result, torch.float32)

    bias_at = None if bias is None else loops.element(bias)
    return Sum(
        (images, filters, height, width),
        (channels, r, s),
        patch,
        lambda at: at_weight((at[1], at[4], at[5], at[6])),
        None if bias_at is None else (lambda at: bias_at((at[1],))),
    )


def _inside(place: Index, size: Expr) -> Value:
    position = make("index", attr=place)
    low = make("ge", position, const(0, torch.int64))
    return make("bit_and", low, make("lt", position, make("index", attr=Index(size))))


_SUMS: dict[Any, Callable[[MatmulLoops, ExternNode], Sum | None]] = {
    **dict.fromkeys((aten.mm.default, aten.bmm.default), _matrices),
    **dict.fromkeys((aten.addmm.default, aten.baddbmm.default), _matrices),
    **dict.fromkeys((unaligned_gemm.mm, unaligned_gemm.matmul), _matrices),
    aten.convolution.default: _convolution,
}


def matmuls_as_loops(
    program: LoopProgram, sizes: SizeVars, chosen: Collection[str] | None = None
) -> tuple[LoopProgram, tuple[str, ...]]:
    """Returns a copy of the program in which the chosen calls (None: all that can be) are loops,
    and the names of those calls."""
    loops = MatmulLoops(program, sizes)
    return loops.program, loops.run(program.nodes, chosen)
