"""Machine code that another process finds without Triton, for a device that need not be there."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

import triton

from inductor_backend.runtime.cuda import kernel_store
from inductor_backend.runtime.cuda.triton_compile import Binary, Kernel

TEXT = "@triton.jit\ndef double(p0, p1, XBLOCK: tl.constexpr):\n    x = tl.arange(0, XBLOCK)\n    tl.store(p1 + x, {})\n"
DOUBLE = Kernel(
    "double",
    "# model.py:7\n" + TEXT.format("tl.load(p0 + x) * 2"),
    ["*fp32", "*fp32"],
    0,
    {"XBLOCK": 32},
    1,
)
MADE = Binary(
    "double", b"\x7fELF" + bytes(range(256)), 1, 512, 0, [{"block_size": [16, 64], "swizzle": 3}]
)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACER_CACHE_DIR", str(tmp_path))
    return tmp_path


def files(folder: Path) -> list[Path]:
    return [path for path in folder.glob("triton-kernels-*/*") if path.name != "lock"]


def test_what_is_kept_comes_back(folder):
    assert kernel_store.load(DOUBLE, 90) is None and not kernel_store.any_here()
    kernel_store.store(DOUBLE, 90, MADE)
    assert kernel_store.load(DOUBLE, 90) == MADE and kernel_store.any_here()
    (path,) = files(folder)
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_comment_is_no_other_kernel_and_all_else_is():
    kernel_store.store(DOUBLE, 90, MADE)
    inputs = {
        name: getattr(DOUBLE, name)
        for name in ("name", "text", "pointers", "sizes", "constants", "warps")
    }
    assert (
        kernel_store.load(
            Kernel(**inputs | {"text": "# other.py:1\n" + TEXT.format("tl.load(p0 + x) * 2")}), 90
        )
        == MADE
    )
    for change in (
        {"text": TEXT.format("tl.load(p0 + x) * 3")}, {"pointers": ["*fp16", "*fp32"]},
        {"warps": 2},
        {"constants": {"XBLOCK": 64}}, {"sizes": 1},
    ):  # fmt: skip
        assert kernel_store.load(Kernel(**inputs | change), 90) is None, change
    assert kernel_store.load(DOUBLE, 80) is None
    assert kernel_store.load(DOUBLE, 90, aligned=False) is None


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "gone"])
def test_a_damaged_file_is_none_and_is_written_again(folder, damage):
    kernel_store.store(DOUBLE, 90, MADE)
    (path,) = files(folder)
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(
            {"cut": data[:-9], "changed": data[:100] + b"?" + data[101:], "empty": b""}[damage]
        )
    assert kernel_store.load(DOUBLE, 90) is None
    kernel_store.store(DOUBLE, 90, MADE)
    assert kernel_store.load(DOUBLE, 90) == MADE


def test_settings_of_triton(monkeypatch):
    kernel_store.store(DOUBLE, 90, MADE)
    for name, value in (("TRITON_ALWAYS_COMPILE", "1"), ("TRITON_KERNEL_DUMP", "1"),
    ("DISABLE_PTXAS_OPT", "1"),
                        ("TRITON_DEFAULT_FP_FUSION", "0"), ("TRITON_CACHE_DIR",
                        "/elsewhere")):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert kernel_store.load(DOUBLE, 90) is None, name
    with triton.knobs.nvidia.scope():
        triton.knobs.nvidia.ptxas_options = "-O1"
        assert kernel_store.load(DOUBLE, 90) is None
    assert kernel_store.load(DOUBLE, 90) == MADE


def test_another_triton(monkeypatch, tmp_path):
    """An installation is told by its files."""
    compiler = tmp_path / "triton" / "compiler" / "compiler.py"
    compiler.parent.mkdir(parents=True)
    compiler.write_text("one")
    spec = importlib.util.spec_from_file_location(
        "triton",
        tmp_path / "triton" / "__init__.py",
        submodule_search_locations=[str(tmp_path / "triton")],
    )
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: spec)
        kernel_store._triton.cache_clear()
        kernel_store.store(DOUBLE, 90, MADE)
        assert kernel_store.load(DOUBLE, 90) == MADE
        compiler.write_text("another")
        assert (
            kernel_store.load(DOUBLE, 90) == MADE
        )  # not while the process lives, which has imported the first
        kernel_store._triton.cache_clear()
        assert kernel_store.load(DOUBLE, 90) is None
    kernel_store._triton.cache_clear()


def test_a_folder_that_cannot_be_written_to(monkeypatch, caplog):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tracer_core.storage.store.os.replace", full)
    with caplog.at_level("INFO", logger="tracer_core"):
        kernel_store.store(DOUBLE, 90, MADE)
    assert "double is not kept: " in caplog.text and "No space left on device" in caplog.text
    assert kernel_store.load(DOUBLE, 90) is None


def test_a_second_process_needs_no_triton():
    """As it is compiled for a device."""
    begin = (
        "import sys\nfrom inductor_backend.runtime.cuda.triton_compile import Kernel, binary_of, target_of\n"
        f"kernel = {DOUBLE!r}\n"
    )
    first = (
        "from inductor_backend.runtime.cuda import build as triton_build\n"
        "assert triton_build._known(kernel, 90) is None\n"
        "triton_build._binary(binary_of, kernel, target_of(90))\n"
    )
    second = (
        "from inductor_backend.runtime.cuda import build as triton_build\n"
        "found = triton_build._known(kernel, 90).result()\n"
        "assert (found.name, found.code[:4]) == ('double', b'\\x7fELF'), found\n"
        "assert not any(name.partition('.')[0] == 'triton' for name in sys.modules)\n"
    )
    for program in (first, second):
        subprocess.run(
            [sys.executable, "-c", begin + program],
            check=True,
            env=os.environ | {"TRITON_INTERPRET": "0"},
        )
