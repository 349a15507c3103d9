"""Values that a graph computes from small tensors which the program holds: flags and counters of
modules, tables of a scheduler.

Such a value is known before the graph runs: the few operators that lead to it, applied to the
tensors themselves, give it again in each call. So a branch on it, or its ``.item()``, is guarded or
read as a number, and breaks no graph. Tensors that are arguments carry data; they are not read.

The operators of a `Reading` are pure or write only to copies; a write of the graph to one of the
tensors is among them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.debug.crossed_limits import crossed
from tracer_core.fx_capture.fx_graph import WrittenGraph
from tracer_core.guards.source import Source, SourceTrait
from tracer_core.limits import MAX_STATE_ELEMENTS, MAX_STATE_OPERATORS
from tracer_core.torch_private.names import names
from tracer_core.torch_private.needed import function_modes


@dataclass(frozen=True, slots=True)
class Reading:
    """text: a function of the tensors, as Python source. sources: of the tensors. tensors: as they
    are now."""

    text: str
    sources: tuple[Source, ...]
    tensors: tuple[torch.Tensor, ...]

    def now(self) -> Any:
        """Returns the value before the graph runs."""
        return reading(self.text)(*self.tensors)


@functools.lru_cache(maxsize=4096)
def reading(text: str) -> Callable[..., Any]:
    """Returns the function of a `Reading`."""
    namespace = {"torch": torch, "operator": operator, "inf": float("inf"), "nan": float("nan")}
    function = eval(text, namespace)

    def read(*tensors: torch.Tensor) -> Any:
        with torch.no_grad():
            return function(*tensors)

    return read


class _Unknown(Exception):
    """The value depends on something else than small tensors of the program."""


def reading_of(graph: WrittenGraph, tensor: Any, as_bool: bool) -> Reading | None:
    """Returns how to read the one element of a tensor of the trace, or None. as_bool: its truth."""
    if not _is_single(tensor) or function_modes() or torch.is_inference_mode_enabled():
        return None
    try:
        if not torch_private.is_fake(tensor) and not graph.fakes.memory_was_written(tensor):
            source = _checked(tensor, graph.source_of(tensor))
            read = "v0.item()"
            text = f"lambda v0: bool({read})" if as_bool else f"lambda v0: {read}"
            return Reading(text, (source,), (tensor,))
        node = graph.node_of(graph.as_fake(tensor))
        if node is None:
            return None
        return _Slice(graph, node).reading(as_bool)
    except _Unknown:
        return None


def _is_single(value: Any) -> bool:
    return (
        value.device.type == "cpu"
        and value.layout is torch.strided
        and not value.dtype.is_complex
        and all(type(size) is int and size == 1 for size in value.shape)
    )


class _Slice:
    """The nodes that a value depends on. Mutable, used once."""

    def __init__(self, graph: WrittenGraph, wanted: torch.fx.Node) -> None:
        self._graph, self._wanted = graph, wanted
        self._inputs = {value.node: value for value in graph.inputs}
        self._names: dict[torch.fx.Node, str] = {}

    def reading(self, as_bool: bool) -> Reading:
        nodes, writes = self._nodes()
        inputs = [self._inputs[node] for node in nodes if node.op == "placeholder"]
        for value in inputs:
            _checked(value.value, value.source)
            if not all(type(size) is int for size in value.node.meta["val"].shape):
                raise _Unknown()
        storages = [torch_private.storage_id(value.value) for value in inputs]
        if len(set(storages)) < len(storages):
            raise _Unknown  # a write to one would be one to the other
        for i, node in enumerate(nodes):
            self._names[node] = f"v{i}"
        arguments = [self._names[value.node] for value in inputs]
        steps = [f"{name} := {name}.clone()" for name in arguments] if writes else []
        steps += [
            f"{self._names[node]} := {self._call(node)}"
            for node in nodes
            if node.op != "placeholder"
        ]
        read = f"{self._names[self._wanted]}.item()"
        steps.append(f"bool({read})" if as_bool else read)
        text = f"lambda {', '.join(arguments)}: ({', '.join(steps)},)[-1]"
        return Reading(text, tuple(item.source for item in inputs), tuple(o.value for o in inputs))

    def _nodes(self) -> tuple[list[torch.fx.Node], bool]:
        """Returns the nodes of the value in order, and whether one of them writes to a tensor."""
        wanted, memory = {self._wanted}, {torch_private.storage_id(self._wanted.meta["val"])}
        nodes: list[torch.fx.Node] = []
        writes = False
        for node in reversed(self._graph.graph.nodes):
            written = memory.intersection(node.meta.get("writes", ()))
            if node not in wanted and not written:
                continue
            writes |= bool(written)
            nodes.append(node)
            if len(nodes) > MAX_STATE_OPERATORS:
                crossed("MAX_STATE_OPERATORS")
            if len(nodes) > MAX_STATE_OPERATORS or not (
                node.op == "placeholder" or _is_known(node)
            ):
                raise _Unknown()
            for source in (node, *node.all_input_nodes):
                value = source.meta.get("val")
                for part in value if isinstance(value, (tuple, list)) else (value,):
                    if part is None and written:
                        continue  # what ``x[0] = 1`` gives
                    if not isinstance(part, torch.Tensor) or part.layout is not torch.strided:
                        raise _Unknown()
                    memory.add(torch_private.storage_id(part))
            wanted.update(node.all_input_nodes)
        return nodes[::-1], writes

    def _call(self, node: torch.fx.Node) -> str:
        arguments = [self._text(arg) for arg in node.args]
        arguments += [f"{name}={self._text(value)}" for name, value in node.kwargs.items()]
        if node.op == "call_method":
            return f"{arguments[0]}.{node.target}({', '.join(arguments[1:])})"
        return f"{_TEXTS[node.target]}({', '.join(arguments)})"

    def _text(self, value: Any) -> str:
        if isinstance(value, torch.fx.Node):
            return self._names[value]
        if isinstance(value, (tuple, list)):
            inside = "".join(f"{self._text(item)}, " for item in value)
            return f"({inside})" if isinstance(value, tuple) else f"[{inside}]"
        if isinstance(value, slice):
            return f"slice({', '.join(map(self._text, (value.start, value.stop, value.step)))})"
        if type(value) is torch.device and value.type == "cpu":
            return "'cpu'"
        if value is Ellipsis or type(value) in _PLAIN:
            return "..." if value is Ellipsis else repr(value)
        raise _Unknown()


def _checked(real: Any, source: Source | None) -> Source:
    """Returns the source of an input; raises _Unknown for one that is no small tensor of the
    program."""
    if (
        source is None
        or type(real) not in torch_private.BASE_TENSOR_TYPES
        or real.device.type != "cpu"
        or real.requires_grad
        or real.is_inference()
        or not _is_held(source)
    ):
        raise _Unknown()
    if real.numel() > MAX_STATE_ELEMENTS:
        crossed("MAX_STATE_ELEMENTS", reached=real.numel())
        raise _Unknown()
    return source


_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.memory_format)


def _is_held(source: Source) -> bool:
    """Returns whether a path leads through an object of the program, and not through a gradient."""
    through = False
    step: Source | None = source
    while step is not None and SourceTrait.FOLLOWED in step.kind.traits:
        through = through or SourceTrait.THROUGH_OBJECT in step.kind.traits
        step = step.base
    return through and step is None


#: Operators without randomness and without effects, as functions and as methods; with an underscore
#: behind, those that write to their first argument.
_OPERATORS = frozenset(
    ["abs", "add", "all", "amax", "amin", "any", "arange", "argmax", "argmin", "as_tensor",
     "atan2", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "bool", "ceil",
     "clamp", "clamp_max", "clamp_min", "clip", "clone", "copysign", "cos", "cumprod",
     "cumsum", "detach", "diff", "div", "divide", "double", "eq", "equal", "exp", "expand",
     "flatten", "flip", "float", "floor", "floor_divide", "fmod", "full", "full_like",
     "gather", "ge", "greater", "greater_equal", "gt", "index_select", "int", "isfinite",
     "isinf", "isnan", "item", "le", "lerp", "less", "less_equal", "linspace", "log", "log1p",
     "log2", "logical_and", "logical_not", "logical_or", "logical_xor", "long", "lt",
     "masked_fill", "max", "maximum", "mean", "min", "minimum", "mod", "mul", "multiply",
     "narrow", "ne", "neg", "negative", "new_full", "new_ones", "new_tensor", "new_zeros",
     "not_equal", "numel", "ones", "ones_like", "pow", "prod", "reciprocal", "remainder",
     "reshape", "round", "rsqrt", "rsub", "searchsorted", "select", "sigmoid", "sign", "sin",
     "sort", "split", "sqrt", "square", "squeeze", "stack", "cat", "sub", "subtract", "sum",
     "tanh", "tensor", "to", "trunc", "type", "true_divide", "unbind", "unsqueeze", "view",
     "view_as", "where", "zeros", "zeros_like", "scalar_tensor"]
)  # fmt: skip
_WRITING = frozenset(
    ["add", "sub", "mul", "div", "clamp", "copy", "fill", "zero", "pow", "neg", "abs"]
)  # fmt: skip
#: Functions of Python's operator module.
_PYTHON = frozenset(
    ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "pos", "abs", "eq",
     "ne", "lt", "le", "gt", "ge", "and_", "or_", "xor", "invert", "getitem", "iadd", "isub",
     "imul", "itruediv", "ifloordiv", "setitem"]
)  # fmt: skip
_METHODS = (
    _OPERATORS
    | {f"{name}_" for name in _WRITING}
    | {f"__{name.strip('_')}__" for name in _PYTHON}
    | {
        f"__r{name}__"
        for name in ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"]
    }
)
#: Function -> its text.
_TEXTS: dict[Any, str] = {
    **{getattr(operator, name): f"operator.{name}" for name in _PYTHON},
    **{getattr(torch, name): f"torch.{name}" for name in _OPERATORS if hasattr(torch, name)},
    **dict.fromkeys(names("Tensor.select"), "torch.Tensor.select"),
}


def _is_known(node: torch.fx.Node) -> bool:
    if node.op == "call_method":
        return node.target in _METHODS
    return node.op == "call_function" and node.target in _TEXTS
