"""Sizes (and whole numbers) that only a tensor's values decide: symbols without a value in the
trace.

In: each operator of a trace. Out: the nodes that read such a symbol at run time, and nodes that
check whatever the trace took for granted about it. What always holds: every decision that was made
about such a symbol, by torch's fakes or by the program, follows from facts that the graph checks
before it has written to any input; where a check fails, the program runs in the graph's place. A
decision that would need its value ends the graph.

Sizes are taken to be 2 or more, since 0 and 1 broadcast and are laid out in ways of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.errors import LoweringUnsupported
from tracer_core.aot.unbacked_split import MARK
from tracer_core.fx_capture.graph_breaks import Break
from tracer_core.torch_private.needed import pytree

#: What reads one whole number out of a tensor.
READS_A_NUMBER = frozenset({"item", "__int__", "__index__"})
#: What a place refuses (see `capture`) once its calls have failed such checks too often.
DATA_SIZES = "data sizes"


class SizeDiffers(Exception):
    """A graph was captured for other sizes than its tensors' values now give."""


def require(holds: Any, fact: str) -> None:
    """A node of a graph: raises `SizeDiffers` unless a fact about a size holds."""
    if not holds:
        raise SizeDiffers(fact)


class DataSizes:
    """Mutable. env: the trace's ShapeEnv. symbol(expression): the node that computes it.
    node(function, args): a new node. written(): whether an input was written to."""

    def __init__(
        self,
        env: Any,
        symbol: Callable[[Any], Any],
        node: Callable[..., torch.fx.Node],
        written: Callable[[], bool],
    ) -> None:
        self._env, self._symbol, self._node, self._written = env, symbol, node, written
        #: Nodes that make such a symbol.
        self.nodes: set[torch.fx.Node] = set()

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        """Inside, an operator runs on fakes."""
        self._env.inside_operator += 1
        try:
            yield
        except BaseException:
            self._env.facts.clear()  # it did not happen
            raise
        finally:
            self._env.inside_operator -= 1
            self._env.pending_fresh_unbacked_symbols.clear()

    def is_new_number(self, result: Any) -> bool:
        """Whether an operator gave a number that is a new symbol."""
        return type(result) is torch.SymInt and torch_private.raw_symbol(result) in self._env.unread

    def note(self, result: Any, node_of: Callable[[Any], torch.fx.Node | None]) -> None:
        """An operator was recorded: says where its new symbols are read, and checks what was taken
        for granted.
        """
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
        """The node that reads a data-dependent symbol."""
        found: torch.fx.Node | None = self._env.read_by.get(symbol)
        return found

    def close(self) -> None:
        """The trace is over: says at each node what it is, and lets nothing more be taken for
        granted.
        """

        def refuse() -> None:
            raise LoweringUnsupported(
                "a question about a size that depends on data comes up while it is lowered"
            )

        self._env.told = refuse
        for node in self.nodes:
            node.meta[MARK] = True

    def check(self) -> None:
        """Writes nodes for the facts that were taken for granted since the last time."""
        facts = list(self._env.facts)
        self._env.facts.clear()
        if not facts:
            return
        if self._written():
            raise Break(
                "data_dependent_shape", "a size that depends on data, after a write to an input"
            )
        for fact in facts:
            if not self._env.unread.isdisjoint(fact.free_symbols):
                raise Break(
                    "data_dependent_shape",
                    f"a size that depends on data and that no tensor shows: {fact}",
                )
            holds = self._symbol(fact)
            if holds is not True:
                self.nodes.add(self._node("call_function", require, (holds, str(fact)), None))


def gives_data_size(func: Any, kind: str, args: tuple[Any, ...]) -> bool:
    """Whether what ends the graph here is a size, or a whole number, that depends on data."""
    if kind == "data_dependent_shape":
        return True
    if getattr(func, "__name__", "") not in READS_A_NUMBER:
        return False
    receiver = getattr(func, "__self__", None)  # of a bound method
    return is_whole_number(
        receiver if isinstance(receiver, torch.Tensor) else next(iter(args), None)
    )


def is_whole_number(value: Any) -> bool:
    """Whether a value is a tensor that holds one whole number."""
    if not isinstance(value, torch.Tensor) or value.dtype not in _WHOLE:
        return False
    return all(type(size) is int and size == 1 for size in value.shape)


_WHOLE = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})
