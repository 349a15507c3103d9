"""Joins the guards on tensors that are fetched in each call into one call of `guards.learned_tensors`.

The gradients that an optimizer reads are new tensors in every step. In: the lines of a cache entry
that fetch and check values in each call. Out: the same lines, in which a run of guards on tensors
is one call of the C helper, followed by the guards themselves for tensors that it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tracer_core.guards.guard import Guard, GuardKind
from tracer_core.torch_private import BASE_TENSOR_TYPES

#: Fewer tensors are checked one by one.
_FEWEST = 4
_FETCH = re.compile(r"v\d+ = ")
_VARIABLE = re.compile(r"\bv\d+\b")


class TensorCheck(str):
    """The line of a guard that the C helper has a fast answer for (`has_fast_answer`). value: the
    variable of the tensor."""

    value: str

    def __new__(cls, line: str, value: str) -> TensorCheck:
        check = super().__new__(cls, line)
        check.value = value
        return check


def has_fast_answer(guard: Guard) -> bool:
    """Returns whether `learned_tensors` can tell that a guard holds: on a plain tensor of constant
    sizes and strides that requires no gradient."""
    if guard.kind is not GuardKind.TENSOR:
        return False
    facts = guard.expected
    if facts.type not in BASE_TENSOR_TYPES or facts.stride is None:
        return False
    return None not in facts.shape and not facts.requires_grad


def joined(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns (lines of the module, lines of its function) with runs of `TensorCheck` joined."""
    texts: list[str] = []
    called: list[str] = []
    for run in _runs(lines):
        checks = [line for line in run if isinstance(line, TensorCheck)]
        if len(checks) < _FEWEST:
            called += run
            continue
        name = f"known_{len(texts)}"
        texts.append(f"{name}, learn_{name} = watch_tensors({tuple(range(len(checks)))!r})")
        tensors = f"({', '.join(check.value for check in checks)})"
        called += [line for line in run if not isinstance(line, TensorCheck)]
        # no variable for the tuple, which would keep gradients alive while the graph runs
        called += [f"if not {name}({tensors}):"]
        called += [*(f"    {line}" for line in checks), f"    learn_{name}({tensors})"]
    return texts, called


def _runs(lines: Sequence[str]) -> Iterator[list[str]]:
    """Yields the lines in groups. In one group with checks are, beside these, only fetches that use
    no checked variable, and so may come before the checks."""
    run: list[str] = []
    checked: set[str] = set()
    for line in lines:
        is_check = isinstance(line, TensorCheck)
        is_fetch = _FETCH.match(line) is not None and checked.isdisjoint(_VARIABLE.findall(line))
        if run and not is_check and not is_fetch:
            yield run
            run, checked = [], set()
        run.append(line)
        if isinstance(line, TensorCheck):
            checked.add(line.value)
    if run:
        yield run
