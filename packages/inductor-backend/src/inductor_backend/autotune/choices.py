"""Choices by measurement between kernels of ours, and between them and operators.

In: kernels for the same work, and a `Compilation` for its device and captured sizes. Out: the name
of the quickest. What always holds: equal work is measured once, whatever its buffers are called;
candidates run on memory of their own; a kernel that does not build or fit the device, or does not
give what the plainest gives, is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from inductor_backend.codegen.common.module import NAME
from inductor_backend.codegen.triton.kernel import TritonKernel
from inductor_backend.codegen.triton.module import specification
from inductor_backend.ir.nodes import ExternNode, Layout, Program, Strided
from inductor_backend.runtime.cuda import measurement
from inductor_backend.runtime.cuda.build import build_side_by_side
from inductor_backend.runtime.cuda.triton_compile import Kernel
from tracer_core.plugin_api import logger

if TYPE_CHECKING:
    from inductor_backend.compilation import Compilation

#: The operator itself, with a kernel for what would be fused with it.
ATEN = "aten"

#: By how much results of two right kernels may differ, as a part of their norm (TF32 cut or
#: rounded: 0.001).
CLOSE = 0.02


class Kernels(Mapping[str, TritonKernel]):
    """Kernels for the same work by name, written when they are asked for: a stored choice needs the
    first alone. Mutable."""

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
class Choice:
    """Between kernels of a program, which are told apart by their names, and what does the same: an
    operator and a kernel for what is fused with ours (None: nothing does)."""

    program: Program
    kernels: Kernels
    instead: tuple[ExternNode, TritonKernel | None] | None

    def what(self) -> str:
        """For people."""
        beside = "" if self.instead is None else _name(self.instead[0])
        return f"{self.kernels.first().label} {beside}".strip()


def build_all(c: Compilation, choices: Sequence[Choice]) -> None:
    """Builds, side by side, every kernel that is to be measured: while kernels are built, nothing
    can be timed.
    """
    if c.target.interpreted:
        return
    by_key = {_key(c, choice): choice for choice in choices}
    missing = {
        key: one for key, one in by_key.items() if measurement.stored(key, c.target.device) is None
    }
    found = [
        kernel
        for choice in missing.values()
        for kernel in _specifications(c, choice.kernels).values()
    ]
    build_side_by_side([kernel for kernel, _ in found], c.target.device)


def choose(c: Compilation, choice: Choice) -> str:
    """The name of the quickest kernel, or `ATEN` where the operator (and the kernel beside it) is
    quicker.
    """
    if c.target.interpreted or not choice.kernels:
        return ATEN
    key = _key(c, choice)
    try:
        return measurement.chosen(key, c.target.device, lambda: _ways(c, choice), choice.what())
    except torch.OutOfMemoryError:
        logger().warning("%s: not measured, there is no memory for it", choice.what())
        return ATEN


def _key(c: Compilation, choice: Choice) -> str:
    """All that the choice depends on: the first kernel's text says what the others compute."""
    first = choice.kernels.first()
    sizes = [layout_hint(c, choice.program.buffers[name].layout) for name in first.pointers]
    beside = "" if choice.instead is None else _described(c, *choice.instead)
    grid = [c.sizes.hint(numel) for numel, _ in first.grid]
    return repr((first.text, first.types, sizes, grid, list(choice.kernels), beside))


def _described(c: Compilation, call: ExternNode, beside: TritonKernel | None) -> str:
    """The operator and the kernel beside it, without names of buffers."""
    arguments = [layout_hint(c, a.layout) if isinstance(a, Strided) else a for a in call.args]
    return f"{_name(call)} {arguments} {beside.text if beside is not None else ''}"


def _name(call: ExternNode) -> str:
    """The same in every process."""
    target = call.target
    return (
        f"{target.__module__}.{target.__name__}"
        if isinstance(target, FunctionType)
        else str(target)
    )


def layout_hint(c: Compilation, layout: Layout) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(map(c.sizes.hint, layout.sizes)), tuple(map(c.sizes.hint, layout.strides))


def _ways(c: Compilation, choice: Choice) -> dict[str, Callable[[], None]]:
    memory = _Memory(c, choice.program)
    ways: dict[str, Callable[[], None]] = {}
    if choice.instead is not None:
        call, beside = choice.instead
        rest = None if beside is None else memory.ways({ATEN: beside})[ATEN]
        ways[ATEN] = memory.operator(call, rest)
    found = memory.ways(choice.kernels)
    return {**ways, **_trusted(found, choice.kernels, memory.storages)}


def _trusted(
    ways: Mapping[str, Callable[[], None]], kernels: Kernels, storages: Mapping[str, torch.Tensor]
) -> dict[str, Callable[[], None]]:
    """Without the kernels that do not give what the plainest, the first, gives. Bulk copies and
    walks are young in Triton, and time alone does not tell a wrong kernel."""
    plain, *others = kernels
    young = [
        name for name in others if name in ways and (kernels[name].matrices or kernels[name].most)
    ]
    if not young:
        return dict(ways)
    if plain not in ways:
        return {name: run for name, run in ways.items() if name not in young}
    written = [storages[kernels[plain].pointers[number]] for number in kernels[plain].written]
    before = [one.clone() for one in written]

    def results(name: str) -> list[torch.Tensor]:
        ways[name]()
        made = [one.clone() for one in written]
        for one, old in zip(written, before, strict=True):
            one.copy_(old)
        return made

    expected = results(plain)
    wrong = [name for name in young if not all(map(_close, results(name), expected))]
    for name in wrong:
        logger().warning(
            "%s: %s gives other results than %s and is left out", kernels.first().label, name, plain
        )
    return {name: run for name, run in ways.items() if name not in wrong}


def _close(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Up to rounding, by the norm: both were computed with the same operands, rounded or cut to the
    same type.
    """
    a, b = (torch.nan_to_num(one.float(), 0.0, 0.0, 0.0) for one in (mine, theirs))
    apart, whole = (torch.linalg.vector_norm(one, dtype=torch.float64) for one in (a - b, b))
    return bool(apart <= CLOSE * whole)


def _specifications(
    c: Compilation, kernels: Mapping[str, TritonKernel]
) -> dict[str, tuple[Kernel, int]]:
    """What is compiled, and the number of programs."""
    found = {}
    for name, kernel in kernels.items():
        label = f"fused_{kernel.label}"
        programs = math.prod(-(-c.sizes.hint(numel) // block) for numel, block in kernel.grid)
        described = specification(kernel, label, kernel.text.replace(NAME, label))
        found[name] = (described, min(programs, kernel.most) if kernel.most else programs)
    return found


class _Memory:
    """Tensors for the storages that candidates touch, of the captured sizes. Mutable."""

    def __init__(self, c: Compilation, program: Program) -> None:
        self.c, self.program = c, program
        self.storages: dict[str, torch.Tensor] = {}

    def storage(self, name: str) -> torch.Tensor:
        if name not in self.storages:
            hint = self.c.sizes.hint
            buffers = [b for b in self.program.buffers.values() if b.storage == name]
            count = max(hint(b.layout.extent) + hint(b.layout.offset) for b in buffers)
            dtype = self.program.buffers[name].dtype
            made = torch.zeros(max(count, 1), dtype=dtype, device=self.c.target.device)
            if dtype.is_floating_point:
                made.normal_()
            self.storages[name] = made
        return self.storages[name]

    def ways(self, kernels: Mapping[str, TritonKernel]) -> dict[str, Callable[[], None]]:
        ways = {}
        described = _specifications(self.c, kernels)
        for name, kernel in measurement.loaded(described, self.c.target.device).items():
            written = kernels[name]
            arguments: list[torch.Tensor | int] = [*map(self.storage, written.pointers)]
            arguments += map(self.c.sizes.hint, written.sizes)
            hint = self.c.sizes.hint
            matrices = [
                (m.pointer, m.start, hint(m.sizes[0]), hint(m.sizes[1]), m.stride)
                for m in written.matrices
            ]
            ways[name] = measurement.launch(
                kernel, described[name][1], arguments, matrices, self.c.target.device
            )
        return ways

    def operator(self, call: ExternNode, rest: Callable[[], None] | None) -> Callable[[], None]:
        arguments = [self._operand(value) for value in call.args]

        def run() -> None:
            call.target(*arguments)
            if rest is not None:
                rest()

        return run

    def _operand(self, value: Any) -> Any:
        hint = self.c.sizes.hint
        if isinstance(value, Strided):
            layout = value.layout
            sizes, strides = layout_hint(self.c, layout)
            storage = self.storage(self.program.buffers[value.buffer].storage)
            return storage.as_strided(sizes, strides, hint(layout.offset))
        if isinstance(value, (list, tuple)):
            return [self._operand(item) for item in value]
        return hint(value) if hasattr(value, "free_symbols") else value
