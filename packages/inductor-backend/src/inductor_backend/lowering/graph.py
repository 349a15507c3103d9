"""Lowers a functional ATen graph, with fake tensors in ``meta["val"]``, to a loop IR `LoopProgram`.

In: a `torch.fx.GraphModule` and its `CompileSpec`. Out: a `LoopProgram`. Trailing ``copy_`` nodes
become stores into the input's buffer; no other input is written to. Each output is a buffer of its
own with exactly the strides of its fake tensor. An operator must have a lowering or be on the
fallback table; else the compile fails and names it.
"""

from __future__ import annotations

import operator
from collections.abc import Set
from itertools import islice
from typing import Any

import torch

from inductor_backend import lowering as _registered  # noqa: F401  (importing fills the table)
from inductor_backend.ir.errors import unsupported
from inductor_backend.ir.graph_meta import copies_across, instance_of
from inductor_backend.ir.index_expr import Expr, variables
from inductor_backend.ir.nodes import (
    Buffer,
    BufferKind,
    BufferLayout,
    ExternNode,
    LoopNode,
    LoopProgram,
    Store,
    Strided,
    same_strides,
)
from inductor_backend.ir.size_source import size_expression
from inductor_backend.ir.symbolic_sizes import SizeVars
from inductor_backend.ir.target import target_of
from inductor_backend.ir.values import ScalarValue, cast, topological
from inductor_backend.ir.views import Ref, broadcast
from inductor_backend.kernels.aten_fallbacks import FALLBACKS
from inductor_backend.lowering import scan
from inductor_backend.lowering.cat_chains import find_chains
from inductor_backend.lowering.channels_last import CONVOLUTIONS, channels_last_nodes
from inductor_backend.lowering.context import LOWERINGS, Lowering, aten, last_strides
from inductor_backend.lowering.dropout import is_rng_of_kernels
from inductor_backend.lowering.element_types import can_be_lowered
from inductor_backend.lowering.fallback import call_any
from inductor_backend.lowering.gradient_sums import add_to, sums_of_gradients, sums_of_scatters
from inductor_backend.lowering.in_place import in_place_writes, write_in_place
from inductor_backend.lowering.scatter import ATOMIC_DTYPES
from tracer_core.plugin_api import BackendError, CompileSpec, Trait, communicates, overloads_with

#: Modules of lowerings whose loops must run in order, as Triton's kernels do not.
ORDERED = frozenset({"inductor_backend.lowering.scatter"})

#: Scatters that run in any order on a GPU, by atomic adds or simple stores, unless algorithms have
#: to be deterministic. (Eager sorts the indices of some: those that are gradients of gathers.)
UNORDERED = overloads_with(Trait.SCATTERS) | {
    aten._unsafe_index_put.default,
    aten.embedding_dense_backward.default,
}

#: Name of a function on symbolic scalars -> its Python expression.
NUMBER_TEXTS: dict[str, str] = {
    "add": "({} + {})", "sub": "({} - {})", "mul": "({} * {})", "truediv": "({} / {})",
    "pow": "({} ** {})", "neg": "(-{})", "sym_float": "float({})", "sym_max": "max({}, {})",
    "sym_min": "min({}, {})", "sym_sqrt": "math.sqrt({})",
    "ge": "float({} >= {})", "gt": "float({} > {})", "le": "float({} <= {})", "lt": "float({} < {})",
    "eq": "float({} == {})", "ne": "float({} != {})", "sym_not": "float(not {})",
    "and_": "min({}, {})", "or_": "max({}, {})",
}  # fmt: skip


class GraphLowering:
    """Walks the graph once; `env` maps its nodes to views, sizes or tuples of them. Mutable."""

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        spec: CompileSpec,
        sizes: SizeVars,
        known_ops: Set[str],
        channels_last_outputs: frozenset[str] | None = None,
    ) -> None:
        """known_ops: operators that loop bodies may contain. channels_last_outputs: on GPUs, names
        of the convolutions that run channels-last (None: where that is faster)."""
        self.gm, self.sizes, self.known_ops, self.channels_last_outputs = (
            gm,
            sizes,
            known_ops,
            channels_last_outputs,
        )
        self.target = target_of(gm.graph)
        self.program = LoopProgram(spec.name, device=self.target.device)
        self.ctx = Lowering(self.program, sizes, self.target.triton)
        if self.target.triton and not getattr(spec.options, "fallback_random", False):
            self.ctx.rng_nodes = sum(map(is_rng_of_kernels, gm.graph.nodes))
        self.env: dict[torch.fx.Node, Any] = {}
        self.ctx.refs = self.env
        # buffer -> the nodes that were lowered to views of it
        self.views: dict[str, list[torch.fx.Node]] = {}
        self.mutated: set[str] = set()
        # buffer -> the instance of a cut graph (`passes.outline`) that it was made for
        self.instances: dict[str, int] = {}
        self.in_place = in_place_writes(gm.graph)
        self.saved = {
            number for number, out in enumerate(spec.outputs) if out.saved and self.target.triton
        }
        self.sums = {}
        if not self.target.triton:
            self.sums = sums_of_gradients(gm.graph)  # needs ordered loops
        elif not torch.are_deterministic_algorithms_enabled():
            self.sums = sums_of_scatters(gm.graph)

    def run(self) -> LoopProgram:
        """Lowers every node. Raises BackendError naming the operator and the user's line."""
        dispatch = {
            "placeholder": self.placeholder,
            "get_attr": self.get_attr,
            "call_function": self.call,
            "output": self.output,
        }
        self.ctx.chains = find_chains(self.gm.graph)
        self.ctx.last = channels_last_nodes(
            self.gm.graph, self.target.triton, self.channels_last_outputs
        )
        self.program.channels_last_outputs = frozenset(
            node.name for node in self.ctx.last if node.target in CONVOLUTIONS
        )
        for node in self.gm.graph.nodes:
            step = dispatch.get(node.op)
            if step is None:
                raise unsupported("lower", f"graph node of kind {node.op!r}", node)
            self.ctx.node = node
            count = len(self.program.buffers)
            try:
                step(node)
                self.note_instance(node, count)
                if isinstance(value := self.env.get(node), Ref):
                    self.views.setdefault(value.buffer.name, []).append(node)
            except BackendError:
                raise
            except Exception as error:
                raise unsupported("lower", f"{type(error).__name__}: {error}", node) from error
        return self.program

    def note_instance(self, node: Any, number: int) -> None:
        """Records the instance of the buffers after the first `number`."""
        place = instance_of(node)
        if place is not None:
            for name in islice(reversed(self.program.buffers), len(self.program.buffers) - number):
                self.instances.setdefault(name, place[0])

    def _tensor(self, name: str, fake: torch.Tensor) -> Buffer:
        if fake.layout != torch.strided or fake.device.type not in ("cpu", "cuda"):
            raise unsupported(
                "lower", f"a tensor of layout {fake.layout} on {fake.device}", self.ctx.node
            )
        if fake.is_quantized:
            raise unsupported("lower", f"an input of dtype {fake.dtype}", self.ctx.node)
        layout = BufferLayout(self.sizes.exprs(fake.shape), self.sizes.exprs(fake.stride()))
        buffer = Buffer(name, fake.dtype, layout, BufferKind.INPUT)
        self.program.buffers[name] = buffer
        if fake.device != self.program.device:
            self.program.elsewhere.add(name)
        return buffer

    def placeholder(self, node: torch.fx.Node) -> None:
        value = node.meta.get("val")
        name = f"in{len(self.program.inputs)}"
        if isinstance(value, torch.Tensor):
            self.env[node] = Ref.of(self._tensor(name, value))
        elif isinstance(value, (int, torch.SymInt)):
            self.env[node] = self.sizes.expr(value)
        elif isinstance(value, torch.SymFloat):
            self.env[node] = self.ctx.number(name)
        else:
            self.env[node] = value
        self.program.inputs.append(name)

    def get_attr(self, node: torch.fx.Node) -> None:
        value: Any = self.gm
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            raise unsupported(
                "lower", f"attribute {node.target!r} is a {type(value).__name__}", node
            )
        name = f"const{len(self.program.constants)}"
        self.program.constants[name] = value.detach()
        self.env[node] = Ref.of(self._tensor(name, value))

    def value_of(self, argument: Any) -> Any:
        """Replaces nodes in an fx argument by what they were lowered to, and SymInts by
        expressions."""
        if isinstance(argument, torch.fx.Node):
            return self.env[argument]
        if isinstance(argument, (list, tuple)):
            return [self.value_of(element) for element in argument]
        if isinstance(argument, torch.SymInt):
            return self.sizes.expr(argument)
        return argument

    def call(self, node: torch.fx.Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool):
            self.env[node] = self.sizes.expr(value)
            return
        if isinstance(value, (torch.SymFloat, torch.SymBool)):  # a bool is 0.0 or 1.0
            self.env[node] = self.ctx.number(self.number_text(node))
            return
        if node.target is aten.copy_.default:
            self.env[node] = self.write_input(node)
            return
        if not node.users and node.target in LOWERINGS and not communicates(node.target):
            return
        if node in self.sums:
            if node is self.sums[node].node:
                self.env[node] = add_to(self.ctx, self.sums[node], self.value_of)
            return
        args = [self.value_of(argument) for argument in node.args]
        kwargs = {name: self.value_of(argument) for name, argument in node.kwargs.items()}
        if copies_across(node):
            self.env[node] = call_any(self.ctx, node.target, args, kwargs)
            return
        lowering = LOWERINGS.get(node.target)
        if node in self.in_place:
            self.env[node] = self.written_in_place(node, lowering, args, kwargs)
        elif lowering is not None and not (
            node.target in FALLBACKS and self.beyond_loops(node, lowering)
        ):
            if self.program.elsewhere and node.target is not operator.getitem:
                args = [self.brought(argument) for argument in args]
            self.env[node] = self.lowered(node, lowering, args, kwargs)
        elif node.target in FALLBACKS:
            self.env[node] = call_any(self.ctx, node.target, args, kwargs)
        else:
            raise unsupported(
                "lower",
                f"operator {node.target} has no lowering and is not on the fallback table "
                "(inductor_backend.kernels.aten_fallbacks.FALLBACKS)",
                node,
            )

    def lowered(
        self, node: torch.fx.Node, lowering: Any, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Returns the lowering's result, or ATen's operator where Triton lacks an operator that the
        lowering used."""
        nodes, copies = len(self.program.nodes), len(self.ctx.copies)
        result = lowering(self.ctx, *args, **kwargs)
        if not self.target.triton:
            return result
        output = [node for node in self.program.nodes[nodes:] if isinstance(node, LoopNode)]
        unknown = {
            value.name
            for value in topological(
                root for node in output for s in node.stores for root in s.roots
            )
        } - self.known_ops
        unknown |= {
            f"additions of {self.program.buffers[name].dtype} in any order"
            for node in output
            for store in node.stores
            if store.combine not in (None, "set")
            for name in store.buffers
            if not _adds_in_any_order(self.program.buffers[name].dtype)
        }
        if not unknown:
            return result
        if node.target not in FALLBACKS:
            raise unsupported("lower", f"Triton has no form of {', '.join(sorted(unknown))}", node)
        self.undo(node, nodes, copies)
        return call_any(self.ctx, node.target, args, kwargs)

    def undo(self, node: torch.fx.Node, nodes: int, copies: int) -> None:
        """Forgets what lowering a node added. nodes, copies: how many there were before."""
        del self.program.nodes[nodes:]
        for key in list(self.ctx.copies)[copies:]:
            del self.ctx.copies[key]
        self.ctx.scattered.pop(node, None)

    def written_in_place(
        self, node: torch.fx.Node, lowering: Any, args: list[Any], kwargs: dict[str, Any]
    ) -> Ref:
        """Lowers a write at indices into an input: to a loop where points may come in any order and
        the lowering writes to the input alone, else to ATen's in-place operator."""
        target: Ref = self.env[self.in_place[node]]
        looped = self.target.triton and lowering is not None and not self.program.elsewhere
        looped = looped and args[0].buffer is target.buffer  # which no operator wrote to before
        if looped and not self.beyond_loops(node, lowering):
            nodes, copies = len(self.program.nodes), len(self.ctx.copies)
            self.ctx.in_place[node] = target.buffer
            result: Ref = self.lowered(node, lowering, args, kwargs)
            if result.buffer is target.buffer:
                return result
            self.undo(node, nodes, copies)
        return write_in_place(self.ctx, target, args[0], args, kwargs)

    def beyond_loops(self, node: torch.fx.Node, lowering: Any) -> bool:
        """Checks whether the node needs ATen: a dtype that loops do not support, or loops in order
        on a GPU."""
        if self.target.triton and lowering.__module__ in ORDERED and not _unordered(node):
            return True
        if (
            self.target.triton
            and lowering.__module__ == scan.__name__
            and scan.is_slow_on_gpus(node)
        ):
            return True
        return not can_be_lowered(node, self.target)

    def brought(self, argument: Any) -> Any:
        """Copies 0-d tensors that lie elsewhere to the device of the loops."""
        if isinstance(argument, (list, tuple)):
            return [self.brought(element) for element in argument]
        if not isinstance(argument, Ref) or argument.buffer.name not in self.program.elsewhere:
            return argument
        if argument.sizes or self.ctx.meta_device() != self.program.device:
            raise unsupported(
                "lower",
                f"a tensor on another device than {self.program.device} in a graph of that device",
                self.ctx.node,
            )
        return self.ctx.to_device(argument)

    def number_text(self, node: torch.fx.Node) -> str:
        """Returns the Python expression for arithmetic on symbolic scalars."""
        template = NUMBER_TEXTS.get(getattr(node.target, "__name__", ""))
        if template is None:
            raise unsupported("lower", f"{node.target} on a number that changes", node)
        return template.format(*map(_number_text, map(self.value_of, node.args)))

    def write_input(self, node: torch.fx.Node) -> Ref:
        """Lowers ``copy_(placeholder, value)`` to a store into the input's buffer."""
        target, source = self.env[node.args[0]], self.value_of(node.args[1])  # type: ignore[index]
        if (
            not isinstance(target, Ref)
            or target.buffer.kind is not BufferKind.INPUT
            or not target.is_whole
        ):
            raise unsupported("lower", "copy_ to something that is not an input", node)
        if node.args[1] in self.in_place:
            self.mutated.add(target.buffer.name)
            return target
        self.keep_old_values(node, target.buffer)
        source = self.value_of(node.args[1])
        index = variables(target.sizes)
        if isinstance(source, Ref):
            if source.buffer is target.buffer and not source.is_whole:
                source = self.ctx.copy(source)  # it would be overwritten while it is read
            value = cast(source.at(broadcast(index, source.sizes)), target.dtype)
        else:
            value = self.ctx.element(source, index, target.dtype)
        name = target.buffer.name
        self.ctx.add_loop(
            target.sizes, [False] * len(index), [Store((name,), index, value)], "copy_"
        )
        self.mutated.add(name)
        return target

    def keep_old_values(self, write: torch.fx.Node, buffer: Buffer) -> None:
        """Copies, before an input is written to, what later nodes read of its old value (in ``y =
        x.clone(); x.add_(1)`` y is a view here). The input itself, as an output, stays the input.
        """
        for node in self.views.get(buffer.name, ()):
            value = self.env[node]
            if (
                not isinstance(value, Ref)
                or value.buffer is not buffer
                or node.target is aten.copy_.default
            ):
                continue
            later = {user for user in node.users if user not in self.env and user is not write}
            if node.op == "placeholder":
                later = {user for user in later if user.op != "output" and user.args[0] is not node}
            if later:
                self.env[node] = self.ctx.copy(value)

    def output(self, node: torch.fx.Node) -> None:
        (values,) = node.args
        items = list(values) if isinstance(values, (list, tuple)) else [values]
        for number, output in enumerate(items):
            count = len(self.program.buffers)
            returned: str | Strided | Expr | None = None
            if number in self.saved and (returned := self._channels_last(output)) is not None:
                self.program.channels_last.add(number)
            else:
                returned = self._output(output)
            self.program.outputs.append(returned)
            if isinstance(returned, (str, Strided)):
                self.program.output_names.add(
                    returned.buffer if isinstance(returned, Strided) else returned
                )
            self.note_instance(output, count)

    def _channels_last(self, output: Any) -> str | None:
        """Returns the buffer of a whole channels-last image of known sizes that may be returned as
        it is, else None."""
        value = self.env.get(output) if isinstance(output, torch.fx.Node) else None
        if not isinstance(value, Ref) or len(value.sizes) != 4 or not value.is_whole:
            return None
        buffer, strides = value.buffer, last_strides(value.sizes)
        if (
            not all(isinstance(size, int) for size in value.sizes)
            or buffer.layout.strides != strides
        ):
            return None
        if same_strides(buffer.layout, self.sizes.exprs(output.meta["val"].stride())):
            return None
        taken = buffer.name in self.program.output_names
        own = buffer.kind is not BufferKind.INPUT and buffer.storage == buffer.name
        return (
            buffer.name if own and not taken and buffer.name not in self.program.extends else None
        )

    def _output(self, output: Any) -> str | Strided | Expr | None:
        value = self.value_of(output)
        if not isinstance(value, Ref):
            return value
        fake = output.meta["val"]
        buffer = value.buffer
        strides = self.sizes.exprs(fake.stride())
        if buffer.name in self.mutated and value.is_whole:
            return buffer.name  # the core hands the mutated input itself back
        taken = buffer.name in self.program.output_names
        own_storage = buffer.storage == buffer.name and buffer.name not in self.program.extends
        owned = buffer.kind is not BufferKind.INPUT and value.is_whole and not taken and own_storage
        if owned and same_strides(buffer.layout, strides):
            if buffer.kind is BufferKind.TEMP:  # eager's strides in dimensions of one element too
                buffer.layout = BufferLayout(buffer.layout.sizes, strides, buffer.layout.offset)
            elif buffer.layout.strides != strides:
                return Strided(
                    buffer.name, BufferLayout(buffer.layout.sizes, strides, buffer.layout.offset)
                )
            return buffer.name
        if owned and buffer.kind is BufferKind.TEMP and not self._passed_to_extern(buffer.name):
            buffer.layout = BufferLayout(buffer.layout.sizes, strides)
            return buffer.name
        return self._output_view(value, strides)

    def _passed_to_extern(self, name: str) -> bool:
        """Checks whether an extern node reads the buffer: its strides must not change then."""
        return any(isinstance(n, ExternNode) and name in n.reads() for n in self.program.nodes)

    def _output_view(self, value: Ref, strides: tuple[Expr, ...]) -> str | Strided:
        """Returns an output that is a view of our buffer as a view, where no other output returns
        that buffer and the view covers all of it or has gaps that a copy would repeat; else copies.
        """
        layout, buffer = value.strided(), value.buffer
        taken = self.program.output_names
        if (
            layout is not None
            and buffer.kind is not BufferKind.INPUT
            and buffer.storage == buffer.name
            and same_strides(layout, strides)
            and (
                layout.numel == buffer.layout.numel or not self.ctx.is_dense(layout.sizes, strides)
            )
            and buffer.name not in taken
        ):
            return Strided(buffer.name, BufferLayout(layout.sizes, strides, layout.offset))
        return self._output_copy(value, strides)

    def _output_copy(self, value: Ref, strides: tuple[Expr, ...]) -> str | Strided:
        """Copies into a new buffer with exactly these strides; expanded dimensions (stride 0) are
        written once."""
        sizes = value.sizes
        for dim, stride in enumerate(strides):
            if isinstance(stride, int) and stride == 0 and sizes[dim] != 1 and 0 not in sizes:
                value = value.select(dim, 0).unsqueeze(dim)
        result = self.ctx.copy(value, strides, "output", exactly=True)
        if result.buffer.name in self.program.output_names:
            result = self.ctx.copy(value, strides, "output", exactly=True, again=True)
        name = result.buffer.name
        return name if value.sizes == sizes else Strided(name, BufferLayout(sizes, strides))


def _number_text(value: Any) -> str:
    if isinstance(value, ScalarValue):
        return value.text
    return repr(value) if isinstance(value, (int, float)) else size_expression(value, "python")


def _unordered(node: torch.fx.Node) -> bool:
    """Checks whether a scatter's points may be combined in any order."""
    return node.target in UNORDERED and not torch.are_deterministic_algorithms_enabled()


def _adds_in_any_order(dtype: torch.dtype) -> bool:
    return dtype in ATOMIC_DTYPES and not torch.are_deterministic_algorithms_enabled()
