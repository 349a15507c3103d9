"""The models that are measured.

In: a name of `MODELS`. Out: a `Program`: something callable with the arguments of one call. What always
holds: weights are random and the same each time (one seed), nothing is downloaded, and importing this
module imports neither torch nor a model library, so that the time those take can be measured.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SEED = 20


@dataclass(frozen=True, slots=True)
class Program:
    """One call: ``function(*args, **kwargs)``."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def call(self, function: Callable[..., Any] | None = None) -> Any:
        """Calls the program's function, or `function` (a compiled form of it) with the same arguments."""
        return (self.function if function is None else function)(*self.args, **self.kwargs)


@dataclass(frozen=True, slots=True)
class Model:
    """A row. name: how it is chosen. library: the module that `build` needs, beside torch. build: makes the
    program, in eval mode. title: for tables. train: in train mode. grad: called with grad mode on.
    groups: ``"issue"`` (the models of the demo), ``"seeds"`` (as the seeds write them), ``"more"``."""

    name: str
    library: str
    build: Callable[[], Program]
    title: str
    train: bool = False
    grad: bool = False
    groups: frozenset[str] = frozenset({"issue"})

    def program(self) -> Program:
        """Builds it, with the same weights and inputs each time, in the row's mode."""
        import torch

        import_library(self.library)
        torch.manual_seed(SEED)
        program = self.build()
        if isinstance(program.function, torch.nn.Module):
            program.function.train(self.train)
        return program

    def mode(self) -> AbstractContextManager[Any]:
        """The grad mode of the row, to be entered round its calls."""
        import torch

        return contextlib.nullcontext() if self.grad else torch.no_grad()

    @property
    def modes(self) -> str:
        """``eval, no_grad`` and so on."""
        return f"{'train' if self.train else 'eval'}, {'grad' if self.grad else 'no_grad'}"


def import_library(name: str) -> None:
    """Imports what the builders of a library need."""
    if name != "torch":  # transformers imports torchvision, and timm does
        from tests.support import torchvision_ops

        torchvision_ops.define()
        __import__(_IMPORTS[name])


#: What a user's ``from transformers import BertModel`` imports; the package alone is lazy.
_IMPORTS = {
    "torchvision": "torchvision.models",
    "timm": "timm.models",
    "transformers": "transformers.models.bert.modeling_bert",
}


def in_float64(program: Program) -> Program:
    """A copy of the program that computes in float64: the truth that errors are measured against."""
    import torch

    function = program.function
    if isinstance(function, torch.nn.Module):
        function = copy.deepcopy(function).double()
    return Program(
        function,
        tuple(_double(value) for value in program.args),
        {name: _double(value) for name, value in program.kwargs.items()},
    )


def _double(value: Any) -> Any:
    import torch

    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


# Builders --------------------------------------------------------------------------------------------


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


def _bert(length: int) -> Callable[[], Program]:
    def build() -> Program:
        import torch
        from transformers import BertConfig, BertModel

        tokens = _tokens(1, length, 30_000)
        # The three tensors that BertTokenizer returns.
        inputs = {
            "input_ids": tokens,
            "token_type_ids": torch.zeros_like(tokens),
            "attention_mask": torch.ones_like(tokens),
        }
        return Program(BertModel(BertConfig()), (), inputs)

    return build


def _gpt2() -> Program:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(use_cache=False)
    return Program(GPT2LMHeadModel(config), (), {"input_ids": _tokens(1, 64, config.vocab_size)})


def _llama() -> Program:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=16,
        vocab_size=32_000,
        use_cache=False,
    )
    return Program(LlamaForCausalLM(config), (), {"input_ids": _tokens(1, 64, config.vocab_size)})


def _lstm() -> Program:
    import torch

    return Program(torch.nn.LSTM(256, 256, num_layers=2, batch_first=True), (torch.randn(8, 64, 256),))


_SEEDS = frozenset({"seeds"})
_MORE = frozenset({"more"})

_RESNET = _torchvision("resnet18", 1, 64)
_DENSENET = _torchvision("densenet121", 4, 128)
_RESNEXT = _timm("resnext101_32x8d", 64, 7, num_classes=2)

MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model("cos_sin", "torch", _trigonometry, "cos(x) + sin(y), 10,000"),
        Model("resnet18_64", "torchvision", _RESNET, "resnet18 1×3×64×64"),
        Model("resnet18_224", "torchvision", _torchvision("resnet18", 4, 224), "resnet18 4×3×224×224"),
        Model("densenet121_128", "torchvision", _DENSENET, "densenet121 4×3×128×128"),
        Model("bert_12", "transformers", _bert(12), "BERT-base 1×12"),
        Model("bert_128", "transformers", _bert(128), "BERT-base 1×128"),
        Model("resnext101_7", "timm", _RESNEXT, "resnext101_32x8d 64×3×7×7"),
        # As the seeds write them: torch.hub and timm give models in train mode, from_pretrained in eval
        # mode; only the densenet program uses no_grad.
        Model("resnet18_64_seed", "torchvision", _RESNET, "resnet18 1×3×64×64", True, True, _SEEDS),
        Model(
            "densenet121_128_seed", "torchvision", _DENSENET, "densenet121 4×3×128×128", True, False, _SEEDS
        ),
        Model("bert_12_seed", "transformers", _bert(12), "BERT-base 1×12", False, True, _SEEDS),
        Model("resnext101_7_seed", "timm", _RESNEXT, "resnext101_32x8d 64×3×7×7", True, True, _SEEDS),
        Model("gpt2_64", "transformers", _gpt2, "GPT-2 with its head 1×64", groups=_MORE),
        Model("llama_64", "transformers", _llama, "Llama-style, 4 layers, 1024 wide, 1×64", groups=_MORE),
        Model(
            "vit_tiny_224",
            "timm",
            _timm("vit_tiny_patch16_224", 1, 224),
            "ViT-tiny 1×3×224×224",
            groups=_MORE,
        ),
        Model("lstm_64", "torch", _lstm, "LSTM 2×256, 8×64", groups=_MORE),
    )
}


def choose(names: Sequence[str], groups: Sequence[str]) -> list[Model]:
    """The models of these names; without names, those of the groups. SystemExit for an unknown name."""
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        raise SystemExit(f"no model {', '.join(unknown)}; one or more of: {' '.join(MODELS)}")
    if names:
        return [MODELS[name] for name in names]
    return [model for model in MODELS.values() if model.groups & set(groups)]
