"""The out-of-tree example in examples/third-party-backend, installed by pip and taken out again."""

from __future__ import annotations

from tests.plugin.conftest import REPOSITORY

LISTED = """
    import tracer_core
    rows = {row.name: row for row in tracer_core.backends()}
    row = rows.get("peephole")
    result = {
        "listed": "peephole" in tracer_core.list_backends(),
        "row": row and [row.distribution, row.version, list(row.devices), row.shapes, row.reason],
    }
"""

USED = """
    import sys, torch, tracer_core
    from tracer_core.plugin_api import compile_graph

    def f(x, a, b):
        return torch.relu(x + a * b) + a * x

    torch.manual_seed(0)
    listed = "peephole" in tracer_core.list_backends()
    listed_without_engine = listed and "peephole_backend.engine" not in sys.modules
    inputs = [torch.randn(3, 4) for _ in range(3)]
    run = compile_graph(torch.fx.symbolic_trace(f), inputs, "peephole")
    close = all(torch.allclose(run(list(inputs))[0], f(*inputs), atol=1e-5) for _ in range(2))
    result = [listed_without_engine, close, "peephole_backend.engine" in sys.modules]
"""

COMPILED = """
    import os, tempfile
    os.environ["TRACER_DEBUG"] = tempfile.mkdtemp()
    import torch, tracer_core

    tracer_core.reset()  # the programs before this one
    torch.manual_seed(0)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.randn(4))

        @torch.no_grad()
        def forward(self, x, y):
            return x + y * self.scale

    model = Model()
    fast = tracer_core.compile(model, backend="peephole", fullgraph=True, options={"max_fusions": 1})
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    result = [
        torch.allclose(fast(x, y), model(x, y), atol=1e-5),
        any("1 fusions" in record.text for record in tracer_core.last_compile(fast)),
    ]
    del os.environ["TRACER_DEBUG"]
    tracer_core.reset()
"""

COUNTED = """
    import torch, tracer_core
    from peephole_backend.engine import reports

    @torch.no_grad()
    def program(x, w, a):
        y = x * torch.sigmoid(x)
        z = a + y @ w
        return z + y * a, torch.sigmoid(z) * z, x + 2 * a, torch.arange(3) + torch.arange(3) * 2

    fast = tracer_core.compile(program, backend="peephole", fullgraph=True)
    torch.manual_seed(0)
    inputs = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4)
    # Fused sums round once: where summands cancel, the difference is one of their roundings, not of the sum's.
    close = all(torch.allclose(one, other, atol=1e-5) for one, other in zip(fast(*inputs), program(*inputs)))
    (report,) = reports()
    tracer_core.reset()
    result = [close, report.rewrites, report.before - report.after, len(reports())]
"""

CONFORMS = """
    from tracer_core.testing.conformance import bad, everything, table
    result = table(bad(everything("peephole", sample=20, seed=3)))
"""

GONE = """
    import tracer_core
    try:
        tracer_core.compile(lambda x: x, backend="peephole")
        result = "found"
    except tracer_core.errors.BackendNotFoundError as error:
        result = str(error)
"""


def test_install_use_uninstall(environment):
    assert environment.run(LISTED) == {"listed": False, "row": None}
    environment.install(REPOSITORY / "examples" / "third-party-backend")
    listed, used, compiled, counted, faults = environment.run_in_turn(
        LISTED, USED, COMPILED, COUNTED, CONFORMS
    )
    assert listed == {
        "listed": True,
        "row": ["peephole-backend", "0.3.0", ["cpu", "cuda"], "symbolic", None],
    }
    assert used == [True, True, True]
    assert compiled == [True, True]
    assert counted == [True, {"addcmul": 1, "addmm": 1, "silu": 2}, 4, 0]
    assert faults == ""
    environment.pip("uninstall", "--yes", "peephole-backend")
    listed, error = environment.run_in_turn(LISTED, GONE)
    assert listed == {"listed": False, "row": None}
    assert "no backend named 'peephole'" in error
