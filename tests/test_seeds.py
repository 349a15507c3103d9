"""The programs of the seeds, as their documents have them, with `tracer_core.compile` in
torch.compile's place.
"""

from __future__ import annotations

import copy
import re

import pytest
import scipy.fft
import torch

import tracer_core
from tests.support.graphs import captured_graphs, kernels_of
from tracer_core.testing import error_ratio, tensors_in


@pytest.fixture(autouse=True)
def fresh_start():
    torch.manual_seed(0)
    tracer_core.reset()
    yield
    tracer_core.reset()


def foo(x, y):
    a = torch.sin(x)
    b = torch.cos(y)
    return a + b


class MyModule(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(100, 10)

    def forward(self, x):
        return torch.nn.functional.relu(self.lin(x))


def test_a_function_is_compiled():
    x, y = torch.randn(10, 10), torch.randn(10, 10)
    torch.testing.assert_close(tracer_core.compile(foo)(x, y), foo(x, y))


def test_a_decorated_function_is_compiled():
    @tracer_core.compile
    def opt_foo2(x, y):
        a = torch.sin(x)
        b = torch.cos(y)
        return a + b

    x, y = torch.randn(10, 10), torch.randn(10, 10)
    torch.testing.assert_close(opt_foo2(x, y), foo(x, y))


def test_a_module_is_compiled_and_its_result_has_a_gradient():
    mod = MyModule()
    x = torch.randn(10, 100)
    out = tracer_core.compile(mod)(x)
    torch.testing.assert_close(out, mod(x))
    assert out.requires_grad, "a call under grad never returns a detached tensor"
    out.sum().backward()
    got = mod.lin.weight.grad.clone()
    mod.zero_grad()
    mod(x).sum().backward()
    torch.testing.assert_close(got, mod.lin.weight.grad)


def test_cos_plus_sin_of_ten_thousand_is_one_kernel(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACER_DEBUG", str(tmp_path))

    def fn(x, y):
        a = torch.cos(x)
        b = torch.sin(y)
        return a + b

    x, y = torch.randn(10000), torch.randn(10000)
    fast = tracer_core.compile(fn, backend="inductor")
    torch.testing.assert_close(fast(x, y), fn(x, y))
    kernels = kernels_of(fast)
    assert kernels.count == 1 and not kernels.externs
    assert kernels.loads == 2, "one load per input"
    assert kernels.stores == 1
    assert not kernels.uses_arena, "no intermediate buffer"


def f1(x, y):
    if x.sum() < 0:
        return -y
    return y


def f2(x, y):
    return x + y


def f3(x):
    x = x * 2
    x = scipy.fft.dct(x.numpy())
    x = torch.from_numpy(x)
    x = x * 2
    return x


def bar(a, b):
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


def test_f1_takes_both_branches():
    inp1, inp2 = torch.randn(5, 5), torch.randn(5, 5)
    compiled = tracer_core.compile(f1)
    for sign in (1, -1, 1):
        torch.testing.assert_close(compiled(sign * inp1, inp2), f1(sign * inp1, inp2))
    positive = inp1.abs()
    assert compiled(positive, inp2) is inp2, (
        "the branch that returns its argument returns that object"
    )


def test_f2_takes_a_number():
    x = torch.randn(5, 5)
    compiled = tracer_core.compile(f2)
    for number in (3, 3, 4, 2.5):
        torch.testing.assert_close(compiled(x, number), f2(x, number))


def test_f3_calls_scipy_on_a_numpy_array():
    compiled = tracer_core.compile(f3)
    for _ in range(3):
        x = torch.randn(5, 5)
        torch.testing.assert_close(compiled(x), f3(x))


def test_fullgraph_names_the_users_line():
    with pytest.raises(tracer_core.errors.GraphBreakError) as caught:
        tracer_core.compile(f1, fullgraph=True)(torch.randn(5, 5), torch.randn(5, 5))
    line = f1.__code__.co_firstlineno + 1
    assert f"{__file__}:{line} in f1" in str(caught.value)
    assert caught.value.kind == "data_dependent_branch"


def test_bar_hands_exactly_three_graphs_to_a_custom_backend(capsys):
    def custom_backend(gm, example_inputs):
        print("custom backend called with FX graph:")
        print(
            " ; ".join(
                f"{n.op} {n.name} {getattr(n.target, '__name__', n.target)}" for n in gm.graph.nodes
            )
        )
        return gm.forward

    opt_bar = tracer_core.compile(bar, backend=custom_backend)
    inp1, inp2 = torch.randn(10), torch.randn(10).abs()
    for _ in range(2):
        torch.testing.assert_close(opt_bar(inp1, inp2), bar(inp1, inp2))
        torch.testing.assert_close(opt_bar(inp1, -inp2), bar(inp1, -inp2))
    printed = capsys.readouterr().out.splitlines()
    graphs = [line for line in printed if not line.startswith("custom")]
    assert len(printed) == 6 and len(graphs) == 3
    operators = [re.findall(r"call_\w+ \w+ (\w+)", graph) for graph in graphs]
    assert operators == [["abs", "add", "truediv", "sum", "lt"], ["mul"], ["mul", "mul"]]


def test_explain_bar():
    explained = tracer_core.explain(bar)(torch.randn(10), torch.randn(10))
    assert (explained.graph_count, explained.graph_break_count, explained.op_count) in {
        (2, 1, 6),
        (2, 1, 7),
    }
    assert f"{bar.__code__.co_firstlineno + 2} in bar" in explained.breaks[0].location
    assert "torch.where" in explained.breaks[0].hint
    assert explained.breaks[0].location in str(explained)


def test_list_backends():
    assert {"eager", "inductor", "onnxrt", "tvm"} <= set(tracer_core.list_backends())
    rows = {row.name: row for row in tracer_core.backends()}
    assert not rows["cudagraphs"].available and rows["cudagraphs"].reason


# -- the models
# ------------------------------------------------------------------------------------------


def resnet18():
    from torchvision.models import resnet18 as build

    return build()


def densenet121():
    from torchvision.models import densenet121 as build

    return build()


def bert():
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig())


def resnext101():
    import timm

    return timm.create_model("resnext101_32x8d", num_classes=2)


IMAGES = {
    "resnet18_64": (resnet18, lambda: torch.randn(1, 3, 64, 64)),
    "resnet18_224": (resnet18, lambda: torch.randn(4, 3, 224, 224)),
    "densenet121": (densenet121, lambda: torch.randn(4, 3, 128, 128)),
    "bert_12": (bert, lambda: torch.randint(0, 30000, (1, 12))),
    "bert_128": (bert, lambda: torch.randint(0, 30000, (1, 128))),
    "resnext101": (resnext101, lambda: torch.randn(64, 3, 7, 7)),
}


#: The second size of a model: the same layers, and more of the machine.
LARGER = ("resnet18_224", "bert_128")


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in LARGER else []) for name in IMAGES],
)
def test_a_real_model_is_one_graph_and_as_exact_as_eager(name):
    build, make = IMAGES[name]
    model, inputs = build().eval(), make()
    exact_inputs = inputs.double() if inputs.is_floating_point() else inputs
    with torch.no_grad():
        eager = model(inputs)
        compiled = tracer_core.compile(model, backend="inductor", fullgraph=True)
        results = [compiled(inputs) for _ in range(2)]
        exact = copy.deepcopy(model).double()(exact_inputs)
    for result in results:
        assert type(result) is type(eager), "the model's output object is preserved"
        assert error_ratio(_tensors(exact), _tensors(eager), _tensors(result)) <= 3
    assert len(captured_graphs(compiled)) == 1


def _tensors(output):
    return list(tensors_in(output if isinstance(output, torch.Tensor) else dict(output)))


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("name", ["resnet18_64", "bert_12"])
def test_a_model_as_the_seeds_call_it_in_train_mode_with_grad(name):
    build, make = IMAGES[name]
    eager_model, inputs = build(), make()
    if name == "bert_12":
        eager_model.eval()  # dropout draws from the stream in another order in eager's native kernels
    model, exact_model = copy.deepcopy(eager_model), copy.deepcopy(eager_model).double()
    compiled = tracer_core.compile(model, backend="inductor")
    for _ in range(2):
        expected, got = eager_model(inputs), compiled(inputs)
        for want, have in zip(_tensors(expected), _tensors(got), strict=True):
            assert have.requires_grad == want.requires_grad
            torch.testing.assert_close(have, want)
    for (key, want), (_, have) in zip(
        eager_model.named_buffers(), model.named_buffers(), strict=True
    ):
        torch.testing.assert_close(have, want, msg=f"buffer {key}")
    outputs = (
        got,
        expected,
        exact_model(inputs.double() if inputs.is_floating_point() else inputs),
    )
    for output in outputs:
        sum(t.sum() for t in _tensors(output)).backward()
    named = [value.named_parameters() for value in (model, eager_model, exact_model)]
    for (key, have), (_, want), (_, exact) in zip(*named, strict=True):
        assert (have.grad is None) == (want.grad is None), key
        if have.grad is not None:
            error, eagers = ((value.grad - exact.grad).norm() for value in (have, want))
            assert error <= 3 * eagers + 3e-6 * exact.grad.norm(), key
