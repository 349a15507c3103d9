"""A child of `benchmarks.harness.fresh` that answers which of the compilers' settings it sees."""

from __future__ import annotations

import os
from pathlib import Path


def seen() -> dict[str, object]:
    settings = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("TRACER_", "TORCHINDUCTOR_"))
    }
    existing = [value for value in settings.values() if Path(value).exists()]
    return {"settings": settings, "existing": existing}
