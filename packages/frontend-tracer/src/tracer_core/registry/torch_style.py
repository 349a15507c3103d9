"""Adapts backends of torch.compile's convention, ``backend(gm, example_inputs)``, to `Backend`.

The callable is given by the user or published in the entry-point group ``torch_dynamo_backends``.
The `compile` of the resulting `Backend` is a `TorchStyle`, which the dispatcher calls with the real
tensors of the call instead of a `CompileSpec`. Nothing here imports torch's compiler; an entry
point is loaded when it is first used, never to list it.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from tracer_core.contract.backend import Backend
from tracer_core.contract.specs import Training
from tracer_core.errors import BackendError, OptionError
from tracer_core.registry.eager import DEVICES

if TYPE_CHECKING:
    import torch

    from tracer_core.options import CompileConfig

#: The group in which packages publish backends for torch's compiler.
GROUP = "torch_dynamo_backends"

#: Prefix of the values of our own entries in `GROUP`, which the listing skips.
OWN_ENTRY = "tracer_core.bridges:"

PREFIX = "tracer_"

#: Backends without an entry point, which their distribution registers with torch's compiler on
#: import: name -> (distribution, ``module:function``).
WITHOUT_ENTRY_POINT = {
    "torch_tensorrt": ("torch_tensorrt", "torch_tensorrt.dynamo.backend:torch_tensorrt_backend"),
}


#: Packages whose backend drops the graph's mutations of tensors and views, and does not keep the
#: aliasing of results that are views.
FUNCTIONAL_ONLY = frozenset({"openvino"})


@dataclass(frozen=True, slots=True)
class TorchStyle:
    """`Backend.compile` of a backend written as ``backend(gm, example_inputs, **kwargs)``.

    name: for messages. source: the callable, or the entry point that names it. functional: the
    backend is correct only for graphs without mutations and without aliasing outputs (see
    `tracer_core.dispatch.functional_bridge`).
    """

    name: str
    source: Callable[..., Any] | EntryPoint
    functional: bool = False

    @property
    def is_callable_of_user(self) -> bool:
        """Whether the user passed the callable itself, instead of a name."""
        return not isinstance(self.source, EntryPoint)

    def function(self) -> Callable[..., Any]:
        """The callable itself. Raises BackendError if its entry point cannot be loaded."""
        if not isinstance(self.source, EntryPoint):
            return self.source
        try:
            loaded: Callable[..., Any] = self.source.load()
        except Exception as error:
            raise BackendError(self.name, "import", f"{self.source.value}: {error}") from error
        return loaded

    def build(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], config: CompileConfig
    ) -> Callable[..., Sequence[Any]]:
        """Calls the backend with the torch-level graph and the real tensors of the captured call.

        Returns ``callable(*tensors) -> sequence of tensors``. Raises BackendError (from the
        original exception) if the backend raises or returns something that cannot be called.
        """
        kwargs: dict[str, Any] = {}
        if config.mode != "default":
            kwargs["mode"] = config.mode
        if config.options:
            kwargs["options"] = dict(config.options)
        function = self.function()
        try:
            result: Callable[..., Sequence[Any]] = function(gm, list(example_inputs), **kwargs)
        except Exception as error:
            raise BackendError(self.name, "compile", f"{type(error).__name__}: {error}") from error
        if not callable(result):
            detail = f"returned {type(result).__name__}, not a callable"
            raise BackendError(self.name, "compile", detail)
        return result

    def __call__(self, graph: torch.fx.GraphModule, spec: Any) -> Any:
        """Always raises: such a backend needs the real tensors of the call, which `spec` lacks."""
        detail = "is called with example inputs: use TorchStyle.build(gm, inputs, config)"
        raise BackendError(self.name, "compile", detail)


def accepted_keywords(function: Callable[..., Any]) -> frozenset[str]:
    """Returns which of ``mode`` and ``options`` the callable takes; none if its signature is
    hidden.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return frozenset()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return frozenset({"mode", "options"})
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return frozenset(p.name for p in parameters if p.kind in by_name) & {"mode", "options"}


def torch_style_settings(
    style: TorchStyle, options: Any, mode: str | None, modes: Sequence[str]
) -> tuple[dict[str, Any] | None, str]:
    """Checks `options` and `mode` against what the callable accepts; returns both for
    CompileConfig.

    modes: the names of torch.compile's own modes. Raises OptionError, naming what the callable
    takes.
    """
    asked = {"mode": mode not in (None, "default"), "options": bool(options)}
    wanted = {key for key, inputs in asked.items() if inputs}
    if wanted:
        accepted = accepted_keywords(style.function())
        if lacking := " and no ".join(sorted(wanted - accepted)):
            parameters = ", ".join(("gm", "example_inputs", *sorted(accepted)))
            raise OptionError(
                f"backend {style.name!r} takes no {lacking}: its signature accepts ({parameters})"
            )
    if mode is not None and mode not in modes:
        raise OptionError(f"unknown mode {mode!r}; one of {', '.join(modes)}")
    if options is not None and not isinstance(options, Mapping):
        raise OptionError(
            f"options for backend {style.name!r} must be a dict, not {type(options).__name__}"
        )
    return (dict(options) if options else None), mode or "default"


def from_callable(function: Callable[..., Any]) -> Backend:
    """Returns a `Backend` for a callable that the user passed as ``backend=``."""
    label = getattr(function, "__name__", None) or type(function).__name__
    name = re.sub(r"\W+", "_", label).strip("_") or "custom"
    if not name.isidentifier():
        name = f"custom_{name}"
    style = TorchStyle(name, function)
    return _torch_style_backend(name, style, "a callable passed to compile()", None)


def from_entry_point(entry: EntryPoint) -> Backend:
    """Returns a `Backend` for an entry of the group ``torch_dynamo_backends``, without loading the
    entry.
    """

    description = f"published for torch.compile as {entry.value}"
    is_name = entry.name.replace("-", "_").isidentifier()
    name = entry.name if is_name else re.sub(r"\W+", "_", entry.name)
    style = TorchStyle(name, entry, entry.module.partition(".")[0] in FUNCTIONAL_ONLY)
    available = functools.partial(_missing_module, entry)
    return _torch_style_backend(name, style, description, available)


def unpublished() -> list[tuple[EntryPoint, str, str]]:
    """Returns (substitute entry point, distribution, version) for what is installed of
    `WITHOUT_ENTRY_POINT`.
    """
    result = []
    for name, (distribution, value) in WITHOUT_ENTRY_POINT.items():
        try:
            result.append((EntryPoint(name, value, GROUP), distribution, version(distribution)))
        except PackageNotFoundError:
            continue
    return result


def _torch_style_backend(
    name: str, style: TorchStyle, description: str, available: Callable[[], str | None] | None
) -> Backend:
    return Backend(
        name=name,
        compile=style,
        description=description,
        ir="torch",
        training=Training.INFERENCE_ONLY,
        shapes="symbolic",
        devices=DEVICES,
        available=available,
    )


def _missing_module(entry: EntryPoint) -> str | None:
    """Returns a reason if the entry's top-level package is missing, without importing the
    package.
    """
    package = entry.module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError) as error:
        return f"module {package!r} cannot be found: {error}"
    reason = f"module {package!r} of its entry point {entry.value!r} is not installed"
    return None if spec else reason
