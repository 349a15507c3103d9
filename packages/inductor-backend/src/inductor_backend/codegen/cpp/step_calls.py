"""Writes the calls of a schedule's steps (runs of kernels, hand-written kernels, loops) as C++.

For code that runs a schedule without Python: loops over slices, and plain shared libraries. A
subclass says where each storage lies (`places`) and how a hand-written kernel is called.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from inductor_backend.codegen.common.module import Run
from inductor_backend.codegen.native_calls import native_launch
from inductor_backend.codegen.wrapper import WrapperStep
from inductor_backend.ir.index_expr import Expr, simplify
from inductor_backend.ir.nodes import ExternNode, LoopProgram, Strided
from inductor_backend.ir.size_source import size_expression
from inductor_backend.kernels.selection import KernelChoice
from inductor_backend.schedule.memory_plan import MemoryPlan, nbytes


class StepCalls(ABC):
    """places: storage -> the text of its address; the text of "arena" is that of the plan's memory.
    symbols: the symbolic sizes that the calls read, as an ordered set."""

    def __init__(
        self, program: LoopProgram, memory: MemoryPlan, choices: dict[str, KernelChoice]
    ) -> None:
        self.program, self.memory, self.choices = program, memory, choices
        self.symbols: dict[str, None] = {}
        self.places: dict[str, str] = {}

    @abstractmethod
    def kernel(self, launcher: str) -> str:
        """Returns the text that names a hand-written kernel in a call."""

    def call(self, step: WrapperStep) -> str:
        """Returns the text of a step."""
        if step.run is not None:
            return self._run(step.run)
        assert step.extern is not None
        return self.extern(step.extern)

    def extern(self, node: ExternNode) -> str:
        """Returns the text of an operator call: of a hand-written kernel."""
        form = self.choices[node.name].form
        launcher, numbers = native_launch(self.program, node, self.address, form)
        texts = [number if isinstance(number, str) else self.size(number) for number in numbers]
        return self.call_source(self.kernel(launcher), texts)

    def _run(self, run: Run) -> str:
        numbers = [self.places.get(storage) or self._in_arena(storage) for storage in run.arguments]
        self.symbols.update(dict.fromkeys(run.symbols))
        return self.call_source(run.name, [*numbers, *run.symbols])

    @staticmethod
    def call_source(function: str, numbers: Sequence[str]) -> str:
        """Returns the text of the call of a compiled function."""
        text = ", ".join(numbers)
        return f"{{ const int64_t b[] = {{{text}}}; {function}(b); }}"

    def address(self, operand: Strided) -> str:
        """Returns the text of a tensor's address."""
        buffer = self.program.buffers[operand.buffer]
        skip = simplify(operand.layout.offset * buffer.dtype.itemsize)
        place = self.places.get(buffer.storage) or self._in_arena(buffer.storage)
        return place if skip == 0 else f"{place} + {self.size(skip)}"

    def _in_arena(self, storage: str) -> str:
        return f"{self.places['arena']} + {self.size(self.memory.offsets[storage])}"

    def bytes_of(self, name: str) -> str:
        """Returns the text of a buffer's size in bytes."""
        return self.size(nbytes(self.program.buffers[name]))

    def size(self, size: Expr) -> str:
        """Returns the text of a size."""
        if not isinstance(size, int):
            self.symbols.update(dict.fromkeys(sorted(map(str, size.free_symbols))))
        return f"int64_t({size_expression(size)})"


def touched(program: LoopProgram, step: WrapperStep) -> list[str]:
    """Returns the storages outside the arena's plan that a step may name, and those inside."""
    if step.run is not None:
        return [argument for argument in step.run.arguments if argument != "arena"]
    assert step.extern is not None
    names = (*step.extern.reads(), *step.extern.writes)
    return [program.buffers[name].storage for name in names]
