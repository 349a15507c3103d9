"""MetaSchedule: its record database on disk, the search that fills it, and the use of its records.

In: a fused Relax module, a target and the options. Out: the module with the best recorded schedules in it. What always
holds: records of one target are never used for another (a folder each); a search adds to the database and
never removes; with the same records the same schedules are used.
"""

from __future__ import annotations

import hashlib
import importlib.util
import time
from pathlib import Path
from typing import Any

from tracer_core.plugin_api import BackendError, cache_folder, logger, stage
from tvm_backend.options import Options

NAME = "tvm"
log = logger("stages")

#: Packages that TVM's search needs and does not ask for: without the first, making its builder ends the process.
NEEDED = {
    "cloudpickle": "TVM's search hands its work to other processes by the package cloudpickle",
    "psutil": "TVM's search counts processors by the package psutil",
    "xgboost": "cost_model='xgb' needs the package xgboost (or take cost_model='random')",
}


def folder(target: Any, options: Options) -> Path:
    """Where the records of a target are."""
    root = Path(options.records) if options.records is not None else cache_folder("tvm") / "records"
    return root / hashlib.sha256(str(target).encode()).hexdigest()[:16]


def scheduled(module: Any, target: Any, options: Options, name: str) -> Any:
    """The module with recorded schedules, after a search if the options ask for one."""
    where = folder(target, options)
    if options.trials:
        _search(module, target, options, where, name)
    if not (where / "database_tuning_record.json").exists():
        return module
    from tvm import relax
    from tvm.s_tir import meta_schedule

    database = meta_schedule.database.JSONDatabase(work_dir=str(where))
    with database:
        return relax.transform.MetaScheduleApplyDatabase()(module)


def _search(module: Any, target: Any, options: Options, where: Path, name: str) -> None:
    for package, what in NEEDED.items():
        if (package != "xgboost" or options.cost_model == "xgb") and importlib.util.find_spec(package) is None:
            raise BackendError(NAME, "tuning", f"{what}: python -m pip install {package}")
    from tvm.s_tir import meta_schedule

    where.mkdir(parents=True, exist_ok=True)
    log.warning("tvm: tuning %s with %d trials; records in %s", name, options.trials, where)
    start = time.perf_counter()
    with stage("tvm tune", graph=name):
        meta_schedule.relax_integration.tune_relax(
            mod=module,
            params={},
            target=target,
            work_dir=str(where),
            max_trials_global=options.trials,
            max_trials_per_task=options.trials_per_operator,
            cost_model=options.cost_model,
            seed=0,
        )
    log.warning("tvm: tuned %s in %.0f s", name, time.perf_counter() - start)
