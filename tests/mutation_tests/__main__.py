"""``python -m tests.mutation_tests``: plants each fault in a process of its own and demands that a
test fails.

In: names of faults (all without any), a state file. Out: a table: fault, area, what found it,
seconds. What always holds: a fault counts as found only by a test that fails with it, twice, and
passes without it, or by a random program that goes wrong; not by an error while collecting; faults
that the state file knows as found in the present source are not run again.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from tests.mutation_tests.faults import FAULTS, Fault
from tests.mutation_tests.plant import source_root

_ROOT = Path(__file__).resolve().parents[2]
#: The suite that must find a fault, quick and likely ones first; then random programs.
_FIRST = (
    "guards/test_one_change_between_calls.py", "trace/test_regressions_objects.py",
    "reconstruct/test_effects.py", "fx_capture/test_graph_breaks.py", "guards/test_values.py",
    "reconstruct/test_state_containers.py", "bytecode/test_control.py",
    "bytecode/test_functions.py", "bytecode/test_generators.py",
)  # fmt: skip
_FOLDERS = ("bytecode", "trace", "natives", "fx_capture", "guards", "reconstruct", "execution")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", re.M)
_PROGRAMS = "400"
_MAX_UNFIT = 5


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation_tests", description=__doc__)
    parser.add_argument("names", nargs="*", help="faults to plant; all without any")
    parser.add_argument("--out", default="mutation_tests.json", help="state file")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--fresh", action="store_true", help="ignore an existing state file")
    options = parser.parse_args(arguments)
    out = Path(options.out)
    known: dict[str, list[str]] = {}
    if out.exists() and not options.fresh:
        known = json.loads(out.read_text())
    wanted = [n for n in options.names or FAULTS if FAULTS[n].since <= sys.version_info[:2]]
    todo = [FAULTS[n] for n in wanted if known.get(n, [""])[0] != _print_of(FAULTS[n])]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        running = {pool.submit(find, fault): fault for fault in todo}
        for future in concurrent.futures.as_completed(running):
            fault = running[future]
            actual, seconds = future.result()
            if actual:
                known[fault.name] = [_print_of(fault), actual]
                out.write_text(json.dumps(known))
            print(
                f"{fault.name:52} {fault.area:9} {seconds:4.0f} s  {actual or 'NOT FOUND'}",
                flush=True,
            )
    missed = [name for name in wanted if known.get(name, [""])[0] != _print_of(FAULTS[name])]
    print(
        f"{len(wanted) - len(missed)} of {len(wanted)} mutation tests were found"
        + "".join(f"\n  not: {m}" for m in missed)
    )
    return int(bool(missed))


def _print_of(fault: Fault) -> str:
    """Changes with the fault and with the module that it is in."""
    text = repr(fault) + (source_root() / fault.file).read_text()
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def find(fault: Fault) -> tuple[str, float]:
    """(what found the fault, or nothing; seconds)."""
    started = time.monotonic()
    return _by_tests(fault) or _by_programs(fault), time.monotonic() - started


def _environment(fault: Fault) -> dict[str, str]:
    return {**os.environ, "MUTATION": fault.name, "TRACER_STRICT": "1", "OMP_NUM_THREADS": "1"}


def _by_tests(fault: Fault) -> str:
    tests = _ROOT / "tests"
    first = [tests / name for name in _FIRST]
    files = [path for folder in _FOLDERS for path in sorted((tests / folder).glob("test_*.py"))]
    rest = [path for path in files if path not in first]
    unfit: list[str] = []
    while len(unfit) < _MAX_UNFIT:
        left_out = [f"--deselect={name}" for name in unfit]
        done = _pytest(_environment(fault), *map(str, [*first, *rest]), *left_out)
        if done.returncode == 0:
            return ""
        summary = done.stdout.rpartition("short test summary info")[2]  # not what is told at once
        names = _FAILED.findall(summary)
        if not names or "error during collection" in done.stdout:
            raise RuntimeError(
                f"{fault.name}: the tests did not run:\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
            )
        eager = {name: value for name, value in _environment(fault).items() if name != "MUTATION"}
        fails_again = _pytest(_environment(fault), names[0]).returncode == 1
        if fails_again and _pytest(eager, names[0]).returncode == 0:
            return names[0].removeprefix("tests/")
        unfit.append(names[0])  # it fails anyhow, or now and then
    raise RuntimeError(f"tests fail without a fault too: {unfit}")


def _pytest(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-rfE", "-p",
        "no:cacheprovider", "-p",
         "tests.mutation_tests.plant", "-m", "not slow and not gpu", *arguments],
        cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=1500, check=False,
    )  # fmt: skip


def _by_programs(fault: Fault) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.random_programs", "--count", _PROGRAMS, "--jobs", "1",
        "--minimise", "0", "--fresh",
         "--out", str(Path(os.environ.get("TMPDIR", "/tmp")) / f"planted_{_print_of(fault)}.json")],
        cwd=_ROOT, env=_environment(fault), capture_output=True, text=True, timeout=900,
        check=False,
    )  # fmt: skip
    match = re.search(r"^== (seed \d+: .*)$", done.stdout, re.M)
    return f"random program {match.group(1)[:80]}" if match else ""


if __name__ == "__main__":
    sys.exit(main())
