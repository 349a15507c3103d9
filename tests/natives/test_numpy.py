"""NumPy in compiled functions: numbers, arrays of plain data, arrays as arguments, and tensors as
arrays.
"""

from __future__ import annotations

import types

import numpy as np
import pytest
import torch

from tests.support.eager_reference import compare_with_eager, same

X, Y = torch.randn(3, 4), torch.randn(3, 4)

ON_NUMBERS = {
    "constants": lambda x, n: x * np.pi + np.e,
    "scalar-left": lambda x, n: np.float32(n) * x,
    "scalar-right": lambda x, n: x + np.int64(n),
    "scalar-compare": lambda x, n: (x < np.float64(n), np.float32(n) < x),
    "scalar-arithmetic": lambda x, n: (np.float32(n) / 3, np.int32(n) // 2, -np.int8(n),
    np.float64(n) ** 0.5, x),
    "scalar-methods": lambda x, n: (np.float32(n).item(), np.int64(n).astype(np.float16),
    np.float64(n).is_integer(), x),
    "scalar-in-shape": lambda x, n: x.reshape(np.int64(4), -1).expand(np.int64(4), 3),
    "scalar-in-operator": lambda x, n: torch.full((2,), np.float32(n)) + torch.clamp(x,
    np.float64(0), np.float64(n)).sum(),
    "scalar-as-index": lambda x, n: x[np.int64(0)] * n,
    "scalar-in-python": lambda x, n: (int(np.int64(n)), float(np.float32(n)), range(np.int64(n)),
    str(np.int64(n)), x),
    "sqrt": lambda x, n: x * np.sqrt(n) / np.log2(8.0),
    "prod": lambda x, n: x * np.prod([n, 2]) + np.ceil(n / 2) + np.floor(0.5),
    "clip-mean": lambda x, n: x * np.clip(n, 0, 2) + np.mean([1.0, n]),
    "linspace": lambda x, n: [x * v for v in np.linspace(0, 1, n)],
    "arange-list": lambda x, n: x[:, np.arange(n).tolist()],
    "array": lambda x, n: (np.array([1, n]).sum(), np.array([[1, n]]).shape,
    np.ones(n).dtype == np.float64, x),
    "array-arithmetic": lambda x, n: ((np.arange(3) * n + 1).tolist(), np.dot([1, 2], [n, 1]), x),
    "array-iteration": lambda x, n: [x * float(v) for v in np.arange(n)],
    "array-item": lambda x, n: x * np.array([n, 5])[0],
    "cumsum": lambda x, n: torch.split(x, np.diff([0, n, 3]).tolist()),
    "dtype": lambda x, n: (np.dtype("float32").itemsize, np.finfo(np.float32).eps > 0,
    np.issubdtype(np.int8, np.integer), x),
    "isscalar": lambda x, n: (isinstance(np.float64(n), float), isinstance(np.int64(n), int),
    np.isscalar(n), x),
}  # fmt: skip


@pytest.mark.parametrize("name", ON_NUMBERS)
def test_numbers(name):
    same(ON_NUMBERS[name], (X, 2), (Y, 2), (X, 3), (Y, 1), breaks=0)


@pytest.mark.parametrize("index", ["b", 1.5, None, (1,), (0, 1), True, np.int64(1), 7, 1])
def test_item_by_what_is_no_index_raises_what_numpy_raises(index):
    def f(x, array, index):
        try:
            return array.item(index), x + 1
        except Exception as error:
            return type(error), str(error), x - 1

    same(f, (X, np.arange(3), index), (Y, np.arange(3), index), breaks=None)


@pytest.mark.parametrize(
    "kind", [np.float32, np.float64, np.int64, np.int8, np.bool_], ids=lambda k: k.__name__
)
def test_numbers_as_arguments(kind):
    same(lambda x, v: (x * v, v), (X, kind(1)), (X, kind(1)), (Y, kind(0)), breaks=0)


def test_numbers_of_two_types_are_two_programs():
    same(
        lambda x, v: (torch.full((2,), v), str(v), type(v)),
        (X, 2),
        (X, np.int64(2)),
        (X, 2.0),
        (X, np.float64(2)),
        breaks=0,
    )


def test_number_kept_on_an_object():
    def make():
        box = types.SimpleNamespace(k=np.float32(2))
        return (lambda x: x * box.k), box

    compare_with_eager(
        make,
        (X,),
        lambda b: setattr(b, "k", np.float32(3)),
        (X,),
        lambda b: setattr(b, "k", np.float64(3)),
        (Y,),
        breaks=0,
    )


def arrays(*shapes):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


AS_TENSORS = {
    "from_numpy": lambda x, a: x + torch.from_numpy(a),
    "as_tensor": lambda x, a: x * torch.as_tensor(a),
    "asarray": lambda x, a: x * torch.asarray(a),
    "tensor": lambda x, a: x - torch.tensor(a),
    "twice": lambda x, a: torch.from_numpy(a) * torch.from_numpy(a).t() if a.shape[0] == a.shape[1] else torch.from_numpy(a) * 2,
    "shape": lambda x, a: x.reshape(a.shape) * len(a.shape),
}  # fmt: skip


@pytest.mark.parametrize("name", AS_TENSORS)
def test_arrays_become_graph_inputs(name):
    first, second = arrays((3, 4), (3, 4))
    same(AS_TENSORS[name], (X, first), (X, second), (Y, first), breaks=0)


def test_a_changed_array_is_read_again():
    def make():
        data = np.ones((3, 4), dtype="float32")

        def f(x):
            return x + torch.from_numpy(data)

        return f, types.SimpleNamespace(data=data)

    compare_with_eager(
        make,
        (X,),
        lambda w: w.data.fill(5),
        (X,),
        lambda w: w.data.__setitem__((0, 0), -1),
        (Y,),
        breaks=0,
        graphs=1,
    )


def test_a_tensor_of_an_array_writes_to_it():
    def make():
        data = np.ones(4, dtype="float32")

        def f(x):
            torch.from_numpy(data).add_(x[0])
            return x * 2

        return f, types.SimpleNamespace(read=data.tolist)

    (eager, world), (target, other) = make(), make()
    import tracer_core

    compiled = tracer_core.compile(target, backend="eager")
    for x in (X, Y, X):
        assert torch.equal(eager(x), compiled(x))
        assert world.read() == other.read()


def test_array_kept_on_a_module():
    class Shift(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.by = np.full(4, 2.0, dtype="float32")

        def forward(self, x):
            return x + torch.as_tensor(self.by)

    compare_with_eager(
        Shift,
        (X,),
        lambda m: m.by.fill(7),
        (X,),
        lambda m: setattr(m, "by", np.zeros(4, "float32")),
        (Y,),
        breaks=0,
    )


OUTSIDE = {
    "function-of-a-tensor": ("data_dependent_value", lambda x,
    a: x * float(np.sum((x + 1).detach().numpy()))),
    "ufunc-of-a-tensor": ("data_dependent_value", lambda x,
    a: torch.as_tensor(np.sqrt(x.abs())) + 1),
    "array-argument": ("data_dependent_value", lambda x, a: x * float(np.mean(a))),
    "array-method": ("data_dependent_value", lambda x, a: x * float(a.sum())),
    "array-item": ("data_dependent_value", lambda x, a: x * float(a[0, 0])),
    "array-written": ("unknown_native", lambda x, a: (a.__setitem__(0, 1), operator_set(a),
    x + 1)[1:]),
    "random": ("unknown_native", lambda x, a: (np.random.seed(0), x * np.random.rand())[1]),
    "fresh-to-tensor": ("data_dependent_value", lambda x, a: x + torch.from_numpy(np.ones(4,
    dtype="float32"))),
    "scalar-to-tensor": ("unsupported_value", lambda x, a: x + torch.tensor(np.float64(2))),
    "complex": ("unsupported_value", lambda x, a: x.to(torch.complex64) + np.complex64(1j)),
    "view": ("unknown_native", lambda x, a: (np.ones((2, 3)).T.shape, x + 1)),
    "warns": ("side_effect_native", lambda x, a: (np.log(0.0), x + 1)),
    "saves": ("side_effect_native", lambda x, a: (np.array2string(np.ones(2)), x + 1)),
}  # fmt: skip


def operator_set(a):
    a[0, 0] = 5.0
    return float(a[0, 0])


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.filterwarnings("ignore")
def test_explained_break(name):
    kind, fn = OUTSIDE[name]
    first, second = arrays((3, 4), (3, 4))
    seen = same(fn, (X, first), (X, second), (Y, first), breaks=None)
    assert kind in {kind for kind, _, _ in seen.counter.breaks}, seen.counter.breaks


def test_work_around_a_conversion_is_captured():
    def f(x):
        y = torch.relu(x) * 2
        total = float(y.numpy().sum())
        return torch.tanh(y) * total

    seen = same(f, (X,), (X,), breaks=None)
    assert len(seen.counter.graphs) == 2


def test_views_made_before_a_break_share_memory_after_it():
    def f(x):
        full = np.arange(6)
        part = full.reshape(2, 3)
        print(end="", flush=[])
        full[0] = 9
        return x + int(part[0, 0]), full.tolist()

    same(f, (X,), (Y,), breaks=None)
