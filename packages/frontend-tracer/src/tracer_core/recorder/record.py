"""The recorder: a torch-function mode that writes an FX graph at the torch level.

In: every torch function that runs while a trace is active, whoever calls it. Out: `graph`, its inputs in the
order of first use, and for each intermediate (a FakeTensor) the node that made it.
What always holds: a function is either run on fakes and recorded, or raises `Break` before it has
had an effect; results that are input tensors are handed back as the real ones.
"""

from __future__ import annotations

import contextlib
import operator
import re
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from tracer_core import settings, torch_private
from tracer_core.deferred import add_node
from tracer_core.numpy_types import SCALARS
from tracer_core.recorder import given_memory
from tracer_core.recorder.casts import misfit
from tracer_core.recorder.checks import unchecked
from tracer_core.recorder.data_sizes import READS_A_NUMBER, DataSizes, gives_data_size, is_whole_number
from tracer_core.recorder.fake import Fakes, writes
from tracer_core.recorder.ranges import Ranges
from tracer_core.recorder.refusals import refusal
from tracer_core.recorder.risks import unseen_writes
from tracer_core.recorder.scalars import Scalars
from tracer_core.segments.breaks import Break, Restart, WantsSymbols
from tracer_core.source import Source, Sources

_SIMPLE = (int, float, bool, str, complex, type(None), torch.dtype, torch.device, torch.layout,
           torch.memory_format, type(Ellipsis))  # fmt: skip
_SIMPLE_TYPES = frozenset(_SIMPLE)
#: What ``dtype=int`` means to an operator; the text of a graph cannot say a class.
_PYTHON_DTYPES: dict[type, torch.dtype] = {
    bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128,
}  # fmt: skip
#: Operators that write to their first operand.
_WRITING_OPERATORS = frozenset(
    {operator.setitem, operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv,
     operator.imod, operator.ipow, operator.iand, operator.ior, operator.ixor, operator.ilshift, operator.irshift}
)  # fmt: skip
_SYMPY_OPERATORS: dict[str, Callable[..., Any]] = {
    "Add": operator.add,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "Max": max,
    "Min": min,
    "CleanDiv": operator.floordiv,
    "Equality": operator.eq,
    "Unequality": operator.ne,
    "StrictLessThan": operator.lt,
    "LessThan": operator.le,
    "StrictGreaterThan": operator.gt,
    "GreaterThan": operator.ge,
    "And": operator.and_,
    "Or": operator.or_,
    "Not": operator.not_,
}


class Recorder:
    """One graph being written. Mutable. inputs: (source, real tensor or number, placeholder
    node), in order.
    op_count: recorded calls. source_of / dims_of: the tracer's provenance."""

    def __init__(
        self,
        fakes: Fakes,
        source_of: Callable[[torch.Tensor], Source | None],
        dims_of: Callable[[torch.Tensor], Any],
        where: Callable[[], str],
    ) -> None:
        #: The instruction of the outermost chain that is being run.
        self.step: Callable[[], int] = lambda: 0
        self.fakes = fakes
        self.graph = torch.fx.Graph()
        self.inputs: list[tuple[Source, Any, torch.fx.Node]] = []
        self.op_count = 0
        self.state_nodes = 0
        #: The break that a torch function asked for, which native code between may have caught.
        self.broken: Break | None = None
        #: Settings that the program set; levels of autocast and devices that it is in; contexts to be left.
        self.settings_written: set[str] = set()
        self.autocast_nesting = 0
        self.devices: list[torch.device] = []
        self.open_contexts: list[Any] = []
        self._source_of, self._dims_of, self._where = source_of, dims_of, where
        self._nodes: dict[int, torch.fx.Node] = {}
        self._symbols: dict[Any, torch.fx.Node] = {}
        self._inside: dict[int, tuple[int, str]] = {}
        #: symbol -> (source, value now, SymInt or SymFloat) of each number of the program that varies.
        self.numbers: dict[Any, tuple[Source, Any, Any]] = {}
        #: For backends that take no numbers as inputs: gives the number behind a symbol, guarded.
        self.concrete: Callable[[Any], Any] | None = None
        #: The number in a tensor, where the program may have it; else None.
        self.number_in: Callable[[torch.Tensor], Any] = lambda tensor: None
        self._alive: list[Any] = []
        self._names: set[str] = set()
        self._last_placeholder: torch.fx.Node | None = None
        self.mode = _Mode(self)
        self.ranges = Ranges()
        self.scalars = Scalars(fakes)
        #: Sizes that depend on data: None where they end the graph; whether to ask for another trace with them.
        self.data: DataSizes | None = None
        self.may_follow_data = False

    @property
    def values_needed(self) -> tuple[type[Exception], ...]:
        """What a fake raises that is asked for its numbers."""
        return torch_private.data_dependent_failures()[0]

    @property
    def shapes_needed(self) -> tuple[type[Exception], ...]:
        """What an operator raises whose result's sizes depend on data."""
        return torch_private.data_dependent_failures()[1]

    def follow_data(self) -> None:
        """Sizes that depend on data are symbols in this trace."""
        self.data = DataSizes(self.fakes.shape_env, self.symbol, self._plain_node, self.fakes.any_was_written)
        env = self.fakes.shape_env
        env.refused, env.undecided, env.told = self._note_refused, self._undecided, self.data.check

    def _note_refused(self, expr: Any) -> None:
        decides = torch_private.is_truth(expr)
        kind = "data_dependent_branch" if decides else "data_dependent_value"
        self.broken = Break(
            kind, f"Python needs {expr}, where u stands for a size or number that depends on data"
        )

    def _undecided(self, expr: Any) -> None:
        self._note_refused(expr)
        assert self.broken is not None
        raise self.broken

    def _plain_node(self, op: str, target: Any, args: tuple[Any, ...], value: Any) -> torch.fx.Node:
        node = self.graph.create_node(op, target, args, {})
        node.meta.update(val=value, user_frame=self._where())
        return node

    # -- inputs --

    def fake(self, real: torch.Tensor) -> Any:
        """The fake of an input tensor; makes its placeholder at the first use."""
        source = self._source_of(real)
        if source is None:
            raise Break(
                "real_tensor_in_trace", f"a tensor of shape {tuple(real.shape)} made outside the trace"
            )
        fake = self.fakes.of(real, source.name, self._dims_of(real))
        if id(fake) not in self._nodes:
            self._placeholder(source, real, fake)
        return fake

    def _placeholder(self, source: Source, real: Any, fake: Any) -> torch.fx.Node:
        stem = re.sub(r"\W+", "_", source.name).strip("_") or "input"
        stem = name = f"n_{stem}" if stem[0].isdigit() else stem
        while name in self._names:
            name = f"{stem}_{len(self._names)}"
        self._names.add(name)
        anchor = self._last_placeholder
        with (
            self.graph.inserting_after(anchor) if anchor else self.graph.inserting_before(_first(self.graph))
        ):
            node = self.graph.placeholder(name)
        node.meta["val"] = fake
        node.meta["user_frame"] = self._where()
        self._last_placeholder = node
        self.inputs.append((source, real, node))
        self._bind(fake, node)
        return node

    def _bind(self, value: Any, node: torch.fx.Node) -> None:
        self._nodes[id(value)] = node
        self._alive.append(value)

    def bind(self, value: Any, node: torch.fx.Node) -> None:
        """Says which node makes a tensor that native code handed to the program."""
        node.meta.update(val=value, user_frame=self._where())
        self._bind(value, node)

    def forget(self, nodes: list[torch.fx.Node], step: int, what: str) -> None:
        """Nodes that leave the graph: from outside, what they made cannot be used."""
        gone = dict.fromkeys(nodes)
        for handle in [handle for handle, node in self._nodes.items() if node in gone]:
            del self._nodes[handle]
            self._inside[handle] = (step, what)
        self._symbols = {
            expr: node
            for expr, node in self._symbols.items()
            if not isinstance(node, torch.fx.Node) or node not in gone
        }

    def left_inside(self, value: Any) -> tuple[int, str] | None:
        """(step, what) of the part of the trace that made a tensor which is in no graph now, or None."""
        return self._inside.get(id(value))

    def node_of(self, value: Any) -> torch.fx.Node | None:
        """The node that made a fake or symbolic value; None if the value is no part of the graph."""
        return self._nodes.get(id(value))

    def known(self) -> frozenset[int]:
        """ids of the fakes that are in the graph."""
        return frozenset(self._nodes)

    # -- recording --

    def call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a torch function on fakes, records it, and returns its result."""
        if self.devices and kwargs.get("device") is None and func in torch_private.device_constructors():
            kwargs = {**kwargs, "device": self.devices[-1]}
        refused = self.refused(func, args, kwargs)
        if refused is not None:
            raise Break(*refused)
        return self.run(func, args, kwargs)

    def refused(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[str, str] | None:
        """(kind, reason) if this call must end the graph, else None."""
        found = refusal(func, args, kwargs)
        if found is None or not gives_data_size(func, found[0], args):
            return found
        self._ask_for_data_sizes(*found)
        return None if self.data is not None and not torch_private.transforms_active() else found

    def _ask_for_data_sizes(self, kind: str, reason: str) -> None:
        if self.may_follow_data:
            raise WantsSymbols(self.step(), kind, reason)

    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`call` for a function that is known to be captured."""
        if self.numbers and self.concrete is not None:
            args, kwargs = pytree.tree_map(self.concrete, (args, kwargs))
        if func in _OF_NUMBERS and len(args) == 1 and type(args[0]) in (torch.SymInt, torch.SymFloat):
            if kwargs.keys() <= {"dtype", "device"}:  # by itself it would ask for the number's value
                usual = torch.int64 if type(args[0]) is torch.SymInt else torch.get_default_dtype()
                func, kwargs = torch.scalar_tensor, {**kwargs, "dtype": kwargs.get("dtype") or usual}
        if func in _SUBSCRIPTS and len(args) == 2 and type(args[1]) is torch.SymInt and not kwargs:
            func, args = (
                torch.Tensor.select,
                (args[0], 0, args[1]),
            )  # the same, which does not ask for the number
        for name in _NUMBERS.intersection(kwargs):
            if isinstance(kwargs[name], torch.Tensor):
                number = self.number_in(kwargs[name])
                kwargs = kwargs if number is None else {**kwargs, name: number}
        given: list[Any] = []
        fake_args, fake_kwargs = self._faked(args, given), self._faked(kwargs, given)
        unfit = misfit(func, fake_args, fake_kwargs, self.fakes.mode) or unchecked(
            func, fake_args, fake_kwargs, self.fakes.mode
        )
        if unfit is not None:
            raise Break("operator_failed", f"{_name(func)}: {unfit}")
        if self.data is not None and getattr(func, "__name__", "") in READS_A_NUMBER:
            func = torch.Tensor.item
        before = [writes(fake) for fake in given]
        memory = given_memory.memory(fake_kwargs)
        sizes = [tuple(fake.shape) for fake in given] if memory else []
        changes = self.scalars.before(func, fake_args, fake_kwargs)
        run_args, run_kwargs = (fake_args, fake_kwargs)
        if self.numbers and _is_blind(func):
            run_args, run_kwargs = pytree.tree_map_only(
                torch.SymFloat, self._present, (fake_args, fake_kwargs)
            )
        try:
            with self.fakes.mode, self._kernels(func, given, fake_args, fake_kwargs), self._data_sizes():
                result = given_memory.given_back(func(*run_args, **run_kwargs), memory)
        except self.values_needed as error:
            if self.data is None and any(map(is_whole_number, given)):
                self._ask_for_data_sizes("data_dependent_value", _name(func))
            reason = str(error).partition("\n")[0]
            raise Break("data_dependent_value", f"{_name(func)}: {reason}") from None
        except self.shapes_needed as error:
            self._ask_for_data_sizes("data_dependent_shape", _name(func))
            raise Break("data_dependent_shape", f"{_name(func)}: {error}") from None
        except Exception as error:
            # What fakes raise need not be what the operator raises: it runs for real, and raises that or goes on.
            raise Break("operator_failed", f"{_name(func)}: {type(error).__name__}: {error}") from None
        for fake, size in zip(given, sizes, strict=False):
            if self.fakes.real_of(fake) is not None and tuple(fake.shape) != size:
                # Its fake is spoilt: the next attempt breaks before this call.
                raise Restart(self.step(), "tensor_metadata_mutation", f"out= of {_name(func)}() is resized")
        leaves = [result] if isinstance(result, torch.Tensor) else pytree.tree_leaves(result)
        if any(map(_unlike_a_graph_value, leaves)):
            raise Break("tensor_subclass", f"{_name(func)} makes a nested or quantized tensor")
        written = (
            bool(memory)
            or func in _WRITING_OPERATORS
            or any(now is None or now != then for now, then in zip(map(writes, given), before, strict=True))
        )
        doubtful = list(memory)
        if written:
            doubtful += [fake for fake, then in zip(given, before, strict=True) if writes(fake) != then]
        if any(map(_overlaps_itself, doubtful)):
            raise Break(
                "operator_failed", f"{_name(func)}: it may write twice to one place, which fakes allow"
            )
        if func is torch._native_multi_head_attention:
            result = _without_weights(result, args, kwargs)
        unseen = unseen_writes(func, fake_args, fake_kwargs)
        if not written and _writes_unseen(func):
            unseen, written = given, True
        if memory:
            counted = {id(one) for one, then in zip(given, before, strict=True) if writes(one) != then}
            unseen = unseen + [one for one in memory if id(one) not in counted]
        for fake in unseen:
            self.fakes.note_write(fake)
        self.scalars.after(changes, unseen, func, fake_args, fake_kwargs, result)
        result = self._record(func, fake_args, fake_kwargs, result, written)
        if self.data is not None:
            self.data.note(result, self.node_of)
        if written or unseen:
            self._note_writes(
                unseen
                + [
                    one
                    for one, then in zip(given, before, strict=True)
                    if then is None or writes(one) != then
                ]
            )
        return result

    def _data_sizes(self) -> Any:
        return contextlib.nullcontext() if self.data is None else self.data.around()

    def _present(self, number: torch.SymFloat) -> Any:
        """What a number of the program is now."""
        known = self.numbers.get(number.node.expr)
        return number if known is None else known[1]

    def _note_writes(self, changed: list[Any]) -> None:
        """The newest node says which storages its operator has written to."""
        node = next(node for node in reversed(self.graph.nodes) if node.target is not operator.getitem)
        node.meta["writes"] = [torch_private.storage_id(fake) for fake in changed]

    def _kernels(self, func: Any, given: list[Any], args: Any, kwargs: Any) -> Any:
        """With symbolic sizes: torch's Python kernels, where C++ ones want numbers. That of dropout gives a copy
        where eager gives the tensor itself."""
        if (
            self.fakes.shape_env is not None
            and "dropout" not in _name(func)
            and (
                any(fake._has_symbolic_sizes_strides for fake in given)
                or any(isinstance(leaf, torch.SymInt) for leaf in pytree.arg_tree_leaves(*args, **kwargs))
            )
        ):
            return torch_private.python_dispatcher()
        return contextlib.nullcontext()

    def require_grad(self, fake: Any) -> None:
        """An intermediate becomes a leaf of autograd's graph: ``x.requires_grad = True``."""
        self._emit(torch.Tensor.requires_grad_, (fake,), {}).meta["val"] = fake
        fake.requires_grad_(True)

    def _faked(self, value: Any, given: list[Any]) -> Any:
        """A structure with fakes in place of its tensors, which are added to `given`."""
        kind = type(value)
        if kind in _SIMPLE_TYPES:
            return value
        if isinstance(value, torch.Tensor):
            fake = self.as_fake(value)
            given.append(fake)
            return fake
        if kind is tuple or kind is list:
            return kind([self._faked(item, given) for item in value])
        if kind is dict:
            return {key: self._faked(item, given) for key, item in value.items()}
        leaves, spec = pytree.tree_flatten(value)
        if len(leaves) == 1 and leaves[0] is value:
            return value
        return pytree.tree_unflatten([self._faked(leaf, given) for leaf in leaves], spec)

    def as_fake(self, tensor: torch.Tensor) -> Any:
        if torch_private.is_fake(tensor) or id(tensor) in self._nodes:
            return tensor
        return self.fake(tensor)

    def _record(self, func: Any, args: Any, kwargs: Any, result: Any, written: bool) -> Any:
        if isinstance(result, torch.Tensor):
            if not written and (real := self.fakes.real_of(result)) is not None:
                return real
            node = self._emit(func, args, kwargs)
            node.meta["val"] = result
            self._bind_result(result, node)
            self.ranges.note(func, args, kwargs, result)
            return self._to_real(result)
        leaves = pytree.tree_leaves(result)
        if not written and not any(
            isinstance(leaf, (torch.Tensor, torch.SymInt, torch.SymFloat)) for leaf in leaves
        ):
            if getattr(func, "__name__", "") not in _EFFECT_ONLY:
                return result
        if self.data is not None and self.data.is_new_number(result):
            self._bind(result, self._emit(func, args, kwargs))
            self._nodes[id(result)].meta["val"] = result
            return result
        if not written and all(isinstance(leaf, (torch.SymInt, int)) for leaf in leaves) and leaves:
            return result  # sizes: made again from their expressions where they are used
        node = self._emit(func, args, kwargs)
        node.meta["val"] = result
        self._bind_result(result, node)
        return pytree.tree_map_only(torch.Tensor, self._to_real, result)

    def _emit(self, func: Any, args: Any, kwargs: Any) -> torch.fx.Node:
        node_args = self.argument(args)
        node_kwargs = {name: self.argument(value) for name, value in kwargs.items()}
        self.op_count += 1
        kind, target, node_args = _target(func, node_args)
        node = add_node(self.graph, kind, target, tuple(node_args), node_kwargs)
        node.meta["user_frame"] = self._where()
        return node

    def _to_real(self, fake: Any) -> Any:
        real = self.fakes.real_of(fake)
        return fake if real is None else real

    def _bind_result(self, result: Any, node: torch.fx.Node) -> None:
        if isinstance(result, torch.Tensor):
            # An in-place operator returns its argument, whose node stays: the graph runs in order.
            if id(result) not in self._nodes:
                self._bind(result, node)
            return
        if isinstance(result, (tuple, list)):
            for index, element in enumerate(result):
                if isinstance(element, (torch.Tensor, tuple, list)) and id(element) not in self._nodes:
                    child = add_node(self.graph, "call_function", operator.getitem, (node, index), {})
                    child.meta.update(val=element, user_frame=node.meta["user_frame"])
                    self._bind_result(element, child)
        elif isinstance(result, dict):
            raise Break("operator_failed", "an operator returned a dictionary")

    def argument(self, value: Any) -> Any:
        """A value as an FX argument. Raises Break for what a graph cannot hold."""
        if isinstance(value, torch.Tensor):
            node = self._nodes.get(id(value))
            if id(value) in self._inside:
                step, what = self._inside[id(value)]
                raise Restart(step, "higher_order", f"a tensor made inside {what} is used outside")
            if node is None:
                raise Break(
                    "real_tensor_in_trace", f"a fake tensor of shape {tuple(value.shape)} of another trace"
                )
            return node
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self.symbol(value.node.expr)
        if isinstance(value, torch.Size):
            return tuple(self.argument(v) for v in value)
        if isinstance(value, (tuple, list)):
            items = [self.argument(v) for v in value]
            return tuple(items) if isinstance(value, tuple) else items
        if isinstance(value, dict):
            return {key: self.argument(v) for key, v in value.items()}
        if isinstance(value, slice):
            return slice(*(self.argument(v) for v in (value.start, value.stop, value.step)))
        if isinstance(value, _SIMPLE) and type(value) not in SCALARS:
            return _written(value)
        if isinstance(value, type) and value in _PYTHON_DTYPES:
            return _PYTHON_DTYPES[value]
        if type(value) in SCALARS and isinstance(number := value.item(), (bool, int, float)):
            return number  # to an operator a number of NumPy is a number
        if isinstance(value, (torch._ops.OpOverload, torch.fx.Node)) or type(value).__module__ == "builtins":
            if callable(value) or isinstance(value, range):
                return value
        raise Break("unsupported_value", f"an operator's argument of type {type(value).__name__}")

    # -- symbolic sizes --

    def symbol(self, expr: Any) -> Any:
        """The node (or number) that computes a sympy expression over symbolic sizes."""
        if not expr.free_symbols:
            return bool(expr) if expr.is_Boolean else int(expr) if expr.is_integer else float(expr)
        found = self._symbols.get(expr)
        if found is not None:
            return found
        if expr.is_Symbol:
            read = self.data.read_by(expr) if self.data is not None else None
            node = self._size_node(expr) if read is None else read
        elif expr.is_Pow and expr.args[1].is_Integer and int(expr.args[1]) > 0:
            node = self._fold(operator.mul, [expr.args[0]] * int(expr.args[1]), expr)
        else:
            function = _SYMPY_OPERATORS.get(type(expr).__name__)
            if function is None:
                raise Break("unsupported_value", f"a size computed by {type(expr).__name__}: {expr}")
            node = self._fold(function, list(expr.args), expr)
        self._symbols[expr] = node
        return node

    def _fold(self, function: Any, parts: list[Any], expr: Any) -> torch.fx.Node:
        values = [self.symbol(part) for part in parts]
        if len(values) == 1:
            return self._plain_node("call_function", function, (values[0],), self._sized(expr))
        node = values[0]
        for count, value in enumerate(values[1:], 2):
            known = expr if count == len(values) else expr.func(*parts[:count])
            node = self._plain_node("call_function", function, (node, value), self._sized(known))
        return node

    def _sized(self, expr: Any) -> Any:
        """The SymInt or SymBool of an expression."""
        env = self.fakes.shape_env
        if torch_private.is_truth(expr):
            return env.create_symboolnode(expr)
        return env.create_symintnode(expr, hint=None)

    def _size_node(self, symbol: Any) -> torch.fx.Node:
        number = self.numbers.get(symbol)
        if number is not None:
            source, value, val = number
            return self._placeholder(source, value, val)
        inputs = list(self.fakes.inputs())
        # A stride of a tensor that is a part of another follows from no size.
        for question in ("size", "stride"):
            for _, fake in inputs:
                for dim, size in enumerate(getattr(fake, question)()):
                    if isinstance(size, torch.SymInt) and size.node.expr == symbol:
                        real = self.fakes.real_of(fake)
                        assert real is not None
                        self.fake(real)
                        node = self.graph.call_method(question, (self._nodes[id(fake)], dim))
                        node.meta.update(val=size, user_frame=self._where())
                        return node
        raise Break("unsupported_value", f"no input has the size {symbol}")

    def take_strides(self, sources: Sources) -> None:
        """Makes inputs of the strides that follow from no size, which a lowered graph cannot ask its inputs for: a
        tensor that is a part of another, whose size is a symbol."""
        known = {
            size.node.expr
            for source, _, node in self.inputs
            for size in getattr(node.meta["val"], "shape", (node.meta["val"],))
            if isinstance(size, torch.SymInt)
        }
        for source, real, node in list(self.inputs):
            if not isinstance(real, torch.Tensor):
                continue
            for dim, stride in enumerate(node.meta["val"].stride()):
                if (
                    isinstance(stride, torch.SymInt)
                    and stride.node.expr.is_Symbol
                    and stride.node.expr not in known
                ):
                    known.add(stride.node.expr)
                    at = sources.make(source, "computed", f"{{b}}.stride({dim})")
                    self._placeholder(at, real.stride(dim), stride)

    # -- global state --

    def state_call(
        self, func: Callable[..., Any], args: tuple[Any, ...], names: tuple[str, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs and records a function that sets settings of torch, by name."""
        result = func(*args, **kwargs)
        self.state_node(func, args, kwargs)
        self.settings_written.update(names)
        return result

    def state_node(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any = None
    ) -> torch.fx.Node:
        """Records a call that changes a state of torch."""
        node = self.graph.call_function(func, args, kwargs or {})
        node.meta.update(val=None, user_frame=self._where())
        self.state_nodes += 1
        return node

    def close_contexts(self) -> None:
        """The trace ends: leaves what the program is still in."""
        for context in reversed(list(self.open_contexts)):
            context.close(for_good=False)
        settings.nest_autocast(-self.autocast_nesting)


class _Mode(TorchFunctionMode):
    """Hands every torch function to its recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return self.recorder.call(func, args, kwargs or {})
        except Break as error:
            self.recorder.broken = error
            raise


#: Arguments that are numbers to every operator: it reads them if they are tensors.
_NUMBERS = frozenset({"alpha", "value"})
_SUBSCRIPTS = frozenset({operator.getitem, torch.Tensor.__getitem__})
_OF_NUMBERS = frozenset({torch.tensor, torch.as_tensor})
#: Functions that return nothing but must stay in the graph.
_EFFECT_ONLY = frozenset({"register_hook", "_assert", "_assert_async", "_check"})


def _writes_unseen(func: Any) -> bool:
    """Whether a function that counted no write says by its name or schema that it writes."""
    if isinstance(func, torch._ops.OpOverload):
        return func._schema.is_mutable
    name = getattr(func, "__name__", "")
    plain = isinstance(func, (types.BuiltinFunctionType, torch._ops.OpOverloadPacket))
    return plain and name.endswith("_") and not name.endswith("__")


def _is_blind(func: Any) -> bool:
    """Whether an operator's sizes and dtype do not depend on the float that it is given."""
    name = getattr(func, "__name__", "")
    return name.startswith(("_foreach_", "_fused_")) or name.strip("_") in _ELEMENTWISE


_ELEMENTWISE = frozenset(
    {"add", "sub", "mul", "div", "iadd", "isub", "imul", "itruediv", "truediv", "addcmul", "addcdiv", "lerp", "pow",
     "ipow", "clamp", "fill", "rsub", "radd", "rmul", "rtruediv", "rdiv", "tensor", "as_tensor"}
)  # fmt: skip


def _first(graph: torch.fx.Graph) -> torch.fx.Node:
    return next(iter(graph.nodes), graph._root)


def _overlaps_itself(value: torch.Tensor) -> bool:
    """Whether two elements of a strided tensor are one place in memory because a dimension was expanded."""
    return value.layout is torch.strided and any(
        step == 0 and not isinstance(size, torch.SymInt) and size > 1
        for size, step in zip(value.shape, value.stride(), strict=True)
    )


_QUANTIZED = frozenset({torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4})


def _unlike_a_graph_value(value: Any) -> bool:
    """Whether a tensor lacks what the rest of the tracer asks of one (sizes, strides)."""
    return isinstance(value, torch.Tensor) and (value.is_nested or value.dtype in _QUANTIZED)


def _written(value: Any) -> Any:
    """A number or text as the graph's text can say it: an instance of a subclass (of NumPy, an enumeration) by its
    value, which is all that an operator reads."""
    if type(value) in _SIMPLE_TYPES:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    kinds: tuple[Any, ...] = (int, float, complex)
    return next((kind(value) for kind in kinds if isinstance(value, kind)), value)


def _name(func: Any) -> str:
    return getattr(func, "__qualname__", None) or getattr(func, "__name__", None) or str(func)


def _without_weights(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operator returns None for weights that nobody asked for; its fake returns a tensor all the same."""
    needed = kwargs.get("need_weights", args[10] if len(args) > 10 else True)
    return result if needed else (result[0], None)


def _target(func: Any, args: Any) -> tuple[str, Any, Any]:
    """(op, target, args) of the node for a torch function."""
    name = getattr(func, "__name__", "")
    owner = getattr(func, "__self__", None)
    if name == "__get__" and owner is not None and hasattr(owner, "__name__"):
        return "call_function", getattr, (args[0], owner.__name__)
    if getattr(torch.Tensor, name, None) is func or getattr(torch._C.TensorBase, name, None) is func:
        return "call_method", name, args
    return "call_function", func, args
