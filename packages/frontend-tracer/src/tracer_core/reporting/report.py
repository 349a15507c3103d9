"""`report`: what is known of compiled functions, as HTML, JSON or a Chrome trace.

In: a compiled object, or all of the process (``TRACER_REPORT``). Out: a `Report`, or a file whose
form its suffix decides.
"""

from __future__ import annotations

import atexit
import functools
import html
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracer_core.debug.logs import logger
from tracer_core.errors import OptionError, TracerError
from tracer_core.markers import compiled
from tracer_core.options import REPORT_SUFFIXES
from tracer_core.variable_table import VARIABLES

if TYPE_CHECKING:
    import torch

    from tracer_core.execution.compiled_function import CompiledFunction

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True)
class Report:
    """What `report` returns. ``print`` shows the summary, a notebook the page."""

    #: What the other forms are made from; docs/report.md describes it.
    data: Mapping[str, Any] = field(repr=False)

    def __str__(self) -> str:
        return "\n".join(self.data["summary"]["sentences"])

    def _repr_html_(self) -> str:
        page = html.escape(self.to_html(), quote=True)
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 720px; border: 0"></iframe>'

    def to_json(self) -> str:
        """Returns the data as JSON."""
        return json.dumps(self.data, indent=1)

    def to_html(self) -> str:
        """Returns one page that needs no other file and no network."""
        style, script = (
            (_TEMPLATES / f"report.{kind}").read_text("utf-8") for kind in ("css", "js")
        )
        template = _environment().get_template("report.html.j2")
        return str(template.render(report=self.data, style=style, script=script))

    def to_chrome_trace(self) -> str:
        """Returns the stages and recompiles as events for chrome://tracing and Perfetto."""
        return json.dumps({"traceEvents": list(_events(self.data)), "displayTimeUnit": "ms"})


def report(
    fn: Callable[..., Any],
    path: str | os.PathLike[str] | None = None,
    *,
    profile: torch.profiler.profile | None = None,
) -> Report:
    """Reports what is known of a compiled object: graphs, breaks, kernels, guards, recompiles, stages.

    Nothing is run, compiled or measured for it; what was not recorded is left out, and the report
    says so. ``TRACER_REPORT=file.html`` writes one for all compiled functions when the process ends.

    Args:
        fn: What `compile` returned.
        path: The file to write: a page (``.html``), JSON (``.json``) or a Chrome trace of the
            stages (``.trace.json``). None: no file.
        profile: A ``torch.profiler.profile`` of some calls that has ended. The report then has the
            time of kernels, operators and graph breaks, and the share of the memory's bandwidth,
            which a copy measures once.

    Returns:
        A `Report`; ``print`` shows its summary.

    Raises:
        OptionError: `fn` is not a compiled object, `path` has another suffix, or `profile` is no
            profile that has ended.
        TracerError: The file cannot be written.

    Examples:
        >>> fast = tracer_core.compile(model)
        >>> fast(x)
        >>> print(tracer_core.report(fast, "model.html"))
    """
    behind = compiled(fn)
    if behind is None:
        raise OptionError(f"report needs what compile() returned, not {fn!r}")
    if path is not None:
        _form(path)
    result = _report([behind.function], profile)
    if path is not None:
        write(result, path)
    return result


def write(result: Report, path: str | os.PathLike[str]) -> None:
    """Writes a report in the form of the path's suffix.

    Raises:
        OptionError: The suffix is unknown.
        TracerError: The file cannot be written.
    """
    text = _form(path)(result)
    try:
        # A name of the program may not be encodable.
        Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise TracerError(
            f"the report cannot be written to {os.fspath(path)!r} ({error.strerror or error}):"
            " name a file in a folder that exists and may be written to"
        ) from error


#: Suffix of a file -> what makes its text.
_FORMS: Mapping[str, Callable[[Report], str]] = {
    ".trace.json": Report.to_chrome_trace, ".json": Report.to_json, ".html": Report.to_html,
}  # fmt: skip


def _form(path: str | os.PathLike[str]) -> Callable[[Report], str]:
    name = os.fspath(path)
    for suffix in REPORT_SUFFIXES:
        if name.lower().endswith(suffix):
            return _FORMS[suffix]
    known = ", ".join(REPORT_SUFFIXES)
    raise OptionError(f"path={name!r}: a report's file ends in one of {known}")


def _report(functions: Sequence[CompiledFunction], profile: Any = None) -> Report:
    from tracer_core.reporting.collect import collect  # heavy: the tracer

    return Report(collect(functions, profile))


@functools.cache
def _environment() -> Any:
    import jinja2

    result = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    result.filters |= {"seconds": _seconds, "bytes": _bytes, "slowest": _slowest}
    result.globals["flames"] = _flames
    return result


def _seconds(value: float) -> str:
    scale, unit = (1.0, "s") if value >= 1 else (1e3, "ms") if value >= 1e-3 else (1e6, "µs")
    return f"{value * scale:.3g} {unit}"


def _slowest(kernels: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns kernels by the time of all their launches, where it is known."""
    return sorted(kernels, key=lambda item: -(item["seconds"] or 0.0) * item["launches"])


def _bytes(value: float) -> str:
    for unit in ("B", "KB", "MB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


def _flames(stages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns a flame chart for each graph: its bars with x and width in percent."""
    by_graph: dict[str, list[Mapping[str, Any]]] = {}
    for item in stages:
        by_graph.setdefault(item["graph"], []).append(item)
    result = []
    for graph, items in by_graph.items():
        begin = min(item["begin"] for item in items)
        total = max(item["begin"] + item["seconds"] for item in items) - begin
        bars = [
            {"x": 100 * (item["begin"] - begin) / (total or 1.0),
             "width": max(0.05, 100 * item["seconds"] / (total or 1.0)), **item}
            for item in items
        ]  # fmt: skip
        depth = 1 + max(item["depth"] for item in items)
        result.append({"graph": graph, "seconds": total, "depth": depth, "bars": bars})
    return result


def _events(data: Mapping[str, Any]) -> Any:
    for number, row in enumerate(data["functions"]):
        common = {"pid": os.getpid(), "tid": number}
        yield {"ph": "M", "name": "thread_name", **common, "args": {"name": row["name"]}}
        for item in row["stages"]:
            yield {"ph": "X", "name": item["name"], "cat": "stage", "ts": item["begin"] * 1e6,
                   "dur": item["seconds"] * 1e6, **common,
                   "args": {"graph": item["graph"], "text": item["text"]}}  # fmt: skip
        for item in row["recompiles"]:
            yield {"ph": "i", "s": "t", "name": "recompile", "cat": "recompile",
                   "ts": item["begin"] * 1e6, **common, "args": {"reason": item["reason"]}}  # fmt: skip


# The whole process


def _at_exit() -> None:
    """Writes the report of TRACER_REPORT.

    A process that called no compiled function writes none: the file may be that of its parent.
    """
    runtime = sys.modules.get("tracer_core.execution.compiled_function")
    functions = [] if runtime is None else runtime.reported()
    called = [each for each in functions if each.records or each.loaded or each.abandoned]
    if not called:
        return
    try:
        path = VARIABLES["TRACER_REPORT"].read()
        if path is not None:
            write(_report(called), path.replace("{pid}", str(os.getpid())))
    except TracerError as error:
        logger().error("TRACER_REPORT: %s", error)


atexit.register(_at_exit)
