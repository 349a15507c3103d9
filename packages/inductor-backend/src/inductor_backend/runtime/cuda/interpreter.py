"""Triton's interpreter: runs generated kernels on CPU tensors, without a GPU (tests only).

Needs TRITON_INTERPRET=1 before triton is imported. The functions of `libdevice` have the names of
the device library and compute with NumPy and torch; `compute_as_devices` makes bfloat16 be as
on devices. NumPy and torch are imported lazily, because the compile workers import this module.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


def interpreting() -> bool:
    """Returns whether triton, imported now, interprets its kernels."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def blocks_of_program(count: Any) -> range:
    """Returns the blocks of the running persistent program: ``tl.range`` with Python ints."""
    import numpy as np  # heavy: numpy
    from triton.runtime.interpreter import interpreter_builder  # heavy: triton

    number = int(np.asarray(count.handle.data).item()) if hasattr(count, "handle") else int(count)
    return range(int(interpreter_builder.grid_idx[0]), number, int(interpreter_builder.grid_dim[0]))


def compute_as_devices() -> None:
    """Patches Triton's interpreter, which truncates to bfloat16 and multiplies matrices of bfloat16
    as if their bits were integers, to round to nearest and to multiply."""
    import numpy as np  # heavy: numpy
    import torch  # heavy: torch
    import triton.language as tl  # heavy: triton
    from triton.runtime import interpreter  # heavy: triton

    convert = interpreter._convert_float

    def rounded(data: Any, source: Any, result: Any, mode: Any) -> Any:
        if str(result) != "bf16" or str(source) not in ("fp32", "fp64"):
            return convert(data, source, result, mode)
        number = torch.from_numpy(np.ascontiguousarray(data)).reshape(data.shape).to(torch.float32)
        return number.to(torch.bfloat16).view(torch.uint16).numpy()

    interpreter._convert_float = rounded
    multiply = interpreter.InterpreterBuilder.create_dot

    def multiplied(builder: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        return multiply(builder, widened(a), widened(b), d, *rest)

    def widened(block: Any) -> Any:
        if str(block.dtype) != "bf16":
            return block
        wide = (block.data.astype(np.uint32) << 16).view(np.float32)
        return interpreter.TensorHandle(wide, tl.float32)

    interpreter.InterpreterBuilder.create_dot = multiplied


def _through_torch(name: str) -> Callable[..., Any]:
    import numpy as np  # heavy: numpy
    import torch  # heavy: torch

    def apply(*arrays: Any) -> Any:
        tensors = [
            torch.from_numpy(np.ascontiguousarray(array)) for array in np.broadcast_arrays(*arrays)
        ]
        return getattr(torch, name)(*tensors).numpy()

    return apply


_NUMPY = "floor ceil trunc rint fmod copysign sqrt"
_TORCH = """
exp exp2 expm1 log log2 log10 log1p rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc pow atan2 hypot
nextafter erfinv
"""


class _Libdevice:
    """The device library's functions over interpreted blocks."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        import numpy as np  # heavy: numpy

        function: Callable[..., Any]
        if name == "div_rn":
            function = np.divide
        elif name in _NUMPY.split():
            function = getattr(np, name)
        elif name in _TORCH.split():
            function = _through_torch(name)
        else:
            raise AttributeError(f"libdevice.{name} has no interpreted form")
        return lambda *blocks, _semantic=None, **unused: _apply(function, blocks)


def _apply(function: Callable[..., Any], blocks: tuple[Any, ...]) -> Any:
    import numpy as np  # heavy: numpy
    import triton.language as tl  # heavy: triton
    from triton.runtime.interpreter import TensorHandle

    blocks = tuple(
        block if isinstance(block, tl.tensor) else tl.full([], block, blocks[0].dtype)
        for block in blocks
    )
    first = blocks[0]
    with np.errstate(all="ignore"):
        data = function(*(block.handle.data for block in blocks)).astype(first.handle.data.dtype)
    shape = list(np.broadcast_shapes(*(tuple(block.shape) for block in blocks)))
    kind = tl.block_type(first.dtype, shape) if shape else first.dtype
    return tl.tensor(TensorHandle(data.reshape(shape) if shape else data, first.dtype.scalar), kind)


libdevice = _Libdevice()
