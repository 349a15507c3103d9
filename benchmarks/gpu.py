"""On a GPU: inference and training beside eager and torch.compile.

`main`: a process with empty caches per row and kind of compiler (eager, torch, ours, cudagraphs;
the modes of one kind one after the other, so the first call is that of the first mode). Figures:
seconds of the first call (capture, compile, run), milliseconds of a call with a synchronisation
each (latency) and of one in a row of calls, microseconds of the host for a call that finds an idle
device, MiB of memory (comments in `_one`), greatest error relative to eager's largest value; of
training rows the largest relative error of any parameter's gradient against float64, with eager's
beside it. A mode is dropped before the next one starts; what it leaves behind is among the results.
TF32 is allowed.

Below the table: how ours stands beside torch.compile's of the same row: times of theirs over ours
(above 1: ours is quicker), peak memory of ours over theirs (below 1: ours holds less). "beyond" is
what recordings and results that stay valid cost: MiB taken from the device in a step, less the peak
of a call that is not recorded.

`tutorial`: PyTorch's torch.compile tutorial with only the import changed. The kernels of a row:
`benchmarks.kernels`.
"""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.timing import per_call, table

COMPILERS = ("eager", "torch", "torch:reduce-overhead", "ours", "ours:reduce-overhead")

#: mode of ours -> the modes of torch.compile that it is held against.
BESIDE = {
    "ours": ("torch", "torch:reduce-overhead"),
    "ours:reduce-overhead": ("torch:reduce-overhead",),
    "ours:max-autotune": ("torch:max-autotune",),
    "cudagraphs": ("torch:reduce-overhead",),
}

# Rows ---------------------------------------------------------------------------------------------

Build = Callable[[], tuple[Any, tuple[Any, ...]]]


def _trig(size: int) -> Build:
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


def _vision(name: str, batch: int, size: int) -> Build:
    def build() -> tuple[Any, tuple[Any, ...]]:
        import torch
        import torchvision

        return getattr(torchvision.models, name)(), (torch.randn(batch, 3, size, size),)

    return build


def _bert(batch: int, length: int) -> Build:
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
ROWS: dict[str, tuple[Build, bool]] = {
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


def step_of(
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


def compiled(compiler: str, function: Any) -> Any:
    kind, _, mode = compiler.partition(":")
    if kind == "eager":
        return function
    if kind == "torch":
        import torch

        return torch.compile(function, mode=mode or None)
    import tracer_core

    if kind == "cudagraphs":
        return tracer_core.compile(function, backend=kind)
    return tracer_core.compile(function, mode=mode) if mode else tracer_core.compile(function)


# The process of one row ---------------------------------------------------------------------------


def prepare(row: str) -> tuple[Any, tuple[Any, ...]]:
    """The function of a row and its inputs, on the CPU."""
    import torch

    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(0)
    return ROWS[row][0]()


def to_device(
    row: str, function: Any, inputs: tuple[Any, ...]
) -> tuple[Any, tuple[Any, ...], list[Any]]:
    """Function, inputs and parameters on the GPU, without dropout."""
    import torch

    inputs = tuple(x.cuda() for x in inputs)
    if not isinstance(function, torch.nn.Module):
        return function, inputs, []
    function = function.cuda().train(ROWS[row][1])
    for module in function.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return function, inputs, list(function.parameters())


class Measured:
    """A row, which is answered compiler by compiler (mutable). It is built on the CPU: until the
    first question the device is somebody else's, so that one process gets ready while another one
    is timed."""

    def __init__(self, row: str) -> None:
        self.row, self.training = row, ROWS[row][1]
        self.function, self.inputs = prepare(row)
        self.kinds: set[str] = set()
        self.truth: Any = None

    def begin(self) -> None:
        """Moves it to the device; the expected result, and the gradients in float64."""
        import torch

        self.function, self.inputs, self.parameters = to_device(
            self.row, self.function, self.inputs
        )
        step = step_of(self.function, self.inputs, self.parameters, self.training)
        self.expected = _first(step()).detach().clone()
        for _ in range(3):  # cuDNN, cuBLAS and the allocator are warm before the clock starts
            step()
        torch.cuda.synchronize()
        if self.training:
            from benchmarks import gradient_errors

            wide = tuple(x.double() if x.is_floating_point() else x for x in self.inputs)
            self.eager = gradient_errors.gradients_of(self.function)
            self.truth = gradient_errors.true_gradients(
                self.function, lambda m: step_of(m, wide, [], True)()
            )

    def __call__(self, compiler: str) -> dict[str, Any]:
        """The figures of one compiler."""
        import torch

        from benchmarks import gradient_errors

        if not self.kinds:
            self.begin()
        before = _at_rest(self.parameters)
        step = step_of(
            compiled(compiler, self.function), self.inputs, self.parameters, self.training
        )
        result = _one(step, self.expected)
        if self.truth is not None:
            step()
            ours = gradient_errors.gradients_of(self.function)
            result["gradients"] = gradient_errors.largest_errors(self.truth, self.eager, ours)
            del ours
        kind = compiler.partition(":")[0]
        if kind in ("ours", "cudagraphs"):
            import cudagraphs_backend

            recordings = cudagraphs_backend.report()
            result["recordings_MiB"] = round(sum(item.nbytes for item in recordings) / 2**20, 1)
        if kind == "cudagraphs":
            result["graphs"] = [
                {name: getattr(item, name) for name in item.__slots__} for item in recordings
            ]
        result["at_rest_MiB"] = _at_rest(self.parameters)
        del step
        if kind == "torch":
            torch.compiler.reset()  # else its code stays with the model's
        result["left_MiB"] = round(_at_rest(self.parameters) - before, 1)
        if kind in self.kinds:
            result["first_s"] = None  # an earlier mode has warmed the compiler
        self.kinds.add(kind)
        return result


def _at_rest(parameters: Sequence[Any]) -> float:
    """MiB that are taken from the device while nobody holds a result or a gradient."""
    import torch

    for parameter in parameters:
        parameter.grad = None
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return round(torch.cuda.memory_reserved() / 2**20, 1)


def _peaks(step: Callable[[], Any]) -> tuple[float, float]:
    """MiB allocated and taken from the device at most in a step."""
    import torch

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 2**20, torch.cuda.max_memory_reserved() / 2**20


def _one(step: Callable[[], Any], expected: Any) -> dict[str, Any]:
    import torch

    torch.cuda.reset_peak_memory_stats()
    first = _seconds(step)
    simple = torch.cuda.max_memory_allocated() / 2**20
    for _ in range(4):
        result = step()
    torch.cuda.synchronize()
    scale = expected.float().abs().max().clamp_min(1e-30)
    error = (_first(result).detach().float() - expected.float()).abs().max() / scale
    del result
    peak, reserved = _peaks(step)
    latency, back_to_back = timed(step)
    host = statistics.median(_seconds(step, wait=False) for _ in range(50))
    steady, held = _peaks(step)
    return {
        "first_s": round(first, 2),
        "latency_ms": round(latency, 4),
        "back_to_back_ms": round(back_to_back, 4),
        "host_us": round(host * 1e6, 1),  # of a call that finds the device idle
        "plain_peak_MiB": round(simple, 1),  # of the first call, which no compiler records
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


def _seconds(step: Callable[[], Any], wait: bool = True) -> float:
    """Of a step that finds the device idle; without waiting for the device: of the host."""
    import torch

    torch.cuda.synchronize()
    started = time.perf_counter()
    step()
    if wait:
        torch.cuda.synchronize()
    return time.perf_counter() - started


def timed(step: Callable[[], Any]) -> tuple[float, float]:
    """(median latency, best mean of a row of calls) in milliseconds."""
    import torch

    count = max(10, min(200, int(0.5 / _seconds(step))))
    latencies = [_seconds(step) for _ in range(count)]
    rows = [_seconds(lambda: per_call(step, (), {}, count)) / count for _ in range(3)]
    torch.cuda.synchronize()
    return statistics.median(latencies) * 1e3, min(rows) * 1e3


# The command --------------------------------------------------------------------------------------


def main(
    arguments: Sequence[str],
    name: str = "gpu",
    rows: Sequence[str] | None = None,
    compilers: Sequence[str] = COMPILERS,
) -> int:
    """Measures what is not there yet and prints all; 1 if a row failed."""
    parser = harness.options(name, __doc__)
    parser.add_argument(
        "--rows", nargs="*", default=rows or list(ROWS), choices=list(ROWS), metavar="ROW"
    )
    parser.add_argument("--compilers", nargs="*", default=list(compilers), metavar="NAME")
    parser.add_argument(
        "--out",
        type=Path,
        default=None,
        help="the file of rows; by default of this device in results",
    )
    parser.add_argument(
        "--caches", default=None, help="a folder for the compilers' caches, which stays"
    )
    parser.add_argument(
        "--seconds", type=float, default=540, help="stop starting rows after this long"
    )
    parser.add_argument(
        "--show", action="store_true", help="print the table of --out, measure nothing"
    )
    chosen = parser.parse_args(arguments)
    device = "shown" if chosen.show and chosen.out else harness.require_gpu()
    store = harness.Store(name, again=chosen.again, device=device, path=chosen.out)
    end = time.monotonic() + chosen.seconds
    wanted = [] if chosen.show else _wanted(chosen.rows, chosen.compilers, store)
    for (row, names), child in zip(
        wanted, _processes([row for row, _ in wanted], chosen.caches), strict=False
    ):
        for compiler in names:
            left = end - time.monotonic()
            if left > 15:
                result, _ = store.row(
                    f"{row} @ {compiler}", partial(child.ask, compiler, limit=left)
                )
                print(row, compiler, result, flush=True)
        if end - time.monotonic() <= 15:
            break
    print(report(store.rows))
    return int(
        any(
            "failed" in store.rows.get(f"{row} @ {name}", {})
            for row, names in wanted
            for name in names
        )
    )


def _wanted(
    rows: Sequence[str], compilers: Sequence[str], store: harness.Store
) -> list[tuple[str, list[str]]]:
    """Rows with the compilers of one kind that are not there yet."""
    result = []
    for row in rows:
        for kind in dict.fromkeys(name.partition(":")[0] for name in compilers):
            names = [name for name in compilers if name.partition(":")[0] == kind]
            names = [name for name in names if store.stored(f"{row} @ {name}") is None]
            result += [(row, names)] if names else []
    return result


def _processes(rows: Sequence[str], caches: str | None) -> Iterator[harness.Worker]:
    """A process for each row, one after the other; each is started while the one before it is
    measured."""
    stacks = [contextlib.ExitStack() for _ in rows]

    def begin(number: int) -> harness.Worker:
        return stacks[number].enter_context(harness.worker(Measured, rows[number], caches=caches))

    try:
        coming = [begin(0)] if rows else []
        for number in range(len(rows)):
            child = coming.pop()
            coming += [begin(number + 1)] if number + 1 < len(rows) else []
            yield child
            stacks[number].close()
    finally:
        for stack in stacks:
            stack.close()


#: title -> field of a row.
MEMORY = {
    "plain": "plain_peak_MiB",
    "peak": "peak_MiB",
    "steady": "steady_peak_MiB",
    "held": "steady_reserved_MiB",
    "at rest": "at_rest_MiB",
    "left": "left_MiB",
}
HEAD = (
    "row @ compiler",
    "ms",
    "in a row",
    "host us",
    "first s",
    *MEMORY,
    "beyond",
    "error",
    "gradients (eager's)",
)


def report(rows: dict[str, dict[str, Any]]) -> str:
    """A line for each measurement, then how ours stands beside torch.compile's of the same row."""
    from benchmarks import gradient_errors

    lines, failed, beside = [], [], []
    for name, row in rows.items():
        if "failed" in row:
            failed.append(f"{name} failed: {row['failed'].strip()[-200:]}")
            continue
        cells = [
            f"{row['latency_ms']:.3f}",
            f"{row['back_to_back_ms']:.3f}",
            f"{row.get('host_us', 0):.0f}",
        ]
        cells += [
            f"{row['first_s'] or 0:.1f}",
            *(f"{row.get(key) or 0:.0f}" for key in MEMORY.values()),
        ]
        messages = gradient_errors.told(row.get("gradients"))
        lines.append([name, *cells, f"{_beyond(row):.0f}", f"{row['error']:.0e}", messages])
        case, _, mode = name.rpartition(" @ ")
        for other in BESIDE.get(mode, ()):
            theirs = rows.get(f"{case} @ {other}", {"failed": ""})
            if "failed" not in theirs:
                beside.append(
                    f"{case}: {mode} beside {other}: {theirs['latency_ms'] / row['latency_ms']:.2f}"
                    f" (in a row {theirs['back_to_back_ms'] / row['back_to_back_ms']:.2f}), peak"
                    f" {row['peak_MiB'] / theirs['peak_MiB']:.2f}, beyond a call's own peak"
                    f" {_beyond(row):.0f} and {_beyond(theirs):.0f} MiB"
                )
    return "\n".join([table(HEAD, lines), *failed, *beside])


def _beyond(row: dict[str, Any]) -> float:
    """MiB that are held beyond the peak of one plain call; 0 where an older row does not say."""
    return (
        float(row["steady_reserved_MiB"] - row["plain_peak_MiB"])
        if "plain_peak_MiB" in row
        else 0.0
    )


#: Rows whose calls cost the host more than the device, and training, whose backward is recorded
#: too.
RECORDED = (
    "cos+sin 10,000", "cos+sin 2^26", "resnet18 1x64x64", "BERT-base 1x12", "BERT-base 16x128",
    "training resnet18 16x224x224", "training BERT-base 16x128",
)  # fmt: skip


def cudagraphs(arguments: Sequence[str]) -> int:
    """The rows of the cudagraphs backend: eager's native kernels, recorded."""
    return main(arguments, "cudagraphs", RECORDED, ("eager", "cudagraphs", "torch:reduce-overhead"))


# The tutorial -------------------------------------------------------------------------------------

N_ITERS = 10


def _device_seconds(function: Callable[[], Any]) -> float:
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    function()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1000


def _data(batch: int) -> tuple[Any, Any]:
    import torch

    return torch.randn(batch, 3, 128, 128).cuda(), torch.randint(1000, (batch,)).cuda()


def _model() -> Any:
    from torchvision.models import densenet121

    return densenet121().cuda()


def evaluate() -> tuple[float, float]:
    """Median seconds, eager and compiled."""
    import torch

    import tracer_core

    model = _model()
    compiled = tracer_core.compile(model, mode="reduce-overhead")
    inputs = [_data(16)[0] for _ in range(N_ITERS)]
    with torch.no_grad():
        model(inputs[0])
        compiled(inputs[0])
        sides = [
            [_device_seconds(lambda x=x, f=function: f(x)) for x in inputs]
            for function in (model, compiled)
        ]
    return statistics.median(sides[0]), statistics.median(sides[1])


def training() -> tuple[float, float]:
    """Median seconds of a step, eager and compiled."""
    import torch

    import tracer_core

    def steps(compile_it: bool) -> list[float]:
        model = _model()
        optimizer = torch.optim.Adam(model.parameters())

        def train(module: Any, data: tuple[Any, Any]) -> None:
            optimizer.zero_grad(True)
            loss = torch.nn.CrossEntropyLoss()(module(data[0]), data[1])
            loss.backward()
            optimizer.step()

        run = tracer_core.compile(train, mode="reduce-overhead") if compile_it else train
        return [
            _device_seconds(lambda data=data: run(model, data))
            for data in [_data(16) for _ in range(N_ITERS)]
        ]

    return statistics.median(steps(False)), statistics.median(steps(True))


def tutorial(arguments: Sequence[str]) -> int:
    """densenet121, eager beside mode="reduce-overhead": medians of ten steps of eval and of
    training (zero_grad, forward, loss, backward, step). 1 where a speed-up is not above 1, as the
    tutorial's `assert speedup > 1` says."""
    parser = harness.options("gpu_tutorial", tutorial.__doc__, limit=300, again=False)
    chosen = parser.parse_args(arguments)
    harness.require_gpu()
    good = True
    for name, part in (("eval", evaluate), ("train", training)):
        eager, compiled = harness.fresh(part, limit=chosen.limit)
        print(
            f"({name}) eager median: {eager:.5f} s, compiled median: {compiled:.5f} s, speedup:"
            f" {eager / compiled:.2f}x"
        )
        good &= eager / compiled > 1
    return 0 if good else 1
