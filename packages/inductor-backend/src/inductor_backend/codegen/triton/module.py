"""Writes all Triton kernels of a graph, and the runs that launch them.

Kernels of equal text and blocks exist once. A run is one call from Python, whatever the number of
its kernels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from inductor_backend.codegen.common.module import NAME, KernelModule, Run
from inductor_backend.codegen.common.writer import CodeWriter
from inductor_backend.codegen.triton.kernel import TritonKernel
from inductor_backend.codegen.triton.tensor_descriptors import Matrix
from inductor_backend.ir.index_expr import Expr, simplify
from inductor_backend.ir.nodes import LoopProgram
from inductor_backend.ir.size_source import size_expression
from inductor_backend.runtime.cuda.triton_compile import Kernel
from inductor_backend.runtime.scalars import PITCH

#: Name in generated modules of the tensor with the call's symbolic scalars.
NUMBERS = "numbers"


class TritonModule(KernelModule):
    """Writes kernels as Triton and runs as lists of launches. places: symbolic scalar of the call
    -> its byte offset in the tensor that holds them all."""

    comment = "#"

    def __init__(self, program: LoopProgram, offset: Callable[[str], Expr | None]) -> None:
        super().__init__(program, offset)
        self.places = {name: PITCH * place for place, name in enumerate(program.numbers.values())}

    def key(self, kernel: TritonKernel) -> TritonKernel:
        return _text_of(kernel)

    def new_name(self, kernel: TritonKernel) -> str:
        """Names a kernel by what it computes: an equal kernel of another graph has the same name,
        and is compiled once."""
        name = name_of(kernel)
        taken = any(name == other for other, _ in self.kernels.values())
        return f"{name}_{len(self.kernels)}" if taken else name

    def write_call(self, run: Run, kernel: TritonKernel, name: str) -> None:
        parameters = [self._pointer(run, storage) for storage in kernel.pointers]
        parameters += [f"({run.slot(size_expression(size, 'python'))}, 0)" for size in kernel.sizes]
        launch = f"{name}, {self.grid(run, kernel.grid, kernel.most)}, [{', '.join(parameters)}]"
        if kernel.matrices:
            launch += f", [{', '.join(self._matrix(run, matrix) for matrix in kernel.matrices)}]"
        run.lines.append(f"({launch})")

    @staticmethod
    def _matrix(run: Run, matrix: Matrix) -> str:
        """See `runtime.cuda.launch.Launch`."""
        sizes = [
            (
                str(size)
                if isinstance(size, int)
                else f"slot({run.slot(size_expression(size, 'python'))})"
            )
            for size in matrix.sizes
        ]
        return f"({matrix.pointer}, {matrix.start}, {', '.join(sizes)}, {matrix.stride})"

    def _pointer(self, run: Run, storage: str) -> str:
        offset = self.offset(storage)
        if storage in self.places:
            return f"({run.slot(NUMBERS)}, {self.places[storage]})"
        if offset is None:
            return f"({run.slot(storage)}, 0)"
        run.in_arena = True
        if isinstance(offset, int):
            return f"({run.slot('arena_address')}, {offset})"
        return f"({run.slot('arena_address + ' + size_expression(offset, 'python'))}, 0)"

    @staticmethod
    def grid(run: Run, axes: Sequence[tuple[Expr, int]], most: int = 0) -> str:
        """Returns the number of programs. axes: (numel, block) of each. most: limit of a persistent
        kernel."""
        static, dynamic = 1, []
        for numel, block in axes:
            if isinstance(numel, int):
                static *= -(-numel // block)
            else:
                dynamic.append(f"(-(-{size_expression(simplify(numel), 'python')} // {block}))")
        if not dynamic:
            return str(min(static, most) if most else static)
        text = " * ".join([*dynamic, *([str(static)] if static != 1 else [])])
        return f"slot({run.slot(f'min({most}, {text})' if most else text)})"

    def sources(self) -> list[str]:
        """Returns the text of each kernel, its user's lines in comments."""
        return [
            self.text_of(kernel.text, name, comments)
            for kernel, (name, comments) in self.kernels.items()
        ]

    def definitions(self) -> str:
        """Returns module-level lines: the kernels, loaded at once, and the runs."""
        out = CodeWriter()
        if self.kernels:
            names = [name for name, _ in self.kernels.values()]
            out.line(f"{', '.join(names)}, = load_kernels(")
            with out.indented():
                out.line("[")
                with out.indented():
                    for number, (kernel, (name, _)) in enumerate(self.kernels.items()):
                        out.line(f"{specification_text(kernel, name, f'SOURCE_{number}')},")
                out.line("],")
                out.line("device,")
            out.line(")")
        for run in self.runs:
            out.line(f"{run.name}, launches_{run.name} = launches({len(run.arguments)}, [")
            with out.indented():
                for line in run.lines:
                    out.line(line + ",")
            out.line("])")
        return out.text()


def _text_of(kernel: TritonKernel) -> TritonKernel:
    """Returns the kernel without what differs from launch to launch."""
    return replace(
        kernel,
        pointers=(),
        sizes=tuple(range(len(kernel.sizes))),
        grid=(),
        looped=False,
        reusable=(),
        matrices=tuple(matrix.form() for matrix in kernel.matrices),
        most=0,
        written=(),
    )


def name_of(kernel: TritonKernel) -> str:
    """Names a kernel by what it computes."""
    kernel = _text_of(kernel)
    return f"fused_{kernel.label}_{hashlib.sha256(repr(kernel).encode()).hexdigest()[:6]}"


def specification_of(kernel: TritonKernel) -> Kernel:
    """Returns what will be compiled for the kernel, without the user's lines in comments."""
    key = _text_of(kernel)
    name = name_of(key)
    return specification(key, name, key.text.replace(NAME, name))


def blocks_of(kernel: TritonKernel) -> list[tuple[str, int, int]]:
    """Returns the element type and block of each matrix, for the compiler."""
    return [(matrix.kind, *matrix.block) for matrix in kernel.matrices]


def specification_text(kernel: TritonKernel, name: str, text: str) -> str:
    """Returns the expression of what is compiled. text: an expression of the kernel's text."""
    more = ", asserts=True" if kernel.asserts else ""
    more += f", searched={kernel.searched!r}" if kernel.searched else ""
    return (
        f"Kernel({name!r}, {text}, {list(kernel.types)}, {len(kernel.sizes)},"
        f" {dict(kernel.constants)}, {kernel.warps}, {kernel.stages}, {blocks_of(kernel)}{more})"
    )


def specification(kernel: TritonKernel, name: str, text: str) -> Kernel:
    """Returns what is compiled. text: including the name."""
    return Kernel(
        name,
        text,
        kernel.types,
        len(kernel.sizes),
        dict(kernel.constants),
        kernel.warps,
        kernel.stages,
        blocks_of(kernel),
        kernel.asserts,
        kernel.searched,
    )
