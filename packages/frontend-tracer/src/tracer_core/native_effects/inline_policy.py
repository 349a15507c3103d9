"""Decides for each callable: inline, run eagerly, or break the graph.

Python functions are inlined unless a row here says otherwise; C callables need a row in the native
effects table or must be torch operators.
"""

from __future__ import annotations

import enum
import types
from typing import Any

import torch

from tracer_core import markers
from tracer_core.torch_private import modules
from tracer_core.torch_private.names import classes
from tracer_core.torch_private.needed import OpOverload, OpOverloadPacket


class Decision(enum.Enum):
    """INLINE: interpret its bytecode. NATIVE: call it; its tensor operators are recorded and its
    arguments are read at every depth. IGNORE: return None. BREAK: break the graph."""

    INLINE = "inline"
    NATIVE = "native"
    IGNORE = "ignore"
    BREAK = "break"


#: Python modules whose functions are torch operators, recorded as single calls.
_NATIVE_MODULES = frozenset(
    {
        "torch.nn.functional",
        "torch.functional",
        "torch.overrides",
        "torch.fft",
        "torch.special",
        *modules.OPERATOR_MODULES,
    }
)
#: Functions that run eagerly although their module's do not: torch's Python asks about sizes with
#: them.
_NATIVE_FUNCTIONS = frozenset(
    f"torch.fx.experimental.symbolic_shapes.{name}"
    for name in (
        "expect_true",
        "guard_or_false",
        "guard_or_true",
        "has_free_unbacked_symbols",
        "statically_known_true",
    )
)
#: Packages whose Python code breaks the graph -> kind of break.
_BREAK_PACKAGES: dict[str, str] = {
    package: kind
    for kind, packages in {
        "autograd_in_graph": ("torch.autograd",),
        "higher_order": (
            "torch.autograd.function", "torch.func", "torch.utils.checkpoint",
            *modules.HIGHER_ORDER_PACKAGES,
        ),
        "native_python": (
            "torch.export", "torch.serialization", "torch.onnx", "torch.fx",
            "torch.multiprocessing", "torch.profiler", "torch.amp", "torch.optim.lbfgs",
            "torch.library", "numpy", "scipy", "pandas", "sympy", "importlib", "copy",
            "pickle", "json", "asyncio", "unittest", "traceback", "tracer_core",
            *modules.COMPILER_PACKAGES,
        ),
        "processes": ("torch.distributed",),
        "side_effect_native": (
            "logging", "threading", "subprocess", "os", "io", "random", "tempfile", "pathlib",
            "warnings", "_py_warnings", "tqdm",
        ),
    }.items()
    for package in packages
}  # fmt: skip
#: Exceptions to the packages above.
_INLINE_MODULES = frozenset(
    {
        "torch.autograd.grad_mode",
        "torch.autograd.anomaly_mode",
        "torch.amp.autocast_mode",
        "torch.amp.grad_scaler",
        *modules.UNHOOKED_MODULES,
        "tracer_core.markers",
        "tracer_core.native_effects.data_parallel",
        "tracer_core.native_effects.polyfills",
    }
)
_INLINE_FUNCTIONS = frozenset(
    {"os._Environ.__getitem__", "os._Environ.__contains__", "os.getenv",
     *(f"os.{maker}.<locals>.{name}" for name in ("encode", "decode")
       for maker in ("_createenviron", "_create_environ_mapping")),  # the second since 3.14
     "torch.autograd.profiler.record_function.__init__",
     *(f"threading.{name}" for name in (
        "main_thread", "Thread.name", "Thread.ident", "Thread.daemon", "Thread.native_id",
        "Condition.__enter__", "Condition.__exit__", "Event.is_set")),
     *(f"logging.LoggerAdapter.{name}" for name in (
        "debug", "info", "warning", "error", "critical", "log", "process", "isEnabledFor",
        "getEffectiveLevel", "hasHandlers", "name", "manager")),
     "logging.Logger.hasHandlers", "logging.Logger.getChild",
     "random.Random.choices.<locals>.<listcomp>",
     *(f"{module}.{name}" for module in ("warnings", "_py_warnings") for name in (  # 3.14: both
        "simplefilter", "filterwarnings", "resetwarnings", "WarningMessage.__init__",
        "_get_filters", "_get_context", "_GlobalContext._filters", "_Lock.__enter__",
        "_Lock.__exit__", "deprecated.__call__.<locals>.wrapper",
        "deprecated.__call__.<locals>.__new__", "deprecated.__call__.<locals>.__init_subclass__",
        *(f"catch_warnings.__{method}__" for method in ("init", "enter", "exit")))),
     *modules.UNHOOKED_FUNCTIONS,
     *(f"torch.utils.checkpoint.{function}" for function in (
        "checkpoint_sequential", "checkpoint_sequential.<locals>.run_function",
        "checkpoint_sequential.<locals>.run_function.<locals>.forward", "_make_checkpoint_wrapper",
        *(f"_CheckpointedFunction.__{method}__" for method in ("init", "call", "get")))),
     *(f"torch.autograd.function.{cls}.{name}" for cls in ("FunctionCtx",
     "_SingleLevelFunction") for name in (
       "save_for_backward", "save_for_forward", "mark_dirty", "mark_non_differentiable",
       "set_materialize_grads"))}
)  # fmt: skip

#: Python functions in whose calls `is_compiling()` says False: they compute something else where it
#: says True. PaliGemma's attention is not causal: without a mask, which it drops in eager mode if no
#: token is padding, every token attends to every other; while compiling it keeps the causal mask.
_ANSWERED_AS_EAGER = frozenset(
    {"transformers.models.paligemma.modeling_paligemma.PaliGemmaModel.forward"}
)

_TENSOR_CLASSES = classes("Tensor _C.TensorBase")


def decide(function: types.FunctionType) -> tuple[Decision, str, str]:
    """Returns (decision, break kind, reason) for a Python function."""
    module = function.__globals__.get("__name__", "")
    if module in _NATIVE_MODULES:
        return Decision.NATIVE, "", ""
    reason = markers.disabled(function)
    if reason is not None:
        return Decision.BREAK, "disabled", reason
    if module in _INLINE_MODULES:
        return Decision.INLINE, "", ""
    if function.__code__.co_flags & 0x280:
        return Decision.BREAK, "async_function", f"{function.__qualname__} is async"
    made_as = function.__code__.co_qualname  # a decorator may give a function another name
    package = module
    while package:
        kind = _BREAK_PACKAGES.get(package)
        if kind is not None and f"{module}.{function.__qualname__}" in modules.MARKS_ONLY:
            return Decision.IGNORE, "", ""
        if kind is not None and f"{module}.{function.__qualname__}" in _NATIVE_FUNCTIONS:
            return Decision.NATIVE, "", ""
        names = {f"{module}.{name}" for name in (function.__qualname__, made_as)}
        if kind is not None and _INLINE_FUNCTIONS.isdisjoint(names):
            return Decision.BREAK, kind, f"{module}.{function.__qualname__} is not traced into"
        package = package.rpartition(".")[0]
    return Decision.INLINE, "", ""


def is_answered_as_eager(function: types.FunctionType) -> bool:
    """Returns whether `is_compiling()` says False in a call of a Python function."""
    module = function.__globals__.get("__name__", "")
    return f"{module}.{function.__code__.co_qualname}" in _ANSWERED_AS_EAGER


def is_torch_operator(function: Any) -> bool:
    """Returns whether a C callable is a tensor operator, which the recorder sees by itself."""
    if isinstance(function, (OpOverload, OpOverloadPacket)):
        return True
    owner = getattr(function, "__objclass__", None)
    if owner is not None:
        return owner in _TENSOR_CLASSES
    receiver = getattr(function, "__self__", None)
    if isinstance(receiver, types.ModuleType):
        return receiver.__name__ in modules.C_OPERATOR_MODULES
    if isinstance(receiver, torch.Tensor) or any(receiver is cls for cls in _TENSOR_CLASSES):
        return True
    qualified = getattr(function, "__qualname__", "")
    return (
        qualified.startswith("_VariableFunctionsClass.")
        or (getattr(function, "__module__", None) or "") in modules.C_OPERATOR_MODULES
    )
