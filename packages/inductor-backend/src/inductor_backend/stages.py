"""Runs the stages of a compilation."""

from __future__ import annotations

import time

import torch

from inductor_backend.compilation import Compilation, Stage
from inductor_backend.device_codegen import codegen_of
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.target import target_of
from inductor_backend.options import InductorOptions
from tracer_core.plugin_api import (
    BackendError,
    CompilerMissingError,
    CompileSpec,
    RequirementError,
    env,
    stage,
    wants_text,
)


def start(gm: torch.fx.GraphModule, spec: CompileSpec, stages: tuple[Stage, ...]) -> Compilation:
    """Returns the compilation of a graph, before its first stage."""
    options = spec.options if isinstance(spec.options, InductorOptions) else InductorOptions()
    return Compilation(
        gm, spec, options, SizeVars(spec.sizes), gm, target=target_of(gm.graph), stages=stages
    )


def run_stages(c: Compilation, until: str | None = None, first: str | None = None) -> Compilation:
    """Runs the stages in order. first, until: names of the first and last to run (None: the
    pipeline's). Raises BackendError naming stage and cause."""
    check = env().check
    names = [item.name for item in c.stages]
    begin, end = names.index(first or names[0]), names.index(until or names[-1])
    steps = [item for item in c.stages[begin : end + 1] if item.is_for(c)]
    for number, item in enumerate(steps, 1):
        before = time.perf_counter()
        suffix = item.suffix or codegen_of(c.target).suffix
        with stage(f"inductor_{item.name}", graph=c.spec.name, suffix=f".{suffix}") as record:
            try:
                # the caller's autocast would give new nodes the fake results of other dtypes
                with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
                    item.run(c)
                if check and item.verify is not None:
                    item.verify(c)
            except (CompilerMissingError, RequirementError):
                raise
            except Exception as error:
                detail, dump = f"{type(error).__name__}: {error}", None
                if isinstance(error, BackendError):
                    detail, dump = error.detail, error.dump
                where = (
                    f"inductor stage {number}/{len(steps)} {item.name!r} failed on {c.spec.name}"
                )
                raise BackendError("inductor", item.name, f"{where}: {detail}", dump) from error
            if item.dump is not None and wants_text():
                record.text = item.dump(c)
            elif item.brief is not None:
                record.text = item.brief(c)
            if item.data is not None:
                record.data = item.data(c)
        c.seconds[item.name] = time.perf_counter() - before
    return c
