"""ShapeEnvs that note where their guards come from, and which facts about data-dependent sizes were
relied on.

In: where the program stands now. Out: a ShapeEnv (`new_shape_env`) whose guards carry places
(`guard_locations`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tracer_core.torch_private.names import operators
from tracer_core.torch_private.sizes_of_one import answer_at_hand, size_env_class


class GuardLocations:
    """Where the guards of a ShapeEnv came from. Mutable. where(): of the line that is being run;
    override: of the node that is being lowered, "" for none. guards: (expression, place); forced:
    symbol -> place at which it became something else."""

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
    """The places of a ShapeEnv made by `new_shape_env`."""
    return getattr(env, "tracer_places", None)


def new_shape_env(where: Callable[[], str], data_sizes: bool = False) -> Any:
    """An empty ShapeEnv that gives each size a symbol of its own. where(): of the line that is
    being run. data_sizes: sizes that depend on data are symbols too (`_data_env_class`); else
    operators that make such sizes are refused."""
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

    refusal = symbolic_shapes.GuardOnDataDependentSymNode

    class DataEnv(size_env_class()):  # type: ignore[misc]
        """A ShapeEnv that keeps every fact about a data-dependent symbol that it was told or that
        it took for granted.

        unread: new symbols that no node reads yet. read_by: symbol -> that node. beginnings:
        symbols of where in its memory a view begins, which no graph asks for, and of which nothing
        has to hold but what the view sees to. facts: what was relied on since they were last taken,
        in order. makes_numbers: the operator that runs reads a number out of a tensor: any number,
        while a size is taken to be 2 or more. views: how many more sizes the operator that runs may
        make up; None unless its fake answers an open question with what is right either way (slices
        and elements at an unknown place). inside_operator: torch may catch a refused guard.
        Elsewhere refused(expression) is called where a guard is refused, and told() where a fact is
        new. undecided(expression) is to raise.
        """

        def __init__(self) -> None:
            super().__init__(outputs_of_any_size=True)
            self.unread: set[Any] = set()
            self.read_by: dict[Any, Any] = {}
            self.beginnings: set[Any] = set()
            self.facts: dict[Any, None] = {}
            self.makes_numbers = False
            self.views: int | None = None
            self.inside_operator = 0
            self.refused: Callable[[Any], None] = lambda expr: None
            self.undecided: Callable[[Any], None] = lambda expr: None
            self.told: Callable[[], None] = lambda: None

        def create_unbacked_symint(self, source: Any = None) -> Any:
            made = super().create_unbacked_symint(source)
            symbol = raw_symbol(made)
            if self.views is not None:
                self.views -= 1
                if self.views < 0:
                    self.beginnings.add(symbol)
                    return made
            self.unread.add(symbol)
            if not self.makes_numbers:
                self._note(sympy.Ge(symbol, 2))
                symbolic_shapes.constrain_range(made, min=2, max=None)
            return made

        def evaluate_expr(self, orig_expr: Any, *args: Any, **kwargs: Any) -> Any:
            open_question = self._is_open(orig_expr)
            if open_question and self.views is None and _has_answer(args, kwargs):
                self._take_for_sizes(orig_expr)
                open_question = self._is_open(orig_expr)
            try:
                result = super().evaluate_expr(orig_expr, *args, **kwargs)
            except refusal:
                if not self.inside_operator:
                    self.refused(orig_expr)
                raise
            if self.views is None and open_question and is_truth(orig_expr):
                if orig_expr.has(Max):
                    self.undecided(
                        orig_expr
                    )  # whatever is taken for granted here contradicts what sizes are
                self.rely_on(orig_expr if result else sympy.Not(orig_expr))
            return result

        def _take_for_sizes(self, question: Any) -> None:
            """What a question about sizes treats as one is taken to be 2 or more."""
            parts = [
                symbol
                for symbol in sorted(question.free_symbols, key=str)
                if self.is_unbacked_symint(symbol)
            ]
            parts += [
                part for bound in question.atoms(Max) for part in bound.args if not part.is_number
            ]
            for left, right in [one.args for one in question.atoms(sympy.Eq, sympy.Ne)]:
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
            """An answer that nothing says was given: it becomes a fact."""
            self._note(expr)
            super().guard_or_defer_runtime_assert(expr, "taken for granted")

        def _note(self, fact: Any) -> None:
            if self.beginnings.isdisjoint(fact.free_symbols):
                self.facts[fact] = None
                if not self.inside_operator:
                    self.told()

        def starts(self, operator: Any) -> None:
            """An ATen operator is about to run."""
            self.views = _SIZES_OF_VIEWS.get(operator)
            self.makes_numbers = operator is torch.ops.aten._local_scalar_dense.default

        def _is_open(self, expr: Any) -> bool:
            symbols = getattr(expr, "free_symbols", ())
            if not any(map(self.is_unbacked_symint, symbols)):
                return False
            return self._maybe_evaluate_static(expr) is None

    return DataEnv


#: Operator whose fake leaves open where a view begins -> how many sizes it may make up, before its
#: beginning.
_SIZES_OF_VIEWS = {operators("aten").slice.Tensor: 1, operators("aten").select.int: 0}


def is_truth(expr: Any) -> bool:
    """Whether a sympy expression is a condition (a symbol, which sympy takes for one, is a
    number).
    """
    return bool(expr.is_Relational or expr.is_Boolean)


def _has_answer(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether ShapeEnv.evaluate_expr is told what to answer to an open question: guard_or_false and
    its like.
    """
    oblivious = kwargs.get("size_oblivious", args[2] if len(args) > 2 else None)
    return bool(oblivious) or answer_at_hand(args, kwargs) is not None


def raw_symbol(value: Any) -> Any:
    """The symbol that a size (or a number) was made as, whatever is known of it since; None if it
    is no symbol.
    """
    expr = value.node._expr if isinstance(value, torch.SymInt) else None
    return expr if getattr(expr, "is_Symbol", False) else None
