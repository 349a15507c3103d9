"""The limits of all installed packages: one table for ``tracer-core limits`` and its page of the
documentation, and the check of ``TRACER_LIMITS``.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from types import ModuleType

from tracer_core import limit_table, limits
from tracer_core.limit_table import Limit, LimitTable, shown
from tracer_core.registry.discovery import manager


def tables() -> list[LimitTable]:
    """Returns the tables of tracer_core and of the plug-ins whose package has a module ``limits``
    with a `LimitTable` named ``LIMITS``, sorted by package."""
    candidates = (getattr(module, "LIMITS", None) for module in modules_of_plugins("limits"))
    others = (table for table in candidates if isinstance(table, LimitTable))
    return [limits.LIMITS, *sorted(others, key=lambda table: table.package)]


def modules_of_plugins(name: str) -> list[ModuleType]:
    """Imports the modules of this name in the plug-ins' packages, and returns them."""
    modules = {getattr(item, "__name__", type(item).__module__) for item in manager().get_plugins()}
    packages = {module.partition(".")[0] for module in modules} - {"tracer_core"}
    return [
        importlib.import_module(f"{package}.{name}")
        for package in sorted(packages)
        if importlib.util.find_spec(package) and importlib.util.find_spec(f"{package}.{name}")
    ]


def check() -> None:
    """Raises OptionError for a mistake in ``TRACER_LIMITS``."""
    if limit_table.overrides():
        limit_table.check_overrides({name: row for item in tables() for name, row in item.items()})


def listing(result: Mapping[str, Limit]) -> str:
    """Returns limits as text for a terminal."""
    lines = []
    for row in result.values():
        note = "" if row.value == row.default else f" (default {shown(row.default)})"
        lines += [f"{row.name} = {shown(row.value)} {row.unit}{note}", f"    beyond: {row.beyond}"]
        lines += [f"    seen: {row.seen}", f"    changed: {row.changed}"]
    return "\n".join(lines)


def page() -> str:
    """Renders docs/limits_table.md. A test keeps the file equal to it: ``python -c "from
    tracer_core.registry.limits import page; print(page(), end='')" > docs/limits_table.md``."""
    lines = [
        "# Table of limits",
        "",
        "Numeric limits beyond which the compilers behave differently, by package. `tracer-core limits`",
        "prints the same table with the values in force. `TRACER_LIMITS=\"MAX_REGIONS=512\"` changes a limit",
        "for one process, where the last column allows it. This page is generated from the tables in each",
        "package's `limits.py`.",
    ]  # fmt: skip
    for table in tables():
        lines += ["", f"## {table.package}", "", "| limit | value | beyond | seen | changed |"]
        lines += ["|---|---|---|---|---|"]
        for row in table.values():
            value = f"{shown(row.default)} {row.unit}"
            lines += [f"| `{row.name}` | {value} | {row.beyond} | {row.seen} | {row.changed} |"]
    return "\n".join([*lines, ""])
