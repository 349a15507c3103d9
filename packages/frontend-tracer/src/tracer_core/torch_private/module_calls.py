"""The entry of a module's ``__dict__`` that ``Module.__call__`` runs instead of its implementation."""

from __future__ import annotations

from typing import Any, Protocol, cast

from torch import nn


class _Implementation(Protocol):
    __name__: str
    __qualname__: str

    def __call__(self, module: nn.Module, /, *args: Any, **kwargs: Any) -> Any: ...


#: The entry's name.
SLOT = "_compiled_call_impl"
#: What ``Module.__call__`` runs where there is no entry: the hooks and ``forward``.
call_implementation = cast(_Implementation, nn.Module._call_impl)


def put_slot(kind: type) -> None:
    """Has an object of this class, a descriptor, answer for the entry of all modules."""
    if not isinstance(vars(nn.Module)[SLOT], kind):
        setattr(nn.Module, SLOT, kind())
