"""Compilers as users have them: named with arguments, wrapped, loud, brought by pip, or none."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from inductor_backend.runtime.cpp.toolchain import find_compiler
from tests.support import torch_server
from tracer_core.errors import CompilerMissingError

PROGRAM = """
import torch, tracer_core
from inductor_backend.runtime.cpp import toolchain

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.linear = torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(8, 4)

    def forward(self, x):
        y = torch.relu(self.conv(x)).mean((2, 3))
        return torch.softmax(self.linear(y), -1)

torch.manual_seed(0)
net, x = Net(), torch.randn(2, 3, 8, 8)
fast = tracer_core.compile(net)
for _ in range(3):
    found = fast(x)
    torch.testing.assert_close(found, net(x))
found.square().sum().backward()
gradients = [one.grad.clone() for one in net.parameters()]
net.zero_grad()
net(x).square().sum().backward()
torch.testing.assert_close(gradients, [one.grad for one in net.parameters()])
with torch.no_grad():
    torch.testing.assert_close(tracer_core.compile(net.eval())(x), net(x))
kinds = [record.text for record in tracer_core.last_compile(fast) if record.name == "fallback"]
print("fallbacks:", len(kinds))
"""


def ran(cache: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if k not in ("CXX", "CC", "TRACER_STRICT")}
    return torch_server.run(
        ["-c", PROGRAM],
        env={**inherited, "TRACER_CACHE_DIR": str(cache), **environment},
        timeout=400,
    )


def compiled(done: subprocess.CompletedProcess[str]) -> bool:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip() == "fallbacks: 0"


def test_without_a_compiler_what_was_compiled_before_runs_and_the_rest_is_eager(tmp_path):
    none = {"PATH": str(tmp_path), "PYTHONPATH": _without_zig()}
    first = ran(tmp_path / "empty", **none)
    assert not compiled(first)
    assert first.stderr.count("Until then what earlier processes have compiled is used") == 1
    assert first.stderr.count("graphs run in eager mode: no C++ compiler") == 1
    assert "apt install g++" in first.stderr and "pip install ziglang" in first.stderr
    assert compiled(ran(tmp_path / "filled"))
    assert compiled(ran(tmp_path / "filled", **none))


def _without_zig() -> str:
    """A path whose first entry hides ziglang."""
    return os.pathsep.join([str(Path(__file__).parent / "no_zig"), *sys.path])


def test_strict_raises_without_a_compiler(tmp_path):
    done = ran(tmp_path, PATH=str(tmp_path), PYTHONPATH=_without_zig(), TRACER_STRICT="1")
    assert "CompilerMissingError" in done.stderr


def test_a_compiler_named_with_arguments(tmp_path, monkeypatch):
    """Another argument is another entry of the cache; a wrapper is called by the name it has."""
    path = shutil.which("g++")
    monkeypatch.setenv("CXX", "g++ -DSOME=1")
    compiler = find_compiler()
    assert compiler.command.argv == (path, "-DSOME=1")
    monkeypatch.setenv("CXX", "g++ '-DSOME=\"a b\"'")
    other = find_compiler()
    assert other.command.argv == (path, '-DSOME="a b"')
    assert compiler.fingerprint() != other.fingerprint()
    wrapper = tmp_path / "some folder" / "ccache"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\ncase "$0" in *ccache) shift;; esac\nexec {path} "$@"\n')
    wrapper.chmod(0o755)
    (tmp_path / "g++").symlink_to(wrapper)
    assert compiled(ran(tmp_path / "a", CXX=f"'{wrapper}' g++ -pipe"))
    assert compiled(ran(tmp_path / "b", CXX=str(tmp_path / "g++")))


def test_a_compiler_that_prints_other_encodings(tmp_path):
    loud = tmp_path / "loud"
    loud.write_text('#!/bin/sh\nprintf "\\377\\376 warning\\n" >&2\nexec g++ "$@"\n')
    loud.chmod(0o755)
    assert compiled(ran(tmp_path / "cache", CXX=str(loud)))
    loud.write_text(
        '#!/bin/sh\ncase "$*" in *--version*) exec g++ --version;; esac\nprintf "\\377 no\\n" >&2\nexit 1\n'
    )
    done = ran(tmp_path / "other", CXX=str(loud))
    assert "the compiler ended with 1" in done.stderr and "UnicodeDecodeError" not in done.stderr


def test_a_linker_that_makes_junk_leaves_none(tmp_path):
    junk = tmp_path / "junk"
    junk.write_text(
        '#!/bin/sh\ncase "$*" in *-shared*) while [ "$1" != -o ]; do shift; done; echo junk > "$2"; exit 0;;\n'
        'esac\nexec g++ "$@"\n'
    )
    junk.chmod(0o755)
    done = ran(tmp_path / "cache", CXX=str(junk))
    assert "what the linker made" in done.stderr
    assert list((tmp_path / "cache" / "inductor-cpp").glob("*.so")) == []


def test_a_compiler_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "/no/such/compiler -O1")
    with pytest.raises(CompilerMissingError, match="/no/such/compiler -O1: not found"):
        find_compiler()


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="needs ziglang")
def test_the_compiler_that_pip_brings(tmp_path):
    done = ran(tmp_path / "cache", PATH=str(tmp_path))
    assert compiled(done) and done.stderr == ""
