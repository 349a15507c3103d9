"""Training steps of nets whose convolutions are our own.

In: a net and the size of its images. Out: gradients, held against eager's and float64's.
"""

from __future__ import annotations

import copy

import torch

import tracer_core


def relative(actual, in_float64):
    return ((actual.double() - in_float64).norm() / in_float64.norm()).item()


def step(function, module, x):
    module.zero_grad()
    leaf = x.clone().requires_grad_()
    function(leaf).square().sum().backward()
    return [leaf.grad, *(p.grad.clone() for p in module.parameters())]


def gradients_are_right(module, image, batches):
    """One compiled net, a step for each size of a batch: gradients have eager's strides, and errors
    of eager's size.
    """
    ours, exact = copy.deepcopy(module), copy.deepcopy(module).double()
    fast = tracer_core.compile(ours, backend="inductor", fullgraph=True)
    for batch in batches:
        x = torch.randn(batch, *image)
        expected, actual = step(module, module, x), step(fast, ours, x)
        in_float64 = step(exact, exact, x.double())
        for item, other, true in zip(expected, actual, in_float64, strict=True):
            assert item.stride() == other.stride()
            # a relu whose input is nearly 0 may let a gradient through here and not there
            limit = 3 * (item.double() - true).norm() + 1e-3 * true.norm() + 1e-5
            assert (other.double() - true).norm() <= limit
