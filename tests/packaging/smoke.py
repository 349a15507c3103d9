"""Run by ``nox -s package`` in an empty environment: are the installed wheels whole, and do they
work?

Run as a script, away from the checkout. Exits with an error if a package is missing, was imported
from anywhere but the environment, or a backend that calls itself available gives a wrong result.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from pathlib import Path

import torch

DISTRIBUTIONS = {
    "tracer-core": "tracer_core",
    "inductor-backend": "inductor_backend",
    "cudagraphs-backend": "cudagraphs_backend",
    "onnxrt-backend": "onnxrt_backend",
    "tvm-backend": "tvm_backend",
}

NEEDS_A_GPU = {"cudagraphs"}


class Block(torch.nn.Module):
    """A little of what models do: a matmul, a normalisation, pointwise work, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)
        self.norm = torch.nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.linear(x))) + x


def check_distributions() -> None:
    """Each is installed, typed, licensed and importable, from the environment itself."""
    for distribution, module in DISTRIBUTIONS.items():
        package = importlib.import_module(module)
        path = Path(package.__file__ or "")
        if Path(sys.prefix) not in path.parents:
            raise SystemExit(f"{module} was imported from {path}, not from {sys.prefix}")
        if not (path.parent / "py.typed").exists():
            raise SystemExit(f"{module} has no py.typed")
        files = [str(file) for file in importlib.metadata.files(distribution) or ()]
        if not any(file.endswith("LICENSE") for file in files):
            raise SystemExit(f"{distribution} ships no licence")
        for requirement in importlib.metadata.requires(distribution) or ():
            if "@" in requirement:
                raise SystemExit(f"{distribution} asks for a file of its builder: {requirement}")
        print(f"{distribution} {importlib.metadata.version(distribution)}: {path.parent}")


def check_backends() -> None:
    """Every row is honest: what is available gives eager's result."""
    import tracer_core

    rows = {row.name: row for row in tracer_core.backends()}
    expected = {"eager", "inductor", "onnxrt", "tvm"} | NEEDS_A_GPU
    if missing := expected - rows.keys():
        raise SystemExit(f"not listed: {sorted(missing)}")
    missing_here = set() if torch.cuda.is_available() else NEEDS_A_GPU
    for name in sorted(expected):
        row = rows[name]
        print(f"{name}: available={row.available} {row.reason or ''}")
        if row.available == (name in missing_here):
            raise SystemExit(f"{name}: available={row.available}, reason={row.reason}")
        if row.available:
            check_backend(name)


def check_backend(name: str) -> None:
    """Two calls of a small module agree with eager."""
    import tracer_core

    torch.manual_seed(0)
    model = Block().eval()
    fast = tracer_core.compile(model, backend=name, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(4, 16)
            torch.testing.assert_close(fast(x), model(x))
    print(f"  compile(model, backend={name!r}) agrees with eager")


if __name__ == "__main__":
    check_distributions()
    check_backends()
    print("smoke test passed")
