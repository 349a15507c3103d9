"""Types of `compile` for type checkers and editors: modes, options as a dict, and what is returned.

Python has no type for "a T with two more methods". `Frozen` and `Selected` therefore have the call of
what was compiled and the methods that `compile` adds; as subclasses of Any they have every other
attribute, too, and are accepted where the program wants its own class.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypedDict, TypeVar

from tracer_core.options import DynamicShapes, Verify, When

if TYPE_CHECKING:
    from tracer_core.autoselect.choice import BackendChoices

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

#: The modes of torch.compile. A backend lists those it has, and may have modes of its own.
Mode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]


class InductorOptions(TypedDict, total=False):
    """`options=` of backend ``inductor``: `tracer_core.backend_options("inductor")` explains them."""

    fuse: bool
    inline: bool
    memory_budget: float
    freeze: bool
    recordings: bool
    tile_search: bool
    fallback_random: bool
    numerics: Literal["fused", "eager"]


class AutoOptions(TypedDict, total=False):
    """`options=` of ``backend="auto"`` and of lists: `tracer_core.backend_options("auto")`."""

    candidates: Sequence[str] | None
    settings: Mapping[str, Mapping[str, Any]]
    budget: float
    timing: float
    tolerance: float | None
    repeatable: Sequence[str]
    remember: bool
    wait: bool


class OptionsInstance(Protocol):
    """An instance of a backend's options dataclass."""

    __dataclass_fields__: typing.ClassVar[dict[str, Any]]


#: What `options=` takes of ``inductor``, and of several backends.
Options = InductorOptions | OptionsInstance
OfAuto = AutoOptions | OptionsInstance | None


class Settings(TypedDict, total=False):
    """The arguments of `compile` that do not decide the type of its result, for any backend."""

    fullgraph: bool
    dynamic: bool | None
    when: When
    disable: bool
    name: str | None
    recompile_limit: int | None
    isolate_recompiles: Literal[True]
    dynamic_shapes: DynamicShapes | None
    verify: Verify | None


class Modes(Settings, total=False):
    """Those of a backend with torch.compile's modes."""

    mode: Mode | None


class OwnModes(Settings, total=False):
    """Those of a backend that may have modes of its own."""

    mode: str | None


class Frozen(Any, typing.Generic[P, R_co]):
    """What was compiled with ``options=``: the methods exist where it holds constants (``freeze``)."""

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

        def refresh(self) -> None:
            """Reads all parameters again at the next call."""

        def release_originals(self) -> int:
            """Frees parameters that the graphs so far read in packed form only; returns the bytes."""


class Selected(Frozen[P, R_co]):
    """What was compiled with ``backend="auto"`` or a list of backends."""

    if TYPE_CHECKING:

        def choices(self, wait: float = 0.0) -> BackendChoices:
            """Returns the table of each graph so far, after at most `wait` seconds for trials."""
