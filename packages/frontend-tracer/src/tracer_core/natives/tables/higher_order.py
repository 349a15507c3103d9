"""Higher-order operators: a call of autograd.Function.apply, checkpoint, a torch.func transform,
cond or while_loop becomes one node.

The function arguments are interpreted, so that what they read is guarded. If one breaks, or mutates
a pre-existing object, the graph breaks before the call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tracer_core import torch_private
from tracer_core.fx_capture.fx_recorder import Recorder
from tracer_core.fx_capture.graph_breaks import Break, Restart
from tracer_core.fx_capture.higher_order_calls import (
    TENSOR,
    CheckpointCall,
    CondCall,
    FunctionCall,
    HookCall,
    TransformCall,
    WhileCall,
)
from tracer_core.fx_capture.provenance import is_constant
from tracer_core.natives import polyfills
from tracer_core.natives.effects import breaks, special
from tracer_core.natives.tracing import Tracing
from tracer_core.torch_private.names import name, names
from tracer_core.torch_private.needed import pytree, set_grad_mode
from tracer_core.trace.higher_order import Region


def _node(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a handler that interprets function arguments. A break inside restarts the trace
    with a break before the call, so that the graph contains no part of it."""

    def register(handler: Callable[..., Any]) -> Callable[..., Any]:
        def call(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
            try:
                return handler(tracer, args, kwargs)
            except Break as error:
                raise Restart(tracer.outer_step, error.kind, error.reason) from None

        special(*functions)(call)
        return handler

    return register


def _region(tracer: Tracing, what: str) -> Region:
    return Region(tracer.recorder, tracer.effects, tracer.outer_step, what)


def _unchanged(tracer: Tracing, region: Region) -> None:
    changed = region.changed()
    if changed is not None:
        tracer.break_graph(
            "higher_order", f"{region.what} changes a {changed} that existed before it"
        )


def _traced(
    tracer: Tracing, region: Region, function: Any, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """Traces a function into its own graph: (graph, outer values, flat result, pytree spec)."""
    grad = torch.is_grad_enabled()
    result = tracer.calls.call_value(function, args, kwargs)
    _unchanged(tracer, region)
    if torch.is_grad_enabled() != grad:
        tracer.break_graph("higher_order", f"{region.what} leaves another grad mode")
    flat, structure = pytree.tree_flatten(result)
    flat = [
        tracer.recorder.as_fake(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in flat
    ]
    graph, outer = region.take([leaf for leaf in flat if isinstance(leaf, torch.Tensor)])
    return graph, outer, flat, structure


def _rebuilt(flat: list[Any], structure: Any, tensors: Any) -> Any:
    """Rebuilds a result with new tensors in place of the traced ones."""
    given = iter(tensors)
    return pytree.tree_unflatten(
        [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in flat], structure
    )


# -- autograd.Function --


class _Fakes(TorchFunctionMode):
    """Replaces tensors that a forward reads from outside by their fakes, when it runs on fakes."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(
            torch.Tensor, self.recorder.as_fake, (args, kwargs or {})
        )
        return func(*args, **kwargs)


class _Context(torch.autograd.function.FunctionCtx):
    """The ctx of a forward that is interpreted only for its guards."""


@_node(*names("autograd.Function.apply"))
def apply_function(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    cls, *rest = args
    if not (isinstance(cls, type) and issubclass(cls, torch.autograd.Function)):
        tracer.break_graph("higher_order", "apply() of what is no autograd.Function")
    what = f"{cls.__name__}.apply"
    if torch_private.transforms_active():
        tracer.break_graph("higher_order", f"{what} under a transform of torch.func")
    region = _region(tracer, what)
    context: Any = _Context()
    context.needs_input_grad = tuple(isinstance(a, torch.Tensor) and a.requires_grad for a in rest)
    grad = torch.is_grad_enabled()
    set_grad_mode(False)
    try:
        separate = (
            tracer.attributes.getattr(cls, "setup_context")
            is not torch.autograd.Function.setup_context
        )
        forward = tracer.attributes.getattr(cls, "forward")
        result = tracer.calls.call_value(forward, rest if separate else [context, *rest], kwargs)
        if separate:
            tracer.calls.call_value(
                tracer.attributes.getattr(cls, "setup_context"), [context, tuple(rest), result], {}
            )
    finally:
        set_grad_mode(grad)
    _unchanged(tracer, region)
    inside = region.drop()
    tracer.native_calls.native_reads(*rest, *kwargs.values())
    with _Fakes(tracer.recorder):
        return tracer.recorder.call(FunctionCall(cls, inside), tuple(rest), kwargs)


# -- hooks on tensors --


@_node(*names("Tensor.register_hook"))
def register_hook(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Records a hook that replaces the gradient of an intermediate tensor, run by a backward in the
    graph."""
    tensor, function = args[0], args[1] if len(args) > 1 else kwargs["hook"]
    if (
        torch_private.transforms_active()
        or not torch_private.is_fake(tensor)
        or not tensor.requires_grad
    ):
        tracer.break_graph("autograd_in_graph", "a hook is put on a tensor that existed before")
    frame = tracer.frames[-1]
    if frame.code.names[frame.ip] != "POP_TOP":
        tracer.break_graph("autograd_in_graph", "the handle of a hook on a tensor is kept")
    region = _region(tracer, "a hook of a tensor")
    grad = torch.is_grad_enabled()
    set_grad_mode(False)  # as in a backward without create_graph
    try:
        with tracer.recorder.fakes.mode:
            gradient = torch.empty_like(tensor)
        region.operand(gradient)
        graph, outer, flat, _ = _traced(tracer, region, function, [gradient], {})
    finally:
        set_grad_mode(grad)
    if any(node.meta.get("writes") for node in graph.graph.nodes):
        tracer.break_graph("autograd_in_graph", "a hook of a tensor writes to a tensor")
    if len(flat) != 1 or not (flat[0] is None or isinstance(flat[0], torch.Tensor)):
        tracer.break_graph("autograd_in_graph", "a hook of a tensor gives what is no tensor")
    if flat[0] is not None:
        tracer.recorder.run(HookCall(graph), (tensor, *outer), {})


# -- checkpoint --

_CHECKPOINT_OPTIONS = (
    "use_reentrant",
    "context_fn",
    "determinism_check",
    "debug",
    "preserve_rng_state",
    "early_stop",
)


@_node(*names("utils.checkpoint.checkpoint"))
def checkpoint(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    function, *rest = args
    options = {name: kwargs[name] for name in _CHECKPOINT_OPTIONS if name in kwargs}
    named = {name: value for name, value in kwargs.items() if name not in options}
    if not isinstance(options.get("use_reentrant"), bool):
        tracer.break_graph("higher_order", "checkpoint() without use_reentrant= warns")
    if "context_fn" in options or options.get("debug") or (named and options["use_reentrant"]):
        tracer.break_graph(
            "higher_order", "checkpoint() with context_fn=, debug=, or keywords and use_reentrant"
        )
    if not torch.is_grad_enabled():
        return tracer.calls.prepare(function, rest, named)  # no backward, so no recomputation
    region = _region(tracer, "checkpoint()")
    graph, outer, flat, structure = _traced(tracer, region, function, rest, named)
    given = {id(tracer.recorder.as_fake(a)) for a in rest if isinstance(a, torch.Tensor)}
    explicit = tuple(i for i, value in enumerate(outer) if id(value) in given)
    results = tracer.recorder.call(CheckpointCall(graph, explicit, options), tuple(outer), {})
    return _rebuilt(flat, structure, results)


# -- torch.func --


def _transform(
    tracer: Tracing, title: str, apply: Callable[..., Any], function: Any, args: Any, kwargs: Any
) -> Any:
    """Calls apply(function, *args, **kwargs), with the function interpreted inside the transform."""
    recorder = tracer.recorder
    tracer.native_calls.native_reads(*args, *kwargs.values())
    leaves, structure = pytree.tree_flatten((tuple(args), kwargs))
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor) and not is_constant(leaf):
            tracer.break_graph(
                "higher_order", f"{title}() of a function with a {type(leaf).__name__} as argument"
            )
    fakes = [recorder.as_fake(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    region = _region(tracer, f"{title}()")
    traced: list[Any] = []

    def run(*parts: Any, **named: Any) -> Any:
        if traced:
            tracer.break_graph("higher_order", f"{title}() calls its function more than once")
        for leaf in pytree.tree_leaves((parts, named)):
            if isinstance(leaf, torch.Tensor):
                region.operand(leaf)
        traced.extend(_traced(tracer, region, function, list(parts), named))
        _, _, flat, result = traced
        return pytree.tree_unflatten(flat, result)

    fake_args, fake_kwargs = pytree.tree_unflatten(fakes, structure)
    with recorder.fakes.mode:
        whole = apply(run, *fake_args, **fake_kwargs)
    if not traced:
        tracer.break_graph("higher_order", f"{title}() does not call its function")
    graph, outer, flat, result = traced
    constants = {i: leaf for i, leaf in enumerate(flat) if not isinstance(leaf, torch.Tensor)}
    given = [TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    target = TransformCall(title, apply, graph, len(outer), result, constants, structure, given)
    tensors = [fake for fake in fakes if isinstance(fake, torch.Tensor)]
    results = recorder.call(target, (*outer, *tensors), {})
    return _rebuilt(*pytree.tree_flatten(whole), results)


#: What each transform of torch.func calls with its function and its arguments, once these are
#: checked.
_VMAP, _GRAD = "_functorch.vmap.vmap_impl", "_functorch.eager_transforms.grad_impl"
_GRAD_AND_VALUE = "_functorch.eager_transforms.grad_and_value_impl"


@_node(*names(_VMAP))
def vmap(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    function, in_dims, out_dims, randomness, chunk_size, *rest = args
    if randomness != "error" or chunk_size is not None:
        tracer.break_graph("higher_order", "vmap() with randomness= or chunk_size=")

    def apply(run: Any, *parts: Any, **named: Any) -> Any:
        return name(_VMAP)(run, in_dims, out_dims, randomness, chunk_size, *parts, **named)

    return _transform(tracer, "vmap", apply, function, rest, kwargs)


def _grad(title: str, implementation: Any) -> Callable[..., Any]:
    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        function, argnums, has_aux, parts, named = args

        def apply(run: Any, *parts: Any, **named: Any) -> Any:
            return implementation(run, argnums, has_aux, parts, named)

        return _transform(
            tracer,
            title,
            apply,
            function,
            tracer.containers.spread(parts),
            tracer.containers.mapping(named),
        )

    return handler


for _title, _path in (("grad", _GRAD), ("grad_and_value", _GRAD_AND_VALUE)):
    _node(*names(_path))(_grad(_title, name(_path)))


class Transform:
    """A torch.func.jacrev(function, ...) or the like that was made in a trace but not yet called."""

    def __init__(
        self, maker: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.maker, self.function, self.args, self.kwargs = maker, function, args, kwargs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.maker(self.function, *self.args, **self.kwargs)(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _make, (self.maker, self.function, self.args, self.kwargs)


def _make(maker: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return maker(function, *args, **kwargs)


def _maker(maker: Any) -> Callable[..., Any]:
    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        tracer.native_calls.native_reads(*args[1:], *kwargs.values())
        return Transform(maker, args[0], tuple(args[1:]), kwargs)

    return handler


for _one in names("jacrev jacfwd hessian", of="func"):
    special(_one)(_maker(_one))


@_node(Transform.__call__)
def call_transform(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    self, *rest = args

    def apply(run: Any, *parts: Any, **named: Any) -> Any:
        return self.maker(run, *self.args, **self.kwargs)(*parts, **named)

    return _transform(tracer, self.maker.__name__, apply, self.function, rest, kwargs)


@_node(*names("func.jvp"))
def jvp(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    function, primals, tangents, *more = args
    options = dict(kwargs)
    if more:
        tracer.break_graph("higher_order", "jvp() with positional options")

    def apply(run: Any, primals: Any, tangents: Any) -> Any:
        return torch.func.jvp(run, primals, tangents, **options)

    return _transform(tracer, "jvp", apply, function, [primals, tangents], {})


# -- control flow --


@_node(*names("cond"))
def cond(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    predicate, if_true, if_false, *rest = args + [kwargs[n] for n in ("operands",) if n in kwargs]
    if not isinstance(predicate, torch.Tensor) or set(kwargs) - {"operands"}:
        tracer.break_graph("higher_order", "torch.cond() of a condition that is no tensor")
    operands = tracer.containers.spread(rest[0]) if rest else []
    sides = []
    for function in (if_true, if_false):
        sides.append(_traced(tracer, _region(tracer, "torch.cond()"), function, list(operands), {}))
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
    results = tracer.recorder.call(target, (predicate, *outer), {})
    return _rebuilt(flat, structure, results)


@special(*names("_higher_order_ops.associative_scan"))
def associative_scan(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Interprets the polyfill of a scan; breaks the graph for arguments that torch may reject."""
    given = inspect.signature(polyfills.associative_scan).bind(*args, **kwargs)
    given.apply_defaults()
    combine_fn, xs, dim, reverse, combine_mode = given.args
    leaves = pytree.tree_leaves(xs)
    if not (
        type(dim) is int
        and type(reverse) is bool
        and combine_mode in ("pointwise", "generic")
        and leaves
        and all(
            isinstance(leaf, torch.Tensor) and -leaf.ndim <= dim < leaf.ndim and leaf.shape[dim]
            for leaf in leaves
        )
    ):
        tracer.break_graph("higher_order", "associative_scan() of arguments that torch may refuse")
    return tracer.calls.prepare(
        polyfills.associative_scan,
        [combine_fn, xs, dim % leaves[0].ndim, reverse, combine_mode],
        {},
    )


@_node(*names("while_loop"))
def while_loop(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 3 or kwargs:
        tracer.break_graph("higher_order", "torch.while_loop() with keywords")
    condition, body, carried = args
    recorder, carried = tracer.recorder, tracer.containers.spread(carried)
    if not all(isinstance(value, torch.Tensor) for value in carried):
        tracer.break_graph("higher_order", "torch.while_loop() carries what is no tensor")
    fakes = [recorder.as_fake(value) for value in carried]
    sides = []
    for function in (condition, body):
        region = _region(tracer, "torch.while_loop()")
        with recorder.fakes.mode:
            inside = [fake.clone() for fake in fakes]
        for value in inside:
            region.operand(value)
        sides.append(_traced(tracer, region, function, inside, {}))
    (graph, outer, flat, _), (body_graph, body_outer, results, structure) = sides
    if len(flat) != 1 or not all(isinstance(leaf, torch.Tensor) for leaf in (*flat, *results)):
        tracer.break_graph("higher_order", "torch.while_loop() over what is no tensor")
    target = WhileCall(graph, body_graph, len(outer), len(body_outer))
    return _rebuilt(results, structure, recorder.call(target, (*outer, *body_outer, *fakes), {}))


breaks("higher_order", "it runs eagerly, with its own functions", [
    *names("flex_attention create_block_mask create_mask", of="nn.attention.flex_attention"),
    *names("vjp linearize functionalize", of="func"),
])  # fmt: skip
