"""Inputs of operator programs: values at the edges of their types, in memory that is not dense.

In: a random source. Out: the text of an input over the sizes s0, s1, s2, and, for a call, the
tensor. What always holds: the same seed and call give the same bits.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

FLOATS = ("float32",) * 5 + ("float64", "bfloat16", "float16")
INTEGERS = ("int64", "int64", "int32", "int16", "int8", "uint8")
RARE = ("complex64", "complex128", "uint16", "uint32", "uint64")
DTYPES = (*FLOATS, *FLOATS, *INTEGERS, "bool", "bool")
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33)
#: Kinds of values; gradients are asked of the first three only.
VALUES = ("exact", "exact", "random", "random", "special", "extreme", "zeros")
#: Elements of an input at most.
MAX_ELEMENTS = 300


def input_text(
    rng: random.Random, symbols: Sequence[int], gradients: bool, earlier: Sequence[str]
) -> str:
    """Text of an input: its type, its sizes, its values, how it lies in memory. earlier: inputs that
    it may share memory with."""
    if earlier and not gradients and rng.random() < 0.15:
        return rng.choice(
            ("{x}", "{x}.view(-1)[1:]", "{x}.T", "{x}[0]", "{x}[1:]", "{x}.detach()[..., ::2]")
        ).format(x=rng.choice(earlier))
    dims = rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4))
    names = [rng.choice((*[f"s{rng.randrange(3)}"] * 3, "1", "2", "3")) for _ in range(dims)]
    count = 1
    for place, name in enumerate(names):
        count *= symbols[int(name[1:])] if name.startswith("s") else int(name)
        if count > MAX_ELEMENTS:
            names[place], count = "2", MAX_ELEMENTS // 3
    if names and rng.random() < 0.06:
        names[rng.randrange(dims)] = "0"
    dtype = rng.choice(FLOATS if gradients else DTYPES if rng.random() < 0.93 else RARE)
    values = rng.choice(VALUES[:3] if gradients and rng.random() < 0.8 else VALUES)
    if gradients and rng.random() < 0.25:
        dtype = rng.choice(INTEGERS + ("bool",))

    def operands(sizes: Sequence[str]) -> str:
        return f"filled({', '.join([repr(dtype), repr(values), *sizes])})"

    layouts = {operands(names): 0.5}
    if dims > 1:
        layouts[
            f"{operands(names[::-1])}.permute({', '.join(map(str, reversed(range(dims))))})"
        ] = 0.15
    if dims == 4:
        n, c, h, w = names
        layouts[f"{operands([n, h, w, c])}.permute(0, 3, 1, 2)"] = 0.3
    if dims:
        first, last = names[0], names[-1]
        layouts |= {
            f"{operands([*names[:-1], f'2 * {last}'])}[..., ::2]": 0.1,
            f"{operands([f'{first} + 1', *names[1:]])}[1:]": 0.1,
            f"{operands(['1', *names[1:]])}.expand({', '.join(names)})": 0.1,
            f"{operands([*names[:-1], '1'])}.expand({', '.join(names)})": 0.05,
            f"{operands([*names[:-1], f'{last} + 3'])}[..., 1:-2]": 0.1,
            f"{operands([*names, '3'])}[..., 1]": 0.05,
            f"{operands([f'{last} + 2'])}.unfold(0, 3, 1)": 0.06,
            f"{operands([])}.expand({', '.join(names)})": 0.04,
        }
    else:
        layouts |= {
            f"{operands(['5'])}[3]": 0.3,
            f"{operands(['2', '2']).replace('filled', 'filled')}[1, 0]": 0.1,
        }
    return rng.choices([*layouts], [*layouts.values()])[0]


def filled(
    generator: torch.Generator, dtype: str, values: str, sizes: Sequence[int], begin: int
) -> torch.Tensor:
    """A dense tensor of these values, `begin` elements after where its memory begins."""
    kind: torch.dtype = getattr(torch, dtype)
    if kind.is_complex:
        part = {torch.complex64: "float32", torch.complex128: "float64"}[kind]
        values = "random" if values in ("special", "extreme") else values
        result = torch.complex(*(filled(generator, part, values, sizes, 0) for _ in range(2)))
    else:
        result = _numbers(generator, kind, values, sizes)
    if not begin:
        return result
    memory = torch.zeros(result.numel() + begin, dtype=kind)
    memory[begin:] = result.reshape(-1)
    return memory[begin:].view(result.shape)


def _numbers(
    generator: torch.Generator, kind: torch.dtype, values: str, sizes: Sequence[int]
) -> torch.Tensor:
    full = torch.randint(-16, 17, sizes, generator=generator)
    if values == "zeros":
        full = full * 0
    if kind is torch.bool:
        return full > 0
    if not kind.is_floating_point:
        result = (full if kind.is_signed else full.abs()).to(kind)
        info = torch.iinfo(kind)
        if values in ("special", "extreme"):
            low = info.min if kind.is_signed else info.max // 2 + 1
            most = min(info.max, 2**63 - 1)
            _scatter(generator, result, [min(low, most), most, most - 1, 0, 1])
        return result
    info = torch.finfo(kind)
    result = (full / 8).to(kind)
    if values == "random":
        result = torch.randn(sizes, generator=generator, dtype=torch.float64).to(kind)
    if values == "special":
        _scatter(generator, result, [float("nan"), float("inf"), -float("inf"), -0.0, 0.0])
    if values == "extreme":
        ends = [info.max, info.min, info.tiny, info.tiny / 4, info.eps, -1 - info.eps, 88.7, -103.9]
        _scatter(generator, result, ends)
    return result


def _scatter(generator: torch.Generator, tensor: torch.Tensor, ends: list[float]) -> None:
    if tensor.numel():
        places = torch.randint(0, tensor.numel(), (len(ends),), generator=generator)
        for place, end in zip(places.tolist(), ends, strict=True):
            tensor.view(-1)[place] = end
