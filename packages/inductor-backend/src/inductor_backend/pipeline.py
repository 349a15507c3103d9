"""The compiler: one list of stages from an ATen graph to a runner, the same for C++ and Triton.

In: a functional ATen `torch.fx.GraphModule` and its `CompileSpec`. Out: a `Runner` with its
`Artifact`. What always holds: every rewrite of the graph is a separate, timed stage that may be
dumped; a stage's verifier runs when TRACER_CHECK is set; an error names the stage and the cause.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from inductor_backend import control_flow_steps, stages
from inductor_backend import kernel_stages as kernels
from inductor_backend import rewrite_stages as rewrites
from inductor_backend.autotune import matmul
from inductor_backend.autotune.tile_search import with_tile_search
from inductor_backend.compilation import Compilation, Stage
from inductor_backend.debug import printer, verify
from inductor_backend.kernel_table import report_data
from inductor_backend.passes.attention import with_native_attention
from inductor_backend.passes.causal_mask import with_causal_masks
from inductor_backend.passes.constant_folding import with_folded_constants
from inductor_backend.passes.float32_compute import with_float32_compute
from inductor_backend.passes.frozen_rewrites import fold_batch_norm, fuse_epilogues, pack_weights
from inductor_backend.passes.horizontal_matmul import merge_matmuls
from inductor_backend.passes.host_constants import with_constants_on_device
from inductor_backend.passes.linear_layers import with_linear_layers
from inductor_backend.passes.lstm import pack_layers
from inductor_backend.passes.native_operators import with_native_operators
from inductor_backend.passes.pad_matmul import with_padded_matmuls
from inductor_backend.passes.quantized_matmul import with_quantized_matmuls
from inductor_backend.passes.weight_packing import with_native_kernels
from inductor_backend.runtime.cuda.graphs import with_cuda_graphs
from inductor_backend.runtime.module_runner import ModuleRunner
from tracer_core.plugin_api import BackendError, CompileSpec, Runner

_rewrite = rewrites.rewrite_stage

#: From an ATen graph to a runner. On CUDA "split" follows inlining, so that what a reduction reads
#: is in its body.
PIPELINE = (
    _rewrite("host_constants", rewrites.rewritten(with_constants_on_device), "cuda"),
    _rewrite("cpu_scalars", rewrites.split_host_side, "cuda"),
    _rewrite("causal_mask", rewrites.rewritten(with_causal_masks), "cuda"),
    _rewrite("pad_matmul", rewrites.rewritten(lambda gm, spec: with_padded_matmuls(gm)), "cuda"),
    _rewrite("repeated_subgraphs", rewrites.outline_repeats),
    _rewrite("constant_folding", rewrites.rewritten(with_folded_constants), "cpu"),
    _rewrite("linear_layers", rewrites.rewritten(with_linear_layers), "cpu"),
    _rewrite("quantized_matmul", rewrites.rewritten(with_quantized_matmuls), "cpu"),
    _rewrite("float32_compute", rewrites.rewritten(with_float32_compute), "cpu"),
    _rewrite("attention", rewrites.rewritten(with_native_attention), "cpu"),
    _rewrite("native_operators", rewrites.rewritten(with_native_operators), "cpu", aot_standalone=True),
    _rewrite("freeze", rewrites.freeze, frozen=True),
    _rewrite("fold_batch_norm", rewrites.frozen(fold_batch_norm), "cpu", frozen=True),
    _rewrite("lstm", rewrites.frozen(pack_layers), "cpu", frozen=True),
    _rewrite("horizontal_matmul", rewrites.frozen(merge_matmuls), "cpu", frozen=True),
    _rewrite("pack_weights", rewrites.frozen(pack_weights), "cpu", frozen=True),
    _rewrite("fuse_epilogues", rewrites.frozen(fuse_epilogues), "cpu", frozen=True),
    _rewrite("constant_subgraph", rewrites.constant_subgraph, "cpu", frozen=True),
    _rewrite("weight_packing", rewrites.rewritten(with_native_kernels), "cpu"),
    _rewrite("repeated_packed_subgraphs", rewrites.outline_late_repeats, "cpu"),
    Stage("prebuild", rewrites.prebuild, "cpu"),
    Stage("lower", kernels.lower_graph, "any", kernels.verify_program, lambda c: printer.program(c.program)),
    Stage("loops", control_flow_steps.compile_steps, "cpu", kernels.verify_program, control_flow_steps.loop_reasons),
    Stage("rounding", kernels.round_loads, "any", kernels.verify_program, lambda c: "\n".join(c.rounded)),
    Stage("inline", kernels.inline_loops, "any", kernels.verify_program, lambda c: printer.inlined(c.program, c.not_inlined)),
    Stage("epilogue", kernels.fuse_call_epilogues, "cpu", kernels.verify_program, lambda c: "\n".join(c.fused)),
    Stage("layouts", kernels.choose_buffer_layouts, "any", kernels.verify_program, lambda c: "\n".join(c.fused)),
    Stage("zero_pages", kernels.leave_zero_pages, "cpu", kernels.verify_program, lambda c: "\n".join(c.fused)),
    Stage("scatter", kernels.scatter_atomically, "cuda", kernels.verify_program, lambda c: "\n".join(c.fused)),
    Stage("split", kernels.split_long_reductions, "cuda", kernels.verify_program, lambda c: "\n".join(c.fused)),
    Stage("matmul", matmul.choose_matmuls, "cuda", kernels.verify_program,
          lambda c: "\n".join(f"{name}: {blocks}" for name, blocks in c.blocks.items())),
    Stage("fuse", kernels.fuse_loops, "any", lambda c: verify.plan(c.program, c.plan),
    lambda c: printer.plan(c.plan)),
    Stage("divisions", kernels.split_divisions, "cpu", lambda c: verify.plan(c.program, c.plan),
    lambda c: "\n".join(c.fused)),
    Stage("externs", kernels.choose_kernels, "any", None, lambda c: printer.externs(c.program, c.choices)),
    Stage("bodies", kernels.build_bodies, "any", lambda c: verify.bodies(c.program, c.bodies),
    lambda c: printer.bodies(c.bodies)),
    Stage("kernels", kernels.write_kernels, "any", lambda c: verify.reusable(c.program, c.bodies, c.kernels)),
    Stage("replicate", kernels.replicate_repeats, "any", kernels.verify_replication, lambda c: c.replication),
    Stage("combine", kernels.combine_kernels, "cuda", kernels.verify_launches, lambda c: "\n".join(c.combined)),
    Stage("memory", kernels.place_memory, "any", kernels.verify_memory, lambda c: printer.memory(c.memory)),
    Stage("group_runs", kernels.group_runs, "any", None, lambda c: "\n".join(c.sources), suffix=""),
    Stage("module", kernels.write_module, "any", None, lambda c: c.text, lambda c: c.summary, report_data, "py"),
    Stage("build", kernels.load, data=kernels.cache_data),
)  # fmt: skip


def start(gm: torch.fx.GraphModule, spec: CompileSpec) -> Compilation:
    """Returns the compilation of a graph, before its first stage."""
    return stages.start(gm, spec, PIPELINE)


def compile_graph(gm: torch.fx.GraphModule, spec: CompileSpec) -> Runner:
    """Compiles one functional ATen graph. Raises BackendError, and VerifyError where a stage broke
    its invariants."""
    c = stages.run_stages(start(gm, spec))
    runner = c.runner
    assert runner is not None
    if matmul.depends_on_settings(c):
        stored = not matmul.has_float32_matmuls(c)
        runner = matmul.by_settings(runner, lambda: _in_the_same_layout(c), stored)
    if c.target.device.type == "cuda":
        runner = with_cuda_graphs(runner, c.original, c.spec)
    if c.searched:
        runner = with_tile_search(runner, c)
    wrapped: Runner = replace(runner, channels_last=frozenset(c.program.channels_last))
    for wrap in reversed(c.wraps):
        wrapped = wrap(wrapped)
    return wrapped


def _in_the_same_layout(first: Compilation) -> ModuleRunner:
    """Recompiles the graph for other settings. The backward relies on the layout of the first
    runner's results."""
    c = start(first.original, first.spec)
    c.channels_last_outputs = first.program.channels_last_outputs
    runner = stages.run_stages(c, first="lower").runner
    assert runner is not None
    if c.program.channels_last != first.program.channels_last:
        name = first.spec.name
        detail = f"{name}: with other settings, other saved values would be channels-last"
        raise BackendError("inductor", "lower", detail)
    return runner
