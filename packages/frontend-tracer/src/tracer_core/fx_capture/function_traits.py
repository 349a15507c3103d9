"""Properties of torch functions that follow from name and schema, and their FX call targets."""

from __future__ import annotations

import functools
import math
import operator
import types
from typing import Any

import torch

from tracer_core.ops.calls import AUGMENTED, KEYWORD_OPERATORS
from tracer_core.ops.factories import SIZED, sized
from tracer_core.torch_private.names import names
from tracer_core.torch_private.needed import OpOverload, TensorBase

#: Python operators that mutate their first operand.
WRITING_OPERATORS = frozenset(getattr(operator, name) for name in ("setitem", *AUGMENTED))
#: Dtypes that kernels do not promote.
NOT_PROMOTED = frozenset(names("uint16 uint32 uint64"))
#: Functions that return nothing but must stay in the graph.
EFFECT_ONLY = frozenset({"register_hook", "_assert", "_assert_async", "_check"})
_ELEMENTWISE = frozenset(
    {"add", "sub", "mul", "div", "iadd", "isub", "imul", "itruediv", "truediv", "addcmul",
     "addcdiv", "lerp", "pow", "ipow", "clamp", "fill", "rsub", "radd", "rmul", "rtruediv", "rdiv",
     "tensor", "as_tensor"}
)  # fmt: skip
#: Operators that Tensor defines in Python, which have no name of their own -> its method.
_SLOTS: dict[Any, str] = {
    function: name
    for name, function in vars(torch.Tensor).items()
    if type(function) is types.FunctionType and name.startswith("__")
}
SUBSCRIPTS = frozenset({operator.getitem, *names("Tensor.__getitem__")})
#: Subscripts that are read or written.
INDEXING = SUBSCRIPTS | {operator.setitem, *names("Tensor.__setitem__")}
_NEW, _TYPE = frozenset(names("Tensor.new")), frozenset(names("Tensor.type"))
_TORCHS = ("aten", "prims")
_OF_NUMBERS = frozenset(names("tensor as_tensor"))


def name_of(func: Any) -> str:
    """Returns a function's name for messages."""
    return getattr(func, "__qualname__", None) or getattr(func, "__name__", None) or str(func)


def receiver_of(func: Any, args: tuple[Any, ...]) -> Any:
    """Returns the tensor whose method is called: of a bound method its own, else the first
    argument.
    """
    receiver = getattr(func, "__self__", None)
    return receiver if isinstance(receiver, torch.Tensor) else next(iter(args), None)


def operator_name(func: Any) -> str:
    """Returns the name by which tables of torch's operators know a function: empty for an operator
    of another library, whose name may be that of one of torch's."""
    if isinstance(func, OpOverload):
        return func.overloadpacket.__name__ if func.namespace in _TORCHS else ""
    return getattr(func, "__name__", "")


def target_of(func: Any, args: Any) -> tuple[str, Any, Any]:
    """Returns (op, target, args) of the node for a torch function."""
    name = getattr(func, "__name__", "")
    owner = getattr(func, "__self__", None)
    if name == "__get__" and owner is not None and hasattr(owner, "__name__"):
        return "call_function", getattr, (args[0], owner.__name__)
    if getattr(torch.Tensor, name, None) is func or getattr(TensorBase, name, None) is func:
        return "call_method", name, args
    if func in _SLOTS:
        return "call_method", _SLOTS[func], args
    if func is operator.pow and isinstance(args[0], (int, float)) and math.copysign(1, args[0]) < 0:
        # FX writes operators without parentheses: -1 ** x would be -(1 ** x).
        return "call_function", torch.pow, args
    return "call_function", func, args


def writes_unseen(func: Any) -> bool:
    """Returns whether a function that bumped no version declares a write by its name or schema."""
    if isinstance(func, OpOverload):
        return func._schema.is_mutable
    name = getattr(func, "__name__", "")
    return (
        isinstance(func, types.BuiltinFunctionType)
        and name.endswith("_")
        and not name.endswith("__")
        and func not in KEYWORD_OPERATORS
    )


@functools.cache
def written_arguments(func: Any) -> frozenset[tuple[int, str]] | None:
    """Returns (position, name) of the arguments that a function that `writes_unseen` mutates by the
    schemas of its overloads, or None where these say different things or there are none."""
    if isinstance(func, OpOverload):
        overloads = [func]
    else:
        packet = getattr(torch.ops.aten, func.__name__, None)
        names = packet.overloads() if packet is not None else []
        overloads = [getattr(packet, name) for name in names if not name.endswith("out")]
    result = {
        frozenset(
            (position, argument.name)
            for position, argument in enumerate(overload._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        )
        for overload in overloads
    }
    return result.pop() if len(result) == 1 else None


def is_blind(func: Any) -> bool:
    """Returns whether an operator's sizes and dtype are independent of its float argument."""
    name = operator_name(func)
    return name.startswith(("_foreach_", "_fused_")) or name.strip("_") in _ELEMENTWISE


#: Reductions of booleans whose fakes fail for symbolic sizes -> the operator with the same result.
_PLAIN = {
    name: getattr(torch, kind)
    for kind in ("all", "any")
    for name in names(f"_is_{kind}_true ops.aten._is_{kind}_true.default")
}


def recordable(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Rewrites a call so that it specializes no symbolic scalar, and as one that a graph can
    hold."""
    if func in _OF_NUMBERS and len(args) == 1 and type(args[0]) in (torch.SymInt, torch.SymFloat):
        if kwargs.keys() <= {"dtype", "device"}:
            usual = torch.int64 if type(args[0]) is torch.SymInt else torch.get_default_dtype()
            return torch.scalar_tensor, args, {**kwargs, "dtype": kwargs.get("dtype") or usual}
    if func in SUBSCRIPTS and len(args) == 2 and type(args[1]) is torch.SymInt and not kwargs:
        return torch.Tensor.select, (args[0], 0, args[1]), kwargs
    if func in _NEW and len(args) == 2 and isinstance(args[1], torch.Size):
        return torch.Tensor.new_empty, args, kwargs  # a tuple, as a graph has it, is data
    if func in _TYPE and len(args) == 2 and type(args[1]) is type(torch.FloatTensor):
        return func, (args[0], f"{args[1].__module__}.{args[1].__name__}"), kwargs
    if func in SIZED and (call := sized(func, args, kwargs)) is not None:
        return call
    if func in _PLAIN and all(arg.dtype is torch.bool for arg in args):
        func = _PLAIN[func]
    return func, args, kwargs
