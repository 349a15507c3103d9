"""The programs that run on a faulty store: each compares compiled functions with eager ones.

They are modules of a folder on sys.path, as a user's are, so that captures are kept. A program has a
number: the same number finds what an earlier process has kept, a new one compiles.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

TEXT = """
import torch

def wave(x, w):
    return (torch.sin(x * {number}.25) * w).sum(-1)

def soft(x, w):
    return torch.softmax(x * w + {number}, -1)
"""

#: Ends the process of a program that was wrong; 0: right, 1: it raised something else.
WRONG = 3


def run(folder: Path, number: int) -> None:
    """Runs program `number` from `folder`. Raises AssertionError where it differs from eager."""
    import torch

    import tracer_core
    from tracer_core.execution.store import persistent_cache

    name = f"program_{number}"
    file = folder / f"{name}.py"
    if not file.exists():
        file.write_text(TEXT.format(number=number))
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    module = importlib.import_module(name)
    torch.set_num_threads(1)
    x, w = torch.randn(4, 8), torch.randn(8, requires_grad=True)
    for function, train in ((module.wave, True), (module.soft, False)):
        with torch.set_grad_enabled(train):
            fast = tracer_core.compile(function)
            for _ in range(2):
                actual, expected = fast(x, w), function(x, w)
                torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)
            if train:
                got, true = (torch.autograd.grad(value.sum(), w)[0] for value in (actual, expected))
                torch.testing.assert_close(got, true, atol=1e-4, rtol=1e-4)
    persistent_cache.flush()


def main() -> None:
    """``python -m tests.faults.programs FOLDER``: prints the modules that a program imports."""
    run(Path(sys.argv[1]), 0)
    print(*sorted(name for name in sys.modules if not name.startswith(("program_", "__main__"))))


if __name__ == "__main__":
    main()
