"""Random numbers of eager's own stream, drawn faster: what dropout asks for.

In: sizes and a probability. Out: fresh tensors. What always holds: values, and the state of torch's
default generator afterwards, are eager's bit for bit. On processors where torch draws with mt19937
(all but Intel's, where it has MKL's generator) `bernoulli_` tempers one word after the other, 6 to
8 ns an element here; native/draws.cpp does it in vectors, 0.8 to 1.3 ns. Whether this torch, on
this processor, draws so is tried once (`same_stream`), on a generator of its own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from inductor_backend.kernels import native

#: Bytes of the state of a CPU generator: torch has kept this form since its first releases; another
#: one is not ours.
STATE_BYTES = 5056
_BITS = 53  # of a number between 0 and 1


def bernoulli(sizes: Sequence[int], p: float) -> torch.Tensor:
    """Ones with probability p, as bools, in row-major order: what
    ``torch.empty(sizes).bernoulli_(p)`` draws.
    """
    generator = torch.default_generator
    while True:
        state = generator.get_state()
        before = state.clone()
        drawn = _draw(state, sizes, p)
        if torch.equal(
            generator.get_state(), before
        ):  # else another thread has drawn meanwhile: after it, then
            generator.set_state(state)
            return drawn


def _draw(state: torch.Tensor, sizes: Sequence[int], p: float) -> torch.Tensor:
    """The same from a generator's state, which moves on."""
    drawn = torch.empty(sizes, dtype=torch.bool)
    native.function("run_bernoulli")(state, drawn, drawn.numel(), math.ceil(p * (1 << _BITS)))
    return drawn


@functools.cache
def same_stream(dtype: torch.dtype) -> bool:
    """Whether `bernoulli` draws what torch's kernel for this dtype draws: values and state, over
    several refills of the generator's words, from an even and an odd place in them."""
    generator = torch.Generator()
    if generator.get_state().numel() != STATE_BYTES:
        return False
    for single, p in ((0, 0.9), (1, 0.25)):
        generator.manual_seed(2147483647 + single)
        torch.empty(single, dtype=torch.int32).random_(generator=generator)
        state = generator.get_state()
        expected = torch.empty(1500, dtype=dtype).bernoulli_(p, generator=generator)
        same = torch.equal(_draw(state, (1500,), p), expected.bool())
        if not (same and torch.equal(state, generator.get_state())):
            return False
    return True
