"""Runs an ONNX Runtime session on torch's own memory, without copying tensors in or out.

Inputs are bound by address (a non-contiguous one is made contiguous first), and bound again only
if address or shape changed. Outputs are fresh torch tensors that ONNX Runtime writes into. A
call that hits the graph's value check gets eager's results. An IOBinding serves one call at a
time, so that threads and recursive calls do not share one; bound tensors live as long as the
call."""

from __future__ import annotations

import ctypes
import functools
from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import Any

import torch

from onnxrt_backend.export import Exported
from onnxrt_backend.torch_private.onnx_exporter import element_type
from onnxrt_backend.torch_private.ort_binding import raw_binding, raw_device
from tracer_core.plugin_api import CompileSpec


class Binding:
    """Mutable: an IOBinding and what is bound. bound: address and shape of each input, in the
    order of `BoundSession`'s inputs. written: addresses of the outputs with static sizes, by
    index. check: the tensor that the session writes its value check to, if it has one; read_check:
    reads that tensor."""

    __slots__ = ("check", "bound", "read_check", "input", "output", "run", "written")

    def __init__(self, session: Any, n_inputs: int) -> None:
        raw, self.run = raw_binding(session)
        self.input, self.output = raw.bind_input, raw.bind_output
        self.bound: list[tuple[int, Any] | None] = [None] * n_inputs
        self.written: dict[int, int] = {}
        self.check: torch.Tensor | None = None
        self.read_check: Callable[[], float] | None = None


class BoundSession:
    """The runner. Mutable: keeps idle bindings.

    session: an onnxruntime.InferenceSession. frozen: names of graph inputs that are initialisers
    of the session; held: objects that must live as long as these."""

    def __init__(
        self,
        session: Any,
        exported: Exported,
        spec: CompileSpec,
        frozen: Container[str] = (),
        held: Any = None,
    ) -> None:
        self._session = session
        self._device = spec.device
        self._place = raw_device(spec.device.type, spec.device.index or 0)
        self._inputs = [
            (place, index, name, element_type(dtype))
            for place, (index, name, dtype) in enumerate(
                value for value in exported.graph.inputs if value[1] not in frozen
            )
        ]
        self._forms = exported.graph.forms(spec)
        #: (sizes where they are static and the buffer is the result, else None; dtype, name, ONNX
        #: element type, form) of each.
        self._outputs = [
            (form.known_sizes, form.dtype, form.name, element_type(form.dtype), form)
            for form in self._forms
        ]
        self._finish = exported.graph.finish
        #: Whether every buffer is a result without further work.
        self._all_known = all(form.known_sizes is not None for form in self._forms)
        self._check = exported.check
        self._idle: deque[Binding] = deque()
        nowhere = torch.empty(1, device=spec.device)
        self._held = (held, nowhere)
        self._nowhere = nowhere.data_ptr()  # ONNX Runtime wants an address even for no elements

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        try:
            binding = self._idle.pop()
        except IndexError:
            binding = self._new_binding()
        alive = self._bind_inputs(binding, inputs)
        buffers = self._bind_outputs(binding, inputs)
        binding.run()
        del alive
        outputs: Sequence[Any] = buffers
        if binding.read_check is not None and self._check.is_hit(binding.read_check()):
            outputs = self._check.eager(*inputs)
        elif not self._all_known:
            outputs = self._finish(self._forms, buffers, inputs)
        self._idle.append(binding)
        return outputs

    def _bind_outputs(self, binding: Binding, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Allocates and binds the results. This Python code runs with cold caches after each
        session: every line costs."""
        device, place, bind, nowhere = self._device, self._place, binding.output, self._nowhere
        buffers = []
        for index, (sizes, dtype, name, kind, form) in enumerate(self._outputs):
            if sizes is None:
                buffer = form.allocate(inputs, device)
                bind(name, place, kind, buffer.shape, buffer.data_ptr() or nowhere)
            else:
                buffer = torch.empty(sizes, dtype=dtype, device=device)
                address = buffer.data_ptr() or nowhere
                # the allocator often returns the memory of a result that was dropped
                if binding.written.get(index) != address:
                    bind(name, place, kind, sizes, address)
                    binding.written[index] = address
            buffers.append(buffer)
        return buffers

    def _new_binding(self) -> Binding:
        binding = Binding(self._session, len(self._inputs))
        if self._check is not None:
            check = binding.check = torch.zeros((), device=self._device)
            binding.output(
                self._check.name,
                self._place,
                element_type(check.dtype),
                check.shape,
                check.data_ptr(),
            )
            binding.read_check = (
                functools.partial(_float_at, check.data_ptr())
                if check.device.type == "cpu"
                else check.item
            )
        return binding

    def _bind_inputs(self, binding: Binding, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Binds the inputs that changed since the binding was last used; returns the tensors to
        keep alive."""
        alive = []
        bound = binding.bound
        for place, index, name, kind in self._inputs:
            value = inputs[index]
            if not isinstance(value, torch.Tensor):
                value = torch.tensor(value)
            if not value.is_contiguous():
                value = value.contiguous()
            alive.append(value)
            key = (value.data_ptr() or self._nowhere, value.shape)
            if bound[place] != key:
                binding.input(name, self._place, kind, key[1], key[0])
                bound[place] = key
        return alive


def _float_at(address: int) -> float:
    return ctypes.c_float.from_address(address).value
