"""torch's Python code: functions without their decorators, cached source of generated code."""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import linecache
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from tracer_core.torch_private.names import names


def undecorated_checkpoint() -> Any:
    """Returns torch.utils.checkpoint.checkpoint without its torch._dynamo.disable wrapper, which
    imports that package."""
    checkpoint = torch.utils.checkpoint.checkpoint
    return getattr(checkpoint, "__wrapped__", checkpoint)


@functools.cache
def checkpoint_options() -> tuple[str, ...]:
    """Returns the keywords of torch.utils.checkpoint.checkpoint that it does not hand on."""
    parameters = inspect.signature(undecorated_checkpoint()).parameters.values()
    named = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    return tuple(dict.fromkeys([*named, "preserve_rng_state"]))  # no parameter before torch 2.15


_unshielded = 0
_unshielded_lock = threading.Lock()


@contextlib.contextmanager
def unshielded() -> Iterator[None]:
    """Context in which torch's reference implementations run without their torch._dynamo.disable
    wrapper if that package is not imported: the first call would import it (80 MiB; 2 seconds, or 5
    on slow disks) without any effect. After the import, the wrappers are torch's own again."""
    global _unshielded
    shields = [vars(module) for module in names("_compile")]
    with _unshielded_lock:
        _unshielded += 1
        for shield in shields:
            shield["getattr"] = _shield_of  # how a wrapped function finds its wrapper
    try:
        yield
    finally:
        with _unshielded_lock:
            _unshielded -= 1
            for shield in shields if not _unshielded else ():
                del shield["getattr"]


def _shield_of(function: Any, *name_and_default: Any) -> Any:
    attribute = builtins.getattr(function, *name_and_default)
    queries_wrapper = attribute is None and name_and_default[0] == "__dynamo_disable"
    return function if queries_wrapper and "torch._dynamo" not in sys.modules else attribute


def scripted_source(function: Any) -> Any:
    """Returns the Python function that torch.jit.script compiled into this one; None for a traced
    one, which does what its example did."""
    source = getattr(function, "_torchdynamo_inline", None)
    cached = None if source is None else torch.jit._state._try_get_jit_cached_function(source)
    alike = cached is not None and cached.qualified_name == function.qualified_name
    return source if alike else None


def before_tagging(function: Any) -> Any:
    """Returns the original of a function that torch.compile, once used in the process, wraps:
    ``nn.Module.__init__`` and parts of optimizers; of a function that torch compiled, if eager has
    no fast form of it (flex_attention). None for any other function. The wrappers serve only torch's
    own tracer."""
    hidden = getattr(function, "_torchdynamo_orig_callable", None)
    module = getattr(hidden, "__module__", None) or ""
    if module.startswith("torch.optim.") or module == "torch.nn.attention.flex_attention":
        return hidden
    if function.__qualname__ != "install_generation_tagging_init.<locals>.patched_init":
        return None
    cells = dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))
    return cells["init"].cell_contents


def forget_source_with(gm: torch.fx.GraphModule) -> None:
    """Makes torch drop the source of a graph's `forward` with the function, which torch itself
    keeps."""
    from torch.fx import graph_module

    code, texts = type(gm).forward.__code__, graph_module._loader.eval_cache
    weakref.finalize(code, _forget_source, code.co_filename, texts).atexit = False


def _forget_source(filename: str, texts: dict[str, str]) -> None:
    linecache.cache.pop(filename, None)
    texts.pop(filename, None)
