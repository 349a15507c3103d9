"""Speculated values: what tensors of a trace hold in the call that is being captured.

The nodes recorded so far run on the real inputs of that call, each once, in order, without
gradients; what they draw from the default generator is given back. A value found like this holds
for this call alone: the graph has to check it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.contract.captured_graph import MARK, ORDERED
from tracer_core.debug.crossed_limits import crossed
from tracer_core.fx_capture.element_reads import read_at
from tracer_core.fx_capture.fx_graph import WrittenGraph
from tracer_core.fx_capture.higher_order_calls import Target
from tracer_core.fx_capture.unbacked import require, require_speculated
from tracer_core.limits import MAX_SPECULATION_BYTES
from tracer_core.ops.calls import uses_rng
from tracer_core.torch_private.names import names
from tracer_core.torch_private.needed import OpOverload, dispatch_modes, pytree, set_grad_mode

#: Packages whose functions have no effect beside their results.
_PURE = ("torch", "_operator", "builtins", "math")
_WITH_EFFECTS = ("torch.distributed", "torch.autograd", "torch.cuda", "torch.random")
#: Calls that decide about gradients alone, of which there are none here.
_OF_GRADIENTS = frozenset(
    {set_grad_mode, *names("_enter_inference_mode _exit_inference_mode", of="autograd.grad_mode")}
)
_NAMESPACES = frozenset({"aten", "prims"})


_UNTOUCHED = contextlib.nullcontext()


class _Unknown(Exception):
    """A node cannot run twice, or fails on the inputs of this call."""


class SpeculatedValues:
    """The values of one trace's nodes. Mutable: each question runs the nodes that are new."""

    def __init__(self, graph: WrittenGraph) -> None:
        self._graph = graph
        self._values: dict[torch.fx.Node, Any] = {}
        #: Storages of the values, by address, and the bytes of those that the nodes made.
        self._storages: set[int] = set()
        self._bytes = 0
        #: State of the default generator behind the last node that ran.
        self._generator: torch.Tensor | None = None
        self._failed = False

    def of(self, *tensors: torch.Tensor) -> list[torch.Tensor] | None:
        """Returns the real tensors behind fakes of the trace, or None."""
        nodes = [self._graph.node_of(self._graph.as_fake(tensor)) for tensor in tensors]
        return self.of_nodes([node for node in nodes if node is not None])

    def of_nodes(self, nodes: list[torch.fx.Node]) -> list[Any] | None:
        """Returns what nodes of the trace give in this call, or None."""
        if self._failed or dispatch_modes():
            return None
        new = [node for node in self._graph.graph.nodes if node not in self._values]
        drawn = self._generator_of_the_graph() if any(map(_may_use_rng, new)) else _UNTOUCHED
        try:
            with torch.no_grad(), torch_private.without_torch_functions(), drawn:
                self._run(new)
            return [self._values[node] for node in nodes]
        except Exception:  # whatever an operator raises, the graph raises where the program runs
            self._failed = True
            self._values.clear()
            return None

    @contextlib.contextmanager
    def _generator_of_the_graph(self) -> Iterator[None]:
        """Gives the default generator the state that it has at this place of the graph, and
        afterwards the program's."""
        before = torch.get_rng_state()
        try:
            if self._generator is not None:
                torch.set_rng_state(self._generator)
            yield
            self._generator = torch.get_rng_state()
        finally:
            torch.set_rng_state(before)

    def _run(self, nodes: list[torch.fx.Node]) -> None:
        inputs = {value.node: value.value for value in self._graph.inputs}
        for node in nodes:
            if node.op == "placeholder":
                self._values[node] = _plain(inputs[node])
                self._new_bytes(self._values[node])
                continue
            if node.op == "call_function" and node.target in _OF_GRADIENTS:
                self._values[node] = None
                continue
            if not _may_run(node):
                raise _Unknown
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), self._values.__getitem__)
            target: Any = node.target
            if node.op == "call_method":
                result = getattr(args[0], target)(*args[1:], **kwargs)
            else:
                result = target(*args, **kwargs)
            self._values[node] = result
            self._bytes += self._new_bytes(result)
            if self._bytes > MAX_SPECULATION_BYTES:
                crossed("MAX_SPECULATION_BYTES", reached=self._bytes)
                raise _Unknown

    def _new_bytes(self, value: Any) -> int:
        """Returns the size of the storages in a value that are new."""
        size = 0
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
                storage = torch_private.storage_id(leaf)
                size += 0 if storage in self._storages else leaf.untyped_storage().nbytes()
                self._storages.add(storage)
        return size


def _may_use_rng(node: torch.fx.Node) -> bool:
    """Returns whether a node may draw from the default generator."""
    return uses_rng(node) or isinstance(node.target, Target)


def _plain(value: Any) -> Any:
    """Returns an input that operators may run on here; raises _Unknown for any other."""
    if type(value) in (int, float):
        return value
    if type(value) not in torch_private.BASE_TENSOR_TYPES or value.device.type != "cpu":
        raise _Unknown
    if value.layout is not torch.strided or value.is_inference():
        raise _Unknown
    return value


def _may_run(node: torch.fx.Node) -> bool:
    """Returns whether a node has no effect but its results and its writes to intermediates."""
    if node.op == "call_method":
        return True
    if node.op != "call_function" or node.meta.get(MARK) == ORDERED:
        return False
    if node.target in (read_at, require, require_speculated):
        return True
    if node.meta.get("val") is None and not node.meta.get("writes"):
        return False  # it sets torch's state
    target = node.target
    if isinstance(target, OpOverload):
        return target.namespace in _NAMESPACES
    if isinstance(target, Target):
        return True
    module = getattr(getattr(target, "__objclass__", target), "__module__", None) or ""
    return module.partition(".")[0] in _PURE and not module.startswith(_WITH_EFFECTS)
