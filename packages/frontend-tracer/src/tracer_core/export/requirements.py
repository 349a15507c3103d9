"""What a package needs of the process that runs it: versions, a backend, a processor or a GPU.

`here` writes it down where the package is made; `refuse_others` compares it where it is loaded, and
names what differs.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import torch

from tracer_core.contract.backend import Backend
from tracer_core.contract.version import __version__
from tracer_core.errors import StoredError, TracerError
from tracer_core.execution.store.distributions import differing
from tracer_core.options import CompileConfig
from tracer_core.registry.discovery import get, rows
from tracer_core.storage.processor import LEVELS, features, level, processor
from tracer_core.torch_private import settings

FORMAT = "package 3"


def here(
    config: CompileConfig,
    device: torch.device,
    options: dict[str, Any],
    architectures: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns the requirements of a package that is made in this process. architectures: of GPUs
    other than its own that it is for; the backend chooses among them."""
    distribution, version = _origin(config.backend.name)
    return {
        "tracer_core": __version__,
        "torch": _release(torch.__version__),
        "backend": {
            "name": config.backend.name,
            "distribution": distribution,
            "version": version,
            "mode": config.mode,
            "options": options,
        },
        "device": str(device),
        "processor": {
            "machine": _system(),
            "name": processor(),
            "level": level(),
            "features": sorted(LEVELS.get(level() or "", features())),
        },
        "gpu": _gpu(device),
        "architectures": list(architectures),
        "settings": settings.of_kernels(),
    }


def refuse_others(path: Any, needs: dict[str, Any]) -> Backend:
    """Returns the backend of a package. Raises StoredError naming what this process lacks."""

    def demand(recorded: dict[str, Any], now: dict[str, Any]) -> None:
        if differs := differing(recorded, now):
            raise StoredError(f"{path}: {differs} since it was made; make it again here")

    release = {"tracer_core": __version__, "torch": _release(torch.__version__)}
    demand({name: needs[name] for name in release}, release)
    wanted = needs["backend"]
    try:
        backend = get(wanted["name"])
    except TracerError as error:
        origin = f"{wanted['distribution'] or wanted['name']} {wanted['version'] or ''}".strip()
        raise StoredError(f"{path} needs the backend of {origin}: {error}") from error
    version = f"{wanted['name']}'s version"
    demand({version: wanted["version"]}, {version: _origin(wanted["name"])[1]})
    if backend.deserialize is None:
        raise StoredError(f"{path}: the backend {backend.name!r} loads nothing that was stored")
    device = torch.device(needs["device"])
    if device.type == "cuda":
        gpu = _gpu(device)
        if gpu is None:
            raise StoredError(f"{path} was made for {device} ({needs['gpu']}), and here is no CUDA")
        if not needs["architectures"]:
            demand({"the GPU": needs["gpu"]}, {"the GPU": gpu})
    made_on = needs["processor"]
    demand({"the system": made_on["machine"]}, {"the system": _system()})
    missing = sorted(set(made_on["features"]) - features(), key=_shown_first)
    if missing:
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        raise StoredError(
            f"{path} was made for a processor with {', '.join(missing[:8])}{more}"
            f" ({made_on['level'] or made_on['name']}), which {processor()} lacks; make it again here"
        )
    if made_on["level"] != level():
        raise StoredError(
            f"{path} was made with TRACER_CPU={made_on['level'] or ''}, and here it is"
            f" {level() or 'not set'}; set it alike"
        )
    demand(needs["settings"], settings.of_kernels())
    return backend


def _system() -> str:
    return f"{platform.system()} {platform.machine()}"


def _origin(backend: str) -> tuple[str | None, str | None]:
    """Returns the distribution of a backend and its version."""
    for row in rows():
        if row.name == backend:
            return row.distribution, row.version
    return None, None


def _release(version: str) -> str:
    """Returns the major and minor version."""
    return ".".join(version.split(".")[:2])


def _gpu(device: torch.device) -> dict[str, Any] | None:
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return {"name": torch.cuda.get_device_name(device), "architecture": f"sm_{major}{minor}"}


def _shown_first(feature: str) -> tuple[bool, str]:
    return not feature.startswith(("avx", "amx", "sve", "fma", "asimd")), feature
