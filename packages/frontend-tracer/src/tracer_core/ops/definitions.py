"""Defines operators of our own in the namespace ``tracer_core``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

_LIBRARY = torch.library.Library("tracer_core", "FRAGMENT")


def declare(schema: str, tags: Sequence[torch.Tag] = ()) -> Any:
    """Adds an operator and returns its overload; `implement` gives it kernels. schema: as torch writes
    it, ``name(Tensor x) -> Tensor``."""
    _LIBRARY.define(schema, tags=tuple(tags))
    return getattr(torch.ops.tracer_core, schema.partition("(")[0]).default


def implement(overload: Any, kernel: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Gives an operator its kernel for all devices, below autograd, and the one for fake tensors."""
    name = overload.name()
    _LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(name, fake, lib=_LIBRARY)
