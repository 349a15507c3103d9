"""Aligns two compilers' kernels of one program, and says what their difference consists of.

In: the launches of one step of each, in the order in which the device ran them, as a profiler names
them. Library calls that both make (matmuls, convolutions, attention) are matched in order; what runs
between two of them computes the same in both, however it is divided into kernels.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Literal

KernelClass = Literal[
    "convolution", "attention", "recurrent", "matmul", "copy", "generated", "reduction", "aten"
]

#: Kernel class -> names of its kernels; the first that fits counts. What fits none is ATen's.
_CLASSES: tuple[tuple[KernelClass, re.Pattern[str]], ...] = (
    ("reduction", re.compile(r"^triton_(per|red)_")),
    ("matmul", re.compile(r"^triton_tem_")),
    ("generated", re.compile(r"^(triton_|fused_)")),
    ("recurrent", re.compile(r"rnn|lstm|gru_", re.I)),
    ("convolution", re.compile(r"conv|cudnn|fprop|dgrad|wgrad|nchwToNhwc|nhwcToNchw", re.I)),
    ("attention", re.compile(r"flash|fmha|attention|sdpa", re.I)),
    ("matmul", re.compile(r"gemm|gemv|nvjet|cutlass|cublas|splitk|dot_kernel", re.I)),
    ("copy", re.compile(r"memcpy|memset", re.I)),
)

#: Classes whose kernels both compilers launch alike, so that they can be matched.
ANCHORS = frozenset({"convolution", "attention", "recurrent", "matmul"})

#: What the difference of two sections is put down to -> the file that decides it.
DECIDED_BY = {
    "idle device": "cudagraphs_backend/policy.py; the host's part: tracer_core/execution/",
    "matmul": "inductor_backend/passes/pad_matmul.py, lowering/matmul.py",
    "convolution": "inductor_backend/lowering/convolution.py, channels_last.py",
    "attention": "tracer_core/aot (decompositions), inductor_backend/passes/causal_mask.py",
    "recurrent": "tracer_core/aot (decompositions)",
    "operators left to ATen": "inductor_backend/lowering/fallback.py and the operator's lowering",
    "more kernels": "inductor_backend/schedule/fusion.py, split_reductions.py",
    "reductions": "inductor_backend/codegen/triton/block_sizes.py, schedule/split_reductions.py",
    "pointwise": "inductor_backend/codegen/triton/block_sizes.py",
}


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel on the device."""

    name: str
    microseconds: float
    #: Bytes that it must move; 0 where that is unknown.
    nbytes: int = 0
    #: Loops and blocks, as text.
    detail: str = ""
    #: Microseconds for which the device was idle before it.
    idle: float = 0.0

    @property
    def kind(self) -> KernelClass:
        reduces = self.name.startswith("fused_") and "*" in self.detail
        return "reduction" if reduces else class_of(self.name)

    @property
    def stem(self) -> str:
        """Returns the name without what numbers equal kernels: a last number or hash."""
        return re.sub(r"(_[0-9a-f]{6})?(_\d+)?$", "", self.name)


def class_of(name: str) -> KernelClass:
    """Returns the class of a kernel by its name."""
    return next((kind for kind, pattern in _CLASSES if pattern.search(name)), "aten")


@dataclass(slots=True)
class Section:
    """Equal stretches of a step: a matched library call, or what runs between two of them."""

    ours: list[Launch]
    theirs: list[Launch]
    count: int = 1

    @property
    def difference(self) -> float:
        """Returns the microseconds that ours takes longer."""
        return microseconds(self.ours) - microseconds(self.theirs)

    def add(self, other: Section) -> None:
        """Adds the times of an equal stretch."""
        self.ours = [_sum(a, b) for a, b in zip(self.ours, other.ours, strict=True)]
        self.theirs = [_sum(a, b) for a, b in zip(self.theirs, other.theirs, strict=True)]
        self.count += other.count

    def cause(self) -> str:
        """Returns what its difference is put down to: a key of `DECIDED_BY`."""
        kinds = {launch.kind for launch in self.ours} | {launch.kind for launch in self.theirs}
        anchors = sorted(kinds & ANCHORS)
        if anchors:
            return anchors[0]
        if "aten" in {launch.kind for launch in self.ours}:
            return "operators left to ATen"
        if len(self.ours) > len(self.theirs):
            return "more kernels"
        return "reductions" if "reduction" in kinds else "pointwise"


def microseconds(launches: Sequence[Launch]) -> float:
    return sum(launch.microseconds for launch in launches)


def _sum(a: Launch, b: Launch) -> Launch:
    return Launch(a.name, a.microseconds + b.microseconds, a.nbytes + b.nbytes, a.detail)


def own_times(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns for each (start, end) of kernels, in order of their starts, how long it runs behind the
    end of all earlier ones, and for how long nothing runs before it. A kernel may start while another
    ends, and waits then: what it waits is not its own."""
    result, last = [], spans[0][0] if spans else 0.0
    for start, end in spans:
        result.append((max(0.0, end - max(start, last)), max(0.0, start - last)))
        last = max(last, end)
    return result


def pauses(launches: Sequence[Launch]) -> list[tuple[str, int, float]]:
    """Returns between which kernels the device is idle, how often, and the sum of microseconds,
    largest first."""
    result: dict[str, list[float]] = defaultdict(list)
    for before, launch in zip([launches[-1], *launches], launches, strict=False):
        if launch.idle:
            result[f"{before.stem[:60]} -> {launch.stem[:60]}"].append(launch.idle)
    rows = [(between, len(times), sum(times)) for between, times in result.items()]
    return sorted(rows, key=lambda row: -row[2])


def align(ours: Sequence[Launch], theirs: Sequence[Launch]) -> list[Section]:
    """Returns the sections of a step, equal ones added up, largest difference first."""
    added: dict[tuple[tuple[str, ...], tuple[str, ...]], Section] = {}
    for section in _sections(ours, theirs):
        key = (tuple(x.stem for x in section.ours), tuple(x.stem for x in section.theirs))
        if key in added:
            added[key].add(section)
        else:
            added[key] = section
    return sorted(added.values(), key=lambda section: -abs(section.difference))


def _sections(ours: Sequence[Launch], theirs: Sequence[Launch]) -> Iterator[Section]:
    """Yields the sections in launch order."""
    places = [
        [place for place, launch in enumerate(launches) if launch.kind in ANCHORS]
        for launches in (ours, theirs)
    ]
    kinds = [
        [launches[place].kind for place in numbers]
        for launches, numbers in zip((ours, theirs), places, strict=True)
    ]
    begin = [0, 0]
    blocks = SequenceMatcher(None, kinds[0], kinds[1], autojunk=False).get_matching_blocks()
    for block in blocks:
        for step in range(block.size):
            a, b = places[0][block.a + step], places[1][block.b + step]
            yield from _section(ours[begin[0] : a], theirs[begin[1] : b])
            yield Section([ours[a]], [theirs[b]])
            begin = [a + 1, b + 1]
    yield from _section(ours[begin[0] :], theirs[begin[1] :])


def _section(ours: Sequence[Launch], theirs: Sequence[Launch]) -> Iterator[Section]:
    if ours or theirs:
        yield Section(list(ours), list(theirs))


@dataclass(slots=True)
class Cause:
    """A part of the difference. Mutable: sections are added."""

    ours: float = 0.0
    theirs: float = 0.0
    #: Kernels of ours and of theirs.
    kernels: list[int] = field(default_factory=lambda: [0, 0])


def causes(sections: Sequence[Section]) -> dict[str, Cause]:
    """Returns what the difference consists of, in microseconds, largest first."""
    result: dict[str, Cause] = defaultdict(Cause)
    for section in sections:
        cause = result[section.cause()]
        cause.ours += microseconds(section.ours)
        cause.theirs += microseconds(section.theirs)
        cause.kernels[0] += section.count * len(section.ours)
        cause.kernels[1] += section.count * len(section.theirs)
    return dict(sorted(result.items(), key=lambda item: item[1].theirs - item[1].ours))
