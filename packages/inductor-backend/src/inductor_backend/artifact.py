"""Serializes a compiled graph so that another process can run it.

In: a runner made by this backend, or stored bytes. Out: JSON text as bytes (module text, the
library's binary in base64, constants, for a package machine code for GPUs), or a runner that needs
no compiler. Nothing is unpickled; a library that is damaged or built for another processor raises
BackendError.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import torch

from inductor_backend.kernels import native
from inductor_backend.runtime.cpp.build import load_binary
from inductor_backend.runtime.cuda.graphs import with_cuda_graphs
from inductor_backend.runtime.determinism import without_deterministic_form
from inductor_backend.runtime.generated_module import Artifact, load_module, runner_of
from tracer_core.plugin_api import BackendError, CompileSpec, Runner

FORMAT = 10


def _tensor_to_json(tensor: torch.Tensor) -> dict[str, Any]:
    dense = tensor.contiguous()
    data = bytes(dense.flatten().view(torch.uint8).numpy()) if dense.numel() else b""
    return {
        "dtype": str(tensor.dtype)[6:],
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "data": base64.b64encode(data).decode("ascii"),
    }


def _tensor_from_json(stored: dict[str, Any]) -> torch.Tensor:
    dtype = getattr(torch, stored["dtype"])
    result = torch.empty_strided(stored["shape"], stored["stride"], dtype=dtype)
    data = bytearray(base64.b64decode(stored["data"]))
    if data:
        result.copy_(torch.frombuffer(data, dtype=dtype).view(stored["shape"]))
    return result


def serialize(runner: Runner) -> bytes:
    """Returns the runner as JSON. Raises BackendError for a runner that this backend did not make,
    or that has kernels for each setting of TF32.
    """
    return json.dumps(_stored(runner)).encode("utf-8")


def serialize_for(runner: Runner, architectures: Sequence[str]) -> bytes:
    """Returns the runner as JSON with the machine code of its Triton kernels for GPUs of these
    architectures (``"sm_90"``; none: that of its own device), which need not be here, and of what
    launches them: where it runs, neither Triton nor a compiler is needed.

    Raises BackendError as `serialize` does, for an unknown architecture, and for a kernel that one of
    them cannot run.
    """
    stored = _stored(runner)
    if stored["device"] is not None:
        from inductor_backend.runtime.cuda import machine_code  # not where there is no GPU

        kernels, device = runner.artifact.gpu_kernels, torch.device(stored["device"])
        stored["machine_code"] = machine_code.to_json(kernels, device, architectures)
    elif architectures:
        raise BackendError("inductor", "serialize", "architectures: the graph runs on the CPU")
    return json.dumps(stored).encode("utf-8")


def _stored(runner: Runner) -> dict[str, Any]:
    artifact = runner.artifact
    if not isinstance(artifact, Artifact):
        several = "or has kernels for each setting of TF32, which are not stored"
        raise BackendError(
            "inductor", "serialize", f"{runner!r} was not made by this backend, {several}"
        )
    library = artifact.library
    return {
        "format": FORMAT,
        "text": artifact.text,
        "device": artifact.device,
        "gpu": None if artifact.device is None else torch.cuda.get_device_name(artifact.device),
        "graph_traits": runner.graph_traits,
        "library": (
            None if library is None else base64.b64encode(library.read_binary()).decode("ascii")
        ),
        "native": _native_binaries(artifact.natives),
        "constants": {name: _tensor_to_json(value) for name, value in artifact.constants.items()},
        "kernels": artifact.kernels,
        "different_kernels": artifact.different_kernels,
        "externs": list(artifact.externs),
        "fallbacks": list(artifact.fallbacks),
        "natives": list(artifact.natives),
        "machine_code": None,
        "deterministic": artifact.deterministic,
    }


def _native_binaries(functions: Sequence[str]) -> dict[str, str]:
    """Returns, in base64, the libraries of the native kernels that these functions belong to."""
    families = dict.fromkeys(native.FAMILY_OF[name] for name in functions)
    return {
        family: base64.b64encode(native.library(family).read_binary()).decode("ascii")
        for family in families
    }


def deserialize(data: bytes, spec: CompileSpec) -> Runner:
    """Returns the runner of stored bytes. Raises BackendError for bytes of another format or
    damaged bytes.
    """
    try:
        stored = json.loads(data)
    except ValueError as error:
        raise BackendError(
            "inductor", "deserialize", f"the stored entry is damaged: {error}"
        ) from error
    if stored.get("format") != FORMAT:
        raise BackendError(
            "inductor", "deserialize", f"format {stored.get('format')}, this version reads {FORMAT}"
        )
    _demand_gpu(stored)
    library = None
    if stored["library"] is not None:
        library = load_binary(base64.b64decode(stored["library"]), name=spec.name)
    native.restore({family: base64.b64decode(data) for family, data in stored["native"].items()})
    constants = {name: _tensor_from_json(value) for name, value in stored["constants"].items()}
    artifact = Artifact(
        stored["text"],
        (),
        library,
        stored["kernels"],
        stored["different_kernels"],
        tuple(stored["externs"]),
        tuple(stored["fallbacks"]),
        {},
        constants,
        stored["device"],
        tuple(stored["natives"]),
        deterministic=stored["deterministic"],
    )
    runner = runner_of(load_module(stored["text"], library, constants, spec.name), artifact)
    if not artifact.deterministic:
        runner = without_deterministic_form(runner, spec.name)
    traits = stored["graph_traits"]
    return runner if traits is None else with_cuda_graphs(runner, traits, spec)


def _demand_gpu(stored: dict[str, Any]) -> None:
    """Makes the machine code of a stored runner known. Raises BackendError if its GPU is another
    one than that here, and it holds nothing for the one here."""
    gpu = None
    if stored["device"] is not None and torch.cuda.is_available():
        gpu = torch.cuda.get_device_name(stored["device"])
    if stored["machine_code"] is not None and gpu is not None:
        from inductor_backend.runtime.cuda import machine_code  # not where there is no GPU

        machine_code.restore(stored["machine_code"], torch.device(stored["device"]))
    elif stored["gpu"] != gpu:
        raise BackendError(
            "inductor",
            "deserialize",
            f"it was stored for {stored['gpu']}, and here is {gpu or 'no CUDA device'}; store it"
            " again",
        )
