"""The options of the backend ``onnxrt``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: ONNX Runtime's graph optimisation levels, by the names that its own documentation uses.
LEVELS = ("disable", "basic", "extended", "all")


@dataclass(frozen=True)
class Options:
    """providers: execution providers to try in this order, such as
    ``("CUDAExecutionProvider",)``; None takes the best one for the graph's device. An
    unavailable provider raises BackendError, which lists the available ones. intra_op_threads:
    threads of one operator; None takes as many as torch uses. graph_optimization_level: one of
    ``disable``, ``basic``, ``extended``, ``all``. freeze: parameters and buffers are
    initialisers of the model, which ONNX Runtime folds (batch norm into convolutions) and packs;
    when one changes, a new session is made. Writes through ``.data``, NumPy arrays or shared
    memory cannot be seen: call ``fast.refresh()`` after them. session_options: entries of ONNX
    Runtime's own session configuration, ``{"session.intra_op.allow_spinning": "0"}``. Raises
    ValueError for an unknown level or too few threads."""

    providers: tuple[str, ...] | None = None
    intra_op_threads: int | None = None
    graph_optimization_level: str = "all"
    freeze: bool = False
    session_options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.graph_optimization_level not in LEVELS:
            raise ValueError(
                f"graph_optimization_level={self.graph_optimization_level!r}: one of"
                f" {', '.join(LEVELS)}"
            )
        if self.intra_op_threads is not None and self.intra_op_threads < 1:
            raise ValueError(f"intra_op_threads={self.intra_op_threads}: at least 1")
