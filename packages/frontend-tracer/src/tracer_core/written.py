"""Autograd is told what a graph writes to.

In: a backend's runner and its `CompileSpec`. Out: a runner that counts up the version of each input that the graph
writes to. What always holds: after a call, whoever compares versions sees the write: a backward that saved the tensor
raises as it does in eager mode, and constants made from it are made again. Kernels of a backend write through
addresses, which autograd does not see; operators of torch count by themselves, and a second count does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tracer_core.plugin_api import CompileSpec, Runner


def versions_counted(run: Runner, spec: CompileSpec) -> Runner:
    """`run` itself where the graph writes to no input."""
    if not spec.mutations:
        return run
    mutations = spec.mutations

    def call(inputs: list[Any]) -> Sequence[Any]:
        # before the call: a runner may clear the list that it gets
        written = [inputs[index] for index in mutations]
        torch.autograd.graph.increment_version([one for one in written if not one.is_inference()])
        return run(inputs)

    return call
