"""Fixtures of several files."""

from tests.support.object_ends import uncollected  # noqa: F401
from tests.support.short_tests import no_endless_loop  # noqa: F401
