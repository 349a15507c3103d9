"""The zoo: are all models captured, right, and captured quickly?

In: names of the zoo, or all. Out: a table with a row a model (graphs, breaks, equal to eager,
recompiles at the second call, seconds of the first call beside torch.compile's) and a summary. Eval
and train mode are compared with eager bit by bit over two calls: outputs, loss gradients, buffers,
the state of the random generator. What always holds: rows are resumable; a process takes several
models, each in a fork of its own with a time limit, in which one other program has been compiled
(so that imports are paid) and none of the zoo; the two compilers take turns, and the smallest of
the rounds counts for each.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch

import tracer_core
from benchmarks import harness, models
from benchmarks.forks import forked, short
from benchmarks.timing import geometric_mean, table
from benchmarks.zoo_models import ZOO
from tracer_core.explanation import explanation
from tracer_core.testing import CaptureCounter, Tolerance, compare, compare_aliasing, tensors_in

#: Models of one process.
_BATCH = 33
#: Seconds for one model and task.
LIMIT = 150.0
_CALL_SEED = 7
#: Threads of an OpenMP pool do not survive the fork, and its child would wait for them.
ENVIRONMENT = {"TRACER_STRICT": "1", "OMP_NUM_THREADS": "1"}


def main(arguments: Sequence[str]) -> int:
    """Measures what is not there yet and prints all; 1 if a row failed or is not equal."""
    parser = harness.options("zoo", __doc__)
    parser.add_argument("models", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=2, help="of timing; 0: only check")
    chosen = parser.parse_args(arguments)
    unknown = set(chosen.models) - set(ZOO)
    if unknown:
        parser.error(f"not in the zoo: {', '.join(sorted(unknown))}")
    names = chosen.models or list(ZOO)
    harness.warm_up_files()
    store = harness.Store("zoo", again=chosen.again)
    tasks = [
        ("check", 0),
        ("trained", 0),
        *((task, n) for n in range(chosen.rounds) for task in ("ours", "torch")),
    ]
    for number in range(0, len(names), _BATCH):
        for task, turn in tasks:
            _batch(store, task, turn, names[number : number + _BATCH])
    return _print(store, names, chosen.rounds)


def _key(task: str, turn: int, name: str) -> str:
    return f"{name} {task} {turn}"


def _batch(store: harness.Store, task: str, turn: int, names: Sequence[str]) -> None:
    """Measures the models of a batch that are not there yet, in one process."""
    wanted = [n for n in names if store.stored(_key(task, turn, n)) is None]
    if not wanted:
        return
    try:
        limit = (LIMIT + 10) * len(wanted) + 120
        result = harness.fresh(run_tasks, task, wanted, limit=limit, environment=ENVIRONMENT)
    except harness.Failed as error:
        result = {name: {"failed": str(error)} for name in wanted}
    for name in wanted:
        row = result.get(name, {"failed": "no answer"})
        store.put(_key(task, turn, name), row)
        print(f"{_key(task, turn, name)}: {_told(task, row)}", flush=True)


def _told(task: str, row: dict[str, Any]) -> str:
    if "failed" in row:
        return str(row["failed"])
    if task not in ("check", "trained"):
        return f"{row['wall']:.2f} s"
    return ", ".join(
        f"{mode}: {facts['graphs']} graphs, {len(facts['breaks'])} breaks, "
        f"{len(facts['recompiles'])} recompiles, {'equal' if facts['equal'] else facts['error']}"
        + "".join(f", {reason}" for reason in facts.get("fallbacks", ()))
        for mode, facts in row.items() if mode in ("eval", "train")
    )  # fmt: skip


def _quickest(store: harness.Store, task: str, name: str, rounds: int) -> float | None:
    rows = [store.rows.get(_key(task, n, name), {}) for n in range(rounds)]
    result = [row["wall"] for row in rows if "wall" in row]
    return min(result) if result else None


def _print(store: harness.Store, names: Sequence[str], rounds: int) -> int:
    lines, one_graph, equal, again, ratios = [], 0, 0, 0, []
    groups: dict[str, list[float]] = {}
    for name in names:
        modes = [
            facts
            for mode, facts in store.rows[_key("check", 0, name)].items()
            if mode in ("eval", "train")
        ]
        ours, torch = (_quickest(store, task, name, rounds) for task in ("ours", "torch"))
        ratio = ours / torch if ours and torch else None
        if ratio is not None:
            ratios.append(ratio)
            groups.setdefault(ZOO[name].library, []).append(ratio)
        good = bool(modes) and all(facts["equal"] for facts in modes)
        single = bool(modes) and all(
            facts["graphs"] == 1 and not facts["breaks"] for facts in modes
        )
        recompiled = sum(len(facts["recompiles"]) for facts in modes)
        one_graph, equal, again = one_graph + single, equal + good, again + bool(recompiled)
        lines.append([
            name, "/".join(str(facts["graphs"]) for facts in modes) or "failed",
            "/".join(str(len(facts["breaks"])) for facts in modes), "yes" if good else "NO",
            str(recompiled),
            *("" if value is None else f"{value:.3f}" for value in (ours, torch, ratio)),
        ])  # fmt: skip
    head = [
        "model",
        "graphs eval/train",
        "breaks",
        "equal",
        "recompiles",
        "ours s",
        "torch s",
        "ratio",
    ]
    print(f"\n{table(head, lines)}\n")
    for name in names:
        _explain(name, store.rows[_key("check", 0, name)])
    total = len(names)
    print(f"\n{total} models, each in eval and in train mode, two calls each")
    print(f"one graph in both modes: {one_graph} ({100 * one_graph / total:.1f} %)")
    print(f"equal to eager bit by bit: {equal} ({100 * equal / total:.1f} %)")
    print(f"recompiled at the second call: {again}")
    _print_trained([(name, store.rows.get(_key("trained", 0, name), {})) for name in names])
    if ratios:
        print(f"first call, ours / torch.compile(backend='eager'): geometric mean {geometric_mean(ratios):.3f} of "
              f"{len(ratios)}; " + ", ".join(f"{k} {geometric_mean(v):.3f}" for k,
              v in groups.items()))  # fmt: skip
    return 0 if equal == total else 1


def _print_trained(rows: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """One training step whose forward and backward are lowered graphs."""
    steps = {name: row["train"] for name, row in rows if "train" in row}
    equal = [name for name, facts in steps.items() if facts["equal"]]
    lowered = [name for name in equal if not steps[name]["fallbacks"]]
    print(f"trained for two steps through lowered graphs: {len(steps)}; gradients equal bit by bit: {len(equal)}; "
          f"every graph lowered: {len(lowered)}")  # fmt: skip
    for name, row in rows:
        if "failed" in row:
            print(f"{name} trained: {row['failed']}")
        elif name in steps and name not in lowered:
            facts = steps[name]
            print(
                f"{name} trained: {'; '.join(facts['fallbacks'])}"
                + ("" if facts["equal"] else facts["error"])
            )


def _explain(name: str, row: dict[str, Any]) -> None:
    """What is not as it should be, and why."""
    if "failed" in row:
        print(f"{name}: {row['failed']}")
    animal = ZOO[name]
    if animal.settles:
        print(f"{name}: called once before it is compiled: {animal.settles}")
    for mode in ("eval", "train"):
        facts = row.get(mode)
        if facts is None:
            continue
        if not facts["equal"]:
            print(f"{name} {mode}: {facts['error']}")
        kinds = {kind: reason for kind, reason, _ in reversed(facts["breaks"])}
        for kind, reason in kinds.items():
            print(
                f"{name} {mode}: {kind}: {reason}"
                + (f" ({animal.breaks})" if animal.breaks else "")
            )
        for reason in facts["recompiles"][:1]:
            print(f"{name} {mode}: recompiled: {reason}")


# One model ----------------------------------------------------------------------------------------


def check(name: str) -> dict[str, Any]:
    """{"eval": facts, "train": facts} of one model."""
    modes = [False, True] if ZOO[name].train else [False]
    return {"train" if train else "eval": check_mode(name, train) for train in modes}


def trained(name: str) -> dict[str, Any]:
    """{"train": facts} of one model whose forward and backward are lowered graphs, run by PyTorch's
    operators."""
    if not ZOO[name].train:
        return {}
    with harness.noted_fallbacks() as fallbacks:
        facts = check_mode(name, True, "aten_eager")
    return {"train": facts | {"fallbacks": fallbacks}}


def check_mode(name: str, train: bool, backend: str = "eager") -> dict[str, Any]:
    """What `check` says of one mode. Some models ask torch.compiler.is_compiling() and compute in
    another way (transformers 5.17 builds masks that it leaves out otherwise): where eager's bits
    are not met, eager is told so too and must be met then.
    """
    facts = _checked(name, train, backend, contextlib.nullcontext)
    if facts["equal"]:
        return facts
    messages = _checked(name, train, backend, _knows_it_is_compiled)
    return messages | {"asks": "is_compiling"} if messages["equal"] else facts


def _knows_it_is_compiled() -> contextlib.AbstractContextManager[Any]:
    return mock.patch.object(torch.compiler, "is_compiling", lambda: True)


def _checked(
    name: str,
    train: bool,
    backend: str,
    reference: Callable[[], contextlib.AbstractContextManager[Any]],
) -> dict[str, Any]:
    """reference: a context for eager's calls."""
    animal = ZOO[name]
    simple, target = animal.module(train), animal.module(train)
    facts: dict[str, Any] = {"equal": True}
    with CaptureCounter() as counter:
        compiled = tracer_core.compile(target, backend=backend)
        for number in range(2):
            try:
                with reference():
                    want = _run(animal, number, simple, simple, train)
                _compare_call(animal, number, want, simple, target, compiled, train)
            except Exception as error:
                facts.update(equal=False, call=number, error=short(error))
                break
            if number == 0:
                facts.update(
                    graphs=len(counter.graphs), breaks=[list(record) for record in counter.breaks]
                )
    facts.setdefault("graphs", len(counter.graphs))
    facts.setdefault("breaks", [list(record) for record in counter.breaks])
    facts["recompiles"] = [reason for _, reason in counter.recompiles]
    facts["graphs_later"] = len(counter.graphs) - facts["graphs"]
    with contextlib.suppress(Exception):
        facts["guards"] = len(explanation(compiled.__tracer__).guards)
    return facts


def _compare_call(
    animal: Any, number: int, wanted: Any, simple: Any, target: Any, compiled: Any, train: bool
) -> None:
    exact = Tolerance(rtol=0.0, atol=0.0)
    want, want_args, want_state = wanted
    got, got_args, got_state = _run(animal, number, compiled, target, train)
    compare(want, got, exact, f"call {number}: result")
    compare(want_args, got_args, exact, f"call {number}: arguments")
    compare_aliasing([want_args, want], [got_args, got], f"call {number}: aliasing")
    if not torch.equal(want_state, got_state):
        raise AssertionError(f"call {number}: another state of the random generator")
    compare(dict(simple.state_dict()), dict(target.state_dict()), exact, f"call {number}: state")
    if train:
        gradients = [{n: p.grad for n, p in m.named_parameters()} for m in (simple, target)]
        compare(*gradients, exact, f"call {number}: gradient")


def _run(animal: Any, number: int, function: Any, module: Any, train: bool) -> tuple[Any, Any, Any]:
    """(result, arguments afterwards, state of the random generator afterwards) of one call."""
    args, kwargs = animal.inputs(number)
    module.zero_grad()
    torch.manual_seed(_CALL_SEED)
    with torch.set_grad_enabled(train):
        result = function(*args, **kwargs)
    state = torch.get_rng_state()
    if train:
        parts = [
            t.float().pow(2).mean()
            for t in tensors_in(result)
            if t.is_floating_point() and t.requires_grad
        ]
        torch.stack(parts).sum().backward()
    return result, (args, kwargs), state


def ours(name: str) -> dict[str, Any]:
    """Seconds of tracer_core's first call, backend eager."""
    return _first_call(name, lambda module: tracer_core.compile(module, backend="eager"))


def torch_compile(name: str) -> dict[str, Any]:
    """Seconds of torch.compile's first call, backend eager."""
    return _first_call(name, lambda module: torch.compile(module, backend="eager"))


def _first_call(name: str, make: Callable[[Any], Any]) -> dict[str, Any]:
    """wall and cpu: of compile() and the first call. run: the smallest of three eager calls."""
    animal = ZOO[name]
    module = animal.module(train=False)
    args, kwargs = animal.inputs(0)
    with torch.no_grad():
        run = min(_seconds(lambda: module(*args, **kwargs))[0] for _ in range(3))
        gc.collect()
        wall, cpu = _seconds(lambda: make(module)(*args, **kwargs))
    return {"wall": wall, "cpu": cpu, "run": run}


def _seconds(function: Callable[[], Any]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - wall, time.process_time() - cpu


# The process --------------------------------------------------------------------------------------

TASKS: dict[str, Callable[[str], dict[str, Any]]] = {
    "check": check,
    "trained": trained,
    "ours": ours,
    "torch": torch_compile,
}


def import_libraries() -> None:
    """Imports the model libraries, quietly."""
    for library in ("torchvision", "timm", "transformers"):
        models.import_library(library)
    import transformers

    transformers.logging.set_verbosity_error()


def warm_up(task: str) -> None:
    """Imports everything and compiles one program that is not in the zoo."""
    import_libraries()

    class Other(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image = torch.nn.Sequential(
                torch.nn.Conv2d(3, 8, 3),
                torch.nn.BatchNorm2d(8),
                torch.nn.ReLU(),
                torch.nn.MaxPool2d(2),
            )
            self.layers = torch.nn.ModuleList(
                torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2)
            )
            self.head = torch.nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.image(x).flatten(2).transpose(1, 2)
            for layer in self.layers:
                x = layer(x)
            return torch.softmax(self.head(x.mean(1)), dim=-1)

    for train in (False, True):
        model = Other().train(train)
        with torch.set_grad_enabled(train):
            if task == "torch":
                torch.compile(model, backend="eager")(torch.randn(2, 3, 16, 16))
            else:
                tracer_core.compile(model, backend="eager")(torch.randn(2, 3, 16, 16))
    tracer_core.reset()


def run_tasks(task: str, names: Sequence[str]) -> dict[str, Any]:
    """In a child: what a task finds of each model."""
    warm_up(task)
    return {name: forked(TASKS[task], name, limit=LIMIT) for name in names}
