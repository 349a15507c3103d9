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
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Never, TypeVar, Unpack, overload

import torch

from tracer_core import argument_marks, torch_private
from tracer_core.autoselect.candidates import CandidatePlan, plan_of, runs
from tracer_core.autoselect.choice import BackendChoices
from tracer_core.background.progress import Progress
from tracer_core.compiled_callable import call_object, with_target, wrapper
from tracer_core.compiled_module import Replacement, share
from tracer_core.contract.backend import Backend
from tracer_core.debug import logs, stages
from tracer_core.debug.crossed_limits import crossings
from tracer_core.debug.gc_pause import collector_paused
from tracer_core.debug.notebook import as_html
from tracer_core.debug.stages import StageRecord, StageRecords
from tracer_core.dispatch import validation
from tracer_core.dispatch.option_rows import BackendOptions, rows_of
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
from tracer_core.native_effects.data_parallel import around_forward
from tracer_core.options import CompileConfig, DynamicShapes, Verify, When
from tracer_core.registry import environment, events
from tracer_core.registry.discovery import BackendRows, forget, mark_used, reset_used, rows
from tracer_core.registry.discovery import list_backends as available_names
from tracer_core.storage.fleet import fleet
from tracer_core.switch import disabled_by_environment, reason_for_eager
from tracer_core.typed import Frozen, Modes, OfAuto, Options, OwnModes, P, Selected

if TYPE_CHECKING:
    from tracer_core.explanation import Explanation

T = TypeVar("T", bound=Callable[..., Any])
R = TypeVar("R")

BackendLike = str | Backend | Callable[..., Any] | Sequence[Any]


Several = Literal["auto"] | list[Any] | tuple[Any, ...]
Single = str | Backend | Callable[..., Any]


Inductor = Literal["inductor"] | None


# In order: inductor, the default, has options that a type checker knows; several backends add
# `choices`; other backends have options and modes of their own. mypy finds that "inductor" and "auto"
# are strings, too.
# fmt: off
@overload
def compile(model: T, *, backend: Inductor = ..., options: None = ..., **rest: Unpack[Modes]) -> T: ...
@overload
def compile(model: Callable[P, R], *, backend: Inductor = ..., options: Options, **rest: Unpack[Modes]) -> Frozen[P, R]: ...
@overload
def compile(model: Callable[P, R], *, backend: Several, options: OfAuto = ..., **rest: Unpack[Modes]) -> Selected[P, R]: ...
@overload
def compile(model: T, *, backend: Single, options: None = ..., **rest: Unpack[OwnModes]) -> T: ...
@overload
def compile(model: Callable[P, R], *, backend: Single, options: Any, **rest: Unpack[OwnModes]) -> Frozen[P, R]: ...
@overload
def compile(*, backend: Inductor = ..., options: None = ..., **rest: Unpack[Modes]) -> Callable[[T], T]: ...
@overload
def compile(*, backend: Inductor = ..., options: Options, **rest: Unpack[Modes]) -> Callable[[Callable[P, R]], Frozen[P, R]]: ...
@overload
def compile(*, backend: Several, options: OfAuto = ..., **rest: Unpack[Modes]) -> Callable[[Callable[P, R]], Selected[P, R]]: ...
@overload
def compile(*, backend: Single, options: None = ..., **rest: Unpack[OwnModes]) -> Callable[[T], T]: ...
@overload
def compile(*, backend: Single, options: Any, **rest: Unpack[OwnModes]) -> Callable[[Callable[P, R]], Frozen[P, R]]: ...
# fmt: on
def compile(
    model: Any = None,
    *,
    backend: BackendLike | None = None,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = None,
    options: Any = None,
    when: When = "now",
    disable: bool = False,
    name: str | None = None,
    recompile_limit: int | None = None,
    isolate_recompiles: Literal[True] = True,
    dynamic_shapes: DynamicShapes | None = None,
    verify: Verify | None = None,
) -> Any:
    """Returns a form of `model` that is captured and compiled when it is called.

    A compiled function has the original's name, signature and attributes. A compiled module is an
    object of the original's class that shares its state (see `tracer_core.compiled_module`); a
    direct call of its ``forward`` runs no hooks, as in eager PyTorch, and is not compiled.

    The first call may raise GraphBreakError or RequirementError, and BackendError under
    TRACER_STRICT=1 or where `backend` is a function; otherwise a graph whose backend fails runs in
    eager mode.

    Args:
        model: A function, a bound method, an nn.Module, or any callable object. None: returns a
            decorator, so that ``@compile`` and ``@compile(fullgraph=True)`` both work.
        backend: A name from `list_backends()`, a `Backend`, or a callable ``backend(gm,
            example_inputs)`` as written for torch.compile. A list of these (or of pairs with
            options), or ``"auto"`` for all that are installed, compiles each graph with every one
            in the background; the fastest whose results are eager's serves it
            (`tracer_core.registry.auto.AutoOptions`), and ``choices()`` of the compiled object
            returns the tables. None: what `set_default_backend` has set, or ``"inductor"``.
        fullgraph: Raises GraphBreakError at a graph break, RecompileLimitError for a call beyond
            the recompile limit that no cache entry serves, and another TracerError where the
            program cannot be captured or its graph fails. Nothing runs in eager mode.
        dynamic: None: a size is static until it changes, then symbolic. True: symbolic from the
            start. False: always static.
        mode: ``"default"``, ``"reduce-overhead"``, ``"max-autotune"`` or
            ``"max-autotune-no-cudagraphs"``, as far as the backend has it. None: ``"default"``.
        options: An instance of the backend's options dataclass, or a dict with its field names. It
            is never changed.
        when: ``"now"``, or ``"background"``: a captured graph runs eagerly until another thread has
            compiled it. See `progress` and `warmup`.
        disable: Returns `model` as it is.
        name: What messages, reports and profiles call it. None: the name of the function or class.
        recompile_limit: How many entries may be captured for one object. None: ``MAX_RECOMPILES``,
            which ``TRACER_LIMITS`` changes for a process.
        isolate_recompiles: True, the only value: entries and limits are never shared with another
            compiled object of the same code.
        dynamic_shapes: Sizes that are symbolic from the first call on, by name of the argument:
            ``{"x": {0: (1, 64), 1: None}}``, with the least and the largest size, or None for any.
            As `mark_dynamic` of each call's arguments.
        verify: Compares the first call of each graph with eager mode, which serves that call.
            ``"report"``: a row ``verified`` of `last_compile`. ``"warn"``: also a warning where they
            differ. ``"fallback"``: also, that graph runs in eager mode. The persistent cache is not
            used.

    Returns:
        The compiled function, method, module or callable; a decorator where `model` is None.

    Raises:
        OptionError: An argument, option or mode is unknown or of the wrong type.
        BackendNotFoundError: No installed backend has that name.
        BackendNameClashError: Two distributions offer a backend of that name.
        BackendError: The backend cannot run here.

    Examples:
        >>> @tracer_core.compile
        ... def program(x):
        ...     return torch.relu(x) + 1
        >>> fast = tracer_core.compile(model, mode="reduce-overhead", options={"freeze": True})
    """
    if not isinstance(disable, bool):
        raise OptionError(f"disable must be bool, not {disable!r}")
    settings: dict[str, Any] = {"backend": backend, "fullgraph": fullgraph, "dynamic": dynamic}
    settings |= {"mode": mode, "options": options, "when": when, "name": name, "verify": verify}
    settings |= {"recompile_limit": recompile_limit, "isolate_recompiles": isolate_recompiles}
    settings |= {"dynamic_shapes": dynamic_shapes}
    if model is None:
        if not disable:  # a wrong setting is an error where it was written, not where it is applied
            validation.build_config(**settings)
        return functools.partial(compile, disable=disable, **settings)
    demand_compilable(model)
    if disable:
        return model
    logs.configure()
    if not disabled_by_environment():
        fleet()  # connects beside what follows; a wrong setting is an error here
    environment.warn()
    _say_what_is_untested()
    config = validation.changed(validation.build_config(**settings))
    argument_marks.check(model, config.dynamic_shapes)
    events.follow_stages()
    mark_used(config.backend)
    if torch_private.refusal() is not None:
        if fullgraph:
            demand_capture("fullgraph=True")
        return model
    return _compile(model, config)


@functools.cache
def _say_what_is_untested() -> None:
    """Logs once that this release of torch was never tried, and what follows."""
    if text := torch_private.refusal() or torch_private.remark():
        logs.logger().warning("%s", text)


def set_default_backend(backend: BackendLike = "inductor") -> None:
    """Sets the backend of later calls of `compile` in this process that name none.

    Args:
        backend: As for `compile`.

    Raises:
        OptionError: It is no backend.
        BackendNotFoundError: No installed backend has that name.

    Examples:
        >>> tracer_core.set_default_backend("onnxrt")
    """
    validation.build_config(backend=backend)
    validation.default_backend[0] = backend


def get_default_backend() -> BackendLike:
    """Returns what `set_default_backend` has set; at first ``"inductor"``.

    Examples:
        >>> tracer_core.get_default_backend()
        'inductor'
    """
    result: BackendLike = validation.default_backend[0]
    return result


def list_backends() -> list[str]:
    """Returns the names of the backends that can run here, without importing their engines.

    Returns:
        The names, sorted.

    Examples:
        >>> "inductor" in tracer_core.list_backends()
        True
    """
    return available_names()


def backends() -> BackendRows:
    """Returns a row for every installed backend, without importing their engines.

    Returns:
        Rows, printed as a table, with name, distribution, version, devices, training and shapes, and whether the backend
        can run here, or why not.

    Examples:
        >>> [row.name for row in tracer_core.backends() if not row.available]
    """
    return rows()


def backend_options(backend: BackendLike) -> BackendOptions:
    """Returns the options and modes of a backend, without compiling anything.

    Args:
        backend: As for `compile`; a name, also of a backend that cannot run here.

    Returns:
        A `BackendOptions`, printed as a list: each option with type, default and what it does, and
        what each mode means.

    Raises:
        BackendNotFoundError: No installed backend has that name.

    Examples:
        >>> print(tracer_core.backend_options("inductor"))
        >>> [row.name for row in tracer_core.backend_options("onnxrt").options]
    """
    return rows_of(backend)


def original(fn: T) -> T:
    """Returns what `compile` was given to make `fn`.

    A compiled function also has it as ``fn.__wrapped__``. A compiled module has no such attribute:
    its class and its ``__dict__`` are the original's.

    Args:
        fn: A function, method or module, compiled or not.

    Returns:
        The original function or method. For a module the one that was compiled, or, once the
        program has dropped it, another with the same state. `fn` itself if it is not compiled.

    Examples:
        >>> fast = tracer_core.compile(model)
        >>> tracer_core.original(fast) is model
        True
    """
    result: T = uncompiled(fn)
    return result


def explain(fn: Callable[..., Any], *misplaced: Never) -> Callable[..., Explanation]:
    """Returns a function that captures one call of `fn` and reports graphs, breaks and guards.

    The call is made for real. A compiled object is called itself, so that the report tells of what
    runs: with its backend, options and limits, the branches that it speculates on, what ran eagerly
    and why, and all that earlier calls captured. Anything else is captured for the report alone,
    with the ``eager`` backend.

    Args:
        fn: A function, method, module or other callable, compiled or not. Of a compiled one the
            report also has how its graphs run by now (``runs``: captured as CUDA graphs, or why
            not) and, where several backends compile them, the ``choices`` so far. One with
            ``fullgraph=True`` whose graph breaks is captured again without, to list all breaks.
        *misplaced: Nothing. The arguments of the call are those of the function returned.

    Returns:
        A function that takes the arguments of `fn` and returns a
        `tracer_core.explanation.Explanation`.

    Raises:
        OptionError: `fn` is not callable, or is a class; or arguments of the call are given here.
        TracerError: This release of Python or torch is not supported.

    Examples:
        >>> report = tracer_core.explain(model)(x)
        >>> report.graph_count, report.graph_break_count
        >>> print(report)
    """
    if misplaced:
        raise OptionError("the arguments of the call go into a second pair: explain(fn)(*args)")
    demand_compilable(fn)
    demand_capture("explain")
    from tracer_core.explanation import explain as implementation  # heavy: the tracer

    behind = compiled(fn)
    return implementation(fn, None if behind is None else behind.function)


def reset() -> None:
    """Drops everything that was compiled in this process.

    Calls the `Backend.reset` of each backend that was used, and discovers plug-ins again when they
    are next needed. The persistent cache on disk stays.

    Examples:
        >>> tracer_core.reset()
    """
    runtime = sys.modules.get("tracer_core.execution.compiled_function")
    if runtime is not None:
        runtime.reset()
    reset_used()
    forget()


def last_compile(fn: Callable[..., Any]) -> StageRecords:
    """Returns the stages of the last compile of `fn`, in the order in which they finished.

    A backward is compiled when it first runs. A stage whose text is costly has it only under
    TRACER_DEBUG, or where a plug-in listens to stages. Besides the stages there are these rows:

    - ``missing_in_torch``, the first: names that this release of torch lacks.
    - ``persistent_cache``: how many entries the persistent cache had, or why it had none.
    - ``background``: how far the graphs are that are compiled in the background.
    - ``runs``: what became of a graph since (captured as a CUDA graph, or why not).
    - ``compared``: the seconds of a compiled and an eager call, and which of them stays.
    - ``limit``: a limit that was reached, and what happens beyond it (`tracer-core limits`).
    - ``disabled``, the first: the switch that makes calls run in eager mode now.
    - ``native``, the only row: why everything runs eagerly on this release of Python or torch.

    Args:
        fn: What `compile` returned.

    Returns:
        A tuple of `StageRecord`, printed as a summary line and a table of at most a screen
        (``table()`` returns all rows); empty before the first compile.

    Raises:
        OptionError: `fn` is not a compiled object.

    Examples:
        >>> fast = tracer_core.compile(model)
        >>> fast(x)
        >>> print(tracer_core.last_compile(fast))
    """
    if (refusal := torch_private.refusal()) is not None:
        return StageRecords((StageRecord("native", 0.0, refusal),))
    behind = compiled(fn)
    if behind is None:
        why = "compile() leaves what it is given as it is"
        raise OptionError(f"last_compile needs what compile() returned, not {fn!r}: {why}")
    return _stages(behind.function)


def _stages(function: Any) -> StageRecords:
    """Returns the rows of `last_compile` for the tracer's compiled function."""
    records = stages.records_of(function)
    data = runs(function.config, {record.graph for record in records if record.graph})
    lacking = torch_private.not_found()
    text = f"torch {torch.__version__} has no {', '.join(lacking)}: what needs them"
    text += " ends the graph or runs eagerly"
    missing = (StageRecord("missing_in_torch", 0.0, text),) if lacking else ()
    cache = function.persistent_cache
    looked_up = StageRecord("persistent_cache", cache.seconds, cache.outcome)
    persisted = (looked_up,) if cache.outcome else ()
    later = (
        StageRecord("background", compilation.seconds, compilation.text, compilation.graph)
        for compilation in function.compilations
    )
    after = (StageRecord("runs", 0.0, text, graph) for graph, text in data)
    compared = (StageRecord("compared", 0.0, str(verdict)) for verdict in function.verdicts)
    switch = reason_for_eager()
    off = () if switch is None else (StageRecord("disabled", 0.0, switch),)
    reached = (StageRecord("limit", 0.0, str(crossing)) for crossing in crossings(function))
    rows = (*off, *missing, *persisted, *records, *later, *after, *compared, *reached)
    result = StageRecords(rows)
    result.break_count = len(dict.fromkeys(function.breaks))
    return result


def progress(fn: Callable[..., Any] | None = None, *, wait: float = 0.0) -> Progress:
    """Returns the state of each graph that is or was compiled in the background.

    Args:
        fn: What `compile` returned. None: the graphs of all compiled objects.
        wait: Seconds to wait for the graphs to be compiled.

    Returns:
        A tuple of `GraphProgress`, printed as a table.

    Raises:
        OptionError: `fn` is not a compiled object.

    Examples:
        >>> fast = tracer_core.compile(model, when="background")
        >>> fast(x)
        >>> tracer_core.progress(fast, wait=60).is_done
    """
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
    """Calls `fn` until later calls with such arguments compile nothing.

    Each call is made several times, for real: its effects (what it prints or counts) happen, but
    torch's random generators, and the buffers of a module `fn`, are restored. Graphs are captured
    one after the other and compiled side by side, a backward with its forward. Use the modes of the
    later calls (``torch.no_grad()``, autocast), which are guarded.

    Args:
        fn: What `compile` returned, or a function that calls compiled objects (``model.generate``).
        *inputs: The arguments of one call each: a tuple of positional arguments, a dictionary of
            keyword arguments, an `Inputs` with both, or a single argument. Without any, `fn` is
            called without arguments.
        workers: The number of threads that compile. None: one per processor.
        progress: True: a bar of tqdm where that is installed and stderr is a terminal, otherwise
            lines in the log at level INFO. A function: called with a `Progress` at each change.

    Raises:
        OptionError: `fn` is not callable, or `workers` is not a positive int.
        TracerError: The calls go on compiling. Errors of the calls, and of a graph that cannot be
            compiled, are raised as they are.

    Examples:
        >>> fast = tracer_core.compile(model)
        >>> with torch.no_grad():
        ...     tracer_core.warmup(fast, torch.randn(1, 3), torch.randn(8, 3))
    """
    _prepare([(fn, inputs or (Inputs(),))], workers, progress)


def compile_many(
    models: Sequence[Sequence[Any]],
    *,
    workers: int | None = None,
    progress: bool | Callable[[Progress], None] = True,
    **settings: Any,
) -> list[Any]:
    """Compiles several models side by side, for the start of a server.

    Args:
        models: One ``(model, inputs, ...)`` per model, with the inputs of its calls as `warmup`
            takes them. A model that is already compiled stays as it is.
        workers: The number of threads that compile. None: one per processor.
        progress: As for `warmup`.
        **settings: The arguments of `compile` for the others.

    Returns:
        What `compile` returns for each model, in order.

    Raises:
        OptionError: A setting is wrong, as in `compile`.
        TracerError: As in `warmup`.

    Examples:
        >>> encoder, decoder = tracer_core.compile_many([(encoder, x), (decoder, y)])
    """
    result = [
        (model if compiled(model) is not None else compile(model, **settings), inputs)
        for model, *inputs in models
    ]
    _prepare(result, workers, progress)
    return [model for model, _ in result]


def compile_repeated(model: torch.nn.Module, block: type, **settings: Any) -> int:
    """Compiles each module of a class inside a model, in place: the repeated blocks of a large one.

    A graph of a block is far smaller than the model's, and what surrounds the blocks stays eager.
    Kernels of equal blocks are built once. Names in ``state_dict()`` stay the same.

    Args:
        model: Its blocks are replaced by compiled ones that share their state.
        block: The class of the blocks.
        **settings: The arguments of `compile`.

    Returns:
        The number of blocks.

    Raises:
        OptionError: There is no such block, or a setting is wrong, as in `compile`.

    Examples:
        >>> tracer_core.compile_repeated(model, Block, fullgraph=True)
        12
    """
    blocks = {id(item): item for item in model.modules() if isinstance(item, block)}
    blocks.pop(id(model), None)
    if not blocks:
        raise OptionError(f"compile_repeated: {type(model).__name__} has no {block.__qualname__}")
    fast = {key: compile(item, **settings) for key, item in blocks.items()}
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            parent._modules[name] = fast.get(id(child), child)
    return len(fast)


# Inside
# ---------------------------------------------------------------------------------------------


def demand_capture(what: str) -> None:
    """Raises TracerError where this release of Python or torch is unsupported."""
    if (refusal := torch_private.refusal()) is not None:
        raise TracerError(f"{what}: {refusal}")


def demand_enabled(what: str) -> None:
    """Raises TracerError where nothing can be captured, or `tracer_core.disabled` forbids it."""
    demand_capture(what)
    if (switch := reason_for_eager()) is not None:
        raise TracerError(f"{what} needs a capture, but {switch}")


def _prepare(
    models: Sequence[tuple[Any, Sequence[Any]]],
    workers: int | None,
    progress: bool | Callable[[Progress], None],
) -> None:
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise OptionError(f"workers must be a positive int or None, not {workers!r}")
    for model, _ in models:
        demand_compilable(model)
    if torch_private.refusal() is not None or reason_for_eager() is not None:
        return
    from tracer_core.preparation import Item, prepare  # heavy: the tracer

    items = [Item(model, [Inputs.of(value) for value in inputs]) for model, inputs in models]
    prepare(items, workers, progress)


#: Type of what is no model -> what helps.
_NO_MODEL = {
    str: "the backend has a name, compile(backend='inductor')",
    torch.Tensor: "give compile() the function or module, not what a call of it returned",
}


def demand_compilable(model: Any) -> None:
    """Raises OptionError for what `compile` cannot take."""
    if inspect.isclass(model):
        raise OptionError(f"compile an instance or a method of {model.__qualname__}, not the class")
    if not callable(model):
        helps = _NO_MODEL.get(type(model), "give compile() a function or a module")
        raise OptionError(f"model must be callable, not {type(model).__name__}: {helps}")


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
    """Returns the function that torch.compile wraps; any other object as it is.

    Decorators copy attributes, so a function counts only if ``__wrapped__`` is the same function.
    """
    while inspect.isfunction(model):
        original = getattr(model, "_torchdynamo_orig_callable", None)
        if original is None or vars(model).get("__wrapped__") is not original:
            break
        model = original
    return model


def _is_torch_compiled_module(model: Any) -> bool:
    """Returns whether torch.compile returned this module."""
    entries = vars(model) if isinstance(model, torch.nn.Module) else {}
    return "_torchdynamo_orig_callable" in entries and "_orig_mod" in entries["_modules"]


def _call_original(module: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Calls the original of a module that torch.compile returned."""
    # Its class answers attributes in its own way.
    return module.__dict__["_modules"]["_orig_mod"](*args, **kwargs)


def _methods(config: CompileConfig) -> dict[str, Callable[..., Any]]:
    """Returns the methods that a compiled object has besides.

    `choices` where several backends are tried; `refresh` and `release_originals` where parameters
    are constants (``freeze=True``).
    """
    plan = plan_of(config)
    if plan is not None:
        return {"choices": functools.partial(_choices, plan), **_frozen_methods(plan.frozen)}
    frozen = config.backend.params == "constants" and getattr(config.options, "freeze", False)
    return _frozen_methods((config,) if frozen else ())


def _choices(plan: CandidatePlan, wait: float = 0.0) -> BackendChoices:
    """Returns the table of each graph so far: candidates, their results, and which one serves it.

    Args:
        plan: The plan of the compiled object.
        wait: Seconds to wait for trials that are running.
    """
    end = time.perf_counter() + wait
    for trial in tuple(plan.trials):
        trial.wait(max(0.0, end - time.perf_counter()))
    return BackendChoices(trial.choice() for trial in plan.trials)


def _frozen_methods(configs: Sequence[CompileConfig]) -> dict[str, Callable[..., Any]]:
    if not configs:
        return {}

    def refresh() -> None:
        """Reads all parameters again at the next call.

        Needed after writes that leave no trace (through ``.data``, NumPy or shared memory).
        """
        from tracer_core.aot import frozen_parameters  # heavy: the tracer

        for config in configs:
            frozen_parameters.refresh(config.options)

    def release_originals() -> int:
        """Frees parameters that the graphs so far read in packed form only.

        Call it after calls with all input sizes: from then on such a parameter has no values. What
        reads it (another graph, eager code, ``state_dict()``) raises RuntimeError naming it, and
        ``refresh()`` raises too.

        Returns:
            The number of bytes.
        """
        from tracer_core.aot import frozen_parameters  # heavy: the tracer

        return sum(frozen_parameters.release_originals(config.options) for config in configs)

    return {"refresh": refresh, "release_originals": release_originals}


def _traced(function: Callable[..., Any], config: CompileConfig) -> Replacement:
    """Returns the tracer's callable for a Python function."""
    with collector_paused():
        from tracer_core.execution.compiled_function import CompiledFunction  # heavy: guards

    traced: Replacement = CompiledFunction(function, config)
    return traced


def _wrapper(target: Callable[..., Any], config: CompileConfig) -> Callable[..., Any]:
    """Returns the compiled form of a Python function, or of a callable that is no module."""
    # a transform of torch.func is an object that calls its function, whatever it is written in
    is_function = inspect.isfunction(target) and not torch_private.is_transform(target)
    traced = _traced(target if is_function else call_object, config)
    run = traced.call if is_function else with_target(target, traced.call)
    call = look_like(wrapper(target, run), target)
    put_mark(call, COMPILED, Compiled(traced, target))
    vars(call).update(_methods(config))
    title = f"compiled: {call!r}"
    vars(call)["_repr_html_"] = lambda: as_html(f"{title}\n{_stages(traced)!r}")
    return call
