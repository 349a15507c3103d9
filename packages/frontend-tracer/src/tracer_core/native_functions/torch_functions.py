"""torch functions that are not tensor operators: queries, settings and the contexts that set them,
and compilation status.

Tensor operators need no row: `policy.is_torch_operator` recognizes them and the recorder sees them.
A setter runs while tracing and is recorded in the graph, so that later operators run under it there
too. The end of the trace restores the old value, and generated code sets the new one (see
`settings`).
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.debug.crossed_limits import crossed
from tracer_core.fx_capture.torch_contexts import InferenceHandle, ProfilerHandle
from tracer_core.fx_capture.unbacked import is_integer
from tracer_core.limits import MAX_LISTED_ELEMENTS
from tracer_core.native_effects import polyfills
from tracer_core.native_effects.effects import (
    EFFECTS,
    PURE,
    SHALLOW,
    breaks,
    declare,
    special,
    special_each,
    special_rows,
)
from tracer_core.torch_private import settings
from tracer_core.torch_private.names import name, names
from tracer_core.torch_private.needed import TensorBase
from tracer_core.trace import gradients
from tracer_core.trace.assertions import answered, assumed_equal, checked, speculated_equal
from tracer_core.trace.guarded_calls import query
from tracer_core.trace.torch_function import acts_as_tensor
from tracer_core.trace.tracer import Tracer


def _new(functions: Iterable[Any]) -> list[Any]:
    """Returns the functions that have no row yet: torch and torch._C share some."""
    return [function for function in functions if callable(function) and function not in EFFECTS]


#: Queries of settings that are guarded as a whole (torch_private.torch_state) or never change.
declare(PURE, names("is_grad_enabled is_inference_mode_enabled get_default_dtype finfo iinfo device dtype Size"
    " are_deterministic_algorithms_enabled promote_types result_type can_cast"))  # fmt: skip
declare(PURE, names("_is_any_autocast_enabled _is_tracing _is_torch_function_mode_enabled _get_deterministic_algorithms"
    " _is_autocast_available", of="_C"))  # fmt: skip
#: What an operator says of itself.
declare(SHALLOW, names("OpOverload.__str__ OpOverload.__repr__ OpOverload.name OpOverload.namespace"
    " OpOverloadPacket.__str__ OpOverloadPacket.__repr__", of="_ops"))  # fmt: skip
declare(PURE, names("_C._are_functorch_transforms_active"))
#: Queries of what the processor has.
declare(PURE, names("_is_avx2_supported _is_avx512_supported _is_avx512_bf16_supported _is_vnni_supported"
    " _is_amx_tile_supported _is_amx_fp16_supported", of="cpu"))  # fmt: skip
declare(SHALLOW, names("_C._log_api_usage_once"))
# Its Python code passes everything but out= to __torch_function__.
breaks(
    "side_effect_native",
    "torch.chain_matmul (deprecated) may write to out= unseen",
    names("chain_matmul"),
)
breaks(
    "torch_mode",
    "it changes what operators ask",
    names(
        "DisableTorchFunction DisableTorchFunction.__enter__ DisableTorchFunction.__exit__", of="_C"
    ),
)
declare(SHALLOW, names("_C.DisableTorchFunctionSubclass"))
breaks("torch_mode", "it changes what operators ask", [
    *names("_push_mode _pop_mode _pop_mode_temporarily", of="overrides"),
    *names("_push_mode _pop_mode _pop_mode_temporarily", of="utils._python_dispatch"),
    *names("set_default_device"),
])  # fmt: skip


# -- compilation status, and queries with a known answer --


@special_each(*names("fx._symbolic_trace.is_fx_tracing onnx.is_in_onnx_export"))
def is_exporting(tracer: Tracer, function: Any) -> Any:
    return query(tracer, function)


#: What a tensor that no transform of torch.func has wrapped is.
_OF_PLAIN_TENSORS: dict[str, Any] = {
    "is_batchedtensor": False, "is_gradtrackingtensor": False, "is_functionaltensor": False,
    "is_functorch_wrapped_tensor": False, "is_legacy_batchedtensor": False, "maybe_get_level": -1,
    "maybe_get_bdim": -1,
}  # fmt: skip


@special_rows(
    {
        function: (answer,)
        for name_, answer in _OF_PLAIN_TENSORS.items()
        for function in names(name_, of="_C._functorch")
    }
)
def of_plain_tensor(tracer: Tracer, answer: Any, tensor: Any) -> Any:
    if not isinstance(tensor, torch.Tensor) or torch_private.transforms_active():
        tracer.break_graph("higher_order", "torch.func asks what wraps a tensor")
    return answer


_BASE_TENSOR = torch.empty(0)


def _as_torch_sees_it(tracer: Tracer, value: Any) -> Any:
    """Returns what to ask torch about: a plain tensor in place of a fake, which has a class of its
    own."""
    if isinstance(value, (list, tuple)):
        return [_as_torch_sees_it(tracer, item) for item in value]
    if isinstance(value, torch.Tensor) and torch_private.is_fake(value):
        return _BASE_TENSOR
    tracer.entries.guard_lineage(type(value))
    if acts_as_tensor(value):
        tracer.entries.special(type(value), "__torch_function__")
    return value


@special_each(*{*names("_C._has_torch_function overrides.has_torch_function")})
def has_torch_function_in(tracer: Tracer, function: Any, values: Any, /) -> Any:
    """torch.overrides and torch._C share functions."""
    if not isinstance(values, (list, tuple)):
        tracer.break_graph("native_python", "_has_torch_function() of no list or tuple")
    tracer.native_calls.native_reads(values)
    return function(_as_torch_sees_it(tracer, values))


@special_each(
    *names("has_torch_function_unary has_torch_function_variadic", of="overrides"),
    *names("_has_torch_function_unary _has_torch_function_variadic", of="_C"),
)
def has_torch_function(tracer: Tracer, function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(*(_as_torch_sees_it(tracer, value) for value in args), **kwargs)


@special_each(*names("Tensor FloatTensor DoubleTensor HalfTensor BFloat16Tensor LongTensor"
                     " IntTensor ShortTensor CharTensor ByteTensor BoolTensor"))  # fmt: skip
def legacy_constructor(tracer: Tracer, cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Captures ``torch.FloatTensor(2, 3)`` as torch.empty and ``torch.FloatTensor([2, 3])`` as
    torch.tensor."""
    like = cls()
    options = {"dtype": like.dtype, "device": like.device}
    sizes = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args or (0,)
    if not kwargs and all(type(size) in (int, torch.SymInt) for size in sizes):
        return tracer.native_calls.call_torch(torch.empty, [tuple(sizes)], options)
    if not kwargs and len(args) == 1 and isinstance(args[0], (list, tuple)):
        return tracer.native_calls.call_torch(torch.tensor, list(args), options)
    tracer.break_graph("real_tensor_in_trace", f"torch.{cls.__name__} of what is not a list")


#: A trace is no torch.jit trace, and no trace runs under foreign modes, which every cache entry
#: guards.
_STACKS = names("_C._len_torch_dispatch_stack _C._len_torch_function_stack")
special(*names("_C._get_tracing_state"))(lambda tracer: None)
special(*_STACKS)(lambda tracer: 0)
special(*names("jit.is_scripting compiler.is_exporting"))(lambda tracer: False)
#: Begins a step of torch.compile's own CUDA graphs.
special(*names("compiler.cudagraph_mark_step_begin"))(lambda tracer: None)


@special(*names("compiler.is_compiling compiler.is_dynamo_compiling"))
def is_compiling(tracer: Tracer) -> bool:
    """Returns the compilation status that libraries query; False for optimizers, whose results
    would differ."""
    asker = tracer.frames[-1]
    optimizer = asker.globals.get("__name__", "").startswith("torch.optim.")
    if optimizer and asker.code.raw.co_name != "_accelerator_graph_capture_health_check":
        return False
    return tracer.is_compiling()


@special(*names("Tensor.tolist"))
def tolist(tracer: Tracer, tensor: Any) -> Any:
    """Reads integers one by one: each may be a number that depends on data."""
    recorder = tracer.recorder
    fake = recorder.as_fake(tensor)
    sizes = list(fake.shape)
    has_all = all(type(size) is int for size in sizes)
    if has_all and fake.numel() > MAX_LISTED_ELEMENTS:
        crossed("MAX_LISTED_ELEMENTS", reached=fake.numel())
        has_all = False
    if not (has_all and sizes and is_integer(fake.reshape(-1)[:1]) and recorder.follows_data()):
        return tracer.native_calls.call_torch(torch.Tensor.tolist, [tensor], {})

    def listed(part: Any) -> Any:
        if part.dim() == 0:
            return tracer.native_calls.call_torch(torch.Tensor.item, [part], {})
        return [listed(item) for item in tracer.native_calls.native(torch.Tensor.unbind, part)]

    return listed(tensor)


@special(*names("equal Tensor.equal"))
def equal(tracer: Tracer, input: Any, other: Any) -> Any:
    """Tensors of different shapes are not equal; others may be expected to be, or not to be."""
    if _is_tensor(tracer, input) and _is_tensor(tracer, other):
        left, right = tracer.recorder.as_fake(input), tracer.recorder.as_fake(other)
        if left.dtype == right.dtype and left.device == right.device:
            if left.shape != right.shape:
                return answered(tracer, False)
            answer = assumed_equal(tracer, input, other)
            if answer is None:
                answer = speculated_equal(tracer, input, other)
            if answer is not None:
                return answered(tracer, answer)
    return tracer.native_calls.call_torch(torch.equal, [input, other], {})


def _is_tensor(tracer: Tracer, value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not acts_as_tensor(value)


@special(*names("_assert_async"))
def assert_async(tracer: Tracer, input: Any, assert_msg: Any = None) -> Any:
    if checked(tracer, input):
        return None
    inputs = [input] if assert_msg is None else [input, assert_msg]
    return tracer.native_calls.call_torch(getattr(torch, "_assert_async"), inputs, {})


@special(*names("_shape_as_tensor"))
def shape_as_tensor(tracer: Tracer, tensor: Any) -> Any:
    """Interprets a polyfill: the kernel's tensor has data, which no fake has."""
    if not isinstance(tensor, torch.Tensor):  # torch's TypeError
        return tracer.native_calls.call_torch(names("_shape_as_tensor")[0], [tensor], {})
    return tracer.calls.prepare(polyfills.shape_as_tensor, [tensor], {})


@special(*names("_reshape_from_tensor"))
def reshape_from_tensor(tracer: Tracer, tensor: Any, shape: Any) -> Any:
    """Interprets a polyfill, which reads the sizes."""
    if not (isinstance(tensor, torch.Tensor) and isinstance(shape, torch.Tensor)):
        return tracer.native_calls.call_torch(names("_reshape_from_tensor")[0], [tensor, shape], {})
    return tracer.calls.prepare(polyfills.reshape_from_tensor, [tensor, shape], {})


@special(*names("Tensor.fill_diagonal_"))
def fill_diagonal_(tracer: Tracer, tensor: Any, fill_value: Any, wrap: Any = False) -> Any:
    """Fills a view of a matrix: the kernel counts from the beginning of the storage, which no guard
    watches."""
    call = tracer.native_calls.call_torch
    if not isinstance(tensor, torch.Tensor) or tensor.dim() != 2 or wrap:
        return call(names("Tensor.fill_diagonal_")[0], [tensor, fill_value, wrap], {})
    call(names("Tensor.fill_")[0], [call(torch.diagonal, [tensor], {}), fill_value], {})
    return tensor


@special(*names("_C._infer_size"))
def infer_size(tracer: Tracer, shape: Any, other: Any) -> Any:
    """The shape that two shapes broadcast to; of symbolic ones as torch.broadcast_shapes says."""
    sizes = [*shape, *other] if isinstance(shape, tuple) and isinstance(other, tuple) else []
    function = names("_C._infer_size")[0]
    if any(isinstance(size, torch.SymInt) for size in sizes):
        function = torch.broadcast_shapes
    return tracer.native_calls.native(function, shape, other)


@special(*names("Tensor.requires_grad_"))
def requires_grad_(tracer: Tracer, tensor: Any, requires_grad: Any = True) -> Any:
    """Does nothing if the tensor requires gradients already; an intermediate may become a leaf."""
    if requires_grad is True and tensor.requires_grad:
        return tensor
    known = tracer.recorder.fakes.known(tensor)
    if requires_grad is False and not (tensor if known is None else known).requires_grad:
        return tensor
    if requires_grad is True and tracer.attribute_writes.may_require_grad(tensor):
        tracer.recorder.require_grad(tensor)
        return tensor
    if gradients.may_set_flag(tracer, tensor, requires_grad):
        gradients.set_flag(tracer, tensor, requires_grad)
        return tensor
    return tracer.native_calls.call_torch(torch.Tensor.requires_grad_, [tensor, requires_grad], {})


# -- setters --


@special_rows({function: (function, keys) for function, keys in settings.SETTERS.items()})
def set_state(
    tracer: Tracer, function: Any, keys: tuple[str, ...], /, *args: Any, **kwargs: Any
) -> Any:
    tracer.native_calls.native_reads(*args, *kwargs.values())
    return tracer.recorder.state_call(function, args, keys, kwargs)


@special_rows(
    {
        function: (function, kind)
        for kind in ("enabled", "dtype")
        for function in names(f"set_autocast_{kind}")
    }
)
def set_autocast(tracer: Tracer, function: Any, kind: str, *args: Any, **kwargs: Any) -> Any:
    key = f"autocast_{args[0]}_{kind}" if args else ""
    if key not in settings.SETTINGS or kwargs:
        tracer.break_graph(
            "side_effect_native", f"{function.__name__}({', '.join(map(repr, args))})"
        )
    return tracer.recorder.state_call(function, args, (key,), kwargs)


@special(*names("autocast_increment_nesting"))
def increment_nesting(tracer: Tracer) -> int:
    tracer.recorder.autocast_nesting += 1
    return torch.autocast_increment_nesting()


@special(*names("autocast_decrement_nesting"))
def decrement_nesting(tracer: Tracer) -> int:
    """Returns 0: the nesting of later calls is unknown, and 0 makes the program drop its cached
    casts, which is safe."""
    tracer.recorder.autocast_nesting -= 1
    torch.autocast_decrement_nesting()
    return 0


@special(*names("clear_autocast_cache"))
def clear_autocast_cache(tracer: Tracer) -> None:
    tracer.recorder.state_call(torch.clear_autocast_cache, (), (), {})


# -- queries --


def read_setting(tracer: Tracer, key: str) -> Any:
    """Returns a setting's value, guarded unless the trace itself has set it."""
    get = settings.SETTINGS[key].get
    return get() if key in tracer.recorder.settings_written else query(tracer, get)


@special_each(
    *_new(
        (
            *names("get_num_threads get_num_interop_threads is_warn_always_enabled"),
            *names("_has_mkldnn _get_cudnn_allow_tf32 _get_cublas_allow_tf32", of="_C"),
            *names("_get_warnAlways _get_privateuse1_backend_name", of="_C"),
            *names("_accelerator_getAccelerator", of="_C"),
            # Until CUDA is initialized torch asks the driver's library, through ctypes.
            *names("device_count _device_count_nvml _device_count_amdsmi", of="cuda"),
            *names(
                "_cuda_getDeviceCount _cuda_isInBadFork _cuda_getDevice",
                of="_C",
                in_every_build=False,
            ),
        )
    )
)
def ask_function(tracer: Tracer, function: Any) -> Any:
    """Guards a setting by itself, when read."""
    return query(tracer, function)


_QUERIED = {
    setting.get: key
    for key, setting in settings.SETTINGS.items()
    if key not in settings.ALWAYS_GUARDED
}
for _name, _key in {
    "is_autocast_cpu_enabled": "autocast_cpu_enabled",
    "get_autocast_cpu_dtype": "autocast_cpu_dtype",
    "get_autocast_gpu_dtype": "autocast_cuda_dtype",
}.items():
    _QUERIED |= dict.fromkeys(names(_name), _key)
special_rows({function: (_QUERIED[function],) for function in _new(_QUERIED)})(read_setting)


@special_rows(
    {
        function: (which,)
        for which, path in enumerate(("is_anomaly_enabled", "is_anomaly_check_nan_enabled"))
        for function in names(path)
    }
)
def ask_anomaly(tracer: Tracer, which: int) -> bool:
    return bool(read_setting(tracer, "anomaly")[which])


@special_each(*names("_C._get_float32_matmul_precision"))
def get_matmul_precision(tracer: Tracer, function: Any) -> Any:
    """Returns torch's single word for the precision, or raises torch's error
    (`settings.matmul_precision`)."""
    read_setting(tracer, "matmul_precision")
    return function()


@special_rows(
    {
        function: (function, kind, default)
        for path, kind, default in (
            ("is_autocast_enabled", "enabled", "cuda"),
            ("get_autocast_dtype", "dtype", "?"),
        )
        for function in names(path)
    }
)
def ask_autocast(
    tracer: Tracer, function: Any, kind: str, default: str, *args: Any, **kwargs: Any
) -> Any:
    device = [*args, *kwargs.values(), default][0]
    key = f"autocast_{device}_{kind}"
    if key in settings.SETTINGS:
        return read_setting(tracer, key)
    return function(*args, **kwargs)  # torch's own error, or a device without autocast


@special(*names("get_default_device"))
def get_default_device(tracer: Tracer) -> Any:
    if not tracer.recorder.devices:
        return torch.get_default_device()  # of a context around the call, which entries guard
    device = tracer.recorder.devices[-1]
    return device if device.index is not None else torch.empty(0, device=device).device


@special_each(
    *names(
        "is_bf16_supported is_tf32_supported get_device_capability get_device_name"
        " get_device_properties",
        of="cuda",
    )
)
def about_device(tracer: Tracer, function: Any, *args: Any, **kwargs: Any) -> Any:
    """A GPU's properties and capabilities never change; the current device does."""
    tracer.native_calls.native_reads(*args, *kwargs.values())
    if torch.cuda.is_available():
        query(tracer, name("_C._cuda_getDevice"))
    return function(*args, **kwargs)


# -- attributes of tensors, as torch-function modes are told of them --


@special(types.GetSetDescriptorType.__get__)
def get_attribute(tracer: Tracer, descriptor: Any, obj: Any, *owner: Any) -> Any:
    if not isinstance(obj, torch.Tensor) or descriptor.__objclass__ is not TensorBase:
        tracer.break_graph("unknown_native", "getset_descriptor.__get__")
    return tracer.attributes.getattr(obj, descriptor.__name__)


# -- contexts held open by C++ objects --


@special(*names("inference_mode.__enter__"))
def enter_inference_mode(tracer: Tracer, context: Any) -> None:
    mode = tracer.attributes.getattr(context, "mode")
    if tracer.recorder.flags_changed and not mode:
        reason = "inference mode is left after requires_grad of an input has changed"
        tracer.break_graph("tensor_metadata_mutation", reason)
    handle = InferenceHandle(tracer.recorder, mode)
    tracer.attribute_writes.setattr(context, "_inference_mode_context", handle)


@special(*names("inference_mode.__exit__"))
def exit_inference_mode(tracer: Tracer, context: Any, *error: Any) -> None:
    handle = tracer.attributes.getattr(context, "_inference_mode_context")
    if not isinstance(handle, InferenceHandle):
        tracer.break_graph(
            "side_effect_native", "inference mode, entered before this region, is left"
        )
    handle.close()


@special(*names("profiler.record_function.__enter__"))
def enter_record_function(tracer: Tracer, context: Any) -> Any:
    """Enters a profiler label, which has no effect on values and is not in the graph."""
    label, note = (tracer.attributes.getattr(context, field) for field in ("name", "args"))
    tracer.attribute_writes.setattr(context, "record", ProfilerHandle(label, note))
    return context


@special(*names("profiler.record_function.__exit__"))
def exit_record_function(tracer: Tracer, context: Any, *error: Any) -> None:
    handle = tracer.attributes.getattr(context, "record")
    if not isinstance(handle, ProfilerHandle):
        tracer.break_graph(
            "side_effect_native", "record_function, entered before this region, is left"
        )
    handle.is_open = False


@special(*names("overrides.TorchFunctionMode.__enter__"))
def enter_mode(tracer: Tracer, mode: Any) -> Any:
    if tracer.recorder.devices:
        tracer.break_graph("torch_mode", "a mode is entered inside a device context")
    tracer.recorder.program_modes += ((mode, tracer.outer_step),)
    return mode


@special(*names("overrides.TorchFunctionMode.__exit__"))
def exit_mode(tracer: Tracer, mode: Any, *error: Any) -> None:
    modes = tracer.recorder.program_modes
    if not modes or modes[-1][0] is not mode:
        tracer.break_graph("torch_mode", "a mode, entered before this region, is left")
    tracer.recorder.program_modes = modes[:-1]


@special(*names("device.__enter__"))
def enter_device(tracer: Tracer, device: Any) -> Any:
    if tracer.recorder.program_modes:
        tracer.break_graph("torch_mode", "a device context is entered inside a mode")
    tracer.recorder.devices.append(device)
    return device


@special(*names("device.__exit__"))
def exit_device(tracer: Tracer, device: Any, *error: Any) -> None:
    if not tracer.recorder.devices:
        tracer.break_graph(
            "side_effect_native", "a device context, entered before this region, is left"
        )
    tracer.recorder.devices.pop()
