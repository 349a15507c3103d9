"""Call targets of the higher-order operator nodes (checkpoint, cond, while_loop, torch.func
transforms, tensor hooks, autograd.Function) that a graph runs.

A target reads only its arguments and its own fields, except `FunctionCall`, which runs the user's
autograd.Function.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tracer_core import torch_private
from tracer_core.debug.crossed_limits import crossed
from tracer_core.fx_capture.backward_effects import without_effects
from tracer_core.limits import MAX_SHORT_SCAN, MAX_UNROLLED_SCAN
from tracer_core.ops.calls import uses_rng
from tracer_core.ops.higher_order import flex_attention
from tracer_core.ops.higher_order.checkpoint import REGIONS
from tracer_core.ops.higher_order.control_flow import CapturedCond, CapturedWhile, Cond, While
from tracer_core.ops.higher_order.scan import SCANS, CapturedScan, Scan, is_lowered, scanned_by_tree
from tracer_core.torch_private.names import names
from tracer_core.torch_private.needed import pytree


class Target:
    """Base class: gives the target the name that FX prints."""

    title = "call"

    @property
    def __name__(self) -> str:
        return self.title


class _Answering(TorchFunctionMode):
    """Answers what a forward that runs on fakes asks of the values of tensors."""

    def __init__(self, answers: Sequence[bool]) -> None:
        super().__init__()
        self._answers = iter(answers)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = next(self._answers, None) if func in _QUESTIONS else None
        return func(*args, **(kwargs or {})) if answer is None else answer


_QUESTIONS = frozenset(names("equal Tensor.equal Tensor.__bool__"))


@dataclass(frozen=True, slots=True)
class Anew:
    """An argument that each call makes anew."""

    make: Callable[[], Any]


@dataclass(eq=False)
class FunctionCall(Target):
    """Calls ``cls.apply(*args)`` of an autograd.Function. inside: the functions seen in its
    forward. fixed: position -> argument that a graph cannot hold, such as a member of an
    enumeration. answers: of the questions about tensors' values that its forward asks, which the
    graph checks."""

    cls: type[torch.autograd.Function]
    inside: tuple[Any, ...] = field(default=(), repr=False)
    fixed: dict[int, Any] = field(default_factory=dict, repr=False)
    answers: tuple[bool, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        self.title = f"{self.cls.__name__}_apply"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        items = list(args)
        for position, value in sorted(self.fixed.items()):
            items.insert(position, value.make() if type(value) is Anew else value)
        if not any(map(is_lowered, args)):
            return self.cls.apply(*items, **kwargs)
        with _Answering(self.answers) if self.answers else contextlib.nullcontext():
            result = self.cls.apply(*items, **kwargs)
        torch_private.replace_backward(result, self._without_effects)
        return result

    def _without_effects(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        return without_effects(self.cls.__name__, backward, self.cls, *self.fixed.values())


@dataclass(eq=False)
class CheckpointCall(Target):
    """Runs a graph under torch.utils.checkpoint. explicit: positions, among the graph's inputs, of
    the arguments that the program passed; the other inputs are closure variables."""

    graph: torch.fx.GraphModule
    explicit: tuple[int, ...]
    options: dict[str, Any]
    title = "checkpoint"

    def __call__(self, *inputs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.graph(*inputs)  # no backward, so no recomputation
        values, options = list(inputs), self.options
        if any(map(is_lowered, inputs)):
            # What is kept changes no result; a graph that is lowered decides that later.
            options = {name: option for name, option in options.items() if name != "context_fn"}
        region = REGIONS.get() if self.options.get("preserve_rng_state", True) else None

        def run(*explicit: Any) -> Any:
            for position, value in zip(self.explicit, explicit, strict=True):
                values[position] = value
            if region is None:
                return self.graph(*values)
            token = REGIONS.set(region)  # autograd may recompute it in another thread
            try:
                return self.graph(*values)
            finally:
                REGIONS.reset(token)

        arguments = [inputs[position] for position in self.explicit]
        if region is None:
            return torch_private.undecorated_checkpoint()(run, *arguments, **options)
        options = {**options, "preserve_rng_state": False}
        return torch_private.undecorated_checkpoint()(region(run), *arguments, **options)


class SelectiveContexts:
    """Makes the contexts of a selective checkpoint: see
    torch.utils.checkpoint.create_selective_checkpoint_contexts."""

    def __init__(self, policy: Any, allows_mutation: Any) -> None:
        self.policy, self.allows_mutation = policy, allows_mutation

    def __call__(self) -> Any:
        make: Any = torch.utils.checkpoint.create_selective_checkpoint_contexts
        return make(self.policy, self.allows_mutation)


@dataclass(eq=False)
class TransformCall(Target):
    """Calls a torch.func transform of a graph. apply(function, *args, **kwargs): the transform.
    graph(*outer, *tensor arguments) -> flat results; `result` is their pytree spec and `constants`
    the leaves that are no tensors. arguments: the pytree spec of the call's arguments; given: their
    leaves, `None` for tensors."""

    transform: str
    apply: Callable[..., Any]
    graph: torch.fx.GraphModule
    n_outer: int
    result: Any
    constants: dict[int, Any]
    arguments: Any
    leaves_with_marks: list[Any]

    def __post_init__(self) -> None:
        self.title = self.transform

    def __call__(self, *inputs: Any) -> Any:
        outer, tensors = inputs[: self.n_outer], iter(inputs[self.n_outer :])
        leaves = [next(tensors) if leaf is TENSOR else leaf for leaf in self.leaves_with_marks]
        args, kwargs = pytree.tree_unflatten(leaves, self.arguments)

        def run(*parts: Any, **named: Any) -> Any:
            return self.on(outer, (parts, named))

        return [
            leaf
            for leaf in pytree.tree_leaves(self.apply(run, *args, **kwargs))
            if isinstance(leaf, torch.Tensor)
        ]

    def on(self, outer: Sequence[Any], arguments: Any) -> Any:
        """Runs the function itself, on a structure with the tensors that it takes."""
        operands = [
            leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)
        ]
        results, count = iter(self.graph(*outer, *operands)), self.result.num_leaves
        flat = [self.constants[i] if i in self.constants else next(results) for i in range(count)]
        return pytree.tree_unflatten(flat, self.result)


@dataclass(eq=False)
class CondCall(CapturedCond, Target):
    """Runs torch.cond on two graphs."""

    title = "cond"

    def __call__(self, predicate: torch.Tensor, *inputs: Any) -> Any:
        if torch_private.is_fake(predicate):
            taken, other = self._run(True, inputs), self._run(False, inputs)
            _require_alike("torch.cond", taken, other)
            return taken
        cond = SCANS.get().get(self) if is_lowered(predicate) else None
        if isinstance(cond, Cond):
            return cond(predicate, *inputs)
        if cond is not None:
            raise RuntimeError(f"torch.cond: {cond}")
        return self._run(bool(predicate), inputs)

    def _run(self, value: bool, inputs: Any) -> Any:
        results = self.branch(value, inputs)
        positions = self.true_inputs if value else self.false_inputs
        unused = [value for i, value in enumerate(inputs) if i not in positions]
        return _with_zero_gradients(results, unused)


def _with_zero_gradients(results: Any, unused: list[Any]) -> Any:
    """Gives inputs of the branch that did not run gradients of zeros, as torch.cond does."""
    unused = [u for u in unused if isinstance(u, torch.Tensor) and u.requires_grad]
    if not unused or not torch.is_grad_enabled():
        return results
    zero: Any = sum(u.reshape(-1)[:0].sum() for u in unused)
    return [
        torch.where(torch.ones_like(r, dtype=torch.bool), r, zero.to(r.dtype))
        if r.is_floating_point() or r.is_complex()
        else r
        for r in results
    ]


@dataclass(eq=False)
class WhileCall(CapturedWhile, Target):
    """Runs torch.while_loop on two graphs."""

    title = "while_loop"

    def __call__(self, *inputs: Any) -> Any:
        outer_condition = inputs[: self.n_condition]
        outer_body = inputs[self.n_condition : self.n_condition + self.n_body]
        carries = tuple(inputs[self.n_condition + self.n_body :])
        if any(torch_private.is_fake(value) for value in carries):
            self.condition(*outer_condition, *carries)
            after = self.body(*outer_body, *carries)
            _require_alike("torch.while_loop", carries, after)
            return tuple(value.clone() for value in after)
        loop = SCANS.get().get(self) if any(map(is_lowered, carries)) else None
        if isinstance(loop, While):
            return tuple(loop(self.condition(*outer_condition, *carries)[0], *inputs))
        if loop is not None:
            raise RuntimeError(f"torch.while_loop: {loop}")
        started = carries
        condition, body = self.condition.forward, self.body.forward
        while bool(condition(*outer_condition, *carries)[0]):
            carries = tuple(body(*outer_body, *carries))
        return tuple(v.clone() if any(v is s for s in started) else v for v in carries)


@dataclass(eq=False)
class ScanCall(CapturedScan, Target):
    """Runs a loop over the slices of tensors: step(outer..., carried..., slices...) -> (carried...,
    parts...), whose parts are stacked. Takes (outer..., carried..., tensors...)."""

    title = "scan"

    def __call__(self, *inputs: Any) -> Any:
        outer, arguments = inputs[: self.n_outer], inputs[self.n_outer :]
        carries, tensors = arguments[: self.n_live], arguments[self.n_live :]
        length = tensors[0].shape[0]
        if any(torch_private.is_fake(value) for value in arguments):
            return self._on_fakes(outer, carries, tensors, length)
        if any(map(is_lowered, arguments)):
            scan = SCANS.get().get(self)
            if isinstance(scan, Scan) and not _is_short(length, tensors[0].device):
                return scan(*inputs)
            if not isinstance(length, int) or length > MAX_UNROLLED_SCAN:
                crossed("MAX_UNROLLED_SCAN", where="a scan")
                why = "" if scan is None else f": {scan}"
                raise RuntimeError(f"a scan over {length} slices is not unrolled{why}")
        parts: list[Any] = []
        step = self.step.forward  # a module's call costs more than a step
        for row in zip(*[tensor.unbind(0) for tensor in tensors], strict=True):
            results = step(*outer, *carries, *row)
            carries = results[: self.n_live]
            parts.append(results[self.n_live :])
        stacked = [torch.stack(rows) for rows in zip(*parts, strict=True)]
        started = arguments[: self.n_live]
        return [*_without_aliases(carries, started), *stacked]

    def _on_fakes(self, outer: Any, carries: Any, tensors: Any, length: Any) -> Any:
        row = [tensor.select(0, 0) for tensor in tensors]
        results = self.step(*outer, *carries, *row)
        if not isinstance(length, int) or length > 1:  # the first step may need no gradients
            results = self.step(*outer, *results[: self.n_live], *row)
        parts = [
            part.unsqueeze(0).expand(length, *part.shape).clone(
                memory_format=torch.contiguous_format)
            for part in results[self.n_live :]
        ]  # fmt: skip
        after = _without_aliases(results[: self.n_live], carries)
        return [*after, *parts]


def _is_short(length: Any, device: torch.device) -> bool:
    """Returns whether a loop is unrolled where its operator could be kept: kernels of a whole loop
    are for the CPU."""
    return isinstance(length, int) and length <= (
        MAX_SHORT_SCAN if device.type == "cpu" else MAX_UNROLLED_SCAN
    )


@dataclass(eq=False)
class AssociativeScanCall(CapturedScan, Target):
    """Runs torch's associative_scan over the slices of tensors, by a tree. step: takes (outer...,
    combined slices..., slices...) and returns the combined slices twice."""

    title = "associative_scan"

    def parts_of(self, inputs: Sequence[Any]) -> list[Any]:
        outer, leaves = inputs[: self.n_outer], inputs[self.n_outer :]
        return [*outer, *(leaf[0] for leaf in leaves), *(leaf[1:] for leaf in leaves)]

    def __call__(self, *inputs: Any) -> Any:
        outer, leaves = inputs[: self.n_outer], list(inputs[self.n_outer :])
        if any(torch_private.is_fake(leaf) for leaf in leaves):
            return self._on_fakes(outer, leaves)
        length = leaves[0].shape[0]
        scan = SCANS.get().get(self) if any(map(is_lowered, leaves)) else None
        if isinstance(scan, Scan) and not (isinstance(length, int) and length <= MAX_SHORT_SCAN):
            if scan.pointwise and not torch.is_grad_enabled():
                return scan.associative(leaves)
            if leaves[0].device.type == "cpu":  # elsewhere a tree keeps the device busy
                parts = scan(*self.parts_of(inputs))[self.n_live :]
                pairs = zip(leaves, parts, strict=True)
                return [torch.cat([leaf[:1], rest]) for leaf, rest in pairs]

        def combine(left: list[Any], right: list[Any]) -> Any:
            return self.step(*outer, *left, *right)[: self.n_live]

        return scanned_by_tree(torch.vmap(combine), leaves)

    def _on_fakes(self, outer: Any, leaves: list[Any]) -> list[Any]:
        slices = [leaf[0] for leaf in leaves]
        once = self.step(*outer, *slices, *slices)[: self.n_live]
        again = self.step(*outer, *once, *slices)[: self.n_live]
        length = leaves[0].shape[0]
        return [
            item.unsqueeze(0).expand(length, *item.shape).clone(
                memory_format=torch.contiguous_format)
            for item in again
        ]  # fmt: skip


def _without_aliases(values: Any, value: Any) -> list[Any]:
    """Copies the values that are inputs of the graph."""
    return [v.clone() if any(v is item for item in value) else v for v in values]


def may_use_rng(graph: torch.fx.GraphModule) -> bool:
    """Returns whether a graph, or one that its nodes call, may use random numbers."""
    for node in graph.graph.nodes:
        if node.op in ("call_function", "call_method") and uses_rng(node):
            return True
        if isinstance(node.target, FunctionCall):  # its forward is the program's
            return True
        if isinstance(node.target, Target):
            parts = vars(node.target).values()
            if any(isinstance(part, torch.fx.GraphModule) and may_use_rng(part) for part in parts):
                return True
    return False


@dataclass(eq=False)
class ScriptedCall(Target):
    """Calls a function that torch.jit compiled or traced."""

    function: Any
    title = "scripted"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@dataclass(eq=False)
class HookCall(Target):
    """Calls ``tensor.register_hook`` with a graph of (outer..., gradient) that returns a new
    gradient."""

    graph: torch.fx.GraphModule
    title = "register_hook"

    def __call__(self, tensor: torch.Tensor, *outer: Any) -> None:
        tensor.register_hook(lambda gradient: self.graph(*outer, gradient)[0])


def read_element(tensor: torch.Tensor, *indices: Any) -> torch.Tensor:
    """Subscripts a tensor by 0-d tensors, in a function of scores: a read of elements, where eager's
    subscript asks for the values of the indices."""
    places = [
        index
        if isinstance(index, torch.Tensor)
        else torch.full((), index, dtype=torch.int64, device=tensor.device)
        for index in indices
    ]
    read: torch.Tensor = torch.ops.aten.index.Tensor(tensor, places)
    return read


@dataclass(eq=False)
class FlexAttentionCall(Target):
    """Calls flex_attention. graphs: the captured score_mod and mask_mod, which `program` (see
    `flex_attention.Flex`) was made of."""

    program: str
    scale: float
    score_graph: torch.fx.GraphModule | None = field(default=None, repr=False)
    mask_graph: torch.fx.GraphModule | None = field(default=None, repr=False)
    title = "flex_attention"

    def __call__(
        self, query: Any, key: Any, value: Any, blocks: Any, buffers: Any, numbers: Any
    ) -> Any:
        return flex_attention.attention(
            query, key, value, blocks, buffers, numbers, self.scale, self.program
        )


@dataclass(eq=False)
class MaskCall(Target):
    """Calls a function of scores at all positions of (batch, head, query, key)."""

    program: str
    device: torch.device
    graph: torch.fx.GraphModule = field(repr=False)
    title = "create_mask"

    def __call__(self, sizes: Any, buffers: Any, numbers: Any) -> Any:
        return flex_attention.mask(sizes, buffers, numbers, self.device, self.program)


class Tensor:
    """Marks the place of a tensor among pytree leaves."""


TENSOR = Tensor()


def _require_alike(what: str, left: Any, right: Any) -> None:
    def facts(values: Any) -> list[Any]:
        return [(tuple(v.shape), v.dtype, v.device, v.requires_grad) for v in values]

    if facts(left) != facts(right):
        raise RuntimeError(
            f"{what}: results differ in shape, dtype or requires_grad: {facts(left)}, {facts(right)}"
        )
