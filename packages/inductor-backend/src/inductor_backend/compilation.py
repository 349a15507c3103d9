"""The state that the pipeline's stages share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from inductor_backend.codegen.common.module import KernelModule
from inductor_backend.codegen.triton.matmul import Blocks
from inductor_backend.codegen.wrapper import Step
from inductor_backend.ir.kernel_text import KernelText
from inductor_backend.ir.nodes import Program
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.target import CPU, Target
from inductor_backend.kernels.selection import Choice
from inductor_backend.lowering.graph import GraphLowering
from inductor_backend.options import InductorOptions
from inductor_backend.passes.freeze import FrozenGraph
from inductor_backend.passes.fx_edit import Editor
from inductor_backend.passes.subgraph_cut import Cut
from inductor_backend.runtime.module_runner import ModuleRunner
from inductor_backend.schedule.fused_body import KernelBody
from inductor_backend.schedule.fusion import Group, Plan, readers_outside
from inductor_backend.schedule.memory_plan import MemoryPlan
from tracer_core.plugin_api import CompileSpec, Runner


@dataclass(slots=True)
class Compilation:
    """The state of one graph's compilation: each stage fills its fields.

    gm: the graph as rewritten so far; given: before any rewrite. wraps: wrappers that rewrites put
    around the runner, outermost first. editor: of a graph that is being frozen; frozen: that graph
    without what is computed of constants alone. cut: the graph without repeated subgraphs;
    cut_late: they are looked for after packing; go_on_at: the stage after it. text: of the
    generated module; code: the part of it that is executed. in_loop: the graph is the step of a
    loop over slices. alone: it is to run without Python and ATen. stages: that it
    goes through, of one device or another."""

    gm: torch.fx.GraphModule
    spec: CompileSpec
    options: InductorOptions
    sizes: SizeVars
    given: torch.fx.GraphModule
    program: Program = field(default_factory=lambda: Program(""))
    rounded: list[str] = field(default_factory=list)
    not_inlined: list[tuple[str, str]] = field(default_factory=list)
    absorbed: list[str] = field(default_factory=list)
    plan: Plan = field(default_factory=lambda: Plan([], []))
    bodies: list[KernelBody | None] = field(default_factory=list)
    kernels: list[KernelText | None] = field(default_factory=list)
    choices: dict[str, Choice] = field(default_factory=dict)
    memory: MemoryPlan = field(default_factory=MemoryPlan)
    module: KernelModule | None = None
    steps: list[Step] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    text: str = ""
    code: str = ""
    summary: str = ""
    natives: tuple[str, ...] = ()
    runner: ModuleRunner | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    target: Target = CPU
    blocks: dict[str, Blocks] = field(default_factory=dict)
    images_last: frozenset[str] | None = None
    lowered: GraphLowering | None = None
    wraps: list[Callable[[Runner], Runner]] = field(default_factory=list)
    editor: Editor | None = None
    frozen: FrozenGraph | None = None
    cut: Cut | None = None
    cut_late: bool = False
    go_on_at: str = ""
    in_loop: bool = False
    alone: bool = False
    replication: str = "no region of the graph repeats"
    stages: tuple[Stage, ...] = ()

    def groups_with_readers(self) -> Iterator[tuple[Group, Callable[[str], bool]]]:
        """Yields each group with a predicate: must a buffer that it writes be in memory afterwards?"""
        return readers_outside(self.program, self.plan.groups)


@dataclass(frozen=True, slots=True)
class Stage:
    """run: fills fields of the compilation. device: "cpu" or "cuda", the only one whose graphs it
    is for; "": both. verify: raises VerifyError. dump: its result as text; brief: one line of it
    for short dumps. suffix: of the file in the debug folder, "" for that of the device's kernels.
    frozen: only for graphs whose parameters are constants. alone: only for those that are to run
    without Python and ATen."""

    name: str
    run: Callable[[Compilation], None]
    device: str = ""
    verify: Callable[[Compilation], None] | None = None
    dump: Callable[[Compilation], str] | None = None
    brief: Callable[[Compilation], str] | None = None
    suffix: str = "txt"
    frozen: bool = False
    alone: bool = False

    def is_for(self, c: Compilation) -> bool:
        """Returns whether the graph goes through this stage."""
        device = "cuda" if c.target.triton else "cpu"
        wanted = (c.alone or not self.alone) and (not self.frozen or bool(c.spec.constants))
        return self.device in ("", device) and wanted
