"""Why a captured graph cannot be lowered. Raised in this folder, handled by
`tracer_core.dispatch.compile_graph`.
"""

from __future__ import annotations

from tracer_core.errors import TracerError


class LoweringUnsupported(TracerError):
    """The graph is right but has no functional ATen form that keeps eager's meaning.

    reason: what is in the way, for users. location: ``file:line in function`` or ``""``. The
    dispatcher answers by running the captured graph eagerly and saying so once.
    """

    def __init__(self, reason: str, location: str = "") -> None:
        self.reason, self.location = reason, location
        super().__init__(reason + (f" (at {location})" if location else ""))
