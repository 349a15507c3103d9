"""A GPU machine on which something is missing: each message says what, and what to do. No GPU is
needed: torch and Triton are told of one."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton")

import triton
from triton.runtime import driver as triton_driver

from inductor_backend.runtime.cuda import build, measurement_store, requirements
from inductor_backend.runtime.cuda.build import load_kernels
from inductor_backend.runtime.cuda.triton_compile import Kernel, target_of
from tracer_core.plugin_api import BackendError

CUDA = torch.device("cuda", 0)
DOUBLED = Kernel(
    "doubled",
    "@triton.jit\ndef doubled(p0, p1, XBLOCK: tl.constexpr):\n"
    "    x = tl.arange(0, XBLOCK)\n    tl.store(p1 + x, tl.load(p0 + x) * 2)\n",
    ["*fp32", "*fp32"],
    0,
    {"XBLOCK": 32},
    1,
)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A device of compute capability 8.0 that kernels are built for, and nothing that was found out
    before.
    """

    class Here:
        def __init__(self, *args):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

    class Active:
        @staticmethod
        def get_current_target():
            return target_of(80)

    monkeypatch.setattr(torch.cuda, "device", Here)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number=0: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number=0: "a device")
    monkeypatch.setattr(triton_driver, "_active", Active())
    for name in requirements._SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRACER_CACHE_DIR", str(tmp_path))
    _forget()
    yield
    _forget()
    os.environ.pop("TRITON_CACHE_DIR", None)  # monkeypatch puts back what was there before
    build._futures.clear()


def _forget():
    for known in (requirements.demand_triton, requirements._demand_device, requirements._driver):
        known.cache_clear()


def refused():
    with pytest.raises(BackendError) as error:
        load_kernels([DOUBLED], CUDA)
    return str(error.value)


def test_no_triton(machine, monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    text = refused()
    assert "need Triton" in text
    assert "pip install 'triton>=3.6'" in text
    assert "backend='cudagraphs'" in text


def test_an_old_triton(machine, monkeypatch):
    monkeypatch.setattr(triton, "__version__", "3.2.0")
    assert "Triton 3.2.0 is too old: pip install 'triton>=3.6'" in refused()
    monkeypatch.setattr(triton, "__version__", "3.10.1+git1")
    requirements.active_target()


def test_an_old_device(machine, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number=0: (5, 0))
    assert "a device has compute capability 5.0; Triton makes code for 7.0 and newer" in refused()


def test_a_torch_for_other_gpus(machine, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert "is for AMD GPUs" in refused()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            RuntimeError("Failed to find C compiler. Please specify via CC environment variable"),
            "apt install gcc",
        ),
        (subprocess.CalledProcessError(1, ["gcc"]), "apt install python3-dev"),
        (PermissionError(13, "Permission denied", "/root/.triton"), "set TRITON_CACHE_DIR"),
        (RuntimeError("0 active drivers ([]). There should only be one."), "0 active drivers"),
    ],
)
def test_triton_cannot_reach_the_device(machine, monkeypatch, error, words):
    def fails():
        raise error

    monkeypatch.setattr(triton_driver, "_active", None)
    monkeypatch.setattr(type(triton_driver), "default", property(lambda self: fails()))
    text = refused()
    assert "Triton cannot reach the GPU" in text
    assert words in text


def test_triton_keeps_its_files_where_ours_are(machine, tmp_path, monkeypatch):
    requirements.active_target()
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "triton")
    assert triton.knobs.cache.dir == str(tmp_path / "triton")
    assert (tmp_path / "triton").stat().st_mode & 0o777 == 0o700
    _forget()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "mine"))
    requirements.active_target()
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "mine")


def test_a_cache_folder_that_cannot_be_written_to(machine, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRACER_CACHE_DIR", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        requirements.active_target()
    assert "compiled again in each process (no disk cache" in caplog.text
    assert os.path.isdir(os.environ["TRITON_CACHE_DIR"])
    # What max-autotune measures is not kept, and nothing fails.
    assert measurement_store.lookup("key", CUDA) is None
    measurement_store.insert("key", CUDA, {"chosen": "a"})
    assert measurement_store.lookup("key", CUDA) == "a"  # in the temporary folder of this process

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tracer_core.storage.store.os.replace", full)
    measurement_store.insert("key", CUDA, {"chosen": "a"})
    assert "not stored, and measured again" in caplog.text


def test_a_full_disk_and_a_damaged_cache(machine, monkeypatch, tmp_path):
    def stops(error):
        def compile(*args, **kwargs):
            raise error

        monkeypatch.setattr(triton, "compile", compile)
        build._futures.clear()
        return refused()

    text = stops(OSError(28, "No space left on device"))
    assert f"Triton's cache is {tmp_path}/triton: make room there" in text
    assert f"may be damaged: remove {tmp_path}/triton" in stops(
        json.JSONDecodeError("Expecting value", "", 0)
    )
    assert "damaged" not in stops(RuntimeError("PassManager::run failed"))
