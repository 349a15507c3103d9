"""Benchmarks several runners on one sample, in turns.

`Times` has the median of each runner's turns, and compares two runners. Both sides of a comparison
were timed in the same rounds, and the order changes from round to round. The first run of a short
turn does not count: the caches are cold, and the threads of another engine may still be spinning.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tracer_core.autoselect.alternating_rounds import AlternatingRounds
from tracer_core.autoselect.sample import Sample
from tracer_core.contract.runner import RunFunction

#: Number of rounds: minimum, maximum.
ROUNDS = (3, 30)
#: Maximum of counted runs in one turn.
RUNS = 5
#: Target seconds of the counted runs of one turn; a longer run needs no warm-up.
TURN = 0.03
#: A runner slower than the fastest by this factor is timed for one round.
HOPELESS = 3.0


@dataclass(frozen=True, slots=True)
class Times:
    """turns: for each runner the seconds of its turns, round by round."""

    turns: tuple[tuple[float, ...], ...]

    def ms(self, index: int) -> float:
        """Returns the milliseconds of a runner's run."""
        return statistics.median(self.turns[index]) * 1e3

    def ratio(self, index: int, base: int) -> float:
        """Returns a runner's time over another's: the median over the rounds with both."""
        pairs = zip(self.turns[index], self.turns[base], strict=False)
        return statistics.median(item / other for item, other in pairs)


def timed(
    sample: Sample, runners: Sequence[RunFunction], turns: AlternatingRounds, seconds: float
) -> Times:
    """Times runners for about `seconds`, at least three rounds. The runners must have run
    before.
    """
    numbers: list[list[float]] = [[] for _ in runners]
    going = list(range(len(runners)))
    end = time.perf_counter() + seconds
    for number in range(ROUNDS[1]):
        first = number % len(going)
        for index in going[first:] + going[:first]:
            numbers[index].append(_turn(sample, runners[index], turns, numbers[index][-1:]))
        least = min(row[0] for row in numbers)
        going = [index for index in going if numbers[index][0] <= HOPELESS * least]
        if number + 1 >= ROUNDS[0] and time.perf_counter() > end:
            break
    return Times(tuple(map(tuple, numbers)))


def _turn(
    sample: Sample, runner: RunFunction, turns: AlternatingRounds, before: Sequence[float]
) -> float:
    """Returns the median of the runs of one turn.

    before: the time of one run in the last round, if known.
    """

    def once() -> float:
        with turns.timed():
            return sample.seconds(runner)

    is_long = bool(before) and before[0] >= TURN
    short = before[0] if is_long else once()  # warm-up, not counted
    runs = max(1, min(RUNS, int(TURN / max(short, 1e-6))))
    return statistics.median(once() for _ in range(runs))
