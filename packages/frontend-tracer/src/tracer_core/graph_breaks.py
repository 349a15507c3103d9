"""The table of graph breaks (`BREAKS`: every kind, its cause and its remedy) and the tracer's
control-flow exceptions.

`BREAKS` feeds messages and `explain()`; docs/graph_breaks.md has a section for each kind, with a
program that breaks and one that does not, which a test runs. A break is raised before the breaking
instruction has had any effect.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any

from tracer_core.errors import Location

NOWHERE = Location()


@dataclass(frozen=True, slots=True)
class BreakDoc:
    """why: what the tracer cannot do here. hint: what the user can change."""

    why: str
    hint: str


BREAKS: dict[str, BreakDoc] = {
    "data_dependent_branch": BreakDoc(
        "Python needs the value of a tensor to decide a branch",
        "use torch.where, or torch.cond, or move the decision out of the compiled function",
    ),
    "data_dependent_value": BreakDoc(
        "a Python number or list is made from a tensor's values (.item(), .tolist(), float() of an"
        " array)",
        "keep the value in a tensor",
    ),
    "data_dependent_shape": BreakDoc(
        "the shape of a result depends on the values of a tensor (nonzero, unique, boolean masks)",
        "use an operator with a fixed result shape, for instance torch.where with three arguments",
    ),
    "unknown_native": BreakDoc(
        "a function written in C has no row in the native effects table, so what it reads or"
        " changes is unknown",
        "make it an operator of torch with torch.library.custom_op and register_fake, or move the call"
        " out of the compiled function; a function of tensors that is made of torch's operators may"
        " be marked with tracer_core.allow_in_graph",
    ),
    "native_python": BreakDoc(
        "a Python function of a library that is not traced into",
        "move the call out of the compiled function",
    ),
    "side_effect_native": BreakDoc(
        "a call has an effect outside the program (files, time, random numbers of Python, messages"
        " that code of the program shows)",
        "move the call out of the compiled function",
    ),
    "async_function": BreakDoc(
        "an async function runs in its event loop, not when it is called",
        "compile the ordinary functions that it calls",
    ),
    "disabled": BreakDoc(
        "the function was marked with disable()",
        "remove the mark; where it is a library's, move the call out of the compiled function",
    ),
    "requested": BreakDoc("graph_break() was called", "remove the call"),
    "live_iterator": BreakDoc(
        "an iterator from before this code region is advanced",
        "loop over a list or a range that is created in the same code region",
    ),
    "unsupported_opcode": BreakDoc(
        "the tracer has no handler for a bytecode instruction", "write the statement in another way"
    ),
    "unsupported_mutation": BreakDoc(
        "a change of an object of this kind cannot be replayed yet",
        "change it outside the compiled function",
    ),
    "unsupported_value": BreakDoc(
        "a value of this kind cannot be reconstructed after a trace",
        "create it outside the compiled function, or use tensors, numbers, lists and dicts in its"
        " place",
    ),
    "class_statement": BreakDoc(
        "a class is created in a way that cannot be followed, or it outlives the code region and"
        " cannot be created again",
        "create the class outside the compiled function",
    ),
    "tensor_subclass": BreakDoc(
        "a tensor is sparse, nested or quantized; a DTensor is written to, draws random numbers on a"
        " GPU, or waits for a communication; or a tensor of a subclass with __torch_dispatch__"
        " carries gradients and is written to, is used under torch.func, or is created without"
        " Python code",
        "use ordinary tensors, or run operators of such a tensor under torch.no_grad()",
    ),
    "tensor_metadata_mutation": BreakDoc(
        "the metadata of an input tensor is changed in place (resize_, .data=, .grad=,"
        " requires_grad_)",
        "change it outside the compiled function",
    ),
    "autograd_in_graph": BreakDoc(
        "a backward cannot be captured here: its graph begins before the code region, hooks wait for"
        " its gradients, or the program reads autograd's own records (grad_fn, _version, hooks on"
        " tensors)",
        "compute the loss and call backward() in one compiled function, without a graph break"
        " between them; read autograd's records, and add hooks, outside of it",
    ),
    "higher_order": BreakDoc(
        "a function passed to autograd.Function, checkpoint, torch.func or torch.cond breaks the"
        " graph, or changes something that existed before; or it cannot be a node (functionalize, a"
        " function of scores that computes more than one number)",
        "let it depend on tensors only and return its results; call what cannot be a node outside"
        " of the compiled function",
    ),
    "processes": BreakDoc(
        "processes communicate in a way that no graph can contain: objects, barriers, handles that"
        " outlive the call, in place on tensors that require a gradient; or"
        " DistributedDataParallel, or fully_shard inside a compiled module, runs its code before and"
        " after a forward",
        "use functional collectives, and wait() in the compiled function; DistributedDataParallel"
        " around the compiled model has no break",
    ),
    "torch_mode": BreakDoc(
        "a mode of torch that sees every operator (set_default_device) is entered or left, or the"
        " graph breaks inside a TorchFunctionMode or a TorchDispatchMode",
        "enter set_default_device around the compiled function; leave the other modes before what"
        " breaks the graph",
    ),
    "real_tensor_in_trace": BreakDoc(
        "an operator received a tensor whose origin is unknown", "pass the tensor as an argument"
    ),
    "operator_failed": BreakDoc(
        "an operator fails on fake tensors",
        "check its arguments; give an operator of your own a fake kernel (register_fake), and make a"
        " function that reads memory an operator with torch.library.custom_op",
    ),
    "recompile_limit": BreakDoc(
        "a function that contains a graph break reached the recompile limit, so it runs in eager mode"
        " from then on",
        "remove the break, or turn the value whose guard failed (the warning names it) into a"
        " tensor",
    ),
    "raises": BreakDoc(
        "the program raises an exception that leaves the compiled function; the graph ends before"
        " that instruction",
        "nothing: the exception is raised as in eager, and this does not count as a graph break",
    ),
    "finalizer": BreakDoc(
        "an object with __del__ or a weakref callback is created, or what may be the last reference"
        " to one is dropped; a trace keeps objects alive longer",
        "create it outside the compiled function, or use a with statement in place of __del__",
    ),
    "missing_in_torch": BreakDoc(
        "capturing this call needs a name that this release of torch lacks or has in another form",
        "install a release of torch that this release of tracer-core was tested with",
    ),
    "long_loop": BreakDoc(
        "a loop runs 100,000 instructions without a tensor operator; a trace would unroll it, so the"
        " function around it runs in eager mode from there on",
        "move the loop out of the compiled function; where it has to stay, a function of its own"
        " keeps what is around it compiled",
    ),
    "step_limit": BreakDoc("the trace is longer than the limit", "compile a smaller function"),
}


class Break(BaseException):
    """Ends the graph before the current instruction. A BaseException so that traced user code
    cannot catch it. kind: a key of BREAKS; reason: the specific cause; location: of the user's
    line, where it differs from the frames' current line."""

    def __init__(self, kind: str, reason: str, location: Location = NOWHERE) -> None:
        assert kind in BREAKS, kind
        super().__init__(kind, reason)
        self.kind, self.reason, self.location = kind, reason, location


class Restart(BaseException):
    """Restarts the trace of the code region, with a break at `step`. location: of the line inside a
    call before which to break."""

    def __init__(self, step: int, kind: str, reason: str, location: Location = NOWHERE) -> None:
        super().__init__(f"{kind}: {reason}; the capture starts again")
        self.step, self.kind, self.reason, self.location = step, kind, reason, location


class Retry(Restart):
    """Restarts the trace with other options. changes: fields of `execution.capture.request.TraceOptions`
    and their values."""

    def __init__(self, step: int, kind: str, reason: str, **changes: Any) -> None:
        super().__init__(step, kind, reason)
        self.changes = changes


class RunEagerly(BaseException):
    """Runs this activation in CPython: its outcome depends on something that a trace cannot know,
    such as the depth of the host's stack. Traced user code cannot catch it. always: later calls run
    eagerly too. code: of the only function that has to, now and later. loop_at: the frame that has
    to, until it returns, whenever the code region is entered."""

    def __init__(
        self,
        reason: str,
        always: bool = False,
        *,
        code: types.CodeType | None = None,
        loop_at: int | None = None,
    ) -> None:
        super().__init__(reason)
        self.always, self.code, self.loop_at = always, code, loop_at
