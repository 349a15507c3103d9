"""What `tracer_core.verify` returns."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tracer_core.errors import WrongResultError


@dataclass(frozen=True, slots=True)
class VerificationRow:
    """One result, gradient or changed tensor."""

    #: ``output[0]``, ``gradient of weight``, ``running_mean afterwards``.
    name: str
    #: The dtype of eager's tensor; None for other objects.
    dtype: torch.dtype | None
    #: The largest relative error of an element; of integers and bools the share that differs.
    #: Elements below the root mean square of the tensor are taken relative to that.
    error: float
    #: Eager's own error. None: there is no float64 reference, `error` is the difference from eager.
    eager_error: float | None
    #: The largest error that passes.
    allowed: float
    #: Whether strides are eager's.
    strides_equal: bool
    ok: bool
    #: What is wrong, or why there is no float64 reference.
    detail: str = ""

    def __str__(self) -> str:
        beside = (
            "against eager" if self.eager_error is None else f"eager's own {self.eager_error:.1e}"
        )
        numbers = f"{self.dtype}, error {self.error:.1e} of {self.allowed:.1e}, {beside}"
        numbers = numbers if self.dtype else "no tensor"
        strides = "" if self.strides_equal else ", other strides"
        detail = f": {self.detail}" if self.detail else ""
        return f"  {'ok  ' if self.ok else 'WRONG'} {self.name}: {numbers}{strides}{detail}"


@dataclass(frozen=True, slots=True)
class Verification:
    """What `verify` returns. ``print`` shows a summary and the rows that are wrong."""

    #: The name of the function or module.
    name: str
    rows: tuple[VerificationRow, ...]
    #: What else is to know: why float64 was impossible, what ran in eager mode.
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all rows pass."""
        return all(row.ok for row in self.rows)

    def raise_if_wrong(self) -> None:
        """Raises WrongResultError with the summary if a row does not pass."""
        if not self.ok:
            raise WrongResultError(str(self))

    def __str__(self) -> str:
        wrong = [row for row in self.rows if not row.ok]
        rounded = [row for row in self.rows if row.allowed and row.dtype]
        worst = max(rounded, key=lambda row: row.error / row.allowed, default=None)
        result = f"{len(wrong)} of {len(self.rows)} WRONG" if wrong else f"all {len(self.rows)} ok"
        if worst is not None and not wrong:
            near = f"{worst.name} ({worst.error:.1e} of {worst.allowed:.1e})"
            result += f"; nearest to its tolerance: {near}"
        notes = [f"  note: {note}" for note in self.notes]
        return "\n".join([f"verify {self.name}: {result}", *map(str, wrong), *notes])
