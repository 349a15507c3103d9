"""Creates ONNX Runtime sessions from a serialised model and the user's options.

A provider that is requested but not available raises BackendError; no other provider replaces
it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from onnxrt_backend.options import Options
from tracer_core.plugin_api import BackendError

NAME = "onnxrt"

#: Default providers by device type.
PROVIDERS = {
    "cpu": ("CPUExecutionProvider",),
    "cuda": ("CUDAExecutionProvider", "CPUExecutionProvider"),
}

#: How long, in microseconds, an idle thread of a session spins: longer than operators that run on
#: one thread take, else each operator after them would have to wake the thread. ONNX Runtime's
#: default is about 20 ms, in which the spinning threads of one session would take cores from
#: another session or from PyTorch.
WAIT = {"session.intra_op.spin_duration_us": "1000"}


def providers(options: Options, device: str) -> tuple[str, ...]:
    """Returns the execution providers to use. Raises BackendError for one that this onnxruntime
    lacks."""
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
            NAME,
            "session",
            f"{', '.join(missing)} is not in this onnxruntime, which has {', '.join(there)}",
        )
    return wanted


def session(
    model: bytes, options: Options, device: str, initializers: Mapping[str, Any] | None = None
) -> Any:
    """Creates an InferenceSession. initializers: `OrtValue`s by name, for those initialisers
    that the model declares as external (they are not limited to the 2 GB of a serialised model).
    Raises BackendError."""
    import onnxruntime

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
    for key, value in {**WAIT, **options.session_options}.items():
        settings.add_session_config_entry(key, value)
    if initializers:
        settings.add_external_initializers(list(initializers), list(initializers.values()))
    return onnxruntime.InferenceSession(model, settings, providers=list(providers(options, device)))
