"""The verifier of lowered graphs; ``TRACER_CHECK=1`` runs it after every lowering.

A VerifyError names the violated rule and shows the nodes around the violation.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from tracer_core import torch_private
from tracer_core.aot.aten_recorder import SAME_VALUE
from tracer_core.aot.fake_fixups import CORRECTIONS, fake_result
from tracer_core.aot.output_aliasing import same_sizes
from tracer_core.errors import VerifyError
from tracer_core.torch_private.names import names, operators
from tracer_core.torch_private.needed import OpOverload

if TYPE_CHECKING:
    from tracer_core.aot.request import Lowered

aten = operators("aten")

#: What may be called besides ATen operators: items of results, and arithmetic on sizes.
SIZE_FUNCTIONS = frozenset(
    {operator.getitem, operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod,
     operator.neg, operator.pow, operator.truediv, operator.lt, operator.le, operator.gt,
     operator.ge, operator.eq, operator.ne, torch_private.sym_sqrt,
     *names("sym_max sym_min sym_float sym_int ops.aten.sym_size.int")}
)  # fmt: skip

#: A rule: yields each violation with its node.
Rule = Callable[["Lowered"], Iterator[tuple[torch.fx.Node, str]]]


def verify_lowered(lowered: Lowered) -> None:
    """Raises VerifyError for the first violation in ``lowered.graph``."""
    lowered.graph.graph.lint()
    with torch_private.autocast_off():  # the graph contains its casts
        for rule in RULES:
            for node, violation in rule(lowered):
                where = f"{lowered.spec.name} ({lowered.ir})"
                raise VerifyError(f"{where}: {violation}\n{around(node)}")


def around(node: torch.fx.Node, distance: int = 5) -> str:
    """Returns the nodes near `node` as text, with `node` marked."""
    nodes = list(node.graph.nodes)
    at = nodes.index(node)
    near = nodes[max(0, at - distance) : at + distance + 1]
    return "\n".join(
        ("--> " if other is node else "    ") + other.format_node() for other in near if other
    )


def calls(lowered: Lowered) -> list[torch.fx.Node]:
    """Returns the call_function nodes of the graph."""
    return [node for node in lowered.graph.graph.nodes if node.op == "call_function"]


def only_declared_operators(lowered: Lowered) -> Iterator[tuple[torch.fx.Node, str]]:
    """Only inputs, operators and one output; no alias nodes."""
    for node in lowered.graph.graph.nodes:
        if node.op not in ("placeholder", "call_function", "output"):
            yield node, f"a {node.op} node"
        elif node.op == "call_function" and not isinstance(node.target, OpOverload):
            if node.target not in SIZE_FUNCTIONS:
                yield node, f"{node.target} is no operator"
        elif node.target in SAME_VALUE:
            yield node, f"{node.target} only renames a value"


def values_everywhere(lowered: Lowered) -> Iterator[tuple[torch.fx.Node, str]]:
    """``meta["val"]`` on every node."""
    for node in lowered.graph.graph.nodes:
        if node.op != "output" and "val" not in node.meta:
            yield node, "no meta['val']"


def writes_come_last(lowered: Lowered) -> Iterator[tuple[torch.fx.Node, str]]:
    """The only writes are ``copy_`` to an input, once each, after all else, as `spec.mutations`
    says.
    """
    placeholders = lowered.graph.graph.find_nodes(op="placeholder")
    written: list[int] = []
    for node in calls(lowered):
        if node.target is aten.copy_.default and node.args[0] in placeholders:
            written.append(placeholders.index(node.args[0]))
        elif written:
            yield node, "an operator after the writes to inputs"
        elif isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
            yield node, f"{node.target} writes to its argument"
    if sorted(written) != sorted(set(written)) or set(written) != set(lowered.spec.mutations):
        declared = lowered.spec.mutations
        yield placeholders[0], f"writes to inputs {written}, but spec.mutations is {declared}"


def outputs_own_their_memory(lowered: Lowered) -> Iterator[tuple[torch.fx.Node, str]]:
    """No output shares its storage with an input or another output; specs agree in number."""
    (output,) = lowered.graph.graph.find_nodes(op="output")
    returned = output.args[0]
    if len(returned) != len(lowered.spec.outputs):
        yield output, f"{len(returned)} outputs, but spec.outputs has {len(lowered.spec.outputs)}"
    inputs = [node.meta["val"] for node in lowered.graph.graph.find_nodes(op="placeholder")]
    taken = {torch_private.storage_id(value) for value in inputs if isinstance(value, torch.Tensor)}
    for item in returned:
        storage = torch_private.storage_id(item.meta["val"])
        if storage in taken:
            yield item, "an output shares its storage with an input or another output"
        taken.add(storage)


def layouts_agree(lowered: Lowered) -> Iterator[tuple[torch.fx.Node, str]]:
    """Each operator, run again on the values of its arguments, gives the value that its node
    has.
    """
    values = [node.meta.get("val") for node in lowered.graph.graph.nodes]
    fakes = [value for value in values if torch_private.is_fake(value)]
    if not fakes:
        return
    with torch.no_grad(), torch_private.fake_mode_of(fakes[0]):
        for node in calls(lowered):
            if node.target is aten.copy_.default or not isinstance(node.target, OpOverload):
                continue
            if violation := _layout_violation(node):
                yield node, violation


def _layout_violation(node: torch.fx.Node) -> str | None:
    inputs: Any = torch.fx.map_arg((node.args, node.kwargs), lambda node: node.meta["val"])
    args, kwargs = inputs
    again = fake_result(node.target, args, kwargs)
    known = node.meta["val"]
    if node.target in CORRECTIONS:
        fake_mode = torch_private.fake_mode_of(known[0])
        # kernels of these return more while it is on
        with torch.set_grad_enabled(bool(known[-1].numel() > 0)):
            again = CORRECTIONS[node.target](fake_mode, args, again)
    is_single = not isinstance(again, (tuple, list))
    for new, old in [(again, known)] if is_single else zip(again, known, strict=True):
        if isinstance(new, torch.Tensor) and not _same_layout(new, old):
            return f"{node.target} gives {_layout(new)}, but the node says {_layout(old)}"
    return None


def _layout(value: torch.Tensor) -> str:
    return f"{value.dtype} {tuple(value.shape)} strides {value.stride()} on {value.device}"


def _same_layout(new: torch.Tensor, old: Any) -> bool:
    return (
        isinstance(old, torch.Tensor)
        and new.dtype == old.dtype
        and new.device == old.device
        and same_sizes(new.shape, old.shape)
        and same_sizes(new.stride(), old.stride())
    )


RULES: tuple[Rule, ...] = (
    only_declared_operators,
    values_everywhere,
    writes_come_last,
    outputs_own_their_memory,
    layouts_agree,
)
