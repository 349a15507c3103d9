"""Handlers for torch's settings and the contexts that set them.

A setter runs while tracing and is recorded in the graph, so that later operators run under it there
too. The end of the trace restores the old value, and generated code sets the new one (see
`settings`).
"""

from __future__ import annotations

import contextvars
from typing import Any

import torch

from tracer_core.fx_capture.provenance import is_constant
from tracer_core.fx_capture.torch_contexts import InferenceHandle, ProfilerHandle, VariableToken
from tracer_core.natives.arity import COUNTS
from tracer_core.natives.effects import EFFECTS, PURE, breaks, declare, special
from tracer_core.natives.queries import query
from tracer_core.natives.tracing import Tracing
from tracer_core.torch_private import settings
from tracer_core.torch_private.names import name, names


def _set(function: Any, written: tuple[str, ...]) -> Any:
    def handler(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        tracer.native_calls.native_reads(*args, *kwargs.values())
        return tracer.recorder.state_call(function, tuple(args), written, kwargs)

    return handler


def _without_arguments(paths: str, **options: Any) -> tuple[Any, ...]:
    """Returns torch functions without arguments, whose signature inspect does not know."""
    found = names(paths, **options)
    COUNTS.update(dict.fromkeys(found, (0, 0)))
    return found


for _function, _written in settings.SETTERS.items():
    special(_function)(_set(_function, _written))


@special(*names("set_autocast_enabled"))
def set_autocast_enabled(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return _set_autocast(tracer, torch.set_autocast_enabled, args, kwargs, "enabled")


@special(*names("set_autocast_dtype"))
def set_autocast_dtype(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return _set_autocast(tracer, torch.set_autocast_dtype, args, kwargs, "dtype")


def _set_autocast(
    tracer: Tracing, function: Any, args: list[Any], kwargs: dict[str, Any], kind: str
) -> Any:
    name = f"autocast_{args[0]}_{kind}" if args else ""
    if name not in settings.SETTINGS or kwargs:
        tracer.break_graph(
            "side_effect_native", f"{function.__name__}({', '.join(map(repr, args))})"
        )
    return tracer.recorder.state_call(function, tuple(args), (name,), kwargs)


@special(*names("autocast_increment_nesting"))
def increment_nesting(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> int:
    tracer.recorder.autocast_nesting += 1
    return torch.autocast_increment_nesting()


@special(*names("autocast_decrement_nesting"))
def decrement_nesting(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> int:
    """Returns 0: the nesting of later calls is unknown, and 0 makes the program drop its cached
    casts, which is safe."""
    tracer.recorder.autocast_nesting -= 1
    torch.autocast_decrement_nesting()
    return 0


@special(*_without_arguments("clear_autocast_cache"))
def clear_autocast_cache(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    tracer.recorder.state_call(torch.clear_autocast_cache, (), (), {})


# -- queries --


def ask(tracer: Tracing, name: str) -> Any:
    """Returns a setting's value, guarded unless the trace itself has set it."""
    get = settings.SETTINGS[name].get
    return get() if name in tracer.recorder.settings_written else query(tracer, get)


def _declare_question(function: Any, name: str) -> None:
    if function in EFFECTS:
        return
    COUNTS[function] = 0, 0
    special(function)(lambda tracer, args, kwargs: ask(tracer, name))


for _name, _setting in settings.SETTINGS.items():
    if _name not in settings.ALWAYS_GUARDED:
        _declare_question(_setting.get, _name)


@special(*_without_arguments("_C._get_float32_matmul_precision"))
def get_matmul_precision(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Returns torch's single word for the precision, or raises torch's error
    (`settings.matmul_precision`)."""
    ask(tracer, "matmul_precision")
    return name("_C._get_float32_matmul_precision")()


@special(*names("is_autocast_enabled"))
def is_autocast_enabled(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return _ask_autocast(tracer, torch.is_autocast_enabled, args or ["cuda"], kwargs, "enabled")


@special(*names("get_autocast_dtype"))
def get_autocast_dtype(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return _ask_autocast(tracer, torch.get_autocast_dtype, args, kwargs, "dtype")


def _ask_autocast(
    tracer: Tracing, function: Any, args: list[Any], kwargs: dict[str, Any], kind: str
) -> Any:
    name = f"autocast_{(args or list(kwargs.values()) or ['?'])[0]}_{kind}"
    if name in settings.SETTINGS:
        return ask(tracer, name)
    return function(*args, **kwargs)  # torch's own error, or a device without autocast


for _name, _device, _kind in (
    ("is_autocast_cpu_enabled", "cpu", "enabled"), ("get_autocast_cpu_dtype", "cpu", "dtype"),
    ("get_autocast_gpu_dtype", "cuda", "dtype"),
):  # fmt: skip
    special(*_without_arguments(_name))(
        lambda tracer, args, kwargs, name=f"autocast_{_device}_{_kind}": ask(tracer, name)
    )


# -- settings that are context variables --


def _setting_of(tracer: Tracing, method: str, variable: Any) -> str:
    if variable not in settings.VARIABLES:
        tracer.break_graph("unknown_native", f"_contextvars.ContextVar.{method}")
    return settings.VARIABLES[variable]


@special(contextvars.ContextVar.get)
def get_variable(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return ask(tracer, _setting_of(tracer, "get", args[0]))


@special(contextvars.ContextVar.set)
def set_variable(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> VariableToken:
    name, value = _setting_of(tracer, "set", args[0]), args[1]
    if not is_constant(value):
        tracer.break_graph(
            "side_effect_native", f"a context variable is set to a {type(value).__name__}"
        )
    token = VariableToken(name, ask(tracer, name))
    tracer.recorder.state_call(settings.put, (name, value), (name,), {})
    return token


@special(contextvars.ContextVar.reset)
def reset_variable(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    name, token = _setting_of(tracer, "reset", args[0]), args[1]
    if not isinstance(token, VariableToken) or token.name != name or not token.is_open:
        tracer.break_graph(
            "side_effect_native", "a context variable is reset to what it was before this segment"
        )
    tracer.recorder.state_call(settings.put, (name, token.before), (name,), {})
    token.is_open = False


# -- contexts held open by C++ objects --


@special(*names("inference_mode.__enter__"))
def enter_inference_mode(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    handle = InferenceHandle(tracer.recorder, tracer.attributes.getattr(args[0], "mode"))
    tracer.attribute_writes.setattr(args[0], "_inference_mode_context", handle)


@special(*names("inference_mode.__exit__"))
def exit_inference_mode(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    handle = tracer.attributes.getattr(args[0], "_inference_mode_context")
    if not isinstance(handle, InferenceHandle):
        tracer.break_graph(
            "side_effect_native", "inference mode, entered before this segment, is left"
        )
    handle.close()


@special(*names("profiler.record_function.__enter__"))
def enter_record_function(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Enters a profiler label, which has no effect on values and is not in the graph."""
    name, note = (
        tracer.attributes.getattr(args[0], "name"),
        tracer.attributes.getattr(args[0], "args"),
    )
    tracer.attribute_writes.setattr(args[0], "record", ProfilerHandle(name, note))
    return args[0]


@special(*names("profiler.record_function.__exit__"))
def exit_record_function(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    handle = tracer.attributes.getattr(args[0], "record")
    if not isinstance(handle, ProfilerHandle):
        tracer.break_graph(
            "side_effect_native", "record_function, entered before this segment, is left"
        )
    handle.is_open = False


@special(*names("device.__enter__"))
def enter_device(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    tracer.recorder.devices.append(args[0])
    return args[0]


@special(*names("device.__exit__"))
def exit_device(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> None:
    if not tracer.recorder.devices:
        tracer.break_graph(
            "side_effect_native", "a device context, entered before this segment, is left"
        )
    tracer.recorder.devices.pop()


@special(*names("get_default_device"))
def get_default_device(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
    devices = tracer.recorder.devices
    # Else the device of a context around the call, which every cache entry guards.
    return _indexed(devices[-1]) if devices else torch.get_default_device()


def _indexed(device: torch.device) -> torch.device:
    return device if device.index is not None else torch.empty(0, device=device).device


for _mode in ("overrides.TorchFunctionMode", "utils._python_dispatch.TorchDispatchMode"):
    breaks("torch_mode", "it sees every operator", names("__enter__ __exit__", of=_mode))
for _off in ("_C.DisableTorchFunctionSubclass", "_C.DisableTorchFunction"):
    breaks(
        "torch_mode",
        "it changes what operators ask",
        names(f"{_off} {_off}.__enter__ {_off}.__exit__"),
    )
breaks("torch_mode", "it changes what operators ask", [
    *names("_push_mode _pop_mode _pop_mode_temporarily", of="overrides"),
    *names("_push_mode _pop_mode _pop_mode_temporarily", of="utils._python_dispatch"),
    *names("set_default_device"),
])  # fmt: skip
declare(PURE, names("_C._is_any_autocast_enabled"))
for _function in (
    *_without_arguments("_C._get_privateuse1_backend_name"),
    *_without_arguments(
        "_cuda_getDeviceCount _cuda_isInBadFork _cuda_getDevice", of="_C", in_every_build=False
    ),
):
    special(_function)(lambda tracer, args, kwargs, _function=_function: query(tracer, _function))
for _which, _name in enumerate(("is_anomaly_enabled", "is_anomaly_check_nan_enabled")):
    special(*_without_arguments(_name))(
        lambda tracer, args, kwargs, which=_which: ask(tracer, "anomaly")[which]
    )


def _about_devices(function: Any) -> None:
    """A GPU's properties and capabilities never change; the current device does."""

    @special(function)
    def answer(tracer: Tracing, args: list[Any], kwargs: dict[str, Any]) -> Any:
        tracer.native_calls.native_reads(*args, *kwargs.values())
        if torch.cuda.is_available():
            query(tracer, name("_C._cuda_getDevice"))
        return function(*args, **kwargs)


for _function in names(
    "is_bf16_supported is_tf32_supported get_device_capability get_device_name"
    " get_device_properties",
    of="cuda",
):
    _about_devices(_function)
