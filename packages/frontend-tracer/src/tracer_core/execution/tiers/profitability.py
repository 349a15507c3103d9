"""Verdicts: whether compiled or eager calls are faster, by samples of both."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.limits import MAX_VERDICT_USES

use_own_builtins(globals())

#: Measured calls of each way, at first and where they contradict one another.
SAMPLES, MAX_SAMPLES = 16, 64
#: The share of an eager call by which a compiled one must be slower, and by how many standard
#: errors it must be slower in more than half of all pairs of samples.
MARGIN, SURE = 0.05, 3.0
#: After so many samples of each way the comparison ends, if one `leads`.
EARLY = 6
#: A way leads whose median is this share of the other's, and whose longest sample is shorter than
#: the other's shortest.
LEAD = 0.8


@dataclass(frozen=True, slots=True)
class Verdict:
    """compiled, eager: median seconds of a call. native: the function runs in eager mode from now
    on. with_backward: what was compared is the time from call to call. unclear: eager mode has the
    better median, but other samples contradict it. captures: the share of calls that captured again
    where the function does not settle; `compiled` may then be what captures alone cost a call.
    remembered: another process found it."""

    compiled: float
    eager: float
    native: bool
    with_backward: bool = False
    unclear: bool = False
    captures: float = 0.0
    remembered: bool = False

    def __str__(self) -> str:
        if self.captures:
            return (
                f"{self.captures:.0%} of the calls captured again, {self.compiled * 1e3:.1f} ms a "
                f"call, eager {self.eager * 1e3:.3f} ms: runs eagerly, and is tried again later"
            )
        what = " from call to call, backward included" if self.with_backward else " a call"
        stays = "runs eagerly from now on" if self.native else "stays compiled"
        return (
            f"compiled {self.compiled * 1e6:.1f} µs, eager {self.eager * 1e6:.1f} µs{what}: {stays}"
            f"{' (an earlier process found this)' if self.remembered else ''}"
        )


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """A verdict that later processes go by. usual: the seconds of an eager call. grad: the grad mode
    that it was found in. threads: torch's number of threads then; with others the other way may be
    faster. uses: how many processes went by it: a first measurement may be wrong, so that after
    `MAX_VERDICT_USES` it is measured again."""

    compiled: float
    eager: float
    native: bool
    with_backward: bool
    usual: float
    grad: bool
    threads: int
    uses: int = 0

    @property
    def holds(self) -> bool:
        """Whether this process goes by it."""
        return self.uses < MAX_VERDICT_USES and self.threads == torch.get_num_threads()

    def verdict(self) -> Verdict:
        return Verdict(self.compiled, self.eager, self.native, self.with_backward, remembered=True)


def verdict(
    compiled: Sequence[float],
    eager: Sequence[float],
    call: float,
    with_backward: bool = False,
    captures_too: bool = False,
) -> Verdict:
    """Compares samples of the two ways. call: the seconds of an eager call, of which `MARGIN` is
    taken. Eager mode wins only if medians, sums without the largest samples, and enough pairs (the
    rank-sum test) agree: calls of different kinds or a busy machine leave the function compiled.
    captures_too: some calls capture, so that the sums alone decide."""
    if captures_too:
        ours, theirs = statistics.fmean(compiled), statistics.fmean(eager)
        return Verdict(ours, theirs, ours - theirs > MARGIN * call, with_backward)
    ours, theirs = _median(compiled), _median(eager)
    n = len(compiled) * len(eager)
    pairs = sum(a > b for a in compiled for b in eager)
    error = math.sqrt((len(compiled) + len(eager) + 1) / (12 * n)) if n else 1.0
    is_slower = ours - theirs > MARGIN * call and _mean(compiled) > _mean(eager)
    native = (
        len(compiled) >= SAMPLES // 2 <= len(eager)
        and is_slower
        and pairs >= (0.5 + SURE * error) * n
    )
    return Verdict(ours, theirs, native, with_backward, unclear=is_slower and not native)


def leads(item: Sequence[float], other: Sequence[float]) -> bool:
    """Returns whether one way is so much faster that no more samples are needed."""
    return max(item) < min(other) and statistics.median(item) < LEAD * statistics.median(other)


def _median(samples: Sequence[float]) -> float:
    return statistics.median(samples) if samples else 0.0


def _mean(samples: Sequence[float]) -> float:
    return statistics.fmean(sorted(samples)[: len(samples) - 1])
