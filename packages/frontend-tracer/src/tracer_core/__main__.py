"""``python -m tracer_core``: the command ``tracer-core``."""

from __future__ import annotations

from tracer_core.command import main

raise SystemExit(main())
