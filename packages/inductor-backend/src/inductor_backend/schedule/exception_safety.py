"""Finds the inputs that a graph may already have mutated when one of its operators raises.

The result has every input that a group writes at or before the last group that may raise. The
caller snapshots only these, so that the program can go on as if the graph had not run.

Kernels that check an index or divide integers may raise, and so may operators that read values. A
check that repeats an earlier one of the same index and size cannot fail, so indexing in a backward
does not count. That holds only where the earlier result is read whole: kernels compute, and check,
only what is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inductor_backend.ir.kernel_source import KernelSource
from inductor_backend.ir.nodes import BufferKind, LoopProgram
from inductor_backend.kernels.aten_fallbacks import name_of_packet
from inductor_backend.schedule.fusion import Group
from inductor_backend.torch_private import OpOverload
from tracer_core.plugin_api import (
    Trait,
    communicates,
    is_pointwise,
    overloads_with,
    raises_by_value,
    spelled_with,
)


@dataclass(frozen=True, slots=True)
class Check:
    """One index and the size that bounds it."""

    index: torch.fx.Node
    size: str
    #: Negative indices count from the end.
    wraps: bool = False
    #: A value that may be out of bounds.
    ignored: Any = None


def inputs_mutated_on_error(
    graph: torch.fx.Graph,
    program: LoopProgram,
    groups: Sequence[Group],
    kernels: Sequence[KernelSource | None],
) -> tuple[int, ...]:
    """Returns the positions of the inputs."""
    places = {name: number for number, name in enumerate(program.inputs)}
    harmless = _harmless(graph)
    result: list[tuple[int, ...]] = []
    last = -1
    for at, (group, kernel) in enumerate(zip(groups, kernels, strict=True)):
        result.append(
            tuple(places[name] for name in _written(program, group, kernel) if name in places)
        )
        if _may_raise(group, kernel, harmless):
            last = at
    return tuple(sorted({number for numbers in result[: last + 1] for number in numbers}))


def _written(program: LoopProgram, group: Group, kernel: KernelSource | None) -> Iterator[str]:
    if kernel is not None:
        yield from (kernel.pointers[place] for place in kernel.written)
        return
    assert group.extern is not None
    for name in group.extern.writes:
        storage = program.buffers[name].storage
        if program.buffers[storage].kind is BufferKind.INPUT:
            yield storage


def _may_raise(group: Group, kernel: KernelSource | None, harmless: set[str]) -> bool:
    if kernel is None:
        assert group.extern is not None
        return group.extern.origin.fx not in harmless
    return kernel.fails and any(
        origin.fx not in harmless for node in group.loops for origin in node.origins
    )


def _harmless(graph: torch.fx.Graph) -> set[str]:
    """Returns the names of the nodes that cannot raise."""
    checked: set[Check] = set()
    items = set()
    full = _read_whole(graph)
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        checks = list(_checks(node))
        if checks:
            if all(_was_made(check, checked) for check in checks):
                items.add(node.name)
            elif len(checks) == 1 and node in full and _has_elements(node):
                checked.update(checks)
        elif _never_raises(node):
            items.add(node.name)
    return items


def _read_whole(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Returns the nodes whose results are computed whole, because some reader needs every element."""
    nodes: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        if any(_reads_all(user) or (user in nodes and _takes_all(user)) for user in node.users):
            nodes.add(node)
    return nodes


def _reads_all(user: torch.fx.Node) -> bool:
    name = str(getattr(user.target, "overloadpacket", ""))
    return user.op == "output" or name == "aten.copy_" or user.target in _MATMULS


def _takes_all(user: torch.fx.Node) -> bool:
    """Returns whether the operator's whole result depends on every element of its operands."""
    target = user.target
    if not isinstance(target, OpOverload):
        return getattr(target, "__name__", "") == "getitem"
    return is_pointwise(target) or name_of_packet(target) in _TAKING_ALL


_MATMULS = overloads_with(Trait.PRODUCT)
_TAKING_ALL = spelled_with(Trait.READS_ALL)


def _never_raises(node: torch.fx.Node) -> bool:
    target: Any = node.target
    if not isinstance(target, OpOverload):
        return True  # an item of a result, arithmetic on sizes
    if name_of_packet(target) in _DIVISIONS:
        value = node.meta.get("val")
        return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
    if communicates(target):
        return True  # a collective that fails ends the job
    if target.namespace not in ("aten", "prims"):
        return False
    return not raises_by_value(name_of_packet(target).strip("_"))


#: On integers these raise for a divisor of zero.
_DIVISIONS = spelled_with(Trait.DIVIDES)


def _has_elements(node: torch.fx.Node) -> bool:
    """Returns whether the result has elements: a kernel without any checks no index. (Symbolic
    sizes are at least 2.)"""
    value = node.meta.get("val")
    first = value[0] if isinstance(value, (tuple, list)) else value
    return isinstance(first, torch.Tensor) and 0 not in [
        size for size in first.shape if isinstance(size, int)
    ]


def _was_made(check: Check, checked: set[Check]) -> bool:
    stricter = Check(check.index, check.size, ignored=check.ignored)
    return check in checked or stricter in checked


def _checks(node: torch.fx.Node) -> Iterator[Check]:
    """Yields the index checks of an operator, if it is one of `_INDEXING`."""
    kind = _INDEXING.get(str(getattr(node.target, "overloadpacket", "")))
    if kind is not None:
        yield from kind(node)


def _along_dim(node: torch.fx.Node) -> Iterator[Check]:
    """For operators with arguments (self, dim, index)."""
    source, dim, index = node.args[:3]
    shape = source.meta["val"].shape  # type: ignore[union-attr]
    yield Check(_plain(index), str(shape[dim]) if shape else "1")


def _by_rows(node: torch.fx.Node) -> Iterator[Check]:
    """For operators with arguments (table, index)."""
    yield Check(_plain(node.args[1]), str(node.args[0].meta["val"].shape[0]))  # type: ignore[union-attr]


def _by_lists(node: torch.fx.Node) -> Iterator[Check]:
    """For operators with arguments (self, list of indices or None)."""
    shape = node.args[0].meta["val"].shape  # type: ignore[union-attr]
    for dim, index in enumerate(node.args[1]):  # type: ignore[arg-type]
        if index is not None:
            yield Check(_plain(index), str(shape[dim]) if dim < len(shape) else "?", wraps=True)


def _by_target(at: int) -> Callable[[torch.fx.Node], Iterator[Check]]:
    """For losses over classes: `at` is the position of self, the target follows, and the fourth
    argument after self is the ignored value."""

    def checks(node: torch.fx.Node) -> Iterator[Check]:
        scores: Any = node.args[at]
        shape = scores.meta["val"].shape
        yield Check(
            _plain(node.args[at + 1]),
            str(shape[1] if len(shape) > 1 else shape[0]),
            ignored=node.args[at + 4],
        )

    return checks


_INDEXING: dict[str, Callable[[torch.fx.Node], Iterator[Check]]] = {
    **dict.fromkeys(
        ("aten.gather", "aten.scatter", "aten.scatter_add", "aten.scatter_reduce",
        "aten.index_select", "aten.index_add",
         "aten.index_copy", "aten.index_reduce", "aten.index_fill"), _along_dim),
    "aten.embedding": _by_rows,
    **dict.fromkeys(("aten.index", "aten.index_put", "aten._unsafe_index_put"), _by_lists),
    **dict.fromkeys(("aten.nll_loss_forward", "aten.nll_loss2d_forward"), _by_target(0)),
    **dict.fromkeys(("aten.nll_loss_backward", "aten.nll_loss2d_backward"), _by_target(1)),
}  # fmt: skip

#: Operators whose result has the same elements as their operand.
_SAME_NUMBERS = spelled_with(Trait.KEEPS_ELEMENTS) | {"clone"}


def _plain(index: Any) -> torch.fx.Node:
    """Returns the node that an index is a view of."""
    while isinstance(index.target, OpOverload) and name_of_packet(index.target) in _SAME_NUMBERS:
        index = index.args[0]
    return index  # type: ignore[no-any-return]
