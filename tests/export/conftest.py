"""The fixture of `tests.support.packaged_programs`."""

from tests.support.packaged_programs import mixed  # noqa: F401
