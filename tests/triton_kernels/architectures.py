"""Makes machine code for GPUs that are not there, as a package does, and restores it; prints what
happened as JSON. Runs in a process without TRITON_INTERPRET.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import torch

from inductor_backend import artifact
from inductor_backend.autotune import matmul
from inductor_backend.codegen.triton.matmul import Blocks
from inductor_backend.runtime.cuda import build, machine_code
from inductor_backend.runtime.cuda.triton_compile import Kernel
from inductor_backend.runtime.generated_module import Artifact
from tests.triton_kernels import offline
from tracer_core import torch_private
from tracer_core.errors import BackendError
from tracer_core.plugin_api import Runner


def _runner(kernels: list[Kernel]) -> Runner:
    result = Artifact(
        "", (), None, len(kernels), len(kernels), (), (), {}, {}, "cuda:0",
        gpu_kernels=tuple(kernels),
    )  # fmt: skip
    return Runner(lambda inputs: [], artifact=result)


def _error(fn: Callable[[], Any]) -> str | None:
    try:
        fn()
    except BackendError as error:
        return error.detail
    return None


def _product(mode: Any, blocks: Blocks) -> list[Kernel]:
    matmul.candidates = lambda work, device: [blocks]  # type: ignore[assignment]
    fn, *inputs = offline._products(mode)["linear, gelu"]
    return offline.specifications(offline.program(mode, fn, *inputs, mode_name="max-autotune"))


def _restored(data: bytes, kernels: list[Kernel], here: int) -> Any:
    """What a GPU of this capability is told, or by architecture whether it runs its machine code."""
    stored = json.loads(data)["machine_code"]
    machine_code.capability = build.capability = lambda index=None: here
    problem = _error(lambda: machine_code.restore(stored, torch.device("cuda:0")))
    if problem is not None:
        return problem
    inputs = [future.result().code for future in build.start(kernels)]
    other = [build._provided[kernel.key(), here, False].code for kernel in kernels]
    codes = {
        name: [[base64.b64decode(row["binary"]["code"]) for row in rows if row["aligned"] is aligned]
               for aligned in (True, False)]
        for name, rows in stored["architectures"].items()
    }  # fmt: skip
    return {name: both == [inputs, other] for name, both in codes.items()}


def main() -> None:
    mode = torch_private.fake_tensor_mode(None)
    kernels = [
        kernel
        for name in ("trigonometry", "layer norm, gelu, softmax")
        for kernel in offline.specifications(offline.program(mode, *offline._programs(mode)[name]))
    ]
    large = _product(mode, Blocks(128, 128, 64, 4, 5))
    bulk = _product(mode, Blocks(128, 128, 64, 4, 3, bulk=True))
    torch.cuda.get_device_name = lambda device=None: "The card"
    torch.cuda.is_available = lambda: True
    refused = {
        "unknown": _error(lambda: artifact.serialize_for(_runner(kernels), ("sm_80", "gfx90"))),
        "large": _error(lambda: artifact.serialize_for(_runner(large), ("sm_80", "sm_86"))),
        "bulk": _error(lambda: artifact.serialize_for(_runner(bulk), ("sm_90", "sm_80"))),
    }
    data = artifact.serialize_for(_runner(kernels), ("sm_80", "sm_90"))
    build._futures.clear()
    build.kernel_store.load = lambda *arguments, **named: None
    build.active_target = lambda: 1 / 0  # where Triton would be asked
    capabilities = (75, 80, 86, 90, 100)
    restored = {here: _restored(data, kernels, here) for here in capabilities}
    print(json.dumps({"refused": refused, "restored": restored}))


if __name__ == "__main__":
    main()
