"""The fixtures of `tests.support.short_tests`."""

from tests.support.short_tests import no_endless_loop  # noqa: F401
