"""Traces autograd: ``.grad`` of tensors, and the effect of ``.backward()`` on ``.grad``.

A backward becomes one node ``torch.autograd.grad`` and nodes for the accumulation. ``.grad`` of a
tensor that existed before the trace is not touched: `effects` keeps the new value and sets it after
the graph. A backward is not captured if its autograd graph reaches out of the trace, or if code outside
the program waits for its gradients. Hooks of leaves from before are interpreted after that node, in
the order in which a backward completes the gradients.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

from tracer_core import torch_private
from tracer_core.graph_breaks import Break
from tracer_core.guards.source import SourceKind
from tracer_core.ops.higher_order.gradients import grad_without_hooks
from tracer_core.torch_private.needed import set_grad_mode
from tracer_core.trace.guarded_calls import query

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer

_KIND = "autograd_in_graph"


_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


class HookHandle(RemovableHandle):
    """The handle of a hook that the program puts on a tensor from before the trace. Generated code
    puts the hook there after the graph, unless it was removed. Mutable. table: a name in `_HOOKS`.
    allocation_step: the instruction that made it."""

    def __init__(self, tensor: torch.Tensor, table: str, hook: Any, allocation_step: int) -> None:
        self.tensor, self.table, self.hook, self.allocation_step = (
            tensor,
            table,
            hook,
            allocation_step,
        )
        self.removed = False

    @property
    def register(self) -> Any:
        """Returns the method that puts the hook on a tensor."""
        return _REGISTERS[self.table]

    def remove(self) -> None:
        self.removed = True


_REGISTERS = dict(
    zip(
        _HOOKS,
        (torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook),
        strict=True,
    )
)

# -- .grad --


def read(tracer: Tracer, tensor: torch.Tensor) -> Any:
    """Traces reading ``tensor.grad``."""
    change = tracer.effects.gradient(tensor)
    if change is not None:
        return change.where.value
    source = tracer.provenance.source_of(tensor)
    if source is None:
        if not tensor.is_leaf:
            raise Break(_KIND, "the gradient of an intermediate tensor is read")
        return tracer.attributes.attributes_of(tensor).get("grad")
    tracer.provenance.follows_late = True
    return tracer.provenance.read(
        tensor.grad, tracer.provenance.sources.make(source, SourceKind.GRAD)
    )


def write(tracer: Tracer, tensor: torch.Tensor, value: Any) -> None:
    """Traces ``tensor.grad = value``; None deletes."""
    if value is not None and not _may_be_gradient(tracer, tensor, value):
        raise Break(
            "tensor_metadata_mutation", "attribute 'grad' of a tensor is set to what is not like it"
        )
    tracer.side_effects.mutations += 1
    if tracer.provenance.source_of(tensor) is not None:
        tracer.effects.set_gradient(tensor, value)
    elif tensor.is_leaf:
        tracer.attributes.tensor_attributes.setdefault(id(tensor), {})["grad"] = value
    else:
        raise Break(_KIND, "the gradient of an intermediate tensor is set")


def may_set_flag(tracer: Tracer, tensor: torch.Tensor, flag: Any) -> bool:
    """Returns whether ``requires_grad`` of a leaf from before the trace may be set: no operator
    records gradients, now and until the trace ends."""
    return (
        type(flag) is bool
        and type(tensor) in torch_private.BASE_TENSOR_TYPES
        and tracer.provenance.source_of(tensor) is not None
        and tensor.is_leaf
        and not (torch.is_grad_enabled() or tensor.is_inference())
        and (not flag or tensor.is_floating_point() or tensor.is_complex())
        and not torch_private.transforms_active()
    )


def set_flag(tracer: Tracer, tensor: torch.Tensor, flag: bool) -> None:
    """Traces ``tensor.requires_grad = flag`` where `may_set_flag`."""
    tracer.side_effects.mutations += 1
    tracer.effects.begin_gradient_flag(tensor)
    tracer.recorder.flags_changed.setdefault(tensor, tracer.outer_step)
    for value in (tensor, tracer.recorder.fakes.known(tensor)):
        if value is not None:
            value.requires_grad_(flag)


def _may_be_gradient(tracer: Tracer, tensor: torch.Tensor, value: Any) -> bool:
    """Returns whether torch accepts the value as the tensor's gradient."""
    if not isinstance(value, torch.Tensor) or value is tensor:
        return False
    item, other = tracer.recorder.as_fake(tensor), tracer.recorder.as_fake(value)
    return (
        tuple(item.shape) == tuple(other.shape)
        and item.dtype is other.dtype
        and item.device == other.device
        and other.layout is torch.strided
    )


# -- backward --


def backward(
    tracer: Tracer,
    outputs: Sequence[Any],
    value: Sequence[Any],
    keep: bool,
    create: bool,
    inputs: Sequence[Any] | None,
) -> None:
    """Traces ``torch.autograd.backward``. value: a gradient or None for each output; inputs: None
    for all leaves."""
    recorder = tracer.recorder
    for output in outputs:
        if not recorder.as_fake(output).requires_grad:
            raise Break(_KIND, "backward() of a tensor that does not require gradients")
    leaves = _leaves(tracer, outputs) if inputs is None else _leaves_given(tracer, outputs, inputs)
    if not leaves:
        raise Break(_KIND, "backward() of a graph without leaves")
    _require_alone(tracer, leaves)
    waiting = [_hooks_of(tracer, leaf, _HOOKS[1]) for leaf in leaves]
    result, order = _differentiated(
        tracer, list(outputs), leaves,
        list(value) if any(item is not None for item in value) else None, any(waiting),
        retain_graph=keep, create_graph=create, allow_unused=True,
    )  # fmt: skip
    counts = Counter(id(gradient) for gradient, _, _ in result)
    own = not (create or _holds_python(tracer, outputs))
    for position in order:
        leaf, (gradient, is_new, hooks) = leaves[position], result[position]
        if gradient is None:
            continue
        alone = own and is_new and counts[id(gradient)] == 1 and not hooks
        _accumulate(tracer, leaf, _hooked(tracer, hooks, gradient, create), create, alone)
        for hook in waiting[position]:
            if _calls_hook(tracer, hook, leaf, create) is not None:
                raise Break(_KIND, "a hook on accumulation returns a value, which eager refuses")


def gradients_of(
    tracer: Tracer, outputs: Any, inputs: Any, value: Any, **options: Any
) -> tuple[Any, ...]:
    """Traces ``torch.autograd.grad``."""
    result, order = _differentiated(tracer, outputs, inputs, value, False, **options)
    results = [gradient for gradient, _, _ in result]
    for position in order:
        gradient, _, hooks = result[position]
        if gradient is not None:
            create = bool(options["create_graph"])
            results[position] = _hooked(tracer, hooks, gradient, create)
    return tuple(results)


def _differentiated(
    tracer: Tracer, outputs: Any, inputs: Any, value: Any, ordered: bool, **options: Any
) -> tuple[list[tuple[Any, bool, list[Any]]], Sequence[int]]:
    """Puts the node ``torch.autograd.grad``, or one that leaves out the hooks, into the graph.
    Returns for each input its gradient, whether it is a tensor of its own and the hooks that wait
    for it; and the positions of the inputs as a backward completes them, where that matters."""
    recorder = tracer.recorder
    _pass(tracer, outputs, bool(options["create_graph"] or options["retain_graph"]))
    known, hooks = recorder.known(), [_hooks_of(tracer, value, _HOOKS[0]) for value in inputs]
    source_of = tracer.provenance.source_of
    had_hooks = any(source_of(value) and value._backward_hooks is not None for value in inputs)
    function = grad_without_hooks if had_hooks or any(hooks) else torch.autograd.grad
    ordered = ordered or any(hooks)
    with _ordered(tracer, inputs if ordered else ()) as order:
        result = recorder.run(function, (outputs, inputs, value), options)
    parts = [
        (gradient, id(gradient) not in known and torch_private.is_fake(gradient), waiting)
        for gradient, waiting in zip(result, hooks, strict=True)
    ]
    return parts, order if ordered else range(len(parts))


@contextlib.contextmanager
def _ordered(tracer: Tracer, leaves: Sequence[Any]) -> Iterator[list[int]]:
    """Gives a list into which a backward of the fakes writes the positions of the leaves in the order
    in which their gradients are complete."""
    order: list[int] = []
    handles = [
        tracer.recorder.as_fake(leaf).register_hook(lambda _, i=i: order.append(i))
        for i, leaf in enumerate(leaves)
    ]
    try:
        yield order
    finally:
        for handle in handles:
            handle.remove()


def _hooks_of(tracer: Tracer, leaf: torch.Tensor, table: str) -> list[Any]:
    """Returns the hooks that wait for a leaf's gradient, guarded."""
    source, items = tracer.provenance.source_of(leaf), []
    if source is not None:
        slot = tracer.provenance.sources.slot(source, table)
        hooks = tracer.provenance.read(getattr(leaf, table), slot)
        if hooks is not None:
            values = tracer.calls.call_value(tracer.attributes.getattr(hooks, "values"), [], {})
            items = list(tracer.containers.spread(values))
    waiting = tracer.side_effects.hooks
    return items + [
        item.hook
        for item in waiting
        if item.tensor is leaf and item.table == table and not item.removed
    ]


def _calls_hook(tracer: Tracer, hook: Any, tensor: Any, create: bool) -> Any:
    """Interprets a hook, as a backward runs it."""
    result: list[Any] = []

    def run() -> None:
        result.append(tracer.calls.call_value(hook, [tensor], {}))

    if create:
        run()
    else:
        _without_grad(tracer, run)
    return result[0]


def _hooked(tracer: Tracer, hooks: Sequence[Any], gradient: Any, create: bool) -> Any:
    """Returns the gradient that these hooks leave."""
    for hook in hooks:
        result = _calls_hook(tracer, hook, gradient, create)
        if result is None or result is gradient:
            continue
        if not _may_be_gradient(tracer, gradient, result):
            raise Break(_KIND, "a hook of a tensor gives what is not like its gradient")
        gradient = result
    return gradient


def _walk(tracer: Tracer, outputs: Sequence[Any]) -> list[Any]:
    """Returns the nodes of the autograd graph behind some outputs."""
    fakes = map(tracer.recorder.as_fake, outputs)
    return torch_private.nodes_behind(*map(torch_private.gradient_node, fakes))


def _pass(tracer: Tracer, outputs: Sequence[Any], keep: bool) -> None:
    """Breaks where an earlier backward has freed a part of the graph that this one needs. The fakes
    do not always know it: the real input may be a view, whose history a write replaces
    (``CopySlices``), and what raises in the graph takes the gradients of the earlier backward along.
    """
    passed = tracer.side_effects.passed
    nodes = [item for item in _walk(tracer, outputs) if not hasattr(item, "variable")]
    if not passed.isdisjoint(nodes):
        raise Break(_KIND, "a backward through what an earlier one has freed")
    if not keep:
        passed.update(nodes)


def _holds_python(tracer: Tracer, outputs: Sequence[Any]) -> bool:
    """Returns whether the autograd graph has custom autograd.Functions, whose backward may return
    tensors that the program keeps."""
    return any(
        isinstance(node, torch.autograd.function.BackwardCFunction)
        for node in _walk(tracer, outputs)
    )


def _leaves(tracer: Tracer, outputs: Sequence[Any]) -> list[Any]:
    """Returns the leaves that a backward reaches: real tensors for inputs of the trace, fakes for
    leaves made in it."""
    recorder, leaves = tracer.recorder, []
    for node in _walk(tracer, outputs):
        fake = getattr(node, "variable", None)
        if fake is None:
            continue
        real = recorder.fakes.real_of(fake)
        leaf = fake if real is None else real
        if tracer.subclasses.original(fake) is not (fake if real is None else real):
            raise Break("tensor_subclass", "backward() to a tensor of a subclass")
        if not leaf.is_leaf or (real is None and recorder.node_of(fake) is None):
            raise Break(_KIND, "backward() reaches into a graph that was made before this segment")
        leaves.append(leaf)
    return leaves


def _leaves_given(tracer: Tracer, outputs: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    _leaves(tracer, outputs)
    unique = list({id(value): value for value in inputs}.values())
    if not all(
        isinstance(item, torch.Tensor) and tracer.recorder.as_fake(item).is_leaf for item in unique
    ):
        raise Break(_KIND, "backward(inputs=) of tensors that are no leaves")
    return unique


def require_inside(tracer: Tracer, outputs: Sequence[torch.Tensor]) -> None:
    """Breaks unless this trace made the whole autograd graph behind the outputs."""
    for output in outputs:
        if not tracer.recorder.as_fake(output).requires_grad:
            raise Break(_KIND, "torch.autograd.grad() of a tensor that does not require gradients")
    _leaves(tracer, outputs)


def _require_alone(tracer: Tracer, leaves: Sequence[torch.Tensor]) -> None:
    """Breaks if code outside the program waits for the gradients of the leaves."""
    if query(tracer, torch.distributed.is_available) and query(
        tracer, torch.distributed.is_initialized
    ):
        raise Break(
            _KIND,
            "backward() while torch.distributed is initialised: others may wait for gradients",
        )
    existing = [leaf for leaf in leaves if tracer.provenance.source_of(leaf) is not None]
    if torch_private.is_accumulator_held(existing):
        raise Break(
            _KIND, "backward() while the program holds the gradient accumulator of a tensor"
        )


def _accumulate(tracer: Tracer, leaf: Any, gradient: Any, create: bool, own: bool) -> None:
    """Accumulates a leaf's gradient as autograd does. own: no other code has this tensor."""
    recorder, held = tracer.recorder, read(tracer, leaf)
    if gradient.layout is not torch.strided:
        raise Break(_KIND, "backward() makes a sparse gradient")
    if held is None:
        if not (own and _is_laid_out_like(gradient, leaf)):
            gradient = _copy(tracer, gradient, leaf)
        write(tracer, leaf, gradient)
    elif create:
        write(tracer, leaf, recorder.run(torch.Tensor.add, (held, gradient), {}))
    else:
        _without_grad(tracer, lambda: recorder.run(torch.Tensor.add_, (held, gradient), {}))


def _without_grad(tracer: Tracer, run: Any) -> None:
    """Runs and traces operators under no_grad, where that makes a difference."""
    if not torch.is_grad_enabled():
        run()
        return
    tracer.recorder.state_call(set_grad_mode, (False,), ("grad",), {})
    run()
    tracer.recorder.state_call(set_grad_mode, (True,), ("grad",), {})


def _is_laid_out_like(gradient: torch.Tensor, leaf: torch.Tensor) -> bool:
    """Returns whether a gradient has the strides of its leaf, or is contiguous."""
    if not torch_private.is_dense(leaf):
        return gradient.is_contiguous()
    return all(
        size == 1 or mine == theirs
        for size, mine, theirs in zip(gradient.shape, gradient.stride(), leaf.stride(), strict=True)
    )


def _copy(tracer: Tracer, gradient: torch.Tensor, leaf: torch.Tensor) -> Any:
    """Returns a copy with the strides of the leaf, or contiguous."""
    run = tracer.recorder.run
    if not torch_private.is_dense(leaf) or leaf.is_contiguous():
        return run(torch.clone, (gradient,), {"memory_format": torch.contiguous_format})
    empty = run(torch.Tensor.new_empty_strided, (gradient, tuple(leaf.shape), leaf.stride()), {})
    return run(torch.Tensor.copy_, (empty, gradient), {})
