"""The fixture of `tests.support.recording_runtime`."""

from tests.support.recording_runtime import runtime  # noqa: F401
