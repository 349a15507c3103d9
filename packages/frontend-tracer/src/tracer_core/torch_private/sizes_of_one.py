"""ShapeEnvs whose symbols may be sizes of 1: one graph for batches of 1 to 32.

In: symbols whose range begins at 1 (`mark_dynamic` with ``min=1``). Out: a ShapeEnv class
(`size_env_class`). What always holds: a graph that would be another one for a size of 1 has a guard
against it. torch's fakes ask of every size whether it is 1, mostly in words that allow for an
unknown answer (``guard_or_false(size == 1)``). Where that is about broadcasting and layout, what is
true of larger sizes does for 1 too: a size of 1 broadcasts against its like, and its stride says
nothing. Where it decides whether a result is a view or a copy, or which shape it has, the question
becomes a guard; so does every question in other words, and every one that larger sizes do not
answer alike.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from tracer_core.torch_private.names import operators


def answer_at_hand(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
    """What guard_or_false and its like tell ShapeEnv.evaluate_expr(expression, hint, node,
    size_oblivious, answer).
    """
    answer: bool | None = kwargs.get("fallback_value", args[3] if len(args) > 3 else None)
    return answer


_aten, _prims = operators("aten"), operators("prims")

#: Operators whose results have another shape where a size is 1.
SHAPED_BY_ONES = frozenset({
    _aten.squeeze.default, _aten.squeeze.dim, _aten.squeeze.dims, _aten.squeeze_.default,
    _aten.squeeze_.dim,
    _aten.squeeze_.dims, _aten.squeeze_copy.default, _aten.squeeze_copy.dim,
    _aten.squeeze_copy.dims, _prims.squeeze.default,
})  # fmt: skip


@functools.cache
def makes_new_values(operator: Any) -> bool:
    """Whether an ATen operator returns fresh tensors or those that it wrote to, or is ``expand``,
    which is a view of whatever it is given: no size decides what its results share memory with."""
    aliases = [one.alias_info for one in operator._schema.returns]
    return operator is torch.ops.aten.expand.default or all(
        one is None or one.is_write for one in aliases
    )


def may_be_one(size: int | torch.SymInt) -> bool:
    """Whether a graph for this size is one for 1 too."""
    return (
        size.node.expr in size.node.shape_env.from_one
        if isinstance(size, torch.SymInt)
        else size == 1
    )


def sizes_of_one_asked(env: Any) -> contextlib.AbstractContextManager[Any]:
    """While questions about sizes of 1 are answered as for larger ones, where the ShapeEnv (or
    None) has such sizes.
    """
    return env.answering() if getattr(env, "from_one", None) else contextlib.nullcontext()


@functools.cache
def size_env_class() -> Any:
    """The class (made late: its base is in torch.fx.experimental.symbolic_shapes, which imports
    sympy).
    """
    import sympy
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

    class SizeEnv(ShapeEnv):
        """from_one: symbols whose range has 1 in it. asked: symbols of which a question was
        answered without a guard; None where such questions become guards."""

        def __init__(self, outputs_of_any_size: bool = False) -> None:
            super().__init__(
                duck_shape=False,
                allow_scalar_outputs=outputs_of_any_size,
                allow_dynamic_output_shape_ops=outputs_of_any_size,
            )
            self.from_one: set[Any] = set()
            self.asked: set[Any] | None = None

        @contextlib.contextmanager
        def answering(self) -> Iterator[set[Any]]:
            """Questions about sizes of 1 are answered as for larger ones; gives the symbols that
            they are about.
            """
            before, asked = self.asked, set[Any]()
            self.asked = asked
            try:
                yield asked
            finally:
                self.asked = before

        @contextlib.contextmanager
        def _guarding(self) -> Iterator[None]:
            before, self.asked = self.asked, None
            try:
                yield
            finally:
                self.asked = before

        def during(self, operator: Any) -> contextlib.AbstractContextManager[Any]:
            """While the fake of an ATen operator runs, or of one that it is made of."""
            if not self.from_one:
                return contextlib.nullcontext()
            if operator in SHAPED_BY_ONES:
                return self._guarding()
            return self.answering() if makes_new_values(operator) else contextlib.nullcontext()

        def rule_out_one(self, symbols: Iterable[Any]) -> None:
            """Guards that these sizes are not 1."""
            for symbol in sorted(symbols, key=str):
                super().evaluate_expr(sympy.Ne(symbol, 1))

        def evaluate_expr(self, orig_expr: Any, *args: Any, **kwargs: Any) -> Any:
            if self.asked is not None and answer_at_hand(args, kwargs) is not None:
                about: set[Any] = getattr(orig_expr, "free_symbols", set()) & self.from_one
                if about and self._maybe_evaluate_static(orig_expr) is None:
                    answer = bound_sympy(
                        orig_expr,
                        {**self.var_to_range, **dict.fromkeys(about, ValueRanges(2, int_oo))},
                    )
                    if answer.is_singleton():
                        self.asked |= about
                        return answer.lower
            return super().evaluate_expr(orig_expr, *args, **kwargs)

    return SizeEnv
