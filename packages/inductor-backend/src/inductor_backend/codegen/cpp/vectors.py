"""Writes loops over contiguous floats explicitly in vectors (`prelude_vectors.h`).

Used with GCC on processors with AVX-512 or AVX2, for loops whose values are float32 or masks (16-bit floats exist
in memory only) and whose loads and stores are contiguous. Sums add their elements in another order
than the plain loop; a row's last step touches no memory beyond its elements. Other kernels keep the
plain loop, which GCC vectorizes.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

import torch

from inductor_backend.codegen.common.op_table import CPP, OP_TABLE
from inductor_backend.codegen.cpp.expressions import memory_type
from inductor_backend.codegen.cpp.reducers import BLOCK, ColumnReducer, Reducer
from inductor_backend.ir.index_expr import Index, Var
from inductor_backend.ir.nodes import Store
from inductor_backend.ir.ops import OPS
from inductor_backend.ir.values import Value
from inductor_backend.runtime.cpp.toolchain import find_compiler, processor
from tracer_core.plugin_api import CompilerMissingError

if TYPE_CHECKING:
    from inductor_backend.codegen.common.writer import CodeWriter
    from inductor_backend.codegen.cpp.addressing import LoopAddressing
    from inductor_backend.codegen.cpp.element_writer import ElementWriter
    from inductor_backend.codegen.cpp.phase_loop import Bounds, PhaseLoop

#: Elements of a vector, by instruction set. Shorter rows keep the plain loop.
LANES = {"avx512": 16, "avx2": 8}

#: The prelude's part with vector loops and transposed tiles.
HEADER = "prelude_vectors.h"

#: Ops on floats whose text is the same for vectors.
FLOAT_OPS = frozenset(name for name, row in OP_TABLE.items() if row.vectors)
#: The same on masks, which are 0 and -1 here.
MASK_OPS = frozenset({"mul", "bit_and", "bit_or", "bit_xor", "bit_not", "eq", "ne", "where"})

#: Ops with a fast text for usual arguments and a general one with a call: see `tc_walk_near`.
NEAR_OPS = frozenset({"sin", "cos", "fmod", "mod", "floor_div"})

MEMORY = (torch.float32, torch.bfloat16, torch.float16)

#: Prefetch distance in elements of loops with streamed results (an addition: from 81 to 87 % of the
#: best copy). Loops that only read gain nothing over the hardware prefetcher.
AHEAD = 256

#: A step of a column's reduction by its kind. {0}, ...: the places of its parts or accumulators.
COLUMN_STEPS = {
    "sum": ("tc_put(tc_all(), {0}, tc_take(lanes, {0}) + {v});",),
    "max": ("tc_put(tc_all(), {0}, tc_max(tc_take(lanes, {0}), {v}));",),
    "min": ("tc_put(tc_all(), {0}, tc_min(tc_take(lanes, {0}), {v}));",),
    "welford": (
        "if (begins) tc_put(tc_all(), {0}, {v});",
        "const tc_v far = {v} - tc_take(lanes, {0});",
        "tc_put(tc_all(), {1}, tc_take(lanes, {1}) + far);",
        "tc_put(tc_all(), {2}, tc_fma(far, far, tc_take(lanes, {2})));",
    ),
}

#: Cost (`ops.OPS`) of an element up to which that many steps are in flight.
UNROLLED = ((60, 2),)


def available() -> bool:
    """Returns whether `prelude_vectors.h` has vectors for this processor and compiler."""
    try:
        kind = find_compiler().kind
    except CompilerMissingError:  # the texts of which an earlier compiler may have left libraries
        kind = "gcc"
    return processor()[0] in LANES and kind == "gcc"


def transposes(load: Value) -> bool:
    """Returns whether ``tc_turn`` transposes a tile of what the load reads."""
    return available() and load.attr[2] == torch.float32


def fits(
    elements: ElementWriter,
    work: PhaseLoop[Reducer] | PhaseLoop[ColumnReducer],
    known: dict[Value, str],
) -> bool:
    """Returns whether the loop over elements side by side can be steps of vectors. known: values computed
    before it."""
    loops = elements.loops
    again = any(store.reduce == "welford" for store, _ in work.reducers)  # where a square overflows
    if loops.nest.column is not None and again and len(work.phase.loop) > 1:
        return False
    if not available() or work.phase.in_order or work.scanners:
        return False
    if loops.sizes.hint(loops.nest.sizes[loops.vector]) < LANES[processor()[0]]:
        return False
    inside = [value for value in work.values if value not in known]
    if any(value.dtype not in (torch.float32, torch.bool) for value in work.held):
        return False
    here = [value for value in inside if value not in work.transposed]
    if not inside or not all(_value_fits(elements, value) for value in here):
        return False
    if not all(_store_fits(elements, store, work.transposed) for store in work.phase.stores):
        return False
    kinds = ("sum", "max", "min", "welford")
    return all(_reduction_fits(elements, store, kinds) for store, _ in work.reducers)


def _value_fits(elements: ElementWriter, value: Value) -> bool:
    if value.name == "load":
        return _load_fits(elements, value)
    if value.name == "cast":
        return {value.dtype, value.args[0].dtype} == {torch.bool, torch.float32}
    if value.name == "round_to":
        return True
    if any(arg.dtype not in (torch.float32, torch.bool) for arg in (value, *value.args)):
        return False
    of_masks = value.args and all(arg.dtype == torch.bool for arg in value.args)
    return value.name in (MASK_OPS if of_masks else FLOAT_OPS)


def _load_fits(elements: ElementWriter, value: Value) -> bool:
    buffer, index, dtype = value.attr
    if buffer in elements.body.row_buffers:
        return elements.body.row_buffers[buffer] == torch.float32
    if buffer in elements.body.registers or dtype not in (*MEMORY, torch.bool):
        return False
    staged = elements.tiling is not None and value in elements.tiling.staged
    empty = elements.may_be_empty(index)
    return staged or (not empty and _is_contiguous(elements.loops, buffer, index))


def _store_fits(elements: ElementWriter, store: Store, transposed: Container[Value | str]) -> bool:
    (name,) = store.buffers
    if not store.is_assignment or store.value.dtype != torch.float32:
        return False
    if name in elements.body.row_buffers:
        return elements.body.row_buffers[name] == torch.float32
    if name in transposed:
        return True
    kind = elements.program.buffers[name].dtype
    empty = elements.may_be_empty(store.index)
    return kind in MEMORY and not empty and _is_contiguous(elements.loops, name, store.index)


def _reduction_fits(elements: ElementWriter, store: Store, kinds: Sequence[str]) -> bool:
    floats = store.value.dtype == torch.float32
    floats &= elements.body.registers[store.buffers[0]] == torch.float32
    return floats and store.reduce in kinds


def _is_contiguous(loops: LoopAddressing, buffer: str, index: Sequence[Index]) -> bool:
    """Returns whether the access is contiguous along the innermost loop."""
    flat = loops.flat(buffer, index)
    coefficient = flat.coefficient(loops.vector)
    if not (isinstance(coefficient, int) and coefficient == 1):
        return False
    others = [Index(0, {atom: 1}) for atom in flat.terms if not isinstance(atom, Var)]
    return not any(_depends(loops, other) for other in others)


def _depends(loops: LoopAddressing, index: Index) -> bool:
    """Returns whether an index changes along the innermost loop; its divisions are over loops and
    loaded values over variables."""
    return loops.vector in index.variables() or any(
        loops.vector in {loops.nest.place[p] for p in value.variables}
        for value in index.indirect_values()
    )


# ---- the text


def write(
    elements: ElementWriter,
    work: PhaseLoop[Reducer] | PhaseLoop[ColumnReducer],
    known: dict[Value, str],
    bounds: Bounds,
) -> None:
    """Writes the loop. What columns add up goes to the `parts` of their reducers, which rows from `low` on
    begin anew; beyond the last column, arrays are undefined."""
    out, loops, start = elements.out, elements.loops, bounds.start
    variable = loops.variables[loops.vector]
    inside = [value for value in work.values if value not in known]
    cost = sum(2 if value.name == "load" else OPS[value.name].cost for value in inside)
    unrolled = next((steps for most, steps in UNROLLED if cost <= most), 1)
    streams = elements.streams(work.phase)
    for store in streams:
        _open_stream(elements, store, start)
    for store, reducer in work.reducers:
        if isinstance(reducer, Reducer):
            _open(out, store, reducer, unrolled)
    step = elements.out.fresh("step_")
    near = any(value.name in NEAR_OPS for value in inside)
    where = ", const auto where" if near else ""
    out.line(
        f"const auto {step} = [&](const int64_t {variable}, const auto lanes, const int u{where}) "
        "__attribute__((always_inline)) {"
    )
    with out.indented():
        names = dict(known)
        if near:
            out.line("int far = 0;")
        past = streams and len(elements.body.phases) == 1
        for place in dict.fromkeys(_places(elements, inside)) if past else ():
            out.line(f"__builtin_prefetch(&{place} + {AHEAD});")
        column = f"({variable} - {start})"
        for value, array in work.held.items():
            names[value] = out.fresh("t")
            kind = "tc_m" if value.dtype == torch.bool else "tc_v"
            out.line(f"const {kind} {names[value]} = tc_take(lanes, {array} + {column});")
        for value in inside:
            if value in work.transposed:
                names[value] = out.fresh("t")
                out.line(
                    f"const tc_v {names[value]} = tc_take(lanes, {work.transposed[value]} + {column});"
                )
        vectors = {value for value in (*work.held, *inside) if value in names}
        vectors = _emit(elements, [v for v in inside if v not in vectors], names, vectors)
        if near:
            out.line("if (far) return false;")
        for store in work.phase.stores:
            text = _operand(store.value, names, vectors)
            if store.buffers[0] in work.transposed:
                out.line(f"tc_put(lanes, {work.transposed[store.buffers[0]]} + {column}, {text});")
                continue
            _put(elements, store, text, names, start)
        for store, reducer in work.reducers:
            text = _operand(store.value, names, vectors)
            if isinstance(reducer, Reducer):
                _step(out, store, reducer, text, f"{variable} - {start}")
            else:
                for line in COLUMN_STEPS[store.reduce or ""]:
                    places = reducer.parts or [array for _, array, _ in reducer.arrays]
                    out.line(line.format(*[f"{place} + {column}" for place in places], v=text))
        if near:
            out.line("return true;")
    out.line("};")
    elements.headers.add(HEADER)
    out.line(f"tc_walk{'_near' if near else ''}<{unrolled}>({start}, {bounds.stop}, {step});")
    for store, reducer in work.reducers:
        if isinstance(reducer, Reducer):
            _close(out, store, reducer, bounds.length)
    for store in streams:
        block = elements.streamed[store.buffers[0]]
        size = f"{bounds.length} * (int64_t)sizeof({block}[0])"
        out.line(f"if (!past_{block}) tc_stream(to_{block}, {block}, {size});")


def _emit(
    elements: ElementWriter, inside: Sequence[Value], names: dict[Value, str], known: set[Value]
) -> set[Value]:
    """Writes statements for the values of a step; returns those that are vectors afterwards. known: those
    that already are."""
    vectors = set(known)
    for value in inside:
        name = elements.out.fresh("t")
        text = _text(elements, value, names, vectors)
        names[value] = name
        vectors.add(value)
        elements.out.line(
            f"const {'tc_m' if value.dtype == torch.bool else 'tc_v'} {name} = {text};"
        )
    return vectors


def _places(elements: ElementWriter, inside: Sequence[Value]) -> list[str]:
    """Returns the addresses to prefetch: those known before the step, except what each row rereads."""
    staged = elements.tiling.staged if elements.tiling is not None else {}
    loops = set(elements.loops.rows or elements.loops.inner)
    return [
        elements.memory_read(value, {})
        for value in inside
        if value.name == "load"
        and value.buffer not in elements.body.row_buffers
        and value not in staged
        and loops & {elements.loops.nest.place[p] for p in value.variables}
        and not any(True for index in value.attr[1] for _ in index.indirect_values())
    ]


def _operand(value: Value, names: dict[Value, str], vectors: set[Value]) -> str:
    return names[value] if value in vectors else f"tc_splat({names[value]})"


def _text(
    elements: ElementWriter, value: Value, names: dict[Value, str], vectors: set[Value]
) -> str:
    if value.name == "load":
        return f"tc_take(lanes, &{elements.memory_read(value, names)})"
    operands = [_operand(arg, names, vectors) for arg in value.args]
    if value.name == "cast":
        return (
            f"tc_chosen({operands[0]})"
            if value.dtype == torch.float32
            else f"{operands[0]} != 0.0f"
        )
    if value.name == "round_to":
        return f"tc_rounded_{'bf16' if value.attr == torch.bfloat16 else 'half'}({operands[0]})"
    if value.name in NEAR_OPS:
        operands += ["where", "&far"]
    return CPP.ops[value.name](value, *operands)


def _put(
    elements: ElementWriter, store: Store, text: str, names: dict[Value, str], start: str
) -> None:
    (name,) = store.buffers
    loops, out = elements.loops, elements.out
    if name in elements.streamed:
        block, at = elements.streamed[name], f"{loops.variables[loops.vector]} - {start}"
        out.line(f"tc_put_past(lanes, out_{block} + ({at}), {text}, past_{block});")
        return
    in_row = name in elements.row_buffers
    place = elements.in_row(name) if in_row else loops.element(name, store.index, names)
    out.line(f"tc_put(lanes, &{place}, {text});")


def _open_stream(elements: ElementWriter, store: Store, start: str) -> None:
    """Directs the block's results to their final place, if whole lines lie there, else to a block
    that is copied."""
    (name,) = store.buffers
    loops, out = elements.loops, elements.out
    kind, block = memory_type(elements.program.buffers[name].dtype), elements.streamed[name]
    with loops.renamed(loops.vector, start):
        place = f"{loops.pointer(name)} + ({loops.address(name, store.index, {})})"
    out.line(f"alignas(64) {kind} {block}[{BLOCK}];")
    out.line(f"{kind}* const to_{block} = {place};")
    out.line(f"const bool past_{block} = ((uintptr_t)to_{block} & 63) == 0;")
    out.line(f"{kind}* const out_{block} = past_{block} ? to_{block} : {block};")


# ---- reductions. `{n}_part` and what else the reducer's own close reads is made from the vectors.


def _open(out: CodeWriter, store: Store, reducer: Reducer, unrolled: int) -> None:
    n = reducer.name
    if store.reduce in ("max", "min"):
        edge = "-TC_INF_F" if store.reduce == "max" else "TC_INF_F"
        out.line(f"tc_v {n}_parts[{unrolled}] = {{{', '.join([f'tc_splat({edge})'] * unrolled)}}};")
        out.line(f"int {n}_nans = 0;")
        return
    out.line(f"tc_v {n}_parts[{unrolled}] = {{}};")
    if store.reduce == "welford":
        out.line(f"alignas(64) float {n}_block[{BLOCK}];")


def _step(out: CodeWriter, store: Store, reducer: Reducer, text: str, local: str) -> None:
    """Writes a step of a reduction. local: the element's position in its block."""
    n = reducer.name
    if store.reduce in ("max", "min"):
        edge, better = (
            ("-TC_INF_F", "tc_greater") if store.reduce == "max" else ("TC_INF_F", "tc_lesser")
        )
        out.line(f"const tc_v {n}_v = tc_keep(lanes, {text}, {edge});")
        out.line(f"{n}_parts[u] = {better}({n}_v, {n}_parts[u]); {n}_nans |= tc_nans({n}_v);")
        return
    if store.reduce == "welford":
        out.line(f"tc_put(lanes, {n}_block + ({local}), {text});")
    out.line(f"{n}_parts[u] += tc_keep(lanes, {text}, 0.0f);")


def _close(out: CodeWriter, store: Store, reducer: Reducer, length: str) -> None:
    n = reducer.name
    join = {"max": "tc_greatest", "min": "tc_least"}.get(store.reduce or "", "tc_total")
    out.line(f"const float {n}_part = {join}({n}_parts);")
    if store.reduce in ("max", "min"):
        out.line(f"const bool {n}_nan = {n}_nans != 0;")
    for line in reducer.close:
        out.line(line.format(length=length, moments="tc_moments_in_vectors"))
