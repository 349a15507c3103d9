"""Tensors that a program changes in place: values, shapes, aliases, attributes; of arguments and of
its own.
"""

from __future__ import annotations

import pytest
import torch

import tracer_core
from tests.support.eager_reference import same

X, Y = torch.randn(3, 4), torch.randn(3, 4)
BACKENDS = ["eager", "inductor"]


def setitems(x):
    x[x > 0] = 0
    x[..., 1] = 7
    x[0] += 1
    x[1:, None, ::2] *= 2
    x[[0, 2], :2] = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    return x


def from_views(x):
    a, b = x[0], x.view(-1)
    a.add_(1)
    b[5] = 9
    x.t()[0].mul_(2)
    return a, b, x, x.t()


def of_parts(x):
    for i, part in enumerate(x.split(1)):
        part.add_(i)
    first, second = x.chunk(2, 1)
    first.copy_(second)
    x.unbind(0)[1].zero_()
    x.diagonal().fill_(5)
    x.narrow(1, 0, 1).neg_()
    return x


VALUES = {
    "add_": lambda x: (x.add_(1), x),
    "operators": lambda x: (x.__iadd__(1), x.__imul__(2), x.__isub__(x), x)[-1],
    "zero_": lambda x: x.zero_(),
    "fill_": lambda x: x.fill_(3),
    "copy_": lambda x: x.copy_(torch.arange(4.0)),
    "clamp_": lambda x: x.clamp_(min=0),
    "masked_fill_": lambda x: x.masked_fill_(x > 0, -1),
    "index_put_": lambda x: x.index_put_(
        (torch.tensor([0, 1]), torch.tensor([1, 2])), torch.tensor(5.0)
    ),
    "index_add_": lambda x: x.index_add_(0, torch.tensor([0, 0]), x[:2].clone()),
    "scatter_": lambda x: x.scatter_(1, torch.zeros(3, 1, dtype=torch.long), 9.0),
    "setitems": setitems,
    "views": from_views,
    "parts": of_parts,
    "relu_": lambda x: torch.nn.functional.relu(x, inplace=True),
    "data": lambda x: (x.data.mul_(2), x + 1),
    "detach": lambda x: (x.detach().add_(1), x),
    "own": lambda x: (lambda y: (y.add_(1), y[0].zero_(), y))(x * 2),
    "ones": lambda x: (lambda m: (m[0].copy_(x[0]), m.__setitem__((slice(None), -1), 2.0), m)[-1])(
        torch.ones(3, 4)
    ),
}


@pytest.mark.sweep(keep=16)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", VALUES)
def test_values(name, backend):
    same(VALUES[name], (X,), (Y,), (X,), graphs=1, backend=backend)


def test_written_by_a_mask_of_itself():
    def f(x):
        x[x > 0] = x[x > 0] * 2
        return x

    same(f, (X,), (Y,), graphs=1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_out(backend):
    same(lambda x, y: torch.add(x, 1, out=y), (X, Y), (Y, X), graphs=1, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_out_of_another_size(backend):
    same(
        lambda x, y: torch.add(x, 1, out=y),
        (X, torch.empty(0)),
        (Y, torch.empty(0)),
        breaks=None,
        backend=backend,
    )


METADATA = {
    "t_": lambda x, y: (x.t_(), x + 1)[1],
    "transpose_": lambda x, y: (x.transpose_(0, 1), x.shape),
    "unsqueeze_": lambda x, y: (x.unsqueeze_(0), x + 1),
    "squeeze_": lambda x, y: (x.unsqueeze_(0).squeeze_(), x.shape),
    "resize_": lambda x, y: (x.resize_(2, 2), x + 1),
    "detach_": lambda x, y: (x.detach_(), x + 1),
    "requires_grad_": lambda x, y: (x.requires_grad_(), x * 2)[1],
    "set_": lambda x, y: (x.set_(y), x + 1)[1],
}
DATA = {
    "data": lambda x, y: (setattr(x, "data", y), x.data.add_(1), x * 2)[2],
    "swap": lambda x, y: (lambda a, b: (setattr(x, "data", b), setattr(y, "data", a), x + 1))(
        x.data, y.data
    )[2],
}


@pytest.mark.parametrize("name", METADATA)
def test_metadata_of_an_argument(name):
    same(METADATA[name], (X, Y), (Y, X), kinds=("tensor_metadata_mutation",))


@pytest.mark.parametrize("name", DATA)
def test_data_of_an_argument(name):
    same(DATA[name], (X, Y), (Y, X))


@pytest.mark.parametrize("program", [
    lambda x, y: (setattr(x, "grad", y), x.grad + 1)[1],
    lambda x, y: (setattr(x, "grad", None), x + 1)[1],
    lambda x, y: (setattr(x, "grad", x * 2), x.grad.add_(1), x.grad)[2],
    lambda x, y: (setattr(x, "grad", y), delattr(x, "grad"), x.grad)[2],
    lambda x, y: (setattr(x, "grad", y), x.grad is y, setattr(y, "grad", x.grad + x),
    x.grad * 2)[1:],
], ids=["set", "none", "computed", "deleted", "same object"])  # fmt: skip
def test_gradient_of_an_argument_is_set(program):
    same(program, (X, Y), (Y, X))


@pytest.mark.parametrize(
    "value",
    [torch.ones(3), torch.ones(4, dtype=torch.float64), torch.ones(4, dtype=torch.int64), 1.0],
)
def test_gradient_that_does_not_fit(value):
    def program(x, value):
        try:
            x.grad = value
        except (RuntimeError, TypeError) as error:
            return str(error)
        return x + 1

    same(program, (torch.ones(4), value), kinds=("tensor_metadata_mutation",))


def turned(x):
    y = x.clone()
    y.t_()
    y.unsqueeze_(0)
    z = y + 1
    y.squeeze_(0)
    y.transpose_(0, 1)
    return z, y.shape, y, y.stride()


def leaf(x):
    y = (x * 2).detach().requires_grad_()
    return (y * 2).sum(), y


def cut(x):
    y = x * 2
    y.detach_()
    return y, y.requires_grad


def turned_view(x):
    y = x[1:]
    y.t_()
    y.mul_(2)
    return y, x


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("f", [turned, leaf, cut, turned_view], ids=lambda f: f.__name__)
def test_metadata_of_an_intermediate(f, backend):
    same(f, (X,), (Y,), (X,), graphs=1, backend=backend)


def test_gradient_through_a_leaf_made_inside():
    def f(x):
        y = (x * 2).requires_grad_()
        return (y * y).sum(), y

    compiled = tracer_core.compile(f, backend="eager")
    for x in (X, Y):
        loss, y = compiled(x)
        loss.backward()
        assert torch.equal(y.grad, x * 4) and y.is_leaf


@pytest.mark.parametrize("op", ["resize_", "data", "set_"])
def test_storage_of_an_intermediate(op):
    def f(x):
        y = x.clone()
        if op == "resize_":
            y.resize_(2, 2)
        elif op == "data":
            y.data = x + 5
        else:
            y.set_(x * 3)
        return y + 1, y

    same(f, (X,), (Y,), kinds=("tensor_metadata_mutation",))


# -- aliases --


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_that_are_the_argument(backend):
    same(
        lambda x: (x, x.contiguous(), x.float(), x.to(x.dtype), x.detach(), x.expand(3, 4),
        x.reshape(3, 4), x[:]),
        (X,), (Y,), graphs=1, backend=backend,
    )  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_that_share_memory(backend):
    same(
        lambda x: (lambda y: (y, y[0], y.view(-1), y, y.t()))(x + 1),
        (X,),
        (Y,),
        graphs=1,
        backend=backend,
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(lambda t: (t, t), id="same"),
        pytest.param(lambda t: (t[:2], t[1:]), id="overlap"),
        pytest.param(lambda t: (t[1:], t[:2]), id="overlap-back"),
        pytest.param(lambda t: (t[:2], t[:2]), id="equal-views"),
        pytest.param(lambda t: (t[:1], t[1:2]), id="apart"),
        pytest.param(lambda t: (t.t(), t.t()), id="turned"),
        pytest.param(lambda t: (t[0], t.view(-1)[:4]), id="row-and-flat"),
    ],
)
def test_arguments_that_share_memory(cut, backend):
    def f(a, b):
        a.add_(1)
        c = a * b
        b.mul_(2)
        return c + a, b.sum()

    compiled = tracer_core.compile(f, backend=backend)
    for start in (X, Y, X):
        ours, eagers = start.clone(), start.clone()
        got, want = compiled(*cut(ours)), f(*cut(eagers))
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w)
        torch.testing.assert_close(ours, eagers)
        # Then with arguments that share nothing.
        a, b = (t.clone() for t in cut(start))
        c, d = (t.clone() for t in cut(start))
        got, want = compiled(a, b), f(c, d)
        torch.testing.assert_close(got[0], want[0])
        torch.testing.assert_close((a, b), (c, d))


def test_tensors_of_a_list():
    def f(x, ts):
        for t in ts:
            t.mul_(2)
        ts[0], ts[1] = ts[1], ts[0]
        ts.append(ts[0])
        return sum(ts), ts

    same(f, (X, [X, Y]), (Y, [Y, X]), graphs=1)


def test_written_under_no_grad():
    def f(w, x):
        with torch.no_grad():
            w.sub_(x * 0.1)
        return (w * x).sum()

    same(f, (X.clone().requires_grad_(), Y), (Y.clone().requires_grad_(), X), graphs=1)


def test_leaf_written_with_grad_raises():
    def f(w):
        w.add_(1)
        return w

    same(f, (X.clone().requires_grad_(),), (Y.clone().requires_grad_(),), breaks=None)


# -- attributes --


def test_attributes_of_an_argument():
    def f(x):
        x.tag, x.links = "seen", [x]
        x.count = getattr(x, "count", 0) + 1
        if x.count > 1:
            del x.tag
        return x * x.count

    compiled = tracer_core.compile(f, backend="eager")
    ours, eagers = X.clone(), X.clone()
    for _ in range(3):
        assert torch.equal(compiled(ours), f(eagers))
        assert (
            list(vars(ours)) == list(vars(eagers))
            and ours.links[0] is ours
            and ours.count == eagers.count
        )


def test_attribute_that_is_a_tensor():
    def f(x):
        x.reference = x * 2
        x.reference.reference = x
        return x.reference.reference + x.reference

    compiled = tracer_core.compile(f, backend="eager")
    for start in (X, Y):
        x = start.clone()
        assert (
            torch.equal(compiled(x), start * 3)
            and x.reference.reference is x
            and torch.equal(x.reference, start * 2)
        )


def test_attribute_read_before_and_after_it_is_set():
    def f(x):
        before = getattr(x, "k", 1)
        x.k = before + 1
        return x * before + x.k

    compiled = tracer_core.compile(f, backend="eager")
    ours, eagers = X.clone(), X.clone()
    for _ in range(3):
        assert torch.equal(compiled(ours), f(eagers)) and ours.k == eagers.k


def test_missing_attribute_of_an_intermediate():
    def f(x):
        y = x + 1
        try:
            return y.nothing
        except AttributeError as error:
            y.nothing = 3
            return str(error), y.nothing, hasattr(y, "fake_device")

    same(f, (X,), (Y,), graphs=1)


@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
def test_one_memory_seen_with_a_fixed_size_and_with_a_changing_one(backend):
    def f(a, b):
        b.mul_(2)
        return a.sum(), a.view(-1), b + 1

    def arguments(n):
        memory = torch.arange(40.0)
        return memory[: 2 * n].view(2, n), memory[:8].view(2, 4)

    compiled = tracer_core.compile(f, backend=backend)
    for n in (6, 5, 7, 5):
        ours, eager = arguments(n), arguments(n)
        actual, expected = compiled(*ours), f(*eager)
        for item, other in zip((*actual, *ours), (*expected, *eager), strict=True):
            assert torch.equal(item, other)
        assert actual[1].untyped_storage().data_ptr() == ours[0].untyped_storage().data_ptr()


def test_items_whose_base_was_written_to_behind_autograd():
    def f(x):
        seen = []
        for item in x:
            item.detach().add_(1)
            tracer_core.graph_break()
            seen.append(item.detach().sum())
        return seen, x

    for _ in range(2):
        leaf, other = (torch.ones(3, 2, requires_grad=True) for _ in range(2))
        wanted, got = f(leaf), tracer_core.compile(f, backend="eager")(other)
        assert [float(item) for item in got[0]] == [float(item) for item in wanted[0]]
        assert got[1] is other
        assert torch.equal(other, leaf)


def whole_and_part(element, length):
    """A tensor of one element, and a vector that it may be an element of."""
    vector = torch.arange(6.0)
    part = torch.arange(100.0, 100.0 + length)[element] if length else vector[element]
    return part, vector


VIEWS_OF_INPUTS = [
    pytest.param(lambda a, v: (a + 0.25, v[-1]), id="element"),
    pytest.param(lambda a, v: (a * 2, v.detach()[1:].unsqueeze(0), a.view(1), v), id="both"),
    pytest.param(lambda a, v: (a * 2, *v.unbind()[2:4], *v.split(2)), id="parts"),
    pytest.param(lambda a, v: (a * 2, torch.reshape(v, (2, 3)), v.view_as(v)[::2]), id="reshaped"),
    pytest.param(lambda a, v: (a * 2, *torch.broadcast_tensors(a, v)), id="broadcast"),
    pytest.param(lambda a, v: (a * 2, *torch.atleast_1d(a, v)), id="atleast"),
]


@pytest.mark.sweep(keep=16)
@pytest.mark.parametrize("backend", ["eager", "aten_eager", "inductor"])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("f", VIEWS_OF_INPUTS)
def test_views_of_inputs_that_share_memory_in_the_first_call_only(f, requires_grad, backend):
    """Each result is a view of the input that the program made it of, wherever the other one lies."""
    compiled = tracer_core.compile(f, backend=backend)
    for place in [(0, 0), (1, 0), (3, 10), (4, 0), (0, 1)]:
        calls = []
        for call in (f, compiled):
            inputs = [item.requires_grad_(requires_grad) for item in whole_and_part(*place)]
            if requires_grad and not place[1]:
                inputs[0] = inputs[1][place[0]]
            calls.append((inputs, call(*inputs)))
        (inputs, want), (ours, got) = calls
        for w, g in zip(want, got, strict=True):
            assert torch.equal(w, g)
            assert (w.stride(), w.storage_offset()) == (g.stride(), g.storage_offset())
            shared = [memory(w) == memory(item) for item in inputs]
            assert [memory(g) == memory(item) for item in ours] == shared
        if requires_grad:
            leaves = [[item for item in side if item.is_leaf] for side in (inputs, ours)]
            for side, results in zip(leaves, (want, got), strict=True):
                grads = torch.autograd.grad(
                    sum(result.sum() for result in results), side, allow_unused=True
                )
                side[:] = [torch.zeros(()) if grad is None else grad for grad in grads]
            for w, g in zip(*leaves, strict=True):
                assert torch.equal(w, g)


def memory(tensor):
    return tensor.untyped_storage().data_ptr()
