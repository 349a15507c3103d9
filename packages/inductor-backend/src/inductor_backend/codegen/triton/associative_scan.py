"""Writes an associative scan of several tensors as one Triton kernel.

A program scans some columns: blocks of rows, each by ``tl.associative_scan`` with the program's own
function, combined with what all blocks before it came to.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inductor_backend.codegen.common.arguments import KernelArguments
from inductor_backend.codegen.common.module import NAME
from inductor_backend.codegen.common.writer import CodeWriter
from inductor_backend.codegen.triton.expressions import pointer_type
from inductor_backend.codegen.triton.kernel import TritonKernel, function_text
from inductor_backend.codegen.triton.scalar_programs import TritonFunctionWriter
from inductor_backend.ir.index_expr import Expr, product
from inductor_backend.ir.nodes import ExternNode, LoopProgram
from inductor_backend.ir.symbolic_sizes import SizeVars
from tracer_core.plugin_api import scan_scalars

#: Elements of a block, and its most columns: those of a row lie side by side in memory.
ELEMENTS, COLUMNS = 2048, 16


def associative_kernel(program: LoopProgram, node: ExternNode, sizes: SizeVars) -> TritonKernel:
    """Returns the kernel of a call of the operator. Its pointers are the operands, then the results."""
    rows, text = node.args
    outputs = [name for name in node.outputs if name is not None]
    dtypes = [program.buffers[row.buffer].dtype for row in rows]
    length, *others = rows[0].layout.sizes
    return _Writer(sizes, dtypes, length, product(others)).write(
        text, [row.buffer for row in rows], outputs
    )


def _power(size: int) -> int:
    return 1 << (max(size, 1) - 1).bit_length()


class _Writer:
    """Writes one kernel. Mutable."""

    def __init__(
        self, sizes: SizeVars, dtypes: Sequence[torch.dtype], length: Expr, width: Expr
    ) -> None:
        self.sizes, self.dtypes, self.length, self.width = sizes, dtypes, length, width
        self.arguments = KernelArguments("ks")
        self.size = self.arguments.size
        self.columns = min(COLUMNS, _power(sizes.hint(width)))
        self.rows = min(_power(sizes.hint(length)), ELEMENTS // self.columns)

    def write(self, text: str, operands: Sequence[str], results: Sequence[str]) -> TritonKernel:
        combine = self._combine(text)
        body = self._body()
        count = len(self.dtypes)
        pointers = [f"p{k}" for k in range(2 * count)]
        constants = (("ROWS", self.rows), ("COLUMNS", self.columns))
        out = CodeWriter()
        out.lines += combine.lines
        out.line("")
        inputs = [*pointers, *self.arguments.sizes.values()]
        inputs += [f"{name}: tl.constexpr" for name, _ in constants]
        source = out.text() + function_text(inputs, body)
        types = tuple(pointer_type(dtype) for dtype in (*self.dtypes, *self.dtypes))
        return TritonKernel(
            source,
            (*operands, *results),
            types,
            tuple(self.arguments.sizes),
            ((self.width, self.columns),),
            constants,
            8 if self.rows * self.columns >= ELEMENTS else 4,
            "associative_scan",
        )

    def _combine(self, text: str) -> CodeWriter:
        """Writes the function that combines two elements."""
        count, out = len(self.dtypes), CodeWriter()
        names = [f"{side}{k}" for side in "xy" for k in range(count)]
        out.line("@triton.jit")
        out.line(f"def {NAME}_combine({', '.join(names)}):")
        with out.indented():
            writer = TritonFunctionWriter(out, self.sizes, {}, {}, str, self.size, {})
            gm = scan_scalars(text, self.dtypes)
            result = writer.write_graph(gm, {name: name for name in names})[:count]
            out.line(f"return {', '.join(result)}")
        return out

    def _body(self) -> CodeWriter:
        out, count = CodeWriter(), len(self.dtypes)
        length, width = self.size(self.length), self.size(self.width)
        values, carries = ([f"{name}{k}" for k in range(count)] for name in ("v", "c"))
        listed = ", ".join(values)
        with out.indented():
            line = out.line
            line("columns = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)")
            line(f"column_ok = columns < {width}")
            line("in_rows = tl.arange(0, ROWS)")
            for name, dtype in zip(carries, self.dtypes, strict=True):
                line(f"{name} = tl.zeros([1, COLUMNS], {_register(dtype)})")
            with out.block_python(f"for start in range(0, {length}, ROWS):"):
                line("rows = start + in_rows")
                line(f"ok = (rows < {length})[:, None] & column_ok[None, :]")
                line(f"at = rows.to(tl.int64)[:, None] * {width} + columns[None, :]")
                for k, (name, dtype) in enumerate(zip(values, self.dtypes, strict=True)):
                    line(f"{name} = tl.load(p{k} + at, mask=ok, other=0).to({_register(dtype)})")
                inputs = listed if count == 1 else f"({listed})"
                line(f"{listed} = tl.associative_scan({inputs}, 0, {NAME}_combine)")
                both = ", ".join([*carries, *values])
                line(f"{', '.join(f'n{k}' for k in range(count))} = {NAME}_combine({both})")
                line(f"last = (in_rows == tl.minimum(ROWS, {length} - start) - 1)[:, None]")
                for k, (value, carry) in enumerate(zip(values, carries, strict=True)):
                    line(f"{value} = tl.where(start > 0, n{k}, {value})")
                    line(f"{carry} = tl.sum(tl.where(last, {value}, 0), 0, keep_dims=True)")
                    line(f"tl.store(p{count + k} + at, {value}, mask=ok)")
        return out


def _register(dtype: torch.dtype) -> str:
    """Returns the dtype of elements in registers."""
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    return str(wide).replace("torch", "tl")
