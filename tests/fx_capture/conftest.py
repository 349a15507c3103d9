"""The fixtures of `tests.support.short_tests`."""

from tests.support.short_tests import may_leave_graphs, no_endless_loop  # noqa: F401
