"""The inputs of one call, kept so that runners can be verified and timed on them repeatedly.

Made from a captured graph and the inputs of its first call, before it ran. `run(runner)` returns an
`Outcome`, `seconds(runner)` a time.

The program's own tensors are never written to: what the graph mutates, every user input and, when
training, every parameter and buffer is a copy, and copies alias as the originals do. Hooks are not
called, gradients not touched. Each run starts from the same values, and the rng states are
preserved where `uses_rng` is set.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.first_call import rng_states, set_rng_states
from tracer_core.aot.joint_graph import calls_autograd
from tracer_core.autoselect.repeatability import own_code
from tracer_core.contract.captured_graph import CapturedGraph
from tracer_core.contract.runner import RunFunction
from tracer_core.contract.specs import Role

#: Inputs that the program may change at any time; parameters and buffers are read in place, unless
#: the program trains them.
_COPIED = frozenset({Role.USER_INPUT, Role.RNG_STATE, Role.SAVED_ACTIVATION})
_TRAINED = frozenset({Role.PARAMETER, Role.BUFFER})


#: A number that is an integer times this fraction is round, and is not nudged.
ROUND = 16


class NoSample(Exception):
    """The inputs cannot be copied faithfully; the message says why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run returned and wrote.

    outputs: detached. grads: of the inputs that require grad. written: what the graph wrote to.
    before: the values before that. requires_grad: of each output. shared: for each output the
    position of the input, or of the earlier output (from -1 downwards), whose memory it shares, or
    None.
    """

    outputs: tuple[Any, ...]
    grads: tuple[torch.Tensor | None, ...]
    written: tuple[torch.Tensor, ...]
    before: tuple[torch.Tensor, ...]
    requires_grad: tuple[bool, ...]
    shared: tuple[int | None, ...]

    def detached_copy(self) -> Outcome:
        """Returns a copy that later runs do not change."""

        def copies(values: Iterable[Any]) -> tuple[Any, ...]:
            return tuple(
                value.clone() if isinstance(value, torch.Tensor) else value for value in values
            )

        outputs, grads, written = map(copies, (self.outputs, self.grads, self.written))
        return replace(self, outputs=outputs, grads=grads, written=written)


class Sample:
    """The copied inputs. Mutable: runs write to the copies.

    Make it before the first call and call `warm_up` after it. Both raise NoSample.
    """

    def __init__(self, captured: CapturedGraph, inputs: Sequence[Any]) -> None:
        self._differentiates = captured.needs_grad and not calls_autograd(captured.gm)
        self._inputs = list(inputs)
        for value in self._inputs:
            if isinstance(value, torch.Tensor):
                _demand_plain(value)
        self._versions = [_version(value) for value in self._inputs]
        self._storages: dict[int, torch.UntypedStorage] = {}
        placeholders = captured.gm.graph.find_nodes(op="placeholder")
        storages = _written_storages(captured.gm.graph)
        self._written = {
            index
            for index, node in enumerate(placeholders)
            if isinstance(fake := node.meta.get("val"), torch.Tensor)
            and torch_private.storage_id(fake) in storages
        }
        self._values = list(inputs)
        # an optimizer writes to parameters while candidates are tried
        copied = _COPIED | _TRAINED if captured.needs_grad else _COPIED
        self._copy(
            {i for i, spec in enumerate(captured.inputs) if spec.role in copied} | self._written
        )
        self._restored: list[tuple[torch.UntypedStorage, torch.UntypedStorage]] = []
        self._before: tuple[torch.Tensor, ...] = ()
        #: Whether gradients are computed inside the graph, as in whole training steps.
        self.has_gradients = calls_autograd(captured.gm)
        self.uses_rng = False
        self.rng: list[torch.Tensor] = []

    def warm_up(self) -> None:
        """Completes the copies after the first call, which shows by autograd's versions what it
        wrote to.
        """
        now = [_version(value) for value in self._inputs]
        self._written |= {i for i, version in enumerate(now) if version != self._versions[i]}
        if self._differentiates and any(self._inputs[i].requires_grad for i in self._written):
            raise NoSample("it writes to an input that requires grad")
        self._copy(self._written)
        keys = {torch_private.storage_id(self._inputs[i]) for i in self._written}
        originals = {key: self._storages[key].clone() for key in keys}
        self._restored = [(self._storages[key], original) for key, original in originals.items()]
        written = [self._inputs[i].detach() for i in sorted(self._written)]
        self._before = tuple(with_memory(value, originals) for value in written)
        self._inputs = []

    def _copy(self, wanted: set[int]) -> None:
        """Replaces these inputs, and those that share memory with one, by copies."""
        tensors = {
            i: value for i, value in enumerate(self._inputs) if isinstance(value, torch.Tensor)
        }
        keys = {torch_private.storage_id(tensors[i]) for i in wanted & tensors.keys()}
        for index, value in tensors.items():
            if self._values[index] is value and torch_private.storage_id(value) in keys:
                self._values[index] = with_memory(value, self._storages)

    def run(self, runner: RunFunction) -> Outcome:
        """Runs a runner on the sample. The outcome is valid until the next run; see
        `Outcome.kept`.
        """
        with self._fresh() as inputs:
            return self._outcome(runner, inputs)

    def nudged(self, runner: RunFunction, seed: int) -> Outcome:
        """Runs a runner on the sample with a random subset of its numbers smaller by their last
        bit.
        """
        storages: dict[int, torch.UntypedStorage] = {}
        with self._fresh():
            values = [
                with_memory(value, storages) if isinstance(value, torch.Tensor) else value
                for value in self._values
            ]
            tensors = [value for value in values if isinstance(value, torch.Tensor)]
            for value in {torch_private.storage_id(value): value for value in tensors}.values():
                _nudge(value, seed)
            return self._outcome(runner, [self._leaf(value) for value in values])

    def _outcome(self, runner: RunFunction, inputs: list[Any]) -> Outcome:
        outputs = tuple(runner(list(inputs)))
        grads, _ = self._backward(inputs, outputs)
        written = tuple(inputs[i].detach() for i in sorted(self._written))
        items = tuple(item.detach() if isinstance(item, torch.Tensor) else item for item in outputs)
        needs = tuple(isinstance(value, torch.Tensor) and value.requires_grad for value in outputs)
        return Outcome(items, grads, written, self._before, needs, _shared(inputs, outputs))

    def seconds(self, runner: RunFunction) -> float:
        """Returns how long one run takes, including the backward where there is one."""
        with self._fresh() as inputs:
            items = list(inputs)
            _finish_work(inputs)
            start = time.perf_counter()
            outputs = tuple(runner(items))
            _, backward = self._backward(inputs, outputs)
            _finish_work(inputs)
            return time.perf_counter() - start - backward

    @contextlib.contextmanager
    def _fresh(self) -> Iterator[list[Any]]:
        for storage, original in self._restored:
            storage.copy_(original)
        now = rng_states() if self.uses_rng else []
        if self.uses_rng:
            set_rng_states(self.rng)
        try:
            yield [self._leaf(value) for value in self._values]
        finally:
            if self.uses_rng:
                set_rng_states(now)

    def _leaf(self, value: Any) -> Any:
        """Returns a new leaf on the same memory, if gradients are needed: without hooks, history or
        ``.grad``.
        """
        if not self._differentiates or not isinstance(value, torch.Tensor):
            return value
        return value.detach().requires_grad_(value.requires_grad)

    def _backward(
        self, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> tuple[tuple[torch.Tensor | None, ...], float]:
        """Returns gradients from seeded random tangents, and the seconds that making the tangents
        took.

        With tangents of ones, a model that ends in a normalization or a softmax has gradients that
        are nothing but rounding.
        """
        if not self._differentiates:
            return (), 0.0
        start = time.perf_counter()
        roots, leaves = (
            [value for value in values if isinstance(value, torch.Tensor) and value.requires_grad]
            for values in (outputs, inputs)
        )
        seeds = [_seed(root, place) for place, root in enumerate(roots)]
        spent = time.perf_counter() - start
        return torch.autograd.grad(roots, leaves, seeds, allow_unused=True), spent


def _demand_plain(value: torch.Tensor) -> None:
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
        kind = f"{type(value).__name__} ({value.layout})"
        raise NoSample(f"an input is a {kind}, which is not copied")
    if value.is_quantized or value.is_conj() or value.is_neg():
        raise NoSample("an input is quantised, or lazily conjugated or negated, and not copied")


def _version(value: Any) -> int | None:
    """Returns a tensor's version; None if it has no version counter."""
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else None


def _written_storages(graph: torch.fx.Graph) -> set[int]:
    """Returns the storages of fakes that capture saw written to."""
    result = {storage for node in graph.nodes for storage in node.meta.get("writes", ())}
    inner = [part for node in graph.nodes for part in getattr(node.target, "__dict__", {}).values()]
    for part in inner:
        if isinstance(part, torch.fx.GraphModule):
            result |= _written_storages(part.graph)
    return result


def with_memory(value: torch.Tensor, storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    """Returns a copy of a strided tensor, a leaf. storages: copies by `storage_id`, which tensors that
    share memory share in the copies, too."""
    key = torch_private.storage_id(value)
    if key not in storages:
        storages[key] = value.untyped_storage().clone()
    result = torch.empty(0, dtype=value.dtype, device=value.device)
    with torch.no_grad():
        result.set_(storages[key], value.storage_offset(), value.size(), value.stride())
    return result.requires_grad_(value.requires_grad)


def _seed(root: torch.Tensor, place: int) -> torch.Tensor:
    """Returns the seeded tangent of a result, without drawing from the program's generators."""
    generator = torch.Generator(root.device).manual_seed(place)
    with torch.no_grad():
        return torch.empty_like(root).normal_(generator=generator)


def _nudge(value: torch.Tensor, seed: int) -> None:
    """Makes some of the numbers in a tensor's memory smaller by their last bit; nothing overflows.

    Zeros and other round numbers stay: programs compare, mask and count with them, and they were
    not rounded.
    """
    if not (value.is_floating_point() or value.is_complex()) or value.dtype.itemsize < 2:
        return
    with torch.no_grad():
        memory = torch.empty(0, dtype=value.dtype, device=value.device)
        memory.set_(value.untyped_storage())
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randint(0, 2, memory.shape, dtype=torch.uint8, generator=generator)
        parts = torch.view_as_real(memory) if value.is_complex() else memory
        rounded = (parts * ROUND) != (parts * ROUND).round()
        if value.is_complex():
            rounded = rounded.any(-1)
        memory.mul_(1 - torch.finfo(value.dtype).eps * (chosen.to(value.device) * rounded))


def _shared(inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[int | None, ...]:
    owners: dict[int, int] = {}
    for index, value in enumerate(inputs):
        if isinstance(value, torch.Tensor) and value.numel():
            owners.setdefault(torch_private.storage_id(value), index)
    shared: list[int | None] = []
    for index, value in enumerate(outputs):
        strided = isinstance(value, torch.Tensor) and value.layout is torch.strided
        if not strided or not value.numel():
            shared.append(None)
            continue
        key = torch_private.storage_id(value)
        shared.append(owners.get(key))
        owners.setdefault(key, -1 - index)
    return tuple(shared)


def _finish_work(inputs: Sequence[Any]) -> None:
    """Synchronizes the accelerators."""
    for device in {value.device for value in inputs if isinstance(value, torch.Tensor)}:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def sampled_call(
    captured: CapturedGraph, inputs: list[Any], eager: RunFunction, repeatable: Sequence[str] = ()
) -> tuple[Sequence[Any], Sample | NoSample]:
    """Serves a call in eager mode.

    repeatable: names of the program's code that may be called again. Returns the results, and the
    sample of the call or why there is none.
    """
    try:
        names = own_code(captured.gm, captured.needs_grad, repeatable)
        if names:
            option = f"options: repeatable=({names[0]!r},)"
            reason = f"it calls {', '.join(names)}, which every benchmark would call again"
            raise NoSample(f"{reason} ({option})")
        if any(isinstance(value, torch.Generator) for value in inputs):
            raise NoSample("it draws from a generator, which every benchmark would advance")
        sample = Sample(captured, inputs)
    except NoSample as error:
        return eager(inputs), error
    before = rng_states()
    outputs = eager(inputs)
    after = rng_states()
    try:
        sample.warm_up()
    except NoSample as error:
        return outputs, error
    sample.uses_rng = any(not torch.equal(a, b) for a, b in zip(before, after, strict=False))
    sample.rng = before
    return outputs, sample
