"""The few largest elements of short rows (the experts of a token) are found in one kernel, run by
Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from inductor_backend.ir.nodes import ExternNode
from inductor_backend.runtime.cuda.interpreter import interpreting
from tests.inductor.test_operators import R
from tests.triton_kernels.test_interpreted import checked

pytestmark = pytest.mark.skipif(
    not interpreting(), reason="Triton compiles for a GPU in this process"
)


def calls(result):
    return [n for n in result.compilation.program.nodes if isinstance(n, ExternNode)]


def shuffled(*sizes):
    """Different numbers, whose order has no ties."""
    count = torch.Size(sizes).numel()
    return (torch.randperm(count).float() - count / 2).view(sizes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("k", [1, 2, 8])
def test_values_and_places(dtype, k):
    x = shuffled(6, 40).to(dtype)
    assert not calls(checked(lambda x: torch.topk(x, k), x))


@pytest.mark.parametrize("dim", [0, 1, -2])
def test_other_dimensions(dim):
    checked(lambda x: torch.topk(x, 3, dim=dim), shuffled(5, 6, 7))


def test_infinities_and_nan():
    """NaN is the largest; -inf is found as often as there is one."""
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([[-inf, 3, nan, 1, inf], [2, -inf, 1, 5, 4]])
    checked(lambda x: torch.topk(x, 4), x)
    full = torch.tensor([[-inf, 3.0, -inf, 1.0]])
    values, places = checked(lambda x: torch.topk(x, 4)[0], full)(full)[0], full
    assert values.tolist() == [[3.0, 1.0, -inf, -inf]] and places is full
    (places,) = checked(lambda x: torch.topk(x, 4)[1].sort(-1)[0], full)(full)
    assert places.tolist() == [[0, 1, 2, 3]]


def test_a_router_of_experts():
    def route(x, w):
        weights, experts = torch.topk((x @ w.t()).softmax(-1), 2)
        return weights / weights.sum(-1, keepdim=True), experts

    result = checked(route, R(9, 16), R(8, 16))
    assert len(calls(result)) == 1  # the matmul


OTHERS = {
    "more elements": (lambda x: torch.topk(x, 17), (2, 40)),
    "longer rows": (lambda x: torch.topk(x, 2), (2, 1025)),
    "the smallest": (lambda x: torch.topk(x, 2, largest=False), (2, 40)),
    "float64": (lambda x: torch.topk(x.double(), 2), (2, 40)),
}


@pytest.mark.parametrize("why", OTHERS)
def test_other_calls_are_atens(why):
    fn, sizes = OTHERS[why]
    assert len(calls(checked(fn, shuffled(*sizes)))) == 1


@pytest.mark.parametrize("k, length", [(16, 40), (2, 1024)])
def test_the_most_elements_and_the_longest_row(k, length):
    assert not calls(checked(lambda x: torch.topk(x, k), shuffled(2, length)))
