"""Unbacked SymInts: data-dependent sizes and integers as symbols without a value in the trace.

Torch's fakes and the program may assume facts about such a symbol; the graph asserts each fact
before it mutates any input, and the program runs eagerly where an assertion fails. A decision that
needs the symbol's value breaks the graph. Unbacked sizes are assumed to be at least 2, since sizes
0 and 1 broadcast and have layouts of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.contract.captured_graph import MARK
from tracer_core.contract.lowering_errors import LoweringUnsupported
from tracer_core.fx_capture.data_errors import AssertionFailed, SizeDiffers
from tracer_core.fx_capture.function_traits import operator_name, receiver_of
from tracer_core.graph_breaks import Break
from tracer_core.torch_private.needed import pytree

#: Tensor methods that read one integer out of a tensor.
READS_A_NUMBER = frozenset({"item", "__int__", "__index__"})
#: Those that read a float as it is.
READS_A_FLOAT = frozenset({"item", "__float__"})


def require(holds: Any, fact: str) -> None:
    """Raises `SizeDiffers` unless a fact about a size holds. Target of a graph node."""
    if not holds:
        raise SizeDiffers(fact)


def require_speculated(holds: Any, fact: str) -> None:
    """Raises `AssertionFailed` unless a number is as it was in the call that was captured. Target of a
    graph node."""
    if not holds:
        raise AssertionFailed(fact)


class DataSizes:
    """The unbacked SymInts of one trace. Mutable. env: its ShapeEnv. symbol(expression): the node
    that computes it. origins(text): see `SizeNodes.origins`. node(op, target, args, value): a new
    node. written(): whether a graph input was mutated."""

    def __init__(
        self,
        env: Any,
        symbol: Callable[[Any], Any],
        origins: Callable[[str], str],
        node: Callable[..., torch.fx.Node],
        written: Callable[[], bool],
    ) -> None:
        self._env, self._symbol, self._node, self._written = env, symbol, node, written
        self._origins = origins
        #: Nodes that create an unbacked symbol or assert a fact about one.
        self.nodes: set[torch.fx.Node] = set()

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """Context in which one operator runs on fakes."""
        self._env.inside_operator += 1
        try:
            yield
        except BaseException:
            self._env.facts.clear()  # the operator is not recorded
            raise
        finally:
            self._env.inside_operator -= 1
            self._env.pending_fresh_unbacked_symbols.clear()

    def is_new_number(self, result: Any) -> bool:
        """Returns whether an operator returned a number that is a new unbacked symbol."""
        number = type(result) in (torch.SymInt, torch.SymFloat)
        return number and torch_private.raw_symbol(result) in self._env.unread

    def note(self, result: Any, node_of: Callable[[Any], torch.fx.Node | None]) -> None:
        """Binds the new symbols of a recorded operator to nodes and asserts the facts it assumed."""
        if self._env.unread:
            self._bind(result, node_of)
        self.check()

    def _bind(self, result: Any, node_of: Callable[[Any], torch.fx.Node | None]) -> None:
        for leaf in pytree.tree_leaves(result):
            node = node_of(leaf)
            if node is None:
                continue
            sizes = leaf.shape if isinstance(leaf, torch.Tensor) else ()
            for dim, size in enumerate(sizes):
                symbol = torch_private.raw_symbol(size)
                if symbol in self._env.unread:
                    read = self._node("call_method", "size", (node, dim), size)
                    self._made(symbol, read, node)
            symbol = torch_private.raw_symbol(leaf)
            if symbol in self._env.unread:
                self._made(symbol, node, node)

    def _made(self, symbol: Any, read: torch.fx.Node, node: torch.fx.Node) -> None:
        self._env.unread.discard(symbol)
        self._env.read_by[symbol] = read
        self.nodes.add(node)

    def read_by(self, symbol: Any) -> torch.fx.Node | None:
        """Returns the node that reads an unbacked symbol."""
        node: torch.fx.Node | None = self._env.read_by.get(symbol)
        return node

    def close(self) -> None:
        """Ends the trace: marks the nodes of unbacked symbols and forbids further assumptions."""

        def refuse() -> None:
            reason = "a question about a size that depends on data comes up while it is lowered"
            raise LoweringUnsupported(reason)

        self._env.on_query, self._env.closed = refuse, True
        for node in self.nodes:
            node.meta[MARK] = True

    def are_read(self, expr: Any) -> bool:
        """Returns whether nodes read all unbacked symbols of an expression."""
        unread: set[Any] = self._env.beginnings | self._env.unread
        return unread.isdisjoint(expr.free_symbols)

    def speculate(self, fact: Any) -> None:
        """Adds a node that checks a fact of the call that is captured."""
        args = self._symbol(fact), self._text(fact)
        self.nodes.add(self._node("call_function", require_speculated, args, None))

    def _text(self, fact: Any) -> str:
        return f"{fact}{self._origins(str(fact))}"

    def check(self) -> None:
        """Adds assertion nodes for the facts assumed since the last call."""
        facts = list(self._env.facts)
        self._env.facts.clear()
        if not facts:
            return
        if self._written():
            reason = "a size that depends on data, after a write to an input"
            raise Break("data_dependent_shape", reason)
        for fact in facts:
            if not self._env.unread.isdisjoint(fact.free_symbols):
                reason = f"a size that depends on data and that no tensor shows: {fact}"
                raise Break("data_dependent_shape", reason)
            holds = self._symbol(fact)
            if holds is not True:
                self.nodes.add(
                    self._node("call_function", require, (holds, self._text(fact)), None)
                )


def gives_data_size(func: Any, kind: str, args: tuple[Any, ...], floats: bool) -> bool:
    """Returns whether a data-dependent size or number is what breaks the graph here. floats: floats
    may be symbols, too."""
    if kind == "data_dependent_shape":
        return True
    name, read = operator_name(func), receiver_of(func, args)
    if name in READS_A_NUMBER and is_integer(read):
        return True
    return floats and name in READS_A_FLOAT and is_float(read)


def is_data_size(size: Any) -> bool:
    """Returns whether a size is a symbol without a value in the trace."""
    if not isinstance(size, torch.SymInt) or torch_private.is_nested_int(size):
        return False
    return size.node.hint is None


def is_float(value: Any) -> bool:
    """Returns whether a value is a tensor of floats with one element."""
    if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
        return False
    return all(type(size) is int and size == 1 for size in value.shape)


def is_integer(value: Any) -> bool:
    """Returns whether a value is an integer tensor with one element."""
    if not isinstance(value, torch.Tensor) or value.dtype not in _WHOLE:
        return False
    return all(type(size) is int and size == 1 for size in value.shape)


_WHOLE = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})
