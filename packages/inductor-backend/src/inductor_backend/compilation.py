"""The state that the pipeline's stages share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from inductor_backend.codegen.common.module import KernelModule
from inductor_backend.codegen.triton.matmul import Blocks
from inductor_backend.codegen.wrapper import WrapperStep
from inductor_backend.ir.kernel_source import KernelSource
from inductor_backend.ir.nodes import LoopProgram
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.target import CPU, Target
from inductor_backend.kernels.selection import KernelChoice
from inductor_backend.lowering.graph import GraphLowering
from inductor_backend.options import InductorOptions
from inductor_backend.passes.freeze import FrozenGraph
from inductor_backend.passes.fx_edit import Editor
from inductor_backend.passes.outline import Outline
from inductor_backend.runtime.module_runner import ModuleRunner
from inductor_backend.schedule.fused_body import KernelBody
from inductor_backend.schedule.fusion import FusionPlan, Group, readers_outside
from inductor_backend.schedule.memory_plan import MemoryPlan
from tracer_core.plugin_api import CompileSpec, Runner


@dataclass(slots=True)
class Compilation:
    """The state of one graph's compilation: each stage fills its fields."""

    #: The ATen graph, rewritten by each pass.
    gm: torch.fx.GraphModule
    spec: CompileSpec
    options: InductorOptions
    sizes: SizeVars
    #: The graph before any rewrite.
    original: torch.fx.GraphModule
    program: LoopProgram = field(default_factory=lambda: LoopProgram(""))
    rounded: list[str] = field(default_factory=list)
    not_inlined: list[tuple[str, str]] = field(default_factory=list)
    fused: list[str] = field(default_factory=list)
    plan: FusionPlan = field(default_factory=lambda: FusionPlan([], []))
    bodies: list[KernelBody | None] = field(default_factory=list)
    kernels: list[KernelSource | None] = field(default_factory=list)
    choices: dict[str, KernelChoice] = field(default_factory=dict)
    #: The nodes of each launch of several kernels.
    combined: list[str] = field(default_factory=list)
    memory: MemoryPlan = field(default_factory=MemoryPlan)
    module: KernelModule | None = None
    steps: list[WrapperStep] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    #: The text of the generated module.
    text: str = ""
    #: The part of `text` that is executed.
    code: str = ""
    summary: str = ""
    natives: tuple[str, ...] = ()
    runner: ModuleRunner | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    target: Target = CPU
    blocks: dict[str, Blocks] = field(default_factory=dict)
    #: Kernels whose tiles are measured while the program runs (`autotune.tiles.SearchedKernel`).
    searched: list[Any] = field(default_factory=list)
    channels_last_outputs: frozenset[str] | None = None
    lowered: GraphLowering | None = None
    #: Wrappers that rewrites put around the runner, outermost first.
    wraps: list[Callable[[Runner], Runner]] = field(default_factory=list)
    #: The editor of a graph that is being frozen.
    editor: Editor | None = None
    #: The frozen graph without what is computed from constants alone.
    frozen: FrozenGraph | None = None
    #: The graph without repeated subgraphs.
    outline: Outline | None = None
    #: Whether repeated subgraphs are searched for after packing.
    outline_late: bool = False
    #: The stage that follows the search for repeated subgraphs.
    resume_stage: str = ""
    #: Whether the graph is the step of a loop over slices.
    in_loop: bool = False
    #: Whether it has to run without Python and ATen.
    aot_standalone: bool = False
    replication: str = "no region of the graph repeats"
    #: The stages that it goes through, of one device or another.
    stages: tuple[Stage, ...] = ()

    def groups_with_readers(self) -> Iterator[tuple[Group, Callable[[str], bool]]]:
        """Yields each group with a predicate: must a buffer that it writes be in memory afterwards?"""
        return readers_outside(self.program, self.plan.groups)


#: The devices whose graphs go through a stage.
StageDevice = Literal["any", "cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of the pipeline."""

    name: str
    #: Fills fields of the compilation.
    run: Callable[[Compilation], None]
    #: The devices whose graphs go through this stage.
    device: StageDevice = "any"
    #: Raises VerifyError where the result violates a rule.
    verify: Callable[[Compilation], None] | None = None
    #: Returns the result as text.
    dump: Callable[[Compilation], str] | None = None
    #: Returns one line of `dump`, for short dumps.
    brief: Callable[[Compilation], str] | None = None
    #: Returns what `tracer_core.report` shows of the result.
    data: Callable[[Compilation], Mapping[str, Any]] | None = None
    #: Suffix of the file in the debug folder; "" for that of the device's kernels.
    suffix: str = "txt"
    #: Whether it is only for graphs whose parameters are constants.
    frozen: bool = False
    #: Whether it is only for graphs that run without Python and ATen.
    aot_standalone: bool = False

    def is_for(self, c: Compilation) -> bool:
        """Returns whether the graph goes through this stage."""
        device = "cuda" if c.target.triton else "cpu"
        wanted = (c.aot_standalone or not self.aot_standalone) and (
            not self.frozen or bool(c.spec.constants)
        )
        return self.device in ("any", device) and wanted
