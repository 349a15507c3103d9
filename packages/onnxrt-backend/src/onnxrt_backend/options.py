"""The options of the backend ``onnxrt``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

#: ONNX Runtime's graph optimisation levels, by the names that its own documentation uses.
#: ONNX Runtime's graph optimization levels.
Level = Literal["disable", "basic", "extended", "all"]
LEVELS = get_args(Level)


@dataclass(frozen=True)
class Options:
    """Options of ``backend="onnxrt"``.

    Raises:
        ValueError: The optimization level is unknown, or there are too few threads.
    """

    #: Execution providers to try, in this order (``("CUDAExecutionProvider",)``). None: the best
    #: one for the graph's device. One that is unavailable raises BackendError, which lists the
    #: available ones.
    providers: tuple[str, ...] | None = None
    #: The number of threads of one operator. None: as many as torch uses.
    intra_op_threads: int | None = None
    #: ONNX Runtime's graph optimization level.
    graph_optimization_level: Level = "all"
    #: Makes parameters and buffers initializers of the model, which ONNX Runtime folds (batch norms
    #: into convolutions) and packs; a change of one makes a new session. Writes through ``.data``,
    #: NumPy arrays or shared memory are not seen: call ``fast.refresh()`` after them.
    freeze: bool = False
    #: Entries of ONNX Runtime's session configuration (``{"session.intra_op.allow_spinning":
    #: "0"}``).
    session_options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.graph_optimization_level not in LEVELS:
            raise ValueError(
                f"graph_optimization_level={self.graph_optimization_level!r}: one of"
                f" {', '.join(LEVELS)}"
            )
        if self.intra_op_threads is not None and self.intra_op_threads < 1:
            raise ValueError(f"intra_op_threads={self.intra_op_threads}: at least 1")
