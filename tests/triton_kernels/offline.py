"""Programs on CUDA devices that are not there: captured on fake CUDA tensors, compiled to machine code.

In: a function and fake inputs (`fakes`). Out: the compilation, and cubins for a compute capability. Runs in a process
without TRITON_INTERPRET.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from typing import Any

import torch

from inductor_backend.compile_graph import Compilation, run_stages, start
from inductor_backend.options import InductorOptions
from inductor_backend.plugin import BACKEND
from inductor_backend.runtime.triton_build import compiled, target_of
from tracer_core import plugin_api
from tracer_core.plugin_api import InputSpec, Role
from tracer_core.testing.torch_graph import _Recorder


def fakes(mode: Any, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """Fake tensors on cuda:0 like these."""
    with mode:
        return [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda:0") for x in inputs]


def program(mode: Any, fn: Callable[..., Any], *inputs: torch.Tensor) -> Compilation:
    """The compilation up to its module's text."""
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
    return run_stages(start(low.graph, low.spec), "module")


def cubins(c: Compilation, capability: int) -> dict[str, bytes]:
    """Kernel name -> machine code."""
    target = target_of(capability)
    return {k.name: compiled(k, target).asm["cubin"] for k in c.cpp.specifications()}  # type: ignore[union-attr]


def _programs(mode: Any) -> dict[str, tuple[Any, ...]]:
    rows, turned, pixels, here, number, index, half = (
        torch.empty(1024, 1024),
        torch.empty(1024, 1024), torch.empty(20_000, 3), torch.empty(1024, 1024), torch.tensor(2.0),
        torch.empty(7, dtype=torch.int64), torch.empty(1024, 1024, dtype=torch.bfloat16),
    )  # fmt: skip
    x, across, columns, i, b = fakes(mode, rows, turned, pixels, index, half)
    cpu, two = (mode.from_tensor(t) for t in (here, number))
    functional = torch.nn.functional
    return {
        "trigonometry": (lambda x, y: torch.cos(x) + torch.sin(y), x, x.clone()),
        "layer norm, gelu, softmax": (
            lambda x: functional.gelu(functional.layer_norm(x, (1024,))).softmax(-1),
            x,
        ),
        "transpose": (lambda x, y: x.t() + y, x, across),
        "long columns": (lambda x: x.var(0), columns),
        "argmax": (lambda x: x.argmax(1), x),
        "index": (lambda x, i: functional.embedding(i, x) * 2, x, i),
        "bfloat16": (lambda x: x.sin() * 2, b),
        "input on the CPU": (
            lambda x, y: torch.cos(torch.ops.aten._to_copy(x, device="cuda:0")) + torch.sin(y),
            cpu,
            x,
        ),
        "result to the CPU": (lambda x: (x + 1).cpu(), x),
        "scalar on the CPU": (lambda x, y: x * y, x, two),
    }


def _told(mode: Any, fn: Any, *inputs: Any) -> dict[str, Any]:
    try:
        c = program(mode, fn, *inputs)
        target = target_of(90)
        kernels = [compiled(k, target) for k in c.cpp.specifications()]  # type: ignore[union-attr]
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
        "asserts": "__assertfail" in ptx,
    }


def _reasons(mode: Any) -> dict[str, str | None]:
    """What supports() says of nodes on another device than the graph's."""
    from inductor_backend.supports import supports

    graph = torch.fx.Graph()
    (there,) = fakes(mode, torch.empty(3))
    here = mode.from_tensor(torch.empty(3))
    found = []
    for name, value in (("a", there), ("b", here)):
        node = graph.placeholder(name)
        node.meta["val"] = value
        found.append(node)
    result = graph.call_function(torch.ops.aten.sin.default, (found[1],))
    result.meta["val"] = here
    operand = graph.call_function(torch.ops.aten.mul.Tensor, (found[0], found[1]))
    operand.meta["val"] = there
    return {"result": supports(result), "operand": supports(operand)}


def main() -> None:
    from tracer_core import torch_private

    mode = torch_private.fake_tensor_mode(None)
    report: dict[str, Any] = {
        name: _told(mode, fn, *inputs) for name, (fn, *inputs) in _programs(mode).items()
    }
    report["reasons"] = _reasons(mode)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
