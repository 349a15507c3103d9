"""Small random models of every architecture that transformers knows, made from its own default
configurations.

In: a model type of `transformers.CONFIG_MAPPING`. Out: a configuration with a few narrow layers,
without dropout. What always holds: nothing is written per architecture but `OVERRIDES`; lists with
an entry a layer keep an entry for each distinct kind of layer; sizes that were equal stay equal
where they are only scaled (`levels`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

VOCABULARY = 99
WIDTH, INNER, HEADS, HEAD = 64, 96, 4, 16
POSITIONS = 64

#: Levels of shrinking, tried in this order: every size; the same with sections of rotary embeddings
#: that are defaults of the code; the sizes of the usual names only; depth, vocabulary and pictures
#: only.
LEVELS = ("all", "sections", "usual", "depth")

#: Follow from other settings: left out, so that the configuration makes them anew.
_DERIVED = ("out_features", "out_indices", "_out_features", "_out_indices", "stage_names")

#: Settings of architectures whose rules between sizes have no common names. Dots lead into
#: sub-configurations.
_MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
}
OVERRIDES: dict[str, dict[str, Any]] = {
    "gptj": {"rotary_dim": 8},
    "codegen": {"rotary_dim": 8},
    "bamba": _MAMBA,
    "granitemoehybrid": _MAMBA,
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 128},
}

_KEEP = re.compile(r"kernel|feat_extract_layers|stride|^num_channels$|_channels_in$|num_labels|num_mel|mel_bins"
                   r"|^in_chans$|in_channels$|sampling_rate|_rank$|eps$|_every|^id2label|label2id|transformers_version"
                   r"|num_beams|^problem")  # fmt: skip
_LAYERS = re.compile(
    r"layers?$|^n_layer|^depth$|_depth$|num_blocks$|num_.*_blocks$|_layers$|^num_stacks$|layers_per_block$"
)
_HEADS = re.compile(r"heads?$")
_HEAD_DIM = re.compile(r"head_dim$|^d_kv$|_head_size$|^d_head$|head_width$|^kv_channels$")
_INNER = re.compile(r"intermediate|ffn|^d_ff$|^n_inner$|feedforward|mlp_dim|mlp_hidden|inner_dim|^d_inner$"
                    r"|feed_forward_(hidden_)?size")  # fmt: skip
_NO_WIDTH = re.compile(r"length|hop|rate|theta|base|fft|bins|freq|points|quer")
_WIDTH = re.compile(r"hidden_size|d_model|embed_dim|n_embd|hidden_dim|emb_dim|embedding_size|^dim$|model_dim|projection_dim"
                    r"|proj_dim|lru_width|_embed_size|hidden_channels|decoder_hidden|^hidden_units$|query_dim"
                    r"|embedding_dim")  # fmt: skip
_POSITIONS = re.compile(
    r"position|max_.*len|context_length|seq_len|^seq_length|max_source|max_target|max_text_len"
)
_PICTURE = re.compile(r"image_size|img_size|input_size|crop_size")
_EXPERTS = re.compile(r"^(num|n)_.*experts$|^num_experts$|^moe_num_experts$")
_CHOSEN = re.compile(r"experts_per_tok|top_?k")
_VOCABULARY = re.compile(r"vocab(_size)?$|vocab_size|codebook_size|num_embeddings")
_TOKEN = re.compile(r"token_id$|token_index$|token_ids$|token_id_list$|_token$|eos_ids?$")
_OFF = re.compile(
    r"drop|mask_time_prob|mask_feature_prob|jitter|^noise|noise_std|spec_augment_prob"
)


def configuration(kind: str, level: str) -> Any:
    """A configuration object of the model type. Raises what transformers raises where the sizes do
    not fit.
    """
    import transformers

    cls = transformers.CONFIG_MAPPING[kind]
    small = shrunk(cls().to_dict(), level)
    for path, value in OVERRIDES.get(kind, {}).items():
        *way, last = path.split(".")
        place = small
        for step in way:
            place = place[step]
        place[last] = value
    result = cls.from_dict(small)
    _set_everywhere(result, "use_cache", False)
    return result


def shrunk(
    settings: dict[str, Any], level: str = "all", tokens: Callable[[], int] | None = None
) -> dict[str, Any]:
    """The settings with small numbers. tokens: gives the next special token that fits the small
    vocabulary.
    """
    if tokens is None:
        left = iter(range(VOCABULARY - 1, 2, -1))
        tokens = lambda: next(left)
    chosen = _kept_layers(settings)
    small: dict[str, Any] = {}
    for key, value in settings.items():
        if key in _DERIVED or (
            key in ("hidden_size", "num_layers") and {"depths", "embed_dim"} <= settings.keys()
        ):
            continue
        if key == "per_layer_config" and isinstance(value, dict):
            kept = chosen[1] if chosen is not None else range(2)
            small[key] = {
                k: v
                for k, v in ((kept.index(int(k)), v) for k, v in value.items() if int(k) in kept)
            }
        elif (
            isinstance(value, dict)
            and not key.endswith(("2label", "2id"))
            and not key.startswith("rope")
        ):
            small[key] = shrunk(value, level, tokens)
        elif key.startswith("rope"):
            small[key] = _rope(value, settings, level)
        elif isinstance(value, (list, tuple)) and chosen is not None and len(value) == chosen[0]:
            small[key] = _small(
                key, type(value)(value[i] for i in chosen[1]), settings, level, tokens
            )
        else:
            small[key] = _small(key, value, settings, level, tokens)
    if chosen is not None:
        small[chosen[2]] = len(chosen[1])
    return small


def _kept_layers(settings: dict[str, Any]) -> tuple[int, list[int], str] | None:
    """(number of layers, those to keep: one of each kind and at least two, name of their
    number).
    """
    for name in ("num_hidden_layers", "num_layers", "n_layer", "n_layers"):
        count = settings.get(name)
        if isinstance(count, int) and count > 2 and "depths" not in settings:
            break
    else:
        return None
    lists = [v for v in settings.values() if isinstance(v, (list, tuple)) and len(v) == count]
    if not lists:
        return None
    kinds: dict[str, int] = {}
    for index in range(count):
        kinds.setdefault(
            repr([v[index] for v in lists if isinstance(v[index], (str, bool))]), index
        )
    keep = sorted(kinds.values())[:4]
    if len(keep) < 2:
        keep.append(next(i for i in range(count) if i not in keep))
    return count, sorted(keep), name


def _rope(value: Any, settings: dict[str, Any], level: str) -> Any:
    """Sections of multi-axis rotary embeddings follow the head's width."""
    if not isinstance(value, dict):
        return value
    small = {
        key: _rope(part, settings, level) if isinstance(part, dict) else part
        for key, part in value.items()
    }
    section = value.get("mrope_section")
    if section is None and level == "sections" and "rope_theta" in value:
        section = [1, 1, 1] if value.get("partial_rotary_factor") else [16, 24, 24]
    if section and level in ("all", "sections"):
        total = sum(section)
        half = int(HEAD * value.get("partial_rotary_factor", 1.0)) // 2
        scaled = [max(1, s * half // total) for s in section]
        scaled[-1] += half - sum(scaled)
        small["mrope_section"] = scaled
    return small


def _small(
    key: str, value: Any, settings: dict[str, Any], level: str, tokens: Callable[[], int]
) -> Any:
    if key == "prediction_length" and value is None:
        return 6
    if isinstance(value, bool) or value is None or isinstance(value, str):
        off = key in ("use_cache", "apply_spec_augment", "use_pretrained_backbone")
        return False if off and value else value
    if isinstance(value, float):
        return 0.0 if _OFF.search(key) else value
    if isinstance(value, (list, tuple)):
        return type(value)(_small_list(key, list(value), settings, level, tokens))
    if not isinstance(value, int):
        return value
    if _TOKEN.search(key):
        return value if value < 3 else tokens()
    if key == "codebook_size":
        return min(value, 64)  # a power of two
    if _VOCABULARY.search(key) and key != "type_vocab_size":
        return min(value, VOCABULARY)
    if _OFF.search(key) and value == 1:
        return 0
    if _EXPERTS.search(key):
        return min(value, 4)
    if _CHOSEN.search(key):
        return min(value, 2)
    if key in ("prediction_length",):
        return min(value, 8)
    if key in ("n_group", "topk_group"):
        return 1
    if _PICTURE.search(key):
        return _picture(settings, level)
    if key == "patch_size":
        return min(value, 16)
    if _POSITIONS.search(key) and value > POSITIONS:
        return POSITIONS
    if _KEEP.search(key):
        return value
    if _LAYERS.search(key):
        return min(value, 2)
    if "window" in key or (
        "chunk" in key
        and key not in ("chunk_size_feed_forward", "chunk_length", "chunk_right_context")
    ):
        return min(value, 4 if "image_size" in settings or "depths" in settings else 8)
    if level == "depth":
        return value
    if _HEADS.search(key):
        return min(
            value,
            2
            if re.search("kv|key_value|group", key) and value < _largest(settings, _HEADS)
            else HEADS,
        )
    if _HEAD_DIM.search(key):
        return min(value, HEAD)
    if _INNER.search(key):
        return min(value, INNER)
    if _WIDTH.search(key):
        return min(value, WIDTH)
    if level in ("all", "sections") and value > 128 and not _NO_WIDTH.search(key):
        return WIDTH
    if re.search("quer|points", key) and value > 16:
        return 16
    return value


def _small_list(
    key: str, value: list[Any], settings: dict[str, Any], level: str, tokens: Callable[[], int]
) -> list[Any]:
    if not value or not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
        return [
            _small_list(key, list(v), settings, level, tokens)
            if isinstance(v, (list, tuple))
            else v
            for v in value
        ]
    if _TOKEN.search(key):
        return [v if v < 3 else tokens() for v in value]
    if _PICTURE.search(key):
        return [_picture(settings, level)] * len(value)
    if re.search("depths?$|layers$|num_blocks|_blocks$|layer_repeats", key):
        return [min(v, 2) for v in value]
    if (
        level == "depth"
        or _KEEP.search(key)
        or re.search("patch|ratio|padd|window|indices|index|scales|dilat|idx", key)
    ):
        return value
    if _HEADS.search(key):
        least = min(value)
        return [max(1, v // least) for v in value]
    if min(value) >= 32 and re.search("dim|size|channel|width|embed|filters|planes", key):
        step = math.gcd(*value)
        unit = 16 if step >= 16 else step
        return [max(8, v * 32 // value[0] // unit * unit) for v in value]
    return value


def _largest(settings: dict[str, Any], names: re.Pattern[str]) -> int:
    result = [v for k, v in settings.items() if names.search(k) and isinstance(v, int)]
    return max(result, default=0)


def _picture(settings: dict[str, Any], level: str) -> int:
    patch = settings.get("patch_size")
    side = patch[-1] if isinstance(patch, (list, tuple)) and patch else patch
    if not isinstance(side, int) or side <= 0:
        return 64
    side = min(side, 16)
    if {"depths", "window_size"} <= settings.keys():
        return 128  # windows of 4 patches in four stages
    return 64 if 64 % side == 0 else 4 * side


def _set_everywhere(config: Any, name: str, value: Any) -> None:
    """In the configuration and in those inside it, where they have it."""
    for part in vars(config).values():
        if hasattr(part, "to_dict") and hasattr(part, "model_type"):
            _set_everywhere(part, name, value)
    if hasattr(config, name):
        try:
            setattr(config, name, value)
        except (AttributeError, NotImplementedError):  # a view of a sub-configuration's
            pass
