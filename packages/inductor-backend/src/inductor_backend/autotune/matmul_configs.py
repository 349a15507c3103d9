"""Lists the matmul configurations that max-autotune benchmarks: block sizes, persistent loops, TMA.

A rough cost model keeps the list short enough to build and measure in seconds. Every configuration
gives a correct kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch

from inductor_backend.codegen.triton.block_sizes import PROCESSORS, power_of_two
from inductor_backend.codegen.triton.matmul import Blocks
from inductor_backend.limits import MAX_MATMUL_CANDIDATES, MAX_TMA_CANDIDATES

#: block_m, block_n, block_k, warps, stages
Shape = tuple[int, int, int, int, int]

#: Elements of a block below which it is for few rows: many programs then read the other operand.
NARROW = 1024

#: Block shapes by the bytes of an element.
BLOCKS: dict[int, tuple[Shape, ...]] = {
    2: (
        (128, 256, 64, 8, 3), (256, 128, 64, 8, 3), (128, 128, 64, 8, 3), (128, 128, 64, 4, 4),
        (64, 128, 64, 4, 4), (128, 64, 64, 4, 4), (64, 64, 64, 4, 5), (64, 32, 64, 4, 5),
        (32, 64, 128, 4, 4), (16, 64, 128, 4, 4), (16, 32, 128, 4, 6), (16, 32, 256, 4, 4),
        (16, 16, 256, 2, 6), (16, 16, 512, 2, 4),
    ),
    4: (
        (128, 256, 32, 8, 3), (256, 128, 32, 8, 3), (128, 128, 32, 8, 3), (128, 128, 32, 4, 4),
        (64, 128, 32, 4, 4), (128, 64, 32, 4, 4), (64, 64, 32, 4, 5), (64, 32, 64, 4, 4),
        (32, 64, 64, 4, 4), (16, 64, 64, 4, 4),
    ),
}  # fmt: skip

#: Block shapes for TMA loads: a load is one instruction, so more stages pay.
BULK_BLOCKS: dict[int, tuple[Shape, ...]] = {
    2: (
        (128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (256, 128, 64, 8, 3), (128, 128, 64, 8, 4),
        (128, 128, 64, 4, 4), (64, 256, 64, 4, 4), (64, 128, 64, 4, 5), (128, 64, 64, 4, 5),
        (64, 64, 64, 4, 6),
    ),
    4: (
        (128, 256, 32, 8, 4), (256, 128, 32, 8, 4), (128, 128, 32, 8, 5), (128, 128, 32, 4, 5),
        (64, 256, 32, 4, 4), (64, 128, 32, 4, 6), (128, 64, 32, 4, 6), (64, 64, 32, 4, 6),
    ),
}  # fmt: skip


#: (least elements of a block, its tensor-core utilization), largest first.
RATES = ((2**15, 1.0), (2**14, 0.9), (2**13, 0.75), (2**12, 0.55), (0, 0.3))

#: Bytes of shared memory per program on sm_90. On smaller devices, kernels that fail to launch are
#: left out.
SHARED = 227 * 1024


@dataclass(frozen=True, slots=True)
class Device:
    """capability: 80, 90, ... processors: number of streaming multiprocessors."""

    capability: int
    processors: int

    @property
    def bulk(self) -> bool:
        """Returns whether the device has the TMA loads that the generated kernels use."""
        return 90 <= self.capability < 100


@dataclass(frozen=True, slots=True)
class Work:
    """A matmul of the captured sizes."""

    rows: int
    columns: int
    terms: int
    batches: int
    #: Bytes of an element.
    width: int
    #: Operands that TMA can load.
    bulk: int


def few_rows(rows: int) -> Blocks:
    """Returns the configuration of a matmul of few rows whose weight is converted in its kernel. On an
    H200 it is within 4 % of the best of 15, with 4 and 16 rows and weights of 4 to 16 MB."""
    return Blocks(max(16, power_of_two(rows)), 16, 256, 2, 4)


@cache
def device_of(device: torch.device) -> Device:
    """Describes a CUDA device. A GPU that is not present (in tests) counts as an H100."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return Device(90, PROCESSORS)
    facts = torch.cuda.get_device_properties(device)
    return Device(facts.major * 10 + facts.minor, facts.multi_processor_count)


def candidates(work: Work, device: Device) -> list[Blocks]:
    """Returns the configurations to measure, the plainest first."""
    simple = _best(BLOCKS[work.width], work, device, MAX_MATMUL_CANDIDATES)
    result = [Blocks(*shape) for shape in simple]
    if work.bulk and device.bulk:
        bulk = [
            Blocks(*shape, bulk=True)
            for shape in _best(BULK_BLOCKS[work.width], work, device, MAX_TMA_CANDIDATES)
        ]
        result += bulk
        result += [walking for blocks in bulk[:3] for walking in _walking(blocks, work, device)]
    elif device.capability >= 80:
        result += [
            walking for shape in simple[:2] for walking in _walking(Blocks(*shape), work, device)
        ]
    return result


def _walking(blocks: Blocks, work: Work, device: Device) -> Iterator[Blocks]:
    """Yields the persistent variant of a configuration that has more blocks than programs."""
    if _blocks(blocks.rows, blocks.columns, work) > device.processors:
        yield replace(blocks, programs=device.processors)


def _best(shapes: Sequence[Shape], work: Work, device: Device, most: int) -> list[Shape]:
    """Returns the `most` fitting shapes of least expected time, in the order of the table."""
    fitting = [
        shape
        for shape in shapes
        if shape[0] <= max(2 * work.rows, 32)
        and (shape[0] * shape[1] >= NARROW or work.rows <= shape[0])
        and shape[1] <= max(2 * work.columns, 32)
        and shape[4] * (shape[0] + shape[1]) * shape[2] * work.width <= SHARED
    ]
    fastest = sorted(fitting, key=lambda shape: _expected(shape, work, device))[:most]
    return [shape for shape in fitting if shape in fastest]


def _blocks(rows: int, columns: int, work: Work) -> int:
    return -(-work.rows // rows) * -(-work.columns // columns) * work.batches


def _expected(shape: Shape, work: Work, device: Device) -> float:
    """Estimates the time in arbitrary units: waves of blocks, where small blocks use the tensor
    cores less well."""
    rows, columns = shape[:2]
    area = rows * columns
    rate = next(rate for least, rate in RATES if area >= least)
    return -(-_blocks(rows, columns, work) // device.processors) * area / rate
