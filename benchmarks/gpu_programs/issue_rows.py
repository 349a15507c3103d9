"""The rows of the issue on programs that nobody tuned for.

In: nothing. Out: `PROGRAMS`.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from benchmarks.gpu_programs.parts import (
    image_inference,
    image_training,
    language_training,
    loss_of_next_tokens,
    node_classification,
)
from benchmarks.gpu_programs.program import SEED, Batch, GpuProgram, Precision, ProgramParts


def _row(
    name: str, library: str, parts: Any, precision: Precision, *, training: bool, **settings: Any
) -> GpuProgram:
    return GpuProgram(name, library, training, "issue", precision, parts, **settings)


# Language models ---------------------------------------------------------------------------------


def _nanogpt(small: bool) -> ProgramParts:
    import torch

    from benchmarks.gpu_programs.issue_models import Gpt

    rows, length, classes = (2, 32, 512) if small else (8, 1024, 50304)
    layers, width, heads = (2, 64, 4) if small else (12, 768, 6)

    def make_batch(number: int) -> Batch:
        tokens = torch.randint(0, classes, (rows, length + 1))
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return ProgramParts(Gpt(layers, width, heads, classes, length), make_batch)


def _qwen3(small: bool) -> ProgramParts:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {"num_hidden_layers": 8, "hidden_size": 1024, "intermediate_size": 3072,
             "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64,
             "vocab_size": 32000}  # fmt: skip
    small_sizes = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128,
                   "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
                   "vocab_size": 512}  # fmt: skip
    config = Qwen3Config(use_cache=False, **(small_sizes if small else sizes))
    return language_training(Qwen3ForCausalLM(config), *((2, 32) if small else (4, 1024)))


#: Batches of `_gpt_new_lengths`, each of another length.
_LENGTHS = 64


def _gpt_new_lengths(small: bool) -> ProgramParts:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 512} if small else {
        "n_layer": 8, "n_embd": 768, "n_head": 12}  # fmt: skip
    config = GPT2Config(use_cache=False, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **sizes)
    lengths = random.Random(SEED).sample(range(20, 90) if small else range(200, 331), _LENGTHS)

    def make_batch(number: int) -> Batch:
        return (torch.randint(0, config.vocab_size, (2 if small else 8, lengths[number])),)

    return ProgramParts(GPT2LMHeadModel(config), make_batch, loss_of_next_tokens)


def _lstm(small: bool, *, training: bool) -> ProgramParts:
    import torch
    import torch.nn.functional as F

    from benchmarks.gpu_programs.issue_models import LstmLanguageModel

    rows, length, classes, width = (2, 12, 100, 16) if small else (16, 128, 10_000, 512)

    def make_batch(number: int) -> Batch:
        return (torch.randint(0, classes, (rows, length)),)

    def loss(run: Any, tokens: Any) -> Any:
        logits = run(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    model = LstmLanguageModel(classes, width)
    return ProgramParts(model, make_batch, loss) if training else ProgramParts(model, make_batch)


# Images ------------------------------------------------------------------------------------------


def _vae_decoder(small: bool) -> ProgramParts:
    import torch

    from benchmarks.gpu_programs.issue_models import VaeDecoder

    model = VaeDecoder((64, 64, 32, 32)) if small else VaeDecoder()
    shape = (1, 4, 8, 8) if small else (2, 4, 64, 64)
    return ProgramParts(model, lambda number: (torch.randn(shape),))


def _dit(small: bool, *, training: bool) -> ProgramParts:
    import torch
    import torch.nn.functional as F

    from benchmarks.gpu_programs.issue_models import Dit

    rows, size = (2, 8) if small else (16, 32)
    model = Dit(2, 64, 4, size) if small else Dit(12, 768, 12, size)

    def make_batch(number: int) -> Batch:
        latents = torch.randn(rows, 4, size, size)
        inputs = latents, torch.randint(0, 1000, (rows,)), torch.randint(0, 1000, (rows,))
        return (*inputs, torch.randn_like(latents)) if training else inputs

    def loss(run: Any, latents: Any, steps: Any, labels: Any, noise: Any) -> Any:
        return F.mse_loss(run(latents, steps, labels), noise)

    return ProgramParts(model, make_batch, loss) if training else ProgramParts(model, make_batch)


def _resnet50(small: bool) -> ProgramParts:
    from torchvision.models import resnet50

    return image_training(resnet50(), *((4, 64) if small else (32, 224)))


def _mixer(small: bool) -> ProgramParts:
    import torch
    from timm.models.mlp_mixer import MlpMixer

    rows, size, blocks, width = (2, 32, 2, 64) if small else (32, 224, 12, 768)
    model = MlpMixer(img_size=size, patch_size=16, num_blocks=blocks, embed_dim=width)
    torch.nn.init.normal_(model.head.weight, std=0.02)  # timm's is zero, and so would outputs be
    return image_inference(model, rows, size)


# Sound -------------------------------------------------------------------------------------------


def _wav2vec2(small: bool) -> ProgramParts:
    import torch
    from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
             "intermediate_size": 64, "conv_dim": (32,) * 7, "num_conv_pos_embedding_groups": 4,
             "classifier_proj_size": 16}  # fmt: skip
    config = Wav2Vec2Config(
        apply_spec_augment=False, hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0,
        feat_proj_dropout=0.0, final_dropout=0.0, layerdrop=0.0, num_labels=12,
        **(sizes if small else {}),
    )  # fmt: skip
    rows, samples = (2, 2000) if small else (4, 160_000)

    def make_batch(number: int) -> Batch:
        return torch.randn(rows, samples), torch.randint(0, 12, (rows,))

    def loss(run: Any, sound: Any, labels: Any) -> Any:
        return run(sound, labels=labels).loss

    return ProgramParts(Wav2Vec2ForSequenceClassification(config), make_batch, loss)


def _whisper_encoder(small: bool) -> ProgramParts:
    import torch
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    sizes = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4,
             "encoder_ffn_dim": 64, "max_source_positions": 50}  # fmt: skip
    whisper_small = {"d_model": 768, "encoder_layers": 12, "encoder_attention_heads": 12,
                     "encoder_ffn_dim": 3072}  # fmt: skip
    config = WhisperConfig(**(sizes if small else whisper_small))
    shape = (2, 80, 100) if small else (4, 80, 3000)
    return ProgramParts(
        WhisperEncoder(config),
        lambda number: (torch.randn(shape),),
        lambda run, frames: run(frames).last_hidden_state,
    )


# Graphs and tensor programs ----------------------------------------------------------------------


def _message_passing(small: bool, *, training: bool) -> ProgramParts:
    import torch

    from benchmarks.gpu_programs.issue_models import MessagePassing

    nodes, edges, width, layers = (60, 300, 16, 2) if small else (50_000, 300_000, 128, 6)

    def make_batch(number: int) -> Batch:
        ends = torch.randint(0, nodes, (2, edges))
        inputs = torch.randn(nodes, 32), ends[0].clone(), ends[1].clone()
        return (*inputs, torch.randint(0, 10, (nodes,))) if training else inputs

    model = MessagePassing(32, width, layers, 10)
    return node_classification(model, make_batch) if training else ProgramParts(model, make_batch)


def _heat_equation(small: bool) -> ProgramParts:
    import torch

    from benchmarks.gpu_programs.issue_models import heat_equation

    shape = (32, 16) if small else (2048, 1024)
    return ProgramParts(heat_equation, lambda number: (torch.rand(shape),))


def _gaussian_process(small: bool) -> ProgramParts:
    import torch

    from benchmarks.gpu_programs.issue_models import GaussianProcess

    points = 40 if small else 512

    def make_batch(number: int) -> Batch:
        inputs = torch.rand(points, 4) * 4
        return inputs, inputs.sin().sum(-1) + 0.3 * torch.randn(points)

    return ProgramParts(GaussianProcess(4), make_batch)


PROGRAMS: tuple[GpuProgram, ...] = (
    _row("nanogpt_training", "torch", _nanogpt, "bfloat16", training=True),
    _row("vae_decoder", "torch", _vae_decoder, "float16", training=False, channels_last=True),
    _row("dit_inference", "torch", partial(_dit, training=False), "bfloat16", training=False),
    _row("dit_training", "torch", partial(_dit, training=True), "bfloat16", training=True),
    _row("resnet50_training", "torchvision", _resnet50, "autocast", training=True, channels_last=True),
    _row("wav2vec2_training", "transformers", _wav2vec2, "float32", training=True),
    _row(
        "message_passing_inference", "torch", partial(_message_passing, training=False), "float32",
        training=False,
    ),
    _row(
        "message_passing_training", "torch", partial(_message_passing, training=True), "float32",
        training=True,
    ),
    _row("whisper_encoder", "transformers", _whisper_encoder, "float32", training=False),
    _row("mlp_mixer", "timm", _mixer, "float32", training=False),
    _row("qwen3_training", "transformers", _qwen3, "bfloat16", training=True),
    _row("lstm_inference", "torch", partial(_lstm, training=False), "float32", training=False),
    _row("lstm_training", "torch", partial(_lstm, training=True), "float32", training=True),
    _row("heat_equation", "torch", _heat_equation, "float32", training=False),
    _row("gaussian_process", "torch", _gaussian_process, "float32", training=True),
    _row(
        "gpt_new_lengths", "transformers", _gpt_new_lengths, "autocast", training=True,
        batch_count=_LENGTHS,
    ),
)  # fmt: skip
