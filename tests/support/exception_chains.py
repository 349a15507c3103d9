"""What an exception says, and those that it was raised from or while handling."""

from __future__ import annotations


def chain_of(error):
    """An exception and what it came from, as text."""
    links = []
    while error is not None:
        links.append((type(error).__name__, str(error), error.__suppress_context__))
        error = error.__cause__ or error.__context__
    return links
