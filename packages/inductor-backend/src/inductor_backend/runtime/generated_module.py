"""Executes the text of a generated module, and makes its runner."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from inductor_backend.runtime.module_runner import MUTATED_ON_ERROR, SCALARS, ModuleRunner
from tracer_core.plugin_api import define

#: What a call of cuDNN's recurrent layers or of their gradients counts as in `ModuleRunner.launches`: they
#: launch kernels for each step of a sequence.
RECURRENT_LAUNCHES = 32


@dataclass(frozen=True, slots=True)
class Artifact:
    """What a runner was made from: module text, C++ sources, library (None: no kernels), counts."""

    text: str
    sources: tuple[str, ...]
    library: Any
    kernels: int
    different_kernels: int
    externs: tuple[str, ...]
    fallbacks: tuple[str, ...]
    seconds: dict[str, float]
    constants: dict[str, torch.Tensor]
    #: Its CUDA device, None: the CPU.
    device: str | None = None
    #: Hand-written native functions that the module calls.
    natives: tuple[str, ...] = ()
    #: Its Triton kernels (`runtime.cuda.triton_compile.Kernel`).
    gpu_kernels: tuple[Any, ...] = ()
    #: Whether all its sums add up in the same order in every run.
    deterministic: bool = True


def load_module(
    text: str, library: Any, constants: dict[str, torch.Tensor], name: str
) -> dict[str, Any]:
    """Executes a module's text and returns its namespace."""
    namespace: dict[str, Any] = {
        "__name__": f"inductor_{name}",
        "LIBRARY": library,
        "CONSTANTS": constants,
    }
    define("call", text, namespace, f"inductor {name}")
    return namespace


def runner_of(namespace: dict[str, Any], artifact: Artifact) -> ModuleRunner:
    """Returns the runner of an executed module."""
    if artifact.device is not None:
        from inductor_backend.runtime.cuda.build import LoadedKernel  # not where there is no GPU

        loaded = [kernel for kernel in namespace.values() if isinstance(kernel, LoadedKernel)]
        artifact = replace(artifact, gpu_kernels=tuple(kernel.kernel for kernel in loaded))
    mutated, scalars = namespace.get(MUTATED_ON_ERROR), namespace.get(SCALARS)
    return ModuleRunner(
        namespace["call"], mutated_on_error=None if mutated is None else frozenset(mutated),
        artifact=artifact, launches=_launches(artifact), scalars=scalars,
    )  # fmt: skip


def _launches(artifact: Artifact) -> int:
    """Returns about how many kernels a call launches."""
    recurrent = sum("cudnn_rnn" in name for name in artifact.externs)
    return artifact.kernels + len(artifact.externs) + RECURRENT_LAUNCHES * recurrent
