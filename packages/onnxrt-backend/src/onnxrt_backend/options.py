"""The options of the backend ``onnxrt``."""

from __future__ import annotations

from dataclasses import dataclass

#: ONNX Runtime's graph optimisation levels, by the names that its own documentation uses.
LEVELS = ("disable", "basic", "extended", "all")


@dataclass(frozen=True)
class Options:
    """providers: execution providers to try in this order, such as ``("CUDAExecutionProvider",)``; None
    takes the best one for the graph's device. An unavailable one is a BackendError that lists those there
    are. intra_op_threads: threads of one operator; None takes as many as torch uses.
    graph_optimization_level: one of ``disable``, ``basic``, ``extended``, ``all``.
    """

    providers: tuple[str, ...] | None = None
    intra_op_threads: int | None = None
    graph_optimization_level: str = "all"
