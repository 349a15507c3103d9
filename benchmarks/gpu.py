"""Inference and training on a GPU beside eager and torch.compile: ``python -m benchmarks.gpu``.

A process per row and kind of compiler (eager, torch, ours; the modes of one kind one after the
other, so the first call is that of the first mode): seconds of the first call (capture, compile,
run; empty caches), milliseconds of a call with a synchronisation each (latency) and of one in a row
of calls (back to back), MiB of memory (comments in `_one`), greatest error relative to eager's
largest value; of training rows the largest relative error of any parameter's gradient against
float64, with eager's beside it. A mode is dropped before the next one starts; what it leaves behind
is among the results. Resumable: a row that is in the file of results is not measured again. TF32 is
allowed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.results import machine

ROOT = Path(__file__).resolve().parents[1]

#: Folders that are empty at first for each process, unless the caller names them.
CACHES = ("TRACER_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")

COMPILERS = ("eager", "torch", "torch:reduce-overhead", "ours", "ours:reduce-overhead")


def _trig(size: int) -> Callable[[], tuple[Any, tuple[Any, ...]]]:
    def build() -> tuple[Any, tuple[Any, ...]]:
        import torch

        return (lambda x, y: torch.cos(x) + torch.sin(y)), (torch.randn(size), torch.randn(size))

    return build


def _chain() -> tuple[Any, tuple[Any, ...]]:
    import torch
    import torch.nn.functional as F

    def chain(x: Any, w: Any, b: Any) -> Any:
        return F.gelu(F.layer_norm(x, (4096,), w, b)).softmax(-1)

    return chain, (torch.randn(4096, 4096), torch.randn(4096), torch.randn(4096))


def _vision(name: str, batch: int, size: int) -> Callable[[], tuple[Any, tuple[Any, ...]]]:
    def build() -> tuple[Any, tuple[Any, ...]]:
        import torch
        import torchvision

        return getattr(torchvision.models, name)(), (torch.randn(batch, 3, size, size),)

    return build


def _bert(batch: int, length: int) -> Callable[[], tuple[Any, tuple[Any, ...]]]:
    def build() -> tuple[Any, tuple[Any, ...]]:
        import torch
        from transformers import BertConfig, BertModel

        model = BertModel(BertConfig(return_dict=False))
        return model, (torch.randint(0, 30000, (batch, length)),)

    return build


def _gpt2() -> tuple[Any, tuple[Any, ...]]:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(use_cache=False)), (torch.randint(0, 50000, (4, 512)),)


def _llama() -> tuple[Any, tuple[Any, ...]]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=2048, intermediate_size=5632, num_hidden_layers=4,
    num_attention_heads=16,
                         num_key_value_heads=16, use_cache=False)  # fmt: skip
    return LlamaForCausalLM(config).bfloat16(), (torch.randint(0, 30000, (1, 2048)),)


#: row -> (builder, training)
ROWS: dict[str, tuple[Callable[[], tuple[Any, tuple[Any, ...]]], bool]] = {
    "cos+sin 10,000": (_trig(10_000), False),
    "cos+sin 2^26": (_trig(2**26), False),
    "layer_norm-gelu-softmax 4096x4096": (_chain, False),
    "resnet18 1x64x64": (_vision("resnet18", 1, 64), False),
    "resnet18 16x224x224": (_vision("resnet18", 16, 224), False),
    "BERT-base 1x12": (_bert(1, 12), False),
    "BERT-base 16x128": (_bert(16, 128), False),
    "densenet121 16x128x128": (_vision("densenet121", 16, 128), False),
    "ViT-B/16 16": (_vision("vit_b_16", 16, 224), False),
    "GPT-2 4x512": (_gpt2, False),
    "Llama-style bf16 1x2048": (_llama, False),
    "training resnet18 16x224x224": (_vision("resnet18", 16, 224), True),
    "training BERT-base 16x128": (_bert(16, 128), True),
    "training densenet121 16x128x128": (_vision("densenet121", 16, 128), True),
}


def _first(result: Any) -> Any:
    if hasattr(result, "to_tuple"):
        result = result.to_tuple()
    while isinstance(result, (tuple, list)):
        result = result[0]
    return result


def _step(
    function: Any, inputs: tuple[Any, ...], parameters: list[Any], training: bool
) -> Callable[[], Any]:
    import torch

    if not training:

        def call() -> Any:
            with torch.no_grad():
                return function(*inputs)

        return call

    def train() -> Any:
        for parameter in parameters:
            parameter.grad = None
        result = _first(function(*inputs))
        result.float().square().mean().backward()
        return result

    return train


def _in_double(module: Any, inputs: tuple[Any, ...]) -> None:
    _step(module, tuple(x.double() if x.is_floating_point() else x for x in inputs), [], True)()


def _compiled(compiler: str, function: Any) -> Any:
    kind, _, mode = compiler.partition(":")
    if kind == "eager":
        return function
    if kind == "torch":
        import torch

        return torch.compile(function, mode=mode or None)
    import tracer_core

    return (
        tracer_core.compile(function, mode=mode or None) if mode else tracer_core.compile(function)
    )


def measure(row: str, compilers: list[str]) -> dict[str, dict[str, Any]]:
    """One row in this process, with each compiler."""
    import torch

    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    build, training = ROWS[row]
    torch.manual_seed(0)
    function, inputs = build()
    sys.stdin.readline()  # the device is somebody else's until then
    inputs = tuple(x.cuda() for x in inputs)
    parameters: list[Any] = []
    if isinstance(function, torch.nn.Module):
        function = function.cuda().train(training)
        for module in function.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        parameters = list(function.parameters())
    expected = _first(_step(function, inputs, parameters, training)()).detach().clone()
    for _ in range(3):  # cuDNN, cuBLAS and the allocator are warm before the clock starts
        _step(function, inputs, parameters, training)()
    torch.cuda.synchronize()
    found = {}
    truth = eager = None
    if training:
        from benchmarks import gradient_errors

        eager = gradient_errors.gradients_of(function)
        truth = gradient_errors.true_gradients(function, lambda wide: _in_double(wide, inputs))
    for number, compiler in enumerate(compilers):
        before = _at_rest(parameters, torch)
        step = _step(_compiled(compiler, function), inputs, parameters, training)
        found[compiler] = _one(step, expected, torch)
        if truth is not None and eager is not None:
            step()
            ours = gradient_errors.gradients_of(function)
            found[compiler]["gradients"] = gradient_errors.largest_errors(truth, eager, ours)
            del ours
        if compiler.startswith("ours"):
            found[compiler]["recordings_MiB"] = _recordings()
        found[compiler]["at_rest_MiB"] = _at_rest(parameters, torch)
        del step
        if compiler.startswith("torch"):
            torch.compiler.reset()  # else its code stays with the model's
        found[compiler]["left_MiB"] = round(_at_rest(parameters, torch) - before, 1)
        if number:
            found[compiler]["first_s"] = None  # an earlier mode has warmed the compiler
        print(json.dumps(found), flush=True)
    return found


def _at_rest(parameters: list[Any], torch: Any) -> float:
    """MiB that are taken from the device while nobody holds a result or a gradient."""
    for parameter in parameters:
        parameter.grad = None
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return round(torch.cuda.memory_reserved() / 2**20, 1)


def _recordings() -> float:
    """MiB that recordings of ours hold."""
    import cudagraphs_backend

    return round(sum(row.nbytes for row in cudagraphs_backend.report()) / 2**20, 1)


def _one(step: Callable[[], Any], expected: Any, torch: Any) -> dict[str, Any]:
    torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    result = step()
    torch.cuda.synchronize()
    first = time.perf_counter() - started
    plain = torch.cuda.max_memory_allocated() / 2**20
    for _ in range(4):
        result = step()
    torch.cuda.synchronize()
    scale = expected.float().abs().max().clamp_min(1e-30)
    error = (_first(result).detach().float() - expected.float()).abs().max() / scale
    del result
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    peak, reserved = (
        read() / 2**20 for read in (torch.cuda.max_memory_allocated, torch.cuda.max_memory_reserved)
    )
    latency, back_to_back = _timed(step, torch)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    steady, held = (
        read() / 2**20 for read in (torch.cuda.max_memory_allocated, torch.cuda.max_memory_reserved)
    )
    return {
        "first_s": round(first, 2),
        "latency_ms": round(latency, 4),
        "back_to_back_ms": round(back_to_back, 4),
        "plain_peak_MiB": round(plain, 1),  # of the first call, which no compiler records
        "peak_MiB": round(peak, 1),
        "reserved_MiB": round(
            reserved, 1
        ),  # with the pools of recordings, whose free blocks are not in the peak
        "steady_peak_MiB": round(steady, 1),  # the same of a step after all recordings were made
        "steady_reserved_MiB": round(
            held, 1
        ),  # less `plain_peak_MiB`: what recordings and results that stay valid cost
        "error": float(error),
        "device": torch.cuda.get_device_name(0),
    }


def _timed(step: Callable[[], Any], torch: Any) -> tuple[float, float]:
    """(median latency, best mean of a row of calls) in milliseconds."""
    started = time.perf_counter()
    step()
    torch.cuda.synchronize()
    once = time.perf_counter() - started
    count = max(10, min(200, int(0.5 / once)))
    times = []
    for _ in range(count):
        started = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    rows = []
    for _ in range(3):
        started = time.perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        rows.append((time.perf_counter() - started) / count)
    return sorted(times)[count // 2] * 1e3, min(rows) * 1e3


class Turn:
    """A fresh process with empty caches for one row and one kind of compiler. It imports its
    libraries and builds the model at once, on the CPU, and touches the device when `run` says so:
    the next one gets ready while one is timed."""

    def __init__(self, row: str, compilers: list[str]) -> None:
        self.row, self.compilers = row, compilers
        self._folder = tempfile.TemporaryDirectory()
        environment = {
            **os.environ,
            **{name: os.environ.get(name, f"{self._folder.name}/{name}") for name in CACHES},
        }
        self._errors = open(f"{self._folder.name}/errors", "w+")  # noqa: SIM115
        command = [sys.executable, "-m", "benchmarks.gpu", "--one", row, *compilers]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def run(self, seconds: float) -> dict[str, dict[str, Any]]:
        """What it measured; for what it did not, the problem."""
        try:
            text, late = self._process.communicate("go\n", timeout=max(seconds, 1))[0], ""
        except subprocess.TimeoutExpired:
            self._process.kill()
            text, late = self._process.communicate()[0], f"more than {seconds:.0f} s"
        self._errors.seek(0)
        problem = late or self._errors.read()[-1500:]
        self.close()
        lines = [line for line in text.splitlines() if line.startswith("{")]
        found: dict[str, dict[str, Any]] = json.loads(lines[-1]) if lines else {}
        return {name: found.get(name, {"problem": problem}) for name in self.compilers}

    def close(self) -> None:
        """Ends the process and empties its caches."""
        self._process.kill()
        self._process.wait()
        self._errors.close()
        self._folder.cleanup()


def table(results: dict[str, dict[str, Any]], compilers: list[str]) -> str:
    """latency / back to back (first call; peak; error; largest error of a gradient) of each
    compiler.
    """
    from benchmarks import gradient_errors

    lines = ["| row | " + " | ".join(compilers) + " |", "|---" * (len(compilers) + 1) + "|"]
    for row in ROWS:
        cells = []
        for compiler in compilers:
            found = results.get(f"{row} @ {compiler}")
            if found is None:
                cells.append("")
            elif "problem" in found:
                cells.append("failed")
            else:
                cells.append(
                    f"{found['latency_ms']:.3f} / {found['back_to_back_ms']:.3f}"
                    f" ({found['first_s'] or '-'} s; {found['peak_MiB']:.0f}; {found['error']:.0e}"
                    + (
                        f"; gradients {gradient_errors.told(found['gradients'])})"
                        if "gradients" in found
                        else ")"
                    )
                )
        if any(cells):
            lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", nargs="+")
    parser.add_argument("--rows", nargs="*", default=list(ROWS))
    parser.add_argument("--compilers", nargs="*", default=list(COMPILERS))
    parser.add_argument("--out", default=str(ROOT / "benchmarks" / "results" / "gpu" / "gpu.json"))
    parser.add_argument(
        "--seconds", type=float, default=540, help="stop starting rows after this long"
    )
    chosen = parser.parse_args()
    if chosen.one:
        measure(chosen.one[0], chosen.one[1:])
        return
    out = Path(chosen.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    stored = json.loads(out.read_text()) if out.exists() else {}
    results: dict[str, Any] = stored.get("rows", {})
    end = time.monotonic() + chosen.seconds
    wanted = []
    for row in chosen.rows:
        for kind in dict.fromkeys(name.partition(":")[0] for name in chosen.compilers):
            names = [name for name in chosen.compilers if name.partition(":")[0] == kind]
            names = [name for name in names if f"{row} @ {name}" not in results]
            wanted += [(row, names)] if names else []
    turns = [Turn(*one) for one in wanted[:1]]
    for number in range(len(wanted)):
        turn = turns[-1]
        if end - time.monotonic() < 15:
            break
        turns += [Turn(*one) for one in wanted[number + 1 : number + 2]]
        for name, found in turn.run(end - time.monotonic()).items():
            results[f"{turn.row} @ {name}"] = found
            problem = found.get("problem")
            print(turn.row, name, found if problem is None else problem[-700:], flush=True)
        out.write_text(json.dumps({"machine": machine(), "rows": results}, indent=1) + "\n")
    for turn in turns:
        turn.close()
    print(table(results, chosen.compilers))


if __name__ == "__main__":
    main()
