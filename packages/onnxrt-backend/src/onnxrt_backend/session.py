"""Sessions of ONNX Runtime: made from a model and the user's options.

In: a serialised model, options, a device. Out: an `onnxruntime.InferenceSession`, or a BackendError that says
what is missing. What always holds: a provider that is asked for and not there is an error, never another one.
"""

from __future__ import annotations

from typing import Any

import torch

from onnxrt_backend.options import LEVELS, Options
from tracer_core.plugin_api import BackendError

NAME = "onnxrt"

#: The provider for each device type, where the user names none.
PROVIDERS = {"cpu": ("CPUExecutionProvider",), "cuda": ("CUDAExecutionProvider", "CPUExecutionProvider")}


def providers(options: Options, device: str) -> tuple[str, ...]:
    """The execution providers to use. Raises BackendError for one that this onnxruntime has not."""
    import onnxruntime

    wanted = options.providers or PROVIDERS.get(device)
    if wanted is None:
        raise BackendError(
            NAME, "session", f"no execution provider for device {device!r}; name one in options"
        )
    there = onnxruntime.get_available_providers()
    missing = [name for name in wanted if name not in there]
    if missing:
        raise BackendError(
            NAME, "session", f"{', '.join(missing)} is not in this onnxruntime, which has {', '.join(there)}"
        )
    return wanted


def session(model: bytes, options: Options, device: str) -> Any:
    """An InferenceSession for a model. Raises BackendError."""
    import onnxruntime

    if options.graph_optimization_level not in LEVELS:
        raise BackendError(NAME, "session", f"graph_optimization_level is one of {', '.join(LEVELS)}")
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3  # errors only: a warning for every unused initializer is noise
    levels = onnxruntime.GraphOptimizationLevel
    settings.graph_optimization_level = {
        "disable": levels.ORT_DISABLE_ALL,
        "basic": levels.ORT_ENABLE_BASIC,
        "extended": levels.ORT_ENABLE_EXTENDED,
        "all": levels.ORT_ENABLE_ALL,
    }[options.graph_optimization_level]
    settings.intra_op_num_threads = options.intra_op_threads or torch.get_num_threads()
    return onnxruntime.InferenceSession(model, settings, providers=list(providers(options, device)))
