"""Every form of a higher-order operator is one graph, and right: values, gradients, random numbers,
other sizes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tracer_core
from tests.fx_capture.higher_order_forms import FORMS, leaf
from tests.support.gradients import same_gradients
from tracer_core.testing import CaptureCounter
from tracer_core.torch_private.releases import is_before

#: Forms that torch runs by torch.compile in eager mode, which takes seconds.
SLOW = [name for name in FORMS if name.startswith(("scan", "associative-scan", "map"))]
#: Forms that end the graph.
BREAKING = {"functionalized"}
#: Forms whose graph is lowered too.
LOWERED = ["vjp-called-inside", "linearized", "per-sample-gradients", "function-under-vmap",
           "vmap-with-randomness", "checkpoint-with-a-policy", "checkpoint-reentrant"]  # fmt: skip


def _check(name, backend="eager"):
    breaks = name in BREAKING or (name.startswith("scan") and is_before("2.13"))
    _, first, other = FORMS[name]()
    calls = [first, first, *([other, other] if other else [])]
    same_gradients(lambda: FORMS[name]()[0], *calls, breaks=None if breaks else 0, backend=backend)


@pytest.mark.sweep(keep=6)
@pytest.mark.parametrize("name", [name for name in FORMS if name not in SLOW])
def test_a_form_is_captured(name):
    _check(name)


@pytest.mark.sweep(keep=3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SLOW)
def test_a_scan_is_captured(name):
    _check(name)


@pytest.mark.sweep(keep=3)
@pytest.mark.parametrize("name", LOWERED)
def test_a_form_is_lowered(name):
    _check(name, "aten_eager")


# What a pullback may not repeat


def test_random_numbers_are_drawn_once():
    def program(x, v):
        value, pull = torch.func.vjp(lambda u: u * torch.rand(3), x)
        return value, pull(v)

    same_gradients(lambda: program, (leaf(3), leaf(3)), (leaf(3), leaf(3)), breaks=None)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_pullback_that_leaves(backend):
    weight = leaf(3, 3, seed=2)

    def program(x):
        y = x * 2
        return torch.func.vjp(lambda u, v: ((u @ weight).sin() * v.sum(), u.cos()), y, x)

    compiled = tracer_core.compile(program, backend=backend, fullgraph=True)
    for n in (2, 2, 4):
        x = leaf(n, 3)
        (want, eager), (got, ours) = program(x), compiled(x)
        torch.testing.assert_close(got, want)
        cotangents = tuple(torch.randn_like(item) for item in want)
        for _ in range(2):
            gradients, others = ours(cotangents), eager(cotangents)
            torch.testing.assert_close(gradients, others)
        loss, other = (sum(item.square().sum() for item in part) for part in (gradients, others))
        torch.testing.assert_close(
            torch.autograd.grad(loss, (x, weight)), torch.autograd.grad(other, (x, weight))
        )


def test_a_pullback_with_aux_that_leaves():
    def program(x):
        return torch.func.vjp(lambda u: (u.sin() * u.sum(), {"seen": u * 2}), x, has_aux=True)

    x, v = torch.randn(3), torch.randn(3)
    want, got = program(x), tracer_core.compile(program, backend="eager", fullgraph=True)(x)
    torch.testing.assert_close((got[0], got[2]), (want[0], want[2]))
    torch.testing.assert_close(got[1](v), want[1](v))


def test_a_linearization_that_leaves():
    def program(x):
        return torch.func.linearize(lambda u: {"a": u.sin() * u.sum()}, x)

    compiled = tracer_core.compile(program, backend="eager", fullgraph=True)
    for n in (2, 2, 4):
        x, t = torch.randn(n, 3), torch.randn(n, 3)
        (want, eager), (got, ours) = program(x), compiled(x)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(ours(t), eager(t))


def test_a_pullback_across_a_graph_break():
    def program(x, v):
        value, pull = torch.func.vjp(lambda u: (u * u.sum()).sin(), x)
        tracer_core.graph_break()
        return value, pull(v)[0]

    compiled = tracer_core.compile(program, backend="eager")
    for n in (2, 2, 4):
        x, v = torch.randn(n, 3), torch.randn(n, 3)
        torch.testing.assert_close(compiled(x, v), program(x, v))


@pytest.mark.parametrize("leaves", [False, True])
def test_a_write_to_what_a_pullback_reads(leaves):
    """What eager mode has saved, it does not read anew."""

    def program(x, v):
        _, pull = torch.func.vjp(lambda u: u.sin().exp(), x)
        x[:2].mul_(3)
        return pull if leaves else pull(v)

    compiled = tracer_core.compile(program, backend="eager")
    for _ in range(2):
        (x, v), other = (torch.ones(3), torch.ones(3)), torch.ones(3)
        want, got = program(x, v), compiled(other, v)
        torch.testing.assert_close(got(v) if leaves else got, want(v) if leaves else want)
        torch.testing.assert_close(other, x)


def test_a_write_after_a_pullback_has_left_raises():
    x = torch.ones(3)
    _, pull = tracer_core.compile(lambda x: torch.func.vjp(torch.sin, x), backend="eager")(x)
    torch.testing.assert_close(pull(torch.ones(3))[0], torch.ones(3).cos())
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an in-place operation"):
        pull(torch.ones(3))


def test_a_linearization_has_constant_primals():
    def program(x, t):
        return torch.func.linearize(lambda u: (u * u.sum()).sin(), x)[1](t)

    x, t = leaf(3), leaf(3, seed=1)
    want = torch.autograd.grad(program(x, t).sum(), (x, t), allow_unused=True)
    compiled = tracer_core.compile(program, backend="eager", fullgraph=True)
    got = torch.autograd.grad(compiled(x, t).sum(), (x, t), allow_unused=True)
    assert want[0] is None and got[0] is None
    torch.testing.assert_close(got[1], want[1])


def test_a_global_that_a_rule_reads_is_guarded():
    def program(x):
        return torch.vmap(lambda v: Scaled.apply(v))(x)

    global SCALE
    SCALE = 2.0
    compiled, x = tracer_core.compile(program, backend="eager"), torch.randn(2, 3)
    for SCALE in (2.0, 3.0):
        torch.testing.assert_close(compiled(x), x * SCALE)


SCALE = 2.0


class Scaled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * SCALE

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad * SCALE


# A selective checkpoint keeps what its policy says


def test_a_policy_is_asked_in_each_call():
    asked = []

    def policy(ctx, op, *args, **kwargs):
        asked.append(op)
        return torch.utils.checkpoint.CheckpointPolicy.PREFER_RECOMPUTE

    def contexts():
        return torch.utils.checkpoint.create_selective_checkpoint_contexts(policy)

    def program(x):
        return torch.utils.checkpoint.checkpoint(
            lambda u: (u @ u).sin(), x, use_reentrant=False, context_fn=contexts
        )

    compiled = tracer_core.compile(program, backend="eager", fullgraph=True)
    compiled(leaf(3, 3)).sum().backward()
    count = len(asked)
    compiled(leaf(3, 3)).sum().backward()
    assert count and len(asked) > count


# Loops over slices


@pytest.mark.skipif(is_before("2.13"), reason="a scan breaks the graph before torch 2.13")
def test_a_scan_is_one_node():
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.full((3,), 0.5))

        def forward(self, xs):
            from torch._higher_order_ops import scan

            def step(carry, x):
                carry = carry * self.weight + x
                return carry, carry.sin()

            return scan(step, torch.zeros(3), xs)

    def loop(module, xs):
        carry, parts = torch.zeros(3), []
        for x in xs:
            carry = carry * module.weight + x
            parts.append(carry.sin())
        return carry, torch.stack(parts)

    module = Cell()
    compiled = tracer_core.compile(module, backend="eager", fullgraph=True)
    with CaptureCounter() as counter:
        for n in (4, 300, 500, 700):
            xs = leaf(n, 3)
            for got, want in zip(compiled(xs), loop(module, xs), strict=True):
                torch.testing.assert_close(got, want)
                a = torch.autograd.grad(got.sum(), (xs, module.weight), retain_graph=True)
                b = torch.autograd.grad(want.sum(), (xs, module.weight), retain_graph=True)
                torch.testing.assert_close(a, b)
    assert len(counter.graphs) == 2  # the second for any number of slices


def test_a_pullback_keeps_what_the_function_read():
    def program(x, v):
        scale = 2.0
        value, pull = torch.func.vjp(lambda u: u.sin() * scale, x)
        scale = 3.0
        return value, pull(v)[0] * scale

    same_gradients(lambda: program, (leaf(3), leaf(3)), (leaf(5), leaf(5)))
