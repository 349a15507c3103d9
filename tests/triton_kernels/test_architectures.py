"""Machine code for chosen architectures of GPUs, which packages hold."""

from __future__ import annotations

import pytest
import torch

import tracer_core
from tests.support.processes import reported_by_triton
from tracer_core.errors import OptionError, PackageError

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """What tests/triton_kernels/architectures.py prints, from a process in which Triton compiles."""
    return reported_by_triton(
        "tests.triton_kernels.architectures", cache=tmp_path_factory.mktemp("triton")
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("here", "runs"),
    [("80", "80"), ("86", "80"), ("90", "90")],  # 8.6 runs what is made for 8.0
)
def test_a_gpu_gets_its_machine_code_without_triton(report, here, runs):
    assert report["restored"][here] == {value: value == runs for value in ("80", "90")}


@pytest.mark.full
@pytest.mark.parametrize("here", ["75", "100"])
def test_another_gpu_is_told_what_is_held(report, here):
    assert report["restored"][here] == (
        f"it holds machine code for sm_80, sm_90, and The card is sm_{here}; make it again with"
        f" architectures=('sm_{here}',)"
    )


@pytest.mark.full
def test_what_an_architecture_cannot_run_is_said_where_the_package_is_made(report):
    refused = report["refused"]
    assert refused["unknown"].startswith("unknown architecture 'gfx90'; known: sm_70, sm_75")
    assert "bytes of shared memory, sm_86 has 101376" in refused["large"]
    assert refused["bulk"].endswith("copies blocks by tensor descriptors, which sm_80 lacks")


def test_architectures_are_for_gpus(tmp_path):
    x, path = torch.ones(2), tmp_path / "a.tracer"
    with pytest.raises(OptionError, match=r"architectures='sm_80': a sequence, \('sm_80',\)"):
        tracer_core.package(torch.sin, (x,), path, architectures="sm_80")
    with pytest.raises(PackageError, match="architectures: the graph runs on the CPU"):
        tracer_core.package(lambda x: x.sin(), (x,), path, architectures=["sm_80"])
    with pytest.raises(PackageError, match="'eager' does not offer serialize"):
        tracer_core.package(lambda x: x.sin(), (x,), path, backend="eager", architectures=["sm_80"])
    assert not path.exists()
