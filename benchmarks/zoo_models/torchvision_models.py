"""Models of torchvision: classification, segmentation, video, optical flow.

In: nothing. Out: `ANIMALS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.zoo_models.animal import Animal, image


def _row(name: str, feed: Callable[[], Any] | None = None, *, folder: str = "models",
breaks: str = "",
         **settings: Any) -> Animal:  # fmt: skip
    def build() -> Any:
        import torchvision

        place = torchvision.models if folder == "models" else getattr(torchvision.models, folder)
        classes = {} if folder == "optical_flow" else {"num_classes": 10}
        return getattr(place, name)(weights=None, **classes, **settings)

    return Animal(f"tv_{name}", "torchvision", build, feed or image(64), breaks=breaks)


def _clip() -> tuple[Any, ...]:
    import torch

    return (torch.randn(1, 3, 4, 32, 32),)


def _pair() -> tuple[Any, ...]:
    import torch

    return torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128), 2


ANIMALS: tuple[Animal, ...] = (
    _row("resnet18"),
    _row("densenet121"),
    _row("vgg11_bn"),
    _row("squeezenet1_1"),
    _row("googlenet", init_weights=False),
    _row("inception_v3", image(128), aux_logits=False, init_weights=False),
    _row("shufflenet_v2_x0_5"),
    _row("mnasnet0_5"),
    _row("efficientnet_v2_s"),
    _row("convnext_tiny"),
    _row("swin_t"),
    _row("swin_v2_t"),
    _row("vit_b_16", image(32, 1), image_size=32),
    _row("alexnet"),
    _row("mobilenet_v2"),
    _row("deeplabv3_mobilenet_v3_large", folder="segmentation", weights_backbone=None),
    _row("fcn_resnet50", folder="segmentation", weights_backbone=None),
    _row("lraspp_mobilenet_v3_large", folder="segmentation", weights_backbone=None),
    _row("r3d_18", _clip, folder="video"),
    _row("mc3_18", _clip, folder="video"),
    _row("raft_small", _pair, folder="optical_flow"),
)
