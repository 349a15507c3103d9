"""Exceptions of graphs whose assumptions about data do not hold in a call."""

from __future__ import annotations

#: Entry of `Seen.refused` once the calls of a code region failed such assertions too often.
DATA_SIZES = "data sizes"
#: The same for `trace/assertions.py`.
ASSERTIONS = "assertions"


class DataDiffers(Exception):
    """A graph was captured under assumptions about data that do not hold in this call. refuses: the
    entry of `Seen.refused` with which the next capture makes none of the kind."""

    refuses = ""


class SizeDiffers(DataDiffers):
    """A data-dependent size is not what the graph was captured for."""

    refuses = DATA_SIZES


class AccumulatorHeld(DataDiffers):
    """The program holds the gradient accumulator of a tensor, whose hooks a whole step of another
    process leaves out."""

    refuses = "gradient accumulators"


class AssertionFailed(DataDiffers):
    """What the program asserts, or the graph assumes, of a tensor's values does not hold."""

    refuses = ASSERTIONS
