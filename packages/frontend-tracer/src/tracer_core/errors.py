"""The exceptions and warnings that users of tracer_core see.

Each carries its facts as attributes, and its message ends with what to do next.
"""

from __future__ import annotations

import difflib
import linecache
from collections.abc import Iterable


class Location(str):
    """A line of the user's code; its text is ``file:line in function``."""

    path: str
    line: int
    #: The line of a library that runs below it; "" if the line is the innermost one.
    library: str = ""

    @classmethod
    def of(cls, path: str, line: int, function: str) -> Location:
        """Returns the location of a line of a function."""
        result = cls(f"{path}:{line} in {function}")
        result.path, result.line = path, line
        return result

    @property
    def place(self) -> str:
        """The line, and below it the library's."""
        return f"{self} (in {self.library})" if self.library else str(self)

    @property
    def code(self) -> str:
        """The text of the line; "" where its file cannot be read."""
        return linecache.getline(self.path, self.line).strip()


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Returns the known name nearest to a wrong one, as the end of a message; "" without any."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return f" (did you mean {close[0]!r}?)" if close else ""


class TracerError(Exception):
    """Base of all errors raised by tracer_core itself."""


class GraphBreakError(TracerError):
    """The graph breaks under ``fullgraph=True``.

    Attributes:
        kind: A name in the table of graph breaks.
        reason: What happened.
        location: ``file:line in function`` of the user's code.
        hint: What would remove the break, or "".
        library: The line of a library that breaks, below the user's; "" where it is the user's.
    """

    def __init__(
        self, kind: str, reason: str, location: str, hint: str = "", library: str = ""
    ) -> None:
        self.kind, self.reason, self.location, self.hint = kind, reason, location, hint
        self.library = library
        super().__init__(
            f"fullgraph=True, but the graph breaks at {location}: {reason} [{kind}]"
            + (f"\n  In a library: {library}" if library else "")
            + (f"\n  What would remove it: {hint}" if hint else "")
        )


class BackendError(TracerError):
    """A backend failed or violated its contract.

    Attributes:
        backend: The backend's name.
        stage: The stage that failed.
        detail: What happened.
        dump: The path of the graph that the backend got, or None.
    """

    def __init__(self, backend: str, stage: str, detail: str, dump: str | None = None) -> None:
        self.backend, self.stage, self.detail, self.dump = backend, stage, detail, dump
        super().__init__(
            f"backend {backend!r} failed in stage {stage!r}: {detail}"
            + (f"\n  The graph is in {dump}" if dump else "")
        )


class RequirementError(BackendError):
    """Something that the caller has to supply is missing, such as a package or a driver.

    Also raised for what a device cannot do (``freeze``). The graph does not run in eager mode
    instead.
    """


class CompilerMissingError(BackendError):
    """A backend's compiler is missing, or it can write nowhere: the graph runs in eager mode.

    A missing compiler is no error where what it built is stored.
    """


class BackendNotFoundError(TracerError, KeyError):
    """No installed backend has that name.

    Attributes:
        name: The name.
        installed: The installed names.
        hint: What to install, or "".
    """

    def __init__(self, name: str, installed: list[str], hint: str = "") -> None:
        self.name, self.installed, self.hint = name, installed, hint
        self.text = f"no backend named {name!r}; installed: {', '.join(installed) or 'none'}" + (
            f"\n  {hint}" if hint else ""
        )
        super().__init__(self.text)

    def __str__(self) -> str:
        return self.text


class OptionError(TracerError, ValueError):
    """An argument, option or mode of ``compile()`` is unknown or of the wrong type."""


class MarkedSizeError(TracerError):
    """The program contradicts a `mark_dynamic` range (a constraint violation).

    Attributes:
        size: The size, as ``x.shape[0]``.
        promised: Its marked range.
        found: What the program requires of it.
        location: ``file:line in function`` of the line that requires it.
        code: That line.
    """

    def __init__(self, size: str, promised: str, found: str, location: str, code: str = "") -> None:
        self.size, self.promised, self.found, self.location = size, promised, found, location
        super().__init__(
            f"{size} was marked dynamic ({promised}), but the program asks that {found}, at"
            f" {location}"
            + (f"\n      {code}" if code else "")
            + "\n  Change that line, give mark_dynamic the range that it allows, or take the mark"
            " away (mark_static)."
        )


class StoredError(TracerError):
    """A file of stored cache entries, or a package, cannot be used.

    The text has the reason and what to do.
    """


class PackageError(TracerError):
    """`package` or `package_library` cannot make a package of a program.

    Attributes:
        what: The obstacle, with its place in the program.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(what)


class InputMismatchError(TracerError, ValueError):
    """A package was called with an input that it does not support.

    Attributes:
        package: The name of the package.
        input: The input, as ``x`` or ``x.shape[0]``.
        expected: What the package supports.
        found: What the call passed.
    """

    def __init__(self, package: str, input: str, expected: str, found: str) -> None:
        self.package, self.input, self.expected, self.found = package, input, expected, found
        super().__init__(
            f"{package}: {input}: the package was made for {expected}, not for {found}"
        )


class VerifyError(TracerError):
    """An IR violates one of its own rules: always a bug in tracer_core or a backend."""


class WrongResultError(TracerError, AssertionError):
    """A compiled program's results are not eager's: `tracer_core.verify` names them."""


class RecompileLimit(Exception):
    """Attributes of `RecompileLimitWarning` and `RecompileLimitError`.

    Attributes:
        function: The function that reached its recompile limit.
        count: The number of its compiles.
        source: The value that kept changing, as the program reads it (``cfg.step``), or "".
        values: Texts of that value, the latest last.
        reason: The guard that failed last.
        hint: What helps, or "".
    """

    def __init__(
        self,
        function: str,
        count: int,
        reason: str,
        source: str = "",
        values: tuple[str, ...] = (),
        hint: str = "",
    ) -> None:
        self.function, self.count, self.reason = function, count, reason
        self.source, self.values, self.hint = source, values, hint
        shown = values if len(values) < 7 else (*values[:3], "...", *values[-2:])
        why = ""
        if source and len(values) > 2:
            why = f" because {source} kept changing ({', '.join(shown)})"
        super().__init__(
            f"{function} was compiled {count} times{why}{self._then}; the guard that failed last:"
            f" {reason}" + (f"\n  What helps: {hint}" if hint else "")
        )

    _then = ""


class RecompileLimitWarning(RecompileLimit, UserWarning):
    """A function was compiled too often: calls that match no cache entry now run as eager Python.

    Logged once per function, by ``tracer_core``; the record has it as ``recompile_limit``.
    """

    _then = " and now runs as plain Python where nothing that was compiled fits"


class RecompileLimitError(RecompileLimit, TracerError):
    """A function was compiled too often under ``fullgraph=True``, where nothing runs in eager mode.

    Raised by each call that no cache entry serves.
    """

    _then = ", which is the limit, and fullgraph=True lets nothing run as plain Python"


class RecompileError(TracerError):
    """A call would be captured under ``set_stance("fail_on_recompile")``.

    Attributes:
        function: The function.
        reason: Why no cache entry serves the call.
    """

    def __init__(self, function: str, reason: str) -> None:
        self.function, self.reason = function, reason
        rule = "set_stance('fail_on_recompile') forbids"
        super().__init__(f"{function} would be captured, which {rule}: {reason}")


class BackendNameClashError(TracerError):
    """Two distributions offer a backend of the same name.

    Attributes:
        name: The backend's name.
        distributions: Both distributions, with versions.
    """

    def __init__(self, name: str, distributions: list[str]) -> None:
        self.name, self.distributions = name, distributions
        super().__init__(
            f"backend {name!r} is offered by {' and by '.join(distributions)}\n"
            "  Uninstall one of them, or pass the Backend object itself as backend=."
        )
