"""The zoo: are all models captured, right, and captured quickly?

In: names of the zoo, or all. Out: a table with a row a model (graphs, breaks, equal to eager,
recompiles at the second call, seconds of the first call beside torch.compile's) and a summary. What
always holds: rows are resumable; each model runs in a process of its own, with a time limit; the
two compilers take turns, and the smallest of the rounds counts for each.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import processes
from benchmarks.results import Store
from benchmarks.tables import geometric_mean, table
from benchmarks.zoo_models import ZOO

MODULE = "benchmarks.zoo_process"
_BATCH = 33
_LIMIT = 160.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures what is not there yet and prints all; 1 if a row failed or is not equal."""
    parser = argparse.ArgumentParser(prog="benchmarks.zoo", description=__doc__)
    parser.add_argument("models", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=2, help="of timing; 0: only check")
    parser.add_argument("--again", action="store_true", help="measure rows that are there already")
    chosen = parser.parse_args(arguments)
    unknown = set(chosen.models) - set(ZOO)
    if unknown:
        parser.error(f"not in the zoo: {', '.join(sorted(unknown))}")
    names = chosen.models or list(ZOO)
    processes.warm_up_files()
    store = Store("zoo", again=chosen.again)
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


def _batch(store: Store, task: str, turn: int, names: Sequence[str]) -> None:
    """Measures the models of a batch that are not there yet, in one process."""
    wanted = [n for n in names if store.again or _missing(store.rows.get(_key(task, turn, n)))]
    if not wanted:
        return
    try:
        found = processes.fresh(MODULE, [task, *wanted], limit=_LIMIT * len(wanted) + 120)
    except processes.Failed as error:
        found = {name: {"failed": str(error)} for name in wanted}
    for name in wanted:
        row = found.get(name, {"failed": "no answer"})
        store.put(_key(task, turn, name), row)
        print(f"{_key(task, turn, name)}: {_told(task, row)}", flush=True)


def _missing(row: dict[str, Any] | None) -> bool:
    return row is None or "failed" in row


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


def _seconds(store: Store, task: str, name: str, rounds: int) -> float | None:
    rows = [store.rows.get(_key(task, n, name), {}) for n in range(rounds)]
    found = [row["wall"] for row in rows if "wall" in row]
    return min(found) if found else None


def _print(store: Store, names: Sequence[str], rounds: int) -> int:
    lines, one_graph, equal, again, ratios = [], 0, 0, 0, []
    groups: dict[str, list[float]] = {}
    for name in names:
        modes = [
            facts
            for mode, facts in store.rows[_key("check", 0, name)].items()
            if mode in ("eval", "train")
        ]
        ours, torch = (_seconds(store, task, name, rounds) for task in ("ours", "torch"))
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


if __name__ == "__main__":
    sys.exit(main())
