"""Arrays in the trace: `Tensor.numpy()`, arrays as arguments, and what is computed with them."""

from __future__ import annotations

import types
import warnings

import numpy as np
import pytest
import torch

import tracer_core
from tests.support.eager_reference import compare_with_eager, same
from tracer_core.testing import CaptureCounter
from tracer_core.trace import traced_arrays

X, Y = torch.randn(3, 4), torch.randn(3, 4)
DTYPES = ("bool", "int8", "int32", "int64", "uint8", "float16", "float32", "float64")
_TOLERANCE = {"float16": 2e-3, "float32": 2e-5}


def edge_values(dtype, shape=(3, 4), seed=0):
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) > 0.5
    if "int" in dtype:
        values = rng.integers(-5 if dtype[0] == "i" else 0, 6, shape).astype(dtype)
        values.flat[:2] = np.iinfo(dtype).max, np.iinfo(dtype).min
        return values
    values = (rng.normal(size=shape) * 3).astype(dtype)
    values.flat[:8] = np.nan, np.inf, -np.inf, 0, -0.0, 6e4, 2.5, -0.5
    return values


def difference(want, got):
    """What a program can tell two results of NumPy apart by, within rounding."""
    if type(want) is not type(got):
        return f"{type(got)}, expected {type(want)}"
    if isinstance(want, (list, tuple)):
        pairs = zip(want, got, strict=True)
        return next(filter(None, (difference(a, b) for a, b in pairs)), None)
    if not isinstance(want, (np.ndarray, np.generic)):
        return None if want == got else f"{got}, expected {want}"
    if (want.dtype, want.shape) != (got.dtype, got.shape):
        return f"{got.dtype} {got.shape}, expected {want.dtype} {want.shape}"
    if want.size and _steps(want) != _steps(got):
        return f"strides {got.strides}, expected {want.strides}"
    rtol = _TOLERANCE.get(want.dtype.name, 1e-12)
    equal = np.allclose(want, got, rtol=rtol, atol=rtol / 100, equal_nan=True)
    return None if equal else f"{got}, expected {want}"


def _steps(value):
    return [step for n, step in zip(value.shape, value.strides, strict=True) if n > 1]


def check(function, *arrays):
    """Compares three calls with NumPy; returns whether all was one graph."""
    tensors = [torch.from_numpy(array.copy()) for array in arrays]

    def program(*tensors):
        return function(*[tensor.numpy() for tensor in tensors])

    def run(call):
        inputs = [tensor.clone() for tensor in tensors]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return call(*inputs), [item.numpy() for item in inputs]
        except Exception as error:
            return type(error).__name__, str(error), None

    compiled = tracer_core.compile(program, backend="eager")
    want = run(program)
    with CaptureCounter() as counter:
        for _ in range(2):
            assert (messages := difference(want, run(compiled))) is None, messages
    tracer_core.reset()
    return not counter.breaks


@pytest.mark.sweep(keep=6)
@pytest.mark.parametrize("name", sorted(traced_arrays._UFUNCS))
def test_ufunc(name):
    ufunc = getattr(np, name)
    captured = 0
    for dtype in DTYPES:
        shape = (4, 2) if name == "matmul" else (3, 4)
        more = [edge_values(dtype, shape, 1)] if ufunc.nin == 2 else []
        captured += check(ufunc, edge_values(dtype), *more)
    assert captured >= 2


AXES = {"one": 1, "both": (0, 1), "none": None}
REDUCING = "sum prod mean std var max min argmax argmin all any"


@pytest.mark.sweep(keep=6)
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("name", REDUCING.split())
def test_reduction(name, axis):
    axis = AXES[axis]
    if name == "mean":  # the sum of the extremes of int64 depends on its order
        dtypes = [dtype for dtype in DTYPES if dtype != "int64"]
    else:
        dtypes = DTYPES
    for dtype in dtypes:
        check(lambda a: getattr(np, name)(a, axis=axis), edge_values(dtype))
        check(lambda a: getattr(a, name)(axis=axis, keepdims=True), edge_values(dtype))


FUNCTIONS = {
    "cumsum": lambda a: (np.cumsum(a), np.cumsum(a, axis=1)),
    "cumprod": lambda a: np.cumprod(a, axis=0),
    "clip": lambda a: (np.clip(a, 0, 2), a.clip(1, None)),
    "clip-float": lambda a: np.clip(a, -0.5, 1.5),
    "where": lambda a: np.where(a > 0, a, 0),
    "where-float": lambda a: np.where(a > 0, 1.5, a),
    "concatenate": lambda a: np.concatenate([a, a], axis=1),
    "stack": lambda a: (np.stack([a, a], 1), np.vstack([a, a]), np.hstack((a, a))),
    "reshape": lambda a: (np.reshape(a, (4, 3)), a.reshape(2, -1), a.T.reshape(-1)),
    "transpose": lambda a: (a.T, np.swapaxes(a, 0, 1), a.transpose(1, 0), np.moveaxis(a, 0, 1)),
    "expand": lambda a: (np.expand_dims(a, 1), a[None], a[..., None], a.squeeze()),
    "repeat": lambda a: (np.tile(a, 2), np.repeat(a, 2, axis=1), np.roll(a, 1, axis=1)),
    "split": lambda a: (np.split(a, 3), np.array_split(a, 2, axis=1)),
    "products": lambda a: (np.outer(a[0], a[1]), np.dot(a, a.T), np.inner(a, a), a @ a.T),
    "triangles": lambda a: (np.tril(a), np.triu(a), np.trace(a)),
    "like": lambda a: (np.zeros_like(a), np.ones_like(a), np.full_like(a, 1)),
    "sort": lambda a: (np.sort(a), np.sort(a, axis=0), np.diff(a)),
    "round": lambda a: (np.round(a), a.round(1), np.around(a, 2)),
    "astype": lambda a: (a.astype(np.float64), a.astype(a.dtype), (a == a).astype("int32")),
    "copies": lambda a: (a.copy(), a.flatten(), np.array(a), np.asarray(a), a.ravel()),
    "index": lambda a: (a[0], a[1, 2], a[:, 1:3], a[::2], a[-1], a[..., 0], a[:, None, 1]),
    "mirrored": lambda a: (a[::-1], np.flip(a, 0), np.fliplr(a)),
    "norm": lambda a: np.linalg.norm(a[1:], axis=1),
    "nan-to-num": lambda a: (np.nan_to_num(a), np.isclose(a, a)),
    "scalars": lambda a: (a.sum() * 2, a[0, 1] + a[1, 1], abs(a[0, 0]), np.maximum(a[0, 2], 0)),
    "metadata": lambda a: (a.shape, a.ndim, a.dtype, a.strides, a.size, np.shape(a), len(a)),
    "loop": lambda a: [row * 2 for row in a],
}


@pytest.mark.sweep(keep=12)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name):
    for dtype in DTYPES:
        check(FUNCTIONS[name], edge_values(dtype))


OPERATORS = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "/": lambda a, b: a / b, "//": lambda a, b: a // b, "%": lambda a, b: a % b,
    "**": lambda a, b: a**b, "<": lambda a, b: a < b, "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b, ">=": lambda a, b: a >= b, "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
}  # fmt: skip
NUMBERS = (2, 2.5, -1, True, np.float32(1.5), np.int64(3), np.float16(0.5), 1j, None, "text")


@pytest.mark.sweep(keep=8)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("symbol", OPERATORS)
def test_promotion(symbol, dtype):
    apply = OPERATORS[symbol]

    def program(a, b):
        return (
            [described(apply, a, n) for n in NUMBERS],
            [described(apply, n, a) for n in NUMBERS],
            described(apply, a, b),
        )

    check(program, edge_values(dtype), edge_values(DTYPES[len(symbol) % 8], seed=1))
    for other in DTYPES:
        check(apply, edge_values(dtype), edge_values(other, seed=1))


def described(function, *args):
    try:
        return function(*args)
    except (TypeError, OverflowError, ValueError) as error:
        return type(error).__name__


def written(a):
    a[0] = 3
    a[1:, 1] = a[0, 0]
    a[:, 2] += 1
    a[a > 2] = 0
    a *= 2
    b = a.T
    b[0] = 1
    return a, b


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != "bool"])
def test_written_arrays(dtype):
    assert check(written, edge_values(dtype))


def test_a_graph_of_tensors_and_arrays():
    def f(x):
        a = (x * 2).detach().numpy()
        return torch.from_numpy(np.exp(a) + np.ones(4, np.float32)) * x, a.sum() > 0

    same(f, (X,), (Y,), breaks=0, graphs=1)


def test_a_write_through_an_array_is_seen_by_its_tensor():
    def f(x):
        y = x + 1
        a = y.numpy()
        a[0] = 5
        b = torch.from_numpy(a)
        b[1] = 6
        return y, b

    same(f, (X,), (Y,), breaks=0, aliasing=False)  # one storage, in place of two over one memory


def test_a_write_to_an_input_through_an_array():
    def f(x):
        x.numpy()[0] = 7
        return x.numpy().T, x * 2

    same(f, (X,), (Y,), breaks=0)


def test_arrays_from_before():
    def make():
        data = np.arange(12, dtype="float32").reshape(3, 4)

        def f(x):
            nonlocal data
            total = data.sum(axis=0)
            data[0] += 1
            data *= 2
            return torch.from_numpy(total) * x, data[:, 1], data.T, data.shape

        return f, types.SimpleNamespace(read=lambda: data.tolist())

    compare_with_eager(make, (X,), (Y,), (X,), breaks=0)


def test_arrays_as_arguments():
    def f(a, b):
        return np.where(a > b, a, b).mean(axis=0), (a @ b.T).astype(np.float64), a is b

    first, second = (np.random.default_rng(n).normal(size=(3, 4)) for n in range(2))
    seen = same(f, (first, second), (second, first), breaks=0)
    assert seen.counter.graphs


def test_identity_of_arrays():
    def f(x):
        a = x.numpy()
        b = np.asarray(a)
        same_object = b is a
        b += 1
        return same_object, a, type(a) is np.ndarray, isinstance(a.sum(), np.float32)

    same(f, (X,), (Y,), breaks=0)


def test_an_array_across_a_break():
    def f(x):
        y = x * 2
        a = y.numpy()
        print(end="", flush=[])
        a[0] = 1
        return y + 1, a

    same(f, (X,), (Y,), breaks=1)


def test_errors_are_numpys():
    def f(x, axis):
        try:
            return x.numpy().sum(axis=axis)
        except np.exceptions.AxisError as error:
            return str(error)

    same(f, (X, 0), (X, 5), breaks=None)


def test_values_break():
    def f(x):
        a = (x * 2).numpy()
        if a.sum() > 0:
            return x + 1
        return x - float(a[0, 0])

    same(f, (X,), (-X.abs(),), (X.abs(),), breaks=None)


def test_gradients_are_refused_as_in_eager():
    def f(x):
        y = x * 2
        try:
            return y.numpy() + 1
        except RuntimeError as error:
            return str(error)

    same(f, (X.clone().requires_grad_(),), breaks=None)


def test_a_changed_error_state_is_seen():
    def make():
        def f(x):
            return np.log(x.numpy())

        return f, None

    zeros = torch.zeros(3)
    compiled = tracer_core.compile(make()[0], backend="eager")
    with np.errstate(divide="ignore"):
        assert np.isneginf(compiled(zeros)).all()
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        compiled(zeros)


def test_dynamic_sizes():
    def f(x):
        return x.numpy().mean(axis=0) * x.shape[0]

    same(f, (torch.randn(3, 4),), (torch.randn(5, 4),), (torch.randn(6, 4),), breaks=0)
