"""Programs on CUDA devices that are not there: captured on fake CUDA tensors, compiled to machine
code.

In: a function and fake inputs (`fakes`). Out: the compilation, and cubins for a compute capability.
Runs in a process without TRITON_INTERPRET.
"""

from __future__ import annotations

import dataclasses
import json
import re
import traceback
from collections.abc import Callable
from typing import Any

import torch

from inductor_backend.autotune import matmul, tiles
from inductor_backend.codegen.triton.matmul import Blocks
from inductor_backend.codegen.triton.module import specification
from inductor_backend.compilation import Compilation
from inductor_backend.options import InductorOptions
from inductor_backend.pipeline import start
from inductor_backend.plugin import BACKEND
from inductor_backend.runtime.cuda.triton_compile import Kernel, compiled, target_of
from inductor_backend.stages import run_stages
from tracer_core import plugin_api
from tracer_core.plugin_api import InputSpec, Role
from tracer_core.testing.torch_graph import _Recorder


def fakes(mode: Any, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """Fake tensors on cuda:0 like these."""
    with mode:
        return [
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda:0") for x in inputs
        ]


def program(
    mode: Any, fn: Callable[..., Any], *inputs: torch.Tensor, mode_name: str = "default"
) -> Compilation:
    """The compilation up to its module's text. In max-autotune the first of the possible kernels is
    taken.
    """
    for module in (matmul, tiles):
        module.choose = lambda c, choice: next(iter(choice.kernels))  # type: ignore[assignment]
        module.build_all = lambda c, choices: None  # type: ignore[assignment]
    recorder = _Recorder(mode)
    for index, fake in enumerate(inputs):
        recorder.add(fake, fake, InputSpec(f"arg_{index}", Role.USER_INPUT, f"arg_{index}"))
    with torch.no_grad(), recorder:
        result = fn(*inputs)
    returned = tuple(result) if isinstance(result, (tuple, list)) else (result,)
    recorder.graph.output(tuple(recorder.node(recorder.fake(item)) for item in returned))
    gm = torch.fx.GraphModule(torch.nn.Module(), recorder.graph)
    specs = tuple(spec for _, spec in recorder.inputs)
    reals = tuple(real for real, _ in recorder.inputs)
    low = plugin_api.lower(gm, reals, BACKEND, input_specs=specs, options=InductorOptions())
    return run_stages(
        start(low.graph, dataclasses.replace(low.spec, mode=mode_name)), "module", first="lower"
    )


def specifications(c: Compilation) -> list[Kernel]:
    """The kernels as the generated module describes them."""
    assert c.module is not None
    named = zip(c.module.kernels.items(), c.module.sources(), strict=True)
    return [specification(kernel, name, text) for (kernel, (name, _)), text in named]


def cubins(c: Compilation, capability: int) -> dict[str, bytes]:
    """Kernel name -> machine code."""
    target = target_of(capability)
    return {k.name: compiled(k, target).asm["cubin"] for k in specifications(c)}  # type: ignore[union-attr]


def _programs(mode: Any) -> dict[str, tuple[Any, ...]]:
    rows, turned, pixels, here, number, index, half = (
        torch.empty(1024, 1024),
        torch.empty(1024, 1024), torch.empty(20_000, 3), torch.empty(1024, 1024), torch.tensor(2.0),
        torch.empty(7, dtype=torch.int64), torch.empty(1024, 1024, dtype=torch.bfloat16),
    )  # fmt: skip
    x, across, columns, i, b = fakes(mode, rows, turned, pixels, index, half)
    cpu, two = (mode.from_tensor(t) for t in (here, number))
    many, long = fakes(mode, *(torch.empty(*n, 2**31 + 77, device="meta") for n in ((), (200,))))
    functional = torch.nn.functional
    return {
        "trigonometry": (lambda x, y: torch.cos(x) + torch.sin(y), x, x.clone()),
        "layer norm, gelu, softmax": (
            lambda x: functional.gelu(functional.layer_norm(x, (1024,))).softmax(-1),
            x,
        ),
        "transpose": (lambda x, y: x.t() + y, x, across),
        "sum over few heads": (
            lambda x: x.sum(2),
            *fakes(mode, torch.empty(4, 8, 2, 1024, 64, dtype=torch.bfloat16, device="meta")),
        ),
        "long columns": (lambda x: x.var(0), columns),
        "argmax": (lambda x: x.argmax(1), x),
        "index": (lambda x, i: functional.embedding(i, x) * 2, x, i),
        "bfloat16": (lambda x: x.sin() * 2, b),
        "queries, keys, values": (
            lambda x, q, k, v: (x @ q.t(), x @ k.t(), x @ v.t()),
            *fakes(
                mode,
                *(
                    torch.empty(rows, 2048, dtype=torch.bfloat16, device="meta")
                    for rows in (1, 2048, 512, 384)
                ),
            ),
        ),
        "input on the CPU": (
            lambda x, y: torch.cos(torch.ops.aten._to_copy(x, device="cuda:0")) + torch.sin(y),
            cpu,
            x,
        ),
        "result to the CPU": (lambda x: (x + 1).cpu(), x),
        "repeated elements": (
            lambda x: (x.sin() + 1, x.softmax(1), x.t().sum(1)),
            *fakes(mode, torch.empty(1, 77).expand(1024, 77)),
        ),
        "scans": (lambda x: (x.cumsum(1), *x.cummax(0)), x),
        "long scans": (
            lambda c: (c.cumsum(0), c.double().cumprod(0), c.t().logcumsumexp(0)),
            columns,
        ),
        # Triton finds out that the divisor is 0, and has no constant for the quotient
        "division by zero": (
            lambda i: (7 // (i ^ i), 7 % (i ^ i), torch.fmod(i, i ^ i)),
            *fakes(mode, torch.zeros(4096, dtype=torch.int32)),
        ),
        "scalar on the CPU": (lambda x, y: x * y, x, two),
        "beyond 32 bits": (
            lambda x, y, i: (x.sin(), y.argmax(1), x.index_select(0, i) * 2),
            many,
            long,
            i,
        ),
    }


def _products(mode: Any) -> dict[str, tuple[Any, ...]]:
    """In max-autotune."""
    b16, w16, bias16 = (
        torch.empty(n, dtype=torch.bfloat16) for n in ((512, 1024), (768, 1024), (768,))
    )
    b, w, bias = fakes(mode, b16, w16, bias16)
    f32 = fakes(mode, torch.empty(512, 256), torch.empty(256, 384))
    images = fakes(
        mode,
        torch.empty(8, 64, 28, 28, dtype=torch.half).contiguous(memory_format=torch.channels_last),
        torch.empty(128, 64, 3, 3, dtype=torch.half).contiguous(memory_format=torch.channels_last),
    )
    functional = torch.nn.functional
    return {
        "linear, gelu": (lambda x, w, b: functional.gelu(functional.linear(x, w, b)), b, w, bias),
        "TF32": (lambda x, w: (x @ w).relu(), *f32),
        "convolution": (lambda x, w: functional.conv2d(x, w, padding=1).relu(), *images),
    }


def _ways(mode: Any) -> dict[str, dict[str, Any]]:
    """What sm_90 adds: bulk copies, programs that walk over blocks."""
    actual = {}
    for name, kind in {
        "bulk": Blocks(128, 128, 64, 4, 3, bulk=True),
        "walking": Blocks(128, 128, 64, 4, 3, bulk=True, programs=132),
        "TF32 by bulk copies": Blocks(128, 128, 32, 4, 3, bulk=True, programs=132),
    }.items():
        matmul.candidates = lambda work, device, kind=kind: [kind]  # type: ignore[assignment,misc]
        fn, *inputs = _products(mode)["TF32" if name.startswith("TF32") else "linear, gelu"]
        c = program(mode, fn, *inputs, mode_name="max-autotune")
        (kernel,) = specifications(c)
        built, eager = (
            compiled(kernel, target_of(90), aligned=aligned) for aligned in (True, False)
        )
        ptx = built.asm["ptx"]
        actual[name] = {
            "bulk copies": [
                value.asm["ptx"].count("cp.async.bulk.tensor") for value in (built, eager)
            ],
            "matrices": [len(value.metadata.tensordesc_meta) for value in (built, eager)],
            "parameters": [
                value.asm["ptx"].partition(")")[0].count(".param ") for value in (built, eager)
            ],
            "tensor cores": ptx.count("wgmma.mma_async"),
            "warps": built.metadata.num_warps,
            "scratch": built.metadata.global_scratch_size,
            "pointers": len(kernel.pointers),
        }
    return actual


def _told(mode: Any, fn: Any, *inputs: Any, mode_name: str = "default") -> dict[str, Any]:
    try:
        c = program(mode, fn, *inputs, mode_name=mode_name)
        target = target_of(90)
        kernels = [compiled(k, target) for k in specifications(c)]  # type: ignore[union-attr]
        ptx = "\n".join(kernel.asm["ptx"] for kernel in kernels)
        sizes = {cap: {n: len(code) for n, code in cubins(c, cap).items()} for cap in (80, 90)}
    except Exception:
        return {"problem": traceback.format_exc(), "cubins": {}, "sources": [], "operators": []}
    return {
        "problem": None,
        "cubins": sizes,
        "sources": list(c.sources),
        "operators": [str(step.extern.target) for step in c.steps if step.extern is not None],
        "wide loads": ptx.count("ld.global.v4"),
        "tensor cores": ptx.count("wgmma.mma_async") + ptx.count("mma.sync"),
        "asynchronous copies": ptx.count("cp.async"),
        "asserts": "__assertfail" in ptx,
        "waits first": all(_waits_first(kernel.asm["ptx"]) for kernel in kernels),
        "waits on 80": "griddepcontrol" in compiled(specifications(c)[0], target_of(80)).asm["ptx"],
    }


def _waits_first(ptx: str) -> bool:
    """Whether a kernel touches memory only after it has waited for the kernel before, and lets the
    next one start only then."""
    touches = re.search(r"\b(ld|st|atom|red)\.(global|volatile)|cp\.async", ptx)
    waits, lets = (ptx.find(f"griddepcontrol.{what}") for what in ("wait", "launch_dependents"))
    return 0 < waits < lets and (touches is None or lets < touches.start())


def _reasons(mode: Any) -> dict[str, str | None]:
    """What supports() says of nodes on another device than the graph's."""
    from inductor_backend.passes.op_support import supports

    graph = torch.fx.Graph()
    (there,) = fakes(mode, torch.empty(3))
    here = mode.from_tensor(torch.empty(3))
    actual = []
    for name, value in (("a", there), ("b", here)):
        node = graph.placeholder(name)
        node.meta["val"] = value
        actual.append(node)
    result = graph.call_function(torch.ops.aten.sin.default, (actual[1],))
    result.meta["val"] = here
    operand = graph.call_function(torch.ops.aten.mul.Tensor, (actual[0], actual[1]))
    operand.meta["val"] = there
    return {"result": supports(result), "operand": supports(operand)}


def main() -> None:
    from tracer_core import torch_private

    mode = torch_private.fake_tensor_mode(None)
    report: dict[str, Any] = {
        name: _told(mode, fn, *inputs) for name, (fn, *inputs) in _programs(mode).items()
    }
    blocks = {2: Blocks(64, 64, 64, 4, 3), 4: Blocks(64, 64, 32, 4, 3)}
    matmul.candidates = lambda work, device: [blocks[work.width]]  # type: ignore[assignment]
    matmul.tf32_allowed = lambda convolution: True  # type: ignore[assignment]
    for name, (fn, *inputs) in _products(mode).items():
        report[name] = _told(mode, fn, *inputs, mode_name="max-autotune")
    report |= _ways(mode)
    report["reasons"] = _reasons(mode)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
