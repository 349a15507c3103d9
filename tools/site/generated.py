"""Pages of the site that are made from code: the Python API, environment variables, backends' options."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tracer_core
from tracer_core import plugin_api
from tracer_core.registry import environment

_CORE = Path(tracer_core.__file__).parent


def pages() -> dict[str, str]:
    """Returns the pages, by their path in the site."""
    return {"reference/api.md": api(), "reference/settings.md": settings()}


def variables_table() -> str:
    """Returns the table of environment variables of all packages; docs/usage.md has it, too."""
    lines = ["| variable | takes | default | what it does |", "|---|---|---|---|"]
    for item in environment.variables().values():
        default = f"`{item.default}`" if item.default else ""
        lines.append(f"| `{item.name}` | {item.takes} | {default} | {item.effect} |")
    return "\n".join(lines)


def settings() -> str:
    """Returns the page of environment variables, options and modes."""
    lines = [
        "# Variables and options",
        "This page is made from the code when the site is built. `tracer-core env` prints the variables"
        " with their values, `tracer-core options NAME` the options of one backend, and"
        " [Table of limits](../limits_table.md) has what `TRACER_LIMITS` takes.",
        "## Environment variables",
        variables_table(),
    ]
    for row in tracer_core.backends():
        if not str(row.distribution).endswith(("-backend", "tracer-core")):
            continue  # other people's packages
        listed = tracer_core.backend_options(row.name)
        lines += [f"## Backend {row.name}", f"`{row.distribution}`: {row.description}."]
        if listed.options:
            head = ["| option | type | default | what it does |", "|---|---|---|---|"]
            rows = [
                f"| `{item.name}` | `{_cell(item.type)}` | `{_cell(item.default)}` | {_cell(_code(item.doc))} |"
                for item in listed.options
            ]
            lines.append("\n".join([*head, *rows]))
        else:
            lines.append("No options.")
        modes = [f"| `{name}` | {_cell(_code(text))} |" for name, text in listed.modes.items()]
        lines.append("\n".join(["| mode | what it does |", "|---|---|", *modes]))
    return "\n\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _code(text: str) -> str:
    """Returns text of a docstring as Markdown."""
    return text.replace("``", "`")


def api() -> str:
    """Returns the page of the Python API: what `__all__` of the core and of the plug-in API name, in the
    groups of the core; autodoc fills it from the docstrings."""
    lines = [
        "# Python API",
        "What `import tracer_core` offers. Names that are not on this page may change in any release.",
    ]
    for title, names in _groups():
        lines.append(f"## {title[:1].upper()}{title[1:]}")
        lines += [_directive(tracer_core, name) for name in names if name != "__version__"]
    lines += [
        "## For plug-ins",
        "A backend imports `tracer_core.plugin_api` and no other module"
        " ([Write a backend](../writing_a_backend.md)).",
        *(_directive(plugin_api, name) for name in plugin_api.__all__ if _has_docstring(name)),
    ]
    return "\n\n".join(lines)


def _groups() -> Iterator[tuple[str, list[str]]]:
    """Yields the comments in `__all__` of tracer_core with the names below each."""
    source = (_CORE / "__init__.py").read_text().partition("__all__ = [")[2].partition("]")[0]
    for part in source.split("# ")[1:]:
        title, _, names = part.partition("\n")
        yield title, list(ast.literal_eval(f"[{names}]"))


def _directive(module: Any, name: str) -> str:
    """Returns the directive that shows the docstring of a public name."""
    value = getattr(module, name)
    kind = (
        "module" if inspect.ismodule(value) else "class" if inspect.isclass(value) else "function"
    )
    members = "" if kind == "function" else "\n   :members:"
    return f"```{{eval-rst}}\n.. auto{kind}:: {module.__name__}.{name}{members}\n```"


def _has_docstring(name: str) -> bool:
    """Returns whether a name of the plug-in API is a function or class of ours; errors stand above."""
    value = getattr(plugin_api, name)
    if getattr(value, "__module__", "") == "tracer_core.errors":
        return False
    return (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__.startswith(
        "tracer_core"
    )
