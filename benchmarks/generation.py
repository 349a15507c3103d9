"""generate() of transformers' language models: tokens a second by kind of cache and of weights.

A row is a model, a cache and a kind of weights, in a process of its own with empty caches, where
eager, torch.compile and ours take turns. Greedy, with prompts of `PROMPT` tokens; the seconds are the
best of several rounds. Ours compiles the model, torch.compile its forward. With a static cache on a
GPU ours has mode="reduce-overhead", and torch.compile is what generate() applies by itself then (the
same mode; it is off for the others). Weights are random, bfloat16 on a GPU. There all rows compile at
once, each torch.compile with two compile threads, and are measured one after the other.

error: the greatest relative error of a step's logits, up to the first token that is not eager's,
against the model in float32 (with quantised weights against eager). same tokens: that are eager's
before the first other one; another one is wrong in float32 only: in bfloat16 rounding decides between
two candidates of random weights.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import copy
import itertools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness, models
from benchmarks.timing import table

PROMPT = 32
#: New tokens, and rounds of the measurement, on a CPU and on a GPU.
TOKENS, ROUNDS = {"cpu": 64, "cuda": 64}, {"cpu": 5, "cuda": 3}
COMPILERS, CACHES = ("eager", "torch", "ours"), ("dynamic", "static")

#: Configurations on a CPU and on a GPU.
_SIZES: dict[str, dict[str, int]] = {
    "cpu": {
        "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "vocab_size": 1000,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024,
    },
    "cuda": {
        "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16,
        "vocab_size": 32000, "num_attention_heads": 16, "num_key_value_heads": 4,
        "max_position_embeddings": 2048,
    },
}  # fmt: skip
#: Of 1.2e9 parameters.
_LARGE = {
    **_SIZES["cuda"], "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32,
    "num_key_value_heads": 8,
}  # fmt: skip


def _heads(sizes: dict[str, int]) -> int:
    return sizes["hidden_size"] // sizes["num_attention_heads"]


#: name -> (class, configuration, what it adds to the sizes).
MODELS: dict[str, tuple[str, str, Callable[[dict[str, int]], dict[str, Any]]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", lambda sizes: {}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", lambda sizes: {"head_dim": _heads(sizes)}),
    "mistral": ("MistralForCausalLM", "MistralConfig", lambda sizes: {"sliding_window": 512}),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", lambda sizes: {"head_dim": _heads(sizes)}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", lambda sizes: {}),
    "gpt_oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        lambda sizes: {
            "head_dim": _heads(sizes), "num_local_experts": 4, "num_experts_per_tok": 2,
        },
    ),
    "lfm2": (
        "Lfm2ForCausalLM",
        "Lfm2Config",
        lambda sizes: {
            "layer_types": ["conv", "full_attention"] * (sizes["num_hidden_layers"] // 2),
        },
    ),
}  # fmt: skip
#: torchao's configurations; "" is weights as they are.
WEIGHTS = ("", "int8", "int4", "int4_groups", "float8", "int8_dynamic")


def quantise(model: Any, kind: str) -> None:
    """Replaces a model's linear weights by those of a torchao configuration."""
    import torch
    import torchao.quantization as ao
    from torchao.quantization.granularity import PerGroup

    result: dict[str, Callable[[], Any]] = {
        "int8": lambda: ao.Int8WeightOnlyConfig(),
        "int8_dynamic": lambda: ao.Int8DynamicActivationInt8WeightConfig(),
        "int4": lambda: ao.Int4WeightOnlyConfig(
            group_size=128, int4_packing_format="tile_packed_to_4d"
        ),
        "int4_groups": lambda: ao.IntxWeightOnlyConfig(torch.int4, PerGroup(32)),
        "float8": lambda: ao.Float8WeightOnlyConfig(),
    }
    ao.quantize_(model, result[kind]())


class _Row:
    """Answers "prepare" (compiles and compares) and "measure"."""

    def __init__(self, name: str, cache: str, weights: str, device: str, names: Sequence[str]):
        import torch
        import transformers

        models.import_library("transformers")
        torch.manual_seed(0)
        if device == "cpu":
            torch.set_num_threads(1)
        model_class, config, more = MODELS[name]
        sizes = _LARGE if weights and device == "cuda" else _SIZES[device]
        settings = getattr(transformers, config)(**sizes, **more(sizes))
        with torch.device(device):
            self.model = getattr(transformers, model_class)(settings).eval()
        self.truth = None if weights else copy.deepcopy(self.model)
        if device == "cuda":
            self.model = self.model.to(torch.bfloat16)
        if weights:
            quantise(self.model, weights)
        self.model.generation_config.eos_token_id = None
        self.forward = self.model.forward
        self.prompt = torch.randint(3, sizes["vocab_size"], (1, PROMPT), device=device)
        self.device, self.cache, self.names = device, cache, names
        self.tokens = TOKENS[device]
        self.calls: dict[str, Callable[..., Any]] = {}

    def __call__(self, question: str) -> dict[str, Any]:
        return self.prepare() if question == "prepare" else self.measure()

    def _call(self, compiler: str) -> Callable[..., Any]:
        import torch

        import tracer_core

        graphs = self.device == "cuda" and self.cache == "static"
        mode = {"mode": "reduce-overhead"} if graphs else {}
        target, forward = self.model, self.forward
        automatic = graphs and compiler == "torch"
        if compiler == "torch" and not automatic:
            forward = torch.compile(self.forward)
        if compiler == "ours":
            target = tracer_core.compile(self.model, **mode)

        def call(**more: Any) -> Any:
            self.model.forward = forward
            settings: dict[str, Any] = {
                "max_new_tokens": self.tokens, "do_sample": False, "pad_token_id": 0,
                "disable_compile": not automatic, **more,
            }  # fmt: skip
            if self.cache == "static":
                settings["cache_implementation"] = "static"
            with torch.no_grad():
                result = target.generate(self.prompt, **settings)
            if self.device == "cuda":
                torch.cuda.synchronize()
            return result

        return call

    def prepare(self) -> dict[str, Any]:
        from tracer_core.testing import CaptureCounter

        row: dict[str, Any] = {}
        eager: Any = None
        for compiler in self.names:
            try:
                call = self._call(compiler)
                with CaptureCounter() as counter:
                    began = time.perf_counter()
                    result = call(output_logits=True, return_dict_in_generate=True)
                    row[f"{compiler}_first_s"] = round(time.perf_counter() - began, 2)
                    eager = eager or (result.sequences[0, PROMPT:], self._true_logits(result))
                    call()
                    again = call(output_logits=True, return_dict_in_generate=True)
                row |= _compared(compiler, again, eager)
                self.calls[compiler] = call
                if compiler == "ours":
                    row["ours_graphs"] = len(counter.graphs)
                    row["ours_breaks"] = [f"{kind}: {why}"[:200] for kind, why, _ in counter.breaks]
            except Exception as error:  # of a library that is measured
                row[f"{compiler}_raised"] = f"{type(error).__name__}: {error}"[:300]
        return row

    def _true_logits(self, eager: Any) -> Any:
        """Returns the logits of all steps by the model in float32, or eager's."""
        import torch

        truth, self.truth = self.truth, None
        if truth is None:
            return torch.stack(eager.logits)[:, 0]
        with torch.no_grad():
            return truth(eager.sequences[:, :-1]).logits[0, PROMPT - 1 :]

    def measure(self) -> dict[str, Any]:
        seconds: dict[str, list[float]] = {name: [] for name in self.calls}
        for _ in range(ROUNDS[self.device]):
            for name, call in self.calls.items():
                began = time.perf_counter()
                call()
                seconds[name].append(time.perf_counter() - began)
        row: dict[str, Any] = {
            f"{name}_tokens_a_second": round(self.tokens / min(second), 1)
            for name, second in seconds.items()
        }
        return row


def _compared(compiler: str, result: Any, eager: tuple[Any, Any]) -> dict[str, Any]:
    """Returns how many tokens are eager's, and the error of the logits up to there. eager: its tokens,
    and the logits to compare with."""
    logits = [item[0] for item in result.logits]
    same, error = agreement((result.sequences[0, PROMPT:], logits), eager)
    return {f"{compiler}_same_tokens": same, f"{compiler}_error": error}


def agreement(ours: tuple[Any, Any], eager: tuple[Any, Any]) -> tuple[int, float]:
    """Returns how many tokens are equal before the first other one, and the largest relative error of
    the logits up to there. ours, eager: tokens, and the logits of each step."""
    import torch

    tokens, logits = ours
    same = int((torch.cat([tokens == eager[0], tokens.new_zeros(1).bool()])).int().argmin())
    pairs = list(zip(logits, eager[1], strict=True))[: same + 1]
    return same, max(float((a.float() - b.float()).norm() / b.float().norm()) for a, b in pairs)


def serve(
    name: str, cache: str, weights: str, device: str, names: Sequence[str]
) -> Callable[[str], dict[str, Any]]:
    """Returns what answers for one row, in a process of its own."""
    return _Row(name, cache, weights, device, names)


def main(arguments: Sequence[str]) -> int:
    """Prints the table; 1 if a row fails, or float32 tokens are not eager's."""
    parser = harness.options("generate", __doc__, limit=900.0)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--caches", nargs="+", default=list(CACHES), choices=CACHES)
    parser.add_argument("--weights", nargs="+", default=[""], choices=WEIGHTS)
    parser.add_argument("--compilers", nargs="+", default=list(COMPILERS), choices=COMPILERS)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    parser.add_argument("--out", type=Path, help="another file of rows")
    chosen = parser.parse_args(arguments)
    gpu = chosen.device == "cuda"
    store = harness.Store(
        "generate", again=chosen.again, path=chosen.out,
        device=harness.require_gpu() if gpu else "",
    )  # fmt: skip
    keys = {
        ", ".join(filter(None, combination)): combination
        for combination in itertools.product(chosen.models, chosen.caches, chosen.weights)
    }
    missing = [key for key in keys if store.stored(key) is None]
    at_once = max(1, os.cpu_count() or 1) if gpu else 1
    for begin in range(0, len(missing), at_once):
        _measured(missing[begin : begin + at_once], keys, chosen, store)
    rows = {key: store.rows[key] for key in keys}
    print(table(_HEAD, [[key, *_line(row)] for key, row in rows.items()]))
    return int(any(_is_wrong(row, not gpu) for row in rows.values()))


def _measured(batch: Sequence[str], keys: Any, chosen: Any, store: harness.Store) -> None:
    """Measures some rows, which are prepared at once."""
    with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor() as pool:
        workers = {
            key: stack.enter_context(
                harness.worker(
                    serve, *keys[key], chosen.device, chosen.compilers, environment=_FEW_THREADS
                )
            )
            for key in batch
        }

        def ask(key: str, question: str) -> dict[str, Any]:
            try:
                result: dict[str, Any] = workers[key].ask(question, limit=chosen.limit)
            except harness.Failed as error:
                return {"failed": str(error)[-1000:]}
            return result

        rows = dict(zip(batch, pool.map(lambda key: ask(key, "prepare"), batch), strict=True))
        for key, row in rows.items():
            store.put(key, row if "failed" in row else row | ask(key, "measure"))


#: Sixteen processes of torch.compile's for each row do not fit into the memory.
_FEW_THREADS = {"TORCHINDUCTOR_COMPILE_THREADS": "2"}

_HEAD = ["row", "eager", "torch", "ours", "of eager", "of torch", "eager's error", "error", "same tokens",
         "first: torch", "ours", "graphs"]  # fmt: skip


def _line(row: dict[str, Any]) -> list[str]:
    if "failed" in row:
        return [row["failed"].splitlines()[-1][:100]] + [""] * 10
    speeds = [row.get(f"{name}_tokens_a_second") for name in COMPILERS]
    eager, torch, ours = speeds
    return [
        *(f"{speed:.1f}" if speed else row.get(f"{name}_raised", "-")[:60]
          for name, speed in zip(COMPILERS, speeds, strict=True)),
        *(f"{ours / other:.2f}" if ours and other else "-" for other in (eager, torch)),
        *(f"{row[f'{name}_error']:.1e}" if ours else "-" for name in ("eager", "ours")),
        str(row.get("ours_same_tokens", "-")),
        *(str(row.get(f"{name}_first_s", "-")) for name in ("torch", "ours")),
        f"{row['ours_graphs']}, {len(row['ours_breaks'])} breaks" if ours else "-",
    ]  # fmt: skip


def _is_wrong(row: dict[str, Any], exact: bool) -> bool:
    """Returns whether ours failed, or is another result than eager's."""
    if "failed" in row or "ours_raised" in row:
        return True
    if "ours_tokens_a_second" not in row:
        return False
    most = 1e-5 if exact else max(2 * row["eager_error"], 5e-2)
    return row["ours_error"] > most or (exact and row["ours_same_tokens"] < TOKENS["cpu"])
