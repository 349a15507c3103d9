"""One row of the zoo: how to build a model and its inputs.

In: a name, a library and two builders. Out: `Animal`. What always holds: importing this imports
neither torch nor a model library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_SEED = 41


@dataclass(frozen=True, slots=True)
class Animal:
    """name: of the architecture. library: transformers, timm or torchvision. build(): the module.
    feed(): keyword arguments of one call, or a tuple of positional ones; random. breaks: why graphs
    have to break, for models that cannot be one graph. settles: what the first call leaves behind
    that the second finds (a cache is filled, hooks are installed): such a model is called once
    before it is compiled. train: whether it has a training forward."""

    name: str
    library: str
    build: Callable[[], Any]
    feed: Callable[[], Any]
    breaks: str = ""
    settles: str = ""
    train: bool = True

    def module(self, train: bool) -> torch.nn.Module:
        """The model with the same random weights each time."""
        import torch

        torch.manual_seed(_SEED)
        result: torch.nn.Module = self.build()
        result.train(train)
        if self.settles:
            args, kwargs = self.inputs(-1)
            with torch.no_grad():
                result(*args, **kwargs)
        return result

    def inputs(self, number: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of call `number`."""
        import torch

        torch.manual_seed(_SEED + 1 + number)
        fed = self.feed()
        return ((), fed) if isinstance(fed, dict) else (tuple(fed), {})


def image(size: int = 64, batch: int = 2) -> Callable[[], tuple[Any, ...]]:
    """One batch of images."""

    def feed() -> tuple[Any, ...]:
        import torch

        return (torch.randn(batch, 3, size, size),)

    return feed


def hugging(model: str, config: str, **settings: Any) -> Callable[[], Any]:
    """A model of transformers by class and configuration class."""

    def build() -> Any:
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**settings))

    return build
