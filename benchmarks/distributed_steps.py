"""Training steps on two ranks: DistributedDataParallel, fully_shard (FSDP2) and tensor parallelism.

Each row is a model, a form and a compiler, in processes of its own with empty caches: two ranks,
NCCL on GPUs, else gloo. The forms: ``ddp`` compiles DistributedDataParallel, ``ddp_inside`` the module
inside it; ``fsdp2`` compiles the sharded root, ``fsdp2_layers`` each layer before it is sharded; ``tp``
is parallelize_module (DTensor), ``tp_functional`` the same split written with functional collectives.
A row has the milliseconds of a step (forward, backward, optimizer), the greater of the ranks', the
losses of the first steps, the seconds of the first, the peak memory, and for ours graphs, breaks and
fallbacks. Losses must be eager's. Float32, with TF32 on GPUs.

Without GPUs the models are tiny, and the milliseconds say nothing. Under torchrun
(``torchrun --nproc-per-node 2 -m benchmarks distributed_steps --forms ddp``) each rank runs the rows in
its own process, and nothing is stored.
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import compilers, harness
from benchmarks.measured_steps import counting, counts, cuda_graphs, seconds_of
from benchmarks.models import SEED, import_library
from benchmarks.timing import table

RANKS = 2
#: Steps whose losses are compared; steps before, and in each round of, the measurement.
COMPARED, WARM_UP, ROUND, ROUNDS = 8, 5, 10, 5
#: How far a loss may be from eager's: TF32 rounds products to 10 bits.
ALLOWED = {"cuda": 5e-3, "cpu": 1e-4}
#: Environment variable that carries the options to the ranks; its name is none that they drop.
_OPTIONS = "STEPS_OPTIONS"
FORMS = ("ddp", "ddp_inside", "fsdp2", "fsdp2_layers", "tp", "tp_functional")


@dataclass(frozen=True, slots=True)
class Model:
    """large, small: settings of the configuration, on GPUs and without. batch: (rows, tokens) of each.
    layers(module): its layers. columns, rows: the linear layers in each of them whose columns, or
    whose rows, are split in tensor parallelism."""

    title: str
    model: str
    config: str
    large: dict[str, Any]
    small: dict[str, Any]
    batch: tuple[tuple[int, int], tuple[int, int]]
    layers: Callable[[Any], Any]
    columns: tuple[str, ...]
    rows: tuple[str, ...]


_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MODELS = {
    "llama": Model(
        "Llama, 8 layers of 1,024",
        "LlamaForCausalLM",
        "LlamaConfig",
        {
            "num_hidden_layers": 8, "hidden_size": 1024, "intermediate_size": 2816,
            "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 32000,
            "use_cache": False,
        },
        {
            "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64,
            "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 128, "use_cache": False,
        },
        ((4, 512), (2, 16)),
        lambda module: module.model.layers,
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"),
        ("self_attn.o_proj", "mlp.down_proj"),
    ),
    "bert": Model(
        "BERT base",
        "BertForMaskedLM",
        "BertConfig",
        _NO_DROPOUT,
        {
            **_NO_DROPOUT, "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64,
            "num_attention_heads": 4, "vocab_size": 128,
        },
        ((16, 128), (2, 16)),
        lambda module: module.bert.encoder.layer,
        ("attention.self.query", "attention.self.key", "attention.self.value", "intermediate.dense"),
        ("attention.output.dense", "output.dense"),
    ),
}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Measures what is not there yet and prints all; 1 if a row failed or its losses are others."""
    parser = harness.options("distributed_steps", __doc__, limit=420.0)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=FORMS)
    parser.add_argument("--compilers", nargs="+", default=list(compilers.DEFAULT), metavar="NAME")
    parser.add_argument("--device", choices=("cuda", "cpu"), default=None)
    parser.add_argument("--json", type=Path, default=None, help="write all rows there, too")
    parser.add_argument(
        "--options", default="", help='options of ours, JSON: {"recordings": false}'
    )
    chosen = parser.parse_args(arguments)
    if chosen.options:
        os.environ[_OPTIONS] = chosen.options
    device = chosen.device or _device()
    under_torchrun = "RANK" in os.environ
    store = harness.Store(
        "distributed_steps",
        again=chosen.again,
        keep=not under_torchrun,
        device=f"{RANKS} x {_device_name(device)}",
    )
    if under_torchrun:
        _join(device, None, int(os.environ["RANK"]))
    rows: dict[str, dict[str, Any]] = {}
    for name, form in product(chosen.models, chosen.forms):
        for compiler in chosen.compilers:
            key = f"{name} {form} {compiler}"
            if chosen.options and compiler.startswith("ours"):
                key += f" {chosen.options.replace(' ', '')}"
            if under_torchrun:
                row = _steps(name, form, compiler, device)
            else:
                row, _ = store.row(
                    key,
                    partial(harness.fresh, ranks, name, form, compiler, device, limit=chosen.limit),
                )
            rows[key] = row
            if _is_first_rank():
                print(_line(key, row, rows, device), flush=True)
    wrong = [
        key for key, row in rows.items() if "failed" in row or _differs(key, row, rows, device)
    ]
    if _is_first_rank():
        lines = [_cells(key, row, rows, device) for key, row in rows.items()]
        print("\n" + table(["model", "form", "compiler", "ms a step", "beside eager", "first call s",
                            "MiB", "graphs", "breaks", "losses"], lines))  # fmt: skip
        if chosen.json is not None:
            chosen.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong else 0


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() and torch.cuda.device_count() >= RANKS else "cpu"


def _device_name(device: str) -> str:
    import torch

    return torch.cuda.get_device_name(0) if device == "cuda" else "CPU"


def _is_first_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"


# -- what is printed --


def _differs(key: str, row: dict[str, Any], rows: dict[str, Any], device: str) -> str:
    """What is wrong with the losses, or "". Those of tensor parallelism are compared with eager's of
    the same form; a form without an eager row, with nothing."""
    eager = rows.get(" ".join([*key.split()[:2], "eager"]))
    if eager is None or "failed" in eager or "failed" in row:
        return ""
    pairs = zip(eager["losses"], row["losses"], strict=True)
    worst = max(abs(mine - theirs) / max(abs(theirs), 1e-6) for theirs, mine in pairs)
    return f"off by {worst:.1e}" if not worst <= ALLOWED[device] else ""


def _cells(key: str, row: dict[str, Any], rows: dict[str, Any], device: str) -> list[str]:
    name, form, compiler, *_ = key.split()
    begin = [MODELS[name].title, form, compilers.title(compiler)]
    if "failed" in row:
        return [*begin, "failed", (row["failed"].splitlines() or [""])[-1][:60], *[""] * 5]
    eager = rows.get(f"{name} {form} eager", {}).get("milliseconds")
    beside = f"{eager / row['milliseconds']:.2f}" if eager else ""
    return [
        *begin, f"{row['milliseconds']:.1f}", beside, f"{row['first']:.1f}", f"{row['peak']:.0f}",
        str(row.get("graphs", "")), str(row.get("breaks", "")),
        _differs(key, row, rows, device) or ("equal" if eager else "no eager row"),
    ]  # fmt: skip


def _line(key: str, row: dict[str, Any], rows: dict[str, Any], device: str) -> str:
    return "  ".join(_cells(key, row, rows, device))


# -- the processes of one row --


def ranks(name: str, form: str, compiler: str, device: str) -> dict[str, Any]:
    """One row: starts the ranks and returns what the first says."""
    import torch.multiprocessing as processes

    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        processes.spawn(_rank, (folder, name, form, compiler, device), nprocs=RANKS)
        data: dict[str, Any] = json.loads(Path(folder, "row.json").read_text(encoding="utf-8"))
        return data


def _rank(rank: int, folder: str, name: str, form: str, compiler: str, device: str) -> None:
    _join(device, f"file://{folder}/store", rank)
    row = _steps(name, form, compiler, device)
    if rank == 0:
        Path(folder, "row.json").write_text(json.dumps(row), encoding="utf-8")
    import torch.distributed as dist

    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # engines' threads and NCCL's end in an order of their own


def _join(device: str, store: str | None, rank: int) -> None:
    import torch
    import torch.distributed as dist

    if device == "cuda":
        torch.cuda.set_device(rank)
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
    else:
        torch.set_num_threads(1)
    where = {} if store is None else {"init_method": store, "rank": rank, "world_size": RANKS}
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo", timeout=datetime.timedelta(seconds=300), **where
    )


def _steps(name: str, form: str, compiler: str, device: str) -> dict[str, Any]:
    """Trains; what the slower rank needs."""
    import torch
    import torch.distributed as dist

    model = MODELS[name]
    module = _built(model, device)
    with counting(compiler.startswith("ours")) as (counted, fallbacks):
        compiled = _ARRANGED[form](module, model, _compiler(compiler), device)
        batches = _batches(model, form, device)
        # parameters of tensor parallelism are DTensors and tensors, which no foreach takes together
        fused = {"foreach": False} if form.startswith("tp") else {"fused": device == "cuda"}
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, **fused)

        def step(number: int) -> Any:
            tokens = batches[number % len(batches)]
            loss = compiled(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        start = time.perf_counter()
        losses = [_mean(step(0), form)]
        first = time.perf_counter() - start
        losses += [_mean(step(number), form) for number in range(1, COMPARED)]
        for number in range(WARM_UP):
            step(number)
        seconds = [_timed(step, device) for _ in range(ROUNDS)]
        profile = os.environ.get("STEPS_PROFILE")
        if profile:
            row_name = f"{name}_{form}_{compiler}_{dist.get_rank()}"
            _profiled(step, Path(profile), row_name)
            if counted is not None:
                _told(compiled, Path(profile, f"{row_name}.txt"))
    worst = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    peak = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else 0.0
    row = {
        "milliseconds": statistics.median(worst.tolist()) * 1e3,
        "fastest": min(worst.tolist()) * 1e3,
        "losses": losses,
        "first": first,
        "peak": peak,
    }
    return row | counts(counted, fallbacks)


def _compiler(name: str) -> Any:
    """The compiler of that name, ours with the options that were asked for."""
    options = os.environ.get(_OPTIONS)
    if not (options and name.startswith("ours")):
        return compilers.compiler(name)
    import tracer_core

    backend = name.partition(":")[2] or "inductor"
    return lambda module: tracer_core.compile(module, backend=backend, options=json.loads(options))


def _timed(step: Callable[[int], Any], device: str) -> float:
    """Seconds of a step, which all ranks begin together."""
    import torch.distributed as dist

    dist.barrier()
    return seconds_of(step, device, ROUND)


def _profiled(step: Callable[[int], Any], folder: Path, name: str) -> None:
    """Writes what the host does in Python in some steps, and a trace of both for one."""
    import cProfile

    import torch

    folder.mkdir(parents=True, exist_ok=True)
    python = cProfile.Profile()
    python.enable()
    for number in range(ROUND):
        step(number)
    python.disable()
    with torch.profiler.profile() as trace:
        step(0)
    python.dump_stats(folder / f"{name}.pstats")
    trace.export_chrome_trace(str(folder / f"{name}.json"))


def _told(compiled: Any, path: Path) -> None:
    """Writes what a rank compiled and decided: ranks may decide differently."""
    import tracer_core

    path.write_text(f"{tracer_core.last_compile(compiled)}\n" + "\n".join(cuda_graphs()))


def _built(model: Model, device: str) -> Any:
    """The module, with the same weights on each rank."""
    import torch

    import_library("transformers")
    import transformers

    torch.manual_seed(SEED)
    settings = model.large if device == "cuda" else model.small
    config = getattr(transformers, model.config)(**settings)
    return getattr(transformers, model.model)(config).train().to(device)


def _batches(model: Model, form: str, device: str) -> list[Any]:
    """Batches, others on each rank, but the same where the ranks split the model."""
    import torch
    import torch.distributed as dist

    rows, tokens = model.batch[device != "cuda"]
    settings = model.large if device == "cuda" else model.small
    seed = SEED + (0 if form.startswith("tp") else dist.get_rank())
    generator = torch.Generator().manual_seed(seed)
    size = settings.get("vocab_size", 30522)
    return [
        torch.randint(0, size, (rows, tokens), generator=generator).to(device) for _ in range(4)
    ]


def _mean(loss: Any, form: str) -> float:
    """The loss over the ranks."""
    import torch.distributed as dist

    simple = getattr(loss, "full_tensor", lambda: loss)().clone()
    dist.all_reduce(simple)
    return float(simple) / RANKS


# -- the forms --


def _replica(module: Any, device: str) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(module, device_ids=None if device == "cpu" else [_index()])


def _index() -> int:
    import torch

    return torch.cuda.current_device()


def _ddp(module: Any, model: Model, compiled: Any, device: str) -> Any:
    return compiled(_replica(module, device))


def _ddp_inside(module: Any, model: Model, compiled: Any, device: str) -> Any:
    return _replica(compiled(module), device)


def _mesh(device: str) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device, (RANKS,))


def _sharded(module: Any, model: Model, device: str) -> Any:
    from torch.distributed.fsdp import fully_shard

    mesh = _mesh(device)
    for layer in model.layers(module):
        fully_shard(layer, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def _fsdp2(module: Any, model: Model, compiled: Any, device: str) -> Any:
    return compiled(_sharded(module, model, device))


def _fsdp2_layers(module: Any, model: Model, compiled: Any, device: str) -> Any:
    layers = model.layers(module)
    for number in range(len(layers)):
        layers[number] = compiled(layers[number])
    return _sharded(module, model, device)


def _tp(module: Any, model: Model, compiled: Any, device: str) -> Any:
    from torch.distributed.tensor import parallel

    plan: dict[str, Any] = dict.fromkeys(model.columns, parallel.ColwiseParallel())
    plan |= dict.fromkeys(model.rows, parallel.RowwiseParallel())
    mesh = _mesh(device)
    for layer in model.layers(module):
        parallel.parallelize_module(layer, mesh, plan)
    return compiled(module)


def _tp_functional(module: Any, model: Model, compiled: Any, device: str) -> Any:
    import torch
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as functional

    group, rank = dist.group.WORLD, dist.get_rank()

    class Whole(torch.autograd.Function):
        """Each rank computes with the whole input, so the gradients are summed."""

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return functional.all_reduce(gradient.contiguous(), "sum", group)

    class Summed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return functional.all_reduce(x, "sum", group)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient

    class Columns(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            return super().forward(Whole.apply(x))

    class Rows(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            part = Summed.apply(torch.nn.functional.linear(x, self.weight))
            return part if self.bias is None else part + self.bias

    for layer in model.layers(module):
        for paths, kind, dim in ((model.columns, Columns, 0), (model.rows, Rows, 1)):
            for path in paths:
                linear = layer.get_submodule(path)
                linear.__class__ = kind
                for name in ("weight", "bias")[: 1 if dim or linear.bias is None else 2]:
                    part = getattr(linear, name).detach().chunk(RANKS, dim)[rank].clone()
                    setattr(linear, name, torch.nn.Parameter(part))
    return compiled(module)


_ARRANGED: dict[str, Callable[..., Any]] = {
    "ddp": _ddp,
    "ddp_inside": _ddp_inside,
    "fsdp2": _fsdp2,
    "fsdp2_layers": _fsdp2_layers,
    "tp": _tp,
    "tp_functional": _tp_functional,
}
