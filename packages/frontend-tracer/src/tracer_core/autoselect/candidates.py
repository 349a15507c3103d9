"""Resolves what the user wrote (``"auto"``, a list, options) to candidates with validated settings.

Entries are names, `Backend` objects, callables, or pairs of one of these with its options. The
result is a `Backend` for the tracer and a `CandidatePlan`, which becomes the options of the
CompileConfig. A named candidate that cannot be used raises its own error; with ``"auto"`` it
becomes a row with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracer_core.autoselect.choice import CandidateRow
from tracer_core.contract.backend import Backend, wants_constants
from tracer_core.errors import OptionError, TracerError
from tracer_core.options import CompileConfig
from tracer_core.registry import discovery
from tracer_core.registry.auto import NAME, AutoOptions, backend_for
from tracer_core.registry.torch_style import TorchStyle, from_callable

#: Backends that are not compilers, and ``auto`` itself.
NO_CANDIDATES = frozenset({"eager", "aten_eager", NAME})

#: ``(backend=, mode=, options=, fullgraph=, dynamic=) -> CompileConfig``
BuildConfig = Callable[..., CompileConfig]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One candidate. label: its name, with its options if any. config: validated."""

    label: str
    config: CompileConfig


@dataclass(frozen=True, slots=True)
class CandidatePlan:
    """What a compile() selects from.

    options: of the whole selection. candidates: in the order in which they are tried. refused: rows
    of those that cannot run here. trials: one selection per graph of this compile(), appended as
    graphs are captured (the only mutable field).
    """

    options: AutoOptions
    candidates: tuple[Candidate, ...]
    refused: tuple[CandidateRow, ...] = ()
    trials: list[Any] = field(default_factory=list, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return CandidatePlan, (
            self.options,
            self.candidates,
            self.refused,
        )  # trials are this process's

    @property
    def frozen(self) -> tuple[CompileConfig, ...]:
        """Returns the candidates that take parameters as constants."""
        configs = (candidate.config for candidate in self.candidates)
        return tuple(c for c in configs if wants_constants(c.backend, c.options))


def is_auto(backend: Any) -> bool:
    """Whether the ``backend=`` argument means several candidates."""
    # A list that can be called is a backend itself.
    several = isinstance(backend, (list, tuple)) and not callable(backend)
    return several or (isinstance(backend, Backend) and backend.name == NAME)


def make_plan(
    value: Any, options: AutoOptions, mode: str | None, build: BuildConfig, **config: Any
) -> CompileConfig:
    """Returns the config for `value`: the backend ``auto``, or a list. Raises OptionError and what
    `build` raises.
    """
    entries = _entries(value, options)
    named = isinstance(value, (list, tuple)) or options.candidates is not None
    candidates: list[Candidate] = []
    refused: list[CandidateRow] = []
    for name, backend, settings in entries:
        label = _label(name, settings)
        try:
            result = build(backend=backend, mode=mode, options=settings or None, **config)
        except TracerError as error:
            if named and not _lacks_mode(backend, mode):
                raise
            refused.append(CandidateRow(label, "refused", detail=str(error)))
        else:
            candidates.append(Candidate(label, result))
    _demand_different(candidates)
    if named and not candidates:
        reasons = "; ".join(row.detail for row in refused) or "the list is empty"
        raise OptionError(f"no candidate is left: {reasons}")
    backend = backend_for([candidate.config.backend for candidate in candidates])
    plan = CandidatePlan(options, tuple(candidates), tuple(refused))
    return CompileConfig(backend, plan, mode or "default", **config)


def _entries(value: Any, options: AutoOptions) -> list[tuple[str, Any, Mapping[str, Any]]]:
    """Returns (name, backend, its options) of each candidate."""
    is_list = isinstance(value, (list, tuple))
    wanted: Sequence[Any] = value if is_list else options.candidates or _installed()
    texts: list[tuple[str, Any, Mapping[str, Any]]] = []
    for item in wanted:
        own: Mapping[str, Any] = {}
        if isinstance(item, (list, tuple)):
            if len(item) != 2 or not isinstance(item[1], Mapping):
                wanted_form = "a candidate is a backend or a pair (backend, options)"
                raise OptionError(f"{wanted_form}, not {item!r}")
            item, own = item
        name = _name_of(item)
        if name == NAME:
            raise OptionError("'auto' is no candidate of itself")
        texts.append((name, item, {**options.settings.get(name, {}), **own}))
    names = [name for name, _, _ in texts]
    if unknown := ", ".join(sorted(set(options.settings).difference(names))):
        raise OptionError(f"settings for {unknown}: no such candidate; there are {names}")
    return texts


def _name_of(backend: Any) -> str:
    if isinstance(backend, str):
        return backend
    if isinstance(backend, Backend):
        return backend.name
    if callable(backend):
        return from_callable(backend).name
    kind = type(backend).__name__
    raise OptionError(f"a candidate is a name, a Backend or a callable, not {kind}")


def _installed() -> list[str]:
    """Returns every plug-in, inductor first; torch.compile backends of other packages must be
    named.
    """
    names = [
        name
        for name, group in discovery.registry().candidates.items()
        if name not in NO_CANDIDATES
        and not any(item.backend and isinstance(item.backend.compile, TorchStyle) for item in group)
    ]
    return sorted(names, key=lambda name: (name != "inductor", name))


def _label(name: str, settings: Mapping[str, Any]) -> str:
    inside = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    return f"{name}({inside})" if inside else name


def _lacks_mode(backend: Any, mode: str | None) -> bool:
    """Whether a candidate of a list only lacks the requested mode."""
    if mode in (None, "default"):
        return False
    result = discovery.get(backend) if isinstance(backend, str) else backend
    return (
        isinstance(result, Backend)
        and not isinstance(result.compile, TorchStyle)
        and mode not in result.modes
    )


def _demand_different(candidates: Sequence[Candidate]) -> None:
    labels = [candidate.label for candidate in candidates]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise OptionError(f"candidates are given twice: {', '.join(twice)}")


def plan_of(config: CompileConfig) -> CandidatePlan | None:
    """Returns the candidates that share a configuration's graphs; None where it has one backend."""
    return config.options if isinstance(config.options, CandidatePlan) else None


def runs(config: CompileConfig, graphs: Collection[str]) -> list[tuple[str, str]]:
    """Returns (graph, text): what happened since to these graphs, which were compiled with
    `config`.
    """
    plan = plan_of(config)
    configs = (config,) if plan is None else (config, *(item.config for item in plan.candidates))
    return discovery.notified_of_graphs([config.backend for config in configs], graphs)
