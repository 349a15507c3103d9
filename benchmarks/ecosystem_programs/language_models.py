"""Language models: transformers, peft, x-transformers, sentence-transformers and attention blocks."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.ecosystem_programs.program import Family

FAMILY = Family()

_SIZES = dict(
    vocab_size=96,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
    max_position_embeddings=64,
)


def _tokens(length: int = 16, batch: int = 2) -> tuple[torch.Tensor]:
    return (torch.randint(3, 96, (batch, length)),)


@FAMILY.training("transformers")
def bert_for_classification() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    model = BertForSequenceClassification(BertConfig(**_SIZES, num_labels=3)).train()

    def loss(tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return model(input_ids=tokens, labels=labels).loss

    return loss, lambda: (*_tokens(), torch.randint(0, 3, (2,))), (model,)


@FAMILY.inference("transformers")
def llama_logits() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_SIZES)).eval(), _tokens


@FAMILY.inference("transformers")
def gpt2_greedy_decoding() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=2, n_positions=64)
    ).eval()

    def decode(tokens: torch.Tensor) -> torch.Tensor:
        past = None
        step = tokens
        for _ in range(4):
            out = model(input_ids=step, past_key_values=past, use_cache=True)
            past = out.past_key_values
            step = out.logits[:, -1:].argmax(-1)
            tokens = torch.cat([tokens, step], dim=1)
        return tokens

    return decode, lambda: _tokens(6)


@FAMILY.training("transformers")
def t5_sequence_to_sequence_loss() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=96, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config).train()

    def loss(tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return model(input_ids=tokens, labels=labels).loss

    return loss, lambda: (*_tokens(), *_tokens(8)), (model,)


@FAMILY.inference("transformers")
def mixtral_routes_tokens() -> Any:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(**_SIZES, num_key_value_heads=2, num_local_experts=4)
    return MixtralForCausalLM(config).eval(), _tokens


@FAMILY.inference("transformers")
def mamba_scan() -> Any:
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=96, hidden_size=32, num_hidden_layers=2, state_size=8)
    return MambaForCausalLM(config).eval(), _tokens


@FAMILY.inference("transformers")
def whisper_encoder_and_decoder() -> Any:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=96, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=16,
        max_source_positions=32, max_target_positions=32, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).eval()

    def run(features: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return model(input_features=features, decoder_input_ids=tokens).logits

    return run, lambda: (torch.randn(2, 16, 64), *_tokens(8))


@FAMILY.inference("transformers")
def clip_similarity() -> Any:
    from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPVisionConfig

    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    config = CLIPConfig(
        text_config=CLIPTextConfig(
            **sizes, vocab_size=96, max_position_embeddings=32, eos_token_id=2
        ).to_dict(),
        vision_config=CLIPVisionConfig(**sizes, image_size=32, patch_size=8).to_dict(),
        projection_dim=16,
    )
    model = CLIPModel(config).eval()

    def similarity(tokens: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        return model(input_ids=tokens, pixel_values=images).logits_per_image.softmax(dim=-1)

    return similarity, lambda: (*_tokens(8), torch.randn(2, 3, 32, 32))


@FAMILY.inference("transformers")
def logits_processors_and_sampling_weights() -> Any:
    from transformers import (
        LogitsProcessorList,
        RepetitionPenaltyLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    processors = LogitsProcessorList(
        [
            RepetitionPenaltyLogitsProcessor(1.3),
            TemperatureLogitsWarper(0.7),
            TopKLogitsWarper(20),
            TopPLogitsWarper(0.9),
        ]
    )

    def weights(tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return processors(tokens, scores).softmax(dim=-1)

    return weights, lambda: (*_tokens(12), torch.randn(2, 96))


@FAMILY.training("peft")
def lora_on_a_llama() -> Any:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
    model = get_peft_model(LlamaForCausalLM(LlamaConfig(**_SIZES)), config).train()

    def loss(tokens: torch.Tensor) -> torch.Tensor:
        return model(input_ids=tokens, labels=tokens).loss

    return loss, _tokens, (model,)


@FAMILY.training("peft")
def dora_on_a_perceptron() -> Any:
    from peft import LoraConfig, get_peft_model

    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    config = LoraConfig(r=4, target_modules=["0", "2"], use_dora=True)
    return get_peft_model(net, config).train(), lambda: (torch.randn(8, 16),)


@FAMILY.inference("peft")
def two_adapters_by_turns() -> Any:
    from peft import LoraConfig, get_peft_model

    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    config = LoraConfig(r=4, target_modules=["0"], init_lora_weights=False)
    model = get_peft_model(net, config, adapter_name="first")
    model.add_adapter("second", config)
    model.eval()

    def both(x: torch.Tensor) -> torch.Tensor:
        model.set_adapter("first")
        first = model(x)
        model.set_adapter("second")
        return first - model(x)

    return both, lambda: (torch.randn(8, 16),)


@FAMILY.training("peft")
def ia3_scales_activations() -> Any:
    from peft import IA3Config, get_peft_model
    from transformers import BertConfig, BertModel

    config = IA3Config(target_modules=["key", "value"], feedforward_modules=[])
    model = get_peft_model(BertModel(BertConfig(**_SIZES)), config).train()
    return lambda tokens: model(input_ids=tokens).last_hidden_state, _tokens, (model,)


@FAMILY.inference("x-transformers")
def rotary_decoder() -> Any:
    from x_transformers import Decoder, TransformerWrapper

    model = TransformerWrapper(
        num_tokens=96,
        max_seq_len=64,
        attn_layers=Decoder(dim=64, depth=2, heads=4, rotary_pos_emb=True, ff_glu=True),
    )
    return model.eval(), _tokens


@FAMILY.training("x-transformers")
def alibi_encoder_with_registers() -> Any:
    from x_transformers import Encoder, TransformerWrapper

    model = TransformerWrapper(
        num_tokens=96,
        max_seq_len=64,
        num_memory_tokens=4,
        attn_layers=Encoder(dim=32, depth=2, heads=4, alibi_pos_bias=True, attn_qk_norm=True),
    )
    return model.train(), _tokens


@FAMILY.training("x-transformers")
def autoregressive_wrapper_loss() -> Any:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    net = TransformerWrapper(
        num_tokens=96, max_seq_len=32, attn_layers=Decoder(dim=32, depth=1, heads=2)
    )
    return AutoregressiveWrapper(net).train(), lambda: _tokens(17)


@FAMILY.inference("x-transformers")
def vision_transformer_wrapper() -> Any:
    from x_transformers import Encoder, ViTransformerWrapper

    model = ViTransformerWrapper(
        image_size=32,
        patch_size=8,
        num_classes=10,
        attn_layers=Encoder(dim=32, depth=2, heads=2, use_rmsnorm=True),
    )
    return model.eval(), lambda: (torch.randn(2, 3, 32, 32),)


@FAMILY.inference("sentence-transformers")
def sentence_embeddings_are_pooled_and_normalised() -> Any:
    from sentence_transformers.models import Normalize, Pooling
    from transformers import BertConfig, BertModel

    bert = BertModel(BertConfig(**_SIZES)).eval()
    pooling, normalize = Pooling(64, pooling_mode="mean"), Normalize()

    def embed(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        features = {
            "token_embeddings": bert(tokens, attention_mask=mask).last_hidden_state,
            "attention_mask": mask,
        }
        return normalize(pooling(features))["sentence_embedding"]

    def inputs() -> Any:
        mask = torch.ones(2, 16, dtype=torch.int64)
        mask[1, 10:] = 0
        return *_tokens(), mask

    return embed, inputs


@FAMILY.inference("sentence-transformers")
def semantic_search_over_a_corpus() -> Any:
    from sentence_transformers.util import cos_sim, semantic_search

    corpus = torch.randn(200, 32)

    def search(queries: torch.Tensor) -> Any:
        return cos_sim(queries, corpus), semantic_search(queries, corpus, top_k=3)

    return search, lambda: (torch.randn(4, 32),)


@FAMILY.training("sentence-transformers")
def dense_head_with_cosine_loss() -> Any:
    from sentence_transformers.models import Dense
    from sentence_transformers.util import pairwise_cos_sim

    head = Dense(32, 16)

    def loss(a: torch.Tensor, b: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        left = head({"sentence_embedding": a})["sentence_embedding"]
        right = head({"sentence_embedding": b})["sentence_embedding"]
        return torch.nn.functional.mse_loss(pairwise_cos_sim(left, right), labels)

    return loss, lambda: (torch.randn(8, 32), torch.randn(8, 32), torch.rand(8)), (head,)


@FAMILY.inference("rotary-embedding-torch")
def queries_and_keys_are_rotated() -> Any:
    from rotary_embedding_torch import RotaryEmbedding

    rotary = RotaryEmbedding(dim=16)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k = rotary.rotate_queries_or_keys(q), rotary.rotate_queries_or_keys(k)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    return attend, lambda: tuple(torch.randn(2, 4, 24, 32) for _ in range(3))


@FAMILY.training("rotary-embedding-torch")
def axial_frequencies_of_an_image() -> Any:
    from rotary_embedding_torch import RotaryEmbedding, apply_rotary_emb

    rotary = RotaryEmbedding(dim=8, freqs_for="pixel", max_freq=32, learned_freq=True)

    def rotate(q: torch.Tensor) -> torch.Tensor:
        return apply_rotary_emb(rotary.get_axial_freqs(8, 8), q)

    return rotate, lambda: (torch.randn(2, 8, 8, 16),), (rotary,)


@FAMILY.training("local-attention")
def windowed_attention() -> Any:
    from local_attention import LocalAttention

    attention = LocalAttention(dim=16, window_size=8, causal=True, autopad=True)

    def inputs() -> Any:
        mask = torch.ones(2, 30).bool()
        return *(torch.randn(2, 4, 30, 16, requires_grad=True) for _ in range(3)), mask

    return lambda q, k, v, mask: attention(q, k, v, mask=mask), inputs, (attention,)


@FAMILY.training("hyper-connections")
def residual_streams_are_mixed() -> Any:
    from hyper_connections import HyperConnections

    init, expand, reduce = HyperConnections.get_init_and_expand_reduce_stream_functions(4)
    branches = torch.nn.ModuleList(
        init(dim=32, branch=torch.nn.Sequential(torch.nn.LayerNorm(32), torch.nn.Linear(32, 32)))
        for _ in range(2)
    )

    def run(x: torch.Tensor) -> torch.Tensor:
        x = expand(x)
        for branch in branches:
            x = branch(x)
        return reduce(x)

    return run, lambda: (torch.randn(2, 12, 32),), (branches,)


@FAMILY.inference("colt5-attention")
def tokens_are_routed_to_a_heavy_branch() -> Any:
    from colt5_attention import ConditionalRoutedFeedForward

    net = ConditionalRoutedFeedForward(
        32, num_heavy_tokens=8, light_ff_mult=0.5, heavy_ff_mult=4, use_triton=False
    )
    return net.eval(), lambda: (torch.randn(2, 32, 32), torch.ones(2, 32).bool())


@FAMILY.training("open_clip_torch")
def contrastive_loss_of_a_small_clip() -> Any:
    from open_clip import CLIP, ClipLoss

    model = CLIP(
        embed_dim=16,
        vision_cfg=dict(layers=1, width=32, head_width=16, patch_size=8, image_size=32),
        text_cfg=dict(context_length=12, vocab_size=96, width=32, heads=2, layers=1),
    )
    loss = ClipLoss()

    def run(images: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        image, text, scale = model(images, tokens)
        return loss(image, text, scale)

    return run, lambda: (torch.randn(4, 3, 32, 32), *_tokens(12, 4)), (model,)


@FAMILY.inference("open_clip_torch")
def coca_text_and_image_towers() -> Any:
    from open_clip import CLIP

    model = CLIP(
        embed_dim=16,
        vision_cfg=dict(layers=2, width=32, head_width=16, patch_size=8, image_size=32),
        text_cfg=dict(context_length=12, vocab_size=96, width=32, heads=2, layers=2),
    ).eval()

    def scores(images: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        image = model.encode_image(images, normalize=True)
        text = model.encode_text(tokens, normalize=True)
        return (model.logit_scale.exp() * image @ text.T).softmax(dim=-1)

    return scores, lambda: (torch.randn(3, 3, 32, 32), *_tokens(12, 3))
