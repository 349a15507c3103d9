"""Fake tensors of a trace.

In: real input tensors. Out: their fakes (made once a trace) and a fake mode in which operators run.
What always holds: an operator that gets a real tensor is refused *before* it runs (FakeTensorMode
by itself lets an in-place operator change a real argument and complains afterwards).
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core import markers, torch_private
from tracer_core.fx_capture import fake_cache
from tracer_core.fx_capture.graph_breaks import Break
from tracer_core.fx_capture.result_strides import laid_out
from tracer_core.torch_private.names import names
from tracer_core.torch_private.needed import pytree

#: Called by torch itself on fresh real tensors while it makes fake ones of them.
_MAY_SEE_REAL = frozenset(names("lift_fresh.default detach.default lift.default", of="ops.aten"))


def _refuse_real(func: Any, args: Any, kwargs: Any) -> None:
    if func in _MAY_SEE_REAL:
        return
    for leaf in pytree.arg_tree_leaves(*args, **(kwargs or {})):
        if isinstance(leaf, torch.Tensor) and not torch_private.is_fake(leaf):
            if func is torch.ops.aten._local_scalar_dense.default:
                raise Break("data_dependent_value", "the value of a tensor is read")
            raise Break(
                "real_tensor_in_trace", f"{func} got a real tensor of shape {tuple(leaf.shape)}"
            )


def writes(fake: Any) -> int | None:
    """The number of writes to a fake; None for inference tensors, which do not count them."""
    return None if fake.is_inference() else fake._version


@dataclass(frozen=True, slots=True)
class Promise:
    """mark_dynamic's. size: ``x.shape[0]``; symbol; lowest and highest: inclusive, None where not
    given.
    """

    size: str
    symbol: Any
    lowest: int | None
    highest: int | None

    def __str__(self) -> str:
        if self.lowest is None and self.highest is None:
            return "any size"
        return f"{'' if self.lowest is None else self.lowest}..{'' if self.highest is None else self.highest}"


class Fakes:
    """real tensor <-> its fake, for one trace. Mutable. symbolic: whether sizes may be symbols.
    where: of the user's line that is being run. data_sizes: sizes that depend on data are symbols
    too."""

    def __init__(
        self, symbolic: bool, where: Callable[[], str] = lambda: "?", data_sizes: bool = False
    ) -> None:
        self.shape_env: Any = torch_private.new_shape_env(where, data_sizes) if symbolic else None
        #: What marks promised of symbols.
        self.promises: list[Promise] = []
        before = self._before_operator if data_sizes and symbolic else _refuse_real
        self.mode = torch_private.capture_mode(
            before, laid_out, self.shape_env, fake_cache.run, fake_cache.SLOW
        )
        self._fake: dict[int, Any] = {}
        self._real: dict[int, torch.Tensor] = {}
        self._alive: list[Any] = []
        self._versions: dict[int, int | None] = {}
        self._storages: dict[int, Any] = {}
        self._uses: collections.Counter[int] = collections.Counter()
        self._unseen: dict[
            int, Any
        ] = {}  # storage -> what lives in it, so that the number stays its own

    def _before_operator(self, func: Any, args: Any, kwargs: Any) -> None:
        _refuse_real(func, args, kwargs)
        self.shape_env.starts(func)

    def of(self, real: torch.Tensor, name: str, dims: tuple[int | None, ...] | None) -> Any:
        """The fake of a real tensor. name: its source, for messages. dims: None marks a symbol."""
        found = self._fake.get(id(real))
        if found is None:
            symbolic = tuple(n is None for n in dims) if dims is not None else (False,) * real.dim()
            found = self._make(real, name, symbolic)
            self._fake[id(real)] = found
            self._real[id(found)] = real
            self._alive.append(real)
            self._versions[id(found)] = writes(found)
            if real.layout is torch.strided:
                self._uses[real.untyped_storage()._cdata] += 1
        return found

    def shares_memory(self, real: torch.Tensor) -> bool:
        """Whether another input is a view of an input's memory."""
        return self._uses[real.untyped_storage()._cdata] > 1

    def _make(self, real: torch.Tensor, name: str, symbolic: tuple[bool, ...]) -> Any:
        if torch.is_inference_mode_enabled() and not real.is_inference():
            with torch.inference_mode(False):  # a tensor from outside stays a normal one
                return self._make(real, name, symbolic)
        if torch_private.transforms_active():
            with (
                torch_private.outside_transforms()
            ):  # so does one that the transformed function closes over
                return self._make(real, name, symbolic)
        if not any(symbolic):
            found = torch_private.plain_fake(self.mode, real, self._storages)
            if found is not None:
                return found
        if self.shape_env is None:
            return torch_private.to_fake(self.mode, real)
        fake = torch_private.to_symbolic_fake(self.mode, real, name, symbolic)
        for dim, (lowest, highest) in markers.dynamic_dims(real).items():
            if symbolic[dim]:
                torch_private.narrow(
                    fake.shape[dim], 2 if lowest is None else max(lowest, 1), highest
                )
                self.promises.append(
                    Promise(f"{name}.shape[{dim}]", fake.shape[dim].node.expr, lowest, highest)
                )
        return fake

    @contextlib.contextmanager
    def sizes_of_one(self, given: list[Any]) -> Iterator[list[Any]]:
        """While a torch function runs on fakes, whose results are to be put into the list:
        questions whether a size is 1 need no guard if the results are views of what was given (for
        1 they are views too, even where they were copies of other sizes), or if nothing was asked
        but by operators themselves."""
        results: list[Any] = []
        if self.shape_env is None or not self.shape_env.from_one:
            yield results
            return
        with self.shape_env.answering() as asked:
            yield results
        there = {torch_private.storage_id(fake) for fake in given}
        tensors = [one for one in results if isinstance(one, torch.Tensor)]
        if asked and not all(torch_private.storage_id(one) in there for one in tensors):
            self.shape_env.rule_out_one(asked)

    def note_write(self, fake: Any) -> None:
        """An operator writes to this fake, which torch does not count; it may be a view of an
        input.
        """
        self._unseen[torch_private.storage_id(fake)] = fake

    def was_written(self, fake: Any) -> bool:
        """Whether the fake of an input was written to during the trace, or may have been."""
        now = writes(fake)
        if self._unseen and torch_private.storage_id(fake) in self._unseen:
            return True
        return now is None or now != self._versions[id(fake)]

    def any_was_written(self) -> bool:
        """Whether an input was written to, or may have been."""
        return any(self.was_written(fake) for fake in self._fake.values())

    def real_was_written(self, real: torch.Tensor) -> bool:
        """The same for an input tensor, which need not have a fake yet."""
        fake = self._fake.get(id(real))
        return fake is not None and self.was_written(fake)

    def real_of(self, fake: Any) -> torch.Tensor | None:
        """The input tensor that a fake stands for, or None for an intermediate."""
        return self._real.get(id(fake))

    def inputs(self) -> list[tuple[torch.Tensor, Any]]:
        """(real, fake) of every input, in the order they were met."""
        return [(self._real[id(fake)], fake) for fake in self._fake.values()]
