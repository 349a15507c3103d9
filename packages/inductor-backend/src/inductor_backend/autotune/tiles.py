"""Chooses the tiles of pointwise and reducing kernels by measurement.

In the tuned modes (`tiles_of`) while a graph is compiled, in the others (`with_search`) while the
program runs (`tile_search`). Kernels that move less than `MIN_SEARCHED_BYTES` keep the tile of
the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from inductor_backend.autotune.choices import Kernels, TunedChoice, build_all, choose
from inductor_backend.autotune.matmul import tuned
from inductor_backend.codegen.common.loop_nest import accesses
from inductor_backend.codegen.triton.block_sizes import Tile, candidates
from inductor_backend.codegen.triton.horizontal import combined_kernel
from inductor_backend.codegen.triton.kernel import TritonKernel, TritonKernelWriter
from inductor_backend.codegen.triton.module import name_of
from inductor_backend.ir.target import Target
from inductor_backend.limits import MIN_SEARCHED_BYTES
from inductor_backend.runtime.cuda.triton_compile import TileEffect
from inductor_backend.schedule.fused_body import KernelBody

if TYPE_CHECKING:
    from inductor_backend.compilation import Compilation

#: Modes whose kernels are measured while the program runs.
SEARCHED_MODES = frozenset({"default", "reduce-overhead"})


@dataclass(frozen=True, slots=True)
class SearchedKernel:
    """A kernel whose tile is measured while the program runs. choice: between its tile, the first, and
    others. nbytes: that a launch moves."""

    choice: TunedChoice
    nbytes: int


def tiles_of(c: Compilation, bodies: Sequence[KernelBody | None]) -> list[Tile | None]:
    """Returns the measured tile of each kernel, None for the tile that the access pattern suggests."""
    if not tuned(c):
        return [None] * len(bodies)
    possible = [None if body is None else _tiles(c, body) for body in bodies]
    build_all(c, [result[1] for result in possible if result is not None])
    return [None if result is None else result[0].get(choose(c, result[1])) for result in possible]


def with_search(c: Compilation, body: KernelBody, kernel: TritonKernel, tile: Tile) -> TritonKernel:
    """Marks a kernel whose tile can be measured while the program runs, and adds it to
    `c.searched`."""
    if not _is_searched(c, body, kernel):
        return kernel
    effect: TileEffect = "none" if tile.reduced is None else "order"
    marked = replace(kernel, searched=effect)
    kernels = Kernels({str(tile): lambda: marked, **_writers(c, body, candidates(tile)[1:])})
    choice = TunedChoice(c.program, kernels, name=name_of(marked))
    c.searched.append(SearchedKernel(choice, moved(c, body)))
    return marked


def combine(c: Compilation, launches: Iterable[Sequence[TritonKernel]]) -> list[TritonKernel]:
    """Returns the kernel of each launch. `c.searched` becomes those of them that move enough to be
    measured, the others lose their mark."""
    possible = {_work_of(item.choice.kernels.first()): item for item in c.searched}
    searched: dict[Hashable, SearchedKernel] = {}
    result = []
    for parts in launches:
        kernel, item = parts[0], possible.get(_work_of(parts[0]))
        if len(parts) > 1:
            kernel = combined_kernel(parts)
            items = [possible[work] for work in map(_work_of, parts) if work in possible]
            item = _of_parts(c, parts, items) if len(items) == len(parts) else None
            kernel = kernel if item is None else item.choice.kernels.first()
        if item is not None and item.nbytes >= MIN_SEARCHED_BYTES:
            searched.setdefault(_work_of(kernel), item)
        elif kernel.searched:
            kernel = replace(kernel, searched="")
        result.append(kernel)
    c.searched[:] = searched.values()
    return result


def _work_of(kernel: TritonKernel) -> Hashable:
    """Returns what kernels that do as much have in common: equal ones may have other numbers of
    programs."""
    return name_of(kernel), kernel.grid


def _of_parts(
    c: Compilation, parts: Sequence[TritonKernel], items: Sequence[SearchedKernel]
) -> SearchedKernel:
    """Returns what is measured for combined kernels: each candidate has the first, second, ... tile
    of each part."""
    names = [list(item.choice.kernels) for item in items]

    def combined(turn: int) -> TritonKernel:
        chosen = []
        for part, item, tiles in zip(parts, items, names, strict=True):
            kernel = item.choice.kernels[tiles[min(turn, len(tiles) - 1)]]
            in_order = kernel.pointers == item.choice.kernels.first().pointers
            chosen.append(replace(kernel, pointers=part.pointers) if turn and in_order else part)
        order = any(part.searched == "order" for part in parts)
        return replace(combined_kernel(chosen), searched="order" if order else "none")

    most = max(map(len, names))
    kernels = Kernels({f"tiles {turn}": partial(combined, turn) for turn in range(most)})
    choice = TunedChoice(c.program, kernels, name=name_of(kernels.first()))
    return SearchedKernel(choice, sum(item.nbytes for item in items))


def can_measure(target: Target) -> bool:
    """Returns whether kernels can be timed on a target."""
    return not target.interpreted


def _is_searched(c: Compilation, body: KernelBody, kernel: TritonKernel) -> bool:
    """Returns whether the kernel's tile is measured while the program runs. Indices that are read from
    memory are all 0 in the memory that it is measured on, so kernels with such are not."""
    return (
        c.spec.mode in SEARCHED_MODES
        and c.options.tile_search
        and can_measure(c.target)
        and not kernel.sizes
        and not kernel.asserts
        and all(isinstance(numel, int) for numel, _ in kernel.grid)
        and not any(list(index.indirect_values()) for index in accesses(c.program, body))
    )


def moved(c: Compilation, body: KernelBody) -> int:
    """Returns the bytes that a kernel must move."""
    return sum(
        c.sizes.hint(c.program.buffers[name].layout.extent) * c.program.buffers[name].dtype.itemsize
        for name in {*body.reads(), *body.writes}
    )


def _tiles(c: Compilation, body: KernelBody) -> tuple[dict[str, Tile], TunedChoice] | None:
    """Returns tiles by name, and the choice between them; None for kernels that move few bytes."""
    if moved(c, body) < MIN_SEARCHED_BYTES:
        return None
    simple = TritonKernelWriter(c.program, body, c.sizes).tile
    tiles = {str(tile): tile for tile in candidates(simple)}
    return tiles, TunedChoice(c.program, Kernels(_writers(c, body, tiles.values())))


def _writers(
    c: Compilation, body: KernelBody, tiles: Iterable[Tile]
) -> dict[str, Callable[[], TritonKernel]]:
    """Returns what writes the kernel of each tile, by the tile's text."""
    return {str(tile): partial(_tiled, c, body, tile) for tile in tiles}


def _tiled(c: Compilation, body: KernelBody, tile: Tile) -> TritonKernel:
    return TritonKernelWriter(c.program, body, c.sizes, tile).write()
