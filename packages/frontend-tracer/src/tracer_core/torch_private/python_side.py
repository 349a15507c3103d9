"""torch's own Python: functions without what others put around them, texts that it keeps of generated code."""

from __future__ import annotations

import linecache
import weakref
from typing import Any

import torch


def plain_checkpoint() -> Any:
    """torch.utils.checkpoint.checkpoint without its shield from torch._dynamo, which imports that package."""
    checkpoint = torch.utils.checkpoint.checkpoint
    return getattr(checkpoint, "__wrapped__", checkpoint)


def before_tagging(function: Any) -> Any:
    """What torch.compile, once it was used in the process, has put functions of its own around: ``nn.Module.__init__``
    and parts of optimizers. None for any other function. All that they add is for torch's own tracer."""
    hidden = getattr(function, "_torchdynamo_orig_callable", None)
    if (getattr(hidden, "__module__", None) or "").startswith("torch.optim."):
        return hidden
    if function.__qualname__ != "install_generation_tagging_init.<locals>.patched_init":
        return None
    return dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))["init"].cell_contents


def forget_source_with(gm: torch.fx.GraphModule) -> None:
    """Has torch forget the text of a graph's `forward` when the function is gone; by itself it keeps it."""
    from torch.fx import graph_module

    code = type(gm).forward.__code__
    weakref.finalize(code, _forget_source, code.co_filename, graph_module._loader.eval_cache).atexit = False


def _forget_source(filename: str, texts: dict[str, str]) -> None:
    linecache.cache.pop(filename, None)
    texts.pop(filename, None)
