"""``python -m tests.triton_kernels.random_graphs``: see `many`."""

from __future__ import annotations

import sys

from tests.triton_kernels.random_graphs.many import main

if __name__ == "__main__":
    sys.exit(main())
