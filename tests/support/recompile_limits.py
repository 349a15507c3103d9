"""What the log says of functions that reach their recompile limit."""

import contextlib
import logging
import re
from dataclasses import dataclass

from tracer_core.errors import RecompileLimitWarning


@dataclass
class Told:
    """One line of the log. message: what it says. filename: of the line that called the function."""

    message: RecompileLimitWarning
    filename: str


@contextlib.contextmanager
def reported_limits(match="", count=None):
    """Collects the lines in a list. match: a pattern in one of them. count: how many there are (None:
    at least one)."""
    messages = []

    class Listener(logging.Handler):
        def emit(self, record):
            if hasattr(record, "recompile_limit"):
                messages.append(Told(record.recompile_limit, record.pathname))

    log, listener = logging.getLogger("tracer_core"), Listener()
    log.addHandler(listener)
    try:
        yield messages
    finally:
        log.removeHandler(listener)
    texts = [str(item.message) for item in messages]
    assert len(messages) == count if count is not None else messages, texts
    assert not match or any(re.search(match, text) for text in texts), texts
