"""One fused body as one C++ function.

In: a `KernelBody`, its `LoopNest`, the layouts of its buffers. Out: a `KernelText`. What always holds:
sizes and strides are run-time arguments, so kernels that differ only in them have the same text and
are compiled once; a value is computed in the outermost loop that has all its variables; rows are
shared among threads when there is enough work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from inductor_backend.codegen.cpp import vectors
from inductor_backend.codegen.cpp.expressions import (
    C_TYPES,
    CPP_OPS,
    constant_text,
    memory_type,
)
from inductor_backend.codegen.cpp.loops import COLUMN_TILE, WIDEST_TILE, LoopNest, walk
from inductor_backend.codegen.cpp.ordered import SCANNERS, Scanner, combined
from inductor_backend.codegen.cpp.reducers import BLOCK, REDUCERS, Reducer, column_reducer
from inductor_backend.codegen.cpp.streaming import STREAMED, streamed_buffers
from inductor_backend.codegen.cpp.tiling import ACROSS, ALONG, Tiling, tiling
from inductor_backend.codegen.index_text import index_text
from inductor_backend.codegen.writer import CodeWriter
from inductor_backend.index_expr import Expr, Index, contiguous_strides, product, simplify
from inductor_backend.loop_ir.nodes import Program, Store
from inductor_backend.loop_ir.values import Value, topological
from inductor_backend.ops import OPS
from inductor_backend.schedule.fused_body import KernelBody, Phase
from inductor_backend.size_vars import SizeVars

#: Work (rough scalar instructions) from which a parallel region pays.
PARALLEL_WORK = 120_000

#: The same for loops in vectors: several times as fast, so as much more work. Threads are asked from about 5 us on
#: (an addition of 68,000 elements); a parallel region takes 1 to 3.
VECTOR_WORK = 480_000

#: Cost of an element up to which a column kernel adds up that many points of its rows at a time.
COLUMN_POINTS = ((10, 8), (30, 4))

#: Constants up to this size stay in the text; larger ones become arguments.
LITERAL = 8

#: Elements from which one row is shared among threads, and the number of parts it is cut into.
LONG_ROW = 131_072
ROW_PARTS = 16

NAME = "@NAME@"


@dataclass(frozen=True, slots=True)
class KernelText:
    """text: the functions, with `@NAME@` for the name. pointers: storages, in argument order. sizes: the
    int64 arguments that follow. label: for the name."""

    text: str
    pointers: tuple[str, ...]
    sizes: tuple[Expr, ...]
    label: str


class KernelWriter:
    """Writes one kernel. Mutable."""

    def __init__(self, program: Program, body: KernelBody, nest: LoopNest, sizes: SizeVars) -> None:
        self.program, self.body, self.nest, self.sizes = program, body, nest, sizes
        self.out = CodeWriter()
        self.pointers: dict[str, str] = {}
        self.arguments: list[Expr] = []
        self.size_names: dict[Expr, str] = {}
        self.written = {program.buffers[name].storage for name in body.writes}
        self.registers: dict[str, str] = {}
        self.scanners: list[tuple[Store, Scanner]] = []
        self.streamed = streamed_buffers(program, body, nest, sizes)
        self.block_start = "0"  # of the innermost loop's present block
        self.tiling = tiling(program, body, nest, sizes)
        self.rows, self.inner = self._split()
        self.variables = self._name_loops()
        self.counter = 0
        self.in_vectors = False
        # A kernel that comes back to its tile must find it in the cache.
        once = sum(bool(phase.loop) for phase in body.phases) == 1
        self.widest = WIDEST_TILE if once else COLUMN_TILE

    # loops and sizes -----------------------------------------------------------------------------

    def _split(self) -> tuple[list[int], list[int]]:
        """(loops shared among threads, loops inside), as loop numbers. A pointwise kernel's last loop is
        inside; a column kernel's vectorised loop is neither."""
        outer = list(range(len(self.nest.outer)))
        reduced = list(range(len(outer), len(self.nest.sizes)))
        if reduced:
            return [k for k in outer if k != self.nest.column], reduced
        return outer[:-1], outer[-1:]

    def _name_loops(self) -> list[str]:
        names = [""] * len(self.nest.sizes)
        for place, loop in enumerate(self.rows):
            names[loop] = f"r{place}"
        for place, loop in enumerate(self.inner):
            names[loop] = f"i{place}"
        if self.nest.column is not None:
            names[self.nest.column] = "c"
        self.loop_size = {}
        for loop, size in enumerate(self.nest.sizes):
            self.loop_size[loop] = f"n{loop}"
            self.arguments.append(size)
        # A stride that is the product of the last loops is written so: same text for other sizes.
        running: Expr = 1
        text: list[str] = []
        for loop in reversed(range(len(self.nest.sizes))):
            running = simplify(running * self.nest.sizes[loop])
            text.insert(0, f"n{loop}")
            if not (isinstance(running, int) and running <= 1):
                self.size_names.setdefault(
                    running, "(" + " * ".join(text) + ")" if len(text) > 1 else text[0]
                )
        return names

    def size(self, expr: Expr) -> str:
        """The text of a size, stride or offset."""
        if isinstance(expr, int) and abs(expr) <= LITERAL and expr not in self.size_names:
            return f"{expr}" if expr >= 0 else f"({expr})"
        if expr not in self.size_names:
            self.size_names[expr] = f"s{len(self.arguments)}"
            self.arguments.append(expr)
        return self.size_names[expr]

    def pointer(self, buffer: str) -> str:
        storage = self.program.buffers[buffer].storage
        return self.pointers.setdefault(storage, f"p{len(self.pointers)}")

    def address(self, buffer: str, index: Sequence[Index], names: dict[Value, str]) -> str:
        flat = walk(self.program.buffers[buffer].layout.flat(index), self.nest)
        return index_text(flat, self.variables, names.__getitem__, self.size, "/")

    # values --------------------------------------------------------------------------------------

    def level(self, value: Value) -> int:
        """0: once a row; k: in the k-th inner loop; one more than those: depends on the column."""
        loops = {self.nest.place[p] for p in value.variables}
        if self.nest.column in loops:
            return len(self.inner) + 1
        return max((self.inner.index(k) + 1 for k in loops if k in self.inner), default=0)

    def value_text(self, value: Value, names: dict[Value, str]) -> str:
        if value.name in ("load", "masked_load"):
            return self.load_text(value, names)
        if value.name == "index":
            text = index_text(walk(value.attr, self.nest), self.variables, names.__getitem__, self.size, "/")
            return f"(int64_t)({text})"
        if value.name == "wrap_index":
            (a,) = (names[x] for x in value.args)
            return f"{a} < 0 ? {a} + {self.size(value.attr)} : {a}"
        if value.name == "check_index":
            (a,) = (names[x] for x in value.args)
            return f"(uint64_t){a} < (uint64_t){self.size(value.attr)} ? {a} : (tc_fail(TC_BAD_INDEX), (int64_t)0)"
        return CPP_OPS[value.name](value, *(names[arg] for arg in value.args))

    def load_text(self, value: Value, names: dict[Value, str]) -> str:
        buffer = value.buffer
        if buffer in self.body.registers:
            return self.registers[buffer]
        text = self.place_text(value, names)
        if buffer in self.body.row_buffers:
            return text
        # An index that torch rejects was replaced by 0, which is not there.
        for size in self.may_be_empty(value.attr[1]):
            text = f"({self.size(size)} == 0 ? {memory_type(value.attr[2])}{{}} : {text})"
        if value.attr[2] in (torch.bfloat16, torch.float16):
            text = f"tc_to_float({text})"
        if value.name == "masked_load":
            return f"{names[value.args[0]]} ? {text} : {names[value.args[1]]}"
        return text

    def place_text(self, value: Value, names: dict[Value, str]) -> str:
        """The memory that a load reads."""
        buffer = value.buffer
        if buffer in self.body.row_buffers:
            return f"row_{self.row_number(buffer)}[{self.row_position()}]"
        if self.tiling is not None and value in self.tiling.staged:
            row = f"({self.variables[self.tiling.across]} - tile_start)"
            along = f"{self.variables[self.inner[-1]]} - {self.block_start}"
            return f"{self.tiling.staged[value]}[{row} * {ALONG} + {along}]"
        return f"{self.pointer(buffer)}[{self.address(buffer, value.attr[1], names)}]"

    def may_be_empty(self, index: Sequence[Index]) -> list[Expr]:
        """Sizes of checked dimensions of an access that may be 0."""
        checked = [v.attr for i in index for v in i.indirect_values() if v.name == "check_index"]
        return [size for size in dict.fromkeys(checked) if not self.sizes.is_positive(size)]

    def row_number(self, buffer: str) -> int:
        return list(self.body.row_buffers).index(buffer)

    def row_position(self) -> str:
        """Number of the current element within the row."""
        strides = contiguous_strides([self.nest.sizes[k] for k in self.inner])
        parts = [
            self.variables[k] if stride == 1 else f"{self.size(stride)} * {self.variables[k]}"
            for k, stride in zip(self.inner, strides, strict=True)
        ]
        return " + ".join(parts) or "0"

    def emit(self, values: Iterable[Value], level: int, names: dict[Value, str]) -> None:
        """Statements for the values of that level that have no name yet (operands come first)."""
        for value in values:
            if value in names or self.level(value) > level:
                continue
            if value.name == "constant":
                names[value] = constant_text(*value.attr)
                continue
            text = self.value_text(value, names)
            name = f"t{self.counter}"
            self.counter += 1
            names[value] = name
            kind = C_TYPES[value.dtype]
            narrow = value.dtype in (torch.int8, torch.uint8, torch.int16)
            self.out.line(f"const {kind} {name} = {f'({kind})({text})' if narrow else text};")

    def store(self, store: Store, names: dict[Value, str]) -> None:
        (name,) = store.buffers
        self.write_to(name, store, names[store.value], names)

    def write_to(self, name: str, store: Store, text: str, names: dict[Value, str]) -> None:
        """One value into one buffer of the store."""
        if name in self.body.row_buffers:
            self.out.line(f"row_{self.row_number(name)}[{self.row_position()}] = {text};")
            return
        place = f"{self.pointer(name)}[{self.address(name, store.index, names)}]"
        if name in self.streamed:
            place = f"{self.streamed[name]}[{self.variables[self.inner[-1]]} - {self.block_start}]"
        statement = combined(store.combine or "set", place, text, self.program.buffers[name].dtype)
        empty = [f"{self.size(size)} != 0" for size in self.may_be_empty(store.index)]
        self.out.line(f"if ({' && '.join(empty)}) {statement}" if empty else statement)

    # the function --------------------------------------------------------------------------------

    def write(self) -> KernelText:
        """The text of the kernel."""
        with self.out.indented():
            self._rows()
            if self.streamed:
                self.out.line("tc_stream_end();")
        label = "_".join(dict.fromkeys(origin.op for origin in self.body.origins))
        parameters = self._parameters()
        names = [*self.pointers.values(), *(f"n{k}" for k in range(len(self.nest.sizes)))]
        names += [f"s{k}" for k in range(len(self.nest.sizes), len(self.arguments))]
        head = CodeWriter()
        # A clone for a short row of constant length adds its lanes up one by one: 3 to 17 times slower.
        row = bool(self.nest.reduced) and self.nest.column is None
        kept = "noinline, noclone" if row else "noinline"
        width = "int64_t width, " if self.nest.column is not None else ""
        head.line(
            f"static __attribute__(({kept})) void {NAME}_range(int64_t begin, int64_t end, {width}{parameters}) {{"
        )
        head.lines += self.out.lines
        head.line("}")
        self._dispatch(head, parameters, ", ".join(names))
        return KernelText(head.text(), tuple(self.pointers), tuple(self.arguments), label[:48] or "empty")

    def _parameters(self) -> str:
        parts = []
        for storage, name in self.pointers.items():
            const = "" if storage in self.written else "const "
            parts.append(f"{const}{memory_type(self.program.buffers[storage].dtype)}* __restrict {name}")
        parts += [f"int64_t n{k}" for k in range(len(self.nest.sizes))]
        parts += [f"int64_t s{k}" for k in range(len(self.nest.sizes), len(self.arguments))]
        return ", ".join(parts)

    def _dispatch(self, out: CodeWriter, parameters: str, names: str) -> None:
        """The function that shares the range among threads."""
        sizes = " * ".join(f"n{k}" for k in range(len(self.nest.sizes))) or "1"
        column = self.nest.column
        most = max((PARALLEL_WORK if not self.in_vectors else VECTOR_WORK) // self._cost(), 1)
        with out.block(f"static void {NAME}({parameters})"):
            if column is not None:
                others = " * ".join(f"n{k}" for k in self.rows) or "1"
                out.line(
                    f"const int64_t width = tc_width(n{column} * {others}, n{column}, {sizes} > {most}, {self.widest});"
                )
                names = f"width, {names}"
            out.line(f"const int64_t total = {self._total()};")
            # Without a point nothing may be read either.
            empty = f"{sizes} == 0" if self._is_pointwise() else "total == 0"
            out.line(f"if ({empty}) return;  // the first row would be divided out of a size that may be 0")
            with out.block(f"if (total > 1 && {sizes} > {most} && tc_threads() > 1)"):
                out.line("const int64_t parts = tc_threads();")
                out.line("#pragma omp parallel for schedule(static) num_threads(parts)")
                with out.block("for (int64_t part = 0; part < parts; ++part)"):
                    out.line(
                        f"{NAME}_range(tc_part(total, part, parts), tc_part(total, part + 1, parts), {names});"
                    )
            with out.block("else"):
                out.line(f"{NAME}_range(0, total, {names});")

    def _tiles(self) -> str:
        return f"((n{self.nest.column} + width - 1) / width)"

    def _total(self) -> str:
        """The number of rows, or of elements where there is one row only."""
        rows = [self._row_count(k) for k in self.rows]
        if self.nest.column is not None:
            rows.append(self._tiles())
        elif not rows and not self.nest.reduced:
            rows = [f"n{k}" for k in self.inner]
        return " * ".join(rows) or "1"

    def _cost(self) -> int:
        values = topological(self.body.values())
        return 2 + sum(2 if v.name in ("load", "masked_load") else OPS[v.name].cost for v in values)

    def _rows(self) -> None:
        if not self.rows and not self.nest.reduced:
            self._phase(self.body.phases[0], {}, whole=False)
            return
        loops = self._counters()
        self._start_counters(loops)
        with self.out.block("for (int64_t row = begin; row < end; ++row)"):
            if self.nest.column is not None:
                self.out.line("const int64_t c0 = tile * width;")
                self.out.line(f"const int64_t lanes = tc_least(width, n{self.nest.column} - c0);")
            for number, dtype in enumerate(self.body.row_buffers.values()):
                self.out.line(f"alignas(64) {C_TYPES[dtype]} row_{number}[{self._row_capacity()}];")
            names: dict[Value, str] = {}
            for phase in self.body.phases:
                if self.tiling is not None:
                    self._tile(phase, self.tiling)
                elif self.nest.column is not None:
                    self._column_phase(phase, names)
                else:
                    self._phase(phase, names, whole=True)
            self._step_counters(loops)

    def _counters(self) -> list[tuple[str, str]]:
        """(variable, size) of what the row number counts, outermost first."""
        loops = [(self._row_variable(loop), self._row_count(loop)) for loop in self.rows]
        if self.nest.column is not None:
            loops.append(("tile", self._tiles()))
        return loops

    def _row_count(self, loop: int) -> str:
        """How often a loop over rows goes round: a tiled one counts tiles."""
        tiled = self.tiling is not None and loop == self.tiling.across
        return f"((n{loop} + {ACROSS - 1}) / {ACROSS})" if tiled else f"n{loop}"

    def _row_variable(self, loop: int) -> str:
        tiled = self.tiling is not None and loop == self.tiling.across
        return "tile" if tiled else self.variables[loop]

    def _start_counters(self, loops: list[tuple[str, str]]) -> None:
        """The variables of the first row. They are divided out once and then counted: rows may be short."""
        for place, (variable, size) in enumerate(loops):
            after = [other for _, other in loops[place + 1 :]]
            text = "begin" if not after else f"begin / ({' * '.join(after)})"
            self.out.line(f"int64_t {variable} = {text}" + (f" % {size};" if place else ";"))

    def _step_counters(self, loops: list[tuple[str, str]]) -> None:
        if not loops:
            return
        text = f"++{loops[0][0]};"
        for variable, size in loops[1:]:
            text = f"if (++{variable} == {size}) {{ {variable} = 0; {text} }}"
        self.out.line(text)

    def _row_capacity(self) -> int:
        bound = self.sizes.upper(product(self.nest.sizes[k] for k in self.inner))
        assert bound is not None
        capacity = 16
        while capacity < bound:
            capacity *= 2
        return capacity

    # tiles ---------------------------------------------------------------------------------------

    def _tile(self, phase: Phase, tiles: Tiling) -> None:
        """`ACROSS` rows, `ALONG` elements of each at a time."""
        across, inner = tiles.across, self.inner[-1]
        row, along = self.variables[across], self.variables[inner]
        self.block_start = "b"
        self.out.line(f"const int64_t tile_start = tile * {ACROSS};")
        self.out.line(f"const int64_t tile_end = tc_least(tile_start + {ACROSS}, n{across});")
        for load, name in tiles.staged.items():
            self.out.line(f"alignas(64) {memory_type(load.attr[2])} {name}[{ACROSS * ALONG}];")
        with self.out.block(f"for (int64_t b = 0; b < n{inner}; b += {ALONG})"):
            self.out.line(f"const int64_t length = tc_least({ALONG}, n{inner} - b);")
            for count in (str(ACROSS), "tile_end - tile_start"):  # the first with a constant number of rows
                with self.out.block(
                    f"if (tile_end - tile_start {'==' if count.isdigit() else '!='} {ACROSS})"
                ):
                    self._stage(tiles, count, row, along)
            with self.out.block(f"for (int64_t {row} = tile_start; {row} < tile_end; ++{row})"):
                values, names = _loop_values(phase), dict[Value, str]()
                self.emit(values, 0, names)
                self._vector_loop(phase, values, [], names, inner, "b", "b + length", "length")

    def _stage(self, tiles: Tiling, count: str, row: str, along: str) -> None:
        """Reads the tile of each operand along its own memory."""
        turned = [load for load in tiles.staged if count == str(ACROSS) and vectors.turns(load)]
        self.variables[tiles.across], self.variables[self.inner[-1]] = "tile_start", "b"
        for load in turned:
            flat = walk(self.program.buffers[load.buffer].layout.flat(load.attr[1]), self.nest)
            source = f"{self.pointer(load.buffer)} + ({self.address(load.buffer, load.attr[1], {})})"
            step = self.size(flat.coefficient(self.inner[-1]))
            self.out.line(f"{vectors.TURN}({tiles.staged[load]}, {ALONG}, {source}, {step}, length);")
        self.variables[tiles.across], self.variables[self.inner[-1]] = row, along
        others = [load for load in tiles.staged if load not in turned]
        if not others:
            return
        columns = self.out.block(f"for (int64_t {along} = b; {along} < b + length; ++{along})")
        with columns, self.out.block(f"for (int64_t q = 0; q < {count}; ++q)"):
            self.variables[tiles.across] = "(tile_start + q)"
            for load in others:
                name = tiles.staged[load]
                source = f"{self.pointer(load.buffer)}[{self.address(load.buffer, load.attr[1], {})}]"
                self.out.line(f"{name}[q * {ALONG} + {along} - b] = {source};")
            self.variables[tiles.across] = row

    # rows of contiguous elements -----------------------------------------------------------------

    def _phase(self, phase: Phase, names: dict[Value, str], whole: bool) -> None:
        """The row's own stores, then the loop over the row. whole: the loop covers the row (else begin to
        end, the part of one thread)."""
        needed = _loop_values(phase)
        row_values = topological(v for s in phase.row for v in s.roots)
        empty = self._empty()
        self.emit(row_values if empty else [*row_values, *needed], 0, names)
        for store in phase.row:
            self.store(store, names)
        if not phase.loop:
            return
        reducers = [self._reducer(store, k) for k, store in enumerate(phase.reductions)]
        self._start(reducers)
        self.scanners = self._scanners(phase, "{type} {name} = {start};")
        with self._unless(empty):
            scope = dict(names)
            self.emit(needed, 0, scope)
            if self._is_long(phase, reducers):
                self._in_parts(phase, needed, reducers, scope)
            else:
                self._nest(1, phase, needed, reducers, scope, ("0", "") if whole else ("begin", "end"))
        for store, reducer in reducers:
            for buffer, text in zip(store.buffers, reducer.results, strict=True):
                register = f"x{self.counter}"
                self.counter += 1
                self.out.line(f"const {C_TYPES[self.body.registers[buffer]]} {register} = {text};")
                self.registers[buffer] = register

    def _empty(self) -> str:
        """The condition that the inner loops have nothing to do, or "" if that cannot be here. What they read is read
        before they begin where it can be, and of an operand without elements nothing may be read at all."""
        if self._is_pointwise():  # then the kernel has returned
            return ""
        sizes = [k for k in self.inner if not self.sizes.is_positive(self.nest.sizes[k])]
        return " || ".join(f"n{k} == 0" for k in sizes)

    def _unless(self, condition: str) -> contextlib.AbstractContextManager[None]:
        return self.out.block(f"if (!({condition}))") if condition else contextlib.nullcontext()

    def _is_pointwise(self) -> bool:
        return all(not phase.row and not phase.reductions for phase in self.body.phases)

    def _start(self, reducers: list[tuple[Store, Reducer]]) -> None:
        for _, reducer in reducers:
            for line in reducer.start:
                self.out.line(line)

    def _is_long(self, phase: Phase, reducers: list[tuple[Store, Reducer]]) -> bool:
        """The only row of the kernel, long enough to share among threads, and it can be cut."""
        plain = not phase.stores and not phase.scans
        one_row = not self.rows and len(self.inner) == 1 and self.nest.column is None and plain
        long = self.sizes.hint(product(self.nest.sizes)) >= LONG_ROW
        return one_row and long and bool(reducers) and all(reducer.merge for _, reducer in reducers)

    def _in_parts(
        self,
        phase: Phase,
        values: list[Value],
        reducers: list[tuple[Store, Reducer]],
        names: dict[Value, str],
    ) -> None:
        """The row in `ROW_PARTS` parts, merged in order: the result does not depend on how many threads there are."""
        for _, reducer in reducers:
            for kind, name in reducer.state:
                self.out.line(f"{kind} {name}s[{ROW_PARTS}];")
        self.out.line("#pragma omp parallel for schedule(static)")
        with self.out.block(f"for (int64_t q = 0; q < {ROW_PARTS}; ++q)"):
            size = f"n{self.inner[0]}"
            self.out.line(
                f"const int64_t low = tc_part({size}, q, {ROW_PARTS}), high = tc_part({size}, q + 1, {ROW_PARTS});"
            )
            self._start(reducers)
            self._nest(1, phase, values, reducers, dict(names), ("low", "high"))
            for _, reducer in reducers:
                for _, name in reducer.state:
                    self.out.line(f"{name}s[q] = {name};")
        with self.out.block(f"for (int64_t q = 0; q < {ROW_PARTS}; ++q)"):
            for _, reducer in reducers:
                self.out.line(reducer.merge)

    def _reducer(self, store: Store, number: int) -> tuple[Store, Reducer]:
        assert store.reduce is not None
        name = f"a{self.counter}"
        self.counter += 1
        return store, REDUCERS[store.reduce](name, store.value.dtype, self.body.registers[store.buffers[0]])

    def _nest(
        self,
        depth: int,
        phase: Phase,
        values: list[Value],
        reducers: list[tuple[Store, Reducer]],
        names: dict[Value, str],
        bounds: tuple[str, str],
    ) -> None:
        if not self.inner:  # a kernel on single elements
            self._open(reducers)
            self._elements(phase, values, reducers, names, 0, "0")
            self._close(reducers, "1")
            return
        loop = self.inner[depth - 1]
        variable, size = self.variables[loop], f"n{loop}"
        if depth < len(self.inner):
            with self.out.block(f"for (int64_t {variable} = 0; {variable} < {size}; ++{variable})"):
                scope = dict(names)
                self.emit(values, depth, scope)
                self._nest(depth + 1, phase, values, reducers, scope, bounds)
            return
        start, stop = bounds[0], bounds[1] or size
        if any(r.blocked for _, r in reducers) or self.streams(phase):
            with self.out.block(f"for (int64_t b = {start}; b < {stop}; b += {BLOCK})"):
                self.out.line(f"const int64_t length = tc_least({BLOCK}, {stop} - b);")
                self._vector_loop(phase, values, reducers, names, loop, "b", "b + length", "length")
        else:
            with self.out.block(""):
                self._vector_loop(phase, values, reducers, names, loop, start, stop, f"({stop} - {start})")

    def _vector_loop(
        self,
        phase: Phase,
        values: list[Value],
        reducers: list[tuple[Store, Reducer]],
        names: dict[Value, str],
        loop: int,
        start: str,
        stop: str,
        length: str,
    ) -> None:
        variable = self.variables[loop]
        streams = self.streams(phase)
        self.block_start = start
        if vectors.fits(self, phase, values, reducers, names, loop):
            self.in_vectors = True
            vectors.write(self, phase, values, reducers, names, loop, (start, stop, length))
            return
        for store in streams:
            kind = memory_type(self.program.buffers[store.buffers[0]].dtype)
            self.out.line(f"alignas(64) {kind} {self.streamed[store.buffers[0]]}[{BLOCK}];")
        self._open(reducers)
        clauses = [r.clause for _, r in reducers]
        one_by_one = phase.in_order and self.nest.reduced
        fills = all(s.value.name == "constant" for s in phase.loop)  # GCC makes memset of it, unless told how
        if not one_by_one and not fills and all(clause is not None for clause in clauses):
            self.out.line(" ".join(["#pragma omp simd", *(c for c in clauses if c)]))
        with self.out.block(f"for (int64_t {variable} = {start}; {variable} < {stop}; ++{variable})"):
            self._elements(phase, values, reducers, dict(names), len(self.inner), f"{variable} - {start}")
        self._close(reducers, length)
        self.variables[loop] = start
        for store in streams:
            (name,) = store.buffers
            place = f"{self.pointer(name)} + {self.address(name, store.index, {})}"
            block = self.streamed[name]
            self.out.line(f"tc_stream({place}, {block}, {length} * (int64_t)sizeof({block}[0]));")
        self.variables[loop] = variable

    def streams(self, phase: Phase) -> list[Store]:
        """The phase's stores that leave through a block."""
        return [store for store in phase.stores if store.buffers[0] in self.streamed]

    def _scanners(self, phase: Phase, declaration: str) -> list[tuple[Store, Scanner]]:
        """What the phase's scans carry along a row, declared."""
        found = []
        for store in phase.scans:
            name = f"a{self.counter}"
            self.counter += 1
            dtype = self.program.buffers[store.buffers[0]].dtype
            scanner = SCANNERS[store.scan or ""](name, store.value.dtype, dtype)
            for kind, state, start in scanner.state:
                self.out.line(declaration.format(type=kind, name=state, start=start))
            found.append((store, scanner))
        return found

    def _scan(self, names: dict[Value, str], lane: str) -> None:
        """One step of every scan, and what it gives."""
        for store, scanner in self.scanners:
            at = f"({self.row_position()})"
            self.out.line(scanner.step.format(v=names[store.value], at=at, l=lane))
            for buffer, text in zip(store.buffers, scanner.results, strict=True):
                self.write_to(buffer, store, text.format(l=lane), names)

    def _open(self, reducers: list[tuple[Store, Reducer]]) -> None:
        for _, reducer in reducers:
            for line in reducer.open:
                self.out.line(line)

    def _close(self, reducers: list[tuple[Store, Reducer]], length: str) -> None:
        for _, reducer in reducers:
            for line in reducer.close:
                self.out.line(line.format(length=length, squares="tc_squares_of"))

    def _elements(
        self,
        phase: Phase,
        values: list[Value],
        reducers: list[tuple[Store, Reducer]],
        names: dict[Value, str],
        level: int,
        local: str,
    ) -> None:
        self.emit(values, level, names)
        for store in phase.stores:
            self.store(store, names)
        self._scan(names, "")
        for store, reducer in reducers:
            self.out.line(reducer.step.format(v=names[store.value], at=self.row_position(), local=local))

    # rows side by side ---------------------------------------------------------------------------

    def _column_phase(self, phase: Phase, names: dict[Value, str]) -> None:
        if phase.row:
            values = topological(v for s in phase.row for v in s.roots)
            self.emit(values, 0, names)
            with self._lanes():
                scope = dict(names)
                self.emit(values, len(self.inner) + 1, scope)
                for store in phase.row:
                    self.store(store, scope)
        if not phase.loop:
            return
        values, empty = _loop_values(phase), self._empty()
        if not empty:
            self.emit(values, 0, names)
        lanes = (
            f"{{type}} {{name}}[{self.widest}]; for (int64_t l = 0; l < lanes; ++l) {{name}}[l] = {{start}};"
        )
        self.scanners = self._scanners(phase, "alignas(64) " + lanes)
        reducers = []
        for store in phase.reductions:
            name = f"a{self.counter}"
            self.counter += 1
            kind = self.body.registers[store.buffers[0]]
            reducer = column_reducer(store.reduce or "", name, store.value.dtype, kind)
            reducers.append((store, reducer))
            for type_, array, start in reducer.arrays:
                self.out.line(f"alignas(64) {type_} {array}[{self.widest}];")
                self.out.line(f"for (int64_t l = 0; l < lanes; ++l) {array}[l] = {start};")
        with self._unless(empty):
            scope = dict(names)
            self.emit(values, 0, scope)
            self._column_nest(1, phase, values, reducers, scope)
        for store, reducer in reducers:
            for buffer, text in zip(store.buffers, reducer.results, strict=True):
                self.registers[buffer] = text

    def _lanes(self):  # type: ignore[no-untyped-def]  # a context manager of CodeWriter
        self.out.line("#pragma omp simd")
        block = self.out.block("for (int64_t l = 0; l < lanes; ++l)")
        return _WithLine(block, self.out, "const int64_t c = c0 + l;")

    def _column_nest(
        self, depth: int, phase: Phase, values: list[Value], reducers: list, names: dict[Value, str]
    ) -> None:
        if depth <= len(self.inner):
            loop = self.inner[depth - 1]
            variable = self.variables[loop]
            with self.out.block(""):
                self.out.line(f"int64_t {variable} = 0;")
                if depth == len(self.inner):
                    self._column_steps(phase, values, reducers, names)
                with self.out.block(f"for (; {variable} < n{loop}; ++{variable})"):
                    if depth == len(self.inner):
                        self.out.line("TC_ROW_BY_ROW;")
                    scope = dict(names)
                    self.emit(values, depth, scope)
                    self._column_nest(depth + 1, phase, values, reducers, scope)
            return
        with self._lanes():
            scope = dict(names)
            self.emit(values, depth, scope)
            for store in phase.stores:
                self.store(store, scope)
            self._scan(scope, "[l]")
            for store, reducer in reducers:
                self.out.line(reducer.step.format(v=scope[store.value], at=f"({self.row_position()})"))

    def _column_steps(
        self, phase: Phase, values: list[Value], reducers: list, names: dict[Value, str]
    ) -> None:
        """Sums of floats take several points of the row at a time, added up as floats: a conversion and a read and a
        write of the sum cost more than an addition. Not past the caches: there one row after the other is read as
        fast as memory can be (33 GB/s; 8 rows side by side 27, 2 rows 17)."""
        if 4 * self.sizes.hint(product(self.nest.sizes)) >= STREAMED:
            return
        sums = all(s.reduce == "sum" and s.value.dtype == torch.float32 for s, _ in reducers)
        points = next((points for most, points in COLUMN_POINTS if self._cost() <= most), 1)
        if not sums or not reducers or phase.stores or phase.scans or points == 1:
            return
        depth, loop = len(self.inner), self.inner[-1]
        variable = self.variables[loop]
        with self.out.block(f"for (; {variable} + {points} <= n{loop}; {variable} += {points})"):
            scopes = [dict(names) for _ in range(points)]
            for level, place in ((depth, contextlib.nullcontext), (depth + 1, self._lanes)):
                with place():
                    for number, scope in enumerate(scopes):
                        self.variables[loop] = f"({variable} + {number})"
                        self.emit(values, level, scope)
                    if level > depth:
                        for store, reducer in reducers:
                            total = _balanced([scope[store.value] for scope in scopes])
                            self.out.line(reducer.step.format(v=total, at="0"))
        self.variables[loop] = variable


def _balanced(terms: list[str]) -> str:
    """Their sum, added in pairs."""
    while len(terms) > 1:
        terms = [f"({' + '.join(pair)})" for pair in (terms[k : k + 2] for k in range(0, len(terms), 2))]
    return terms[0]


def _loop_values(phase: Phase) -> list[Value]:
    """What the loop over a row computes, operands first."""
    return topological(value for store in phase.loop for value in store.roots)


class _WithLine:
    """A block that opens with a given line."""

    def __init__(self, block, out: CodeWriter, line: str) -> None:  # type: ignore[no-untyped-def]
        self.block, self.out, self.first = block, out, line

    def __enter__(self) -> None:
        self.block.__enter__()
        self.out.line(self.first)

    def __exit__(self, *error: object) -> None:
        self.block.__exit__(*error)
