"""Compiled programs for other processes: `save` and `load`, packages, and libraries for C."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracer_core.api import BackendLike, demand_capture, demand_compilable, demand_enabled
from tracer_core.errors import OptionError

if TYPE_CHECKING:
    import torch

    from tracer_core.execution.artifact import StoreReport
    from tracer_core.export.load import Package


def save(compiled: Any, path: str | os.PathLike[str]) -> StoreReport:
    """Writes the cache entries of a compiled object to a file, for `load` in another process.

    See `tracer_core.execution.artifact` for the file.

    Args:
        compiled: What `compile` returned, after its calls.
        path: The file, which is replaced atomically.

    Returns:
        A `StoreReport` with the names of the entries that were stored, and those left out with the
        reason.

    Raises:
        StoredError: `compiled` is not a compiled object, or its backend cannot serialize.
        TracerError: This release of Python or torch is not supported.

    Examples:
        >>> fast(x)
        >>> print(tracer_core.save(fast, "model.tracer"))
    """
    demand_capture("save")
    from tracer_core.execution.artifact import save as implementation  # heavy: the tracer

    return implementation(compiled, path)


def load(compiled: Any, path: str | os.PathLike[str], *, trust: bool = False) -> int:
    """Loads the cache entries that `save` wrote, so that the first call compiles nothing.

    The file is code: one that another user owns or may write to is refused. See
    `tracer_core.execution.artifact`.

    Args:
        compiled: What `compile` returned for the same program, before its first call.
        path: The file.
        trust: Loads a file that another user owns or may write to.

    Returns:
        The number of entries.

    Raises:
        StoredError: The file is damaged, refused, or written for other code or versions.
        TracerError: This release of Python or torch is not supported.

    Examples:
        >>> fast = tracer_core.compile(model)
        >>> tracer_core.load(fast, "model.tracer")
    """
    demand_capture("load")
    from tracer_core.execution.artifact import load as implementation  # heavy: the tracer

    return implementation(compiled, path, trust=trust)


def package(
    fn: Callable[..., Any],
    args: Sequence[Any],
    path: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic: bool | Mapping[str, Mapping[int, Any]] | None = None,
    weights: bool = True,
    backend: BackendLike = "inductor",
    mode: str | None = None,
    options: Any = None,
    key: bytes | None = None,
    architectures: Sequence[str] = (),
) -> dict[str, Any]:
    """Compiles `fn` for inference into one file.

    `load_package` runs it in processes that have neither its source nor its libraries.

    Args:
        fn: A function, method or module that is one graph.
        args: Examples of its positional arguments. Numbers and strings are constants of the
            package.
        path: The file.
        kwargs: Examples of its keyword arguments.
        dynamic: Which sizes may change. True: all. ``{"x": {0: (1, 64)}}``: sizes of tensors by
            name, each with its range (None: any size). Sizes marked with `mark_dynamic` may change
            too.
        weights: False: the file holds no weights; `load_package` takes them.
        backend: As for `compile`; it must be able to serialize.
        mode: As for `compile`.
        options: As for `compile`.
        key: Signs the file (HMAC-SHA256).
        architectures: The NVIDIA GPUs that the package is for (``("sm_80", "sm_90")``), which need
            not be here; it holds machine code for each. Empty: the GPU here.

    Returns:
        The manifest of the file.

    Raises:
        PackageError: No package can hold the program: a graph break, an effect on an object, or a
            value that may change from call to call. The text names the place.
        OptionError: An argument is wrong.
        BackendError: The backend cannot run here, or cannot serialize.
        MarkedSizeError: The program contradicts a range.

    Examples:
        >>> tracer_core.package(model.eval(), (x,), "model.pack", dynamic={"x": {0: (1, 64)}})
    """
    demand_compilable(fn)
    demand_enabled("package")
    _demand_key(key)
    if isinstance(architectures, str):
        raise OptionError(f"architectures={architectures!r}: a sequence, ({architectures!r},)")
    from tracer_core.export.save import package as implementation  # heavy: the tracer

    return implementation(
        fn, args, path, kwargs=kwargs or {}, dynamic=dynamic, weights=weights, backend=backend,
        mode=mode, options=options, key=key, architectures=architectures,
    )  # fmt: skip


def load_package(
    path: str | os.PathLike[str],
    *,
    weights: Mapping[str, torch.Tensor] | None = None,
    trust: bool = False,
    key: bytes | None = None,
) -> Package:
    """Loads the program that `package` wrote.

    Imports neither the program's source nor the tracer nor sympy. The hash of every part is
    verified before any of it is used.

    Args:
        path: The file. It is code: one that another user owns or may write to is refused.
        weights: Values of a state_dict, in place of those in the file.
        trust: Loads a file that another user owns or may write to.
        key: The key that the file must be signed with.

    Returns:
        The program, which is called as the original.

    Raises:
        StoredError: The file is damaged, refused or not signed with `key`, or was written for other
            versions, another processor, GPU or backend. The text names what differs.
        OptionError: `key` is not bytes.

    Examples:
        >>> model = tracer_core.load_package("model.pack")
        >>> model(x)
    """
    _demand_key(key)
    from tracer_core.export.load import load_package as implementation  # not with this module

    return implementation(path, weights=weights, trust=trust, key=key)


def package_library(
    fn: Callable[..., Any],
    args: Sequence[Any],
    directory: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any] | None = None,
    backend: BackendLike = "inductor",
    options: Any = None,
) -> None:
    """Compiles `fn` for inference into a shared library that needs neither Python nor PyTorch.

    The library is for the sizes of `args`; sizes marked with `mark_dynamic` are arguments of its
    functions. The weights are constants in it.

    Args:
        fn: As for `package`.
        args: As for `package`.
        directory: The folder for the library and its C header.
        kwargs: As for `package`.
        backend: As for `compile`; it must be able to write a library.
        options: As for `compile`.

    Raises:
        PackageError: No library can hold the program.
        BackendError: The backend cannot compile an operator without Python and PyTorch; the text
            names it.

    Examples:
        >>> tracer_core.package_library(model.eval(), (x,), "build")
    """
    demand_compilable(fn)
    demand_enabled("package_library")
    from tracer_core.export.library import (
        package_library as implementation,  # heavy: the tracer
    )

    implementation(fn, args, directory, kwargs=kwargs or {}, backend=backend, options=options)


def _demand_key(key: bytes | None) -> None:
    if key is not None and (not isinstance(key, bytes) or not key):
        raise OptionError(f"key must be bytes, not {type(key).__name__}")
