"""Language models of transformers: encoders, decoders, encoder-decoders, state-space models.

In: nothing. Out: `ANIMALS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.zoo_models.animal import Animal, hugging

_VOCABULARY = 96
#: The names that most configurations share.
_SIZES = dict(
    vocab_size=_VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=64,
)  # fmt: skip
_ENDS = dict(bos_token_id=1, eos_token_id=2, pad_token_id=0)


def tokens(length: int = 12, batch: int = 2, **more: Any) -> Callable[[], dict[str, Any]]:
    """Token numbers and a mask with padding in the second row."""

    def feed() -> dict[str, Any]:
        import torch

        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[1:, length - 3 :] = 0
        return {
            "input_ids": torch.randint(3, _VOCABULARY, (batch, length)), "attention_mask": mask,
            **more,
        }  # fmt: skip

    return feed


def only_tokens(length: int = 12, batch: int = 2) -> Callable[[], dict[str, Any]]:
    def feed() -> dict[str, Any]:
        import torch

        return {"input_ids": torch.randint(3, _VOCABULARY, (batch, length))}

    return feed


def both_sides(length: int = 12, batch: int = 2) -> Callable[[], dict[str, Any]]:
    """Tokens for an encoder and a decoder."""

    def feed() -> dict[str, Any]:
        import torch

        return {
            "input_ids": torch.randint(3, _VOCABULARY, (batch, length)),
            "attention_mask": torch.ones(batch, length, dtype=torch.int64),
            "decoder_input_ids": torch.randint(3, _VOCABULARY, (batch, length - 4)),
        }

    return feed


def _row(name: str, stem: str, feed: Callable[[], Any] | None = None, *, head: str = "Model",
breaks: str = "",
         train: bool = True, **settings: Any) -> Animal:  # fmt: skip
    """A model whose configuration takes `_SIZES`."""
    build = hugging(f"{stem}{head}", f"{stem}Config", **(_SIZES | settings))
    return Animal(name, "transformers", build, feed or tokens(), breaks=breaks, train=train)


def _own(name: str, model: str, config: str, feed: Callable[[], Any] | None = None, *,
breaks: str = "",
         settles: str = "", **settings: Any) -> Animal:  # fmt: skip
    """A model whose configuration has names of its own."""
    build = hugging(model, config, **settings)
    return Animal(name, "transformers", build, feed or tokens(), breaks=breaks, settles=settles)


_BART = dict(
    vocab_size=_VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64,
    encoder_layerdrop=0.0, decoder_layerdrop=0.0,
)  # fmt: skip
_T5 = dict(vocab_size=_VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
_ROUTED = "the experts of each token are chosen by values"

ANIMALS: tuple[Animal, ...] = (
    # encoders
    _row("bert", "Bert"),
    _row("roberta", "Roberta", head="ForMaskedLM", pad_token_id=0),
    _own("distilbert", "DistilBertModel", "DistilBertConfig", vocab_size=_VOCABULARY, dim=32,
    n_layers=2, n_heads=4,
         hidden_dim=48, max_position_embeddings=64),
    _row("albert", "Albert", embedding_size=16),
    _row("electra", "Electra", embedding_size=16),
    _row("deberta_v2", "DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"],
    position_buckets=8),
    _own("xlnet", "XLNetModel", "XLNetConfig", vocab_size=_VOCABULARY, d_model=32, n_layer=2,
    n_head=4, d_inner=48),
    _row("mpnet", "MPNet"),
    _own("funnel", "FunnelModel", "FunnelConfig", vocab_size=_VOCABULARY, block_sizes=[1, 1],
    num_decoder_layers=1,
         d_model=32, n_head=4, d_head=8, d_inner=48),
    _row("big_bird", "BigBird", attention_type="original_full"),
    _row("longformer", "Longformer", tokens(16), breaks="is any attention global? (.item())",
         attention_window=8, max_position_embeddings=80),
    _row("camembert", "Camembert", head="ForTokenClassification"),
    _row("fnet", "FNet", only_tokens()),
    _row("modernbert", "ModernBert", pad_token_id=0, bos_token_id=1, eos_token_id=2,
    cls_token_id=1, sep_token_id=2),
    _row("mobilebert", "MobileBert", embedding_size=16, true_hidden_size=16,
    intra_bottleneck_size=16),
    _row("convbert", "ConvBert", embedding_size=32),
    _row("squeezebert", "SqueezeBert", embedding_size=32),
    _row("roformer", "RoFormer", embedding_size=32),
    _row("splinter", "Splinter"),
    # decoders
    _own("gpt2", "GPT2LMHeadModel", "GPT2Config", vocab_size=_VOCABULARY, n_embd=32, n_layer=2,
    n_head=4,
         n_positions=64),
    _own("gpt_neo", "GPTNeoForCausalLM", "GPTNeoConfig", vocab_size=_VOCABULARY, hidden_size=32,
    num_layers=2,
         num_heads=4, intermediate_size=48, max_position_embeddings=64,
         attention_types=[[["global", "local"], 1]],
         window_size=8),
    _own("gptj", "GPTJForCausalLM", "GPTJConfig", vocab_size=_VOCABULARY, n_embd=32, n_layer=2,
    n_head=4,
         n_positions=64, rotary_dim=4),
    _row("gpt_neox", "GPTNeoX", head="ForCausalLM"),
    _own("opt", "OPTForCausalLM", "OPTConfig", vocab_size=_VOCABULARY, hidden_size=32,
    num_hidden_layers=2,
         num_attention_heads=4, ffn_dim=48, max_position_embeddings=64, word_embed_proj_dim=32),
    _own("bloom", "BloomForCausalLM", "BloomConfig", vocab_size=_VOCABULARY, hidden_size=32,
    n_layer=2, n_head=4),
    _row("llama", "Llama", head="ForCausalLM", num_key_value_heads=2),
    _row("mistral", "Mistral", head="ForCausalLM", num_key_value_heads=2, sliding_window=8),
    _row("mixtral", "Mixtral", head="ForCausalLM", num_key_value_heads=2, num_local_experts=4),
    _row("qwen2", "Qwen2", head="ForCausalLM", num_key_value_heads=2),
    _row("qwen3_moe", "Qwen3Moe", head="ForCausalLM", num_key_value_heads=2, num_experts=4,
    num_experts_per_tok=2,
         moe_intermediate_size=16, head_dim=8),
    _row("gemma2", "Gemma2", head="ForCausalLM", num_key_value_heads=2, head_dim=8,
    sliding_window=8),
    _own("gemma3", "Gemma3ForCausalLM", "Gemma3TextConfig", **(_SIZES | dict(num_key_value_heads=2,
    head_dim=8,
         sliding_window=8))),
    _row("phi3", "Phi3", head="ForCausalLM", num_key_value_heads=2, **_ENDS),
    _row("falcon", "Falcon", head="ForCausalLM"),
    _row("stablelm", "StableLm", head="ForCausalLM", num_key_value_heads=2),
    _row("olmo2", "Olmo2", head="ForCausalLM", num_key_value_heads=2),
    _row("cohere", "Cohere", head="ForCausalLM", num_key_value_heads=2),
    _row("starcoder2", "Starcoder2", head="ForCausalLM", num_key_value_heads=2),
    _row("persimmon", "Persimmon", head="ForCausalLM"),
    _own("codegen", "CodeGenForCausalLM", "CodeGenConfig", vocab_size=_VOCABULARY, n_embd=32,
    n_layer=2, n_head=4,
         n_positions=64, rotary_dim=4),
    _own("ctrl", "CTRLLMHeadModel", "CTRLConfig", vocab_size=_VOCABULARY, n_embd=32, n_layer=2,
    n_head=4,
         n_positions=64, dff=48),
    # state-space and recurrent models
    _own("mamba", "MambaForCausalLM", "MambaConfig", only_tokens(), vocab_size=_VOCABULARY,
    hidden_size=32,
         num_hidden_layers=2, state_size=8, use_associative_scan=False),
    _own("mamba2", "Mamba2ForCausalLM", "Mamba2Config", only_tokens(), vocab_size=_VOCABULARY,
    hidden_size=32,
         num_hidden_layers=2, state_size=8, num_heads=4, head_dim=16, n_groups=1, chunk_size=8),
    _own("rwkv", "RwkvForCausalLM", "RwkvConfig", only_tokens(),
    settles="layers are rescaled at the first call",
         vocab_size=_VOCABULARY, hidden_size=32,
         num_hidden_layers=2, attention_hidden_size=32, intermediate_size=48, context_length=64),
    _own("recurrent_gemma", "RecurrentGemmaForCausalLM", "RecurrentGemmaConfig",
    vocab_size=_VOCABULARY, hidden_size=32,
         num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=1, intermediate_size=48,
         lru_width=32,
         attention_window_size=8, head_dim=8),
    # encoder-decoders
    _own("t5", "T5ForConditionalGeneration", "T5Config", both_sides(), **_T5),
    _own("mt5", "MT5Model", "MT5Config", both_sides(), **_T5),
    _own("switch_transformers", "SwitchTransformersModel", "SwitchTransformersConfig",
    both_sides(), num_experts=4,
         num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, breaks=_ROUTED, **_T5),
    _own("bart", "BartForConditionalGeneration", "BartConfig", both_sides(), **_BART),
    _own("pegasus", "PegasusModel", "PegasusConfig", both_sides(), **_BART),
    _own("marian", "MarianModel", "MarianConfig", both_sides(), pad_token_id=0,
    decoder_start_token_id=0, **_BART),
    _own("m2m_100", "M2M100Model", "M2M100Config", both_sides(), **_BART),
    _own("prophetnet", "ProphetNetModel", "ProphetNetConfig", both_sides(), vocab_size=_VOCABULARY,
    hidden_size=32,
         num_encoder_layers=2, num_decoder_layers=2, num_encoder_attention_heads=4,
         num_decoder_attention_heads=4,
         encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64),
)  # fmt: skip
