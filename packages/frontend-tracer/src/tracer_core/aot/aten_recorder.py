"""Records the ATen operators that run on FakeTensors as an fx graph.

Inputs (FakeTensors, SymInts) are added with `add_input`; a program then runs inside the mode.
`graph` gets one node per operator, with ``meta["val"]``, and ``meta["user_frame"]`` as set in
`frame`.

No recorded operator mutates its arguments. A real tensor becomes an extra input of the graph
(`constants`). Composite operators and those with a decomposition never appear.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.fx.node import map_aggregate

from tracer_core import torch_private
from tracer_core.aot import linalg_checks
from tracer_core.aot.fake_fixups import CORRECTIONS, fake_result
from tracer_core.aot.rng_checkpoint import RecomputedRng
from tracer_core.aot.rng_double_backward import uses_rng
from tracer_core.aot.rng_saved import ORDER
from tracer_core.aot.symbolic_sizes import SYM_TYPES, SizeNodes, hint_of
from tracer_core.contract.lowering_errors import LoweringUnsupported
from tracer_core.contract.specs import DECOMPOSED
from tracer_core.ops.table import overloads_with
from tracer_core.ops.traits import Trait, is_random
from tracer_core.torch_private.lazy_graph_module import add_node
from tracer_core.torch_private.names import operators
from tracer_core.torch_private.needed import DispatchMode

aten = operators("aten")

#: Its name is not valid Python: graphs use the operator that makes a new tensor and draws the same
#: numbers.
RANDOM_FROM = getattr(aten.random, "from")
_DTYPE_OF_FIRST = overloads_with(Trait.DTYPE_OF_FIRST)

#: Operators that only rename a value: the graph uses the value itself.
SAME_VALUE = frozenset({aten.detach.default, aten.alias.default, aten.lift_fresh.default})

#: Namespaces whose operators query a FakeTensor.
QUERIES = frozenset({"prim"})

#: Namespaces of operators whose effects no schema tells: what a process group runs.
UNTOLD = frozenset({"c10d"})

#: Operators that update running statistics although their schema declares no mutation: position of
#: ``running_mean`` and of ``training``.
SILENT_WRITES = {
    aten.native_batch_norm.default: (3, 5),
    aten.cudnn_batch_norm.default: (3, 5),
    aten.miopen_batch_norm.default: (3, 5),
}

#: Operators without a result that check what is known at lowering (dtype, device, layout).
CHECKS = frozenset({aten._assert_tensor_metadata.default})


#: Operators whose list arguments have one number per image dimension, or one for all: the image,
#: the lists.
ONE_FOR_ALL = {
    aten.convolution.default: (0, (3, 4, 5, 7)),
    aten.convolution_backward.default: (1, (4, 5, 6, 8)),
}


_ZERO = aten._efficientzerotensor.default
#: Operators of which one operand without memory makes the result one -> how many operands count.
_ABSORBING = {
    aten.mul.Tensor: 2, aten.mul.Scalar: 1, aten.div.Tensor: 1, aten.div.Scalar: 1,
}  # fmt: skip


class AtenRecorder(DispatchMode):
    """The recording mode (mutable). Enter it inside the FakeTensorMode of the inputs.

    decompositions: op -> function that runs other operators instead. out_of_place: whether the
    captured call that runs now is ``torch.bernoulli`` itself (otherwise that operator implements
    ``bernoulli_``).
    """

    def __init__(self, fake_mode: Any, decompositions: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self.graph = torch.fx.Graph()
        self.frame = ""
        self._begun: list[tuple[int, str]] = []
        self.out_of_place = False
        #: Whether operators skip functionalization because there are tensors of subclasses, and
        #: whether one is being functionalized.
        self.wraps = self._inside = False
        #: The objects of C++ that the captured call which runs now is given: operators below it get
        #: the same ones in other Python objects.
        self.objects: list[torch.ScriptObject] = []
        self.rng: RecomputedRng | None = None  # set where the graph is differentiated
        #: The random operator that a decomposition replaced by others last.
        self.decomposed_rng: Any = None
        #: How many operators decompositions replaced, and the one whose operators run now.
        self._decomposed, self._inside_operator = 0, ""
        self.inputs: list[Any] = []
        self.placeholders: list[torch.fx.Node] = []
        self.constants: list[torch.Tensor] = []
        self._fake_mode = fake_mode
        self._table = decompositions
        self._nodes: dict[int, torch.fx.Node] = {}
        self._alive: list[Any] = []  # ids in _nodes stay unique while their objects live
        self._constant_ids: dict[int, Any] = {}
        self._constant_nodes: set[torch.fx.Node] = set()
        self._composite: dict[Any, bool] = {}
        self._plain: dict[Any, bool] = {}
        self._sizes: SizeNodes | None = None
        self._masked = False
        self._zeros: set[int] = set()  # ids of fakes of tensors without memory that are zero

    # Inputs

    def begin(self, frame: str) -> None:
        """Names the line of the program that the next operators, and their backward, belong to."""
        self.frame = frame
        self._begun.append((torch_private.next_sequence_number(), frame))

    def _where(self) -> str:
        """Returns the line of the operator under way; in a backward that of its forward."""
        number = None if self.frame else torch_private.running_sequence_number()
        if number is None:
            return self.frame
        place = bisect.bisect_right(self._begun, number, key=operator.itemgetter(0))
        return self._begun[place - 1][1] if place else ""

    def add_input(self, name: str, value: Any) -> torch.fx.Node:
        """Adds a placeholder for `value` after the existing ones."""
        anchor = self.placeholders[-1] if self.placeholders else self.graph._root
        with self.graph.inserting_after(anchor):
            node = self.graph.placeholder(name)
        node.meta["val"] = value
        node.meta["user_frame"] = self.frame
        self.placeholders.append(node)
        self.inputs.append(value)
        if isinstance(value, (torch.Tensor, torch.ScriptObject)):
            self.bind(value, node)
        return node

    def constant(self, tensor: torch.Tensor) -> Any:
        """Returns the fake tensor of a real tensor, which becomes an extra input."""
        known = self._constant_ids.get(id(tensor))
        if known is None:
            if tensor.requires_grad and torch.is_grad_enabled():
                raise LoweringUnsupported(
                    "a tensor that requires grad is no input of the graph", self.frame
                )
            known = torch_private.to_fake(self._fake_mode, tensor)
            counted = tensor
            if tensor.is_inference():  # made of numbers, under the program's inference mode
                with torch_private.outside_recording(), torch.inference_mode(False):
                    counted = tensor.clone()  # its writes are counted, which freeze needs
                self._constant_ids[id(tensor)] = known
                self._alive.append(tensor)
            self.add_constant(counted, known)
        return known

    def add_constant(self, tensor: torch.Tensor, fake: Any) -> None:
        """Adds an extra input for a real tensor whose fake tensor is `fake`."""
        self._constant_ids[id(tensor)] = fake
        self._alive.append(tensor)
        self._constant_nodes.add(self.add_input(f"constant_{len(self.constants)}", fake))
        self.constants.append(tensor)

    def move_constants(self, at: int) -> list[torch.fx.Node]:
        """Moves the constants behind the input `at` to before it; returns their placeholders."""
        first = at
        for index in range(at, len(self.placeholders)):
            node = self.placeholders[index]
            if node in self._constant_nodes:
                self.placeholders[first].prepend(node)
                for inputs in (self.placeholders, self.inputs):
                    inputs.insert(first, inputs.pop(index))
                first += 1
        return self.placeholders[at:first]

    # Values and nodes

    def bind(self, value: Any, node: torch.fx.Node) -> None:
        """Makes `node` the node of `value`."""
        self._nodes[id(value)] = node
        self._alive.append(value)

    def node_of(self, value: Any) -> Any:
        """Returns the node of a tensor, symbolic number or object of C++; returns anything else as
        it is."""
        if isinstance(value, (torch.Tensor, torch.ScriptObject)):
            node = self._nodes.get(id(value))
            if node is None:
                raise LoweringUnsupported(
                    "a tensor appeared that no recorded operator made", self.frame
                )
            return node
        if isinstance(value, SYM_TYPES):
            if self._sizes is None:
                self._sizes = SizeNodes(self.graph, self.placeholders)
            return self._sizes.node(value)
        if isinstance(value, torch.Generator):
            raise LoweringUnsupported("an operator takes a torch.Generator", self.frame)
        return value

    def call(
        self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any
    ) -> torch.fx.Node:
        """Adds a node for ``target(*args, **kwargs)``, whose arguments are nodes, with the result
        `value`.
        """
        node = add_node(self.graph, "call_function", target, args, kwargs)
        node.meta["val"] = value
        node.meta["user_frame"] = self._where()
        if self._inside_operator:
            node.meta[DECOMPOSED] = self._inside_operator
        return node

    # The mode

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if torch_private.any_wrapper(types):
            if any(map(torch_private.dispatches_in_c, types)):
                if func in torch_private.MASKING:
                    self.forget_shardings(True)
                return NotImplemented  # its dispatcher calls operators on what it holds
            with self._functional():
                return torch_private.handled(func, args, kwargs)
        if self.wraps and not self._inside:
            with self._functional():
                return func(*args, **kwargs)
        if func is _ZERO or (self._zeros and self._stays_zero(func, args)):
            return self._zero(func, args, kwargs)
        simple = self._plain.get(func)
        if simple is None:
            simple = self._plain[func] = self._is_plain(func)
        if simple:
            return self._called(func, args, kwargs)
        if func.namespace in QUERIES:
            return func(*args, **kwargs)
        if func.namespace in UNTOLD:
            # In code of the program's own, an autograd.Function.
            raise LoweringUnsupported(f"{func} communicates in place", self.frame)
        table = self._table.get(func)
        if table is not None:
            with self, self._one_operator(func):
                result = table(*args, **kwargs)
                if func in _DTYPE_OF_FIRST:
                    result = result.to(args[0].dtype)
            if result is not NotImplemented:
                if uses_rng(func, args):
                    self.decomposed_rng = func
                return result
        elif self._is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        return self._record(func, args, kwargs)

    @contextlib.contextmanager
    def _one_operator(self, func: Any) -> Iterator[None]:
        """Marks the nodes that are added inside the block as parts of one operator."""
        before = self._inside_operator
        if not before:
            self._decomposed += 1
            self._inside_operator = f"{func._schema.name.partition('::')[2]}/{self._decomposed}"
        try:
            yield
        finally:
            self._inside_operator = before

    @contextlib.contextmanager
    def _functional(self) -> Iterator[None]:
        """Functionalizes operators inside the block, and records them."""
        before, self._inside = self._inside, True
        try:
            with self, torch_private.functionalization_again():
                yield
        finally:
            self._inside = before

    def forget_shardings(self, again: bool = False) -> None:
        """Empties the memory of torch's dispatcher of DTensors where it holds values of this graph;
        again: it will."""
        if self._masked or again:
            torch_private.forget_shardings()
        self._masked = again

    def _stays_zero(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Whether eager's result has no memory either and is zero, also beside NaN."""
        return any(id(arg) in self._zeros for arg in args[: _ABSORBING.get(func, 0)])

    def _zero(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Records zeros for a tensor without memory: a kernel must not get one. Such are the
        gradient of ``sgn`` and the initial tangents of forward-mode differentiation."""
        like = func(*args, **kwargs) if func is not _ZERO else None
        sizes = args[0] if like is None else like.shape
        inputs = kwargs if like is None else {"dtype": like.dtype, "device": like.device}
        with self:
            result = torch.zeros(sizes, **inputs)
        self._zeros.add(id(result))
        self._alive.append(result)
        return result

    def _is_plain(self, func: Any) -> bool:
        """Whether calls of the operator are recorded unchanged, whatever their arguments."""
        special = (SAME_VALUE, SILENT_WRITES, ONE_FOR_ALL, CORRECTIONS, CHECKS, self._table)
        return (
            func.namespace not in QUERIES | UNTOLD
            and not any(func in table for table in special)
            and func is not RANDOM_FROM
            and not is_random(func)
            and not func._schema.is_mutable
            and bool(func._schema.returns)
            and not self._is_composite(func)
        )

    def _is_composite(self, func: Any) -> bool:
        known = self._composite.get(func)
        if known is None:
            known = self._composite[func] = func not in SAME_VALUE and torch_private.is_composite(
                func
            )
        return known

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_random(func) and self.rng is not None:
            call = f"{func}{map_aggregate((args, kwargs), _described)}"
            return self.rng.drawn(call, lambda: self._node(func, args, kwargs))
        return self._node(func, args, kwargs)

    def _node(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is aten.bernoulli.p and not self.out_of_place:
            order = memory_order(args[0])
            if order != list(range(len(order))):
                return self._bernoulli(order, *args, **kwargs)
        if func is RANDOM_FROM:
            if args[2] is None:
                raise LoweringUnsupported("random_(from, None) has no functional form", self.frame)
            func = aten.randint_like.low_dtype
        if func._schema.is_mutable:
            return self._written(func, args, kwargs)
        if func in SILENT_WRITES:
            statistics, training = SILENT_WRITES[func]
            if args[statistics] is not None and args[training]:
                raise LoweringUnsupported(
                    f"{func} writes its running statistics unseen", self.frame
                )
        if func in ONE_FOR_ALL:
            args = _for_each_dimension(args, *ONE_FOR_ALL[func])
        return self._called(func, args, kwargs)

    def _written(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Records an operator that writes to its first argument: kernels that are made of other
        operators (``_fused_rms_norm``, ``add_`` of a new mean) do so below functionalization.

        The argument's later readers get the result of the functional operator of that name. Raises
        LoweringUnsupported where there is none, or where another tensor shows the memory.
        """
        functional, target = functional_form(func), args[0]
        if functional is None or not self._is_own(target):
            raise LoweringUnsupported(
                f"{func} writes to its argument and has no functional form", self.frame
            )
        with self:
            result = functional(*args, **kwargs)
            if (result.dtype, result.shape, result.stride()) != (
                target.dtype, target.shape, target.stride(),
            ):  # fmt: skip
                result = aten.copy.default(target, result)
        self.bind(target, self.node_of(result))
        return target

    def _is_own(self, value: Any) -> bool:
        """Whether a recorded operator made the tensor, and no other recorded one shares its memory."""
        node = self._nodes.get(id(value))
        if node is None or node.op == "placeholder" or not torch_private.is_fake(value):
            return False
        storage = torch_private.storage_id(value)
        return not any(
            isinstance(item, torch.Tensor)
            and item is not value
            and item.layout is torch.strided
            and torch_private.storage_id(item) == storage
            for item in self._alive
        )

    def _called(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operator on fakes and records it."""
        fake_args = map_aggregate(args, self._as_fake)
        fake_kwargs: Any = map_aggregate(kwargs, self._as_fake)
        if torch_private.takes_objects(func):
            fake_args, fake_kwargs = self._with_objects(func, (fake_args, fake_kwargs))
        result = fake_result(func, fake_args, fake_kwargs)
        if func in CORRECTIONS:
            result = CORRECTIONS[func](self._fake_mode, fake_args, result)
        if func in SAME_VALUE:
            self.bind(result, self.node_of(fake_args[0]))
            return result
        if func is linalg_checks.CHECK and self._check_results(*fake_args, **fake_kwargs):
            return None
        if not func._schema.returns and func not in CHECKS:
            raise LoweringUnsupported(
                f"{func} returns nothing: its effect has no functional form", self.frame
            )
        if not _has_tensor(result):
            return result  # symbolic answers of shape queries are computed from the inputs
        node_args: Any = map_aggregate(fake_args, self.node_of)
        node_kwargs: Any = map_aggregate(fake_kwargs, self.node_of)
        node = self.call(func, node_args, node_kwargs, result)
        if isinstance(result, torch.Tensor):
            self.bind(result, node)
            return result
        for index, item in enumerate(result):
            if isinstance(item, torch.Tensor):
                self.bind(item, self.call(operator.getitem, (node, index), {}, item))
        return result

    def _check_results(self, info: Any, name: str, *, is_matrix: bool) -> bool:
        """Makes the results that `info` speaks of those of a check; returns whether they are known."""
        result = self.node_of(info)
        results = linalg_checks.results_of(result if isinstance(result, torch.fx.Node) else None)
        for node in results:
            value = node.meta["val"]
            inputs = node, result, name, is_matrix
            self.bind(value, self.call(linalg_checks.CHECKED, inputs, {}, value))
        return bool(results)

    def _with_objects(self, func: Any, argument: Any) -> Any:
        """Returns arguments with the objects of C++ of the captured call, in their order."""
        result: list[Any] = []

        def original(value: Any) -> Any:
            if not isinstance(value, torch.ScriptObject):
                return value
            result.append(value)
            return self.objects[len(result) - 1] if len(result) <= len(self.objects) else value

        replaced = map_aggregate(argument, original)
        if len(result) != len(self.objects):
            raise LoweringUnsupported(f"{func} is given other objects than its call", self.frame)
        return replaced

    def _bernoulli(self, order: list[int], like: Any, p: float = 0.5, **kwargs: Any) -> Any:
        """Computes ``bernoulli_`` functionally.

        ``bernoulli_`` draws in memory order, ``aten.bernoulli.p`` in the order of a contiguous
        tensor.
        """
        inverse = sorted(order, key=order.__getitem__)
        with self:
            packed = aten.permute.default(like, order)
            drawn = aten.bernoulli.p(packed, p, **kwargs)
            self.node_of(drawn).meta[ORDER] = inverse
            return aten.permute.default(drawn, inverse)

    def _as_fake(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and not torch_private.is_fake(value):
            return self.constant(value)
        return value


@functools.cache
def functional_form(func: Any) -> Any:
    """Returns the operator that computes what an in-place one writes to its first argument
    (``add.Scalar`` of ``add_.Scalar``), or None. Operators that uses rng have none, as they
    may draw in another order, nor those that change sizes or strides."""
    first, *others = func._schema.arguments
    written = [item for item in others if item.alias_info is not None and item.alias_info.is_write]
    name = func._schema.name.partition("::")[2]
    packet = getattr(getattr(torch.ops, func.namespace), name.removesuffix("_"), None)
    if written or name == name.removesuffix("_") or packet is None:
        return None
    tags = {torch.Tag.nondeterministic_seeded, torch.Tag.inplace_view}
    if not tags.isdisjoint(func.tags) or first.alias_info is None:
        return None
    attribute = getattr(packet, func._overloadname or "default", None)
    inputs = [(argument.name, str(argument.type)) for argument in func._schema.arguments]
    same = (
        attribute is not None
        and [(argument.name, str(argument.type)) for argument in attribute._schema.arguments]
        == inputs
    )
    return attribute if same else None


def _for_each_dimension(
    args: tuple[Any, ...], image: int, lists: tuple[int, ...]
) -> tuple[Any, ...]:
    """Expands the list arguments to one number per image dimension."""
    count = args[image].dim() - 2
    return tuple(
        [*arg] * count if place in lists and len(arg) == 1 else arg
        for place, arg in enumerate(args)
    )


def memory_order(tensor: torch.Tensor) -> list[int]:
    """Returns the dimensions from the outermost to the innermost in memory; those of size 1 stay in
    place.
    """
    free = [dim for dim in range(tensor.dim()) if hint_of(tensor.shape[dim]) > 1]
    by_stride = iter(sorted(free, key=lambda dim: -hint_of(tensor.stride(dim))))
    return [next(by_stride) if dim in free else dim for dim in range(tensor.dim())]


def _described(value: Any) -> Any:
    """Describes the properties of a tensor that random numbers like it depend on."""
    return (value.dtype, value.shape, value.stride()) if isinstance(value, torch.Tensor) else value


def _has_tensor(result: Any) -> bool:
    if isinstance(result, (tuple, list)):
        return any(isinstance(item, torch.Tensor) for item in result)
    return isinstance(result, torch.Tensor)
