"""Sizes and integers that depend on data: one graph for whatever they turn out to be, and
eager's answer always.

Each program runs over tensors whose masks hold many, two, one and no elements, in turns, so that
the size is another one at each call; the graphs stated are those of the first four calls, whose
sizes are two or more.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F

import tracer_core
from tests.support.eager_reference import same
from tests.support.gradients import same_gradients
from tracer_core.dispatch import compile_graph
from tracer_core.testing import CaptureCounter, compare
from tracer_core.testing.compare import Tolerance

CLOSE = Tolerance(rtol=1e-4, atol=1e-5)
W = torch.linspace(-1, 1, 24).reshape(8, 3)


def stored(x):
    y = x.clone()
    y[y > 0] = y[y > 0] * 3
    return y * 2


def experts(x):
    out, chosen = torch.zeros_like(x), x.abs().argmax(-1) % 2
    for number in range(2):
        rows = torch.where(chosen == number)[0]
        out.index_add_(0, rows, (x[rows] * (number + 2)).tanh())
    return out


def boxes(x):
    keep = (x[:, 0] > 0).nonzero().squeeze(1)
    scores = x.index_select(0, keep).sum(1)
    order = scores.argsort(descending=True)
    return keep[order], scores[order]


def averaged(x):
    picked = x[x > 0]
    return picked.sum() / picked.shape[0], picked - picked.mean()


def checked(x):
    n = int((x[:, 0] > 0).sum())
    torch._check(n >= 2)
    return x + n if n > 1 else x - n


def broken_between(x):
    picked = x[x > 0]
    tracer_core.graph_break()
    return picked * picked.shape[0]


def written_after(x):
    picked = x[x > 0] * 2
    x.add_(1)
    return picked


def cut_and_padded(x):
    n = int((x[:, 0] > 0).sum())
    return F.pad(x[:n], (0, 0, 0, x.shape[0] - n)), x[n:], x[n - 1]


#: name -> (graphs, breaks, program).
PROGRAMS = {
    "mask": (1, 0, lambda x: x[x > 0]),
    "mask, then elementwise and a sum": (1, 0, lambda x: (x[x > 0] * 2 + 1).sum()),
    "rows by a mask": (1, 0, lambda x: x[x[:, 0] > 0].relu().mean(0)),
    "mask with steps and slices": (1, 0, lambda x: x[x[:, 0] > 0, 1:3] * 2),
    "nonzero": (1, 0, lambda x: x.nonzero() + 1),
    "nonzero as a tuple": (1, 0, lambda x: x[(x > 0).nonzero(as_tuple=True)] * 2),
    "nonzero of rows": (1, 0, lambda x: x[(x[:, 0] > 0).nonzero().squeeze(1)]),
    "argwhere": (1, 0, lambda x: torch.argwhere(x > 0) * 2),
    "where with one argument": (1, 0, lambda x: torch.where(x > 0)),
    "masked_select": (1, 0, lambda x: torch.masked_select(x, x > 0).exp()),
    "unique": (1, 0, lambda x: torch.unique(x.round()) * 2),
    "unique with inverse and counts": (1, 0, lambda x: x.round().unique(return_inverse=True,
    return_counts=True)),
    "repeat_interleave": (1, 0, lambda x: x.repeat_interleave(x[:, 0].abs().long() + 1, 0) * 2),
    "bincount": (1, 0, lambda x: torch.bincount(x.abs().long().flatten()) + 1),
    "cat of two masks": (1, 0, lambda x: torch.cat([x[x > 0], x[x <= 0]])),
    "broadcast against a number and a row": (1, 0, lambda x: x[x[:, 0] > 0] + x[0] * 2),
    "product with a matrix": (1, 0, lambda x: x[x[:, 0] > 0] @ W),
    "linear, softmax, argmax": (1, 0, lambda x: F.linear(x[x[:, 0] > 0],
    W.t()).softmax(-1).argmax(-1)),
    "layer_norm": (1, 0, lambda x: F.layer_norm(x[x[:, 0] > 0], (8,))),
    "views": (1, 0, lambda x: x[x > 0].reshape(-1, 1).expand(-1, 4)),
    "flat view": (1, 0, lambda x: x[x[:, 0] > 0].view(-1)),
    "transposed and made contiguous": (1, 0, lambda x: x[x[:, 0] > 0].t().contiguous()),
    "slices of it": (1, 0, lambda x: (x[x > 0][1:], x[x > 0][:-1])),
    "stacked": (1, 0, lambda x: torch.stack([(p := x[x > 0]), p * 2])),
    "sorted": (1, 0, lambda x: x[x > 0].sort()[0]),
    "embedding of found places": (1, 0, lambda x: F.embedding((x > 0).nonzero()[:, 0] % 4, W)),
    "two losses by one mask": (1, 0, lambda x: F.mse_loss(x[m := x > 0], x.abs()[m] * 2)),
    "sizes that leave": (1, 0, lambda x: (x[x > 0].shape, x[x > 0].numel() * 2 + 1,
    x[x > 0].size(0) > 3)),
    "a size as a factor": (1, 0, averaged),
    "store through a mask": (1, 0, stored),
    "experts": (1, 0, experts),
    "boxes": (1, 0, boxes),
    "item as a size": (1, 0, lambda x: torch.zeros(int(x.abs().sum().long()), 2) + 1),
    "item as a factor": (1, 0, lambda x: (x * (n := (x > 0).sum().item()), x + n, torch.full((2,),
    n))),
    "item as a place": (1, 0, cut_and_padded),
    "arange by a count": (1, 0, lambda x: torch.arange(int((x > 0).sum())) * 2),
    "zeros by a tensor": (1, 0, lambda x: torch.zeros((x > 0).sum(), 2) + 1),
    "torch._check gives facts": (1, 0, checked),
    "a write after it": (1, 0, written_after),
    "a write before it": (None, 1, lambda x: (x.add_(1), x[x > 0] * 2)[1]),
    "a branch that the least size decides": (1, 0,
    lambda x: x + 1 if x.nonzero().numel() > 3 else x - 1),
    "a branch on the size": (2, 1,
    lambda x: (x[x > 0] * 2).sum() + 1 if x[x > 0].shape[0] > 12 else x.sum() * 2),
    "a loop over the size": (None, 1, lambda x: (sum(range(x[x > 0].shape[0])), x + 1)),
    "text of the size": (None, 1, lambda x: (str(x[x > 0].shape[0]), x + 1)),
    "a break between": (None, 1, broken_between),
    "inside checkpoint": (
        None, 1, lambda x: torch.utils.checkpoint.checkpoint(lambda a: a[a > 0].sum(), x,
        use_reentrant=False)
    ),
    "inside torch.cond": (
        None, 1, lambda x: torch.cond(x.sum() > 0, lambda a: a[a > 0].sum(), lambda a: a.sum(),
        (x,))
    ),
    "inside a transform": (None, 1, lambda x: torch.func.grad(lambda a: (a[a > 0] ** 2).sum())(x)),
}  # fmt: skip


def many(seed):
    torch.manual_seed(seed)
    return torch.randn(4, 8) + torch.tensor([[2.0], [-1], [1.5], [-0.5]])


def with_positives(count):
    x = -many(0).abs() - 0.1
    x[:count, 0] = 1.5
    return x


LARGE = [(many(seed),) for seed in range(3)] + [(many(1) * 2,)]
SMALL = [(with_positives(count),) for count in (0, 1, 2, 1, 0, 0, 1)] + [
    (many(5),),
    (with_positives(0),),
    (many(6),),
]


@pytest.mark.sweep(keep=20)
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_eagers_in_the_graphs_stated(name):
    graphs, breaks, program = PROGRAMS[name]
    seen = same(program, *LARGE, graphs=graphs, breaks=None)
    assert (len(seen.counter.breaks) > 0) == (breaks > 0), seen.counter.breaks


@pytest.mark.sweep(keep=16)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore")
def test_no_element_and_one_element(name):
    """The graphs were captured for two or more: the program runs in their place."""
    program = PROGRAMS[name][2]
    same(program, LARGE[0], *SMALL, breaks=None)


#: Programs that lowering and kernels meet new questions in: sizes as expressions, writes, several
#: results, views.
LOWERED = ["mask, then elementwise and a sum", "unique with inverse and counts",
"cat of two masks", "linear, softmax, argmax",
           "transposed and made contiguous", "sizes that leave", "store through a mask", "experts",
           "item as a place",
           "a write after it"]  # fmt: skip


@pytest.mark.sweep(keep=8)
@pytest.mark.parametrize("name", LOWERED)
@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
@pytest.mark.filterwarnings("ignore")
def test_backends_that_lower_get_the_graphs_between_such_operators(name, backend):
    program = PROGRAMS[name][2]
    eager, fast = program, tracer_core.compile(program, backend=backend)
    with CaptureCounter() as counter:
        for (x,) in LARGE[:3]:
            mine, theirs = x.clone(), x.clone()
            compare(eager(theirs), fast(mine), path="", tolerance=CLOSE)
            compare(theirs, mine, path="argument", tolerance=CLOSE)
        assert (len(counter.graphs), counter.breaks) == (1, [])
    for (x,) in SMALL[:3]:
        compare(eager(x.clone()), fast(x.clone()), path="", tolerance=CLOSE)


def test_what_follows_such_an_operator_is_the_backends():
    """One kernel ahead of the mask, one behind it, for whatever size it gives."""
    from tracer_core.registry.discovery import get
    from tracer_core.registry.eager import ATEN_EAGER, compile_eager

    assert get("inductor").data_sizes == get("aten_eager").data_sizes == "symbols"
    seen = []

    def compiled(graph, spec):
        seen.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return compile_eager(graph, spec)

    backend = dataclasses.replace(ATEN_EAGER, name="noting", compile=compiled)
    fast = tracer_core.compile(
        lambda x: ((y := x * 2 + 1)[y > 3] * 5).tanh().sum(), backend=backend
    )
    for (x,) in LARGE:
        y = x * 2 + 1
        compare((y[y > 3] * 5).tanh().sum(), fast(x), path="")
    assert [len(names) for names in seen] == [3, 3]
    assert "aten.tanh.default" in seen[1]


@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
@pytest.mark.parametrize("name", ["rows", "experts", "loss"])
@pytest.mark.filterwarnings("ignore")
def test_gradients_through_backends_that_lower(name, backend):
    fast = tracer_core.compile(GRADIENTS[name], backend=backend)
    for (x,) in LARGE[:3] + SMALL[:2]:
        item, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        want, got = GRADIENTS[name](item), fast(other)
        compare(want.detach(), got.detach(), path="", tolerance=CLOSE)
        compare(*(torch.autograd.grad(y.sum(), z) for y, z in ((want, item), (got, other))),
        path="gradient",
                tolerance=CLOSE)  # fmt: skip


@pytest.mark.parametrize("name", ["mask", "rows by a mask", "experts", "item as a place", "views"])
def test_sizes_of_inputs_change_as_well(name):
    calls = [(torch.cat([many(n)] * n)[: 3 + n],) for n in range(1, 5)]
    same(PROGRAMS[name][2], *calls, graphs=2)
    same(PROGRAMS[name][2], *calls, graphs=1, dynamic=True)
    same(PROGRAMS[name][2], *calls[:2], breaks=None, dynamic=False)


def test_a_place_whose_sizes_keep_being_small_breaks_instead():
    f = tracer_core.compile(lambda x: x[x > 0] * 2 + 1, backend="eager")
    with CaptureCounter() as counter:
        for (x,) in [(many(0),)] + [(with_positives(1),)] * 6:
            compare(x[x > 0] * 2 + 1, f(x), path="")
    assert counter.breaks and {kind for kind, _, _ in counter.breaks} == {"data_dependent_shape"}


def test_a_check_that_fails_raises_the_programs_error_after_its_own_effects():
    seen = []

    def f(x):
        seen.append(len(seen))
        n = int((x > 0).sum())
        torch._check(n > 2, lambda: f"{n} are too few")
        return x + 1

    fast = tracer_core.compile(f, backend="eager")
    fast(many(0))
    with pytest.raises(RuntimeError, match="1 are too few"):
        fast(with_positives(1))
    assert seen == [0, 1]


def test_random_numbers_are_drawn_once():
    same(lambda x: (torch.rand(3), x[x > 0] * torch.rand(())), *LARGE[:1], *SMALL, breaks=None)


GRADIENTS = {
    "mask": lambda x: x[x > 0] ** 2,
    "rows": lambda x: x[x[:, 0] > 0].tanh().sum(1),
    "nonzero": lambda x: x.index_select(0, (x[:, 0] > 0).nonzero().squeeze(1)) * 2,
    "masked_select": lambda x: x.masked_select(x > 0).exp(),
    "store": lambda x: stored(x),
    "experts": lambda x: experts(x),
    "loss": lambda x: F.mse_loss(x[m := x > 0], (x * 0 + 1)[m]),
}


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.filterwarnings("ignore")
def test_gradients(name):
    def calls(pairs):
        return [(x.clone().requires_grad_(),) for (x,) in pairs]

    same_gradients(lambda: GRADIENTS[name], *calls(LARGE), graphs=1)
    same_gradients(lambda: GRADIENTS[name], *calls(LARGE[:2]), *calls(SMALL[:3]), breaks=None)


def test_a_whole_training_step():
    def make():
        torch.manual_seed(0)
        layer = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)

        def step(x):
            optimizer.zero_grad()
            mask = x > 0
            loss = F.mse_loss(layer(x)[mask], x[mask])
            loss.backward()
            optimizer.step()
            return loss.detach(), layer.weight.detach().clone()

        return step

    eager, fast = make(), tracer_core.compile(make(), backend="eager")
    for (x,) in LARGE + SMALL[:4] + LARGE:
        compare(eager(x), fast(x), path="")


def test_backends_that_do_not_say_that_they_take_them_get_a_break():
    def backend(graph, example_inputs):
        return graph.forward

    f = tracer_core.compile(lambda x: x[x > 0] * 2, backend=backend)
    with CaptureCounter() as counter:
        for (x,) in LARGE:
            compare(x[x > 0] * 2, f(x), path="")
    assert (
        [kind for kind, _, _ in counter.breaks]
        == ["data_dependent_shape"] * len(counter.breaks)
        != []
    )


def scaled_without_gradients(x, weight):
    y = (x * weight)[x > 0]
    with torch.no_grad():
        scale = y.abs().mean() + y[y > 1].sum() + 1
        scale = scale * 2
    return (y / scale).sum() + scale


def best_of_some(x, weight):
    """Results of an operator that has two are read on both sides of the mask."""
    values, places = (x * weight).topk(3, dim=1)
    chosen = values[places > 0]
    return chosen.tanh().sum() + (values * places).sum()


def rows_of_experts(x, weight):
    """Where it has one argument, torch.where has several results, of a size that depends on data."""
    y, chosen = x * weight, F.one_hot((x.abs().argmax(-1) % 2), 2)
    rows, experts = torch.where(chosen > 0)
    return (y[rows] * (experts.unsqueeze(1) + 2)).tanh().sum()


def windows(x, weight):
    """Products and quotients of numbers that depend on data, as in vision towers."""
    frames, height, width = ((x[:3, 0] > 9) * 2 + torch.tensor([2, 4, 6])).tolist()
    rows = torch.arange(height).reshape(height // 2, 2, 1, 1)
    columns = torch.arange(width).reshape(1, 1, width // 2, 2)
    places = (rows * 3 + columns).permute(0, 2, 1, 3).reshape(-1).repeat(frames)
    return (places[:, None] * weight[:3]).unsqueeze(1).tanh().sum()


@torch.no_grad()
def _counted(x):
    with torch.enable_grad():
        return x[x > 0] * 2


def counted(x, weight):
    """As torchmetrics does."""
    return (_counted(x) + 1).sum() * weight.sum(), torch.is_grad_enabled()


@pytest.mark.sweep(keep=8)
@pytest.mark.parametrize(
    "program", [scaled_without_gradients, best_of_some, rows_of_experts, windows, counted]
)
@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
@pytest.mark.parametrize("learns", [True, False])
def test_the_graph_is_cut_and_lowered(program, backend, learns, monkeypatch):
    """Also where gradients are switched off and on, and where several results are read later."""
    actual = []
    monkeypatch.setattr(compile_graph, "report", actual.append)
    weights = [torch.linspace(0.5, 2, 8).requires_grad_(learns) for _ in range(2)]
    fast = tracer_core.compile(program, backend=backend)
    for seed in range(3):
        x = many(seed)
        results = [value(x, weight) for value, weight in zip((program, fast), weights, strict=True)]
        compare(*results, path="", tolerance=CLOSE)
        if learns:
            losses = [result[0] if isinstance(result, tuple) else result for result in results]
            for loss in losses:
                loss.backward()
            compare(*(weight.grad for weight in weights), path="gradient", tolerance=CLOSE)
        assert torch.is_grad_enabled()
    assert actual == []
