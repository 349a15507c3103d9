"""The summary of a report: a few sentences and numbers for people who do not know the compiler."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tracer_core.debug.notebook import count


def summary(functions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the numbers and the sentences; the first sentence is for one line."""
    numbers: dict[str, Any] = {
        "functions": len(functions),
        "graphs": _sum(functions, "graphs"),
        "loaded": _sum(functions, "loaded"),
        "operators": sum(item["operators"] for row in functions for item in [*row["graphs"], *row["loaded"]]),
        "breaks": _sum(functions, "breaks"),
        "kernels": _sum(functions, "kernels"),
        "recompiles": _sum(functions, "recompiles"),
        "eager": _sum(functions, "eager"),
        "compile_seconds": sum(
            item["seconds"] for row in functions for item in row["stages"] if item["depth"] == 0
        ),
    }  # fmt: skip
    sentences = [_first(numbers), _ran_eagerly(functions), _speed(functions)]
    return {**numbers, "sentences": [*sentences, *_slowest(functions), _hurts(functions)]}


def _sum(functions: Sequence[Mapping[str, Any]], part: str) -> int:
    return sum(len(row[part]) for row in functions)


def _first(numbers: Mapping[str, Any]) -> str:
    text = (
        f"{count(numbers['functions'], 'compiled function')}: {count(numbers['graphs'], 'graph')}"
        f" captured, with {count(numbers['operators'], 'operator')}, {count(numbers['breaks'], 'graph break')}"
        f" and {count(numbers['recompiles'], 'recompile')}; compiling took {numbers['compile_seconds']:.1f} s."
    )  # fmt: skip
    if numbers["loaded"]:
        text += f" {count(numbers['loaded'], 'graph')} came from an earlier process."
    return text


def _ran_eagerly(functions: Sequence[Mapping[str, Any]]) -> str:
    reasons = [item for row in functions for item in row["eager"]]
    aten = sum(item["is_aten"] for row in functions for item in row["operators"])
    text = (
        f"In eager mode: {count(len(reasons), 'part')}; the first: {reasons[0]['why']}."
        if reasons
        else "Nothing is known to run in eager mode, but what stands at graph breaks."
        if any(row["breaks"] for row in functions)
        else "Nothing is known to run in eager mode."
    )
    return f"{text} Graphs call ATen for {count(aten, 'operator')}." if aten else text


def _speed(functions: Sequence[Mapping[str, Any]]) -> str:
    """The last comparison of each function with eager mode."""
    last = [row["verdicts"][-1] for row in functions if row["verdicts"]]
    speeds = [verdict["speed"] for verdict in last if verdict["speed"]]
    if not speeds:
        return "Speed relative to eager mode was not measured in this process."
    mean = math.exp(sum(map(math.log, speeds)) / len(speeds))
    many = f", the geometric mean of {len(speeds)} functions" if len(speeds) > 1 else ""
    stays = sum(verdict["runs"] == "eager" for verdict in last)
    eager = f" {count(stays, 'function')} stayed in eager mode, which was faster." if stays else ""
    return f"Compiled calls ran at {mean:.2f} times eager's speed{many}, measured in calls.{eager}"


def _slowest(functions: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """The kernel or operator that takes most of a call's time, where a profile has times."""
    times: Counter[tuple[str, ...]] = Counter()
    for item in [item for row in functions for item in [*row["kernels"], *row["operators"]]]:
        if item["seconds"]:
            key = item.get("name") or item["operator"], *(at["frame"] for at in item["lines"][:1])
            times[key] += item["seconds"] * item.get("launches", 1)
    for key, seconds in times.most_common(1):
        share = seconds / times.total()
        yield f"The slowest kernel is {' at '.join(key)}: {share:.0%} of all kernels' time."


def _problems(functions: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """What costs speed, the worst first."""
    for row in functions:
        for item in row["eager"]:
            if item["what"] == "the function":
                yield f"{row['name']} runs in eager mode: {item['why']}"
    for row in functions:
        for item in row["eager"]:
            yield f"{row['name']}: {item['why']}"
    for row in functions:
        for limit in row["limits"]:
            yield f"{row['name']} reached a limit: {limit}"
    breaks = [item for row in functions for item in row["breaks"]]
    for item in sorted(breaks, key=lambda each: -each["times"])[:1]:
        yield f"the graph break at {item['frame']}: {item['reason']}; what helps: {item['remedy']}"
    for row in functions:
        if row["recompiles"]:
            last = row["recompiles"][-1]
            times = count(len(row["recompiles"]), "time")
            yield f"{row['name']} was compiled again {times}, the last time because {last['reason']}"
    stages = [item for row in functions for item in row["stages"] if item["depth"] == 0]
    if stages:
        longest = max(stages, key=lambda item: item["seconds"])
        yield f"the first call: its longest stage is {longest['name']}, {longest['seconds']:.1f} s"


def _hurts(functions: Sequence[Mapping[str, Any]]) -> str:
    worst = next(iter(_problems(functions)), None)
    return "Nothing was recorded that hurts." if worst is None else f"What hurts most: {worst}."
