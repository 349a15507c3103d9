"""torch's own Python: functions without what others put around them, texts that it keeps of
generated code.
"""

from __future__ import annotations

import builtins
import contextlib
import linecache
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from tracer_core.torch_private.names import names


def plain_checkpoint() -> Any:
    """torch.utils.checkpoint.checkpoint without its shield from torch._dynamo, which imports that
    package.
    """
    checkpoint = torch.utils.checkpoint.checkpoint
    return getattr(checkpoint, "__wrapped__", checkpoint)


_unshielded = 0
_unshielded_lock = threading.Lock()


@contextlib.contextmanager
def unshielded() -> Iterator[None]:
    """Meanwhile torch's reference implementations run without their shield from torch._dynamo where
    that package is not imported: nothing traces them then, and the first of them that ran would
    import it (80 MiB; 2 seconds, or 5 where disks are slow), only to be told to do nothing. Once it
    is imported, shields are torch's again."""
    global _unshielded
    shields = [vars(module) for module in names("_compile")]
    with _unshielded_lock:
        _unshielded += 1
        for shield in shields:
            shield["getattr"] = _shield_of  # what a shielded function asks for its shield with
    try:
        yield
    finally:
        with _unshielded_lock:
            _unshielded -= 1
            for shield in shields if not _unshielded else ():
                del shield["getattr"]


def _shield_of(function: Any, *name_and_default: Any) -> Any:
    found = builtins.getattr(function, *name_and_default)
    if (
        found is None
        and name_and_default[0] == "__dynamo_disable"
        and "torch._dynamo" not in sys.modules
    ):
        return function
    return found


def before_tagging(function: Any) -> Any:
    """What torch.compile, once it was used in the process, has put functions of its own around:
    ``nn.Module.__init__`` and parts of optimizers. None for any other function. All that they add
    is for torch's own tracer."""
    hidden = getattr(function, "_torchdynamo_orig_callable", None)
    if (getattr(hidden, "__module__", None) or "").startswith("torch.optim."):
        return hidden
    if function.__qualname__ != "install_generation_tagging_init.<locals>.patched_init":
        return None
    return dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))[
        "init"
    ].cell_contents


def forget_source_with(gm: torch.fx.GraphModule) -> None:
    """Has torch forget the text of a graph's `forward` when the function is gone; by itself it
    keeps it.
    """
    from torch.fx import graph_module

    code = type(gm).forward.__code__
    weakref.finalize(
        code, _forget_source, code.co_filename, graph_module._loader.eval_cache
    ).atexit = False


def _forget_source(filename: str, texts: dict[str, str]) -> None:
    linecache.cache.pop(filename, None)
    texts.pop(filename, None)
