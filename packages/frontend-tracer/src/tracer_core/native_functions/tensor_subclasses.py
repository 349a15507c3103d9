"""Effect table: functions that make tensors of subclasses, or that concern their hooks."""

from __future__ import annotations

from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.fx_capture import element_reads
from tracer_core.graph_breaks import Retry
from tracer_core.guards.source import SourceKind
from tracer_core.native_effects.effects import special
from tracer_core.torch_private.names import names, operators
from tracer_core.torch_private.needed import pytree
from tracer_core.trace.tracer import Tracer

aten = operators("aten")
#: Arguments of wrappers that have sizes of their own, or whose sizes are asked for by calls.
_OWN_SIZES = frozenset(
    {"dispatch_sizes_strides_policy", "dispatch_device", "dispatch_layout", "storage_size"}
)


@special(torch_private.MAKE_WRAPPER)
def make_wrapper_subclass(tracer: Tracer, kind: Any, *args: Any, **kwargs: Any) -> Any:
    if kwargs.keys() & _OWN_SIZES:
        tracer.break_graph("tensor_subclass", f"a {kind.__name__} answers for its sizes")
    tracer.native_calls.native_reads(*args, *kwargs.values())
    return tracer.subclasses.make_wrapper(kind, args, kwargs)


@special(torch_private.MAKE_SUBCLASS)
def make_subclass(
    tracer: Tracer, kind: Any, data: Any, requires_grad: Any = False, *rest: Any, **others: Any
) -> Any:
    fits = (
        isinstance(data, torch.Tensor) and isinstance(kind, type) and issubclass(kind, torch.Tensor)
    )
    if not fits:
        tracer.break_graph("tensor_subclass", "_make_subclass() raises for what is no tensor")
    simple = kind in torch_private.BASE_TENSOR_TYPES
    if rest or others or requires_grad or simple or torch_private.has_dispatch(kind):
        tracer.break_graph("tensor_subclass", f"a {kind.__name__} is made")
    simple = tracer.recorder.call(torch.Tensor.detach, (tracer.subclasses.data_tensor(data),), {})
    return tracer.subclasses.give_class(kind, simple)


@special(*names("as_subclass", of="Tensor"))
def as_subclass(tracer: Tracer, value: Any, kind: Any) -> Any:
    """The data of a tensor as another class; gradients flow through it."""
    subclasses = tracer.subclasses
    hooked = torch_private.is_subclass(value) and torch_private.has_dispatch(type(value))
    if hooked or not (isinstance(kind, type) and issubclass(kind, torch.Tensor)):
        tracer.break_graph("tensor_subclass", "as_subclass() of a wrapper")
    if kind is not torch.Tensor and torch_private.has_dispatch(kind):
        tracer.break_graph("tensor_subclass", f"a {kind.__name__} is made")
    simple = tracer.recorder.call(aten.alias.default, (subclasses.data_tensor(value),), {})
    return simple if kind is torch.Tensor else subclasses.give_class(kind, simple)


@special(torch_private.DEFAULT_FUNCTION)
def default_torch_function(
    tracer: Tracer, kind: Any, function: Any, kinds: Any, args: Any = (), kwargs: Any = None
) -> Any:
    """``torch.Tensor.__torch_function__``: the function's results become of the class."""
    if not all(issubclass(kind, item) for item in kinds):
        return NotImplemented
    subclasses, kwargs = tracer.subclasses, kwargs or {}
    subclasses.off += ((None, tracer.outer_step),)
    try:
        result = tracer.calls.call_value(function, [*args], kwargs)
    finally:
        subclasses.off = subclasses.off[:-1]
    if function in torch_private.results_without_class() or kind is torch.Tensor:
        return result
    inputs = {id(leaf) for leaf in pytree.arg_tree_leaves(*args, **kwargs)}

    def converted(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(map(converted, value))
        if not isinstance(value, torch.Tensor) or isinstance(value, kind):
            return value
        if id(value) in inputs or not torch_private.is_fake(value):
            return as_subclass(tracer, value, kind)
        if torch_private.has_dispatch(kind):
            tracer.break_graph("tensor_subclass", f"a {kind.__name__} is made")
        return subclasses.give_class(kind, value)

    return converted(result)


@special(*names("_C._disabled_torch_function_impl"))
def disabled_torch_function(
    tracer: Tracer, function: Any, kinds: Any, args: Any = (), kwargs: Any = None
) -> Any:
    subclasses = tracer.subclasses
    subclasses.off += ((None, tracer.outer_step),)
    try:
        return tracer.calls.call_value(function, [*args], kwargs or {})
    finally:
        subclasses.off = subclasses.off[:-1]


@special(*names("_C.DisableTorchFunctionSubclass.__enter__"))
def enter_functions_off(tracer: Tracer, context: Any) -> None:
    tracer.subclasses.off += ((context, tracer.outer_step),)


@special(*names("_C.DisableTorchFunctionSubclass.__exit__"))
def exit_functions_off(tracer: Tracer, context: Any, *error: Any) -> None:
    off = tracer.subclasses.off
    if not off or off[-1][0] is not context:
        tracer.break_graph("torch_mode", "a context, entered before this region, is left")
    tracer.subclasses.off = off[:-1]


@special(*names("utils._python_dispatch.return_and_correct_aliasing"))
def return_and_correct_aliasing(
    tracer: Tracer, function: Any, args: Any, kwargs: Any, out: Any
) -> Any:
    """Returns the argument that an operator writes to in place of its result. That wrappers share
    storage, which holds no data, is not in the graph."""
    written = torch_private.written_arguments(function, args, kwargs)
    if written is None:
        tracer.break_graph("tensor_subclass", f"{function} changes sizes in place")
    if not written:
        return out
    return written[0] if len(written) == 1 else type(out)(written)


@special(*names("storage_offset", of="Tensor"))
def storage_offset(tracer: Tracer, tensor: Any) -> Any:
    """Guards the offsets of the inputs in whose memory a tensor lies."""
    recorder, provenance = tracer.recorder, tracer.provenance
    tensor = tracer.subclasses.data_tensor(tensor)
    if torch_private.is_subclass(tensor):
        inputs = [tensor]
    else:
        fake = recorder.as_fake(tensor)
        storage = torch_private.storage_id(fake)
        if recorder.copies_elements and element_reads.is_copy(recorder.graph, storage):
            reason = "a storage offset of a view at a number"
            raise Retry(0, "data_dependent_value", reason, copies_elements=False)
        arguments = recorder.fakes.inputs()
        inputs = [real for real, item in arguments if torch_private.storage_id(item) == storage]
        tensor = fake
    for value in inputs:
        source = provenance.source_of(value)
        if source is not None:
            place = provenance.sources.make(source, SourceKind.COMPUTED, "storage_offset({b})")
            provenance.read(torch_private.storage_offset(value), place)
    result = torch_private.storage_offset(tensor)
    if type(result) is not int:
        tracer.break_graph("data_dependent_value", "a storage offset that is a symbol")
    return result


@special(*names("__enter__", of="utils._python_dispatch.TorchDispatchMode"))
def enter_dispatch_mode(tracer: Tracer, mode: Any) -> Any:
    if tracer.recorder.program_modes or torch_private.is_infrastructure(mode):
        tracer.break_graph("torch_mode", "a dispatch mode is entered inside a mode of functions")
    tracer.subclasses.enter(mode)
    return mode


@special(*names("__exit__", of="utils._python_dispatch.TorchDispatchMode"))
def exit_dispatch_mode(tracer: Tracer, mode: Any, *error: Any) -> None:
    tracer.subclasses.leave(mode)


@special(*names("nested._internal.nested_tensor.nested_view_from_values_offsets"))
def jagged_of_offsets(
    tracer: Tracer,
    values: Any,
    offsets: Any,
    ragged_idx: int = 1,
    min_seqlen: Any = None,
    max_seqlen: Any = None,
) -> Any:
    inputs = (values, offsets, None, ragged_idx, min_seqlen, max_seqlen)
    return tracer.subclasses.jagged(inputs)


@special(*names("nested._internal.nested_tensor.nested_view_from_values_offsets_lengths"))
def jagged_of_lengths(
    tracer: Tracer,
    values: Any,
    offsets: Any,
    lengths: Any,
    ragged_idx: int = 1,
    min_seqlen: Any = None,
    max_seqlen: Any = None,
) -> Any:
    inputs = (values, offsets, lengths, ragged_idx, min_seqlen, max_seqlen)
    return tracer.subclasses.jagged(inputs)
