"""Calls a session on torch's own memory: no tensor is copied on the way in or out.

In: a session, an `Exported` and the spec. Out: a runner. Inputs are bound by address (a non-contiguous one is
made contiguous first); parameters are bound again only if their address changed; outputs are fresh torch
tensors that ONNX Runtime writes into.

What always holds: an IOBinding belongs to one running call, so threads and recursion do not share one; a
tensor that is bound lives as long as the call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from onnxrt_backend.export import Exported, Result
from onnxrt_backend.torch_private import element_type
from tracer_core.plugin_api import CompileSpec


class Binding:
    """An IOBinding and the addresses it holds (mutable)."""

    def __init__(self, session: Any) -> None:
        self.io = session.io_binding()
        self.bound: dict[str, tuple[int, tuple[int, ...]]] = {}


class BoundSession:
    """The runner (mutable: it keeps idle bindings).

    session: an onnxruntime.InferenceSession. device: where inputs and outputs live.
    """

    def __init__(self, session: Any, exported: Exported, spec: CompileSpec) -> None:
        self._session = session
        self._device = spec.device
        self._place = (spec.device.type, spec.device.index or 0)
        self._inputs = [(index, name, element_type(dtype)) for index, name, dtype in exported.inputs]
        self._results = [OutputBuffer(result, spec) for result in exported.results]
        self._outputs = sum(result.target is None for result in exported.results)
        self._idle: deque[Binding] = deque()
        self._nowhere = torch.empty(
            1, device=spec.device
        )  # ONNX Runtime wants an address even for no elements

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        try:
            binding = self._idle.pop()
        except IndexError:
            binding = Binding(self._session)
        kept = self._bind_inputs(binding, inputs)
        buffers = [result.allocate(inputs, self._device) for result in self._results]
        for result, buffer in zip(self._results, buffers, strict=True):
            address = buffer.data_ptr() or self._nowhere.data_ptr()
            binding.io.bind_output(
                result.name, *self._place, result.element_type, tuple(buffer.shape), address
            )
        self._session.run_with_iobinding(binding.io)
        del kept
        self._idle.append(binding)
        values = [r.finish(b, inputs) for r, b in zip(self._results, buffers, strict=True)]
        for result, value in zip(self._results[self._outputs :], values[self._outputs :], strict=True):
            if result.target is not None:
                inputs[result.target].copy_(value)
        return values[: self._outputs]

    def _bind_inputs(self, binding: Binding, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Binds what changed since this binding was used last; gives the tensors that must stay alive."""
        kept = []
        for index, name, kind in self._inputs:
            value = inputs[index]
            if not isinstance(value, torch.Tensor):
                value = torch.tensor(value)
            if not value.is_contiguous():
                value = value.contiguous()
            kept.append(value)
            key = (value.data_ptr() or self._nowhere.data_ptr(), tuple(value.shape))
            if binding.bound.get(name) != key:
                binding.io.bind_input(name, *self._place, kind, key[1], key[0])
                binding.bound[name] = key
        return kept


class OutputBuffer:
    """Where one output of the model goes, and how it becomes the result."""

    def __init__(self, result: Result, spec: CompileSpec) -> None:
        self.name = result.name
        self.target = result.target
        self.element_type = element_type(result.dtype)
        self._result = result
        reads = {size.symbol: (size.input_index, size.dim) for size in spec.sizes}
        self._shape = [_size(size, reads) for size in result.shape]
        self._buffer_dims = [
            _one if dim in result.zero_strides else self._shape[dim]
            for dim in (result.order or range(len(self._shape)))
        ]
        order = result.order
        self._inverse = None if order is None else sorted(range(len(order)), key=order.__getitem__)

    def allocate(self, inputs: Sequence[Any], device: torch.device) -> torch.Tensor:
        """A fresh contiguous tensor of the shape that the model writes."""
        return torch.empty(
            [size(inputs) for size in self._buffer_dims], dtype=self._result.dtype, device=device
        )

    def finish(self, buffer: torch.Tensor, inputs: Sequence[Any]) -> torch.Tensor:
        """The result as a view of its buffer."""
        if self._inverse is not None:
            buffer = buffer.permute(self._inverse)
        if self._result.zero_strides:
            buffer = buffer.expand([size(inputs) for size in self._shape])
        return buffer


Size = Callable[[Sequence[Any]], int]


def _one(inputs: Sequence[Any]) -> int:
    return 1


def _size(value: Any, reads: dict[str, tuple[int, int | None]]) -> Size:
    """A function from a call's inputs to a size of the call."""
    if not isinstance(value, torch.SymInt):
        number = int(value)
        return lambda inputs: number
    expr = value.node.expr
    symbols = {symbol: reads[str(symbol)] for symbol in expr.free_symbols}

    def read(inputs: Sequence[Any], index: int, dim: int | None) -> int:
        return int(inputs[index] if dim is None else inputs[index].shape[dim])

    if expr.is_Symbol:
        ((index, dim),) = symbols.values()
        return lambda inputs: read(inputs, index, dim)
    return lambda inputs: int(expr.subs({symbol: read(inputs, *place) for symbol, place in symbols.items()}))
