"""The models that are measured.

In: a name of `MODELS`. Out: a `Program`: something callable with the arguments of one call. What
always holds: weights are random and the same each time (one seed), nothing is downloaded, and
importing this module imports neither torch nor a model library, so that the time those take can be
measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks import cpu_models
from benchmarks.model_program import SEED, Model, Program, import_library, in_float64

if TYPE_CHECKING:
    import torch

__all__ = ["MODELS", "SEED", "Model", "Program", "choose", "import_library", "in_float64"]


# Builders -----------------------------------------------------------------------------------------


def _image(batch: int, size: int) -> torch.Tensor:
    import torch

    return torch.randn(batch, 3, size, size)


def _tokens(batch: int, length: int, vocabulary: int) -> torch.Tensor:
    import torch

    return torch.randint(0, vocabulary, (batch, length))


def trigonometry(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The first program of the seeds: cos(x) + sin(y)."""
    import torch

    a = torch.cos(x)
    b = torch.sin(y)
    return a + b


def _trigonometry() -> Program:
    import torch

    return Program(trigonometry, (torch.randn(10_000), torch.randn(10_000)))


def _torchvision(name: str, batch: int, size: int) -> Callable[[], Program]:
    def build() -> Program:
        from torchvision import models

        return Program(getattr(models, name)(), (_image(batch, size),))

    return build


def _timm(name: str, batch: int, size: int, **settings: Any) -> Callable[[], Program]:
    def build() -> Program:
        import timm

        return Program(timm.create_model(name, **settings), (_image(batch, size),))

    return build


def _bert(length: int, batch: int = 1) -> Callable[[], Program]:
    def build() -> Program:
        import torch
        from transformers import BertConfig, BertModel

        tokens = _tokens(batch, length, 30_000)
        # The three tensors that BertTokenizer returns.
        inputs = {
            "input_ids": tokens,
            "token_type_ids": torch.zeros_like(tokens),
            "attention_mask": torch.ones_like(tokens),
        }
        return Program(BertModel(BertConfig()), (), inputs)

    return build


#: Configurations of the causal models, by the transformers class: settings that differ from its
#: defaults.
_LLAMA = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 32_000,
}


def _causal(name: str, batch: int, length: int, **settings: Any) -> Callable[[], Program]:
    """A transformers language model with its head, without a cache. name: ``"GPT2"`` or
    ``"Llama"``."""

    def build() -> Program:
        import transformers

        config = getattr(transformers, f"{name}Config")(use_cache=False, **settings)
        model = getattr(
            transformers, f"{name}{'LMHeadModel' if name == 'GPT2' else 'ForCausalLM'}"
        )(config)
        return Program(model, (), {"input_ids": _tokens(batch, length, config.vocab_size)})

    return build


def _encoder(name: str, batch: int, length: int) -> Callable[[], Program]:
    """A transformers encoder that takes tokens and a mask. name: ``"DistilBert"`` or ``"T5"``
    (small)."""

    def build() -> Program:
        import torch
        import transformers

        t5 = {
            "d_model": 512,
            "d_kv": 64,
            "d_ff": 2048,
            "num_layers": 6,
            "num_heads": 8,
            "use_cache": False,
        }
        config = getattr(transformers, f"{name}Config")(**(t5 if name == "T5" else {}))
        model = getattr(transformers, "T5EncoderModel" if name == "T5" else f"{name}Model")(config)
        tokens = _tokens(batch, length, 30_000)
        return Program(model, (), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)})

    return build


def _lstm(batch: int) -> Callable[[], Program]:
    def build() -> Program:
        import torch

        return Program(
            torch.nn.LSTM(256, 256, num_layers=2, batch_first=True), (torch.randn(batch, 64, 256),)
        )

    return build


def _unet(batch: int) -> Callable[[], Program]:
    def build() -> Program:
        from benchmarks.training_models import unet

        return Program(unet(width=64, depth=3), (_image(batch, 128),))

    return build


def _scan(steps: int, batch: int) -> Callable[[], Program]:
    def build() -> Program:
        import torch
        from torch._higher_order_ops import scan

        class Recurrent(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.cell = torch.nn.RNNCell(32, 64)

            def forward(self, xs: torch.Tensor, h: torch.Tensor) -> Any:
                def step(h: torch.Tensor, x: torch.Tensor) -> Any:
                    h = self.cell(x, h)
                    return h, h.clone()

                return scan(step, h, xs)

        return Program(Recurrent(), (torch.randn(steps, batch, 32), torch.zeros(batch, 64)))

    return build


def _linear_recurrence(steps: int, width: int) -> Callable[[], Program]:
    def build() -> Program:
        import torch
        from torch._higher_order_ops import associative_scan

        def combine(x: Any, y: Any) -> Any:
            return x[0] * y[0], x[1] * y[0] + y[1]

        def recurrence(a: torch.Tensor, b: torch.Tensor) -> Any:
            return associative_scan(combine, (a.sigmoid(), b), 0, combine_mode="generic")

        return Program(recurrence, (torch.randn(steps, width), torch.randn(steps, width)))

    return build


_SEEDS = frozenset({"seeds"})
_MORE = frozenset({"more"})

_RESNET = _torchvision("resnet18", 1, 64)
_DENSENET = _torchvision("densenet121", 4, 128)
_RESNEXT = _timm("resnext101_32x8d", 64, 7, num_classes=2)

_IMAGES = {
    "resnet18": ("torchvision", 224),
    "resnet50": ("torchvision", 224),
    "mobilenet_v3_large": ("torchvision", 224),
    "densenet121": ("torchvision", 128),
    "resnext101_32x8d": ("torchvision", 128),
    "convnext_tiny": ("torchvision", 224),
    "vit_base_patch16_224": ("timm", 224),
    "swin_t": ("torchvision", 224),
}


def _peers(batch: int) -> list[Model]:
    """The models that are measured beside every peer, at one batch size."""
    texts: list[tuple[str, str, str, Callable[[], Program]]] = []
    for name, (library, size) in _IMAGES.items():
        build = (_timm if library == "timm" else _torchvision)(name, batch, size)
        texts.append((name, library, f"{name} {batch}×3×{size}×{size}", build))
    texts += [
        ("bert_base", "transformers", f"BERT-base {batch}×128", _bert(128, batch)),
        ("gpt2", "transformers", f"GPT-2 with its head {batch}×64", _causal("GPT2", batch, 64)),
        (
            "distilbert",
            "transformers",
            f"DistilBERT {batch}×128",
            _encoder("DistilBert", batch, 128),
        ),
        ("t5_small", "transformers", f"T5-small's encoder {batch}×128", _encoder("T5", batch, 128)),
        (
            "llama",
            "transformers",
            f"Llama-style, 4 layers, {batch}×64",
            _causal("Llama", batch, 64, **_LLAMA),
        ),
        ("lstm", "torch", f"LSTM 2×256 {batch}×64", _lstm(batch)),
        ("unet", "torch", f"U-Net {batch}×3×128×128", _unet(batch)),
    ]
    return [
        Model(
            f"{name}_b{batch}", library, build, title, groups=frozenset({"peers", f"peers{batch}"})
        )
        for name, library, title, build in texts
    ]


#: What `choose` takes: the issue's models of the demo, the seeds' own forms, more, those beside
#: every peer (all, by batch), depths, torch's scans, those for CPUs of several kinds.
GROUPS = (
    "issue", "seeds", "more", "peers", "peers1", "peers8", "depth", "scans", *cpu_models.GROUPS,
)  # fmt: skip

#: Layers of the GPT-2s whose compile times show how those grow with what repeats.
DEPTHS = (6, 12, 24, 48)

MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model("cos_sin", "torch", _trigonometry, "cos(x) + sin(y), 10,000"),
        Model("resnet18_64", "torchvision", _RESNET, "resnet18 1×3×64×64"),
        Model(
            "resnet18_224", "torchvision", _torchvision("resnet18", 4, 224), "resnet18 4×3×224×224"
        ),
        Model("densenet121_128", "torchvision", _DENSENET, "densenet121 4×3×128×128"),
        Model("bert_12", "transformers", _bert(12), "BERT-base 1×12"),
        Model("bert_128", "transformers", _bert(128), "BERT-base 1×128"),
        Model("resnext101_7", "timm", _RESNEXT, "resnext101_32x8d 64×3×7×7"),
        # As the seeds write them: torch.hub and timm give models in train mode, from_pretrained in
        # eval mode; only the densenet program uses no_grad.
        Model("resnet18_64_seed", "torchvision", _RESNET, "resnet18 1×3×64×64", True, True, _SEEDS),
        Model(
            "densenet121_128_seed",
            "torchvision",
            _DENSENET,
            "densenet121 4×3×128×128",
            True,
            False,
            _SEEDS,
        ),
        Model("bert_12_seed", "transformers", _bert(12), "BERT-base 1×12", False, True, _SEEDS),
        Model(
            "resnext101_7_seed", "timm", _RESNEXT, "resnext101_32x8d 64×3×7×7", True, True, _SEEDS
        ),
        Model(
            "gpt2_64",
            "transformers",
            _causal("GPT2", 1, 64),
            "GPT-2 with its head 1×64",
            groups=_MORE,
        ),
        Model(
            "llama_64",
            "transformers",
            _causal("Llama", 1, 64, **_LLAMA),
            "Llama-style, 4 layers, 1024 wide, 1×64",
            groups=_MORE,
        ),
        Model(
            "vit_tiny_224",
            "timm",
            _timm("vit_tiny_patch16_224", 1, 224),
            "ViT-tiny 1×3×224×224",
            groups=_MORE,
        ),
        Model("lstm_64", "torch", _lstm(8), "LSTM 2×256, 8×64", groups=_MORE),
        *(model for batch in (1, 8) for model in _peers(batch)),
        *cpu_models.MODELS,
        *(
            Model(
                f"gpt2_{layers}_layers",
                "transformers",
                _causal("GPT2", 1, 64, n_layer=layers),
                f"GPT-2 with {layers} layers 1×64",
                groups=frozenset({"depth"}),
            )
            for layers in DEPTHS
        ),
        *(
            Model(name, "torch", build, title, groups=frozenset({"scans"}))
            for name, build, title in (
                ("scan_rnn", _scan(1000, 8), "scan of an RNN cell, 1,000 steps, 8×64"),
                ("associative_scan", _linear_recurrence(4096, 64), "linear recurrence 4,096×64"),
            )
        ),
    )
}


def choose(names: Sequence[str], groups: Sequence[str]) -> list[Model]:
    """The models of these names; without names, those of the groups. SystemExit for an unknown
    name."""
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        raise SystemExit(f"no model {', '.join(unknown)}; one or more of: {' '.join(MODELS)}")
    if names:
        return [MODELS[name] for name in names]
    return [model for model in MODELS.values() if model.groups & set(groups)]
