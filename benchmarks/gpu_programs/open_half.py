"""The half of the zoo that may be looked at while rules are made: twenty programs.

In: nothing. Out: `PROGRAMS`.
"""

from __future__ import annotations

from typing import Any

from benchmarks.gpu_programs.parts import (
    image_inference,
    image_training,
    language_training,
    node_classification,
)
from benchmarks.gpu_programs.program import Batch, GpuProgram, Precision, ProgramParts

# transformers ------------------------------------------------------------------------------------


def _granite(small: bool) -> ProgramParts:
    from transformers import GraniteConfig, GraniteForCausalLM

    sizes = {"num_hidden_layers": 8, "hidden_size": 1024, "intermediate_size": 2816,
             "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000}  # fmt: skip
    small_sizes = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128,
                   "num_attention_heads": 4, "num_key_value_heads": 2,
                   "vocab_size": 512}  # fmt: skip
    config = GraniteConfig(
        use_cache=False, embedding_multiplier=12.0, attention_multiplier=1 / 64,
        residual_multiplier=0.22, logits_scaling=8.0, **(small_sizes if small else sizes),
    )  # fmt: skip
    return language_training(GraniteForCausalLM(config), *((2, 32) if small else (4, 1024)))


def _roberta_prelayernorm(small: bool) -> ProgramParts:
    import torch
    from transformers import RobertaPreLayerNormConfig, RobertaPreLayerNormModel

    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128,
             "num_attention_heads": 4, "vocab_size": 512, "max_position_embeddings": 80}  # fmt: skip
    config = RobertaPreLayerNormConfig(pad_token_id=1, **(sizes if small else {}))
    rows, length = (2, 32) if small else (32, 256)

    def make_batch(number: int) -> Batch:
        tokens = torch.randint(5, config.vocab_size, (rows, length))
        ends = torch.randint(length // 2, length + 1, (rows, 1))
        mask = (torch.arange(length) < ends).long()
        return torch.where(mask > 0, tokens, 1), mask

    def call(run: Any, tokens: Any, mask: Any) -> Any:
        return run(input_ids=tokens, attention_mask=mask).last_hidden_state

    return ProgramParts(RobertaPreLayerNormModel(config), make_batch, call)


def _spectrogram_transformer(small: bool) -> ProgramParts:
    import torch
    from transformers import ASTConfig, ASTForAudioClassification

    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128,
             "num_attention_heads": 4, "max_length": 64, "num_mel_bins": 32}  # fmt: skip
    config = ASTConfig(num_labels=527, **(sizes if small else {}))
    shape = (2 if small else 8, config.max_length, config.num_mel_bins)
    return ProgramParts(
        ASTForAudioClassification(config),
        lambda number: (torch.randn(shape),),
        lambda run, frames: run(frames).logits,
    )


def _blenderbot(small: bool) -> ProgramParts:
    import torch
    from transformers import BlenderbotSmallConfig, BlenderbotSmallForConditionalGeneration

    sizes = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 128,
             "decoder_ffn_dim": 128, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
             "vocab_size": 512, "max_position_embeddings": 64}  # fmt: skip
    config = BlenderbotSmallConfig(
        use_cache=False, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0,
        **(sizes if small else {"vocab_size": 32000}),
    )  # fmt: skip
    rows, source, target = (2, 24, 16) if small else (32, 256, 128)

    def make_batch(number: int) -> Batch:
        tokens = torch.randint(3, config.vocab_size, (rows, source + target))
        return tokens[:, :source].contiguous(), tokens[:, source:].contiguous()

    def loss(run: Any, tokens: Any, labels: Any) -> Any:
        return run(input_ids=tokens, labels=labels).loss

    return ProgramParts(BlenderbotSmallForConditionalGeneration(config), make_batch, loss)


def _hiera(small: bool) -> ProgramParts:
    import torch
    from transformers import HieraConfig, HieraForImageClassification

    sizes = {"embed_dim": 16, "depths": [1, 1, 2, 1], "image_size": [64, 64]}
    config = HieraConfig(num_labels=1000, **(sizes if small else {}))
    shape = (2, 3, 64, 64) if small else (64, 3, 224, 224)
    return ProgramParts(
        HieraForImageClassification(config),
        lambda number: (torch.randn(shape),),
        lambda run, images: run(images).logits,
    )


# timm and torchvision ----------------------------------------------------------------------------


def _res2net(small: bool) -> ProgramParts:
    import timm

    model = timm.create_model("res2net50_26w_4s", pretrained=False)
    return image_training(model, *((4, 64) if small else (32, 224)))


def _mobilenetv4(small: bool) -> ProgramParts:
    import timm

    model = timm.create_model(f"mobilenetv4_conv_{'small_050' if small else 'medium'}")
    return image_inference(model, *((2, 64) if small else (64, 256)))


def _caformer(small: bool) -> ProgramParts:
    from timm.models.metaformer import (
        Attention,
        LayerNorm2dNoBias,
        LayerNormNoBias,
        MetaFormer,
        SepConv,
    )

    depths, widths = ((1, 1, 1, 1), (16, 32, 32, 32)) if small else (
        (3, 3, 9, 3), (64, 128, 320, 512))  # fmt: skip
    model = MetaFormer(
        depths=depths, dims=widths, token_mixers=[SepConv, SepConv, Attention, Attention],
        norm_layers=[LayerNorm2dNoBias] * 2 + [LayerNormNoBias] * 2,
    )  # fmt: skip
    return image_training(model, *((2, 64) if small else (32, 224)))


def _regnet_y(small: bool) -> ProgramParts:
    from torchvision.models import regnet_y_3_2gf, regnet_y_400mf

    return image_training(
        regnet_y_400mf() if small else regnet_y_3_2gf(), *((4, 64) if small else (32, 224))
    )


def _mobilenet_v3(small: bool) -> ProgramParts:
    from torchvision.models import mobilenet_v3_large

    return image_inference(mobilenet_v3_large(), *((2, 64) if small else (128, 224)))


# Diffusion ---------------------------------------------------------------------------------------


def _unet_cross_attention(small: bool) -> ProgramParts:
    import torch

    from benchmarks.gpu_programs.open_diffusion import CrossAttentionUNet

    widths, context, head = ((32, 64), 24, 16) if small else ((320, 640, 1280), 768, 64)
    rows, size, text = (2, 8, 5) if small else (8, 64, 77)

    def make_batch(number: int) -> Batch:
        steps = torch.randint(0, 1000, (rows,))
        return torch.randn(rows, 4, size, size), steps, torch.randn(rows, text, context)

    return ProgramParts(CrossAttentionUNet(widths, context, head), make_batch)


def _multimodal_dit(small: bool) -> ProgramParts:
    import torch
    import torch.nn.functional as F

    from benchmarks.gpu_programs.open_diffusion import MultimodalDit

    rows, size, text, text_width = (2, 8, 5, 24) if small else (16, 32, 77, 2048)
    layers, width, heads = (2, 64, 4) if small else (12, 768, 12)

    def make_batch(number: int) -> Batch:
        steps = torch.randint(0, 1000, (rows,))
        target = torch.randn(rows, (size // 2) ** 2, 64)
        return (
            torch.randn(rows, 16, size, size),
            steps,
            torch.randn(rows, text, text_width),
            target,
        )

    def loss(run: Any, latents: Any, steps: Any, text: Any, target: Any) -> Any:
        return F.mse_loss(run(latents, steps, text), target)

    return ProgramParts(MultimodalDit(layers, width, heads, size, text_width), make_batch, loss)


def _video_decoder(small: bool) -> ProgramParts:
    import torch

    from benchmarks.gpu_programs.open_diffusion import VideoDecoder

    widths, shape = ((16, 16, 8, 8), (1, 16, 2, 4, 4)) if small else (
        (256, 256, 128, 64), (1, 16, 4, 24, 24))  # fmt: skip
    return ProgramParts(VideoDecoder(widths), lambda number: (torch.randn(shape),))


# Graphs ------------------------------------------------------------------------------------------


def _graph_attention(small: bool) -> ProgramParts:
    import torch

    from benchmarks.gpu_programs.open_models import GraphAttention

    nodes, edges, heads, width = (60, 300, 2, 8) if small else (50_000, 400_000, 4, 32)

    def make_batch(number: int) -> Batch:
        ends = torch.randint(0, nodes, (2, edges))
        loops = torch.arange(nodes)
        source, destination = torch.cat([ends[0], loops]), torch.cat([ends[1], loops])
        return torch.randn(nodes, 64), source, destination, torch.randint(0, 10, (nodes,))

    return node_classification(GraphAttention(64, heads, width, 10), make_batch)


def _graph_isomorphism(small: bool) -> ProgramParts:
    import torch

    from benchmarks.gpu_programs.open_models import graph_isomorphism_network

    graphs, nodes, edges, width = (4, 10, 24, 16) if small else (2048, 30, 64, 256)

    def make_batch(number: int) -> Batch:
        first = torch.arange(graphs)[:, None] * nodes
        ends = torch.randint(0, nodes, (2, graphs, edges)) + first
        graph = torch.arange(graphs).repeat_interleave(nodes)
        return torch.randn(graphs * nodes, 32), ends.flatten(1), graph

    return ProgramParts(
        graph_isomorphism_network(32, width, 10),
        make_batch,
        lambda run, x, edges, graph: run(x, edges, graph, graphs),
    )


# Other models and forms of training --------------------------------------------------------------


def _image_vae(small: bool) -> ProgramParts:
    import torch

    from benchmarks.gpu_programs.open_models import ImageVae

    rows, size, latent = (4, 32, 8) if small else (256, 64, 256)
    widths = (8, 16, 16) if small else (64, 128, 256, 512)

    def make_batch(number: int) -> Batch:
        return torch.rand(rows, 3, size, size), torch.randn(rows, latent)

    return ProgramParts(ImageVae(widths, size, latent), make_batch)


def _mixture_of_experts(small: bool) -> ProgramParts:
    import torch

    from benchmarks.gpu_programs.open_models import MixtureOfExperts

    rows, length, classes = (2, 24, 256) if small else (8, 1024, 16384)
    sizes = (2, 32, 4, 4) if small else (6, 768, 12, 8)

    def make_batch(number: int) -> Batch:
        tokens = torch.randint(0, classes, (rows, length + 1))
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return ProgramParts(MixtureOfExperts(*sizes, classes), make_batch)


def _linear_recurrence(small: bool) -> ProgramParts:
    import torch

    from benchmarks.gpu_programs.open_models import RecurrentLanguageModel

    rows, length, classes = (2, 20, 128) if small else (4, 2048, 16384)
    layers, width = (2, 32) if small else (6, 1024)
    return ProgramParts(
        RecurrentLanguageModel(layers, width, classes),
        lambda number: (torch.randint(0, classes, (rows, length)),),
    )


def _point_cloud(small: bool) -> ProgramParts:
    import torch

    from benchmarks.gpu_programs.open_models import PointCloudNetwork

    rows, points, count = (4, 32, 4) if small else (16, 1024, 20)
    model = PointCloudNetwork((8, 8, 16) if small else (64, 64, 128, 256), count, 40)

    def make_batch(number: int) -> Batch:
        return torch.randn(rows, 3, points), torch.randint(0, 40, (rows,))

    return node_classification(model, make_batch)


def _contrastive(small: bool) -> ProgramParts:
    import torch
    from torchvision.models.resnet import BasicBlock, ResNet

    from benchmarks.gpu_programs.open_models import Contrastive

    blocks, rows, size = ([1, 1, 1, 1], 8, 64) if small else ([3, 4, 6, 3], 128, 128)
    encoder = ResNet(BasicBlock, blocks, num_classes=512)

    def make_batch(number: int) -> Batch:
        return torch.randn(rows, 3, size, size), torch.randn(rows, 3, size, size)

    return ProgramParts(Contrastive(encoder, 512, 128), make_batch)


def _inference(
    name: str, library: str, parts: Any, precision: Precision, **settings: Any
) -> GpuProgram:
    return GpuProgram(f"{name}_inference", library, False, "open", precision, parts, **settings)


def _training(
    name: str, library: str, parts: Any, precision: Precision, **settings: Any
) -> GpuProgram:
    return GpuProgram(f"{name}_training", library, True, "open", precision, parts, **settings)


PROGRAMS: tuple[GpuProgram, ...] = (
    _training("granite", "transformers", _granite, "bfloat16", optimizer=True),
    _inference("roberta_prelayernorm", "transformers", _roberta_prelayernorm, "float16"),
    _inference("spectrogram_transformer", "transformers", _spectrogram_transformer, "float32"),
    _training("blenderbot", "transformers", _blenderbot, "autocast"),
    _inference("hiera", "transformers", _hiera, "bfloat16"),
    _training("res2net", "timm", _res2net, "autocast", channels_last=True),
    _inference("mobilenetv4", "timm", _mobilenetv4, "float16", channels_last=True),
    _training("caformer", "timm", _caformer, "autocast"),
    _training("regnet_y", "torchvision", _regnet_y, "float32", channels_last=True),
    _inference("mobilenet_v3", "torchvision", _mobilenet_v3, "float32"),
    _inference("unet_cross_attention", "torch", _unet_cross_attention, "float16", channels_last=True),
    _training("multimodal_dit", "torch", _multimodal_dit, "bfloat16"),
    _inference("video_decoder", "torch", _video_decoder, "bfloat16"),
    _training("graph_attention", "torch", _graph_attention, "float32"),
    _inference("graph_isomorphism", "torch_geometric", _graph_isomorphism, "float32"),
    _training("image_vae", "torch", _image_vae, "float32", optimizer=True),
    _training("mixture_of_experts", "torch", _mixture_of_experts, "bfloat16", discontinuous=True),
    _inference("linear_recurrence", "torch", _linear_recurrence, "bfloat16"),
    _training("point_cloud", "torch", _point_cloud, "float32"),
    _training("contrastive", "torchvision", _contrastive, "autocast", channels_last=True, optimizer=True),
)  # fmt: skip
