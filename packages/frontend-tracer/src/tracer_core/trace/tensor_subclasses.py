"""Traces tensor subclasses: their ``__torch_function__`` and ``__torch_dispatch__`` are interpreted
like any other Python, so that the graph holds plain tensors and their operators alone.

A tensor of a subclass with ``__torch_dispatch__`` (a wrapper) is to the trace what any object of the
program is: its attributes, the inner tensors among them, are read with guards. One without holds
data: its plain tensor goes into the graph in its place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from tracer_core import torch_private
from tracer_core.fx_capture.function_traits import name_of, operator_name
from tracer_core.graph_breaks import Break, Restart
from tracer_core.guards.guard import GuardKind
from tracer_core.guards.source import Source, SourceKind
from tracer_core.guards.tensor_guard import tensor_facts
from tracer_core.ops.calls import may_use_rng, uses_no_rng
from tracer_core.ops.higher_order.jagged_attention import jagged_attention
from tracer_core.ops.higher_order.subclass_calls import DTensorCall, WrapCall, inner_tensor
from tracer_core.storage.released_parameters import ReleasedParameter
from tracer_core.torch_private.names import operators
from tracer_core.torch_private.needed import is_autocast_on, pytree
from tracer_core.trace.component import Component
from tracer_core.trace.guarded_calls import applied, query_call
from tracer_core.trace.save_before_mutation import LateCall
from tracer_core.trace.subgraph_regions import Region

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer


class TensorSubclasses(Component):
    """Tensors of subclasses in one trace. Mutable. seen: whether there are any. off: contexts of the
    program in which no ``__torch_function__`` of theirs is called, modes: dispatch modes of the
    program, each with the instruction that entered it."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__(tracer)
        self.seen = False
        self.off: tuple[tuple[Any, int], ...] = ()
        self.modes: tuple[tuple[Any, int], ...] = ()
        #: How many handlers of operators are being interpreted.
        self._below = 0
        #: Whether one of their operators had an argument that requires grad.
        self._untracked = False
        #: Results of operators without tensors inside dispatch modes.
        self._new: list[Any] = []
        #: id of a tensor that holds data -> it, and the plain tensor in its place (or its fake).
        self._plain: dict[int, tuple[Any, torch.Tensor]] = {}
        #: id of such a plain tensor -> the tensor of the subclass.
        self._with_class: dict[int, Any] = {}
        #: id of a wrapper that the trace made -> it, and the arguments that made it.
        self._made: dict[int, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {}
        #: id of a mesh that torch's dispatcher gave a DTensor, equal to a guarded one -> it.
        self._meshes: dict[int, Any] = {}
        #: id of such a wrapper -> it, and the one that a node makes.
        self._in_graph: dict[int, tuple[Any, Any]] = {}

    # -- tensors --

    def read(self, value: torch.Tensor, source: Source) -> None:
        """Guards a tensor of a subclass that the program reads."""
        jagged = torch_private.is_jagged(value)
        refused = "" if jagged else torch_private.refused_subclass(value)
        if refused or isinstance(value, ReleasedParameter):
            raise Break("tensor_subclass", f"{source.name} is {refused or 'a released parameter'}")
        self.seen = True
        kind = type(value)
        self.tracer.entries.guard_lineage(kind)
        dims: Any = None
        if torch_private.has_dispatch(kind):
            if torch_private.is_dtensor(value):  # whose sizes, of all processes, are in its spec
                if torch_private.holds_state(torch_private.flattened(value)[1]):
                    reason = f"{source.name} is a DTensor whose placement holds values"
                    raise Break("tensor_subclass", reason)
                self._guard_dispatcher()
                applied(self.tracer, torch_private.described_spec, value)
                local = self.sources.slot(source, torch_private.LOCAL_PART)
                self.tracer.shapes.fixed.add(local)
            if jagged:  # guards on its inner tensors tell its sizes
                dims = (None,) * torch_private.jagged_rank(value)
            else:
                self.tracer.shapes.fixed.add(source)
        else:
            simple, place = (
                torch_private.detached_without_class(value),
                self.sources.make(source, SourceKind.PLAIN),
            )
            dims = self.tracer.shapes.dims_of(simple, place)
            self.provenance.follows_late = True
            self._bind(value, simple)
            self.provenance.adopt(simple, place)
        with torch_private.functions_off():
            facts = tensor_facts(value, dims)
        self.provenance.guard(GuardKind.TENSOR, source, facts)

    def _bind(self, value: Any, tensor: torch.Tensor) -> None:
        self._plain[id(value)] = value, tensor
        self._with_class[id(tensor)] = value

    def is_known(self, value: Any) -> bool:
        """Returns whether the trace made a tensor of a subclass."""
        known = id(value) in self._made or id(value) in self._plain
        return known or self.recorder.node_of(value) is not None

    @property
    def n_wrappers(self) -> int:
        """How many wrappers the trace made."""
        return len(self._made)

    def give_class(self, kind: Any, tensor: torch.Tensor) -> Any:
        """Returns a tensor of a subclass that has the data of a plain tensor of the graph."""
        self.seen = True
        result = torch_private.with_class(kind, self.recorder.as_fake(tensor))
        self._bind(result, tensor)
        return result

    def make_wrapper(self, kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Traces ``torch.Tensor._make_wrapper_subclass``."""
        self.seen = True
        wrapper = torch_private.MAKE_WRAPPER(kind, *args, **kwargs)
        self._made[id(wrapper)] = wrapper, args, kwargs
        return wrapper

    def recipe(self, value: Any) -> tuple[Any, ...] | None:
        """Returns how a tensor of a subclass was made in the trace: its plain tensor, or what
        ``_make_wrapper_subclass`` was called with. None for others."""
        if id(value) in self._plain:
            return (self._plain[id(value)][1],)
        result = self._made.get(id(value))
        return None if result is None else result[1:]

    def data_tensor(self, value: Any) -> Any:
        """Returns the plain tensor in place of one that holds data; any other value unchanged."""
        result = self._plain.get(id(value))
        return value if result is None else result[1]

    def original(self, value: Any) -> Any:
        """Returns the program's object for a fake, or for the plain tensor in its place."""
        real = self.recorder.fakes.real_of(value)
        value = value if real is None else real
        return self._with_class.get(id(value), value)

    def hook(self, args: Any, kwargs: Any) -> bool:
        """Returns whether a call of a torch function may call Python code of the program. Notes an
        operator in a handler of operators whose gradients eager mode does not follow."""
        if not self.seen:
            return False
        if self._below and torch.is_grad_enabled():
            leaves = [leaf for leaf in pytree.arg_tree_leaves(*args, **kwargs) if _is_tensor(leaf)]
            self._untracked |= any(map(torch_private.requires_grad_now, leaves))
        return bool(self.modes) or bool(self._among(args, kwargs))

    def _among(self, args: Any, kwargs: Any) -> list[Any]:
        """Returns the tensors of subclasses among arguments."""
        leaves = pytree.arg_tree_leaves(*args, **kwargs)
        return [leaf for leaf in leaves if torch_private.is_subclass(leaf)]

    # -- hooks --

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls a torch function with tensors of subclasses among its arguments, or inside a
        dispatch mode of the program."""
        inputs = self._among(args, kwargs)
        if any(map(torch_private.is_jagged, inputs)):
            return self._jagged(function, inputs, args, kwargs)
        if any(map(torch_private.is_dtensor, inputs)):
            return self._distributed(function, inputs, args, kwargs)
        if self._functions_on():
            kinds = torch_private.overloads(inputs, torch_private.has_function)
            if kinds:
                return self._by_classes("__torch_function__", kinds, function, kinds, args, kwargs)
        plain_args, plain_kwargs = mapped(self.data_tensor, args), mapped(self.data_tensor, kwargs)
        if not self.modes and not torch_private.overloads(inputs, torch_private.has_dispatch):
            result = self.recorder.call(function, plain_args, plain_kwargs)
            return mapped(self.original, result)
        return self._on_wrappers(function, plain_args, plain_kwargs)

    def jagged(self, value: tuple[Any, ...]) -> Any:
        """Records how a nested tensor of jagged layout is made of packed values."""
        self.seen = True
        return self.node(torch_private.jagged_view, value, {})

    def _require_kind(
        self, function: Any, tensors: list[Any], is_kind: Callable[[Any], bool], title: str
    ) -> None:
        """Breaks where tensors of other classes, a mode or a transform take part in a call."""
        if self.modes or torch_private.transforms_active() or not all(map(is_kind, tensors)):
            raise Break("tensor_subclass", f"{name_of(function)} of {title}, and others")

    def _node_without_writes(
        self, function: Any, args: Any, kwargs: dict[str, Any], title: str, off: bool = False
    ) -> Any:
        """Records a function on wrappers as a node; ends the graph before it if it writes to one."""
        leaves = [leaf for leaf in pytree.arg_tree_leaves(*args, **kwargs) if _is_tensor(leaf)]
        before = torch_private.versions_of(leaves)
        result = self.node(function, args, kwargs, off)
        if before != torch_private.versions_of(leaves) or "out" in kwargs:
            reason = f"{name_of(function)}: a write to {title}"
            raise Restart(self.tracer.outer_step, "tensor_subclass", reason)
        return result

    def _jagged(
        self, function: Any, value: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Records a function on nested tensors of jagged layout."""
        self._require_kind(function, value, torch_private.is_jagged, "a nested tensor")
        self.tracer.native_calls.require_recordable(function, args, kwargs)
        if function is torch_private.NESTED_VALUES:
            function = torch_private.jagged_values
        if function is torch.nn.functional.scaled_dot_product_attention:
            function, args, kwargs = self._attention(args, kwargs)
        return self._node_without_writes(
            function, args, kwargs, "a nested tensor", off=not self._functions_on()
        )

    def _distributed(
        self, function: Any, value: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Records a function on DTensors: torch's dispatcher of their operators runs on the fakes
        of their local tensors."""
        self._require_kind(function, value, torch_private.is_dtensor, "a DTensor")
        name = operator_name(function)
        if may_use_rng(name) and any(map(torch_private.sets_up_rng, value)):
            # the dispatcher agrees with other processes on a state, which a trace must not do
            if not uses_no_rng(name, args, kwargs):
                reason = f"{name_of(function)} draws random numbers for a DTensor"
                raise Break("tensor_subclass", reason)
        self.tracer.native_calls.require_recordable(function, args, kwargs)
        return self._node_without_writes(function, args, kwargs, "a DTensor")

    def _guard_dispatcher(self) -> None:
        query_call(self.tracer, torch_private.dispatcher_settings)

    def guard_mesh(self, mesh: Any) -> None:
        """Guards the processes and groups of a mesh."""
        if self.provenance.source_of(mesh) is None and id(mesh) not in self._meshes:
            raise Break("tensor_subclass", "a mesh of processes made in the graph")
        if self.provenance.source_of(mesh) is not None:
            applied(self.tracer, torch_private.described_mesh, mesh)

    def dtensor_call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Records a function that makes or takes DTensors. Its meshes, which are guarded, and its
        placements are constants of the graph."""
        self.seen = True
        self._guard_dispatcher()
        if self.modes or torch_private.transforms_active():
            raise Break("tensor_subclass", f"{name_of(function)} in a dispatch mode, or torch.func")
        leaves, structure = pytree.tree_flatten((args, kwargs))
        for leaf in leaves:
            if torch_private.is_mesh(leaf):
                self.guard_mesh(leaf)
        tensors = tuple(leaf for leaf in leaves if _is_tensor(leaf))
        constants = [None if _is_tensor(leaf) else self.tracer.scalars.concrete(leaf)
                     for leaf in leaves]  # fmt: skip
        where = tuple(number for number, leaf in enumerate(leaves) if _is_tensor(leaf))
        target = DTensorCall(function, tuple(constants), where, structure)
        return self.node(target, tensors, {})

    def _attention(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns the call that attends in nested tensors; torch's own where it has a kernel, or
        where there is more to it than queries, keys, values and a scale."""
        function: Any = torch.nn.functional.scaled_dot_product_attention
        inputs = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
        scale = inputs.pop("scale", None)
        parts = [inputs.pop(name, None) for name in ("query", "key", "value")]
        basic = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "enable_gqa": False}
        usual = len(args) <= 3 and all(
            basic.get(name, inputs) == item for name, item in inputs.items()
        )
        number = scale is None or type(scale) is float
        if not usual or not number or is_autocast_on():
            return function, args, kwargs
        fakes = [self._graph_wrapper(part) for part in parts]
        if not self._native(torch_private.attends_in_parts, *fakes):
            return function, args, kwargs
        return jagged_attention, (*parts, scale), {}

    def _functions_on(self) -> bool:
        return not self.off and torch_private.functions_are_on()

    def _on_wrappers(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Lets torch call ``__torch_dispatch__`` of wrappers, by way of `dispatch`."""
        self.tracer.native_calls.require_recordable(function, args, kwargs)
        if torch_private.transforms_active():
            raise Break("tensor_subclass", f"{name_of(function)} under torch.func")
        fakes, inputs = self.recorder.fakes, (args, kwargs)
        region = self._region(name_of(function))
        args, kwargs = mapped(self._as_fake, args), mapped(self._as_fake, kwargs)
        leaves = list(filter(torch_private.is_wrapper, pytree.arg_tree_leaves(*args, **kwargs)))
        before = torch_private.versions_of(leaves)
        off = contextlib.nullcontext() if self._functions_on() else torch_private.functions_off()
        untracked, self._untracked = self._untracked, False
        with fakes.mode, off, self._recording(True):
            result = function(*args, **kwargs)
        self._new.clear()
        results = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        carries = torch.is_grad_enabled() and any(map(torch_private.requires_grad_now, results))
        carries, self._untracked = carries or self._untracked, untracked
        if results and (carries or is_autocast_on()):
            if self.modes:
                reason = f"{name_of(function)} in a dispatch mode, with gradients or autocast"
                raise Break("tensor_subclass", reason)
            if before != torch_private.versions_of(leaves) or region.writes():
                reason = f"{name_of(function)}: a write to a tensor of a subclass, with gradients"
                raise Restart(self.tracer.outer_step, "tensor_subclass", reason)
            self._drop(region)
            return self.node(function, *inputs, off=True)
        region.keep()
        for value, old, new in zip(leaves, before, torch_private.versions_of(leaves), strict=True):
            if old is not None and old != new:
                self._note_write(value, old)
        for item in results:
            made_here = self.is_known(item) or self.provenance.source_of(item) is not None
            if torch_private.is_subclass(item) and not made_here:
                reason = f"{name_of(function)} makes a {type(item).__name__} without Python code"
                raise Break("tensor_subclass", reason)
        return mapped(self.original, result)

    # -- nodes on wrappers --
    #
    # Where autograd or autocast come before the handlers of a wrapper, the operator on the wrapper
    # is the node. What its handlers do was interpreted for its guards alone.

    def _region(self, what: str) -> Region:
        tracer = self.tracer
        return Region(self.recorder, tracer.effects, tracer.outer_step, what)

    def _drop(self, region: Region) -> None:
        """Removes what handlers did from the graph. Restarts where they changed the program."""
        changed = region.changed()
        if changed is not None:
            reason = f"a handler changes a {changed} that existed before"
            raise Restart(self.tracer.outer_step, "tensor_subclass", f"{region.what}: {reason}")
        region.drop()

    def node(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], off: bool = False
    ) -> Any:
        """Records a function on wrappers as a node, while torch calls their handlers. off: without
        ``__torch_function__``."""
        args, kwargs = mapped(self._graph_wrapper, args), mapped(self._graph_wrapper, kwargs)
        mode = self.recorder.fakes.mode
        before, mode.eagerly = mode.eagerly, True
        try:
            functions = torch_private.functions_off() if off else contextlib.nullcontext()
            with self._recording(False), functions:
                result = self.recorder.run(function, args, kwargs)
        finally:
            mode.eagerly = before
            if mode.masked:
                mode.masked = False
                torch_private.forget_shardings()
        for leaf in pytree.tree_leaves(result):
            if torch_private.is_wrapper(leaf):
                self._bind_parts(leaf)
            if torch_private.is_dtensor(leaf):
                self._meshes[id(leaf.device_mesh)] = leaf.device_mesh
        return mapped(self.original, result)

    def _graph_wrapper(self, value: torch.Tensor) -> Any:
        """Returns a wrapper that a node of the graph makes, or is an input; other tensors
        unchanged."""
        if not torch_private.is_wrapper(value) or self.recorder.node_of(value) is not None:
            return value
        if not torch_private.is_traceable(value):
            reason = f"a {type(value).__name__}, which has no __tensor_flatten__, in the graph"
            raise Break("tensor_subclass", reason)
        if self.provenance.source_of(value) is None:
            if torch_private.is_dtensor(value):  # a node made it, which is no longer there
                self.recorder.argument(value)
            known = self._in_graph.get(id(value))
            return self._wrapped(value) if known is None else known[1]
        result = self.recorder.fakes.known(value)
        return self.recorder.wrapper(value, self._fake_of(value)) if result is None else result

    def in_graph(self, value: torch.Tensor) -> Any:
        """Returns what stands for a plain tensor, or a DTensor, in the graph."""
        if torch_private.is_dtensor(value):
            return self._graph_wrapper(value)
        return self.recorder.as_fake(value)

    def _fake_of(self, value: Any) -> Any:
        """Makes a wrapper around fakes of one that existed before; guards what it holds."""
        attributes = self.tracer.attributes
        if torch_private.is_jagged(value):  # whose own function asks it for requires_grad
            names, context = torch_private.flattened(value)
            for name in torch_private.JAGGED_PARTS:
                attributes.getattr(value, name)
        elif torch_private.is_dtensor(value):  # whose spec is guarded where it is read
            names, context = torch_private.flattened(value)
        else:
            flatten = attributes.getattr(value, "__tensor_flatten__")
            names, context = self.tracer.calls.call_value(flatten, [], {})
        parts = {}
        for name in names:
            part = attributes.getattr(value, name)
            inside = torch_private.is_wrapper(part)
            parts[name] = self._fake_of(part) if inside else self.recorder.as_fake(part)
        result = self._native(
            torch_private.unflattened, type(value), parts, context, *torch_private.layout_of(value)
        )
        return torch_private.leaf(result, torch_private.requires_grad_now(value))

    def _wrapped(self, value: Any) -> Any:
        """Records how a wrapper that the trace made is made of its inner tensors."""
        names, context = self._native(torch_private.flattened, value)
        layout = torch_private.layout_of(value)
        parts = [getattr(value, name) for name in names]
        requires_grad = torch_private.requires_grad_now(value)
        target = WrapCall(type(value), tuple(names), context, requires_grad)
        result = self.node(target, (*layout, *parts), {})
        self._in_graph[id(value)] = value, result
        return result

    def _native(self, function: Any, *args: Any) -> Any:
        """Calls a function that calls code of a subclass eagerly."""
        mode = self.recorder.fakes.mode
        before, mode.eagerly = mode.eagerly, True
        try:
            with mode, self._recording(False):
                return function(*args)
        finally:
            mode.eagerly = before

    def _bind_parts(self, value: Any) -> None:
        """Gives the inner tensors of a wrapper that a node makes nodes of their own."""
        node = self.recorder.node_of(value)
        for name in self._native(torch_private.flattened, value)[0]:
            part = getattr(value, name)
            if self.recorder.node_of(part) is None:
                result = self.recorder.unchecked_node(
                    "call_function", inner_tensor, (node, name), part
                )
                self.recorder.bind(part, result)
                if torch_private.is_wrapper(part):
                    self._bind_parts(part)

    def _as_fake(self, value: torch.Tensor) -> torch.Tensor:
        return value if torch_private.is_wrapper(value) else self.recorder.as_fake(value)

    def _given(self, value: torch.Tensor) -> Any:
        """Returns the program's object for an argument of an operator; the graph makes a number that
        C++ code has made a tensor of."""
        value = self.original(value)
        known = torch_private.is_fake(value) or torch_private.is_subclass(value)
        if known or self.provenance.source_of(value) is not None or value.dim():
            return value
        options = {"dtype": value.dtype, "device": value.device}
        return self.recorder.call(torch.tensor, (torch_private.number_of(value),), options)

    def _note_write(self, value: Any, old: int) -> None:
        """Notes that an operator counted a write to a wrapper."""
        if self.provenance.source_of(value) is not None:
            torch_private.set_version(value, old)
            self.tracer.side_effects.late.append(
                LateCall((), torch_private.count_write, (value,), {})
            )

    def dispatch(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Does what torch does where an operator of a function on wrappers is called: asks the
        classes of the wrappers; without any, the operator is a node."""
        with self._recording(False):
            args, kwargs = mapped(self._given, args), mapped(self._given, kwargs or {})
        leaves = list(filter(torch_private.is_wrapper, pytree.arg_tree_leaves(*args, **kwargs)))
        kinds = torch_private.overloads(leaves, torch_private.has_dispatch)
        with self._recording(False), self._inside_handler():
            if self._is_copy_of_new(function, args):
                result = self.recorder.run(function, tuple(args), kwargs)
            elif self.modes:
                result = self._by_mode(function, kinds, args, kwargs)
            elif kinds:
                result = self._by_classes(
                    "__torch_dispatch__", kinds, function, kinds, args, kwargs
                )
            else:
                result = self.recorder.call(function, tuple(args), kwargs)
            if isinstance(result, torch.Tensor) and not pytree.tree_any(_is_tensor, args):
                self._new.append(result)
        return mapped(self._as_fake, mapped(self.data_tensor, result))

    def _is_copy_of_new(self, function: Any, args: Any) -> bool:
        """Returns whether an operator is the copy that torch makes of a new tensor that the trace
        holds too, which it does not make in eager mode."""
        return function is _DETACH and any(args[0] is item for item in self._new)

    def _by_mode(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Interprets the handler of the innermost dispatch mode of the program, outside that
        mode."""
        modes = self.modes
        self.modes = modes[:-1]
        try:
            handler = self.tracer.attributes.getattr(modes[-1][0], "__torch_dispatch__")
            handler = torch_private.without_shields(handler)
            inputs = [function, tuple(types), tuple(args), kwargs]
            result = self.tracer.calls.call_value(handler, inputs, {})
            if len(self.modes) != len(modes) - 1:
                raise Break("torch_mode", "a handler of a mode enters or leaves another")
        finally:
            self.modes = modes
        if result is NotImplemented:
            raise Break("torch_mode", "a mode returns NotImplemented")
        return result

    def enter(self, mode: Any) -> None:
        """Traces ``TorchDispatchMode.__enter__``."""
        self.seen = True
        self.modes += ((mode, self.tracer.outer_step),)

    def leave(self, mode: Any) -> None:
        """Traces ``TorchDispatchMode.__exit__``."""
        if not self.modes or self.modes[-1][0] is not mode:
            raise Break("torch_mode", "a mode, entered before this region, is left")
        self.modes = self.modes[:-1]

    def entered(self) -> tuple[tuple[Any, int], ...]:
        """Returns what the program is in at the end of a trace: dispatch modes, and contexts without
        ``__torch_function__``."""
        return (*self.modes, *self.off)

    @contextlib.contextmanager
    def _inside_handler(self) -> Iterator[None]:
        """Context in which operators run below autograd."""
        self._below += 1
        try:
            yield
        finally:
            self._below -= 1

    @contextlib.contextmanager
    def _recording(self, now: bool) -> Iterator[None]:
        """Context in which every operator goes through `dispatch`, or those on wrappers alone."""
        mode = self.recorder.fakes.mode
        before, mode.records = mode.records, now
        try:
            yield
        finally:
            mode.records = before

    def _by_classes(
        self, hook: str, kinds: list[Any], function: Any, types: Any, args: Any, kwargs: Any
    ) -> Any:
        """Interprets the hook of each class until one answers."""
        for kind in kinds:
            handler = self.tracer.attributes.getattr(kind, hook)
            inputs = [function, tuple(types), tuple(args), kwargs]
            result = self.tracer.calls.call_value(handler, inputs, {})
            if result is not NotImplemented:
                return result
        raise Break("operator_failed", f"{name_of(function)}: no class implements it")


_DETACH = operators("aten").detach.default


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Applies a function to the tensors in a structure; what holds none stays the same object."""
    if isinstance(value, torch.Tensor):
        return function(value)
    leaves = pytree.tree_leaves(value)
    if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return value
    if type(value) in (list, tuple):
        return type(value)(mapped(function, item) for item in value)
    if type(value) is dict:
        return {key: mapped(function, item) for key, item in value.items()}
    return pytree.tree_map_only(torch.Tensor, function, value)
