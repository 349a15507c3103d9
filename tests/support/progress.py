"""Progress of a long run of tests, in time: ``pytest --progress``; failures by name as they come.

What always holds: a share is of seconds, not of tests. The seconds of a test are the mean of its
file in the last run here (pytest's cache keeps it); of a file that never ran they are guessed, from
its place in `LONG` of tests/conftest.py or the number of its tests.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

#: Seconds between two lines.
INTERVAL = 20.0
#: Guesses: seconds of the longest file and of the last one in LONG, and of a test elsewhere.
FIRST, LAST, TEST = 150.0, 12.0, 0.1
_KEY = "tracer-core/seconds of files"


def guesses(long: Sequence[str]) -> dict[str, float]:
    """Returns seconds for the files that LONG names, falling evenly by ratio."""
    ratio = (LAST / FIRST) ** (1 / max(len(long) - 1, 1))
    return {f"tests/{name}.py": FIRST * ratio**place for place, name in enumerate(long)}


def weights(
    ids: Iterable[str], long: Mapping[str, float], known: Mapping[str, float]
) -> dict[str, float]:
    """Returns the seconds of one test of each file. long: guesses for all tests of a file. known: seconds of
    one test in an earlier run."""
    number = collections.Counter(test.partition("::")[0] for test in ids)
    return {
        file: known.get(file, long.get(file, TEST * tests) / tests)
        for file, tests in number.items()
    }


def line(share: float, tests: int, of: int, elapsed: float, failed: int) -> str:
    """Returns a line of progress; how long is left once a share of the time says something."""
    left = f"about {minutes(elapsed / share - elapsed)} left" if share > 0.02 else ""
    parts = [f"{tests:,} of {of:,} tests", f"{failed} failed", minutes(elapsed), left]
    return f"[{share:4.0%} of the time] {', '.join(part for part in parts if part)}"


def minutes(seconds: float) -> str:
    """``"1 min 20 s"``, ``"20 s"``."""
    total = round(seconds)
    return f"{total // 60} min {total % 60:02} s" if total >= 60 else f"{total} s"


class Progress:
    """Plugin of the process that prints. long: `LONG`. several: whether xdist's workers run tests."""

    def __init__(self, config: pytest.Config, long: Sequence[str], several: bool) -> None:
        self._config, self._several = config, several
        self._begin = self._last = time.monotonic()
        self._cache: Any = getattr(config, "cache", None)  # none under -p no:cacheprovider
        self._known: dict[str, float] = {} if self._cache is None else self._cache.get(_KEY, {})
        self._guesses = guesses(long)
        self._of_test: dict[str, float] = {}
        self._all = self._done = 0.0
        self._tests = self._of = self._failed = 0
        self._took: collections.Counter[str] = collections.Counter()
        self._ended: collections.Counter[str] = collections.Counter()

    def _start(self, ids: Sequence[str]) -> None:
        if self._of:  # each worker collects the same tests
            return
        self._of_test = weights(ids, self._guesses, self._known)
        self._all = sum(self._of_test[test.partition("::")[0]] for test in ids)
        self._of = len(ids)
        self._begin = self._last = time.monotonic()
        print_line(self._config, f"{self._of:,} tests; a line of progress every {INTERVAL:.0f} s")

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        self._start(ids)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if not self._several:
            self._start([item.nodeid for item in session.items])

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Prints no letter for a test that is as expected."""
        if (
            hasattr(report, "wasxfail")
            or (report.when != "call" and report.passed)
            or report.failed
        ):
            return None
        return report.outcome, "", report.outcome.upper()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self._took[file] += report.duration  # type: ignore[assignment]
        self._failed += report.failed
        if report.when != "teardown":
            return
        self._tests += 1
        self._ended[file] += 1
        self._done += self._of_test.get(file, 0.0)
        now = time.monotonic()
        if self._all and (now - self._last >= INTERVAL or self._tests == self._of):
            self._last, share = now, min(self._done / self._all, 1.0)
            elapsed = now - self._begin
            print_line(self._config, line(share, self._tests, self._of, elapsed, self._failed))

    def pytest_sessionfinish(self) -> None:
        """Keeps the seconds of a test of each file, for the next run."""
        if self._cache is not None:
            took = {file: round(self._took[file] / tests, 3) for file, tests in self._ended.items()}
            self._cache.set(_KEY, self._known | took)


class NamedFailures:
    """Plugin of the process that prints: a line with the name of a test as soon as it fails."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self._config.get_verbosity() <= 0:
            where = "" if report.when == "call" else f" ({report.when})"
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = str(crash.message if crash else report.longrepr or "").partition("\n")[0]
            print_line(self._config, f"FAILED {report.nodeid}{where}: {reason[:160]}")


def print_line(config: pytest.Config, text: str) -> None:
    """Prints a line of its own between pytest's."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        if config.get_terminal_writer().width_of_current_line:
            reporter.write_line("")
        reporter.currentfspath = None
        reporter.write_line(text, flush=True)
