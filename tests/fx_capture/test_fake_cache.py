"""Fakes made without FakeTensorMode are the fakes that it makes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tracer_core
from tests.support import torch_server
from tests.support.eager_reference import same
from tests.support.releases import RELEASE
from tracer_core import torch_private
from tracer_core.fx_capture import fake_cache

pytestmark = pytest.mark.skipif(
    not torch_private.is_tested(), reason="this torch's own FakeTensorMode is used"
)


def _metadata(value: Any, inputs: list[Any]) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if not isinstance(value, torch.Tensor):
        return [_metadata(part, inputs) for part in value]
    storages = [torch_private.storage_id(value) for value in inputs]
    storage = torch_private.storage_id(value)
    return (
        tuple(value.shape), value.stride(), value.storage_offset(), value.dtype, value.device,
        value.constant,
        storages.index(storage) if storage in storages else None, value.requires_grad,
        value.is_inference(),
    )  # fmt: skip


class Checked:
    """Asks FakeTensorMode as well, each time; counts by how the answer was found."""

    def __init__(self) -> None:
        self.answered: dict[str, int] = {"kept": 0, "first": 0, "view": 0}
        self._run = fake_cache.run

    def __call__(self, mode: Any, func: Any, args: Any, kwargs: Any, slow: Any) -> Any:
        asked = []

        def ask() -> Any:
            asked.append(slow())
            return asked[-1]

        result = self._run(mode, func, args, kwargs, ask)
        if result is fake_cache.SLOW or asked:
            self.answered["first"] += bool(asked)
            return result
        inputs = [
            leaf
            for leaf in torch.utils._pytree.tree_leaves((args, kwargs))
            if isinstance(leaf, torch.Tensor)
        ]
        want = _metadata(slow(), inputs)
        assert _metadata(result, inputs) == want, (
            f"{func} {[(t.shape, t.stride()) for t in inputs]} {args}"
        )
        self.answered["view" if func in fake_cache._VIEWS else "kept"] += 1
        return result


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Checked]:
    fake_cache._cached.clear()
    actual = Checked()
    monkeypatch.setattr(fake_cache, "run", actual)
    yield actual
    fake_cache._cached.clear()


@pytest.fixture
def checked_ways(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Names of the operators that were answered without torch._dynamo's settings; FakeTensorMode is
    asked as well.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    texts: set[str] = set()
    answer, dispatch = torch_private.capturing._without_settings, FakeTensorMode.__torch_dispatch__
    dispatch = getattr(dispatch, "__wrapped__", dispatch)

    def check(mode: Any, func: Any, args: Any, kwargs: Any, slow: Any) -> Any:
        result = answer(mode, func, args, kwargs, slow)
        if result is slow:
            return result
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        want = _metadata(dispatch(mode, func, (), args, kwargs), inputs)
        assert _metadata(result, inputs) == want, (
            f"{func} {[(t.shape, t.stride()) for t in inputs]} {args}"
        )
        texts.add(str(func))
        return result

    fake_cache._cached.clear()
    monkeypatch.setattr(torch_private.capturing, "_without_settings", check)
    yield texts
    fake_cache._cached.clear()


IMAGE, TALL = torch.randn(2, 4, 6, 8), torch.randn(2, 8, 4, 6).permute(0, 2, 3, 1)
W, WT, B = torch.randn(8, 4, 3, 3), torch.randn(4, 8, 2, 2), torch.randn(8)
DEPTH, POINT = torch.randn(4, 1, 3, 3), torch.randn(8, 4, 1, 1)
ROW, MEAN, VAR = torch.randn(3, 5), torch.zeros(4), torch.ones(4)

PROGRAMS: dict[str, Any] = {
    "convolution": lambda x: F.conv2d(x, W, B, padding=1) + F.conv2d(x, W, B, padding=1),
    "convolution with stride and dilation": lambda x: F.conv2d(x, W, None, 2, 2, 2),
    "convolution by depth": lambda x: F.conv2d(x, DEPTH, groups=4),
    "convolution of points": lambda x: F.conv2d(F.conv2d(x, POINT, B).mean((2, 3), True)[:, :4],
    POINT),
    "convolution to one channel": lambda x: F.conv2d(x, W[:1]),
    "convolution in one dimension": lambda x: F.conv1d(x[:, :, 0], W[..., 0]),
    "transposed convolution": lambda x: F.conv_transpose2d(x, WT, stride=2),
    "batch norm": lambda x: F.batch_norm(x, MEAN, VAR) + F.batch_norm(x, MEAN, VAR, VAR, VAR),
    "batch norm of a row": lambda x: F.batch_norm(x[:, :, 0, 0], MEAN, VAR),
    "layer norm": lambda x: F.layer_norm(x, (8,)) * F.layer_norm(x, (8,), eps=1e-3),
    "softmax": lambda x: x.softmax(-1) + x.softmax(1) + x.log_softmax(-1),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "products": lambda x: x @ x.transpose(-1, -2) @ x + torch.bmm(x[0], x[0].mT).sum(),
    "numbers and their types": lambda x: (x + 1, x + 1.5, x.long() + 1, x.long() + 1.5, x > 0,
    x.bool() + True),
    "broadcasting": lambda x: x[:, :1] + x[:1] * x[..., :1],
    "views": lambda x: (x.permute(3, 0, 1, 2), x[0, ..., 1], x.unbind(1), x.split(3, 2), x.mT[:,
    None]),
    "view": lambda x: (x.contiguous().view(8, 6, 8), x.view(x.shape)),
    "reshape of a view": lambda x: (x.transpose(1, 2).reshape(2, -1), x.expand(2, 4, 6,
    8).flatten(), x[:, ::2]),
    "in place": lambda x: x.clone().add_(1).relu_().mul_(x).clamp_(0, 1),
    "in place through a view": lambda x: (y := x.clone(), y[:, 0].zero_(), y[0][..., :3].add_(2)),
    "making": lambda x: (x.new_zeros(3), torch.zeros_like(x), torch.arange(4), torch.full((2, 3),
    1), torch.empty(2).zero_()),
    "other dtypes": lambda x: (x.half() * 2, x.double() @ x.double().mT,
    x.to(torch.bfloat16).float()),
    "joining": lambda x: (torch.cat([x, x], 1), torch.stack([x, x]), torch.cat((x.long(),
    x.long()), -1)),
    "pooling and resizing": lambda x: (F.max_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1),
    F.interpolate(x, scale_factor=2)),
    "reductions": lambda x: (x.mean(1), x.sum(), x.amax((2, 3)), x.var(-1), x.argmax(-1), x.max(1),
    x.sort(-1)),
    "channels last": lambda x: F.conv2d(x.to(memory_format=torch.channels_last), W).relu(),
    "complex numbers": lambda x: (torch.view_as_real(torch.polar(x, x)) + 1,
    torch.fft.rfft(x).abs()),
    "looking up": lambda x: (F.embedding(torch.arange(3), B.view(4, 2)), x[torch.arange(2)],
    x.gather(1, x.long() * 0)),
    "dropout": lambda x: F.dropout(x, 0.5, training=True) * 0,
}  # fmt: skip


@pytest.mark.sweep(keep=29)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("layout", ["contiguous", "permuted"])
def test_a_fake_is_the_one_that_torch_makes(name: str, layout: str, checked: Checked) -> None:
    x = IMAGE if layout == "contiguous" else TALL
    for _ in range(2):  # the second trace finds what the first kept
        same(PROGRAMS[name], (x,), graphs=1)
        tracer_core.reset()
    assert checked.answered["view"] + checked.answered["kept"] > 0


@pytest.mark.parametrize("layout", ["contiguous", "permuted"])
def test_an_answer_without_settings_is_the_one_that_torch_makes(
    layout: str, checked_ways: set[str]
) -> None:
    for program in PROGRAMS.values():
        same(program, (IMAGE if layout == "contiguous" else TALL,), graphs=1)
        tracer_core.reset()
    ways = {
        "aten.arange.default",
        "aten.embedding.default",
        "aten.zeros_like.default",
        "aten.clone.default",
    }
    assert ways <= checked_ways, ways - checked_ways
    assert len(checked_ways) > 30, checked_ways


def test_an_answer_in_inference_mode_is_the_one_that_torch_makes(checked_ways: set[str]) -> None:
    with torch.inference_mode():
        for name in ("convolution", "making", "in place", "reductions", "looking up"):
            same(PROGRAMS[name], (IMAGE,), graphs=1)
    assert len(checked_ways) > 5, checked_ways


SIZES = [
    (),
    (4,),
    (1,),
    (3, 4),
    (1, 4),
    (3, 1),
    (2, 3, 4),
    (1, 3, 4),
    (2, 1, 4),
    (2, 3, 1),
    (1, 1, 1),
    (0, 4),
    (2, 1, 1, 4),
]


@pytest.mark.parametrize("turned", [False, True])
def test_a_rule_by_element_is_torchs(turned: bool) -> None:
    """All pairs of shapes, from memory in order and turned."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    dispatch = FakeTensorMode.__torch_dispatch__
    dispatch = getattr(dispatch, "__wrapped__", dispatch)
    mode = torch_private.capture_mode(
        lambda *_: None, lambda *inputs: inputs[-1], None, fake_cache.run, fake_cache.SLOW
    )
    with mode:
        result = [torch.empty(size) for size in SIZES]
        if turned:
            result = [
                torch.empty(size[::-1]).permute(list(reversed(range(len(size))))) for size in SIZES
            ]
        eager = [torch.empty(size) for size in SIZES]
    answered = 0
    for func in (torch.ops.aten.add.Tensor, torch.ops.aten.div.Tensor, torch.ops.aten.lt.Tensor):
        for pair in [*itertools.product(result, eager), *itertools.product(eager, result)]:
            known = fake_cache.RULES[func](*pair)
            if known is not None:
                want = dispatch(mode, func, (), pair, {})
                assert _metadata(fake_cache._made(mode, known), []) == _metadata(want, []), [
                    p.shape for p in pair
                ]
                answered += 1
    assert answered > 100


_aten = torch.ops.aten


def _factors(tensors: list[torch.Tensor], rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs that mm and bmm take, and more."""
    more = [
        torch.empty(4, 5),
        torch.empty(5, 4).t(),
        torch.empty(2, 4, 5),
        torch.empty(2, 5, 4).mT,
        torch.empty(4, 3),
    ]
    matrices = [item for item in [*tensors, *more] if item.dim() == rank]
    return [
        (a, b)
        for a in matrices
        for b in matrices
        if a.shape[-1] == b.shape[-2] and a.shape[:-2] == b.shape[:-2]
    ]


CASES: dict[Any, Any] = {
    _aten.mm.default: lambda result: _factors(result, 2),
    _aten.bmm.default: lambda result: _factors(result, 3),
    _aten.addmm.default: lambda result: [
        (bias, *pair)
        for bias in [*result, torch.empty(5), torch.empty(3, 5), torch.empty(5, 3).t()]
        for pair in _factors(result, 2)
    ],
    _aten.sum.dim_IntList: lambda result: [
        (a, dims, keep) for a in result for dims in ([0], [-1], [0, 1], [1, 0], [0, 0],
        [3]) for keep in (True, False)
    ],
    _aten.mean.dim: lambda result: [(a, dims) for a in result for dims in ([0], [-1], [0, 1], [2, 0])],
    _aten.clone.default: lambda result: [(a,) for a in result],
    _aten.max_pool2d_with_indices.default: lambda built: [
        (a, size, *more)
        for a in [*built, torch.empty(2, 3, 8, 9), torch.empty(1, 2, 5, 6), torch.empty(2, 4, 4, 3)]
        for size in ([2, 2], [3], [3, 2])
        for more in ((), ([1, 2],), ([2], [1, 1]), ([1, 1], [1, 1], [2, 1]), ([2, 2], [2, 2]), ([2,
        2], [0], [1], True))
    ],
    _aten.convolution_backward.default: lambda result: [
        (slope, x, weight, [4], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, wanted)
        for x, weight in (
            (torch.empty(2, 3, 6, 5), torch.empty(4, 3, 3, 3)),
            (torch.empty(1, 1, 6, 5), torch.empty(4, 1, 3, 3)),
            (torch.empty(1, 3, 1, 1), torch.empty(4, 3, 3, 3)),
            (torch.empty(2, 1, 1, 1), torch.empty(4, 1, 3, 3)),
            (torch.empty(2, 6, 5, 3).permute(0, 3, 1, 2), torch.empty(4, 3, 3, 3)),
            (torch.empty(2, 3, 6, 5), torch.empty(4, 3, 3,
            3).contiguous(memory_format=torch.channels_last)),
        )
        for slope in (torch.empty(x.shape[0], 4, *x.shape[2:]), torch.empty(1).expand(x.shape[0],
        4, *x.shape[2:]))
        for wanted in ([True] * 3, [True, True, False], [False, True, False], [True, False, True])
    ],
    _aten.add_.Tensor: lambda result: [(a, b) for a in result for b in [*result, 2, 2.5]],
    _aten.relu_.default: lambda result: [(a,) for a in result],
}  # fmt: skip


@pytest.mark.parametrize("func", CASES, ids=str)
@pytest.mark.parametrize("turned", [False, True])
def test_a_rule_is_torchs(func: Any, turned: bool) -> None:
    """Where torch raises, no rule answers."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    dispatch = FakeTensorMode.__torch_dispatch__
    dispatch = getattr(dispatch, "__wrapped__", dispatch)
    mode = torch_private.capture_mode(
        lambda *_: None, lambda *inputs: inputs[-1], None, fake_cache.run, fake_cache.SLOW
    )
    answered = 0
    with mode:
        result = [torch.empty(size) for size in SIZES]
        if turned:
            result = [
                torch.empty(size[::-1]).permute(list(reversed(range(len(size))))) for size in SIZES
            ]
        cases = CASES[func](result)
    for args in cases:
        known = fake_cache.RULES[func](*args)
        if known is None:
            continue
        want = dispatch(mode, func, (), args, {})
        got = args[0] if known == () else fake_cache._made(mode, known)
        assert _metadata(got, [args[0]]) == _metadata(want, [args[0]]), (
            func,
            [getattr(a, "shape", a) for a in args],
        )
        answered += 1
    assert answered > (0 if turned else 1), answered


def test_common_models_import_no_other_compiler() -> None:
    """Importing torch._dynamo takes 80 MiB and 0.6 seconds; FakeTensorMode's dispatcher does it."""
    program = """
import sys, torch, tracer_core
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.up = nn.Conv2d(3, 8, 3, padding=1), nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.rnn, self.norm = nn.LSTM(4, 6, 2, batch_first=True), nn.BatchNorm2d(8)

    def forward(self, x):
        y = nn.functional.max_pool2d(nn.functional.relu(self.norm(self.conv(x)), inplace=True), 2)
        y = torch.cat([self.up(y), self.up(y)], 1)[:, :4].contiguous() + torch.zeros(4, 1, 1)
        return self.rnn((y + torch.zeros(2, 4, 8, 8)).flatten(2).mT)[0]

model = Model()
x = torch.randn(2, 3, 8, 8)
compiled = tracer_core.compile(model, fullgraph=True, backend="aten_eager")
with torch.no_grad():
    model.eval()
    torch.testing.assert_close(compiled(x), model(x))
model = Model()
compiled = tracer_core.compile(model, fullgraph=True, backend="aten_eager")
for run in (compiled, model):
    run(x).square().mean().backward()
    grads = [p.grad for p in model.parameters()]
    model.zero_grad()
    if run is compiled:
        first = grads
for got, want in zip(first, grads, strict=True):
    torch.testing.assert_close(got, want)
F = nn.functional
w = torch.randn(16)

def by_references(x):  # torch answers for these by its reference implementations
    y = F.gelu(F.layer_norm(x, (16,), w, w)).softmax(-1) + x.abs().pow(2).mean(-1, keepdim=True).rsqrt()
    y = F.group_norm(y, 2).clamp(-1, 1).cumsum(-1).masked_fill(x > 2, 0.0) + torch.arange(16)
    return F.mse_loss(F.dropout(y, 0.5).log_softmax(-1), x) + y.logsumexp(-1).var() + F.normalize(y).norm()

x = torch.randn(3, 4, 16)
compiled = tracer_core.compile(by_references, fullgraph=True, backend="aten_eager")
with torch.random.fork_rng():
    expected = by_references(x)
torch.testing.assert_close(compiled(x), expected)
assert "torch._dynamo" not in sys.modules, "imported"

import torch._dynamo
shielded = []
disable = torch._dynamo.disable
torch._dynamo.disable = lambda fn, *args, **kwargs: shielded.append(fn) or disable(fn, *args, **kwargs)
torch.testing.assert_close(torch._refs.mean(x), x.mean())
assert shielded and not hasattr(torch._compile, "getattr"), "shields are not torch's again"
"""
    done = torch_server.run(["-c", program])
    assert done.returncode == 0, done.stderr


def test_training_without_symbols_imports_no_sympy() -> None:
    """It takes 30 MiB and 0.4 seconds."""
    program = """
import sys, torch, tracer_core
from torch import nn

def block(before, after):
    conv = nn.Conv2d(before, after, 3, padding=1)
    return nn.Sequential(conv, nn.BatchNorm2d(after), nn.ReLU(inplace=True), nn.MaxPool2d(2))

for model, shape in (
    (nn.Sequential(block(3, 8), block(8, 8), nn.Flatten(), nn.Linear(128, 10)), (2, 3, 16, 16)),
    (nn.LSTM(6, 6, 2, batch_first=True), (2, 4, 6)),
):
    compiled = tracer_core.compile(model, backend="aten_eager", fullgraph=True)
    out = compiled(torch.randn(shape))
    (out if isinstance(out, torch.Tensor) else out[0]).sum().backward()
for one in sys.argv[1:]:
    assert one not in sys.modules, one
"""
    heavy = ["torch._dynamo", "torch.distributed.tensor", *(["sympy"] if RELEASE < (2, 14) else [])]
    done = torch_server.run(["-c", program, *heavy])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("train", [False, True])
def test_gradients_and_running_statistics(train: bool, checked: Checked) -> None:
    def make() -> Any:
        torch.manual_seed(3)
        parts = [torch.nn.Conv2d(4, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(inplace=True)]
        again = [torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.Flatten()]
        return torch.nn.Sequential(*parts, *again, torch.nn.LayerNorm(8 * 24)).train(train)

    eager, target = make(), make()
    compiled = tracer_core.compile(target, backend="eager")
    for _ in range(2):
        for value in (eager, compiled):
            value(IMAGE).pow(2).sum().backward()
    for (name, want), got in zip(
        eager.state_dict().items(), target.state_dict().values(), strict=True
    ):
        assert torch.equal(want, got), name
    for want, got in zip(eager.parameters(), target.parameters(), strict=True):
        assert torch.equal(want.grad, got.grad)


def test_an_error_of_an_operator_is_the_one_that_torch_raises(checked: Checked) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        try:
            return x.view(7, 11), ""
        except RuntimeError as error:
            return x + 1, str(error)

    same(fn, (IMAGE,), graphs=1)


def test_a_tensor_whose_value_is_known_keeps_it(checked: Checked) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        number = torch.tensor(3) + 1
        return x * number

    same(fn, (IMAGE,), (IMAGE + 1,), graphs=1, recompiles=0)


def test_symbolic_sizes_are_left_to_torch(checked: Checked) -> None:
    same(lambda x: F.softmax(x @ x.mT, -1).view(-1) * x.shape[0], (ROW,), (torch.randn(6, 5),),
    (torch.randn(7, 5),),
         graphs=2)  # fmt: skip


def test_what_is_private_in_some_releases_is_read_in_one_place() -> None:
    """`_fake_device` is no attribute of fakes before torch 2.12; `fake_device` is one in all."""
    root = Path(tracer_core.__file__).parent
    readers = [
        file.parent.name for file in root.rglob("*.py") if "._fake_device" in file.read_text()
    ]
    assert not set(readers) - {"torch_private"}


def test_a_number_may_be_the_first_operand() -> None:
    def reciprocal(x: torch.Tensor) -> Any:
        return torch.ops.aten.div.Tensor(0.5, x)

    fake_cache._cached.clear()
    x = torch.rand(3) + 1
    actual = tracer_core.compile(reciprocal, backend="aten_eager")(x)
    torch.testing.assert_close(actual, reciprocal(x), rtol=0, atol=0)
