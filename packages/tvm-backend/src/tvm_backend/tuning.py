"""MetaSchedule tuning: the record database on disk, the search that fills it, and its use.

Each target has a folder of records, used for no other target. A search adds to the database and
never removes; the same records always give the same schedules. A record is used only where the
default schedule was not measured to be faster (`schedule_selection`)."""

from __future__ import annotations

import hashlib
import importlib.util
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tracer_core.plugin_api import RequirementError, logger, private_folder, stage
from tvm_backend import schedule_selection, tvm_private
from tvm_backend.options import Options

NAME = "tvm"
log = logger("stages")

#: TVM's file of measured schedules.
RECORDS = "database_tuning_record.json"

#: Seconds between two progress logs of a search.
EVERY = 10.0

#: Packages that TVM's search needs but does not declare: without the first, creating its builder
#: ends the process.
NEEDED = {
    "cloudpickle": "TVM's search hands its work to other processes by the package cloudpickle",
    "psutil": "TVM's search counts processors by the package psutil",
    "xgboost": "cost_model='xgb' needs the package xgboost (or take cost_model='random')",
}


def folder(target: Any, options: Options) -> Path:
    """Returns the folder with the records of a target."""
    root = (
        Path(options.records)
        if options.records is not None
        else private_folder("tvm")[0] / "records"
    )
    return root / hashlib.sha256(str(target).encode()).hexdigest()[:16]


def scheduled(module: Any, target: Any, options: Options, name: str) -> Any:
    """Returns the module with recorded schedules, after a search if the options ask for one."""
    where = folder(target, options)
    if options.trials:
        _search(module, target, options, where, name)
    if not (where / RECORDS).exists():
        return module
    from tvm import relax
    from tvm.s_tir import meta_schedule

    database = meta_schedule.database.JSONDatabase(work_dir=str(where))
    with database:
        recorded = relax.transform.MetaScheduleApplyDatabase()(module)
    if not options.default_schedules or target.kind.name != "llvm":
        return recorded
    if options.trials:
        with stage("tvm benchmark", graph=name):
            schedule_selection.benchmark(module, recorded, target, where)
    return schedule_selection.choose(module, recorded, where)


def _search(module: Any, target: Any, options: Options, where: Path, name: str) -> None:
    """Runs the remaining trials; those of an interrupted search count. Raises BackendError for a
    missing package."""
    for package, what in NEEDED.items():
        if (package != "xgboost" or options.cost_model == "xgb") and importlib.util.find_spec(
            package
        ) is None:
            raise RequirementError(NAME, "tuning", f"{what}: python -m pip install {package}")
    from tvm.s_tir import meta_schedule

    where.mkdir(parents=True, exist_ok=True)
    tasks = meta_schedule.relax_integration.extract_tasks(module, target, {})
    tried = _tried(tasks, where)
    left = min(options.trials, options.trials_per_operator * len(tasks)) - sum(tried)
    if left <= 0 or not tasks:
        return
    log.warning(
        "tvm: tuning %s with %d trials (%d are recorded); records in %s",
        name,
        left,
        sum(tried),
        where,
    )
    start = time.perf_counter()
    with stage("tvm tune", graph=name):
        meta_schedule.relax_integration.tune_relax(
            mod=module,
            params={},
            target=target,
            work_dir=str(where),
            max_trials_global=left,
            max_trials_per_task=options.trials_per_operator,
            cost_model=options.cost_model,
            measure_callbacks=[
                *meta_schedule.measure_callback.MeasureCallback.create("default"),
                _progress(left),
            ],
            seed=sum(tried),  # a resumed search tries other schedules than the one before
        )
    log.warning("tvm: tuned %s in %.0f s", name, time.perf_counter() - start)


def _tried(tasks: Any, where: Path) -> list[int]:
    """Returns how many schedules of each task are recorded."""
    import tvm_ffi
    from tvm.s_tir import meta_schedule

    if not (where / RECORDS).exists():
        return [0] * len(tasks)
    records = meta_schedule.database.JSONDatabase(work_dir=str(where)).get_all_tuning_records()
    counts = Counter(tvm_ffi.structural_hash(record.workload.mod) for record in records)
    return [counts[tvm_ffi.structural_hash(task.dispatched[0])] for task in tasks]


def _progress(trials: int) -> Any:
    """Returns a callback that logs the progress of a search every few seconds."""
    from tvm.s_tir.meta_schedule.measure_callback import PyMeasureCallback

    @tvm_private.derived
    class Progress(PyMeasureCallback):
        """Mutable: the number of measurements, and when it was last logged."""

        def __init__(self) -> None:
            super().__init__()
            self.done, self.start, self.said = 0, time.perf_counter(), 0.0

        def apply(
            self, scheduler: Any, task: int, candidates: Any, built: Any, results: Any
        ) -> None:
            """Counts a batch of measurements; called by TVM."""
            self.done += len(candidates)
            seconds = time.perf_counter() - self.start
            if seconds - self.said >= EVERY:
                self.said = seconds
                log.warning("tvm: %d of %d schedules tried, %.0f s", self.done, trials, seconds)

    return Progress()
