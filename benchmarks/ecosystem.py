"""The ecosystem: do programs of the libraries on top of PyTorch run right, whole and fast?

In: words in names of `benchmarks.ecosystem_programs`, or nothing for all. Out: a table with a row a
program: equal to eager, graphs and graph breaks, milliseconds of a settled call and seconds of the
first, ours and torch.compile's, each beside eager's in the same process. ``--page`` writes the table
to docs/ecosystem.md.

How it is measured: a program gets a process of its own for each compiler, with one thread: a fork of
one that has imported the libraries and compiled another program. Three calls with different inputs
are compared with eager's: results, arguments afterwards, gradients, modules and optimizers, the
state of the random generator. After some calls more eager and compiled take turns in rounds; a
figure is the median of the rounds' processor time a call, so that other work on the machine counts
little. What always holds: rows are resumable; a program that dies or takes too long costs
its own row only; a program whose library is missing is a row "not installed".
"""

from __future__ import annotations

import collections
import contextlib
import importlib.metadata
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.ecosystem_programs import ECOSYSTEM, Program
from benchmarks.forks import forked, short
from benchmarks.timing import Plan, alternate, geometric_mean, milliseconds, table

PAGE = harness.ROOT / "docs" / "ecosystem.md"
COMPILERS = ("ours", "torch")
#: Seconds for one program and compiler.
LIMIT = 240.0
CALLS = 3
_CALL_SEED = 7
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
_PLAN = Plan(rounds=5, seconds=0.15, least=3, clock=time.process_time)
#: Calls before those that are timed, and seconds of them at most: a compiler may compare its code
#: with eager mode first, or compile what is called often again.
_WARMING_UP, _WARM_UP_SECONDS = 64, 5.0
#: Compiled calls that take longer than this share of eager's are called slower.
_SLOWER = 1.05


def main(arguments: Sequence[str]) -> int:
    """Measures what is not there yet and prints all; 1 if one of ours failed or is not equal."""
    parser = harness.options("ecosystem", __doc__, limit=LIMIT)
    parser.add_argument("programs", nargs="*", default=[], metavar="WORD")
    parser.add_argument("--compilers", nargs="*", default=COMPILERS, choices=COMPILERS)
    parser.add_argument("--jobs", type=int, default=1, help="programs at a time")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument(
        "--peer",
        type=Path,
        help="results of another machine, for torch.compile's rows that are not here",
    )
    chosen = parser.parse_args(arguments)
    names = [n for n in ECOSYSTEM if not chosen.programs or any(w in n for w in chosen.programs)]
    if not names:
        parser.error("no program has such a word in its name")
    harness.warm_up_files()
    store = harness.Store("ecosystem", again=chosen.again)
    for compiler in chosen.compilers:
        _measure(store, names, compiler, chosen.limit, chosen.jobs)
    if chosen.peer:
        store = _with_peer(store, chosen.peer)
    print(table(_HEAD, [_line(name, store) for name in names]))
    if chosen.page:
        PAGE.write_text(page(store, chosen.peer), encoding="utf-8")
    result = [store.rows.get(_key(name, "ours"), {}) for name in names]
    print("\n" + "\n".join(summary(names, store)))
    return 0 if all(row.get("equal") or "missing" in row for row in result) else 1


def _with_peer(store: harness.Store, path: Path) -> harness.Store:
    """Returns the rows of a store, with torch.compile's of another machine where it has none."""
    both = harness.Store("ecosystem", keep=False)
    peer = harness.Store("ecosystem", path=path).rows
    both.rows.update(
        {key: row for key, row in peer.items() if key.endswith("| torch")} | store.rows
    )
    return both


def _key(name: str, compiler: str) -> str:
    return f"{name} | {compiler}"


def _measure(
    store: harness.Store, names: Sequence[str], compiler: str, limit: float, jobs: int
) -> None:
    """Measures the programs whose rows are not there yet, those of a library by one process."""
    waiting = [name for name in names if store.stored(_key(name, compiler)) is None]
    shares = [waiting[n :: min(jobs, len(waiting))] for n in range(min(jobs, len(waiting)))]
    lock = threading.Lock()

    def kept(name: str, row: dict[str, Any]) -> None:
        with lock:
            store.put(_key(name, compiler), row)
            print(f"{_key(name, compiler)}: {_told(row)}", flush=True)

    def answer(share: Sequence[str]) -> None:
        queue = list(share)[::-1]
        while queue:
            with harness.worker(serve, compiler, limit, environment=_ENVIRONMENT) as child:
                while queue:
                    name = queue.pop()
                    try:
                        kept(name, child.ask(name, limit=2 * limit + 60))
                    except harness.Failed as error:  # of the process itself, which is replaced
                        kept(name, {"failed": str(error)[-700:]})
                        break

    with ThreadPoolExecutor(max(1, len(shares))) as pool:
        for done in [pool.submit(answer, share) for share in shares]:
            done.result()


def _told(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"FAILED {row['failed']}"
    if "missing" in row:
        return f"not installed: {row['missing']}"
    text = f"{row['graphs']} graphs, {len(row['breaks'])} breaks, "
    text += "equal" if row["equal"] else f"NOT EQUAL {row['error']}"
    if "ms" in row:
        text += f", {row['ms']:.3f} ms, eager {row['eager_ms']:.3f}, first {row['first_s']:.1f} s"
    return text


# One program --------------------------------------------------------------------------------------


def serve(compiler: str, limit: float) -> Callable[[str], dict[str, Any]]:
    """In a child: what answers a program's name with its row."""
    from tests.support import torchvision_ops

    warnings.simplefilter("ignore")
    torchvision_ops.define()
    with _WATCHERS[compiler]({}):  # imports the compiler
        pass
    forked(_warm_up, compiler, limit=limit)

    def answer(name: str) -> dict[str, Any]:
        with contextlib.suppress(Exception):  # the fork says what is wrong with it
            ECOSYSTEM[name].make()  # imports its libraries, for this program and the next
        row: dict[str, Any] = forked(measure, name, compiler, limit=limit)
        return row

    return answer


def _warm_up(compiler: str) -> None:
    """Compiles a program that is none of the ecosystem's, so that the caches hold what every
    program needs."""
    import torch

    net = torch.nn.Linear(4, 4)
    with _WATCHERS[compiler]({}) as (compile_, _):
        compile_(net)(torch.randn(3, 4)).relu().sum().backward()


def measure(name: str, compiler: str) -> dict[str, Any]:
    """In a fork: the row of one program and compiler."""
    program = ECOSYSTEM[name]
    try:
        row = _measured(program, compiler)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in (*harness.OURS, "benchmarks"):
            raise
        return {"missing": error.name}
    return row | {"library": _version(program.library)}


def _version(library: str) -> str:
    """The version of a library whose name is its distribution's; torch's for its own parts."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _measured(program: Program, compiler: str) -> dict[str, Any]:
    simple, target = program.make(), program.make()
    row: dict[str, Any] = {"equal": True, "random": False}
    with _WATCHERS[compiler](row) as (compile_, watched):
        compiled = compile_(target.function)
        for number in range(CALLS):
            try:
                want = _call(program, simple, simple.function, number)
                start = time.perf_counter()
                got = _call(program, target, compiled, number)
                row.setdefault("first_s", round(time.perf_counter() - start, 3))
                watched(compiled, number)
                row["random"] |= want.random
                _compare(program, number, want, got, rng=compiler == "ours")
            except Exception as error:
                watched(compiled, number)
                row.update(equal=False, call=number, error=short(error, 300))
                if got_no_further(error):
                    return row
                break
    row.update(_timed(program, simple, target, compiled))
    return row


def got_no_further(error: Exception) -> bool:
    """Whether a call raised, so that there is nothing to time; a difference can be timed."""
    return not isinstance(error, AssertionError)


class _Called:
    """What can be seen of one call."""

    def __init__(self, result: Any, arguments: Any, state: Any, random: bool, rng: Any) -> None:
        self.result, self.arguments, self.state = result, arguments, state
        self.random, self.rng = random, rng


def _call(program: Program, output: Any, function: Callable[..., Any], number: int) -> _Called:
    """Calls the function, as the program's user would, and looks at what it left behind."""
    import torch

    from benchmarks.ecosystem_programs.program import seed

    arguments = output.arguments(number)
    modules = [
        item for item in (output.function, *output.state) if isinstance(item, torch.nn.Module)
    ]
    if program.gradients == "caller":
        for module in modules:
            module.zero_grad()
    seed(_CALL_SEED)
    before = torch.get_rng_state()
    result = _run(program, function, arguments)
    rng = torch.get_rng_state()
    if program.gradients == "caller":
        _loss(result).backward()
    grads = [item.grad for item in arguments if isinstance(item, torch.Tensor) and item.is_leaf]
    state = [grads]
    for item in (*modules, *(s for s in output.state if not isinstance(s, torch.nn.Module))):
        state.append(_state(item))
    return _Called(result, arguments, state, not torch.equal(before, rng), rng)


def _run(program: Program, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    import torch

    with torch.set_grad_enabled(program.gradients != "none"):
        return function(*arguments)


def _loss(result: Any) -> Any:
    """One number whose gradient reaches every result that has one."""
    import torch

    from tracer_core.testing import tensors_in

    parts = [
        torch.view_as_real(t).pow(2).mean()
        if t.is_complex()
        else t.to_dense().float().pow(2).mean()
        for t in tensors_in(result)
        if t.requires_grad
    ]
    return torch.stack([part.float() for part in parts]).sum()


def _state(item: Any) -> Any:
    """A copy of what a module or an optimizer holds; of anything else, itself."""
    import copy

    import torch

    if isinstance(item, torch.nn.Module):
        parts = {name: value for name, value in item.state_dict().items()}
        grads = {name: value.grad for name, value in item.named_parameters()}
        return copy.deepcopy(({k: _plain(v) for k, v in parts.items()}, grads))
    if hasattr(item, "state_dict"):
        return copy.deepcopy(item.state_dict())
    return copy.deepcopy(item)


def _plain(value: Any) -> Any:
    """A tensor without its history; the numbers of a quantised one."""
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    quantised = type(value) not in (torch.Tensor, torch.nn.Parameter)
    with torch.no_grad():
        return value.dequantize() if quantised else value.detach()


def _compare(program: Program, number: int, want: _Called, got: _Called, *, rng: bool) -> None:
    """Raises Mismatch where the calls differ. rng: random numbers are to be eager's own."""
    import torch

    from tracer_core.testing import Mismatch, Tolerance, compare

    tolerance = Tolerance(rtol=program.rtol, atol=program.atol)
    compare(want.result, got.result, tolerance, f"call {number}: result")
    compare(want.arguments, got.arguments, tolerance, f"call {number}: arguments")
    compare(want.state, got.state, tolerance, f"call {number}: state")
    if rng and not torch.equal(want.rng, got.rng):
        raise Mismatch(f"call {number}", "another state of the random generator")


def _timed(program: Program, simple: Any, target: Any, compiled: Any) -> dict[str, float]:
    """Milliseconds of a settled call, eager and compiled by turns, with the backward where the
    program has one."""
    arguments = simple.arguments(CALLS)

    def calls(function: Callable[..., Any]) -> Callable[[], None]:
        def call() -> None:
            result = _run(program, function, arguments)
            if program.gradients == "caller":
                _loss(result).backward()

        return call

    turns = {"eager": calls(simple.function), "compiled": calls(compiled)}
    for call in turns.values():
        start = time.perf_counter()
        for _ in range(_WARMING_UP):
            call()
            if time.perf_counter() - start > _WARM_UP_SECONDS:
                break
    results = alternate(turns, (), {}, _PLAN)
    eager, settled = (statistics.median(results[name]) for name in ("eager", "compiled"))
    ratios = [a / b for a, b in zip(results["eager"], results["compiled"], strict=True)]
    return {
        "eager_ms": round(eager * 1e3, 4),
        "ms": round(settled * 1e3, 4),
        "speed_up": round(statistics.median(ratios), 3),
    }


@contextlib.contextmanager
def _watch_ours(row: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Counts what tracer_core captures. Yields compile and what is called after each call."""
    import tracer_core
    from tracer_core.markers import compiled as compiled_mark
    from tracer_core.testing import CaptureCounter

    with harness.noted_fallbacks() as fallbacks, CaptureCounter() as counter:

        def watched(compiled: Any, number: int) -> None:
            if number == 0:
                row["graphs"] = len(counter.graphs)
                row["breaks"] = [f"{kind}: {why}"[:200] for kind, why, _ in counter.breaks]
            row["fallbacks"] = fallbacks
            row["recompiles"] = [why[:200] for _, why in counter.recompiles]
            mark = compiled_mark(compiled)
            row["native"] = list(mark.function.abandoned) if mark is not None else []

        yield tracer_core.compile, watched


@contextlib.contextmanager
def _watch_torch(row: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """The same for torch.compile."""
    import torch
    from torch._dynamo.utils import counters

    def watched(compiled: Any, number: int) -> None:
        if number == 0:
            row["graphs"] = counters["stats"]["unique_graphs"]
            breaks: collections.Counter[str] = counters["graph_break"]
            row["breaks"] = [
                text.partition("\n")[0][:200] for text, n in breaks.items() for _ in range(n)
            ]

    yield torch.compile, watched


_WATCHERS = {"ours": _watch_ours, "torch": _watch_torch}

# The table ----------------------------------------------------------------------------------------

_HEAD = (
    "program",
    "equal",
    "graphs",
    "breaks",
    "ms",
    "speed-up",
    "first s",
    "torch: equal",
    "graphs",
    "breaks",
    "ms",
    "speed-up",
    "first s",
    "eager ms",
)


def _line(name: str, store: harness.Store) -> list[str]:
    ours, torch = (store.rows.get(_key(name, compiler), {}) for compiler in COMPILERS)
    eager = ours.get("eager_ms", torch.get("eager_ms"))
    return [name, *_cells(ours, "ours"), *_cells(torch, "torch"),
            "" if eager is None else milliseconds(eager / 1e3)]  # fmt: skip


def _cells(row: dict[str, Any], compiler: str) -> list[str]:
    """Equal, graphs, breaks, milliseconds, speed-up, first call of one compiler."""
    if "graphs" not in row:
        return [_judged(row, compiler), *[""] * 5]
    speed = [milliseconds(row["ms"] / 1e3), f"{row['speed_up']:.2f}"] if "ms" in row else ["", ""]
    first = f"{row['first_s']:.1f}" if "first_s" in row else ""
    return [_judged(row, compiler), str(row["graphs"]), str(len(row["breaks"])), *speed, first]


def _judged(row: dict[str, Any], compiler: str) -> str:
    """Yes, NO, raises, and why there is no answer. torch.compile uses rng of its own
    by default, so that a difference there says nothing."""
    if not row:
        return ""
    if "missing" in row:
        return "not installed"
    if "failed" in row:
        return "late" if row["failed"].startswith("no answer") else "DIED"
    if row["equal"]:
        return "yes"
    if "ms" not in row:
        return "RAISES"
    return "random" if row["random"] and compiler == "torch" else "NO"


def summary(names: Sequence[str], store: harness.Store) -> list[str]:
    """What the rows come to, a sentence each."""
    lines = [f"{len(names)} programs of {len({ECOSYSTEM[n].library for n in names})} libraries."]
    both = []
    for compiler, title in (("ours", "tracer-core"), ("torch", "torch.compile")):
        rows = {n: store.rows[_key(n, compiler)] for n in names if _key(n, compiler) in store.rows}
        judged = collections.Counter(_judged(row, compiler) for row in rows.values())
        good = [n for n, row in rows.items() if row.get("equal")]
        item = [n for n in good if rows[n]["graphs"] == 1 and not rows[n]["breaks"]]
        broken = [n for n in good if rows[n]["breaks"]]
        speeds = [rows[n]["speed_up"] for n in good]
        if not rows:
            continue
        slower = sum(1 / speed > _SLOWER for speed in speeds)
        lines.append(
            f"{title}: " + ", ".join(f"{n} {text}" for text, n in judged.most_common())
            + f"; of the equal ones {len(item)} are one graph, {len(broken)} have graph breaks, "
            f"{slower} are slower than eager; speed-up over eager, geometric mean "
            f"{geometric_mean(speeds):.2f}."
        )  # fmt: skip
        both.append({n: rows[n] for n in good})
    if len(both) == 2:
        shared = [n for n in both[0] if n in both[1]]
        ratios = [both[0][n]["speed_up"] / both[1][n]["speed_up"] for n in shared]
        firsts = [both[1][n]["first_s"] / both[0][n]["first_s"] for n in shared]
        lines.append(
            f"Equal under both: {len(shared)}; there tracer-core's call in steady state is "
            f"{geometric_mean(ratios):.2f} times as fast as torch.compile's and its first call "
            f"{geometric_mean(firsts):.1f} times."
        )
    return lines


def _linked(path: Path) -> str:
    return f"[{path.name}](../{path.relative_to(harness.ROOT).as_posix()})"


def page(store: harness.Store, peer: Path | None = None) -> str:
    """docs/ecosystem.md. peer: where torch.compile's rows are from."""
    names = list(ECOSYSTEM)
    rows = [_line(name, store) for name in names]
    head = ["program", *_HEAD[1:]]
    lines = [
        "# The ecosystem",
        "",
        "Small programs of libraries on top of PyTorch, each in a fresh process, in eager mode and compiled",
        "by tracer-core and torch.compile with their defaults. The programs are in",
        "[ecosystem_programs](../benchmarks/ecosystem_programs/); `nox -s ecosystem` installs the libraries.",
        "Generated by `python -m benchmarks ecosystem --page` from",
        _linked(store.path)
        + (f", torch.compile's rows from\n{_linked(peer.resolve())}" if peer else "")
        + ".",
        "",
        "| column | meaning |",
        "|---|---|",
        "| equal | results, arguments, gradients, modules and optimizers after three calls with different"
        " inputs, and for tracer-core the state of the random generator; `random`: torch.compile draws other"
        " random numbers than eager, as it does by default |",
        "| ms | processor time of a call in steady state with one thread (with its backward where the program"
        " is trained) |",
        "| speed-up | over eager in the same process, on the same machine |",
        "| breaks | of the first call |",
        "",
        *summary(names, store),
        "",
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
        "## What is not equal, breaks or is slower",
        "",
    ]
    for name in names:
        lines += [f"- {name}: {text}" for text in _remarks(store.rows.get(_key(name, "ours"), {}))]
    return "\n".join(lines) + "\n"


def _remarks(row: dict[str, Any]) -> list[str]:
    """What is to be said of one of our rows."""
    result = []
    if "failed" in row:
        result.append(" ".join(row["failed"].split())[-200:])
    if row.get("error"):
        result.append(row["error"])
    result += [f"break, {n} times: {why}" for why, n in
              collections.Counter(row.get("breaks", ())).items()]  # fmt: skip
    result += [f"eagerly: {why}" for why in dict.fromkeys(row.get("native", ()))]
    result += [f"fallback: {why}" for why in dict.fromkeys(row.get("fallbacks", ()))]
    if "speed_up" in row and 1 / row["speed_up"] > _SLOWER:
        result.append(f"takes {1 / row['speed_up']:.2f} times eager's time")
    return [text.replace("|", "\\|").replace("\n", " ")[:400] for text in result]
