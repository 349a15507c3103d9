"""NumPy's arrays and scalars in a trace: tensors behind them, recorded as torch's operators.

An array of `Tensor.numpy()`, and an array from before the trace once it is computed with, is a
`TracedArray`. NumPy itself decides what a call means: it runs on a small polyfill with the same
dtype, sizes and strides, and says the result's dtype, sizes and memory, whether it is a scalar, and
which error is raised. torch's version (torch._numpy) of a function in the tables below computes the
values; a result that differs from NumPy's in any of these breaks the graph. NumPy's runtime
warnings are not given.
"""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from tracer_core import torch_private
from tracer_core.debug.crossed_limits import crossed
from tracer_core.graph_breaks import Break
from tracer_core.guards import numpy_types
from tracer_core.guards.numpy_types import ARRAY, SCALARS
from tracer_core.guards.value_kinds import is_constant
from tracer_core.limits import MAX_ARRAY_ELEMENTS, MAX_CONSTANT_ARRAY_ELEMENTS
from tracer_core.torch_private import numpy_functions
from tracer_core.trace import numpy_calls
from tracer_core.trace.guarded_calls import applied, query
from tracer_core.trace.numpy_versions import VERSIONS

if TYPE_CHECKING:
    from tracer_core.trace.tracer import Tracer

numpy: Any = numpy_types.numpy

#: Functions whose values torch computes as NumPy does (tests/natives/test_numpy.py compares
#: them on edge values). Left out: shifts, whose count may exceed the width; float_power, einsum.
_UFUNCS_TEXT = """
    add subtract multiply divide power floor_divide remainder negative positive absolute fabs
    sqrt square exp exp2 expm1 log log2 log10 log1p sin cos tan arcsin arccos arctan sinh cosh
    tanh arcsinh arccosh arctanh arctan2 hypot maximum minimum fmax fmin floor ceil rint trunc
    equal not_equal less less_equal greater greater_equal logical_and logical_or logical_xor
    logical_not bitwise_and bitwise_or bitwise_xor invert isnan isinf isfinite signbit copysign
    deg2rad rad2deg logaddexp logaddexp2 matmul conjugate sign reciprocal
"""
_UFUNCS = frozenset(_UFUNCS_TEXT.split())
_FUNCTIONS_TEXT = """
    sum prod mean std var max amax min amin argmax argmin all any cumsum cumprod clip where
    concatenate stack vstack hstack dstack column_stack reshape ravel transpose swapaxes
    moveaxis expand_dims squeeze tile repeat roll flip fliplr flipud rot90 trace tril triu dot
    inner outer tensordot split array_split hsplit vsplit atleast_1d atleast_2d zeros_like
    ones_like full_like copy array asarray ascontiguousarray diff sort round around nan_to_num
    isclose take take_along_axis real ptp cross linalg.norm count_nonzero
"""
_FUNCTIONS = frozenset(_FUNCTIONS_TEXT.split())
_METHODS_TEXT = """
    sum prod mean std var max min argmax argmin all any cumsum cumprod clip reshape ravel
    flatten transpose swapaxes squeeze astype copy dot round take repeat trace conj conjugate
"""
_METHODS = frozenset(_METHODS_TEXT.split())
#: What only dtypes and sizes decide: NumPy's answer for the polyfills is the answer.
_METADATA = frozenset(
    [
        "ndim",
        "shape",
        "size",
        "result_type",
        "can_cast",
        "iscomplexobj",
        "isrealobj",
        "isscalar",
        "issubdtype",
    ]
)
_ATTRIBUTES = frozenset({"ndim", "shape", "size", "itemsize", "nbytes", "dtype", "strides"})
_VIEWS = frozenset({"T", "real", "imag", "mT"})
_VALUES = frozenset({"item", "tolist", "__float__", "__int__", "__index__", "__bool__"})
#: ufuncs of integers that NumPy defines where torch raises, by the operand that decides.
_BY_OPERAND = frozenset({"floor_divide", "remainder", "power", "reciprocal"})
#: Complex numbers are left out: torch's arithmetic has other infinities.
_DTYPES = frozenset(
    ["bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64"]
)
_OPERATORS: dict[Any, str] = {
    operator.add: "add", operator.sub: "subtract", operator.mul: "multiply",
    operator.truediv: "divide", operator.floordiv: "floor_divide", operator.mod: "remainder",
    operator.pow: "power", operator.matmul: "matmul", operator.and_: "bitwise_and",
    operator.or_: "bitwise_or", operator.xor: "bitwise_xor", operator.neg: "negative",
    operator.pos: "positive", operator.invert: "invert", operator.lt: "less",
    operator.le: "less_equal", operator.eq: "equal", operator.ne: "not_equal",
    operator.gt: "greater", operator.ge: "greater_equal", operator.abs: "absolute",
}  # fmt: skip
_INPLACE: dict[Any, Any] = {
    operator.iadd: operator.add, operator.isub: operator.sub, operator.imul: operator.mul,
    operator.itruediv: operator.truediv, operator.ifloordiv: operator.floordiv,
    operator.imod: operator.mod, operator.ipow: operator.pow, operator.iand: operator.and_,
    operator.ior: operator.or_, operator.ixor: operator.xor,
}  # fmt: skip


def array_of(tensor: torch.Tensor) -> Any:
    """Returns the array that a graph's result is to the program. Called by generated code."""
    return tensor.numpy()


def scalar_of(tensor: torch.Tensor) -> Any:
    """Returns the scalar that a graph's result is to the program. Called by generated code."""
    return tensor.numpy()[()]


class TracedArray:
    """An array of the program, or a scalar of NumPy: its tensor has the values. real: the array
    from before the trace that it stands for. Its special methods are Python code, so that native
    code that does not know it breaks the graph."""

    __slots__ = ("tensor", "scalar", "real")

    def __init__(self, tensor: torch.Tensor, scalar: bool = False, real: Any = None) -> None:
        self.tensor, self.scalar, self.real = tensor, scalar, real

    def __reduce_ex__(self, protocol: Any) -> Any:
        return (scalar_of if self.scalar else array_of), (self.tensor,)

    def _unread(self, *_: Any) -> Any:
        raise Break("data_dependent_value", "the contents of an array are read")

    __bool__ = __len__ = __iter__ = __str__ = __repr__ = __format__ = _unread
    __float__ = __int__ = __contains__ = __getitem__ = __hash__ = __eq__ = _unread

    @property
    def kind(self) -> type:
        """The type that the program sees."""
        return _numpy_dtype(self.tensor).type if self.scalar else ARRAY[0]


class ArrayMethod:
    """A method of a traced array."""

    __slots__ = ("array", "name")

    def __init__(self, array: TracedArray, name: str) -> None:
        self.array, self.name = array, name

    def __reduce_ex__(self, protocol: Any) -> Any:
        return getattr, (self.array, self.name)


class _Shared:
    """Calls torch.from_numpy; each call of the program makes its own tensor."""

    __qualname__ = "torch.from_numpy"

    def __call__(self, array: Any) -> torch.Tensor:
        if not array.flags.writeable:
            raise TypeError("it is not writable")
        return torch.from_numpy(array)


def tensor_of(tracer: Tracer, array: Any, *, again: bool = False) -> Any:
    """Returns a graph input that shares the memory of an array from before the trace. again: a
    tensor of its own, as each torch.from_numpy() makes one."""
    handle = ("from_numpy", id(array), tracer.steps if again else None)
    share = tracer.native_calls.queries.setdefault(handle, _Shared())
    try:
        return applied(tracer, share, array)
    except (TypeError, ValueError) as error:
        tracer.break_graph("unsupported_value", f"an array that no tensor can share: {error}")


def is_array(tracer: Tracer, value: Any) -> bool:
    """Returns whether a value is an array or scalar of which the trace knows no contents."""
    return type(value) is TracedArray or (
        type(value) in ARRAY and not tracer.provenance.is_fresh(value)
    )


def has_array(tracer: Tracer, values: Any, depth: int = 4) -> bool:
    """Returns whether such an array is among values, or in their lists and tuples."""
    for value in values:
        if is_array(tracer, value):
            return True
        if type(value) in (list, tuple) and depth and has_array(tracer, value, depth - 1):
            return True
    return False


def of_tensor(tracer: Tracer, tensor: Any) -> TracedArray:
    """Tensor.numpy(): an array that shares the tensor's memory."""
    fake = tracer.recorder.as_fake(tensor)
    if fake.requires_grad or fake.device.type != "cpu" or fake.is_conj() or fake.is_neg():
        tracer.break_graph("data_dependent_value", "numpy() of a tensor that torch refuses")
    if torch_private.transforms_active() or _name(fake.dtype) not in _DTYPES:
        tracer.break_graph("data_dependent_value", f"numpy() of a {fake.dtype} tensor")
    # The result is a graph output of its own: the tensor may get another one in its place.
    return TracedArray(tracer.native_calls.native(torch.Tensor.detach, tensor))


def to_tensor(tracer: Tracer, array: Any, what: str) -> Any:
    """torch.from_numpy() of an array: a new tensor that shares its memory."""
    if type(array) is not TracedArray:
        return tensor_of(tracer, array, again=True)
    if array.scalar and what == "from_numpy":
        tracer.break_graph("data_dependent_value", "from_numpy of a scalar of NumPy")
    if array.scalar:
        return tracer.native_calls.native(torch.clone, array.tensor)
    return tracer.native_calls.native(torch.Tensor.detach, array.tensor)


# -- polyfills --


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _numpy_dtype(tensor: torch.Tensor) -> Any:
    return numpy.dtype(_name(tensor.dtype))


def _polyfill(tracer: Tracer, array: TracedArray) -> Any:
    """Returns an array of zeros with the same dtype, sizes and strides."""
    tensor, dtype = tracer.recorder.as_fake(array.tensor), _numpy_dtype(array.tensor)
    if array.scalar:
        return dtype.type(0)
    sizes, strides = ([int(n) for n in ns] for ns in (tensor.shape, tensor.stride()))
    count = 1 + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True) if n)
    if count > MAX_ARRAY_ELEMENTS:
        crossed("MAX_ARRAY_ELEMENTS", reached=count)
        tracer.break_graph("unsupported_value", f"an array of {count} elements in the trace")
    base = numpy.zeros(count, dtype)
    steps = [step * dtype.itemsize for step in strides]
    return numpy.lib.stride_tricks.as_strided(base, sizes, steps)


class _Call:
    """One call of a NumPy function: the traced arrays among its arguments and their polyfills."""

    def __init__(self, tracer: Tracer, name: str) -> None:
        self.tracer, self.name = tracer, name
        #: (the program's object, its traced array, its polyfill)
        self.arrays: list[tuple[Any, TracedArray, Any]] = []

    def refuse(self, why: str) -> Any:
        self.tracer.break_graph("unknown_native", f"numpy.{self.name}(): {why}")

    def traced(self, value: Any) -> Any:
        """Replaces the arrays in a structure by traced ones."""
        value = self.tracer.scalars.concrete(value)
        for inputs, result, _ in self.arrays:
            if inputs is value:
                return result
        if type(value) is TracedArray:
            result = value
        elif type(value) in ARRAY:
            result = self._from_outside(value)
        elif type(value) in (list, tuple):
            return type(value)([self.traced(item) for item in self.tracer.containers.spread(value)])
        elif is_constant(value) or isinstance(value, (type, *numpy_types.DTYPE)):
            return value
        else:
            return self.refuse(f"an argument of type {type(value).__name__}")
        self.arrays.append((value, result, _polyfill(self.tracer, result)))
        return result

    def _from_outside(self, value: Any) -> TracedArray:
        if value.dtype.name not in _DTYPES or not value.dtype.isnative:
            self.refuse(f"an array of {value.dtype}")
        if not self.tracer.provenance.is_fresh(value):
            return TracedArray(tensor_of(self.tracer, value), real=value)
        if value.size > MAX_CONSTANT_ARRAY_ELEMENTS:
            crossed("MAX_CONSTANT_ARRAY_ELEMENTS", reached=value.size)
        if (
            value.size > MAX_CONSTANT_ARRAY_ELEMENTS
            or value.dtype.kind == "c"
            or not value.flags.c_contiguous
        ):
            self.refuse("a large array made in the trace")
        dtype, native = getattr(torch, value.dtype.name), self.tracer.native_calls.native
        if not value.size:
            return TracedArray(native(torch.empty, value.shape, dtype=dtype))
        return TracedArray(native(torch.tensor, value.tolist(), dtype=dtype))

    def with_polyfills(self, value: Any) -> Any:
        """Replaces traced arrays by polyfills."""
        if type(value) is TracedArray:
            return next(polyfill for _, result, polyfill in self.arrays if result is value)
        if type(value) in (list, tuple):
            return type(value)([self.with_polyfills(item) for item in value])
        return value

    def numpy_result(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Returns NumPy's result for the polyfills; raises its error."""
        state = query(self.tracer, _error_state)
        if {"raise", "call", "print", "log"}.intersection(state):
            self.refuse("numpy.seterr() has set that errors are reported")
        with warnings.catch_warnings(), numpy.errstate(all="ignore"):
            warnings.simplefilter("error")
            try:
                return function(*self.with_polyfills(args), **self.with_polyfills(kwargs))
            except Warning as error:
                return self.refuse(f"it warns: {error}")

    def computed(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Records torch's version; returns its tensors."""
        try:
            return numpy_functions.tensors_in(
                self.tracer.native_calls.native(
                    function, *map(_for_torch, args), **_for_torch(kwargs)
                )
            )
        except Exception as error:
            return self.refuse(f"torch's version: {type(error).__name__}: {error}")

    def torch_result(self, version: Any, want: Any, args: Any, kwargs: Any) -> Any:
        """Returns the result of a call to which NumPy's answer for the polyfills is `want`."""
        own = VERSIONS.get(self.name)
        if own is None or type(want) not in (*ARRAY, *SCALARS):
            return self.result(want, self.computed(version, args, kwargs))
        if want.dtype.name not in _DTYPES:
            return self.refuse(f"a result of {want.dtype}")
        # NumPy's answer has a dtype= asked for.
        named = {key: value for key, value in kwargs.items() if key != "dtype"}
        inputs = [getattr(torch, want.dtype.name), *map(_tensors, args)]
        simple = {key: _tensors(value) for key, value in named.items()}
        return self.result(want, self.computed(own, inputs, simple))

    def called(self, want: Any, args: Any, kwargs: Any) -> Any:
        """Records a call of NumPy itself, to which its answer for the polyfills is `want`."""
        if type(want) not in (*ARRAY, *SCALARS) or want.dtype.name not in _DTYPES:
            return self.refuse(f"a {type(want).__name__} that depends on values")
        tensors: list[torch.Tensor] = []
        text = numpy_calls.written((tuple(args), kwargs), tensors, TracedArray)
        if text is None:
            return self.refuse("an argument without a text")
        inputs = self.name, tensors, text, list(want.shape), getattr(torch, want.dtype.name)
        return self.result(want, self.tracer.recorder.call(numpy_calls.CALL, inputs, {}))

    def result(self, want: Any, got: Any) -> Any:
        """Returns what the program sees of a result, which is as NumPy says."""
        for inputs, _, polyfill in self.arrays:
            if want is polyfill and type(want) in ARRAY:
                return inputs
        if type(want) in (list, tuple):
            if type(got) not in (list, tuple) or len(got) != len(want):
                return self.refuse("torch's version gives another structure")
            return type(want)([self.result(*pair) for pair in zip(want, got, strict=True)])
        if type(want) not in ARRAY and type(want) not in SCALARS:
            return self.refuse(f"a {type(want).__name__} that depends on values")
        if not isinstance(got, torch.Tensor):
            return self.refuse("torch's version gives no tensor")
        if (tuple(got.shape), _name(got.dtype)) != (want.shape, want.dtype.name):
            return self.refuse(
                f"torch's version gives {got.dtype} {tuple(got.shape)}, not {want.dtype}"
                f" {want.shape}"
            )
        if type(want) in SCALARS:
            return TracedArray(self._own(got), scalar=True)
        if not want.flags.writeable:
            return self.refuse("an array that cannot be written")
        return TracedArray(self._in_memory_of_numpy(want, got))

    def _shares(self, tensor: Any, other: Any) -> bool:
        item, two = map(self.tracer.recorder.as_fake, (tensor, other))
        return torch_private.storage_id(item) == torch_private.storage_id(two)

    def _own(self, tensor: Any) -> Any:
        """Returns the values in memory of their own."""
        if any(self._shares(tensor, result.tensor) for _, result, _ in self.arrays):
            return self.tracer.native_calls.native(torch.clone, tensor)
        return tensor

    def _in_memory_of_numpy(self, want: Any, got: Any) -> Any:
        """Returns a tensor that shares memory where NumPy's result does, with NumPy's strides."""
        native = self.tracer.native_calls.native
        under = [
            built
            for _, built, item in self.arrays
            if type(item) in ARRAY and _same_memory(want, item)
        ]
        if not all(self._shares(got, result.tensor) for result in under):
            return self.refuse("torch's version copies where NumPy makes a view")
        if not under:
            got = self._own(got)
        strides = tuple(step // want.itemsize for step in want.strides)
        items = tuple(self.tracer.recorder.as_fake(got).stride())
        differs = any(n > 1 and a != b for n, a, b in zip(want.shape, strides, items, strict=True))
        if want.size and differs:
            if under:
                return self.refuse("a view with other strides than torch's")
            result = native(torch.empty_strided, want.shape, strides, dtype=got.dtype)
            return native(torch.Tensor.copy_, result, got)
        return got


def _same_memory(item: Any, other: Any) -> bool:
    return bool(numpy.may_share_memory(item, other))


def _error_state() -> tuple[str, ...]:
    return tuple(numpy.geterr().values())


def _for_torch(value: Any) -> Any:
    """Replaces traced arrays and dtypes in a structure by those of torch's version."""
    if type(value) is TracedArray:
        return numpy_functions.array(value.tensor)
    if type(value) in (list, tuple):
        return type(value)([_for_torch(item) for item in value])
    if type(value) is dict:
        return {key: _for_torch(item) for key, item in value.items()}
    if isinstance(value, numpy_types.DTYPE) or (
        isinstance(value, type) and (value in SCALARS or value in (int, float, bool, complex))
    ):
        return numpy_functions.dtype(numpy.dtype(value).name)
    return value.item() if type(value) in SCALARS else value


# -- calls --


def call(tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Calls a function of NumPy, a method of its arrays or an operator on traced arrays."""
    if function in _INPLACE:
        return _in_place(tracer, function, *args)
    named = function.name if type(function) is ArrayMethod else getattr(function, "__name__", "?")
    name = _OPERATORS.get(function, named)
    result = _Call(tracer, name)
    args = [result.traced(value) for value in args]
    kwargs = {key: result.traced(value) for key, value in kwargs.items()}
    if isinstance(function, numpy.ufunc) or (function in _OPERATORS):
        return _ufunc(result, function, args, kwargs)
    if function is operator.getitem:
        return _getitem(result, *args)
    if type(function) is ArrayMethod:
        return _method(result, name, args, kwargs)
    if name in _METADATA:
        return result.numpy_result(function, args, kwargs)
    path = f"linalg.{name}" if function is getattr(numpy.linalg, name, None) else name
    if path == "linalg.norm" and args[0].tensor.dtype is torch.float16:
        return result.refuse("of half precision")
    known = path in _FUNCTIONS and function is functools.reduce(getattr, path.split("."), numpy)
    by_numpy = path in numpy_calls.FUNCTIONS and function is getattr(numpy, path, None)
    if by_numpy:
        return result.called(result.numpy_result(function, args, kwargs), args, kwargs)
    version = numpy_functions.function(path) if known else None
    if version is None:
        return result.refuse("of an array from the trace")
    return result.torch_result(version, result.numpy_result(function, args, kwargs), args, kwargs)


def _ufunc(result: _Call, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    ufunc = getattr(numpy, result.name) if function in _OPERATORS else function
    name = result.name = ufunc.__name__
    if name not in _UFUNCS or kwargs or len(args) != ufunc.nin:
        return result.refuse("of an array from the trace")
    want = result.numpy_result(function, args, {})  # the operator also where a ufunc is behind it
    if type(want) not in ARRAY and type(want) not in SCALARS:
        return result.refuse("is not implemented for these operands")
    if not all(type(arg) in (TracedArray, int, float, bool, *SCALARS) for arg in args):
        return result.refuse("of other operands than arrays and numbers")
    inputs = [
        type(value)
        if type(value) in (int, float, complex)
        else numpy.asarray(result.with_polyfills(value)).dtype
        for value in args
    ]
    loop = ufunc.resolve_dtypes((*inputs, *[None] * ufunc.nout))
    if any(dtype.name not in _DTYPES for dtype in loop):
        return result.refuse(f"of {loop}")
    if name in _BY_OPERAND and loop[0].kind in "biu" and not _is_tame(name, args):
        return result.refuse("of integers, where torch raises and NumPy warns")
    if name == "power" and type(args[1]) is not TracedArray and abs(args[1]) == 0.5:
        return result.refuse("of a root, whose infinities differ")
    native = result.tracer.native_calls.native
    operands = []
    for value, dtype in zip(args, loop[: ufunc.nin], strict=True):
        to = getattr(torch, dtype.name)
        if type(value) is not TracedArray:
            try:
                number = dtype.type(value.item() if type(value) in SCALARS else value).item()
            except OverflowError as error:
                return result.refuse(str(error))
            operands.append(native(torch.tensor, number, dtype=to))
        elif value.tensor.dtype is to:
            operands.append(value.tensor)
        else:
            operands.append(native(torch.Tensor.to, value.tensor, to))
    version = numpy_functions.function(name)
    assert version is not None, name
    if loop[-1] != want.dtype:
        return result.refuse("its operator computes in another dtype")
    return result.torch_result(version, want, list(map(TracedArray, operands)), {})


def _is_tame(name: str, args: list[Any]) -> bool:
    """Returns whether an integer operation's last operand is a number that torch and NumPy agree
    on."""
    last = args[-1]
    if name == "reciprocal" or type(last) is not int:
        return False
    return last >= 0 if name == "power" else last > 0


def _method(built: _Call, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    array = args[0]
    if name in _VALUES and not kwargs:
        read = torch.Tensor.tolist if name == "tolist" else torch.Tensor.item
        chosen = array if len(args) == 1 else _getitem(built, array, _flat_key(built, args))
        return built.tracer.native_calls.call_torch(read, [chosen.tensor], {})
    version = numpy_functions.method(name) if name in _METHODS else None
    if version is None and (array.scalar or name not in numpy_calls.METHODS):
        return built.refuse("of an array from the trace")
    want = built.numpy_result(
        lambda value, *rest, **named: getattr(value, name)(*rest, **named), args, kwargs
    )
    if version is None:
        return built.called(want, args, kwargs)
    return built.torch_result(version, want, args, kwargs)


def _flat_key(result: _Call, args: list[Any]) -> Any:
    key = tuple(args[1:])
    if len(key) != args[0].tensor.dim() or any(type(part) is not int for part in key):
        result.refuse("item() by a flat index, or by what is no int")
    return key


def _getitem(result: _Call, array: Any, key: Any) -> Any:
    if type(array) is not TracedArray:
        return result.refuse("the index of what is no array is an array")
    want = result.numpy_result(operator.getitem, [array, key], {})
    got = result.computed(_subscript, [array, key], {})
    return result.result(want, got)


def _subscript(array: Any, key: Any) -> Any:
    return array.tensor[_concrete_key(key)]


def _concrete_key(key: Any) -> Any:
    if type(key) is tuple:
        return tuple(map(_concrete_key, key))
    return key.tensor if hasattr(key, "tensor") else key


def setitem(tracer: Tracer, array: Any, key: Any, value: Any) -> None:
    """array[key] = value"""
    result = _Call(tracer, "__setitem__")
    target, key, value = (result.traced(item) for item in (array, key, value))
    if type(target) is not TracedArray or (type(array) in ARRAY and target.real is None):
        result.refuse("an array that the trace made is given values of an array")
    source = result.with_polyfills(value)
    if numpy.iscomplexobj(source) and not target.tensor.is_complex():
        result.refuse("complex numbers are stored as real ones")
    result.numpy_result(operator.setitem, [target, key, value], {})
    if type(value) in (list, tuple):
        result.refuse("a list is stored")
    if type(value) is TracedArray:
        stored = tracer.native_calls.native(torch.Tensor.to, value.tensor, target.tensor.dtype)
        if result._shares(stored, target.tensor):
            stored = tracer.native_calls.native(torch.clone, stored)
    else:
        stored = _numpy_dtype(target.tensor).type(value).item()
    place = tuple(_tensors(item) for item in key) if type(key) is tuple else _tensors(key)
    try:
        tracer.native_calls.native(operator.setitem, target.tensor, place, stored)
    except Exception as error:
        result.refuse(f"torch's version: {type(error).__name__}: {error}")


def _tensors(value: Any) -> Any:
    return value.tensor if type(value) is TracedArray else value


def _in_place(tracer: Tracer, function: Any, array: Any, other: Any) -> Any:
    """array += other"""
    if (type(array) is TracedArray and array.scalar) or type(array) not in (TracedArray, *ARRAY):
        return call(tracer, _INPLACE[function], [array, other], {})
    created = _Call(tracer, function.__name__)
    if not is_array(tracer, array):
        created.refuse("an array that the trace made is given values of an array")
    target, value = created.traced(array), created.traced(other)
    created.numpy_result(function, [target, value], {})
    result = call(tracer, _INPLACE[function], [array, other], {})
    if type(result) is not TracedArray:
        created.refuse("its result is no array")
    tracer.native_calls.native(torch.Tensor.copy_, target.tensor, result.tensor)
    return array


def attribute(tracer: Tracer, array: Any, name: str) -> Any:
    """Returns an attribute of a traced array."""
    if name == "__class__":
        return array.kind
    result = _Call(tracer, name)
    traced = result.traced(array)
    if name in _ATTRIBUTES:
        return result.numpy_result(getattr, [traced, name], {})
    if name in _VIEWS:
        want = result.numpy_result(getattr, [traced, name], {})
        return result.result(want, result.computed(getattr, [traced, name], {}))
    value = getattr(result.with_polyfills(traced), name)  # raises Python's own error
    if callable(value):
        return ArrayMethod(array, name)
    return result.refuse(f"attribute {name!r} of an array")


def number(tracer: Tracer, function: Any, array: Any) -> Any:
    """abs(), and functions of one number (float, int, round, ...), of an array."""
    if function is abs:
        return call(tracer, operator.abs, [array], {})
    return tracer.calls.call_value(
        function, [call(tracer, ArrayMethod(array, "item"), [array], {})], {}
    )


def length(tracer: Tracer, array: Any) -> int:
    result = _Call(tracer, "__len__")
    return int(result.numpy_result(len, [result.traced(array)], {}))


def to_bool(tracer: Tracer, array: Any) -> Any:
    """Raises NumPy's error for several elements; a branch on one breaks the graph."""
    result = _Call(tracer, "__bool__")
    result.numpy_result(bool, [result.traced(array)], {})
    tracer.break_graph("data_dependent_branch", "a branch on a value of an array")
