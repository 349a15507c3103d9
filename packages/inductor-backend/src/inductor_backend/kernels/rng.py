"""Faster Bernoulli random numbers for dropout, bit for bit those of eager's CPU generator.

Values, and the state of torch's default generator afterwards, equal eager's. On processors where
torch uses mt19937 (all but Intel's, where torch has MKL's generator) `bernoulli_` tempers one word
after the other, 6 to 8 ns an element here; kernels/cpu/rng.cpp does it in vectors, 0.8 to 1.3 ns.
`same_stream` tests once, on a separate generator, whether this torch and processor match.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from inductor_backend.kernels import native

#: Bytes of the state of a CPU generator, unchanged since torch's first releases; any other size is
#: unsupported.
STATE_BYTES = 5056
_BITS = 53  # of a number between 0 and 1


def bernoulli(sizes: Sequence[int], p: float) -> torch.Tensor:
    """Returns ones with probability p, as bools, in row-major order: the values of
    ``torch.empty(sizes).bernoulli_(p)``."""
    generator = torch.default_generator
    while True:
        state = generator.get_state()
        before = state.clone()
        mask = _bernoulli(state, sizes, p)
        # else another thread drew random numbers meanwhile: retry
        if torch.equal(generator.get_state(), before):
            generator.set_state(state)
            return mask


def _bernoulli(state: torch.Tensor, sizes: Sequence[int], p: float) -> torch.Tensor:
    """Draws the values from a generator's state, which it advances."""
    mask = torch.empty(sizes, dtype=torch.bool)
    native.function("run_bernoulli")(state, mask, mask.numel(), math.ceil(p * (1 << _BITS)))
    return mask


@functools.cache
def same_stream(dtype: torch.dtype) -> bool:
    """Tests whether `bernoulli` matches torch's kernel for this dtype: values and state, over
    several refills of the generator's words, from an even and an odd position in them."""
    generator = torch.Generator()
    if generator.get_state().numel() != STATE_BYTES:
        return False
    for single, p in ((0, 0.9), (1, 0.25)):
        generator.manual_seed(2147483647 + single)
        torch.empty(single, dtype=torch.int32).random_(generator=generator)
        state = generator.get_state()
        expected = torch.empty(1500, dtype=dtype).bernoulli_(p, generator=generator)
        same = torch.equal(_bernoulli(state, (1500,), p), expected.bool())
        if not (same and torch.equal(state, generator.get_state())):
            return False
    return True
