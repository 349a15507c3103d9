"""Discovery: which backends are installed, which can run here, and selection by name.

Backends come from the entry-point groups ``tracer_core`` (plug-ins, through pluggy) and
``torch_dynamo_backends`` (callables that other packages publish), from the built-in ``eager``, and
from plug-ins registered in this process.

Listing imports plug-in modules, never an engine. A plug-in that cannot be imported or registered is
listed with the reason. Two backends of one name are an error that names both distributions, raised
when the name is used. No choice depends on the order of installation.
"""

from __future__ import annotations

import copyreg
import difflib
import importlib
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

import pluggy

from tracer_core import hookspecs
from tracer_core.contract.backend import PROJECT, Backend, Lazy, resolve
from tracer_core.contract.version import __version__
from tracer_core.debug.graph_names import is_part_of
from tracer_core.debug.logs import logger
from tracer_core.debug.notebook import NotebookText, count
from tracer_core.errors import (  # fmt: skip
    BackendError,
    BackendNameClashError,
    BackendNotFoundError,
    did_you_mean,
)
from tracer_core.registry import torch_style
from tracer_core.registry.auto import AUTO
from tracer_core.registry.eager import ATEN_EAGER, EAGER

#: Seconds of a plug-in's import from which on a warning names it.
_SLOW_IMPORT = 2.0
#: Distribution that provides each of the most wanted backends, for the hint of
#: BackendNotFoundError.
KNOWN_PROVIDERS: dict[str, str] = {
    "inductor": "inductor-backend",
    "cudagraphs": "cudagraphs-backend",
    "onnxrt": "onnxrt-backend",
    "tvm": "tvm-backend",
    "openvino": "openvino",
    "torch_tensorrt": "torch-tensorrt",
    "hidet": "hidet",
}

#: torch.compile backends that are renamed or not provided here; docs/backends.md explains each.
RENAMED: dict[str, str] = {
    "aot_eager": "aten_eager", "tensorrt": "torch_tensorrt", "ipex": "inductor",
    "nvfuser": "inductor", "nvprims_nvfuser": "inductor",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class BackendRow:
    """One line of `backends()`."""

    #: What users pass as ``backend=``.
    name: str
    #: The distribution that has it (``tracer-core`` for built-in ones); None if it was registered
    #: in this process.
    distribution: str | None
    #: The version of the distribution, or None.
    version: str | None
    #: The device types that it runs on.
    devices: tuple[str, ...]
    #: The name of a `Training` value.
    training: str
    #: ``"static"`` or ``"symbolic"``.
    shapes: str
    #: Whether it can run here.
    available: bool
    #: Why it cannot run here, or None.
    reason: str | None
    #: What it is, in one line.
    description: str = ""

    def __str__(self) -> str:
        origin = f"{self.distribution or 'this process'} {self.version or ''}".strip()
        if not self.available:
            return f"{origin}: cannot run here: {self.reason}"
        return f"{origin}: {', '.join(self.devices)}; {self.training}; {self.description}"


class BackendRows(NotebookText, list[BackendRow]):
    """The rows of `backends()`; prints as a table below a line that sums them up."""

    def __repr__(self) -> str:
        width = max((len(row.name) for row in self), default=0)
        head = f"{count(len(self), 'backend')}, {sum(row.available for row in self)} can run here"
        return "\n".join([head, *(f"{row.name:{width}}  {row}" for row in self)])


@dataclass(frozen=True, slots=True)
class Candidate:
    """A backend found under a name, and where it was found.

    If its plug-in could not be loaded, `backend` is None and `reason` says why.
    """

    name: str
    backend: Backend | None
    distribution: str | None
    version: str | None
    reason: str | None = None
    error: BaseException | None = None

    @property
    def origin(self) -> str:
        """Returns the distribution with its version, for messages."""
        result = f"{self.distribution} {self.version or ''}".strip()
        return result if self.distribution else "this process"


@dataclass(frozen=True, slots=True)
class Registry:
    """What discovery found: the pluggy manager, and the candidates for each name."""

    manager: pluggy.PluginManager
    candidates: dict[str, tuple[Candidate, ...]]


_in_process: dict[str, Any] = {}
#: Grows when what `registry` found may no longer be so.
_generation = 0
_used: dict[str, Backend] = {}


def register(plugin: Any, name: str | None = None) -> Callable[[], None]:
    """Registers a plug-in for this process.

    Args:
        plugin: An object or module with `hookimpl` functions, which offer backends or listen to
            events.
        name: The plug-in's name. None: its ``__name__``.

    Returns:
        A function that unregisters the plug-in.

    Raises:
        PluginValidationError: A hook does not match the specification.

    Examples:
        >>> unregister = tracer_core.register(my_plugin)
    """
    key = name or f"{getattr(plugin, '__name__', type(plugin).__name__)}@{id(plugin):x}"
    tried = _new_manager()
    tried.register(plugin, key)  # validates against the specification before it is kept
    if unknown := _unknown_hooks(tried, plugin):
        raise pluggy.PluginValidationError(plugin, f"plug-in {key} {unknown}")
    _in_process[key] = plugin
    _look_again()

    def unregister() -> None:
        _in_process.pop(key, None)
        _look_again()

    return unregister


def _look_again() -> None:
    """Makes the next `registry` discover everything anew."""
    global _generation
    _generation += 1
    _discovered.cache_clear()


def registry() -> Registry:
    """Returns everything that is installed, discovered once.

    After `forget` the next call discovers it again.
    """
    return _discovered(_generation)


@cache
def _discovered(generation: int) -> Registry:
    """Discovers what is installed.

    What a thread discovered before `_look_again` is not used later.
    """
    manager = _new_manager()
    result: list[Candidate] = [
        _candidate(value, ("tracer-core", __version__)) for value in (EAGER, ATEN_EAGER, AUTO)
    ]
    for entry in entry_points(group=PROJECT):
        result.extend(_load_plugin(manager, entry))
    for key, plugin in list(_in_process.items()):
        manager.register(plugin, key)
        result.extend(_offered(plugin, key, (None, None)))
    for entry in entry_points(group=torch_style.GROUP):
        if not entry.value.startswith(torch_style.OWN_ENTRY):
            result.append(_candidate(torch_style.from_entry_point(entry), _distribution(entry)))
    published = {candidate.name for candidate in result}
    for entry, distribution, version in torch_style.unpublished():
        if entry.name not in published:
            result.append(_candidate(torch_style.from_entry_point(entry), (distribution, version)))
    table: dict[str, list[Candidate]] = {}
    # sorted, which keeps the order independent of installation
    for candidate in sorted(result, key=lambda value: value.origin):
        table.setdefault(candidate.name, []).append(candidate)
    return Registry(manager, {name: tuple(group) for name, group in sorted(table.items())})


def manager() -> pluggy.PluginManager:
    """Returns the pluggy manager with every plug-in that could be registered."""
    return registry().manager


def forget() -> None:
    """Makes the next look-up discover installed distributions again."""
    importlib.invalidate_caches()
    _look_again()


def reset_used() -> None:
    """Calls `Backend.reset` of every backend that was used.

    The backends stay registered as used: compiled functions keep using them, so a later reset has
    to reach them too.
    """
    for backend in tuple(_used.values()):
        if backend.reset is not None:
            resolve(backend.reset)()


def notified_of_graphs(used: Iterable[Backend], names: Collection[str]) -> list[tuple[str, str]]:
    """Returns pairs (graph, text): what became of these graphs since they were compiled.

    Backwards and subgraphs of the graphs count. The texts come from `Backend.report` of the given
    backends and of those that wrap other backends' runners.

    Raises:
        BackendError: A report fails.
    """
    groups = registry().candidates.values()
    installed = (item.backend for group in groups for item in group if item.backend is not None)
    asked = (*used, *(backend for backend in installed if backend.wrap is not None))
    reports = {item.report: item.name for item in asked if item.report is not None}
    data = [row for report, backend in reports.items() for row in _report_rows(report, backend)]
    return sorted(row for row in data if is_part_of(row[0], names))


def _report_rows(
    report: Lazy[Callable[[], Iterable[tuple[str, str]]]], backend: str
) -> list[tuple[str, str]]:
    if isinstance(report, str) and report.partition(":")[0] not in sys.modules:
        return []  # its module was never imported, so it compiled nothing
    try:
        rows = [(graph, text) for graph, text in resolve(report)()]
        if wrong := [row for row in rows if not all(isinstance(part, str) for part in row)]:
            wanted = "pairs of texts: the name of a graph, and what became of it"
            raise TypeError(f"it gave {wrong[0]!r}; {wanted}")
    except Exception as error:
        detail = f"its report() raised {type(error).__name__}: {error}"
        raise BackendError(backend, "report", detail) from error
    return rows


def mark_used(backend: Backend) -> None:
    """Records that `reset()` has to reach this backend."""
    _used[backend.name] = backend


def get(name: str) -> Backend:
    """Returns the installed backend of that name, whether or not it can run here.

    Raises BackendNotFoundError with what is installed and what to install, or with the reason its
    plug-in could not be loaded; BackendNameClashError if two distributions offer the name.
    """
    candidates = registry().candidates.get(name, ())
    if len(candidates) > 1:
        raise BackendNameClashError(name, [candidate.origin for candidate in candidates])
    if not candidates:
        raise BackendNotFoundError(name, list_backends(), _hint(name))
    (candidate,) = candidates
    if candidate.backend is None:
        hint = f"{candidate.origin} offers a plug-in of that name, but {candidate.reason}"
        raise BackendNotFoundError(name, list_backends(), hint) from candidate.error
    return candidate.backend


def _pickled(backend: Backend) -> tuple[Any, ...]:
    """Returns the pickle form of a backend: an installed one is found by its name where it loads."""
    group = registry().candidates.get(backend.name, ())
    if any(candidate.backend is backend for candidate in group):
        return get, (backend.name,)
    form: Any = backend.__reduce_ex__(4)
    return cast("tuple[Any, ...]", form)


copyreg.pickle(Backend, _pickled)


def rows() -> BackendRows:
    """Returns one row per installed backend, usable or not, sorted by name."""
    return BackendRows(row for group in registry().candidates.values() for row in _rows(group))


def list_backends() -> list[str]:
    """Returns the names of the backends that can run here."""
    return [row.name for row in rows() if row.available]


def unavailable_reason(backend: Backend) -> str | None:
    """Returns why the backend cannot run here, or None.

    An exception from `available` is itself the reason.
    """
    if backend.available is None:
        return None
    try:
        reason = resolve(backend.available)()
    except (Exception, SystemExit) as error:
        return f"its available() raised {type(error).__name__}: {error}"
    if reason is None or isinstance(reason, str):
        return reason
    return f"its available() returned {reason!r}: it returns None, or a text that says why not"


def _rows(group: tuple[Candidate, ...]) -> Iterator[BackendRow]:
    clash = f"two backends of this name: {' and '.join(member.origin for member in group)}; uninstall one"
    for member in group:
        backend, named = member.backend, (member.name, member.distribution, member.version)
        if backend is None:
            yield BackendRow(*named, (), "", "", False, member.reason)
            continue
        reason = clash if len(group) > 1 else unavailable_reason(backend)
        yield BackendRow(
            *named,
            devices=tuple(sorted(backend.devices)),
            training=backend.training.value.replace("_", " "),
            shapes=backend.shapes,
            available=reason is None,
            reason=reason,
            description=backend.description,
        )


def _new_manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def _load_plugin(manager: pluggy.PluginManager, entry: EntryPoint) -> Iterable[Candidate]:
    """Loads one entry point and asks it for its backends; a failure becomes its only candidate."""
    origin = _distribution(entry)
    try:
        begin = time.perf_counter()
        plugin = entry.load()
        if (seconds := time.perf_counter() - begin) > _SLOW_IMPORT:
            text = "importing %s of %s took %.1f s, in each process that lists backends: Backend takes its"
            text += (
                " functions as 'module:function', too, which is imported when the backend is used"
            )
            logger().warning(text, entry.value, " ".join(filter(None, origin)), seconds)
        manager.register(plugin, f"{entry.name}@{origin[0]}")
    except (Exception, SystemExit) as error:  # SystemExit of a plug-in must not end the program
        reason = f"importing {entry.value} raised {type(error).__name__}: {error}"
        return [Candidate(entry.name, None, *origin, reason, error)]
    if unknown := _unknown_hooks(manager, plugin):
        manager.unregister(plugin)
        return [Candidate(entry.name, None, *origin, f"{entry.value} {unknown}")]
    if not hasattr(plugin, "tracer_backends") and not manager.get_hookcallers(plugin):
        reason = (
            f"{entry.value} has no hook of tracer_core: it names a module with tracer_backends(),"
            " marked @hookimpl"
        )
        return [Candidate(entry.name, None, *origin, reason)]
    return _offered(plugin, entry.name, origin)


def _unknown_hooks(manager: pluggy.PluginManager, plugin: Any) -> str | None:
    """Returns what is wrong with the names of a plug-in's hooks, or None.

    Hooks marked ``optionalhook=True`` may be unknown.
    """
    for caller in manager.get_hookcallers(plugin) or ():
        mine = [hookimpl for hookimpl in caller.get_hookimpls() if hookimpl.plugin is plugin]
        if not caller.has_spec() and not all(item.optionalhook for item in mine):
            known = [name for name in vars(hookspecs) if name.startswith("tracer_")]
            guess = did_you_mean(caller.name, known)
            lacks = f"has the hook {caller.name!r}, which tracer_core {__version__} has not{guess}"
            return f"{lacks}; {', '.join(known)}"
    return None


def _offered(plugin: Any, label: str, origin: tuple[str | None, str | None]) -> list[Candidate]:
    offer = getattr(plugin, "tracer_backends", None)
    if offer is None:  # a plug-in that only listens
        return []
    try:
        offered = offer()
        if not isinstance(offered, (list, tuple)):
            raise TypeError(f"it returned {type(offered).__name__}; a list of plugin_api.Backend")
        if not offered:
            reason = "it returned no backend; one that cannot run here says so by available="
            raise ValueError(reason)
        if wrong := [item for item in offered if not isinstance(item, Backend)]:
            raise TypeError(f"tracer_backends() gave {wrong[0]!r}, which is no plugin_api.Backend")
    except (Exception, SystemExit) as error:
        reason = f"its tracer_backends() raised {type(error).__name__}: {error}"
        return [Candidate(label, None, *origin, reason, error)]
    return [_candidate(backend, origin) for backend in offered]


def _candidate(backend: Backend, origin: tuple[str | None, str | None]) -> Candidate:
    return Candidate(backend.name, backend, *origin)


def _distribution(entry: EntryPoint) -> tuple[str | None, str | None]:
    return (entry.dist.name, entry.dist.version) if entry.dist else (None, None)


def _install(name: str) -> str:
    """Returns the command that installs a backend: those of this project are on no index."""
    provider = KNOWN_PROVIDERS[name]
    folder = f"packages/{provider} in a checkout of tracer-core"
    return f"python -m pip install {folder if provider.endswith('-backend') else provider}"


def _hint(name: str) -> str:
    counterpart = RENAMED.get(name) or name.removeprefix(torch_style.PREFIX)
    installed = counterpart in registry().candidates
    if counterpart != name and (installed or counterpart in KNOWN_PROVIDERS):
        how = "" if installed else f" ({_install(counterpart)})"
        return f"Its counterpart here is backend={counterpart!r}{how}."
    if name in KNOWN_PROVIDERS:
        return f"Install it: {_install(name)}"
    close = difflib.get_close_matches(name, [*registry().candidates, *KNOWN_PROVIDERS], n=1)
    if close:
        return f"Did you mean {close[0]!r}?"
    return "tracer_core.backends() shows every installed backend."
