"""Writes a loop over slices, or a while_loop, as one C++ function that calls the kernels of its step.

In: the scheduled step, whose inputs are (outer tensors, carry, a slice of each row,
numbers) and whose outputs are (carry, parts), of a while_loop (carry, whether
there is another step). Carried tensors alternate between the loop's result and a scratch tensor,
such that the last step writes the result; of a while_loop they are copied there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inductor_backend.codegen.common.writer import CodeWriter
from inductor_backend.codegen.cpp.module import PREAMBLE, CppModule
from inductor_backend.codegen.cpp.step_calls import StepCalls, touched
from inductor_backend.codegen.wrapper import WrapperStep
from inductor_backend.ir.index_expr import Expr, contiguous_strides
from inductor_backend.ir.native_loop import NativeLoop
from inductor_backend.ir.nodes import BufferKind, LoopProgram, Strided, same_strides
from inductor_backend.kernels.packed_ops import name_of
from inductor_backend.kernels.selection import KernelChoice, KernelKind
from inductor_backend.schedule.memory_plan import MemoryPlan


@dataclass(frozen=True, slots=True)
class LoopShape:
    """n_outer, n_live, n_rows: tensors among a step's inputs. length: steps; None: a
    while_loop. reverse: the last slice is first."""

    n_outer: int
    n_live: int
    n_rows: int
    length: Expr | None
    reverse: bool


class LoopWriter(StepCalls):
    """Writes one loop. program, memory, choices, steps, module: of its scheduled step; its places
    are those in a step."""

    def __init__(
        self,
        name: str,
        shape: LoopShape,
        program: LoopProgram,
        memory: MemoryPlan,
        choices: dict[str, KernelChoice],
        steps: Sequence[WrapperStep],
        module: CppModule,
    ) -> None:
        super().__init__(program, memory, choices)
        self.name, self.shape, self.steps, self.module = name, shape, steps, module
        self.launchers: list[str] = []

    def why_not(self) -> str | None:
        """Returns why the step does not run without Python, or None."""
        externs = [step.extern for step in self.steps if step.extern is not None]
        for node in externs:
            if self.choices[node.name].kind is not KernelKind.NATIVE:
                return f"{name_of(node.target)} is ATen's"
        if self.program.constants or self.program.numbers:
            return "a constant or a number that changes"
        outputs = self._outputs()
        if None in outputs or len(set(outputs)) < len(outputs):
            return "an output that is another's memory"
        known = {*self.program.inputs, *outputs, *self.memory.offsets}
        used = {name for step in self.steps for name in touched(self.program, step)}
        if not used <= known:
            return f"memory of its own: {', '.join(sorted(used - known))}"
        return None

    def _outputs(self) -> list[str | None]:
        """Returns the storage of each output that is a contiguous tensor of its own."""
        names = [
            output.buffer if isinstance(output, Strided) else str(output)
            for output in self.program.outputs
        ]
        contiguous = map(self._is_contiguous, self.program.outputs)
        return [name if full else None for name, full in zip(names, contiguous, strict=True)]

    def _is_contiguous(self, output: Any) -> bool:
        name = output.buffer if isinstance(output, Strided) else output
        buffer = self.program.buffers.get(name) if isinstance(name, str) else None
        if buffer is None or buffer.kind is not BufferKind.TEMP:
            return False
        layout = output.layout if isinstance(output, Strided) else buffer.layout
        return bool(
            buffer.storage == buffer.name
            and buffer.storage not in self.memory.offsets
            and layout.offset == buffer.layout.offset == 0
            and layout.numel == buffer.layout.numel
            and same_strides(layout, contiguous_strides(layout.sizes))
        )

    def write(self) -> NativeLoop:
        """Returns the loop. The function takes the inputs' tensors, (of a while_loop) whether there
        is a first step, the results, a scratch tensor for each tensor of the carry, memory for a step, and what
        `NativeLoop` says."""
        shape, outputs = self.shape, self._outputs()
        first = shape.n_outer + shape.n_live
        inputs, endless = first + shape.n_rows, shape.length is None
        results = inputs + endless
        scratch = results + len(outputs) - endless
        arena = scratch + shape.n_live
        for k, storage in enumerate(self.program.inputs[:inputs]):
            if k < shape.n_outer:
                self.places[storage] = f"a[{k}]"
            elif k < first:
                self.places[storage] = f"from_{k - shape.n_outer}"
            else:
                self.places[storage] = f"a[{k}] + at * {self.bytes_of(storage)}"
        for k, name in enumerate(outputs):
            assert name is not None
            if k < shape.n_live:
                self.places[name] = f"to_{k}"
            elif endless:
                self.places[name] = "(int64_t)&more"
            else:
                self.places[name] = f"a[{results + k}] + at * {self.bytes_of(name)}"
        self.places["arena"] = f"a[{arena}]"
        calls = [self.call(step) for step in self.steps]
        sizes = [self.bytes_of(name) for name in outputs[: shape.n_live] if name]
        fails = any(step.run is not None and step.run.fails for step in self.steps)
        out = CodeWriter()
        runs = {step.run.name for step in self.steps if step.run is not None}
        for run in sorted(runs):
            out.line(f"TC_EXPORT void {run}(const int64_t* a);")
        with out.block(f"TC_EXPORT void {self.name}(const int64_t* a)"):
            after = arena + 1
            for k in range(len(self.launchers)):
                out.line(f"void (*const own_{k})(const int64_t*) = "
                         f"(void (*)(const int64_t*))a[{after + k}];")  # fmt: skip
            after += len(self.launchers)
            for k, symbol in enumerate(self.symbols):
                out.line(f"const int64_t {symbol} = a[{after + k}];")
            if fails:
                out.line("const int failures = tc_failures();")
            for k in range(shape.n_live):
                out.line(f"int64_t from_{k} = a[{shape.n_outer + k}];")
            if endless:
                out.line(f"bool more = *(const bool*)a[{inputs}];")
                head, odd = "for (int64_t k = 0; more; ++k)", "k"
            else:
                out.line(f"const int64_t length = a[{after + len(self.symbols)}];")
                head, odd = "for (int64_t k = 0; k < length; ++k)", "(length - 1 - k)"
            with out.block(head):
                if not endless:
                    out.line(f"const int64_t at = {'length - 1 - k' if shape.reverse else 'k'};")
                out.line(f"const bool result = {odd} % 2 == 0;")
                for k in range(shape.n_live):
                    out.line(f"const int64_t to_{k} = result ? a[{results + k}]"
                             f" : a[{scratch + k}];")  # fmt: skip
                for call, step in zip(calls, self.steps, strict=True):
                    out.line(call)
                    if step.run is not None and step.run.fails:
                        out.line("if (tc_failures() != failures) return;")
                for k in range(shape.n_live):
                    out.line(f"from_{k} = to_{k};")
            if endless:
                for k, size in enumerate(sizes):
                    out.line(f"if (from_{k} != a[{results + k}]) __builtin_memcpy("
                             f"(void*)a[{results + k}], (const void*)from_{k}, {size});")  # fmt: skip
        units = self.module.sources()
        units = [(units[0] if units else PREAMBLE) + out.text(), *units[1:]]
        return NativeLoop(
            self.name, tuple(units), tuple(self.launchers), tuple(self.symbols),
            shape.length, fails, shape.n_live,
        )  # fmt: skip

    def kernel(self, launcher: str) -> str:
        if launcher not in self.launchers:
            self.launchers.append(launcher)
        return f"own_{self.launchers.index(launcher)}"
