"""The options of the backend ``tvm``."""

from __future__ import annotations

from dataclasses import dataclass

#: Cost models of MetaSchedule's search, by TVM's own names.
COST_MODELS = ("xgb", "random")


@dataclass(frozen=True, slots=True)
class Options:
    """target: a TVM target as text or JSON, such as ``'{"kind": "llvm", "mcpu": "znver4"}'``;
    None takes this machine's processor, or its GPU for graphs on CUDA. trials: how many
    schedules MetaSchedule tries for a graph whose best ones are not recorded yet (0: none; the
    first call then takes minutes and logs its progress); the database in `records` keeps the
    results for every later compile, also with trials=0. trials_per_operator: the most trials for
    one fused operator. records: folder of the record database; None takes one in the cache
    folder, by target. cost_model: ``"xgb"`` (needs the package xgboost) or ``"random"``.
    default_schedules: tile and vectorise for the CPU what no record schedules; without, such
    loops run as TVM's importer wrote them (ten times slower). freeze: parameters and buffers are
    constants of the module, and what depends on them alone is computed during compilation; when
    one changes, the module is compiled again. Writes through ``.data``, NumPy arrays or shared
    memory cannot be seen: call ``fast.refresh()`` after them. Raises ValueError for values
    outside these ranges."""

    target: str | None = None
    trials: int = 0
    trials_per_operator: int = 64
    records: str | None = None
    cost_model: str = "xgb"
    default_schedules: bool = True
    freeze: bool = False

    def __post_init__(self) -> None:
        if self.trials < 0 or self.trials_per_operator < 1:
            raise ValueError(
                f"trials={self.trials}, trials_per_operator={self.trials_per_operator}: counts"
            )
        if self.cost_model not in COST_MODELS:
            raise ValueError(f"cost_model={self.cost_model!r}: one of {', '.join(COST_MODELS)}")
