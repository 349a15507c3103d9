"""Finds matmuls of few rows whose weight a loop converts from narrower elements: 8-bit integers, float8.

A generated kernel converts these elements as it multiplies them, and reads half of the bytes that a
converted copy has. (One row times a matrix is a loop anyway: `lowering/matmul.py`.)
"""

from __future__ import annotations

import torch

from inductor_backend.ir.nodes import BufferKind, ExternNode, LoopNode, LoopProgram, Node, Strided
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.kernels import unaligned_gemm
from tracer_core.plugin_api import operators

aten = operators("aten")

#: Rows that one block holds: the weight is read and converted once for all of them.
MAX_ROWS = 32

#: A converted copy of fewer elements stays in the cache.
MIN_ELEMENTS = 1 << 16

_MATMULS = frozenset(
    (aten.mm.default, aten.addmm.default, unaligned_gemm.mm, unaligned_gemm.matmul)
)
_DTYPES = frozenset((torch.bfloat16, torch.float16))


def narrow_weights(program: LoopProgram, sizes: SizeVars) -> dict[str, str]:
    """Returns the names of calls that may convert their weight, and the buffers of the weights."""
    writers = {name: node for node in program.nodes for name in node.writes}
    result = {}
    for node in program.nodes:
        if not isinstance(node, ExternNode) or node.target not in _MATMULS:
            continue
        *_, rows, weight = node.args
        few = 2 <= sizes.hint(rows.layout.sizes[-2]) <= MAX_ROWS
        if few and _is_narrow(program, sizes, weight, writers.get(weight.buffer)):
            result[node.name] = weight.buffer
    return result


def _is_narrow(program: LoopProgram, sizes: SizeVars, weight: Strided, writer: Node | None) -> bool:
    """Returns whether a loop converts the weight, element by element; what it reads beside that (a
    scale) has at most an element for each column. With one for each group of terms, or with packed
    elements, a kernel with its copy and the library's are faster."""
    buffer = program.buffers[weight.buffer]
    if buffer.dtype not in _DTYPES or buffer.kind is not BufferKind.TEMP:
        return False
    if not isinstance(writer, LoopNode) or writer.is_reduction:
        return False
    reads = [program.buffers[name] for name in writer.reads()]
    elements, columns = map(sizes.hint, (buffer.layout.numel, weight.layout.sizes[-1]))
    large = [item for item in reads if sizes.hint(item.layout.numel) > columns]
    return (
        elements >= MIN_ELEMENTS
        and len(large) == 1
        and sizes.hint(large[0].layout.numel) == elements
        and large[0].dtype.itemsize < buffer.dtype.itemsize
    )
