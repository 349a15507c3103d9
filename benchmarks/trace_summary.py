"""What the traces of distributed_steps say of a step: which stream was busy, for how long, what
overlapped, and what the host did meanwhile.

``STEPS_PROFILE=FOLDER python -m benchmarks distributed_steps ...`` writes a trace a row;
``python -m benchmarks.trace_summary FOLDER`` prints a table of them. Busy times are of the union of
kernels. "gaps": the compute stream has nothing to do; "exposed": of these, while a collective runs.
"waits": calls of the host that wait for the device, and the milliseconds in them.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.timing import table

Interval = tuple[float, float]
#: Calls of CUDA's runtime in which the host waits, or that wait for the device.
_WAITS = ("Synchronize", "cudaMalloc", "cudaFree", "cuMemAlloc", "cuMemFree", "cudaHostAlloc")
_COLLECTIVES = ("nccl",)


def main(arguments: list[str]) -> int:
    """Prints the table, and for each trace the longest gaps and the dearest calls of the host."""
    paths = sorted(path for folder in arguments for path in Path(folder).glob("*.json"))
    result = {path.stem: _Summary(json.loads(path.read_text(encoding="utf-8"))) for path in paths}
    head = ["trace", "step ms", "compute ms", "gaps ms", "collectives ms", "exposed ms", "kernels",
            "host calls", "launching ms", "waits", "waiting ms"]  # fmt: skip
    print(table(head, [[name, *item.cells()] for name, item in result.items()]))
    for name, item in result.items():
        print(f"\n{name}\n" + "\n".join(item.details()))
    return 0


class _Summary:
    """One trace."""

    def __init__(self, trace: Any) -> None:
        events = [item for item in trace["traceEvents"] if item.get("ph") == "X"]
        self.kinds: dict[str, list[Any]] = defaultdict(list)
        for event in events:
            self.kinds[event.get("cat", "")].append(event)
        kernels = [*self.kinds["kernel"], *self.kinds["gpu_memcpy"], *self.kinds["gpu_memset"]]
        self.collectives = [kernel for kernel in kernels if _is_collective(kernel)]
        rest = [kernel for kernel in kernels if not _is_collective(kernel)]
        streams = Counter(item["tid"] for item in rest)
        self.main = streams.most_common(1)[0][0] if streams else None
        self.compute = [item for item in rest if item["tid"] == self.main]
        self.kernels = kernels
        self.runtime = [*self.kinds["cuda_runtime"], *self.kinds["cuda_driver"]]
        self.busy = _union(map(_interval, self.compute))
        self.between = _gaps(self.busy)

    def cells(self) -> list[str]:
        sent = _union(map(_interval, self.collectives))
        exposed = sum(_length(_cut(sent, gap)) for gap in self.between)
        launching = [item for item in self.runtime if "Launch" in item["name"]]
        waits = [item for item in self.runtime if any(name in item["name"] for name in _WAITS)]
        full = _union(map(_interval, [*self.kernels, *self.kinds["cpu_op"]]))
        wall = full[-1][1] - full[0][0] if full else 0.0
        milliseconds = (wall, _length(self.busy), _length(self.between), _length(sent), exposed)
        return [
            *(f"{millisecond / 1e3:.2f}" for millisecond in milliseconds), str(len(self.kernels)),
            str(len(self.runtime)), f"{_time(launching):.2f}", str(len(waits)), f"{_time(waits):.2f}",
        ]  # fmt: skip

    def details(self) -> list[str]:
        """The longest gaps, with what the host did; the dearest calls; kernels by time."""
        host = sorted(
            self.kinds["cpu_op"] + self.kinds["user_annotation"], key=lambda value: value["ts"]
        )
        lines = ["  longest gaps of the compute stream, and what the host was in:"]
        for gap in sorted(self.between, key=lambda value: value[0] - value[1])[:12]:
            inside = [
                item for item in host if item["ts"] < gap[1] and item["ts"] + item["dur"] > gap[0]
            ]
            longest = sorted(inside, key=lambda value: -_overlap(_interval(value), gap))[:4]
            names = ", ".join(str(item["name"])[:60] for item in longest)
            lines.append(f"    {(gap[1] - gap[0]) / 1e3:.3f} ms  {names}")
        for title, events in (("calls of CUDA", self.runtime), ("kernels", self.kernels),
                              ("operators", self.kinds["cpu_op"]),
                              ("regions", self.kinds["user_annotation"])):  # fmt: skip
            times: Counter[str] = Counter()
            counts: Counter[str] = Counter()
            for event in events:
                times[str(event["name"])[:70]] += event["dur"]
                counts[str(event["name"])[:70]] += 1
            lines.append(f"  {title}:")
            lines += [
                f"    {time / 1e3:8.3f} ms  {counts[name]:5d} x {name}"
                for name, time in times.most_common(14)
            ]
        return lines


def _is_collective(event: Any) -> bool:
    return any(name in event["name"].lower() for name in _COLLECTIVES)


def _interval(event: Any) -> Interval:
    return event["ts"], event["ts"] + event["dur"]


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    result: list[Interval] = []
    for begin, end in sorted(intervals):
        if result and begin <= result[-1][1]:
            result[-1] = result[-1][0], max(end, result[-1][1])
        else:
            result.append((begin, end))
    return result


def _gaps(busy: list[Interval]) -> list[Interval]:
    return [(item[1], other[0]) for item, other in zip(busy, busy[1:], strict=False)]


def _cut(intervals: list[Interval], window: Interval) -> list[Interval]:
    cut = ((max(begin, window[0]), min(end, window[1])) for begin, end in intervals)
    return [item for item in cut if item[0] < item[1]]


def _overlap(interval: Interval, other: Interval) -> float:
    return max(0.0, min(interval[1], other[1]) - max(interval[0], other[0]))


def _length(intervals: Iterable[Interval]) -> float:
    return sum(end - begin for begin, end in intervals)


def _time(events: Iterable[Any]) -> float:
    return sum(event["dur"] for event in events) / 1e3


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
