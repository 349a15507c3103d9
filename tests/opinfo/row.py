"""One row of the sweep: an operator in one dtype, all its cases, compiled in groups.

In: the operator's name and dtype. Out: a dict that JSON can hold: the status of the row, what
differed, which operators ran as ATen's, which eagerly, where capture broke. What always holds: each
case is run eagerly and compiled on copies of the same inputs, from the same random state; a group
that differs anywhere is run again case by case, so that the row names the call.

Many cases are one program, since a C++ build costs the same for one kernel and for twenty.
"""

from __future__ import annotations

import contextlib
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

import tracer_core
from inductor_backend.ir.target import interpreted
from inductor_backend.pipeline import compile_graph
from inductor_backend.plugin import BACKEND
from tests.opinfo.cases import KINDS, Case, spread
from tests.opinfo.judge import Outcome, differs
from tests.opinfo.unusual import EAGER_ASSERTS, NO_VALUES, UNSET_PARTS
from tests.opinfo.values import Rounding, copied, leaves, nudged, rebuild, tensors, widened
from tracer_core.debug.stages import recording
from tracer_core.plugin_api import hookimpl

#: Cases of one program.
GROUP = 24
#: How often a call is made with its numbers moved by rounding, to see how far results move.
MOVES = 3
#: Calls of a kind that eager refuses and that are tried at most: each is a program of its own.
REFUSED = 6
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (
    torch.float32, torch.float64, torch.bfloat16, torch.float16,
    torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64,
)}  # fmt: skip


def operators() -> dict[str, Any]:
    """Name -> OpInfo; variants of an operator have names of their own."""
    from tests.support.opinfo_database import (
        op_db,  # heavy: seconds, also where tests are only collected
    )

    return {op.formatted_name: op for op in op_db}


def rows(device: str = "cpu") -> list[tuple[str, str]]:
    """All (operator, dtype) that eager has there."""
    return [
        (name, short)
        for name, op in sorted(operators().items())
        for short, dtype in DTYPES.items()
        if op.supports_dtype(dtype, device)
    ]


@dataclass(eq=False)
class Seen:
    """Mutable: what compiling did, since the row began. triton: kernels are Triton's, which its
    interpreter runs.
    """

    triton: bool = False
    kernels: int = 0
    externs: Counter[str] = field(default_factory=Counter)
    eager: Counter[str] = field(default_factory=Counter)
    breaks: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def compile(self, gm: torch.fx.GraphModule, spec: Any) -> Any:
        start = time.perf_counter()
        with interpreted() if self.triton else contextlib.nullcontext():
            runner = compile_graph(gm, spec)
        self.seconds += time.perf_counter() - start
        artifact = runner.artifact  # not of one that has several
        if artifact is not None:
            self.kernels += artifact.kernels
            self.externs.update(artifact.externs)
        return runner

    def fallbacks(self, records: list[Any]) -> None:
        self.eager.update(_reason(record.text) for record in records if record.name == "fallback")

    @hookimpl
    def tracer_graph_break(self, kind: str, reason: str, location: str, hint: str) -> None:
        self.breaks[f"{kind}: {_reason(reason)}"] += 1


def _reason(text: str) -> str:
    """A reason without numbers of the graph, short enough for a table."""
    return re.sub(r"graph_\d+\S*|0x[0-9a-f]+", "", text.splitlines()[0] if text else "")[:300]


@contextlib.contextmanager
def watching(triton: bool = False) -> Iterator[tuple[Seen, Any]]:
    """What happens meanwhile, and the backend to compile with."""
    seen = Seen(triton)
    unregister = tracer_core.register(seen)
    try:
        with recording(seen) as records:
            yield seen, replace(BACKEND, compile=seen.compile)
        seen.fallbacks(records)
    finally:
        unregister()


# --- running
# -----------------------------------------------------------------------------------------

Inputs = list[tuple[tuple[Any, ...], dict[str, Any]]]


def program(functions: list[Any]) -> Callable[[Inputs], list[Any]]:
    """What is compiled: the calls of several cases, one after another."""

    def calls(inputs: Inputs) -> list[Any]:
        results = []
        for function, (args, kwargs) in zip(functions, inputs):
            results.append(function(*args, **kwargs))
        return results

    return calls


def out_of_range(case: Case) -> bool:
    """Whether it reads outside of a tensor: eager tells so on the CPU; a GPU stops, for all that
    comes after.
    """
    inputs = rebuild((case.args, case.kwargs), _to_cpu)
    try:
        with torch.no_grad():
            case.function(*inputs[0], **inputs[1])
    except Exception as error:
        text = f"{type(error).__name__} {error}".lower()
        return any(
            word in text for word in ("out of bound", "out of range", "index", "target", "size 0")
        )
    return False


def _to_cpu(leaf: Any) -> Any:
    if isinstance(leaf, torch.device):
        return torch.device("cpu")
    if isinstance(leaf, str) and leaf.startswith("cuda"):
        return "cpu"
    if not isinstance(leaf, torch.Tensor):
        return leaf
    here = leaf.detach().cpu()
    return (
        here.float() if here.dtype in (torch.bfloat16, torch.float16) else here
    )  # not all kernels have them there


@contextlib.contextmanager
def _quietly(default: torch.dtype = torch.float32) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_default_dtype(before)


def outcomes(run: Callable[[Inputs], list[Any]], inputs: Inputs, gradients: bool) -> list[Outcome]:
    """What each call of a program gives; one Outcome with the exception for all where it raises."""
    torch.manual_seed(1234)
    try:
        with contextlib.nullcontext() if gradients else torch.no_grad():
            results = run(inputs)
        actual = _gradients(results, inputs) if gradients else [[] for _ in inputs]
    except Exception as error:
        return [Outcome(error=error.with_traceback(None))]
    return [
        Outcome(result, list(leaves(value)), mine)
        for result, value, mine in zip(results, inputs, actual, strict=True)
    ]


def _blanked(result: Any, unset: Sequence[int]) -> Any:
    """A tuple with zeros for its parts that nobody has set: their sizes and dtypes are compared."""
    if not isinstance(result, (tuple, list)):
        return result
    return type(result)(torch.zeros_like(x) if k in unset else x for k, x in enumerate(result))


def _gradients(results: list[Any], inputs: Inputs) -> list[list[Any]]:
    """Gradients of each call's inputs, for cotangents that are the same in every run and exact in
    every dtype.
    """
    ends = [leaf for leaf in tensors(results) if leaf.requires_grad]
    starts = [[leaf for leaf in tensors(value) if leaf.requires_grad] for value in inputs]
    if not ends:
        return [[] for _ in inputs]
    weights = [weight for result in results for weight in _cotangents(result)]
    actual = iter(
        torch.autograd.grad(
            ends, [leaf for own in starts for leaf in own], weights, allow_unused=True
        )
    )
    return [[next(actual) for _ in own] for own in starts]


def _cotangents(result: Any) -> list[torch.Tensor]:
    """Of one call: the same whether it is compiled alone or with others, and in double
    precision.
    """
    generator = torch.Generator().manual_seed(7)
    ends = (leaf for leaf in tensors(result) if leaf.requires_grad)
    return [
        torch.rand(end.shape, generator=generator, dtype=torch.float32)
        .bfloat16()
        .to(end.device, end.dtype)
        for end in ends
    ]


@dataclass(frozen=True, slots=True)
class Problem:
    """kind: wrong (an answer differs) or failed (an exception differs)."""

    kind: str
    case: str
    text: str


class Row:
    """Mutable: an operator in one dtype, being run. options: of the backend. triton: see `Seen`."""

    def __init__(
        self,
        name: str,
        dtype: torch.dtype,
        limit: int,
        tell: Callable[[str], None],
        device: str = "cpu",
        options: dict[str, Any] | None = None,
        triton: bool = False,
    ) -> None:
        self.triton = triton
        self.device, self.options = device, options
        self.name, self.dtype, self.limit, self.tell = name, dtype, limit, tell
        self.op = operators()[name]
        self.values = self.op.name not in NO_VALUES
        self.problems: list[Problem] = []
        self.count: Counter[str] = Counter()
        self.seen: dict[str, Seen] = {}

    def run(self, kinds: Sequence[str] = tuple(KINDS)) -> dict[str, Any]:
        start = time.perf_counter()
        with _quietly():
            for kind in kinds:
                self.kind(kind, list(KINDS[kind](self.op, self.dtype, self.limit, self.device)))
        return self.report(time.perf_counter() - start)

    def kind(self, kind: str, cases: list[Case]) -> None:
        """All cases of a kind: those that eager takes in groups, the others one by one."""

        if self.device != "cpu":
            cases = [case for case in cases if not out_of_range(case)]
        refused = [case for case in cases if self.eager([case])[0].error is not None]
        for case in spread(refused, REFUSED if self.limit else 0):
            self.alone(case)
        self.count[kind] = len(cases) - max(0, len(refused) - REFUSED if self.limit else 0)
        good = [case for case in cases if case not in refused]
        with watching(self.triton) as (seen, backend):
            self.seen[kind] = seen
            groups = [good[begin : begin + GROUP] for begin in range(0, len(good), GROUP)]
            doubtful = [(group, *self.together(group, backend)) for group in groups]
        for group, suspects, text in doubtful:
            if suspects:
                self.among(group, suspects, text)

    def eager(self, cases: list[Case]) -> list[Outcome]:
        self.tell("eagerly: " + ", ".join(case.name for case in cases))
        return self.outcomes(program([case.function for case in cases]), cases)

    def compiled(self, cases: list[Case], backend: Any) -> list[Outcome]:
        tracer_core.reset()
        self.tell(", ".join(case.name for case in cases))
        run = tracer_core.compile(
            program([case.function for case in cases]), backend=backend, options=self.options
        )
        return self.outcomes(run, cases)

    def outcomes(
        self, run: Any, cases: list[Case], change: Callable[[Any], Any] = copied
    ) -> list[Outcome]:
        inputs = [change((case.args, case.kwargs)) for case in cases]
        actual = outcomes(run, inputs, cases[0].kind == "backward")
        unset = UNSET_PARTS.get(self.op.name, ())
        return [
            replace(item, result=_blanked(item.result, unset)) if unset else item for item in actual
        ]

    def together(self, cases: list[Case], backend: Any) -> tuple[list[Case], str]:
        """Which cases of a group in one program are not as eager, and what differs."""
        expected, actual = self.eager(cases), self.compiled(cases, backend)
        raised = [repr(item.error) for item in (*expected, *actual) if item.error]
        if raised:
            return cases, f"raised {raised}"
        triples = zip(cases, expected, actual, strict=True)
        result = {case.name: differs(e, a, self.exact(case), self.values) for case, e, a in triples}
        suspects = [case for case in cases if result[case.name]]
        return suspects, "; ".join(f"{case.name}: {result[case.name]}" for case in suspects)

    def among(self, group: list[Case], suspects: list[Case], text: str) -> None:
        """A group that differs: its suspects on their own; where nothing is known, halves of it
        first.
        """
        before = len(self.problems)
        self.narrow(suspects, halve=suspects is group)
        if len(self.problems) == before:
            kind = "failed" if text.startswith("raised") else "wrong"
            names = ", ".join(case.name for case in suspects[:3])
            self.problems.append(Problem(kind, names, f"only together with others: {text[:500]}"))

    def narrow(self, cases: list[Case], halve: bool) -> None:
        if not halve or len(cases) <= 2:
            for case in cases:
                self.alone(case)
            return
        middle = len(cases) // 2
        for part in (cases[:middle], cases[middle:]):
            with watching(self.triton) as (_, backend):
                suspects, _ = self.together(part, backend)
            if suspects:
                self.narrow(suspects, halve=suspects is part)

    def alone(self, case: Case) -> None:
        (expected,) = self.eager([case])
        with watching(self.triton) as (_, backend):
            (actual,) = self.compiled([case], backend)
        problem = differs(expected, actual, self.exact(case), self.values)
        if actual.error is None and self.asserts(expected.error):
            problem = None
        if problem:
            kind = "wrong" if actual.error is None else "failed"
            self.problems.append(Problem(kind, case.name, problem[:600]))

    def asserts(self, error: BaseException | None) -> bool:
        """Whether eager stumbled over itself: the compiled program need not."""
        text = EAGER_ASSERTS.get(self.op.name)
        return text is not None and text in str(error) and "INTERNAL ASSERT FAILED" in str(error)

    def exact(self, case: Case) -> Callable[[], tuple[Outcome | None, list[Outcome]]]:
        """The case in double precision, and several times with all numbers off by their
        rounding.
        """

        def compute() -> tuple[Outcome | None, list[Outcome]]:
            precision = (
                self.dtype
                if self.dtype.is_floating_point or self.dtype.is_complex
                else torch.float32
            )
            epsilon = torch.finfo(precision).eps / 2
            functions = program([case.function])
            with _quietly(torch.float64):
                (true,) = self.outcomes(functions, [case], widened)
                moved = []
                for seed in range(MOVES):
                    with Rounding(seed, epsilon):
                        moved += self.outcomes(
                            functions,
                            [case],
                            lambda v, seed=seed: nudged(widened(v), seed, epsilon),
                        )
            return true, moved

        return compute

    def report(self, seconds: float) -> dict[str, Any]:
        kinds = [problem.kind for problem in self.problems]
        status = "wrong" if "wrong" in kinds else "failed" if kinds else "passed"
        externs: Counter[str] = sum((seen.externs for seen in self.seen.values()), Counter())
        return {
            "op": self.name,
            "dtype": str(self.dtype).removeprefix("torch."),
            "status": status,
            "cases": dict(self.count),
            "problems": [[p.kind, p.case, p.text] for p in self.problems[:12]],
            "problem_count": len(self.problems),
            "kernels": sum(seen.kernels for seen in self.seen.values()),
            "externs": dict(externs),
            "eager": dict(sum((seen.eager for seen in self.seen.values()), Counter())),
            "breaks": dict(sum((seen.breaks for seen in self.seen.values()), Counter())),
            "seconds": round(seconds, 2),
            "compile_seconds": round(sum(seen.seconds for seen in self.seen.values()), 2),
        }
