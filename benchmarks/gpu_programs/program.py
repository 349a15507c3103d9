"""One program that is measured on GPUs: its target, its batches and one iteration.

In: `ProgramParts`, which a function of the program makes on the CPU in float32. Out: `GpuProgram`,
whose `build` returns a `BuiltProgram`: the parts on a device, in the program's precision and memory
format. What always holds: weights and inputs come from one seed on the CPU, so that every
process and device has the same; nothing is downloaded; dropout is 0; importing this imports no torch.

Programs in float32 expect a caller that allows TF32.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

SEED = 46

Half = Literal["issue", "open", "held_out"]
#: The dtype of parameters and inputs. ``autocast``: float32, computed under bfloat16 autocast.
Precision = Literal["float32", "autocast", "bfloat16", "float16", "float64"]
Batch = tuple[Any, ...]


def call_with_batch(run: Callable[..., Any], *batch: Any) -> Any:
    """Calls `run` with the inputs of a batch in their order."""
    return run(*batch)


@dataclass(frozen=True, slots=True)
class ProgramParts:
    """What a program consists of, on the CPU in float32.

    target: a module or a function. make_batch(number): the inputs of batch `number`. call(run, *batch):
    calls the target, or its compiled form, and returns outputs or, in training, the loss.
    """

    target: Any
    make_batch: Callable[[int], Batch]
    call: Callable[..., Any] = call_with_batch


@dataclass(frozen=True, slots=True)
class BuiltProgram:
    """A program on a device.

    target: a module in train or eval mode, or a function. batches: the inputs of several
    iterations. call: as in `ProgramParts`. optimizer: steps over the target's parameters after the
    backward, or None. max_norm: gradients are clipped to it before the optimizer's step.
    """

    target: Any
    batches: list[Batch]
    call: Callable[..., Any]
    training: bool
    precision: Precision
    optimizer: torch.optim.Optimizer | None = None
    max_norm: float = 1.0

    def step(self, run: Callable[..., Any], batch: Batch) -> Any:
        """Makes one iteration with `run`, which is the target or its compiled form.

        Returns:
            Inference: the outputs. Training: the loss, with gradients on the parameters that it
            depends on; with an optimizer they are clipped, and the parameters are updated.
        """
        import torch

        if not self.training:
            with torch.no_grad(), self._autocast():
                return self.call(run, *batch)
        self.target.zero_grad(set_to_none=True)
        with self._autocast():
            loss = self.call(run, *batch)
        loss.backward()
        if self.optimizer is not None:
            torch.nn.utils.clip_grad_norm_(self.target.parameters(), self.max_norm)
            self.optimizer.step()
        return loss

    def in_float64(self) -> BuiltProgram:
        """A copy that computes in float64, without autocast: the reference that errors of outputs
        and gradients are measured against.

        The copy starts from the present parameters, buffers and batches.
        """
        import torch

        target = self.target
        if isinstance(target, torch.nn.Module):
            target = copy.deepcopy(target).double()
        batches = [_moved(batch, None, torch.float64) for batch in self.batches]
        optimizer = None if self.optimizer is None else _fused_adamw(target)
        return replace(
            self, target=target, batches=batches, precision="float64", optimizer=optimizer
        )

    def _autocast(self) -> AbstractContextManager[Any]:
        import torch

        if self.precision != "autocast":
            return contextlib.nullcontext()
        device = next(self.target.parameters()).device
        return torch.autocast(device.type, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class GpuProgram:
    """A row of the benchmark.

    name: how it is chosen. library: what it imports beside torch. training: an iteration has a
    backward. half: the issue's own rows, those that rules are tuned on, or those looked at only at
    the end. parts(small): makes the program; small: the same structure, a second on a CPU.
    channels_last: images and convolutions have that memory format. optimizer: an iteration clips
    the gradients and steps fused AdamW. batch_count: batches that `build` makes. discontinuous:
    rounding changes a decision (which expert a token goes to), so that in low precision one
    program's error may be many times another's and neither is wrong.
    """

    name: str
    library: str
    training: bool
    half: Half
    precision: Precision
    parts: Callable[[bool], ProgramParts]
    channels_last: bool = False
    optimizer: bool = False
    batch_count: int = 2
    discontinuous: bool = False

    def build(self, device: str, small: bool = False) -> BuiltProgram:
        """The program on `device`, with the same weights and inputs each time."""
        import torch

        from benchmarks.models import import_library

        if self.library in _IMPORTED_WITH_TORCHVISION:
            import_library(self.library)
        torch.manual_seed(SEED)
        parts = self.parts(small)
        dtype = _dtype(self.precision)
        format_ = torch.channels_last if self.channels_last else torch.preserve_format
        target = parts.target
        if isinstance(target, torch.nn.Module):
            target = target.to(device=device, dtype=dtype).to(memory_format=format_)
            target.train(self.training)
        batches = [
            _moved(parts.make_batch(number), device, dtype, format_)
            for number in range(self.batch_count)
        ]
        optimizer = _fused_adamw(target) if self.optimizer else None
        return BuiltProgram(target, batches, parts.call, self.training, self.precision, optimizer)


#: Libraries that import torchvision, whose operators may be missing beside a CPU build of torch.
_IMPORTED_WITH_TORCHVISION = frozenset({"torchvision", "timm", "transformers"})


def _dtype(precision: Precision) -> torch.dtype:
    import torch

    dtype = getattr(torch, "float32" if precision == "autocast" else precision)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _moved(
    batch: Batch, device: str | None, dtype: torch.dtype, format_: torch.memory_format | None = None
) -> Batch:
    """The inputs on `device`, floating-point tensors in `dtype`, images in the memory format."""
    import torch

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        value = value.to(device=device, dtype=dtype if value.is_floating_point() else None)
        if format_ is torch.channels_last and value.dim() == 4:
            value = value.contiguous(memory_format=format_)
        return value

    return tuple(move(value) for value in batch)


def _fused_adamw(module: torch.nn.Module) -> torch.optim.Optimizer:
    import torch

    return torch.optim.AdamW(module.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
