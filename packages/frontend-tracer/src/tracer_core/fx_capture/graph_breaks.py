"""The table of graph breaks (`BREAKS`: every kind, its cause and its remedy) and the tracer's
control-flow exceptions.

`BREAKS` feeds messages, `explain()` and the docs. A break is raised before the breaking instruction
has had any effect.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BreakDoc:
    """why: what the tracer cannot do here. hint: what the user can change."""

    why: str
    hint: str


BREAKS: dict[str, BreakDoc] = {
    "data_dependent_branch": BreakDoc(
        "Python needs the value of a tensor to decide which way to go",
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
        "a function written in C has no row in the effect table, so what it reads or changes is"
        " unknown",
        "move the call out of the compiled function, or tracer_core.allow_in_graph(function)",
    ),
    "native_python": BreakDoc(
        "a Python function of a library that is not traced into",
        "move the call out of the compiled function",
    ),
    "side_effect_native": BreakDoc(
        "a call has an effect outside the program (files, time, random numbers of Python, messages"
        " that are not plain)",
        "move the call out of the compiled function",
    ),
    "async_function": BreakDoc(
        "an async function runs when its event loop wants, not when it is called",
        "compile the ordinary functions that it calls",
    ),
    "disabled": BreakDoc("the function was marked with disable()", "remove the mark"),
    "requested": BreakDoc("graph_break() was called", "remove the call"),
    "live_iterator": BreakDoc(
        "an iterator made before this segment is advanced",
        "loop over a list or a range made in the same segment",
    ),
    "unsupported_opcode": BreakDoc(
        "the tracer has no handler for a bytecode instruction", "write the statement in another way"
    ),
    "unsupported_mutation": BreakDoc(
        "an object of this kind cannot be changed and replayed yet",
        "change it outside the compiled function",
    ),
    "unsupported_value": BreakDoc(
        "a value of this kind cannot be carried out of a trace",
        "make it outside the compiled function",
    ),
    "class_statement": BreakDoc(
        "a class is made in a way that cannot be followed, or it outlives the segment and cannot be"
        " made again",
        "make the class outside the compiled function",
    ),
    "tensor_subclass": BreakDoc(
        "a tensor is sparse, nested or quantized, a DTensor is written to, draws random numbers on a"
        " GPU, or is still on its way from other processes, or a tensor of a subclass with"
        " __torch_dispatch__ carries gradients and is written to, is used under torch.func, or is made"
        " without Python code",
        "use plain tensors, or run operators of such a tensor under torch.no_grad()",
    ),
    "tensor_metadata_mutation": BreakDoc(
        "the metadata of an input tensor is changed in place (resize_, .data=, .grad=,"
        " requires_grad_)",
        "change it outside the compiled function",
    ),
    "autograd_in_graph": BreakDoc(
        "a backward cannot be captured here: its graph reaches out of the segment, hooks wait for"
        " its gradients, or the program asks for autograd's own records (grad_fn, _version, hooks"
        " on tensors)",
        "compute the loss and call backward() in one compiled function, without a graph break"
        " between them",
    ),
    "higher_order": BreakDoc(
        "a function given to autograd.Function, checkpoint, torch.func or torch.cond breaks the"
        " graph, or changes something that existed before; or it is one that cannot be a node"
        " (functionalize, a function of scores that computes more than one number)",
        "let it depend on tensors only and return what it makes",
    ),
    "processes": BreakDoc(
        "processes talk to each other here in a way that no graph holds: objects, barriers, handles"
        " that live on, tensors that require a gradient in place; or DistributedDataParallel, or"
        " fully_shard inside of a compiled module, does what it does before and after a forward",
        "functional collectives, and wait() in the compiled function; DistributedDataParallel around"
        " the compiled model has no break",
    ),
    "torch_mode": BreakDoc(
        "a mode of torch that sees every operator (set_default_device) is entered or left, or the"
        " graph breaks inside a TorchFunctionMode or a TorchDispatchMode",
        "enter it around the compiled function",
    ),
    "real_tensor_in_trace": BreakDoc(
        "an operator received a tensor whose origin is unknown", "pass the tensor as an argument"
    ),
    "operator_failed": BreakDoc(
        "an operator could not be run on fake tensors",
        "check its arguments; it may be unsupported by FakeTensor",
    ),
    "recompile_limit": BreakDoc(
        "a function with a graph break in it was captured as often as the recompile limit allows,"
        " so it runs as plain Python from then on",
        "remove the break in it, or make the value whose guard failed (the warning names it) a"
        " tensor",
    ),
    "raises": BreakDoc(
        "the program raises an exception that leaves the compiled function; the graph ends before"
        " that instruction",
        "nothing: the exception is raised as in eager, and this does not count as a graph break",
    ),
    "finalizer": BreakDoc(
        "an object with __del__ (or a callback for when it dies) is made, or what may be the last"
        " reference to one is dropped; a trace keeps objects alive longer",
        "make it outside the compiled function, or use a with statement in place of __del__",
    ),
    "missing_in_torch": BreakDoc(
        "this release of torch lacks a name, or has it in another form, which the capture of this"
        " call needs",
        "install a release of torch that this release of tracer-core was tested with",
    ),
    "long_loop": BreakDoc(
        "a loop goes on for 100,000 instructions without a tensor operator; a trace would unroll it,"
        " so the function around it runs as plain Python from there on",
        "move the loop into a function of its own, or out of the compiled function",
    ),
    "step_limit": BreakDoc("the trace is longer than the limit", "compile a smaller function"),
}


class Break(BaseException):
    """Ends the graph before the current instruction. A BaseException so that traced user code
    cannot catch it. kind: a key of BREAKS; reason: the specific cause; location: of the user's
    line, where it differs from the frames' current line."""

    def __init__(self, kind: str, reason: str, location: str = "") -> None:
        assert kind in BREAKS, kind
        super().__init__(kind, reason)
        self.kind, self.reason, self.location = kind, reason, location


class Restart(BaseException):
    """Restarts the trace of the code region, with a break at `step`. location: of the line inside a
    call before which to break."""

    def __init__(self, step: int, kind: str, reason: str, location: str = "") -> None:
        super().__init__(step, kind, reason)
        self.step, self.kind, self.reason, self.location = step, kind, reason, location


class Retry(Restart):
    """Restarts the trace with other options. changes: fields of `execution.capture.request.TraceOptions`
    and their values."""

    def __init__(self, step: int, kind: str, reason: str, **changes: Any) -> None:
        super().__init__(step, kind, reason)
        self.changes = changes


class RunNatively(BaseException):
    """Runs this activation in CPython: its outcome depends on something that a trace cannot know,
    such as the depth of the host's stack. Traced user code cannot catch it. always: later calls run
    natively too. code: of the only function that has to, now and later. loop_at: the frame that has
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


def breaks_page() -> str:
    """Renders docs/graph_breaks.md, the table as a page for users. A test keeps the file equal to
    it: ``python -c "from tracer_core.fx_capture.graph_breaks import breaks_page;
    print(breaks_page(), end='')"``."""
    lines = [
        "# Graph breaks",
        "",
        (
            "Where capture stops, the graph so far runs, the instruction runs as plain Python, and"
            " a new graph starts after"
        ),
        (
            "it. `tracer_core.explain(f)(*args)` and `TRACER_LOGS=graph_breaks` name the kind, the"
            " line and the reason of"
        ),
        (
            "each; `fullgraph=True` raises instead. This page is generated from the table in"
            " `fx_capture/graph_breaks.py`."
        ),
        "",
    ]
    for kind, doc in BREAKS.items():
        lines += [f"## {kind}", "", f"Why: {doc.why}.", "", f"What helps: {doc.hint}.", ""]
    return "\n".join(lines)
