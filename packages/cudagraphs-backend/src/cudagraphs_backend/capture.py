"""One captured CUDA graph: its input buffers, its results, and when it may be replayed.

Memory of a result that stays in the pool is never written to while a tensor, a view, a saved tensor
or a storage object of it is alive. Every call hands out new tensor objects. A CUDA graph whose
results got other memory (`resize_` of the storage) is not used again."""

from __future__ import annotations

import contextlib
import enum
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cudagraphs_backend import output_lifetime, torch_private
from cudagraphs_backend.device import Graph
from cudagraphs_backend.layout import buffer_like, copy_of, results_of
from cudagraphs_backend.state import DeviceState, Where
from tracer_core.plugin_api import RunFunction, deferred_linalg_checks

#: From this many results on, one `_foreach_copy_` copies all of them.
COPIED_TOGETHER = 4


class Kind(enum.Enum):
    """What a call gets for a result."""

    #: An alias of the CUDA graph's memory.
    KEEP = "keep"
    #: A copy of it.
    COPY = "copy"
    #: A view of the call's input.
    INPUT = "input"
    #: No tensor; the same value in every call of these sizes.
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """How a graph is captured."""

    #: Inputs that are copied into buffers.
    copied: tuple[int, ...]
    #: Inputs that are read at their own addresses.
    direct: tuple[int, ...]
    #: Inputs that the graph mutates.
    written: tuple[int, ...]
    #: One for each output.
    kinds: tuple[Kind, ...]
    #: Beside the default one.
    generators: tuple[torch.Generator, ...] = ()
    #: Results that the program sees stay (`output_lifetime`).
    keeps_outputs: bool = False
    #: The graph has collectives.
    communicates: bool = False

    @property
    def keeps(self) -> bool:
        """Returns whether results stay in the CUDA graph's memory."""
        return Kind.KEEP in self.kinds

    def place(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        """Returns the addresses of the inputs that are read in place."""
        return tuple([inputs[index].data_ptr() for index in self.direct])


class AliasingChanged(Exception):
    """The results of the capture alias its inputs in another way than the plain run's did."""


class Misplaced(Exception):
    """A result lies in scratch memory although its graph assigns pools: fake tensors share memory
    where the real ones do not."""


class CapturedGraph:
    """Mutable: one captured CUDA graph. places: `run` says where its results are allocated
    (`pool_assignment`). used: tick of the last replay. closed: thrown away. nbytes: of its memory.
    place: see `CapturePlan.place`. loaded: the inputs that the buffers hold before a replay.
    streamed: `record_stream` was called on a kept result, whose memory may then be in use after
    its last owner is gone."""

    def __init__(
        self,
        state: DeviceState,
        run: RunFunction,
        inputs: Sequence[Any],
        plan: CapturePlan,
        *,
        places: bool = False,
    ) -> None:
        self.plan = plan
        self.used = next(state.ticks)
        self.closed = self.streamed = False
        self._state = state
        self.loaded: list[Any] | None = None
        self._where: Where | None = None  # of the last replay whose results stayed
        self._buffers = [buffer_like(inputs[index]) for index in plan.copied]
        items = list(inputs)
        for index, buffer in zip(plan.copied, self._buffers, strict=True):
            items[index] = buffer
            with torch.no_grad():
                # launches must not depend on values, but indices have to be in range
                buffer.copy_(inputs[index])
        self.place = plan.place(inputs)
        self._direct = list(plan.direct)
        self._pointers = [
            item.data_ptr() if isinstance(item, torch.Tensor) else 0 for item in items
        ]
        self._anchor: Graph | None = None
        shared = None
        if places or not plan.keeps:
            shared, self._anchor = state.shared_pool()
        pool, scratch = (state.device.new_pool(), shared) if plan.keeps else (shared, None)
        # an error after the replay must not leave inputs as the whole graph would
        none: list[Callable[[], None]] = []
        with contextlib.nullcontext(none) if plan.written else deferred_linalg_checks() as checks:
            self._graph, outputs, taken = state.record(
                lambda: list(run(list(items))),  # a runner may clear its list
                pool,
                plan.generators,
                scratch,
                plan.communicates,
            )
        self._checks = checks
        if scratch is not None:
            in_pool = [
                item for item, kind in zip(outputs, plan.kinds, strict=False) if kind is Kind.KEEP
            ]
            if not state.device.lie_in_pool(in_pool, pool):
                self._graph.reset()
                raise Misplaced
            del in_pool
        own = [output for output in outputs if isinstance(output, torch.Tensor)]
        results = {
            torch_private.storage_key(s): s.nbytes()
            for s in (item.untyped_storage() for item in own)
        }
        buffers = sum(buffer.untyped_storage().nbytes() for buffer in self._buffers)
        # a shared pool may already have had free memory
        self.nbytes = max(taken, sum(results.values())) + buffers
        del own
        self._results(outputs, items)
        state.add(self)

    def _results(self, outputs: list[Any], value: list[Any]) -> None:
        """Remembers the results' memory and how many owners it has while nobody else holds it.
        Raises AliasingChanged."""
        kinds = self.plan.kinds
        facts = results_of(outputs, value)
        if len(outputs) != len(kinds) or any(
            (kind is Kind.INPUT) != (fact.source is not None)
            for kind, fact in zip(kinds, facts, strict=True)
        ):
            self.close()
            raise AliasingChanged(
                "its results do not share memory with its inputs as in the run before"
            )
        self._views: dict[int, tuple[int, tuple[Any, ...]]] = {}
        self._outputs = [item.data if isinstance(item, torch.Tensor) else item for item in outputs]
        for index, fact in enumerate(facts):
            if fact.source is not None:
                base, view = value[fact.source], outputs[index]
                meta = (view.shape, view.stride(), view.storage_offset() - base.storage_offset())
                self._views[index] = (fact.source, meta)
                self._outputs[index] = None  # the input's memory is the caller's
        outputs.clear()
        self._given_back = [
            (position, buffer)
            for position, buffer in zip(self.plan.copied, self._buffers, strict=True)
            if position in self.plan.written
        ]
        self._odd = [  # clone() gives these other strides
            index
            for index, (output, kind) in enumerate(zip(self._outputs, kinds, strict=True))
            if kind is Kind.COPY and output.clone().stride() != output.stride()
        ]
        copied = [
            index
            for index, kind in enumerate(kinds)
            if kind is Kind.COPY and index not in self._odd
        ]
        self._together = [i for i in copied if isinstance(self._outputs[i], torch.Tensor)]
        if len(self._together) < COPIED_TOGETHER:
            self._together = []
        in_pool = [
            item for item, kind in zip(self._outputs, kinds, strict=True) if kind is Kind.KEEP
        ]
        self._in_pool = in_pool
        self._in_pool_at = list(range(len(in_pool)))
        self._in_pool_pointers = [item.data_ptr() for item in in_pool]
        storages = [item.untyped_storage() for item in in_pool]
        self._storages = list({torch_private.storage_key(item): item for item in storages}.values())
        del storages
        self._keys = [torch_private.storage_key(storage) for storage in self._storages]
        self._uses, self._references = self._owners()
        output_lifetime.watch(self, self._keys)

    def _owners(self) -> tuple[list[int], list[int]]:
        uses = torch_private.storage_uses
        count = sys.getrefcount
        return [uses(key) for key in self._keys], [count(storage) for storage in self._storages]

    def matches(self, inputs: list[Any]) -> bool:
        """Returns whether the inputs that are read in place lie at the captured addresses."""
        return torch_private.same_addresses(inputs, self._pointers, self._direct)

    def moved(self) -> bool:
        """Returns whether a kept result got other memory."""
        return not torch_private.same_addresses(
            self._in_pool, self._in_pool_pointers, self._in_pool_at
        )

    def free(self) -> bool:
        """Returns whether nobody holds the kept results."""
        return not self._keys or self._owners() == (self._uses, self._references)

    def replay(self, inputs: list[Any]) -> list[Any]:
        """Returns the results for these inputs. The caller holds the lock and has checked `matches`
        and `free`."""
        if torch.is_grad_enabled():
            with torch.no_grad():
                return self._replay(inputs)
        return self._replay(inputs)

    def load(self, inputs: list[Any]) -> None:
        """Copies inputs to the buffers ahead of the `replay` with this very list. The caller holds the
        lock and has checked `matches`."""
        self._state.order(self._where)
        with torch.no_grad():
            self._load(inputs)
        self.loaded = inputs

    def _load(self, inputs: list[Any]) -> None:
        if self._buffers:
            torch_private.copy_all(self._buffers, [inputs[index] for index in self.plan.copied])

    def _replay(self, inputs: list[Any]) -> list[Any]:
        state = self._state
        self.used = next(state.ticks)
        where = state.order(self._where)
        if (
            self._in_pool
        ):  # the stream of the replay before may still be reading that replay's results
            self._where = where
        if self.loaded is not inputs:
            self._load(inputs)
        self.loaded = None
        self._graph.replay()
        for check in self._checks:
            check()
        for index, buffer in self._given_back:
            inputs[index].copy_(buffer)
        keep, copy = Kind.KEEP, (None if self._together else Kind.COPY)
        results = [
            output.data if kind is keep else output.clone() if kind is copy else output
            # of equal length: `_results` checked it
            for output, kind in zip(self._outputs, self.plan.kinds, strict=False)
        ]
        if self._together:
            self._copy_together(results)
        for index in self._odd:
            results[index] = copy_of(self._outputs[index])
        for index, (source, (shape, stride, offset)) in self._views.items():
            base = inputs[source]
            results[index] = base.as_strided(shape, stride, base.storage_offset() + offset)
        return results

    def _copy_together(self, results: list[Any]) -> None:
        """Replaces results by copies, with one `_foreach_copy_`."""
        sources = [self._outputs[index] for index in self._together]
        targets = [torch.empty_like(source) for source in sources]
        torch_private.copy_all(targets, sources)
        for index, target in zip(self._together, targets, strict=True):
            results[index] = target

    def close(self) -> None:
        """Throws the CUDA graph away. Results that are alive keep their memory."""
        if self.closed:
            return
        self.closed = True
        output_lifetime.forget(getattr(self, "_keys", []))
        held = self._buffers, getattr(self, "_outputs", None), self._anchor
        self._state.discard(self, self._graph, held)
        self._anchor = None
        self._outputs, self._in_pool, self._storages, self._buffers, self._keys = [], [], [], [], []

    def __del__(self) -> None:
        if not sys.is_finalizing() and hasattr(self, "_graph"):
            self.close()
