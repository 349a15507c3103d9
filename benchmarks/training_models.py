"""The models that are trained, with a loss.

In: a name of `TRAINED` (small: judged by errors, step for step) or of `TIMED` (of usual sizes:
judged by seconds and memory). Out: a `Trained`: a module in train mode and the loss of a batch.
What always holds: weights and batches are the same each time; dropout is off in `TRAINED`, because
its masks in float64 are others than in float32, and as the model's authors have it in `TIMED`;
importing this module imports neither torch nor a model library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.models import SEED, import_library

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Trained:
    """library: what `build` needs beside torch. build: () -> module. batch: () -> (inputs, target).
    loss: what the module returned and the target -> scalar."""

    library: str
    title: str
    build: Callable[[], Any]
    batch: Callable[[], tuple[Any, Any]]
    loss: Callable[[Any, Any], Any]

    def make(self) -> tuple[torch.nn.Module, list[tuple[Any, Any]]]:
        """The module in train mode, and batches for the steps, which take turns."""
        import torch

        import_library(self.library)
        torch.manual_seed(SEED)
        module = self.build().train()
        return module, [self.batch() for _ in range(4)]


def _images(count: int, size: int, classes: int) -> Callable[[], tuple[Any, Any]]:
    def batch() -> tuple[Any, Any]:
        import torch

        return torch.randn(count, 3, size, size), torch.randint(0, classes, (count,))

    return batch


def _tokens(count: int, length: int, vocabulary: int) -> Callable[[], tuple[Any, Any]]:
    def batch() -> tuple[Any, Any]:
        import torch

        tokens = torch.randint(0, vocabulary, (count, length))
        return tokens, tokens.roll(-1, 1)

    return batch


def _cross_entropy(outputs: Any, target: Any) -> Any:
    """The tutorial's loss, over the last dimension of logits."""
    import torch

    logits = outputs if isinstance(outputs, torch.Tensor) else outputs[0]
    return torch.nn.CrossEntropyLoss()(logits.flatten(0, -2), target.flatten())


def _square(outputs: Any, target: Any) -> Any:
    import torch

    value = outputs if isinstance(outputs, torch.Tensor) else outputs[0]
    return torch.nn.functional.mse_loss(value, target)


def _torchvision(name: str) -> Callable[[], Any]:
    def build() -> Any:
        from torchvision import models

        return getattr(models, name)()

    return build


def _transformers(name: str, config: str, **settings: Any) -> Callable[[], Any]:
    def build() -> Any:
        import transformers

        return getattr(transformers, name)(getattr(transformers, config)(**settings))

    return build


def _timm(name: str, **settings: Any) -> Callable[[], Any]:
    def build() -> Any:
        import timm

        return timm.create_model(name, **settings)

    return build


def _lstm(inputs: int, hidden: int) -> Callable[[], Any]:
    def build() -> Any:
        import torch

        return torch.nn.LSTM(inputs, hidden, num_layers=2, batch_first=True)

    return build


def _random(inputs: Sequence[int], target: Sequence[int]) -> Callable[[], tuple[Any, Any]]:
    def batch() -> tuple[Any, Any]:
        import torch

        return torch.randn(*inputs), torch.randn(*target)

    return batch


def unet(width: int = 16, depth: int = 3) -> Any:
    """A U-Net for pictures of three channels; sides divisible by 2 ** depth."""
    import torch
    from torch import nn

    def block(before: int, after: int) -> Any:
        return nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True),
        )  # fmt: skip

    class UNet(nn.Module):
        """Ronneberger et al., 2015, with padding and batch norm."""

        def __init__(self) -> None:
            super().__init__()
            sizes = [width * 2**level for level in range(depth + 1)]
            self.down = nn.ModuleList(block(a, b) for a, b in zip([3, *sizes], sizes, strict=False))
            self.up = nn.ModuleList(
                nn.ConvTranspose2d(2 * s, s, 2, stride=2) for s in reversed(sizes[:-1])
            )
            self.join = nn.ModuleList(block(2 * s, s) for s in reversed(sizes[:-1]))
            self.head = nn.Conv2d(width, 3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept = []
            for level, down in enumerate(self.down):
                x = down(x if level == 0 else nn.functional.max_pool2d(x, 2))
                kept.append(x)
            kept.pop()
            for up, join in zip(self.up, self.join, strict=True):
                x = join(torch.cat([kept.pop(), up(x)], 1))
            out: torch.Tensor = self.head(x)
            return out

    return UNet()


_MLM, _GPT2 = ("BertForMaskedLM", "BertConfig"), ("GPT2LMHeadModel", "GPT2Config")
_SMALL = {"vocab_size": 2000}
_BERT_SMALL = {
    "num_hidden_layers": 4,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    **_SMALL,
}
_GPT2_SMALL = {"n_layer": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
"use_cache": False,
               "bos_token_id": 0, "eos_token_id": 0, **_SMALL}  # fmt: skip


def _images_of(name: str, count: int, size: int) -> Trained:
    """An image classifier of torchvision."""
    title = f"{name} {count}×3×{size}×{size}"
    return Trained(
        "torchvision", title, _torchvision(name), _images(count, size, 1000), _cross_entropy
    )


def _text(
    title: str, names: tuple[str, str], batch: tuple[int, int, int], **settings: Any
) -> Trained:
    """A language model of transformers. batch: count, length, vocabulary."""
    return Trained(
        "transformers", title, _transformers(*names, **settings), _tokens(*batch), _cross_entropy
    )


TRAINED: dict[str, Trained] = {
    "densenet121": _images_of("densenet121", 4, 64),
    "resnet18": _images_of("resnet18", 4, 64),
    "bert": _text("BERT, 4 layers, 4×32", _MLM, (4, 32, 2000), **_BERT_SMALL),
    "gpt2": _text("GPT-2, 4 layers, 4×32", _GPT2, (4, 32, 2000), **_GPT2_SMALL),
    "vit": Trained("timm", "ViT-tiny 4×3×64×64", _timm("vit_tiny_patch16_224", img_size=64,
    num_classes=1000),
                   _images(4, 64, 1000), _cross_entropy),
    "lstm": Trained("torch", "LSTM 2×128, 8×32", _lstm(64, 128), _random((8, 32, 64), (8, 32,
    128)), _square),
    "unet": Trained("torch", "U-Net 2×3×64×64", unet, _random((2, 3, 64, 64), (2, 3, 64, 64)),
    _square),
}  # fmt: skip

#: Training steps whose speed and memory are compared.
TIMED: dict[str, Trained] = {
    "resnet18_64": _images_of("resnet18", 4, 64),
    "resnet18_224": _images_of("resnet18", 4, 224),
    "densenet121": _images_of("densenet121", 4, 128),
    "bert_base": _text("BERT-base 4×128", _MLM, (4, 128, 30522)),
    "gpt2_small": _text("GPT-2 small 2×128", _GPT2, (2, 128, 50257), use_cache=False),
    "vit_base": Trained("timm", "ViT-B/16 2×3×224×224", _timm("vit_base_patch16_224"), _images(2,
    224, 1000),
                        _cross_entropy),
    "lstm_512": Trained("torch", "LSTM 2×512, 16×64", _lstm(512, 512), _random((16, 64, 512), (16,
    64, 512)), _square),
    "unet_31m": Trained("torch", "U-Net, 31 M parameters, 1×3×128×128", lambda: unet(64, 4),
                        _random((1, 3, 128, 128), (1, 3, 128, 128)), _square),
}  # fmt: skip
