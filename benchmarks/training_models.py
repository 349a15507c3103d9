"""The models that are trained, with a loss.

In: a name of `TRAINED` (small: judged by errors, step for step) or of `TIMED` (of usual sizes:
judged by seconds and memory). Out: a `Trained`: a module in train mode and the loss of a batch.
What always holds: weights and batches are the same each time; dropout is off in `TRAINED`, because
its masks in float64 are others than in float32, and as the model's authors have it in `TIMED`;
importing this module imports neither torch nor a model library.
"""

from __future__ import annotations

from collections.abc import Callable
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


def _bert() -> Any:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            num_hidden_layers=4,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            vocab_size=2000,
        )
    )


def _gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(n_layer=4, vocab_size=2000, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        use_cache=False,
                   bos_token_id=0, eos_token_id=0)
    )  # fmt: skip


def _vit() -> Any:
    import timm

    return timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=1000)


def _lstm() -> Any:
    import torch

    return torch.nn.LSTM(64, 128, num_layers=2, batch_first=True)


def _lstm_batch() -> tuple[Any, Any]:
    import torch

    return torch.randn(8, 32, 64), torch.randn(8, 32, 128)


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


def _pictures(count: int, size: int) -> Callable[[], tuple[Any, Any]]:
    def batch() -> tuple[Any, Any]:
        import torch

        return torch.randn(count, 3, size, size), torch.randn(count, 3, size, size)

    return batch


def _bert_base() -> Any:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig())


def _gpt2_small() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(use_cache=False))


def _vit_base() -> Any:
    import timm

    return timm.create_model("vit_base_patch16_224")


def _wide_lstm() -> Any:
    import torch

    return torch.nn.LSTM(512, 512, num_layers=2, batch_first=True)


def _sequences(count: int, length: int, width: int) -> Callable[[], tuple[Any, Any]]:
    def batch() -> tuple[Any, Any]:
        import torch

        return torch.randn(count, length, width), torch.randn(count, length, width)

    return batch


TRAINED: dict[str, Trained] = {
    "densenet121": Trained(
        "torchvision",
        "densenet121 4×3×64×64",
        _torchvision("densenet121"),
        _images(4, 64, 1000),
        _cross_entropy,
    ),
    "resnet18": Trained(
        "torchvision",
        "resnet18 4×3×64×64",
        _torchvision("resnet18"),
        _images(4, 64, 1000),
        _cross_entropy,
    ),
    "bert": Trained(
        "transformers", "BERT, 4 layers, 4×32", _bert, _tokens(4, 32, 2000), _cross_entropy
    ),
    "gpt2": Trained(
        "transformers", "GPT-2, 4 layers, 4×32", _gpt2, _tokens(4, 32, 2000), _cross_entropy
    ),
    "vit": Trained("timm", "ViT-tiny 4×3×64×64", _vit, _images(4, 64, 1000), _cross_entropy),
    "lstm": Trained("torch", "LSTM 2×128, 8×32", _lstm, _lstm_batch, _square),
    "unet": Trained("torch", "U-Net 2×3×64×64", unet, _pictures(2, 64), _square),
}

#: Training steps whose speed and memory are compared.
TIMED: dict[str, Trained] = {
    "resnet18_64": Trained(
        "torchvision",
        "resnet18 4×3×64×64",
        _torchvision("resnet18"),
        _images(4, 64, 1000),
        _cross_entropy,
    ),
    "resnet18_224": Trained(
        "torchvision",
        "resnet18 4×3×224×224",
        _torchvision("resnet18"),
        _images(4, 224, 1000),
        _cross_entropy,
    ),
    "densenet121": Trained(
        "torchvision",
        "densenet121 4×3×128×128",
        _torchvision("densenet121"),
        _images(4, 128, 1000),
        _cross_entropy,
    ),
    "bert_base": Trained(
        "transformers", "BERT-base 4×128", _bert_base, _tokens(4, 128, 30522), _cross_entropy
    ),
    "gpt2_small": Trained(
        "transformers", "GPT-2 small 2×128", _gpt2_small, _tokens(2, 128, 50257), _cross_entropy
    ),
    "vit_base": Trained(
        "timm", "ViT-B/16 2×3×224×224", _vit_base, _images(2, 224, 1000), _cross_entropy
    ),
    "lstm_512": Trained("torch", "LSTM 2×512, 16×64", _wide_lstm, _sequences(16, 64, 512), _square),
    "unet_31m": Trained(
        "torch",
        "U-Net, 31 M parameters, 1×3×128×128",
        lambda: unet(64, 4),
        _pictures(1, 128),
        _square,
    ),
}
