"""Desugars tensors of subclasses: a captured graph whose nodes work on wrappers becomes one that
takes and returns plain tensors.

In: a `CapturedGraph` with wrappers among its inputs, nodes or outputs. Out: the captured graph of
plain tensors, and the `Boundary` that runs it. Inside, a node joins the inner tensors of each
input; torch calls the handlers of the subclasses where the graph is lowered, so that the ATen graph
holds plain operators.

Gradients are of the wrapper; a second derivative raises, because a wrapper made
of gradients has no history. For each wrapper that requires grad the graph has
inputs of its own, one for each part of the gradient; two autograd nodes, at the graph's beginning
and at its end, take wrappers apart and put them together again.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.contract.captured_graph import CapturedGraph
from tracer_core.contract.lowering_errors import LoweringUnsupported
from tracer_core.contract.runner import RunFunction
from tracer_core.contract.specs import InputSpec
from tracer_core.torch_private.needed import pytree


@dataclass(frozen=True)
class Recipe:
    """How a wrapper is made of plain tensors. names, parts: its inner tensors, and how each of them
    is made (None: it is plain). context: of ``__tensor_flatten__``. size, stride: the outer
    ones."""

    kind: Any
    names: tuple[str, ...]
    parts: tuple[Recipe | None, ...]
    context: Any = field(repr=False)
    size: Any
    stride: Any

    def apart(self, value: Any) -> list[torch.Tensor]:
        """Returns the plain tensors in a wrapper of this kind."""
        tensors: list[torch.Tensor] = []
        for name, part in zip(self.names, self.parts, strict=True):
            inner = getattr(value, name)
            tensors += [inner] if part is None else part.apart(inner)
        return tensors

    def together(self, tensors: Iterator[torch.Tensor]) -> Any:
        """Makes a wrapper of plain tensors."""
        inner = {
            name: next(tensors) if part is None else part.together(tensors)
            for name, part in zip(self.names, self.parts, strict=True)
        }
        return torch_private.unflattened(self.kind, inner, self.context, self.size, self.stride)

    def of_tangent(self) -> Recipe:
        """Returns how the tangent of such a wrapper is made, which is not summed up over processes
        once more."""
        context = torch_private.tangent_context(self.context)
        return self if context is self.context else replace(self, context=context)

    def fits(self, value: Any) -> bool:
        """Returns whether a value is a wrapper with the same inner tensors and context."""
        if type(value) is not self.kind:
            return False
        names, context = torch_private.flattened(value)
        return (
            tuple(names) == self.names
            and bool(context == self.context)
            and all(
                not torch_private.is_wrapper(getattr(value, name))
                if part is None
                else part.fits(getattr(value, name))
                for name, part in zip(self.names, self.parts, strict=True)
            )
        )


def recipe_of(value: Any) -> Recipe:
    """Returns how a wrapper is made. Raises LoweringUnsupported where its sizes are symbols."""
    if not torch_private.is_traceable(value):
        raise LoweringUnsupported(f"a {type(value).__name__} has no __tensor_flatten__")
    names, context = torch_private.flattened(value)
    if torch_private.holds_state(context):
        raise LoweringUnsupported("a DTensor whose placement holds values leaves or enters a graph")
    # a nested tensor's follow from its inner tensors
    size, stride = ((), ()) if torch_private.is_jagged(value) else torch_private.layout_of(value)
    if not all(isinstance(item, int) for item in (*size, *stride, *_numbers(context))):
        raise LoweringUnsupported(f"the sizes of a {type(value).__name__} are symbols")
    inner = [getattr(value, name) for name in names]
    parts = tuple(recipe_of(item) if torch_private.is_wrapper(item) else None for item in inner)
    return Recipe(type(value), tuple(names), parts, context, size, stride)


def _numbers(context: Any) -> list[Any]:
    symbols = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return [leaf for leaf in pytree.tree_leaves(context) if isinstance(leaf, symbols)]


@dataclass(frozen=True)
class Leaf:
    """A wrapper that requires grad. gradient: how its gradient is made; None where it is a plain
    tensor. like: sizes and dtypes of the parts of the gradient where these are no gradients of the
    parts of the wrapper; None where they are."""

    recipe: Recipe
    gradient: Recipe | None
    like: tuple[tuple[Any, torch.dtype], ...] | None

    def carriers(self, value: Any) -> list[torch.Tensor]:
        """Returns the tensors whose gradients are the parts of the gradient of a wrapper."""
        if self.like is None:
            return [item.detach() for item in self.recipe.apart(value)]
        with torch_private.functions_off():
            device = value.device
        return [
            torch.empty((), dtype=dtype, device=device).expand(size) for size, dtype in self.like
        ]

    def count(self) -> int:
        return 1 if self.gradient is None else _count(self.gradient)

    def gradient_of(self, parts: Sequence[torch.Tensor | None]) -> Any:
        """Returns the gradient of the wrapper that has these parts."""
        inputs = [part for part in parts if part is not None]
        if len(inputs) < len(parts) or self.gradient is None:
            assert not inputs or self.gradient is None, "a gradient of which some parts are missing"
            return inputs[0] if inputs else None
        return self.gradient.together(iter(inputs))

    def parts_of(self, gradient: Any) -> list[Any]:
        """Does the inverse of `gradient_of`."""
        if self.gradient is None:
            return [gradient]
        if not self.gradient.fits(gradient):
            raise LoweringUnsupported("a gradient is not of the class that it was on fakes")
        return [*self.gradient.apart(gradient)]


def _carries(value: torch.Tensor) -> bool:
    """Returns whether a tensor can carry gradients."""
    return value.dtype.is_floating_point or value.dtype.is_complex


def _count(recipe: Recipe) -> int:
    return sum(1 if part is None else _count(part) for part in recipe.parts)


class _Join(torch.autograd.Function):
    """Inside the graph: makes a leaf of its parts, and takes its gradient apart."""

    @staticmethod
    def forward(ctx: Any, leaf: Leaf, n_carriers: int, *parts: torch.Tensor) -> Any:
        ctx.leaf, ctx.others = leaf, len(parts) - n_carriers
        simple = parts if leaf.like is None else parts[n_carriers:]
        return leaf.recipe.together(iter([item.detach() for item in simple]))

    @staticmethod
    @torch_private.once_differentiable
    def backward(ctx: Any, gradient: Any) -> Any:
        return (None, None, *ctx.leaf.parts_of(gradient), *[None] * ctx.others)


class _Split(torch.autograd.Function):
    """Inside the graph: takes a result apart, and makes its tangent of the parts."""

    @staticmethod
    def forward(ctx: Any, recipe: Recipe, value: Any) -> Any:
        parts = recipe.apart(value)
        ctx.recipe, ctx.fixed = recipe, [None if _carries(part) else part for part in parts]
        return tuple(part.detach() for part in parts)

    @staticmethod
    @torch_private.once_differentiable
    def backward(ctx: Any, *tangents: torch.Tensor) -> Any:
        pairs = zip(ctx.fixed, tangents, strict=True)
        parts = (tangent if item is None else item for item, tangent in pairs)
        return None, ctx.recipe.of_tangent().together(parts)


class _Apart(torch.autograd.Function):
    """Before the graph: takes the leaves of a call apart, and makes their gradients."""

    @staticmethod
    def forward(ctx: Any, leaves: tuple[Leaf, ...], *values: Any) -> Any:
        ctx.leaves = leaves
        ctx.set_materialize_grads(False)
        pairs = zip(leaves, values, strict=True)
        return tuple(carrier for leaf, value in pairs for carrier in leaf.carriers(value))

    @staticmethod
    @torch_private.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        items, result = list(gradients), []
        for leaf in ctx.leaves:
            parts, items = items[: leaf.count()], items[leaf.count() :]
            result.append(leaf.gradient_of(parts))
        return (None, *result)


class _Together(torch.autograd.Function):
    """After the graph: makes a result of its parts, and takes its tangent apart."""

    @staticmethod
    def forward(ctx: Any, recipe: Recipe, *parts: torch.Tensor) -> Any:
        ctx.recipe = recipe
        return recipe.together(iter([part.detach() for part in parts]))

    @staticmethod
    @torch_private.once_differentiable
    def backward(ctx: Any, tangent: Any) -> Any:
        recipe = ctx.recipe.of_tangent()
        tangent = torch_private.replaced_tangent(tangent, recipe.context)
        if not recipe.fits(tangent):
            raise RuntimeError(
                f"a compiled graph that returned a {ctx.recipe.kind.__name__} got a gradient of it"
                f" that is a {type(tangent).__name__}, or has another context"
            )
        parts = recipe.apart(tangent)
        return (None, *[part if _carries(part) else None for part in parts])


@dataclass(eq=False)
class JoinCall:
    """Makes a wrapper inside a graph. leaf: where it requires grad; carried: how many of the
    arguments carry its gradient."""

    recipe: Recipe
    leaf: Leaf | None = None
    n_carriers: int = 0
    __name__ = "join"

    def __call__(self, *parts: torch.Tensor) -> Any:
        if self.leaf is not None:
            join: Any = _Join
            return join.apply(self.leaf, self.n_carriers, *parts)
        return torch_private.leaf(self.recipe.together(iter(parts)), False)


@dataclass(eq=False)
class SplitCall:
    """Takes a wrapper apart inside a graph."""

    recipe: Recipe
    __name__ = "split"

    def __call__(self, value: Any) -> tuple[torch.Tensor, ...]:
        if torch_private.requires_grad_now(value) and torch.is_grad_enabled():
            split: Any = _Split
            return tuple(split.apply(self.recipe, value))
        return tuple(self.recipe.apart(value))


@dataclass(frozen=True)
class Boundary:
    """What stands between a graph of wrappers and its graph of plain tensors. positions: of the
    inputs that are plain. leaves, at: the wrappers that require grad, and their indices. outputs:
    for each output its recipe, whether it carries gradients, and how many plain ones it is.
    wrapped: indices of all wrappers where the graph carries gradients."""

    positions: tuple[int, ...]
    leaves: tuple[Leaf, ...]
    at: tuple[int, ...]
    outputs: tuple[tuple[Recipe | None, bool, int], ...]
    wrapped: tuple[int, ...]

    def input_indices(self, numbers: frozenset[int] | None) -> frozenset[int] | None:
        """Returns which inputs of the graph of wrappers these of the plain one are."""
        if numbers is None:
            return None
        return frozenset(self.positions[index] for index in numbers if index < len(self.positions))

    def around(self, run: RunFunction) -> RunFunction:
        """Returns what runs the graph of wrappers, given what runs the plain one."""
        positions, leaves, at, outputs = self.positions, self.leaves, self.at, self.outputs
        wrapped = self.wrapped
        apart, together = map(torch_private.direct_apply, (_Apart, _Together))
        rebuilds = any(recipe is not None for recipe, _, _ in outputs)

        def call(inputs: list[Any]) -> Sequence[Any]:
            arguments = [inputs[index] for index in positions]
            watched = [inputs[index] for index in wrapped]
            if leaves:
                arguments += apart(leaves, *[inputs[index] for index in at])
            inputs.clear()
            result = run(arguments)
            if watched:
                _watch(watched, result)
            if not rebuilds:
                return result
            results: list[Any] = []
            position = 0
            for recipe, carries, count in outputs:
                parts = result[position : position + count]
                position += count
                if recipe is None:
                    results += parts
                elif carries:
                    results.append(together(recipe, *parts))
                else:
                    results.append(recipe.together(iter(parts)))
            return results

        return call


def _watch(wrappers: list[Any], outputs: Sequence[Any]) -> None:
    """Makes the backward raise where a wrapper was written to after the forward: a handler's writes
    do not count as writes to the inner tensors, which are what is saved."""
    versions = torch_private.versions_of(wrappers)

    def check(gradients: Any) -> None:
        if torch_private.versions_of(wrappers) != versions:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an"
                " inplace operation: a tensor of a subclass that a compiled graph got"
            )

    for node in {output.grad_fn for output in outputs if isinstance(output, torch.Tensor)}:
        if node is not None:
            node.register_prehook(check)


def holds_wrappers(gm: torch.fx.GraphModule) -> bool:
    """Returns whether inputs or outputs of a captured graph are wrappers."""
    (output,) = gm.graph.find_nodes(op="output")
    ends = (*gm.graph.find_nodes(op="placeholder"), *output.all_input_nodes)
    return any(torch_private.is_wrapper(node.meta.get("val")) for node in ends)


def desugared(captured: CapturedGraph) -> tuple[CapturedGraph, Boundary]:
    """Returns the captured graph of plain tensors. Raises LoweringUnsupported where a wrapper does
    not tell how it is made."""
    return _Desugaring(captured).result()


class _Desugaring:
    """One desugaring. Mutable."""

    def __init__(self, captured: CapturedGraph) -> None:
        self.captured = captured
        self.old = captured.gm.graph
        self.graph = torch.fx.Graph()
        self.copies: dict[torch.fx.Node, torch.fx.Node] = {}
        self.inputs: list[InputSpec] = []
        self.real: list[Any] = []
        self.positions: list[int] = []
        self.wrapped: list[tuple[torch.fx.Node, int]] = []

    def result(self) -> tuple[CapturedGraph, Boundary]:
        captured = self.captured
        (output,) = self.old.find_nodes(op="output")
        self._keep_non_tensor_inputs()
        gradients = self._gradients(output)
        leaves, at = [], []
        joined = []
        for node, index in self.wrapped:
            value = node.meta["val"]
            recipe = recipe_of(value)
            leaf = None
            if captured.needs_grad and torch_private.requires_grad_now(value):
                gradient = gradients.get(node)
                leaf = _leaf(recipe, value, gradient)
                leaves.append(leaf)
                at.append(index)
            joined.append((node, index, recipe, leaf))
        # the placeholders of carriers stand in the order of the leaves
        created = [(node, recipe, leaf, self._carriers(node, index, leaf)) for
                node, index, recipe, leaf in joined]  # fmt: skip
        for node, recipe, leaf, carriers in created:
            simple = [
                self.copies[self._placeholder(item)] for item in recipe.apart(node.meta["val"])
            ]
            n_carriers = len(carriers)
            if leaf is not None and leaf.like is None:
                simple = []
            target = JoinCall(recipe, leaf, n_carriers)
            copy = self.graph.call_function(target, (*carriers, *simple))
            copy.meta = dict(node.meta)
            self.copies[node] = copy
        for node in self.old.nodes:
            if node.op not in ("placeholder", "output"):
                self.copies[node] = self.graph.node_copy(node, self.copies.__getitem__)
        outputs = self._outputs(output)
        gm = torch.fx.GraphModule(captured.gm, self.graph)
        plain_graph = replace(
            captured, gm=gm, inputs=tuple(self.inputs), real_inputs=tuple(self.real)
        )
        wrapped = tuple(index for _, index in self.wrapped) if captured.needs_grad else ()
        return plain_graph, Boundary(
            tuple(self.positions), tuple(leaves), tuple(at), tuple(outputs), wrapped
        )

    def _keep_non_tensor_inputs(self) -> None:
        captured = self.captured
        self._by_fake: dict[int, torch.fx.Node] = {}
        for index, node in enumerate(self.old.find_nodes(op="placeholder")):
            value = node.meta["val"]
            if torch_private.is_wrapper(value):
                self.wrapped.append((node, index))
                continue
            self._by_fake[id(value)] = node
            self.copies[node] = self.graph.node_copy(node)
            self.inputs.append(captured.inputs[index])
            self.real.append(captured.real_inputs[index])
            self.positions.append(index)

    def _placeholder(self, fake: Any) -> torch.fx.Node:
        result = self._by_fake.get(id(fake))
        if result is None:
            raise LoweringUnsupported("an inner tensor of a wrapper is no input")
        return result

    def _gradients(self, output: torch.fx.Node) -> dict[torch.fx.Node, Any]:
        """Returns the gradients of the wrappers among the inputs, as fakes."""
        nodes = [
            node for node, _ in self.wrapped if torch_private.requires_grad_now(node.meta["val"])
        ]
        if not nodes or not self.captured.needs_grad:
            return {}
        roots = [node.meta["val"] for node in output.all_input_nodes]
        roots = [root for root in roots if isinstance(root, torch.Tensor)]
        roots = [root for root in roots if torch_private.requires_grad_now(root)]
        fake = next(root for root in roots for root in _plain_of(root))
        mode = torch_private.fake_mode_of(fake)
        values = [node.meta["val"] for node in nodes]
        with mode, torch_private.settings_restored(), torch_private.backward_on_this_thread():
            tangents = [torch.ones_like(root) for root in roots]
            with torch_private.autocast_off():
                result = torch.autograd.grad(roots, values, tangents, True, allow_unused=True)
        return dict(zip(nodes, result, strict=True))

    def _carriers(self, node: torch.fx.Node, index: int, leaf: Leaf | None) -> list[torch.fx.Node]:
        """Adds the inputs that carry the gradient of a leaf."""
        if leaf is None:
            return []
        fakes = leaf.carriers(node.meta["val"])
        reals = leaf.carriers(self.captured.real_inputs[index])
        result = []
        for number, (fake, real) in enumerate(zip(fakes, reals, strict=True)):
            after = next(reversed(self.graph.find_nodes(op="placeholder")), self.graph._root)
            with self.graph.inserting_after(after):
                new = self.graph.placeholder(f"{node.name}_part_{number}")
            new.meta = {**node.meta, "val": fake.requires_grad_()}
            spec = self.captured.inputs[index]
            self.inputs.append(replace(spec, name=new.name, stable_address=False))
            self.real.append(real.requires_grad_())
            result.append(new)
        return result

    def _outputs(self, output: torch.fx.Node) -> list[tuple[Recipe | None, bool, int]]:
        returned: list[Any] = []
        described: list[tuple[Recipe | None, bool, int]] = []
        ends: Any = output.args[0]
        for end in ends:
            value: Any = end.meta.get("val") if isinstance(end, torch.fx.Node) else None
            if not torch_private.is_wrapper(value):
                returned.append(self.copies[end] if isinstance(end, torch.fx.Node) else end)
                described.append((None, False, 1))
                continue
            recipe, target = recipe_of(value), SplitCall(recipe_of(value))
            carries = self.captured.needs_grad and torch_private.requires_grad_now(value)
            with torch_private.fake_mode_of(_plain_of(value)[0]):
                parts = target(value)
            split = self.graph.call_function(target, (self.copies[end],))
            split.meta = {**end.meta, "val": parts}
            for number, part in enumerate(parts):
                item = self.graph.call_function(operator.getitem, (split, number))
                item.meta = {**end.meta, "val": part}
                returned.append(item)
            described.append((recipe, carries, len(parts)))
        self.graph.output(tuple(returned))
        return described


def _plain_of(value: Any) -> list[torch.Tensor]:
    return recipe_of(value).apart(value) if torch_private.is_wrapper(value) else [value]


def _leaf(recipe: Recipe, value: Any, gradient: Any) -> Leaf:
    """Returns how the gradient of a wrapper is made."""
    if gradient is None or not torch_private.is_wrapper(gradient):
        with torch_private.functions_off():
            return Leaf(recipe, None, ((recipe.size, value.dtype),))
    result = recipe_of(gradient)
    mine, its = (
        [(item.shape, item.dtype) for item in full.apart(part)]
        for full, part in ((recipe, value), (result, gradient))
    )
    if not all(map(_carries, result.apart(gradient))):
        raise LoweringUnsupported(f"the gradient of a {recipe.kind.__name__} holds integers")
    return Leaf(recipe, result, None if mine == its else tuple(its))
