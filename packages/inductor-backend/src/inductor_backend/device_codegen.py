"""What a device supplies to the pipeline: its limits, and the writers of kernels, modules,
wrappers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

from inductor_backend.autotune.matmul import matmul_kernel
from inductor_backend.autotune.tiles import tiles_of, with_search
from inductor_backend.codegen.common.loop_nest import is_column, loop_nest
from inductor_backend.codegen.common.module import KernelModule
from inductor_backend.codegen.cpp.flex_attention import kernel_of
from inductor_backend.codegen.cpp.kernel import KernelWriter
from inductor_backend.codegen.cpp.module import CppModule
from inductor_backend.codegen.cpp.vectors import LANES
from inductor_backend.codegen.triton.kernel import TritonKernelWriter
from inductor_backend.codegen.triton.module import TritonModule
from inductor_backend.codegen.triton.wrapper import TritonWrapper
from inductor_backend.codegen.wrapper import Wrapper
from inductor_backend.compilation import Compilation
from inductor_backend.ir.kernel_source import KernelSource
from inductor_backend.ir.target import Target
from inductor_backend.kernels.selection import KernelKind
from inductor_backend.runtime.cpp.toolchain import processor
from inductor_backend.schedule.exception_safety import inputs_mutated_on_error
from inductor_backend.schedule.fused_body import KernelBody
from inductor_backend.schedule.fusion import FusionLimits, Group
from inductor_backend.schedule.fusion_heuristics import touched_bytes
from inductor_backend.schedule.inplace_reuse import places_to_reuse
from inductor_backend.schedule.kernel_choice import ChoiceRule, choice_of, cuda_choice_of
from inductor_backend.schedule.memory_plan import Arena


class DeviceCodegen(ABC):
    """limits: of a fused kernel. choice: the kernel of an operator call. in_registers: see
    `kernel_body`. suffix: of the debug folder's file with the kernels' texts."""

    limits: FusionLimits
    choice: ChoiceRule
    in_registers: bool
    suffix: str

    @abstractmethod
    def walks_rows(self, c: Compilation, group: Group) -> bool:
        """Returns whether the group's kernel may use row buffers."""

    @abstractmethod
    def kernels(self, c: Compilation) -> list[Any]:
        """Returns the kernel of each group, None for operator calls."""

    @abstractmethod
    def arena(self, c: Compilation) -> Arena:
        """Returns which buffers share one allocation per call."""

    @abstractmethod
    def module(self, c: Compilation) -> KernelModule:
        """Returns the module that collects the kernels."""

    @abstractmethod
    def wrapper(self, c: Compilation) -> Wrapper:
        """Returns the writer of the generated module."""


class CppCodegen(DeviceCodegen):
    """Code generation for the CPU."""

    limits = FusionLimits()
    choice = staticmethod(choice_of)
    in_registers = False
    suffix = "cpp"

    def walks_rows(self, c: Compilation, group: Group) -> bool:
        return not self._is_column(c, group)

    @staticmethod
    def _is_column(c: Compilation, group: Group) -> bool:
        assert group.domain is not None
        lanes = LANES.get(processor()[0], 8)
        return is_column(c.program, group.domain, group.loops, lanes)

    def kernels(self, c: Compilation) -> list[Any]:
        return [
            self._of_call(c, group)
            if body is None
            else KernelWriter(c.program, body, self._nest(c, group, body), c.sizes).write()
            for group, body in zip(c.plan.groups, c.bodies, strict=True)
        ]

    @staticmethod
    def _of_call(c: Compilation, group: Group) -> KernelSource | None:
        """Returns the kernel that is generated for an operator call, if one is."""
        assert group.extern is not None
        if c.choices[group.extern.name].kind is not KernelKind.GENERATED:
            return None
        return kernel_of(c.program, group.extern, c.sizes)

    def _nest(self, c: Compilation, group: Group, body: KernelBody) -> Any:
        return loop_nest(c.program, body, c.sizes, self._is_column(c, group))

    def arena(self, c: Compilation) -> Arena:
        return Arena.ALL

    def module(self, c: Compilation) -> CppModule:
        prefix = f"{c.spec.name}_" if c.in_loop else ""
        return CppModule(c.program, c.memory.offsets.get, prefix)

    def wrapper(self, c: Compilation) -> Wrapper:
        wrapper = Wrapper(c.program, c.memory, c.spec.sizes, c.choices)
        if c.spec.mutations:
            wrapper.early = inputs_mutated_on_error(c.gm.graph, c.program, c.plan.groups, c.kernels)
        return wrapper


class TritonCodegen(DeviceCodegen):
    """Code generation for CUDA devices. Fewer than 64 rows do not keep a device busy; more than
    eight parameter updates in one kernel would need more registers than a thread has."""

    limits = FusionLimits(rows=64, reads_scans=False, together=8, first_nodes=True, columns=True)
    choice = staticmethod(cuda_choice_of)
    in_registers = True
    suffix = "py"

    def walks_rows(self, c: Compilation, group: Group) -> bool:
        return False

    def kernels(self, c: Compilation) -> list[Any]:
        matmuls = [
            body is not None and group.loops[0].is_matmul
            for group, body in zip(c.plan.groups, c.bodies, strict=True)
        ]
        bodies = [None if matmul else body for matmul, body in zip(matmuls, c.bodies, strict=True)]
        tiles = tiles_of(c, bodies)
        result: list[Any] = []
        for group, body, matmul, tile in zip(c.plan.groups, c.bodies, matmuls, tiles, strict=True):
            if body is None:
                result.append(None)
                continue
            if matmul:
                kernel = matmul_kernel(c.program, body, c.sizes, c.blocks[group.loops[0].name])
            else:
                writer = TritonKernelWriter(c.program, body, c.sizes, tile)
                kernel = writer.write()
                if not kernel.looped:
                    kernel = replace(kernel, reusable=self._reusable(c, body, kernel.pointers))
                kernel = with_search(c, body, kernel, writer.tile)
            nbytes = touched_bytes(c.program, c.sizes, group.loops, kernel.pointers)
            result.append(replace(kernel, nbytes=nbytes))
        return result

    @staticmethod
    def _reusable(
        c: Compilation, body: KernelBody, pointers: tuple[str, ...]
    ) -> tuple[tuple[int, tuple[int, ...]], ...]:
        number = {name: at for at, name in enumerate(pointers)}
        return tuple(  # of empty operands the kernel knows nothing
            (number[name], tuple(number[other] for other in others if other in number))
            for name, others in places_to_reuse(c.program, body).items()
        )

    def arena(self, c: Compilation) -> Arena:
        return Arena.NONE if c.target.interpreted else Arena.KERNELS

    def module(self, c: Compilation) -> TritonModule:
        return TritonModule(c.program, c.memory.offsets.get)

    def wrapper(self, c: Compilation) -> Wrapper:
        assert isinstance(c.module, TritonModule)
        return TritonWrapper(
            c.program, c.memory, c.spec.sizes, c.choices, c.module, c.target.device, c.sizes
        )


_CPP, _TRITON = CppCodegen(), TritonCodegen()


def codegen_of(target: Target) -> DeviceCodegen:
    """Returns the code generator of a target."""
    return _TRITON if target.triton else _CPP
