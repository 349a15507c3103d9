"""A backend that returns something else than the graph says is named in a BackendError."""

from __future__ import annotations

import pytest
import torch

from tracer_core.errors import BackendError
from tracer_core.plugin_api import Backend, compile_graph


def two_results(x):
    return x.t().contiguous() + 1, x * 2


def spoiled(spoil):
    """A backend that runs the graph and then spoils its results."""

    def compile_spoiled(graph, spec):
        return lambda inputs: spoil(list(graph(*inputs)), inputs)

    return Backend(name="careless", compile=compile_spoiled)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda results, inputs: results[:1], ["2", "1"]),
        (lambda results, inputs: [*results, results[0]], ["2", "3"]),
        (lambda results, inputs: [results[0][:1], results[1]], ["shape"]),
        (lambda results, inputs: [results[0].double(), results[1]], ["float64"]),
        (lambda results, inputs: [results[0].t().contiguous().t(), results[1]], ["stride"]),
        (lambda results, inputs: [results[0], results[1].to("meta")], ["meta"]),
        (lambda results, inputs: [results[0], "text"], ["str"]),
    ],
)
def test_what_differs_is_named(spoil, message):
    x = torch.randn(3, 4)
    run = compile_graph(torch.fx.symbolic_trace(two_results), [x], spoiled(spoil))
    with pytest.raises(BackendError, match="careless") as caught:
        run([x])
    for word in message:
        assert word in str(caught.value)


def test_an_honest_backend_passes():
    x = torch.randn(3, 4)
    run = compile_graph(
        torch.fx.symbolic_trace(two_results), [x], spoiled(lambda results, inputs: results)
    )
    for result, expected in zip(run([x]), two_results(x), strict=True):
        assert torch.equal(result, expected) and result.stride() == expected.stride()
