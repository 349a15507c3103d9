"""Chooses the tiles of pointwise and reducing kernels by measurement.

In the tuned modes (`tiles_of`) while a graph is compiled, in the others (`with_search`) while the
program runs (`tile_search`). Kernels that move less than `MIN_BYTES` keep the tile of the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from inductor_backend.autotune.choices import Kernels, TunedChoice, build_all, choose
from inductor_backend.autotune.matmul import tuned
from inductor_backend.codegen.common.loop_nest import accesses
from inductor_backend.codegen.triton.block_sizes import Tile, candidates
from inductor_backend.codegen.triton.kernel import TritonKernel, TritonKernelWriter
from inductor_backend.codegen.triton.module import name_of
from inductor_backend.ir.target import Target
from inductor_backend.runtime.cuda.triton_compile import TileEffect
from inductor_backend.schedule.fused_body import KernelBody

if TYPE_CHECKING:
    from inductor_backend.compilation import Compilation

#: Kernels that move fewer bytes keep the tile that the access pattern suggests.
MIN_BYTES = 4 * 2**20

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
    """Marks a kernel whose tile is measured while the program runs, and adds it to `c.searched`."""
    if not _is_searched(c, body, kernel):
        return kernel
    effect: TileEffect = "none" if tile.reduced is None else "order"
    marked = replace(kernel, searched=effect)
    writers: dict[str, Callable[[], TritonKernel]] = {str(tile): lambda: marked}
    writers |= {str(other): partial(_tiled, c, body, other) for other in candidates(tile)[1:]}
    choice = TunedChoice(c.program, Kernels(writers), name=name_of(marked))
    c.searched.append(SearchedKernel(choice, moved(c, body)))
    return marked


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
        and moved(c, body) >= MIN_BYTES
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
    if moved(c, body) < MIN_BYTES:
        return None
    simple = TritonKernelWriter(c.program, body, c.sizes).tile
    tiles = {str(tile): tile for tile in candidates(simple)}
    kernels = {name: partial(_tiled, c, body, tile) for name, tile in tiles.items()}
    return tiles, TunedChoice(c.program, Kernels(kernels))


def _tiled(c: Compilation, body: KernelBody, tile: Tile) -> TritonKernel:
    return TritonKernelWriter(c.program, body, c.sizes, tile).write()
