"""TRACER_CPU: code for every processor of a level, not for the one here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest

from inductor_backend.native_library.entry import _CHECKS
from tests.support import torch_server
from tracer_core.errors import OptionError
from tracer_core.storage import processor
from tracer_core.storage.processor import LEVELS, features, level

PROGRAM = """
import sys, torch, tracer_core
from torch import nn
torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32)
        self.second, self.depthwise = nn.Conv2d(32, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1, groups=64)
        self.lstm, self.head = nn.LSTM(64, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, x):
        x = self.depthwise(self.second(self.norm(self.first(x)).relu()).relu())
        x = nn.functional.max_pool2d(x, 2).flatten(2).transpose(1, 2)
        x = x + nn.functional.scaled_dot_product_attention(x, x, x)
        return self.head(self.lstm(x)[0]).log_softmax(-1).cumsum(1)

x = torch.randn(2, 3, 33, 41)
net = Net().eval()
"""

TRAINED = """
want = net(x)
wanted = torch.autograd.grad(want.sin().sum(), list(net.parameters()))
got = tracer_core.compile(net)(x)
torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
for one, other in zip(torch.autograd.grad(got.sin().sum(), list(net.parameters())), wanted):
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))
with torch.no_grad():
    frozen = tracer_core.compile(net, options={"freeze": True})
    torch.testing.assert_close(frozen(x), net(x), rtol=1e-4, atol=1e-4)
"""

PACKAGED = """
with torch.no_grad():
    tracer_core.package(lambda x: net.norm(net.first(x)).relu().softmax(-1), (x,), sys.argv[1])
"""

LOADED = """
with torch.no_grad():
    got = tracer_core.load_package(sys.argv[1])(x)
    torch.testing.assert_close(got, net.norm(net.first(x)).relu().softmax(-1))
"""

#: Two processors of Arm's, as Linux describes them: Graviton2 and Grace.
GRAVITON, GRACE = (
    f"processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: {part}\n"
    for part in ("0xd0c", "0xd4f")
)

_HAVE = [item for item, needed in LEVELS.items() if needed <= features()]


def run(text, tmp_path, cpu, *arguments):
    environment = {**os.environ, "TRACER_CACHE_DIR": str(tmp_path / "cache"), "TRACER_STRICT": "1"}
    return torch_server.run(
        ["-c", PROGRAM + text, *map(str, arguments)],
        timeout=300,
        env=environment | ({"TRACER_CPU": cpu} if cpu else {}),
    )


def registers(tmp_path):
    """The vector registers in all libraries of the cache."""
    items = set()
    for path in (tmp_path / "cache").rglob("*.so"):
        text = subprocess.run(["objdump", "-d", path], capture_output=True, text=True).stdout
        items.update(re.findall(r"%([xyz]mm)", text))
    return items


@pytest.mark.sweep(keep=1)
@pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump reads the machine code")
@pytest.mark.parametrize("cpu", _HAVE)
def test_code_is_for_the_level(tmp_path, cpu):
    done = run(TRAINED, tmp_path, cpu)
    assert done.returncode == 0, done.stderr[-3000:]
    widest = {"x86-64-v2": "xmm", "x86-64-v3": "ymm", "x86-64-v4": "zmm"}[cpu]
    assert max(registers(tmp_path)) == widest


def test_processors_of_arm_are_told_apart(monkeypatch):
    """Code compiled for one may be wrong for the other, and Linux gives them no name."""
    names = []
    for text in (GRAVITON, GRACE):
        monkeypatch.setattr(processor.Path, "read_text", lambda *_, text=text, **__: text)
        names.append(processor.processor.__wrapped__())
    assert names[0].endswith("0x41 0xd0c") and names[1].endswith("0x41 0xd4f")


@pytest.mark.skipif(
    not (shutil.which("aarch64-linux-gnu-g++") and shutil.which("qemu-aarch64-static")),
    reason="apt-get install g++-aarch64-linux-gnu qemu-user-static",
)
def test_a_native_library_finds_what_an_arm_processor_lacks(tmp_path):
    checks = "".join(
        f"#ifdef {macro}\nif (!{has}) return 1;\n#endif\n" for macro, has in _CHECKS.items()
    )
    source, program = tmp_path / "fits.cpp", tmp_path / "fits"
    source.write_text(f"#include <sys/auxv.h>\nint main() {{\n{checks}return 0;\n}}\n")
    for made_for, runs_on, wanted in (
        ("cortex-a57", "cortex-a57", 0),
        ("neoverse-n1", "neoverse-n1", 0),
        ("neoverse-n1", "cortex-a57", 1),
        ("neoverse-v1", "neoverse-n1", 1),
        ("neoverse-v1", "max", 0),
        ("neoverse-n2", "max,sve=off", 1),
    ):
        compiler = ["aarch64-linux-gnu-g++", f"-mcpu={made_for}", "-static", source, "-o", program]
        subprocess.run(compiler, check=True)
        emulated = subprocess.run(["qemu-aarch64-static", "-cpu", runs_on, program])
        assert emulated.returncode == wanted, (made_for, runs_on)


@pytest.mark.skipif(not _HAVE, reason="levels are of x86-64")
def test_a_package_is_for_the_level(tmp_path):
    cpu, path = _HAVE[-1], tmp_path / "net.tracer"
    for text, setting in ((PACKAGED, cpu), (LOADED, cpu)):
        done = run(text, tmp_path, setting, path)
        assert done.returncode == 0, done.stderr[-3000:]
    done = run(LOADED, tmp_path, "", path)
    assert f"was made with TRACER_CPU={cpu}, and here it is not set; set it alike" in done.stderr


def test_a_level_that_is_not_there(monkeypatch):
    monkeypatch.setenv("TRACER_CPU", "skylake")
    with pytest.raises(OptionError, match="TRACER_CPU='skylake': x86-64-v2, x86-64-v3, x86-64-v4"):
        level()
    monkeypatch.setenv("TRACER_CPU", "x86-64-v4")
    monkeypatch.setattr(processor, "features", lambda: LEVELS["x86-64-v3"])
    with pytest.raises(OptionError, match="lacks avx512bw, avx512cd"):
        level()
