"""Decides what happens to inputs whose addresses change between calls: another capture, or copies into
buffers of the CUDA graph.

A parameter, buffer or saved activation is expected at few addresses, each of which gets a capture; what
moves more often, and every other input that moves, is copied from then on. A capture is due where the
addresses of a call were seen before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cudagraphs_backend.layout import can_be_copied
from cudagraphs_backend.limits import MAX_ADDRESSES, MAX_COPIED_BYTES, MAX_COPIED_PART
from cudagraphs_backend.policy import GraphEntry
from tracer_core.plugin_api import InputSpec, Role

#: Why a size runs plainly although CUDA graphs of it paid.
RESTLESS = f"its parameters or saved values come at more than {MAX_ADDRESSES} addresses"


_STABLE_ROLES = frozenset({Role.PARAMETER, Role.BUFFER, Role.SAVED_ACTIVATION})


class MovingInputs:
    """The tensor inputs of one graph. specs: of all inputs. tensors: positions of the tensors. say:
    gets a reason why calls run plainly."""

    def __init__(
        self, specs: Sequence[InputSpec], tensors: Sequence[int], say: Callable[[str], None]
    ) -> None:
        self._tensors, self._say = tuple(tensors), say
        #: Inputs whose addresses are expected to be stable: a new address means a new capture, not
        #: a copy.
        self.stable = frozenset(
            index
            for index in tensors
            if specs[index].stable_address or specs[index].role in _STABLE_ROLES
        )
        self._saved = frozenset(i for i in tensors if specs[i].role is Role.SAVED_ACTIVATION)

    def recur(self, entry: GraphEntry, inputs: list[Any]) -> bool:
        """Returns whether a capture is worth it: the captures so far paid, or the input addresses of
        this call were seen before. In the other case inputs that moved are copied into buffers from
        now on."""
        pointers = self.pointers(inputs)
        earlier = entry.pointers
        assert earlier is not None
        entry.pointers = pointers
        if entry.repaid():
            return True
        moved = {i for i in self._tensors if pointers[i] != earlier[i]} - entry.copied
        restless = self._restless(entry, inputs, moved)
        moved = {i for i in (moved - self.stable) | restless if can_be_copied(inputs[i])}
        if not restless.isdisjoint(moved):
            entry.seen.clear()
        if moved:
            entry.copied |= moved
            # these read the moved inputs in place: unlikely to fit again
            for graph in entry.recordings:
                if not moved.isdisjoint(graph.plan.direct):
                    graph.close()
            entry.recordings = [recording for recording in entry.recordings if not recording.closed]
        anchor = self.anchor(entry, pointers)
        if anchor in entry.seen:
            return True
        if len(entry.seen) >= 4 * MAX_ADDRESSES:
            self._say(RESTLESS)
            entry.seen.clear()
        entry.seen.add(anchor)
        return False

    def _restless(self, entry: GraphEntry, inputs: list[Any], moved: set[int]) -> set[int]:
        """Returns saved activations to copy from now on, because the program holds them too and
        their addresses keep changing: those that moved, if they are a small part of all (all of
        them move where a forward has several CUDA graphs), else those seen at more than `MAX_ADDRESSES`
        addresses."""
        anchored = self._anchored(entry)
        saved = set(self._saved).intersection(anchored)
        result = saved & moved
        if not result or _nbytes(inputs, result) > MAX_COPIED_PART * _nbytes(inputs, saved):
            if len(entry.seen) <= MAX_ADDRESSES:
                return set()
            places = zip(anchored, zip(*entry.seen, strict=True), strict=True)
            result = saved & {i for i, pointers in places if len(set(pointers)) > MAX_ADDRESSES}
        return result if _nbytes(inputs, result) <= MAX_COPIED_BYTES else set()

    def _anchored(self, entry: GraphEntry) -> list[int]:
        return [i for i in self._tensors if i not in entry.copied and i in self.stable]

    def anchor(self, entry: GraphEntry, pointers: list[int]) -> tuple[int, ...]:
        """Returns the addresses that a capture binds: of the inputs that are not copied."""
        return tuple([pointers[i] for i in self._anchored(entry)])

    def pointers(self, inputs: list[Any]) -> list[int]:
        """Returns the address of each tensor input, 0 for the others."""
        pointers = [0] * len(inputs)
        for index in self._tensors:
            pointers[index] = inputs[index].data_ptr()
        return pointers


def _nbytes(inputs: list[Any], some: set[int]) -> int:
    """Returns the bytes of the storages of some inputs."""
    return sum(inputs[index].untyped_storage().nbytes() for index in some)
