"""Base of flex_attention's Triton kernels: walks over the listed blocks of scores, with the program's
functions of scores inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from inductor_backend.codegen.common.arguments import KernelArguments
from inductor_backend.codegen.common.flex_call import Call
from inductor_backend.codegen.common.scalar_programs import Started
from inductor_backend.codegen.common.writer import CodeWriter
from inductor_backend.codegen.triton.expressions import pointer_type
from inductor_backend.codegen.triton.kernel import TritonKernel, function_text
from inductor_backend.codegen.triton.scalar_programs import TritonFunctionWriter
from inductor_backend.ir.index_expr import Expr
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.target import in_tensor_cores
from inductor_backend.kernels.flex_attention import Tiles, padded
from tracer_core.plugin_api import FLEX_UNMASKED_BLOCK

LOG2_E = 1 / math.log(2)

#: What a block of `scores` adds to the running maximum (`most`) and sum of powers of two (`total`) of
#: each row; the weighted `sums` so far are rescaled.
RUNNING_SOFTMAX = (
    "higher = tl.maximum(most, tl.max(scores, 1))",
    "level = tl.where(higher == float('-inf'), 0.0, higher)",
    "weights = tl.exp2(scores - level[:, None])",
    "rescale = tl.exp2(most - level)",
    "total = total * rescale + tl.sum(weights, 1)",
    "most = higher",
    "sums = sums * rescale[:, None]",
)


class ScoresWriter:
    """Writes a kernel over blocks of scores. Mutable.

    A block has queries along its first dimension and keys along its second; where programs walk over
    queries, it is the other way round.
    """

    label = "flex_attention"
    #: The position along which a program walks: "kv" or "q".
    walked = "kv"
    #: Programs that share the walk of a block, a power of two.
    splits = 1

    def __init__(self, call: Call, sizes: SizeVars, tiles: Tiles) -> None:
        self.call, self.sizes, self.tiles, self.flex = call, sizes, tiles, call.flex
        self.out = CodeWriter()
        self.arguments = KernelArguments("ks")
        self.pointer, self.size = self.arguments.pointer, self.arguments.size
        query, key = call.layout("query"), call.layout("key")
        self.batch, self.heads, self.rows, self.width = query.sizes
        self.key_batch, self.key_heads, self.columns, _ = key.sizes
        self.value_width = call.layout("value").sizes[3]
        limits = {"b": self.batch, "h": self.heads, "q": self.rows, "kv": self.columns}
        operands = {  # arguments are views that begin at their first element
            name: (dtype, replace(layout, offset=0))
            for name, (dtype, layout) in call.captured().items()
        }
        self.functions = TritonFunctionWriter(
            self.out, sizes, operands, call.numbers, self.pointer, self.size, limits,
            frozenset({"score", "grad", self.walked}),
            approximate=call.dtypes["query"] is not torch.float32,
        )  # fmt: skip
        transposed = self.walked == "q"
        self.row, self.column = (
            ("[None, :]", "[:, None]") if transposed else ("[:, None]", "[None, :]")
        )
        self.shape = "[COLUMNS, ROWS]" if transposed else "[ROWS, COLUMNS]"
        self.row_ok = "" if self._exact("q", self.rows, tiles.rows) else "row_ok"
        self.column_ok = "" if self._exact("kv", self.columns, tiles.columns) else "column_ok"
        masks = {"q": (self.row_ok, self.row), "kv": (self.column_ok, self.column)}
        self.functions.masks = {name: ok + at for name, (ok, at) in masks.items() if ok}
        self.started: dict[str, Started] = {}

    def _exact(self, position: str, size: Expr, tile: int) -> bool:
        """Returns whether no tile reaches beyond the last position. A walk goes to the end of the
        last listed block."""
        block = self.flex.block_size[("q", "kv").index(position)]
        ends = (tile, block) if self.walked == position and self.flex.pairs else (tile,)
        return isinstance(size, int) and all(size % end == 0 for end in ends)

    # arguments -----------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.out.line(text)

    # parts of kernels ----------------------------------------------------------------------------

    def ranges(self) -> None:
        """Writes the positions within a tile, and within heads."""
        self.line("in_rows = tl.arange(0, ROWS)")
        self.line("in_columns = tl.arange(0, COLUMNS)")
        self.line(f"width = tl.arange(0, {padded(self.width)})")
        self.line(f"wide = tl.arange(0, {padded(self.value_width)})")

    def place_of_rows(self) -> None:
        """Writes which rows of which head a program computes: `start`, `rows`, `b`, `h`, `shared` (the
        head of the keys)."""
        line = self.line
        line("pid = tl.program_id(0)")
        if self.splits > 1:
            line(f"split = pid % {self.splits}")
            line(f"pid = pid // {self.splits}")
        self.place("h", "b", self.heads, (self.rows, "ROWS"), last_first=True)
        shared = self.heads // self.key_heads
        line(f"shared = h // {shared}" if shared > 1 else "shared = h")
        self.ranges()
        line("rows = start + in_rows")
        if self.row_ok:
            line(f"row_ok = rows < {self.size(self.rows)}")

    def place(
        self, head: str, batch: str, heads: Expr, along: tuple[Expr, str], last_first: bool = False
    ) -> None:
        """Writes which head of which batch the program `pid` computes, and where its tile begins.
        along: positions and the length of a tile. last_first: the last tile has the longest walk in
        a causal mask. With listed blocks, whose walks differ, the longest of all heads come first; else
        the tiles of one head, which share its keys in the cache, run together."""
        line, count, (positions, length) = self.line, self.size(heads), along
        line(f"blocks = tl.cdiv({self.size(positions)}, {length})")
        line(f"{batch} = pid // (blocks * {count})")
        if not self.flex.pairs:
            line(f"start = (pid % blocks) * {length}")
            line(f"{head} = (pid // blocks) % {count}")
            return
        line(f"{head} = pid % {count}")
        line(f"tile = (pid // {count}) % blocks")
        line(f"start = {'(blocks - 1 - tile)' if last_first else 'tile'} * {length}")

    def start(self, name: str, texts: Sequence[str]) -> str:
        """Returns a pointer to an element of a tensor, by the texts of the first indices; an index of
        a dimension of size 1 is 0. (The argument is a view that begins at its first element.)"""
        layout = self.call.layout(name)
        parts = [self.pointer(name)]
        for size, stride, text in zip(layout.sizes, layout.strides, texts, strict=False):
            if not (isinstance(size, int) and size == 1):
                parts.append(f"{text}.to(tl.int64) * {self.size(stride)}")
        return " + ".join(parts)

    def of_tile(
        self, name: str, pointer: str, along: str, element: str, transposed: bool = False
    ) -> tuple[str, str]:
        """Returns the addresses of a tile of a head, and the argument that masks what does not exist.
        along: `in_rows` or `in_columns`; element: `width` or `wide`. transposed: elements come first."""
        places = ("[None, :]", "[:, None]") if transposed else ("[:, None]", "[None, :]")
        along_at, element_at = along + places[0], element + places[1]
        outer, inner = (self.size(stride) for stride in self.call.layout(name).strides[2:])
        ok = self.row_ok if along == "in_rows" else self.column_ok
        width = self.width if element == "width" else self.value_width
        masks = [ok + places[0]] if ok else []
        masks += [] if padded(width) == width else [f"({element_at} < {width})"]
        address = f"{pointer} + {along_at} * {outer} + {element_at} * {inner}"
        return address, f", mask={' & '.join(masks)}" if masks else ""

    def load(
        self, name: str, pointer: str, along: str, element: str, transposed: bool = False
    ) -> str:
        """Returns the load of a tile, see `of_tile`."""
        address, mask = self.of_tile(name, pointer, along, element, transposed)
        return f"tl.load({address}{mask and f'{mask}, other=0.0'})"

    def store(self, name: str, pointer: str, along: str, element: str, value: str) -> None:
        address, mask = self.of_tile(name, pointer, along, element)
        self.line(f"tl.store({address}, {value}{mask})")

    def load_of_rows(self, name: str, at: str, places: str, mask: str) -> str:
        """Returns the load of a number a row."""
        stride = self.size(self.call.layout(name).strides[2])
        masked = f", mask={mask}, other=0.0" if mask else ""
        return f"tl.load({at} + {places} * {stride}{masked})"

    def dot(self, left: str, right: str, also: str = "") -> str:
        precision = ""
        if self.call.dtypes["query"] is torch.float32:
            kind = "tf32" if in_tensor_cores(torch.float32, convolution=False) else "ieee"
            precision = f', input_precision="{kind}"'
        return f"tl.dot({left}, {right}{f', {also}' if also else ''}{precision})"

    def begin(self, *names: str) -> None:
        """Writes what functions of scores (of `names`) compute from nothing that changes in the
        innermost loop."""
        texts = {
            "score": "score", "b": "b", "h": "h", "q": f"rows{self.row}",
            "kv": f"columns{self.column}", "grad": "grad",
        }  # fmt: skip
        programs = {name: getattr(self.flex, name) for name in names}
        self.started = {
            name: self.functions.begin(program, texts, torch.float32)
            for name, program in programs.items()
            if program is not None
        }

    def walk(self, tile: Callable[[bool], None]) -> None:
        """Writes the loops over the listed blocks, first those that mask_mod is applied to, then the
        full ones; without a BlockMask over everything. tile: writes the loop's body for the tile that
        begins at `first`; its argument tells whether mask_mod is applied."""
        masked = self.flex.mask is not None
        if not self.flex.pairs:
            step, size = ("ROWS", self.rows) if self.walked == "q" else ("COLUMNS", self.columns)
            first, step = (
                (f"split * {step}", f"{self.splits} * {step}") if self.splits > 1 else ("0", step)
            )
            with self.out.block_python(f"for first in range({first}, {self.size(size)}, {step}):"):
                tile(masked)
            return
        for pair in (self.walked, f"full_{self.walked}"):
            if pair in self.flex.pairs:
                self._listed(pair, tile, masked and pair == self.walked)

    def _listed(self, pair: str, tile: Callable[[bool], None], masked: bool) -> None:
        """Writes the loop over the tiles of listed blocks."""
        other, block = self.flex.block_size if self.walked == "kv" else self.flex.block_size[::-1]
        step, size, length = (
            ("COLUMNS", self.columns, self.tiles.columns)
            if self.walked == "kv"
            else ("ROWS", self.rows, self.tiles.rows)
        )
        at = ("b", "h", f"(start // {other})")
        self.line(f"count = tl.load({self.start(f'{pair}_counts', at)})")
        self.line(f"listed = {self.start(f'{pair}_indices', at)}")
        stride = self.size(self.call.layout(f"{pair}_indices").strides[3])
        each: int | str = block // length
        if isinstance(size, int):
            each = min(block // length, -(-size // length))
        elif block == FLEX_UNMASKED_BLOCK:
            self.line(f"each = tl.cdiv({self.size(size)}, {step})")
            each = "each"
        steps = f"split, count * {each}, {self.splits}" if self.splits > 1 else f"0, count * {each}"
        with self.out.block_python(f"for step in range({steps}):"):
            self.line(f"block = tl.load(listed + (step // {each}) * {stride})")
            self.line(f"first = (block * {block} + (step % {each}) * {step}).to(tl.int32)")
            tile(masked)

    def long(self, text: str) -> str:
        """Returns a position in the innermost loop as a 64-bit integer."""
        if self.flex.pairs:
            return f"{text}.to(tl.int64)"
        return f"(tl.zeros([], tl.int64) + {text})"  # a Python number where Triton interprets

    def scored(self) -> str:
        """Writes score_mod; returns the scores over ln 2."""
        if self.flex.score is None:
            return "score"
        (result,) = self.functions.finish(self.started["score"])
        return f"({result}) * {LOG2_E!r}"

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return float(self.call.scale * (LOG2_E if self.flex.score is None else 1.0))

    def allowed(self, masked: bool) -> str:
        """Writes mask_mod where `masked`; returns where a score counts, "" for everywhere it exists
        in the walk."""
        result = self.functions.finish(self.started["mask"]) if masked else []
        walked = self.row_ok if self.walked == "q" else self.column_ok
        result += [f"{walked}[None, :]"] if walked else []
        return " & ".join(f"({condition})" for condition in result)

    def text(self, constants: Sequence[tuple[str, int]]) -> str:
        parameters = [*self.arguments.names, *(f"{name}: tl.constexpr" for name, _ in constants)]
        return function_text(parameters, self.out)

    def kernel(self, grid: tuple[tuple[Expr, int], ...]) -> TritonKernel:
        constants = (("ROWS", self.tiles.rows), ("COLUMNS", self.tiles.columns))
        return TritonKernel(
            self.text(constants),
            tuple(self.arguments.pointers),
            tuple(pointer_type(self.call.dtypes[name]) for name in self.arguments.pointers),
            tuple(self.arguments.sizes),
            grid,
            constants,
            self.tiles.warps,
            self.label,
            stages=self.tiles.stages,
            asserts=self.functions.asserts,
        )
