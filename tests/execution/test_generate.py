"""transformers' generate() on a compiled model: eager's tokens, a graph for the prompt, and one or
two for all others.
"""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, StaticCache

import tracer_core
from tests.support.text_generation import generated, left_padded, model_of, prompt
from tracer_core.testing import CaptureCounter

pytestmark = pytest.mark.sweep(keep=6)

#: model, cache, graphs.
TOKENS_64 = [
    ("gpt2", "dynamic", 3),
    ("gpt2", "static", 2),
    ("llama", "dynamic", 3),
    ("llama", "static", 2),
]


@pytest.mark.parametrize(("name", "cache", "graphs"), TOKENS_64)
def test_64_tokens(name, cache, graphs):
    call = {"inputs": prompt(1, 7), "cache_implementation": cache}
    assert generated(model_of(name), 64, [call, call]) == [graphs, graphs]


#: model, cache, at most so many graphs: how many lengths are told apart is transformers' affair.
OTHERS = [
    ("mistral", "dynamic", 6), ("mistral", "static", 3), ("qwen2", "dynamic", 3), ("gemma2",
    "dynamic", 5),
    ("gemma2", "static", 3), ("bloom", "dynamic", 3), ("t5", "dynamic", 3), ("t5", "static", 2),
    ("bart", "dynamic", 3),
    ("bart", "static", 2),
]  # fmt: skip


#: Each model is among the others.
PATIENT = {("mistral", "dynamic"), ("gemma2", "static"), ("t5", "dynamic"), ("bart", "static")}


@pytest.mark.parametrize(
    ("name", "cache", "graphs"),
    [
        pytest.param(*case, marks=[pytest.mark.slow] if case[:2] in PATIENT else [])
        for case in OTHERS
    ],
)
def test_other_architectures(name, cache, graphs):
    call = {"inputs": prompt(2, 7), "cache_implementation": cache}
    first, again = generated(model_of(name), 20, [call, call])
    assert again == first <= graphs


P = prompt(2, 7)
#: What a call says, and the graphs after each call of two.
WAYS = {
    "sampling": (
        {"inputs": P, "do_sample": True, "top_k": 20, "top_p": 0.9, "temperature": 0.8},
        [3, 3],
    ),
    "beams": ({"inputs": P, "num_beams": 3}, [3, 3]),
    "beams and a static cache": (
        {"inputs": P, "num_beams": 3, "cache_implementation": "static"},
        [2, 2],
    ),
    "several samples of each": (
        {"inputs": P, "do_sample": True, "num_return_sequences": 3},
        [3, 3],
    ),
    "padded on the left": (left_padded(3, 8), [3, 3]),
    "padded, static cache": ({**left_padded(3, 8), "cache_implementation": "static"}, [2, 2]),
    "penalties": ({"inputs": P, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2}, [3, 3]),
    "ends early": ({"inputs": P, "eos_token_id": list(range(3, 20))}, [3, 3]),
    "without a cache": ({"inputs": P, "use_cache": False}, [2, 2]),
    "the prompt in parts": ({"inputs": prompt(2, 11), "prefill_chunk_size": 4}, [4, 4]),
}


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_generate(way):
    call, graphs = WAYS[way]
    assert generated(model_of("llama"), 16, [call, call]) == graphs


def test_prompts_of_many_lengths():
    calls = [{"inputs": prompt(2, n)} for n in (7, 5, 9, 12, 3)]
    assert generated(model_of("gpt2"), 8, calls) == [3, 4, 4, 4, 4]


def test_prompts_of_many_lengths_and_static_caches_as_long_as_they_need():
    calls = [{"inputs": prompt(1, n), "cache_implementation": "static"} for n in (7, 5, 9, 20)]
    generated(
        model_of("gpt2"), 4, calls
    )  # the first static caches of a process capture [2, 3, 5, 5]
    assert generated(model_of("gpt2"), 4, calls) == [2, 3, 3, 3]


def test_batches_of_many_sizes():
    calls = [{"inputs": prompt(n, 7)} for n in (2, 3, 5, 4, 1)]
    assert generated(model_of("gpt2"), 8, calls) == [3, 5, 5, 5, 7]


def test_a_conversation_goes_on_in_its_cache():
    """The second turn is a prompt of several tokens on top of what the cache holds."""
    model = model_of("llama")
    for make in (DynamicCache, lambda: StaticCache(model.config, max_cache_len=64)):
        compiled = tracer_core.compile(model, backend="eager")
        results = []
        with CaptureCounter() as counter:
            for value in (model, compiled):
                cache, tokens = make(), prompt(1, 5)
                for seed in (2, 3, 4):
                    tokens = value.generate(
                        tokens, past_key_values=cache, max_new_tokens=6, do_sample=False
                    )
                    tokens = torch.cat([tokens, prompt(1, 3, seed)], 1)
                results.append(tokens)
        assert torch.equal(*results)
        assert len(counter.graphs) <= 5
        assert not counter.breaks


def test_the_cache_itself_is_eager_s():
    model = model_of("gpt2")
    compiled = tracer_core.compile(model, backend="eager")
    caches = []
    for value in (model, compiled):
        actual = value.generate(
            P, max_new_tokens=9, do_sample=False, return_dict_in_generate=True, output_scores=True
        )
        caches.append(actual.past_key_values)
        assert len(actual.scores) == 9
    for eager, ours in zip(caches[0].layers, caches[1].layers, strict=True):
        assert vars(eager).keys() == vars(ours).keys()
        torch.testing.assert_close(ours.keys, eager.keys)
        assert ours.keys.stride() == eager.keys.stride()
        assert ours.get_seq_length() == eager.get_seq_length() == 15


def test_only_forward_is_compiled():
    model = model_of("gpt2")
    reference = model.generate(P, max_new_tokens=12, do_sample=False)
    eager = model.forward
    try:
        with CaptureCounter() as counter:
            model.forward = tracer_core.compile(model.forward, backend="eager")
            assert torch.equal(model.generate(P, max_new_tokens=12, do_sample=False), reference)
        assert len(counter.graphs) == 3
    finally:
        del model.forward
    assert model.forward == eager


def test_train_and_eval_between():
    model = model_of("gpt2")
    compiled = tracer_core.compile(model, backend="eager")
    call = {"inputs": P}
    assert generated(model, 8, [call], compiled=compiled) == [3]
    compiled.train()
    assert model.training
    ids = prompt(2, 7)
    torch.manual_seed(0)
    expected = model(ids, labels=ids).loss
    torch.manual_seed(0)
    torch.testing.assert_close(compiled(ids, labels=ids).loss, expected)
    compiled.eval()
    assert generated(model, 8, [call], compiled=compiled) == [0]


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_inside_a_context(context):
    with context():
        assert generated(model_of("llama"), 8, [{"inputs": P}] * 2) == [3, 3]


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_bfloat16(cache):
    model = model_of("llama")
    try:
        model.bfloat16()
        counts = generated(model, 12, [{"inputs": P, "cache_implementation": cache}] * 2)
        assert counts == [3 if cache == "dynamic" else 2] * 2
    finally:
        model_of.cache_clear()


def test_a_mixture_of_experts_asks_for_versions_after_a_change_of_state():
    """The first layer asks a cached function, whose answer is not there yet, which torch is
    installed."""
    import transformers
    from transformers.utils import import_utils

    model = transformers.GptOssForCausalLM(
        transformers.GptOssConfig(
            hidden_size=32, intermediate_size=32, num_hidden_layers=2, vocab_size=50, head_dim=8,
            num_attention_heads=4, num_key_value_heads=2, num_local_experts=4,
            num_experts_per_tok=2,
        )
    ).eval()  # fmt: skip
    for name in ("is_torch_less_or_equal", "is_torch_greater_or_equal"):
        getattr(import_utils, name).cache_clear()
    compiled = tracer_core.compile(model, backend="aten_eager", fullgraph=True)
    for _ in range(2):
        tokens = torch.randint(0, 50, (1, 4))
        with torch.no_grad():
            found, wanted = (value(tokens, use_cache=False).logits for value in (compiled, model))
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(("cache", "graphs"), [("static", (6, 5)), ("dynamic", (6, 4))])
def test_the_loop_of_generate_is_captured_once(cache, graphs):
    """The step of the first text has symbols at once, and serves the last token and other texts; a
    longer static cache, which the second text has, is one more."""
    model = model_of("llama")
    fast = tracer_core.compile(model.generate, backend="eager")
    counts = []
    for length, tokens in ((7, 9), (5, 14), (9, 6), (12, 11)):
        call = {"inputs": prompt(1, length), "max_new_tokens": tokens, "eos_token_id": 0}
        call |= {"do_sample": False, "cache_implementation": cache}
        with CaptureCounter() as counter:
            assert torch.equal(fast(**call), model.generate(**call))
        counts.append(len(counter.graphs))
    assert all(map(int.__le__, counts, (*graphs, 1, 0))), counts
