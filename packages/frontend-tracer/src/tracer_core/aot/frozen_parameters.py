"""Frozen parameters (``freeze=True``): specializes a runner for its parameters and detects their
changes.

For an inference graph and a backend with ``params="constants"``, the runner calls what the
backend's runner prepared for the parameters of the call (`CompileSpec.constants`). A prepared
runner is used only while each parameter is the same object with the same version and memory, and
with the same values at sampled places (`guards.constant_contents`: small buffers in full).
Otherwise the parameters are prepared again, without compiling. Guards cover sizes, strides and
dtypes.

Writes through ``.data``, NumPy arrays and shared memory bump no version, and are missed unless they
change a sampled place; `refresh` is for those.
"""

from __future__ import annotations

import operator
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tracer_core.contract.backend import Backend, wants_constants
from tracer_core.contract.runner import Runner
from tracer_core.contract.specs import CompileSpec, Phase, Role
from tracer_core.debug.crossed_limits import reporter
from tracer_core.errors import RequirementError
from tracer_core.guards.constant_check import watch_constants
from tracer_core.guards.constant_contents import contents_of, spans_of
from tracer_core.limits import MAX_FROZEN_STATES
from tracer_core.storage.released_parameters import ReleasedParameter, can_release, release

_FROZEN_ROLES = frozenset({Role.PARAMETER, Role.BUFFER})
_instances: weakref.WeakSet[Frozen] = weakref.WeakSet()


def compile_with_constants(
    backend: Backend,
    compile_function: Callable[[torch.fx.GraphModule, CompileSpec], Runner],
    gm: torch.fx.GraphModule,
    spec: CompileSpec,
) -> Runner:
    """Compiles for a backend, with parameters and buffers as constants where the options ask for
    it.
    """
    constants = constant_inputs(gm, spec) if wants_constants(backend, spec.options) else ()
    if not constants or spec.phase is not Phase.INFERENCE:
        return compile_function(gm, spec)
    spec = replace(spec, constants=constants, cache_key=spec.cache_key + "-frozen")
    runner = compile_function(gm, spec)
    if runner.bind_constants is None:
        detail = "its runner has no bind_constants, but parameters are constants (freeze)"
        raise RequirementError(backend.name, "compile", f"{spec.name}: {detail}")
    return Runner(Frozen(runner, spec))


def constant_inputs(gm: torch.fx.GraphModule, spec: CompileSpec) -> tuple[int, ...]:
    """Returns the parameters and buffers that the graph reads and does not write to."""
    placeholders = gm.graph.find_nodes(op="placeholder")
    return tuple(
        index
        for index, (node, described) in enumerate(zip(placeholders, spec.inputs, strict=True))
        if described.role in _FROZEN_ROLES
        and isinstance(node.meta["val"], torch.Tensor)
        and index not in spec.mutations
        and all(isinstance(size, int) for size in node.meta["val"].shape)
    )


def refresh(options: Any) -> None:
    """Prepares the parameters anew at the next call of every graph compiled with this options
    object.

    Raises RequirementError where their memory was released.
    """
    mine = [instance for instance in list(_instances) if instance.spec.options is options]
    if any(state.released for item in mine for state in item.states()):
        detail = "parameters whose memory was given back cannot be read again"
        raise RequirementError("freeze", "refresh", detail)
    for item in mine:
        item.forget()


def release_originals(options: Any) -> int:
    """Releases the memory of parameters that the compiled graphs of this options object read packed
    only.

    Considers the calls so far; returns the number of bytes. The parameters become
    `ReleasedParameter`.
    """
    mine = [instance for instance in list(_instances) if instance.spec.options is options]
    needed: set[int] = set()
    names: dict[int, tuple[torch.Tensor, str]] = {}
    for item in mine:
        for state in item.states():
            constants = zip(state.tensors, item.spec.constants, strict=True)
            for place, (tensor, index) in enumerate(constants):
                names[id(tensor)] = tensor, item.spec.inputs[index].source
                if place in item.compiled.constants_read:
                    needed.add(id(tensor))
    total = 0
    for key, (tensor, name) in names.items():
        if key not in needed and can_release(tensor):
            total += release(tensor, name)
    for value in mine:
        for state in value.states():
            state.note_released()
    return total


class State:
    """Parameters, and the runner that was made for them. ids, versions, pointers, contents (of the
    spans): what must not change. The tensors are held, not watched: torch refuses to swap tensors
    that have weak references. hold(inputs): true only if they are as they were, quickly; `holds`
    decides where it is not. run: made by bind(tensors), after what must not change was noted, so
    that writes meanwhile are seen."""

    __slots__ = (
        "_spec", "contents", "hold", "ids", "pointers", "released", "run", "spans", "tensors",
        "versions", "watched",
    )  # fmt: skip

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        spec: CompileSpec,
        bind: Callable[[Sequence[torch.Tensor]], Any],
    ) -> None:
        self._spec = spec
        self.ids = list(map(id, tensors))
        self.tensors = list(tensors)
        self.released = False
        self._note(range(len(tensors)))
        self.run = Runner.of(bind(tensors), "bind_constants()").run

    def _note(self, watched: Sequence[int]) -> None:
        """Records the contents of these tensors and the identity of all of them."""
        self.watched = watched
        watched_tensors = [self.tensors[k] for k in watched]
        # first: the fast check reads counters that inference tensors lack
        self.versions = versions(watched_tensors)
        self.pointers = [tensor.data_ptr() for tensor in watched_tensors]
        roles = [self._spec.inputs[self._spec.constants[k]].role for k in watched]
        self.spans = [
            span
            for tensor, role in zip(watched_tensors, roles, strict=True)
            for span in spans_of(tensor, every_byte=role is Role.BUFFER)
        ]
        self.contents = contents_of(self.spans)
        self.hold = watch_constants(
            self.tensors, self._spec.constants, len(self._spec.inputs), watched, self.spans
        )

    def note_released(self) -> None:
        """Stops checking the memory of tensors that may have been released."""
        watched = [
            k for k, tensor in enumerate(self.tensors) if type(tensor) is not ReleasedParameter
        ]
        self.released = len(watched) < len(self.tensors)
        self._note(watched)

    def holds(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the tensors are unchanged."""
        if list(map(id, tensors)) != self.ids:
            return False
        if self.released:
            tensors = [tensors[k] for k in self.watched]
        return (
            [tensor._version for tensor in tensors] == self.versions
            and [tensor.data_ptr() for tensor in tensors] == self.pointers
            and contents_of(self.spans) == self.contents
        )

    def is_ours_alone(self) -> bool:
        """Whether nobody else holds one of the tensors any more, so that this set cannot occur
        again.
        """
        tensors = self.tensors
        return any(sys.getrefcount(tensors[k]) <= 2 for k in range(len(tensors)))


def versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Returns the tensors' versions. Raises RequirementError for inference tensors, which have none."""
    for tensor in tensors:
        if tensor.is_inference():
            raise RequirementError(
                "freeze",
                "first call",
                f"a parameter of sizes {tuple(tensor.shape)} was made under torch.inference_mode(),"
                " where writes are not counted: it cannot be frozen. Make the model outside"
                " inference mode, or leave freeze off",
            )
    return [tensor._version for tensor in tensors]


class Frozen:
    """Called like the backend's runner. Mutable: one `State` per set of parameters.

    compiled: the backend's runner, with its `bind_constants`. spec: it was compiled for.
    """

    def __init__(self, compiled: Runner, spec: CompileSpec) -> None:
        self.compiled, self.spec = compiled, spec
        first, *rest = spec.constants
        pick = operator.itemgetter(*spec.constants)
        self._pick: Callable[[list[Any]], Sequence[Any]] = (
            pick if rest else lambda inputs: (inputs[first],)
        )
        self._last: State | None = None
        self._states: dict[tuple[int, ...], State] = {}
        self._lock = threading.Lock()
        self._report = reporter()
        _instances.add(self)

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        state = self._last
        if state is None or not state.hold(inputs):
            tensors = self._pick(inputs)
            if state is None or not state.holds(tensors):
                state = self._state_of(tensors)
        return state.run(inputs)

    def states(self) -> list[State]:
        """Returns the prepared states."""
        with self._lock:
            return list(self._states.values())

    def forget(self) -> None:
        """Drops the prepared states."""
        with self._lock:
            self._states.clear()
            self._last = None

    def _state_of(self, tensors: Sequence[torch.Tensor]) -> State:
        key = tuple(map(id, tensors))
        with self._lock:
            state = self._states.get(key)
            if state is None or not state.holds(tensors):
                self._states.pop(key, None)  # frees its memory first
                self._last = state = None
                for other in [k for k, state in self._states.items() if state.is_ours_alone()]:
                    del self._states[other]
                while len(self._states) >= MAX_FROZEN_STATES:
                    self._report("MAX_FROZEN_STATES")
                    del self._states[next(iter(self._states))]
                state = self._states[key] = self._prepared(tensors)
            self._last = state
            return state

    def _prepared(self, tensors: Sequence[torch.Tensor]) -> State:
        assert self.compiled.bind_constants is not None
        with torch.inference_mode(False), torch.no_grad(), torch.autocast("cpu", enabled=False):
            return State(tensors, self.spec, self.compiled.bind_constants)
