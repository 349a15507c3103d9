"""Operators of the user's own library whose fake kernel says something else than their kernel: the
first call finds it, and graphs are captured around the operator."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tracer_core
from tracer_core.errors import GraphBreakError
from tracer_core.testing import CaptureCounter, compare

BACKENDS = ("eager", "aten_eager", "inductor")
CALLED: list[str] = []
#: Name -> kernel. All fake kernels say that the result is like the operand.
KERNELS = {
    "right": lambda x: x * 2,
    "strides": lambda x: (x * 2).t().contiguous().t(),
    "dtype": lambda x: (x * 2).double(),
    "size": lambda x: torch.cat([x * 2, x]),
    "dimensions": lambda x: (x * 2).unsqueeze(0),
}
WRONG = [name for name in KERNELS if name != "right"]
#: Operators whose fake kernels say that the result lies elsewhere.
ELSEWHERE = ("meta", "cuda")


def _operator(name, kernel, fake):
    def counted(x):
        CALLED.append(name)
        return kernel(x)

    result = torch.library.custom_op(
        f"wrong_fakes::{name}", counted, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    result.register_fake(fake)
    result.register_autograd(lambda ctx, grad: grad.reshape(-1, 6)[:4].float() * 2)
    return result


OPERATORS = {
    **{name: _operator(name, kernel, torch.empty_like) for name, kernel in KERNELS.items()},
    **{
        name: _operator(
            name, KERNELS["right"], lambda x, name=name: torch.empty_like(x, device=name)
        )
        for name in ELSEWHERE
    },
}


@pytest.fixture(autouse=True)
def fresh():
    tracer_core.reset()
    CALLED.clear()
    yield
    tracer_core.reset()


class Net(nn.Module):
    """Layers before and after the operator."""

    def __init__(self, operator):
        super().__init__()
        self.before, self.after = nn.Linear(5, 6), nn.Linear(6, 3)
        self.operator = operator

    def forward(self, x):
        middle = self.operator(torch.tanh(self.before(x)).relu())
        mean = middle.sum() / middle.shape[0]
        return self.after(middle.float()).softmax(-1) + mean.float(), middle


def _layout(outputs):
    return [(output.dtype, output.shape, output.stride(), output.device) for output in outputs]


def _fallbacks(compiled):
    return [item.text for item in tracer_core.last_compile(compiled) if item.name == "fallback"]


@pytest.mark.sweep(keep=9)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [*WRONG, *ELSEWHERE])
def test_the_rest_of_the_program_is_compiled(name, backend):
    if (name, backend) == ("cuda", "inductor") and not torch.cuda.is_available():
        pytest.skip("it would compile for a GPU")
    torch.manual_seed(0)
    net = Net(OPERATORS[name]).requires_grad_(False)
    compiled = tracer_core.compile(net, backend=backend)
    with CaptureCounter() as counter:
        for number in range(4):
            x = torch.randn(4, 5)
            expected, actual = net(x), compiled(x)
            assert _layout(actual) == _layout(expected), number
            compare(expected, actual)
            if number == 1:
                settled = len(counter.graphs)
    assert len(counter.graphs) == settled == 3, "one that was wrong, and two around the operator"
    breaks = len(counter.breaks)  # a weight cannot be multiplied by what lies elsewhere
    assert breaks == (2 if name in ELSEWHERE else 1)
    assert not _fallbacks(compiled), "nothing runs without its backend"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["strides", "dtype"])
def test_gradients_are_eagers(name, backend):
    torch.manual_seed(0)
    eager, target = Net(OPERATORS[name]), Net(OPERATORS[name])
    target.load_state_dict(eager.state_dict())
    compiled = tracer_core.compile(target, backend=backend)
    for _ in range(3):
        x = torch.randn(4, 5)
        for net, run in ((eager, eager), (target, compiled)):
            net.zero_grad()
            result, middle = run(x)
            (result.square().sum() + middle.sum()).backward()
        compare(*([parameter.grad for parameter in net.parameters()] for net in (eager, target)))


def test_an_operator_that_is_right_is_called_once_a_call_and_stays_in_its_graph():
    net = Net(OPERATORS["right"]).requires_grad_(False)
    compiled = tracer_core.compile(net, backend="aten_eager")
    with CaptureCounter() as counter:
        for _ in range(3):
            x = torch.randn(4, 5)
            actual = compiled(x)
            assert len(CALLED) == 1
            compare(net(x), actual)
            CALLED.clear()
    assert len(counter.graphs) == 1
    assert not counter.breaks


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_was_written_before_it_is_written_once(backend):
    def program(x, counts):
        counts.add_(1)
        y = OPERATORS["size"](x + counts.sum())
        counts.mul_(2)
        return y.sum(0), counts + 1

    compiled = tracer_core.compile(program, backend=backend)
    mine, theirs = torch.zeros(3), torch.zeros(3)
    for _ in range(3):
        x = torch.randn(4, 6)
        compare(program(x, mine), compiled(x, theirs))
        compare(mine, theirs)


def test_random_numbers_before_it_are_drawn_once():
    def program(x):
        noise = torch.rand_like(x)
        return OPERATORS["dtype"](x + noise).sum(), noise

    compiled = tracer_core.compile(program, backend="aten_eager")
    x = torch.randn(4, 6)
    for _ in range(3):
        torch.manual_seed(1)
        expected, state = program(x), torch.get_rng_state()
        torch.manual_seed(1)
        compare(expected, compiled(x))
        assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("name", ["right", "size"])
def test_sizes_that_change(name):
    compiled = tracer_core.compile(
        lambda x: OPERATORS[name](x * 2).relu() + 1, backend="aten_eager", dynamic=True
    )
    program = lambda x: OPERATORS[name](x * 2).relu() + 1
    with CaptureCounter() as counter:
        for rows in (4, 7, 9):
            x = torch.randn(rows, 6)
            compare(program(x), compiled(x))
    assert len(counter.graphs) == (1 if name == "right" else 3)


def test_a_break_before_it():
    """It stands in the second of two graphs."""

    def program(x):
        y = x.sin()
        tracer_core.graph_break()
        z = OPERATORS["dtype"](y.cos())
        return (z.float() + 1).relu()

    compiled = tracer_core.compile(program, backend="aten_eager")
    for _ in range(3):
        x = torch.randn(4, 6)
        expected, actual = program(x), compiled(x)
        assert actual.dtype is expected.dtype
        compare(expected, actual)


def test_only_operands_like_those_for_which_it_is_wrong_break_graphs():
    kernel = lambda x: (x * 2).double() if x.dtype is torch.float16 else x * 2
    operator = _operator("half", kernel, torch.empty_like)
    compiled = tracer_core.compile(lambda x: operator(x + 1) * 3, backend="aten_eager")
    for dtype, breaks in ((torch.float16, 1), (torch.float32, 0), (torch.float16, 0)):
        x = torch.randn(4, 6).to(dtype)
        with CaptureCounter() as counter:
            for _ in range(2):
                expected, actual = operator(x + 1) * 3, compiled(x)
                assert actual.dtype is expected.dtype
                compare(expected, actual)
        assert len(counter.breaks) == breaks, dtype


def test_fullgraph_says_what_differs():
    compiled = tracer_core.compile(lambda x: OPERATORS["dtype"](x) + 1, fullgraph=True,
                                   backend="aten_eager")  # fmt: skip
    for _ in range(2):
        with pytest.raises(GraphBreakError, match=r"its kernel returns torch\.float64"):
            compiled(torch.randn(4, 6))
