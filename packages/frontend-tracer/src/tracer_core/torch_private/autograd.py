"""Autograd: graph nodes, the tensors that they save, and running a backward."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from tracer_core.torch_private.names import name, names


@contextlib.contextmanager
def grad_mode_without_graph() -> Iterator[None]:
    """Context in which kernels see grad mode enabled, but autograd records nothing."""
    with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
        yield


_creation_of = name("_C._autograd._get_creation_meta")
_set_creation = name("_C._autograd._set_creation_meta")
_CREATIONS = name("_C._autograd.CreationMeta")


_ONCE = names("autograd.function.once_differentiable")


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates the backward of an autograd.Function that has no derivative itself: asking for one
    raises."""
    if _ONCE:
        decorated: Callable[..., Any] = _ONCE[0](backward)
        return decorated

    def run(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "a gradient is to be differentiated that this torch cannot refuse later"
            )
        return backward(ctx, *gradients)

    return run


def creation(view: torch.Tensor) -> str:
    """Returns how autograd says that a view came to be: ``DEFAULT``, or what forbids writing to it
    in place, as ``MULTI_OUTPUT_NODE`` (a part that `torch.chunk` gave)."""
    return _creation_of(view).name if view._is_view() else "DEFAULT"


def created(view: torch.Tensor, kind: str) -> torch.Tensor:
    """Tells autograd how a view came to be, and returns the view."""
    if view._is_view():
        _set_creation(view, getattr(_CREATIONS, kind))
    return view


#: Autograd's message for freed saved tensors; the exception has no type of its own.
FREED = "Trying to backward through the graph a second time"


def is_freed(error: RuntimeError) -> bool:
    """Returns whether a backward failed because its graph was freed."""
    return FREED in str(error)


def is_out_of_memory(error: Exception) -> bool:
    """Returns whether an allocation failed. The CPU allocator raises a plain RuntimeError."""
    has_type = isinstance(error, (torch.OutOfMemoryError, MemoryError))
    return has_type or "allocate memory" in str(error)


def let_go_of_saved_tensors(ctx: Any) -> None:
    """Releases ``ctx.saved_tensors`` in a backward that has read them, unless the graph is
    retained: each is then freed after its last use instead of after the whole backward."""
    forget = getattr(ctx, "maybe_clear_saved_tensors", None)
    if forget is not None:  # torch 2.5 and later
        forget()


#: The module of the autograd.Functions that hold what a program gave to `register_autograd`.
_OF_OPERATORS = "torch._library.autograd"


def replace_backward(result: Any, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replaces the backward of the autograd.Function of a program that gave a result, in this one
    autograd node."""
    for leaf in result if isinstance(result, (tuple, list)) else (result,):
        node: Any = leaf.grad_fn if isinstance(leaf, torch.Tensor) else None
        cls: Any = getattr(node, "_forward_cls", None)
        module = getattr(cls, "__module__", "torch.")
        if module == _OF_OPERATORS or not module.startswith("torch."):
            defined = torch.autograd.Function.backward
            names = ("backward", "vjp") if cls.backward is not defined else ("vjp", "backward")
            wrapped = {names[0]: wrap(getattr(cls, names[0])), names[1]: getattr(cls, names[1])}
            node._forward_cls = types.SimpleNamespace(**wrapped)
            return


def direct_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Returns ``function.apply`` without its torch.func handling, which no captured graph needs."""
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply


def gradients_of(
    roots: Sequence[torch.Tensor],
    tangents: Sequence[torch.Tensor],
    leaves: Sequence[torch.Tensor],
    retain_graph: bool = False,
) -> tuple[torch.Tensor | None, ...]:
    """`torch.autograd.grad` with allow_unused, for tangents of the roots' sizes: torch's check of
    those imports sympy, 30 MiB that a program without symbolic sizes does not need."""
    run = getattr(torch.autograd.graph, "_engine_run_backward", None)
    if run is None:
        return torch.autograd.grad(roots, leaves, tangents, retain_graph, allow_unused=True)
    tensors: tuple[torch.Tensor | None, ...] = run(
        *(tuple(roots), tuple(tangents), retain_graph, False, tuple(leaves), True),
        accumulate_grad=False,
    )
    return tensors


def backward_on_this_thread() -> contextlib.AbstractContextManager[Any]:
    """Context in which autograd runs a backward on this thread alone. Otherwise it has one thread
    per GPU, and two of them would use one fake mode at once."""
    return torch.autograd.set_multithreading_enabled(False)


def gradient_node(tensor: torch.Tensor) -> Any:
    """Returns the autograd node where a backward of this tensor begins."""
    if tensor.grad_fn is not None:
        return tensor.grad_fn
    with torch.enable_grad():
        return tensor.view_as(tensor).grad_fn.next_functions[0][0]  # type: ignore[union-attr]


@contextlib.contextmanager
def saved_tensors_unseen() -> Iterator[None]:
    """Context that disables the program's ``saved_tensors_hooks``."""
    hooks: Any = torch._C._autograd
    if hooks._top_saved_tensors_default_hooks(True) is None:
        yield
        return
    hooks._push_saved_tensors_default_hooks(_same, _same)
    try:
        yield
    finally:
        hooks._pop_saved_tensors_default_hooks()


def _same(value: Any) -> Any:
    return value


@functools.cache
def _early_stop() -> tuple[Any, ...]:
    """Returns the exception that ends the recomputation of a checkpoint that has all its tensors."""
    return names("utils.checkpoint._StopRecomputationError")


def raised_by_saved_tensors_hook(error: BaseException, in_try: bool) -> bool:
    """Returns whether a saved-tensor hook of the program raised an exception that was caught in the
    caller: a frame of the hook is in the traceback. (Autograd applies only the hooks that were set
    last. Of a hook without Python code nothing is seen.)

    in_try: the program may handle the exception, so only one counts that torch itself handles.
    """
    if in_try and not isinstance(error, _early_stop()):
        return False
    result: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
    codes = [code for hook in result or () if (code := _code_of(hook)) is not None]
    traceback = error.__traceback__ if codes else None
    while traceback is not None:
        if traceback.tb_frame.f_code in codes:
            return True
        traceback = traceback.tb_next
    return False


def _code_of(function: Any) -> types.CodeType | None:
    """Returns the code that runs first when a function, a method, a partial or another object is
    called, if it is Python code."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, types.MethodType):
        function = function.__func__
    if not isinstance(function, types.FunctionType):
        function = type(function).__call__
    code: types.CodeType | None = getattr(function, "__code__", None)
    return code


def is_accumulator_held(leaves: Sequence[torch.Tensor]) -> bool:
    """Returns whether Python code holds the AccumulateGrad node of a leaf; without that, no hook
    stays on it. (A live graph holds the node too, with its Python object.)"""
    nodes = [gradient_node(leaf) for leaf in leaves]
    # A variable's reference is lent to a call since 3.14; that of a subscript is the call's own.
    alive = tuple([nodes[k] for k in range(len(nodes)) if sys.getrefcount(nodes[k]) > 2])
    holders = gc.get_referrers(*alive) if alive else ()
    ours = (id(alive), id(nodes))  # since 3.13 the arguments of the call are among the holders
    return any(not isinstance(item, types.FrameType) and id(item) not in ours for item in holders)


def nodes_behind(*starts: Any) -> list[Any]:
    """Returns the autograd nodes that a backward from these nodes (or None) may run."""
    pending, seen = list(starts), dict[Any, None]()
    while pending:
        node = pending.pop()
        if node is not None and node not in seen:
            seen[node] = None
            pending += [following for following, _ in node.next_functions]
    return list(seen)


def leaves_behind(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Returns the leaves that a backward of the tensor accumulates gradients into."""
    nodes = nodes_behind(tensor.grad_fn)
    return [node.variable for node in nodes if hasattr(node, "variable")]


#: The number that the next node of autograd gets on this thread.
next_sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr


def running_sequence_number() -> int | None:
    """Returns the number of the node of autograd whose backward runs on this thread, if any."""
    node: Any = torch._C._current_autograd_node()
    return None if node is None else int(node._sequence_nr())
