"""Checks a backend's first result against what its graph promises.

The runner checks its first result and then only forwards (about 0.05 µs). Each difference is a
BackendError that names the backend, the output, what was expected and what came. Where a `Substitute`
is given, it runs in the runner's place from that first call on. The stride of a
dimension of size 1, or of an empty tensor, is not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.aot.first_call import FirstCall
from tracer_core.contract.branch_prediction import after_commit, committing
from tracer_core.contract.runner import RunFunction
from tracer_core.contract.specs import CompileSpec, OutputSpec, Role
from tracer_core.errors import BackendError
from tracer_core.torch_private.memory_layout import same_steps


@dataclass(slots=True)
class Substitute:
    """What runs in place of a runner whose first call fails. Mutable.

    make(error): reports the error and returns what runs instead; None, which frees the graph, after
    a first call that did not fail. uses_rng: the graph does. used: it was made.
    """

    make: Callable[[BackendError], RunFunction] | None
    uses_rng: bool
    used: bool = False


#: Ends the message of what a substitute raises.
IN_ITS_PLACE = "raised by the operators of a graph whose backend failed, run in eager mode"


def noted(run: RunFunction) -> RunFunction:
    """Wraps what runs in a runner's place, so that its errors say so: its operators were chosen for
    layouts that the first call may not have had."""

    def run_noted(inputs: list[Any]) -> Sequence[Any]:
        try:
            return run(inputs)
        except Exception as error:
            error.add_note(IN_ITS_PLACE)
            raise

    return run_noted


def as_returned(spec: CompileSpec, images: Collection[int]) -> CompileSpec:
    """`spec`, with these of its saved images channels-last (`Runner.channels_last`)."""
    if not images:
        return spec
    outputs = list(spec.outputs)
    for number in images:
        output = outputs[number]
        if not output.saved or output.shape is None or len(output.shape) != 4:
            raise _error(spec, f"output {number} is channels-last, but no saved image")
        _, channels, height, width = output.shape
        outputs[number] = replace(
            output, stride=(channels * height * width, 1, channels * width, channels)
        )
    return replace(spec, outputs=tuple(outputs))


def with_saved_layouts(run: RunFunction, spec: CompileSpec) -> RunFunction:
    """Wraps `run` so that its saved outputs have the strides of `spec`, which a backward is compiled
    for, also where operators return others."""
    saved = [(index, item) for index, item in enumerate(spec.outputs) if item.saved and item.stride]
    if not saved:
        return run

    def run_with_layouts(inputs: list[Any]) -> Sequence[Any]:
        sizes = _sizes(spec, inputs)
        outputs = list(run(inputs))
        for index, expected in saved:
            stride = tuple(_number(step, sizes) for step in expected.stride or ())
            value = outputs[index]
            if not same_steps(value.shape, value.stride(), stride):
                result = torch.empty_strided(
                    value.shape, stride, dtype=value.dtype, device=value.device
                )
                outputs[index] = result.copy_(value)
        return outputs

    return run_with_layouts


def checked(
    run: RunFunction,
    spec: CompileSpec,
    *,
    grad: bool = False,
    input_specs: Sequence[OutputSpec] | None = None,
    functional: bool = False,
    substitute: Substitute | None = None,
) -> RunFunction:
    """Wraps `run` so that its first result is checked against `spec`.

    grad: some output must require grad. input_specs: of inputs computed by operators whose
    fakes may be wrong; those of the first call are checked too. functional: the graph writes to no
    inputs but `spec.mutations`, so the runner may not either (autograd's versions are compared, so
    a write through an address is not seen). substitute: of a functional graph.
    """

    target: RunFunction

    def first(inputs: list[Any]) -> Sequence[Any]:
        nonlocal target
        make = before = None
        if substitute is not None:
            make, before = substitute.make, FirstCall.of(inputs, spec, substitute.uses_rng)
        try:
            outputs = first_checked(inputs)
        except BackendError as error:
            if substitute is None or make is None or before is None:
                raise
            target, substitute.used = after_commit(make(error)), True
            return target(before.undo())
        target = run
        if substitute is not None:
            substitute.make = None
        return outputs

    def first_checked(inputs: list[Any]) -> Sequence[Any]:
        inputs_before = list(inputs)  # a runner may clear the list that it gets
        if input_specs is not None:
            _check_inputs(inputs_before, input_specs, spec)
        versions = _versions(inputs_before, spec) if functional else {}
        histories = [_history(value) for value in inputs_before] if grad else []
        outputs = run(inputs)
        check_result(outputs, inputs_before, spec)
        for index, version in versions.items():
            if inputs_before[index]._version != version and not any(
                _shares_counter(inputs_before[index], inputs_before[written])
                for written in spec.mutations
            ):
                source = f"input {index} ({spec.inputs[index].source})"
                raise _error(spec, f"it wrote to {source}, to which the graph writes nothing")
        pairs = zip(inputs_before, histories, strict=False)
        written = any(_history(value) is not before for value, before in pairs)  # x += parameter
        detached = not any(getattr(value, "requires_grad", False) for value in outputs)
        if grad and detached and not written:
            raise _error(spec, "every output is detached, but gradients were asked for")
        return outputs

    target = first

    def call(inputs: list[Any]) -> Sequence[Any]:
        return target(inputs)

    return committing(call, run)


def _history(value: Any) -> Any:
    return value.grad_fn if isinstance(value, torch.Tensor) else None


def check_result(outputs: Any, inputs: Sequence[Any], spec: CompileSpec) -> None:
    """Raises BackendError for the first output that differs from `spec`."""
    if not isinstance(outputs, (list, tuple)):
        wanted = f"a list of {len(spec.outputs)} outputs"
        raise _error(spec, f"returned {type(outputs).__name__}, expected {wanted}")
    if len(outputs) != len(spec.outputs):
        raise _error(spec, f"returned {len(outputs)} outputs, expected {len(spec.outputs)}")
    sizes = _sizes(spec, inputs)
    for index, (value, expected) in enumerate(zip(outputs, spec.outputs, strict=True)):
        difference = _difference(value, expected, sizes)
        if difference:
            raise _error(spec, f"output {index} of {len(outputs)} has {difference}")
    _check_aliases(outputs, inputs, spec)


def _shares_counter(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether one tensor was detached from the other: they share their counter of versions
    for good, if not their memory (``data`` was set)."""
    version = tensor._version
    torch_private.set_version(other, other._version + 1)
    shares = tensor._version != version
    torch_private.set_version(other, other._version - 1)
    return shares


def _versions(inputs: Sequence[Any], spec: CompileSpec) -> dict[int, int]:
    """Returns the versions of the inputs that a runner must not write to."""
    return {
        index: value._version
        for index, (value, described) in enumerate(zip(inputs, spec.inputs, strict=True))
        if isinstance(value, torch.Tensor)
        and not value.is_inference()
        and index not in spec.mutations
        and described.role is not Role.RNG_STATE
    }


def _check_inputs(inputs: Sequence[Any], expected: Sequence[OutputSpec], spec: CompileSpec) -> None:
    sizes = _sizes(spec, inputs)
    for value, item, described in zip(inputs, expected, spec.inputs, strict=True):
        difference = _difference(value, item, sizes)
        if difference:
            source = f"its input {described.source}, made by an operator that runs eagerly"
            raise _error(spec, f"{source}, has {difference}")


def _error(spec: CompileSpec, detail: str) -> BackendError:
    return BackendError(spec.backend, "first call", f"{spec.name}: {detail}")


def _sizes(spec: CompileSpec, inputs: Sequence[Any]) -> Mapping[str, int]:
    """Returns the value of each symbolic size in this call."""
    result = {}
    for size in spec.sizes:
        value = inputs[size.input_index]
        result[size.symbol] = value if size.dim is None else value.shape[size.dim]
    return result


def _number(value: Any, sizes: Mapping[str, int]) -> int:
    if not isinstance(value, torch.SymInt):
        return int(value)
    expr = value.node.expr
    return int(expr.subs({symbol: sizes[str(symbol)] for symbol in expr.free_symbols}))


def _difference(value: Any, expected: OutputSpec, sizes: Mapping[str, int]) -> str | None:
    is_number = expected.dtype is None
    if is_number is isinstance(value, torch.Tensor):
        return f"type {type(value).__name__}, expected a {'number' if is_number else 'tensor'}"
    if is_number:
        return None
    assert expected.shape is not None and expected.stride is not None
    shape = tuple(_number(size, sizes) for size in expected.shape)
    stride = tuple(_number(step, sizes) for step in expected.stride)
    if value.dtype != expected.dtype:
        return f"dtype {value.dtype}, expected {expected.dtype}"
    if tuple(value.shape) != shape:
        return f"shape {tuple(value.shape)}, expected {shape}"
    if value.device.type != (expected.device.type if expected.device else None):
        return f"device {value.device}, expected {expected.device}"
    if value.layout is torch.strided and not same_steps(shape, value.stride(), stride):
        return f"strides {tuple(value.stride())}, expected {stride}"
    return None


def _check_aliases(outputs: Sequence[Any], inputs: Sequence[Any], spec: CompileSpec) -> None:
    owners = {
        torch_private.storage_id(value): f"input {index} ({described.source})"
        for index, (value, described) in enumerate(zip(inputs, spec.inputs, strict=True))
        if _has_storage(value)
    }
    for index, (value, expected) in enumerate(zip(outputs, spec.outputs, strict=True)):
        if not _has_storage(value) or not value.numel():
            continue
        storage = torch_private.storage_id(value)
        owner = owners.get(storage)
        aliased = _aliased(expected)
        if owner is not None and aliased is None:
            raise _error(spec, f"output {index} shares its memory with {owner}, expected its own")
        if owner is None and aliased is not None:
            raise _error(spec, f"output {index} has memory of its own, expected that of {aliased}")
        owners.setdefault(storage, f"output {index}")


def _aliased(expected: OutputSpec) -> str | None:
    """Says whose memory an output must share."""
    if expected.alias_of_input is not None:
        return f"input {expected.alias_of_input}"
    return None if expected.alias_of_output is None else f"output {expected.alias_of_output}"


def _has_storage(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided
