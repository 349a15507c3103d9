"""The generated text of a kernel and its arguments."""

from __future__ import annotations

from dataclasses import dataclass

from inductor_backend.ir.index_expr import Expr


@dataclass(frozen=True, slots=True)
class KernelSource:
    """text: the functions, with `@NAME@` for the name. pointers: storages, in argument order.
    sizes: the int64 arguments that follow. label: for the name. written: places of those pointers
    that it writes to. fails: whether it may report an error. reusable: (place of a pointer that is
    written, places of those that are only read, at the same points). headers: of the prelude, that
    the text needs beside `prelude.h`."""

    text: str
    pointers: tuple[str, ...]
    sizes: tuple[Expr, ...]
    label: str
    written: tuple[int, ...] = ()
    fails: bool = False
    reusable: tuple[tuple[int, tuple[int, ...]], ...] = ()
    headers: frozenset[str] = frozenset()
