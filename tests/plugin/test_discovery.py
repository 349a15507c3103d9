"""What is listed, what it costs, and what a broken or doubled plug-in does."""

from __future__ import annotations

import threading

import pytest
import torch

import tracer_core
from tests.plugin.conftest import write_distribution
from tracer_core.errors import BackendNameClashError, BackendNotFoundError
from tracer_core.plugin_api import Backend, get_backend, hookimpl
from tracer_core.registry import discovery, torch_style

GOOD = """
    from tracer_core.plugin_api import Backend, hookimpl

    @hookimpl
    def tracer_backends():
        return [Backend(name="twin", compile="no_such_engine:compile_graph")]
"""

REPORT = """
    import tracer_core
    rows = [[r.name, r.distribution, r.version, r.available, r.reason] for r in tracer_core.backends()]
    try:
        tracer_core.compile(lambda x: x, backend={name!r})
        error = None
    except tracer_core.errors.TracerError as problem:
        error = [type(problem).__name__, str(problem), type(problem.__cause__).__name__]
    result = {{"rows": [r for r in rows if r[0] == {name!r}], "error": error,
              "listed": {name!r} in tracer_core.list_backends(),
              "eager": "eager" in tracer_core.list_backends()}}
"""


def test_a_plugin_that_cannot_be_imported_is_a_row_with_its_reason(environment):
    write_distribution(environment, "broken-plugin", "1.2", "broken", "import no_such_engine\n")
    report = environment.run(REPORT.format(name="broken"))
    reason = "importing broken_plugin raised ModuleNotFoundError: No module named 'no_such_engine'"
    assert report["rows"] == [["broken", "broken-plugin", "1.2", False, reason]]
    assert report["eager"] and not report["listed"]
    kind, message, cause = report["error"]
    assert (kind, cause) == ("BackendNotFoundError", "ModuleNotFoundError")
    assert "broken-plugin 1.2" in message and reason in message


HOOK = """
    from tracer_core.plugin_api import Backend, hookimpl

    @hookimpl
    def tracer_backends({arguments}):
        {body}
"""


@pytest.mark.sweep(keep=3)
@pytest.mark.parametrize(
    ("arguments", "body", "reason"),
    [
        ("", "raise OSError('disk on fire')", "its tracer_backends() raised OSError: disk on fire"),
        ("", "return ['me']", "which is no plugin_api.Backend"),
        (
            "",
            "return Backend(name='odd', compile=print)",
            "it returned Backend; a list of plugin_api.Backend",
        ),
        ("", "return []", "it returned no backend"),
        ("", "raise SystemExit(3)", "SystemExit: 3"),
        (
            "",
            "return [Backend(name='odd', compile=print, api='0')]",
            "written for version 0 of the plug-in API",
        ),
        (
            "",
            "return [Backend(name='odd', compile=print, fast=True)]",
            "unexpected keyword argument 'fast'",
        ),
        ("verbose", "return []", "PluginValidationError"),
    ],
)
def test_a_plugin_that_breaks_the_specification_is_a_row_too(environment, arguments, body, reason):
    source = HOOK.format(arguments=arguments, body=body)
    write_distribution(environment, "odd-plugin", "0.1", "odd", source)
    report = environment.run(REPORT.format(name="odd"))
    ((_, distribution, _, available, messages),) = report["rows"]
    assert (distribution, available) == ("odd-plugin", False)
    assert reason in messages
    assert report["eager"]


def test_a_hook_whose_name_is_misspelt_is_a_row(environment):
    source = HOOK.format(arguments="", body="return []").replace(
        "def tracer_backends", "def tracer_backend"
    )
    write_distribution(environment, "odd-plugin", "0.1", "odd", source)
    ((_, distribution, _, available, lines),) = environment.run(REPORT.format(name="odd"))["rows"]
    assert (distribution, available) == ("odd-plugin", False)
    assert "has the hook 'tracer_backend'" in lines and "did you mean 'tracer_backends'?" in lines


def test_two_backends_of_one_name_are_an_error_naming_both(environment):
    write_distribution(environment, "twin-one", "1.0", "one", GOOD)
    write_distribution(environment, "twin-two", "2.0", "two", GOOD)
    report = environment.run(REPORT.format(name="twin"))
    assert [row[1:4] for row in report["rows"]] == [
        ["twin-one", "1.0", False],
        ["twin-two", "2.0", False],
    ]
    assert all("twin-one 1.0 and twin-two 2.0" in row[4] for row in report["rows"])
    kind, message, _ = report["error"]
    assert kind == "BackendNameClashError"
    assert "twin-one 1.0 and by twin-two 2.0" in message
    assert not report["listed"] and report["eager"]


def test_listing_imports_no_engine(environment):
    engines = ["onnx", "onnxruntime", "onnxscript", "tvm", "triton", "sympy"]
    program = f"""
        import sys, torch
        before = set(sys.modules)
        import tracer_core
        tracer_core.list_backends(), tracer_core.backends()
        result = sorted(set({engines!r}) & (set(sys.modules) - before))
    """
    assert environment.run(program) == []


def test_importing_the_core_is_light(environment):
    program = """
        import sys, torch, time
        start = time.perf_counter()
        import tracer_core
        heavy = ("tracer_core.execution.compiled_function", "tracer_core.dispatch.compile_graph",
                 "sympy", "pytest")
        result = [name for name in heavy
                  if name in sys.modules]
    """
    assert environment.run(program) == []


def test_first_party_rows_are_honest():
    rows = {row.name: row for row in tracer_core.backends()}
    assert {"eager", "inductor", "onnxrt", "cudagraphs", "tvm"} <= rows.keys()
    assert rows["eager"].distribution == "tracer-core"
    assert rows["cudagraphs"].distribution == "cudagraphs-backend"
    assert rows["cudagraphs"].available == torch.cuda.is_available()
    assert rows["tvm"].distribution == "tvm-backend"


class Plugin:
    """Offers a backend in this process."""

    def __init__(self, *backends):
        self.backends = backends

    @hookimpl
    def tracer_backends(self):
        return list(self.backends)


def noop(graph, spec):
    return lambda inputs: graph(*inputs)


def test_a_plugin_of_this_process():
    with pytest.raises(BackendNotFoundError):
        get_backend("local")
    unregister = tracer_core.register(Plugin(Backend(name="local", compile=noop)))
    try:
        assert get_backend("local").name == "local"
        assert "local" in tracer_core.list_backends()
    finally:
        unregister()
    with pytest.raises(BackendNotFoundError):
        get_backend("local")


def test_reset_reaches_a_backend_that_another_one_used():
    calls = []
    inner = Backend(name="inner", compile=noop, reset=lambda: calls.append("inner"))

    def over(graph, spec):
        return get_backend("inner").compile(graph, spec)

    unregister = tracer_core.register(Plugin(inner))
    try:
        fast = tracer_core.compile(lambda x: x + 1, backend=Backend(name="over", compile=over))
        fast(torch.ones(2))
        assert not calls
        tracer_core.reset()
        assert calls == ["inner"]
    finally:
        unregister()


def test_nobody_may_replace_the_built_in_backend_quietly():
    unregister = tracer_core.register(Plugin(Backend(name="eager", compile=noop)))
    try:
        with pytest.raises(BackendNameClashError, match="by this process and by tracer-core"):
            get_backend("eager")
    finally:
        unregister()
    assert get_backend("eager").compile is not noop


def test_an_available_that_raises_is_the_reason():
    def broken():
        raise ImportError("libcuda.so.1")

    unregister = tracer_core.register(Plugin(Backend(name="local", compile=noop, available=broken)))
    try:
        (row,) = [row for row in tracer_core.backends() if row.name == "local"]
        assert row.reason == "its available() raised ImportError: libcuda.so.1"
    finally:
        unregister()


def test_a_plugin_is_registered_while_another_thread_discovers(monkeypatch):
    """What that thread found before is not what later look-ups see."""
    looked, registered = threading.Event(), threading.Event()
    entry_points = discovery.entry_points

    def slowly(*, group):
        if threading.current_thread().name == "discovers" and group == torch_style.GROUP:
            looked.set()
            assert registered.wait(10)
        return entry_points(group=group)

    monkeypatch.setattr(discovery, "entry_points", slowly)
    tracer_core.reset()
    thread = threading.Thread(target=tracer_core.list_backends, name="discovers", daemon=True)
    thread.start()
    assert looked.wait(10)
    unregister = tracer_core.register(Plugin(Backend(name="latecomer", compile=noop)))
    try:
        registered.set()
        thread.join(10)
        assert "latecomer" in tracer_core.list_backends()
    finally:
        unregister()
    assert "latecomer" not in tracer_core.list_backends()
