"""Small language models, and what compares their generate() with a compiled one's.

In: a model's name, calls of generate(). Out: the number of graphs captured after each call. What
always holds: both sides draw from equal seeds, and other tokens than eager's or a graph break are a
failure. Models of bfloat16 may prefer another token where eager's own rounding decides.
"""

from __future__ import annotations

import copy
import functools
import warnings

import torch
import transformers

import tracer_core
from tracer_core.testing import CaptureCounter

SPECIAL = {"vocab_size": 97, "bos_token_id": 2, "eos_token_id": 0, "pad_token_id": 1}
LAYERS = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, **SPECIAL,
}  # fmt: skip
WINDOW = {"sliding_window": 12, **LAYERS}
#: name -> (class, configuration, its arguments).
MODELS = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"n_layer": 2, "n_head": 2, "n_embd": 32,
    "n_positions": 256, **SPECIAL}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", LAYERS),
    "mistral": ("MistralForCausalLM", "MistralConfig", WINDOW),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", LAYERS),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {"head_dim": 8, **WINDOW}),
    "bloom": ("BloomForCausalLM", "BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4,
    **SPECIAL}),
    "t5": (
        "T5ForConditionalGeneration", "T5Config",
        {"d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 2, "num_heads": 4,
        "decoder_start_token_id": 1, **SPECIAL},
    ),
    "bart": (
        "BartForConditionalGeneration", "BartConfig",
        {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
         "encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 256,
         "decoder_start_token_id": 2, "forced_eos_token_id": None, **SPECIAL},
    ),
}  # fmt: skip


@functools.cache
def model_of(name):
    kind, configuration, arguments = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, configuration)(**arguments)).eval()
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # so that the tokens differ
    return model


def prompt(batch, length, seed=1):
    return torch.randint(3, 97, (batch, length), generator=torch.Generator().manual_seed(seed))


def left_padded(batch, length):
    ids, mask = prompt(batch, length), torch.ones(batch, length, dtype=torch.long)
    for row in range(batch):
        ids[row, : 2 * row], mask[row, : 2 * row] = 1, 0
    return {"inputs": ids, "attention_mask": mask}


def generated(model, tokens, calls, backend="eager", compiled=None):
    """Generates by both models with equal seeds, compares, and gives the number of graphs after
    each call.
    """
    counts = []
    with CaptureCounter() as counter, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = compiled if compiled is not None else tracer_core.compile(model, backend=backend)
        for call in calls:
            call = {"max_new_tokens": tokens, "do_sample": False, **call}
            results = []
            for value in (model, compiled):
                torch.manual_seed(3)
                results.append(value.generate(**call))
            tied = model.dtype is torch.bfloat16 and _are_ties(model, *results)
            assert tied or torch.equal(*results), f"{call}"
            counts.append(len(counter.graphs))
    assert not counter.breaks, counter.breaks
    return counts


@torch.no_grad()
def _are_ties(model, expected, found):
    """Whether, in each row, the first token that is not eager's is as good as eager's to the
    rounding of the model's dtype.
    """
    exact = copy.deepcopy(model).double()
    for row, ours in zip(expected, found, strict=True):
        places = (row != ours).nonzero()
        if len(places):
            at = int(places[0])
            rounded, true = (item(row[None, :at]).logits[0, -1].double() for item in (model, exact))
            between = (true[row[at]] - true[ours[at]]).abs()
            if between > 2 * (rounded - true).abs().max():
                return False
    return True
