"""The conformance table as pytest tests: ``pytest -p tracer_core.testing.pytest_plugin
--tracer-backend NAME``.

In: pytest's command line (``--tracer-backend``, and ``--tracer-sample`` to run a part of the table,
by ``--tracer-seed``). Out: a test for each case and each program, beside whatever else is
collected. What always holds: without ``--tracer-backend`` nothing is added; a wrong row fails, what
is not declared is skipped with its reason.
"""

from __future__ import annotations

from typing import Any

import pytest

from tracer_core.errors import TracerError
from tracer_core.testing.conformance.__main__ import backend_named
from tracer_core.testing.conformance.programs import PROGRAMS
from tracer_core.testing.conformance.row import BAD, Row
from tracer_core.testing.conformance.run import Trial, trials


def pytest_addoption(parser: pytest.Parser) -> None:
    """The command line."""
    group = parser.getgroup("tracer", "conformance of a tracer_core backend")
    group.addoption(
        "--tracer-backend",
        help="run the conformance table for this backend (a name, or module:attribute)",
    )
    group.addoption("--tracer-sample", type=int, help="only so many of its small graphs")
    group.addoption("--tracer-seed", type=int, default=0, help="which")


def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Adds the tests."""
    name = config.getoption("--tracer-backend")
    if name is None:
        return
    try:
        result = trials(backend_named(name), programs=PROGRAMS,
                       sample=config.getoption("--tracer-sample"),
                       seed=config.getoption("--tracer-seed"))  # fmt: skip
    except TracerError as error:
        raise pytest.UsageError(str(error)) from error
    for trial in result:
        items.append(Conforms.from_parent(session, name=f"{name}[{trial[0]}]", trial=trial))


class NotConforming(Exception):
    """A row is wrong, or an error."""


class Conforms(pytest.Item):
    """One row."""

    def __init__(self, *, trial: Trial, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._trial = trial

    def runtest(self) -> None:
        """Runs the case."""
        row: Row = self._trial[1]()
        self.user_properties.append(("tracer_status", row.status))
        if row.status in BAD:
            raise NotConforming(f"{row.status}: {row.detail}")
        if row.status == "not declared":
            pytest.skip(row.detail)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any) -> Any:
        """A row's own words; for anything else pytest's."""
        if isinstance(excinfo.value, NotConforming):
            return str(excinfo.value)
        return super().repr_failure(excinfo, *args)

    def reportinfo(self) -> Any:
        """Where the table is."""
        return __file__, None, self.name
