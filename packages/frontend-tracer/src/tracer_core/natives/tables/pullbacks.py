"""torch.func.vjp and linearize: the value is computed where they are called; a function that they
return becomes, where it is called, a node that computes its derivative from the start."""

from __future__ import annotations

from typing import Any

import torch

from tracer_core.natives.effects import special, special_each
from tracer_core.natives.tables.higher_order import transform
from tracer_core.torch_private.names import names
from tracer_core.torch_private.needed import pytree
from tracer_core.trace.tracer import Tracer


class Pullback:
    """The function that torch.func.vjp returns, made in a trace."""

    def __init__(self, function: Any, primals: tuple[Any, ...], has_aux: bool) -> None:
        self.function, self.primals, self.has_aux = function, primals, has_aux

    def __call__(self, *cotangents: Any, **options: Any) -> Any:
        made = torch.func.vjp(self.function, *self.primals, has_aux=self.has_aux)
        return made[1](*cotangents, **options)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Pullback, (self.function, self.primals, self.has_aux)


class Pushforward:
    """The function that torch.func.linearize returns, made in a trace: no gradient reaches the
    primals through it."""

    def __init__(self, function: Any, primals: tuple[Any, ...]) -> None:
        self.function, self.primals = function, primals

    def __call__(self, *tangents: Any) -> Any:
        primals = pytree.tree_map(_detached, self.primals)
        return torch.func.jvp(self.function, primals, tangents)[1]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Pushforward, (self.function, self.primals)


def _value(tracer: Tracer, function: Any, primals: tuple[Any, ...]) -> Any:
    def apply(run: Any, *parts: Any) -> Any:
        return run(*parts)

    return transform(tracer, "value", apply, function, primals, {}, draws=False)


@special(*names("func.vjp"), whole=True)
def vjp(tracer: Tracer, func: Any, *primals: Any, has_aux: Any = False) -> Any:
    value = _value(tracer, func, primals)
    pull = Pullback(func, primals, has_aux)
    return (value[0], pull, value[1]) if has_aux else (value, pull)


@special(Pullback.__call__, whole=True)
def pull(tracer: Tracer, made: Pullback, /, *cotangents: Any) -> Any:
    count = len(made.primals)

    def apply(run: Any, *parts: Any) -> Any:
        return torch.func.vjp(run, *parts[:count], has_aux=made.has_aux)[1](*parts[count:])

    given = (*made.primals, *cotangents)
    return transform(tracer, "vjp", apply, made.function, given, {}, draws=False)


@special_each(*names("func.linearize"))
def linearize(tracer: Tracer, _: Any, func: Any, *primals: Any) -> Any:
    return _value(tracer, func, primals), Pushforward(func, primals)


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


@special(Pushforward.__call__, whole=True)
def push(tracer: Tracer, made: Pushforward, /, *tangents: Any) -> Any:
    count = len(made.primals)

    def apply(run: Any, *parts: Any) -> Any:
        return torch.func.jvp(run, pytree.tree_map(_detached, parts[:count]), parts[count:])[1]

    given = (*made.primals, *tangents)
    return transform(tracer, "jvp", apply, made.function, given, {}, draws=False, closes=False)
