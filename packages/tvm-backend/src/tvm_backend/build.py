"""From a Relax module to an executable: fused, scheduled, compiled for a target.

In: a Relax module and the user's options. Out: an executable of TVM's virtual machine. What always
holds: schedules come from the record database where it has one, then from our rules for the CPU,
then from TVM's; nothing is tuned unless the options say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tracer_core.plugin_api import BackendError
from tvm_backend import schedules, tuning
from tvm_backend.options import Options

NAME = "tvm"


def target_of(text: str | None, device: str) -> Any:
    """The TVM target of a device type, or the one that the user names. Raises BackendError for one
    that is none.
    """
    import tvm

    if text is None:
        if device == "cpu":
            found = tvm.target.Target.from_device("cpu").export()
            # searches want to know for how many threads; the program's own, so that records fit
            # what will run
            return tvm.target.Target({**found, "num-cores": torch.get_num_threads()})
        return tvm.target.Target.from_device(tvm.device(device, 0))
    try:
        return tvm.target.Target(text)
    except Exception as error:  # TVM's errors have no common base but Exception
        raise BackendError(
            NAME, "target", f"{text!r} is no TVM target: {str(error).splitlines()[0]}"
        ) from error


def with_constants(module: Any, values: Mapping[str, torch.Tensor]) -> Any:
    """The module with these parameters bound to values, by name; TVM reads the tensors' own
    memory.
    """
    import tvm
    from tvm import relax

    given = {name: tvm.runtime.from_dlpack(value) for name, value in values.items()}
    return relax.transform.BindParams("main", given)(module)


def fused(module: Any) -> Any:
    """The module as functions of loops, those that can run together in one. To be called below a
    target.
    """
    import tvm
    from tvm import relax

    passes = relax.transform
    fuse = [passes.DecomposeOpsForInference(), passes.CanonicalizeBindings(),
    passes.DeadCodeElimination(),
            passes.LegalizeOps(), passes.AnnotateTIROpPattern(), passes.FoldConstant(),
            passes.FuseOps(),
            passes.FuseTIR()]  # fmt: skip
    return tvm.transform.Sequential(fuse)(module)


def build(module: Any, target: Any, options: Options, name: str) -> Any:
    """An executable. Raises BackendError, or what TVM's compiler raises."""
    import tvm

    with target, tvm.transform.PassContext(opt_level=3):
        module = tuning.scheduled(fused(module), target, options, name)
        if options.default_schedules and target.kind.name == "llvm":
            module = schedules.apply_defaults(module)
        return tvm.compile(module, target=target)
