"""The one door to names that torch does not promise to keep.

Out: plain functions over FakeTensor, ShapeEnv, functionalisation and dispatch. Nothing else in this
package imports a private torch name, so a new torch release is checked here first.

Tried on torch 2.13.0.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import linecache
import sys
import traceback
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from tracer_core import settings

# --- FakeTensor -------------------------------------------------------------------------------------


def fake_tensor_mode(shape_env: Any = None) -> Any:
    """A new FakeTensorMode that refuses real tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=False)


def is_fake(value: Any) -> bool:
    """Whether `value` is a FakeTensor."""
    if isinstance(value, _fake_class()):
        return True
    return type(value) is torch.Tensor and transforms_active() and _wraps_fake(value)


def transforms_active() -> bool:
    """Whether a transform of torch.func is running."""
    return bool(torch._C._are_functorch_transforms_active())


def outside_transforms() -> Any:
    """Inside, no transform of torch.func is running."""
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    return temporarily_clear_interpreter_stack()


def holds(condition: Any) -> bool:
    """Whether a comparison of sizes is true, of which a guard is made; False where that depends on data."""
    if not isinstance(condition, torch.SymBool):
        return bool(condition)
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return bool(guard_or_false(condition))


def inside_transforms(value: torch.Tensor) -> torch.Tensor:
    """The tensor inside the wrappers of torch.func's transforms, with the dimensions that vmap hides."""
    while torch._C._functorch.is_functorch_wrapped_tensor(value):
        value = torch._C._functorch.get_unwrapped(value)
    return value


def _wraps_fake(value: torch.Tensor) -> bool:
    """Whether a tensor is a fake inside wrappers of torch.func."""
    while torch._C._functorch.is_functorch_wrapped_tensor(value):
        value = torch._C._functorch.get_unwrapped(value)
        if type(value) is not torch.Tensor:
            return is_fake(value)
    return False


def plain_checkpoint() -> Any:
    """torch.utils.checkpoint.checkpoint without its shield from torch._dynamo, which imports that package."""
    checkpoint = torch.utils.checkpoint.checkpoint
    return getattr(checkpoint, "__wrapped__", checkpoint)


def fake_like(
    value: Any, dtype: torch.dtype | None = None, device: torch.device | None = None, strides: Any = None
) -> Any:
    """A new fake with the sizes, strides, dtype and device (or others) of one; no recording mode sees it."""
    mode = value.fake_mode
    wanted = value.stride() if strides is None else strides
    with no_python_dispatch(), torch.no_grad():
        meta = torch.empty_strided(value.shape, wanted, dtype=dtype or value.dtype, device="meta")
    return _fake_class()(mode, meta, device or value.device)


def new_fake_like_real(mode: Any, real: torch.Tensor) -> Any:
    """A new fake with the sizes, strides, dtype and device of a real tensor; no mode sees it."""
    with no_python_dispatch(), torch.no_grad():
        meta = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device="meta")
    return _fake_class()(mode, meta, real.device)


def suggested_memory_format(value: torch.Tensor) -> torch.memory_format:
    """What kernels that keep a memory format give their result."""
    from torch._prims_common import suggest_memory_format

    return suggest_memory_format(value)


def elementwise_strides(tensors: Any) -> tuple[int, ...]:
    """The strides that an operator by element gives its result, from operands of one shape."""
    from torch._prims_common import compute_elementwise_output_strides

    return tuple(compute_elementwise_output_strides(*tensors))


def fake_mode_of(value: Any) -> Any:
    """The FakeTensorMode that a FakeTensor belongs to."""
    return value.fake_mode


def to_fake(mode: Any, tensor: torch.Tensor) -> Any:
    """The fake twin of a real tensor, with static sizes; one twin a tensor and mode."""
    # Without a source torch makes one, from torch._dynamo.
    return mode.from_tensor(tensor, static_shapes=True, source=input_source("input"))


def symbol_range(value: torch.SymInt) -> tuple[int, int | None]:
    """The inclusive range that the ShapeEnv knows for a SymInt (None: no upper bound; a number of the program
    that is no size has -2**63 as its lower one)."""
    import sympy

    bounds = value.node.shape_env.bound_sympy(value.node.expr)
    finite = [
        isinstance(b, (int, sympy.Integer)) and abs(int(b)) < 2**62 for b in (bounds.lower, bounds.upper)
    ]
    return int(bounds.lower) if finite[0] else -(2**63), int(bounds.upper) if finite[1] else None


#: What a size that depends on data is taken for where only speed hangs on it.
_GUESS = 1024


def hint_or_guess(value: torch.SymInt | torch.SymFloat) -> Any:
    """The value that a symbolic number had in the captured call; a guess within its range where it depends on data."""
    if value.node.hint is not None:
        return value.node.hint
    lower, upper = symbol_range(value)  # type: ignore[arg-type]
    return max(lower, min(_GUESS, _GUESS if upper is None else upper))


def sym_sqrt(value: Any) -> Any:
    """Square root of a symbolic number."""
    return torch.sym_sqrt(value)  # type: ignore[attr-defined]


def storage_id(tensor: torch.Tensor) -> int:
    """Equal for two live tensors exactly if they share their storage."""
    return int(tensor.untyped_storage()._cdata)


def fake_failures() -> tuple[type[Exception], ...]:
    """The exceptions by which FakeTensor says that a shape depends on data or an op has no meta form."""
    from torch._subclasses import fake_tensor

    return (
        fake_tensor.DataDependentOutputException,
        fake_tensor.DynamicOutputShapeException,
        fake_tensor.UnsupportedOperatorException,
    )


# --- functionalisation ------------------------------------------------------------------------------


@contextlib.contextmanager
def functionalization() -> Iterator[None]:
    """Inside, operators on `functional` tensors turn writes into new values; views stay views."""
    torch._enable_functionalization(reapply_views=True)
    try:
        yield
    finally:
        torch._disable_functionalization()


@contextlib.contextmanager
def functionalization_off() -> Iterator[None]:
    """Inside, tensors are not wrapped, whether or not they are outside."""
    key = torch._C.DispatchKey.Functionalize
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
        yield


def functional(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` wrapped for functionalisation."""
    return torch._to_functional_tensor(tensor)


def is_functional(value: Any) -> bool:
    """Whether `value` is such a wrapper."""
    return isinstance(value, torch.Tensor) and torch._is_functional_tensor(value)


def functional_value(tensor: torch.Tensor) -> torch.Tensor:
    """The current value behind a wrapper, after pending writes to its storage."""
    torch._sync(tensor)
    return torch._from_functional_tensor(tensor)


def has_data_mutation(tensor: torch.Tensor) -> bool:
    """Whether the storage behind a wrapper was written to."""
    return bool(torch._functionalize_has_data_mutation(tensor))  # type: ignore[attr-defined]


def has_metadata_mutation(tensor: torch.Tensor) -> bool:
    """Whether sizes, strides or storage of the wrapped tensor were changed in place."""
    return bool(
        torch._functionalize_has_metadata_mutation(tensor) or torch._functionalize_was_storage_changed(tensor)
    )


# --- dispatch ---------------------------------------------------------------------------------------


def python_dispatcher() -> Any:
    """Inside, operators use their Python kernels where torch registered some (batch_norm's running
    statistics become visible writes; upsampling keeps symbolic sizes)."""
    from torch._dispatch.python import enable_python_dispatcher

    return enable_python_dispatcher()


def is_composite(op: Any) -> bool:
    """Whether torch defines an operator by other operators alone (CompositeImplicitAutograd, and no kernel of its
    own). Operators of TorchScript alone (``aten::size``) are not known to the dispatcher and are not."""
    name = op.name()
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    composite = torch._C._dispatch_has_kernel(name) and has(name, "CompositeImplicitAutograd")
    return bool(composite and not has(name, "CPU"))


@functools.cache
def core_aten_table() -> dict[Any, Callable[..., Any]]:
    """torch's decompositions to the core ATen operators (made once: it takes 50 ms; not to be changed)."""
    from torch._decomp import core_aten_decompositions

    missing = [torch.ops.aten._native_batch_norm_legit_functional, torch.ops.aten.var_mean]
    return dict(core_aten_decompositions()) | decompositions(missing)


def decompositions(ops: Any) -> dict[Any, Callable[..., Any]]:
    """torch's decompositions of these operators (OpOverloads or packets)."""
    from torch._decomp import get_decompositions

    return dict(get_decompositions(ops))


@contextlib.contextmanager
def settings_restored() -> Iterator[None]:
    """Restores every setting on the way out and forgets casts that were cached inside."""
    before = settings.snapshot()
    try:
        yield
    finally:
        settings.restore(before)


@contextlib.contextmanager
def autocast_off() -> Iterator[None]:
    """Inside, no operator casts by autocast."""
    with contextlib.ExitStack() as stack:
        for device in settings.AUTOCAST_DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextlib.contextmanager
def grad_mode_without_graph() -> Iterator[None]:
    """Inside, kernels that ask for the grad mode find it on, but nothing is recorded for autograd."""
    with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
        yield


def let_go_of_saved_tensors(ctx: Any) -> None:
    """Called in a backward that has read ``ctx.saved_tensors``: autograd forgets them, unless the graph is retained, so
    that each is freed after its last use and not after the whole backward."""
    forget = getattr(ctx, "maybe_clear_saved_tensors", None)
    if forget is not None:  # torch 2.5 and later
        forget()


def direct_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """``function.apply`` without its care for torch.func's transforms, which no captured graph runs under."""
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply


# --- capture (tracer) -------------------------------------------------------------------------------


#: Releases whose FakeTensorMode has exactly the attributes that `_set_up` gives it.
_LIGHT_FAKE_MODE = ("2.11.", "2.13.")


def capture_mode(
    before_operator: Callable[[Any, Any, Any], None],
    after_operator: Callable[[Any, Any, Any], Any],
    shape_env: Any,
    quick: Callable[[Any, Any, Any, Any, Callable[[], Any]], Any],
    slow: Any,
) -> Any:
    """A FakeTensorMode that calls ``before_operator(func, args, kwargs)`` ahead of each operator.

    ``after_operator(func, args, result)`` says what the mode's answer becomes.
    ``quick(mode, func, args, kwargs, run)`` may answer in its place, and returns `slow` where it does not;
    run() gives the mode's own answer.

    FakeTensorMode's own set-up and its dispatch read flags of torch._dynamo's configuration, and dispatch modes
    are wrapped so that their first call shields them from torch._dynamo: each imports that package, which
    takes longer than the whole trace of a model, and 80 MiB. All are avoided here; what still asks for it are torch's
    reference implementations that promote dtypes.
    """
    from torch._subclasses.fake_tensor import _DISPATCH_META_HANDLERS, FakeTensorMode

    symbolic_rule = torch.ops.aten.convolution.default if shape_env is not None else None
    dispatch = FakeTensorMode.__torch_dispatch__
    dispatch = getattr(dispatch, "__wrapped__", dispatch)
    light = torch.__version__.startswith(_LIGHT_FAKE_MODE)

    class CaptureMode(FakeTensorMode):  # type: ignore[misc]
        def __init__(self) -> None:
            if light:
                _set_up(self, shape_env)
            else:
                super().__init__(shape_env=shape_env, static_shapes=shape_env is None)

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            answer = _DISPATCH_META_HANDLERS.get(func)
            if answer is not None:
                return answer(args)  # a question about a tensor's metadata
            kwargs = kwargs or {}

            def run() -> Any:
                before_operator(func, args, kwargs)
                found = _without_settings(self, func, args, kwargs, slow) if light else slow
                if found is slow:
                    found = dispatch(self, func, types, args, kwargs)
                return after_operator(func, args, found)

            result = slow
            if light or (func is symbolic_rule and args[0]._has_symbolic_sizes_strides):
                result = quick(self, func, args, kwargs, run)
            return run() if result is slow else result

    return CaptureMode()


def _set_up(mode: Any, shape_env: Any) -> None:
    """FakeTensorMode's attributes with torch's default settings."""
    from torch._subclasses.fake_tensor import FakeTensorConverter
    from torch.utils._python_dispatch import TorchDispatchMode

    TorchDispatchMode.__init__(mode)
    mode.shape_env = shape_env
    mode.static_shapes = shape_env is None
    mode.fake_tensor_converter = FakeTensorConverter(copy_data=False, export=False)
    for name in ("allow_fallback_kernels", "cache_enabled", "_allow_unsafe_data_ptr_access", "allow_meta"):
        setattr(mode, name, True)
    for name in ("propagate_real_tensors", "allow_scalar_outputs", "cache_crosscheck_enabled",
                 "allow_non_fake_inputs", "in_kernel_invocation"):  # fmt: skip
        setattr(mode, name, False)
    mode.enter_stack = []
    mode._stack_trace, mode._stack = traceback.extract_stack(limit=2), None
    mode._mode_key = torch._C._TorchDispatchModeKey.FAKE
    mode.nt_tensor_id_counter = mode.nt_tensor_id_initial_count = 0


def _without_settings(mode: Any, func: Any, args: Any, kwargs: Any, slow: Any) -> Any:
    """FakeTensorMode's answer to an operator of torch's, found without torch._dynamo's settings, which say nothing about
    those; `slow` where an argument needs more (symbols, known values, real tensors), or where it raises."""
    if mode.in_kernel_invocation or not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten":
        return slow
    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    tensors = [one for one in leaves if isinstance(one, torch.Tensor)]
    if not all(is_plain_fake(one, mode) for one in tensors) or not (tensors or _makes_tensors(func)):
        return slow
    if any(isinstance(one, (torch.SymInt, torch.SymFloat, torch.SymBool)) for one in leaves):
        return slow
    way, answer = _way(func)
    if way == "slow":
        return slow
    try:
        if way == "decomposition":
            with mode:
                return answer(*args, **kwargs)
        if way == "rule":
            found = answer(mode, func, *args, **kwargs)
            if found is not NotImplemented:
                return found
            if not _has_meta_kernel(func):
                return slow
        with KernelInvocation(mode):
            found = func(*args, **kwargs)
        return mode.wrap_meta_outputs_with_default_device_logic(
            found, func, leaves, device=kwargs.get("device")
        )
    except Exception:
        return slow  # FakeTensorMode raises what it raises


def _makes_tensors(func: Any) -> bool:
    from torch._subclasses import fake_impls, fake_tensor

    return fake_impls._is_tensor_constructor(func) and not fake_tensor.should_allow_numbers_as_tensors(func)


def _has_meta_kernel(func: Any) -> bool:
    return torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), "Meta")


@functools.lru_cache(maxsize=4096)
def _way(func: Any) -> tuple[str, Any]:
    """What FakeTensorMode asks about an operator whose arguments' sizes are numbers: the first of torch's
    decomposition, the mode's own rule, the meta kernel."""
    from torch._decomp import decomposition_table, meta_table
    from torch._subclasses import fake_impls, fake_tensor

    mode = fake_tensor.FakeTensorMode
    if func in mode.lift_fns:
        return "slow", None
    supported = torch.Tag.view_copy in func.tags or func in mode._cpp_meta_supports_symint
    if func not in meta_table and not supported:
        if func in decomposition_table and fake_tensor.torch_decomp_decompositions(func):
            return "decomposition", decomposition_table[func]
        if func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
            return "decomposition", func.decompose
    if torch._library.simple_registry.singleton.find(func.name()).fake_impl.kernel:
        return "slow", None
    rules = [rule for holds, rule in fake_impls.op_implementations_checks if holds(func)]
    if len(rules) == 1:
        return "rule", rules[0]
    return ("meta", None) if not rules and _has_meta_kernel(func) else ("slow", None)


class KernelInvocation:
    """Inside, operators on a mode's fakes run torch's meta kernels and return plain meta tensors."""

    __slots__ = ("_dispatch", "_keys", "_mode")

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        self._dispatch, self._keys = torch._C._DisableTorchDispatch(), torch._C._PreserveDispatchKeyGuard()

    def __enter__(self) -> None:
        self._dispatch.__enter__()
        self._mode.in_kernel_invocation = True
        self._keys.__enter__()
        torch._C._set_meta_in_tls_dispatch_include(True)

    def __exit__(self, *error: object) -> None:
        self._mode.in_kernel_invocation = False
        self._keys.__exit__(*error)
        self._dispatch.__exit__(*error)


def no_python_dispatch() -> Any:
    """Inside, no dispatch mode sees an operator."""
    return torch._C._DisableTorchDispatch()


@contextlib.contextmanager
def outside_modes() -> Iterator[None]:
    """Inside, operators run for real: neither dispatch modes nor functionalisation see them."""
    with no_python_dispatch(), functionalization_off():
        yield


def kernel_choices() -> tuple[Any, ...]:
    """Settings by which operators choose kernels whose results have other strides."""
    return torch._C._get_mkldnn_enabled(), torch._C._get_cudnn_enabled(), torch._C._get_cudnn_benchmark()


def convolution_format(value: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: Any,
                       output_padding: Any, groups: Any) -> torch.memory_format:  # fmt: skip
    """The memory format of a convolution's result on the fakes' device."""
    backend = torch._C._select_conv_backend(
        value, weight, bias=bias, stride=stride, padding=padding, dilation=dilation, transposed=transposed,
        output_padding=output_padding, groups=groups,
    )  # fmt: skip
    found: torch.memory_format = torch._C._conv_determine_backend_memory_format(value, weight, backend)
    return found


def is_plain_fake(value: Any, mode: Any) -> bool:
    """Whether `value` is a fake of `mode` with sizes that are numbers and values that nobody knows."""
    return (
        type(value) is _fake_class()
        and value.fake_mode is mode
        and value.constant is None
        and value.layout is torch.strided
        and not value._has_symbolic_sizes_strides
    )


@functools.cache
def _fake_class() -> Any:
    from torch._subclasses.fake_tensor import FakeTensor

    return FakeTensor


def device_of_fake(value: Any) -> torch.device:
    """The device that a fake stands on."""
    found: torch.device = value.fake_device  # a property that returns `_fake_device` since torch 2.12
    return found


def wrap_meta(mode: Any, meta: torch.Tensor, device: torch.device) -> Any:
    """A fake on `device` round a meta tensor (FakeTensor's constructor; for the releases in `_LIGHT_FAKE_MODE` without
    its checks of arguments)."""
    if not torch.__version__.startswith(_LIGHT_FAKE_MODE):
        return _fake_class()(mode, meta, device)
    fake = torch.Tensor._make_subclass(  # type: ignore[attr-defined]
        _fake_class(), meta, meta.requires_grad, dispatch_device=True, device_for_backend_keys=device
    )
    torch._C._set_throw_on_mutable_data_ptr(fake)
    fake.__dict__.update(_FAKE_ATTRIBUTES, fake_mode=mode)
    fake.__dict__[_DEVICE] = device
    return fake


#: Where a fake keeps its device: `fake_device` became a property in torch 2.12.
_DEVICE = "fake_device" if torch.__version__.startswith("2.11.") else "_fake_device"
_MEMOS = ("nonzero_memo", "item_memo", "unique_memo", "unique_consecutive_memo", "nested_int_memo")
_FAKE_ATTRIBUTES: dict[str, Any] = {
    **dict.fromkeys(("constant", "pytype", "dispatch_keys", "real_tensor")),
    **dict.fromkeys(f"_{memo}{part}" for memo in _MEMOS for part in ("", "_vc", "_epoch")),
}


def forget_source_with(gm: torch.fx.GraphModule) -> None:
    """Has torch forget the text of a graph's `forward` when the function is gone; by itself it keeps it."""
    from torch.fx import graph_module

    code = type(gm).forward.__code__
    weakref.finalize(code, _forget_source, code.co_filename, graph_module._loader.eval_cache).atexit = False


def _forget_source(filename: str, texts: dict[str, str]) -> None:
    linecache.cache.pop(filename, None)
    texts.pop(filename, None)


class GuardPlaces:
    """Where the guards of a ShapeEnv came from. Mutable. where(): of the line that is being run; override: of the
    node that is being lowered, "" for none. guards: (expression, place); forced: symbol -> place at which it became
    something else."""

    def __init__(self, where: Callable[[], str]) -> None:
        self.where, self.override = where, ""
        self.guards: list[tuple[Any, str]] = []
        self.forced: dict[Any, str] = {}

    def now(self) -> str:
        return self.override or self.where()


class _NotedGuards(list[Any]):
    def __init__(self, places: GuardPlaces) -> None:
        super().__init__()
        self.places = places

    def append(self, guard: Any) -> None:
        super().append(guard)
        self.places.guards.append((guard.expr, self.places.now()))


class _NotedReplacements(dict[Any, Any]):
    def __init__(self, places: GuardPlaces) -> None:
        super().__init__()
        self.places = places

    def __setitem__(self, symbol: Any, expr: Any) -> None:
        super().__setitem__(symbol, expr)
        self.places.forced.setdefault(symbol, self.places.now())


def new_shape_env(where: Callable[[], str], data_sizes: bool = False) -> Any:
    """An empty ShapeEnv that gives each size a symbol of its own. where(): of the line that is being run. data_sizes:
    sizes that depend on data are symbols too (`_data_env_class`); else operators that make such sizes are refused."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    env: Any
    if data_sizes:
        env = _data_env_class()()
    else:
        env = ShapeEnv(duck_shape=False, allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
    env.tracer_places = places = GuardPlaces(where)
    env.guards, env.replacements = _NotedGuards(places), _NotedReplacements(places)
    return env


@functools.cache
def _data_env_class() -> Any:
    import sympy
    from torch.fx.experimental import symbolic_shapes
    from torch.utils._sympy.functions import Max
    from torch.utils._sympy.numbers import int_oo

    refusal = symbolic_shapes.GuardOnDataDependentSymNode

    class DataEnv(symbolic_shapes.ShapeEnv):  # type: ignore[misc]
        """A ShapeEnv that keeps every fact about a data-dependent symbol that it was told or that it took for granted.

        unread: new symbols that no node reads yet. read_by: symbol -> that node. beginnings: symbols of where in its
        memory a view begins, which no graph asks for, and of which nothing has to hold but what the view sees to.
        facts: what was relied on since they were last taken, in order. makes_numbers: the operator that runs reads a
        number out of a tensor: any number, while a size is taken to be 2 or more. views: how many more sizes the
        operator that runs may make up; None unless its fake answers an open question with what is right either way
        (slices and elements at an unknown place). inside_operator: torch may catch a refused guard. Elsewhere
        refused(expression) is called where a guard is refused, and told() where a fact is new. undecided(expression)
        is to raise.
        """

        def __init__(self) -> None:
            super().__init__(duck_shape=False, allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
            self.unread: set[Any] = set()
            self.read_by: dict[Any, Any] = {}
            self.beginnings: set[Any] = set()
            self.facts: dict[Any, None] = {}
            self.makes_numbers = False
            self.views: int | None = None
            self.inside_operator = 0
            self.refused: Callable[[Any], None] = lambda expr: None
            self.undecided: Callable[[Any], None] = lambda expr: None
            self.told: Callable[[], None] = lambda: None

        def create_unbacked_symint(self, source: Any = None) -> Any:
            made = super().create_unbacked_symint(source)
            symbol = raw_symbol(made)
            if self.views is not None:
                self.views -= 1
                if self.views < 0:
                    self.beginnings.add(symbol)
                    return made
            self.unread.add(symbol)
            if not self.makes_numbers:
                self._note(sympy.Ge(symbol, 2))
                symbolic_shapes.constrain_range(made, min=2, max=None)
            return made

        def evaluate_expr(self, orig_expr: Any, *args: Any, **kwargs: Any) -> Any:
            open_question = self._is_open(orig_expr)
            if open_question and self.views is None and _has_answer(args, kwargs):
                self._take_for_sizes(orig_expr)
                open_question = self._is_open(orig_expr)
            try:
                result = super().evaluate_expr(orig_expr, *args, **kwargs)
            except refusal:
                if not self.inside_operator:
                    self.refused(orig_expr)
                raise
            if self.views is None and open_question and is_truth(orig_expr):
                if orig_expr.has(Max):
                    self.undecided(orig_expr)  # whatever is taken for granted here contradicts what sizes are
                self.rely_on(orig_expr if result else sympy.Not(orig_expr))
            return result

        def _take_for_sizes(self, question: Any) -> None:
            """What a question about sizes treats as one is taken to be 2 or more."""
            parts = [
                symbol for symbol in sorted(question.free_symbols, key=str) if self.is_unbacked_symint(symbol)
            ]
            parts += [part for bound in question.atoms(Max) for part in bound.args if not part.is_number]
            for left, right in [one.args for one in question.atoms(sympy.Eq, sympy.Ne)]:
                parts += [left] if right in (0, 1) else []
            for part in dict.fromkeys(parts):
                fact = sympy.Ge(part, 2)
                if self._is_open(fact):
                    self.rely_on(fact)
                    if part.is_Symbol:
                        self.constrain_symbol_range(part, 2, int_oo)

        def guard_or_defer_runtime_assert(  # type: ignore[override]
            self, orig_expr: Any, *args: Any, **kwargs: Any
        ) -> bool:
            open_question = self._is_open(orig_expr)
            result = super().guard_or_defer_runtime_assert(orig_expr, *args, **kwargs)
            if open_question:
                self._note(orig_expr)
            return bool(result)

        def rely_on(self, expr: Any) -> None:
            """An answer that nothing says was given: it becomes a fact."""
            self._note(expr)
            super().guard_or_defer_runtime_assert(expr, "taken for granted")

        def _note(self, fact: Any) -> None:
            if self.beginnings.isdisjoint(fact.free_symbols):
                self.facts[fact] = None
                if not self.inside_operator:
                    self.told()

        def starts(self, operator: Any) -> None:
            """An ATen operator is about to run."""
            self.views = _SIZES_OF_VIEWS.get(operator)
            self.makes_numbers = operator is torch.ops.aten._local_scalar_dense.default

        def _is_open(self, expr: Any) -> bool:
            symbols = getattr(expr, "free_symbols", ())
            if not any(map(self.is_unbacked_symint, symbols)):
                return False
            return self._maybe_evaluate_static(expr) is None

    return DataEnv


#: Operator whose fake leaves open where a view begins -> how many sizes it may make up, before its beginning.
_SIZES_OF_VIEWS = {torch.ops.aten.slice.Tensor: 1, torch.ops.aten.select.int: 0}


def is_truth(expr: Any) -> bool:
    """Whether a sympy expression is a condition (a symbol, which sympy takes for one, is a number)."""
    return bool(expr.is_Relational or expr.is_Boolean)


def _has_answer(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether ShapeEnv.evaluate_expr is told what to answer to an open question: guard_or_false and its like."""
    hint_node_oblivious_answer = (*args, *(None,) * (4 - len(args)))
    oblivious = kwargs.get("size_oblivious", hint_node_oblivious_answer[2])
    return bool(oblivious) or kwargs.get("fallback_value", hint_node_oblivious_answer[3]) is not None


def raw_symbol(value: Any) -> Any:
    """The symbol that a size (or a number) was made as, whatever is known of it since; None if it is no symbol."""
    expr = value.node._expr if isinstance(value, torch.SymInt) else None
    return expr if getattr(expr, "is_Symbol", False) else None


def guard_places(env: Any) -> GuardPlaces | None:
    """The places of a ShapeEnv made by `new_shape_env`."""
    return getattr(env, "tracer_places", None)


def narrow(size: torch.SymInt, lowest: int, highest: int | None) -> None:
    """Says of a symbol that it is in a range."""
    from torch.fx.experimental.symbolic_shapes import constrain_range

    constrain_range(size, min=lowest, max=highest)


def implied(expr: Any, symbol: Any, lowest: int, highest: int | None) -> bool:
    """Whether a condition on one symbol holds for every value of a range."""
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

    return bool(
        bound_sympy(expr, {symbol: ValueRanges(lowest, int_oo if highest is None else highest)}).lower
    )


def plain_fake(mode: Any, tensor: torch.Tensor, storages: dict[int, Any]) -> Any:
    """The fake twin of a real tensor, or None where only FakeTensorMode's own way will do.

    Made directly: torch's way describes the tensor first, for which it imports torch._inductor. storages:
    real storage -> its meta twin, so that inputs that share memory have fakes that do.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    if (
        type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        or tensor.layout is not torch.strided
        or not (tensor.is_leaf or not tensor.requires_grad)
        or tensor.is_inference()
        or tensor.is_conj()
        or tensor.is_neg()
        or tensor.device.type == "meta"
        or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    ):
        return None
    storage = tensor.untyped_storage()
    twin = storages.get(storage._cdata)
    if twin is None:
        twin = storages[storage._cdata] = torch.UntypedStorage(storage.nbytes(), device="meta")
    with torch.no_grad():
        meta = torch.empty(0, dtype=tensor.dtype, device="meta")
        meta.set_(twin, tensor.storage_offset(), tensor.shape, tensor.stride())
    meta.requires_grad_(tensor.requires_grad)
    if torch.__version__.startswith(_LIGHT_FAKE_MODE) and tensor.device.type == "cpu":
        return wrap_meta(mode, meta, tensor.device)
    return FakeTensor(mode, meta, tensor.device)


@functools.cache
def _input_source_class() -> Any:
    from torch._guards import GuardSource, Source

    class InputSource(Source):  # type: ignore[misc]
        def __init__(self, name: str) -> None:
            self.__dict__["_text"] = name

        @property
        def _name_template(self) -> str:
            return str(self.__dict__["_text"])

        @property
        def guard_source(self) -> Any:
            return GuardSource.LOCAL

        def is_ephemeral(self) -> bool:
            return False

        def __hash__(self) -> int:
            return hash(self._name_template)

        def __eq__(self, other: object) -> bool:
            return isinstance(other, InputSource) and other._name_template == self._name_template

    # A method in torch 2.11, a property since.
    name = (lambda self: self._text) if inspect.isfunction(getattr(Source, "name", None)) else property(
        lambda self: self._text)  # fmt: skip
    InputSource.name = name  # type: ignore[assignment]
    return InputSource


def input_source(name: str) -> Any:
    """Where a tensor comes from, in torch's own terms; only its name is ever used."""
    return _input_source_class()(name)


def to_symbolic_fake(mode: Any, tensor: torch.Tensor, name: str, symbolic: tuple[bool, ...]) -> Any:
    """The fake twin of a real tensor whose marked dimensions become symbols of the mode's ShapeEnv."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    context: Any = StatelessSymbolicContext(
        dynamic_sizes=[DimDynamic.DYNAMIC if dim else DimDynamic.STATIC for dim in symbolic],
        constraint_sizes=[None] * len(symbolic),
    )
    return mode.from_tensor(tensor, symbolic_context=context, source=input_source(name))


def before_tagging(function: Any) -> Any:
    """What torch.compile, once it was used in the process, has put functions of its own around: ``nn.Module.__init__``
    and parts of optimizers. None for any other function. All that they add is for torch's own tracer."""
    hidden = getattr(function, "_torchdynamo_orig_callable", None)
    if (getattr(hidden, "__module__", None) or "").startswith("torch.optim."):
        return hidden
    if function.__qualname__ != "install_generation_tagging_init.<locals>.patched_init":
        return None
    return dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))["init"].cell_contents


def device_constructors() -> Any:
    """The functions that ``with torch.device(...)`` gives a device."""
    from torch.utils._device import _device_constructors

    return _device_constructors()


def new_number(env: Any, value: int | float, name: str) -> Any:
    """A SymInt or SymFloat for a number of the program; `value` is what it is now."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    source = input_source(name)
    symbol = env.create_unspecified_symbol(value, source=source, dynamic_dim=DimDynamic.DYNAMIC)
    make = env.create_symintnode if isinstance(value, int) else env.create_symfloatnode
    return make(symbol, hint=value, source=source)


def replaced(wrapper: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A functional wrapper whose value is that of another one of the same sizes and dtype from now on: what functionalization
    makes of an operator in place."""
    torch._functionalize_replace(wrapper, torch._from_functional_tensor(value))  # type: ignore[attr-defined]
    torch._functionalize_commit_update(wrapper)  # type: ignore[attr-defined]
    torch._functionalize_sync(wrapper)  # type: ignore[attr-defined]
    return wrapper


def gradients_of(
    roots: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]
) -> tuple[torch.Tensor | None, ...]:
    """`torch.autograd.grad` with allow_unused, for tangents of the roots' own sizes: its check of those imports sympy,
    30 MiB that a program without symbolic sizes does not need."""
    run = getattr(torch.autograd.graph, "_engine_run_backward", None)
    if run is None:
        return torch.autograd.grad(roots, leaves, tangents, allow_unused=True)
    found: tuple[torch.Tensor | None, ...] = run(
        tuple(roots), tuple(tangents), False, False, tuple(leaves), True, accumulate_grad=False
    )
    return found


def data_dependent_failures() -> tuple[tuple[type[Exception], ...], tuple[type[Exception], ...]]:
    """(value needed, shape needed): the exceptions by which a fake tensor refuses to give data."""
    from torch._subclasses import fake_tensor

    shapes = sys.modules.get("torch.fx.experimental.symbolic_shapes")  # what is not imported has raised nothing
    unknown = () if shapes is None else (shapes.GuardOnDataDependentSymNode,)
    return (
        (fake_tensor.DataDependentOutputException, *unknown),
        (fake_tensor.DynamicOutputShapeException,),
    )


def dispatch_keys(tensor: torch.Tensor) -> int:
    """The dispatch key set of a tensor, as a number."""
    return int(torch._C._dispatch_keys(tensor).raw_repr())


#: State that torch reads at run time and that a trace depends on. () -> hashable.
def torch_state() -> tuple[Any, ...]:
    """Grad, inference, autocast and default settings that a graph was captured under."""
    autocast = torch._C._is_any_autocast_enabled()
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        settings.ambient_devices() if torch._C._len_torch_function_stack() else (),
        torch._C._len_torch_dispatch_stack(),
        torch._C._get_deterministic_algorithms(),
        autocast_state() if autocast else None,
    )


def autocast_state() -> tuple[Any, ...]:
    """Every autocast setting."""
    devices = [d for d in ("cpu", "cuda") if torch.amp.is_autocast_available(d)]
    return tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices)


def finite_bounds(bounds: Any) -> tuple[int, int | None]:
    """(lower, upper) of a ValueRanges, None for no upper bound."""
    try:
        upper = int(bounds.upper)
    except (TypeError, ValueError, OverflowError, AttributeError):  # AttributeError: int(sympy.oo)
        return int(bounds.lower), None
    return int(bounds.lower), upper if upper < 2**62 else None


def python_text(expr: Any, names: dict[Any, str]) -> str:
    """A sympy expression over sizes as Python text; names: symbol -> text."""
    from torch.utils._sympy.printers import PythonPrinter

    class Printer(PythonPrinter):  # type: ignore[misc]
        def _print_Symbol(self, symbol: Any) -> str:
            return names[symbol]

        def _print_Float(self, number: Any) -> str:
            return repr(float(number))  # sympy's own text has 15 digits

    return str(Printer().doprint(expr))


def leave_modes(fake_mode: Any, functions: int) -> None:
    """Leaves a FakeTensorMode that is still entered, and torch-function modes above the first `functions`."""
    key = torch._C._TorchDispatchModeKey.FAKE
    while fake_mode.enter_stack and torch._C._get_dispatch_mode(key) is fake_mode:
        fake_mode.__exit__(None, None, None)
    while torch._C._len_torch_function_stack() > functions:
        torch._C._pop_torch_function_stack()


# --- autograd ---------------------------------------------------------------------------------------


def gradient_node(tensor: torch.Tensor) -> Any:
    """The node of autograd's graph where a backward of this tensor begins."""
    if tensor.grad_fn is not None:
        return tensor.grad_fn
    with torch.enable_grad():
        return tensor.view_as(tensor).grad_fn.next_functions[0][0]  # type: ignore[union-attr]


@contextlib.contextmanager
def saved_tensors_unseen() -> Iterator[None]:
    """Inside, the program's hooks on tensors that autograd saves (``saved_tensors_hooks``) are not called."""
    hooks: Any = torch._C._autograd
    if hooks._top_saved_tensors_default_hooks(True) is None:
        yield
        return
    hooks._push_saved_tensors_default_hooks(_same, _same)
    try:
        yield
    finally:
        hooks._pop_saved_tensors_default_hooks()


def _same(value: Any) -> Any:
    return value


def is_accumulator_held(leaves: Sequence[torch.Tensor]) -> bool:
    """Whether Python code keeps a node that adds to a leaf's gradient: without keeping it nobody's hook stays on it.
    (A live graph keeps the node too, with its Python object.)"""
    nodes = [gradient_node(leaf) for leaf in leaves]
    kept = [node for node in nodes if sys.getrefcount(node) > 3]
    holders = (one for one in gc.get_referrers(*kept) if one is not kept and one is not nodes) if kept else ()
    return any(not isinstance(one, types.FrameType) for one in holders)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements fill their memory without gaps, each once, in whatever order of dimensions."""
    expected = 1
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if step != expected:
            return False
        expected *= size
    return True


def share_module_state(original: torch.nn.Module, other: torch.nn.Module) -> None:
    """What `fully_shard` and the like keep about a module, by its identity, holds for the other one too."""
    library = sys.modules.get("torch.distributed._composable_state")
    state = None if library is None else library._get_module_state(original)
    if library is not None and state is not None:
        library._insert_module_state(other, state)


# --- DistributedDataParallel ------------------------------------------------------------------------


def active_replica() -> Any:
    """The DistributedDataParallel whose forward is running, or None."""
    return torch.nn.parallel.DistributedDataParallel._active_ddp_module


def buckets_of(replica: Any, ready: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """How DistributedDataParallel sends gradients, once it knows the order in which they come: parameters whose
    gradients go together. ready: parameters in that order; others than its own are left out."""
    ignored = replica.parameters_to_ignore
    own = [p for name, p in replica.module.named_parameters() if p.requires_grad and name not in ignored]
    order = {id(p): at for at, p in enumerate(own)}
    tensors = [p for p in ready if id(p) in order]
    if replica.find_unused_parameters and not replica.static_graph:  # keeps the order of the parameters
        tensors.sort(key=lambda p: order[id(p)])
    config = getattr(replica, "_bucket_config", None)  # torch 2.13
    limits = list(getattr(config, "per_bucket_bytes_caps", ()))
    if not limits:
        default = getattr(replica, "bucket_bytes_cap_default", False)  # before it
        first = torch.distributed._DEFAULT_FIRST_BUCKET_BYTES if default else replica.bucket_bytes_cap
        limits = [getattr(config, "first_bucket_bytes_cap", first), replica.bucket_bytes_cap]
    if not tensors:
        return []
    groups, _ = torch.distributed._compute_bucket_assignment_by_size(tensors, limits, [False] * len(tensors))
    return [[tensors[at] for at in group] for group in groups]
