"""Writes the generated module of a graph on a CUDA device, which also runs alone.

Memory comes from torch's caching allocator, so it belongs to the stream of the call. Buffers that
only kernels touch share one allocation; operators' arguments and results are tensors. Nothing waits
for the device. Allocations for results are announced (`runtime.allocation_hooks`), and so is the
first other one after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from inductor_backend.codegen.common.flex_call import call_of, is_gradient_of_buffer
from inductor_backend.codegen.common.module import NAME, Run
from inductor_backend.codegen.common.writer import CodeWriter, literal
from inductor_backend.codegen.triton.associative_scan import associative_kernel
from inductor_backend.codegen.triton.decoding_attention import (
    COUNTERS,
    PARTS,
    DecodingAttentionWriter,
)
from inductor_backend.codegen.triton.flex_attention import forward_kernels
from inductor_backend.codegen.triton.flex_attention_backward import backward_kernels
from inductor_backend.codegen.triton.kernel import TritonKernel
from inductor_backend.codegen.triton.module import (
    NUMBERS,
    TritonModule,
    name_of,
    specification_of,
    specification_text,
)
from inductor_backend.codegen.wrapper import Wrapper, WrapperStep, size_source, tuple_text
from inductor_backend.ir.nodes import ExternNode, LoopProgram, Strided
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.values import ScalarValue
from inductor_backend.kernels.decoding_attention import DecodingAttention
from inductor_backend.kernels.selection import KernelChoice
from inductor_backend.runtime.cuda.build import start_early
from inductor_backend.runtime.module_runner import SCALARS
from inductor_backend.schedule.memory_plan import MemoryPlan
from tracer_core.plugin_api import (
    ASSOCIATIVE_SCAN,
    FLEX_ATTENTION,
    FLEX_ATTENTION_BACKWARD,
    SizeSpec,
    row_label,
)


class TritonWrapper(Wrapper):
    """Writes the module."""

    def __init__(
        self,
        program: LoopProgram,
        plan: MemoryPlan,
        sizes: Sequence[SizeSpec],
        choices: dict[str, KernelChoice],
        triton: TritonModule,
        device: torch.device,
        variables: SizeVars,
    ) -> None:
        super().__init__(program, plan, sizes, choices)
        self.triton, self.device, self.variables = triton, device, variables
        self._results = self._with_results()
        self._of_result = False  # whether what is allocated next is announced as a result's
        self._announces = False
        self._has_parts = False  # whether the module has made what decoding attention needs besides

    @property
    def imports(self) -> str:
        return _IMPORTS

    def _with_results(self) -> set[str]:
        """Returns the tensors whose memory a result lives in."""
        storages = {self.program.buffers[name].storage for name in self.program.output_names}
        for name in reversed(list(self.plan.over)):  # each stands after the one that it is made in
            if name in storages:
                storages.add(self.plan.over[name])
        return storages

    def _announce(self, of_result: bool) -> None:
        if of_result != self._of_result:
            self._of_result, self._announces = of_result, True
            self.body.line(f"if to: to({of_result})")

    def _allocate(self, name: str) -> None:
        buffer = self.program.buffers[name]
        self.body.line(
            f"{name} = empty({tuple_text(buffer.layout.sizes)},"
            f" {tuple_text(buffer.layout.strides)}, dtype={buffer.dtype}, device=device)"
        )

    def step(self, number: int, step: WrapperStep) -> None:
        for name in step.fresh:
            if name in self.plan.over:
                self.body.line(f"{name} = {self._same_memory(name)}")
                continue
            self._announce(name in self._results)
            self._allocate(name)
        if step.run is not None:
            run = step.run.name
            self._row(run, *step.run.rows)
            self.body.line(
                f"{run}({', '.join([f'launches_{run}', 'stream', *step.run.arguments])})"
            )
        if step.extern is not None:
            storages = [
                self.program.buffers[name].storage
                for name in step.extern.outputs
                if name is not None
            ]
            self._announce(not self._results.isdisjoint(storages))
            self.extern(step.extern)
        dropped = self.plan.drop_after.get(number, [])
        if dropped:
            self.body.line(f"del {', '.join(sorted(dropped))}")

    def extern(self, node: ExternNode) -> None:
        if node.target in (FLEX_ATTENTION, FLEX_ATTENTION_BACKWARD):
            self._flex_attention(node)
        elif node.target is ASSOCIATIVE_SCAN:
            self._associative_scan(node)
        elif isinstance(node.target, DecodingAttention):
            self._decoding_attention(node)
        else:
            super().extern(node)

    def _flex_attention(self, node: ExternNode) -> None:
        """Writes the launches of this call's kernels: allocations, then the run."""
        call = call_of(self.program, node)
        if node.target is FLEX_ATTENTION:
            kernels, besides = forward_kernels(call, self.variables)
        else:
            kernels, besides = backward_kernels(call, self.variables), {}
        for name in node.writes:
            self._allocate(name)
        for name, tensor in call.tensors.items():
            if is_gradient_of_buffer(name):
                self.body.line(f"{tensor.buffer}.zero_()")
        for name, layout in besides.items():
            self.body.line(
                f"{name} = empty({tuple_text(layout.sizes)}, {tuple_text(layout.strides)},"
                " dtype=torch.float32, device=device)"
            )

        def text(name: str) -> str:
            return name if name in besides else self.tensor(call.tensors[name], True)

        self._launch(
            "run_flex",
            node,
            [(kernel, [text(name) for name in kernel.pointers]) for kernel in kernels],
        )
        if besides:
            self.body.line(f"del {', '.join(besides)}")

    def _associative_scan(self, node: ExternNode) -> None:
        """Writes a launch of a kernel for this call."""
        kernel = associative_kernel(self.program, node, self.variables)
        for name in node.writes:
            self._allocate(name)
        results = [Strided(name, self.program.buffers[name].layout) for name in node.writes]
        tensors = [self.tensor(operand, True) for operand in (*node.args[0], *results)]
        self._launch("run_associative_scan", node, [(kernel, tensors)])

    def _decoding_attention(self, node: ExternNode) -> None:
        """Writes the launch of this call's kernel. All calls share the memory that they need besides:
        each is done with it, and leaves counters at 0, before the next begins."""
        writer = DecodingAttentionWriter(self.program, node, self.variables)
        kernel = writer.write()
        if writer.parts and not self._has_parts:
            self._has_parts = True
            self._announce(False)
            elements, programs = self._besides()
            line = self.body.line
            line(f"{PARTS} = empty(({elements},), (1,), dtype=torch.float32, device=device)")
            line(f"{COUNTERS} = torch.zeros({programs}, dtype=torch.int32, device=device)")
        tensors = [
            self._at_first_element(writer.tensors[name]) if name in writer.tensors else name
            for name in kernel.pointers
        ]
        self._launch("run_decoding_attention", node, [(kernel, tensors)])

    def _besides(self) -> tuple[str, str]:
        """Returns the most elements of parts, and the most programs that share no rows, of any call."""
        writers = [
            DecodingAttentionWriter(self.program, node, self.variables)
            for node in self.program.nodes
            if isinstance(node, ExternNode) and isinstance(node.target, DecodingAttention)
        ]
        sizes = [(writer.parts_elements(), writer.programs) for writer in writers if writer.parts]
        elements, programs = (
            sorted({size_source(size) for size in of}) for of in zip(*sizes, strict=True)
        )
        return f"max({', '.join(elements)}, 1)", f"max({', '.join(programs)}, 1)"

    def _at_first_element(self, operand: Strided) -> str:
        """Returns a tensor that begins where the operand does, without a view where there is one."""
        buffer = self.program.buffers[operand.buffer]
        begins = buffer.storage == buffer.name and operand.layout.offset == 0
        return buffer.name if begins else self.tensor(operand, True)

    def _launch(
        self, name: str, node: ExternNode, kernels: Sequence[tuple[TritonKernel, Sequence[str]]]
    ) -> None:
        """Writes a run of kernels, each with its tensors. name: of the run, without a number."""
        run = Run(f"{name}_{sum(line.startswith(f'{name}_') for line in self.definitions)}")
        result = []
        for kernel, tensors in kernels:
            slots = [run.slot(tensor) for tensor in (*tensors, *map(size_source, kernel.sizes))]
            places = ", ".join(f"({place}, 0)" for place in slots)
            result.append(
                f"({self._loaded(kernel)}, {TritonModule.grid(run, kernel.grid)}, [{places}])"
            )
        launched = ", ".join(result)
        self.definitions[
            f"{run.name}, launches_{run.name} = launches({len(run.arguments)}, [{launched}])"
        ] = None
        arguments = ", ".join([f"launches_{run.name}", "stream", *run.arguments])
        frames = [node.origin.user_frame]
        self._row(run.name, *(row_label(name_of(kernel), frames) for kernel, _ in kernels))
        self.body.line(f"{run.name}({arguments})")

    def _loaded(self, kernel: TritonKernel) -> str:
        """Returns the name of a kernel, which the module loads, and starts building it."""
        start_early(specification_of(kernel), self.device)
        name = name_of(kernel)
        result = specification_text(kernel, name, literal(kernel.text.replace(NAME, name)))
        self.definitions[f"{name}, = load_kernels([{result}], device)"] = None
        return name

    def _same_memory(self, name: str) -> str:
        other = self.plan.over[name]
        layout, old = self.program.buffers[name].layout, self.program.buffers[other].layout
        if (layout.sizes, layout.strides) == (old.sizes, old.strides):
            return other
        return f"as_strided({other}, {tuple_text(layout.sizes)}, {tuple_text(layout.strides)})"

    def _write_steps(self, steps: Sequence[WrapperStep]) -> None:
        """Writes the steps; the arena lives from the first run that uses it to the last."""
        in_arena = [number for number, step in enumerate(steps) if _uses_arena(step)]
        for number, step in enumerate(steps):
            if in_arena and number == in_arena[0]:
                self._announce(False)
                self.body.line(
                    f"arena = torch.empty({size_source(self.plan.size)}, dtype=torch.uint8,"
                    " device=device)"
                )
                self.body.line("arena_address = arena.data_ptr()")
            self.step(number, step)
            if in_arena and number == in_arena[-1]:
                self.body.line("del arena")

    def _write_constants(self, out: CodeWriter) -> None:
        out.line(f"device = torch.device({str(self.device)!r})")

    def _load_kernels(
        self, out: CodeWriter, steps: Sequence[WrapperStep], sources: Sequence[str]
    ) -> None:
        out.raw(self.triton.definitions())
        self._runs_of = "launch_library()"

    def _make_pool(self, out: CodeWriter) -> None:
        """Does nothing: arenas come from torch's caching allocator."""

    def _call(self, out: CodeWriter, name: str = "call", more: Sequence[str] = ()) -> None:
        """Writes `call`. With symbolic scalars, `call_with` takes the tensor that holds them as its
        last argument, so that each CUDA graph replay can read other values; `ModuleRunner.scalars`
        exists where no operator takes a scalar directly."""
        if not self.triton.places:
            super()._call(out, name, more)
            return
        out.line()
        with out.block_python("def numbers_of(args):"):
            self._take_inputs(out)
            out.line(f"return [{', '.join(self.program.numbers)}]")
        out.line()
        super()._call(out, "call_with", (*more, NUMBERS))
        out.line()
        out.line()
        with out.block_python("def call(args):"):
            out.line("args.append(on_device(numbers_of(args), device))")
            out.line("return call_with(args)")
        if not any(
            _takes_numbers(node) for node in self.program.nodes if isinstance(node, ExternNode)
        ):
            out.line()
            out.line(f"{SCALARS} = numbers_of, call_with")

    def _bring_numbers(self, out: CodeWriter) -> None:
        """Reads the symbolic scalars from the one tensor given to `call_with`."""

    def _open_arena(self, out: CodeWriter) -> None:
        out.line("stream = current_stream(device)")
        if self._announces:
            out.line("to = route.to")

    def _close_arena(self, out: CodeWriter) -> None:
        """Returns the arena to the allocator after its last use, in stream order."""

    def _example(self, name: str) -> str:
        text = super()._example(name)
        return f"{text}.to(device)" if name in self.program.buffers else text


def _uses_arena(step: WrapperStep) -> bool:
    return step.run is not None and step.run.in_arena


def _takes_numbers(node: ExternNode) -> bool:
    waiting: list[Any] = [*node.args, *node.kwargs.values()]
    while waiting:
        value = waiting.pop()
        if isinstance(value, (list, tuple)):
            waiting += value
        elif isinstance(value, ScalarValue):
            return True
    return False


_IMPORTS = """
import math

import torch
from torch import as_strided
from torch import empty_strided as empty

from inductor_backend.runtime.generated_support import (
    call_with_rows,
    example_tensor,
    expect,
    profiler_state,
    report,
)
from inductor_backend.runtime.cuda.driver import library as launch_library
from inductor_backend.runtime.cuda.launch import current_stream, launches, slot
from inductor_backend.runtime.scalars import on_device
from inductor_backend.runtime.allocation_hooks import route
from inductor_backend.runtime.cuda.build import load_kernels
from inductor_backend.runtime.cuda.triton_compile import Kernel
"""
