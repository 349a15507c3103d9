"""What a line of a random program may be.

In: nothing. Out: `TABLES`: tables of forms and how often each is tried. What always holds: a form
that jumps (comparisons, rounding, places of extremes) asks for exact values, those that no rounding
has touched: a difference there is a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


def floating(x: torch.Tensor) -> bool:
    return x.is_floating_point()


def integral(x: torch.Tensor) -> bool:
    return not x.is_floating_point() and x.dtype is not torch.bool


def number(x: torch.Tensor) -> bool:
    return x.dtype is not torch.bool


def solid(x: torch.Tensor) -> bool:
    return x.dim() > 0


Kind = Callable[[torch.Tensor], bool]


@dataclass(frozen=True, slots=True)
class Form:
    """text: {a} and {b} stand for values, {d} for a dimension of a, {i} and {j} for places along
    a's first and last one. kinds: what a and b have to be; needs: whether they must be exact;
    keeps: whether the result then is."""

    text: str
    kinds: tuple[Kind, ...]
    needs: bool
    keeps: bool


def _forms(texts: str, *kinds: Kind, needs: bool = False, keeps: bool = False) -> list[Form]:
    return [Form(line.strip(), kinds, needs, keeps) for line in texts.strip().splitlines()]


SMOOTH = _forms("""
    {a}.sin()
    ({a} * 0.25).exp()
    ({a}.abs() + 1).log()
    ({a}.abs() + 0.5).sqrt()
    ({a}.abs() + 0.5).rsqrt()
    {a}.sigmoid()
    {a}.tanh()
    F.gelu({a})
    F.silu({a})
    F.softplus({a})
    F.elu({a})
    F.leaky_relu({a}, 0.1)
    {a}.expm1()
    {a}.erf()
    {a} * {a}
    {a}.pow(2)
    {a}.abs().pow(0.5)
    {a}.square()
    torch.addcmul({a}, {a}, {a}, value=0.5)
    F.hardswish({a})
    torch.logit({a}.sigmoid() * 0.8 + 0.1)
""", floating) + _forms("""
    {a} + {b}
    {a} - {b}
    {a} * {b}
    {a} / ({b}.abs() + 1)
    torch.rsub({a}, {b}, alpha=2)
    torch.add({a}, {b}, alpha=3)
""", number, number) + _forms("""
    torch.atan2({a}, {b}.abs() + 1)
    torch.hypot({a}, {b})
    torch.lerp({a}, {b}.to({a}.dtype), 0.3)
    torch.logaddexp({a}, {b}.to({a}.dtype))
""", floating, floating)  # fmt: skip

PLAIN = _forms("""
    {a}.clone()
    {a}.contiguous()
    {a}.flip({d})
    {a}.roll(1, {d})
    {a}.transpose(0, {d})
    {a}.unsqueeze({d})
    {a}.select({d}, 0)
    {a}.narrow({d}, 0, ({a}.shape[{d}] + 1) // 2)
    {a}.movedim({d}, 0)
    {a}.repeat_interleave(2, {d})
    {a}.reshape(-1)
    {a}.flatten()
    {a}[1:]
    {a}[::2]
    {a}[..., -1]
    {a}[..., None, :]
    {a}.unsqueeze(0).expand(3, *{a}.shape)
    torch.cat([{a}, {a}], {d})
    torch.stack([{a}, {a}.flip({d})], {d})
    {a}.tril() if {a}.dim() > 1 else {a}.neg()
    {a}.diagonal() if {a}.dim() > 1 else {a}.abs()
    {a}.unfold({d}, 1, 1)
    {a}.chunk(2, {d})[-1]
    F.pad({a}, (1, 2))
    F.pad({a}, (0, 1), value=1)
    F.pad({a}, (-1, 1)) if {a}.shape[-1] > 1 else {a}
    {a}.amax({d})
    {a}.amin({d}, keepdim=True)
    {a}.max({d}).values
    {a}.min({d}).values
    {a}.amax()
    {a}.broadcast_to({a}.shape)
    torch.take_along_dim({a}, torch.zeros_like({a}, dtype=torch.int64), {d})
    {a}.new_zeros({a}.shape)
    {a}.new_full({a}.shape, 3)
    torch.zeros_like({a})
""", solid, keeps=True) + _forms("""
    {a}.abs()
    -{a}
    {a}.relu()
    {a}.clamp(-1, 1) if {a}.dtype != torch.uint8 else {a}.clamp(1, 5)
    {a}.clamp(max=1)
    torch.where({a} == {a}, {a}, 1)
    {a}.masked_fill({a} != {a}, 2)
    {a}.positive()
""", number, keeps=True) + _forms("""
    torch.maximum({a}, {b})
    torch.minimum({a}, {b})
    torch.fmax({a}, {b})
    torch.cat([{a}.reshape(-1), {b}.reshape(-1)])
""", number, number, keeps=True)  # fmt: skip

JUMPS = _forms("""
    {a}.floor()
    {a}.ceil()
    {a}.round()
    {a}.trunc()
    {a}.frac()
    {a}.sign()
    {a}.isnan()
    {a}.isinf()
    {a}.isfinite()
    {a}.nan_to_num(0.5, 2, -2)
    {a}.nan_to_num(0.5, 2, -2).to(torch.int32)
    {a}.nan_to_num(0.5, 2, -2).to(torch.int64)
    {a}.nan_to_num(0.5, 2, -2).to(torch.int8)
    {a}.signbit()
    {a} % 0.75
    {a} // 0.5
    torch.fmod({a}, 0.75)
    torch.heaviside({a}, {a})
""", floating, needs=True, keeps=True) + _forms("""
    {a}.argmax({d})
    {a}.argmin({d}, keepdim=True)
    {a}.argmax()
    {a}.max({d}).indices
    {a}.min({d})[1]
    {a}.cummax({d}).values
    {a}.cummin({d}).indices
""", lambda x: solid(x) and number(x), needs=True, keeps=True) + _forms("""
    {a} == {b}
    {a} < {b}
    {a} >= {b}
    {a} != {b}
    torch.where({a} > {b}, {a}, {b})
    torch.where({b} > 0, {a}, 0)
    torch.copysign({a}, {b})
    {a} % ({b}.abs() + 1)
    torch.fmod({a}, {b}.abs() + 1)
    {a} // ({b}.abs() + 1)
    torch.div({a}, {b}.abs() + 1, rounding_mode='trunc')
    torch.div({a}, -2, rounding_mode='floor')
    torch.isclose({a}, {b}.to({a}.dtype))
    {a}.masked_fill({b} > 0, 1)
""", number, number, needs=True, keeps=True) + _forms("""
    {a}.to(torch.bool)
    {a}.any({d})
    {a}.all({d})
    {a}.any()
    {a}.bool().any({d}, keepdim=True)
    {a}.logical_not()
    {a}.count_nonzero({d})
    ({a} != 0).sum({d})
    ({a} != 0).cumsum({d})
    ({a} != 0).argmax({d}) if {a}.dtype != torch.bool else {a}.any()
""", solid, needs=True, keeps=True) + _forms("""
    torch.logical_and({a}, {b})
    torch.logical_xor({a}, {b})
    torch.where({b}.bool(), {a}, {a}.flip(-1))
""", solid, solid, needs=True, keeps=True)  # fmt: skip

WHOLE = _forms("""
    {a} + {b}
    {a} - {b}
    {a} * {b}
    {a} & {b}
    {a} | {b}
    {a} ^ {b}
    {a} << ({b} & 3)
    {a} >> ({b} & 3)
    {a} << {b}
    {a} >> {b}
    torch.where({a} > {b}, {a}, {b})
    torch.gcd({a}, {b})
""", integral, integral, needs=True, keeps=True) + _forms("""
    ~{a}
    {a} + 3
    {a} * 2 - 1
    {a} ** 2
    {a} // 3
    {a} % 5
    {a} // -3
    {a} / 4
    {a} + 0.5
    {a}.to(torch.int8)
    {a}.to(torch.uint8)
    {a}.to(torch.int16)
    {a}.to(torch.int64) * 1000003
    {a}.float()
    {a}.double()
    torch.bitwise_not({a})
    {a}.neg()
    {a}.sgn()
""", integral, needs=True, keeps=True) + _forms("""
    {a}.sum({d})
    {a}.sum()
    {a}.prod({d})
    {a}.cumsum({d})
    {a}.sum({d}, dtype=torch.int32)
    {a}.cumprod({d})
    {a} + torch.arange({a}.shape[-1], device={a}.device)
    {a} + torch.arange({a}.shape[-1], 0, -1, dtype=torch.int32, device={a}.device)
""", lambda x: integral(x) and solid(x), needs=True, keeps=True)  # fmt: skip

REDUCED = _forms("""
    {a}.sum({d})
    {a}.sum({d}, keepdim=True)
    {a}.sum()
    {a}.mean({d})
    {a}.mean({d}, keepdim=True)
    {a}.var({d}, unbiased=False)
    {a}.std({d}, unbiased=False, keepdim=True)
    torch.var_mean({a}, {d}, correction=0)[0]
    {a}.prod({d})
    {a}.logsumexp({d})
    {a}.softmax({d})
    {a}.log_softmax({d})
    {a}.cumsum({d})
    {a}.norm(dim={d})
    {a}.nansum({d})
    {a}.mean()
    {a}.double().sum({d})
    {a}.sum({d}, dtype=torch.float64)
    {a} - {a}.mean({d}, keepdim=True)
    {a} / ({a}.abs().sum({d}, keepdim=True) + 1)
    F.layer_norm({a}, {a}.shape[-1:])
    F.normalize({a}, dim={d})
    {a}.logcumsumexp({d})
    torch.trapezoid({a})
    {a}.mT.sum(-1) if {a}.dim() > 1 else {a}.mean(0)
    F.avg_pool1d({a}[None].flatten(1), 2) if {a}.numel() > 2 else {a}.sum()
    {a} + torch.arange({a}.shape[-1], device={a}.device)
    {a} * torch.linspace(0, 1, {a}.shape[-1], device={a}.device)
""", lambda x: floating(x) and solid(x))  # fmt: skip

POOLED = _forms("""
    F.max_pool1d({a}.reshape(1, 1, -1), 3, 2, 1)
    F.max_pool2d({a}.reshape(1, 1, 1, -1), (1, 2)) if {a}.numel() > 2 else {a}
    F.pad({a}.reshape(1, 1, -1), (1, 1), mode='replicate')
    F.pad({a}.reshape(1, 1, -1), (1, 1), mode='reflect') if {a}.numel() > 2 else {a}
    F.pad({a}.reshape(1, 1, -1), (1, 1), mode='circular') if {a}.numel() > 2 else {a}
    F.interpolate({a}.reshape(1, 1, -1), scale_factor=2)
    F.one_hot({a}.nan_to_num(0, 1, 1).reshape(-1).long().clamp(0, 4), 5)
""", lambda x: floating(x) and x.numel() > 0, needs=True, keeps=True)  # fmt: skip

#: b: integers, made to be places of a ({i} and {j}).
GATHERS = _forms("""
    {a}[{i}]
    {a}[{i}.reshape(-1)[:3]]
    {a}.index_select(0, {i}.abs().reshape(-1))
    {a}[..., {j}]
    {a}[{i}, ..., 0] if {a}.dim() > 1 else {a}[{i}]
    torch.gather({a}, -1, ({i} % {a}.shape[-1]).reshape(-1)[:1].broadcast_to({a}.shape))
    {a}.index_add(0, {i}.abs().reshape(-1), {a}[{i}.abs().reshape(-1)])
    {a}.index_fill(0, {i}.abs().reshape(-1), 2)
    {a}.scatter_add(-1, torch.zeros_like({a}, dtype=torch.int64), {a})
    {a}.index_put(({i},), torch.tensor(1, dtype={a}.dtype, device={a}.device))
    {a}.clone().index_put_(({i}.reshape(-1),), {a}[0], accumulate=True)
    torch.zeros_like({a}).scatter(-1, torch.arange({a}.shape[-1], device={a}.device).flip(0).expand({a}.shape), {a})
    {a}.masked_scatter({a} == {a}, {a})
    {a}.take({i}.abs())
    {a}.clone().index_copy_(0, torch.arange({a}.shape[0], device={a}.device).flip(0), {a})
    torch.searchsorted(torch.arange({a}.shape[-1], device={a}.device), {i}.contiguous())
    torch.embedding({a}.flatten(1), {i}.abs()) if {a}.dim() > 1 else {a}[{i}]
""", lambda x: solid(x) and x.numel() > 0, integral, needs=False, keeps=True)  # fmt: skip

WRITES = _forms("""
    {a}.add_(1)
    {a}.mul_(2)
    {a}.neg_()
    {a}.copy_({b})
    {a}.add_({b})
    {a}.sub_({b})
    {a}[0] = 1
    {a}[1:] = {a}[:-1].clone()
    {a}[..., ::2] += 1
    {a}.transpose(0, -1).add_(1)
    {a}.fill_(2)
    {a}.zero_()
    {a}.clamp_(min=0)
    {a}.maximum({b})
    {a}.flip(0)[0] = 0
    {a}.select(0, 0).copy_({a}.select(0, -1))
    {a}.masked_fill_({a} == {a}, 1)
    {a}.view_as({a}).mul_(2)
""", lambda x: solid(x) and number(x) and not any(s == 0 and n > 1 for n, s in zip(x.shape,
x.stride())), number)  # fmt: skip

CASTS = _forms(
    "\n".join(f"{{a}}.to(torch.{name})" for name in ("float32", "float64", "bfloat16", "float16")),
    number,
)

#: Kinds of steps, and how often each is tried.
TABLES: tuple[tuple[list[Form], float], ...] = (
    (SMOOTH, 3), (PLAIN, 4), (JUMPS, 3), (WHOLE, 2), (REDUCED, 4), (POOLED, 0.5), (GATHERS, 2),
    (WRITES, 1.2), (CASTS, 1),
)  # fmt: skip
