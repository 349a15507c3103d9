"""Torch settings that a traced program may change: grad mode, autocast, default dtype, flags.

`SETTINGS` says how each is read and written, `SETTERS` which C functions write which.
``restore(snapshot())`` changes nothing. A getter takes no argument and is a function of torch or of
this module, or a `Getter`.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core.torch_private.names import names


@dataclass(frozen=True, slots=True)
class Setting:
    """get() -> a constant. set(value). autocast: whether autocast's cached casts depend on the
    setting."""

    get: Callable[[], Any]
    set: Callable[[Any], Any]
    autocast: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Getter:
    """Reads a setting for which torch has no function without arguments; other processes find it in
    `SETTINGS`."""

    name: str
    read: Callable[[], Any]

    @property
    def __name__(self) -> str:  # its name in guards
        return self.name

    def __call__(self) -> Any:
        return self.read()


SETTINGS: dict[str, Setting] = {}
#: C setter -> names of its settings (autocast's without the device).
SETTERS: dict[Any, tuple[str, ...]] = {}


def _add(
    name: str, get: Any, set_: Any, setter: str = "", needs: str = "", autocast: bool = False
) -> None:
    """Adds a setting. get, set_: functions, or their names in torch. setter: the name of the
    function that programs call, if different. needs: names that this module's functions use. A
    setting with a missing part is left out: programs that read or set it break the graph."""
    getters, setters = (names(item) if isinstance(item, str) else (item,) for item in (get, set_))
    # look up all, so that every missing name is reported
    called, used = names(setter) if setter else setters, names(needs)
    if getters and setters and called and len(used) == len(needs.split()):
        SETTINGS[name] = Setting(getters[0], setters[0], autocast)
        SETTERS.update(dict.fromkeys(called, (name,)))


def deterministic() -> tuple[bool, bool]:
    """(enabled, only warns)"""
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _set_deterministic(value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def anomaly() -> tuple[bool, bool]:
    """(anomaly detection is on, it looks for NaN)"""
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _set_anomaly(value: tuple[bool, bool]) -> None:
    torch.set_anomaly_enabled(*value)


def matmul_precision() -> str | tuple[str, ...]:
    """Returns the argument of set_float32_matmul_precision, or the precision of each backend if
    `torch.backends.cuda.matmul.fp32_precision` (or mkldnn's) was set: torch then has no single
    word."""
    try:
        return torch._C._get_float32_matmul_precision()
    except RuntimeError:
        get = torch._C._get_fp32_precision_getter
        return tuple([get(backend, "matmul") for backend in _MATMUL_BACKENDS])


def _set_matmul_precision(value: str | tuple[str, ...]) -> None:
    if isinstance(value, str):
        torch._C._set_float32_matmul_precision(value)
        return
    for backend, precision in zip(_MATMUL_BACKENDS, value, strict=True):
        torch._C._set_fp32_precision_setter(backend, "matmul", precision)


#: Backends with a matmul precision of their own.
_MATMUL_BACKENDS = ("cuda", "mkldnn")

_add("grad", "is_grad_enabled", "_C._set_grad_enabled")
_add("default_dtype", "get_default_dtype", "set_default_dtype", "_C._set_default_dtype")
_add("anomaly", anomaly, _set_anomaly, "set_anomaly_enabled",
     "is_anomaly_enabled is_anomaly_check_nan_enabled")  # fmt: skip
_add("matmul_precision", matmul_precision, _set_matmul_precision, "_C._set_float32_matmul_precision",
     "_C._get_float32_matmul_precision _C._get_fp32_precision_getter _C._set_fp32_precision_setter")  # fmt: skip
_add("deterministic", deterministic, _set_deterministic, "use_deterministic_algorithms",
     "are_deterministic_algorithms_enabled is_deterministic_algorithms_warn_only_enabled")  # fmt: skip
_add("autocast_cache", "is_autocast_cache_enabled", "set_autocast_cache_enabled", autocast=True)
for _name, _get, _set in (
    ("flash_sdp", "_get_flash_sdp_enabled", "_set_sdp_use_flash"),
    ("mem_efficient_sdp", "_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"),
    ("math_sdp", "_get_math_sdp_enabled", "_set_sdp_use_math"),
    ("cudnn_sdp", "_get_cudnn_sdp_enabled", "_set_sdp_use_cudnn"),
    ("overrideable_sdp", "_get_overrideable_sdp_enabled", "_set_sdp_use_overrideable"),
    ("mkldnn", "_get_mkldnn_enabled", "_set_mkldnn_enabled"),
    ("mkldnn_deterministic", "_get_mkldnn_deterministic", "_set_mkldnn_deterministic"),
    ("cudnn", "_get_cudnn_enabled", "_set_cudnn_enabled"),
    ("cudnn_benchmark", "_get_cudnn_benchmark", "_set_cudnn_benchmark"),
    ("cudnn_deterministic", "_get_cudnn_deterministic", "_set_cudnn_deterministic"),
):
    _add(_name, f"_C.{_get}", f"_C.{_set}")

#: torch's context variables that are settings -> their names.
VARIABLES: dict[contextvars.ContextVar[Any], str] = {}

# torch 2.14 has none
for _variable in names("nn.attention._sdpa_kernel_uses_priority", in_every_build=False):
    _name = VARIABLES[_variable] = "sdpa_uses_priority"
    SETTINGS[_name] = Setting(Getter(_name, _variable.get), _variable.set)


def entered(name: str, before: Any) -> contextvars.Token[Any]:
    """Returns a token that resets a variable to `before`; the variable's current value stays."""
    (variable,) = (item for item, known in VARIABLES.items() if known == name)
    now = variable.get()
    variable.set(before)
    return variable.set(now)


#: Devices whose autocast settings are known.
AUTOCAST_DEVICES = tuple(
    d for d in ("cpu", "cuda", "xpu", "mps") if torch.amp.is_autocast_available(d)
)

for _device in AUTOCAST_DEVICES:
    for _name, _of, _set_of in (
        (f"autocast_{_device}_enabled", torch.is_autocast_enabled, torch.set_autocast_enabled),
        (f"autocast_{_device}_dtype", torch.get_autocast_dtype, torch.set_autocast_dtype),
    ):
        _getter = Getter(_name, functools.partial(_of, _device))
        SETTINGS[_name] = Setting(_getter, functools.partial(_set_of, _device), autocast=True)

#: Guarded by every cache entry, whether read or not.
ALWAYS_GUARDED = frozenset({"grad", "default_dtype"})


#: Settings of torch that decide which kernels a graph gets, beside `SETTINGS` -> what reads them. A
#: release that lacks one has no such choice. The number of threads is none: loops are shared among
#: those that there are when they run.
_OF_KERNELS: dict[str, str] = {
    "filled": "utils.deterministic.fill_uninitialized_memory",
    "cudnn_tf32": "_C._get_cudnn_allow_tf32",
    "cublas_tf32": "_C._get_cublas_allow_tf32",
    "cublas_float16": "_C._get_cublas_allow_fp16_reduced_precision_reduction",
    "cublas_bfloat16": "_C._get_cublas_allow_bf16_reduced_precision_reduction",
    "blas": "_C._get_blas_preferred_backend",
    "linalg": "_C._get_linalg_preferred_backend",
    "nnpack": "_C._get_nnpack_enabled",
    "quantized_engine": "_C._get_qengine",
    "einsum": "backends.opt_einsum.enabled",
    "einsum_strategy": "backends.opt_einsum.strategy",
}


def of_kernels() -> dict[str, str]:
    """Returns, as text, the settings under which operators are chosen and kernels written, which no
    guard asks for again."""
    getters: dict[str, Any] = {
        name: setting.get
        for name, setting in SETTINGS.items()
        if name not in ALWAYS_GUARDED and not setting.autocast
    }
    for name, path in _OF_KERNELS.items():
        for result in names(path, in_every_build=False):
            getters[name] = result
    return {name: _as_text(getter) for name, getter in getters.items()}


def _as_text(getter: Any) -> str:
    """Returns the value of a setting; torch has none for precisions that were set in two ways."""
    try:
        return repr(getter() if callable(getter) else getter)
    except RuntimeError as error:
        return str(error).partition(",")[0]


def snapshot() -> dict[str, Any]:
    """Returns the value of every setting."""
    return {name: setting.get() for name, setting in SETTINGS.items()}


def restore(values: dict[str, Any]) -> None:
    """Sets the settings that differ from `values`; drops autocast's cached casts if its settings
    differ."""
    changed = [name for name, value in values.items() if SETTINGS[name].get() != value]
    for name in changed:
        SETTINGS[name].set(values[name])
    if any(SETTINGS[name].autocast for name in changed):
        torch.clear_autocast_cache()


#: Whether this thread works beside the program's, to which the settings of all threads belong.
_is_guest: contextvars.ContextVar[bool] = contextvars.ContextVar("is_guest", default=False)


@contextlib.contextmanager
def as_guest() -> Iterator[None]:
    """Context of a thread that must not restore settings which all threads share: the program may
    set them meanwhile."""
    token = _is_guest.set(True)
    try:
        yield
    finally:
        _is_guest.reset(token)


def is_of_thread(name: str) -> bool:
    """Returns whether each thread has a setting for itself."""
    return name == "grad" or name.startswith("autocast")


def own(values: dict[str, Any]) -> dict[str, Any]:
    """Returns those of some settings that this thread may restore."""
    if not _is_guest.get():
        return values
    return {name: value for name, value in values.items() if is_of_thread(name)}


def sets_shared(targets: Iterable[Any]) -> bool:
    """Returns whether functions that a graph calls set what all threads share."""
    result = (SETTERS.get(target, ()) for target in targets)
    return not all(is_of_thread(name) for names in result for name in names)


def put(name: str, value: Any) -> None:
    """Sets one setting."""
    SETTINGS[name].set(value)


def nest_autocast(levels: int) -> None:
    """Enters (or leaves) autocast levels; autocast caches casts until the outermost level ends."""
    for _ in range(abs(levels)):
        torch.autocast_increment_nesting() if levels > 0 else torch.autocast_decrement_nesting()


def run_restoring(
    written: Sequence[str], runner: Callable[[list[Any]], Any], inputs: list[Any]
) -> Any:
    """Runs a graph that changes these settings; restores them if it raises."""
    before = {name: SETTINGS[name].get() for name in written}
    try:
        return runner(inputs)
    except BaseException as error:
        # the graph's frame keeps its inference mode entered
        traceback.clear_frames(error.__traceback__)
        restore(before)
        raise


def ambient_devices() -> tuple[Any, ...] | None:
    """Returns the devices of the active ``with torch.device(...)``; None under any other function
    mode."""
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._device import DeviceContext

    modes: Iterable[Any] = _get_current_function_mode_stack()
    if any(type(mode) is not DeviceContext for mode in modes):
        return None
    return tuple(mode.device for mode in modes)


def print_options() -> Any:
    """Returns the object that says how tensors are shown as text."""
    return torch._tensor_str.PRINT_OPTS
