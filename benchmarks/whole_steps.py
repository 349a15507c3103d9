"""Whole training steps with the optimizer inside: zero_grad, forward, loss, backward, clip, step.

Each row is a model, an optimizer and a way of running, in a process of its own with empty caches. The
ways: ``eager``; ``model`` (ours, the model alone compiled, the optimizer eager); ``ours`` and ``torch``
(the whole step compiled as one function); ``optimizer`` and ``torch_optimizer`` (the optimizer's step
alone compiled). A row has the milliseconds of a settled step, the seconds of the first three, the peak
memory, the losses of the first steps, which must be eager's, and for ours the graphs captured, those
captured after the third step, breaks, fallbacks and what became of CUDA graphs.

Models named ``layers_N`` are N linear layers of 32 (2 N parameters), which show what a step costs for
each parameter. Without a GPU the other models are small.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import compilers, harness
from benchmarks.measured_steps import counting, counts, seconds_of
from benchmarks.models import SEED, import_library
from benchmarks.timing import table

#: Steps whose losses are compared; steps before, and in each round of, the measurement.
COMPARED, WARM_UP, ROUND, ROUNDS = 8, 30, 10, 5
#: How far a loss may be from eager's, by device and dtype.
ALLOWED = {"cuda": 2e-2, "cpu": 1e-3}
WAYS = ("eager", "model", "ours", "torch", "optimizer", "torch_optimizer")
_OURS = frozenset({"model", "ours", "optimizer"})

#: A module, its batches, and the loss of a batch: (module or its compiled form, *batch) -> scalar.
Built = tuple[Any, list[tuple[Any, ...]], Callable[..., Any]]


def _causal(name: str, config: str, **settings: Any) -> Callable[[str], Built]:
    """A language model of transformers in bfloat16, and its loss of a batch."""

    def build(device: str) -> Built:
        import torch
        import transformers

        large = device == "cuda"
        chosen = settings | ({} if large else _SMALL)
        result = getattr(transformers, config)(**chosen)
        module = getattr(transformers, name)(result).to(device, torch.bfloat16 if large else None)
        shape = (4, 1024) if large else (2, 32)
        batches = list(zip(torch.randint(0, result.vocab_size, (8, *shape), device=device)))
        return module, batches, lambda run, tokens: run(input_ids=tokens, labels=tokens).loss

    return build


_SMALL = {
    "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512,
}  # fmt: skip


def _gpt(device: str) -> Built:
    """GPT-2 of 8 layers of 768 under autocast, without dropout."""
    import torch
    import transformers

    large = device == "cuda"
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    size = {"n_layer": 8, "n_embd": 768, "n_head": 12} if large else {
        "n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 512}  # fmt: skip
    config = transformers.GPT2Config(**size, **none)
    module = transformers.GPT2LMHeadModel(config).to(device)
    batches = torch.randint(0, config.vocab_size, (8, 8, 256 if large else 32), device=device)

    def loss(run: Any, tokens: Any) -> Any:
        with torch.autocast(device, torch.bfloat16):
            return run(input_ids=tokens, labels=tokens).loss

    return module, list(zip(batches)), loss


def _clip(device: str) -> Built:
    """CLIP's contrastive loss under autocast."""
    import torch
    import transformers

    large = device == "cuda"
    text = {} if large else {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
                             "num_attention_heads": 4, "vocab_size": 512}  # fmt: skip
    vision = {"image_size": 224 if large else 32, "patch_size": 32 if large else 16} | (
        {} if large else {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
                          "num_attention_heads": 4})  # fmt: skip
    config = transformers.CLIPConfig(text_config=text, vision_config=vision)
    module = transformers.CLIPModel(config).to(device)
    rows, size = 32 if large else 4, vision["image_size"]
    images = torch.randn(8, rows, 3, size, size, device=device)
    texts = torch.randint(1, 500, (8, rows, 32), device=device)

    def loss(run: Any, tokens: Any, pixels: Any) -> Any:
        with torch.autocast(device, torch.bfloat16):
            return run(input_ids=tokens, pixel_values=pixels, return_loss=True).loss

    return module, list(zip(texts, images, strict=True)), loss


def _policy(device: str) -> Built:
    """A small policy network with a value head, as reinforcement learning trains it."""
    import torch
    from torch import nn

    module = nn.Sequential(
        nn.Linear(17, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 7)
    ).to(device)
    states = torch.randn(8, 256, 17, device=device)
    actions = torch.randint(0, 6, (8, 256), device=device)

    def loss(run: Any, state: Any, action: Any) -> Any:
        out = run(state)
        policy = nn.functional.cross_entropy(out[:, :6], action)
        return policy + 0.5 * out[:, 6].square().mean()

    return module, list(zip(states, actions, strict=True)), loss


def _conv(device: str) -> Built:
    """ConvNeXt of timm, float32 with TF32."""
    import timm
    import torch

    large = device == "cuda"
    name, rows, size = ("convnext_tiny", 32, 224) if large else ("test_convnext", 2, 64)
    module = timm.create_model(name, num_classes=100).to(device)
    images = torch.randn(4, rows, 3, size, size, device=device)
    labels = torch.randint(0, 100, (4, rows), device=device)

    def loss(run: Any, pixels: Any, label: Any) -> Any:
        return torch.nn.functional.cross_entropy(run(pixels), label)

    return module, list(zip(images, labels, strict=True)), loss


def _layers(count: int) -> Callable[[str], Built]:
    def build(device: str) -> Built:
        import torch
        from torch import nn

        layers = [part for _ in range(count) for part in (nn.Linear(32, 32), nn.Tanh())]
        batches = list(zip(torch.randn(8, 16, 32, device=device)))
        return nn.Sequential(*layers).to(device), batches, lambda run, x: run(x).square().mean()

    return build


_SIZES = {
    "num_hidden_layers": 8, "hidden_size": 1024, "intermediate_size": 3072,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64, "use_cache": False,
}  # fmt: skip
#: Name -> (library, device -> `Built`).
MODELS: dict[str, tuple[str, Callable[[str], Built]]] = {
    "qwen3": ("transformers", _causal("Qwen3ForCausalLM", "Qwen3Config", **_SIZES, vocab_size=32000)),
    "gemma3": ("transformers", _causal("Gemma3ForCausalLM", "Gemma3TextConfig", **_SIZES, vocab_size=32000)),
    "gpt": ("transformers", _gpt),
    "clip": ("transformers", _clip),
    "convnext": ("timm", _conv),
    "policy": ("", _policy),
    "layers_1": ("", _layers(1)),
    "layers_30": ("", _layers(30)),
    "layers_200": ("", _layers(200)),
    "layers_1000": ("", _layers(1000)),
}  # fmt: skip

#: Name -> (class of torch.optim, its arguments, whether a scheduler sets the rate before each step).
OPTIMIZERS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "adamw": ("AdamW", {}, False),
    "fused": ("AdamW", {"fused": True}, False),
    "capturable": ("AdamW", {"capturable": True}, False),
    "sgd": ("SGD", {"momentum": 0.9}, False),
    "scheduled": ("AdamW", {}, True),
    **{
        name.lower(): (name, {}, False)
        for name in ("Adadelta", "Adafactor", "Adagrad", "Adam", "Adamax", "ASGD", "NAdam", "RAdam",
                     "RMSprop", "Rprop", "Muon")
    },
}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Measures what is not there yet and prints all; 1 if a row failed or its losses are others."""
    parser = harness.options("whole_steps", __doc__, limit=300.0)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument(
        "--optimizers", nargs="+", default=["adamw", "fused"], choices=list(OPTIMIZERS)
    )
    parser.add_argument("--ways", nargs="+", default=list(WAYS[:4]), choices=WAYS)
    parser.add_argument("--device", choices=("cuda", "cpu"), default=None)
    parser.add_argument("--json", type=Path, default=None, help="write all rows there, too")
    parser.add_argument("--workers", type=int, default=1, help="rows at once; timed one by one")
    parser.add_argument("--seconds", type=float, default=None, help="begin no row after so many")
    chosen = parser.parse_args(arguments)
    device = chosen.device or _device()
    store = harness.Store("whole_steps", again=chosen.again, device=_device_name(device))
    measures = {
        f"{name} {optimizer} {way}": partial(
            harness.fresh, steps, name, optimizer, way, device, limit=chosen.limit
        )
        for optimizer, name, way in product(chosen.optimizers, chosen.models, chosen.ways)
    }
    rows: dict[str, dict[str, Any]] = {}
    for key, row in store.measured(measures, workers=chosen.workers, seconds=chosen.seconds):
        rows[key] = row
        print("  ".join(_cells(key, row, rows, device)), flush=True)
        if chosen.json is not None:
            chosen.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    lines = [_cells(key, rows[key], rows, device) for key in measures if key in rows]
    print("\n" + table(["model", "optimizer", "way", "ms a step", "beside eager", "first 3 calls s",
                        "MiB", "graphs", "late", "breaks", "losses", "why"], lines))  # fmt: skip
    return int(
        any("failed" in row or _differs(key, row, rows, device) for key, row in rows.items())
    )


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _device_name(device: str) -> str:
    import torch

    return torch.cuda.get_device_name(0) if device == "cuda" else ""


# -- what is printed --


def _differs(key: str, row: dict[str, Any], rows: dict[str, Any], device: str) -> str:
    """What is wrong with the losses, or "". A form without an eager row is compared with nothing."""
    eager = rows.get(" ".join([*key.split()[:2], "eager"]))
    if eager is None or "failed" in eager or "failed" in row:
        return ""
    pairs = zip(eager["losses"], row["losses"], strict=True)
    worst = max(abs(mine - theirs) / max(abs(theirs), 1e-6) for theirs, mine in pairs)
    return f"off by {worst:.1e}" if not worst <= ALLOWED[device] else ""


def _cells(key: str, row: dict[str, Any], rows: dict[str, Any], device: str) -> list[str]:
    begin = key.split()
    if "failed" in row:
        last = (row["failed"].splitlines() or [""])[-1][:80]
        return [*begin, "failed", *[""] * 7, last]
    eager = rows.get(" ".join([*begin[:2], "eager"]), {}).get("milliseconds")
    beside = f"{eager / row['milliseconds']:.2f}" if eager else ""
    first = " ".join(f"{item:.1f}" for item in row["first"])
    late = str(row.get("late", ""))
    why = "; ".join([*row.get("fallbacks", []), *row.get("cuda_graphs", [])])[:160]
    return [
        *begin, f"{row['milliseconds']:.2f}", beside, first, f"{row['peak']:.0f}",
        str(row.get("graphs", "")), late, str(row.get("breaks", "")),
        _differs(key, row, rows, device) or ("equal" if eager else "no eager row"), why,
    ]  # fmt: skip


# -- one row --


def steps(name: str, optimizer: str, way: str, device: str) -> dict[str, Any]:
    """Trains; the row."""
    import torch

    library, build = MODELS[name]
    if library:
        import_library(library)
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(SEED)
    module, batches, loss_of = build(device)
    module.train()
    kind, arguments, scheduled = OPTIMIZERS[optimizer]
    result = getattr(torch.optim, kind)(_parameters(module, kind), lr=1e-4, **arguments)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(result, 1000) if scheduled else None
    with counting(way in _OURS) as (counted, fallbacks):
        step = _arranged(way, module, loss_of, result)

        def whole(number: int) -> Any:
            loss = step(*batches[number % len(batches)])
            if scheduler is not None:
                scheduler.step()
            return loss

        losses, first, late = [], [], 0
        for number in range(COMPARED):
            start = time.perf_counter()
            losses.append(float(whole(number)))
            if number < 3:
                first.append(time.perf_counter() - start)
                late = len(counted.graphs) if counted is not None else 0
        with harness.alone():
            for number in range(WARM_UP):
                whole(number)
            seconds = [seconds_of(whole, device, ROUND) for _ in range(ROUNDS)]
    row = {
        "milliseconds": statistics.median(seconds) * 1e3,
        "fastest": min(seconds) * 1e3,
        "losses": losses,
        "first": first,
        "peak": torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else 0.0,
    }
    if counted is not None:
        row["late"] = len(counted.graphs) - late
    return row | counts(counted, fallbacks)


def _parameters(module: Any, kind: str) -> list[Any]:
    """Returns what an optimizer takes: Muon takes matrices alone."""
    return [item for item in module.parameters() if kind != "Muon" or item.dim() == 2]


def _arranged(
    way: str, module: Any, loss_of: Callable[..., Any], optimizer: Any
) -> Callable[..., Any]:
    """Returns the step of a batch."""
    import torch

    compile_ = compilers.compiler("torch" if way.startswith("torch") else "ours")
    run = compile_(module) if way == "model" else module
    update = optimizer.step
    if way.endswith("optimizer"):
        update = compile_(lambda: optimizer.step())

    def step(*batch: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_of(run, *batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        update()
        return loss.detach()

    return compile_(step) if way in ("ours", "torch") else step
