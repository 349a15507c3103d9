"""The generated text of a kernel and its arguments."""

from __future__ import annotations

from dataclasses import dataclass

from inductor_backend.ir.index_expr import Expr


@dataclass(frozen=True, slots=True)
class KernelText:
    """text: the functions, with `@NAME@` for the name. pointers: storages, in argument order.
    sizes: the int64 arguments that follow. label: goes into the name. written: positions of the
    mutated pointers. fails: the kernel may report an error.
    """

    text: str
    pointers: tuple[str, ...]
    sizes: tuple[Expr, ...]
    label: str
    written: tuple[int, ...] = ()
    fails: bool = False
