"""Stores what was measured on a GPU: one file a key, so that each machine measures work once.

The key covers all that the choice depends on; the device, the versions of torch and Triton and the
rounds of a measurement join it here.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from typing import Any

import torch

from tracer_core.plugin_api import CacheLocationError, Store, logger

_CHOICES = Store("triton-choices")

#: Rounds of which the median counts, and launches of a round.
ROUNDS, LAUNCHES = 5, 10


def lookup(key: str, device: torch.device) -> str | None:
    """Returns what was chosen before on this machine."""
    result = read(key, device)
    return None if result is None else str(result["chosen"])


def read(key: str, device: torch.device) -> dict[str, Any] | None:
    """Returns a stored measurement; None where there is none, or its file is damaged."""
    try:
        data = _CHOICES.read(_name(key, device))
        result = None if data is None else json.loads(data)
    except (CacheLocationError, ValueError):
        return None
    return result if isinstance(result, dict) and "chosen" in result else None


def insert(key: str, device: torch.device, value: Mapping[str, object]) -> None:
    """Stores a measurement; `lookup` returns value["chosen"] from then on, in this process and
    later ones."""
    try:
        _CHOICES.write(_name(key, device), json.dumps(value).encode())
    except CacheLocationError as error:
        logger().warning(
            "what was measured is not stored, and measured again in the next process: %s", error
        )


def _name(key: str, device: torch.device) -> str:
    software = torch.__version__, _triton()
    rounds = ROUNDS, LAUNCHES
    here = torch.cuda.get_device_name(device) if device.type == "cuda" else "interpreter"
    machine = (here, *software, *rounds)
    return hashlib.sha256(repr((machine, key)).encode()).hexdigest()[:32]


@functools.cache
def _triton() -> str:
    return importlib.metadata.version("triton")
