"""Numbers that change from call to call: one recording reads them from memory, on the simulated
device.
"""

from __future__ import annotations

import pytest
import torch

from cudagraphs_backend import wrapping
from cudagraphs_backend.options import CudaGraphsOptions
from cudagraphs_backend.symbolic_scalars import WithNumbers
from tracer_core import torch_private
from tracer_core.plugin_api import CompileSpec, InputSpec, OutputSpec, Phase, Role


def graph_of_scaling():
    """x * lr, as a graph with a number among its inputs."""
    graph = torch.fx.Graph()
    x, lr = graph.placeholder("x"), graph.placeholder("lr")
    fake = torch_private.fake_tensor_mode(None).from_tensor(torch.randn(5))
    x.meta["val"], lr.meta["val"] = fake, 0.5
    result = graph.call_function(torch.ops.aten.mul.Tensor, (x, lr))
    result.meta["val"] = fake
    graph.output((result,))
    inputs = InputSpec("x", Role.USER_INPUT, "x"), InputSpec("lr", Role.NUMBER, "lr")
    outputs = (OutputSpec((5,), (1,), torch.float32, torch.device("cpu")),)
    spec = CompileSpec(
        "cudagraphs", "scaling", inputs, outputs, (), (), Phase.INFERENCE, CudaGraphsOptions(),
        "default",
        torch.device("cpu"), "",
    )  # fmt: skip
    return torch.fx.GraphModule(torch.nn.Module(), graph), spec


def scaled_by(value):
    x, _, numbers = value
    return [x * numbers[0]]


def with_numbers():
    gm, spec = graph_of_scaling()
    result = wrapping.wrap(
        scaled_by, gm, spec, numbers=lambda inputs: torch.tensor([inputs[1]], dtype=torch.float64)
    )
    assert isinstance(result.run, WithNumbers)
    return result


def test_one_recording_serves_every_number(simulated):
    runner = with_numbers()
    for number in range(8):
        x, lr = torch.randn(5), 0.1 * number
        (result,) = runner([x, lr])
        torch.testing.assert_close(result, x * lr)
    assert simulated.recordings == 1
    assert simulated.replays >= 5


def test_results_that_are_kept_do_not_change_with_the_numbers(simulated):
    runner = with_numbers()
    x = torch.randn(5)
    results = [runner([x, float(number)])[0] for number in range(6)]
    for number, result in enumerate(results):
        torch.testing.assert_close(result, x * number)


def test_numbers_in_somebody_elses_recording_are_constants(simulated, monkeypatch):
    runner = with_numbers()
    x = torch.randn(5)
    runner([x, 2.0])
    monkeypatch.setattr(simulated.simulated, "capturing", lambda: True)
    written = torch.Tensor.copy_
    monkeypatch.setattr(
        torch.Tensor, "copy_", lambda *args, **kwargs: pytest.fail("reads the host's memory later")
    )
    (result,) = runner([x, 3.0])
    monkeypatch.setattr(torch.Tensor, "copy_", written)
    torch.testing.assert_close(result, x * 3)
