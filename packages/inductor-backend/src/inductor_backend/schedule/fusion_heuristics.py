"""Cost heuristics of fusion and inlining. They affect speed only: any answer gives a correct
program.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inductor_backend.ir.index_expr import Expr, exact_quotient, known_le, product
from inductor_backend.ir.nodes import LoopNode, LoopProgram
from inductor_backend.ir.ops import OPS
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.value_cost import CHEAP, CHEAP_LOADS, cost, is_cheap, load_count
from inductor_backend.ir.values import Value, topological
from inductor_backend.limits import MAX_BODY_VALUES

#: On a GPU launch overhead dominates for tensors this small (one value per channel): recomputing
#: them, up to this cost, is cheaper.
SMALL, SMALL_COST, SMALL_LOADS = 4096, 16, 6

#: A loop that reads one element in so many computes it again, whatever the others do.
FEW = 64

#: On a GPU, more instructions than these take longer than the launch of a kernel that computes a value
#: once a row: a thread computes it again for each element.
LAUNCH_INSTRUCTIONS = 1 << 25

#: What a load costs that the cache answers.
LOAD_INSTRUCTIONS = 2


def node_cost(node: LoopNode) -> int:
    """Estimates the instructions of a node's costly functions, which C++ expands where they stand."""
    values = topological(store.value for store in node.stores)
    return sum(
        OPS[v.name].cost for v in values if v.name in OPS and OPS[v.name].cost > OPS["div"].cost
    )


def worth_inlining(
    program: LoopProgram,
    producer: LoopNode,
    readers: list[LoopNode],
    loads: list[list[Value]],
    gpu: bool = False,
) -> str | None:
    """Returns None where the producer should be computed inside its readers, else the reason
    against it.

    loads: for each reader its loads of the producer's buffer. gpu: each kernel costs a launch."""
    value = producer.stores[0].value
    size = len(topological([value]))
    if load_count(value) == 0 and cost(value) <= CHEAP:
        return None
    for reader, result in zip(readers, loads, strict=True):
        if len(result) * size + len(topological(s.value for s in reader.stores)) > MAX_BODY_VALUES:
            return "the body would become too large"
    once = len(readers) == 1 and len(loads[0]) == 1
    if once and _no_larger(product(readers[0].sizes), product(producer.sizes)):
        return None  # computed no more often than before, and not stored
    if gpu and load_count(value) > 1 and any(_for_many_rows(producer, r) for r in readers):
        return "computed again for each of many rows, which costs more than a launch"
    if is_cheap(value) and not (gpu and _gathered(value, loads)):
        if len(readers) == 1 or load_count(value) <= 1:
            return None
        if gpu and _moves_less(program, producer, readers):
            return None
    numel = product(producer.sizes)
    small = gpu and isinstance(numel, int) and numel <= SMALL
    if small and cost(value) <= SMALL_COST and load_count(value) <= SMALL_LOADS:
        if load_count(value) <= CHEAP_LOADS or not any(
            _of_its_points(r, producer) for r in readers
        ):
            return None
        return "a reader with as many points stores it without a launch for that"
    if is_cheap(value):
        return "several readers would each load its operands: one store costs less"
    if all(
        _outside_inner_loop(reader, load)
        for reader, result in zip(readers, loads, strict=True)
        for load in result
    ):
        if gpu and any(_beyond(reader, cost(value)) for reader in readers):
            return "computed again for each element, which costs more than a launch"
        return None if len(readers) == 1 else "computed again by several readers"
    return "costs more to compute again than to store"


def _of_its_points(reader: LoopNode, producer: LoopNode) -> bool:
    """Returns whether a reader has the producer's points, so that one kernel computes both."""
    return product(reader.sizes) == product(producer.sizes)


def _moves_less(program: LoopProgram, producer: LoopNode, readers: list[LoopNode]) -> bool:
    """Returns whether loading the operands in every reader (16-bit ones, of a float32 value) moves
    fewer bytes than to compute the value with one reader, to store it and to load it in the others."""
    points = product(producer.sizes)
    if any(not _no_larger(product(reader.sizes), points) for reader in readers):
        return False
    domain = {place for place, size in enumerate(producer.sizes) if size != 1}
    operands = {
        (load.buffer, load.attr[1]): _bytes_of_point(program, producer, load)
        for load in producer.loads()
        if domain <= load.variables  # one that is broadcast comes from the cache
    }
    (buffer,) = producer.stores[0].buffers
    stored = len(readers) * program.buffers[buffer].dtype.itemsize
    return (len(readers) - 1) * sum(operands.values()) < stored


def _bytes_of_point(program: LoopProgram, node: LoopNode, load: Value) -> int:
    """Returns the bytes that memory moves for one point of a node: a sector of 32 for an element at
    an index from memory."""
    indices, last = load.indices(), len(node.sizes) - 1
    chosen = [value for index in indices for value in index.indirect_values()]
    in_rows = not chosen or (
        indices[-1].coefficient(last) == 1 and all(last not in value.variables for value in chosen)
    )
    return program.buffers[load.buffer].dtype.itemsize if in_rows else 32


def _for_many_rows(producer: LoopNode, reader: LoopNode) -> bool:
    """Returns whether a reader computes each element so often (the row that is multiplied by a
    matrix) that this takes longer than the launch of a kernel that stores them."""
    points, numel = product(reader.sizes), product(producer.sizes)
    if not isinstance(points, int) or not isinstance(numel, int) or points < FEW * numel:
        return False
    value = producer.stores[0].value
    return _beyond(reader, cost(value) + LOAD_INSTRUCTIONS * load_count(value))


def _gathered(value: Value, loads: list[list[Value]]) -> bool:
    """Returns whether readers load the result of several loads at indices: one row for each index, and
    not several, costs less than the store."""
    indices = (index for result in loads for load in result for index in load.indices())
    return load_count(value) > 1 and any(True for i in indices for _ in i.indirect_values())


def reads_few(reader: LoopNode, loads: list[Value], producer: LoopNode) -> bool:
    """Returns whether a loop reads so few elements of a producer (the logit of each row's class) that
    storing all for it would cost more than to compute these again."""
    size = len(topological([producer.stores[0].value]))
    if len(loads) * size + len(topological(s.value for s in reader.stores)) > MAX_BODY_VALUES:
        return False
    points, elements = product(reader.sizes), product(producer.sizes)
    if isinstance(points, int) and isinstance(elements, int):
        return points * len(loads) * FEW <= elements
    quotient = exact_quotient(elements, points)
    return isinstance(quotient, int) and quotient >= len(loads) * FEW


def _no_larger(a: Expr, b: Expr) -> bool:
    """Returns whether a <= b is known; with symbols, only where b is a multiple of a."""
    if isinstance(a, int) and isinstance(b, int):
        return a <= b
    return known_le(a, b) or exact_quotient(b, a) is not None


def _beyond(reader: LoopNode, instructions: int) -> bool:
    """Returns whether so many instructions for each point of the reader may exceed
    `LAUNCH_INSTRUCTIONS`."""
    points = product(reader.sizes)
    return not isinstance(points, int) or points * instructions > LAUNCH_INSTRUCTIONS


def _outside_inner_loop(reader: LoopNode, load: Value) -> bool:
    """Returns whether the load is invariant in the reader's last loop, so that its producer is
    computed once per row."""
    last = len(reader.sizes) - 1
    return last not in load.variables and not any(reader.reduced[p] for p in load.variables)


def shared_bytes(program: LoopProgram, sizes: SizeVars, names: set[str]) -> int:
    """Returns the bytes of memory traffic saved by sharing these buffers."""
    return sum(buffer_bytes(program, sizes, name) for name in names)


def buffer_bytes(program: LoopProgram, sizes: SizeVars, name: str) -> int:
    buffer = program.buffers[name]
    return sizes.hint(buffer.layout.numel) * buffer.dtype.itemsize


def touched_bytes(
    program: LoopProgram, sizes: SizeVars, loops: Sequence[LoopNode], storages: Iterable[str]
) -> int:
    """Returns the bytes of the storages; of a larger one an element for each point of the loops and
    each place that a point loads or stores."""
    points = max(sizes.hint(product(node.sizes)) for node in loops)
    places: dict[str, set[object]] = {}
    for node in loops:
        accessed = [(load.buffer, load.attr[1]) for load in node.loads()]
        accessed += [(name, store.index) for store in node.stores for name in store.buffers]
        for name, index in accessed:
            places.setdefault(program.buffers[name].storage, set()).add(index)
    buffers = [program.buffers[name] for name in storages if name in program.buffers]
    return sum(
        min(sizes.hint(buffer.layout.numel), points * len(places.get(buffer.storage, "1")))
        * buffer.dtype.itemsize
        for buffer in buffers
    )


def keeps_threads_busy(sizes: SizeVars, outer: Expr, inner: Expr, rows: int = 8) -> bool:
    """Returns whether there are enough outer iterations for the threads, or too little work to
    share."""
    return sizes.hint(outer) >= rows or sizes.hint(inner) * sizes.hint(outer) < 65536
