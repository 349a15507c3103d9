"""A second process: seconds until the first and the tenth result, with what a first one has kept.

In: programs (inference, ``generate()``, steps of training), compilers, a device. Out: for each the
medians over processes of the seconds over imports until the first and the tenth result, the first
also as processor time (machines are busy), the same of the first process, the error against eager,
and what ran in the second process that a warm start needs not. Imports, the building of the model and, on
a GPU, its start are not counted; the caches are empty before the first process of a row, and a second
process has all that it kept.
"""

from __future__ import annotations

import functools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import compilers, harness, models

_ROUNDS, _CALLS, _TOKENS = 3, 10, 16

#: Part of the tracer or the compiler -> a module of ours that is loaded where it runs.
_PARTS = {
    "interpreter": "tracer_core.trace.tracer",
    "lowering": "tracer_core.aot.functionalization",
    "inductor": "inductor_backend.pipeline",
    "sympy": "sympy",
    "torch._dynamo": "torch._dynamo",
}

#: A call of the compiled program, which returns what is compared.
Call = Callable[[], Any]


def _inference(name: str, device: str, compile_: compilers.Compile) -> Call:
    program = _on(device, models.MODELS[name].program())
    compiled = compile_(program.function)
    return lambda: program.call(compiled)


def _generate(name: str, device: str, compile_: compilers.Compile) -> Call:
    """Greedy text of GPT-2; torch.compile's users compile the forward."""
    import torch
    import transformers

    torch.manual_seed(models.SEED)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval().to(device)
    model.generation_config.eos_token_id = None
    prompt = torch.randint(3, 50000, (1, 32), device=device)
    made = compile_(model)
    if type(made).__name__ == "OptimizedModule":
        model.forward = compile_(model.forward)
        made = model
    settings: dict[str, Any] = {"do_sample": False, "pad_token_id": 0}
    return lambda: made.generate(prompt, max_new_tokens=_TOKENS, **settings)


def _training(name: str, device: str, compile_: compilers.Compile) -> Call:
    import torch

    program = _on(device, models.MODELS[name].program())
    model: Any = program.function
    model.train()
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    compiled = compile_(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> Any:
        optimizer.zero_grad()
        result = program.call(compiled)
        loss = (result if isinstance(result, torch.Tensor) else result[0]).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _on(device: str, program: models.Program) -> models.Program:
    import torch

    def there(value: Any) -> Any:
        return value.to(device) if isinstance(value, torch.Tensor) else value

    function: Any = program.function
    args, kwargs = map(there, program.args), {k: there(v) for k, v in program.kwargs.items()}
    return models.Program(function.to(device), tuple(args), kwargs)


#: Row -> (what makes its calls, the model, with gradients).
PROGRAMS: dict[str, tuple[Callable[[str, str, compilers.Compile], Call], str, bool]] = {
    "resnet18": (_inference, "resnet18_64", False),
    "bert": (_inference, "bert_12", False),
    "gpt2_generate": (_generate, "gpt2", False),
    "resnet18_training": (_training, "resnet18_64", True),
    "bert_training": (_training, "bert_12", True),
    "gpt2_training": (_training, "gpt2_64", True),
}


def measure(program: str, compiler: str, device: str) -> dict[str, Any]:
    """Several pairs of processes."""
    first, second = [], []
    for _ in range(_ROUNDS):
        with tempfile.TemporaryDirectory(prefix="benchmark-") as caches:
            run = functools.partial(
                harness.fresh, timed, program, compiler, device, limit=500.0, caches=caches
            )
            first.append(run())
            second.append(run())
        if compiler == "torch" or device == "cuda":  # a minute a pair; minutes on a GPU are few
            break
    names = ("first", "tenth", "processor")
    return {
        "cold": {name: statistics.median(row[name] for row in first) for name in names},
        **{name: statistics.median(row[name] for row in second) for name in names},
        "ran": sorted({part for row in second for part in row["ran"]}),
        "error": max(row["error"] for row in (*first, *second)),
    }


def timed(program: str, compiler: str, device: str) -> dict[str, Any]:
    """One process: seconds until the first and the tenth result."""
    import torch

    make, name, grad = PROGRAMS[program]
    models.import_library(
        "transformers" if name not in models.MODELS else models.MODELS[name].library
    )
    want = _results(make(name, device, lambda function: function), grad, device)[0]
    if compiler == "torch":
        import torch._inductor.compile_fx
    elif compiler == "ours":
        import tracer_core  # noqa: F401
    known = set(sys.modules)
    numbers: list[float] = []

    def compile_(function: Any) -> Any:
        begin = time.perf_counter()
        result = compilers.compiler(compiler)(function)
        numbers.append(time.perf_counter() - begin)
        return result

    call = make(name, device, compile_)
    torch.manual_seed(0)
    match, seconds, processor = _results(call, grad, device)
    errors = [float((a - b).abs().max() / b.abs().max()) for a, b in zip(match, want, strict=True)]
    return {
        "first": sum(numbers) + seconds[0],
        "tenth": sum(numbers) + sum(seconds),
        "processor": sum(numbers) + processor,
        "ran": [part for part, module in _PARTS.items() if module in sys.modules and module not in known],
        "error": max(errors),
    }  # fmt: skip


def _results(call: Call, grad: bool, device: str) -> tuple[list[Any], list[float], float]:
    """The result of each call as tensors, the seconds of each, the processor's of the first."""
    import torch

    results, seconds, processor = [], [], 0.0
    with torch.set_grad_enabled(grad):
        for number in range(_CALLS):
            begin, cpu = time.perf_counter(), time.process_time()
            result = call()
            if device == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begin)
            processor = processor if number else time.process_time() - cpu
            results.append(
                (result if isinstance(result, torch.Tensor) else result[0]).detach().clone().float()
            )
    return results, seconds, processor


def _line(row: dict[str, Any]) -> Sequence[str]:
    return [
        *(f"{row[name]:.2f}" for name in ("first", "processor", "tenth")),
        *(f"{row['cold'][name]:.1f}" for name in ("first", "tenth")),
        ", ".join(row["ran"]) or "-", f"{row['error']:.0e}",
    ]  # fmt: skip


def _wrong(row: dict[str, Any], *names: str) -> list[str]:
    return ["an error beyond float32's"] if row["error"] > 1e-3 else []


main = harness.Grid(
    "second_process",
    __doc__,
    {"programs": tuple(PROGRAMS), "compilers": ("eager", "ours", "torch"), "devices": ("cpu", "cuda")},
    measure,
    ("first s", "of the processor", "tenth s", "cold: first s", "tenth s", "ran", "error"),
    _line,
    left_out=frozenset({"cuda"}),
    limit=3000.0,
    wrong=_wrong,
).main  # fmt: skip
