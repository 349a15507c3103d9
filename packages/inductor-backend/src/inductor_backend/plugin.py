"""Registers the backend; the compiler itself is imported when the first graph is compiled."""

from __future__ import annotations

from types import MappingProxyType

from tracer_core.plugin_api import Backend, Training, hookimpl

BACKEND = Backend(
    name="inductor",
    compile="inductor_backend.pipeline:compile_graph",
    description="fused kernels: C++ for the CPU, Triton for NVIDIA GPUs",
    ir="aten",
    decompositions="inductor_backend.passes.decompositions:decompositions",
    training=Training.FORWARD_BACKWARD,
    preserved_ops=frozenset({"tracer_core.scan.default"}),
    fuses=True,
    shapes="symbolic",
    numbers="inputs",
    data_sizes="symbols",
    params="constants",
    devices=frozenset({"cpu", "cuda"}),
    modes=MappingProxyType(
        {
            "default": (
                "fused kernels, operators as PyTorch has them; on CUDA devices graphs are captured"
                " (cudagraphs-backend) where timed calls show that it pays"
            ),
            "reduce-overhead": (
                "on CUDA devices, all graphs are captured and replayed (cudagraphs-backend); else"
                " the same"
            ),
            "max-autotune": (
                "reduce-overhead, with native matmuls, convolutions and launch configurations where"
                " they were measured to be quicker on CUDA devices; else the same as default"
            ),
            "max-autotune-no-cudagraphs": "max-autotune without recordings",
        }
    ),
    options="inductor_backend.options:InductorOptions",
    supports="inductor_backend.passes.op_support:supports",
    check="inductor_backend.runtime.cpp.toolchain_check:check",
    prepare="inductor_backend.passes.kernel_prebuild:start",
    reset="inductor_backend.runtime.cuda.graphs:reset",
    report="inductor_backend.runtime.cuda.graphs:report",
    serialize="inductor_backend.artifact:serialize",
    serialize_for="inductor_backend.artifact:serialize_for",
    deserialize="inductor_backend.artifact:deserialize",
    write_library="inductor_backend.native_library.writer:write_library",
)


@hookimpl
def tracer_backends() -> list[Backend]:
    """Returns the backends of this distribution."""
    return [BACKEND]
