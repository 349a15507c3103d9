"""Value checks: engines run what they have otherwise for some values, and a call with such a value is
eager's, error and all.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tracer_core
from tests.support import torchvision_ops
from tests.support.comparison import assert_same_calls
from tracer_core.plugin_api import ValueClass, add_value_check, checks_indices

ENGINES = {"onnxrt": "onnxruntime", "tvm": "tvm"}


@pytest.fixture(params=list(ENGINES))
def engine(request):
    pytest.importorskip(ENGINES[request.param])
    return request.param


def outcome(program, *inputs):
    """What a call gives: its results, or its error."""
    try:
        return program(*inputs)
    except (IndexError, RuntimeError) as error:
        return type(error), str(error)


def eagerly(fast):
    """What runs without the engine, and why."""
    return [record.text for record in tracer_core.last_compile(fast) if record.name == "fallback"]


TABLE = torch.arange(15.0).view(5, 3) - 7

#: name: (program over integers, how many of INDICES are errors in eager)
READS = {
    "embedding": (lambda i: (F.embedding(i, TABLE) * 2,), 4),
    "of int32": (lambda i: (F.embedding(i.int(), TABLE) * 2,), 4),
    "index_select": (lambda i: (TABLE.index_select(0, i) * 2,), 4),
    "gather": (
        lambda i: (
            torch.gather(TABLE, 0, i.view(1, 3)) * 2,
            torch.gather(TABLE, -2, i.view(3, 1)) + 1,
        ),
        4,
    ),
    "index": (lambda i: (TABLE[i] * 2, TABLE[i] + 1), 3),
    "two indices": (
        lambda i: (TABLE[i, i % 3] * 2, (TABLE * 2)[:, i % 3], TABLE[i.view(3, 1), i % 2]),
        3,
    ),
    "apart": (lambda i: (TABLE.view(5, 1, 3)[i, :, i % 3] * 2,), 3),
}

#: Those that onnxrt has on the engine.
WRITES = {
    "scatter": (lambda i: ((TABLE * 2).scatter(0, i.view(3, 1), 1.5) + 1,), 4),
    "scatter_add": (lambda i: ((TABLE * 2).scatter_add(0, i.view(3, 1), torch.ones(3, 1)) + 1,), 4),
    "index_put": (lambda i: ((TABLE * 2).index_put((i,), torch.ones(3, 3)) + 1,), 3),
    "nll_loss": (lambda i: (F.nll_loss(TABLE.view(3, 5), i) * 2,), 4),
    "cross_entropy": (lambda i: (F.cross_entropy(TABLE.view(3, 5), i, ignore_index=-2) * 2,), 3),
}

INDICES = [
    [0, 2, 1],
    [1, 4, 3],
    [-2, 0, 1],
    [0, 7, 1],
    [4, 0, 2],
    [-9, 1, 0],
    [2, 0, 2**40],
    [3, 1, 0],
]


@pytest.mark.sweep(keep=5)
@torch.no_grad()
@pytest.mark.parametrize("name", READS)
def test_indices_that_eager_refuses_raise_its_error(engine, name):
    program, wrong = READS[name]
    fast = tracer_core.compile(program, backend=engine)
    inputs = [row for row in INDICES if name != "of int32" or max(row) < 2**31]
    errors = [
        assert_same_calls(fast, program, torch.tensor(row), calls=1, rtol=1e-5, atol=1e-6)
        for row in inputs
    ]
    assert sum(errors) == wrong - (name == "of int32")
    assert not eagerly(fast)


@torch.no_grad()
@pytest.mark.parametrize("name", WRITES)
def test_indices_of_writes_and_losses(name):
    pytest.importorskip("onnxruntime")
    program, wrong = WRITES[name]
    fast = tracer_core.compile(program, backend="onnxrt")
    assert (
        sum(
            assert_same_calls(fast, program, torch.tensor(row), calls=1, rtol=1e-5, atol=1e-6)
            for row in INDICES
        )
        == wrong
    )
    assert not eagerly(fast)


class Words(torch.nn.Module):
    """Whose table is a parameter, and whose rows are as many as the input says."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(50, 16)
        self.head = torch.nn.Linear(16, 8)

    def forward(self, index, rows):
        return (
            self.head(self.table(index)).relu(),
            rows[index] * 2,
            rows.index_select(0, index.view(-1)) + 1,
        )


@pytest.mark.sweep(keep=2)
@torch.no_grad()
@pytest.mark.parametrize(
    ("dynamic", "freeze"), [(False, True), (True, False)], ids=["frozen", "dynamic"]
)
def test_sizes_that_change_and_frozen_tables(engine, dynamic, freeze):
    torch.manual_seed(0)
    model = Words().eval()
    fast = tracer_core.compile(model, backend=engine, dynamic=dynamic, options={"freeze": freeze})
    errors = []
    for rows, last in ((4, 0), (4, 5), (4, 3), (4, -1), (6, 5), (6, 6), (5, 1), (5, 50), (4, 0)):
        if rows != 4 and not dynamic:
            continue
        index = torch.randint(0, rows, (2, 3))
        index[1, 2] = last
        errors.append(
            assert_same_calls(
                fast, model, index, torch.randn(rows, 3), calls=1, rtol=1e-5, atol=1e-6
            )
        )
    assert sum(errors) == (4 if dynamic else 2) and not eagerly(fast)


@pytest.mark.sweep(keep=1)
@torch.no_grad()
@pytest.mark.parametrize("kind", ["bert", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_language_models_are_one_graph_and_check_their_words(engine, kind):
    torchvision_ops.define()
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if kind == "bert":
        sizes = dict(
            hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
        )
        model = transformers.BertModel(
            transformers.BertConfig(vocab_size=100, max_position_embeddings=32, **sizes)
        ).eval()
    else:
        sizes = dict(n_embd=32, n_layer=1, n_head=2, n_positions=32)
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=100, use_cache=False, **sizes)
        ).eval()
    fast = tracer_core.compile(model, backend=engine)
    words = torch.randint(0, 100, (1, 12))
    for last, fine in ((5, True), (100, False), (99, True), (-1, False), (0, True)):
        words[0, 11] = last
        if fine:
            torch.testing.assert_close(fast(words)[0], model(words)[0], rtol=1e-4, atol=1e-4)
        else:
            with pytest.raises(IndexError, match="index out of range in self"):
                fast(words)
    assert not eagerly(fast)
    made = "tvm import" if engine == "tvm" else "onnxrt export"
    assert sum(record.name == made for record in tracer_core.last_compile(fast)) == 1


@torch.no_grad()
def test_writes_to_inputs_happen_once(engine):
    """The call of which the value check is_hit writes as eager does, not as the engine would."""

    def program(x, i):
        x.mul_(2)
        return x[i] + 1

    fast = tracer_core.compile(program, backend=engine)
    for row in ([0, 1], [-1, 2], [3, 0]):
        ours, expected, index = torch.ones(4, 3), torch.ones(4, 3), torch.tensor(row)
        torch.testing.assert_close(fast(ours, index), program(expected, index))
        torch.testing.assert_close(ours, expected)


def graph_of(program, *inputs):
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(program, tracing_mode="fake")(*inputs)


def test_an_alarm_sounds_for_each_kind_of_value():
    nan, inf = float("nan"), float("inf")
    x, i = torch.randn(4, 3), torch.tensor([0, 3])
    module = graph_of(lambda x, i: (x.amax(), x.amin(), x.index_select(0, i), x.argmax()), x, i)
    aten = torch.ops.aten
    kinds = {
        aten.amax.default: ValueClass.NAN,
        aten.amin.default: ValueClass.INFINITE,
        aten.index_select.default: ValueClass.INDEX,
    }
    cases = [
        (aten.amax.default, [x, nan * x, x / 0.0 * 0], [False, True, True]),
        (
            aten.amin.default,
            [x, x.clamp(max=inf) + inf, -inf * x.abs(), 1e30 * x],
            [False, True, True, False],
        ),
    ]
    for target, values, expected in cases:
        copy = torch.fx.GraphModule(module, torch.fx.Graph())
        copy.graph.output(copy.graph.graph_copy(module.graph, {}))
        value_check = add_value_check(
            copy.graph,
            lambda node, target=target: kinds[target] if node.target is target else None,
            module,
        )
        copy.recompile()
        assert value_check is not None
        assert [value_check.is_hit(copy(value, i)[-1]) for value in values] == expected
    copy = torch.fx.GraphModule(module, torch.fx.Graph())
    copy.graph.output(copy.graph.graph_copy(module.graph, {}))
    value_check = add_value_check(
        copy.graph, lambda node: ValueClass.INDEX if checks_indices(node) else None, module
    )
    copy.recompile()
    for row, wrong in (
        ([0, 3], False),
        ([4, 0], True),
        ([0, -1], True),
        ([-(2**63), 2**63 - 1], True),
    ):
        results = copy(x, torch.tensor(row))  # indices are inside, whatever was given
        assert value_check.is_hit(results[-1]) is wrong
    assert add_value_check(copy.graph, lambda node: None, module) is None
    with pytest.raises(ValueError, match="amax"):
        add_value_check(
            copy.graph,
            lambda node: ValueClass.INDEX if node.target is aten.amax.default else None,
            module,
        )


def extremes(x):
    reduced = (
        x.amax((0, 1)),
        x.amin((0, 1)),
        x.amax(1),
        x.amin(0),
        x.amax((0, 1), True),
        x.argmax(),
        x.argmin(1),
    )
    clamped = (
        x.clamp(min=0) * 1,
        x.clamp(max=1.5) * 1,
        x.clamp_min(2) * 1,
        x.clamp_max(-2) * 1,
        x.clamp(-1, 1) * 1,
    )
    either = torch.maximum(x, x.flip(1)) * 1, torch.minimum(x, x[:1]) * 1
    return *reduced, x.double().argmax(1), *clamped, *either, x.long().clamp(min=1) + 0


@torch.no_grad()
def test_extremes_and_bounds_with_nan_and_infinities(engine):
    nan, inf = float("nan"), float("inf")
    fast = tracer_core.compile(extremes, backend=engine)
    eager = torch.tensor([[1.0, 2, 2, -3], [-1, 0, -0.0, 7], [3, 3, 3, 3]])
    for row, value in ((None, 0), (0, nan), (1, -inf), (2, inf), (None, 0)):
        x = eager.clone()
        if row is not None:
            x[row, row:] = value
        assert not assert_same_calls(fast, extremes, x, calls=1, rtol=1e-5, atol=1e-6)
    assert not eagerly(fast)
