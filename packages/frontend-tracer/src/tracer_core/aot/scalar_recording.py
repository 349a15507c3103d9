"""Records the functions of flex_attention as scalar programs.

In: a graph that was captured on 0-d tensors. Out: `ScalarProgram`, and that of its gradient. What is
no function of scalars raises LoweringUnsupported with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from tracer_core.aot.joint_graph import JointLowering
from tracer_core.aot.lower import Lowering
from tracer_core.aot.request import Request, default_specs
from tracer_core.contract.backend import Backend
from tracer_core.contract.lowering_errors import LoweringUnsupported
from tracer_core.contract.specs import Phase
from tracer_core.ops.higher_order.scalar_program import (
    LOAD,
    NUMBER_NAMES,
    SIZE,
    Contribution,
    Ref,
    ScalarProgram,
    Step,
)
from tracer_core.ops.traits import is_random
from tracer_core.torch_private.names import names, operators
from tracer_core.torch_private.needed import OpOverload

aten = operators("aten")

#: Operators of the recorded graph that only copy their first argument.
_COPIES = frozenset({aten.clone.default, aten.alias.default, aten.detach.default})
#: What autograd makes of the gradient of an indexed tensor.
_PUTS = frozenset(names(
    "index_put.default _unsafe_index_put.default _index_put_impl.default", of="ops.aten"
))  # fmt: skip
_ADDS = frozenset({aten.add.Tensor})
#: Arguments of operators that do not change a 0-d value. The device is the one of `evaluate`.
_IGNORED = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking"})
#: Only its IR is used: what the functions are lowered to.
_CORE_ATEN = Backend(name="scalar_program", compile=lambda graph, spec: graph, ir="core_aten")


def record(
    gm: torch.fx.GraphModule, roles: Sequence[str], differentiate: bool
) -> tuple[ScalarProgram, ScalarProgram | None]:
    """Returns the program of a captured function, and that of its gradient.

    gm: returns one 0-d tensor; its placeholders carry their values. roles: the placeholders' names
    in the program. differentiate: the result requires grad. Raises LoweringUnsupported for what is
    no function of scalars.
    """
    gm = _with_own_result(gm)
    placeholders = gm.graph.find_nodes(op="placeholder")
    values = {node: node.meta["val"] for node in gm.graph.nodes if node.op != "output"}
    request = Request(_CORE_ATEN, None, "default", "scalar_program", Phase.JOINT)
    inputs = [values[node] for node in placeholders]
    specs = default_specs(gm, inputs)
    if not differentiate:
        lowered = Lowering(gm, values, request).run(specs)
        _require_no_writes(lowered.spec.mutations)
        _require_no_constants(lowered.graph.graph, roles)
        (output,) = lowered.graph.graph.find_nodes(op="output")
        (result,) = output.args[0]
        return _Reader(lowered.graph.graph, roles).program(result), None
    joint = JointLowering(gm, values, request, inputs).joint(specs)
    _require_no_writes(joint.mutations)
    _require_no_constants(joint.graph, [*roles, "grad"])
    (result,), (tangent,) = joint.outputs, joint.tangents
    assert tangent is not None
    forward = _Reader(joint.graph, roles).program(result)
    results = dict(zip(joint.differentiable, joint.gradients, strict=True))
    reader = _Reader(joint.graph, [*roles, "grad"])
    contributions: list[Contribution] = []
    for index, gradient in results.items():
        if roles[index] != "score" and gradient is not None:
            contributions += reader.contributions(roles[index], gradient, ())
    score = results.get(roles.index("score"))
    return forward, reader.program(score, tuple(contributions))


def _with_own_result(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Returns the graph with a copy of its result, which is then no input of the graph."""
    graph, copied = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    (result,) = cast(tuple[torch.fx.Node], graph.graph_copy(gm.graph, copied))
    for node, copy in copied.items():
        copy.meta = dict(node.meta)
    copy = graph.call_function(aten.clone.default, (result,))
    with torch.enable_grad():
        copy.meta["val"] = result.meta["val"].clone()
    graph.output((copy,))
    return torch.fx.GraphModule(gm, graph)


def _require_no_writes(mutations: Sequence[int]) -> None:
    if mutations:
        raise LoweringUnsupported("a function of scores writes to a tensor")


def _require_no_constants(graph: torch.fx.Graph, roles: Sequence[str]) -> None:
    if len(graph.find_nodes(op="placeholder")) != len(roles):
        raise LoweringUnsupported("a function of scores holds a tensor of its own")


class _Reader:
    """Reads a program from a lowered graph. Mutable. roles: the names of its placeholders."""

    def __init__(self, graph: torch.fx.Graph, roles: Sequence[str]) -> None:
        placeholders = graph.find_nodes(op="placeholder")
        self.roles = roles = tuple(roles)
        self.refs: dict[torch.fx.Node, Ref] = {
            node: Ref(k) for k, node in enumerate(placeholders[: len(roles)])
        }
        self.names = dict(zip(placeholders, roles, strict=False))
        self.steps: list[Step] = []
        #: Node of a tensor that is only partly indexed -> the tensor read, its first indices.
        self.partial: dict[torch.fx.Node, tuple[torch.fx.Node, tuple[Ref, ...]]] = {}

    def program(
        self, result: torch.fx.Node | None, contributions: tuple[Contribution, ...] = ()
    ) -> ScalarProgram:
        output = None if result is None else self.ref(result)
        return ScalarProgram(self.roles, tuple(self.steps), output, contributions)

    def ref(self, node: torch.fx.Node) -> Ref:
        """Returns a 0-d value, whose steps are added."""
        if node not in self.refs:
            self.refs[node] = self._made(node)
        elif self._is_read_from(node):
            if node.meta["val"].dim():
                raise LoweringUnsupported(f"{self.names[node]} is not indexed to one element")
            return self._load(node, ())
        return self.refs[node]

    def _is_read_from(self, node: torch.fx.Node) -> bool:
        return str(self.names.get(node, "")).startswith("t")

    def _step(self, name: str, args: tuple[Any, ...], value: tuple[Any, ...] = ()) -> Ref:
        step = (name, args, value)
        if step in self.steps:
            return Ref(len(self.roles) + self.steps.index(step))
        self.steps.append(step)
        return Ref(len(self.roles) + len(self.steps) - 1)

    def _load(self, buffer: torch.fx.Node, at: tuple[Ref, ...]) -> Ref:
        return self._step(LOAD, (self.refs[buffer], *at))

    def _made(self, node: torch.fx.Node) -> Ref:
        value, target = node.meta.get("val"), node.target
        if isinstance(value, (torch.SymInt, torch.SymFloat, int, float)):
            return self._number(node)
        if target in _COPIES:
            return self.ref(node.args[0])  # type: ignore[arg-type]
        if not isinstance(value, torch.Tensor) or not isinstance(target, OpOverload):
            raise LoweringUnsupported(f"{target} in a function of scores")
        if target is aten.index.Tensor:
            buffer, at = self._indexed(node)
            if value.dim():
                raise LoweringUnsupported("a function of scores reads more than one element")
            return self._load(buffer, at)
        if value.dim():
            raise LoweringUnsupported(f"{target} makes more than one element of a score")
        if is_random(target):
            raise LoweringUnsupported(f"{target} draws random numbers for each score")
        args = tuple(map(self._argument, node.args))
        items = tuple(
            (key, self._argument(item)) for key, item in node.kwargs.items() if key not in _IGNORED
        )
        return self._step(str(target), args, items)

    def _number(self, node: torch.fx.Node) -> Ref:
        if node.target is aten.sym_size.int:
            buffer, dim = node.args
            if self._is_read_from(buffer):  # type: ignore[arg-type]
                return self._step(SIZE, (self.refs[buffer], dim))  # type: ignore[index]
        name = NUMBER_NAMES.get(node.target)
        if name is None:
            raise LoweringUnsupported(f"{node.target} of sizes in a function of scores")
        return self._step(name, tuple(map(self._argument, node.args)))

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return self.ref(value)
        if isinstance(value, (tuple, list)):
            return tuple(map(self._argument, value))
        if value is None or isinstance(value, (bool, int, float, str, torch.dtype)):
            return value
        raise LoweringUnsupported(f"an argument {value!r} in a function of scores")

    def _indexed(self, node: torch.fx.Node) -> tuple[torch.fx.Node, tuple[Ref, ...]]:
        """Returns the tensor that an ``index`` reads, and the indices; those of an index of an
        index follow each other."""
        if node in self.partial:
            return self.partial[node]
        source, indices = node.args
        assert isinstance(source, torch.fx.Node) and isinstance(indices, (tuple, list))
        if not all(isinstance(index, torch.fx.Node) for index in indices):
            raise LoweringUnsupported("a function of scores reads more than one element")
        if any(index.meta["val"].dtype not in (torch.int64, torch.int32) for index in indices):  # type: ignore[union-attr]
            raise LoweringUnsupported("a function of scores indexes by other than integers")
        buffer = source
        first: tuple[Ref, ...] = ()
        if source.target is aten.index.Tensor:
            buffer, first = self._indexed(source)
        if not self._is_read_from(buffer):
            raise LoweringUnsupported("a function of scores indexes a tensor that it makes")
        at = (*first, *(self.ref(index) for index in indices))  # type: ignore[arg-type]
        self.partial[node] = buffer, at
        return buffer, at

    def contributions(
        self, buffer: str, gradient: torch.fx.Node, first: tuple[Ref, ...]
    ) -> list[Contribution]:
        """Returns what the gradient of a tensor adds to its elements. first: indices that lead to
        the part of it that `gradient` is for."""
        if gradient.target in _COPIES:
            return self.contributions(buffer, gradient.args[0], first)  # type: ignore[arg-type]
        if gradient.target in _PUTS and gradient.meta["val"].dim():
            zeros, indices, value, *accumulate = gradient.args
            if not _is_zero(zeros) or (accumulate and not accumulate[0]):
                raise LoweringUnsupported("the gradient of an indexed tensor has another form")
            at = (*first, *(self.ref(index) for index in indices))  # type: ignore[union-attr,arg-type]
            return self.contributions(buffer, value, at)  # type: ignore[arg-type]
        if gradient.target in _ADDS and gradient.meta["val"].dim():
            left, right = gradient.args
            return [
                *self.contributions(buffer, left, first),  # type: ignore[arg-type]
                *self.contributions(buffer, right, first),  # type: ignore[arg-type]
            ]
        if gradient.meta["val"].dim():
            raise LoweringUnsupported(f"{gradient.target} in the gradient of an indexed tensor")
        return [Contribution(buffer, first, self.ref(gradient))]


def _is_zero(node: Any) -> bool:
    return node.target is aten.full.default and node.args[1] == 0
