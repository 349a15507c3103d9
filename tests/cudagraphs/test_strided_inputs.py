"""``as_strided`` of an input may be captured where a copy of the input has the same elements at the same
places."""

from __future__ import annotations

import pytest
import torch

from cudagraphs_backend.capturability import supports
from cudagraphs_backend.state import states
from tests.cudagraphs.simulated import SimulatedDevice

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def simulated():
    undo = states.install(torch.device("cpu"), SimulatedDevice())
    yield
    undo()


def reason(value, *arguments):
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = value
    node = graph.call_function(aten.as_strided.default, (x, *arguments))
    node.meta["val"] = aten.as_strided.default(value, *arguments)
    return supports(node)


def test_the_same_elements_in_other_strides():
    """What a backward does with the gradient of a 1x1 image."""
    x = torch.randn(4, 8, 1, 1)
    assert reason(x, [4, 8, 1, 1], [8, 1, 8, 8], 0) is None
    assert reason(x, [8, 4], [1, 8]) is None


@pytest.mark.parametrize(
    ("value", "arguments"),
    [
        (torch.randn(10)[2:], ([4], [1], 0)),  # from before its first element
        (torch.randn(10)[2:], ([4], [1])),
        (torch.randn(4, 4), ([4], [1], 3)),
        (torch.randn(8, 4)[:, :2], ([8, 2], [4, 1], 0)),  # a copy has no gaps
        (torch.randn(20)[:8], ([12], [1], 0)),  # beyond its last element
    ],
)
def test_places_that_a_copy_does_not_have(value, arguments):
    assert "by an offset" in reason(value, *arguments)
