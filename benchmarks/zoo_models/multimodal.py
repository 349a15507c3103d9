"""Models of transformers for images, sound, time series and several of these at once.

In: nothing. Out: `ANIMALS`. Not here, because values decide what they do (torch.compile breaks
there too): vilt (patches are chosen where a mask is not zero), conditional_detr and mask2former (as
detr), reformer (seeds itself by the clock).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.zoo_models.animal import Animal

_SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
_TEXT = dict(_SIZES, vocab_size=96, max_position_embeddings=64)
_VIT = dict(_SIZES, image_size=32, patch_size=8)


def pixels(size: int = 32, batch: int = 2, **more: Any) -> Callable[[], dict[str, Any]]:
    def feed() -> dict[str, Any]:
        import torch

        return {"pixel_values": torch.randn(batch, 3, size, size), **more}

    return feed


def pixels_and_tokens(
    size: int = 32, batch: int = 2, length: int = 8
) -> Callable[[], dict[str, Any]]:
    def feed() -> dict[str, Any]:
        import torch

        return {
            "pixel_values": torch.randn(batch, 3, size, size),
            "input_ids": torch.randint(3, 96, (batch, length)),
            "attention_mask": torch.ones(batch, length, dtype=torch.int64),
        }

    return feed


def _whisper() -> dict[str, Any]:
    import torch

    return {
        "input_features": torch.randn(2, 16, 40),
        "decoder_input_ids": torch.randint(3, 96, (2, 6)),
    }


def _sound() -> dict[str, Any]:
    import torch

    return {"input_values": torch.randn(2, 1000)}


def _boxes() -> dict[str, Any]:
    import torch

    ids = torch.randint(3, 96, (2, 10))
    corners = torch.randint(0, 50, (2, 10, 2))
    return {
        "input_ids": ids,
        "bbox": torch.cat([corners, corners + torch.randint(1, 40, (2, 10, 2))], dim=-1),
    }


def _series() -> dict[str, Any]:
    import torch

    return {
        "past_values": torch.rand(2, 22), "past_time_features": torch.rand(2, 22, 2),
        "past_observed_mask": torch.ones(2, 22), "future_values": torch.rand(2, 6),
        "future_time_features": torch.rand(2, 6, 2),
    }  # fmt: skip


def _patches() -> dict[str, Any]:
    import torch

    return {"past_values": torch.rand(2, 32, 3)}


def _sam() -> dict[str, Any]:
    import torch

    return {"pixel_values": torch.randn(1, 3, 32, 32), "input_points": torch.rand(1, 1, 2, 2) * 32}


def _video() -> dict[str, Any]:
    import torch

    return {"pixel_values": torch.randn(1, 4, 3, 32, 32)}


def _perceiver() -> dict[str, Any]:
    import torch

    return {"inputs": torch.randn(2, 12, 24)}


def _build(model: str, config: str, **parts: Any) -> Callable[[], Any]:
    """A model whose configuration holds other configurations: a pair (class name, settings) is made
    one.
    """

    def build() -> Any:
        import transformers

        result = {
            name: getattr(transformers, part[0])(**part[1]) if isinstance(part,
            tuple) and len(part) == 2 and
            isinstance(part[0], str) and isinstance(part[1], dict) else part
            for name, part in parts.items()
        }  # fmt: skip
        return getattr(transformers, model)(getattr(transformers, config)(**result))

    return build


def _row(name: str, model: str, config: str, feed: Callable[[], Any], *, breaks: str = "",
         settles: str = "", **settings: Any) -> Animal:  # fmt: skip
    return Animal(
        name,
        "transformers",
        _build(model, config, **settings),
        feed,
        breaks=breaks,
        settles=settles,
    )


_WAV = dict(
    _SIZES, vocab_size=32, conv_dim=(16, 16), conv_stride=(4, 4), conv_kernel=(8, 8),
    num_feat_extract_layers=2,
    num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2, mask_time_length=2,
    layerdrop=0.0,
)  # fmt: skip
_HOOKS = "hooks are installed at the first call"
_CACHE = "a cache of biases is filled at the first call"
_CLIP_TEXT = dict(_TEXT, projection_dim=16, bos_token_id=1, eos_token_id=2, pad_token_id=0)
_RESNET = ("ResNetConfig", dict(embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1],
           out_features=["stage2", "stage3", "stage4"]))  # fmt: skip
_DETR = dict(
    use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, d_model=32,
    encoder_layers=1,
    decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
    decoder_ffn_dim=48,
    num_queries=5, num_labels=4,
)  # fmt: skip

ANIMALS: tuple[Animal, ...] = (
    _row("vit", "ViTForImageClassification", "ViTConfig", pixels(), **_VIT),
    _row("deit", "DeiTModel", "DeiTConfig", pixels(), **_VIT),
    _row("beit", "BeitModel", "BeitConfig", pixels(), use_relative_position_bias=True, **_VIT),
    _row("dinov2", "Dinov2Model", "Dinov2Config", pixels(), **_VIT),
    _row("swin", "SwinModel", "SwinConfig", pixels(), image_size=32, patch_size=2, embed_dim=16,
    depths=[2, 2],
         num_heads=[2, 4], window_size=4),
    _row("swinv2", "Swinv2Model", "Swinv2Config", pixels(), image_size=32, patch_size=2,
    embed_dim=16, depths=[2, 2],
         num_heads=[2, 4], window_size=4),
    _row("convnext", "ConvNextModel", "ConvNextConfig", pixels(), hidden_sizes=[8, 16], depths=[1,
    1], num_stages=2),
    _row("segformer", "SegformerForSemanticSegmentation", "SegformerConfig", pixels(64),
    settles=_HOOKS, depths=[1, 1, 1, 1],
         hidden_sizes=[8, 16, 24, 32], num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=16),
    _row("detr", "DetrForObjectDetection", "DetrConfig", pixels(64),
         breaks="in training each encoder layer asks whether all values are finite",
         **(_DETR | dict(backbone_config=_RESNET))),
    _row("dpt", "DPTForDepthEstimation", "DPTConfig", pixels(), settles=_HOOKS, is_hybrid=False,
    neck_hidden_sizes=[8, 8, 8, 8],
         fusion_hidden_size=8, backbone_out_indices=[0, 1, 2, 3],
         **(_VIT | dict(num_hidden_layers=4))),
    _row("clip", "CLIPModel", "CLIPConfig", pixels_and_tokens(), projection_dim=16,
         text_config=_CLIP_TEXT, vision_config=dict(_VIT, projection_dim=16)),
    _row("siglip", "SiglipModel", "SiglipConfig", pixels_and_tokens(), text_config=_TEXT,
    vision_config=_VIT),
    _row("blip", "BlipForConditionalGeneration", "BlipConfig", pixels_and_tokens(),
    projection_dim=16,
         text_config=dict(_TEXT, encoder_hidden_size=32, bos_token_id=1, sep_token_id=2),
         vision_config=_VIT),
    _row("whisper", "WhisperForConditionalGeneration", "WhisperConfig", _whisper, vocab_size=96,
    num_mel_bins=16,
         d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
         decoder_attention_heads=4,
         encoder_ffn_dim=48, decoder_ffn_dim=48, max_source_positions=20, max_target_positions=32,
         pad_token_id=0,
         bos_token_id=1, eos_token_id=2, decoder_start_token_id=1),
    _row("wav2vec2", "Wav2Vec2Model", "Wav2Vec2Config", _sound, apply_spec_augment=False, **_WAV),
    _row("hubert", "HubertModel", "HubertConfig", _sound, apply_spec_augment=False, **_WAV),
    _row("wavlm", "WavLMModel", "WavLMConfig", _sound, apply_spec_augment=False, **_WAV),
    _row("sam", "SamModel", "SamConfig", _sam,
         vision_config=dict(hidden_size=32, output_channels=16, num_hidden_layers=2,
         num_attention_heads=4,
                            image_size=32, patch_size=4, window_size=4, global_attn_indexes=[1],
                            mlp_dim=48, num_pos_feats=8),
         prompt_encoder_config=dict(hidden_size=16, image_size=32, patch_size=4,
         mask_input_channels=4),
         mask_decoder_config=dict(hidden_size=16, num_attention_heads=4, mlp_dim=32,
         num_hidden_layers=2,
                                  iou_head_hidden_dim=16)),
    _row("layoutlm", "LayoutLMModel", "LayoutLMConfig", _boxes, max_2d_position_embeddings=128,
    **_TEXT),
    _row("time_series_transformer", "TimeSeriesTransformerModel", "TimeSeriesTransformerConfig",
    _series,
         prediction_length=6, context_length=15, lags_sequence=[1, 2, 7], num_time_features=2,
         d_model=16,
         encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
         encoder_ffn_dim=24,
         decoder_ffn_dim=24, encoder_layerdrop=0.0, decoder_layerdrop=0.0),
    _row("patchtst", "PatchTSTModel", "PatchTSTConfig", _patches, num_input_channels=3,
    context_length=32,
         patch_length=8, patch_stride=8, d_model=16, num_attention_heads=4, num_hidden_layers=2,
         ffn_dim=24),
    _row("levit", "LevitModel", "LevitConfig", pixels(64), settles=_CACHE, image_size=64,
    hidden_sizes=[16, 24, 32],
         num_attention_heads=[1, 2, 4], depths=[1, 1, 1], key_dim=[8, 8, 8]),
    _row("mobilevit", "MobileViTModel", "MobileViTConfig", pixels(64), image_size=64,
    hidden_sizes=[16, 24, 32],
         neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 32]),
    _row("videomae", "VideoMAEForVideoClassification", "VideoMAEConfig", _video, num_frames=4,
    tubelet_size=2, **_VIT),
    _row("perceiver", "PerceiverModel", "PerceiverConfig", _perceiver, num_latents=8, d_latents=16,
    d_model=24,
         num_blocks=1, num_self_attends_per_block=2, num_self_attention_heads=2,
         num_cross_attention_heads=2),
)  # fmt: skip
