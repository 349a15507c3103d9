"""Collects the arguments of a kernel: pointers, then integers."""

from __future__ import annotations

from inductor_backend.ir.index_expr import Expr


class KernelArguments:
    """Arguments, added on first use. prefix: of the integers' names. cast: before literals."""

    def __init__(self, prefix: str, cast: str = "") -> None:
        self._prefix, self._cast = prefix, cast
        #: Storage or tensor -> name.
        self.pointers: dict[str, str] = {}
        #: Symbolic size, stride or offset -> name.
        self.sizes: dict[Expr, str] = {}

    @property
    def names(self) -> list[str]:
        return [*self.pointers.values(), *self.sizes.values()]

    def pointer(self, name: str) -> str:
        return self.pointers.setdefault(name, f"p{len(self.pointers)}")

    def size(self, expr: Expr) -> str:
        """Returns the text of a size, stride or offset: a literal where it is static."""
        if isinstance(expr, int):
            text = f"{self._cast}{expr}"
            return text if expr >= 0 else f"({text})"
        return self.sizes.setdefault(expr, f"{self._prefix}{len(self.sizes)}")
