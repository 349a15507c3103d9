"""Compiles a Relax module: fuses it, schedules it and builds an executable of TVM's virtual
machine.

Schedules come from the record database where it has one, then from this package's rules for the
CPU, then from TVM's. Nothing is tuned unless the options ask for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tracer_core.plugin_api import BackendError
from tvm_backend import schedules, tuning
from tvm_backend.options import Options

NAME = "tvm"
#: How LLVM's names of vector instructions begin that a virtual machine may hide.
_VECTORS = ("avx", "amx", "fma", "gfni", "vaes", "vpclmul")


def target_of(text: str | None, device: str) -> Any:
    """Returns the target that `text` names, or else the one of the device type. Raises
    BackendError for text that is no TVM target."""
    import tvm

    if text is None:
        if device == "cpu":
            result = tvm.target.Target.from_device("cpu")
            # searches need the number of threads: torch's, so that records fit the later runs
            added = {"mattr": _missing(result), "num-cores": torch.get_num_threads()}
            return tvm.target.Target({**result.export(), **added})
        return tvm.target.Target.from_device(tvm.device(device, 0))
    try:
        return tvm.target.Target(text)
    except Exception as error:  # TVM's errors have no common base but Exception
        raise BackendError(
            NAME, "target", f"{text!r} is no TVM target: {str(error).splitlines()[0]}"
        ) from error


def _missing(target: Any) -> list[str]:
    """Returns LLVM's switches for the vector instructions that the target's processor model has
    and this processor has not: a virtual machine may hide them (AVX-512 of a ``znver4``)."""
    from tvm.target import codegen

    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return []
    line = next((line for line in text.splitlines() if line.startswith("flags")), None)
    if line is None:  # not an x86: LLVM asks the system itself
        return []
    flags = {flag.replace("_", "") for flag in line.split()}
    with target:
        known = [str(name) for name in codegen.llvm_get_cpu_features()]
    vectors = [name for name in known if name.startswith(_VECTORS)]
    return [f"-{name}" for name in vectors if name.replace("-", "") not in flags]


def with_constants(module: Any, values: Mapping[str, torch.Tensor]) -> Any:
    """Returns the module with these parameters bound to values, by name; TVM reads the tensors'
    memory."""
    import tvm
    from tvm import relax

    inputs = {name: tvm.runtime.from_dlpack(value) for name, value in values.items()}
    return relax.transform.BindParams("main", inputs)(module)


def fused(module: Any) -> Any:
    """Returns the module lowered to TIR functions, with fusable operators in one function. Call
    it inside a target's context."""
    import tvm
    from tvm import relax

    passes = relax.transform
    fuse = [
        passes.DecomposeOpsForInference(), passes.CanonicalizeBindings(),
        passes.DeadCodeElimination(), passes.LegalizeOps(), passes.AnnotateTIROpPattern(),
        passes.FoldConstant(), passes.FuseOps(), passes.FuseTIR(),
    ]  # fmt: skip
    return tvm.transform.Sequential(fuse)(module)


def build(module: Any, target: Any, options: Options, name: str) -> Any:
    """Returns an executable. Raises BackendError, or what TVM's compiler raises."""
    import tvm

    with target, tvm.transform.PassContext(opt_level=3):
        module = tuning.scheduled(fused(module), target, options, name)
        if options.default_schedules and target.kind.name == "llvm":
            module = schedules.apply_defaults(module)
        return tvm.compile(module, target=target)
