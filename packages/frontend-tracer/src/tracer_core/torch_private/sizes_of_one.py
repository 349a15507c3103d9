"""ShapeEnvs whose symbols may have size 1: one graph for batches of 1 to 32.

They serve symbols whose range begins at 1 (`mark_dynamic` with ``min=1``). A graph that would
differ for size 1 gets a guard against it. Torch's fakes test every size for 1, mostly in forms that
accept an unknown answer (``guard_or_false(size == 1)``). For broadcasting and layout the answer of
larger sizes is right for 1 too: a size of 1 broadcasts against its like, and its stride is
irrelevant. A test that decides between view and copy, or the result's shape, becomes a guard; so
does every test in another form, and every one where larger sizes differ among themselves.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from tracer_core.torch_private.names import operators
from tracer_core.torch_private.size_nodes import memoizing_size


def answer_at_hand(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
    """Returns the fallback that guard_or_false etc. pass to ShapeEnv.evaluate_expr(expression,
    hint, node, size_oblivious, answer)."""
    answer: bool | None = kwargs.get("fallback_value", args[3] if len(args) > 3 else None)
    return answer


_aten, _prims = operators("aten"), operators("prims")

#: Operators whose result shape differs where a size is 1.
SHAPED_BY_ONES = frozenset({
    _aten.squeeze.default, _aten.squeeze.dim, _aten.squeeze.dims, _aten.squeeze_.default,
    _aten.squeeze_.dim, _aten.squeeze_.dims, _aten.squeeze_copy.default, _aten.squeeze_copy.dim,
    _aten.squeeze_copy.dims, _prims.squeeze.default,
})  # fmt: skip


@functools.cache
def makes_new_values(operator: Any) -> bool:
    """Returns whether an ATen operator returns fresh tensors or its mutated arguments, or is
    ``expand``, which is always a view: no size then decides what the results alias."""
    aliases = [item.alias_info for item in operator._schema.returns]
    return operator is torch.ops.aten.expand.default or all(
        alias is None or alias.is_write for alias in aliases
    )


def may_be_one(size: int | torch.SymInt) -> bool:
    """Returns whether a graph for this size is valid for size 1 too."""
    if not isinstance(size, torch.SymInt):
        return size == 1
    return size.node.expr in size.node.shape_env.from_one


def sizes_of_one_queried(env: Any) -> contextlib.AbstractContextManager[Any]:
    """Context in which tests for size 1 are answered as for larger sizes, if the ShapeEnv (or None)
    has such symbols."""
    return env.answering() if getattr(env, "from_one", None) else contextlib.nullcontext()


def known_fakes(env: Any) -> dict[Any, Any] | None:
    """Returns the results of operators on fakes that were computed under a ShapeEnv and are still
    what it would give; None where each query counts (unbacked sizes, sizes that may be 1)."""
    version = getattr(env, "_replacements_version_counter", None)
    if version is None or env.answers is None or env.from_one:
        return None
    if version != env.answers_version:
        env.answers, env.answers_version = {}, version
    answers: dict[Any, Any] = env.answers
    return answers


@functools.cache
def size_env_class() -> Any:
    """Returns the class; made late, because its base's module symbolic_shapes imports sympy."""
    import sympy
    from torch._guards import SLoc
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

    class SizeEnv(ShapeEnv):
        """from_one: symbols whose range includes 1. asked: symbols tested without a guard; None
        where tests become guards. shared: (size or stride, dimension) -> the symbol that further
        tensors get there; None where each gets its own. constant_nodes: the SymNode of each
        constant. answers: the results of operators on fakes, until a symbol is replaced (None:
        each query counts); answers_version: the count of replacements that they belong to."""

        def __init__(self, outputs_of_any_size: bool = False) -> None:
            super().__init__(
                duck_shape=False,
                allow_scalar_outputs=outputs_of_any_size,
                allow_dynamic_output_shape_ops=outputs_of_any_size,
            )
            self.from_one: set[Any] = set()
            self.asked: set[Any] | None = None
            self.shared: dict[Any, Any] | None = None
            self.constant_nodes: dict[Any, Any] = {}
            self.answers: dict[Any, Any] | None = {}
            self.answers_version = 0

        def create_symbol(self, val: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
            at = getattr(source, "prop", None), getattr(source, "idx", None)
            known = self.shared.get(at) if self.shared is not None else None
            if known is None:
                known = super().create_symbol(val, source, *args, **kwargs)
                if self.shared is not None and known.is_Symbol:
                    self.shared[at] = known
            return known

        def create_symintnode(self, *args: Any, **kwargs: Any) -> Any:
            return memoizing_size(super().create_symintnode(*args, **kwargs))

        def _get_stack_summary(
            self, is_debug: bool = False, framework_loc: str | None = None
        ) -> Any:
            """Returns the place in torch that asks, for torch's logs. ShapeEnv looks for it in the
            stack, and imports torch._inductor and torch.export to know the files to leave out."""
            if self.log.isEnabledFor(logging.INFO):
                return super()._get_stack_summary(is_debug, framework_loc)
            return SLoc(framework_loc or "", None), ""  # torch 2.11 has no text for None

        @contextlib.contextmanager
        def answering(self) -> Iterator[set[Any]]:
            """Context in which tests for size 1 are answered as for larger sizes; yields the tested
            symbols."""
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
            """Context for the fake of an ATen operator, or of one that it decomposes to."""
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
                    larger = dict.fromkeys(about, ValueRanges(2, int_oo))
                    answer = bound_sympy(orig_expr, {**self.var_to_range, **larger})
                    if answer.is_singleton():
                        self.asked |= about
                        return answer.lower
            return super().evaluate_expr(orig_expr, *args, **kwargs)

    return SizeEnv
