"""The eager reference executor: what the loop IR means.

In: a `LoopProgram`, or fused bodies, with concrete inputs. Out: the outputs, computed with torch
operations on whole index grids. What always holds: it shares nothing with the C++ generator but the
IR, so lowering, inlining, fusion and row buffers are proved by comparing with it before any kernel
is trusted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from inductor_backend.ir.index_expr import Expr, FloorDiv, Index, Var
from inductor_backend.ir.nodes import Buffer, ExternNode, LoopNode, LoopProgram, Store, Strided
from inductor_backend.ir.ops import EXP_SUM, compute_dtype
from inductor_backend.ir.values import Value, topological
from inductor_backend.schedule.fused_body import KernelBody
from inductor_backend.schedule.fusion import FusionPlan
from inductor_backend.schedule.fusion_legality import Domain


def _divide(rounding: str | None) -> Callable[..., torch.Tensor]:
    return lambda value, a, b: torch.div(a, b, rounding_mode=rounding)


def _where(value: Value, condition: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(condition, a, b)


def _round_to(value: Value, a: torch.Tensor) -> torch.Tensor:
    return a.to(value.attr).to(torch.float32)


def _philox(value: Value, seed: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """By the book (Random123), a counter at a time."""

    def word(seed: int, place: int) -> int:
        counter, key = [place % 2**32, place >> 32, 0, 0], [seed % 2**32, (seed >> 32) % 2**32]
        for _ in range(10):
            a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
            counter = [
                b >> 32 ^ counter[1] ^ key[0],
                b % 2**32,
                a >> 32 ^ counter[3] ^ key[1],
                a % 2**32,
            ]
            key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
        return counter[0] if counter[0] < 2**31 else 2**32 - 1 - counter[0]

    seed, place = torch.broadcast_tensors(seed, place)
    words = [
        word(s, p)
        for s, p in zip(seed.reshape(-1).tolist(), place.reshape(-1).tolist(), strict=True)
    ]
    return torch.tensor(words, dtype=torch.int32).float().mul(4.6566127342e-10).reshape(place.shape)


def _plain(fn: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda value, *args: fn(*args)


def _words(text: str) -> list[str]:
    return text.split()


#: op -> eager meaning, from (value, argument tensors). Loads, constants and indices: `Grid`.
REFERENCE_OPS: dict[str, Callable[..., torch.Tensor]] = {
    name: _plain(getattr(torch, name))
    for name in _words(
        "add sub mul maximum minimum fmod pow atan2 eq ne lt le gt ge neg abs relu floor ceil trunc round sign isnan "
        "isinf exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
        "erf erfc sigmoid copysign hypot nextafter gcd lcm erfinv digamma i0"
    )
}
REFERENCE_OPS.update(
    {
        "div": _divide(None),
        "trunc_div": _divide("trunc"),
        "floor_div": _divide("floor"),
        "mod": _plain(torch.remainder),
        "bit_and": _plain(torch.bitwise_and),
        "bit_or": _plain(torch.bitwise_or),
        "bit_xor": _plain(torch.bitwise_xor),
        "bit_not": _plain(torch.bitwise_not),
        "shift_left": _plain(torch.bitwise_left_shift),
        "shift_right": _plain(torch.bitwise_right_shift),
        "where": _where,
        "fma": lambda v, a, b, c: (a.double() * b.double() + c.double()).to(v.dtype),
        "philox": _philox,
        "cast": lambda value, a: a.to(value.dtype),
        "round_to": _round_to,
        "i0e": _plain(torch.special.i0e),
        "i1": _plain(torch.special.i1),
        "i1e": _plain(torch.special.i1e),
        "silu": _plain(torch.nn.functional.silu),
        "softplus": _plain(torch.nn.functional.softplus),
        "sigmoid_exp2": lambda value, a: 1 / (1 + torch.exp2(a)),
        "gelu_erf": _plain(torch.nn.functional.gelu),
        "gelu_tanh": lambda value, a: torch.nn.functional.gelu(a, approximate="tanh"),
    }
)

#: Ops that need the grid.
GRID_OPS = frozenset({"load", "masked_load", "constant", "index", "check_index", "wrap_index"})


class Memory:
    """Concrete sizes and the flat storage of every buffer. Mutable."""

    def __init__(self, program: LoopProgram, sizes: Mapping[str, int]) -> None:
        self.program, self.sizes = program, sizes
        self.flat: dict[str, torch.Tensor] = {}

    def number(self, expr: Expr) -> int:
        if isinstance(expr, int):
            return expr
        return int(expr.subs({symbol: self.sizes[symbol.name] for symbol in expr.free_symbols}))

    def numbers(self, exprs: Sequence[Expr]) -> list[int]:
        return [self.number(expr) for expr in exprs]

    def storage(self, name: str) -> torch.Tensor:
        """The flat storage of a buffer, made where it does not exist yet."""
        owner = self.program.buffers[self.program.buffers[name].storage]
        if owner.name not in self.flat:
            extent = self.number(owner.layout.extent) + self.number(owner.layout.offset)
            self.flat[owner.name] = torch.zeros(extent, dtype=owner.dtype)
        return self.flat[owner.name]

    def put(self, name: str, tensor: torch.Tensor) -> None:
        """Copies a tensor into the buffer."""
        if tensor.numel():
            self.tensor(Strided(name, self.program.buffers[name].layout)).copy_(tensor)

    def tensor(self, view: Strided) -> torch.Tensor:
        layout = view.layout
        return self.storage(view.buffer).as_strided(
            self.numbers(layout.sizes), self.numbers(layout.strides), self.number(layout.offset)
        )


class Grid:
    """Evaluates body values on all points of a domain at once; registers and row buffers are
    tensors over the domain. Mutable."""

    def __init__(self, memory: Memory, domain: Domain, kept: Mapping[str, torch.Tensor]) -> None:
        self.memory, self.kept = memory, kept
        self.shape = memory.numbers(domain.sizes)
        self._memo: dict[Value, torch.Tensor] = {}

    def full(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.expand(self.shape)

    def index(self, index: Index) -> torch.Tensor:
        result = torch.tensor(self.memory.number(index.const))
        for atom, coefficient in index.terms.items():
            result = result + self.atom(atom) * self.memory.number(coefficient)
        return result

    def atom(self, atom: Any) -> torch.Tensor:
        if isinstance(atom, Var):
            view = [1] * len(self.shape)
            view[atom.position] = -1
            return torch.arange(self.shape[atom.position]).view(view)
        if hasattr(atom, "value"):
            return self.value(atom.value)
        divisor = self.memory.number(atom.divisor)
        base = self.index(atom.base)
        return (
            torch.div(base, divisor, rounding_mode="floor")
            if isinstance(atom, FloorDiv)
            else base % divisor
        )

    def address(self, buffer: Buffer, index: Sequence[Index]) -> torch.Tensor:
        result = torch.tensor(self.memory.number(buffer.layout.offset))
        for position, stride in zip(index, buffer.layout.strides, strict=True):
            result = result + self.index(position) * self.memory.number(stride)
        return result

    def value(self, root: Value) -> torch.Tensor:
        for value in topological([root]):
            if value not in self._memo:
                self._memo[value] = self._compute(value)
        return self._memo[root]

    def _compute(self, value: Value) -> torch.Tensor:
        args = [self._memo[arg] for arg in value.args]
        if value.name in ("load", "masked_load"):
            return self._load(value, args)
        if value.name == "constant":
            return torch.tensor(value.attr[0], dtype=value.attr[1])
        if value.name == "index":
            return self.index(value.attr)
        if value.name == "wrap_index":
            return torch.where(args[0] < 0, args[0] + self.memory.number(value.attr), args[0])
        if value.name == "check_index":
            size = self.memory.number(value.attr)
            if args[0].numel() and bool(((args[0] < 0) | (args[0] >= size)).any()):
                raise IndexError(f"index out of range of a dimension of {size}")
            return args[0]
        return REFERENCE_OPS[value.name](value, *args).to(value.dtype)

    def _load(self, value: Value, args: list[torch.Tensor]) -> torch.Tensor:
        if value.buffer in self.kept:
            return self.kept[value.buffer]
        buffer = self.memory.program.buffers[value.buffer]
        flat = self.memory.storage(value.buffer)
        address = self.address(buffer, value.attr[1])
        if value.name == "load":
            return flat[address].to(value.dtype)
        condition, other = torch.broadcast_tensors(args[0], args[1])
        condition, other, address = torch.broadcast_tensors(condition, other, address)
        inside = (
            flat[torch.where(condition, address, torch.zeros_like(address))]
            if flat.numel()
            else other
        )
        return torch.where(condition, inside.to(value.dtype), other)

    def store(self, store: Store) -> None:
        (name,) = store.buffers
        buffer = self.memory.program.buffers[name]
        values = self.full(self.value(store.value)).reshape(-1).to(buffer.dtype)
        self.put(name, store, values)

    def put(self, name: str, store: Store, values: torch.Tensor) -> None:
        """Values over the whole domain, in its order, into one buffer of the store."""
        flat = self.memory.storage(name)
        address = self.full(self.address(self.memory.program.buffers[name], store.index)).reshape(
            -1
        )
        if store.combine in (None, "set"):
            flat[address] = values
        elif values.dtype == torch.bool:
            wide = flat.to(torch.uint8)
            wide.scatter_reduce_(0, address, values.to(torch.uint8), LOGICAL_MEANING[store.combine])
            flat.copy_(wide)
        elif values.numel():
            flat.scatter_reduce_(0, address, values, MEANING[store.combine])

    def scan(self, store: Store, dims: list[int]) -> tuple[torch.Tensor, ...]:
        """The running values over the domain: the reduced dimensions, taken as one, are walked in
        order.
        """
        values = self.full(self.value(store.value))
        rest = [d for d in range(values.dim()) if d not in dims]
        order = [*rest, *dims]
        moved = values.permute(order)
        row = math.prod(self.shape[d] for d in dims)
        actual = SCAN_MEANING[store.scan or ""](moved.reshape(*[self.shape[d] for d in rest], row))
        back = [order.index(d) for d in range(len(order))]
        return tuple(item.reshape(moved.shape).permute(back) for item in actual)


#: Scatters as torch names them.
MEANING = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
LOGICAL_MEANING = {"add": "amax", "mul": "amin", "max": "amax", "min": "amin"}

#: Scans of the last dimension.
SCAN_MEANING: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "sum": lambda x: (x.cumsum(-1),),
    "prod": lambda x: (x.cumprod(-1),),
    "max": lambda x: (x.cummax(-1).values,),
    "min": lambda x: (x.cummin(-1).values,),
    "max_at": lambda x: tuple(x.cummax(-1)),
    "min_at": lambda x: tuple(x.cummin(-1)),
    "logsumexp": lambda x: (x.logcumsumexp(-1),),
}


def _argextreme(x: torch.Tensor, dims: list[int], largest: bool) -> torch.Tensor:
    rest = [d for d in range(x.dim()) if d not in dims]
    rows = x.permute(*rest, *dims).reshape(*[x.shape[d] for d in rest], -1)
    actual = rows.argmax(-1) if largest else rows.argmin(-1)
    return actual.view([1 if d in dims else x.shape[d] for d in range(x.dim())])


def reduce(
    kind: str, x: torch.Tensor, dims: list[int], dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    """The reduction with kept dims, in the result's compute dtype."""
    if kind == "sum":
        return (x.sum(dims, keepdim=True).to(dtype),)
    if kind == "welford":
        mean = x.mean(dims, keepdim=True)
        return mean, ((x - mean) ** 2).sum(dims, keepdim=True)
    if kind == EXP_SUM:
        greatest = x.amax(dims, keepdim=True)
        return greatest, (x - greatest).exp().sum(dims, keepdim=True)
    if kind in ("argmax", "argmin"):
        return (_argextreme(x, dims, kind == "argmax"),)
    if kind in ("max", "min"):
        return ((x.amax if kind == "max" else x.amin)(dims, keepdim=True),)
    if kind in ("any", "all"):
        return (getattr(x, kind)(dims, keepdim=True),)
    for dim in dims:
        x = x.prod(dim, keepdim=True)
    return (x.to(dtype),)


def run_node(memory: Memory, node: LoopNode) -> None:
    """One unfused loop node."""
    domain = Domain(node.sizes, node.reduced)
    grid = Grid(memory, domain, {})
    dims = [k for k, r in enumerate(node.reduced) if r]
    for store in node.stores:
        if store.scan is not None:
            for name, values in zip(store.buffers, grid.scan(store, dims), strict=True):
                grid.put(name, store, values.reshape(-1).to(memory.program.buffers[name].dtype))
            continue
        if store.reduce is None:
            grid.store(store)
            continue
        results = reduce(
            store.reduce, grid.full(grid.value(store.value)), dims, _result_dtype(memory, store)
        )
        for name, result in zip(store.buffers, results, strict=True):
            _store_result(memory, grid, name, store, result, dims)


def _result_dtype(memory: Memory, store: Store) -> torch.dtype:
    return compute_dtype(memory.program.buffers[store.buffers[0]].dtype)


def _store_result(
    memory: Memory, grid: Grid, name: str, store: Store, result: torch.Tensor, dims: list[int]
) -> None:
    buffer = memory.program.buffers[name]
    address = grid.address(buffer, store.index)
    shape = [1 if d in dims else size for d, size in enumerate(grid.shape)]
    memory.storage(name)[address.expand(shape).reshape(-1)] = result.reshape(-1).to(buffer.dtype)


def run_body(memory: Memory, body: KernelBody) -> None:
    """One fused kernel: its phases, on the whole domain."""
    kept: dict[str, torch.Tensor] = {}
    dims = [k for k, r in enumerate(body.domain.reduced) if r]
    for phase in body.phases:
        grid = Grid(memory, body.domain, kept)
        done: dict[str, torch.Tensor] = {}
        for store in (*phase.row, *phase.stores):
            if store.buffers[0] in body.row_buffers:
                done[store.buffers[0]] = grid.full(grid.value(store.value))
            else:
                grid.store(store)
        for store in phase.scans:
            for name, values in zip(store.buffers, grid.scan(store, dims), strict=True):
                if name in body.row_buffers:
                    done[name] = values.to(body.row_buffers[name])
                else:
                    grid.put(name, store, values.reshape(-1).to(memory.program.buffers[name].dtype))
        for store in phase.reductions:
            assert store.reduce is not None
            dtype = body.registers[store.buffers[0]]
            results = reduce(store.reduce, grid.full(grid.value(store.value)), dims, dtype)
            done.update(zip(store.buffers, results, strict=True))
        kept.update(done)


def run_extern(memory: Memory, node: ExternNode) -> None:
    """The ATen operator itself."""

    def concrete(value: Any) -> Any:
        if isinstance(value, Strided):
            return memory.tensor(value)
        if isinstance(value, (list, tuple)):
            return [concrete(item) for item in value]
        return memory.number(value) if hasattr(value, "free_symbols") else value

    result = node.target(
        *map(concrete, node.args), **{k: concrete(v) for k, v in node.kwargs.items()}
    )
    results = list(result) if node.unpack else [result]
    if node.epilogue != "none":
        results[0] = EPILOGUES[node.epilogue](results[0])
    if node.residual is not None:
        results[0] = results[0] + memory.tensor(node.residual)
    for name, tensor in zip(node.outputs, results, strict=True):
        if name is not None:
            memory.put(name, tensor)


#: Activations of our own products.
EPILOGUES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "gelu_erf": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


def execute(
    program: LoopProgram,
    inputs: Sequence[Any],
    sizes: Mapping[str, int],
    plan: FusionPlan | None = None,
    bodies: Sequence[KernelBody | None] = (),
) -> list[Any]:
    """The outputs of a program on real inputs; with plan and bodies, of its fused kernels."""
    memory = Memory(program, sizes)
    for name, value in (*zip(program.inputs, inputs, strict=True), *program.constants.items()):
        if isinstance(value, torch.Tensor) and name in program.buffers:
            memory.put(name, value)
    names = {**dict(zip(program.inputs, inputs, strict=True)), **sizes, "math": math}
    for text, name in program.numbers.items():
        memory.put(name, torch.tensor(eval(text, {}, names), dtype=torch.float64))
    if plan is None:
        for node in program.nodes:
            run_extern(memory, node) if isinstance(node, ExternNode) else run_node(memory, node)
    else:
        for group, body in zip(plan.groups, bodies, strict=True):
            run_extern(memory, group.extern) if group.extern is not None else run_body(memory, body)  # type: ignore[arg-type]
    for name, value in zip(program.inputs, inputs, strict=True):
        if name in program.buffers and any(name in node.writes for node in program.nodes):
            value.copy_(memory.tensor(Strided(name, program.buffers[name].layout)))
    return [_output(memory, item) for item in program.outputs]


def _output(memory: Memory, item: Any) -> Any:
    if isinstance(item, str):
        item = Strided(item, memory.program.buffers[item].layout)
    if isinstance(item, Strided):
        return memory.tensor(item)
    return memory.number(item) if hasattr(item, "free_symbols") else item
