"""One line of the support matrix.

In: nothing. Out: `Row` and its statuses. What always holds: what is not ``ok`` has a detail.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any

import torch

#: What may come of a case, and what it means.
STATUSES = {
    "ok": "the backend ran it all, and results, strides, sharing of memory and writes are eager's",
    "partly": "right; some operators ran eagerly, as the backend asked",
    "eager": "right; all of it ran eagerly",
    "not declared": "the backend does not say that it can",
    "wrong": "not what eager gives",
    "error": "raised where eager does not",
}

#: Those that a conforming backend has none of.
BAD = frozenset({"wrong", "error"})


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one case. dtype and shape: of its first input; None and () for whole programs.
    area: ``operators``, ``strides``, ... detail: why it is not ``ok``. refused: (operator, reason)
    of those that ran eagerly."""

    case: str
    dtype: torch.dtype | None
    shape: tuple[int, ...]
    status: str
    detail: str = ""
    area: str = "operators"
    refused: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "area": self.area, "case": self.case,
            "dtype": None if self.dtype is None else dtype_name(self.dtype),
            "shape": list(self.shape), "status": self.status, "detail": self.detail,
            "refused": [list(item) for item in self.refused],
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Row:
        """What `to_json` made. Raises KeyError and AttributeError for something else."""
        dtype = None if data["dtype"] is None else getattr(torch, data["dtype"])
        refused = tuple((operator, reason) for operator, reason in data["refused"])
        return cls(
            data["case"],
            dtype,
            tuple(data["shape"]),
            data["status"],
            data["detail"],
            data["area"],
            refused,
        )


def error_text(error: Exception) -> str:
    """The detail of a row whose case raised: a line, then the traceback for the backend's
    author.
    """
    return f"{type(error).__name__}: {error}\n{''.join(traceback.format_exception(error))}"


def dtype_name(dtype: torch.dtype) -> str:
    """``float32``"""
    return str(dtype).removeprefix("torch.")
