"""What a test asks a compiled function about itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import tracer_core
from tracer_core import markers


def records_of(compiled: Any) -> list[Any]:
    """The captured variants of what `compile()` returned."""
    behind = markers.compiled(compiled)
    assert behind is not None, "not a compiled object"
    return behind.function.records


def captured_graphs(compiled: Any) -> list[Any]:
    """Its torch-level graphs."""
    return [record.graph for record in records_of(compiled) if record.graph is not None]


@dataclass(frozen=True)
class Kernels:
    """What the inductor made for a compiled function. count: kernels run a call. different: after
    equal ones were merged. loads, stores: in the bodies of all. uses_arena: there are intermediate
    buffers. externs: operators called."""

    count: int
    different: int
    loads: int
    stores: int
    uses_arena: bool
    externs: tuple[str, ...]


def kernels_of(compiled: Any) -> Kernels:
    """The kernels of every graph; TRACER_DEBUG must be set while it is compiled."""
    artifacts = []
    for record in records_of(compiled):
        parts = None if record.runner is None else record.runner.artifacts
        if parts is not None:
            artifacts.append(parts.runner.artifact)
    bodies = [r.text for r in tracer_core.last_compile(compiled) if r.name == "inductor_bodies"]
    assert all(bodies), "set TRACER_DEBUG"
    text = "\n".join(bodies)
    return Kernels(
        count=sum(a.kernels for a in artifacts),
        different=sum(a.different_kernels for a in artifacts),
        loads=len(re.findall(r"= load\(", text)),
        stores=len(re.findall(r"^ +loop: \w+\[.*\] = ", text, re.MULTILINE)),
        uses_arena=any("arena = " in a.text for a in artifacts),
        externs=tuple(name for a in artifacts for name in a.externs),
    )
