"""A child of `benchmarks.processes.fresh` that answers which of the compilers' settings it sees."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks import processes

if __name__ == "__main__":
    settings = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("TRACER_", "TORCHINDUCTOR_"))
    }
    existing = [value for value in settings.values() if Path(value).exists()]
    processes.answer({"settings": settings, "existing": existing})
