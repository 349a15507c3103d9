"""What `tracer_core.set_stance`, or torch's, makes of a call that no cache entry fits.

In: the region and the state of the call. Out: whether an entry may be captured. Where it may not, the
call runs in eager mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from tracer_core.bytecode.host_builtins import use_own_builtins
from tracer_core.errors import RecompileError
from tracer_core.execution.call import StartKey
from tracer_core.execution.entry.guarded_cache import GuardedCache
from tracer_core.switch import stance

if TYPE_CHECKING:
    from tracer_core.execution.runtime import Runtime

use_own_builtins(globals())


def allows_capture(runtime: Runtime, cache: GuardedCache, state: Any) -> bool:
    """Returns whether an entry may be captured. Raises RecompileError."""
    rule = _RULES.get(stance())
    return rule is None or rule(runtime, cache, state)


def _fail(runtime: Runtime, cache: GuardedCache, state: Any) -> bool:
    newest = cache.newest(state)
    failed = None if newest is None else runtime.entries.failed(newest, state)
    first = "nothing was captured for such a call" if newest is None else "a guard failed"
    raise RecompileError(runtime.name, first if failed is None else failed.text)


def _second_call(runtime: Runtime, cache: GuardedCache, state: Any) -> bool:
    """Returns whether an earlier call came here; notes the sizes and numbers of the first one."""
    if cache.entries or cache.was_called:
        return True
    cache.was_called = True
    if isinstance(cache.key, StartKey):
        values = {f"S[{index}]": value for index, value in enumerate(state)}  # their sources
        tensors = {k: tuple(v.shape) for k, v in values.items() if isinstance(v, torch.Tensor)}
        numbers = {k: v for k, v in values.items() if type(v) in (int, float)}
        cache.specializations.add(tensors, numbers)
    return False


#: Stance -> whether a call that no cache entry fits may be captured. Others: it may.
_RULES: dict[str, Callable[[Runtime, GuardedCache, Any], bool]] = {
    "force_eager": lambda runtime, cache, state: False,
    "eager_on_recompile": lambda runtime, cache, state: False,
    "fail_on_recompile": _fail,
    "eager_then_compile": _second_call,
    "aot_eager_then_compile": _second_call,
}
