"""Compiles the steps of scans and while_loops, and the branches of conds, each as a graph of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from inductor_backend import stages
from inductor_backend.codegen.cpp.module import CppModule
from inductor_backend.codegen.cpp.native_loop import LoopShape, LoopWriter
from inductor_backend.compilation import Compilation
from inductor_backend.ir.native_loop import CompiledSteps, NativeLoop
from inductor_backend.ir.nodes import Buffer, BufferKind, BufferLayout, ExternNode
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.passes.decompositions import step_matmuls
from tracer_core.plugin_api import COND, SCAN, WHILE_LOOP, Phase, scan_step


def compile_steps(c: Compilation) -> None:
    """Compiles the steps of loops, and the branches of conds."""
    rules = loop_rules()
    nodes = {node.name: node for node in c.gm.graph.nodes}
    for at, node in enumerate(c.program.nodes):
        if isinstance(node, ExternNode) and node.target in rules:
            c.program.nodes[at] = rules[node.target](c, node, nodes[node.origin.fx], f"loop_{at}")


@functools.cache
def loop_rules() -> dict[Any, Callable[..., ExternNode]]:
    """Returns operator -> what compiles its steps."""
    return {SCAN: _scan, WHILE_LOOP: _while, COND: _cond}


#: How a step is found: the operator's FX node, the arguments that it takes, its program.
StepOf = tuple[torch.fx.Node, tuple[Any, Any, Any], str]


def _scan(c: Compilation, node: ExternNode, fx: torch.fx.Node, name: str) -> ExternNode:
    """Returns the call of a loop as C++; as a loop in Python over its compiled step, where the step
    does not run without Python."""
    args: Any = fx.args
    outer, carry, rows, numbers, length, reverse, _ = node.args
    of: StepOf = (fx, ((*args[0], *args[1]), args[2], args[3]), args[6])
    shape = LoopShape(len(outer), len(carry), len(rows), length, reverse)
    loop = _native(c, of, shape, name)
    if isinstance(loop, NativeStep):
        return _called(c, node, loop, (*outer, *carry, *rows), name)
    steps = CompiledSteps(name, (_code(c, of, name),), "steps_of", loop)
    return replace(node, target=steps, args=(outer, carry, rows, numbers, length, reverse))


def _while(c: Compilation, node: ExternNode, fx: torch.fx.Node, name: str) -> ExternNode:
    """Does `_scan` for a while_loop."""
    args: Any = fx.args
    more, outer, carry, numbers, _ = node.args
    of: StepOf = (fx, ((*args[1], *args[2]), (), args[3]), args[4])
    loop = _native(c, of, LoopShape(len(outer), len(carry), 0, None, False), name)
    if isinstance(loop, NativeStep):
        return _called(c, node, loop, (*outer, *carry, more), name)
    steps = CompiledSteps(name, (_code(c, of, name),), "while_of", loop)
    return replace(node, target=steps, args=(more, outer, carry, numbers))


def _cond(c: Compilation, node: ExternNode, fx: torch.fx.Node, name: str) -> ExternNode:
    """Returns the call of a cond whose branches are compiled."""
    args: Any = fx.args
    codes = tuple(
        _code(c, (fx, (args[1], (), args[2]), program), f"{name}_{kind}")
        for kind, program in zip(("true", "false"), args[3:], strict=True)
    )
    steps = CompiledSteps(name, codes, "branches_of", "a cond")
    return replace(node, target=steps, args=node.args[:3])


@dataclass(frozen=True, slots=True)
class NativeStep:
    """loop: what is called. arena: the bytes that a step needs."""

    loop: NativeLoop
    arena: Any


def _step(c: Compilation, of: StepOf, name: str, table: Any, in_loop: bool) -> Compilation:
    """Returns the compilation of a step, before its first stage."""
    gm, sizes = scan_step(*of, table)
    spec = replace(c.spec, name=name, inputs=(), outputs=(), sizes=sizes, mutations=(), constants=(),
                   phase=Phase.INFERENCE)  # fmt: skip
    return Compilation(
        gm,
        spec,
        c.options,
        SizeVars(sizes),
        gm,
        in_loop=in_loop,
        aot_standalone=c.aot_standalone,
        stages=c.stages,
    )


def _code(c: Compilation, of: StepOf, name: str) -> str:
    """Returns the module of a step that Python calls: ATen's matmuls are faster there."""
    return stages.run_stages(_step(c, of, name, {}, in_loop=False), "module", first="lower").code


def _native(c: Compilation, of: StepOf, shape: LoopShape, name: str) -> NativeStep | str:
    """Returns a loop as C++, or why its step does not run without Python."""
    step = _step(c, of, name, step_matmuls(), in_loop=True)
    stages.run_stages(step, "group_runs", first="lower")
    assert isinstance(step.module, CppModule)
    writer = LoopWriter(
        name, shape, step.program, step.memory, step.choices, step.steps, step.module
    )
    return writer.why_not() or NativeStep(writer.write(), step.memory.size)


def _called(
    c: Compilation, node: ExternNode, step: NativeStep, args: tuple[Any, ...], name: str
) -> ExternNode:
    """Returns the call of a loop as C++, with memory for what it carries and for a step."""
    results = [c.program.buffers[output] for output in node.outputs[: step.loop.n_live] if output]
    scratch = [(tensor.dtype, tensor.layout) for tensor in results]
    scratch.append((torch.uint8, BufferLayout((step.arena,), (1,))))
    names = []
    for number, (dtype, layout) in enumerate(scratch):
        names.append(f"{name}_scratch_{number}")
        c.program.buffers[names[-1]] = Buffer(names[-1], dtype, layout, BufferKind.TEMP)
    return replace(node, target=step.loop, args=args, outputs=(*node.outputs, *names))


def loop_reasons(c: Compilation) -> str:
    """Returns a line for each loop that stays in Python, with why."""
    nodes = [node for node in c.program.nodes if isinstance(node, ExternNode)]
    steps = [node.target for node in nodes if isinstance(node.target, CompiledSteps)]
    return "\n".join(f"{step.name} is a loop in Python: {step.why}" for step in steps)
