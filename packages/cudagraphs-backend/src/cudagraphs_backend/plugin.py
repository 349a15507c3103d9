"""Registers the backend ``cudagraphs``: captures a graph's operators once and replays them.

Listing the backend does not import torch's CUDA graphs or the modules of this package that use
them.
"""

from __future__ import annotations

from types import MappingProxyType

from tracer_core.plugin_api import Backend, Training, hookimpl

NAME = "cudagraphs"


def available() -> str | None:
    """Returns why the backend cannot run here, or None."""
    import torch  # heavy: only asked for when the row is shown

    if not torch.backends.cuda.is_built():
        return f"torch {torch.__version__} was built without CUDA"
    return None if torch.cuda.is_available() else "there is no CUDA device here"


BACKEND = Backend(
    name=NAME,
    compile="cudagraphs_backend.wrapping:compile_graph",
    description="CUDA graphs: a graph's operators are recorded once and replayed with one launch",
    ir="aten",
    training=Training.JOINT,
    partition="cudagraphs_backend.partition:saved",
    shapes="symbolic",
    numbers="inputs",
    devices=frozenset({"cuda"}),
    modes=MappingProxyType({"default": "recorded at the second call of each size"}),
    options="cudagraphs_backend.options:CudaGraphsOptions",
    supports="cudagraphs_backend.capturability:supports",
    available=available,
    reset="cudagraphs_backend.wrapping:reset",
    wrap="cudagraphs_backend.wrapping:wrap",
    report="cudagraphs_backend.wrapping:sentences",
)


@hookimpl
def tracer_backends() -> list[Backend]:
    """Returns the backend's registration."""
    return [BACKEND]
