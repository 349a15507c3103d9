"""The options of the backend ``tvm``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

#: Cost models of MetaSchedule's search, by TVM's own names.
CostModel = Literal["xgb", "random"]
COST_MODELS = get_args(CostModel)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of ``backend="tvm"``.

    Raises:
        ValueError: A value is outside of its range.
    """

    #: A TVM target as text or JSON (``'{"kind": "llvm", "mcpu": "znver4"}'``). None: the processor
    #: here, or its GPU for graphs on CUDA.
    target: str | None = None
    #: How many schedules MetaSchedule tries for a graph whose best ones are not in `records` yet:
    #: the first call then takes minutes and logs its progress. Later compiles read the results,
    #: also with ``trials=0``.
    trials: int = 0
    #: The most trials for one fused operator.
    trials_per_operator: int = 64
    #: The folder of the record database. None: one in the cache folder, per target.
    records: str | None = None
    #: MetaSchedule's cost model; ``"xgb"`` needs the package xgboost.
    cost_model: CostModel = "xgb"
    #: Tiles and vectorizes for the CPU what no record schedules. False: such loops run as TVM's
    #: importer writes them (ten times slower).
    default_schedules: bool = True
    #: Makes parameters and buffers constants of the module: what depends on them alone is computed
    #: during compilation. A change of one compiles the module again. Writes through ``.data``,
    #: NumPy arrays or shared memory are not seen: call ``fast.refresh()`` after them.
    freeze: bool = False

    def __post_init__(self) -> None:
        if self.trials < 0 or self.trials_per_operator < 1:
            raise ValueError(
                f"trials={self.trials}, trials_per_operator={self.trials_per_operator}: counts"
            )
        if self.cost_model not in COST_MODELS:
            raise ValueError(f"cost_model={self.cost_model!r}: one of {', '.join(COST_MODELS)}")
