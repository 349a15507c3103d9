"""Decides which long reductions with few rows are split into chunks, and where (for GPUs).

Runs after inlining. A node is replaced by one that reduces each chunk into a buffer and others that
reduce the buffer (`split_reduction_loops`). Dimensions keep their order and the outermost reduction
dimensions are split, so that work on the same elements still fuses with the first kernel. Chunks have
equal length unless the size has no fitting divisor (prime or symbolic).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from inductor_backend.ir.index_expr import Expr, product
from inductor_backend.ir.nodes import LoopNode, LoopProgram, Node
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.schedule.split_reduction_loops import (
    PLACES,
    ReductionSplit,
    ReductionSplits,
    in_parts,
    in_two_passes,
    length_of_part,
)
from inductor_backend.torch_private import floor_div

#: Programs that a split reduction aims at: four for each processor.
PROGRAMS = 528

#: Rows from which a reduction is left whole.
ENOUGH_ROWS = 128

#: Least elements of a chunk, and of a row that is split.
MIN_PART, MIN_ROW = 512, 4096

#: The same for rows that are strided in memory, and how many of them a program takes.
MIN_COLUMN_PART, MIN_COLUMN, COLUMNS_OF_A_PROGRAM = 64, 256, 32

#: Longest chunk, in shortest chunks, where a divisor of the size gives few chunks.
LONG_PART = 16

#: So few unequal chunks are not worth their kernels.
UNEVEN_PARTS = 8

#: Long unequal chunks begin at multiples of so many elements, for wide loads.
ALIGNED = 16

#: Longest column that a program holds in registers where it is read again, and least number of
#: columns: a normalization of images is then one kernel instead of three.
MAX_HELD_COLUMN, HELD_COLUMNS = 1024, 64

#: Reductions whose chunks are combined by the same reduction (not Welford).
_AGAIN = frozenset({"sum", "prod", "max", "min", "any", "all"})

#: argmax and argmin take three more loops, so only rows so long are split.
LONG_ROW, LONG_COLUMN = 16384, 2048


def split_reductions(program: LoopProgram, sizes: SizeVars) -> list[str]:
    """Splits what it can; returns one line for each."""
    notes: list[str] = []
    nodes: list[Node] = []
    writers, readers = program.writers(), readers_of(program)
    for node in program.nodes:
        splits = None
        if isinstance(node, LoopNode) and not _is_read_again(program, node, sizes, readers):
            splits = _splits(program, node, sizes, writers)
        if splits is None:
            nodes.append(node)
            continue
        assert isinstance(node, LoopNode)
        notes.append(
            f"{node.name}: {' x '.join(str(chunks.parts) for chunks in splits.values())} parts"
        )
        across = reads_across(program, node, sizes) or _narrow(program, node, sizes) is not None
        known = isinstance(length_of_part(node, splits), int) and not any(
            chunks.uneven for chunks in splits.values()
        )
        make_nodes = in_parts if node.stores[0].reduce != "welford" or known else in_two_passes
        nodes += make_nodes(program, node, splits, across)
    program.nodes = nodes
    return notes


def _splits(
    program: LoopProgram, node: LoopNode, sizes: SizeVars, writers: Mapping[str, Sequence[Node]]
) -> ReductionSplits | None:
    """Returns how the node is split, None if it stays whole."""
    if len(node.stores) != 1 or node.stores[0].reduce not in (*_AGAIN, *PLACES, "welford"):
        return None
    rows = sizes.hint(
        product(size for size, r in zip(node.sizes, node.reduced, strict=True) if not r)
    )
    row = sizes.hint(product(size for size, r in zip(node.sizes, node.reduced, strict=True) if r))
    across = reads_across(program, node, sizes)
    narrow = None if across else _narrow(program, node, sizes)
    if narrow is not None:
        return _around_narrow(node, narrow, rows, row, sizes)
    if node.stores[0].reduce in PLACES:
        short = row < (LONG_COLUMN if across else LONG_ROW)
        if short or node.stores[0].value.dtype == torch.bool:
            return None
    if rows == 1 and (first := _columns_beside(program, node, sizes, writers)) is not None:
        dims = range(len(node.sizes))
        columns = sizes.hint(product(node.sizes[first:]))
        around = replace(node, reduced=tuple(p < first for p in dims))
        splits = _columns(around, columns, row // columns, sizes, writers) or {}
        return splits | {p: ReductionSplit(node.sizes[p], 1) for p in dims[first:]}
    if across:
        return _columns(node, rows, row, sizes, writers)
    if rows >= ENOUGH_ROWS or row < MIN_ROW:
        return None
    return _chunks(node, PROGRAMS // max(rows, 1), row, MIN_PART, sizes, writers)


def _columns(
    node: LoopNode, rows: int, row: int, sizes: SizeVars, writers: Mapping[str, Sequence[Node]]
) -> dict[int, ReductionSplit] | None:
    """Returns how sums of columns are split."""
    programs = -(-rows // COLUMNS_OF_A_PROGRAM)
    if row < MIN_COLUMN or programs * 2 > PROGRAMS:
        return None
    return _chunks(node, PROGRAMS // max(programs, 1), row, MIN_COLUMN_PART, sizes, writers)


def _chunks(
    node: LoopNode,
    wanted: int,
    row: int,
    shortest: int,
    sizes: SizeVars,
    writers: Mapping[str, Sequence[Node]],
) -> dict[int, ReductionSplit] | None:
    """Returns about `wanted` chunks of at least `shortest` elements."""
    wanted = min(wanted, row // shortest)
    if wanted < 2:
        return None
    splits = _outermost(node, wanted, sizes, _usual_parts(node, writers))
    parts = sizes.hint(product(chunks.parts for chunks in splits.values()))
    if splits and (parts * 4 >= wanted or (parts >= 8 and row <= parts * LONG_PART * shortest)):
        return splits
    return _uneven(node, wanted, sizes) if wanted >= UNEVEN_PARTS else None


def _columns_beside(
    program: LoopProgram, node: LoopNode, sizes: SizeVars, writers: Mapping[str, Sequence[Node]]
) -> int | None:
    """Returns the first of the innermost dimensions of a sum of all elements that are columns in another
    loop's sums, where both read one tensor (the gradients of a scale and of a bias). With the columns
    apart first, one kernel makes both."""
    if node.stores[0].reduce not in _AGAIN:
        return None
    total, own = product(node.sizes), _whole_operands(program, node, writers)
    for other in program.nodes:
        if not isinstance(other, LoopNode) or product(other.sizes) != total:
            continue
        count = sum(other.reduced)
        columns = product(other.sizes[count:])
        firsts = [p for p in range(1, len(node.sizes)) if product(node.sizes[p:]) == columns]
        if (
            firsts
            and 0 < count < len(other.sizes)
            and all(other.reduced[:count])
            and reads_across(program, other, sizes)
            and not own.isdisjoint(_whole_operands(program, other, writers))
        ):
            return firsts[-1]
    return None


def _whole_operands(
    program: LoopProgram, node: LoopNode, writers: Mapping[str, Sequence[Node]]
) -> set[str]:
    """Returns the tensors of as many elements as the node visits that it reads, or that the loops read
    which make these."""
    total = product(node.sizes)

    def operands(loop: LoopNode) -> set[str]:
        return {name for name in loop.reads() if program.buffers[name].layout.numel == total}

    result = operands(node)
    for name in list(result):
        for writer in writers.get(name, ()):
            if isinstance(writer, LoopNode) and product(writer.sizes) == total:
                result |= operands(writer)
    return result


def readers_of(program: LoopProgram) -> dict[str, list[LoopNode]]:
    """Maps each buffer to the loops that read it."""
    result: dict[str, list[LoopNode]] = {}
    for node in program.nodes:
        if isinstance(node, LoopNode):
            for name in node.reads():
                result.setdefault(name, []).append(node)
    return result


def _is_read_again(
    program: LoopProgram, node: LoopNode, sizes: SizeVars, readers: Mapping[str, Sequence[LoopNode]]
) -> bool:
    """Returns whether the columns fit into registers, and each of their elements also needs the
    reduction's result."""
    if not node.is_reduction:
        return False
    column = product(size for size, r in zip(node.sizes, node.reduced, strict=True) if r)
    count = product(size for size, r in zip(node.sizes, node.reduced, strict=True) if not r)
    if not isinstance(column, int) or column > MAX_HELD_COLUMN or sizes.hint(count) < HELD_COLUMNS:
        return False
    if not reads_across(program, node, sizes):
        return False
    full, names = product(node.sizes), list(node.writes)
    for name in names:  # grows
        for reader in readers.get(name, ()):
            if product(reader.sizes) == full and not reader.is_reduction:
                return True
            if product(reader.sizes) == count:
                names += [other for other in reader.writes if other not in names]
    return False


def reads_across(program: LoopProgram, node: LoopNode, sizes: SizeVars) -> bool:
    """Returns whether most of the node's loads are contiguous along an outer dimension, not a
    reduction one."""
    along = {
        False: dict.fromkeys(range(len(node.sizes)), 0),
        True: dict.fromkeys(range(len(node.sizes)), 0),
    }
    for load in node.loads():
        flat = program.buffers[load.buffer].layout.flat(load.attr[1])
        dims = flat.variables()
        if any(node.reduced[p] for p in dims):
            elements = sizes.hint(product(node.sizes[p] for p in dims))
            for p in dims:
                if flat.step(p) == 1:
                    along[node.reduced[p]][p] += elements
    return max(along[False].values(), default=0) > max(along[True].values(), default=0)


def _narrow(program: LoopProgram, node: LoopNode, sizes: SizeVars) -> int | None:
    """Returns the reduction dimension along which all loads that depend on it are contiguous, if it is
    so short that a row's elements are scattered over memory: the channels of a group in
    channels-last images."""
    places = {p for p, reduced in enumerate(node.reduced) if reduced}
    for p in places if len(places) > 1 else ():
        size = node.sizes[p]
        if not isinstance(size, int) or not 1 < size < COLUMNS_OF_A_PROGRAM:
            continue
        flats = [program.buffers[load.buffer].layout.flat(load.attr[1]) for load in node.loads()]
        reading = [flat for flat in flats if places <= flat.variables()]
        rows = (_is_dense([(flat.step(q), node.sizes[q]) for q in places]) for flat in reading)
        if reading and all(flat.step(p) == 1 for flat in reading) and not any(rows):
            return p
    return None


def _is_dense(loops: Sequence[tuple[Expr, Expr]]) -> bool:
    """Returns whether loops, as (step, size), visit contiguous memory."""
    if not all(isinstance(number, int) for loop in loops for number in loop):
        return False
    running = 1
    for step, size in sorted(loops):
        if step != running and size != 1:
            return False
        running *= size
    return True


def _around_narrow(
    node: LoopNode, narrow: int, rows: int, row: int, sizes: SizeVars
) -> ReductionSplits | None:
    """Splits such a reduction: each of the short dimension's elements is a chunk of its own, as are
    columns, and the other dimensions are split to keep the device busy."""
    short = sizes.hint(node.sizes[narrow])
    programs = -(-rows * short // COLUMNS_OF_A_PROGRAM)
    if node.stores[0].reduce in PLACES or row // short < MIN_COLUMN or programs * 2 > PROGRAMS:
        return None
    wanted = min(PROGRAMS // programs, row // short // MIN_COLUMN_PART)
    around = replace(node, reduced=tuple(r and p != narrow for p, r in enumerate(node.reduced)))
    splits = _outermost(around, wanted, sizes, set()) if wanted > 1 else {}
    return {narrow: ReductionSplit(short, 1), **splits}


def _usual_parts(node: LoopNode, writers: Mapping[str, Sequence[Node]]) -> set[int]:
    """Returns into how many chunks the loops that make its operands are split by their own outer
    dimensions."""
    numbers: set[int] = set()
    total = product(node.sizes)
    for load in node.loads():
        for writer in writers.get(load.buffer, ()):
            if isinstance(writer, LoopNode) and product(writer.sizes) == total:
                parts: Expr = 1
                for size in writer.sizes[:-1]:
                    parts = product((parts, size))
                    if isinstance(parts, int):
                        numbers.add(parts)
    return numbers


def _outermost(
    node: LoopNode, wanted: int, sizes: SizeVars, usual: set[int]
) -> dict[int, ReductionSplit]:
    """Cuts whole dimensions while there are few chunks, then by a divisor of the next: a usual one,
    so that the loops line up, or the nearest from below."""
    splits, next_one, wanted = _whole(node, wanted, sizes)
    size = None if next_one is None else node.sizes[next_one]
    if next_one is not None and isinstance(size, int):
        near = [
            n
            for n in usual
            if not splits and size % n == 0 and wanted <= 4 * n <= 16 * wanted and n > 1
        ]
        parts = min(near, key=lambda n: abs(n - wanted), default=0)
        parts = parts or next(n for n in range(wanted, 0, -1) if size % n == 0)
        if parts > 1:
            splits[next_one] = ReductionSplit(parts, size // parts)
    return splits


def _uneven(node: LoopNode, wanted: int, sizes: SizeVars) -> dict[int, ReductionSplit] | None:
    """Cuts whole dimensions while there are few chunks, then the next into chunks that may be
    unequal."""
    splits, next_one, wanted = _whole(node, wanted, sizes)
    if next_one is None:
        return splits or None
    size = node.sizes[next_one]
    length = -(-sizes.hint(size) // wanted)
    length = -(-length // ALIGNED) * ALIGNED if length > 2 * ALIGNED else length
    splits[next_one] = ReductionSplit(_quotient_up(size, length), length, uneven=True)
    return splits


def _whole(
    node: LoopNode, wanted: int, sizes: SizeVars
) -> tuple[dict[int, ReductionSplit], int | None, int]:
    """Returns the outermost reduction dimensions that are cut whole, the next one, and how many
    chunks that may have."""
    splits: dict[int, ReductionSplit] = {}
    for p, size in enumerate(node.sizes):
        if not node.reduced[p]:
            continue
        count = sizes.hint(size)
        if count > wanted:
            return splits, p if wanted > 1 else None, wanted
        if count > 1:
            splits[p] = ReductionSplit(size, 1)
            wanted //= count
    return splits, None, wanted


def _quotient_up(size: Expr, length: int) -> Expr:
    """Returns how many chunks of that length hold `size` elements."""
    if isinstance(size, int):
        return -(-size // length)
    return floor_div(size + (length - 1), length)
