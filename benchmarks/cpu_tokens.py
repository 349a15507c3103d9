"""What a token costs on a CPU, beside reading the weights once, and beside engines for language models.

A row is a model of `SHAPES` with random weights, a kind of weights and a compiler, in a
process of its own with empty caches. One sequence, greedy, a prompt of `PROMPT` tokens, a static
cache of `CACHE` positions. "eager", "torch" and the rows of ours run `generate()` of transformers'
unmodified model ("ours:generate" is ``compile(model.generate)``); "llama.cpp" is llama-cpp-python
with a GGUF file of the same shape; "openvino" is optimum-intel's model, which OpenVINO GenAI runs
as well. Weights of 8 and 4 bits are torchao's, GGUF's Q8_0 and Q4_0, and NNCF's.

- token_ms: the seconds of `LONG` new tokens less those of `SHORT`, a token, each the least of `ROUNDS`;
- floor_ms: the bytes of the weights of their kind (without the table of embeddings, of which a token
  reads one row) over the bandwidth at which this process copies 400 MB at that time;
- first_s: seconds of the first text.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import harness
from benchmarks.generation import MODELS
from benchmarks.models import import_library
from benchmarks.token_floor import SHAPES as LARGE

PROMPT, CACHE, SHORT, LONG, ROUNDS = 32, 256, 4, 20, 3
COMPILERS = ("eager", "torch", "ours", "ours:freeze", "ours:generate", "llama.cpp", "openvino")

#: kind -> bits of a weight, with the scale of its group. GGUF's groups are of 32 weights.
BITS = {"float32": 32.0, "bfloat16": 16.0, "int8": 8.0, "int4": 4.5}

#: As `token_floor.SHAPES`, and one of 0.4e9 parameters.
SHAPES = {
    **LARGE,
    "llama_half_b": ("llama", {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "vocab_size": 32000,
        "num_attention_heads": 16, "num_key_value_heads": 8, "max_position_embeddings": 4096,
    }),
}  # fmt: skip

Run = Callable[[int], None]


def measure(name: str, weights: str, compiler: str, threads: str) -> dict[str, Any]:
    """One row."""
    os.environ["OMP_NUM_THREADS"] = threads
    import torch

    torch.set_num_threads(int(threads))
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder, torch.no_grad():
        build = {"llama.cpp": _llama_cpp, "openvino": _openvino}.get(compiler, _transformers)
        run, numbers = build(name, weights, compiler, Path(folder))
        first = _seconds(run, SHORT)
        _seconds(run, LONG)
        rounds = [
            (_copy_bandwidth(), _seconds(run, SHORT), _seconds(run, LONG)) for _ in range(ROUNDS)
        ]
    bandwidths, short, long = zip(*rounds, strict=True)
    read = numbers * BITS[weights] / 8
    token, bandwidth = (min(long) - min(short)) / (LONG - SHORT), max(bandwidths)
    return {
        "token_ms": round(token * 1e3, 2),
        "floor_ms": round(read / bandwidth * 1e3, 2),
        "share": round(read / bandwidth / token, 3),
        "first_s": round(first, 2),
        "read_MB": round(read / 1e6),
        "copy_GB_s": round(bandwidth / 1e9, 1),
    }


def _seconds(run: Run, tokens: int) -> float:
    started = time.perf_counter()
    run(tokens)
    return time.perf_counter() - started


def _copy_bandwidth() -> float:
    """Bytes a second that a copy reads and writes, the best of eight."""
    import torch

    source, target = torch.ones(50_000_000), torch.empty(50_000_000)

    def copy(_: int) -> None:
        target.copy_(source)

    return 2 * source.nbytes / min(_seconds(copy, 1) for _ in range(8))


def _model(name: str) -> tuple[Any, Any, int]:
    """A module of transformers, its configuration, and the number of weights that a token reads."""
    import_library("transformers")
    import transformers

    kind, sizes = SHAPES[name]
    model_class, config, more = MODELS[kind]
    settings = getattr(transformers, config)(**sizes, **more(sizes))
    model = getattr(transformers, model_class)(settings).eval()
    model.generation_config.eos_token_id = None
    table = model.get_input_embeddings().weight
    tied = model.get_output_embeddings().weight is table
    numbers = sum(p.numel() for p in model.parameters()) - (0 if tied else table.numel())
    return model, settings, numbers


def _transformers(name: str, weights: str, compiler: str, folder: Path) -> tuple[Run, int]:
    import torch
    import transformers

    model, settings, numbers = _model(name)
    if weights != "float32":
        model = model.to(torch.bfloat16)
    if weights in ("int8", "int4"):
        _quantise(model, weights)
    cache = transformers.StaticCache(config=settings, max_cache_len=CACHE)
    prompt = torch.randint(3, settings.vocab_size, (1, PROMPT))
    generate = _compiled(model, compiler)

    def run(tokens: int) -> None:
        cache.reset()
        generate(
            prompt, max_new_tokens=tokens, do_sample=False, pad_token_id=0, past_key_values=cache,
            disable_compile=True,
        )  # fmt: skip

    return run, numbers


def _quantise(model: Any, kind: str) -> None:
    import torch
    from torchao import quantization
    from torchao.quantization.granularity import PerGroup

    chosen = {
        "int8": quantization.Int8WeightOnlyConfig,
        "int4": lambda: quantization.IntxWeightOnlyConfig(torch.int4, PerGroup(32)),
    }
    quantization.quantize_(model, chosen[kind]())


def _compiled(model: Any, compiler: str) -> Callable[..., Any]:
    import torch

    import tracer_core

    if compiler == "torch":
        model.forward = torch.compile(model.forward)
    elif compiler == "ours:generate":
        return tracer_core.compile(model.generate)
    elif compiler.startswith("ours"):
        return tracer_core.compile(model, options={"freeze": compiler == "ours:freeze"}).generate
    return model.generate


def _llama_cpp(name: str, weights: str, compiler: str, folder: Path) -> tuple[Run, int]:
    import llama_cpp
    import numpy as np

    path = folder / "model.gguf"
    numbers = _write_gguf(path, SHAPES[name][1], weights)
    threads = int(os.environ["OMP_NUM_THREADS"])
    usual = llama_cpp.llama_cpp.llama_model_default_params

    def without_repacking() -> Any:
        settings = usual()
        settings.use_extra_bufts = False
        return settings

    # repacked for AMX, weights of 8 and 4 bits end the process (0.3.36 on a Xeon: SIGSEGV)
    chosen = without_repacking if weights in ("int8", "int4") and _has_amx() else usual
    with mock.patch.object(llama_cpp.llama_cpp, "llama_model_default_params", chosen):
        model = llama_cpp.Llama(
            str(path), n_ctx=CACHE, n_threads=threads, n_threads_batch=threads, verbose=False
        )
    prompt = np.random.default_rng(0).integers(3, SHAPES[name][1]["vocab_size"], PROMPT).tolist()

    def run(tokens: int) -> None:
        model.reset()
        following = prompt
        for _ in range(tokens):
            model.eval(following)
            last = llama_cpp.llama_get_logits(model.ctx)
            following = [int(np.ctypeslib.as_array(last, (model.n_vocab(),)).argmax())]

    return run, numbers


def _has_amx() -> bool:
    processor = Path("/proc/cpuinfo")
    return processor.exists() and "amx_int8" in processor.read_text()


def _write_gguf(path: Path, sizes: dict[str, int], weights: str) -> int:
    """Writes a Llama with random weights and no vocabulary. Returns how many a token reads."""
    import gguf
    import numpy as np
    from gguf import GGMLQuantizationType as Kind

    kind = {"float32": Kind.F32, "bfloat16": Kind.BF16, "int8": Kind.Q8_0, "int4": Kind.Q4_0}[
        weights
    ]
    hidden, inner, vocabulary = (sizes[f"{n}_size"] for n in ("hidden", "intermediate", "vocab"))
    heads, key_heads = sizes["num_attention_heads"], sizes["num_key_value_heads"]
    keys = hidden // heads * key_heads
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(sizes["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_block_count(sizes["num_hidden_layers"])
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(key_heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(hidden // heads)
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("no_vocab")
    shapes = {
        "token_embd": (vocabulary, hidden),
        "output_norm": (hidden,),
        "output": (vocabulary, hidden),
    }
    layer = {
        "attn_norm": (hidden,), "attn_q": (hidden, hidden), "attn_k": (keys, hidden),
        "attn_v": (keys, hidden), "attn_output": (hidden, hidden), "ffn_norm": (hidden,),
        "ffn_gate": (inner, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner),
    }  # fmt: skip
    for number in range(sizes["num_hidden_layers"]):
        shapes |= {f"blk.{number}.{part}": shape for part, shape in layer.items()}
    random, numbers = np.random.default_rng(0), 0
    for part, shape in shapes.items():
        values = random.standard_normal(shape, np.float32) * (0.02 if len(shape) == 2 else 1.0)
        numbers += values.size if part != "token_embd" else 0
        if len(shape) == 1:
            writer.add_tensor(f"{part}.weight", values)
        else:
            data = gguf.quants.quantize(values, kind)
            writer.add_tensor(f"{part}.weight", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return numbers


def _openvino(name: str, weights: str, compiler: str, folder: Path) -> tuple[Run, int]:
    import torch
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

    model, settings, numbers = _model(name)
    model.save_pretrained(folder / "checkpoint")
    del model
    chosen = {
        "int8": lambda: OVWeightQuantizationConfig(bits=8),
        "int4": lambda: OVWeightQuantizationConfig(bits=4, sym=True, group_size=32, ratio=1.0),
    }.get(weights, lambda: None)()
    compiled = OVModelForCausalLM.from_pretrained(
        folder / "checkpoint", export=True, load_in_8bit=False, quantization_config=chosen,
        ov_config={
            "INFERENCE_NUM_THREADS": os.environ["OMP_NUM_THREADS"], "PERFORMANCE_HINT": "LATENCY",
            "KV_CACHE_PRECISION": "f16" if weights != "float32" else "f32",
        },
    )  # fmt: skip
    compiled.generation_config.eos_token_id = None
    prompt = torch.randint(3, settings.vocab_size, (1, PROMPT))

    def run(tokens: int) -> None:
        compiled.generate(prompt, max_new_tokens=tokens, do_sample=False, pad_token_id=0)

    return run, numbers


def main(arguments: Sequence[str]) -> int:
    """Prints the table; 1 if a row failed."""
    return harness.Grid(
        name="cpu_tokens",
        doc=__doc__,
        axes={
            "models": tuple(SHAPES),
            "weights": tuple(BITS),
            "compilers": COMPILERS,
            "threads": ("1", "2"),
        },
        left_out=frozenset({*SHAPES} - {"llama_1b"} | {"float32", "1"}),
        measure=measure,
        head=("token, ms", "floor, ms", "share", "first text, s", "read, MB", "copy, GB/s"),
        line=lambda row: [
            str(row[column])
            for column in ("token_ms", "floor_ms", "share", "first_s", "read_MB", "copy_GB_s")
        ],
        limit=1500.0,
    ).main(arguments)
