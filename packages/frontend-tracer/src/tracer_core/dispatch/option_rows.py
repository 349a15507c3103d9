"""Lists the options and modes of a backend, with the comments in its options dataclass."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass

from tracer_core.contract.backend import Backend
from tracer_core.debug.notebook import NotebookText, count
from tracer_core.dispatch.validation import describe, find_backend, options_class
from tracer_core.registry.torch_style import TorchStyle


@dataclass(frozen=True, slots=True)
class OptionRow:
    """One option."""

    #: The key in ``options=``.
    name: str
    #: What its value may be.
    type: str
    #: Its default, as Python writes it.
    default: str
    #: What it does.
    doc: str


@dataclass(frozen=True, slots=True)
class BackendOptions(NotebookText):
    """What `backend_options` returns. ``print`` shows all of it."""

    #: The name of the backend.
    backend: str
    #: Its options.
    options: tuple[OptionRow, ...]
    #: What each mode means, by the name that users pass as ``mode=``.
    modes: Mapping[str, str]

    def __str__(self) -> str:
        numbers = f"{count(len(self.options), 'option')}, {count(len(self.modes), 'mode')}"
        lines = [f"backend {self.backend}: {numbers}"]
        lines.append("options:" if self.options else "options: none")
        for row in self.options:
            lines += [f"  {row.name}: {row.type} = {row.default}", f"      {row.doc}"]
        return "\n".join([*lines, "modes:", *(f"  {mode}: {text}" for mode, text in self.modes.items())])  # fmt: skip


def rows_of(backend: object) -> BackendOptions:
    """See `tracer_core.backend_options`."""
    chosen: Backend = find_backend(backend)
    rows: tuple[OptionRow, ...] = ()
    if isinstance(chosen.compile, TorchStyle):
        rows = (
            OptionRow("...", "dict", "None", "Passed on to the callable, if that takes options."),
        )
    elif (cls := options_class(chosen)) is not None:
        hints, comments = typing.get_type_hints(cls), _comments(cls)
        rows = tuple(
            OptionRow(item.name, describe(hints[item.name]), _default(item), comments.get(item.name, ""))
            for item in dataclasses.fields(cls)
            if item.init
        )  # fmt: skip
    return BackendOptions(chosen.name, rows, dict(chosen.modes))


def _default(field: dataclasses.Field[object]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return repr(field.default_factory())
    return "required" if field.default is dataclasses.MISSING else repr(field.default)


def _comments(cls: type) -> dict[str, str]:
    """Returns the ``#:`` comments above fields, by field; none where the source is not at hand."""
    try:
        source = inspect.getsource(cls)
    except OSError:
        return {}
    commented = re.findall(r"((?:^ +#:.*\n)+) +(\w+)\s*:", source, re.MULTILINE)
    return {name: re.sub(r"\s*#:\s*", " ", text).strip() for text, name in commented}
