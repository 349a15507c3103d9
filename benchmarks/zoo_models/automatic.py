"""Every architecture of transformers, every family of timm and of torchvision, small and with
random weights.

In: nothing, or a name such as ``transformers/bert``. Out: `names()`, and `find(name)`: a module in
train mode without dropout, and its inputs. What always holds: configurations and inputs are made
from what the libraries say of themselves (default configurations, signatures, registries); what
runs is the first of the candidates that eager runs, so what cannot be built raises `Unbuildable`
with eager's reasons; weights and inputs are the same each time.
"""

from __future__ import annotations

import functools
import inspect
import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_SEED = 41
#: More parameters than this are not small.
MAX_PARAMETERS = 40_000_000


class Unbuildable(Exception):
    """No candidate ran in eager mode. The text says why, one line a candidate."""


@dataclass(frozen=True, slots=True)
class Subject:
    """build(): the module in train mode, without dropout. feed(seed): arguments of one call, on the
    CPU. note: what was chosen."""

    build: Callable[[], torch.nn.Module]
    feed: Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]
    note: str = ""


def names() -> list[str]:
    """All, in an order that mixes the libraries and is the same each time."""
    result = [*_transformers_names(), *_timm_names(), *_torchvision_names(), *_zoo_names()]
    random.Random(0).shuffle(result)
    return result


def find(name: str) -> Subject:
    """The first candidate that runs in eager mode. Raises Unbuildable."""
    import torch

    library, _, kind = name.partition("/")
    reasons: list[str] = []
    for note, build, feed in _CANDIDATES[library](kind):
        try:
            torch.manual_seed(_SEED)
            module = _ready(build())
            if library == "transformers":
                feeds = list(_feeds(module))
            else:
                feeds = [("", feed)]
        except Exception as error:
            reasons.append(f"{note}: {type(error).__name__}: {_line(error)}")
            continue
        for more, item in feeds:
            try:
                _try(module, item)
            except Exception as error:
                reasons.append(f"{note} {more}: {type(error).__name__}: {_line(error)}")
                continue
            return Subject(_again(build), item, f"{note} {more}".strip())
    raise Unbuildable("\n".join(dict.fromkeys(reasons)) or "no candidate")


def _again(build: Callable[[], Any]) -> Callable[[], torch.nn.Module]:
    def built() -> torch.nn.Module:
        import torch

        torch.manual_seed(_SEED)
        return _ready(build())

    return built


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:160]


def _ready(module: torch.nn.Module) -> torch.nn.Module:
    """In train mode, in float32, without dropout of any kind."""
    from benchmarks.gradient_errors import without_dropout

    module = without_dropout(module.float().train())
    for parameter in module.parameters():
        parameter.requires_grad_(True)
    _spread(module)
    return module


def _spread(module: torch.nn.Module) -> None:
    """Parameters that start at one value (norms, scales, biases) get values around it, so that no
    gradient is trivially zero and equal copies of a layer differ. Those that a library leaves
    uninitialised (torch.empty) become small numbers."""
    import torch

    for name, parameter in module.named_parameters():
        result = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        with torch.no_grad():
            noise = torch.randn(parameter.shape, generator=result)
            if (
                not bool(parameter.isfinite().all())
                or float(parameter.abs().max() if parameter.numel() else 0) > 1e4
            ):
                parameter.copy_(noise * 0.02)
            elif parameter.numel() and bool((parameter == parameter.flatten()[0]).all()):
                parameter.add_(noise * 0.05)


def _try(
    module: torch.nn.Module, feed: Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]
) -> None:
    """One eager step. Raises where it does not run, or depends on no parameter."""
    import torch

    from benchmarks.gradient_errors import outputs_of

    args, kwargs = feed(0)
    torch.manual_seed(_SEED)
    parts = outputs_of(module(*args, **kwargs))
    parts = [p for p in parts if p.requires_grad]
    if not parts:
        raise ValueError("no output that depends on parameters")
    if not all(bool(p.isfinite().all()) for p in parts):
        raise ValueError("outputs that are not finite")
    torch.stack([p.float().square().mean() for p in parts]).sum().backward()
    module.zero_grad(set_to_none=True)


# transformers
# ----------------------------------------------------------------------------------------


def _transformers_names() -> list[str]:
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return [f"transformers/{kind}" for kind in MODEL_MAPPING_NAMES]


def _transformers(kind: str) -> Iterator[tuple[str, Callable[[], Any], Any]]:
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    from benchmarks.zoo_models.small_configs import LEVELS, configuration

    name = MODEL_MAPPING_NAMES[kind]
    name = name if isinstance(name, str) else name[0]
    cls = getattr(transformers, name)

    for level in LEVELS:

        def build(level: str = level) -> Any:
            import torch

            config = configuration(kind, level)
            with torch.device("meta"):
                size = sum(p.numel() for p in cls(config).parameters())
            if size > MAX_PARAMETERS:
                raise ValueError(f"{size / 1e6:.0f} million parameters")
            return cls(configuration(kind, level))

        yield level, build, None


def _feeds(
    module: Any,
) -> Iterator[tuple[str, Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]]]:
    """Candidates for the arguments of a model of transformers, by the names in its signature."""
    parameters = inspect.signature(module.forward).parameters
    required = [
        n for n, p in parameters.items()
        if p.default is inspect.Parameter.empty and p.kind in (p.POSITIONAL_OR_KEYWORD,
        p.KEYWORD_ONLY)
    ]  # fmt: skip
    main = getattr(module, "main_input_name", "input_ids")
    main = main if main in parameters else next(iter(required or parameters))
    from benchmarks.zoo_models.small_inputs import Inputs

    inputs = Inputs(module.config)
    often = (
        "decoder_input_ids",
        "decoder_input_values",
        "bbox",
        "input_points",
        "visual_embeds",
        "visual_feats",
        "visual_pos",
    )
    usual = [
        n for n in often
        if n in parameters and (not n.startswith("decoder") or module.config.is_encoder_decoder)
    ]  # fmt: skip
    sets = [
        [main, *required, *usual, "attention_mask"], [main, *required, *usual], [main, *required],
        required,
        [main, *required, "decoder_input_ids"], ["input_ids", "pixel_values", *required],
        ["pixel_values"], ["input_ids"],
    ]  # fmt: skip
    seen = set()
    for wanted in sets:
        wanted = tuple(dict.fromkeys(n for n in wanted if n in parameters))
        if "input_ids" not in wanted:  # of pictures and sound a mask has another length
            wanted = tuple(n for n in wanted if n != "attention_mask")
        if wanted in seen or not wanted:
            continue
        seen.add(wanted)
        for variant in range(max(inputs.variants(name) for name in wanted)):

            def feed(seed: int, wanted: tuple[str, ...] = wanted, variant: int = variant) -> Any:
                import torch

                torch.manual_seed(_SEED + 1 + seed)
                return (), {name: inputs.make(name, variant) for name in wanted}

            yield f"{','.join(wanted)}#{variant}", feed


# timm
# ------------------------------------------------------------------------------------------------


def _timm_names() -> list[str]:
    """The smallest model of each module, by name: sizes are in the names, and building all to count
    takes an hour.
    """
    import timm

    result = []
    for module in timm.list_modules():
        models = timm.list_models(module=module)
        if models:
            result.append(f"timm/{min(models, key=_size_by_name)}")
    return sorted(set(result))


_SIZES = (
    "test", "zepto", "atto", "femto", "pico", "nano", "xxs", "xx_small", "tiny", "mini", "xs",
    "x_small", "_t", "_s", "small",
    "_ti", "18", "050", "a0", "b0", "_0", "26", "14d", "50",
)  # fmt: skip


def _size_by_name(name: str) -> tuple[int, int, str]:
    rank = next((i for i, word in enumerate(_SIZES) if word in name), len(_SIZES))
    large = sum(word in name for word in ("large", "base", "huge", "giant", "_in21k", "152", "101"))
    return large, rank, name


def _timm(name: str) -> Iterator[tuple[str, Callable[[], Any], Any]]:
    import timm

    for size in (64, 96, 128, 224, 256):
        for settings in ({"img_size": size}, {}):

            def build(settings: dict[str, Any] = settings) -> Any:
                return timm.create_model(name, pretrained=False, num_classes=10, **settings)

            yield f"{size}{' img_size' if settings else ''}", build, _pictures(2, 3, size, size)


def _pictures(*shape: int) -> Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]:
    def feed(seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        import torch

        torch.manual_seed(_SEED + 1 + seed)
        return (torch.randn(shape),), {}

    return feed


# torchvision
# -----------------------------------------------------------------------------------------


def _torchvision_names() -> list[str]:
    """The first (smallest) model of each module and builder family, detection, segmentation, video
    and flow too.
    """
    import torchvision

    result: dict[tuple[str, str], str] = {}
    for name in torchvision.models.list_models():
        if name.startswith("quantized_"):
            continue
        module = inspect.unwrap(torchvision.models.get_model_builder(name)).__module__
        family = (
            name
            if "detection" in module or "segmentation" in module
            else module + name.rstrip("0123456789_.xgmfsblthwd")
        )
        result.setdefault((module, family), name)
    return [f"torchvision/{name}" for name in result.values()]


def _torchvision(name: str) -> Iterator[tuple[str, Callable[[], Any], Any]]:
    import torchvision

    module = inspect.unwrap(torchvision.models.get_model_builder(name)).__module__
    settings: dict[str, Any] = {"weights": None}
    parameters = inspect.signature(torchvision.models.get_model_builder(name)).parameters
    if "weights_backbone" in parameters:
        settings["weights_backbone"] = None
    if "num_classes" in parameters:
        settings["num_classes"] = 10
    if name in ("googlenet", "inception_v3"):
        settings["init_weights"] = False

    def build(**more: Any) -> Any:
        return torchvision.models.get_model(name, **settings, **more)

    if "detection" in module:
        yield "detection", lambda: build(trainable_backbone_layers=None), _scenes
    elif "optical_flow" in module:
        yield "pair", build, _pairs
    elif ".video" in module:
        for frames, size in ((4, 32), (8, 64), (16, 112), (16, 224)):
            yield f"{frames}x{size}", build, _pictures(2, 3, frames, size, size)
    else:
        for size in (64, 96, 128, 224):
            if name.startswith(("vit_", "maxvit")):
                inputs = (
                    {"image_size": size}
                    if name.startswith("vit_")
                    else {"input_size": (size, size)}
                )
                yield f"for {size}", functools.partial(build, **inputs), _pictures(2, 3, size, size)
            yield str(size), build, _pictures(2, 3, size, size)


def _scenes(seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Two pictures with two boxes each."""
    import torch

    torch.manual_seed(_SEED + 1 + seed)
    pictures = [torch.rand(3, 96, 128), torch.rand(3, 112, 96)]
    targets = []
    for picture in pictures:
        corner = torch.rand(2, 2) * 40
        boxes = torch.cat([corner, corner + 10 + torch.rand(2, 2) * 40], 1)
        masks = torch.zeros(2, *picture.shape[1:], dtype=torch.uint8)
        masks[:, 20:60, 20:60] = 1
        targets.append({
            "boxes": boxes, "labels": torch.randint(1, 9, (2,)), "masks": masks,
            "keypoints": torch.cat([boxes[:, None, :2] + torch.rand(2, 17, 2) * 10, torch.ones(2,
            17, 1)], 2),
        })  # fmt: skip
    return (pictures, targets), {}


def _pairs(seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import torch

    torch.manual_seed(_SEED + 1 + seed)
    return (torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128), 2), {}


# the zoo
# ---------------------------------------------------------------------------------------------


def _zoo_names() -> list[str]:
    """The zoo's models of transformers: with heads, and with settings chosen by hand."""
    from benchmarks.zoo_models import ZOO

    return [
        f"zoo/{name}"
        for name, animal in ZOO.items()
        if animal.library == "transformers" and animal.train
    ]


def _zoo(name: str) -> Iterator[tuple[str, Callable[[], Any], Any]]:
    from benchmarks.zoo_models import ZOO

    animal = ZOO[name]
    yield "", lambda: animal.module(train=True), lambda seed: animal.inputs(seed)


_CANDIDATES: dict[str, Callable[[str], Iterator[tuple[str, Callable[[], Any], Any]]]] = {
    "transformers": _transformers,
    "timm": _timm,
    "torchvision": _torchvision,
    "zoo": _zoo,
}
