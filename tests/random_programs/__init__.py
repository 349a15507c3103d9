"""Random programs: seeded, generated as source text, run eagerly and compiled, everything
compared.
"""

from __future__ import annotations

import os

if os.environ.get("MUTATION"):
    from tests.mutation_tests import plant  # noqa: F401  (it must come before the tracer is imported)
