"""Times of several runners of one sample, taken in turns.

In: a `Sample` and runners. Out: `Times`: of each runner the median of its turns, and how two
compare. What always holds: two sides of a comparison were timed in the same rounds, who begins
changes from round to round, and the first run of a turn does not count where it is short (the
caches are somebody else's then, and the threads of another engine may still be spinning).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tracer_core.autoselect.sample import Sample
from tracer_core.autoselect.turns import Turns
from tracer_core.contract.runner import RunFunction

#: Rounds: at least, at most.
ROUNDS = (3, 30)
#: Runs of one turn that count, at most.
RUNS = 5
#: Seconds that the counted runs of one turn take, about; a run that is longer than this needs no
#: run before it.
TURN = 0.03
#: A runner that needs this many times the least is timed for one round.
HOPELESS = 3.0


@dataclass(frozen=True, slots=True)
class Times:
    """turns: for each runner the seconds of its turns, round by round."""

    turns: tuple[tuple[float, ...], ...]

    def ms(self, index: int) -> float:
        """Milliseconds of a runner's run."""
        return statistics.median(self.turns[index]) * 1e3

    def ratio(self, index: int, base: int) -> float:
        """A runner's time over that of another: the median over the rounds that both were in."""
        pairs = zip(self.turns[index], self.turns[base], strict=False)
        return statistics.median(one / other for one, other in pairs)


def timed(sample: Sample, runners: Sequence[RunFunction], turns: Turns, seconds: float) -> Times:
    """Times runners for about `seconds`, three rounds at least. The runners have run before."""
    found: list[list[float]] = [[] for _ in runners]
    going = list(range(len(runners)))
    end = time.perf_counter() + seconds
    for number in range(ROUNDS[1]):
        first = number % len(going)
        for index in going[first:] + going[:first]:
            found[index].append(_turn(sample, runners[index], turns, found[index][-1:]))
        least = min(row[0] for row in found)
        going = [index for index in going if found[index][0] <= HOPELESS * least]
        if number + 1 >= ROUNDS[0] and time.perf_counter() > end:
            break
    return Times(tuple(map(tuple, found)))


def _turn(sample: Sample, runner: RunFunction, turns: Turns, before: Sequence[float]) -> float:
    """The median of the runs of one turn. before: what one of its runs took in the last round, if
    known.
    """

    def once() -> float:
        with turns.timed():
            return sample.seconds(runner)

    if not before or before[0] < TURN:
        short = once()  # not counted
    else:
        short = before[0]
    runs = max(1, min(RUNS, int(TURN / max(short, 1e-6))))
    return statistics.median(once() for _ in range(runs))
