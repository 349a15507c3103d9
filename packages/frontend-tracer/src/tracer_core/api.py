"""What users call: `compile` and the functions round it.

In: a function, method or nn.Module and settings. Out: the same thing, compiled when it is called.

Where the tracer acts (it is imported when something is first compiled, not with this module):
- `compile` validates everything (`tracer_core.dispatch.validation`) and hands a plain function with
  a frozen `CompileConfig` to `tracer_core.execution.compiled_function.CompiledFunction`. A bound
  method is its function with the object as first argument; a module is ``Module._call_impl`` with the
  compiled module as first argument, so hooks are captured; any other callable object
  goes through `call_object`.
- `explain` delegates to `tracer_core.explanation.explain`; `reset` to
  `tracer_core.execution.compiled_function.reset`, the backends that were used, and the discovery of
  plug-ins.
- `disable`, `graph_break`, `mark_dynamic`, ... leave marks (`tracer_core.markers`) that the tracer
  reads.

What always holds: `compile` raises for every mistake that can be known before the first call; it
never changes what it is given; compiling a compiled object compiles its original with the new
settings.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch

from tracer_core import torch_private
from tracer_core.autoselect.candidates import Plan, plan_of, runs
from tracer_core.autoselect.choice import Choice
from tracer_core.background.progress import Progress
from tracer_core.compiled_callable import call_object, with_target, wrapper
from tracer_core.compiled_module import Replacement, share
from tracer_core.contract.backend import Backend
from tracer_core.debug import logs, stages
from tracer_core.debug.crossed_limits import crossings
from tracer_core.debug.gc_pause import collector_paused
from tracer_core.debug.stages import StageRecord, StageRecords
from tracer_core.dispatch import validation
from tracer_core.errors import OptionError, TracerError
from tracer_core.inputs import Inputs
from tracer_core.markers import (
    COMPILED,
    Compiled,
    compiled,
    disabled,
    look_like,
    put_mark,
    uncompiled,
)
from tracer_core.natives.replicas import around_forward
from tracer_core.options import CompileConfig
from tracer_core.registry import events
from tracer_core.registry.discovery import BackendRow, forget, mark_used, reset_used, rows
from tracer_core.registry.discovery import list_backends as available_names
from tracer_core.storage.fleet import fleet

if TYPE_CHECKING:
    from tracer_core.packages.load import Package

T = TypeVar("T", bound=Callable[..., Any])

BackendLike = str | Backend | Callable[..., Any] | Sequence[Any]


@overload
def compile(
    model: T,
    *,
    backend: BackendLike = ...,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    mode: str | None = ...,
    options: Any = ...,
    when: str = ...,
    disable: bool = ...,
) -> T: ...
@overload
def compile(
    model: None = ...,
    *,
    backend: BackendLike = ...,
    fullgraph: bool = ...,
    dynamic: bool | None = ...,
    mode: str | None = ...,
    options: Any = ...,
    when: str = ...,
    disable: bool = ...,
) -> Callable[[T], T]: ...
def compile(
    model: Any = None,
    *,
    backend: BackendLike = "inductor",
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = None,
    options: Any = None,
    when: str = "now",
    disable: bool = False,
) -> Any:
    """A form of `model` that is captured and compiled by `backend` when it is called.

    model: a function, a bound method, an nn.Module, or any callable object; None: returns a
    decorator, so that ``@compile`` and ``@compile(fullgraph=True)`` both work. backend: a name from
    `list_backends()`, a `Backend`, or a callable ``backend(gm, example_inputs)`` as written for
    torch.compile, or a list of these (also of pairs with options; ``"auto"``: all that are
    installed): each graph is compiled by all of them in the background and served by the fastest
    that gives eager's results, see `tracer_core.registry.auto.AutoOptions`; ``choices()`` of what
    is returned shows the tables. fullgraph: a graph break is a GraphBreakError, a call beyond the
    recompile limit that nothing compiled fits a RecompileLimitError, and nothing ever runs
    natively: where the program cannot be captured, or its graph fails, a TracerError says why.
    dynamic: None: a size that changed becomes symbolic; True: symbolic from the start; False:
    always static. mode: ``"default"``, ``"reduce-overhead"``, ``"max-autotune"`` or
    ``"max-autotune-no-cudagraphs"``, as far as the backend has it. options: the backend's options
    dataclass, or a dict with its field names; never changed. when: ``"background"``: a call that
    captures a graph runs it eagerly, and so do others until another thread has compiled it and it
    takes over; see `progress` and `warmup`. disable: returns `model` as it is.

    A compiled function has the original's name, signature and attributes. A compiled module is an
    object of the original's class that shares its state (see `tracer_core.compiled_module`); a
    direct call of its ``forward`` runs no hooks, as in eager PyTorch, and is not compiled.

    Raises OptionError, BackendNotFoundError, BackendNameClashError or BackendError here, not at the
    first call. The first call may raise GraphBreakError or RequirementError, and BackendError under
    TRACER_STRICT=1 or where `backend` is a function; else the graph runs in eager mode.
    """
    if not isinstance(disable, bool):
        raise OptionError(f"disable must be bool, not {disable!r}")
    if model is None:
        settings: dict[str, Any] = {
            "backend": backend,
            "fullgraph": fullgraph,
            "dynamic": dynamic,
            "mode": mode,
            "options": options,
            "when": when,
        }
        if not disable:  # a wrong setting is an error where it was written, not where it is applied
            validation.build_config(**settings)
        return functools.partial(compile, disable=disable, **settings)
    _demand_compilable(model)
    if disable:
        return model
    logs.configure()
    fleet()  # connects beside what follows; a wrong setting is an error here
    _say_what_is_untested()
    config = validation.build_config(
        backend=backend, fullgraph=fullgraph, dynamic=dynamic, mode=mode, options=options, when=when
    )
    events.follow_stages()
    mark_used(config.backend)
    if torch_private.refusal() is not None:
        if fullgraph:
            _demand_capture("fullgraph=True")
        return model
    return _compile(model, config)


@functools.cache
def _say_what_is_untested() -> None:
    """Says once that nobody tried this torch, and what follows."""
    if text := torch_private.refusal() or torch_private.remark():
        logs.logger().warning("%s", text)


def list_backends() -> list[str]:
    """The names of the backends that can run here, sorted. Imports no backend's engine."""
    return available_names()


def backends() -> list[BackendRow]:
    """A row for every installed backend: name, distribution, version, devices, training, shapes,
    whether it is available, and if not why not. Imports no backend's engine."""
    return rows()


def explain(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``explain(fn)(*args)`` runs `fn` under capture and reports its graphs, breaks and guards.

    The report has `graphs`, `graph_count`, `graph_break_count`, `op_count`, `guards`, and for each
    break the user's line, the reason and what would remove it. fn: compiled or not; of a compiled
    one the report also says how its graphs run by now (`runs`: recorded as CUDA graphs, or why
    not), and, where several backends compile them (``backend="auto"``), the `choices` so far.
    """
    _demand_compilable(fn)
    _demand_capture("explain")
    from tracer_core.explanation import explain as implementation  # heavy: the tracer

    behind = compiled(fn)
    return implementation(uncompiled(fn), None if behind is None else behind.function)


def reset() -> None:
    """Forgets everything that was compiled in this process, and which plug-ins are installed.

    Calls the `reset` of each backend that was used. Files in the cache folder stay.
    """
    runtime = sys.modules.get("tracer_core.execution.compiled_function")
    if runtime is not None:
        runtime.reset()
    reset_used()
    forget()


def last_compile(fn: Callable[..., Any]) -> StageRecords:
    """The stages of the last compile of `fn`, in the order in which they finished, with their
    seconds: a tuple of `StageRecord`, printed as a table. A backward is compiled when it first
    runs. The first row, ``kept``, says how many entries of earlier processes were found, or why none
    were; rows ``background`` say how far graphs are that are compiled in the background. The last
    rows say what became of the graphs since: ``runs``, recorded as CUDA graphs, or
    why not; ``compared``, what a compiled and an eager call took, and which of them stays; ``limit``,
    each limit that was reached and what happens beyond it (`tracer-core limits`). Where
    this release of torch lacks names that tracer-core looks for, the first row,
    ``missing_in_torch``, lists them.

    A stage whose text is costly to make has it only if TRACER_DEBUG is set or a plug-in listens to
    stages. Empty if nothing was compiled yet. On a release of Python or torch where programs run
    natively the only row, ``native``, says why. Raises OptionError if `fn` is not a compiled object.
    """
    if (refusal := torch_private.refusal()) is not None:
        return StageRecords((StageRecord("native", 0.0, refusal),))
    behind = compiled(fn)
    if behind is None:
        raise OptionError(f"last_compile needs what compile() returned, not {fn!r}")
    records = stages.records_of(behind.function)
    told = runs(behind.function.config, {record.graph for record in records if record.graph})
    lacking = torch_private.not_found()
    text = f"torch {torch.__version__} has no {', '.join(lacking)}: what needs them"
    text += " ends the graph or runs natively"
    missing = (StageRecord("missing_in_torch", 0.0, text),) if lacking else ()
    found = behind.function.kept
    kept = (StageRecord("kept", found.seconds, found.found),) if found.found else ()
    later = (
        StageRecord("background", one.seconds, one.text, one.graph)
        for one in behind.function.compilations
    )
    after = (StageRecord("runs", 0.0, text, graph) for graph, text in told)
    compared = (StageRecord("compared", 0.0, str(one)) for one in behind.function.verdicts)
    reached = (StageRecord("limit", 0.0, str(one)) for one in crossings(behind.function))
    return StageRecords((*missing, *kept, *records, *later, *after, *compared, *reached))


def progress(fn: Callable[..., Any] | None = None, *, wait: float = 0.0) -> Progress:
    """What is or was compiled in the background (``when="background"``), graph by graph: a tuple of
    `GraphProgress`, printed as a table. fn: a compiled object; None: all of them. wait: seconds to
    wait for its end (``progress(wait=60).is_done``). Raises OptionError if `fn` is not a compiled
    object."""
    if torch_private.refusal() is not None:
        return Progress()
    from tracer_core import preparation  # heavy: the tracer

    behind = None if fn is None else compiled(fn)
    if fn is not None and behind is None:
        raise OptionError(f"progress needs what compile() returned, not {fn!r}")
    return preparation.progress(None if behind is None else behind.function, wait)


def warmup(
    fn: Callable[..., Any],
    *inputs: Any,
    workers: int | None = None,
    progress: bool | Callable[[Progress], None] = False,
) -> None:
    """Makes calls of `fn` until they compile nothing, so that no later call with such arguments does.

    fn: a compiled object, or a function that calls compiled ones (``model.generate``). inputs: of one
    call each: a tuple of positional arguments, a dictionary of keyword arguments, an `Inputs` with
    both, or a single argument; without any, `fn` is called without arguments. Call it under the modes
    of the later calls (``torch.no_grad()``, autocast), which are guarded. Graphs are captured one
    after the other, and compiled by `workers` threads (one a processor), a backward with its forward.

    The calls are real, several of each: what they print or count happens. torch's random generators
    and the buffers of a module that `fn` is are set back. progress: True: a bar of tqdm where that is
    installed and stderr is a terminal, else lines in the log at level INFO; a function: called with a
    `Progress` as it changes. Raises what the calls raise, the error of a graph that cannot be
    compiled, and TracerError if the calls go on compiling.
    """
    _prepare([(fn, inputs or (Inputs(),))], workers, progress)


def compile_many(
    models: Sequence[Sequence[Any]],
    *,
    workers: int | None = None,
    progress: bool | Callable[[Progress], None] = True,
    **settings: Any,
) -> list[Any]:
    """Compiles several models for a server's start, side by side; returns what `compile` returns for
    each.

    models: of each ``(model, inputs, ...)``, with the inputs of its calls as `warmup` takes them; one
    that is compiled already stays as it is, others are compiled with `settings`, which `compile`
    takes. workers, progress, errors: see `warmup`.
    """
    made = [
        (model if compiled(model) is not None else compile(model, **settings), inputs)
        for model, *inputs in models
    ]
    _prepare(made, workers, progress)
    return [model for model, _ in made]


def save(compiled: Any, path: str | os.PathLike[str]) -> Any:
    """Stores what `compiled` has captured, for `load` in another process: returns a `StoreReport`
    with the names stored, and those left out with the reason. See `tracer_core.execution.artifact`
    for the file and errors."""
    _demand_capture("save")
    from tracer_core.execution.artifact import save as implementation  # heavy: the tracer

    return implementation(compiled, path)


def load(compiled: Any, path: str | os.PathLike[str], *, trust: bool = False) -> int:
    """Gives `compiled` (just made by `compile()`) what `save` stored at `path`, so that its first
    call traces and compiles nothing. Returns how many entries there were.

    The file is code: one that another user owns or may write to is refused unless `trust`. See
    `tracer_core.execution.artifact`."""
    _demand_capture("load")
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
    """Compiles `fn` for inference and writes it to one file, for `load_package` in processes that
    have neither its source nor the libraries that it is written with. Returns the manifest.

    fn: a function, method or module that is one graph. args, kwargs: examples of its arguments;
    numbers and texts among them are constants of the package. dynamic: what may change: True: all
    sizes; ``{"x": {0: (1, 64)}}``: sizes of tensors by name, each with its range (None: any size);
    sizes marked with `mark_dynamic` are so too. weights: False: the file holds none, and
    `load_package` is given them. backend, mode, options: as for `compile`; the backend must be able
    to serialize. key: signs the file (HMAC-SHA256). architectures: of NVIDIA GPUs that the package
    is for, ``("sm_80", "sm_90")``, which need not be here: it holds machine code for each (none: for
    the GPU here).

    Raises PackageError naming what no package can hold (a graph break, an effect on an object, a
    value that may change from call to call) and where; BackendError; MarkedSizeError.
    """
    _demand_compilable(fn)
    _demand_capture("package")
    _demand_key(key)
    if isinstance(architectures, str):
        raise OptionError(f"architectures={architectures!r}: a sequence, ({architectures!r},)")
    from tracer_core.packages.save import package as implementation  # heavy: the tracer

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
    """Returns the program that `package` wrote to `path`, to be called as it was; its source, the
    tracer and sympy are not imported.

    weights: of a state_dict, in place of those in the file. The file is code: one that another user
    owns or may write to is refused unless `trust`. key: the file must be signed with it. The hash of
    every part is verified before any of it is used.

    Raises StoredError if the file is damaged or not signed so, or if it was made for other versions,
    another processor, GPU or backend: the text names what differs.
    """
    _demand_key(key)
    from tracer_core.packages.load import load_package as implementation  # not with this module

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
    """Compiles `fn` for inference to a shared library with a C header in `directory`, which needs
    neither Python nor PyTorch; its weights are constants in it.

    fn, args, kwargs: as for `package`. The library is for the sizes of `args`; those marked with
    `mark_dynamic` are arguments of its functions. Raises PackageError, or BackendError naming the
    operator that prevents it.
    """
    _demand_compilable(fn)
    _demand_capture("package_library")
    from tracer_core.packages.library import (
        package_library as implementation,  # heavy: the tracer
    )

    implementation(fn, args, directory, kwargs=kwargs or {}, backend=backend, options=options)


# Inside
# ---------------------------------------------------------------------------------------------


def _demand_key(key: bytes | None) -> None:
    if key is not None and (not isinstance(key, bytes) or not key):
        raise OptionError(f"key must be bytes, not {type(key).__name__}")


def _demand_capture(what: str) -> None:
    """Raises TracerError where this release of Python or torch is unsupported."""
    if (refusal := torch_private.refusal()) is not None:
        raise TracerError(f"{what}: {refusal}")


def _prepare(
    models: Sequence[tuple[Any, Sequence[Any]]],
    workers: int | None,
    progress: bool | Callable[[Progress], None],
) -> None:
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise OptionError(f"workers must be a positive int or None, not {workers!r}")
    for model, _ in models:
        _demand_compilable(model)
    if torch_private.refusal() is not None:
        return
    from tracer_core.preparation import Item, prepare  # heavy: the tracer

    items = [Item(model, [Inputs.of(one) for one in inputs]) for model, inputs in models]
    prepare(items, workers, progress)


def _demand_compilable(model: Any) -> None:
    if inspect.isclass(model):
        raise OptionError(f"compile an instance or a method of {model.__qualname__}, not the class")
    if not callable(model):
        raise OptionError(f"model must be callable, not {type(model).__name__}")


def _compile(model: Any, config: CompileConfig) -> Any:
    model = uncompiled(model)
    if disabled(model) is not None:
        return model
    model = _behind_torch_compile(model)
    if isinstance(model, torch.nn.Module):
        inner = _call_original if _is_torch_compiled_module(model) else None
        return share(
            model,
            functools.partial(_traced, config=config),
            Compiled,
            _methods(config),
            around_forward if inner is None else None,
            inner,
        )
    if isinstance(model, (staticmethod, classmethod)):
        return type(model)(_compile(model.__func__, config))
    if inspect.ismethod(model):
        return _compile(model.__func__, config).__get__(model.__self__)
    return _wrapper(model, config)


def _behind_torch_compile(model: Any) -> Any:
    """The function that torch.compile was given; anything else as it is. Decorators copy
    attributes, but what they wrap is torch.compile's function, not the one that it says it was made
    of."""
    while inspect.isfunction(model):
        original = getattr(model, "_torchdynamo_orig_callable", None)
        if original is None or vars(model).get("__wrapped__") is not original:
            break
        model = original
    return model


def _is_torch_compiled_module(model: Any) -> bool:
    """Whether torch.compile returned this module: it holds the original and what it was made of."""
    entries = vars(model) if isinstance(model, torch.nn.Module) else {}
    return "_torchdynamo_orig_callable" in entries and "_orig_mod" in entries["_modules"]


def _call_original(module: Any, /, *args: Any, **kwargs: Any) -> Any:
    """What is traced for a module that torch.compile returned."""
    # Its class answers attributes in its own way.
    return module.__dict__["_modules"]["_orig_mod"](*args, **kwargs)


def _methods(config: CompileConfig) -> dict[str, Callable[..., Any]]:
    """What compiled objects have besides: `choices` where several backends are tried, and `refresh`
    and `release_originals` where parameters are constants (``freeze=True``)."""
    plan = plan_of(config)
    if plan is not None:
        return {"choices": functools.partial(_choices, plan), **_frozen_methods(plan.frozen)}
    frozen = config.backend.params == "constants" and getattr(config.options, "freeze", False)
    return _frozen_methods((config,) if frozen else ())


def _choices(plan: Plan, wait: float = 0.0) -> tuple[Choice, ...]:
    """The table of each graph so far: its candidates, how they did, and who serves it. wait:
    seconds to wait for trials that go on."""
    end = time.perf_counter() + wait
    for trial in tuple(plan.trials):
        trial.wait(max(0.0, end - time.perf_counter()))
    return tuple(trial.choice() for trial in plan.trials)


def _frozen_methods(configs: Sequence[CompileConfig]) -> dict[str, Callable[..., Any]]:
    if not configs:
        return {}

    def refresh() -> None:
        """Reads all parameters again at the next call: after writes that leave no trace (``.data``,
        NumPy).
        """
        from tracer_core.aot.frozen_parameters import refresh as implementation  # heavy: the tracer

        for config in configs:
            implementation(config.options)

    def release_originals() -> int:
        """Gives back the memory of parameters that the graphs so far read packed only; returns how
        many bytes.

        Call it after the calls that matter (all input sizes): from then on such a parameter has no
        values, what reads it (another graph, eager code, ``state_dict()``) raises RuntimeError
        naming it, and ``refresh()`` raises too.
        """
        from tracer_core.aot.frozen_parameters import (
            release_originals as implementation,  # heavy: the tracer
        )

        return sum(implementation(config.options) for config in configs)

    return {"refresh": refresh, "release_originals": release_originals}


def _traced(function: Callable[..., Any], config: CompileConfig) -> Replacement:
    """The tracer's callable for a Python function."""
    with collector_paused():
        from tracer_core.execution.compiled_function import CompiledFunction  # heavy: guards

    traced: Replacement = CompiledFunction(function, config)
    return traced


def _wrapper(target: Callable[..., Any], config: CompileConfig) -> Callable[..., Any]:
    """The compiled form of a Python function, or of another callable that is no module."""
    is_function = inspect.isfunction(target)
    traced = _traced(target if is_function else call_object, config)
    run = traced.call if is_function else with_target(target, traced.call)
    call = look_like(wrapper(target, run), target)
    put_mark(call, COMPILED, Compiled(traced, target))
    vars(call).update(_methods(config))
    return call
