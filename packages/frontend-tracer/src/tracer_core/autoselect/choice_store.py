"""Choices on disk: the fastest correct candidate for a graph, a machine and a set of versions.

A stored choice only saves benchmarking: it is still verified against eager.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
from functools import cache

import torch

from tracer_core.aot.graph_content_key import canonical_text, distribution_version, value_source
from tracer_core.autoselect.candidates import Candidate, CandidatePlan
from tracer_core.autoselect.choice import BackendChoice, from_json
from tracer_core.contract.captured_graph import CapturedGraph
from tracer_core.contract.version import __version__
from tracer_core.debug.logs import logger, note
from tracer_core.storage.cache_location import CacheLocationError
from tracer_core.storage.processor import processor
from tracer_core.storage.store import Store

log = logger("cache")
_STORE = Store("auto")


def key_of(captured: CapturedGraph, plan: CandidatePlan) -> str:
    """Returns the key: equal for the same graph on the same sizes, candidates, machine and
    versions.
    """
    inputs = zip(captured.inputs, captured.real_inputs, strict=True)
    parts = [
        canonical_text(captured.gm.graph),
        str([(spec.role.value, value_source(value)) for spec, value in inputs]),
        f"needs grad {captured.needs_grad} tolerance {plan.options.tolerance}",
        *(_candidate_text(candidate) for candidate in plan.candidates),
        *(f"refused {row.name}" for row in plan.refused),
        machine(captured),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _candidate_text(candidate: Candidate) -> str:
    backend = candidate.config.backend
    distribution = distribution_version(backend)
    needed = _requirements(distribution.partition(" ")[0])
    mode, options = candidate.config.mode, candidate.config.options
    return f"{candidate.label} {mode} {options!r} {distribution} {needed}"


@cache
def _requirements(distribution: str) -> str:
    """Returns the versions of a distribution's requirements, which include its engine."""
    try:
        lines = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    result = []
    for name in sorted({match[0] for line in lines if (match := re.match(r"[\w.-]+", line))}):
        try:
            result.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(result)


def machine(captured: CapturedGraph) -> str:
    """Describes processor, threads, accelerators of the graph, and versions."""
    devices = {value.device for value in captured.real_inputs if isinstance(value, torch.Tensor)}
    # a process may be confined to some of the processors
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    names = sorted(torch.cuda.get_device_name(d) for d in devices if d.type == "cuda")
    return (
        f"{processor()} {torch.backends.cpu.get_cpu_capability()} of {usable},"
        f" {torch.get_num_threads()} threads; {names}; torch {torch.__version__}, tracer-core"
        f" {__version__}, Python {platform.python_version()}"
    )


def recall(key: str, graph: str) -> BackendChoice | None:
    """Returns the choice stored under a key, or None."""
    try:
        data = _STORE.read(key)
        if data is None:
            note("cache", "auto %s: miss: no choice of an earlier process", key)
            return None
        result = from_json(graph, json.loads(data))
    except (CacheLocationError, ValueError) as error:
        log.warning("auto %s: miss: %s", key, error)
        return None
    note("cache", "auto %s: hit: %s", key, result.chosen)
    return result


def keep(key: str, choice: BackendChoice) -> None:
    """Stores a choice; a failure is logged, and the next process benchmarks again."""
    try:
        _STORE.write(key, json.dumps(choice.to_json(), indent=1).encode())
    except CacheLocationError as error:
        log.warning("auto %s: not kept: %s", key, error)
