"""Calls a session on torch's own memory: no tensor is copied on the way in or out.

In: a session, an `Exported` and the spec. Out: a runner. Inputs are bound by address (a non-contiguous one is
made contiguous first); parameters are bound again only if their address changed; outputs are fresh torch
tensors that ONNX Runtime writes into.

What always holds: an IOBinding belongs to one running call, so threads and recursion do not share one; a
tensor that is bound lives as long as the call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from typing import Any

import torch

from onnxrt_backend.export import Exported
from onnxrt_backend.torch_private import element_type
from tracer_core.plugin_api import CompileSpec


class Binding:
    """An IOBinding and the addresses it holds (mutable)."""

    def __init__(self, session: Any) -> None:
        self.io = session.io_binding()
        self.bound: dict[str, tuple[int, tuple[int, ...]]] = {}


class BoundSession:
    """The runner (mutable: it keeps idle bindings).

    session: an onnxruntime.InferenceSession. device: where inputs and outputs live. frozen: names of inputs of the graph
    that are initialisers of the session; held: what must live as long as they do.
    """

    def __init__(
        self, session: Any, exported: Exported, spec: CompileSpec, frozen: Container[str] = (), held: Any = None
    ) -> None:
        self._session = session
        self._device = spec.device
        self._place = (spec.device.type, spec.device.index or 0)
        self._held = held
        self._inputs = [
            (index, name, element_type(dtype)) for index, name, dtype in exported.graph.inputs if name not in frozen
        ]
        self._forms = exported.graph.forms(spec)
        self._outputs = [(form.name, element_type(form.dtype)) for form in self._forms]
        self._finish = exported.graph.finish
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
        buffers = [form.allocate(inputs, self._device) for form in self._forms]
        for (name, kind), buffer in zip(self._outputs, buffers, strict=True):
            address = buffer.data_ptr() or self._nowhere.data_ptr()
            binding.io.bind_output(name, *self._place, kind, tuple(buffer.shape), address)
        self._session.run_with_iobinding(binding.io)
        del kept
        self._idle.append(binding)
        outputs: Sequence[Any] = self._finish(self._forms, buffers, inputs)
        return outputs

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
