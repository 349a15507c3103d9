"""Runs operators that uses rng again, with the numbers that a compiled graph has drawn.

On an accelerator a backend's kernels draw other numbers than eager from the same state of the
generator. The backward of a graph needs most of them, so its forward saves them among its tensors.
`RngReplayNode` says where the numbers of one operator are, and `RngReplay` gives them to the
operators of an eager run, in the order of the graph. `saved_rng` makes the draws of a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core.aot.attention_seeds import SEEDS, drops_out
from tracer_core.ops.traits import is_random
from tracer_core.torch_private.names import operators
from tracer_core.torch_private.needed import DispatchMode

aten = operators("aten")

_DROPOUT = aten.native_dropout.default
_CUDNN_RNN, _RNN_DROPOUT, _RNN_TRAINS = aten._cudnn_rnn.default, 11, 12
#: Attention of the CPU, whose dropout is always 0.
_WITHOUT_DROPOUT = frozenset({aten._scaled_dot_product_flash_attention_for_cpu.default})
#: Names of operators that write random integers -> that of the operator which makes such a tensor.
_FUNCTIONAL = {"random": "randint_like"}


def uses_rng(target: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call of an operator uses rng: not if a dropout in it does nothing."""
    if not is_random(target):
        return False
    if target in SEEDS:
        return drops_out(target, args)
    if target is _DROPOUT:
        return args[2] is not False
    if target is _CUDNN_RNN:
        return bool(args[_RNN_DROPOUT] and args[_RNN_TRAINS])
    return target not in _WITHOUT_DROPOUT


def name_of(target: Any) -> str:
    """Returns the name that an operator shares with its in-place and functional forms."""
    name: str = target._schema.name.partition("::")[2]
    name = name.removesuffix("_").removesuffix("_functional")
    return _FUNCTIONAL.get(name, name)


@dataclass(frozen=True, slots=True)
class RngReplayNode:
    """What one operator has drawn.

    name: of the operator, see `name_of`. saved: for each of its results its position among the saved
    tensors; None where it is no tensor, or computed from the others. no_tensors: the results that are no
    tensors. dtype: of a single result, which may be saved in another one. order: permutes the saved
    dimensions into those of the operator's result; empty where they are the same.
    """

    name: str
    saved: tuple[int | None, ...]
    no_tensors: tuple[int | None, ...] = ()
    dtype: str = ""
    order: tuple[int, ...] = ()


class RngReplay(DispatchMode):
    """A mode in which operators that draw return what they have drawn before. Mutable.

    draws: in the order of the run. saved: the tensors that their positions count. Raises RuntimeError
    for an operator that does not fit its draw.
    """

    def __init__(self, records: Sequence[RngReplayNode], saved: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._left, self._saved = list(reversed(records)), saved

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if not uses_rng(func, args):
            return func(*args, **kwargs)
        if not self._left or self._left[-1].name != name_of(func):
            known = self._left[-1].name if self._left else "nothing"
            raise RuntimeError(f"{func} draws where the compiled graph has drawn {known}")
        record = self._left.pop()
        result = [None if at is None else self._saved[at].detach() for at in record.saved]
        if len(result) == 1:
            (value,) = result
            assert value is not None
            return self._single(func, args, kwargs, record, value)
        if func is _DROPOUT:
            mask = result[1]
            assert mask is not None
            return self._dropped(args[0], args[1], mask)
        simple = zip(result, record.no_tensors, strict=True)
        return tuple(other if item is None else item.clone() for item, other in simple)

    def _single(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        record: RngReplayNode,
        value: Any,
    ) -> torch.Tensor:
        if record.order:
            value = value.permute(record.order)
        if not func._schema.is_mutable:
            # never the saved tensor itself, to which the program may write
            return value.to(getattr(torch, record.dtype), copy=True)  # type: ignore[no-any-return]
        target: torch.Tensor = kwargs["out"] if "out" in kwargs else args[0]
        _require_sizes(func, target, value)
        return target.copy_(value)

    def _dropped(
        self, x: torch.Tensor, p: float, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        _require_sizes(_DROPOUT, x, mask)
        return x * mask * (0.0 if p == 1 else 1.0 / (1.0 - p)), mask.clone()

    def finish(self) -> None:
        """Raises RuntimeError if numbers are left that no operator has asked for."""
        if self._left:
            raise RuntimeError(f"{self._left[-1].name} of the compiled graph did not run again")


def _require_sizes(func: Any, result: torch.Tensor, value: torch.Tensor) -> None:
    if result.shape != value.shape:
        sizes = f"{list(result.shape)}, and {list(value.shape)} in the compiled graph"
        raise RuntimeError(f"{func} draws numbers of the sizes {sizes}")
