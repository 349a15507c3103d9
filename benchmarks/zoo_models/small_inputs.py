"""Arguments for models of transformers, by the names that their forwards give them.

In: a small configuration. Out: `Inputs.make(name, variant)`, random. What always holds: a name has
one or more variants (layouts that architectures disagree on), and the caller takes the first that
eager runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

BATCH, LENGTH = 2, 10


class Inputs:
    """Arguments that fit a configuration."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def variants(self, name: str) -> int:
        """How many layouts of an argument there are."""
        return len(self._makers(name))

    def make(self, name: str, variant: int) -> Any:
        """A value for the argument."""
        makers = self._makers(name)
        return makers[min(variant, len(makers) - 1)]()

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of these settings in the configuration or in those inside it."""
        for config in _nested(self.config):
            for name in names:
                value = getattr(config, name, None)
                if value is not None:
                    return value
        return default

    def _makers(self, name: str) -> list[Callable[[], Any]]:
        import torch

        number, side = self.get("num_channels", "in_channels", "in_chans", default=3), self._side()
        mel = self.get(
            "num_mel_bins",
            "feature_size",
            "n_mels",
            "mel_bins",
            "input_feat_per_channel",
            "num_bins",
            default=80,
        )
        width = self.get("hidden_size", "d_model", default=64)
        frames = self.get("num_frames", "frames_per_clip", default=4)
        length = self.get("max_source_positions", default=32) * 2
        if not isinstance(number, int):
            number = 3
        patch = self.get("patch_size", default=16)
        patch = patch if isinstance(patch, int) else patch[-1]
        temporal = self.get("temporal_patch_size", default=1)
        flat = number * patch * patch * (temporal if isinstance(temporal, int) else 1)
        grid = lambda: torch.tensor([[1, 4, 4]])
        pictures = [
            lambda: torch.randn(BATCH, number, side, side),
            lambda: torch.randn(1, frames, number, side, side),
            lambda: torch.randn(BATCH, 1, number, side, side),
            lambda: torch.randn(BATCH, number, 224, 224),
            lambda: torch.randn(16, flat),
            lambda: torch.randn(BATCH, 16, flat),
            lambda: torch.randn(1, number, frames, side, side),
        ]
        sounds = [
            lambda: torch.randn(BATCH, 2000),
            lambda: torch.randn(BATCH, 1, 2000),
            lambda: torch.randn(BATCH, self.get("max_length", default=64), mel),
            lambda: self._ids(),
            lambda: torch.randn(BATCH, 1, 9600),
        ]
        features = [
            lambda: torch.randn(BATCH, length, mel),
            lambda: torch.randn(BATCH, mel, length),
            lambda: torch.randn(BATCH, 1, length, mel),
            lambda: torch.randn(BATCH, 64, mel),
            lambda: torch.randn(BATCH, mel, 64),
            lambda: torch.randn(BATCH, 1, mel, 64),
            lambda: torch.randn(BATCH, 200, mel),
        ]
        result: dict[str, list[Callable[[], Any]]] = {
            "pixel_values": pictures,
            "pixel_values_videos": [pictures[1], pictures[4], pictures[6]],
            "input_values": sounds,
            "input_features": features,
            "audio_values": sounds,
            "input_modal": pictures,
            "hidden_states": [
                lambda: torch.randn(BATCH, LENGTH, width), lambda: torch.randn(16, flat),
                *pictures[:1],
            ],
            "inputs_embeds": [lambda: torch.randn(BATCH, LENGTH, width)],
            "encoder_hidden_states": [lambda: torch.randn(BATCH, LENGTH, width)],
            "grid_thw": [grid],
            "image_grid_thw": [grid],
            "attention_mask": [self._mask],
            "bbox": [self._boxes],
            "past_values": [
                lambda: torch.rand(BATCH, self._history()),
                lambda: torch.rand(BATCH, self.get("context_length", default=32),
                self.get("num_input_channels", default=3)),
            ],
            "past_time_features": [lambda: torch.rand(BATCH, self._history(),
            self.get("num_time_features", default=2))],
            "past_observed_mask": [lambda: torch.ones(BATCH, self._history())],
            "future_values": [lambda: torch.rand(BATCH, self.get("prediction_length", default=6))],
            "future_time_features": [
                lambda: torch.rand(BATCH, self.get("prediction_length", default=6),
                self.get("num_time_features", default=2))
            ],
            "input_points": [lambda: torch.rand(BATCH, 1, 2, 2) * side],
            "visual_embeds": [lambda: torch.randn(BATCH, 5, self.get("visual_embedding_dim",
            default=width))],
            "visual_feats": [lambda: torch.randn(BATCH, 5, self.get("visual_feat_dim",
            default=width))],
            "visual_pos": [lambda: torch.rand(BATCH, 5, 4)],
            "spectrogram": [lambda: torch.randn(BATCH, 16, mel)],
            "freq": [lambda: torch.zeros(BATCH, dtype=torch.int64)],
            "inputs": [lambda: torch.randn(BATCH, 12, self.get("d_model", default=64))],
            "states": [lambda: torch.randn(BATCH, 5, self.get("state_dim", default=17))],
            "actions": [lambda: torch.randn(BATCH, 5, self.get("act_dim", default=4))],
            "returns_to_go": [lambda: torch.randn(BATCH, 5, 1)],
            "timesteps": [lambda: torch.arange(5).expand(BATCH, 5).clone()],
            "pixel_attention_mask": [lambda: torch.ones(BATCH, 16, dtype=torch.int64)],
            "spatial_shapes": [lambda: torch.tensor([[4, 4]] * BATCH)],
            "interpolate_pos_encoding": [lambda: False],
            "audio_codes": [lambda: self._ids()],
            "task_inputs": [lambda: self._ids()],
            "prompt_pixel_values": pictures,
            "prompt_masks": pictures,
        }  # fmt: skip
        if name.endswith("input_ids") or name == "input_ids":
            books = self.get("num_codebooks", "num_quantizers", default=4)
            return [self._ids, lambda: torch.stack([self._ids() for _ in range(books)], -1)]
        return result.get(name, [lambda: None])

    def _side(self) -> int:
        side = self.get("image_size", "img_size", "input_size", default=64)
        while isinstance(side, (list, tuple)):
            side = side[-1]
        return side if isinstance(side, int) else 64

    def _ids(self) -> torch.Tensor:
        """Tokens that are none of the special ones, which stand at the end of the vocabulary."""
        import torch

        return torch.randint(
            3, max(8, min(60, self.get("vocab_size", default=99))), (BATCH, LENGTH)
        )

    def _mask(self) -> torch.Tensor:
        import torch

        mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
        mask[1:, LENGTH - 3 :] = 0
        return mask

    def _boxes(self) -> torch.Tensor:
        import torch

        corners = torch.randint(0, 30, (BATCH, LENGTH, 2))
        return torch.cat([corners, corners + torch.randint(1, 30, (BATCH, LENGTH, 2))], dim=-1)

    def _history(self) -> int:
        lags = self.get("lags_sequence", default=[1])
        return int(self.get("context_length", default=32)) + max(lags)


def _nested(config: Any) -> list[Any]:
    """The configuration and those inside it; those for pictures and sound first, for their settings
    are asked for.
    """
    inside = [
        v for v in vars(config).values() if hasattr(v, "model_type") and hasattr(v, "to_dict")
    ]
    return [config, *(deeper for part in inside for deeper in _nested(part))]
