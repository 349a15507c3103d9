"""Rounds 16-bit values, of which fused code keeps more bits, where eager's rounding shows.

Runs after lowering. A load of a 16-bit buffer that a loop fills may later become the float32 value
that the loop computes (`schedule.inline`, `schedule.fused_body`). Such loads are rounded to the
buffer's dtype

- where a discontinuous operation follows (`DISCONTINUOUS`, the place of an extreme, an operator of
  ATen with integers among its results), in every operator that leads there from an operator of ATen
  or from an input: what decides is what eager computes;
- for float16, where the value may be beyond its range, and where a pole follows (`POLES`): eager has
  infinities there;
- everywhere, with the option ``numerics="eager"``.

Values inside one operator of eager's stay as they are, also where it was decomposed. Operations that
commute with rounding (`COMMUTING`) leave it to those that read their result. What is read from memory
after all is rounded already: `without_idle` drops such operations.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace

import torch

from inductor_backend.ir.index_expr import Index
from inductor_backend.ir.nodes import ExternNode, LoopNode, LoopProgram, Store, loads_of
from inductor_backend.ir.values import Rewriter, Value, make, topological

#: Dtypes in memory of which computed values have more bits.
ROUNDED = frozenset({torch.bfloat16, torch.float16})

#: Ops whose results jump where an operand changes a little. Casts of floats to integers and bools
#: are such, too.
DISCONTINUOUS = frozenset({
    "floor", "ceil", "trunc", "round", "sign", "trunc_div", "floor_div", "fmod", "mod", "eq", "ne",
    "lt", "le", "gt", "ge", "isnan", "isinf", "nextafter",
})  # fmt: skip

#: Ops that are infinite at a number.
POLES = frozenset({"div", "pow", "log", "log2", "log10", "log1p", "rsqrt", "atanh", "digamma"})

#: Operators that compare inside, but whose results do not jump.
CONTINUOUS_OPERATORS = frozenset({
    "leaky_relu", "elu", "softplus", "lerp", "hardtanh", "hardswish", "celu", "selu", "mish", "prelu",
    "prelu_kernel", "log_sigmoid_forward", "smooth_l1_loss", "huber_loss", "softmax", "safe_softmax",
    "log_softmax", "logsumexp", "logaddexp", "logaddexp2", "var", "std", "layer_norm", "batch_norm",
    "group_norm", "rms_norm", "fmax", "fmin", "nan_to_num", "nansum", "softshrink",
})  # fmt: skip

#: Reductions and scans that return places.
PLACES = frozenset({"argmax", "argmin", "max_at", "min_at"})

#: Ops of which the rounded result is the result for rounded operands.
COMMUTING = frozenset({"relu", "maximum", "minimum", "abs", "neg", "where", "round_to"})

#: Ops whose result is in float16's range where their operands are.
BOUNDED = COMMUTING | {
    "floor", "ceil", "trunc", "round", "sign", "tanh", "sigmoid", "sigmoid_exp2", "silu", "gelu_erf",
    "gelu_tanh", "sin", "cos", "erf", "erfc", "sqrt", "copysign", "softplus",
}  # fmt: skip

#: Operators of ATen that jump, though all their results are floats or no tensors.
JUMPING_OPERATORS = frozenset({"_local_scalar_dense", "item", "round", "histc", "histogram"})


def insert_rounding(program: LoopProgram, everywhere: bool, matmuls: bool) -> list[str]:
    """Rounds loads of the program's loops; returns a line for each loop that got some. matmuls:
    results of ATen's operators may be computed inside kernels, too (matmuls)."""
    if not any(buffer.dtype in ROUNDED for buffer in program.buffers.values()):
        return []
    return _Rounding(program, everywhere, matmuls).run()


class _Rounding:
    def __init__(self, program: LoopProgram, everywhere: bool, matmuls: bool) -> None:
        self.program, self.everywhere = program, everywhere
        #: Buffers of which a computed value may have more bits than its dtype.
        self.computed: set[str] = set()
        #: The computed ones that may hold values beyond float16's range.
        self.beyond: set[str] = set()
        #: Buffers that decide something.
        self.decides: set[str] = set()
        for node in program.nodes:
            if isinstance(node, LoopNode):
                for store in node.stores:
                    self._note(store)
            elif matmuls:
                self.computed.update(node.writes)
                self.beyond.update(node.writes)

    def _note(self, store: Store) -> None:
        self.computed.update(store.buffers)
        keeps_value = store.is_assignment or store.reduce in ("max", "min")
        unrounded = {load for load in _left_to_readers(store) if load.buffer in self.beyond}
        if not keeps_value or not stays_in_range(store.value, unrounded):
            self.beyond.update(store.buffers)

    def run(self) -> list[str]:
        notes = []
        for place in reversed(range(len(self.program.nodes))):
            node = self.program.nodes[place]
            if isinstance(node, ExternNode):
                if self._jumps(node):
                    self.decides |= self.program.with_earlier(node.reads())
                continue
            stores = tuple(self._rounded(store, node.origin.op) for store in node.stores)
            if any(new is not old for new, old in zip(stores, node.stores, strict=True)):
                self.program.nodes[place] = replace(node, stores=stores)
                notes.append(f"{node.name}: {' '.join(sorted(_rounded_buffers(stores)))}")
        return notes[::-1]

    def _jumps(self, node: ExternNode) -> bool:
        buffers = self.program.buffers
        if getattr(node.target, "_opname", "") in JUMPING_OPERATORS:
            return True
        return any(not buffers[name].dtype.is_floating_point for name in node.writes)

    def _rounded(self, store: Store, operator: str) -> Store:
        """Returns the store with its loads rounded, after adding what decides in it."""
        deciding = {load.buffer for load in loads_of(self._deciding(store, operator))}
        self.decides |= self.program.with_earlier(deciding)
        names = {
            load.buffer
            for load in self._shown(store)
            if load.attr[2] in ROUNDED
            and load.buffer in self.computed
            and (self.everywhere or load.buffer in deciding or self._may_be_beyond(load))
            and not self._inside_operator(load.buffer, store)
        }
        return _with_rounded(store, names) if names else store

    def _deciding(self, store: Store, operator: str) -> Iterable[Value]:
        """Returns the values whose loads decide something."""
        if store.reduce in PLACES or store.scan in PLACES:
            return store.roots
        if not self.decides.isdisjoint(store.buffers):
            return store.roots
        inside = self._operator_of(store) or operator
        if inside in CONTINUOUS_OPERATORS:
            return [root for root in store.roots if root is not store.value]
        values = topological(store.roots)
        half = any(value.name == "load" and value.attr[2] is torch.float16 for value in values)
        args = [arg for value in values if is_discontinuous(value) for arg in value.args]
        if half:  # of a quotient the divisor, of other operations all operands
            args += [value.args[-1] for value in values if value.name in POLES]
            args += [value.args[0] for value in values if value.name == "pow"]
        return args

    def _shown(self, store: Store) -> list[Value]:
        """Returns the loads whose rounding cannot be left to those who read the stored value."""
        dtypes = {self.program.buffers[name].dtype for name in store.buffers}
        later = _left_to_readers(store) if len(dtypes) == 1 else set()
        return [
            load
            for load in loads_of(store.roots)
            if load not in later or load.attr[2] not in dtypes
        ]

    def _may_be_beyond(self, load: Value) -> bool:
        return load.attr[2] == torch.float16 and load.buffer in self.beyond

    def _operator_of(self, store: Store) -> str:
        """Returns the decomposed operator that the store is a part of, or ""."""
        operator = self.program.operators.get(store.buffers[0], "")
        return operator.partition("/")[0].strip("_") if "/" in operator else ""

    def _inside_operator(self, buffer: str, store: Store) -> bool:
        operators = self.program.operators
        result = operators.get(buffer)
        return result is not None and any(operators.get(name) == result for name in store.buffers)


def _left_to_readers(store: Store) -> set[Value]:
    """Returns the loads that become the stored value by operations that commute with rounding, and
    that nothing else in the store reads."""
    if not store.is_assignment:
        return set()
    later = {store.value}
    others: set[Value] = set()
    for value in reversed(topological(store.roots)):
        moved: tuple[Value, ...] = ()
        if value in later and value not in others:
            if value.name == "where":
                moved = value.args[1:]
            elif value.name in COMMUTING:
                moved = value.args
        later.update(moved)
        others.update(operand for operand in value.operands if operand not in moved)
    return {value for value in later - others if value.name == "load"}


def is_discontinuous(value: Value) -> bool:
    """Returns whether the op jumps at some floats."""
    if not value.args or not value.args[-1].dtype.is_floating_point:
        return False
    return value.name in DISCONTINUOUS or (
        value.name == "cast" and not value.dtype.is_floating_point
    )


def stays_in_range(root: Value, beyond: Container[Value]) -> bool:
    """Returns whether a value is in float16's range. beyond: loads of values that may be not."""
    result: dict[Value, bool] = {}
    for value in topological([root]):
        if value.name in ("load", "masked_load"):
            result[value] = value.attr[2] in (torch.float16, torch.bool) and value not in beyond
        elif value.name == "constant":
            result[value] = (
                not value.dtype.is_floating_point
                or abs(value.attr[0]) <= torch.finfo(torch.float16).max
            )
        elif value.dtype == torch.bool or value.name == "index":
            result[value] = True
        elif value.name == "cast" or value.name in BOUNDED:
            result[value] = all(result[arg] for arg in value.args)
        else:
            result[value] = False
    return result[root]


def _with_rounded(store: Store, names: Container[str]) -> Store:
    """Returns the store with loads of these buffers rounded to their dtype."""

    def on_load(load: Value, index: tuple[Index, ...]) -> Value | None:
        return make("round_to", load, attr=load.attr[2]) if load.buffer in names else None

    return store.rewritten(Rewriter(None, on_load))


def _rounded_buffers(stores: Iterable[Store]) -> set[str]:
    values = topological(root for store in stores for root in store.roots)
    return {
        load.buffer for value in values if value.name == "round_to" for load in loads_of(value.args)
    }


class WithoutIdle(Rewriter):
    """Drops the rounding of what a load reads from memory. held: buffers that kernels hold in
    float32."""

    def __init__(self, held: Container[str]) -> None:
        super().__init__(None)
        self.held = held

    def _rebuild(self, value: Value) -> Value:
        result = super()._rebuild(value)
        if result.name != "round_to" or result.args[0].name != "load":
            return result
        load = result.args[0]
        idle = load.attr[2] == result.attr and load.buffer not in self.held
        return load if idle else result


def without_idle(stores: list[Store], held: Container[str]) -> list[Store]:
    """Returns the stores of a kernel without idle rounding."""
    rewrite = WithoutIdle(held)
    return [store.rewritten(rewrite) for store in stores]
