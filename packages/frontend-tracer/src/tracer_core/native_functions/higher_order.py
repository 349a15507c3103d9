"""Higher-order operators: a call of autograd.Function.apply, checkpoint, a torch.func transform,
cond or while_loop becomes one node.

The function arguments are interpreted, so that what they read is guarded. If one breaks, or mutates
a pre-existing object, the graph breaks before the call.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tracer_core import torch_private
from tracer_core.fx_capture.fx_graph import SIMPLE_TYPES
from tracer_core.fx_capture.fx_recorder import Recorder
from tracer_core.fx_capture.higher_order_calls import (
    TENSOR,
    Anew,
    CheckpointCall,
    CondCall,
    FunctionCall,
    HookCall,
    ScriptedCall,
    SelectiveContexts,
    TransformCall,
    WhileCall,
)
from tracer_core.graph_breaks import Break
from tracer_core.guards.value_kinds import is_constant
from tracer_core.native_effects import polyfills
from tracer_core.native_effects.effects import (
    CALLED_CODES,
    CALLED_TYPES,
    breaks,
    special,
    special_each,
    special_rows,
)
from tracer_core.torch_private.modules import MARKED_REGION
from tracer_core.torch_private.names import code_inside, name, names
from tracer_core.torch_private.needed import pytree, set_grad_mode
from tracer_core.trace.attribute_lookup import ABSENT
from tracer_core.trace.gradients import HookHandle
from tracer_core.trace.guarded_calls import identity
from tracer_core.trace.operators import CONTAINERS
from tracer_core.trace.specialization_constants import CODE, maker
from tracer_core.trace.subgraph_regions import Region
from tracer_core.trace.symbolic_scalars import SYMBOLS
from tracer_core.trace.tracer import Tracer


def region_of(tracer: Tracer, what: str) -> Region:
    return Region(tracer.recorder, tracer.effects, tracer.outer_step, what)


def _unchanged(tracer: Tracer, region: Region) -> None:
    changed = region.changed()
    if changed is not None:
        tracer.break_graph(
            "higher_order", f"{region.what} changes a {changed} that existed before it"
        )


def traced(
    tracer: Tracer, region: Region, function: Any, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """Traces a function into its own graph: (graph, outer values, flat result, pytree spec)."""
    grad = torch.is_grad_enabled()
    result = tracer.calls.call_value(function, args, kwargs)
    _unchanged(tracer, region)
    if torch.is_grad_enabled() != grad:
        tracer.break_graph("higher_order", f"{region.what} leaves another grad mode")
    flat, structure = pytree.tree_flatten(result)
    flat = [
        tracer.subclasses.in_graph(leaf) if isinstance(leaf, torch.Tensor) else leaf
        for leaf in flat
    ]
    graph, outer = region.take([leaf for leaf in flat if isinstance(leaf, torch.Tensor)])
    return graph, outer, flat, structure


def _rebuilt(flat: list[Any], structure: Any, tensors: Any) -> Any:
    """Rebuilds a result with new tensors in place of the traced ones."""
    inputs = iter(tensors)
    return pytree.tree_unflatten(
        [next(inputs) if isinstance(leaf, torch.Tensor) else leaf for leaf in flat], structure
    )


# -- autograd.Function --


class _Fakes(TorchFunctionMode):
    """Replaces tensors that a forward reads from outside by their fakes, when it runs on fakes."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(torch.Tensor, self._fake, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _fake(self, value: torch.Tensor) -> Any:
        """Returns the fake of a plain tensor; wrappers made inside hold fakes."""
        return value if torch_private.is_wrapper(value) else self.recorder.as_fake(value)


class _Context(torch.autograd.function.FunctionCtx):
    """The ctx of a forward that is interpreted only for its guards."""


@special(*names("autograd.Function.apply"), atomic=True)
def apply_function(tracer: Tracer, cls: Any, /, *rest: Any, **kwargs: Any) -> Any:
    if not (isinstance(cls, type) and issubclass(cls, torch.autograd.Function)):
        tracer.break_graph("higher_order", "apply() of what is no autograd.Function")
    what = f"{cls.__name__}.apply"
    region = region_of(tracer, what)
    context: Any = _Context()
    context.needs_input_grad = tuple(isinstance(a, torch.Tensor) and a.requires_grad for a in rest)
    grad, created = torch.is_grad_enabled(), tracer.subclasses.n_wrappers
    recorder, outer = tracer.recorder, tracer.recorder.function_answers
    if recorder.open_regions == 1:
        recorder.function_answers = []
    n_before = len(recorder.function_answers or ())
    set_grad_mode(False)
    try:
        setup = tracer.attributes.getattr(cls, "setup_context")
        separate = setup is not torch.autograd.Function.setup_context
        forward = tracer.attributes.getattr(cls, "forward")
        inputs = [*rest] if separate else [context, *rest]
        result = tracer.calls.call_value(forward, inputs, kwargs)
        if separate:
            tracer.calls.call_value(setup, [context, rest, result], {})
    finally:
        set_grad_mode(grad)
        answers, recorder.function_answers = recorder.function_answers or (), outer
    _unchanged(tracer, region)
    wrapped = tracer.subclasses.n_wrappers > created or any(map(torch_private.is_subclass, rest))
    if wrapped and not grad and not any(result is item for item in rest):
        region.keep()
        return result  # without gradients the function is its forward
    inside = region.drop()
    tracer.native_calls.native_reads(*rest, *kwargs.values())
    fixed = {i: value for i, value in enumerate(rest) if _is_fixed(tracer, value)}
    fixed |= _made_anew(tracer, {i: value for i, value in enumerate(rest) if i not in fixed})
    others = tuple(value for i, value in enumerate(rest) if i not in fixed)
    call = FunctionCall(cls, inside, fixed, tuple(answers[n_before:]))
    with _Fakes(tracer.recorder):
        if wrapped:
            return tracer.subclasses.node(call, others, kwargs)
        return tracer.recorder.call(call, others, kwargs)


def _made_anew(tracer: Tracer, arguments: dict[int, Any]) -> dict[int, Anew]:
    """Returns those arguments that are functions, classes or new objects without tensors, alike in
    every call."""
    result = {}
    for position, value in arguments.items():
        kind = type(value)
        simple = kind in SIMPLE_TYPES or isinstance(value, (torch.Tensor, *CONTAINERS))
        known = tracer.provenance.is_fresh(value) or isinstance(value, CODE)
        if known and not simple and kind not in SYMBOLS:
            make = maker(tracer, value)
            if make is not None:
                result[position] = Anew(make)
    return result


def _is_fixed(tracer: Tracer, value: Any) -> bool:
    """Returns whether an argument is an object that is the same in all calls of the entry."""
    frozen = getattr(getattr(type(value), "__dataclass_params__", None), "frozen", False)
    known = isinstance(value, torch.nn.Module) or frozen
    if known and not tracer.provenance.is_fresh(value):
        identity(tracer, value)
        return True
    if isinstance(value, tuple) and type(value) is not tuple:  # a graph would take a plain tuple
        return not any(map(_varies, pytree.tree_leaves(value)))
    return isinstance(value, enum.Enum) and not isinstance(value, (int, str, float))


def _varies(value: Any) -> bool:
    """Returns whether a part of an argument may be another one in each call of the entry."""
    return isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool))


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
    return _rebuilt(flat, structure, results)


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


# -- torch.func --


def transform(
    tracer: Tracer,
    title: str,
    apply: Callable[..., Any],
    function: Any,
    args: Any,
    kwargs: Any,
) -> Any:
    """Calls apply(function, *args, **kwargs), with the function interpreted inside the transform."""
    return transformed(tracer, title, apply, function, args, kwargs)[0]


def transformed(
    tracer: Tracer,
    title: str,
    apply: Callable[..., Any],
    function: Any,
    args: Any,
    kwargs: Any,
) -> tuple[Any, TransformCall, list[Any]]:
    """Does the work of `transform`; also returns the target of the node and the outer values that
    its graph reads."""
    recorder = tracer.recorder
    tracer.native_calls.native_reads(*args, *kwargs.values())
    leaves, structure = pytree.tree_flatten((tuple(args), kwargs))
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor) and not is_constant(leaf):
            tracer.break_graph(
                "higher_order", f"{title}() of a function with a {type(leaf).__name__} as argument"
            )
    fakes = [recorder.as_fake(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    region = region_of(tracer, f"{title}()")
    match: list[Any] = []

    def run(*parts: Any, **named: Any) -> Any:
        if match:
            tracer.break_graph("higher_order", f"{title}() calls its function more than once")
        for leaf in pytree.tree_leaves((parts, named)):
            if isinstance(leaf, torch.Tensor):
                region.operand(leaf)
        match.extend(traced(tracer, region, function, list(parts), named))
        _, _, flat, result = match
        return pytree.tree_unflatten(flat, result)

    fake_args, fake_kwargs = pytree.tree_unflatten(fakes, structure)
    with recorder.fakes.mode:
        full = apply(run, *fake_args, **fake_kwargs)
    if not match:
        tracer.break_graph("higher_order", f"{title}() does not call its function")
    graph, outer, flat, result = match
    constants = {i: leaf for i, leaf in enumerate(flat) if not isinstance(leaf, torch.Tensor)}
    inputs = [TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    target = TransformCall(title, apply, graph, len(outer), result, constants, structure, inputs)
    tensors = [fake for fake in fakes if isinstance(fake, torch.Tensor)]
    results = recorder.call(target, (*outer, *tensors), {})
    return _rebuilt(*pytree.tree_flatten(full), results), target, outer


#: What each transform of torch.func calls with its function and its arguments, once these are
#: checked.
_VMAP, _GRAD = "_functorch.vmap.vmap_impl", "_functorch.eager_transforms.grad_impl"
_GRAD_AND_VALUE = "_functorch.eager_transforms.grad_and_value_impl"


@special(*names(_VMAP), atomic=True)
def vmap(
    tracer: Tracer,
    function: Any,
    in_dims: Any,
    out_dims: Any,
    randomness: Any,
    chunk_size: Any,
    /,
    *rest: Any,
    **kwargs: Any,
) -> Any:
    if chunk_size is not None and (randomness != "error" or type(chunk_size) is not int):
        tracer.break_graph("higher_order", "vmap() with randomness= and chunk_size=")
    if chunk_size is not None and chunk_size < 1:
        tracer.break_graph("higher_order", f"vmap() with chunk_size={chunk_size}")

    # chunks bound the memory of the call; the result is the same
    def apply(run: Any, *parts: Any, **named: Any) -> Any:
        return name(_VMAP)(run, in_dims, out_dims, randomness, None, *parts, **named)

    return transform(tracer, "vmap", apply, function, rest, kwargs)


@special_rows(
    {
        implementation: (title, implementation)
        for title, path in (("grad", _GRAD), ("grad_and_value", _GRAD_AND_VALUE))
        for implementation in names(path)
    },
    atomic=True,
)
def grad(
    tracer: Tracer,
    title: str,
    implementation: Any,
    function: Any,
    argnums: Any,
    has_aux: Any,
    args: Any,
    kwargs: Any,
) -> Any:
    def apply(run: Any, *parts: Any, **named: Any) -> Any:
        return implementation(run, argnums, has_aux, parts, named)

    args, kwargs = tracer.containers.spread(args), tracer.containers.mapping(kwargs)
    return transform(tracer, title, apply, function, args, kwargs)


class Transform:
    """A torch.func.jacrev(function, ...) or the like that was made in a trace but not yet called."""

    def __init__(self, maker: Any, function: Any, args: Any, kwargs: dict[str, Any]) -> None:
        self.maker, self.function, self.args, self.kwargs = maker, function, args, kwargs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.maker(self.function, *self.args, **self.kwargs)(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _make, (self.maker, self.function, self.args, self.kwargs)


def _make(maker: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return maker(function, *args, **kwargs)


@special_each(*names("jacrev jacfwd hessian", of="func"))
def maketransform(tracer: Tracer, maker: Any, func: Any, *args: Any, **kwargs: Any) -> Transform:
    tracer.native_calls.native_reads(*args, *kwargs.values())
    return Transform(maker, func, args, kwargs)


@special(Transform.__call__, atomic=True)
def call_transform(tracer: Tracer, pending: Transform, /, *args: Any, **kwargs: Any) -> Any:
    def apply(run: Any, *parts: Any, **named: Any) -> Any:
        return _make(pending.maker, run, pending.args, pending.kwargs)(*parts, **named)

    return transform(tracer, pending.maker.__name__, apply, pending.function, args, kwargs)


@special(*names("func.jvp"), atomic=True)
def jvp(tracer: Tracer, func: Any, primals: Any, tangents: Any, **options: Any) -> Any:
    def apply(run: Any, primals: Any, tangents: Any) -> Any:
        return torch.func.jvp(run, primals, tangents, **options)

    return transform(tracer, "jvp", apply, func, [primals, tangents], {})


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
    return _rebuilt(flat, structure, results)


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
    return _rebuilt(results, structure, recorder.call(target, (*outer, *body_outer, *fakes), {}))


def _nested_region(tracer: Tracer, region: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Inlines a `torch.compiler.nested_compile_region`: equal parts of a graph are compiled once."""
    function = tracer.attributes.getattr(region, MARKED_REGION)
    return tracer.calls.prepare(function, args, kwargs)


CALLED_CODES |= dict.fromkeys(code_inside("compiler.nested_compile_region"), _nested_region)

breaks("higher_order", "it runs eagerly, with its own functions", [
    *names("func.functionalize"),
])  # fmt: skip
