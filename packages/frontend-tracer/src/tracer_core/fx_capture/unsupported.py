"""Unsupported torch functions: those that break the graph, and why."""

from __future__ import annotations

from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.fx_capture.function_traits import operator_name, receiver_of
from tracer_core.guards.numpy_types import SCALARS
from tracer_core.ops.table import spelled_with
from tracer_core.ops.traits import Trait
from tracer_core.torch_private.names import names
from tracer_core.torch_private.needed import OpOverload, pytree

_VALUE = "data_dependent_value"
_META = "tensor_metadata_mutation"
_GRAD = "autograd_in_graph"

#: Name of a tensor method or torch function -> kind of break.
_BY_NAME: dict[str, str] = {
    **dict.fromkeys(
        ("item", "tolist", "numpy", "__int__", "__float__", "__index__", "__complex__",
         "__array__", "data_ptr", "__format__", "__dlpack__", "equal", "allclose", "is_nonzero",
         "__repr__", "untyped_storage", "apply_", "map_", "map2_", "tofile", "storage",
         "_typed_storage", "__deepcopy__", "__reduce_ex__", "__contains__"),
        _VALUE,
    ),
    # an input's differ from call to call
    **dict.fromkeys(("_is_view", "is_set_to"), _VALUE),
    "__bool__": "data_dependent_branch",
    **dict.fromkeys(
        ("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "_unique",
         "_unique2"), "data_dependent_shape",
    ),
    **dict.fromkeys(spelled_with(Trait.SETS_METADATA), _META),
    **dict.fromkeys(("backward", "register_hook", "register_post_accumulate_grad_hook",
    "_backward"), _GRAD),
    **dict.fromkeys(("from_numpy", "as_tensor", "asarray", "frombuffer", "from_dlpack", "tensor",
    "new_tensor"), ""),
    **dict.fromkeys(("manual_seed", "seed", "set_rng_state", "initial_seed", "get_rng_state"),
    "side_effect_native"),
}  # fmt: skip

#: Differentiation entry points: by identity, since their names are common.
_BY_IDENTITY = names("autograd.grad autograd.backward")


#: The operators of torch.ao.quantization.FusedMovingAvgObsFakeQuantize.
_OBSERVING = ("fused_moving_avg_obs_fake_quant", "_fused_moving_avg_obs_fq_helper")
_OBSERVED = (
    "input", "observer_on", "fake_quant_on", "running_min", "running_max", "scale", "zero_point",
    "averaging_const", "quant_min", "quant_max", "ch_axis", "per_row_fake_quant",
)  # fmt: skip

#: Namespaces of operators that only read the objects of C++ which they are given (packed weights).
#: What the program's own operators do to theirs, no schema says.
_READING = frozenset({"aten", "quantized", "prepacked", "mkldnn_prepacked", "onednn", "sparse"})

#: Methods that show how many elements a sparse tensor has; its fake has none.
_SPARSE_PARTS = frozenset(
    {"_nnz", "values", "_values", "indices", "_indices", "crow_indices", "col_indices",
     "ccol_indices", "row_indices"}
)  # fmt: skip

_COMPRESSING = ("to_sparse_", "sparse_cs", "sparse_bs", "sparse_compressed")

#: Their fakes are not quantized.
_QUANTIZING = ("quantize_per_", "_make_per_")
_PLAIN = (int, float, bool, complex, list, tuple, torch.Tensor, torch.SymInt, torch.SymFloat)


def unsupported(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, str] | None:
    """Returns (kind, reason) if this call must break the graph, else None."""
    name = operator_name(func)
    kind = _BY_NAME.get(name)
    if isinstance(func, OpOverload) and not name and not func._schema.returns:
        if not func._schema.is_mutable:
            return "side_effect_native", f"{func} returns nothing: what it does cannot be recorded"
    if isinstance(func, OpOverload) and func.namespace not in _READING:
        if any(
            isinstance(leaf, torch.ScriptObject) for leaf in pytree.arg_tree_leaves(*args, **kwargs)
        ):
            return "unsupported_value", f"{func} is given a ScriptObject, which it may change"
    if name.startswith(_QUANTIZING):
        return "tensor_subclass", f"{name}() makes a quantized tensor"
    if name.startswith(_COMPRESSING):
        return "tensor_subclass", f"{name}() makes a sparse tensor without strides"
    if name in _OBSERVING and _resizes_statistics(args, kwargs):
        return _META, f"{name}() resizes the statistics of its channels"
    if name in _SPARSE_PARTS and _is_sparse(receiver_of(func, args)):
        return "tensor_subclass", f"{name}() of a sparse tensor, whose fake has no elements"
    if func in _BY_IDENTITY:
        kind = _GRAD
    if kind is None:
        return None
    if name in _CAPTURED_OF_INTERMEDIATES and _is_intermediate(func, args):
        return None
    if kind == "":
        return _from_outside(name, args[1:] if name == "new_tensor" else args)
    if name == "__set__":
        attribute = getattr(getattr(func, "__self__", None), "__name__", "an attribute")
        return kind, f"{attribute} of a tensor is set"
    owner = "Tensor." if getattr(torch.Tensor, name, None) is func else ""
    return kind, f"{owner}{name}()"


def _is_sparse(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.layout is not torch.strided
        and not value.is_nested
    )


def _resizes_statistics(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns whether the operator of a fused observer with statistics of channels meets others
    than one number a channel, as in its first call. Its fakes keep their sizes."""
    inputs = dict(zip(_OBSERVED, args, strict=False)) | kwargs
    if not inputs.get("per_row_fake_quant"):
        return False
    value = inputs.get("input", inputs.get("self"))
    if value is None or "ch_axis" not in inputs:
        return True
    statistics = (inputs.get(name) for name in _OBSERVED[3:7])
    channels = (value.shape[inputs["ch_axis"]],)
    return any(statistic is None or statistic.shape != channels for statistic in statistics)


def _is_intermediate(func: Any, args: tuple[Any, ...]) -> bool:
    """Returns whether the tensor that a method mutates was made in the trace, so that no outside
    observer sees it."""
    changed = receiver_of(func, args)
    return isinstance(changed, torch.Tensor) and torch_private.is_fake(changed)


_CAPTURED_OF_INTERMEDIATES = spelled_with(Trait.SETS_METADATA_OF_INTERMEDIATES)


def _holds_scalar(value: Any) -> bool:
    """Returns whether the data of a new tensor contains a NumPy scalar, whose type decides the
    dtype."""
    if isinstance(value, (list, tuple)):
        return any(map(_holds_scalar, value))
    return type(value) in SCALARS


def _from_outside(name: str, args: tuple[Any, ...]) -> tuple[str, str] | None:
    """Rejects tensors made of arrays and buffers; those made of numbers and lists are captured."""
    data = args[0] if args else None
    leaves = pytree.tree_leaves(data) if isinstance(data, (list, tuple)) else ()
    if any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return "data_dependent_value", f"{name}() of a list of tensors reads their values"
    if _holds_scalar(data):
        reason = f"{name}() of a number of NumPy, whose type decides the tensor's"
        return "unsupported_value", reason
    if isinstance(data, _PLAIN) and name not in ("from_numpy", "frombuffer", "from_dlpack"):
        return None
    if not args and name in ("tensor", "as_tensor", "asarray", "new_tensor"):
        return None  # data= by keyword; an array in it is rejected where native code reads it
    return "data_dependent_value", f"torch.{name} of {type(data).__name__ if args else 'nothing'}"
