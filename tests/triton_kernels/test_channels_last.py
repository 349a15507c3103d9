"""Graphs of convolutions on GPUs keep their images channels-last inside; run by Triton's
interpreter.
"""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytest.importorskip("triton")

from inductor_backend.ir import target
from inductor_backend.ir.target import interpreted
from inductor_backend.lowering import channels_last
from inductor_backend.runtime.cuda import tf32
from inductor_backend.runtime.cuda.interpreter import interpreting
from tests.inductor.compiling import clones, compiled, flat, tolerance
from tests.inductor.test_operators import R

pytestmark = [
    pytest.mark.skipif(not interpreting(), reason="Triton compiles for a GPU in this process"),
    pytest.mark.sweep(keep=14),
]


def block(x, w1, w2, shortcut, scale, shift):
    y = F.relu(F.conv2d(x, w1, padding=1) * scale[:, None, None] + shift[:, None, None])
    y = F.conv2d(y, w2, stride=2, padding=1)
    return F.relu(y + F.conv2d(x, shortcut, stride=2))


def stem(x, w, head):
    y = F.max_pool2d(F.relu(F.conv2d(x, w, stride=2, padding=3)), 3, 2, 1)
    return F.adaptive_avg_pool2d(y, 1).flatten(1) @ head


def growing(x, w1, w2):
    y = torch.cat([x, F.conv2d(x, w1, padding=1)], 1)
    return torch.cat([y, F.conv2d(y.sigmoid(), w2, padding=1)], 1)


def growing_up(x, w1, w2):
    return F.conv2d(F.relu(F.conv2d(x, w1, padding=1)), w2, padding=1)


def several_outputs(x, w):
    y = F.conv2d(x, w, padding=1)
    return y, y.relu(), y.view(y.shape[0], -1), y.permute(0, 2, 3, 1).contiguous(), y[:, :3]


def gated(x, w, down, up):
    y = F.conv2d(x, w, padding=1)
    gate = F.conv2d(F.conv2d(y.mean((2, 3), keepdim=True), down).relu(), up).sigmoid()
    return y * gate


PROGRAMS = {
    "block": (block, (R(2, 16, 8, 8), R(32, 16, 3, 3), R(32, 32, 3, 3), R(32, 16, 1, 1), R(32),
    R(32))),
    "stem": (stem, (R(2, 16, 17, 17), R(24, 16, 7, 7), R(24, 5))),
    "growing": (growing, (R(1, 16, 6, 6), R(16, 16, 3, 3), R(16, 32, 3, 3))),
    "several outputs": (several_outputs, (R(2, 16, 5, 7), R(16, 16, 3, 3))),
    "gated": (gated, (R(2, 16, 6, 6), R(32, 16, 3, 3), R(16, 32, 1, 1), R(32, 16, 1, 1))),
    "given channels-last": (
        block,
        (
            R(2, 16, 8, 8).to(memory_format=torch.channels_last), R(32, 16, 3, 3), R(32, 32, 3, 3),
            R(32, 16, 1, 1),
            R(32), R(32),
        ),
    ),
    "one channel given": (growing_up, (R(2, 1, 8, 8), R(16, 1, 3, 3), R(32, 16, 3, 3))),
    "one channel made": (growing_up, (R(2, 16, 8, 8), R(32, 16, 3, 3), R(1, 32, 3, 3))),
    "one pixel": (block, (R(1, 16, 1, 1), R(32, 16, 3, 3), R(32, 32, 3, 3), R(32, 16, 1, 1), R(32),
    R(32))),
    "a slice": (lambda x, w: F.conv2d(x[:, ::2], w), (R(2, 32, 5, 5), R(16, 16, 3, 3))),
}  # fmt: skip


def run(fn, inputs, dynamic=False, pure=False):
    """pure: all that it computes with is among the inputs, so float64 can judge: oneDNN's
    algorithm, and with it eager's own error, depend on layout and processor."""
    before = clones(inputs)
    expected = flat(fn(*before))
    exact_values = flat(fn(*[x.double() for x in clones(inputs)])) if pure else expected
    with interpreted():
        result = compiled(fn, *inputs, dynamic=dynamic)
    for _ in range(2):
        for ours, eager, exact in zip(result(*clones(inputs)), expected, exact_values, strict=True):
            assert (ours.dtype, ours.shape, ours.stride()) == (
                eager.dtype,
                eager.shape,
                eager.stride(),
            )
            allowed = tolerance(eager.dtype)
            allowed["atol"] = max(allowed["atol"], 4 * float((eager - exact).abs().max()))
            torch.testing.assert_close(ours, exact.to(eager.dtype), **allowed)
    return result


def convolutions(result):
    """Layouts of images, weights and results of the program's convolutions."""
    program = result.compilation.program
    nodes = [
        node
        for node in program.nodes
        if getattr(node, "target", None) is torch.ops.aten.convolution.default
    ]
    return [
        (
            *(arg.layout.strides for arg in node.args[:2]),
            program.buffers[node.outputs[0]].layout.strides,
        )
        for node in nodes
    ]


@pytest.mark.sweep(keep=3)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_eagers_values_and_strides(name, dynamic):
    fn, inputs = PROGRAMS[name]
    result = run(fn, inputs, dynamic and name != "one pixel", pure=True)
    for layouts in convolutions(result):
        assert all(strides[1] == 1 for strides in layouts)  # channels are innermost


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    fn, inputs = PROGRAMS["block"]
    image, *parameters = inputs
    run(fn, (image.to(dtype), *((0.05 * x).to(dtype) for x in parameters)))


def test_what_tensor_cores_do_not_do_stays(monkeypatch):
    """Grouped convolutions, few channels, and float32 where torch does not allow TF32."""
    result = run(
        lambda x, w: F.conv2d(x, w, groups=16, padding=1), (R(1, 16, 6, 6), R(16, 1, 3, 3))
    )
    assert convolutions(result)[0][0][1] == 36
    result = run(lambda x, w: F.conv2d(x, w), (R(1, 3, 6, 6), R(8, 3, 3, 3)))
    assert convolutions(result)[0][0][1] == 36
    monkeypatch.setattr(target, "tf32_allowed", lambda convolution: False)
    result = run(*PROGRAMS["block"])
    assert convolutions(result)[0][0][1] == 64
    result = run(lambda x, w: F.conv_transpose2d(x, w), (R(1, 16, 6, 6), R(16, 16, 3, 3)))
    assert convolutions(result)[0][0][1] == 36


def test_a_small_network():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3),
        nn.BatchNorm2d(32), nn.SiLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 4),
    ).eval()  # fmt: skip
    with torch.no_grad():
        made = run(lambda x, *parameters: model(x), (R(2, 3, 12, 12), *model.parameters()))
    assert len(convolutions(made)) == 2


class Residual(nn.Module):
    def __init__(self, pool=True):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 5, stride=2, padding=2)
        self.first, self.second = (
            nn.Conv2d(16, 32, 3, padding=1, bias=False),
            nn.Conv2d(32, 16, 3, padding=1),
        )
        self.norms = nn.ModuleList([nn.BatchNorm2d(16), nn.BatchNorm2d(32), nn.BatchNorm2d(16)])
        self.head, self.pool = nn.Linear(16, 5), pool

    def forward(self, x):
        x = self.norms[0](self.stem(x)).relu()
        if self.pool:
            x = F.max_pool2d(x, 3, 2, 1)
        y = self.norms[1](self.first(x)).relu()
        x = F.relu(self.norms[2](self.second(y)) + x)
        return self.head(torch.cat([x, x.sigmoid()], 1)[:, 8:24].mean((2, 3)))


@pytest.mark.sweep(keep=1)
@pytest.mark.parametrize("given", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("pool", [False, True])
def test_training(given, pool):
    """Saved images lie channels-last between the two graphs; gradients and statistics are eager's,
    with their strides.
    """
    import copy

    import tracer_core

    torch.manual_seed(0)
    model = Residual(pool).to(memory_format=given)
    ours = copy.deepcopy(model)
    with interpreted():
        fast = tracer_core.compile(ours)
        for _ in range(2):
            x, target = (
                torch.randn(4, 3, 12, 12).contiguous(memory_format=given),
                torch.randint(0, 5, (4,)),
            )
            inputs = [x.clone().requires_grad_() for _ in range(2)]
            for net, value in zip((model, fast), inputs, strict=True):
                net.zero_grad()
                F.cross_entropy(net(value), target).backward()
            torch.testing.assert_close(inputs[1].grad, inputs[0].grad, atol=1e-5, rtol=1e-3)
            assert inputs[1].grad.stride() == inputs[0].grad.stride()
    for (name, a), (_, b) in zip(model.named_parameters(), ours.named_parameters(), strict=True):
        torch.testing.assert_close(
            b.grad, a.grad, atol=1e-5, rtol=1e-3, msg=lambda m, name=name: f"{name}: {m}"
        )
        assert b.grad.stride() == a.grad.stride(), name
    for a, b in zip(model.buffers(), ours.buffers(), strict=True):
        torch.testing.assert_close(b, a)


def test_saved_images_are_handed_on_as_they_lie(monkeypatch):
    from tracer_core.aot import autograd_runtime

    messages = []
    take = autograd_runtime.take_channels_last

    def seen(backward, split, outputs):
        messages.append((sorted(outputs), split.outputs))
        take(backward, split, outputs)

    monkeypatch.setattr(autograd_runtime, "take_channels_last", seen)
    import tracer_core

    with interpreted():
        tracer_core.compile(Residual())(torch.randn(2, 3, 12, 12)).sum().backward()
    ((numbers, visible),) = messages
    assert len(numbers) >= 3 and min(numbers) >= visible


aten = torch.ops.aten


def in_tf32(operator):
    """The operator as tensor cores compute it: factors keep 10 bits of fraction."""

    def rounded(*args):
        return operator(
            *(
                torch.round(arg * 1024) / 1024 if isinstance(arg, torch.Tensor) else arg
                for arg in args
            )
        )

    return rounded


@pytest.mark.parametrize("shape", [(2, 16, 9, 9), (32, 64, 56, 56), (1, 512, 7, 7)])
def test_rounding_is_seen(shape, monkeypatch):
    """What decides whether a convolution rounds to TF32, here on the CPU with an operator that does
    and one that does not.
    """
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    image, weight = (
        torch.empty(shape, device="meta"),
        torch.empty(64, shape[1], 3, 3, device="meta"),
    )
    how = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    result = torch.empty(shape[0], 64, *shape[2:], device="meta")
    for call in (
        (aten.convolution, image, weight, None, *how),
        (aten.convolution_backward, result, image, weight, None, *how, [True, False, False]),
        (aten.convolution_backward, result, image, weight, None, *how, [False, True, False]),
    ):
        assert not tf32._measured(call, torch.device("cpu"))
        assert tf32._measured((in_tf32(call[0]), *call[1:]), torch.device("cpu"))


def test_a_convolution_that_only_rounds_channels_last_stays(monkeypatch):
    """Its neighbours are channels-last all the same."""
    monkeypatch.setattr(
        tf32, "loses_precision", lambda node: node.args[1].meta["val"].shape[-1] == 1
    )
    fn = lambda x, w1, w2, w3: F.conv2d(
        F.relu(F.conv2d(F.conv2d(x, w1, padding=1), w2)), w3, padding=1
    )
    result = run(fn, (R(2, 16, 6, 6), R(16, 16, 3, 3), R(16, 16, 1, 1), R(16, 16, 3, 3)), pure=True)
    first, second, third = convolutions(result)
    assert first[0][1] == third[0][1] == 1 and second[0][1] == 36 and second[2][1] == 36


def test_the_layout_stays_when_settings_change(monkeypatch):
    """A graph that is compiled again, for another setting, takes the convolutions that were
    channels-last.
    """
    inputs = PROGRAMS["block"][1]
    result = run(PROGRAMS["block"][0], inputs, pure=True)
    gm, first = result.compilation.gm, result.compilation.program.channels_last_outputs
    assert len(first) == 3
    monkeypatch.setattr(target, "tf32_allowed", lambda convolution: False)
    assert not channels_last.channels_last_nodes(gm.graph, True)
    names = [node.name for node in channels_last.channels_last_nodes(gm.graph, True, first)]
    assert first < set(names)
    item = frozenset(list(first)[:1])
    convs = {node.name for node in channels_last.channels_last_nodes(gm.graph, True, item)} & first
    assert convs == item


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "sizes", [((2, 1, 8, 8), (2, 32, 8, 8), (1, 32, 1, 1)), ((2, 16, 8, 8), (2, 1, 8, 8), (16, 1,
    1, 1)),
              ((2, 16, 1, 1), (2, 24, 1, 1), (16, 24, 3, 3)), ((2, 16, 4, 1), (2, 24, 4, 1), (16,
              24, 3, 3))],
    ids=["one channel made", "one channel given", "one pixel", "one column"],
)  # fmt: skip
def test_gradients_whose_operands_have_one_layout_for_both(sizes, dynamic):
    """The operator chooses its result's layout by strides of dimensions of one element."""

    def gradients(dy, x, w, others, image):
        how = [1, 1], [w.shape[-1] // 2] * 2, [1, 1], False, [0, 0], 1
        dx, dw, _ = aten.convolution_backward(
            dy.relu(), x.relu(), w, None, *how, [True, True, False]
        )
        return dx, dw, F.conv2d(image, others)

    run(
        gradients,
        (*(R(*size) for size in sizes), R(32, 32, 3, 3), R(2, 32, 9, 9)),
        dynamic,
        pure=True,
    )
