"""ShapeEnvs that record the origin of their guards (`guard_locations`), and the facts about
unbacked symbols that a trace relied on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tracer_core.torch_private.names import operators
from tracer_core.torch_private.sizes_of_one import answer_at_hand, size_env_class


class GuardLocations:
    """The origins of a ShapeEnv's guards. Mutable. where(): the current line; override: the node
    that is being lowered, "" for none. guards: (expression, place); forced: symbol -> place at
    which it was replaced by another expression."""

    def __init__(self, where: Callable[[], str]) -> None:
        self.where, self.override = where, ""
        self.guards: list[tuple[Any, str]] = []
        self.forced: dict[Any, str] = {}

    def now(self) -> str:
        return self.override or self.where()


class _NotedGuards(list[Any]):
    def __init__(self, places: GuardLocations) -> None:
        super().__init__()
        self.places = places

    def append(self, guard: Any) -> None:
        super().append(guard)
        self.places.guards.append((guard.expr, self.places.now()))


class _NotedReplacements(dict[Any, Any]):
    def __init__(self, places: GuardLocations) -> None:
        super().__init__()
        self.places = places

    def __setitem__(self, symbol: Any, expr: Any) -> None:
        super().__setitem__(symbol, expr)
        self.places.forced.setdefault(symbol, self.places.now())


def guard_locations(env: Any) -> GuardLocations | None:
    """Returns the guard locations of a ShapeEnv made by `new_shape_env`."""
    return getattr(env, "tracer_places", None)


def new_shape_env(where: Callable[[], str], data_sizes: bool = False) -> Any:
    """Returns an empty ShapeEnv that gives each size its own symbol. where(): the current line.
    data_sizes: support unbacked symbols (`_data_env_class`); else operators that make them are
    unsupported."""
    env: Any = _data_env_class()() if data_sizes else size_env_class()()
    env.tracer_places = places = GuardLocations(where)
    env.guards, env.replacements = _NotedGuards(places), _NotedReplacements(places)
    return env


@functools.cache
def _data_env_class() -> Any:
    import sympy
    from torch.fx.experimental import symbolic_shapes
    from torch.utils._sympy.functions import Max
    from torch.utils._sympy.numbers import int_oo

    unsupported = symbolic_shapes.GuardOnDataDependentSymNode

    class DataEnv(size_env_class()):  # type: ignore[misc]
        """A ShapeEnv that notes the facts about unbacked symbols that a graph relies on, whether
        they were asserted or assumed.

        unread: new symbols that no node reads yet. read_by: symbol -> that node. beginnings:
        symbols of view storage offsets, which no graph reads and whose facts need no assertion,
        since the view op ensures them. facts: relied on since they were last taken, in order.
        makes_numbers: the running operator reads a scalar, which may be any integer, while a size
        is assumed to be at least 2. views: how many more sizes the running operator creates before
        a storage offset; None unless its fake answers undecidable queries safely (slices and
        elements at an unknown index). inside_operator: torch may catch a rejected guard. Elsewhere refused(expression) is
        called for a rejected guard, and told() for a new fact. undecided(expression) is called
        where any assumption would contradict those about sizes, and must raise.
        speculated(expression) returns the answer that the call which is captured gives and that the
        graph checks, or None."""

        def __init__(self) -> None:
            super().__init__(outputs_of_any_size=True)
            self.answers = None
            self.unread: set[Any] = set()
            self.read_by: dict[Any, Any] = {}
            self.beginnings: set[Any] = set()
            self.facts: dict[Any, None] = {}
            self.makes_numbers = False
            self.views: int | None = None
            self.inside_operator = 0
            #: The trace has ended. Questions that torch answers itself where data decides (both answers
            #: are right, one for every size) then add no fact.
            self.closed = False
            self.refused: Callable[[Any], None] = lambda expr: None
            self.undecided: Callable[[Any], None] = lambda expr: None
            self.on_query: Callable[[], None] = lambda: None
            self.speculated: Callable[[Any], Any] = lambda expr: None

        def create_unbacked_symint(self, source: Any = None) -> Any:
            unbacked_symint = super().create_unbacked_symint(source)
            symbol = raw_symbol(unbacked_symint)
            if self.views is not None:
                self.views -= 1
                if self.views < 0:
                    self.beginnings.add(symbol)
                    return unbacked_symint
            self.unread.add(symbol)
            if not self.makes_numbers:
                self._note(sympy.Ge(symbol, 2))
                symbolic_shapes.constrain_range(unbacked_symint, min=2, max=None)
            return unbacked_symint

        def create_unbacked_symfloat(self) -> Any:
            unbacked_symfloat = super().create_unbacked_symfloat()
            self.unread.add(raw_symbol(unbacked_symfloat))
            return unbacked_symfloat

        def evaluate_expr(self, orig_expr: Any, *args: Any, **kwargs: Any) -> Any:
            open_question = self._is_open(orig_expr)
            at_hand = answer_at_hand(args, kwargs)
            if open_question and self.closed and at_hand is not None:
                return sympy.sympify(at_hand)
            if open_question and self.views is None and _has_answer(args, kwargs):
                self._take_for_sizes(orig_expr)
                open_question = self._is_open(orig_expr)
            if open_question and not self.inside_operator and not _has_answer(args, kwargs):
                answer = self.speculated(orig_expr)
                if answer is not None:
                    return self._taken(orig_expr, answer)
            try:
                result = super().evaluate_expr(orig_expr, *args, **kwargs)
            except unsupported:
                if not self.inside_operator:
                    self.refused(orig_expr)
                raise
            if self.views is None and open_question and is_bool_expr(orig_expr):
                if orig_expr.has(Max):  # any assumption would contradict the size assumptions
                    self.undecided(orig_expr)
                self.rely_on(orig_expr if result else sympy.Not(orig_expr))
            return result

        def _taken(self, question: Any, answer: Any) -> Any:
            """Returns the answer of a query that the graph checks otherwise, and knows it from here
            on."""
            fact = fact_of(question, answer)
            super().guard_or_defer_runtime_assert(fact, "speculated")
            return sympy.sympify(answer)

        def _take_for_sizes(self, question: Any) -> None:
            """Assumes that the sizes in a query are at least 2."""
            symbols = sorted(question.free_symbols, key=str)
            parts = [symbol for symbol in symbols if self.is_unbacked_symint(symbol)]
            bounded = (part for bound in question.atoms(Max) for part in bound.args)
            parts += [part for part in bounded if not part.is_number]
            for left, right in [atom.args for atom in question.atoms(sympy.Eq, sympy.Ne)]:
                parts += [left] if right in (0, 1) else []
            for part in dict.fromkeys(parts):
                fact = sympy.Ge(part, 2)
                if self._is_open(fact):
                    self.rely_on(fact)
                    if part.is_Symbol:
                        self.constrain_symbol_range(part, 2, int_oo)

        def guard_or_defer_runtime_assert(self, orig_expr: Any, *args: Any, **kwargs: Any) -> bool:
            open_question = self._is_open(orig_expr)
            result = super().guard_or_defer_runtime_assert(orig_expr, *args, **kwargs)
            if open_question:
                self._note(orig_expr)
            return bool(result)

        def rely_on(self, expr: Any) -> None:
            """Adds an assumed answer, which no known fact implies, as a fact."""
            self._note(expr)
            super().guard_or_defer_runtime_assert(expr, "taken for granted")

        def _note(self, fact: Any) -> None:
            if self.beginnings.isdisjoint(fact.free_symbols):
                self.facts[fact] = None
                if not self.inside_operator:
                    self.on_query()

        def starts(self, operator: Any) -> None:
            """Prepares for an ATen operator that is about to run."""
            self.views = _SIZES_OF_VIEWS.get(operator)
            self.makes_numbers = operator is torch.ops.aten._local_scalar_dense.default

        def _is_open(self, expr: Any) -> bool:
            symbols = getattr(expr, "free_symbols", ())
            if not any(map(self.is_unbacked_symint, symbols)):
                return False
            return self._maybe_evaluate_static(expr) is None

    return DataEnv


#: Operator whose fake leaves a view's storage offset open -> the number of unbacked sizes that it
#: creates before that offset.
_SIZES_OF_VIEWS = {operators("aten").slice.Tensor: 1, operators("aten").select.int: 0}


def fact_of(question: Any, answer: Any) -> Any:
    """Returns what an answer to a question about numbers says, as an expression."""
    import sympy

    if type(answer) is bool:
        return question if answer else sympy.Not(question)
    return sympy.Eq(question, answer)


def is_bool_expr(expr: Any) -> bool:
    """Returns whether a sympy expression is a condition. (sympy counts a symbol as one; here it is
    a number.)"""
    return bool(expr.is_Relational or expr.is_Boolean)


def _has_answer(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns whether ShapeEnv.evaluate_expr gets a fallback for undecidable queries
    (guard_or_false etc.)."""
    oblivious = kwargs.get("size_oblivious", args[2] if len(args) > 2 else None)
    return bool(oblivious) or answer_at_hand(args, kwargs) is not None


def raw_symbol(value: Any) -> Any:
    """Returns the original symbol of a size or number, before replacements; None if it is no
    symbol."""
    expr = value.node._expr if isinstance(value, (torch.SymInt, torch.SymFloat)) else None
    return expr if getattr(expr, "is_Symbol", False) else None
