"""The FX graph under construction: its inputs, its nodes, and which node makes which value.

Inputs stand in the order of first use and nodes in execution order. A value can be an argument only
if a node of this graph makes it or the graph's source text can express it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.contract.captured_graph import MARK, ORDERED
from tracer_core.fx_capture.fake_mode import Fakes
from tracer_core.fx_capture.function_traits import target_of
from tracer_core.fx_capture.size_nodes import GraphInput, SizeNodes
from tracer_core.graph_breaks import Break, Restart
from tracer_core.guards.numpy_types import SCALARS
from tracer_core.guards.source import Source, is_identifier
from tracer_core.torch_private.lazy_graph_module import add_node
from tracer_core.torch_private.needed import OpOverload

_SIMPLE = (int, float, bool, str, complex, type(None), torch.dtype, torch.device, torch.layout,
           torch.memory_format, type(Ellipsis))  # fmt: skip
SIMPLE_TYPES = frozenset(_SIMPLE)
#: Python class -> the dtype that ``dtype=int`` means; graph source text cannot express a class.
_PYTHON_DTYPES: dict[type, torch.dtype] = {
    bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128,
}  # fmt: skip


class WrittenGraph:
    """One graph under construction. Mutable. inputs: (source, real tensor or number, placeholder
    node), in order. op_count: recorded calls. source_of, dims_of: the tracer's provenance. where():
    the user's line that is being run."""

    def __init__(
        self,
        fakes: Fakes,
        source_of: Callable[[Any], Source | None],
        dims_of: Callable[[torch.Tensor], Any],
        where: Callable[[], str],
    ) -> None:
        self.fakes = fakes
        self.graph = torch.fx.Graph()
        self.inputs: list[GraphInput] = []
        self.op_count = 0
        self.state_nodes = 0
        #: Whether an operator was recorded inside of ``try`` statements of the program that the
        #: trace has entered.
        self.in_try = False
        self.handles: Callable[[], bool] = lambda: False
        #: Whether the default generator has another seed than before the trace, and the states of
        #: it that were read while it had not.
        self.seeded = False
        self.first_states: dict[int, tuple[Any, int]] = {}
        self.sizes = SizeNodes(self)
        self.source_of, self._dims_of, self._where = source_of, dims_of, where
        #: Guards that an object is the same in every call.
        self.identify: Callable[[Source, Any], None] = lambda source, value: None
        #: What makes inputs' sizes share symbols: `ShapePolicy.alike`.
        self.alike: Callable[[torch.Tensor], Any] = lambda tensor: None
        self._nodes: dict[int, torch.fx.Node] = {}
        self._inside: dict[int, tuple[int, str]] = {}
        self._alive: list[Any] = []
        self._names: set[str] = set()
        self._last_placeholder: torch.fx.Node | None = None

    # -- inputs --

    def fake(self, real: torch.Tensor) -> Any:
        """Returns the fake of an input tensor; makes its placeholder at the first use."""
        source = self._source(real)
        fake = self.fakes.of(real, source.name, self._dims_of(real), self.alike(real))
        if id(fake) not in self._nodes:
            self.placeholder(source, real, fake)
        return fake

    def wrapper(self, real: torch.Tensor, fake: Any) -> Any:
        """Makes a tensor of a subclass an input. fake: one of its class that holds fakes."""
        self.fakes.adopt(real, fake)
        self.placeholder(self._source(real), real, fake)
        return fake

    def _source(self, real: torch.Tensor) -> Source:
        source = self.source_of(real)
        if source is None:
            reason = f"a tensor of shape {tuple(real.shape)} made outside the trace"
            raise Break("real_tensor_in_trace", reason)
        return source

    def as_fake(self, tensor: torch.Tensor) -> Any:
        if torch_private.is_fake(tensor) or id(tensor) in self._nodes:
            return tensor
        if torch_private.is_subclass(tensor):
            reason = f"a {type(tensor).__name__} where the graph needs a plain tensor"
            raise Break("tensor_subclass", reason)
        return self.fake(tensor)

    def placeholder(self, source: Source, real: Any, fake: Any) -> torch.fx.Node:
        """Adds an input after the existing ones."""
        stem = re.sub(r"\W+", "_", source.name, flags=re.ASCII).strip("_") or "input"
        stem = name = f"n_{stem}" if stem[0].isdigit() or stem == "self" else stem
        while name in self._names:
            name = f"{stem}_{len(self._names)}"
        self._names.add(name)
        with self.graph.inserting_after(self._last_placeholder or self.graph._root):
            node = self.graph.placeholder(name)
        # which fx has made different from keywords and from what its code calls
        node.target = node.name
        node.meta["val"] = fake
        node.meta["user_frame"] = self._where()
        self._last_placeholder = node
        self.inputs.append(GraphInput(source, real, node))
        self._bind(fake, node)
        return node

    # -- values --

    def _bind(self, value: Any, node: torch.fx.Node) -> None:
        self._nodes[id(value)] = node
        self._alive.append(value)

    def bind(self, value: Any, node: torch.fx.Node) -> None:
        """Binds a tensor that native code handed to the program to the node that makes it."""
        node.meta.update(val=value, user_frame=self._where())
        self._bind(value, node)

    def forget(self, nodes: list[torch.fx.Node], step: int, what: str) -> None:
        """Drops nodes that leave the graph: later nodes cannot use their results."""
        gone = dict.fromkeys(nodes)
        for handle in [handle for handle, node in self._nodes.items() if node in gone]:
            del self._nodes[handle]
            self._inside[handle] = (step, what)
        self.sizes.forget(gone)

    def left_inside(self, value: Any) -> tuple[int, str] | None:
        """Returns (step, what) of the part of the trace that made a tensor whose node left the
        graph, or None."""
        return self._inside.get(id(value))

    def node_of(self, value: Any) -> torch.fx.Node | None:
        """Returns the node that made a fake or symbolic value; None if the value is not in the
        graph."""
        return self._nodes.get(id(value))

    def known(self) -> frozenset[int]:
        """Returns the ids of the fakes that are in the graph."""
        return frozenset(self._nodes)

    def _bind_result(self, result: Any, node: torch.fx.Node) -> None:
        if isinstance(result, torch.Tensor):
            # An in-place operator returns its argument, which keeps its node: the graph runs in order.
            if id(result) not in self._nodes:
                self._bind(result, node)
            return
        if isinstance(result, (tuple, list)):
            for index, element in enumerate(result):
                is_made = isinstance(element, (torch.Tensor, tuple, list))
                if is_made and id(element) not in self._nodes:
                    args = node, index
                    child = add_node(self.graph, "call_function", operator.getitem, args, {})
                    child.meta.update(val=element, user_frame=node.meta["user_frame"])
                    self._bind_result(element, child)
        elif isinstance(result, dict):
            raise Break("operator_failed", "an operator returned a dictionary")

    # -- nodes --

    def unchecked_node(
        self, op: str, target: Any, args: tuple[Any, ...], value: Any
    ) -> torch.fx.Node:
        node = self.graph.create_node(op, target, args, {})
        node.meta.update(val=value, user_frame=self._where())
        return node

    def _emit(self, func: Any, args: Any, kwargs: Any) -> torch.fx.Node:
        require_constant_keywords(func, kwargs)
        node_args = self.argument(args)
        node_kwargs = {name: self.argument(value) for name, value in kwargs.items()}
        self.op_count += 1
        self.in_try = self.in_try or self.handles()
        kind, target, node_args = target_of(func, node_args)
        node = add_node(self.graph, kind, target, tuple(node_args), node_kwargs)
        node.meta["user_frame"] = self._where()
        if any(isinstance(arg, torch.Generator) for arg in (*args, *kwargs.values())):
            node.meta[MARK] = ORDERED
        return node

    def state_node(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any = None
    ) -> torch.fx.Node:
        """Records a call that changes torch's global state."""
        require_constant_keywords(func, kwargs or {})
        node = self.graph.call_function(func, args, kwargs or {})
        node.meta.update(val=None, user_frame=self._where())
        self.state_nodes += 1
        return node

    def generator(self, value: torch.Generator) -> torch.fx.Node:
        """Returns the node of a random number generator: an input, or made in the graph."""
        node = self._nodes.get(id(value))
        if node is None:
            source = self.source_of(value)
            if source is None:
                raise Break("unsupported_value", "a generator that was made outside the trace")
            node = self.placeholder(source, value, value)
            node.meta["val"] = torch.Generator(value.device)  # the graph outlives the program's
        return node

    def opaque(self, value: torch.ScriptObject) -> torch.fx.Node:
        """Returns the node of an object of C++ that operators read (packed weights): an input, which
        is the same object in every call."""
        node = self._nodes.get(id(value))
        if node is None:
            source = self.source_of(value)
            if source is None:
                raise Break("unsupported_value", "a ScriptObject that was made outside the trace")
            self.identify(source, value)
            node = self.placeholder(source, value, value)
        return node

    def rng_node(self, op: str, target: Any, args: tuple[Any, ...], value: Any) -> torch.fx.Node:
        """Records a call that makes, seeds or reads a random number generator."""
        node = self.unchecked_node(op, target, args, value)
        node.meta[MARK] = ORDERED
        self.op_count += 1
        return node

    def argument(self, value: Any) -> Any:
        """Converts a value to an FX argument. Raises Break for values that a graph cannot hold."""
        if isinstance(value, torch.Tensor):
            node = self._nodes.get(id(value))
            if id(value) in self._inside:
                step, what = self._inside[id(value)]
                raise Restart(step, "higher_order", f"a tensor made inside {what} is used outside")
            if node is None:
                reason = f"a fake tensor of shape {tuple(value.shape)} of another trace"
                raise Break("real_tensor_in_trace", reason)
            return node
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self.sizes.node(value.node.expr)
        if isinstance(value, torch.Size):
            return tuple(self.argument(v) for v in value)
        if isinstance(value, (tuple, list)):
            items = [self.argument(v) for v in value]
            return tuple(items) if isinstance(value, tuple) else items
        if isinstance(value, dict):
            return {key: self.argument(v) for key, v in value.items()}
        if isinstance(value, slice):
            return slice(*(self.argument(v) for v in (value.start, value.stop, value.step)))
        if isinstance(value, _SIMPLE) and type(value) not in SCALARS:
            return _written(value)
        if isinstance(value, type) and value in _PYTHON_DTYPES:
            return _PYTHON_DTYPES[value]
        if type(value) in SCALARS and isinstance(number := value.item(), (bool, int, float)):
            return number  # operators treat a NumPy scalar as a number
        if isinstance(value, torch.Generator):
            return self.generator(value)
        if isinstance(value, torch.ScriptObject):
            return self.opaque(value)
        if isinstance(value, (OpOverload, torch.fx.Node)) or type(value).__module__ == "builtins":
            if callable(value) or isinstance(value, range):
                return value
        raise Break("unsupported_value", f"an operator's argument of type {type(value).__name__}")


def _written(value: Any) -> Any:
    """Replaces an instance of a scalar or str subclass (NumPy, enum) by its plain value, which
    graph source text can express."""
    if type(value) in SIMPLE_TYPES:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    kinds: tuple[Any, ...] = (int, float, complex)
    return next((kind(value) for kind in kinds if isinstance(value, kind)), value)


def require_constant_keywords(func: Any, kwargs: dict[str, Any]) -> None:
    """The code of a graph writes keywords as they are."""
    for name in kwargs:
        if not is_identifier(name):
            reason = f"{func!r} in the graph is given a keyword argument that is no name: {name!r}"
            raise Break("unsupported_value", reason)
