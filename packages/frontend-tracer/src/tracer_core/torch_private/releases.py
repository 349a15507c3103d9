"""Supported releases of Python and torch; messages about the installed ones (`remark`, `refusal`)."""

from __future__ import annotations

import functools
import re
import sys

import torch

from tracer_core.torch_private.names import names

#: Python releases whose bytecode the tracer interprets, oldest first. On later ones, which
#: requires-python admits, programs run eagerly.
PYTHONS = ((3, 11), (3, 12), (3, 13), (3, 14))

#: Oldest first. The results are in benchmarks/results/torch_versions.json.
TESTED = ("2.11", "2.12", "2.13", "2.14", "2.15")

#: Names without which the tracer cannot be imported or cannot decide whether to capture a call.
_NEEDED = """
_C.TensorBase _C._are_functorch_transforms_active _C._dispatch_keys _C._DisableTorchDispatch
_C._get_deterministic_algorithms _C._get_tracing_state _C._is_any_autocast_enabled _C._len_torch_dispatch_stack
_C._len_torch_function_stack _C._set_grad_enabled _ops.OpOverload _ops.OpOverloadPacket
autograd.forward_ad._current_level
nn.modules.module.Module._call_impl
overrides.TorchFunctionMode overrides._get_current_function_mode_stack utils._device.DeviceContext utils._pytree.tree_flatten
utils._pytree.tree_leaves utils._pytree.tree_map_only utils._pytree.tree_unflatten utils._python_dispatch.TorchDispatchMode
utils._python_dispatch._disable_current_modes
"""


@functools.cache
def _release(version: str) -> tuple[int, int]:
    """Returns (major, minor) of a version, which may be a nightly build's."""
    major, minor = re.findall(r"\d+", version)[:2]
    return int(major), int(minor)


def is_before(release: str) -> bool:
    """Returns whether this torch is older than a release, ``2.12``."""
    return _release(torch.__version__) < _release(release)


def is_tested() -> bool:
    """Returns whether the tests have passed on this torch release."""
    return _release(torch.__version__) in map(_release, TESTED)


def remark() -> str | None:
    """Returns a warning for users of an untested torch release, else None."""
    this = _release(torch.__version__)
    if is_tested():
        return None
    which = f"not one of those ({', '.join(TESTED)})"
    if this > _release(TESTED[-1]):
        which = f"newer than {TESTED[-1]}, the newest"
    if this < _release(TESTED[0]):
        which = f"older than {TESTED[0]}, the oldest"
    return (
        f"torch {torch.__version__} is {which} that this release of tracer-core was tested with."
        " What it no longer finds in torch ends the graph or runs eagerly;"
        " tracer_core.last_compile(compiled) names it"
    )


@functools.cache
def refusal() -> str | None:
    """Returns why this Python or torch is unsupported, else None."""
    if sys.version_info[:2] not in PYTHONS:
        oldest, newest, here = (
            f"{a}.{b}" for a, b in (PYTHONS[0], PYTHONS[-1], sys.version_info[:2])
        )
        reason = f"tracer-core captures programs on Python {oldest} to {newest}"
        return f"{reason}; on Python {here} compile() returns them as they are"
    lacking = [path for path in _NEEDED.split() if not names(path)]
    if not lacking:
        return None
    missing = ", ".join(f"torch.{path}" for path in lacking)
    return (
        f"torch {torch.__version__} has no {missing}, without which tracer-core captures nothing:"
        f" programs run eagerly. Install torch {TESTED[0]} to {TESTED[-1]}"
    )
