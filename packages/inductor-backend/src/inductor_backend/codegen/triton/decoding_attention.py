"""Writes attention of few queries as one Triton kernel: split keys, read once, with a running maximum
and sum of exponentials (Dao et al., "Flash-Decoding for long-context inference", 2023).

A program has a block of rows (the queries of all heads that share a head of keys) and every
`splits`-th block of keys. The one that finishes last, by a counter in memory, combines the parts of
all, in their order: results are the same in every run. Exponentials are powers of two.
"""

from __future__ import annotations

import math

import torch

from inductor_backend.codegen.common.arguments import KernelArguments
from inductor_backend.codegen.common.writer import CodeWriter
from inductor_backend.codegen.triton.expressions import pointer_type
from inductor_backend.codegen.triton.flex_scores import LOG2_E, RUNNING_SOFTMAX
from inductor_backend.codegen.triton.kernel import TritonKernel, function_text
from inductor_backend.ir.index_expr import Expr, exact_quotient, product
from inductor_backend.ir.nodes import ExternNode, LoopProgram, Strided
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.kernels.decoding_attention import COMBINED, decoding_tiles
from inductor_backend.kernels.flex_attention import padded

#: Tensors that a call needs besides: what programs found, in float32, and how many have finished.
PARTS, COUNTERS = "parts", "counters"
_BESIDES = {PARTS: torch.float32, COUNTERS: torch.int32}


class DecodingAttentionWriter:
    """Writes the kernel of an extern node. Mutable.

    tensors: its operands and results by the names of the kernel's pointers. programs: which share no
    rows. parts: float32 elements of a program's part (0: programs share no keys)."""

    def __init__(self, program: LoopProgram, node: ExternNode, sizes: SizeVars) -> None:
        self.call, out = node.target, node.writes[0]
        query, key, value, mask = node.args
        self.tensors: dict[str, Strided] = {"query": query, "key": key, "value": value}
        if mask is not None:
            self.tensors["mask"] = mask
        self.tensors["out"] = Strided(out, program.buffers[out].layout)
        self.dtypes = {name: program.buffers[t.buffer].dtype for name, t in self.tensors.items()}
        self.dtypes |= _BESIDES
        batch, heads, self.queries, self.depth = query.layout.sizes
        _, self.heads, self.keys, _ = key.layout.sizes
        self.width = value.layout.sizes[3]
        self.group = heads // self.heads
        self.rows = self.group * self.queries
        self.tiles = tiles = decoding_tiles(
            self.dtypes["query"],
            max(self.depth, self.width),
            self.rows,
            sizes.hint(batch) * self.heads,
            self.keys if isinstance(self.keys, int) else None,
        )
        self.blocks = -(-self.rows // tiles.rows)
        self.stored_rows = min(self.rows, tiles.rows)
        self.programs = product((batch, self.heads, self.blocks))
        sums = self.stored_rows * self.width
        #: Where what a part has of each row follows its sums.
        self.columns = {"most": sums, "total": sums + self.stored_rows}
        elements = -(-(sums + 2 * self.stored_rows) // 4) * 4  # parts begin at 16 bytes
        self.parts = elements if tiles.splits > 1 else 0
        self.arguments = KernelArguments("ks")
        self.out = CodeWriter()

    # addresses ------------------------------------------------------------------------------------

    def _stride(self, name: str, dim: int) -> str:
        """Returns a stride; a symbolic one shows its multiple of 16, for wide loads."""
        stride = self.tensors[name].layout.strides[dim]
        quotient = None if isinstance(stride, int) else exact_quotient(stride, 16)
        size = self.arguments.size
        return size(stride) if quotient is None else f"({size(quotient)} * 16)"

    def _at(self, name: str, *indices: str) -> str:
        """Returns a pointer to elements, by an index of each dimension ("": 0)."""
        layout = self.tensors[name].layout
        parts = [self.arguments.pointer(name)]
        for dim, index in enumerate(indices):
            if index and layout.strides[dim] != 0 and layout.sizes[dim] != 1:
                parts.append(f"{index} * {self._stride(name, dim)}")
        return " + ".join(parts)

    @staticmethod
    def _masked(*conditions: str, other: str = "") -> str:
        """Returns the arguments that mask a load or store ("" are conditions that always hold)."""
        needed = " & ".join(condition for condition in conditions if condition)
        return f", mask={needed}{other and f', other={other}'}" if needed else ""

    @staticmethod
    def _within(place: str, size: int, padded: int) -> str:
        return "" if size == padded else f"({place} < {size})"

    # the kernel -----------------------------------------------------------------------------------

    def write(self) -> TritonKernel:
        """Returns the kernel. Its pointers are names of `tensors`, `PARTS` and `COUNTERS`."""
        tiles, line = self.tiles, self.out.line
        with self.out.indented():
            self._place()
            line("most = tl.full([ROWS], float('-inf'), tl.float32)")
            line("total = tl.zeros([ROWS], tl.float32)")
            line(f"sums = tl.zeros([ROWS, {padded(self.width)}], tl.float32)")
            keys, step = self.arguments.size(self.keys), tiles.columns * tiles.splits
            seen = self._load_mask("seen", "(split * COLUMNS + in_columns)")
            # A number of steps that the compiler does not know: else the loads of one step would wait
            # for each other, which those of the steps ahead do not.
            count = f"tl.cdiv({keys} - split * COLUMNS, {step})"
            with self.out.block_python(f"for step in range(0, {count}):"):
                line(f"columns = (step * {tiles.splits} + split) * COLUMNS + in_columns")
                self._tile(seen)
            self._finish()
        constants = (("ROWS", tiles.rows), ("COLUMNS", tiles.columns), ("SPLITS", tiles.splits))
        pointers = self.arguments.pointers
        parameters = [*self.arguments.names, *(f"{name}: tl.constexpr" for name, _ in constants)]
        return TritonKernel(
            function_text(parameters, self.out),
            tuple(pointers),
            tuple(pointer_type(self.dtypes[name]) for name in pointers),
            tuple(self.arguments.sizes),
            ((self.programs, 1), (tiles.splits, 1)),
            constants,
            tiles.warps,
            "decoding_attention",
            stages=tiles.stages,
        )

    def _place(self) -> None:
        """Writes where the program is, and the load of its queries."""
        line = self.out.line
        line("pid = tl.program_id(0)")
        line("split = pid % SPLITS")
        line("place = (pid // SPLITS).to(tl.int64)")
        line(f"block = place % {self.blocks}")
        line(f"h = (place // {self.blocks}) % {self.heads}")
        line(f"b = place // {self.blocks * self.heads}")
        line("in_rows = tl.arange(0, ROWS)")
        line("in_columns = tl.arange(0, COLUMNS)")
        line(f"depth = tl.arange(0, {padded(self.depth)})[None, :]")
        line(f"wide = tl.arange(0, {padded(self.width)})[None, :]")
        self._row("", "in_rows")
        within = self._within("depth", self.depth, padded(self.depth))
        mask = self._masked(self._rows_ok, within, other="0.0")
        address = self._at("query", "b", "head[:, None]", "asked[:, None]", "depth")
        line(f"query = tl.load({address}{mask})")

    def _row(self, prefix: str, within: str) -> None:
        """Writes the head and the query of rows of the block. prefix: of the names."""
        line = self.out.line
        line(f"{prefix}row = block * ROWS + {within}")
        line(f"{prefix}head = h * {self.group} + {prefix}row // {self.queries}")
        line(f"{prefix}asked = {prefix}row % {self.queries}")

    def _row_ok(self, row: str) -> str:
        return self._within(row, self.rows, self.blocks * self.tiles.rows)

    @property
    def _rows_ok(self) -> str:
        ok = self._row_ok("row")
        return ok and f"{ok}[:, None]"

    def _column_ok(self, name: str = "key") -> str:
        """Returns where columns exist: "" where every block is whole, and all programs have as many.
        Keys and values have symbols of their own for one length."""
        length = self.tensors[name].layout.sizes[2]
        step = self.tiles.columns * self.tiles.splits
        exact = isinstance(length, int) and length % step == 0
        return "" if exact else f"(columns < {self.arguments.size(length)})"

    def _tile(self, seen: bool) -> None:
        """Writes the scores of a block of keys, and what they add. seen: whether there is a mask."""
        line = self.out.line
        for name, along, size in (("key", "depth", self.depth), ("value", "wide", self.width)):
            address = self._at(name, "b", "h", "columns[:, None].to(tl.int64)", along)
            within = self._within(along, size, padded(size))
            ok = self._column_ok(name)
            mask = self._masked(ok and f"{ok}[:, None]", within, other="0.0")
            line(f"{name} = tl.load({address}{mask})")
        if seen:
            self._load_mask("following", f"(columns + {self.tiles.columns * self.tiles.splits})")
        line(f"scores = {self._dot('query', 'tl.trans(key)')} * {self.call.scale * LOG2_E!r}")
        allowed = self._allowed(seen)
        if allowed:
            line(f"scores = tl.where({' & '.join(allowed)}, scores, float('-inf'))")
        for text in RUNNING_SOFTMAX:
            line(text)
        line(f"sums = {self._dot('weights.to(value.dtype)', 'value', ', sums')}")
        if seen:
            line("seen = following")

    def _load_mask(self, name: str, columns: str) -> bool:
        """Writes the load of a block's mask, a step ahead of its use. Returns whether there is one."""
        if "mask" not in self.tensors:
            return False
        address = self._at("mask", "b", "head[:, None]", "asked[:, None]", f"{columns}[None, :]")
        strides = self.tensors["mask"].layout.strides
        mask = self._masked(
            self._rows_ok if any(strides[dim] != 0 for dim in (1, 2)) else "",
            f"({columns} < {self.arguments.size(self.keys)})[None, :]" if strides[3] != 0 else "",
            other="0",
        )
        self.out.line(f"{name} = tl.load({address}{mask})")
        return True

    def _allowed(self, seen: bool) -> list[str]:
        """Writes what the mask adds to scores; returns where scores count."""
        allowed = [f"{ok}[None, :]"] if (ok := self._column_ok()) else []
        if self.call.causal:
            allowed.append("(columns[None, :] <= asked[:, None])")
        if seen and self.dtypes["mask"] is not torch.bool:
            self.out.line(f"scores += seen.to(tl.float32) * {LOG2_E!r}")
        elif seen and self.call.hidden == -math.inf:
            allowed.append("seen")
        elif seen:
            self.out.line(f"scores += tl.where(seen, 0.0, {self.call.hidden * LOG2_E!r})")
        return allowed

    def _dot(self, left: str, right: str, also: str = "") -> str:
        exact = ', input_precision="ieee"' if self.dtypes["query"] is torch.float32 else ""
        return f"tl.dot({left}, {right}{also}{exact})"

    def _finish(self) -> None:
        """Writes the result, or the part of it and, in the last program, the combination."""
        line, pointer = self.out.line, self.arguments.pointer
        if not self.parts:
            line("sums = sums / tl.where(total == 0.0, 1.0, total)[:, None]")
            self._store("", "sums")
            return
        stored = self._within("in_rows", self.stored_rows, self.tiles.rows)
        line(f"part = {pointer(PARTS)} + (place * SPLITS + split) * {self.parts}")
        mask = self._masked(stored and f"{stored}[:, None]", self._wide_ok)
        line(f"tl.store(part + in_rows[:, None] * {self.width} + wide, sums{mask})")
        for name, at in self.columns.items():
            line(f"tl.store(part + {at} + in_rows, {name}{self._masked(stored)})")
        line("tl.debug_barrier()")  # the counter's release covers the stores of all threads
        line(f"finished = tl.atomic_add({pointer(COUNTERS)} + place, 1, sem='acq_rel')")
        with self.out.block_python("if finished == SPLITS - 1:"):
            self._combine()
            line(f"tl.store({pointer(COUNTERS)} + place, 0)")  # for the next call

    def _combine(self) -> None:
        """Writes the sum of all programs' parts, for some rows at once."""
        line, rows, splits = self.out.line, self.stored_rows, self.tiles.splits
        step = max(1, min(COMBINED // (splits * padded(self.width)), self.tiles.rows))
        ok = self._within("of_row", rows, -(-rows // step) * step)
        mask = self._masked(ok and f"{ok}[None, :]", other="0.0")
        line(f"parts = {self.arguments.pointer(PARTS)} + place * {splits * self.parts}")
        line(f"parts += tl.arange(0, SPLITS)[:, None] * {self.parts}")
        with self.out.block_python(f"for start in range(0, {rows}, {step}):"):
            line(f"of_row = start + tl.arange(0, {step})")
            at = f"(of_row * {self.width})[None, :, None] + wide[None, :, :]"
            within = self._wide_ok and f"{self._wide_ok}[None, :, :]"
            masks = self._masked(ok and f"{ok}[None, :, None]", within, other="0.0")
            line(f"found = tl.load(parts[:, :, None] + {at}{masks})")
            for name, place in self.columns.items():
                line(f"{name}s = tl.load(parts + {place} + of_row[None, :]{mask})")
            line("top = tl.max(mosts, 0)")
            line("top = tl.where(top == float('-inf'), 0.0, top)")
            line("shares = tl.exp2(mosts - top[None, :])")
            line("overall = tl.sum(totals * shares, 0)")
            line("shares = shares / tl.where(overall == 0.0, 1.0, overall)[None, :]")
            line("result = tl.sum(found * shares[:, :, None], 0)")
            self._row("to_", "of_row")
            self._store("to_", "result", ok)

    def _store(self, prefix: str, value: str, ok: str = "") -> None:
        """Writes the store of rows of the result. ok: which of them exist in the block."""
        row_ok = self._row_ok(f"{prefix}row")
        rows = [f"{condition}[:, None]" for condition in (ok, row_ok) if condition]
        head, asked = (f"{prefix}{name}[:, None]" for name in ("head", "asked"))
        address = self._at("out", "b", head, asked, "wide")
        self.out.line(f"tl.store({address}, {value}{self._masked(*rows, self._wide_ok)})")

    @property
    def _wide_ok(self) -> str:
        return self._within("wide", self.width, padded(self.width))

    def parts_elements(self) -> Expr:
        """Returns the float32 elements of all programs' parts."""
        return product((self.programs, self.tiles.splits, self.parts))
