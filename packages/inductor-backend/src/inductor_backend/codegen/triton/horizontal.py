"""Writes several independent kernels as one: a switch on the number of the program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from inductor_backend.codegen.common.arguments import KernelArguments
from inductor_backend.codegen.common.module import LABEL, NAME
from inductor_backend.codegen.common.writer import CodeWriter
from inductor_backend.codegen.triton.kernel import KernelPart, TritonKernel, function_text
from inductor_backend.ir.index_expr import Expr, product, simplify
from inductor_backend.torch_private import floor_div


def combined_kernel(kernels: Sequence[TritonKernel]) -> TritonKernel:
    """Returns the kernel that does the work of all, which must have `part`. Each one's programs are
    a range of its own."""
    arguments, out, functions = KernelArguments("ks"), CodeWriter(), CodeWriter()
    types: dict[str, str] = {}
    names: dict[KernelPart, str] = {}
    constants: list[tuple[str, int]] = []
    end: Expr = 0
    with out.indented():
        out.line("pid = tl.program_id(0)")
        for number, kernel in enumerate(kernels):
            part, name, start = kernel.part, f"{NAME}_{number}", end
            assert part is not None
            end = simplify(end + programs_of(kernel))
            named = [(f"{axis}_{number}", block) for axis, block in kernel.constants]
            constants += named
            types |= zip(kernel.pointers, kernel.types, strict=True)
            values = [
                _place(arguments, start),
                *map(arguments.pointer, kernel.pointers),
                *map(arguments.size, kernel.sizes),
                *(constant for constant, _ in named),
            ]
            last = number == len(kernels) - 1
            head = "else" if last else f"{'el' if number else ''}if pid < {arguments.size(end)}"
            with out.block_python(f"{head}:"):
                out.line(f"{names.get(part, name)}({', '.join(values)})")
            if part not in names:
                names[part] = name
                functions.line("@triton.jit")
                functions.line(f"def {name}({', '.join(['program', *part.parameters])}):")
                functions.lines += part.lines
    parameters = [*arguments.names, *(f"{name}: tl.constexpr" for name, _ in constants)]
    pointers = tuple(arguments.pointers)
    return TritonKernel(
        function_text(parameters, out) + functions.text(),
        pointers,
        tuple(types[storage] for storage in pointers),
        tuple(arguments.sizes),
        ((end, 1),),
        tuple(constants),
        max(kernel.warps for kernel in kernels),
        "_".join(dict.fromkeys(kernel.label for kernel in kernels))[:LABEL],
        looped=any(kernel.looped for kernel in kernels),
        stages=kernels[0].stages,
        reusable=_reusable(kernels, pointers),
        written=tuple(place for place, name in enumerate(pointers) if name in written_by(*kernels)),
        asserts=any(kernel.asserts for kernel in kernels),
        nbytes=sum(kernel.nbytes for kernel in kernels),
    )


def programs_of(kernel: TritonKernel) -> Expr:
    """Returns the number of a kernel's programs."""
    return product(
        -(-numel // block)
        if isinstance(numel, int)
        else numel
        if block == 1
        else floor_div(numel + (block - 1), block)
        for numel, block in kernel.grid
    )


def written_by(*kernels: TritonKernel) -> frozenset[str]:
    """Returns the storages that kernels write."""
    return frozenset(kernel.pointers[place] for kernel in kernels for place in kernel.written)


def _place(arguments: KernelArguments, start: Expr) -> str:
    """Returns the text of a program's number within its kernel, whose first program is `start`."""
    if isinstance(start, int):
        return f"pid - {start}" if start else "pid"
    return f"(pid - {arguments.size(start)}).to(tl.int32)"


def _reusable(
    kernels: Sequence[TritonKernel], pointers: Sequence[str]
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Returns which operands a result may overwrite: those that no other part touches."""
    number = {name: place for place, name in enumerate(pointers)}
    result: list[tuple[int, tuple[int, ...]]] = []
    for kernel in kernels:
        others = _touched(other for other in kernels if other is not kernel)
        for place, operands in kernel.reusable:
            names = [kernel.pointers[operand] for operand in operands]
            own = tuple(number[name] for name in names if name not in others)
            result.append((number[kernel.pointers[place]], own))
    return tuple(result)


def _touched(kernels: Iterable[TritonKernel]) -> set[str]:
    return {name for kernel in kernels for name in kernel.pointers}
