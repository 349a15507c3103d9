"""Chooses which sizes are symbolic, and collects the guards on symbolic sizes after a trace.

The choice depends on `dynamic=`, mark_dynamic, mark_static and the shapes of earlier cache entries.
Module tensors (parameters, buffers) and sizes 0 and 1 stay static.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch

from tracer_core import markers, torch_private
from tracer_core.debug.crossed_limits import crossed
from tracer_core.errors import Location, MarkedSizeError
from tracer_core.fx_capture.fake_mode import Constraint
from tracer_core.fx_capture.specialization_history import SpecializationHistory, Speculation
from tracer_core.guards.guard import Relation
from tracer_core.guards.source import Source, SourceKind


class ShapePolicy:
    """The choice for one trace. dynamic: compile()'s argument. specializations: the earlier cache
    entries.
    allowed: the backend supports symbols. takes_numbers, takes_data_sizes: the backend supports
    symbolic scalars as graph inputs, and unbacked SymInts. follows_data: this trace has unbacked
    SymInts. uses_rng: it has random numbers of Python. takes_data_floats: floats that
    depend on data may be symbols. takes_assertions: the graph may check what the program asserts of
    a tensor's values. speculation: of branches on tensors. copies_elements: see `element_reads`."""

    def __init__(
        self,
        dynamic: bool | None,
        specializations: SpecializationHistory,
        allowed: bool,
        takes_numbers: bool = False,
        takes_data_sizes: bool = False,
        follows_data: bool = False,
        uses_rng: bool = False,
        takes_data_floats: bool = False,
        takes_assertions: bool = False,
        speculation: Speculation | None = None,
        copies_elements: bool = False,
    ) -> None:
        self.dynamic = dynamic
        self.specializations = specializations
        self.allowed = allowed and dynamic is not False
        self.takes_numbers = takes_numbers
        self.takes_data_sizes = takes_data_sizes and self.allowed
        self.follows_data = follows_data and self.takes_data_sizes
        self.uses_rng, self.takes_data_floats = (
            uses_rng,
            takes_data_floats and self.takes_data_sizes,
        )
        self.takes_assertions = takes_assertions
        self.speculation = Speculation() if speculation is None else speculation
        self.copies_elements = copies_elements
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.numbers: dict[str, int | float] = {}
        #: The same by source: the sizes, None for symbols (`dims_of`), and the numbers that are none.
        self.tensors: dict[Source, tuple[int | None, ...] | None] = {}
        self.sources_of_numbers: dict[Source, int | float] = {}
        #: Sources of tensors whose parts have constant sizes.
        self.fixed: set[Source] = set()
        self._chosen: dict[int, tuple[int | None, ...] | None] = {}

    @property
    def symbolic(self) -> bool:
        """Returns whether the trace needs symbols at all; known before it starts."""
        return self.allowed and (
            self.dynamic is True
            or bool(self.specializations)
            or self.marked
            or self.follows_data
            or self.uses_rng
        )

    @property
    def counts(self) -> bool:
        """Returns whether step counters are symbolic, as they are from the second cache entry on."""
        return self.takes_numbers and bool(self.specializations)

    def varies(self, value: int | float, source: Source) -> bool:
        """Returns whether an earlier cache entry saw another number at this source."""
        self.numbers[source.expression] = value
        varies = self.symbolic and any(
            old is not value and old != value
            for old in self.specializations.numbers.get(source.expression, ())
        )
        if not varies:
            self.sources_of_numbers[source] = value
        return varies

    def history(self, source: Source) -> list[int | float]:
        """Returns the numbers that the earlier cache entries saw at a source."""
        return self.specializations.numbers.get(source.expression, [])

    marked = False

    def look(self, values: list[Any]) -> None:
        """Records whether any tensor among the region's inputs carries a mark."""
        self.marked = any(_is_marked(value) for value in values)

    def dims_of(self, tensor: torch.Tensor, source: Source) -> tuple[int | None, ...] | None:
        """Returns the sizes and then the strides, None where they get symbols of their own; None
        altogether if all are static."""
        if id(tensor) not in self._chosen:
            self._chosen[id(tensor)] = dims = self._choose(tensor, source)
            if source.expression in self.shapes:
                self.tensors[source] = dims
        return self._chosen[id(tensor)]

    def alike(self, tensor: torch.Tensor, source: Source) -> Any:
        """Returns what tensors have in common whose symbols are the same: those that the items of one
        list hold in the same place (the keys of a cache's layers), with equal shapes in this call and
        before. None for other tensors, and where the sizes have differed more than once: they may
        change apart."""
        history = set(self.specializations.shapes.get(source.expression, ()))
        if len(history) != 1 or markers.dynamic_dims(tensor) or tensor._is_view():
            return None
        steps, at = [], source
        while at.base is not None and at.kind not in (SourceKind.ITEM, SourceKind.OWN_ITEM):
            steps.append((at.kind.name, repr(at.key)))
            at = at.base
        if at.base is None or not steps:
            return None
        return at.base, tuple(steps), tuple(tensor.shape), tensor.stride(), *history

    def _is_part_of_fixed(self, source: Source | None) -> bool:
        while self.fixed and source is not None:
            if source in self.fixed:
                return True
            source = source.base
        return False

    def _choose(self, tensor: torch.Tensor, source: Source) -> tuple[int | None, ...] | None:
        if isinstance(tensor, torch.nn.Parameter) or self._is_part_of_fixed(source):
            return None
        shape = tuple(tensor.shape)
        self.shapes[source.expression] = shape
        strides = tensor.stride() if tensor.layout is torch.strided else ()
        if strides != (*itertools.accumulate(shape[:0:-1], operator.mul, initial=1),)[::-1]:
            self.shapes[f"{source.expression}.stride()"] = strides
        if not self.symbolic:
            return None
        marked, static = markers.symbolic_dims(tensor), markers.static_dims(tensor)
        earlier = self.specializations.shapes.get(source.expression, ())
        is_input = not source.is_buffer
        differ = [
            any(len(old) == len(shape) and old[i] != size for old in earlier)
            for i, size in enumerate(shape)
        ]
        if any(differ) and is_input and _is_text(tensor):
            differ = [True] * len(shape)
        dims: list[int | None] = []
        for i, size in enumerate(shape):
            wanted = i in marked or differ[i] or (self.dynamic is True and is_input)
            dims.append(None if wanted and i not in static and size > 1 else size)
        if None not in dims:  # else torch infers the strides from the sizes where it can
            dims += self._strides(shape, strides, source)
        return tuple(dims) if None in dims else None

    def _strides(
        self, shape: tuple[int, ...], strides: tuple[int, ...], source: Source
    ) -> list[int | None]:
        """Returns the strides, None where an earlier entry with the same order of dimensions had
        another: of windows into a buffer that grows."""

        def order(strides: tuple[int, ...]) -> list[int]:
            return sorted((i for i, size in enumerate(shape) if size > 1), key=strides.__getitem__)

        earlier = self.specializations.shapes.get(f"{source.expression}.stride()", ())
        alike = [old for old in earlier if len(old) == len(shape) and order(old) == order(strides)]
        return [
            None if n > 1 and any(old[i] != n for old in alike) else n
            for i, n in enumerate(strides)
        ]


def _is_text(tensor: torch.Tensor) -> bool:
    """Guesses whether a tensor holds token sequences or their mask: where the batch size changes,
    so will the length."""
    return tensor.dim() == 2 and not tensor.is_floating_point() and not tensor.is_complex()


def _is_marked(value: Any, depth: int = 3) -> bool:
    """Returns whether a tensor in a value carries a mark."""
    if issubclass(type(value), torch.Tensor):  # a dead weakref.proxy refuses isinstance()
        return bool(markers.symbolic_dims(value))
    if depth == 0 or type(value) not in (list, tuple, dict):
        return False
    parts = value.values() if type(value) is dict else value
    return any(_is_marked(part, depth - 1) for part in parts)


def size_conditions(
    shape_env: Any,
    tensors: dict[Source, Any],
    numbers: dict[Any, Source],
    printer: Callable[[Any, dict[Any, str]], str],
    strides: bool = True,
) -> list[Relation]:
    """The conditions on symbolic sizes, and on the strides that they determine if `strides`.

    shape_env: of the trace. tensors: source of a graph input -> its fake. numbers: symbol -> source
    of a number of the program. printer: sympy -> Python text.
    """
    if shape_env is None:
        return []
    sources = (*tensors, *numbers.values())
    # the text of each source in the template of a Relation
    place = {source: f"{{{i}}}" for i, source in enumerate(sources)}
    inputs = [(place[source], fake) for source, fake in tensors.items()]
    # a number's own place: a size that the trace found equal to it is compared with it
    where = size_places(inputs) | {symbol: place[source] for symbol, source in numbers.items()}
    checks: list[str] = []
    for text, fake in inputs if strides else ():  # one that no size determines has its own symbol
        for i, stride in enumerate(fake.stride()):
            if isinstance(stride, torch.SymInt) and stride.node.expr.is_Symbol:
                where.setdefault(stride.node.expr, f"{text}.stride({i})")
    for text, fake in inputs:
        for i, size in enumerate(fake.shape):
            here = f"{text}.shape[{i}]"
            if isinstance(size, torch.SymInt) and where.get(size.node.expr) != here:
                checks.append(f"{here} == {printer(shape_env.simplify(size.node.expr), where)}")
                if not size.node.expr.is_Symbol or size.node.expr in numbers:
                    # its own symbol, which was replaced, had the bound
                    checks.append(f"{here} >= {torch_private.least(shape_env, size)}")
        if strides and any(isinstance(n, torch.SymInt) for n in (*fake.shape, *fake.stride())):
            checks.append(f"{text}.stride() == {strides_text(fake, printer, where)}")
    for symbol, text in where.items():
        replaced = shape_env.replacements.get(symbol)
        if replaced is not None:
            checks.append(f"{text} == {printer(shape_env.simplify(replaced), where)}")
        bounds = shape_env.var_to_range.get(symbol)
        if bounds is not None and symbol not in numbers:
            lower, upper = torch_private.finite_bounds(bounds)
            bounded = f"{lower} <= {text} <= {upper}"
            checks.append(f"{text} >= {lower}" if upper is None else bounded)
    offsets = _offsets(inputs, where)
    for guard in shape_env.guards:
        expr = shape_env.simplify(guard.expr)
        if offsets and not expr.free_symbols.isdisjoint(offsets):
            expr = _cancelled(expr)
            for symbol in sorted(expr.free_symbols & offsets.keys(), key=str):
                lower, _ = torch_private.finite_bounds(shape_env.var_to_range[symbol])
                checks.append(f"{offsets[symbol]} >= {lower}")
        checks.append(printer(expr, where | offsets))
    return [Relation(check, sources) for check in dict.fromkeys(checks) if check != "True"]


def size_places(inputs: list[tuple[str, Any]]) -> dict[Any, str]:
    """Returns the text that reads each symbol that is a size of an input. inputs: (text, fake)
    each."""
    where: dict[Any, str] = {}
    for text, fake in inputs:
        for i, size in enumerate(fake.shape):
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                where.setdefault(size.node.expr, f"{text}.shape[{i}]")
    return where


def strides_text(
    fake: Any, printer: Callable[[Any, dict[Any, str]], str], where: dict[Any, str]
) -> str:
    """Returns the strides of a fake as the text of a tuple. where: symbol -> its text."""
    strides = ", ".join(
        printer(n.node.expr, where) if isinstance(n, torch.SymInt) else str(n)
        for n in fake.stride()
    )
    return f"({strides},)" if strides else "()"


def _offsets(inputs: list[tuple[str, Any]], known: Iterable[Any]) -> dict[Any, str]:
    """Returns the symbols of storage offsets, which sizes do not determine."""
    result: dict[Any, str] = {}
    for text, fake in inputs:
        offset = fake.storage_offset()
        symbol = offset.node.expr if isinstance(offset, torch.SymInt) else None
        if symbol is not None and symbol.is_Symbol and symbol not in known:
            result.setdefault(symbol, f"{text}.storage_offset()")
    return result


def _cancelled(expr: Any) -> Any:
    """Cancels common terms of both sides of a relation, such as the storage offset of two compared
    views."""
    if not getattr(expr, "is_Relational", False):
        return expr
    return expr.func(expr.lhs - expr.rhs, 0)


def constraint_violation(shape_env: Any, constraints: list[Constraint]) -> MarkedSizeError | None:
    """Returns the mark_dynamic constraint violation of a trace, if any: a marked size was
    specialized or its range narrowed."""
    locations = torch_private.guard_locations(shape_env)
    for item in constraints:
        assert locations is not None
        now = shape_env.simplify(item.symbol)
        if not now.free_symbols:
            location = locations.forced.get(item.symbol, "?")
            return _violation(item, f"it is {now}", location)
        if item.lowest is None and item.highest is None:
            continue
        for guard, location in locations.guards:
            expr = shape_env.simplify(guard)
            if expr.free_symbols != now.free_symbols or not now.is_Symbol or not _narrows(expr):
                continue
            holds = torch_private.implied(expr, now, max(item.lowest or 2, 2), item.highest)
            if holds is None:
                crossed("MAX_TRIED_SIZES", where=location)
            if holds is False:
                text = torch_private.python_source(expr, {now: item.size})
                return _violation(item, text, location)
    return None


def _violation(constraint: Constraint, text: str, location: str) -> MarkedSizeError:
    code = location.code if isinstance(location, Location) else ""
    return MarkedSizeError(constraint.size, str(constraint), text, location, code)


def _narrows(expr: Any) -> bool:
    """Returns whether a relation can narrow a range. `!=` does not count: it excludes single sizes
    (an intermediate size of 1, say), which get graphs of their own."""
    import sympy  # imported late: 30 MiB, needed only with symbols

    return isinstance(expr, (sympy.Eq, sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge))
