"""Writes the functions of flex_attention (score_mod, mask_mod) into a kernel over blocks of scores.

A scalar program is lowered like any graph, to a loop IR without loops, whose values become the
statements of a kernel. Positions are 32-bit integers where no value of the program computed from them
may need more.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch

from inductor_backend.codegen.common.index_source import index_source
from inductor_backend.codegen.common.op_table import KNOWN_OPS
from inductor_backend.codegen.common.value_writer import ValueWriter
from inductor_backend.codegen.common.writer import CodeWriter
from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.index_expr import Expr, Index
from inductor_backend.ir.nodes import Buffer, BufferKind, BufferLayout, LoopNode, LoopProgram
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.target import Target
from inductor_backend.ir.values import Value, topological
from inductor_backend.ir.views import Ref
from inductor_backend.lowering.graph import GraphLowering
from inductor_backend.torch_private import OpOverload, fake_tensor_mode
from tracer_core.plugin_api import SCALAR_LOAD, ScalarProgram, ScalarRef, scalar_function

#: The names of positions in programs.
POSITIONS = ("b", "h", "q", "kv")
#: Inputs that differ from key to key, where the innermost loop is over keys.
INNER = frozenset({"score", "kv", "grad"})
#: Inputs whose values are rounded sums of products.
SCORES = frozenset({"score", "grad"})
#: Larger positions may need 64 bits.
MAX_LENGTH = 2**30
#: Integers up to this one, and a block of positions more, fit into 32 bits.
NARROW = 2**31 - 2**16

Bounds = tuple[float, float]


class _Function(GraphLowering):
    """Lowers a graph of 0-d tensors. layouts: of the placeholders, by name."""

    def __init__(
        self, gm: torch.fx.GraphModule, sizes: SizeVars, layouts: Mapping[str, BufferLayout]
    ) -> None:
        spec: Any = SimpleNamespace(name="scores", options=None, outputs=())
        super().__init__(gm, spec, sizes, KNOWN_OPS)
        self.layouts = layouts
        self.target = Target(self.program.device, True)
        self.ctx.gpu = True

    def placeholder(self, node: torch.fx.Node) -> None:
        name = node.name
        buffer = Buffer(name, node.meta["val"].dtype, self.layouts[name], BufferKind.INPUT)
        self.program.buffers[name] = buffer
        self.env[node] = Ref.of(buffer)
        self.program.inputs.append(name)


def graph_of(
    program: ScalarProgram,
    dtypes: Mapping[str, torch.dtype],
    ranks: Mapping[str, int],
    numbers: Any,
) -> torch.fx.GraphModule:
    """Returns a scalar program as a graph, with its values for sizes of 2. numbers: the expressions
    of its numbers, by name."""
    graph = torch.fx.Graph()
    nodes: list[Any] = []
    values: list[Any] = []
    with fake_tensor_mode():
        for name in program.inputs:
            if name in numbers:
                nodes.append(numbers[name])
                values.append(1)
                continue
            node = graph.placeholder(name)
            sizes = [2] * ranks.get(name, 0)
            node.meta["val"] = torch.empty(sizes, dtype=dtypes[name])
            nodes.append(node)
            values.append(node.meta["val"])
        for name, args, kwargs in program.steps:
            _step(graph, nodes, values, (name, args, dict(kwargs)))
        outputs = [
            value for value in (program.output, *(c.value for c in program.contributions)) if value
        ]
        outputs += [at for contribution in program.contributions for at in contribution.at]
        graph.output(tuple(nodes[output.number] for output in outputs))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def _step(graph: torch.fx.Graph, nodes: list[Any], values: list[Any], step: Any) -> None:
    name, args, kwargs = step

    def lookup(where: list[Any], value: Any) -> Any:
        if isinstance(value, ScalarRef):
            return where[value.number]
        return [lookup(where, element) for element in value] if isinstance(value, tuple) else value

    if name == SCALAR_LOAD and len(args) == 1:
        nodes.append(lookup(nodes, args[0]))
        values.append(lookup(values, args[0]))
        return
    target = torch.ops.aten.index.Tensor if name == SCALAR_LOAD else scalar_function(name)
    if name == SCALAR_LOAD:
        args = (args[0], args[1:])
    if not isinstance(target, OpOverload):  # of sizes: the expression itself
        nodes.append(target(*lookup(nodes, args)))
        values.append(target(*lookup(values, args)))
        return
    result = graph.call_function(target, tuple(lookup(nodes, arg) for arg in args),
                               {key: lookup(nodes, value) for key, value in kwargs.items()})  # fmt: skip
    result.meta["val"] = target(
        *(lookup(values, arg) for arg in args),
        **{key: lookup(values, value) for key, value in kwargs.items()},
    )
    nodes.append(result)
    values.append(result.meta["val"])


@dataclass(frozen=True, slots=True)
class Started:
    """A program of which a part is written."""

    program: LoopProgram
    #: Positions are 32-bit integers.
    narrow: bool
    #: Dtype and text of what is in registers.
    kinds: dict[str, torch.dtype]
    registers: dict[str, str]
    #: The names of values.
    names: dict[Value, str]
    #: Buffers that change within a row.
    inner: set[str]
    #: The values that are computed from scores or their gradients.
    scores: set[str]


class FunctionWriter(ValueWriter):
    """Writes scalar programs into a kernel's text. Mutable: adds pointers and sizes on first use.

    operands: dtype and layout of the tensors that programs read, by name; numbers: the expressions
    of their numbers. pointer_of: returns the argument of a tensor. size_of: returns the text of a
    size. limits: the size of each position's dimension. inner: inputs that change in the innermost loop.
    """

    def __init__(
        self,
        out: CodeWriter,
        sizes: SizeVars,
        operands: Mapping[str, tuple[torch.dtype, BufferLayout]],
        numbers: Mapping[str, Expr],
        pointer_of: Callable[[str], str],
        size_of: Callable[[Expr], str],
        limits: Mapping[str, Expr],
        inner: frozenset[str] = INNER,
    ) -> None:
        super().__init__(sizes, out, ())
        self.operands, self.numbers = operands, numbers
        self.pointer_of, self.size_of, self.limits = pointer_of, size_of, limits
        self.innermost, self.narrow, self.inner = inner, False, set(inner)
        self.scores: set[str] = set()
        self.asserts = False

    def begin(
        self, program: ScalarProgram, texts: Mapping[str, str], dtype: torch.dtype
    ) -> Started:
        """Writes what a program computes from none of the inputs that change in the innermost
        loop. texts: of positions (32-bit integers), scores and gradients. dtype: of scores."""
        kinds = {name: kind for name, (kind, _) in self.operands.items()}
        narrow = is_small_group(program, self.limits, kinds)
        int32 = torch.int32 if narrow else torch.int64
        dtypes = {name: int32 if name in POSITIONS else dtype for name in program.inputs} | kinds
        ranks = {name: len(layout.sizes) for name, (_, layout) in self.operands.items()}
        gm = graph_of(program, dtypes, ranks, self.numbers)
        layouts = {name: BufferLayout((), ()) for name in program.inputs}
        layouts |= {name: layout for name, (_, layout) in self.operands.items()}
        registers = {
            name: text if narrow or name not in POSITIONS else self.as_long(text)
            for name, text in texts.items()
        }
        result = _Function(gm, self.sizes, layouts).run()
        kinds = {name: dtypes.get(name, dtype) for name in texts}
        started = Started(result, narrow, kinds, registers, {}, set(self.innermost), set(SCORES))
        self._walk(started, 0)
        return started

    def finish(self, started: Started) -> list[str]:
        """Writes the rest of a program and returns the texts of its outputs."""
        rest = replace(
            started,
            kinds=dict(started.kinds),
            registers=dict(started.registers),
            names=dict(started.names),
        )
        self._walk(rest, 1)
        return [
            rest.registers[output if isinstance(output, str) else output.buffer]  # type: ignore[union-attr]
            for output in rest.program.outputs
        ]

    def write_graph(self, gm: torch.fx.GraphModule, texts: Mapping[str, str]) -> list[str]:
        """Writes a graph of numbers, whose placeholders have these texts; returns the texts of its
        outputs."""
        placeholders = gm.graph.find_nodes(op="placeholder")
        kinds = {node.name: node.meta["val"].dtype for node in placeholders}
        result = _Function(gm, self.sizes, dict.fromkeys(kinds, BufferLayout((), ()))).run()
        at = Started(result, False, kinds, dict(texts), {}, set(), set())
        self._walk(at, 0)
        return [
            at.registers[output if isinstance(output, str) else output.buffer]  # type: ignore[union-attr]
            for output in result.outputs
        ]

    def _walk(self, at: Started, level: int) -> None:
        """Writes the statements of a program up to a level."""
        self.narrow, self.inner, self.scores = at.narrow, at.inner, at.scores
        self.in_registers, self.registers = at.kinds, at.registers
        for node in at.program.nodes:
            if not isinstance(node, LoopNode) or node.sizes:
                raise unsupported("codegen", f"{node.origin.op} in a function of scores")
            for store in node.stores:
                if self.reads_scores(store.value):
                    at.scores.update(store.buffers)
                self.emit(topological([store.value]), level, at.names)
                (name,) = store.buffers
                if self.level(store.value) > level:
                    at.inner.add(name)
                    at.kinds[name] = at.program.buffers[name].dtype
                    continue
                dtype = at.kinds[name] = at.program.buffers[name].dtype
                text = at.names[store.value]
                if dtype in (torch.bfloat16, torch.float16):
                    text = self.rounded(text, dtype)
                at.registers[name] = text

    @abstractmethod
    def as_long(self, text: str) -> str:
        """Returns a 32-bit position as a 64-bit integer."""

    @abstractmethod
    def rounded(self, text: str, dtype: torch.dtype) -> str:
        """Returns a float32 rounded to a 16-bit type."""

    # what ValueWriter asks for -------------------------------------------------------------------

    def level(self, value: Value) -> int:
        loads = (node.buffer for node in topological([value]) if node.name == "load")
        return int(not self.inner.isdisjoint(loads))

    def reads_scores(self, value: Value) -> bool:
        """Returns whether a value is computed from scores or their gradients."""
        return any(
            node.name == "load" and node.buffer in self.scores for node in topological([value])
        )

    def size(self, expr: Expr) -> str:
        return self.size_of(expr)

    def _index(self, index: Index, names: dict[Value, str]) -> str:
        return index_source(index, (), names.__getitem__, self.size, self.language.floor)

    def value_source(self, value: Value, names: dict[Value, str]) -> str:
        if value.name in ("wrap_index", "check_index") and self._is_inside(value):
            return names[value.args[0]]
        if value.name == "cast" and value.attr == torch.int64 and self.narrow:
            if value.args[0].dtype == torch.int32 and self._position(value.args[0]) is not None:
                return names[value.args[0]]
        return super().value_source(value, names)

    def _position(self, value: Value) -> str | None:
        """Returns the position that a value is, or None."""
        while value.name in ("cast", "wrap_index", "check_index"):
            value = value.args[0]
        if value.name != "load" or value.buffer not in POSITIONS:
            return None
        return value.buffer

    def _is_inside(self, value: Value) -> bool:
        """Returns whether an index is a position of a dimension that is no longer than the tensor's."""
        name = self._position(value)
        if name is None:
            return False
        rest = value.attr - self.limits[name]
        return self.sizes.nonnegative(rest)


# -- widths of integers --


def is_small_group(
    program: ScalarProgram, limits: Mapping[str, Expr], dtypes: Mapping[str, torch.dtype]
) -> bool:
    """Returns whether no integer that a program computes from positions needs more than 32 bits.
    limits: of positions. dtypes: of the tensors that it reads."""
    bounds: dict[Any, Bounds | None] = {}
    for number, name in enumerate(program.inputs):
        limit = limits.get(name, 0)
        longest = limit if isinstance(limit, int) else MAX_LENGTH
        if name in POSITIONS and longest > MAX_LENGTH:
            return False
        bounds[ScalarRef(number)] = (0, longest) if name in POSITIONS else None
    first = len(program.inputs)
    for number, (name, args, kwargs) in enumerate(program.steps):
        at = ScalarRef(first + number)
        if name == SCALAR_LOAD:
            bounds[at] = _of_dtype(dtypes[program.inputs[args[0].number]])
            continue
        inputs = [
            bounds.get(arg) if isinstance(arg, ScalarRef) else _of_number(arg) for arg in args
        ]
        read = [arg for arg in args if isinstance(arg, ScalarRef) and bounds.get(arg) is not None]
        if not read:
            bounds[at] = None
            continue
        rule = _rule(name, dict(kwargs))
        if rule is None:
            return False
        if rule is _no_integer or any(bound is None for bound in inputs):
            bounds[at] = None  # a bool, a float, or a 64-bit integer
            continue
        result = rule(*inputs)
        if max(map(abs, result)) > NARROW:
            return False
        bounds[at] = result
    return True


def _rule(name: str, kwargs: Mapping[str, Any]) -> Callable[..., Bounds] | None:
    operator = name.split(".")[1]
    if operator == "_to_copy":
        dtype = kwargs.get("dtype")
        if dtype is None or dtype in (torch.int64, torch.int32):
            return _same
        return _no_integer if dtype.is_floating_point or dtype is torch.bool else None
    if operator == "div":
        return _quotient if kwargs.get("rounding_mode") is not None else _no_integer
    return _RULES.get(operator)


def _of_dtype(dtype: torch.dtype) -> Bounds | None:
    if dtype.is_floating_point or dtype is torch.bool or dtype.itemsize == 8:
        return None
    limits = torch.iinfo(dtype)
    return limits.min, limits.max


def _of_number(value: Any) -> Bounds | None:
    if type(value) is int:
        return value, value
    return (0, 0) if type(value) is bool else None


def _corners(function: Callable[[float, float], float]) -> Callable[..., Bounds]:
    def rule(left: Bounds, right: Bounds, *rest: Bounds) -> Bounds:
        result = [function(a, b) for a in left for b in right]
        return min(result), max(result)

    return rule


def _no_integer(*bounds: Bounds) -> Bounds:
    """The rule of operators whose result is no integer."""
    return 0, 0


def _size(bounds: Bounds, *rest: Bounds) -> Bounds:
    return 0, max(map(abs, bounds))


def _same(bounds: Bounds, *rest: Bounds) -> Bounds:
    return min(bounds), max(bounds)


def _quotient(left: Bounds, right: Bounds, *rest: Bounds) -> Bounds:
    return -max(map(abs, left)) - 1, max(map(abs, left))


def _remainder(left: Bounds, right: Bounds, *rest: Bounds) -> Bounds:
    return -max(map(abs, right)), max(map(abs, right))


#: Operators whose results are no integers.
_FLOATS_AND_BOOLS = """
eq ne lt le gt ge logical_and logical_or logical_not exp log sqrt rsqrt tanh sigmoid
"""

_RULES: dict[str, Callable[..., Bounds]] = {
    "add": _corners(lambda a, b: a + b),
    "sub": _corners(lambda a, b: a - b),
    "mul": _corners(lambda a, b: a * b),
    "maximum": _corners(max),
    "minimum": _corners(min),
    "neg": lambda value: (-max(value), -min(value)),
    "abs": _size,
    "floor_divide": _quotient,
    "remainder": _remainder,
    "fmod": _remainder,
    **dict.fromkeys(_FLOATS_AND_BOOLS.split(), _no_integer),
}
