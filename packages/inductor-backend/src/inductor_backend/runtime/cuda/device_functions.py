"""Device functions that generated Triton kernels call.

The formulas are those of torch's native kernels. Reductions run along axis 1 of a [rows, columns]
block, keep it with size 1, and give NaN where any element is NaN. Under TRITON_INTERPRET=1 the same
functions run on NumPy arrays, with `interpreter.libdevice`.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

from inductor_backend.runtime.cuda.interpreter import interpreting

if interpreting():
    from inductor_backend.runtime.cuda.interpreter import compute_as_devices, libdevice

    compute_as_devices()

    @triton.jit
    def unknown(a):
        """A 64-bit integer whose value Triton does not know."""
        return a

    @triton.jit
    def quotient_by(a, b, inverse):
        return tl.div_rn(a, b)

    @triton.jit
    def quotient(a, b):
        return tl.div_rn(a, b)

else:
    from triton.language.extra.cuda import (  # type: ignore[no-redef]
        gdc_launch_dependents,
        gdc_wait,
        libdevice,
    )

    @triton.jit
    def wait_for_last_kernel():
        """Waits until the kernel before has ended and its stores are visible, then lets the next
        one start. Nothing may be read or stored earlier: the order of the two keeps it true for
        all kernels before, too."""
        gdc_wait()
        gdc_launch_dependents()

    @triton.jit
    def unknown(a):
        return tl.inline_asm_elementwise("mov.b64 $0, $1;", "=l,l", [a], tl.int64, True, 1)

    @triton.jit
    def quotient_by(a, b, inverse):
        """a / b as IEEE 754 rounds it, from ``inverse = 1 / b``, rounded (Markstein, "Computation of
        elementary functions on the IBM RISC System/6000 processor", 1990). Takes a fifth of the
        instructions of a division. The last bit may differ where |a| is below 2^-100."""
        first = a * inverse
        refined = tl.fma(tl.fma(-first, b, a), inverse, first)
        return tl.where(refined == refined, refined, first)  # infinite and NaN: the first is right

    @triton.jit
    def quotient(a, b):
        """a / b. Where one b divides many a (a row's norm), it is inverted once; denormals are scaled
        before."""
        if b.numel < a.numel:
            scale = tl.where(tl.abs(b) < 1.1754943508222875e-38, 4294967296.0, 1.0)
            b = b * scale
            result = quotient_by(a * scale, b, tl.div_rn(1.0, b))
        else:
            result = tl.div_rn(a, b)
        return result


@triton.jit
def relu(x):
    return tl.where(x < 0, tl.zeros_like(x), x)


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + libdevice.exp(-x))


@triton.jit
def sigmoid_exp2(x):
    """1 / (1 + 2^x)."""
    return 1.0 / (1.0 + tl.exp2(x))


@triton.jit
def silu(x):
    return x / (1.0 + libdevice.exp(-x))


@triton.jit
def gelu_erf(x):
    return x * 0.5 * (1.0 + libdevice.erf(x * 0.7071067811865476))


@triton.jit
def gelu_tanh(x):
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1.0 + libdevice.tanh(inner))


@triton.jit
def tanh_by_exp2(x):
    """tanh within some 1e-7, without a branch."""
    return 1.0 - 2.0 / (tl.exp2(2.8853900817779268 * x) + 1.0)


@triton.jit
def softplus(x):
    return tl.where(x > 20.0, x, libdevice.log1p(libdevice.exp(x)))


@triton.jit
def divisor(b):
    """b, of which Triton does not know that it is 0: it cannot compile a division by that constant,
    whose quotient is the device's, as in eager."""
    return tl.where(b == 0, unknown(b.to(tl.int64)).to(b.dtype), b)


@triton.jit
def int_floor_div(a, b):
    b = divisor(b)
    quotient = a // b
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1, quotient)


@triton.jit
def int_mod(a, b):
    b = divisor(b)
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def int_pow(a, b):
    """Integer power by squaring; a negative exponent gives 0 except for bases 1 and -1, as in
    torch."""
    result = (
        tl.full([], 1, tl.int64) + tl.zeros_like(a).to(tl.int64) + tl.zeros_like(b).to(tl.int64)
    )
    base = a.to(tl.int64) + tl.zeros_like(result)
    exponent = b.to(tl.int64) + tl.zeros_like(result)
    for _ in range(63):
        result = tl.where((exponent & 1) != 0, result * base, result)
        base = base * base
        exponent = exponent >> 1
    odd = (b.to(tl.int64) & 1) != 0
    below = tl.where(a == 1, 1, tl.where(a == -1, tl.where(odd, -1, 1), 0))
    return tl.where(b < 0, below, result).to(a.dtype)


@triton.jit
def float_mod(a, b):
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def float_floor_div(a, b):
    rest = libdevice.fmod(a, b)
    quotient = libdevice.div_rn(a - rest, b)
    quotient = tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1.0, quotient)
    down = libdevice.floor(quotient)
    down = tl.where(quotient - down > 0.5, down + 1.0, down)
    down = tl.where(quotient == 0, libdevice.copysign(tl.zeros_like(down), a / b), down)
    return tl.where(b == 0, a / b, down)


@triton.jit
def greater(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def lesser(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def times(a, b):
    return a * b


@triton.jit
def plus(a, b):
    return a + b


@triton.jit
def max_row(x):
    return tl.reduce(x, 1, greater, keep_dims=True)


@triton.jit
def min_row(x):
    return tl.reduce(x, 1, lesser, keep_dims=True)


@triton.jit
def prod_row(x):
    return tl.reduce(x, 1, times, keep_dims=True)


@triton.jit
def better_argmax(a, at, b, bt):
    """Returns whether (b, bt) precedes (a, at): greater, or NaN, or equal and earlier."""
    a_nan = a != a
    b_nan = b != b
    return (
        ((b > a) & (a_nan == 0))
        | (b_nan & (a_nan == 0))
        | (((a == b) | (a_nan & b_nan)) & (bt < at))
    )


@triton.jit
def better_argmin(a, at, b, bt):
    a_nan = a != a
    b_nan = b != b
    return (
        ((b < a) & (a_nan == 0))
        | (b_nan & (a_nan == 0))
        | (((a == b) | (a_nan & b_nan)) & (bt < at))
    )


@triton.jit
def _first_greatest(a, at, b, bt):
    take = better_argmax(a, at, b, bt)
    return tl.where(take, b, a), tl.where(take, bt, at)


@triton.jit
def _first_least(a, at, b, bt):
    take = better_argmin(a, at, b, bt)
    return tl.where(take, b, a), tl.where(take, bt, at)


@triton.jit
def argmax_row(x, at):
    _value, place = tl.reduce((x, at), 1, _first_greatest, keep_dims=True)
    return place


@triton.jit
def argmin_row(x, at):
    _value, place = tl.reduce((x, at), 1, _first_least, keep_dims=True)
    return place


@triton.jit
def log_add_exp(a, b):
    """Returns log(exp(a) + exp(b)): of two infinities of one sign, that one; NaN where either is."""
    most = greater(a, b)
    least = lesser(a, b)
    infinite = (most == least) & (tl.abs(most) == float("inf"))
    return tl.where(infinite, most, most + libdevice.log1p(libdevice.exp(least - most)))


@triton.jit
def add_exponentials(most, total, x):
    """Adds a block to lanes of maxima and sums of exp(x - maximum). A lane takes neighbours of the
    block, which one thread holds: the sums are scaled once for all of them. Powers of two take a
    third of exp's instructions; their error is that of x - maximum, below 1e-7 of the sum.
    """
    wide = tl.reshape(x, [most.shape[0], most.shape[1], x.shape[1] // most.shape[1]])
    greatest = greater(most, tl.reduce(wide, 2, greater))
    base = tl.where(greatest == float("-inf"), 0.0, greatest)  # -inf - -inf would be NaN
    added = tl.sum(tl.exp2((wide - base[:, :, None]) * 1.4426950408889634), 2)
    return greatest, total * tl.exp2((most - base) * 1.4426950408889634) + added


@triton.jit
def exponentials_row(most, total):
    """Combines the lanes of `add_exponentials`. The sum is NaN where the maximum is infinite."""
    greatest = max_row(most)
    return greatest, tl.sum(total * libdevice.exp(most - greatest), 1, keep_dims=True)


@triton.jit
def last_greatest(a, at, b, bt):
    """Returns the later of two neighbours, unless the earlier is greater; NaN is only replaced by
    NaN."""
    take = (b != b) | ((a == a) & (b >= a))
    return tl.where(take, b, a), tl.where(take, bt, at)


@triton.jit
def last_least(a, at, b, bt):
    take = (b != b) | ((a == a) & (b <= a))
    return tl.where(take, b, a), tl.where(take, bt, at)


@triton.jit
def uniform(seed, place):
    """Returns a random number in [0, 1) from the first word of Philox 4x32-10, with the place
    (int64) as counter and the seed as key."""
    low = (place & 0xFFFFFFFF).to(tl.uint32)
    high = (place >> 32).to(tl.uint32)
    zero = low * 0
    word, _1, _2, _3 = tl.philox(seed, low, high, zero, zero)
    return tl.uint_to_uniform_float(word)
