"""Models that are measured on CPUs of several kinds, beside those of `benchmarks.models`.

In: the builders of `benchmarks.models`. Out: rows for its table, in three groups: ``cpu_issue`` (rows of the
issue that asked for speed on every processor), ``cpu_open`` (kernels and rules are tuned on these) and
``cpu_held_out`` (looked at only at the end). What always holds: as in `benchmarks.models`; no row of the
two halves is in another benchmark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchmarks.model_program import Model, Program

if TYPE_CHECKING:
    import torch

Build = Callable[[], Program]


def text_encoder(
    config: str, model: str, batch: int, length: int, dtype: str = "float32", **settings: Any
) -> Build:
    """A transformers model that takes tokens and a mask, by the names of its two classes."""

    def build() -> Program:
        import torch
        import transformers

        chosen = getattr(transformers, config)(**settings)
        module = getattr(transformers, model)(chosen).to(getattr(torch, dtype))
        tokens = torch.randint(5, chosen.vocab_size, (batch, length))
        return Program(module, (), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)})

    return build


def language_model(
    name: str, batch: int, length: int, dtype: str = "float32", **settings: Any
) -> Build:
    """A transformers model with a language model's head, without a cache."""

    def build() -> Program:
        import torch
        import transformers

        chosen = getattr(transformers, f"{name}Config")(use_cache=False, **settings)
        module = getattr(transformers, f"{name}ForCausalLM")(chosen).to(getattr(torch, dtype))
        return Program(
            module, (), {"input_ids": torch.randint(5, chosen.vocab_size, (batch, length))}
        )

    return build


def image_model(library: str, name: str, batch: int, size: int, **settings: Any) -> Build:
    """A model of torchvision or timm."""

    def build() -> Program:
        import torch

        if library == "timm":
            import timm

            module = timm.create_model(name, **settings)
        else:
            import torchvision

            module = getattr(torchvision.models, name)(**settings)
        return Program(module, (torch.randn(batch, 3, size, size),))

    return build


def _whisper() -> Program:
    import torch
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536
    )
    return Program(WhisperEncoder(config), (torch.randn(1, 80, 3000),))


def _speech(name: str, seconds: float) -> Build:
    """A small encoder of wave forms."""

    def build() -> Program:
        import torch
        import transformers

        config = getattr(transformers, f"{name}Config")(
            hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024
        )
        return Program(
            getattr(transformers, f"{name}Model")(config), (torch.randn(1, int(16_000 * seconds)),)
        )

    return build


def _segformer() -> Program:
    import torch
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    return Program(
        SegformerForSemanticSegmentation(SegformerConfig()), (torch.randn(1, 3, 256, 256),)
    )


def _clip_vision() -> Program:
    import torch
    from transformers import CLIPVisionConfig, CLIPVisionModel

    config = CLIPVisionConfig(
        hidden_size=512, intermediate_size=2048, num_hidden_layers=6, num_attention_heads=8
    )
    return Program(CLIPVisionModel(config), (torch.randn(8, 3, 224, 224),))


def _bart() -> Program:
    import torch
    from transformers import BartConfig, BartModel

    config = BartConfig(
        d_model=512, encoder_layers=4, decoder_layers=4, encoder_ffn_dim=2048,
        decoder_ffn_dim=2048, encoder_attention_heads=8, decoder_attention_heads=8,
        use_cache=False,
    )  # fmt: skip
    tokens, targets = torch.randint(5, 50_000, (4, 96)), torch.randint(5, 50_000, (4, 32))
    return Program(BartModel(config), (), {"input_ids": tokens, "decoder_input_ids": targets})


def _yolo() -> Program:
    """A detector as YOLOv8 is built: convolutions with batch norm and SiLU, parts that split and
    concatenate, pooled pyramids, two upsamplings and heads at three scales."""
    import torch
    from torch import nn

    def conv(inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
            nn.BatchNorm2d(outputs),
            nn.SiLU(),
        )

    class Split(nn.Module):
        def __init__(self, inputs: int, outputs: int, count: int, residual: bool) -> None:
            super().__init__()
            half = outputs // 2
            self.residual = residual
            self.first = conv(inputs, outputs)
            self.blocks = nn.ModuleList(
                nn.Sequential(conv(half, half, 3), conv(half, half, 3)) for _ in range(count)
            )
            self.last = conv((2 + count) * half, outputs)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts = list(self.first(x).chunk(2, 1))
            for block in self.blocks:
                value = block(parts[-1])
                parts.append(parts[-1] + value if self.residual else value)
            result: torch.Tensor = self.last(torch.cat(parts, 1))
            return result

    class Pyramid(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.first, self.last = conv(width, width // 2), conv(2 * width, width)
            self.pool = nn.MaxPool2d(5, 1, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts = [self.first(x)]
            for _ in range(3):
                parts.append(self.pool(parts[-1]))
            result: torch.Tensor = self.last(torch.cat(parts, 1))
            return result

    class Detector(nn.Module):
        def __init__(self, width: int = 16, classes: int = 80) -> None:
            super().__init__()
            a, b, c, d = 2 * width, 4 * width, 8 * width, 16 * width
            self.stem = nn.Sequential(
                conv(3, width, 3, 2), conv(width, a, 3, 2), Split(a, a, 1, True)
            )
            self.down = nn.ModuleList(
                (
                    nn.Sequential(conv(a, b, 3, 2), Split(b, b, 2, True)),
                    nn.Sequential(conv(b, c, 3, 2), Split(c, c, 2, True)),
                    nn.Sequential(conv(c, d, 3, 2), Split(d, d, 1, True), Pyramid(d)),
                )
            )
            self.up = nn.Upsample(scale_factor=2.0)
            self.up_4, self.up_3 = Split(d + c, c, 1, False), Split(c + b, b, 1, False)
            self.down_3, self.down_4 = conv(b, b, 3, 2), conv(c, c, 3, 2)
            self.join_4, self.join_5 = Split(b + c, c, 1, False), Split(c + d, d, 1, False)
            self.heads = nn.ModuleList(
                nn.Sequential(conv(size, 64, 3), conv(64, 64, 3), nn.Conv2d(64, 64 + classes, 1))
                for size in (b, c, d)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            p3 = self.down[0](self.stem(x))
            p4 = self.down[1](p3)
            p5 = self.down[2](p4)
            n4 = self.up_4(torch.cat([self.up(p5), p4], 1))
            n3 = self.up_3(torch.cat([self.up(n4), p3], 1))
            m4 = self.join_4(torch.cat([self.down_3(n3), n4], 1))
            m5 = self.join_5(torch.cat([self.down_4(m4), p5], 1))
            outputs = [
                head(value).flatten(2) for head, value in zip(self.heads, (n3, m4, m5), strict=True)
            ]
            joined = torch.cat(outputs, 2)
            return torch.cat([joined[:, :64].softmax(1), joined[:, 64:].sigmoid()], 1)

    return Program(Detector(), (torch.randn(1, 3, 320, 320),))


# Tensor programs that are no models ---------------------------------------------------------------


def _option_prices() -> Program:
    """Black-Scholes prices of 16,384 options and their gradients."""
    import torch

    def prices(
        spot: torch.Tensor, strike: torch.Tensor, time: torch.Tensor, sigma: torch.Tensor
    ) -> Any:
        with torch.enable_grad():
            inputs = [value.detach().requires_grad_() for value in (spot, sigma, time)]
            price = price_of(*inputs, strike)
            return price, *torch.autograd.grad(price.sum(), inputs)

    def price_of(
        spot: torch.Tensor, sigma: torch.Tensor, time: torch.Tensor, strike: torch.Tensor
    ) -> torch.Tensor:
        root = sigma * time.sqrt()
        d1 = (torch.log(spot / strike) + (0.02 + 0.5 * sigma**2) * time) / root
        d2 = d1 - root

        def normal(x: torch.Tensor) -> torch.Tensor:
            return 0.5 * (1 + torch.erf(x / 2**0.5))

        return spot * normal(d1) - strike * torch.exp(-0.02 * time) * normal(d2)

    size = 16_384
    return Program(
        prices,
        (50 + 100 * torch.rand(size), 50 + 100 * torch.rand(size), 0.1 + 2 * torch.rand(size),
         0.1 + 0.4 * torch.rand(size)),
    )  # fmt: skip


def _augmentation() -> Program:
    """Rotated, scaled and blurred images: grid_sample by reflection, a depthwise convolution, colours."""
    import torch
    import torch.nn.functional as F

    def augment(
        images: torch.Tensor, angle: torch.Tensor, gain: torch.Tensor, taps: torch.Tensor
    ) -> torch.Tensor:
        cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
        theta = torch.stack(
            [torch.stack([cos, -sin, zero], 1), torch.stack([sin, cos, zero], 1)], 1
        )
        grid = F.affine_grid(theta, list(images.shape), align_corners=False)
        rotated = F.grid_sample(
            images, grid, mode="bilinear", padding_mode="reflection", align_corners=False
        )
        weights = taps.expand(3, 1, 5, 5)
        blurred = F.conv2d(rotated, weights, padding=2, groups=3)
        mean = blurred.mean((2, 3), keepdim=True)
        return ((blurred - mean) * gain[:, None, None, None] + mean).clamp(-2, 2)

    taps = torch.outer(*[torch.tensor([1.0, 4, 6, 4, 1])] * 2)
    return Program(
        augment,
        (torch.randn(8, 3, 96, 96), 0.3 * torch.randn(8), 0.5 + torch.rand(8), taps / taps.sum()),
    )


def _k_means() -> Program:
    """One step: distances, the nearest centre, new centres."""
    import torch

    def step(points: torch.Tensor, centres: torch.Tensor) -> Any:
        nearest = torch.cdist(points, centres).argmin(1)
        sums = torch.zeros_like(centres).index_add(0, nearest, points)
        counts = torch.zeros(centres.shape[0], dtype=points.dtype).index_add(
            0, nearest, torch.ones(points.shape[0], dtype=points.dtype)
        )
        return sums / counts.clamp(min=1)[:, None], nearest

    return Program(step, (torch.randn(4096, 16), torch.randn(32, 16)))


def _rows(group: str, *rows: tuple[str, str, Build, str]) -> list[Model]:
    return [
        Model(name, library, build, title, groups=frozenset({group}))
        for name, library, build, title in rows
    ]


_MINILM = {
    "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
    "intermediate_size": 1536,
}  # fmt: skip
_SMALL = {
    "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 32_000,
}  # fmt: skip


def _bert(batch: int, length: int, dtype: str = "float32", **settings: Any) -> Build:
    return text_encoder("BertConfig", "BertModel", batch, length, dtype, **settings)


ISSUE = _rows(
    "cpu_issue",
    ("minilm_1x32", "transformers", _bert(1, 32, **_MINILM), "MiniLM 1×32"),
    ("minilm_32x64", "transformers", _bert(32, 64, **_MINILM), "MiniLM 32×64"),
    ("distilbert_8x64", "transformers",
     text_encoder("DistilBertConfig", "DistilBertModel", 8, 64), "DistilBERT 8×64"),
    ("bert_6_bf16", "transformers", _bert(1, 128, "bfloat16", num_hidden_layers=6),
     "BERT of 6 layers, bfloat16, 1×128"),
    ("whisper_tiny", "transformers", _whisper, "Whisper-tiny's encoder 1×3000"),
    ("yolo_320", "torch", _yolo, "YOLO-like 1×3×320×320"),
    ("mobilevit_s", "timm", image_model("timm", "mobilevit_s", 1, 256), "MobileViT-S 1×3×256×256"),
    ("option_prices", "torch", _option_prices, "option prices with gradients, 16,384"),
    ("augmentation", "torch", _augmentation, "image augmentation 8×3×96×96"),
    ("k_means", "torch", _k_means, "k-means step, 4,096×16, 32 centres"),
)  # fmt: skip

OPEN = _rows(
    "cpu_open",
    ("electra_8x48", "transformers",
     text_encoder("ElectraConfig", "ElectraModel", 8, 48, num_hidden_layers=6), "ELECTRA-small, 6 layers, 8×48"),
    ("albert_1x64", "transformers",
     text_encoder("AlbertConfig", "AlbertModel", 1, 64, hidden_size=768, num_attention_heads=12,
                  intermediate_size=3072, num_hidden_layers=6), "ALBERT, 6 layers, 1×64"),
    ("mpnet_4x96", "transformers",
     text_encoder("MPNetConfig", "MPNetModel", 4, 96, num_hidden_layers=4), "MPNet, 4 layers, 4×96"),
    ("bart_4x96", "transformers", _bart, "BART, 4+4 layers, 4×96"),
    ("qwen2_1x64_bf16", "transformers", language_model("Qwen2", 1, 64, "bfloat16", **_SMALL),
     "Qwen2-like, 4 layers, bfloat16, 1×64"),
    ("roberta_8x64_bf16", "transformers",
     text_encoder("RobertaConfig", "RobertaModel", 8, 64, "bfloat16", num_hidden_layers=3),
     "RoBERTa, 3 layers, bfloat16, 8×64"),
    ("clip_vision_8", "transformers", _clip_vision, "CLIP's vision, 6 layers, 8×3×224×224"),
    ("wav2vec2_2s", "transformers", _speech("Wav2Vec2", 2.0), "Wav2Vec2, 4 layers, 2 s"),
    ("efficientnet_b0_1", "timm", image_model("timm", "efficientnet_b0", 1, 224), "EfficientNet-B0 1×3×224×224"),
    ("regnety_008_8", "timm", image_model("timm", "regnety_008", 8, 128), "RegNetY-800MF 8×3×128×128"),
    ("poolformer_s12_1", "timm", image_model("timm", "poolformer_s12", 1, 224), "PoolFormer-S12 1×3×224×224"),
    ("convnextv2_nano_1", "timm", image_model("timm", "convnextv2_nano", 1, 224), "ConvNeXtV2-nano 1×3×224×224"),
    ("pvt_v2_b0_8", "timm", image_model("timm", "pvt_v2_b0", 8, 128), "PVTv2-B0 8×3×128×128"),
    ("shufflenet_8", "torchvision", image_model("torchvision", "shufflenet_v2_x1_0", 8, 128),
     "ShuffleNetV2 8×3×128×128"),
    ("squeezenet_1", "torchvision", image_model("torchvision", "squeezenet1_1", 1, 224), "SqueezeNet 1.1 1×3×224×224"),
)  # fmt: skip

HELD_OUT = _rows(
    "cpu_held_out",
    ("mobilebert_1x64", "transformers",
     text_encoder("MobileBertConfig", "MobileBertModel", 1, 64, num_hidden_layers=8), "MobileBERT, 8 layers, 1×64"),
    ("squeezebert_8x64", "transformers",
     text_encoder("SqueezeBertConfig", "SqueezeBertModel", 8, 64, num_hidden_layers=4), "SqueezeBERT, 4 layers, 8×64"),
    ("deberta_1x96", "transformers",
     text_encoder("DebertaV2Config", "DebertaV2Model", 1, 96, hidden_size=512, num_hidden_layers=4,
                  num_attention_heads=8, intermediate_size=2048, vocab_size=32_000), "DeBERTaV2, 4 layers, 1×96"),
    ("opt_8x32", "transformers",
     language_model("OPT", 8, 32, hidden_size=512, ffn_dim=2048, num_hidden_layers=4, num_attention_heads=8,
                    word_embed_proj_dim=512, vocab_size=16_000), "OPT-like, 4 layers, 8×32"),
    ("gemma_1x64_bf16", "transformers",
     language_model("Gemma", 1, 64, "bfloat16", head_dim=64, **_SMALL), "Gemma-like, 4 layers, bfloat16, 1×64"),
    ("phi_4x64", "transformers",
     language_model("Phi", 4, 64, **{**_SMALL, "num_key_value_heads": 8}), "Phi-like, 4 layers, 4×64"),
    ("hubert_2s", "transformers", _speech("Hubert", 2.0), "HuBERT, 4 layers, 2 s"),
    ("segformer_256", "transformers", _segformer, "SegFormer-B0 1×3×256×256"),
    ("ghostnet_1", "timm", image_model("timm", "ghostnet_100", 1, 224), "GhostNet 1×3×224×224"),
    ("edgenext_8", "timm", image_model("timm", "edgenext_x_small", 8, 160), "EdgeNeXt-XS 8×3×160×160"),
    ("levit_8", "timm", image_model("timm", "levit_128s", 8, 224), "LeViT-128S 8×3×224×224"),
    ("mixer_s16_1", "timm", image_model("timm", "mixer_s16_224", 1, 224), "MLP-Mixer-S/16 1×3×224×224"),
    ("xcit_nano_1", "timm", image_model("timm", "xcit_nano_12_p16_224", 1, 224), "XCiT-nano 1×3×224×224"),
    ("mnasnet_8", "torchvision", image_model("torchvision", "mnasnet1_0", 8, 128), "MNASNet 8×3×128×128"),
    ("vgg11_1", "torchvision", image_model("torchvision", "vgg11_bn", 1, 160), "VGG-11 1×3×160×160"),
)  # fmt: skip

GROUPS = ("cpu_issue", "cpu_open", "cpu_held_out")

MODELS = [*ISSUE, *OPEN, *HELD_OUT]

# Models for `benchmarks.cpu_zoo`: any batch, 16-bit floats and training --------------------------


def _tokens(config: str, model: str, length: int, **settings: Any) -> Callable[[int], Program]:
    def build(batch: int) -> Program:
        return text_encoder(config, model, batch, length, **settings)()

    return build


def _causal(name: str, length: int, **settings: Any) -> Callable[[int], Program]:
    def build(batch: int) -> Program:
        import torch
        import transformers

        chosen = getattr(transformers, f"{name}Config")(use_cache=False, **settings)
        module = getattr(transformers, f"{name}ForCausalLM")(chosen)
        return Program(
            module, (), {"input_ids": torch.randint(5, chosen.vocab_size, (batch, length))}
        )

    return build


def _images(library: str, name: str, size: int, **settings: Any) -> Callable[[int], Program]:
    def build(batch: int) -> Program:
        return image_model(library, name, batch, size, **settings)()

    return build


def _cvt(batch: int) -> Program:
    import torch
    from transformers import CvtConfig, CvtModel

    module = CvtModel(CvtConfig(depth=[1, 2, 3]))
    return Program(module, (torch.randn(batch, 3, 224, 224),))


def _canine(batch: int) -> Program:
    import torch
    from transformers import CanineConfig, CanineModel

    config = CanineConfig(
        hidden_size=384, num_hidden_layers=2, num_attention_heads=6, intermediate_size=1536
    )
    characters = torch.randint(32, 127, (batch, 256))
    return Program(
        CanineModel(config),
        (),
        {"input_ids": characters, "attention_mask": torch.ones_like(characters)},
    )


def _dac(batch: int) -> Program:
    """A codec's encoder: convolutions of one dimension, x + sin(a x)^2 / a."""
    import torch
    from transformers import DacConfig, DacModel

    encoder = DacModel(DacConfig(encoder_hidden_size=32, decoder_hidden_size=256)).encoder
    return Program(encoder, (torch.randn(batch, 1, 4096),))


_LANDMARKS = {"segment_means_seq_len": 256}

#: name -> (library, what makes it for a batch).
NEW: dict[str, tuple[str, Callable[[int], Program]]] = {
    "nystromformer": ("transformers", _tokens(
        "NystromformerConfig", "NystromformerModel", 256, hidden_size=512, num_hidden_layers=2,
        num_attention_heads=8, intermediate_size=2048, **_LANDMARKS)),
    "gpt_bigcode": ("transformers", _causal(
        "GPTBigCode", 64, n_embd=512, n_layer=3, n_head=8, vocab_size=16_000)),
    "nemotron": ("transformers", _causal(
        "Nemotron", 64, hidden_size=512, intermediate_size=2048, num_hidden_layers=3,
        num_attention_heads=8, num_key_value_heads=4, vocab_size=16_000)),
    "canine": ("transformers", _canine),
    "cvt": ("transformers", _cvt),
    "swiftformer": ("timm", _images("timm", "swiftformer_xs", 224)),
    "nest": ("timm", _images("timm", "nest_tiny", 160, img_size=160)),
    "tnt": ("timm", _images("timm", "tnt_s_legacy_patch16_224", 224, depth=3)),
    "efficientvit": ("timm", _images("timm", "efficientvit_b0", 224)),
    "starnet": ("timm", _images("timm", "starnet_s1", 224)),
    "rexnet": ("timm", _images("timm", "rexnet_100", 160)),
    "dac": ("transformers", _dac),
}  # fmt: skip


def new_program(name: str, batch: int, dtype: str, training: bool) -> Program:
    """One of `NEW` or, with its own batch and dtype, of `MODELS`, with the same weights and inputs each
    time; dropout is 0."""
    import torch

    from benchmarks.model_program import SEED, import_library

    fixed = {model.name: model for model in MODELS}
    if name in fixed:
        return fixed[name].program()
    library, build = NEW[name]
    import_library(library)
    torch.manual_seed(SEED)
    program = build(batch)
    module: Any = program.function
    for part in module.modules():
        for field, value in vars(part).items():
            if isinstance(value, float) and ("drop" in field or field == "p"):
                setattr(part, field, 0.0)
    module.to(getattr(torch, dtype)).train(training)
    args = tuple(
        value.to(getattr(torch, dtype)) if value.is_floating_point() else value
        for value in program.args
    )
    return Program(module, args, program.kwargs)
