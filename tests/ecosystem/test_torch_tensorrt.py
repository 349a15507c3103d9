"""Torch-TensorRT needs an NVIDIA GPU: a stand-in distribution of its shape is installed, listed and
used in its place.

Its shape (2.x): the distribution ``torch_tensorrt`` has no entry points; importing it registers
``torch_tensorrt.dynamo.backend:torch_tensorrt_backend(gm, sample_inputs, **kwargs)`` with torch's
compiler, and the user's settings come in ``kwargs["options"]``.
"""

from __future__ import annotations

import textwrap

from tests.plugin.conftest import Environment, environment  # noqa: F401  (a fixture)

POLYFILL = """
    import torch

    SEEN = []


    def torch_tensorrt_backend(gm, sample_inputs, **kwargs):
        SEEN.append((len(sample_inputs), [type(value) for value in sample_inputs], kwargs))
        settings = kwargs.get("options", {})
        if settings.get("pass_through_build_failures"):
            raise RuntimeError("[TRT] [E] no converter for aten.frobnicate")
        return gm.forward
"""

LISTED = """
    import sys, tracer_core
    rows = {row.name: row for row in tracer_core.backends()}
    row = rows.get("torch_tensorrt")
    result = [row and [row.distribution, row.version, row.available], "torch_tensorrt" in sys.modules,
              "torch_tensorrt" in tracer_core.list_backends()]
"""

USED = """
    import torch, tracer_core
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    options = {"enabled_precisions": {"f16"}, "min_block_size": 1}
    fast = tracer_core.compile(model, backend="torch_tensorrt", options=options, fullgraph=True)
    x = torch.randn(3, 4)
    with torch.no_grad():
        close = all(torch.allclose(fast(x), model(x)) for _ in range(2))
    from torch_tensorrt.dynamo.backend import SEEN
    ((count, kinds, kwargs),) = SEEN
    failing = tracer_core.compile(model, backend="torch_tensorrt", options={"pass_through_build_failures": True})
    try:
        failing(x)
    except tracer_core.errors.BackendError as error:
        failure = str(error)
    result = [close, count, all(issubclass(kind, torch.Tensor) for kind in kinds), kwargs == {"options": options}, failure]
"""

MISSING = """
    import tracer_core
    try:
        tracer_core.compile(lambda x: x, backend="torch_tensorrt")
    except tracer_core.errors.BackendNotFoundError as error:
        result = str(error)
"""


def install(environment: Environment, entry_points: str = "") -> None:  # noqa: F811
    package = environment.site_packages / "torch_tensorrt" / "dynamo" / "backend"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(textwrap.dedent(POLYFILL))
    for folder in (package.parent, package.parent.parent):
        (folder / "__init__.py").write_text("")
    info = environment.site_packages / "torch_tensorrt-2.13.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_tensorrt\nVersion: 2.13.0\n")
    if entry_points:
        (info / "entry_points.txt").write_text(entry_points)


def test_installed_listed_and_used(environment):  # noqa: F811
    assert environment.run(LISTED) == [None, False, False]
    assert "pip install torch-tensorrt" in environment.run(MISSING)
    install(environment)
    assert environment.run(LISTED) == [["torch_tensorrt", "2.13.0", True], False, True]
    close, inputs, tensors, options, failure = environment.run(USED)
    assert close and inputs == 5 and tensors and options
    assert "torch_tensorrt" in failure and "no converter for aten.frobnicate" in failure


def test_an_entry_point_of_its_own_is_no_clash(environment):  # noqa: F811
    install(
        environment,
        "[torch_dynamo_backends]\ntorch_tensorrt = torch_tensorrt.dynamo.backend:torch_tensorrt_backend\n",
    )
    assert environment.run(LISTED)[0] == ["torch_tensorrt", "2.13.0", True]
