"""ATen graphs on fake tensors, such as a machine without a GPU can make for one."""

from __future__ import annotations

import torch

from tracer_core import torch_private
from tracer_core.plugin_api import CompileSpec, InputSpec, OutputSpec, Phase, Role


class FakeGraph:
    """Builds an ATen graph on fake tensors, of any device; nothing runs."""

    def __init__(self):
        self.graph, self.mode = torch.fx.Graph(), torch_private.fake_tensor_mode(None)

    def input(self, name, *sizes, device="cpu", dtype=torch.float32):
        node = self.graph.placeholder(name)
        with self.mode:
            node.meta["val"] = torch.empty(sizes, device=device, dtype=dtype)
        return node

    def call(self, target, *args, **kwargs):
        node = self.graph.call_function(target, args, kwargs)
        values = torch.fx.map_arg(args, lambda leaf: leaf.meta["val"])
        with self.mode:
            node.meta["val"] = target(*values, **kwargs)
        return node

    def done(self, outputs, mutations=()):
        self.graph.output(tuple(outputs))
        inputs = [
            InputSpec(n.name, Role.USER_INPUT, n.name)
            for n in self.graph.find_nodes(op="placeholder")
        ]
        values = [output.meta["val"] for output in outputs]
        described = tuple(
            OutputSpec(tuple(v.shape), tuple(v.stride()), v.dtype, v.device) for v in values
        )
        spec = CompileSpec(
            "inductor", "counted", tuple(inputs), described, (), mutations, Phase.INFERENCE, None,
            "default",
            torch.device("cuda:0"), "",
        )  # fmt: skip
        return torch.fx.GraphModule(torch.nn.Module(), self.graph), spec
