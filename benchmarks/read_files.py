"""Imports modules, so that their files are in the system's page cache. In: module names as
arguments.
"""

from __future__ import annotations

import sys

from benchmarks import models, processes

if __name__ == "__main__":
    for library in ("torchvision", "timm", "transformers"):
        models.import_library(library)
    for name in sys.argv[1:]:
        __import__(name)
    processes.answer(sorted(sys.argv[1:]))
