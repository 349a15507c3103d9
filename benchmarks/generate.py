"""Tokens a second of transformers' generate().

In: nothing. Out: a table with a row for each model and cache: tokens a second of eager,
torch.compile and ours (captured operators as they are; inductor), seconds of the first call,
compiles. What always holds: each compiler is alone in its process, which also runs eager and
compares the tokens: other tokens are a failure; a figure is the best of several rounds, in turns
with eager's.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.grid import Grid

TOKENS, PROMPT, ROUNDS, LIMIT = 64, 16, 5, 900.0
COMPILERS = ("eager", "torch", "ours:eager", "ours:inductor")
CACHES = ("dynamic", "static")


def _gpt2(layers: int, width: int) -> Callable[[], Any]:
    def build() -> Any:
        from transformers import GPT2Config, GPT2LMHeadModel

        heads = max(2, width // 64)
        return GPT2LMHeadModel(GPT2Config(n_layer=layers, n_embd=width, n_head=heads))

    return build


def _llama(layers: int, width: int) -> Callable[[], Any]:
    def build() -> Any:
        from transformers import LlamaConfig, LlamaForCausalLM

        heads = max(2, width // 64)
        config = LlamaConfig(
            num_hidden_layers=layers, hidden_size=width, intermediate_size=width * 8 // 3,
            num_attention_heads=heads,
            num_key_value_heads=heads // 2, vocab_size=32000,
        )  # fmt: skip
        return LlamaForCausalLM(config)

    return build


#: name -> how it is built. The last two have the size of GPT-2 small.
MODELS: dict[str, Callable[[], Any]] = {
    "gpt2_tiny": _gpt2(2, 64), "llama_tiny": _llama(2, 128), "gpt2": _gpt2(12, 768),
    "llama": _llama(12, 768),
}  # fmt: skip


def _compiled(model: Any, compiler: str) -> tuple[Any, Callable[[], int]]:
    """What generate() is called on, and how many graphs were compiled so far."""
    if compiler == "eager":
        return model, lambda: 0
    if compiler == "torch":
        import torch
        from torch._dynamo.utils import counters

        model.forward = torch.compile(
            model.forward
        )  # a method of torch.compile(model) would run eagerly
        return model, lambda: int(counters["stats"]["unique_graphs"])
    import tracer_core
    from tracer_core.testing import CaptureCounter

    counter = CaptureCounter()
    counter.__enter__()
    return tracer_core.compile(model, backend=compiler.partition(":")[2]), lambda: len(
        counter.graphs
    )


def measure(name: str, cache: str, compiler: str) -> dict[str, Any]:
    """Tokens a second of one compiler, and of eager beside it."""
    import torch

    from tests.support import torchvision_ops

    torchvision_ops.define()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    model.generation_config.eos_token_id = None
    prompt = torch.randint(1, 1000, (1, PROMPT))
    settings: dict[str, Any] = {"max_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0}
    if cache != "dynamic":
        settings["cache_implementation"] = cache
    expected = model.generate(prompt, **settings)
    eager = model.forward
    target, compiles = _compiled(model, compiler)

    def run(plain: bool) -> float:
        if plain and compiler == "torch":
            fast, model.forward = model.forward, eager
        start = time.perf_counter()
        tokens = (model if plain else target).generate(prompt, **settings)
        seconds = time.perf_counter() - start
        if plain and compiler == "torch":
            model.forward = fast
        if not torch.equal(tokens, expected):
            raise SystemExit(f"{name}, {cache}, {compiler}: other tokens than eager's")
        return seconds

    first = run(False)
    run(False)
    pairs = [(run(False), run(True)) for _ in range(ROUNDS)]
    seconds, plain = (min(column) for column in zip(*pairs, strict=True))
    return {
        "tokens_a_second": TOKENS / seconds, "eager_beside": TOKENS / plain, "first_call": first,
        "compiles": compiles(),
    }  # fmt: skip


GRID = Grid(
    "generate",
    __doc__,
    {"models": list(MODELS), "caches": list(CACHES), "compilers": list(COMPILERS)},
    measure,
    ("tokens a second", "times eager", "first call, seconds", "compiles"),
    lambda row: [
        f"{row['tokens_a_second']:.1f}", f"{row['tokens_a_second'] / row['eager_beside']:.2f}",
        f"{row['first_call']:.1f}", str(row["compiles"]),
    ],
    limit=LIMIT,
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(GRID.main())
