"""A call of one of flex_attention's operators, as writers of kernels see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from inductor_backend.ir.index_expr import Expr
from inductor_backend.ir.nodes import BufferLayout, ExternNode, LoopProgram, Strided
from tracer_core.plugin_api import (
    FLEX_ATTENTION,
    FLEX_ATTENTION_BACKWARD,
    FlexProgram,
    flex_program,
)

#: What comes before `blocks` among an operator's arguments, and its results.
_OPERANDS: dict[Any, tuple[tuple[str, ...], tuple[str, ...]]] = {
    FLEX_ATTENTION: (("query", "key", "value"), ("out", "lse", "most")),
    FLEX_ATTENTION_BACKWARD: (
        ("query", "key", "value", "lse", "delta", "grad_out"),
        ("grad_query", "grad_key", "grad_value"),
    ),
}


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operator."""

    flex: FlexProgram
    scale: float
    numbers: Mapping[str, Expr]
    #: Its operands and results by the names that kernels use. layouts: theirs.
    tensors: Mapping[str, Strided]
    dtypes: Mapping[str, torch.dtype]

    def layout(self, name: str) -> BufferLayout:
        return self.tensors[name].layout

    def captured(self) -> dict[str, tuple[torch.dtype, BufferLayout]]:
        """Returns dtype and layout of the tensors that functions of scores read."""
        return {
            name: (self.dtypes[name], self.layout(name))
            for name in self.tensors
            if name[0] == "t" and name[1:].isdigit()
        }


def call_of(program: LoopProgram, node: ExternNode) -> Call:
    """Returns what an extern node of one of the operators calls. `g0` is the gradient of the captured
    tensor `t0`. Results that nobody reads are left out."""
    *operands, blocks, buffers, numbers, scale, text = node.args
    flex = flex_program(text)
    names, results = _OPERANDS[node.target]
    tensors = dict(zip(names, operands, strict=True))
    for pair, (counts, indices) in zip(
        flex.pairs, zip(blocks[::2], blocks[1::2], strict=True), strict=True
    ):
        tensors |= {f"{pair}_counts": counts, f"{pair}_indices": indices}
    tensors |= {f"t{k}": buffer for k, buffer in enumerate(buffers)}
    if node.target is FLEX_ATTENTION_BACKWARD:
        results = (*results, *(f"g{k}" for k in flex.differentiated))
    for name, output in zip(results, node.outputs, strict=True):
        if output is not None:
            tensors[name] = Strided(output, program.buffers[output].layout)
    dtypes = {name: program.buffers[tensor.buffer].dtype for name, tensor in tensors.items()}
    return Call(flex, scale, {f"n{k}": n for k, n in enumerate(numbers)}, tensors, dtypes)


def is_gradient_of_buffer(name: str) -> bool:
    """Returns whether a tensor of a `Call` is the gradient of a captured tensor."""
    return name[0] == "g" and name[1:].isdigit()
