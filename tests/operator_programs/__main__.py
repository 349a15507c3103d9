"""``python -m tests.operator_programs``: see `many`."""

from __future__ import annotations

import sys

from tests.operator_programs.many import main

if __name__ == "__main__":
    sys.exit(main())
