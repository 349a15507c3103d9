"""``python -m tests.faults``: see `many`."""

from __future__ import annotations

import sys

from tests.faults.many import main

if __name__ == "__main__":
    sys.exit(main())
