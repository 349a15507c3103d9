"""Models of timm.

In: nothing. Out: `ANIMALS`.
"""

from __future__ import annotations

from typing import Any

from benchmarks.zoo_models.animal import Animal, image


def _row(
    name: str, size: int = 64, *, breaks: str = "", settles: str = "", **settings: Any
) -> Animal:
    def build() -> Any:
        import timm

        return timm.create_model(name, pretrained=False, num_classes=10, **settings)

    return Animal(f"timm_{name}", "timm", build, image(size), breaks=breaks, settles=settles)


_CACHE = "a cache of biases is filled at the first call"

ANIMALS: tuple[Animal, ...] = (
    _row("efficientnet_b0"),
    _row("mobilenetv3_small_050"),
    _row("regnetx_002"),
    _row("resnest14d"),
    _row("nfnet_l0", 64),
    _row("maxvit_rmlp_pico_rw_256", 64, img_size=64),
    _row("levit_128s", 224, settles=_CACHE),
    _row("hrnet_w18_small", 64),
    _row("coat_lite_tiny", 64, img_size=64),
    _row("cait_xxs24_224", 64, img_size=64),
    _row("xcit_nano_12_p16_224", 64, img_size=64),
    _row("pvt_v2_b0", 64),
    _row("edgenext_xx_small", 64),
    _row("mixer_s32_224", 64, img_size=64),
    _row("gmlp_ti16_224", 64, img_size=64),
    _row("poolformer_s12", 64),
    _row("convmixer_768_32", 32, drop_rate=0.1),
    _row("visformer_tiny", 64, img_size=64),
    _row("eva02_tiny_patch14_224", 56, img_size=56),
    _row("ghostnet_050"),
    _row("repvgg_a0", 64),
    _row("ese_vovnet19b_slim", 64),
    _row("dla46_c", 64),
    _row("inception_v4", 96),
    _row("tresnet_m", 64),
    _row("fastvit_t8", 64),
    _row("efficientformer_l1", 224, settles=_CACHE),
    _row("twins_svt_small", 64, img_size=64),
    _row("volo_d1_224", 64, img_size=64),
    _row("beit_base_patch16_224", 64, img_size=64, depth=2),
)
