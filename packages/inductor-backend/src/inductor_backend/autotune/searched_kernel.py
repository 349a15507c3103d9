"""`SearchedKernel`: a kernel whose tile is measured while the program runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inductor_backend.autotune.choices import TunedChoice


@dataclass(frozen=True, slots=True)
class SearchedKernel:
    """choice: between its tile, the first, and others. nbytes: that a launch moves."""

    choice: TunedChoice
    nbytes: int
