"""The version of the distribution, in one place that any module may import."""

from __future__ import annotations

__version__ = "0.1.0"
