"""Collects what compiled functions have recorded, as data that JSON can hold.

In: `CompiledFunction` objects. Out: a dictionary whose form `SCHEMA_VERSION` numbers; docs/report.md
describes it. Nothing is captured, compiled or timed (but the memory's bandwidth, beside a profile):
what was not recorded is left out, and a line of ``not_recorded`` says so.
"""

from __future__ import annotations

import datetime
import functools
import linecache
import platform
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from tracer_core.autoselect.candidates import plan_of, runs
from tracer_core.bytecode.instructions import instructions
from tracer_core.contract.version import __version__
from tracer_core.debug.crossed_limits import crossings
from tracer_core.debug.profiling import break_row
from tracer_core.debug.recompiles import recompiles
from tracer_core.debug.stages import StageRecord, history_of
from tracer_core.execution.call import name_of
from tracer_core.execution.capture.result import Captured
from tracer_core.execution.compiled_function import CompiledFunction
from tracer_core.execution.entry.resume_function import ResumeFunction
from tracer_core.execution.tiers.profitability import Verdict
from tracer_core.explanation import eager_parts
from tracer_core.reporting.measured import Times, bandwidth
from tracer_core.reporting.summary import summary

SCHEMA = "tracer_core.report"
#: Another number where a field has gone or has another meaning; new fields do not change it.
SCHEMA_VERSION = 1

#: Lines of source before and after the one that is meant.
CONTEXT = 2

#: How `meta["user_frame"]` and locations of breaks are written.
_FRAME = re.compile(r"(?P<file>.*):(?P<line>\d+) in (?P<function>.*)", re.DOTALL)


def collect(functions: Sequence[CompiledFunction], profile: Any = None) -> dict[str, Any]:
    """Returns the data of a report. profile: a torch.profiler.profile that has ended, or None."""
    rows = [_function(number, function) for number, function in enumerate(functions)]
    if profile is not None:
        _add_times(rows, profile)
    for row in rows:
        row["not_recorded"] = list(_not_recorded(row))
    environment = {
        "tracer_core": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "threads": torch.get_num_threads(),
    }
    return {
        "schema": SCHEMA,
        "version": SCHEMA_VERSION,
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "environment": environment,
        "summary": summary(rows),
        "functions": rows,
    }


def _function(number: int, compiled: CompiledFunction) -> dict[str, Any]:
    code = getattr(compiled.function, "__code__", None)
    stages, records = history_of(compiled), list(compiled.records)
    compiles = _compiles(compiled, records, stages)
    names = {record.name for record in records}
    result: dict[str, Any] = {
        "id": f"f{number}",
        "name": name_of(compiled.function, compiled.config, compiled),
        "file": "" if code is None or compiled.module_class else code.co_filename,
        "line": 0 if code is None else code.co_firstlineno,
        "backend": compiled.config.backend.name,
        "mode": compiled.config.mode,
        "graphs": [_graph(record) for record in records],
        "loaded": [_loaded(entry) for entry in compiled.loaded],
        "breaks": _breaks(compiled, records),
        **compiles,
        "eager": [{"what": what, "why": why} for what, why in eager_parts(compiled)],
        "guards": [_guards(record) for record in records],
        "recompiles": [asdict(recompile) for recompile in recompiles(compiled)],
        "stages": [_stage(record) for record in stages],
        "cache": [*_cache(compiled, stages)],
        "verdicts": [_verdict(verdict) for verdict in compiled.verdicts],
        "choices": _choices(compiled),
        "limits": list(map(str, crossings(compiled))),
        "runs": [{"graph": graph, "text": text} for graph, text in runs(compiled.config, names)],
        "background": [
            {"graph": item.graph, "text": item.text, "seconds": item.seconds}
            for item in compiled.compilations
        ],
    }
    return result


def _add_times(rows: Sequence[dict[str, Any]], profile: Any) -> None:
    """Fills in what a profile measured: seconds, and the share of the memory's bandwidth."""
    names = {item["name"] for row in rows for item in [*row["graphs"], *row["loaded"]]}
    times = Times(profile, names)
    for row in rows:
        for item in [*row["kernels"], *row["operators"]]:
            item["seconds"] = times.of(item["graph"], item["rows"])
        for item in row["breaks"]:
            item["seconds"] = times.of("", item["rows"])
        for item in row["kernels"]:
            if item["seconds"]:
                limit = bandwidth("cuda" if item["blocks"] else "cpu")
                item["share"] = item["bytes"] / item["seconds"] / limit


# Graphs and lines of source


def frame(text: str | None) -> dict[str, Any]:
    """Returns file, line, function and source of ``"file.py:12 in forward"``."""
    match = _FRAME.fullmatch(text or "")
    if match is None:
        return {"frame": text or "", "file": "", "line": 0, "function": "", "source": []}
    file, line = match["file"], int(match["line"])
    return {"frame": text, "file": file, "line": line, "function": match["function"],
            "source": _source(file, line)}  # fmt: skip


@functools.lru_cache(maxsize=4096)
def _lines(file: str) -> tuple[str, ...]:
    return tuple(linecache.getlines(file))


def _source(file: str, line: int) -> list[dict[str, Any]]:
    lines = _lines(file)
    first, last = max(1, line - CONTEXT), min(len(lines), line + CONTEXT)
    return [
        {"line": number, "text": lines[number - 1].rstrip("\n"), "is_meant": number == line}
        for number in range(first, last + 1)
    ]


def _at(text: str | None) -> dict[str, Any]:
    """Returns `frame` with the line itself alone."""
    result = frame(text)
    (line,) = [item["text"].strip() for item in result.pop("source") if item["is_meant"]] or ("",)
    return {**result, "code": line}


def _graph(record: Captured) -> dict[str, Any]:
    nodes = [] if record.graph is None else list(record.graph.graph.nodes)
    rows: list[dict[str, Any]] = []
    for node in nodes:
        if node.op in ("placeholder", "output"):
            continue
        where = node.meta.get("user_frame")
        if not rows or rows[-1]["frame"] != (where or ""):
            rows.append({**_at(where), "nodes": []})
        rows[-1]["nodes"].append(node.format_node() or str(node))
    return {
        "name": record.name,
        "operators": record.op_count,
        "inputs": sum(node.op == "placeholder" for node in nodes),
        "ends_with": "" if record.break_ is None else record.break_.location,
        "speculated": list(record.speculated),
        "sizes": {name: list(shape) for name, shape in record.shapes.items()},
        "lines": rows,
    }


def _loaded(entry: Any) -> dict[str, Any]:
    return {"name": entry.name, "operators": entry.op_count, "conditions": entry.conditions(),
            "speculated": list(entry.speculated)}  # fmt: skip


def _guards(record: Captured) -> dict[str, Any]:
    return {
        "graph": record.name,
        "sources": [
            {"source": source, "guards": texts}
            for source, texts in record.check_first.by_object().items()
        ],
        "lines": [
            {**_at(line), "guards": texts} for line, texts in record.check_first.by_line().items()
        ],
    }


# Breaks


def _breaks(compiled: CompiledFunction, records: Sequence[Captured]) -> list[dict[str, Any]]:
    counts = Counter(compiled.breaks)
    chains = {record.break_: _chain(record) for record in reversed(records) if record.break_}
    return [
        {
            "kind": item.kind,
            "reason": item.reason,
            "remedy": item.hint,
            "times": times,
            "seconds": None,
            "rows": [break_row(place) for place in (item.location, item.library) if place],
            "chain": chains.get(item, []),
            "library": _at(item.library) if item.library else None,
            **frame(item.location),
        }
        for item, times in counts.items()
    ]


def _chain(record: Captured) -> list[dict[str, Any]]:
    """The calls that lead to the break of an entry, the outermost first."""
    resume = [item for item in record.constants.values() if isinstance(item, ResumeFunction)]
    if len(resume) != 1:
        return []
    return [
        _at(f"{layout.code.co_filename}:{_line(layout)} in {layout.code.co_qualname}")
        for layout in resume[0].layouts
    ]


def _line(layout: Any) -> int:
    rows = instructions(layout.code)
    known = rows[layout.ip].line if layout.ip < len(rows) else 0
    return known or int(layout.code.co_firstlineno)


# Stages and what backends add to them


def _stage(record: StageRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "graph": record.graph,
        "begin": record.begin,
        "seconds": record.seconds,
        "depth": record.depth,
        "text": record.text,
    }


def _compiles(
    compiled: CompiledFunction, records: Sequence[Captured], stages: Sequence[StageRecord]
) -> dict[str, list[dict[str, Any]]]:
    """The kernels, operator calls and memory plans that backends recorded with stages."""
    kernels: dict[tuple[str, str], dict[str, Any]] = {}
    result: dict[str, list[dict[str, Any]]] = {"kernels": [], "operators": [], "memory": []}
    for record in stages:
        data = record.data or {}
        for row in data.get("kernels", ()):
            key = (record.graph, row["name"])
            if (known := kernels.get(key)) is not None:
                known["launches"] += 1
                known["rows"] += [item for item in _rows(row) if item not in known["rows"]]
                lines = [item["frame"] for item in known["lines"]]
                known["lines"] += [_at(item) for item in row["frames"] if item not in lines]
                continue
            kernels[key] = {
                "graph": record.graph, "name": row["name"], "operators": list(row["operators"]),
                "loops": row["loops"], "blocks": dict(row["blocks"]), "bytes": row["nbytes"],
                "launches": 1, "code": row["code"], "lines": [_at(item) for item in row["frames"]],
                "rows": _rows(row), "seconds": None, "share": None,
            }  # fmt: skip
        for row in data.get("operators", ()):
            lines = [_at(item) for item in row["frames"]]
            chosen = {name: row[name] for name in ("operator", "kernel", "reason", "is_aten")}
            result["operators"].append({"graph": record.graph, **chosen, "lines": lines,
                                        "rows": _rows(row), "seconds": None})  # fmt: skip
        if memory := data.get("memory"):
            result["memory"].append({"graph": record.graph, **memory})
    result["kernels"] += kernels.values()
    return result


def _rows(row: Mapping[str, Any]) -> list[str]:
    """Returns the names that a kernel or operator call has in a profile."""
    return [row["row"]] if row.get("row") else []


def _cache(compiled: CompiledFunction, stages: Sequence[StageRecord]) -> Iterable[str]:
    """Hits and misses of the persistent cache, and those that backends recorded."""
    yield from (line for line in compiled.persistent_cache.outcome.split("; ") if line)
    for record in stages:
        yield from (f"{record.graph}: {line}" for line in (record.data or {}).get("cache", ()))


def _verdict(verdict: Verdict) -> dict[str, Any]:
    measured = {"compiled": verdict.compiled, "eager": verdict.eager, "captures": verdict.captures}
    speed = verdict.eager / verdict.compiled if verdict.compiled and not verdict.captures else None
    return {**measured, "runs": "eager" if verdict.native else "compiled", "speed": speed,
            "with_backward": verdict.with_backward, "text": str(verdict)}  # fmt: skip


def _choices(compiled: CompiledFunction) -> list[dict[str, Any]]:
    plan = plan_of(compiled.config)
    choices = [] if plan is None else [trial.choice() for trial in plan.trials]
    return [
        {"graph": item.graph, "decided": item.decided, "remembered": item.remembered,
         "rows": [asdict(row) for row in item.rows]}
        for item in choices
    ]  # fmt: skip


def _not_recorded(row: dict[str, Any]) -> Iterable[str]:
    """What the report lacks, and why."""
    if not row["verdicts"]:
        yield "speed beside eager mode: no calls were compared with eager ones in this process"
    if row["graphs"] and not row["kernels"]:
        yield f"kernels: backend {row['backend']!r} records none"
    if row["kernels"] and not any(item["seconds"] for item in row["kernels"]):
        yield "time of single kernels: profile= takes a torch.profiler.profile of some calls"
    if row["loaded"]:
        yield "graphs and kernels of entries that an earlier process captured: they are not stored"
    if any(not item["chain"] for item in row["breaks"]):
        yield "calls that lead to a break of an earlier process"
