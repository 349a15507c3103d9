"""Sessions of ONNX Runtime: made from a model and the user's options.

In: a serialised model, options, a device. Out: an `onnxruntime.InferenceSession`, or a BackendError
that says what is missing. What always holds: a provider that is asked for and not there is an
error, never another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from onnxrt_backend.options import Options
from tracer_core.plugin_api import BackendError

NAME = "onnxrt"

#: The provider for each device type, where the user names none.
PROVIDERS = {
    "cpu": ("CPUExecutionProvider",),
    "cuda": ("CUDAExecutionProvider", "CPUExecutionProvider"),
}

#: How long, in microseconds, an idle thread of a session waits at full speed for more work: longer
#: than the operators that run on one thread, or every operator behind one of them would wake it.
#: ONNX Runtime's own answer is about 20 ms: a program of two sessions, or of a session and PyTorch,
#: would share its cores with threads that only wait.
WAIT = {"session.intra_op.spin_duration_us": "1000"}


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
            NAME,
            "session",
            f"{', '.join(missing)} is not in this onnxruntime, which has {', '.join(there)}",
        )
    return wanted


def session(
    model: bytes, options: Options, device: str, initializers: Mapping[str, Any] | None = None
) -> Any:
    """An InferenceSession for a model. initializers: values of those that the model says are
    elsewhere, by name (`OrtValue`s: they are not limited to the 2 GB of a serialised model). Raises
    BackendError."""
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
