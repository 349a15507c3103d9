"""What the backend does not take runs eagerly, and the rest is compiled."""

from __future__ import annotations

import pytest
import torch

from inductor_backend.passes.op_support import supports
from tests.inductor.compiling import compiled
from tracer_core.dispatch.compile_graph import compile_graph
from tracer_core.dispatch.validation import build_config
from tracer_core.plugin_api import BackendError
from tracer_core.testing import torch_graph

PROGRAMS = {
    "no lowering": lambda x: torch.special.airy_ai(x + 1) * 2,
    "complex numbers": lambda x: (torch.view_as_real(torch.fft.fft(x + 1) * 2j)).sum(-1) + 1,
    "ceil mode": lambda x: torch.nn.functional.avg_pool1d((x + 1)[None], 2, ceil_mode=True) * 2,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_rest_runs_eagerly(name):
    fn, x = PROGRAMS[name], torch.randn(5, 7)
    with torch.no_grad():
        runner = compile_graph(torch_graph(fn, (x,)), build_config(backend="inductor"))
    (result,) = runner([x.clone()])
    torch.testing.assert_close(result, fn(x), atol=1e-4, rtol=1e-4)


def test_a_reason_is_given():
    low = compiled(lambda x: x + 1, torch.randn(3), until="lower").lowered
    (node,) = low.graph.graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor)
    assert supports(node) is None
    node.target = torch.ops.aten.special_airy_ai.default
    assert "neither a lowering" in supports(node)


def test_without_partition_an_unknown_operator_is_named_with_the_users_line():
    with pytest.raises(
        BackendError, match=r"special_airy_ai.*fallback table.*test_supports\.py:\d+"
    ):
        compiled(lambda x: torch.special.airy_ai(x), torch.randn(3))
