"""Compiles a graph into a folder: a shared library, its C header, its description and an example in C.

In: a functional ATen graph for inference on the CPU whose weights are ``get_attr`` tensors. Out:
``<folder>.so``, ``<folder>.h``, ``<folder>.json`` and ``example.c``. The library links against the C
library and OpenMP's alone; a graph that would need more is refused, and the error names what needs it.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from inductor_backend.codegen.cpp.step_calls import touched
from inductor_backend.compilation import Compilation
from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.native_loop import CompiledSteps
from inductor_backend.ir.nodes import ExternNode, Strided
from inductor_backend.kernels import native
from inductor_backend.kernels.packed_ops import name_of
from inductor_backend.native_library import weights as weights_file
from inductor_backend.native_library.conditions import conditions_of
from inductor_backend.native_library.entry import EntryPoint
from inductor_backend.native_library.example import example_program
from inductor_backend.native_library.frozen import with_weights_as_inputs
from inductor_backend.native_library.interface import Interface, Parameter, Size, identifier
from inductor_backend.native_library.weights import Weights, weights_of
from inductor_backend.options import InductorOptions
from inductor_backend.pipeline import start
from inductor_backend.runtime.cpp.build import in_a_folder, link
from inductor_backend.runtime.cpp.objects import Unit, run_compiler
from inductor_backend.runtime.cpp.toolchain import Toolchain, find_compiler
from inductor_backend.runtime.generated_support import without_comments
from inductor_backend.stages import run_stages
from tracer_core.plugin_api import CompileSpec, Folder, Phase, Role

STAGE = "native library"

#: Most operators and places in the program that an error names.
_SHOWN = 8

#: In place of OpenMP's, where the compiler builds without it.
_ONE_THREAD = """
extern "C" __attribute__((visibility("hidden"))) int omp_get_max_threads() { return 1; }
extern "C" __attribute__((visibility("hidden"))) int omp_in_parallel() { return 0; }
extern "C" __attribute__((visibility("hidden"))) int omp_get_thread_num() { return 0; }
"""


def write_library(gm: torch.fx.GraphModule, spec: CompileSpec, directory: Path) -> None:
    """Writes the library of a lowered graph, whose weights are ``get_attr`` tensors, into a folder.

    Raises BackendError naming what prevents it: an operator without a kernel of ours (with its
    count and places in the program), a number that changes, a mutation, a dtype that C lacks."""
    _demand_plain(spec)
    weighted = with_weights_as_inputs(gm, spec)
    options = spec.options if isinstance(spec.options, InductorOptions) else InductorOptions()
    spec = replace(weighted.spec, options=replace(options, freeze=True))
    c = replace(start(weighted.graph, spec), aot_standalone=True)
    run_stages(c, "memory")
    _require_native_kernels(c)
    run_stages(c, "group_runs", first="group_runs")
    conditions = conditions_of(gm, {size.symbol for size in spec.sizes})
    library = _Library(c, weighted.constants, conditions, directory)
    directory.mkdir(parents=True, exist_ok=True)
    in_a_folder(lambda folder: library.build(folder, directory))
    for file, text in library.texts().items():
        (directory / file).write_text(text, encoding="utf-8")


def _demand_plain(spec: CompileSpec) -> None:
    """Raises BackendError for a graph that is more than a function of tensors of known sizes."""
    if spec.device.type != "cpu":
        raise unsupported(STAGE, f"{spec.name}: a graph on {spec.device}, not on the CPU")
    if spec.phase is not Phase.INFERENCE:
        raise unsupported(STAGE, f"{spec.name}: a graph for training")
    for index in spec.mutations:
        raise unsupported(STAGE, f"{spec.name}: the graph writes to {spec.inputs[index].source}")
    for argument in spec.inputs:
        if argument.role is not Role.USER_INPUT:
            raise unsupported(STAGE, f"{spec.name}: {argument.source} is an input ({argument.role.value}),"
                                     " and no tensor of the graph (get_attr)")  # fmt: skip


def _require_native_kernels(c: Compilation) -> None:
    """Raises BackendError naming the operators that need ATen or Python."""
    places: dict[str, Counter[str]] = {}
    for group in c.plan.groups:
        node = group.extern
        if node is not None and not c.choices[node.name].kind.is_native:
            places.setdefault(_operator(node), Counter())[node.origin.user_frame] += 1
    if places:
        lines = [_line(operator, place) for operator, place in places.items()]
        more = [f"and {len(lines) - _SHOWN} more operators"] if len(lines) > _SHOWN else []
        listed = "\n    ".join([*lines[:_SHOWN], *more])
        raise unsupported(STAGE, f"{c.spec.name} needs operators that have no kernel of ours:\n"
                                 f"    {listed}")  # fmt: skip


def _operator(node: ExternNode) -> str:
    why = f" ({node.target.why})" if isinstance(node.target, CompiledSteps) else ""
    return name_of(node.target) + why


def _line(operator: str, places: Counter[str]) -> str:
    shown = ", ".join(
        place if count == 1 else f"{place} ({count} times)"
        for place, count in places.most_common(_SHOWN)
    )
    more = "" if len(places) <= _SHOWN else f" and {len(places) - _SHOWN} more places"
    return f"{operator}, {places.total()} of them: {shown}{more}"


@dataclass(slots=True)
class _Library:
    """A library that is being written."""

    c: Compilation
    #: See their types.
    interface: Interface
    entry: EntryPoint
    weights: Weights
    tools: Toolchain
    code: str

    def __init__(
        self,
        c: Compilation,
        constants: tuple[torch.Tensor, ...],
        conditions: Sequence[str],
        directory: Path,
    ) -> None:
        self.c, self.tools = c, find_compiler()
        inputs = self._inputs()
        self.weights = self._weights(constants)
        self.entry = EntryPoint(c, inputs, self.weights.offsets, conditions)
        sizes = self._sizes({value.name for value in inputs})
        self._add_outputs({value.name for value in inputs} | {size.name for size in sizes})
        self._demand_known_sizes(inputs, {size.symbol for size in sizes})
        self.entry.place_rest()
        name = identifier(directory.resolve().name, prefix="model")
        self.interface = Interface(name, inputs, self.entry.outputs, sizes)
        self.code = self.entry.text(self.interface)
        self.interface = replace(self.interface, about=self._about())

    def _inputs(self) -> list[Parameter]:
        parameters: list[Parameter] = []
        for value, buffer in zip(self.c.spec.inputs, self.c.program.inputs, strict=True):
            if value.role is Role.USER_INPUT:
                held = self.c.program.buffers[buffer]
                name = identifier(value.source, {other.name for other in parameters}, "input")
                parameters.append(Parameter(name, value.source, held.dtype, held.layout, buffer))
        return parameters

    def _sizes(self, taken: set[str]) -> list[Size]:
        """Returns the sizes that a caller gives, by the first dimension that has each."""
        sizes: list[Size] = []
        for size in self.c.spec.sizes:
            inputs = self.c.spec.inputs[size.input_index].source
            source = f"{inputs}.shape[{size.dim}]"
            name = identifier(
                f"{inputs}_size_{size.dim}", {*taken, *(other.name for other in sizes)}
            )
            sizes.append(Size(size.symbol, name, source, size.lower, size.upper))
        return sizes

    def _demand_known_sizes(self, inputs: Sequence[Parameter], known: set[str]) -> None:
        """Raises BackendError for a stride that no size determines."""
        for value in (*inputs, *self.entry.outputs):
            for number in (*value.layout.sizes, *value.layout.strides, value.layout.offset):
                names = [] if isinstance(number, int) else [s.name for s in number.free_symbols]
                if not set(names) <= known:
                    raise unsupported(STAGE, f"{value.source}: {number} is no size of an input")

    def _weights(self, constants: tuple[torch.Tensor, ...]) -> Weights:
        """Returns the tensors that the program reads beside the user's inputs."""
        program, items = self.c.program, list(constants)
        if self.c.frozen is not None:
            with torch.inference_mode(False), torch.no_grad(), torch.autocast("cpu", enabled=False):
                items += self.c.frozen.folded.prepare(constants)
        count = len(program.inputs) - len(items)
        tensors = dict(zip(program.inputs[count:], items, strict=True)) | program.constants
        # Of equal subgraphs the program has the nodes of a few.
        steps = [name for step in self.c.steps for name in touched(program, step)]
        read = {*steps, *(program.buffers[name].storage for name in program.output_names)}
        wanted = {name: tensor for name, tensor in tensors.items() if name in read}
        return weights_of({name: (data, self._extent(name, data)) for name, data in wanted.items()})

    def _extent(self, name: str, tensor: torch.Tensor) -> int:
        """Returns how many elements a constant spans, once it lies as the kernels expect it."""
        layout = self.c.program.buffers[name].layout
        alike = all(
            a == b or size == 1
            for size, a, b in zip(layout.sizes, layout.strides, tensor.stride(), strict=True)
        )
        if tuple(layout.sizes) != tuple(tensor.shape) or layout.offset != 0 or not alike:
            raise unsupported(
                STAGE,
                f"{name} is a tensor of sizes {tuple(tensor.shape)} and strides {tensor.stride()};"
                f" the graph says {layout.sizes} and {layout.strides}",
            )
        return int(layout.extent)

    def _add_outputs(self, taken: set[str]) -> None:
        for number, output in enumerate(self.c.program.outputs):
            source = f"result {number}"
            if isinstance(output, str) and output in self.c.program.buffers:
                output = Strided(output, self.c.program.buffers[output].layout)
            if not isinstance(output, Strided):
                raise unsupported(STAGE, f"{self.c.spec.name}: {source} is {output!r}, no tensor")
            name = identifier(f"output_{number}", taken)
            taken.add(name)
            self.entry.add_output(name, output, source)

    def _about(self) -> dict[str, Any]:
        kernels = [kernel for kernel in self.c.kernels if kernel is not None]
        return {
            "graph": self.c.spec.name,
            "kernels": len(kernels),
            "own_kernels": sorted(self.entry.launchers),
            "weight_bytes": self.weights.size,
            "context_bytes": self.interface.number(self.entry.nbytes),
            "instruction_set": self.tools.isa,
            "openmp": self._openmp,
            "compiler": self.tools.version,
            "torch": torch.__version__,
        }

    @property
    def _openmp(self) -> bool:
        return "-fopenmp" in self.tools.flags

    def texts(self) -> dict[str, str]:
        """Returns the texts of the files beside the library."""
        name = self.interface.name
        return {
            f"{name}.h": self.interface.header(),
            f"{name}.json": self.interface.json(),
            "example.c": example_program(self.interface),
        }

    def units(self) -> list[Unit]:
        """Returns the translation units of all code."""
        more = "" if self._openmp else _ONE_THREAD
        own = [Unit(self.code + more)]
        own += [Unit(without_comments(text)) for text in self.c.sources]
        return own + native.units_of(self.entry.launchers)

    def build(self, folder: Folder, directory: Path) -> None:
        """Writes the shared library."""
        name = self.interface.name
        with folder.scratch() as scratch:
            more = [*self._weights_object(scratch), *self._link_flags(scratch)]
            result = link(self.units(), self.tools, folder, name, scratch, more)
            result.chmod(0o755)
            partial = directory / f".{name}.so.part"
            try:
                shutil.move(result, partial)
                os.replace(partial, directory / f"{name}.so")
            finally:
                partial.unlink(missing_ok=True)

    def _weights_object(self, scratch: Path) -> list[str]:
        if not self.weights.offsets:
            return []
        blob, source, result = (scratch / f"weights.{kind}" for kind in ("bin", "cpp", "o"))
        self.weights.write(blob)
        source.write_text(weights_file.including(blob))
        command = [*self.tools.command.argv, "-c", str(source), "-o", str(result)]
        run_compiler(command, self.tools, self.interface.name, scratch)
        blob.unlink()
        return [str(result)]

    def _link_flags(self, scratch: Path) -> list[str]:
        """Returns the linker's arguments. Every name but the four is local, so that several libraries
        do not meet in one process; a name that is found nowhere is an error."""
        script, name = scratch / "exported", self.interface.name
        exported = "".join(f"{symbol}; " for symbol in self.interface.exported)
        script.write_text(f"{{ global: {exported}local: *; }};\n")
        static = ["-static-libgcc", "-static-libstdc++"] if self.tools.kind == "gcc" else []
        return [
            "-shared", *(["-fopenmp"] if self._openmp else []), *static,
            f"-Wl,--version-script={script}", f"-Wl,-soname,{name}.so", "-Wl,-z,defs",
            "-Wl,--as-needed", "-lm", "-lpthread",
        ]  # fmt: skip
