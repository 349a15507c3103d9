"""The command ``tracer-core``, which is also ``python -m tracer_core``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tracer_core import api
from tracer_core.diagnosis import doctor
from tracer_core.errors import TracerError
from tracer_core.registry import environment, limits
from tracer_core.storage import store


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 1 if there is a problem. Without arguments, prints what there is."""
    parser = argparse.ArgumentParser("tracer-core", description="Looks after tracer-core.")
    commands = parser.add_subparsers(dest="command")
    for name, (summary, run, accepted) in _COMMANDS.items():
        command = commands.add_parser(name, help=summary)
        command.set_defaults(run=run)
        for argument, settings in accepted.items():
            command.add_argument(argument, **settings)
    chosen = parser.parse_args(arguments)
    if chosen.command is None:
        parser.print_help()
        return 0
    try:
        return int(chosen.run(chosen) or 0)
    except TracerError as error:
        print(error, file=sys.stderr)
        return 1


def _doctor(chosen: Any) -> int:
    report = doctor(smoke=not chosen.quick)
    text = f"```text\n{report}\n\n{environment.listing()}\n```" if chosen.report else report
    print(json.dumps([asdict(item) for item in report], indent=1) if chosen.json else text)
    return 0 if report.healthy else 1


def _env(chosen: Any) -> int:
    print(environment.listing())
    mistakes = environment.mistakes()
    for line in (*mistakes, *environment.remarks()):
        print(line, file=sys.stderr)
    return 1 if mistakes else 0


def _limits(chosen: Any) -> None:
    limits.check()
    tables = limits.tables()
    rows = {table.package: [asdict(row) for row in table.values()] for table in tables}
    text = "\n\n".join(f"{table.package}\n\n{limits.listing(table)}" for table in tables)
    print(json.dumps(rows, indent=1) if chosen.json else text)


def _cache(chosen: Any) -> int:
    if chosen.action != "info":
        print(f"{store.clear() if chosen.action == 'clear' else store.prune()} bytes freed")
        return 0
    info = store.info()
    print(f"{info.folder}: {info.problem or f'{info.size} bytes of {info.limit}'}")
    for kind, (number, size) in sorted(info.entries.items()):
        print(f"  {kind}: {number} files, {size} bytes")
    return 0 if info.problem is None else 1


def _bisect(chosen: Any) -> None:
    from tracer_core.verification.bisect import bisect  # heavy: the tracer

    for line in bisect(chosen.script, chosen.arguments, chosen.timeout):
        print(line, flush=True)


_JSON: Mapping[str, Any] = {"--json": {"action": "store_true", "help": "prints JSON"}}
_QUICK = {"--quick": {"action": "store_true", "help": "no backend compiles anything"}}
_PASTE = {"--report": {"action": "store_true", "help": "with the variables, as Markdown to paste"}}
_ACTION = {"action": {"choices": ("info", "clear", "prune")}}
_SCRIPT: Mapping[str, Any] = {
    "--timeout": {"type": float, "default": 600.0, "help": "seconds of one run; longer ones fail"},
    "script": {"help": "a program that ends in an error where a result is wrong"},
    "arguments": {"nargs": "...", "help": "its arguments"},
}
#: Name of a command -> what it prints, the function that does it, and its arguments.
_COMMANDS: Mapping[str, tuple[str, Callable[[Any], int | None], Mapping[str, Any]]] = {
    "doctor": ("what is installed, and what works here", _doctor, {**_JSON, **_QUICK, **_PASTE}),
    "backends": ("what is installed", lambda chosen: print(api.backends()), {}),
    "options": ("the options and modes of a backend", lambda chosen: print(api.backend_options(chosen.name)), {"name": {}}),
    "env": ("the environment variables, and what they are set to", _env, {}),
    "limits": ("at which numbers something else is done", _limits, _JSON),
    "bisect": ("which stage, then which operators or fusion, make a script fail", _bisect, _SCRIPT),
    "cache": ("what is kept on disk", _cache, _ACTION),
}  # fmt: skip
