"""Benchmarks generated kernels against each other, and against ATen operators, and picks the
fastest.

Equal work is measured once per key, whatever its buffers are called. Candidates run on their own
memory, at the captured sizes. Each launch reads another copy of the graph's inputs (weights), which
a program's kernels find in memory, not in the cache. A kernel that fails to build, does not fit the
device, or disagrees with the plainest candidate is left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from inductor_backend.codegen.common.module import NAME
from inductor_backend.codegen.triton.kernel import TritonKernel
from inductor_backend.codegen.triton.module import specification
from inductor_backend.ir.nodes import BufferKind, BufferLayout, ExternNode, LoopProgram, Strided
from inductor_backend.limits import MAX_SEARCH_MEMORY
from inductor_backend.runtime.cuda import measurement, measurement_store
from inductor_backend.runtime.cuda.build import build_side_by_side
from inductor_backend.runtime.cuda.triton_compile import Kernel
from tracer_core.plugin_api import logger

if TYPE_CHECKING:
    from inductor_backend.compilation import Compilation

#: Names the ATen operator, run with a kernel for what would be fused with it.
ATEN = "aten"

#: Largest difference of two correct kernels' results, relative to their norm (TF32 truncated
#: against rounded: 0.001).
CLOSE = 0.02

#: Copies of a graph's inputs take so many times the second-level cache, but there are at most so many.
COLD, MAX_COPIES = 2, 32


class Kernels(Mapping[str, TritonKernel]):
    """Maps names to kernels that compute the same. A kernel is written on first access: a stored
    choice needs only the first one."""

    def __init__(self, writers: Mapping[str, Callable[[], TritonKernel]]) -> None:
        self._writers = writers
        self._written: dict[str, TritonKernel] = {}

    def __getitem__(self, name: str) -> TritonKernel:
        if name not in self._written:
            self._written[name] = self._writers[name]()
        return self._written[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._writers)

    def first(self) -> TritonKernel:
        return self[next(iter(self))]

    def __len__(self) -> int:
        return len(self._writers)


@dataclass(frozen=True, slots=True)
class TunedChoice:
    """The candidates for one piece of work: generated kernels, distinguished by name, and
    optionally (`instead`) an ATen operator with a kernel for the rest of the fused group. name: of
    all the kernels' functions; "": made of what they compute."""

    program: LoopProgram
    kernels: Kernels
    instead: tuple[ExternNode, TritonKernel | None] | None = None
    name: str = ""

    def what(self) -> str:
        """Returns a description for log messages."""
        beside = "" if self.instead is None else _name(self.instead[0])
        return f"{self.kernels.first().label} {beside}".strip()


def build_all(c: Compilation, choices: Sequence[TunedChoice]) -> None:
    """Builds in parallel every kernel that is going to be measured: nothing can be timed while
    kernels are built."""
    if c.target.interpreted:
        return
    by_key = {_key(c, choice): choice for choice in choices}
    missing = {
        key: choice
        for key, choice in by_key.items()
        if measurement_store.lookup(key, c.target.device) is None
    }
    kernels = [
        kernel
        for choice in missing.values()
        for kernel, _ in specifications(c, choice.kernels).values()
    ]
    build_side_by_side(kernels, c.target.device)


def choose(c: Compilation, choice: TunedChoice) -> str:
    """Returns the name of the fastest kernel, or `ATEN` where the operator (and the kernel beside
    it) is faster."""
    if c.target.interpreted or not choice.kernels:
        return ATEN
    key = _key(c, choice)
    try:
        return measurement.chosen(key, c.target.device, lambda: runs_of(c, choice), choice.what())
    except torch.OutOfMemoryError:
        logger().warning("%s: not measured, there is no memory for it", choice.what())
        return ATEN


def _key(c: Compilation, choice: TunedChoice) -> str:
    """Returns the key of the choice. The first kernel's text stands for the others' computation."""
    first = choice.kernels.first()
    sizes = [layout_hint(c, choice.program.buffers[name].layout) for name in first.pointers]
    beside = "" if choice.instead is None else _described(c, *choice.instead)
    grid = [c.sizes.hint(numel) for numel, _ in first.grid]
    return repr((first.text, first.types, sizes, grid, list(choice.kernels), beside))


def _described(c: Compilation, call: ExternNode, beside: TritonKernel | None) -> str:
    """Returns the operator and the kernel beside it as text, without names of buffers."""
    arguments = [layout_hint(c, a.layout) if isinstance(a, Strided) else a for a in call.args]
    return f"{_name(call)} {arguments} {beside.text if beside is not None else ''}"


def _name(call: ExternNode) -> str:
    """Returns the operator's name, which is the same in every process."""
    target = call.target
    return (
        f"{target.__module__}.{target.__name__}"
        if isinstance(target, FunctionType)
        else str(target)
    )


def layout_hint(c: Compilation, layout: BufferLayout) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(map(c.sizes.hint, layout.sizes)), tuple(map(c.sizes.hint, layout.strides))


def runs_of(
    c: Compilation, choice: TunedChoice, verify_all: bool = False
) -> dict[str, Callable[[], None]]:
    """Returns what launches each candidate that can run, on memory of the choice's own. verify_all:
    compares the results of all with those of the first."""
    memory = _Memory(c, choice.program, choice.kernels)
    candidates: dict[str, Callable[[], None]] = {}
    if choice.instead is not None:
        call, beside = choice.instead
        rest = None if beside is None else memory.candidates({ATEN: beside})[ATEN]
        candidates[ATEN] = memory.operator(call, rest)
    result = memory.candidates(choice.kernels, choice.name)
    return {**candidates, **_verified(result, choice.kernels, memory.storages, verify_all)}


def _verified(
    runs: Mapping[str, Callable[[], None]],
    kernels: Kernels,
    storages: Mapping[str, torch.Tensor],
    every: bool,
) -> dict[str, Callable[[], None]]:
    """Drops the kernels whose results differ from those of the first, plainest kernel. every: checks
    all; else only those with tensor descriptors or persistent loops, which are young in Triton."""
    basic, *others = kernels
    young = [
        name
        for name in others
        if name in runs and (every or kernels[name].matrices or kernels[name].most)
    ]
    if not young:
        return dict(runs)
    if basic not in runs:
        return {name: run for name, run in runs.items() if name not in young}
    written = [storages[kernels[basic].pointers[number]] for number in kernels[basic].written]
    before = [tensor.clone() for tensor in written]

    def results(name: str) -> list[torch.Tensor]:
        runs[name]()
        result = [tensor.clone() for tensor in written]
        for tensor, old in zip(written, before, strict=True):
            tensor.copy_(old)
        return result

    expected = results(basic)
    wrong = [name for name in young if not all(map(_close, results(name), expected))]
    for name in wrong:
        logger().warning(
            "%s: %s gives other results than %s and is left out", kernels.first().label, name, basic
        )
    return {name: run for name, run in runs.items() if name not in wrong}


def _close(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Compares by the norm: both were computed from the same operands, rounded or truncated to the
    same type."""
    a, b = (torch.nan_to_num(value.float(), 0.0, 0.0, 0.0) for value in (mine, theirs))
    apart, full = (torch.linalg.vector_norm(value, dtype=torch.float64) for value in (a - b, b))
    return bool(apart <= CLOSE * full)


def specifications(
    c: Compilation, kernels: Mapping[str, TritonKernel], function: str = ""
) -> dict[str, tuple[Kernel, int]]:
    """Returns what is compiled for each kernel, and its number of programs."""
    result = {}
    for name, kernel in kernels.items():
        label = function or f"fused_{kernel.label}"
        programs = math.prod(-(-c.sizes.hint(numel) // block) for numel, block in kernel.grid)
        described = specification(kernel, label, kernel.text.replace(NAME, label))
        result[name] = (described, min(programs, kernel.most) if kernel.most else programs)
    return result


def _alternating(launches: Sequence[Callable[[], None]]) -> Callable[[], None]:
    cycle = itertools.cycle(launches)
    return lambda: next(cycle)()


def _copies(nbytes: int, device: torch.device) -> int:
    """Returns of how many copies of inputs, of so many bytes, none is in the cache when it is read
    again."""
    if not nbytes or device.type != "cuda":
        return 1
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    room = MAX_SEARCH_MEMORY * torch.cuda.mem_get_info(device)[0]
    return max(1, min(-(-COLD * cache // nbytes), MAX_COPIES, int(room // nbytes)))


class _Memory:
    """Tensors of the captured sizes for the storages that candidates touch. kernels: the candidates."""

    def __init__(self, c: Compilation, program: LoopProgram, kernels: Kernels) -> None:
        self.c, self.program = c, program
        self.storages: dict[str, torch.Tensor] = {}
        #: Not the program's, which has to draw eager's numbers.
        self.generator = torch.Generator(c.target.device).manual_seed(0)
        first = kernels.first()
        written = {first.pointers[number] for number in first.written}
        inputs = [
            name
            for name in first.pointers
            if program.buffers[name].kind is BufferKind.INPUT and name not in written
        ]
        count = _copies(sum(self.storage(name).nbytes for name in inputs), c.target.device)
        #: The inputs, first none of them, that successive launches read in place of `storages`.
        self.copies: list[dict[str, torch.Tensor]] = [{}]
        for _ in range(count - 1):
            self.copies.append({name: self.storage(name).clone() for name in inputs})

    def storage(self, name: str) -> torch.Tensor:
        if name not in self.storages:
            hint = self.c.sizes.hint
            buffers = [b for b in self.program.buffers.values() if b.storage == name]
            count = max(hint(b.layout.extent) + hint(b.layout.offset) for b in buffers)
            dtype = self.program.buffers[name].dtype
            result = torch.zeros(max(count, 1), dtype=dtype, device=self.c.target.device)
            if dtype.is_floating_point:
                wide = torch.float32 if dtype.itemsize == 1 else dtype
                result.copy_(result.to(wide).normal_(generator=self.generator))
            self.storages[name] = result
        return self.storages[name]

    def _tensor(self, name: str, copy: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return copy[name] if name in copy else self.storage(name)

    def candidates(
        self, kernels: Mapping[str, TritonKernel], function: str = ""
    ) -> dict[str, Callable[[], None]]:
        candidates = {}
        described = specifications(self.c, kernels, function)
        for name, kernel in measurement.loaded(described, self.c.target.device).items():
            written, hint = kernels[name], self.c.sizes.hint
            matrices = [
                (m.pointer, m.start, hint(m.sizes[0]), hint(m.sizes[1]), m.stride)
                for m in written.matrices
            ]
            sizes = list(map(hint, written.sizes))
            launches = []
            for copy in self.copies:
                arguments = [self._tensor(pointer, copy) for pointer in written.pointers]
                launches.append(
                    measurement.launch(
                        kernel,
                        described[name][1],
                        [*arguments, *sizes],
                        matrices,
                        self.c.target.device,
                    )
                )
            candidates[name] = _alternating(launches)
        return candidates

    def operator(self, call: ExternNode, rest: Callable[[], None] | None) -> Callable[[], None]:
        def run(arguments: Sequence[Any]) -> None:
            call.target(*arguments)
            if rest is not None:
                rest()

        return _alternating(
            [partial(run, [self._operand(arg, copy) for arg in call.args]) for copy in self.copies]
        )

    def _operand(self, value: Any, copy: Mapping[str, torch.Tensor]) -> Any:
        hint = self.c.sizes.hint
        if isinstance(value, Strided):
            layout = value.layout
            sizes, strides = layout_hint(self.c, layout)
            storage = self._tensor(self.program.buffers[value.buffer].storage, copy)
            return storage.as_strided(sizes, strides, hint(layout.offset))
        if isinstance(value, (list, tuple)):
            return [self._operand(element, copy) for element in value]
        return hint(value) if hasattr(value, "free_symbols") else value
