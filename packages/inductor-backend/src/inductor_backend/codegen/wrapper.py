"""Writes the generated Python module, which calls runs of kernels and operators in order.

The module runs alone (``python output_code.py`` makes random inputs and prints its time). `call`
takes a flat list of inputs, clears it, and returns a flat list. Nothing is computed per call that
could be known before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from inductor_backend.codegen.common.module import Run
from inductor_backend.codegen.common.writer import CodeWriter, comment_text, literal
from inductor_backend.codegen.native_calls import call_source, native_launch
from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.index_expr import Expr, simplify
from inductor_backend.ir.nodes import (
    Buffer,
    BufferKind,
    BufferLayout,
    ExternNode,
    LoopProgram,
    Strided,
    same_strides,
)
from inductor_backend.ir.size_source import size_expression
from inductor_backend.ir.values import ScalarValue
from inductor_backend.kernels.packed_ops import name_of
from inductor_backend.kernels.selection import KernelChoice, KernelKind
from inductor_backend.runtime.huge_pages import LARGE
from inductor_backend.runtime.module_runner import MUTATED_ON_ERROR
from inductor_backend.runtime.profile_rows import ROWS
from inductor_backend.schedule.memory_plan import MemoryPlan, nbytes
from tracer_core.plugin_api import PROFILING, SizeSpec, row_label

#: ATen operators whose result's layout depends on their operands' strides, those of size-1
#: dimensions included.
_LAYOUT_BY_STRIDES = frozenset(
    {torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default}
)


#: The header of every module, after the line of its counts.
HEADER = (
    "\n\nMade by inductor_backend; runs alone: python output_code.py makes random inputs and prints"
    " its time.\n"
)


@dataclass(slots=True)
class WrapperStep:
    """A run of kernels, or one operator call."""

    run: Run | None = None
    extern: ExternNode | None = None
    #: Outputs that it is the first to write.
    fresh: list[str] = field(default_factory=list)


#: Python bindings that do what an operator does in half of its call's microseconds: they parse
#: arguments without the operator's schema.
_BINDINGS = {
    "aten.mm.default": "torch.mm",
    "aten.mm.out": "torch.mm",
    "aten.bmm.default": "torch.bmm",
    "aten.bmm.out": "torch.bmm",
    "aten.addmm.default": "torch.addmm",
    "aten.addmm.out": "torch.addmm",
    "aten.baddbmm.default": "torch.baddbmm",
    "aten.baddbmm.out": "torch.baddbmm",
    "aten.convolution.default": "torch.convolution",
}


def size_source(size: Expr) -> str:
    return size_expression(size, "python")


def tuple_text(sizes: Sequence[Expr]) -> str:
    return "(" + "".join(size_source(size) + ", " for size in sizes) + ")"


def constant_source(value: Any) -> str:
    """Returns a constant argument of an operator as Python text."""
    if value is None or isinstance(value, (bool, int, str)):
        return repr(value)
    if isinstance(value, float):
        return (
            repr(value)
            if value == value and abs(value) != float("inf")
            else f"float({str(value)!r})"
        )
    if isinstance(value, complex):
        return f"complex({constant_source(value.real)}, {constant_source(value.imag)})"
    if isinstance(value, ScalarValue):
        return value.text
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value)
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if hasattr(value, "free_symbols"):
        return size_source(value)
    raise unsupported("codegen", f"an operator's argument {value!r} of type {type(value).__name__}")


def operator_row(program: LoopProgram, node: ExternNode, choice: KernelChoice) -> str:
    """Returns the name of an operator call in a profile."""
    name = name_of(node.target)
    if choice.kind is KernelKind.NATIVE:
        name += f" by {native_launch(program, node, lambda operand: '', choice.form)[0]}"
    return row_label(name, [node.origin.user_frame])


class Wrapper:
    """Writes the module."""

    @property
    def imports(self) -> str:
        return _IMPORTS

    def __init__(
        self,
        program: LoopProgram,
        plan: MemoryPlan,
        sizes: Sequence[SizeSpec],
        choices: dict[str, KernelChoice],
    ) -> None:
        self.program, self.plan, self.specs, self.choices = program, plan, sizes, choices
        self.definitions: dict[str, None] = {}  # an ordered set of module-level lines
        self.views: list[str] = []
        self.view_names: dict[Any, str] = {}
        self.targets: dict[str, str] = {}
        #: What `call` calls -> the rows of each of these calls in a profile.
        self.rows: dict[str, list[tuple[str, ...]]] = {}
        self.body = CodeWriter()
        #: Positions of the inputs that `call` may have mutated when it raises; None: unknown.
        self._runs_of = "None"  # the library of the runs
        self.early: tuple[int, ...] | None = None
        self.code = ""
        self.natives: dict[str, None] = {}  # hand-written native functions that the module calls
        self.expects = False  # whether the body checks an operator's result
        #: False also for an arena of size 0 whose buffers have symbolic sizes.
        self.static_arena = isinstance(plan.size, int) and all(
            isinstance(part, int)
            for buffer in program.buffers.values()
            if buffer.storage in plan.offsets
            for part in (*buffer.layout.sizes, *buffer.layout.strides, buffer.layout.offset)
        )

    # operands ------------------------------------------------------------------------------------

    def tensor(self, operand: Strided, exactly: bool = False) -> str:
        """Returns the text of a tensor operand. exactly: strides of size-1 dimensions matter, too."""
        buffer = self.program.buffers[operand.buffer]
        offset = self.plan.offsets.get(buffer.storage)
        if offset is not None:
            return self._arena_view(buffer, operand.layout, offset)
        full = (
            buffer.storage == buffer.name
            and operand.layout.sizes == buffer.layout.sizes
            and operand.layout.offset == buffer.layout.offset
        )
        if full and (
            operand.layout.strides == buffer.layout.strides
            if exactly
            else same_strides(operand.layout, buffer.layout.strides)
        ):
            return buffer.name
        return _view_text(buffer, operand.layout)

    def _arena_view(self, buffer: Buffer, layout: BufferLayout, offset: Expr) -> str:
        key = (buffer.dtype, layout, offset)
        spec = (
            f"({size_source(offset)}, {buffer.dtype}, {tuple_text(layout.sizes)},"
            f" {tuple_text(layout.strides)}, {size_source(layout.offset)})"
        )
        if not self.static_arena:
            return f"arena_view(arena, {spec[1:-1]})"
        if key not in self.view_names:
            self.view_names[key] = f"v{len(self.views)}"
            self.views.append(spec)
        return self.view_names[key]

    def operand(self, value: Any, exactly: bool = False) -> str:
        if isinstance(value, Strided):
            return self.tensor(value, exactly)
        if isinstance(value, (list, tuple)):
            return "[" + ", ".join(self.operand(element) for element in value) + "]"
        return constant_source(value)

    def target(self, node: ExternNode, overload: str = "") -> str:
        """Returns a module-level name for the operator. overload: another one than the node's."""
        choice = self.choices[node.name]
        if choice.kind is KernelKind.STEPS:
            name: str = node.target.name
            return name
        if choice.kind is KernelKind.PYTHON:
            module, _, function = choice.call.partition(":")
            self.definitions[f"from {module} import {function}"] = None
            return function
        name = str(node.target)
        if overload:
            name = name.rpartition(".")[0] + overload
        text = _BINDINGS.get(name) or "torch.ops." + name
        if text not in self.targets:
            self.targets[text] = "op_" + name.replace(".", "_")
        return self.targets[text]

    # steps ---------------------------------------------------------------------------------------

    def step(self, number: int, step: WrapperStep) -> None:
        for name in step.fresh:
            buffer = self.program.buffers[name]
            size = nbytes(buffer)
            make = "large_empty" if isinstance(size, int) and size >= LARGE else "empty"
            make = "large_zeros" if buffer.zero_pages else make
            self.body.line(
                f"{name} = {make}({tuple_text(buffer.layout.sizes)},"
                f" {tuple_text(buffer.layout.strides)}, dtype={buffer.dtype})"
            )
        if step.run is not None:
            self._row(step.run.name, *step.run.rows)
            arguments = ["arena_address" if a == "arena" else a for a in step.run.arguments]
            self.body.line(f"{step.run.name}({', '.join([*arguments, *step.run.symbols])})")
        if step.extern is not None:
            self.extern(step.extern)
        dropped = self.plan.drop_after.get(number, [])
        if dropped:
            self.body.line(f"del {', '.join(sorted(dropped))}")

    def address(self, operand: Strided) -> str:
        """Returns a tensor, or an int address, for a launcher."""
        buffer = self.program.buffers[operand.buffer]
        offset = self.plan.offsets.get(buffer.storage)
        skip = simplify(operand.layout.offset * buffer.dtype.itemsize)
        if offset is not None:
            return f"arena_address + {size_source(simplify(offset + skip))}"
        if skip == 0:
            return buffer.storage
        return f"{buffer.storage}.data_ptr() + {size_source(skip)}"

    def native(self, node: ExternNode) -> None:
        """Writes a call of a hand-written kernel, which writes into the arena or a fresh output."""
        form = self.choices[node.name].form
        launcher, numbers = native_launch(self.program, node, self.address, form)
        self.definitions[f"{launcher} = native.function({launcher!r})"] = None
        self.natives[launcher] = None
        self._row(launcher, self._label(node))
        self.body.line(call_source(launcher, numbers))

    def _row(self, function: str, *labels: str) -> None:
        """Adds the rows of a call."""
        self.rows.setdefault(function, []).append(labels)

    def _label(self, node: ExternNode) -> str:
        return operator_row(self.program, node, self.choices[node.name])

    def loop(self, node: ExternNode) -> None:
        """Writes a call of a loop."""
        loop = node.target
        results = [Strided(name, self.program.buffers[name].layout) for name in node.writes]
        numbers = [self.address(arg) for arg in (*node.args, *results)]
        for launcher in loop.launchers:
            self.definitions[f"{launcher}_at = native.address({launcher!r})"] = None
            self.natives[launcher] = None
            numbers.append(f"{launcher}_at")
        numbers += loop.symbols
        numbers += [] if loop.length is None else [size_source(loop.length)]
        function = f"library.function({loop.name!r}, {len(numbers)}, fails={loop.fails})"
        self.definitions[f"{loop.name} = {function}"] = None
        self._row(loop.name, self._label(node))
        self.body.line(call_source(loop.name, numbers))

    def extern(self, node: ExternNode) -> None:
        if self.choices[node.name].kind is KernelKind.LOOP:
            self.loop(node)
            return
        if self.choices[node.name].kind is KernelKind.STEPS:
            steps = node.target
            codes = ", ".join(map(literal, steps.codes))
            self.definitions[f"{steps.name} = {steps.run}({steps.name!r}, {codes})"] = None
        if self.choices[node.name].kind is KernelKind.NATIVE:
            self.native(node)
            return
        arguments = [self.operand(value, node.target in _LAYOUT_BY_STRIDES) for value in node.args]
        arguments += [f"{name}={self.operand(value)}" for name, value in node.kwargs.items()]
        if self.choices[node.name].kind is KernelKind.OUT:
            (written,) = node.writes
            result = self.tensor(Strided(written, self.program.buffers[written].layout))
            self._row(self.target(node, ".out"), self._label(node))
            self.body.line(f"{self.target(node, '.out')}({', '.join(arguments)}, out={result})")
            return
        self._row(self.target(node), self._label(node))
        call = f"{self.target(node)}({', '.join(arguments)})"
        if not node.unpack:
            (name,) = node.outputs
            self.body.line(f"{name} = {call}" if name else call)
        elif sum(name is not None for name in node.outputs) == 1:
            place = next(k for k, name in enumerate(node.outputs) if name is not None)
            self.body.line(f"{node.outputs[place]} = {call}[{place}]")
        else:
            names = [name or "_" for name in node.outputs]
            self.body.line(f"{', '.join(names)}{',' if len(names) == 1 else ''} = {call}")
        self._expected(node)

    def _expected(self, node: ExternNode) -> None:
        """Writes a check, at the module's first run, that an operator's results have the layout
        that kernels assume."""
        parts = []
        for name in node.outputs:
            if name is not None:
                buffer = self.program.buffers[name]
                sizes, strides = tuple_text(buffer.layout.sizes), tuple_text(buffer.layout.strides)
                parts.append(f"({name}, {sizes}, {strides}, {buffer.dtype})")
        if parts:
            self.expects = True
            self.body.line(f"if unchecked: expect({name_of(node.target)!r}, {', '.join(parts)})")

    # the module ----------------------------------------------------------------------------------

    def module(
        self, steps: Sequence[WrapperStep], sources: Sequence[str], name: str, kernels: int
    ) -> str:
        """Returns the text of the whole module, and sets `code` to the part without what is needed
        only when it is run alone. kernels: number of distinct kernels."""
        self._write_steps(steps)
        out = CodeWriter()
        out.raw('"""' + self.summary(steps, name, kernels) + HEADER + '"""')
        out.raw(self.imports)
        self._write_constants(out)
        for number, source in enumerate(sources):
            out.raw(f"SOURCE_{number} = {literal(source)}\n")
        self._load_kernels(out, steps, sources)
        for line in self.definitions:
            out.line(line)
        for text, target in self.targets.items():
            out.line(f"{target} = {text}")
        self._make_pool(out)
        if self.expects:
            out.line("unchecked = True")
        out.line(f"{ROWS} = {self.rows!r}")
        if self.early is not None:
            out.line(f"{MUTATED_ON_ERROR} = {self.early}")
        out.line()
        self._call(out)
        out.line()
        self.code = out.text()
        self._main(out)
        return out.text()

    @staticmethod
    def summary(steps: Sequence[WrapperStep], name: str, kernels: int) -> str:
        """Returns one line: how many kernels and operators a call runs. kernels: number of distinct
        kernels."""
        calls = sum(len(step.run.called) for step in steps if step.run is not None)
        operators = sum(step.extern is not None for step in steps)
        return (
            f"{comment_text(name)}: {calls} fused kernels ({kernels} different), {operators} operator"
            " calls."
        )

    def _write_steps(self, steps: Sequence[WrapperStep]) -> None:
        for number, step in enumerate(steps):
            self.step(number, step)

    def _write_constants(self, out: CodeWriter) -> None:
        """Writes what precedes the sources."""

    def _load_kernels(
        self, out: CodeWriter, steps: Sequence[WrapperStep], sources: Sequence[str]
    ) -> None:
        names = ", ".join(f"SOURCE_{k}" for k in range(len(sources)))
        if sources:
            self._runs_of = "library"
            out.line(
                f"library = load_library([{names}], {self.program.name!r},"
                " globals().get('LIBRARY'))"
            )
        runs = {step.run.name: step.run for step in steps if step.run is not None}
        for name, run in runs.items():
            count = len(run.arguments) + len(run.symbols)
            out.line(f"{name} = library.function({name!r}, {count}, fails={run.fails})")

    def _make_pool(self, out: CodeWriter) -> None:
        if self._uses_arena() and self.static_arena:
            views = ",\n    ".join(self.views)
            out.line(
                f"pool = ArenaPool({self.plan.size}, [\n    {views}\n])"
                if views
                else f"pool = ArenaPool({self.plan.size}, [])"
            )

    def _uses_arena(self) -> bool:
        return bool(self.plan.offsets)

    def _call(self, out: CodeWriter, name: str = "call", more: Sequence[str] = ()) -> None:
        """Writes `call`. more: parameters beside the inputs."""
        out.line()
        with out.block_python(f"def {name}(args):"):
            out.line(f"if profiler_state[{PROFILING!r}]:")
            with out.indented():
                out.line(f"return call_with_rows(globals(), {name!r}, args, {self._runs_of})")
            if self.expects:
                out.line("global unchecked")
            self._take_inputs(out, more)
            if self.program.inputs or more:
                out.line("args.clear()")
            for constant in self.program.constants:
                out.line(f"{constant} = CONSTANTS[{constant!r}]")
            self._bring_numbers(out)
            self._open_arena(out)
            for line in self.body.lines:
                out.line(line)
            self._close_arena(out)
            if self.expects:
                out.line("unchecked = False")
            results = ", ".join(self._output(output) for output in self.program.outputs)
            out.line(f"return [{results}]")

    def _take_inputs(self, out: CodeWriter, more: Sequence[str] = ()) -> None:
        """Names the inputs, and the sizes that they determine."""
        inputs = [*self.program.inputs, *more]
        if inputs:
            out.line(f"{inputs[0]}, = args" if len(inputs) == 1 else f"{', '.join(inputs)} = args")
        for spec in self.specs:
            name = self.program.inputs[spec.input_index]
            out.line(
                f"{spec.symbol} = {name}" + ("" if spec.dim is None else f".shape[{spec.dim}]")
            )

    def _bring_numbers(self, out: CodeWriter) -> None:
        """Makes a tensor for each symbolic float of the call."""
        read = {name for node in self.program.nodes for name in node.reads()}
        for text, name in self.program.numbers.items():
            if name in read:
                out.line(f"{name} = torch.scalar_tensor({text}, dtype=torch.float64)")

    def _close_arena(self, out: CodeWriter) -> None:
        if self._uses_arena() and self.static_arena:
            out.line("pool.give(arena)")

    def _open_arena(self, out: CodeWriter) -> None:
        if not self._uses_arena():
            return
        if not self.static_arena:
            out.line(f"arena = torch.empty({size_source(self.plan.size)}, dtype=torch.uint8)")
            out.line("arena_address = arena.data_ptr()")
            return
        out.line("arena = pool.take()")
        out.line("arena_address = arena.address")
        if self.views:
            out.line(", ".join(self.view_names.values()) + ", = arena.views")

    def _output(self, output: Any) -> str:
        if isinstance(output, Strided):
            return _view_text(self.program.buffers[output.buffer], output.layout)
        if isinstance(output, str):
            return output
        return constant_source(output)

    def _main(self, out: CodeWriter) -> None:
        """Writes random inputs and a timing, for a module that is run alone."""
        with out.block_python("def example_inputs():"):
            hints = {spec.symbol: spec.hint for spec in self.specs}
            for symbol, hint in hints.items():
                out.line(f"{symbol} = {hint}")
            out.line("return [")
            with out.indented():
                for name in self.program.inputs:
                    out.line(self._example(name) + ",")
            out.line("]")
        out.line()
        out.line()
        with out.block_python("if __name__ == '__main__':"):
            out.line("report(call, example_inputs)")

    def _example(self, name: str) -> str:
        buffer = self.program.buffers.get(name)
        if buffer is None:
            if name in self.program.numbers:
                return "0.5"
            spec = next((s for s in self.specs if self.program.inputs[s.input_index] == name), None)
            return str(spec.hint) if spec is not None and spec.dim is None else "0"
        sizes, strides = tuple_text(buffer.layout.sizes), tuple_text(buffer.layout.strides)
        return f"example_tensor({sizes}, {strides}, {buffer.dtype})"


def _view_text(buffer: Buffer, layout: BufferLayout) -> str:
    """Returns a strided view of a tensor that has separate storage."""
    stored = buffer.layout
    if (
        buffer.storage == buffer.name
        and len(stored.sizes) == 2
        and layout.offset == stored.offset
        and layout.sizes == stored.sizes[::-1]
        and layout.strides == stored.strides[::-1]
    ):
        return f"{buffer.name}.t()"
    base = f"as_strided({buffer.storage}, {tuple_text(layout.sizes)}, {tuple_text(layout.strides)}"
    if layout.offset == 0:
        return base + ")"
    if buffer.kind is BufferKind.TEMP:
        return base + f", {size_source(layout.offset)})"
    return base + f", {buffer.name}.storage_offset() + {size_source(layout.offset)})"


_IMPORTS = """
import math

import torch
from torch import as_strided
from torch import empty_strided as empty

from inductor_backend.kernels import native
from inductor_backend.runtime.generated_support import (
    ArenaPool,
    arena_view,
    branches_of,
    call_with_rows,
    example_tensor,
    expect,
    large_empty,
    large_zeros,
    load_library,
    profiler_state,
    report,
    steps_of,
    while_of,
)
"""
