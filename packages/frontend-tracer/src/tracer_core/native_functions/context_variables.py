"""Context variables.

torch's own are settings, which the graph sets. One of the program is read in the context of each
call, and set there again by each call.
"""

from __future__ import annotations

import contextvars
from typing import Any, NoReturn

from tracer_core.fx_capture.torch_contexts import VariableToken
from tracer_core.guards.value_kinds import is_constant
from tracer_core.native_effects.effects import special
from tracer_core.native_functions.torch_functions import read_setting
from tracer_core.torch_private import settings
from tracer_core.trace.attribute_lookup import ABSENT
from tracer_core.trace.attributes import Unset
from tracer_core.trace.guarded_calls import applied
from tracer_core.trace.tracer import Tracer

_VARIABLES = settings.VARIABLES
#: Key of a variable's change.
_VALUE = "value"


def _in_context(variable: Any) -> Any:
    return variable.get(Unset)


def _default(variable: Any) -> Any:
    return variable.get()


@special(contextvars.ContextVar.get)
def get(tracer: Tracer, variable: Any, default: Any = ABSENT, /) -> Any:
    if variable in _VARIABLES:
        return read_setting(tracer, _VARIABLES[variable])
    inputs = () if default is ABSENT else (default,)
    change = tracer.effects.attribute(variable, _VALUE)
    if (change is not None and change.moved) or tracer.provenance.is_fresh(variable):
        return variable.get(*inputs)
    value = applied(tracer, _in_context, variable, varies=True)
    if value is not Unset:
        return value
    if inputs:
        return default
    variable.get()  # may raise Python's own error
    return applied(tracer, _default, variable, varies=True)


@special(contextvars.ContextVar.set)
def put(tracer: Tracer, variable: Any, value: Any) -> Any:
    if variable in _VARIABLES:
        key = _VARIABLES[variable]
        if not is_constant(value):
            tracer.break_graph(
                "side_effect_native", f"a context variable is set to a {type(value).__name__}"
            )
        variable_token = VariableToken(key, read_setting(tracer, key))
        tracer.recorder.state_call(settings.put, (key, value), (key,), {})
        return variable_token
    if tracer.provenance.is_fresh(variable):
        tracer.break_graph("side_effect_native", "a context variable made here is set")
    change = tracer.side_effects.before_attribute(variable, _VALUE)
    token: contextvars.Token[Any] = variable.set(value)
    assert change is not None
    if not change.moved:  # its reset gives back what the call found
        change.moved, change.written[id(token)] = True, None
    if token.old_value is contextvars.Token.MISSING:
        change.added.append(token)  # the one way to unset the variable again
    tracer.native_calls.allocation_sites[id(token)] = (tracer.outer_step, token)
    return token


@special(contextvars.ContextVar.reset)
def reset(tracer: Tracer, variable: Any, token: Any) -> None:
    if variable in _VARIABLES:
        key = _VARIABLES[variable]
        if not isinstance(token, VariableToken) or token.name != key or not token.is_open:
            _refuse(tracer)
        tracer.recorder.state_call(settings.put, (key, token.before), (key,), {})
        token.is_open = False
        return
    change = tracer.effects.attribute(variable, _VALUE)
    known = type(token) is contextvars.Token and token.var is variable
    if change is None or not known or not tracer.provenance.is_fresh(token):
        _refuse(tracer)
    tracer.side_effects.mutations += 1
    variable.reset(token)
    change.moved = id(token) not in change.written
    if token.old_value is contextvars.Token.MISSING:
        change.added.remove(token)


def _refuse(tracer: Tracer) -> NoReturn:
    tracer.break_graph(
        "side_effect_native", "a context variable is reset to what it was before this segment"
    )
