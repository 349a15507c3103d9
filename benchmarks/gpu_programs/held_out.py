"""The half of the zoo that is looked at only at the end: twenty programs that no rule is tuned on.

In: nothing. Out: `PROGRAMS`.
"""

from __future__ import annotations

from typing import Any

from benchmarks.gpu_programs.parts import image_inference, image_training, node_classification
from benchmarks.gpu_programs.program import Batch, GpuProgram, Precision, ProgramParts

# transformers ------------------------------------------------------------------------------------


def _glm(small: bool) -> ProgramParts:
    import torch
    from transformers import GlmConfig, GlmForCausalLM

    sizes = {"num_hidden_layers": 8, "hidden_size": 1024, "intermediate_size": 2816, "head_dim": 64,
             "num_attention_heads": 16, "num_key_value_heads": 2, "vocab_size": 32000,
             "pad_token_id": 0}  # fmt: skip
    small_sizes = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128,
                   "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
                   "vocab_size": 512, "pad_token_id": 0}  # fmt: skip
    config = GlmConfig(use_cache=False, attention_dropout=0.0, **(small_sizes if small else sizes))
    shape = (2, 32) if small else (4, 1024)
    return ProgramParts(
        GlmForCausalLM(config),
        lambda number: (torch.randint(1, config.vocab_size, shape),),
        lambda run, tokens: run(input_ids=tokens).logits,
    )


def _esm(small: bool) -> ProgramParts:
    import torch
    from transformers import EsmConfig, EsmForMaskedLM

    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128,
             "num_attention_heads": 4}  # fmt: skip
    full = {"num_hidden_layers": 12, "hidden_size": 640, "intermediate_size": 2560,
            "num_attention_heads": 20}  # fmt: skip
    config = EsmConfig(
        vocab_size=33, pad_token_id=1, mask_token_id=32, position_embedding_type="rotary",
        emb_layer_norm_before=False, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        **(sizes if small else full),
    )  # fmt: skip
    rows, length = (2, 32) if small else (8, 512)

    def make_batch(number: int) -> Batch:
        labels = torch.randint(4, 24, (rows, length))
        masked = torch.rand(rows, length) < 0.15
        return torch.where(masked, 32, labels), torch.where(masked, labels, -100)

    def loss(run: Any, tokens: Any, labels: Any) -> Any:
        mask = torch.ones_like(tokens)
        return run(input_ids=tokens, attention_mask=mask, labels=labels).loss

    return ProgramParts(EsmForMaskedLM(config), make_batch, loss)


def _pegasus_x(small: bool) -> ProgramParts:
    import torch
    from transformers import PegasusXConfig, PegasusXForConditionalGeneration

    sizes = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 128,
             "decoder_ffn_dim": 128, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
             "vocab_size": 512, "num_global_tokens": 4, "block_size": 8}  # fmt: skip
    full = {"d_model": 768, "encoder_layers": 8, "decoder_layers": 8, "encoder_ffn_dim": 3072,
            "decoder_ffn_dim": 3072, "encoder_attention_heads": 12, "decoder_attention_heads": 12,
            "vocab_size": 32000, "num_global_tokens": 32, "block_size": 256}  # fmt: skip
    config = PegasusXConfig(use_cache=False, **(sizes if small else full))
    rows, source, target = (2, 32, 12) if small else (4, 2048, 256)

    def make_batch(number: int) -> Batch:
        tokens = torch.randint(1, config.vocab_size, (rows, source + target))
        return tokens[:, :source].contiguous(), tokens[:, source:].contiguous()

    def call(run: Any, tokens: Any, targets: Any) -> Any:
        return run(input_ids=tokens, decoder_input_ids=targets).logits

    return ProgramParts(PegasusXForConditionalGeneration(config), make_batch, call)


def _conformer(small: bool) -> ProgramParts:
    import torch
    from transformers import Wav2Vec2ConformerConfig, Wav2Vec2ConformerForSequenceClassification

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
             "intermediate_size": 64, "conv_dim": (32,) * 7, "classifier_proj_size": 16,
             "conv_depthwise_kernel_size": 7}  # fmt: skip
    config = Wav2Vec2ConformerConfig(
        apply_spec_augment=False, hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0,
        feat_proj_dropout=0.0, final_dropout=0.0, layerdrop=0.0, conformer_conv_dropout=0.0,
        position_embeddings_type="rotary", num_labels=12, **(sizes if small else {}),
    )  # fmt: skip
    rows, samples = (2, 4000) if small else (4, 160_000)

    def make_batch(number: int) -> Batch:
        return torch.randn(rows, samples), torch.randint(0, 12, (rows,))

    def loss(run: Any, sound: Any, labels: Any) -> Any:
        return run(sound, labels=labels).loss

    return ProgramParts(Wav2Vec2ConformerForSequenceClassification(config), make_batch, loss)


def _timesformer(small: bool) -> ProgramParts:
    import torch
    from transformers import TimesformerConfig, TimesformerForVideoClassification

    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128,
             "num_attention_heads": 4, "image_size": 32, "num_frames": 4}  # fmt: skip
    config = TimesformerConfig(num_labels=400, **(sizes if small else {}))
    shape = (2 if small else 4, config.num_frames, 3, config.image_size, config.image_size)
    return ProgramParts(
        TimesformerForVideoClassification(config),
        lambda number: (torch.randn(shape),),
        lambda run, frames: run(frames).logits,
    )


# timm and torchvision ----------------------------------------------------------------------------


def _inception_next(small: bool) -> ProgramParts:
    from timm.models.inception_next import MetaNeXt

    sizes = {"depths": (1, 1, 2, 1), "dims": (16, 32, 32, 64)}
    full = {"depths": (3, 3, 9, 3), "dims": (96, 192, 384, 768)}
    model = MetaNeXt(**(sizes if small else full))
    return image_inference(model, *((2, 64) if small else (64, 224)))


def _focalnet(small: bool) -> ProgramParts:
    from timm.models.focalnet import FocalNet

    sizes = {"depths": (1, 1, 2, 1), "embed_dim": 16}
    full = {"depths": (2, 2, 6, 2), "embed_dim": 96}
    model = FocalNet(**(sizes if small else full))
    return image_training(model, *((2, 64) if small else (32, 224)))


def _gmixer(small: bool) -> ProgramParts:
    import torch
    from timm.layers import GluMlp
    from timm.models.mlp_mixer import MlpMixer

    rows, size, blocks, width = (2, 32, 2, 64) if small else (32, 224, 24, 384)
    model = MlpMixer(
        img_size=size, patch_size=16, num_blocks=blocks, embed_dim=width, mlp_ratio=(1.0, 4.0),
        mlp_layer=GluMlp, act_layer=torch.nn.SiLU,
    )  # fmt: skip
    torch.nn.init.normal_(model.head.weight, std=0.02)  # timm's is zero, and so would gradients be
    return image_training(model, rows, size)


def _resnext(small: bool) -> ProgramParts:
    from torchvision.models.resnet import Bottleneck, ResNet

    model = ResNet(
        Bottleneck, [1, 1, 1, 1] if small else [3, 4, 6, 3], groups=32, width_per_group=4
    )
    return image_training(model, *((4, 64) if small else (32, 224)))


def _mvit(small: bool) -> ProgramParts:
    import torch
    from torchvision.models.video import mvit_v2_s
    from torchvision.models.video.mvit import MSBlockConfig, MViT

    def block(inputs: int, outputs: int, heads: int, stride: int) -> MSBlockConfig:
        return MSBlockConfig(
            num_heads=heads, input_channels=inputs, output_channels=outputs, kernel_q=[3, 3, 3],
            kernel_kv=[3, 3, 3], stride_q=[1, stride, stride], stride_kv=[1, 2, 2],
        )  # fmt: skip

    if not small:
        model, shape = mvit_v2_s(), (4, 3, 16, 224, 224)
    else:
        model = MViT(
            spatial_size=(32, 32), temporal_size=4, num_classes=10, residual_pool=True,
            block_setting=[block(16, 16, 1, 1), block(16, 32, 2, 2), block(32, 32, 2, 1)],
            residual_with_cls_embed=False, rel_pos_embed=True, proj_after_attn=True,
        )  # fmt: skip
        shape = (2, 3, 4, 32, 32)
    return ProgramParts(model, lambda number: (torch.randn(shape),))


# Diffusion ---------------------------------------------------------------------------------------


def _magnitude_unet(small: bool) -> ProgramParts:
    import torch

    from benchmarks.gpu_programs.held_out_diffusion import MagnitudeUNet

    widths, head, rows, size = ((16, 32), 8, 2, 8) if small else ((192, 384, 576), 64, 32, 32)

    def make_batch(number: int) -> Batch:
        images = torch.randn(rows, 4, size, size)
        return images, torch.randn_like(images), torch.randn(rows) - 0.4

    return ProgramParts(MagnitudeUNet(widths, head), make_batch)


def _single_stream_dit(small: bool) -> ProgramParts:
    import torch

    from benchmarks.gpu_programs.held_out_diffusion import SingleStreamDit

    layers, width, heads, size, text, rows = (2, 64, 4, 4, 5, 2) if small else (
        16, 1024, 8, 32, 128, 4)  # fmt: skip

    def make_batch(number: int) -> Batch:
        steps = torch.randint(0, 1000, (rows,))
        return torch.randn(rows, size * size, 64), torch.randn(rows, text, 1024), steps

    return ProgramParts(SingleStreamDit(layers, width, heads, size, text), make_batch)


def _video_unet(small: bool) -> ProgramParts:
    import torch

    from benchmarks.gpu_programs.held_out_diffusion import VideoUNet

    widths, head, shape = ((32, 64), 16, (1, 3, 4, 8, 8)) if small else (
        (320, 640, 960), 64, (2, 8, 4, 32, 32))  # fmt: skip

    def make_batch(number: int) -> Batch:
        return torch.randn(shape), torch.randint(0, 1000, (shape[0],))

    return ProgramParts(VideoUNet(widths, head), make_batch)


# Graphs ------------------------------------------------------------------------------------------


def _graph_transformer(small: bool) -> ProgramParts:
    import torch

    from benchmarks.gpu_programs.held_out_models import graph_transformer

    nodes, edges, width = (60, 300, 16) if small else (40_000, 240_000, 128)

    def make_batch(number: int) -> Batch:
        ends = torch.randint(0, nodes, (2, edges))
        return torch.randn(nodes, 64), ends, torch.randn(edges, 8), torch.randint(0, 10, (nodes,))

    return node_classification(graph_transformer(64, 8, width, 10), make_batch)


def _equivariant(small: bool) -> ProgramParts:
    import torch

    from benchmarks.gpu_programs.held_out_models import EquivariantNetwork

    nodes, edges, width, layers = (60, 300, 16, 2) if small else (40_000, 320_000, 128, 4)

    def make_batch(number: int) -> Batch:
        source = torch.randint(0, nodes, (edges,))
        destination = (source + torch.randint(1, nodes, (edges,))) % nodes
        return torch.randn(nodes, 16), torch.randn(nodes, 3), source, destination

    return ProgramParts(EquivariantNetwork(16, width, layers), make_batch)


# Other models and forms of training --------------------------------------------------------------


def _generator(small: bool) -> ProgramParts:
    import torch

    from benchmarks.gpu_programs.held_out_models import GeneratorStep

    widths, style, rows = ((16, 16, 8), 16, 4) if small else ((512, 512, 256, 128, 64), 512, 64)
    size = 4 << (len(widths) - 1)

    def make_batch(number: int) -> Batch:
        return torch.randn(rows, style), torch.randn(rows, 1, size, size)

    return ProgramParts(GeneratorStep(widths, style), make_batch)


def _burgers(small: bool) -> ProgramParts:
    import torch

    from benchmarks.gpu_programs.held_out_models import BurgersNetwork

    points, width, layers = (32, 16, 2) if small else (50_000, 128, 6)

    def make_batch(number: int) -> Batch:
        places = torch.rand(points, 2) * torch.tensor([2.0, 1.0]) - torch.tensor([1.0, 0.0])
        boundary = places[: points // 8] * torch.tensor([1.0, 0.0])
        return places, boundary, -torch.sin(torch.pi * boundary[:, :1])

    def loss(run: Any, points: Any, boundary: Any, values: Any) -> Any:
        return run(points.detach().requires_grad_(True), boundary, values)

    return ProgramParts(BurgersNetwork(width, layers), make_batch, loss)


def _retention(small: bool) -> ProgramParts:
    import torch

    from benchmarks.gpu_programs.held_out_models import RetentionLanguageModel

    layers, width, heads, classes = (2, 32, 4, 128) if small else (8, 768, 8, 16384)
    rows, length = (2, 24) if small else (8, 1024)

    def make_batch(number: int) -> Batch:
        tokens = torch.randint(0, classes, (rows, length + 1))
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return ProgramParts(RetentionLanguageModel(layers, width, heads, classes, length), make_batch)


def _volume_unet(small: bool) -> ProgramParts:
    import torch

    from benchmarks.gpu_programs.held_out_models import VolumeUNet

    widths, size = ((8, 16, 16), 16) if small else ((32, 64, 128, 256, 320), 128)
    shape = (1, 1, size, size, size)
    return ProgramParts(VolumeUNet(widths, 4), lambda number: (torch.randn(shape),))


def _recommender(small: bool) -> ProgramParts:
    import torch

    from benchmarks.gpu_programs.held_out_models import Recommender

    fields, table, items, width, hidden = (4, 20, 50, 4, 16) if small else (
        26, 50_000, 200_000, 16, 1024)  # fmt: skip
    rows, length = (8, 6) if small else (4096, 64)

    def make_batch(number: int) -> Batch:
        history = torch.randint(1, items, (rows, length))
        past = torch.randint(1, length + 1, (rows, 1))
        history = torch.where(torch.arange(length) < past, history, 0)
        sparse = torch.randint(0, table, (rows, fields))
        candidate = torch.randint(1, items, (rows,))
        clicks = torch.randint(0, 2, (rows,)).float()
        return torch.randn(rows, 13), sparse, candidate, history, clicks

    return ProgramParts(Recommender(fields, table, items, width, hidden), make_batch)


def _inference(
    name: str, library: str, parts: Any, precision: Precision, **settings: Any
) -> GpuProgram:
    return GpuProgram(f"{name}_inference", library, False, "held_out", precision, parts, **settings)


def _training(
    name: str, library: str, parts: Any, precision: Precision, **settings: Any
) -> GpuProgram:
    return GpuProgram(f"{name}_training", library, True, "held_out", precision, parts, **settings)


PROGRAMS: tuple[GpuProgram, ...] = (
    _inference("glm", "transformers", _glm, "bfloat16"),
    _training("esm", "transformers", _esm, "float32"),
    _inference("pegasus_x", "transformers", _pegasus_x, "float16"),
    _training("conformer", "transformers", _conformer, "autocast"),
    _inference("timesformer", "transformers", _timesformer, "float16"),
    _inference("inception_next", "timm", _inception_next, "float16", channels_last=True),
    _training("focalnet", "timm", _focalnet, "autocast"),
    _training("gmixer", "timm", _gmixer, "bfloat16"),
    _training("resnext", "torchvision", _resnext, "autocast", channels_last=True),
    _inference("mvit", "torchvision", _mvit, "float32"),
    _training("magnitude_unet", "torch", _magnitude_unet, "autocast", channels_last=True, optimizer=True),
    _inference("single_stream_dit", "torch", _single_stream_dit, "bfloat16"),
    _inference("video_unet", "torch", _video_unet, "float16"),
    _training("graph_transformer", "torch_geometric", _graph_transformer, "float32"),
    _inference("equivariant", "torch", _equivariant, "float32"),
    _training("generator", "torch", _generator, "autocast", optimizer=True),
    _training("burgers", "torch", _burgers, "float32"),
    _training("retention", "torch", _retention, "bfloat16"),
    _inference("volume_unet", "torch", _volume_unet, "float32"),
    _training("recommender", "torch", _recommender, "float32", optimizer=True),
)  # fmt: skip
