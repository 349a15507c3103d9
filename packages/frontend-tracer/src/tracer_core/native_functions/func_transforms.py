"""Transforms of torch.func (vmap, grad, jacrev, jvp) become one node each.

The function is interpreted inside the transform, so that what it reads is guarded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tracer_core.fx_capture.higher_order_calls import TENSOR, TransformCall
from tracer_core.guards.value_kinds import is_constant
from tracer_core.native_effects.effects import (
    CALLED_CODES,
    special,
    special_each,
    special_rows,
)
from tracer_core.native_functions.higher_order import rebuilt, region_of, traced
from tracer_core.torch_private.names import name, names
from tracer_core.torch_private.needed import pytree
from tracer_core.trace.tracer import Tracer


def transformed(
    tracer: Tracer, title: str, apply: Callable[..., Any], function: Any, args: Any, kwargs: Any
) -> tuple[Any, TransformCall, list[Any]]:
    """Calls apply(function, *args, **kwargs), with the function interpreted inside the transform.
    Also returns the target of the node and the outer values that its graph reads."""
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
        match.extend(traced(tracer, region, function, list(parts), named, prints=True))
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
    return rebuilt(*pytree.tree_flatten(full), results), target, outer


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

    return transformed(tracer, "vmap", apply, function, rest, kwargs)[0]


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
    return transformed(tracer, title, apply, function, args, kwargs)[0]


class Transform:
    """A torch.func.jacrev(function, ...) or the like of the trace, not yet called."""

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

    return transformed(tracer, pending.maker.__name__, apply, pending.function, args, kwargs)[0]


def _from_before(maker: Any) -> Callable[..., Any]:
    """Returns what calls a transform from before the trace, as one of the trace."""

    def call(tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        cells = tracer.names.cells_of(function)
        held = dict(zip(function.__code__.co_freevars, cells, strict=True))
        options = {
            key: tracer.names.cell_contents(held[key])
            for key in ("argnums", "has_aux", "chunk_size", "randomness")
            if key in held
        }
        inner = tracer.names.cell_contents(held["func"])
        pending = Transform(maker, inner, (), options)
        return call_transform(tracer, pending, *args, **kwargs)

    return call


for _maker in names("jacrev jacfwd", of="func"):
    CALLED_CODES[_maker(len).__code__] = _from_before(_maker)


@special(*names("func.jvp"), atomic=True)
def jvp(tracer: Tracer, func: Any, primals: Any, tangents: Any, **options: Any) -> Any:
    def apply(run: Any, primals: Any, tangents: Any) -> Any:
        return torch.func.jvp(run, primals, tangents, **options)

    return transformed(tracer, "jvp", apply, func, [primals, tangents], {})[0]
