"""Parameters whose memory was freed because compiled graphs read only packed copies of them.

A released `nn.Parameter` stays the same object and keeps its sizes, strides, dtype and device.
Reading, writing or copying its values raises an error that names the parameter; ``state_dict()``
raises too, because a checkpoint without the weights would be silently broken.
"""

from __future__ import annotations

from typing import Any

import torch

from tracer_core import torch_private

#: What may still be asked of it, by the attribute's name.
_FACTS = frozenset(
    {
        "shape", "dtype", "device", "requires_grad", "layout", "ndim", "is_leaf", "_version",
        "names", "itemsize", "is_cpu", "is_cuda", "is_meta", "is_quantized", "is_sparse",
        "is_mkldnn", "is_nested", "grad_fn", "_backward_hooks",
    }
)  # fmt: skip
_QUESTIONS = frozenset(
    {
        "size", "dim", "stride", "numel", "nelement", "element_size", "is_floating_point",
        "is_complex", "is_inference", "is_contiguous", "storage_offset", "__len__",
    }
)  # fmt: skip


class ReleasedParameter(torch.nn.Parameter):
    """A parameter without memory; see the module's docstring. Made by `release` only."""

    _tracer_name: str

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        about = getattr(
            getattr(func, "__self__", None), "__name__", ""
        )  # a property's getter: names the property
        if (name == "__get__" and about in _FACTS) or name in _QUESTIONS:
            return torch_private.default_torch_function(func, types, args, kwargs or {})
        raise RuntimeError(f"{_names(args, kwargs)}: its memory was given back by release_originals(). Only graphs that "
                           "were compiled with freeze=True before that still have its values")  # fmt: skip

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return (
            f"<{self._tracer_name}, a parameter of sizes {tuple(self.shape)} whose memory was given"
            " back>"
        )


def _names(args: Any, kwargs: Any) -> str:
    texts: list[str] = []
    stack = [args, list((kwargs or {}).values())]
    while stack:
        item = stack.pop()
        if isinstance(item, ReleasedParameter):
            texts.append(item._tracer_name)
        elif isinstance(item, (list, tuple)):
            stack.extend(item)
    return ", ".join(dict.fromkeys(texts)) or "a parameter"


def can_release(tensor: torch.Tensor) -> bool:
    """Whether the tensor is a plain parameter that owns its memory."""
    return (
        type(tensor) is torch.nn.Parameter and tensor.device.type == "cpu" and tensor.grad is None
    )


def release(parameter: torch.Tensor, name: str) -> int:
    """Frees the parameter's memory, if nobody else holds it; returns the upper bound of the bytes
    freed.
    """
    held = parameter.untyped_storage().nbytes()
    empty = torch.empty_strided(parameter.shape, parameter.stride(), dtype=parameter.dtype)
    empty.untyped_storage().resize_(0)
    parameter.data = empty
    parameter._tracer_name = name  # type: ignore[attr-defined]
    parameter.__class__ = ReleasedParameter
    return held
