"""A random program and how a seed makes one: types, layouts, sizes, reductions, gathers, writes.

In: a seed. Out: a `Program`: the text of a function, what makes its inputs, and the sizes of its
calls. What always holds: eager ran it on the CPU when it was made; what jumps is computed only from
exact values (`forms`).
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tests.random_programs.minimise import Edit, edit
from tests.triton_kernels.random_graphs.forms import GATHERS, TABLES, WRITES, Form, Kind, integral

FLOATS = ("float32", "float32", "float32", "bfloat16", "float16", "float64")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")
DTYPES = (*FLOATS, *INTEGERS, "bool")
SIZES = (1, 2, 3, 5, 7, 8, 16, 17, 33, 64, 130)
#: What a symbolic size is more by in a later call.
GROWTH = (-1, 0, 1, 6, 16)
#: Elements of a value: the interpreter walks blocks, and rows of some reductions, in Python.
MAX_ELEMENTS = 1500


@dataclass(frozen=True, slots=True)
class Program:
    """inputs: text of each, over the sizes s0, s1, s2; source: the function. steps: its calls: the
    sizes, and before how many elements of their memory the inputs begin (their addresses are then
    no multiples of 16). dynamic: compiled for sizes that change; gradients: whether floats require
    them."""

    seed: int
    inputs: tuple[str, ...]
    source: str
    steps: tuple[tuple[int, int, int, int], ...]
    dynamic: bool = False
    gradients: bool = False

    def with_source(self, source: str) -> Program:
        return replace(self, source=source)

    def function(self, wide: bool = False) -> Callable[..., Any]:
        """wide: in double precision."""
        text = self.source
        if wide:
            text = re.sub(r"torch\.(float32|bfloat16|float16)\b", "torch.float64", text)
        scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
        exec(compile(text, f"<random graph {self.seed}>", "exec"), scope)
        return scope["program"]  # type: ignore[no-any-return]

    def arguments(self, call: int, device: str = "cpu") -> list[torch.Tensor]:
        *sizes, begin = self.steps[call]
        generator = torch.Generator().manual_seed(self.seed * 7 + call)

        def filled(dtype: str, *sizes: int, special: bool = False) -> torch.Tensor:
            return _filled(generator, dtype, sizes, special, begin).to(device)

        scope: dict[str, Any] = {f"s{k}": size for k, size in enumerate(sizes)} | {"filled": filled}
        found = [eval(text, scope) for text in self.inputs]
        if self.gradients:
            found = [x.requires_grad_() if x.is_floating_point() else x for x in found]
        return found

    def __str__(self) -> str:
        inputs = "\n".join(f"# i{k} = {text}" for k, text in enumerate(self.inputs))
        about = f"# seed {self.seed}, dynamic {self.dynamic}, gradients {self.gradients}"
        return f"{about}, calls {self.steps}\n{inputs}\n{self.source}"


def _filled(
    generator: torch.Generator, dtype: str, sizes: Sequence[int], special: bool, begin: int
) -> torch.Tensor:
    """Numbers that are exact in every type; special: with NaN, infinities, -0.0, or the ends of the
    type.
    """
    kind = getattr(torch, dtype)
    full = torch.randint(-16, 17, sizes, generator=generator)
    ends: list[Any] = []
    if dtype == "bool":
        result = full > 0
    elif kind.is_floating_point:
        result, ends = full.to(kind) / 8, [float("nan"), float("inf"), -float("inf"), -0.0, 0.0]
    else:
        result = (full.abs() if dtype == "uint8" else full).to(kind)
        ends = [torch.iinfo(kind).min, torch.iinfo(kind).max]
    if special and ends and result.numel() > 4:
        places = torch.randint(0, result.numel(), (len(ends),), generator=generator)
        result.view(-1)[places] = torch.tensor(ends, dtype=kind)
    if not begin:
        return result
    memory = torch.empty(result.numel() + begin, dtype=kind)
    return memory[begin:].view(result.shape).copy_(result)


def result_edits(program: Program) -> Iterator[Edit]:
    """The program without one of its results."""
    for number, node in enumerate(ast.walk(ast.parse(program.source))):
        if (
            isinstance(node, ast.Return)
            and isinstance(node.value, ast.Tuple)
            and len(node.value.elts) > 1
        ):
            for place in range(len(node.value.elts)):
                yield edit(
                    number, "value", lambda result, place=place: bool(result.elts.pop(place))
                )  # type: ignore[misc]


def generate(seed: int) -> Program:
    rng = random.Random(seed)
    dynamic, gradients, moved = rng.random() < 0.25, rng.random() < 0.15, rng.random() < 0.1
    symbols = [max(rng.choice(SIZES), 2 if dynamic else 1) for _ in range(3)]
    steps = [(*symbols, 0)]
    if dynamic:
        steps += [(*(max(size + rng.choice(GROWTH), 2) for size in symbols), 0) for _ in range(2)]
    if moved:
        steps.append((*symbols, rng.choice((1, 2, 3))))
    inputs = tuple(_input(rng, symbols, gradients) for _ in range(rng.randint(1, 3)))
    program = Program(seed, inputs, "", tuple(steps), dynamic, gradients)  # type: ignore[arg-type]
    making = Making(rng, {f"i{k}": x.detach() for k, x in enumerate(program.arguments(0))})
    with torch.no_grad():
        for _ in range(rng.randint(2, 9)):
            making.line(writes=not gradients)
    result = [name for name in making.live if name.startswith("t")] or ["i0.clone()"]
    results = list(
        dict.fromkeys([*rng.sample(result, min(len(result), rng.randint(1, 4))), result[-1]])
    )
    body = "\n    ".join([*making.lines, f"return ({', '.join(results)},)"])
    return program.with_source(
        f"def program({', '.join(f'i{k}' for k in range(len(inputs)))}):\n    {body}\n"
    )


def _input(rng: random.Random, symbols: Sequence[int], gradients: bool) -> str:
    """Text of an input: its type, its sizes, how it lies in memory."""
    dims = rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4))
    names = [rng.choice((*[f"s{rng.randrange(len(symbols))}"] * 3, "1", "3")) for _ in range(dims)]
    count = 1
    for place, name in enumerate(names):
        count *= symbols[int(name[1:])] if name.startswith("s") else int(name)
        if count > MAX_ELEMENTS:
            names[place], count = "2", MAX_ELEMENTS // 3
    if rng.random() < 0.03 and names and not gradients:
        names[0] = "0"
    dtype = rng.choice(FLOATS[:4] if gradients else DTYPES)
    special = ", special=True" if rng.random() < 0.2 and not gradients else ""

    def made(sizes: Sequence[str]) -> str:
        return f"filled({', '.join([repr(dtype), *sizes])}{special})"

    ways = {
        made(names): 0.5,
        f"{made(names[::-1])}.permute({', '.join(str(k) for k in reversed(range(dims)))})": 0.12,
    }
    if names:
        first, last = names[0], names[-1]
        ways |= {
            f"{made([*names[:-1], f'2 * {last}'])}[..., ::2]": 0.1,
            f"{made([f'{first} + 1', *names[1:]])}[1:]": 0.1,
            f"{made(['1', *names[1:]])}.expand({', '.join(names)})": 0.08,
            f"{made([*names[:-1], f'{last} + 3'])}[..., 1:-2]": 0.05,
        }
    return made(names) if gradients or not names else rng.choices([*ways], [*ways.values()])[0]


@dataclass
class Making:
    """Mutable: a program being made. live: name -> tensor of the first call; exact: names of exact
    values.
    """

    rng: random.Random
    live: dict[str, torch.Tensor]
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.exact = set(self.live)

    def line(self, writes: bool) -> None:
        """One more, or none where nothing fits."""
        for _ in range(20):
            (forms,) = self.rng.choices(
                [forms for forms, _ in TABLES], [weight for _, weight in TABLES]
            )
            if forms is WRITES and not writes:
                continue
            try:
                if self._tried(forms, self.rng.choice(forms)):
                    return
            except (LookupError, RuntimeError, TypeError, ValueError):  # it does not fit
                continue

    def _tried(self, forms: list[Form], form: Form) -> bool:
        a = self._pick(form.kinds[0], form.needs)
        parts = {"a": a}
        if forms is GATHERS:
            small = self._pick(
                lambda x: integral(x) and x.dtype is not torch.uint8 and x.numel() <= 200, True
            )
            parts |= {
                "i": f"({small}.long() % {a}.shape[0])",
                "j": f"({small}.long() % {a}.shape[-1] - {a}.shape[-1])",
            }
        elif len(form.kinds) > 1:
            parts["b"] = self._beside(a, form.kinds[1], form.needs)
        if "{d}" in form.text:
            parts["d"] = str(self._dim(a))
        text = form.text.format(**parts)
        scope = {"torch": torch, "F": torch.nn.functional, **self.live}
        if forms is WRITES:
            return self._written(text, parts, scope)
        result = eval(text, scope)
        if (
            not isinstance(result, torch.Tensor)
            or result.numel() > MAX_ELEMENTS
            or result.dim() > 5
        ):
            return False
        name = f"t{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        self.live[name] = result
        operands = {a, parts.get("b", a)}
        if operands <= self.exact and (form.keeps or not result.is_floating_point()):
            self.exact.add(name)
        return True

    def _written(self, text: str, parts: dict[str, str], scope: dict[str, Any]) -> bool:
        """A write to a tensor of the program: what shares its memory is written, too."""
        target = self.live[parts["a"]]
        home = target.untyped_storage().data_ptr()
        exec(text, scope)
        self.lines.append(text)
        if parts["b"] not in self.exact or target.is_floating_point():
            self.exact -= {
                name for name, x in self.live.items() if x.untyped_storage().data_ptr() == home
            }
        return True

    def _pick(self, wanted: Kind, exact: bool) -> str:
        """A name, rather a late one. Raises LookupError where none fits."""
        names = [n for n, x in self.live.items() if wanted(x) and (not exact or n in self.exact)]
        if not names:
            raise LookupError
        return self.rng.choice(names[-6:] if self.rng.random() < 0.6 else names)

    def _beside(self, name: str, wanted: Kind, exact: bool) -> str:
        """A name of a tensor that broadcasts with it."""

        def fits(x: torch.Tensor) -> bool:
            pairs = zip(reversed(x.shape), reversed(self.live[name].shape), strict=False)
            return wanted(x) and all(a == b or 1 in (a, b) for a, b in pairs)

        return self._pick(fits, exact)

    def _dim(self, name: str) -> int:
        dims = self.live[name].dim()
        if not dims:
            raise LookupError
        return self.rng.randrange(-dims, dims)
