"""Higher-order operators: a call of checkpoint, cond or while_loop becomes one node (for others see
`autograd_function`, `func_transforms` and `scans`), and so does a hook on a tensor.

The function arguments are interpreted, so that what they read is guarded. If one breaks, or mutates
a pre-existing object, the graph breaks before the call.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.fx_capture.higher_order_calls import (
    CheckpointCall,
    CondCall,
    HookCall,
    ScriptedCall,
    SelectiveContexts,
    WhileCall,
)
from tracer_core.graph_breaks import Break
from tracer_core.native_effects import polyfills
from tracer_core.native_effects.effects import CALLED_CODES, CALLED_TYPES, breaks, special
from tracer_core.torch_private.modules import MARKED_REGION
from tracer_core.torch_private.names import code_inside, name, names
from tracer_core.torch_private.needed import pytree, set_grad_mode
from tracer_core.trace.attribute_lookup import ABSENT
from tracer_core.trace.gradients import HookHandle
from tracer_core.trace.guarded_calls import identity
from tracer_core.trace.subgraph_regions import Region
from tracer_core.trace.tracer import Tracer


def region_of(tracer: Tracer, what: str) -> Region:
    n_late = len(tracer.side_effects.late)
    return Region(tracer.recorder, tracer.effects, tracer.outer_step, what, n_late)


def require_unchanged(tracer: Tracer, region: Region, prints: bool = False) -> None:
    """Breaks the graph if a region changed what existed before it, or, unless it runs where the
    program calls it and once (prints), if it prints, warns or logs."""
    changed = region.changed()
    if changed is not None:
        tracer.break_graph(
            "higher_order", f"{region.what} changes a {changed} that existed before it"
        )
    if len(tracer.side_effects.late) != region.n_late and not prints:
        tracer.break_graph("higher_order", f"{region.what} prints, warns or logs")


def traced(
    tracer: Tracer,
    region: Region,
    function: Any,
    args: list[Any],
    kwargs: dict[str, Any],
    prints: bool = False,
) -> Any:
    """Traces a function into its own graph: (graph, outer values, flat result, pytree spec). prints:
    see `require_unchanged`."""
    grad = torch.is_grad_enabled()
    result = tracer.calls.call_value(function, args, kwargs)
    require_unchanged(tracer, region, prints)
    if torch.is_grad_enabled() != grad:
        tracer.break_graph("higher_order", f"{region.what} leaves another grad mode")
    flat, structure = pytree.tree_flatten(result)
    flat = [
        tracer.subclasses.in_graph(leaf) if isinstance(leaf, torch.Tensor) else leaf
        for leaf in flat
    ]
    graph, outer = region.take([leaf for leaf in flat if isinstance(leaf, torch.Tensor)])
    return graph, outer, flat, structure


def rebuilt(flat: list[Any], structure: Any, tensors: Any) -> Any:
    """Rebuilds a result with new tensors in place of the traced ones."""
    inputs = iter(tensors)
    return pytree.tree_unflatten(
        [next(inputs) if isinstance(leaf, torch.Tensor) else leaf for leaf in flat], structure
    )


# -- hooks on tensors --


@special(*names("Tensor.register_hook"), atomic=True)
def register_hook(tracer: Tracer, tensor: Any, hook: Any) -> Any:
    """Records a hook that replaces the gradient of an intermediate tensor, run by a backward in the
    graph."""
    if torch_private.transforms_active() or not tensor.requires_grad:
        tracer.break_graph("autograd_in_graph", "a hook is put on a tensor without gradients")
    if not torch_private.is_fake(tensor):
        return _hook_later(tracer, tensor, "_backward_hooks", hook)
    frame = tracer.frames[-1]
    if frame.code.names[frame.ip] != "POP_TOP":
        tracer.break_graph("autograd_in_graph", "the handle of a hook on a tensor is kept")
    region = region_of(tracer, "a hook of a tensor")
    grad = torch.is_grad_enabled()
    set_grad_mode(False)  # as in a backward without create_graph
    try:
        with tracer.recorder.fakes.mode:
            gradient = torch.empty_like(tensor)
        region.operand(gradient)
        graph, outer, flat, _ = traced(tracer, region, hook, [gradient], {})
    finally:
        set_grad_mode(grad)
    if any(node.meta.get("writes") for node in graph.graph.nodes):
        tracer.break_graph("autograd_in_graph", "a hook of a tensor writes to a tensor")
    if len(flat) != 1 or not (flat[0] is None or isinstance(flat[0], torch.Tensor)):
        tracer.break_graph("autograd_in_graph", "a hook of a tensor gives what is no tensor")
    if flat[0] is not None:
        tracer.recorder.run(HookCall(graph), (tensor, *outer), {})
    return None


@special(*names("Tensor.register_post_accumulate_grad_hook"))
def register_post_hook(tracer: Tracer, tensor: Any, hook: Any) -> Any:
    real = not torch_private.is_fake(tensor) and tensor.requires_grad and tensor.is_leaf
    if not real or torch_private.transforms_active():
        tracer.break_graph("autograd_in_graph", "a hook on accumulation is put on no leaf")
    return _hook_later(tracer, tensor, "_post_accumulate_grad_hooks", hook)


def _hook_later(tracer: Tracer, tensor: Any, table: str, hook: Any) -> HookHandle:
    """Puts a hook on a tensor from before the trace: generated code does so after the graph."""
    if not tensor.is_leaf and tracer.fakes.real_was_written(tensor):
        tracer.break_graph("autograd_in_graph", "a hook is put on a tensor after a write to it")
    handle = HookHandle(tensor, table, hook, tracer.outer_step)
    tracer.side_effects.mutations += 1
    tracer.side_effects.hooks.append(handle)
    return handle


@special(HookHandle.remove)
def remove_hook(tracer: Tracer, handle: HookHandle) -> None:
    tracer.side_effects.mutations += 1
    handle.remove()


# -- checkpoint --

#: Whether the context_fn= of a checkpoint is being called.
_MAKES_CONTEXTS: ContextVar[bool] = ContextVar("_MAKES_CONTEXTS", default=False)
_NO_CONTEXTS = name("utils.checkpoint.noop_context_fn")


@special(*names("utils.checkpoint.checkpoint"), atomic=True)
def checkpoint(tracer: Tracer, /, function: Any = None, *args: Any, **kwargs: Any) -> Any:
    if function is None and not args:
        return torch_private.undecorated_checkpoint()(**kwargs)  # a decorator, since torch 2.15
    options = {name: kwargs[name] for name in torch_private.checkpoint_options() if name in kwargs}
    named = {name: value for name, value in kwargs.items() if name not in options}
    return _checkpoint(tracer, function, args, named, **options)


@special(*names("utils.checkpoint._checkpoint_impl", in_every_build=False), atomic=True)
def _checkpoint(
    tracer: Tracer, function: Any, args: Any, kwargs: dict[str, Any], **options: Any
) -> Any:
    """What `checkpoint` and, since torch 2.15, the functions that it decorated call."""
    if not isinstance(options.get("use_reentrant"), bool):
        tracer.break_graph("higher_order", "checkpoint() without use_reentrant= warns")
    contexts = options.get("context_fn", _NO_CONTEXTS)
    if contexts is not _NO_CONTEXTS:
        token = _MAKES_CONTEXTS.set(True)
        try:
            result = tracer.calls.call_value(contexts, [], {})
        finally:
            _MAKES_CONTEXTS.reset(token)
        if type(result) is not SelectiveContexts or options["use_reentrant"]:
            tracer.break_graph("higher_order", "checkpoint() with contexts of the program's own")
        options["context_fn"] = result
    if options.get("debug") or (kwargs and options["use_reentrant"]):
        tracer.break_graph(
            "higher_order", "checkpoint() with debug=, or keywords and use_reentrant"
        )
    if not torch.is_grad_enabled():
        return tracer.calls.prepare(function, [*args], kwargs)  # no backward, so no recomputation
    region = region_of(tracer, "checkpoint()")
    graph, outer, flat, structure = traced(tracer, region, function, [*args], kwargs)
    inputs = {id(tracer.subclasses.in_graph(a)) for a in args if isinstance(a, torch.Tensor)}
    explicit = tuple(i for i, value in enumerate(outer) if id(value) in inputs)
    target = CheckpointCall(graph, explicit, options)
    wrapped = any(map(torch_private.is_wrapper, outer))
    record = tracer.subclasses.node if wrapped else tracer.recorder.call
    results = record(target, tuple(outer), {})
    return rebuilt(flat, structure, results)


@special(*names("utils.checkpoint.create_selective_checkpoint_contexts"))
def selective_contexts(
    tracer: Tracer, policy_fn_or_list: Any, allow_cache_entry_mutation: Any = False
) -> SelectiveContexts:
    """Returns what makes the contexts when the graph runs; `checkpoint` calls it in each forward."""
    if not _MAKES_CONTEXTS.get():
        tracer.break_graph("higher_order", "contexts of a checkpoint are made outside of one")
    if tracer.provenance.source_of(policy_fn_or_list) is not None:
        identity(tracer, policy_fn_or_list)
    return SelectiveContexts(policy_fn_or_list, allow_cache_entry_mutation)


# -- functions that torch made --


def _scripted(tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Calls a function of torch.jit as one node: it runs as torch compiled it."""
    if tracer.provenance.source_of(function) is not None:
        identity(tracer, function)
    if torch_private.transforms_active():
        tracer.break_graph("higher_order", "a scripted function under a transform of torch.func")
    tracer.native_calls.native_reads(*args, *kwargs.values())
    try:
        return tracer.recorder.call(ScriptedCall(function), tuple(args), kwargs)
    except Break as error:
        source = torch_private.scripted_source(function)
        if error.kind != "operator_failed" or source is None:
            raise
        return tracer.calls.prepare(source, args, kwargs)  # fakes do not run in torch.jit's code


for _type in names("jit.ScriptFunction"):
    CALLED_TYPES[_type] = _scripted


def _graph_module(tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Calls a GraphModule, whose own wrapper only words errors."""
    wrapped = tracer.attributes.getattr(args[0], "_wrapped_call")
    if tracer.attributes.getattr(wrapped, "cls_call") is not None:
        tracer.break_graph("native_python", "a GraphModule whose class has a __call__ of its own")
    return tracer.calls.prepare(torch.nn.Module.__call__, args, kwargs)


for _recompile in names("fx.GraphModule.recompile"):
    for _constant in _recompile.__code__.co_consts:
        if getattr(_constant, "co_name", "") == "call_wrapped":
            CALLED_CODES[_constant] = _graph_module


# -- control flow --


_PROMOTED = names("ops.aten.mm.default ops.aten.mul.Tensor ops.aten.div.Tensor")


def _out_dtype(tracer: Tracer, function: Any, args: Any, kwargs: Any) -> Any:
    """Interprets the polyfill of out_dtype; breaks the graph for arguments that torch may refuse."""
    op, output_dtype, *tensors = args if len(args) > 1 else (None, None)
    if (
        kwargs
        or not any(op is item for item in _PROMOTED)
        or not isinstance(output_dtype, torch.dtype)
        or not all(isinstance(tensor, torch.Tensor) and tensor.ndim for tensor in tensors)
        or any(tensor.requires_grad for tensor in tensors)
    ):
        tracer.break_graph("higher_order", "out_dtype() of arguments that torch may refuse")
    return tracer.calls.prepare(polyfills.out_dtype, [*args], {})


CALLED_TYPES |= dict.fromkeys(map(type, names("_higher_order_ops.out_dtype")), _out_dtype)


@special(*names("cond"), atomic=True)
def cond(tracer: Tracer, pred: Any, true_fn: Any, false_fn: Any, operands: Any = ABSENT) -> Any:
    inputs = [] if operands is ABSENT else tracer.containers.spread(operands)
    if not isinstance(pred, torch.Tensor):
        if not isinstance(pred, (bool, int, float, torch.SymBool, torch.SymInt)):
            tracer.break_graph("higher_order", f"torch.cond() of a {type(pred).__name__}")
        chosen = true_fn if tracer.operators.to_bool(pred) else false_fn
        return tracer.calls.prepare(chosen, list(inputs), {})
    sides = [
        traced(tracer, region_of(tracer, "torch.cond()"), function, list(inputs), {})
        for function in (true_fn, false_fn)
    ]
    (graph_true, outer_true, flat, structure), (graph_false, outer_false, flat_false, other) = sides
    if structure != other or not all(
        isinstance(leaf, torch.Tensor) for leaf in (*flat, *flat_false)
    ):
        tracer.break_graph(
            "higher_order",
            "the branches of torch.cond() return different structures, or no tensors",
        )
    outer = list({id(value): value for value in (*outer_true, *outer_false)}.values())
    index = {id(value): i for i, value in enumerate(outer)}
    target = CondCall(graph_true, graph_false, tuple(index[id(v)] for v in outer_true),
                      tuple(index[id(v)] for v in outer_false))  # fmt: skip
    results = tracer.recorder.call(target, (pred, *outer), {})
    return rebuilt(flat, structure, results)


@special(*names("while_loop"), atomic=True)
def while_loop(tracer: Tracer, condition: Any, body: Any, carry: Any, /) -> Any:
    recorder, carry = tracer.recorder, tracer.containers.spread(carry)
    if not all(isinstance(value, torch.Tensor) for value in carry):
        return tracer.calls.prepare(polyfills.while_loop, [condition, body, tuple(carry)], {})
    fakes = [recorder.as_fake(value) for value in carry]
    sides = []
    for function in (condition, body):
        region = region_of(tracer, "torch.while_loop()")
        with recorder.fakes.mode:
            inside = [fake.clone() for fake in fakes]
        for value in inside:
            region.operand(value)
        sides.append(traced(tracer, region, function, inside, {}))
    (graph, outer, flat, _), (body_graph, body_outer, results, structure) = sides
    if len(flat) != 1 or not all(isinstance(leaf, torch.Tensor) for leaf in (*flat, *results)):
        tracer.break_graph("higher_order", "torch.while_loop() over what is no tensor")
    target = WhileCall(graph, body_graph, len(outer), len(body_outer))
    return rebuilt(results, structure, recorder.call(target, (*outer, *body_outer, *fakes), {}))


def _nested_region(tracer: Tracer, region: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Inlines a `torch.compiler.nested_compile_region`: equal parts of a graph are compiled once."""
    function = tracer.attributes.getattr(region, MARKED_REGION)
    return tracer.calls.prepare(function, args, kwargs)


CALLED_CODES |= dict.fromkeys(code_inside("compiler.nested_compile_region"), _nested_region)

breaks("higher_order", "it runs eagerly, with its own functions", [
    *names("func.functionalize"),
])  # fmt: skip
