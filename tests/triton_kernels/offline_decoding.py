"""Attention of few queries on a CUDA device that is not there, compiled to machine code.

Runs in a process without TRITON_INTERPRET. Prints for each case how its kernel would run on an H100.
"""

from __future__ import annotations

import json
import math
from typing import Any

import sympy
import torch

from inductor_backend.codegen.triton import wrapper
from inductor_backend.codegen.triton.decoding_attention import DecodingAttentionWriter
from inductor_backend.codegen.triton.kernel import TritonKernel
from inductor_backend.codegen.triton.module import specification_of
from inductor_backend.ir.index_expr import Expr, contiguous_strides
from inductor_backend.ir.nodes import (
    Buffer,
    BufferKind,
    BufferLayout,
    ExternNode,
    LoopProgram,
    Origin,
    Strided,
)
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.kernels.decoding_attention import DecodingAttention
from inductor_backend.runtime.cuda.triton_compile import compiled, target_of
from tests.triton_kernels.offline import fakes, program
from tests.triton_kernels.offline_flex import spilled
from tracer_core import torch_private


def _kernel(
    heads: int, shared: int, queries: int, keys: Expr, depth: int, dtype: torch.dtype
) -> TritonKernel:
    graph = LoopProgram("graph")

    def operand(name: str, dtype: torch.dtype, *sizes: Expr) -> Strided:
        layout = BufferLayout(sizes, contiguous_strides(sizes))
        graph.buffers[name] = Buffer(name, dtype, layout, BufferKind.INPUT)
        return Strided(name, layout)

    query, key, value, _ = (
        operand(name, dtype, 1, count, length, depth)
        for name, count, length in (
            ("query", heads, queries), ("key", shared, keys), ("value", shared, keys),
            ("out", heads, queries),
        )
    )  # fmt: skip
    mask = operand("mask", torch.bool, 1, 1, queries, keys)
    target = DecodingAttention(0.125, -math.inf, False)
    node = ExternNode(
        "op", target, (query, key, value, mask), {}, ("out",), False, Origin("", "op", "attention")
    )
    return DecodingAttentionWriter(graph, node, SizeVars()).write()


def _captured(mode: Any) -> dict[str, Any]:
    """A call of the operator that CUDA devices have for masks, with repeated heads."""
    bf16 = torch.bfloat16
    query, key, value, mask = fakes(
        mode,
        torch.empty(1, 32, 1, 64, dtype=bf16),
        *(torch.empty(1, 8, 2048, 64, dtype=bf16) for _ in range(2)),
        torch.empty(1, 1, 1, 2048, dtype=torch.bool),
    )
    kernels: list[TritonKernel] = []

    class Recorded(DecodingAttentionWriter):
        def write(self) -> TritonKernel:
            kernels.append(super().write())
            return kernels[-1]

    def fn(query: Any, key: Any, value: Any, mask: Any) -> Any:
        key, value = (
            x.unsqueeze(2).expand(1, 8, 4, 2048, 64).reshape(1, 32, 2048, 64) for x in (key, value)
        )
        numbers = (torch.scalar_tensor(x, dtype=bf16, device="cuda:0") for x in (0.0, -math.inf))
        bias = torch.where(mask, *numbers).expand(1, 32, 1, 2048)
        attend = torch.ops.aten._scaled_dot_product_efficient_attention.default
        return attend(query, key, value, bias, False)[0]

    wrapper.DecodingAttentionWriter = Recorded  # type: ignore[misc]
    c = program(mode, fn, query, key, value, mask)
    operators = [str(step.extern.target) for step in c.steps if step.extern is not None]
    return {**_told(kernels[0]), "operators": operators, "loops": len(c.sources)}


def _told(kernel: TritonKernel) -> dict[str, Any]:
    code = compiled(specification_of(kernel), target_of(90))
    ptx = code.asm["ptx"]
    return {
        "shared": code.metadata.shared,
        "tensor cores": ptx.count("wgmma.mma_async") + ptx.count("mma.sync"),
        "copies of 16 bytes": sum("cp.async.cg" in line and "0x10" in line for line in ptx.split("\n")),
        "spilled": spilled(ptx),
        "ordered": ptx.count("atom.global.gpu.acq_rel.add"),
    }  # fmt: skip


def main() -> None:
    keys = sympy.Symbol("s0", integer=True, positive=True)
    bf16, f32 = torch.bfloat16, torch.float32
    cases = {
        "bfloat16": (32, 8, 1, 2048, 64, bf16),
        "no groups": (12, 12, 1, 2048, 64, bf16),
        "symbolic": (32, 8, 1, keys, 128, bf16),
        "16 queries": (32, 8, 16, 8192, 128, bf16),
        "80 elements": (32, 8, 1, 2048, 80, bf16),
        "256 elements": (8, 4, 4, 2048, 256, bf16),
        "float32": (32, 8, 1, 2048, 128, f32),
        "float32, 256 elements": (8, 2, 5, 2048, 256, f32),
    }
    result = {name: _told(_kernel(*case)) for name, case in cases.items()}  # type: ignore[arg-type]
    result["captured"] = _captured(torch_private.fake_tensor_mode(None))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
