"""Fixtures of several files."""

from tests.support.call_costs import costs  # noqa: F401
from tests.support.persistent_programs import program  # noqa: F401
from tests.support.short_tests import no_endless_loop  # noqa: F401
from tests.support.started_programs import start  # noqa: F401
