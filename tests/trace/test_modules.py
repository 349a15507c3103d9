"""nn.Module: containers, hooks, train and eval, parameters replaced, recurrent and attention
layers; recompiles.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tracer_core
from tests.support.eager_reference import compare_with_eager, same
from tests.support.recompile_limits import reported_limits
from tests.support.threads import together

X, Y = torch.randn(3, 4), torch.randn(3, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.norm, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.blocks = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.table = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Sequential(nn.Linear(4, 4), nn.Tanh())})
        self.scales = nn.ParameterList([torch.ones(4), torch.ones(4) * 2])
        self.register_buffer("seen", torch.zeros(()))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.seen += 1
        x = self.drop(self.norm(self.fc(x)))
        for block, scale in zip(self.blocks, self.scales, strict=True):
            x = block(x) * scale
        return self.table["b"](self.table["a"](x)) * len(self.table.keys())


def net():
    result = Net()
    return result, result


STEPS = {
    "eval": lambda m: m.eval(),
    "train": lambda m: m.train(),
    "parameter replaced": lambda m: setattr(m.fc, "weight", nn.Parameter(torch.full((4, 4), 0.5))),
    "parameter data": lambda m: setattr(m.fc.weight, "data", torch.full((4, 4), 0.25)),
    "parameter in place": lambda m: m.fc.weight.data.mul_(2),
    "submodule replaced": lambda m: setattr(m, "drop", nn.Identity()),
    "submodule appended": lambda m: (
        m.blocks.append(nn.Identity()),
        m.scales.append(torch.ones(4)),
    ),
    "bias removed": lambda m: setattr(m.fc, "bias", None),
    "double": lambda m: m.float(),
    "requires grad": lambda m: m.fc.requires_grad_(False),
    "hook": lambda m: m.fc.register_forward_hook(lambda mod, args, out: out * 2),
    "pre hook": lambda m: m.blocks[0].register_forward_pre_hook(lambda mod, args: (args[0] + 1,)),
    "momentum": lambda m: setattr(m.norm, "momentum", 0.9),
    "dropout rate": lambda m: setattr(m.drop, "p", 0.9),
    "forward replaced": lambda m: setattr(m.fc, "forward", lambda x: x * 3),
    "buffer replaced": lambda m: setattr(m, "seen", torch.ones(())),
    "state dict": lambda m: m.load_state_dict(
        {k: v * 0.5 for k, v in m.state_dict().items() if "track" not in k}, strict=False
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_change_of_a_module(name):
    compare_with_eager(net, (X,), (Y,), STEPS[name], (X,), (Y,), breaks=0)


def test_hook_removed():
    compare_with_eager(net, (X,), lambda m: setattr(m, "h", m.fc.register_forward_hook(lambda *a: a[2] + 1)),
    (X,),
         lambda m: m.h.remove(), (X,), breaks=0)  # fmt: skip


def test_dtype_change():
    m = nn.Linear(4, 4)
    compiled = tracer_core.compile(m, backend="eager")
    assert compiled(X).dtype is torch.float32
    m.double()
    assert torch.equal(compiled(X.double()), m(X.double()))


def test_class_forward_monkeypatched():
    class M(nn.Module):
        def forward(self, x):
            return x + 1

    m = M()
    fn = lambda x: m(x)
    compiled = tracer_core.compile(fn, backend="eager")
    assert torch.equal(compiled(X), X + 1)
    M.forward = lambda self, x: x - 1
    assert torch.equal(compiled(X), X - 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.LSTM(4, 5, 2, batch_first=True),
        lambda: nn.GRU(4, 5),
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2),
        lambda: nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8)),
        lambda: nn.Embedding(10, 4).requires_grad_(False),
    ],
    ids=["lstm", "gru", "encoder", "sequential", "embedding"],
)
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.filterwarnings("ignore")
def test_layers(make, train):
    def build():
        torch.manual_seed(1)
        result = make().train(train)
        return result, result

    x = torch.randint(10, (2, 3)) if isinstance(make(), nn.Embedding) else torch.randn(2, 3, 4)
    compare_with_eager(build, (x,), (x,), breaks=0)


def test_multihead_attention():
    torch.manual_seed(1)
    m = nn.MultiheadAttention(4, 2, batch_first=True)
    x = torch.randn(2, 3, 4)
    same(lambda q: m(q, q, q), (x,), (x * 2,))


@pytest.mark.parametrize("train", [True, False])
def test_encoder_layer_without_grad(train):
    def build():
        torch.manual_seed(1)
        result = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).train(train)
        return result, result

    with torch.no_grad():
        compare_with_eager(build, (torch.randn(2, 3, 4),), (torch.randn(2, 3, 4),), breaks=0)


def test_attention_without_grad():
    m = nn.MultiheadAttention(4, 2, batch_first=True).eval()
    with torch.no_grad():
        same(
            lambda q: m(q, q, q, need_weights=False),
            (torch.randn(2, 3, 4),),
            (torch.randn(2, 3, 4),),
            graphs=1,
        )


def test_gradients():
    def grads(fn, m, x):
        m.zero_grad()
        fn(x).sum().backward()
        return [p.grad.clone() for p in m.parameters() if p.grad is not None]

    net, target = Net(), Net()
    compiled = tracer_core.compile(target, backend="eager")
    for x in (X, Y):
        torch.manual_seed(0)
        want = grads(net, net, x)
        torch.manual_seed(0)
        for a, b in zip(want, grads(compiled, target, x), strict=True):
            assert torch.allclose(a, b)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((X, 1), (X, 2)), ((X, "a"), (X, "b")), ((X, [1]), (X, [1, 2])), ((X, 1), (X, 1.0)), ((X,
        None), (X, 1)),
        ((X, 0), (X.double(), 0)), ((X, 0), (X[:2], 0)), ((X, 0), (X.t(), 0)), ((X, 0),
        (X.clone().requires_grad_(), 0)),
        ((X, 0), (nn.Parameter(X), 0)), ((X, (1, 2)), (X, (2, 1))), ((X, {"a": 1}), (X, {"b": 1})),
        ((X, True), (X, 1)),
        ((X, 0), (X[0], 0)), ((X, Y), (X, 3)),
    ],
)  # fmt: skip
def test_recompiles_when_arguments_change(first, second):
    def f(x, v):
        extra = len(v) if isinstance(v, (str, list, tuple, dict)) else 1
        return x * extra, v, x.stride(), x.dtype

    seen = same(f, first, second, first, second)
    assert len(seen.counter.recompiles) == 1 and seen.reasons[0]


def test_grad_mode_recompiles():
    w = torch.ones(4, requires_grad=True)
    compiled = tracer_core.compile(lambda x: x * w, backend="eager")
    for on in (True, False, True):
        with torch.set_grad_enabled(on):
            assert compiled(X).requires_grad is on


def test_recompile_limit_warns_once_and_is_right():
    compiled = tracer_core.compile(lambda x, s: (x + 1, s + "!"), backend="eager")
    with reported_limits(count=1):
        for i in range(20):
            assert compiled(X, str(i))[1] == f"{i}!"


def test_threads():
    m = Net().eval()
    compiled = tracer_core.compile(lambda x: m.fc(x).relu() * 2, backend="eager")
    xs = [torch.randn(n, 4) for n in range(2, 10)]
    wrong = []

    def work(number):
        x = xs[number]
        for _ in range(5):
            if not torch.equal(compiled(x), m.fc(x).relu() * 2):
                wrong.append(x)

    together(work, threads=len(xs))
    assert not wrong


def test_nested_compiled_function():
    inner = tracer_core.compile(lambda x: x * 2, backend="eager")
    # The eager side calls the inner one by itself: one graph a side.
    same(lambda x: inner(x) + 1, (X,), (Y,), graphs=2)


def test_compiled_method_classmethod_staticmethod():
    class A:
        k = 3

        @tracer_core.compile(backend="eager")
        def go(self, x):
            return x * self.k

    a = A()
    assert torch.equal(a.go(X), X * 3)
    a.k = 4
    assert torch.equal(a.go(X), X * 4)
    assert torch.equal(tracer_core.compile(a.go, backend="eager")(X), X * 4)
