"""torch.func.vjp and linearize: the value is computed where they are called; a function that they
return becomes, where it is called, a node that computes its derivative from the start, by the graph
that was traced for the value. One that leaves the trace is made of that graph and the tensors that
it reads, and does the same in eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from tracer_core.fx_capture.higher_order_calls import TENSOR, TransformCall, may_use_rng
from tracer_core.graph_breaks import Restart
from tracer_core.native_effects.effects import special, special_each
from tracer_core.native_functions.func_transforms import transformed
from tracer_core.torch_private.names import names
from tracer_core.torch_private.needed import pytree
from tracer_core.trace.tracer import Tracer


class Derivative:
    """A function that torch.func.vjp or linearize returns, made in a trace at a step. versions: of
    the fakes of the tensors that it reads, which it computes from anew."""

    def __init__(
        self,
        step: int,
        versions: list[tuple[torch.Tensor, int]],
        target: TransformCall,
        outer: list[Any],
        primals: tuple[Any, ...],
    ) -> None:
        self.step, self.versions = step, versions
        self.target, self.outer, self.primals = target, outer, primals

    def require_unchanged(self) -> None:
        """Ends the graph before the function is made, where what it reads was written to since."""
        if any(fake._version != version for fake, version in self.versions):
            reason = "a tensor that a function of vjp or linearize reads is written to"
            raise Restart(self.step, "higher_order", reason)

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.require_unchanged()
        return self.outside(), (tuple(self.outer), self.primals)

    def outside(self) -> Outside:
        """Returns what makes the function that leaves the trace."""
        raise NotImplementedError

    def leave(self) -> NoReturn:
        """Ends the graph before the function is made."""
        raise Restart(self.step, "higher_order", "C code calls a function of vjp or linearize")


class Pullback(Derivative):
    """has_aux: whether the function also returns what is not differentiated."""

    def __init__(self, has_aux: bool, *parts: Any) -> None:
        super().__init__(*parts)
        self.has_aux = has_aux

    def __call__(self, *cotangents: Any) -> Any:
        self.leave()  # traced calls are `pull`

    def outside(self) -> Outside:
        return OutsidePullback(self.target, self.has_aux)


class Pushforward(Derivative):
    """No gradient reaches the primals through it."""

    def __call__(self, *tangents: Any) -> Any:
        self.leave()  # traced calls are `push`

    def outside(self) -> Outside:
        return OutsidePushforward(self.target)


class Outside:
    """Makes the function that a trace returns, of the tensors that it reads: (outer, primals)."""

    def __init__(self, target: TransformCall) -> None:
        self.target = target

    def __call__(self, outer: tuple[Any, ...], primals: tuple[Any, ...]) -> Callable[..., Any]:
        read = [leaf for leaf in pytree.tree_leaves((outer, primals)) if _is_tensor(leaf)]
        versions = [(item, item._version) for item in read if not item.is_inference()]

        def run(*parts: Any) -> Any:
            if any(item._version != version for item, version in versions):
                raise RuntimeError(
                    "a function of torch.func.vjp or linearize needs a tensor that has been modified"
                    " by an in-place operation since"
                )
            return self.target.on(outer, parts)

        return self.function_of(run, primals)

    def function_of(self, run: Callable[..., Any], primals: tuple[Any, ...]) -> Callable[..., Any]:
        raise NotImplementedError


class OutsidePullback(Outside):
    def __init__(self, target: TransformCall, has_aux: bool) -> None:
        super().__init__(target)
        self.has_aux = has_aux

    def function_of(self, run: Callable[..., Any], primals: tuple[Any, ...]) -> Callable[..., Any]:
        def vjp_fn(*cotangents: Any, **options: Any) -> Any:
            return torch.func.vjp(run, *primals, has_aux=self.has_aux)[1](*cotangents, **options)

        vjp_fn.__qualname__ = "_vjp_with_argnums.<locals>.wrapper"
        return vjp_fn


class OutsidePushforward(Outside):
    def function_of(self, run: Callable[..., Any], primals: tuple[Any, ...]) -> Callable[..., Any]:
        def jvp_fn(*tangents: Any) -> Any:
            constants = pytree.tree_map(torch.Tensor.detach, primals)
            return torch.func.jvp(run, constants, tangents)[1]

        jvp_fn.__qualname__ = "linearize.<locals>.jvp_fn"
        return jvp_fn


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _value(tracer: Tracer, title: str, function: Any, primals: tuple[Any, ...]) -> Any:
    """Returns the function's value, the versions of the tensors that it reads, the target of its
    node and the outer values among these."""

    def apply(run: Any, *parts: Any) -> Any:
        # others than the tensors of the outer graph, which would be read as closed over
        return run(*pytree.tree_map(lambda part: part.view_as(part), parts))

    if not all(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(primals)):
        tracer.break_graph("higher_order", f"{title}() at what is no tensor")
    value, target, outer = transformed(tracer, title, apply, function, primals, {})
    if may_use_rng(target.graph):
        tracer.break_graph("higher_order", f"{title}() of a function that uses random numbers")
    read = [
        item for item in (*outer, *pytree.tree_leaves(primals)) if isinstance(item, torch.Tensor)
    ]
    fakes = [tracer.recorder.as_fake(item) for item in read]
    return value, [(fake, fake._version) for fake in fakes], target, outer


def _differentiated(
    tracer: Tracer, title: str, derivative: Derivative, apply: Callable[..., Any], value: Any
) -> Any:
    """Puts apply(function, *primals, *given) into the graph; returns its tensors."""
    derivative.require_unchanged()
    tracer.native_calls.native_reads(*value)
    leaves, structure = pytree.tree_flatten(((*derivative.primals, *value), {}))
    if not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        tracer.break_graph("higher_order", f"{title} of what is no tensor")
    old = derivative.target
    parts = [old.graph, old.n_outer, old.result, old.constants, structure, [TENSOR] * len(leaves)]
    target = TransformCall(title, apply, *parts)
    return tracer.recorder.call(target, (*derivative.outer, *leaves), {})


@special(*names("func.vjp"), atomic=True)
def vjp(tracer: Tracer, func: Any, *primals: Any, has_aux: Any = False) -> Any:
    value, *parts = _value(tracer, "vjp", func, primals)
    pull = Pullback(bool(has_aux), tracer.outer_step, *parts, primals)
    return (value[0], pull, value[1]) if has_aux else (value, pull)


@special(Pullback.__call__, atomic=True)
def pull(tracer: Tracer, pullback: Pullback, /, *cotangents: Any) -> Any:
    count, has_aux = len(pullback.primals), pullback.has_aux

    def apply(run: Any, *parts: Any) -> Any:
        return torch.func.vjp(run, *parts[:count], has_aux=has_aux)[1](*parts[count:])

    result = _differentiated(tracer, "vjp", pullback, apply, cotangents)
    return pytree.tree_unflatten(list(result), pytree.tree_structure(pullback.primals))


@special_each(*names("func.linearize"))
def linearize(tracer: Tracer, _: Any, func: Any, *primals: Any) -> Any:
    value, versions, target, outer = _value(tracer, "linearize", func, primals)
    if any(isinstance(item, torch.Tensor) and item.requires_grad for item in outer):
        # a constant for the function that linearize returns, but not for the value
        tracer.break_graph("higher_order", "linearize() of a function that closes over gradients")
    return value, Pushforward(tracer.outer_step, versions, target, outer, primals)


@special(Pushforward.__call__, atomic=True)
def push(tracer: Tracer, pushforward: Pushforward, /, *tangents: Any) -> Any:
    count = len(pushforward.primals)

    def apply(run: Any, *parts: Any) -> Any:
        primals = pytree.tree_map(torch.Tensor.detach, parts[:count])
        return torch.func.jvp(run, primals, parts[count:])[1]

    result = _differentiated(tracer, "jvp", pushforward, apply, tangents)
    return pytree.tree_unflatten(list(result), pushforward.target.result)
