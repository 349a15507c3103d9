"""A program compiled for an engine's backend without the tracer."""

from __future__ import annotations

import torch

from tracer_core.dispatch.compile_graph import compile_graph
from tracer_core.dispatch.validation import build_config
from tracer_core.testing import torch_graph


def compiled(backend, fn, *inputs, dynamic=False, **options):
    """(runner, what it takes after the inputs: parameters and constants)."""
    with torch.no_grad():
        captured = torch_graph(fn, inputs, dynamic=dynamic)
        runner = compile_graph(captured, build_config(backend=backend, options=options or None))
    return runner, list(captured.real_inputs[len(inputs) :])


def peak_growth(work):
    """Megabytes by which memory rose above what it is now while `work` ran (Linux)."""

    def now(field):
        lines = open("/proc/self/status").read().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024

    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak starts anew
    before = now("VmRSS")
    kept = work()
    del kept
    return now("VmHWM") - before
