"""fullgraph=True never runs the program eagerly; folders that cannot be written to never switch
compilation off.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tracer_core
from tests.support import torch_server
from tracer_core.errors import GraphBreakError, TracerError
from tracer_core.execution.capture.trace import Abandoned
from tracer_core.execution.entry import builder as entry_builder
from tracer_core.graph_breaks import RunEagerly
from tracer_core.plugin_api import Backend


@pytest.fixture(autouse=True)
def as_users_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACER_STRICT")


def scaled(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2


@pytest.mark.parametrize(
    "fault", [RuntimeError("a bug"), OSError(28, "No space left on device"), Abandoned("gave up")]
)
def test_internal_errors(
    fault: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.randn(3)
    with monkeypatch.context() as patch:

        def fails(*_: Any) -> Any:
            raise fault

        patch.setattr(entry_builder.EntryBuilder, "finish", fails)
        full = tracer_core.compile(scaled, backend="eager", fullgraph=True)
        for _ in range(2):  # at each call
            with pytest.raises(
                TracerError, match=r"fullgraph=True, but scaled cannot be captured"
            ) as caught:
                full(x)
            assert str(fault.args[-1]) in str(caught.value)
        assert caplog.text == ""
        compiled = tracer_core.compile(scaled, backend="eager")
        torch.testing.assert_close(compiled(x), scaled(x))
        assert "scaled runs eagerly" in caplog.text
    torch.testing.assert_close(full(x), scaled(x))  # what failed once is captured when it can be


@pytest.mark.parametrize("always", [False, True])
def test_calls_that_a_trace_cannot_follow(always: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from tracer_core.trace.native_calls import NativeCalls

    def refuses(*_: Any) -> Any:
        raise RunEagerly("calls are nested too deep", always)

    monkeypatch.setattr(NativeCalls, "call_torch", refuses)
    with pytest.raises(
        TracerError,
        match="fullgraph=True, but scaled cannot be captured: calls are nested too deep",
    ):
        tracer_core.compile(scaled, backend="eager", fullgraph=True)(torch.randn(3))
    x = torch.randn(3)
    torch.testing.assert_close(tracer_core.compile(scaled, backend="eager")(x), scaled(x))


def broken_engine(graph: Any, spec: Any) -> Callable[[list[Any]], Any]:
    def run(inputs: list[Any]) -> Any:
        raise MemoryError("the engine")

    return run


def test_graphs_that_raise_what_the_program_does_not() -> None:
    x = torch.randn(3)
    backend = Backend(name="broken", compile=broken_engine, ir="torch", shapes="symbolic")
    torch.testing.assert_close(tracer_core.compile(scaled, backend=backend)(x), scaled(x))
    with pytest.raises(
        TracerError, match="fullgraph=True, but a graph of scaled raised MemoryError"
    ):
        tracer_core.compile(scaled, backend=backend, fullgraph=True)(x)


def test_what_the_program_raises_stays_its_own() -> None:
    def raises(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[i]

    compiled = tracer_core.compile(raises, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(torch.arange(3.0), torch.tensor([1])), torch.tensor([1.0]))
    with pytest.raises(IndexError):
        compiled(torch.arange(3.0), torch.tensor([7]))


def test_sizes_that_depend_on_data() -> None:
    def chosen(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0] * 2

    x = torch.tensor([1.0, 2.0, 3.0, -1.0])
    item = torch.tensor([1.0, -2.0, -3.0, -1.0])
    eager = tracer_core.compile(chosen, backend="inductor")
    full = tracer_core.compile(chosen, backend="inductor", fullgraph=True)
    for compiled in (eager, full):
        torch.testing.assert_close(compiled(x), chosen(x))
    torch.testing.assert_close(eager(item), chosen(item))
    with pytest.raises(
        GraphBreakError,
        match="a size that depends on data is not what the graph was captured for: u0 >= 2",
    ):
        full(item)


# Folders
# --------------------------------------------------------------------------------------------

#: In the place of PREPARE: what is done after the imports.
PROGRAM = """
import os
import torch, tracer_core, tracer_core.execution.compiled_function, tracer_core.explanation, inductor_backend.plugin
from tracer_core.trace import tracer
BACKENDS = ('eager', 'inductor')
PREPARE
def f(x):
    return torch.softmax(torch.sin(x) * 2, -1)

def g(x):
    return torch.cos(x) + 1

x = torch.randn(3, 4)
for backend in BACKENDS:
    for function in (f, g):
        fast = tracer_core.compile(function, fullgraph=True, backend=backend)
        for _ in range(2):
            assert torch.allclose(fast(x), function(x), atol=1e-6)
        texts = [record for record in tracer_core.last_compile(fast) if record.text]
        assert texts
        assert tracer_core.explain(function)(x).graph_count == 1
print("done")
"""


def run(prepare: str = "", **environment: str) -> str:
    """stderr of the program."""
    inputs = {**os.environ, **environment}
    del inputs["HOME"]
    program = PROGRAM.replace("PREPARE", prepare)
    done = torch_server.run(["-c", program], env=inputs, timeout=300)
    assert done.returncode == 0 and done.stdout == "done\n", done.stdout + done.stderr
    return done.stderr


@pytest.fixture
def in_the_way(tmp_path: Path) -> str:
    """A file where a folder is wanted."""
    (tmp_path / "file").write_text("")
    return str(tmp_path / "file")


def test_a_debug_folder_that_cannot_be_made(in_the_way: str) -> None:
    said = run(TRACER_DEBUG=in_the_way)
    assert (
        said.count(f"TRACER_DEBUG: {in_the_way} cannot be written to (File exists)") == 1
        and said.count("\n") == 1
    ), said


def test_a_debug_folder_in_which_a_file_cannot_be_written(tmp_path: Path) -> None:
    prepare = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    prepare += "; BACKENDS = ('eager',)"  # nothing can be written anywhere, so nothing can be built
    said = run(prepare, TRACER_DEBUG=str(tmp_path), TRACER_PYTHON_GUARDS="1")
    assert said.count("TRACER_DEBUG") == 1 and "File too large" in said and said.count("\n") == 1


def test_a_working_folder_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    said = run(f"os.chdir({str(tmp_path / 'gone')!r}); os.rmdir(os.getcwd())", TRACER_DEBUG="1")
    assert (
        said.count("TRACER_DEBUG: tracer_debug cannot be written to") == 1 and said.count("\n") == 1
    )


def test_a_user_who_is_in_no_list_of_users() -> None:
    """As in a container: there is no home folder to keep anything in."""
    prepare = """
import pwd
def unknown(uid):
    raise KeyError(uid)
pwd.getpwuid = unknown
"""
    said = run(prepare, TRACER_CACHE_DIR="", XDG_CACHE_HOME="")
    assert (
        said.count("Could not determine home directory") == said.count("Set TRACER_CACHE_DIR") == 1
    ), said
