"""max-autotune on CUDA devices: which products are kernels of ours, and with which blocks.

In: a `Compilation` whose program is inlined. Out: its program, with chosen products as loops, and `blocks`; tiles of its
other kernels (`tile_of`). What always holds: a product is ours only where, on this device and at the captured sizes, its
kernel took less time than the operator and a kernel for what is fused with it; float32 products are ours only where torch
allows TF32, and a graph with such products is compiled again where that changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from inductor_backend.codegen.triton.kernel import NAME, TritonKernel, TritonKernelWriter
from inductor_backend.codegen.triton.module import specification
from inductor_backend.codegen.triton.product import Blocks, ProductKernelWriter
from inductor_backend.codegen.triton.tiling import Tile, variants
from inductor_backend.loop_ir.nodes import ExternNode, Layout, LoopNode, Program, Strided
from inductor_backend.recorded import launches_of
from inductor_backend.runtime import triton_tune
from inductor_backend.schedule.fuse import Group, fuse, readers_outside
from inductor_backend.schedule.fused_body import KernelBody, kernel_body
from inductor_backend.schedule.inline import inline
from inductor_backend.schedule.legal import Domain
from inductor_backend.schedule.products import products_as_loops
from inductor_backend.size_vars import SizeVars
from inductor_backend.torch_private import tf32_allowed

if TYPE_CHECKING:
    from inductor_backend.compile_graph import Compilation

#: Modes in which kernels are chosen by measurement.
TUNED_MODES = frozenset({"max-autotune", "max-autotune-no-cudagraphs"})

#: Kernels that move fewer bytes keep the tile that the access pattern suggests.
LEAST_BYTES = 4 * 2**20

#: Blocks that are tried: (rows, columns, terms, warps, stages).
BLOCKS = {
    2: (
        (128, 256, 64, 8, 3), (256, 128, 64, 8, 3), (128, 128, 64, 8, 3), (128, 128, 64, 4, 4), (64, 128, 64, 4, 4),
        (128, 64, 64, 4, 4), (64, 64, 64, 4, 5), (64, 32, 64, 4, 5), (32, 64, 128, 4, 4), (16, 64, 128, 4, 4),
    ),
    4: (
        (128, 256, 32, 8, 3), (256, 128, 32, 8, 3), (128, 128, 32, 8, 3), (128, 128, 32, 4, 4), (64, 128, 32, 4, 4),
        (128, 64, 32, 4, 4), (64, 64, 32, 4, 5), (64, 32, 64, 4, 4), (32, 64, 64, 4, 4), (16, 64, 64, 4, 4),
    ),
}  # fmt: skip

#: Bytes of shared memory that a program may have (sm_90; what a smaller device refuses is left out there).
SHARED = 227 * 1024

#: The operator itself, with a kernel for what would be fused with it.
ATEN = "aten"


def tuned(c: Compilation) -> bool:
    return c.spec.mode in TUNED_MODES


def choose_products(c: Compilation) -> None:
    """Rewrites the products that are to be kernels of ours."""
    if not tuned(c) or not c.options.fuse:
        return
    calls = {node.name: node for node in c.program.nodes if isinstance(node, ExternNode)}
    possible = [name for name, node in calls.items() if _allowed(c.program, node)]
    trial, names = products_as_loops(c.program, c.sizes, possible)
    if not names:
        return
    inline(trial)
    plan = fuse(trial, c.sizes)
    for group, needed in readers_outside(trial, plan.groups):
        if group.loops and group.loops[0].product:
            call = calls[group.loops[0].name]
            blocks = _chosen_blocks(c, trial, group, needed, call)
            if blocks is not None:
                c.blocks[call.name] = blocks
    c.program, _ = products_as_loops(c.program, c.sizes, tuple(c.blocks))
    if c.blocks:
        inline(c.program)


def _allowed(program: Program, node: ExternNode) -> bool:
    dtypes = {program.buffers[one.buffer].dtype for one in node.tensors()}
    return torch.float32 not in dtypes or tf32_allowed(node.target is torch.ops.aten.convolution.default)


def product_kernel(program: Program, body: KernelBody, sizes: SizeVars, blocks: Blocks) -> TritonKernel:
    return ProductKernelWriter(program, body, sizes, blocks, operand_type(program, body)).write()


def operand_type(program: Program, body: KernelBody) -> torch.dtype:
    """What the operator multiplies in."""
    (store,) = (store for phase in body.phases for store in phase.reductions)
    return program.operands[store.buffers[0]]


def _chosen_blocks(
    c: Compilation, trial: Program, group: Group, needed: Callable[[str], bool], call: ExternNode
) -> Blocks | None:
    assert group.domain is not None
    body = kernel_body(trial, group.domain, group.loops, needed, c.sizes, rows=False, in_registers=True)
    tried = {
        f"blocks of {' x '.join(map(str, shape))}": Blocks(*shape)
        for shape in _fitting(c, trial, group, body)
    }
    kernels = {name: product_kernel(trial, body, c.sizes, blocks) for name, blocks in tried.items()}
    name = choose(c, trial, kernels, (call, _rest(c, trial, group, needed)))
    return tried.get(name)


def _fitting(c: Compilation, trial: Program, group: Group, body: KernelBody) -> list[tuple[int, ...]]:
    """Block sizes that are not mostly empty and fit into shared memory."""
    width = operand_type(trial, body).itemsize
    node = group.loops[0]
    factors = [frozenset(factor.variables) for factor in node.stores[0].value.args]
    counts = []
    for mine, other in (factors, factors[::-1]):
        count = 1
        for place, size in enumerate(node.sizes):
            if place in mine and place not in other:
                count *= c.sizes.hint(size)
        counts.append(count)
    found: list[tuple[int, ...]] = []
    for shape in BLOCKS[width]:
        rows, columns, terms, _, stages = shape
        small = all(block <= max(2 * count, 32) for block, count in zip((rows, columns), counts, strict=True))
        if small and stages * (rows + columns) * terms * width <= SHARED:
            found.append(shape)
    return found


def _rest(c: Compilation, trial: Program, group: Group, needed: Callable[[str], bool]) -> TritonKernel | None:
    """The kernel that the operator would need beside it: for what is fused with the product, but a bias alone."""
    product, *others = group.loops
    if all(node.name == f"{product.name}_bias" for node in others) or group.domain is None:
        return None
    outer = group.domain.outer
    nodes = [replace(node, sizes=outer, reduced=(False,) * len(outer)) for node in others]
    (name,) = product.stores[0].buffers
    buffers = dict(trial.buffers)
    buffers[name] = replace(buffers[name], dtype=trial.operands[name])
    program = replace(trial, buffers=buffers)
    domain = Domain(outer, (False,) * len(outer))
    body = kernel_body(program, domain, nodes, needed, c.sizes, rows=False, in_registers=True)
    return TritonKernelWriter(program, body, c.sizes).write()


def tile_of(c: Compilation, body: KernelBody) -> Tile | None:
    """The measured tile of a kernel; None: the one that the access pattern suggests."""
    if not tuned(c):
        return None
    plain = TritonKernelWriter(c.program, body, c.sizes).tile
    moved = sum(
        c.sizes.hint(c.program.buffers[name].layout.extent) * c.program.buffers[name].dtype.itemsize
        for name in {*body.reads(), *body.writes}
    )
    if moved < LEAST_BYTES:
        return plain
    tiles = {str(number): tile for number, tile in enumerate(variants(plain))}
    kernels = {n: TritonKernelWriter(c.program, body, c.sizes, tile).write() for n, tile in tiles.items()}
    return tiles.get(choose(c, c.program, kernels, None), plain)


def choose(
    c: Compilation,
    program: Program,
    kernels: dict[str, TritonKernel],
    instead: tuple[ExternNode, TritonKernel | None] | None,
) -> str:
    """The name of the quickest kernel, or `ATEN` where the operator (and the kernel beside it) is quicker."""
    if c.target.interpreted:
        return ATEN
    texts = [(name, k.text, k.constants, k.warps, k.stages) for name, k in sorted(kernels.items())]
    sizes = sorted(
        {
            str((name, layout_hint(c, program.buffers[name].layout)))
            for k in kernels.values()
            for name in k.pointers
        }
    )
    beside = "" if instead is None else _described(c, *instead)
    grids = [[c.sizes.hint(n) for n, _ in k.grid] for k in kernels.values()]
    key = repr((texts, sizes, grids, beside))
    label = next(iter(kernels.values())).label
    what = f"{label} {beside.partition('@triton')[0]}".strip()
    return triton_tune.chosen(key, c.target.device, lambda: _ways(c, program, kernels, instead), what)


def _described(c: Compilation, call: ExternNode, beside: TritonKernel | None) -> str:
    """The operator and the kernel beside it, without names of buffers."""
    arguments = [layout_hint(c, a.layout) if isinstance(a, Strided) else a for a in call.args]
    return f"{call.target} {arguments} {beside.text if beside is not None else ''}"


def layout_hint(c: Compilation, layout: Layout) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(map(c.sizes.hint, layout.sizes)), tuple(map(c.sizes.hint, layout.strides))


def _ways(
    c: Compilation,
    program: Program,
    kernels: dict[str, TritonKernel],
    instead: tuple[ExternNode, TritonKernel | None] | None,
) -> dict[str, Callable[[], None]]:
    memory = _Memory(c, program)
    ways: dict[str, Callable[[], None]] = {}
    if instead is not None:
        call, beside = instead
        rest = None if beside is None else memory.ways({ATEN: beside})[ATEN]
        ways[ATEN] = memory.operator(call, rest)
    return {**ways, **memory.ways(kernels)}


class _Memory:
    """Tensors for the storages that candidates touch, of the captured sizes. Mutable."""

    def __init__(self, c: Compilation, program: Program) -> None:
        self.c, self.program = c, program
        self.storages: dict[str, torch.Tensor] = {}

    def storage(self, name: str) -> torch.Tensor:
        if name not in self.storages:
            hint = self.c.sizes.hint
            buffers = [b for b in self.program.buffers.values() if b.storage == name]
            count = max(hint(b.layout.extent) + hint(b.layout.offset) for b in buffers)
            dtype = self.program.buffers[name].dtype
            made = torch.zeros(max(count, 1), dtype=dtype, device=self.c.target.device)
            if dtype.is_floating_point:
                made.normal_()
            self.storages[name] = made
        return self.storages[name]

    def ways(self, kernels: dict[str, TritonKernel]) -> dict[str, Callable[[], None]]:
        """All kernels take the same arguments up to their order."""
        found: dict[str, Callable[[], None]] = {}
        by_arguments: dict[tuple[Any, ...], dict[str, tuple[Any, int]]] = {}
        for name, kernel in kernels.items():
            label = f"fused_{kernel.label}"
            described = specification(kernel, label, kernel.text.replace(NAME, label))
            programs = 1
            for numel, block in kernel.grid:
                programs *= -(-self.c.sizes.hint(numel) // block)
            by_arguments.setdefault((kernel.pointers, kernel.sizes), {})[name] = (described, programs)
        for (pointers, sizes), group in by_arguments.items():
            arguments: list[torch.Tensor | int] = [*map(self.storage, pointers)]
            arguments += map(self.c.sizes.hint, sizes)
            found |= triton_tune.kernel_ways(group, arguments, self.c.target.device)
        return found

    def operator(self, call: ExternNode, rest: Callable[[], None] | None) -> Callable[[], None]:
        arguments = [self._operand(value) for value in call.args]

        def run() -> None:
            call.target(*arguments)
            if rest is not None:
                rest()

        return run

    def _operand(self, value: Any) -> Any:
        hint = self.c.sizes.hint
        if isinstance(value, Strided):
            layout = value.layout
            sizes, strides = layout_hint(self.c, layout)
            storage = self.storage(self.program.buffers[value.buffer].storage)
            return storage.as_strided(sizes, strides, hint(layout.offset))
        if isinstance(value, (list, tuple)):
            return [self._operand(item) for item in value]
        return hint(value) if hasattr(value, "free_symbols") else value


def has_float32_products(c: Compilation) -> bool:
    return any(
        isinstance(node, LoopNode) and node.product and c.program.operands[node.writes[0]] == torch.float32
        for node in c.program.nodes
    )


def depends_on_settings(c: Compilation) -> bool:
    """Whether the graph was compiled for TF32 being allowed, or for algorithms that need not be deterministic."""
    scatters = any(
        store.atomic for node in c.program.nodes if isinstance(node, LoopNode) for store in node.stores
    )
    return scatters or has_float32_products(c)


class BySettings:
    """A runner for each setting of TF32 and of deterministic algorithms, made when it first meets one. It cannot be
    stored. launches: of one call. Mutable."""

    def __init__(self, runner: Any, compile_again: Callable[[], Any]) -> None:
        self.launches = launches_of(runner)
        self._runners = {_settings(): runner}
        self._compile = compile_again
        if hasattr(runner, "with_numbers"):  # the same numbers in the same order, whatever the settings
            self.with_numbers = runner.with_numbers[0], lambda inputs: self._runner().with_numbers[1](inputs)

    def __call__(self, inputs: list[Any]) -> Any:
        return self._runner()(inputs)

    def _runner(self) -> Any:
        settings = _settings()
        runner = self._runners.get(settings)
        if runner is None:
            runner = self._runners[settings] = self._compile()
        return runner


def _settings() -> tuple[bool, bool, bool]:
    return tf32_allowed(False), tf32_allowed(True), torch.are_deterministic_algorithms_enabled()
