"""One form of a statement of an operator program, and how many of them are written at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tests.operator_programs.rules import Rule, signed, without_infinity

Kind = Callable[[torch.Tensor], bool]


def anything(x: torch.Tensor) -> bool:
    return True


def floating(x: torch.Tensor) -> bool:
    return x.is_floating_point()


def integral(x: torch.Tensor) -> bool:
    return not x.is_floating_point() and not x.is_complex() and x.dtype is not torch.bool


def real(x: torch.Tensor) -> bool:
    return not x.is_complex()


def inexact(x: torch.Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def boolean(x: torch.Tensor) -> bool:
    return x.dtype is torch.bool


@dataclass(frozen=True, slots=True)
class Form:
    """kinds: what a, b and c have to be. function: the text is the call of a function of torch, which
    may be had in place and with ``out=``, too. writes: it changes a."""

    text: str
    kinds: tuple[Kind, ...] = (anything,)
    rules: tuple[Rule, ...] = ()
    function: bool = False
    writes: bool = False


def lines_of(texts: str) -> list[str]:
    return [line.strip() for line in texts.strip().splitlines()]


def forms(
    texts: str, *kinds: Kind, rules: tuple[Rule, ...] = (), writes: bool = False
) -> list[Form]:
    return [Form(text, kinds or (anything,), rules, writes=writes) for text in lines_of(texts)]


def functions(names: str, arguments: str, *kinds: Kind, rules: tuple[Rule, ...] = ()) -> list[Form]:
    return [
        Form(f"{name}({arguments})", kinds, (*rules, *RULES.get(name, ())), function=True)
        for name in names.split()
    ]


#: Rules of some functions of a group.
RULES = {
    **dict.fromkeys(("copysign", "signbit"), (signed,)),
    **dict.fromkeys(("var_mean", "std_mean"), (without_infinity,)),
}
