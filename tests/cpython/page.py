"""``python -m tests.cpython.page``: docs/cpython.md from the committed results, and from nothing
else."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from typing import Any

from tests.cpython.results import FOLDER, ROOT, equal
from tests.cpython.suite import FILES

PAGE = ROOT / "docs" / "cpython.md"

#: Why methods differ: a regular expression that fits ``test_list.ListTest.test_basic``, and the
#: reason.
REASONS: tuple[tuple[str, str], ...] = (
    (
        r".*weak_(key|value)s",
        "natively run code counts weak references, the tracer's own among them",
    ),
    (
        r".*(splittable_popitem|SharedKeyTests|sizeof_exact|del_expand).*",
        "measures the memory of an object that is made again",
    ),
    (
        r".*tp_version_tag.*",
        "uses up CPython's type versions, as the tracer does",
    ),
    (
        r".*setvectorcall",
        "C entry points of Python functions are not guarded",
    ),
    (
        r".*(denial_of_service).*",
        "measures time",
    ),
    (
        r"test_genexps.*",
        "compares addresses",
    ),
    (
        r".*(sneaky_frame_object|clear_locals)",
        "frames of generators and tracebacks are stand-ins",
    ),
    (
        r".*EG_subclass",
        "a group raised again across a break has another traceback object, with equal entries",
    ),
    (
        r".*restored_object_new",
        "CPython's own mistake about slots, which the trace does not repeat",
    ),
    (
        r".*reversed_dict.*(restore|during_iteration)",
        "iterators see where a dictionary's table has gaps, which one that is made again lacks",
    ),
    (
        r".*close_clears_frame",
        "what a closed generator of the trace holds dies when the trace ends",
    ),
    (
        r"test_(opcache|type_cache)\.(?!TestRacesDoNotCrash.test_store).*",
        "looks at how CPython specialized a function's own instructions, which the trace does not run",
    ),
    (
        r".*(type_firstlineno|inherited_slot_update)",
        "an entry of a class is set and read as an entry in one region: without TRACER_STRICT it runs"
        " natively",
    ),
    (
        r".*partial_as_method",
        "C code warns in eager mode, of an instruction that is no call: the line is the interpreter's",
    ),
    (
        r".*search_methods_reentrancy.*",
        "the trace asks for an __index__ before C code holds the buffer that it searches",
    ),
    (
        r".*replace_oom",
        "allocations fail at a count, the tracer's own among them",
    ),
    (
        r"test_opcache\.TestRacesDoNotCrash.*",
        "threads run and trace loops over many objects, beyond the address space of a run (8 GiB)",
    ),
    (
        r"test_pprint\..*width",
        "256 places break in one loop, and each capture looks for deaths in 20,000 items: 15 s alone,"
        " beyond 60 s beside another job",
    ),
    (
        r"test_decimal\..*",
        "a _decimal.SignalDict cannot be made again: without TRACER_STRICT it runs natively",
    ),
)


def load() -> dict[str, dict[str, Any]]:
    """Returns the results by Python version, the oldest first."""
    found = {path.stem.removeprefix("python-"): path for path in FOLDER.glob("python-*.json")}
    ordered = sorted(found, key=lambda version: [int(part) for part in version.split(".")])
    return {version: json.loads(found[version].read_text()) for version in ordered}


def reason(name: str) -> str:
    return next((why for pattern, why in REASONS if re.fullmatch(pattern, name)), "")


def page(results: dict[str, dict[str, Any]]) -> str:
    """docs/cpython.md."""
    versions = list(results)
    lines = [
        "# CPython's own tests",
        "",
        "Made by `python -m tests.cpython.page` from `benchmarks/results/cpython/`: the test methods of files of CPython's",
        "`Lib/test`, and the examples of their doctests, each run twice in processes of their own: as it is, and compiled",
        "(`TRACER_STRICT=1`, backend `eager`, graph breaks allowed). Both runs must have the same outcome: passed, skipped for",
        "the same reason, or failed with the same exception and message. A hang (60 s) or a crash is an outcome too.",
        "Of a file that a sweep has not finished, a part of the methods is listed. Methods that were equal at an earlier",
        "commit may not have run again at the one named.",
        "",
    ]
    for version, one in results.items():
        outcomes = [(name, outcome) for _, name, outcome in _methods(one)]
        n_equal = sum(equal(outcome) for _, outcome in outcomes)
        different = len(outcomes) - n_equal
        lines.append(
            f"- **Python {one['python']}: {len(outcomes)} methods, {n_equal} equal, {different} different"
            f" ({100 * different / max(1, len(outcomes)):.2f} %)**, at commit {one['commit']}; natively:"
            f" {_natively(one)}"
        )
    head = " | ".join(f"{version}: methods | equal | different" for version in versions)
    lines += ["", f"| file | {head} |", "|---|" + "--:|--:|--:|" * len(versions)]
    for file in FILES:
        cells = [_counts(results[version]["files"].get(file)) for version in versions]
        if any(cells):
            lines.append(f"| {file} | " + " | ".join(cell or " |  | " for cell in cells) + " |")
    lines += ["", "## What differs", ""]
    for version, one in results.items():
        lines += [f"### Python {version}", "", "| method | natively | compiled | reason |",
                  "|---|---|---|---|"]  # fmt: skip
        for file, name, outcome in _methods(one):
            if not equal(outcome):
                native, compiled = _cell(outcome["native"]), _cell(outcome["compiled"])
                lines.append(
                    f"| {file}.{name} | {native} | {compiled} | {reason(f'{file}.{name}')} |"
                )
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _methods(one: dict[str, Any]) -> list[tuple[str, str, Any]]:
    """Returns file, method and outcome, in the order of `FILES`."""
    files = one["files"]
    return [
        (file, name, outcome) for file in FILES for name, outcome in files.get(file, {}).items()
    ]


def _natively(one: dict[str, Any]) -> str:
    """Returns how many methods pass, are skipped, or fail without being compiled."""
    texts = [outcome if equal(outcome) else outcome["native"] for _, _, outcome in _methods(one)]
    kinds = Counter(text.partition(":")[0].partition(" ")[0].partition(";")[0] for text in texts)
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())


def _counts(methods: dict[str, Any] | None) -> str:
    if methods is None:
        return ""
    different = sum(not equal(outcome) for outcome in methods.values())
    return f"{len(methods)} | {len(methods) - different} | {different}"


def _cell(text: str) -> str:
    """Returns the first line of an outcome as a cell of a table."""
    first = text.splitlines()[0][:160] if text else "nothing reported"
    return "`" + first.replace("|", "/").replace("`", "'") + "`"


def main() -> int:
    PAGE.write_text(page(load()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
