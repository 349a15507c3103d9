"""What a token costs on a GPU, beside the floor: bytes that must be read over measured bandwidth.

``python -m benchmarks token_floor --out rows.json`` runs `generate()` of unmodified transformers'
models with a static cache, one sequence in bfloat16, after a prompt of `PROMPT` tokens in a cache of
`CACHE` positions. A row is a model and a compiler, in a process of its own with empty caches. It has

- ``token_ms``: the seconds of `LONG` new tokens less those of `SHORT`, a token;
- ``floor_ms``: the weights, without the table of embeddings of which a token reads one row, of a
  mixture of experts the chosen ones, and half of the cache's positions, over the bandwidth of a copy
  on the device;
- ``busy_ms`` and ``kernels``: what the device does of a token, and in how many launches; the rest of
  ``token_ms`` is the host's;
- ``kernel_ms``: the largest sums by kernel;
- ``first_s``: seconds of the first text; ``next_s``: of `TEXTS`, one after the other, each with other
  lengths of the prompt and of the text; ``same``: how many of 24 tokens are eager's before the first
  other one, and ``error``: the largest relative error of these steps' logits against eager's.

``--weights int8 float8 int4_groups`` has the linear layers' weights quantized by torchao; a row's name
then has the kind. Weights of ``int4_groups`` take a byte each, and a scale for 32.

torch.compile is what `generate()` applies by itself on a GPU (reduce-overhead, the whole forward);
"ours" is a compiled model, "ours:generate" is ``compile(model.generate)``.
"""

from __future__ import annotations

import collections
import json
import tempfile
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.generation import MODELS, WEIGHTS, agreement, quantise
from benchmarks.kernel_alignment import own_times
from benchmarks.timing import table

PROMPT, CACHE, SHORT, LONG, COMPARED = 1024, 2048, 16, 144, 24
#: Tokens of the prompt and new ones, of the texts after the first one.
TEXTS = ((900, 20), (700, 32), (512, 24), (640, 28), (900, 20))
COMPILERS = ("eager", "torch", "ours", "ours:generate")

#: name -> (entry of `generation.MODELS`, sizes)
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama_1b": ("llama", {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "vocab_size": 32000,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 4096,
    }),
    "llama_8b": ("llama", {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "vocab_size": 128256, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 4096,
    }),
    "qwen3_8b": ("qwen3", {
        "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
        "vocab_size": 151936, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 4096,
    }),
    "gemma3_4b": ("gemma3", {
        "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
        "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 256, "max_position_embeddings": 4096,
    }),
    # 3.3e9 of 30e9 parameters a token.
    "qwen3_moe_30b": ("qwen3_moe", {
        "hidden_size": 2048, "moe_intermediate_size": 768, "num_hidden_layers": 48,
        "vocab_size": 151936, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "num_experts": 128, "num_experts_per_tok": 8, "max_position_embeddings": 4096,
    }),
    # 3.6e9 of 21e9 parameters a token.
    "gpt_oss_20b": ("gpt_oss", {
        "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
        "vocab_size": 201088, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
        "num_local_experts": 32, "num_experts_per_tok": 4, "max_position_embeddings": 4096,
    }),
}  # fmt: skip


class Text:
    """A model under one compiler. Mutable."""

    def __init__(self, name: str, weights: str, compiler: str) -> None:
        import torch
        import transformers

        import tracer_core

        kind, sizes = SHAPES[name]
        model_class, config, more = MODELS[kind]
        torch.manual_seed(0)
        settings = getattr(transformers, config)(**{**more(sizes), **sizes}, dtype=torch.bfloat16)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"):
            self.model = getattr(transformers, model_class)(settings).eval()
            self.prompt = torch.randint(3, sizes["vocab_size"], (1, PROMPT))
        torch.set_default_dtype(torch.float32)
        if weights:
            quantise(self.model, weights)
        # A token that no text has: each is as long as asked for, and checked for its end.
        self.model.generation_config.eos_token_id = sizes["vocab_size"]
        self.cache = transformers.StaticCache(config=settings, max_cache_len=CACHE)
        self.name, self.compiler, self.run = name + weights, compiler, self.model.generate
        if compiler == "ours":
            self.run = tracer_core.compile(self.model, mode="reduce-overhead").generate
        elif compiler == "ours:generate":
            self.run = tracer_core.compile(self.model.generate, mode="reduce-overhead")

    def __call__(self, question: str) -> dict[str, Any]:
        return {"prepare": self.prepare, "measure": self.measure}[question]()

    def generate(self, tokens: int, prompt: int = PROMPT, **more: Any) -> Any:
        import torch

        self.cache.reset()
        with torch.no_grad():
            result = self.run(
                self.prompt[:, :prompt], max_new_tokens=tokens, do_sample=False, pad_token_id=0,
                past_key_values=self.cache, disable_compile=self.compiler != "torch", **more,
            )  # fmt: skip
        torch.cuda.synchronize()
        return result

    def _seconds(self, tokens: int, prompt: int = PROMPT) -> float:
        started = time.perf_counter()
        self.generate(tokens, prompt)
        return time.perf_counter() - started

    def prepare(self) -> dict[str, Any]:
        """The first text, and what later processes compare with."""
        import torch

        from benchmarks.measured_steps import measure_tiles

        first = self._seconds(SHORT)
        self.generate(SHORT)
        result = self.generate(COMPARED, output_logits=True, return_dict_in_generate=True)
        text = result.sequences[0, PROMPT:].cpu(), torch.stack(result.logits)[:, 0].cpu()
        path = Path(tempfile.gettempdir()) / f"token_floor_{self.name}.pt"
        answer: dict[str, Any] = {"first_s": round(first, 2)}
        answer["next_s"] = [round(self._seconds(tokens, prompt), 2) for prompt, tokens in TEXTS]
        if self.compiler == "eager":
            torch.save(text, path)
        elif path.exists():
            answer["same"], error = agreement(text, torch.load(path))
            answer["error"] = round(error, 5)
        if self.compiler.startswith("ours"):
            answer["tiles_s"] = round(measure_tiles(lambda: self.generate(COMPARED)), 1)
        return answer

    def measure(self) -> dict[str, Any]:
        import torch

        from benchmarks.kernels import copy_bandwidth

        short, long = (min(self._seconds(n) for _ in range(3)) for n in (SHORT, LONG))
        head = self.model.get_input_embeddings().weight
        tied = self.model.get_output_embeddings().weight is head
        weights = sum(map(self._read, *zip(*self.model.named_parameters(), strict=True)))
        weights -= 0 if tied else head.nbytes
        layers = self.cache.layers
        cached = sum(layer.keys.nbytes + layer.values.nbytes for layer in layers) / 2
        floor = (weights + cached) / copy_bandwidth()
        token = (long - short) / (LONG - SHORT)
        return {
            "token_ms": round(token * 1e3, 3),
            "floor_ms": round(floor * 1e3, 3),
            "share": round(floor / token, 3),
            "peak_MiB": round(torch.cuda.max_memory_allocated() / 2**20),
            **self._kernels(),
            "device": torch.cuda.get_device_name(0),
            "torch": torch.__version__,
        }

    def _read(self, name: str, weight: Any) -> float:
        """Bytes of a parameter that a token reads: of experts those that are chosen."""
        config = self.model.config
        if ".experts." not in name:
            return _nbytes(weight)
        experts = getattr(config, "num_experts", None) or config.num_local_experts
        return _nbytes(weight) * config.num_experts_per_tok / experts

    def _kernels(self) -> dict[str, Any]:
        """What the device does of a token: of `SHORT` tokens, less that of ten fewer."""
        longer, shorter = (self._profile(tokens) for tokens in (SHORT, SHORT - 10))
        sums = {name: (ms - shorter[name][0]) / 10 for name, (ms, _) in longer.items()}
        launches = sum(count - shorter[name][1] for name, (_, count) in longer.items())
        first = sorted(sums.items(), key=lambda item: -item[1])[:12]
        return {
            "busy_ms": round(sum(sums.values()), 3),
            "kernels": launches / 10,
            "kernel_ms": {name[:60]: round(ms, 4) for name, ms in first},
        }

    def _profile(self, tokens: int) -> collections.defaultdict[str, tuple[float, int]]:
        """Milliseconds and launches by kernel, of a text."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as result:
            self.generate(tokens)
        sums: collections.defaultdict[str, tuple[float, int]]
        sums = collections.defaultdict(lambda: (0.0, 0))
        events = [event for event in result.events() if event.device_type.name == "CUDA"]
        events.sort(key=lambda event: event.time_range.start)
        spans = [(event.time_range.start, event.time_range.end) for event in events]
        for event, (microseconds, _) in zip(events, own_times(spans), strict=True):
            ms, count = sums[event.name]
            sums[event.name] = ms + microseconds / 1e3, count + 1
        return sums


def _nbytes(tensor: Any) -> int:
    """Bytes of a tensor, or of the tensors that a quantized one consists of."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return int(tensor.nbytes)
    return sum(_nbytes(getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0])


def main(arguments: Sequence[str]) -> int:
    """Prints the table; 1 if a row of ours failed."""
    parser = harness.options("token_floor", __doc__, limit=240.0, again=False)
    parser.add_argument("--models", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--weights", nargs="+", default=[""], choices=WEIGHTS)
    parser.add_argument("--compilers", nargs="+", default=list(COMPILERS), choices=COMPILERS)
    parser.add_argument("--out", type=Path, default=Path("token_floor.json"))
    chosen = parser.parse_args(arguments)
    harness.require_gpu()
    rows: dict[str, Any] = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
    for name, weights, compiler in product(chosen.models, chosen.weights, chosen.compilers):
        key = ", ".join(filter(None, (name, weights, compiler)))
        if key in rows:
            continue
        with (
            tempfile.TemporaryDirectory(prefix="benchmark-") as caches,
            harness.worker(Text, name, weights, compiler, caches=caches) as worker,
        ):
            try:
                rows[key] = worker.ask("prepare", limit=chosen.limit)
                rows[key] |= worker.ask("measure", limit=chosen.limit)
            except harness.Failed as error:
                rows[key] = {"failed": str(error)[-800:]}
        chosen.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    head = ["row", "token_ms", "floor_ms", "share", "busy_ms", "kernels", "first_s", "next_s", "same",
            "error", "peak_MiB"]  # fmt: skip
    lines = [
        [key, *(str(row.get(column, "-")) for column in head[1:])] for key, row in rows.items()
    ]
    print(table(head, lines))
    for key, row in rows.items():
        if "failed" in row:
            print(f"{key}: {row['failed']}")
        for kernel, ms in row.get("kernel_ms", {}).items() if ", ours" in key else ():
            print(f"  {key}: {ms * 1e3:8.1f} us  {kernel}")
    return int(any("failed" in row for key, row in rows.items() if ", ours" in key))
