"""Runs a TVM executable on torch's own memory, without copying tensors in or out.

Tensors cross by DLPack, whose owners keep the memory alive; a non-contiguous or misaligned input
is copied first. A virtual machine serves one call at a time, so that threads and recursive calls
do not share one. A result that shares memory with an input or another result is copied, because
the graph promises separate results. TVM's thread pool has as many threads as torch and pins
none."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Container, Sequence
from typing import Any

import torch

from tracer_core.plugin_api import CompileSpec

# TVM's thread pool reads this when it starts. Otherwise it pins the calling thread to the first
# processor, and so all threads and processes which that thread starts later (torch, compilers).
os.environ.setdefault("TVM_BIND_THREADS", "0")

#: Alignment in bytes that TVM's vector loads assume; torch's own allocations have it.
ALIGNMENT = 64


class Machine:
    """The runner. Mutable: keeps idle virtual machines. check: the value check, the executable's
    last result (None: none). frozen: names of graph inputs that are constants of the executable;
    held: objects that must live as long as these."""

    def __init__(
        self,
        executable: Any,
        graph: Any,
        check: Any,
        spec: CompileSpec,
        frozen: Container[str] = (),
        held: Any = None,
    ) -> None:
        import tvm

        self._executable, self._graph, self._check = executable, graph, check
        self._device = tvm.device(spec.device.type, spec.device.index or 0)
        self._inputs = [index for index, name, _ in graph.inputs if name not in frozen]
        self._held = held
        self._forms = graph.forms(spec)
        self._idle: deque[Any] = deque()
        self._threads = 0

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        if self._threads != torch.get_num_threads():
            self._use_threads()
        try:
            main = self._idle.pop()
        except IndexError:
            main = self._make()
        results = [
            _own(value) for value in main(*(_argument(inputs[index]) for index in self._inputs))
        ]
        self._idle.append(main)
        outputs: Sequence[Any]
        if self._check is not None and self._check.is_hit(results.pop()):
            outputs = self._check.eager(*inputs)
            return outputs
        outputs = self._graph.finish(self._forms, self._apart(results, inputs), inputs)
        return outputs

    def _apart(self, results: list[torch.Tensor], inputs: Sequence[Any]) -> list[torch.Tensor]:
        taken = {value.data_ptr() for value in inputs if isinstance(value, torch.Tensor)}
        for number, result in enumerate(results):
            if result.data_ptr() in taken:
                results[number] = result.clone()
            taken.add(result.data_ptr())
        return results

    def _make(self) -> Any:
        from tvm import relax

        return relax.VirtualMachine(self._executable, self._device)["main"]

    def _use_threads(self) -> None:
        import tvm

        self._threads = torch.get_num_threads()
        tvm.get_global_func("runtime.config_threadpool")(0, self._threads)


def _argument(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return aligned(value.detach() if value.is_contiguous() else value.detach().contiguous())
    import tvm_ffi

    return tvm_ffi.Shape((int(value),))


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor, or a copy if its address is not a multiple of `ALIGNMENT`."""
    return (
        tensor
        if tensor.data_ptr() % ALIGNMENT == 0
        else tensor.clone(memory_format=torch.contiguous_format)
    )


def _own(value: Any) -> torch.Tensor:
    """Returns a torch tensor: TVM gives one back only where it was called with one."""
    return value if isinstance(value, torch.Tensor) else torch.from_dlpack(value)
