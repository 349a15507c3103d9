"""Errors of the compiler: `BackendError`s that name the stage, the node and the user's line."""

from __future__ import annotations

import torch

from tracer_core.plugin_api import BackendError


def unsupported(stage: str, detail: str, node: torch.fx.Node | None = None) -> BackendError:
    """Builds the error for an unsupported construct; the caller raises it."""
    where = ""
    if node is not None:
        frame = node.meta.get("user_frame")
        where = f" [{node.format_node()}]" + (f" ({frame})" if frame else "")
    return BackendError("inductor", stage, detail + where)
