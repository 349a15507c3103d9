"""The version of the installed distribution."""

from __future__ import annotations

__version__ = "0.1.0"
