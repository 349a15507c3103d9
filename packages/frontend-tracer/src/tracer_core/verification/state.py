"""Finds, saves and restores what calls of a program read and change besides their arguments.

In: a function, method or module and the arguments of a call. Out: `ProgramState`: modules,
optimizers and tensors that are reached through closures, globals that the code names, bound objects
and containers, and the states of random generators. What always holds: after `restore` tensors,
gradients, attributes and dictionaries are as they were (lists are not restored); a tensor that did
not change is not written to.
"""

from __future__ import annotations

import contextlib
import inspect
import random
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from tracer_core.aot.first_call import rng_states, set_rng_states
from tracer_core.autoselect.sample import with_memory
from tracer_core.torch_private.needed import pytree


def is_rounded(dtype: torch.dtype) -> bool:
    """Returns whether numbers of a dtype are rounded."""
    return dtype.is_floating_point or dtype.is_complex


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor detached, and in double precision if it is rounded."""
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    return tensor.detach().to(wide) if is_rounded(tensor.dtype) else tensor.detach()


def copied(values: Any, wide: bool = False) -> Any:
    """Returns a structure with copies of its tensors, leaves of autograd that share memory as they
    do. wide: in double precision."""
    storages: dict[int, torch.UntypedStorage] = {}
    copies: dict[int, torch.Tensor] = {}

    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in copies:
            if type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided:
                result = with_memory(value, storages)
            else:
                result = value.detach().clone()
            result = widened(result) if wide else result
            copies[id(value)] = result.requires_grad_(value.requires_grad)
        return copies[id(value)]

    return pytree.tree_map(copy, values)


class ProgramState:
    """What a program reads and changes. Mutable: `restore` gives it its first values."""

    def __init__(self, root: Any, arguments: Any) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._visited: dict[int, Any] = {}
        self._dicts: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._visit(root, "", None)
        self._visit(arguments, "args", None, is_argument=True)
        items = {
            k: v
            for k, v in self.tensors.items()
            if v.layout is torch.strided and not v.is_inference()
        }
        self._values = {name: (item.data, item.detach().clone()) for name, item in items.items()}
        gradients = {name: item.grad for name, item in items.items() if item.is_leaf}
        self._gradients = {
            k: v if v is None else (v, v.detach().clone()) for k, v in gradients.items()
        }
        self._rng = rng_states(), random.getstate()

    def restore(self) -> None:
        """Gives everything its first values, and random generators their first states."""
        set_rng_states(self._rng[0])
        random.setstate(self._rng[1])
        for current, before in self._dicts:
            if _identities(current) != _identities(before):
                current.clear()
                current.update(before)
        for name, (data, values) in self._values.items():
            tensor = self.tensors[name]
            if tensor.dtype is not data.dtype:
                tensor.grad = None
                tensor.data = data
            _write(tensor, values)
        for name, gradient in self._gradients.items():
            self.tensors[name].grad = None if gradient is None else gradient[0]
            if gradient is not None:
                _write(*gradient)

    @contextlib.contextmanager
    def in_double_precision(self) -> Iterator[None]:
        """Context in which the tensors, and new ones, are float64. `restore` undoes the first."""
        default = torch.get_default_dtype()
        for tensor in (self.tensors[name] for name in self._values):
            gradient, tensor.grad = tensor.grad if tensor.is_leaf else None, None
            tensor.data = widened(tensor)
            tensor.grad = None if gradient is None else widened(gradient)
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(default)

    def changed(self) -> dict[str, Any]:
        """Returns copies of the tensors and gradients that differ from their first values."""
        result = {}
        for name, (_, values) in self._values.items():
            tensor = self.tensors[name]
            if not equal(tensor, values):
                result[f"{name} afterwards"] = tensor.detach().clone()
            gradient, before = tensor.grad if tensor.is_leaf else None, self._gradients.get(name)
            if gradient is not None and (before is None or not equal(gradient, before[1])):
                result[f"gradient of {name}"] = gradient.detach().clone()
        return result

    def rng_moved(self) -> bool:
        """Returns whether a generator of torch has another state than at the beginning."""
        return any(not torch.equal(a, b) for a, b in zip(rng_states(), self._rng[0], strict=True))

    def _visit(self, value: Any, name: str, space: Any, is_argument: bool = False) -> None:
        """Notes what is reached from an object. space: the globals of the program's own functions."""
        if id(value) in self._visited or isinstance(
            value, (str, int, float, types.ModuleType, type)
        ):
            return
        self._visited[id(value)] = value
        parts: Iterable[tuple[str, Any]] = ()
        if isinstance(value, torch.Tensor) and not is_argument:  # those are copied
            self.tensors[f"{name} ({len(self.tensors)})" if name in self.tensors else name] = value
        elif isinstance(value, torch.nn.Module):
            modules = dict(value.named_modules(prefix=name))
            held: list[dict[Any, Any]] = []
            for module in modules.values():
                held += [module.__dict__, module._parameters, module._buffers]
            self._dicts += [(item, dict(item)) for item in held]
            parts = [*value.named_parameters(prefix=name), *value.named_buffers(prefix=name)]
        elif isinstance(value, types.MethodType):
            parts = [(name, value.__self__), (name, value.__func__)]
        elif isinstance(value, types.FunctionType):
            if space is None or value.__globals__ is space:  # not the functions of libraries
                space, names = value.__globals__, inspect.getclosurevars(value)
                parts = {**names.nonlocals, **names.globals}.items()
                # modules first: their names of parameters are better than an optimizer's
                parts = sorted(parts, key=lambda part: not isinstance(part[1], torch.nn.Module))
        elif isinstance(value, dict):
            self._dicts += [] if is_argument else [(value, dict(value))]
            keys = [repr(key) if isinstance(key, str) else at for at, key in enumerate(value)]
            parts = [
                (f"{name}[{key}]", item) for key, item in zip(keys, value.values(), strict=True)
            ]
        elif isinstance(value, (list, tuple)):
            parts = [(f"{name}[{at}]", item) for at, item in enumerate(value)]
        elif isinstance(getattr(value, "__dict__", None), dict) and (
            not callable(value) or not name
        ):
            parts, is_argument = [(name, vars(value))], False
        for key, item in list(parts):
            self._visit(item, key, space, is_argument)


def equal(tensor: torch.Tensor, values: torch.Tensor) -> bool:
    """Returns whether values are equal, in the precision of the first tensor."""
    return tensor.shape == values.shape and torch.equal(
        tensor.detach(), values.detach().to(tensor.dtype)
    )


def _identities(items: dict[Any, Any]) -> list[tuple[int, int]]:
    return [(id(key), id(value)) for key, value in items.items()]


def _write(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Writes values; not where they are there: that would be a change to what follows versions."""
    if not equal(tensor, values):
        tensor.detach().copy_(values)
