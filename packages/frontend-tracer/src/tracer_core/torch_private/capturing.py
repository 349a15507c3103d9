"""The FakeTensorMode of a trace (`capture_mode`), which runs operators without importing
torch._dynamo.

FakeTensorMode itself answers the operators that the fast paths do not cover.
"""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable, Collection
from typing import Any

import torch

from tracer_core.torch_private.dtensors import MASKING, dispatches_in_c, forget_shardings
from tracer_core.torch_private.fakes import is_fake_without_subclass
from tracer_core.torch_private.names import names
from tracer_core.torch_private.own_fakes import fake_result, takes_objects, without_cache
from tracer_core.torch_private.releases import is_tested
from tracer_core.torch_private.subclasses import any_wrapper

#: Operators whose references, in torch 2.11, fail to drop a reduced dimension of size 1 given as a
#: negative index.
_DIMS_FROM_THE_FRONT = frozenset(names("ops.aten.linalg_vector_norm.default"))


_META = torch.device("meta")


def _dims_from_the_front(
    value: Any, order: Any = 2, dims: Any = None, *others: Any
) -> tuple[Any, ...]:
    """Makes the dimensions of a vector norm non-negative; an invalid dimension stays, for the
    error."""
    rank = value.dim()
    if dims is not None:
        dims = [dim + rank if -rank <= dim < 0 else dim for dim in dims]
    return value, order, dims, *others


def capture_mode(
    before_operator: Callable[[Any, Any, Any], None],
    after_operator: Callable[[Any, Any, Any, Any], Any],
    shape_env: Any,
    quick: Callable[[Any, Any, Any, Any, Callable[[], Any]], Any],
    slow: Any,
) -> Any:
    """Returns a FakeTensorMode that calls ``before_operator(func, args, kwargs)`` before each
    operator.

    ``after_operator(func, args, kwargs, result)`` replaces the mode's answer. ``quick(mode, func, args,
    kwargs, run)`` may answer in its place, or return `slow`; run() gives the mode's own answer.

    FakeTensorMode's set-up and dispatch read flags of torch._dynamo's configuration, and the
    wrapper of dispatch modes disables torch._dynamo on the first call: each imports that package,
    which takes 80 MiB and longer than the whole trace of a model. This class avoids all of them;
    only torch's reference implementations that promote dtypes still import it.
    """
    return _capture_mode_class()(before_operator, after_operator, shape_env, quick, slow)


@functools.cache
def _capture_mode_class() -> Any:
    """Returns the class of `capture_mode`, one for all captures: torch keeps some classes of modes
    for ever."""
    from torch._subclasses.fake_tensor import _DISPATCH_META_HANDLERS, FakeTensor, FakeTensorMode

    aten = torch.ops.aten
    zero = aten._efficientzerotensor.default
    convolutions = (aten.convolution.default, aten.convolution_backward.default)
    dispatch = FakeTensorMode.__torch_dispatch__
    dispatch = getattr(dispatch, "__wrapped__", dispatch)

    class CaptureMode(FakeTensorMode):
        #: (func, args, kwargs) -> the answer for tensors of subclasses; records: for others too.
        #: eagerly: torch calls the subclasses instead.
        by_class: Callable[[Any, Any, Any], Any] | None = None
        #: masked: whether torch's dispatcher of DTensors remembers a placement of this mode's.
        records = eagerly = masked = False
        #: Devices of the tensors without memory that are zero.
        zero_devices: frozenset[torch.device] = frozenset()

        def __init__(
            self, before_operator: Any, after_operator: Any, shape_env: Any, quick: Any, slow: Any
        ) -> None:
            self.before_operator, self.after_operator = before_operator, after_operator
            self.quick, self.slow, self.light = quick, slow, is_tested()
            if self.light:
                _set_up(self, shape_env)
            else:
                super().__init__(shape_env=shape_env, static_shapes=shape_env is None)

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False

        def create_symbolic_nested_int(self, *, nt_tensor_id: int | None = None) -> torch.SymInt:
            """Returns the size of a ragged dimension. FakeTensorMode's needs a ShapeEnv, and is a
            symbol of it."""
            from torch.nested._internal import nested_tensor

            number = nested_tensor._tensor_id_counter
            nested_tensor._tensor_id_counter += 1
            return torch.SymInt(nested_tensor.NestedIntNode(number, 1))

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if any(cls is not FakeTensor for cls in types):
                by_class = None if self.eagerly else self.by_class
                if by_class is not None:
                    return by_class(func, args, kwargs)
                if any_wrapper(types):
                    if func in MASKING and any(map(dispatches_in_c, types)):
                        forget_shardings()
                        self.masked = True
                    return NotImplemented
            answer: Callable[[Any], Any] | None = _DISPATCH_META_HANDLERS.get(func)
            if answer is not None:
                return answer(args)  # a metadata query
            if self.by_class is not None and self.records:
                return self.by_class(func, args, kwargs)
            kwargs, slow = kwargs or {}, self.slow
            shape_env: Any = self.shape_env
            if func in _DIMS_FROM_THE_FRONT:
                args = _dims_from_the_front(*args)
            if any(type(arg) is torch.Tensor for arg in args):
                args = tuple([_fake_zero(self, arg) for arg in args])
            if func is zero and kwargs.get("device") is not None:
                self.zero_devices |= {kwargs["device"]} - {_META}

            def run() -> Any:
                self.before_operator(func, args, kwargs)
                result = fake_result(self, func, args, kwargs)
                if result is not None:
                    return self.after_operator(func, args, kwargs, result)
                result = _without_settings(self, func, args, kwargs, slow) if self.light else slow
                if result is slow:
                    nothing = contextlib.nullcontext()
                    simple = without_cache(self) if takes_objects(func) else nothing
                    with simple, nothing if shape_env is None else shape_env.during(func):
                        result = dispatch(self, func, types, args, kwargs)
                return self.after_operator(func, args, kwargs, result)

            result = slow
            symbolic = shape_env is not None and func in convolutions
            if self.light or (symbolic and args[0]._has_symbolic_sizes_strides):
                result = self.quick(self, func, args, kwargs, run)
            return run() if result is slow else result

    return CaptureMode


def _fake_zero(mode: Any, value: Any) -> Any:
    """Returns the fake of a tensor without memory that is zero, which C++ made below the mode of
    another one's meta tensor; any other value unchanged."""
    if type(value) is not torch.Tensor or not value._is_zerotensor():
        return value
    if value.device != _META or len(mode.zero_devices) != 1:
        return value
    (device,) = mode.zero_devices
    with mode:
        return torch._efficientzerotensor(value.shape, dtype=value.dtype, device=device)


def _set_up(mode: Any, shape_env: Any) -> None:
    """Sets FakeTensorMode's attributes to torch's default settings."""
    from torch._subclasses.fake_tensor import FakeTensorConverter
    from torch.utils._python_dispatch import TorchDispatchMode

    TorchDispatchMode.__init__(mode)
    mode.shape_env = shape_env
    mode.static_shapes = shape_env is None
    mode.fake_tensor_converter = FakeTensorConverter(copy_data=False, export=False)
    for name in (
        "allow_fallback_kernels",
        "cache_enabled",
        "_allow_unsafe_data_ptr_access",
        "allow_meta",
    ):
        setattr(mode, name, True)
    for name in ("propagate_real_tensors", "allow_scalar_outputs", "cache_crosscheck_enabled",
                 "allow_non_fake_inputs", "in_kernel_invocation"):  # fmt: skip
        setattr(mode, name, False)
    mode.enter_stack = []
    mode._stack_trace, mode._stack = traceback.extract_stack(limit=2), None
    mode._mode_key = torch._C._TorchDispatchModeKey.FAKE
    mode.nt_tensor_id_counter = mode.nt_tensor_id_initial_count = 0


def _without_settings(mode: Any, func: Any, args: Any, kwargs: Any, slow: Any) -> Any:
    """Returns FakeTensorMode's answer to a torch operator without reading torch._dynamo's settings,
    which do not affect it; `slow` where an argument needs more (symbols, known values, real
    tensors) or FakeTensorMode raises."""
    is_aten = isinstance(func, torch._ops.OpOverload) and func.namespace == "aten"
    if mode.in_kernel_invocation or not is_aten:
        return slow
    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not (tensors or _makes_tensors(func)):
        return slow
    if not all(is_fake_without_subclass(tensor, mode) for tensor in tensors):
        return slow
    if any(isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)) for leaf in leaves):
        return slow
    way, answer = _way(func)
    if way == "slow":
        return slow
    try:
        if way == "decomposition":
            with mode:
                return answer(*args, **kwargs)
        if way == "rule":
            result = answer(mode, func, *args, **kwargs)
            if result is not NotImplemented:
                return result
            if not _has_meta_kernel(func):
                return slow
        with KernelInvocation(mode):
            result = func(*args, **kwargs)
        wrap = mode.wrap_meta_outputs_with_default_device_logic
        return wrap(result, func, leaves, device=kwargs.get("device"))
    except Exception:
        return slow  # FakeTensorMode raises what it raises


def _makes_tensors(func: Any) -> bool:
    from torch._subclasses import fake_impls, fake_tensor

    takes_numbers = fake_tensor.should_allow_numbers_as_tensors(func)
    return fake_impls._is_tensor_constructor(func) and not takes_numbers


def _has_meta_kernel(func: Any) -> bool:
    return torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), "Meta")


@functools.cache
def _taking_symbols() -> Collection[Any]:
    """Returns the operators whose meta kernels accept symbolic sizes."""
    from torch import _meta_registrations
    from torch._subclasses.fake_tensor import FakeTensorMode

    # since torch 2.15
    attribute: Any = getattr(_meta_registrations, "cpp_meta_supports_symint_ops", None)
    return FakeTensorMode._cpp_meta_supports_symint if attribute is None else attribute


@functools.lru_cache(maxsize=4096)
def _way(func: Any) -> tuple[str, Any]:
    """Returns how FakeTensorMode answers an operator with static sizes: the first of torch's
    decomposition, the mode's own rule, the meta kernel."""
    from torch._decomp import decomposition_table, meta_table
    from torch._subclasses import fake_impls, fake_tensor

    mode = fake_tensor.FakeTensorMode
    if func in mode.lift_fns:
        return "slow", None
    supported = torch.Tag.view_copy in func.tags or func in _taking_symbols()
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
    """Context in which operators on a mode's fakes run torch's meta kernels and return plain meta
    tensors."""

    __slots__ = ("_dispatch", "_keys", "_mode")

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        self._dispatch = torch._C._DisableTorchDispatch()
        self._keys = torch._C._PreserveDispatchKeyGuard()

    def __enter__(self) -> None:
        self._dispatch.__enter__()
        self._mode.in_kernel_invocation = True
        self._keys.__enter__()
        torch._C._set_meta_in_tls_dispatch_include(True)

    def __exit__(self, *error: object) -> None:
        self._mode.in_kernel_invocation = False
        self._keys.__exit__(*error)
        self._dispatch.__exit__(*error)
