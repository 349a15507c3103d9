"""Random programs: seeded, generated as source text, run eagerly and compiled, everything
compared.
"""

from __future__ import annotations

import os

if os.environ.get("PLANTED_FAULT"):
    from tests.planted_faults import plant  # noqa: F401  (it must come before the tracer is imported)
