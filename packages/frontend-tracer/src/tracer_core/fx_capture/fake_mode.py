"""Fake tensors of a trace: makes one fake per real input, and the fake mode in which operators run.

The mode rejects an operator with a real tensor argument *before* it runs; FakeTensorMode alone lets
an in-place operator mutate a real argument and complains afterwards.
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
from tracer_core.fx_capture.result_strides import laid_out
from tracer_core.graph_breaks import Break
from tracer_core.torch_private.names import names
from tracer_core.torch_private.needed import pytree

#: Operators that torch calls on fresh real tensors while it converts them to fakes.
_MAY_SEE_REAL = frozenset(names("lift_fresh.default detach.default lift.default", of="ops.aten"))


def _refuse_real(func: Any, args: Any, kwargs: Any) -> None:
    if func in _MAY_SEE_REAL:
        return
    for leaf in pytree.arg_tree_leaves(*args, **(kwargs or {})):
        if isinstance(leaf, torch.Tensor) and not torch_private.is_fake(leaf):
            if func is torch.ops.aten._local_scalar_dense.default:
                raise Break("data_dependent_value", "the value of a tensor is read")
            reason = f"{func} got a real tensor of shape {tuple(leaf.shape)}"
            raise Break("real_tensor_in_trace", reason)


def writes(fake: Any) -> int | None:
    """Returns the version counter of a fake; None for inference tensors, which have none."""
    return None if fake.is_inference() else fake._version


@dataclass(frozen=True, slots=True)
class Constraint:
    """A mark_dynamic constraint. size: ``x.shape[0]``; lowest, highest: inclusive bounds, None if
    not given."""

    size: str
    symbol: Any
    lowest: int | None
    highest: int | None

    def __str__(self) -> str:
        if self.lowest is None and self.highest is None:
            return "any size"
        lowest, highest = ("" if n is None else n for n in (self.lowest, self.highest))
        return f"{lowest}..{highest}"


def _refuse_lost_history(real: torch.Tensor) -> None:
    """Breaks the graph before a view whose history autograd refuses to tell, because its base was
    written to; operators that need no history can still run on it."""
    if real.requires_grad and real._is_view():
        try:
            _ = real.is_leaf
        except RuntimeError as error:
            raise Break("autograd_in_graph", str(error).partition(". ")[0]) from None


class Fakes:
    """Maps real tensors to fakes for one trace. Mutable. symbolic: whether sizes may be SymInts.
    where(): the user's line that is being run. data_sizes: data-dependent sizes become unbacked
    SymInts."""

    def __init__(
        self, symbolic: bool, where: Callable[[], str] = lambda: "?", data_sizes: bool = False
    ) -> None:
        self.shape_env: Any = torch_private.new_shape_env(where, data_sizes) if symbolic else None
        #: The mark_dynamic constraints on symbols.
        self.constraints: list[Constraint] = []
        env: Any = self.shape_env

        def announced(func: Any, args: Any, kwargs: Any) -> None:
            _refuse_real(func, args, kwargs)
            env.starts(func)

        # Not a method: the mode outlives this object, for graphs whose backward comes later.
        before = announced if data_sizes and symbolic else _refuse_real
        self.mode = torch_private.capture_mode(
            before, laid_out, self.shape_env, fake_cache.run, fake_cache.SLOW
        )
        self._fake: dict[int, Any] = {}
        self._real: dict[int, torch.Tensor] = {}
        self._alive: list[Any] = []
        self._versions: dict[int, int | None] = {}
        self._storages: dict[int | None, Any] = {}
        #: (begin, end) of the real tensors' storages -> id; whether one is not of torch's allocator.
        self._ranges: dict[tuple[int, int], int] = {}
        self._foreign = False
        #: Real storages of which FakeTensorMode made the meta storage.
        self._symbolic_storages: set[int | None] = set()
        #: id of an input whose ``data`` was set -> its fake before that.
        self._first: dict[int, Any] = {}
        #: What makes tensors alike (`ShapePolicy.alike`) -> the symbols of their sizes.
        self._shared: dict[Any, dict[Any, Any]] = {}
        self._uses: collections.Counter[int] = collections.Counter()
        #: Storage id -> a fake on it, kept alive so that the id is not reused.
        self._unseen: dict[int, Any] = {}
        #: Storage id -> a fake on it whose version counter is not that of other fakes on it.
        self._own_versions: dict[int, Any] = {}

    def of(
        self,
        real: torch.Tensor,
        name: str,
        dims: tuple[int | None, ...] | None,
        alike: Any = None,
    ) -> Any:
        """Returns the fake of a real tensor. name: its source, for messages. dims: None marks a
        symbolic size or stride (`ShapePolicy.dims_of`). alike: see `ShapePolicy.alike`."""
        result = self._fake.get(id(real))
        if result is None:
            symbolic = tuple(n is None for n in dims) if dims is not None else (False,) * real.dim()
            shared = None if alike is None else self._shared.setdefault(alike, {})
            result = self._make(real, name, symbolic, shared)
            self._fake[id(real)] = result
            self._real[id(result)] = real
            self._alive.append(real)
            self._versions[id(result)] = writes(result)
            if real.layout is torch.strided:
                self._uses[self.memory_id(real)] += 1
        return result

    def adopt(self, real: torch.Tensor, fake: Any) -> None:
        """Takes a tensor of a subclass whose inner tensors are fakes as the fake of a real one."""
        self._fake[id(real)], self._real[id(fake)] = fake, real
        self._alive.append(real)
        self._versions[id(fake)] = writes(fake)

    def replace(self, real: torch.Tensor, content: Any) -> None:
        """Takes another fake as that of an input from now on: the program has set its ``data``."""
        self._first.setdefault(id(real), self._fake[id(real)])
        self._fake[id(real)], self._real[id(content)] = content, real
        self._alive.append(content)
        self._versions[id(content)] = -1  # what it holds is no more what the input held

    def current(self, tensor: torch.Tensor) -> Any:
        """Returns the fake of an input whose ``data`` was set, which has sizes and a dtype of its
        own; any other tensor as it is."""
        return self._fake[id(tensor)] if id(tensor) in self._first else tensor

    def known(self, real: torch.Tensor) -> Any:
        """Returns the fake of a real tensor; None before it is used."""
        return self._fake.get(id(real))

    def shares_memory(self, real: torch.Tensor) -> bool:
        """Returns whether another input aliases this input's storage."""
        return self._uses[self.memory_id(real)] > 1

    def memory_id(self, real: torch.Tensor) -> int:
        """Returns an id that real inputs have in common if they share memory: one storage, or
        storages of arrays that overlap."""
        if real.layout is not torch.strided:
            return id(real)
        start, end, foreign = torch_private.memory_range(real)
        if not end or (start, end) in self._ranges:
            return self._ranges.get((start, end), start)
        self._foreign |= foreign
        overlapping = (
            known for (begin, stop), known in self._ranges.items() if start < stop and begin < end
        )
        result = self._ranges[start, end] = next(overlapping, start) if self._foreign else start
        return result

    def _make(
        self,
        real: torch.Tensor,
        name: str,
        symbolic: tuple[bool, ...],
        shared: dict[Any, Any] | None,
    ) -> Any:
        if torch.is_inference_mode_enabled() and not real.is_inference():
            with torch.inference_mode(False):  # a tensor from outside stays a normal one
                return self._make(real, name, symbolic, shared)
        if torch_private.transforms_active():
            # so does one that the transformed function closes over
            with torch_private.outside_transforms():
                return self._make(real, name, symbolic, shared)
        _refuse_lost_history(real)
        # FakeTensorMode makes the storage of an input of symbolic sizes, and of those that share it.
        storage = self.memory_id(real) if real.layout is torch.strided else None
        if any(symbolic):
            self._symbolic_storages.add(storage)
        if storage is None or storage not in self._symbolic_storages:
            result = torch_private.fake_without_subclass(self.mode, real, self._storages, storage)
            if result is not None:
                return result
        if storage is not None:
            torch_private.join_storage(self.mode, real, self._storages, storage)
        try:
            if self.shape_env is None:
                fake = torch_private.to_fake(self.mode, real)
            else:
                fake = torch_private.to_symbolic_fake(self.mode, real, name, symbolic, shared)
        except torch_private.no_fakes() as error:
            raise Break("tensor_subclass", f"torch has no fake of {name or 'a tensor'}") from error
        if self.shape_env is None:
            if storage is not None:
                self._storages.setdefault(storage, fake.untyped_storage())
            return fake
        if storage is not None:
            self._storages.setdefault(storage, fake.untyped_storage())
        for dim, (lowest, highest) in markers.dynamic_dims(real).items():
            if symbolic[dim]:
                size, least = fake.shape[dim], 2 if lowest is None else max(lowest, 1)
                torch_private.narrow(size, least, highest)
                where = f"{name}.shape[{dim}]"
                self.constraints.append(Constraint(where, size.node.expr, lowest, highest))
        return fake

    @contextlib.contextmanager
    def sizes_of_one(self, value: list[Any]) -> Iterator[list[Any]]:
        """Context for a torch function that runs on fakes; the caller appends its results to the
        yielded list. A test whether a size is 1 needs no guard if every tensor among the results
        shares its storage with an argument (for size 1 it is a view too, even where other sizes
        give copies), or if only operators asked."""
        results: list[Any] = []
        if self.shape_env is None or not self.shape_env.from_one:
            yield results
            return
        with self.shape_env.answering() as asked:
            yield results
        there = {torch_private.storage_id(fake) for fake in value}
        tensors = [result for result in results if isinstance(result, torch.Tensor)]
        if asked and not all(torch_private.storage_id(tensor) in there for tensor in tensors):
            self.shape_env.rule_out_one(asked)

    def note_write(self, fake: Any) -> None:
        """Records a mutation of a fake without a version bump; the fake may be a view of an input."""
        self._unseen[torch_private.storage_id(fake)] = fake
        if self.shape_env is not None:
            torch_private.forget_data_sizes(self.mode)

    def note_own_version(self, fake: Any) -> None:
        """Records a fake that shares memory, but no version counter: ``x.data``."""
        if fake.layout is torch.strided:
            self._own_versions.setdefault(torch_private.storage_id(fake), fake)

    def note_touched(self, fakes: list[Any]) -> None:
        """Records the fakes that a call mutated, where the version counter of an input on the same
        memory may be another one."""
        if not self._own_versions:
            return
        for fake in fakes:
            strided = fake.layout is torch.strided
            if strided and torch_private.storage_id(fake) in self._own_versions:
                self.note_write(fake)

    def was_written(self, fake: Any) -> bool:
        """Returns whether the fake of an input was, or may have been, mutated during the trace."""
        now = writes(fake)
        if self._unseen and torch_private.storage_id(fake) in self._unseen:
            return True
        return now is None or now != self._versions[id(fake)]

    def may_be_written_apart(self, fake: Any) -> bool:
        """Returns whether an alias with a version counter of its own was, or may have been, mutated."""
        if not self._own_versions or not self._unseen:
            return False
        at = torch_private.storage_id(fake)
        return at in self._own_versions and at in self._unseen

    def any_was_written(self) -> bool:
        """Returns whether an input was, or may have been, mutated."""
        return bool(self._first) or any(self.was_written(fake) for fake in self._fake.values())

    def real_was_written(self, real: torch.Tensor) -> bool:
        """Does `was_written` for a real input, which need not have a fake yet."""
        fake = self._fake.get(id(real))
        return fake is not None and self.was_written(fake)

    def memory_was_written(self, real: torch.Tensor) -> bool:
        """Returns whether the memory of a real tensor was, or may have been, mutated through an
        input."""
        at = self.memory_id(real)
        return any(
            item.layout is torch.strided and self.memory_id(item) == at
            for item, fake in self.inputs()
            if id(item) in self._first or self.was_written(fake)
        )

    def real_of(self, fake: Any) -> torch.Tensor | None:
        """Returns the real tensor of an input's fake, or None for an intermediate."""
        return self._real.get(id(fake))

    def inputs(self) -> list[tuple[torch.Tensor, Any]]:
        """Returns (real, fake) of every plain input, in the order of first use; the fake is the one
        that the graph is given."""
        return [
            (self._real[id(fake)], self._first.get(id(self._real[id(fake)]), fake))
            for fake in self._fake.values()
            if not torch_private.is_wrapper(fake)
        ]
