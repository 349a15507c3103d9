"""flex_attention's kernels on a CUDA device that is not there, compiled to machine code.

Runs in a process without TRITON_INTERPRET. Prints for each case and kernel how it would run on an H100.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from triton import knobs

import tracer_core
from inductor_backend.codegen.triton import wrapper
from inductor_backend.codegen.triton.module import specification_of
from inductor_backend.runtime.cuda.triton_compile import compiled, target_of
from tests.triton_kernels.offline import fakes, program
from tracer_core import torch_private

FORWARD = torch.ops.tracer_core.flex_attention.default
BACKWARD = torch.ops.tracer_core.flex_attention_backward.default


def _causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return q >= kv


def _learned(bias: torch.Tensor) -> Any:
    return lambda score, b, h, q, kv: 20 * torch.tanh(score / 20) + bias[h, q - kv]


def _captured(bias: torch.Tensor | None, mask: Any, *tensor: torch.Tensor) -> list[Any]:
    """The operator's arguments after query, key and value in a captured call."""
    actual: list[Any] = []

    def keep(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        for node in gm.graph.nodes:
            if hasattr(node.target, "program"):
                listed, buffers, numbers = (
                    [item.meta["val"] if isinstance(item, torch.fx.Node) else item for item in arg]
                    for arg in node.args[3:]
                )
                actual.extend((listed, buffers, numbers, node.target.scale, node.target.program))
        return gm

    score_mod = None if bias is None else _learned(bias)
    attend = tracer_core.compile(
        lambda q, k, v, mask: flex_attention(
            q, k, v, score_mod=score_mod, block_mask=mask, enable_gqa=True
        ),
        backend=keep,
    )
    attend(*tensor, mask)
    return actual


def _kernels(
    mode: Any, dtype: torch.dtype, width: int, learned: bool, rows: int = 1024
) -> dict[str, Any]:
    """The kernels of a call and of its gradients."""
    inputs = [
        torch.empty(2, heads, rows, width, dtype=dtype, requires_grad=True) for heads in (4, 2, 2)
    ]
    mask = create_block_mask(_causal, None, None, rows, rows, device="cpu")
    bias = torch.zeros(4, rows, requires_grad=True) if learned else None
    listed, buffers, numbers, scale, text = _captured(bias, mask, *inputs)
    listed, buffers = ([torch.empty(item.shape, dtype=item.dtype) for item in kind]
                       for kind in (listed, buffers))  # fmt: skip
    written: list[Any] = []
    forward, backward = wrapper.forward_kernels, wrapper.backward_kernels
    query, key, value, *rest = fakes(mode, *inputs, *listed, *buffers)
    lse, delta = fakes(mode, *(torch.empty(2, 4, rows) for _ in range(2)))
    result, count = rest[: len(listed)], len(listed)

    def both(q: Any, k: Any, v: Any, lse: Any, delta: Any, *rest: Any) -> Any:
        more = (list(rest[:count]), list(rest[count:]), numbers, scale, text)
        out, _, _ = FORWARD(q, k, v, *more)
        return (out, *BACKWARD(q, k, v, lse, delta, q, *more))

    def kept_forward(*value: Any) -> Any:
        kernels, besides = forward(*value)
        written.extend(kernels)
        return kernels, besides

    def kept_backward(*value: Any) -> Any:
        kernels = backward(*value)
        written.extend(kernels)
        return kernels

    wrapper.forward_kernels, wrapper.backward_kernels = kept_forward, kept_backward
    try:
        program(mode, both, query, key, value, lse, delta, *result, *rest[count:])
    finally:
        wrapper.forward_kernels, wrapper.backward_kernels = forward, backward
    messages = {}
    for kernel in written:
        code = compiled(specification_of(kernel), target_of(90))
        ptx = code.asm["ptx"]
        messages[kernel.label] = {
            "shared": code.metadata.shared,
            "tensor cores": ptx.count("wgmma.mma_async") + ptx.count("mma.sync"),
            "atomic additions": len(re.findall(r"\b(?:atom|red)\.global", ptx)),
            "spilled": spilled(ptx),
        }
    return messages


def spilled(ptx: str) -> int:
    """Returns the bytes of registers that ptxas spills."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [knobs.nvidia.ptxas.path, "-v", "-arch=sm_90a", file.name, "-o", os.devnull]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return sum(map(int, re.findall(r"(\d+) bytes spill stores", said)))


def main() -> None:
    mode = torch_private.fake_tensor_mode(None)
    cases = {
        f"{str(dtype)[6:]}, heads of {width}{', learned' if learned else ''}": (
            dtype, width, learned,
        )
        for dtype in ((torch.bfloat16, torch.float32) if "all" in sys.argv else (torch.bfloat16,))
        for width in ((64, 128, 256) if "all" in sys.argv else (64,))
        for learned in (False, True)
    }  # fmt: skip
    print(json.dumps({name: _kernels(mode, *case) for name, case in cases.items()}))


if __name__ == "__main__":
    main()
