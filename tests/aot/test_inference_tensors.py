"""Results of a compiled function that switches inference mode on are inference tensors."""

from __future__ import annotations

import pytest
import torch

import tracer_core

BACKENDS = ("eager", "aten_eager", "inductor")


def decorated(net, x):
    @torch.inference_mode()
    def generate(x):
        return net(x), x * 3, x[0]

    return generate(x)


def inside(net, x):
    with torch.inference_mode():
        y = net(x).softmax(-1)
    return y


def left(net, x):
    with torch.inference_mode():
        y = net(x)
    return y.relu()


def written(net, x):
    with torch.inference_mode():
        x.add_(1)
        y = x.sin()
        y[0] = 0
    return y, y[1:]


def masked(net, x):
    with torch.inference_mode():
        y = net(x)
        return y[y > 0]


def by_a_later_graph(net, x):
    with torch.inference_mode():
        y = net(x)
    print(end="")
    return y * 2


PROGRAMS = (decorated, inside, left, written, masked, by_a_later_graph)


def flags(results):
    results = results if isinstance(results, tuple) else (results,)
    return [(item.is_inference(), item.requires_grad) for item in results]


@pytest.mark.parametrize("grad", (False, True))
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_inference_tensors(program, backend, grad):
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 4).requires_grad_(grad)
    fast = tracer_core.compile(program, backend=backend)
    for rows in (3, 3, 5):
        x = torch.randn(rows, 4)
        other = x.clone()
        want, got = program(net, x), fast(net, other)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(other, x)
        assert flags(got) == flags(want)
        assert other.is_inference() == x.is_inference()


@pytest.mark.parametrize("backend", BACKENDS)
def test_backward_refuses_inference_tensors(backend):
    net = torch.nn.Linear(4, 4)
    fast = tracer_core.compile(torch.inference_mode()(net), backend=backend)
    weight = torch.ones(4, requires_grad=True)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        fast(torch.randn(3, 4)) * weight
