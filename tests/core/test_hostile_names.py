"""Names that a program brings (files, functions, arguments, attributes, keys) are data: they never
become code.
"""

from __future__ import annotations

import ast
import builtins
import keyword
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tracer_core
from tests.support import torch_server

#: Each tries to end the string, comment or line that it may be written into.
SAYS = "import builtins; builtins.planted = True"
NAMES = [
    f'"""\n{SAYS}\n"""',
    f"'''\n{SAYS}\n'''",
    f"a\n{SAYS}\n#",
    f"a\r{SAYS}",
    f"a\u2028{SAYS}",
    "*/ #error planted\n#error planted\n",
    "??/",
    "ends with \\",
    "{1} {b} %s \x00 \udcff",
    f"x] if ({SAYS.replace(';', ' or')}) else [y",
    "naïve 名前 ²",
]
IDS = ["double quotes", "single quotes", "newline", "return", "separator", "C comment", "trigraph",
"backslash", "marks",
       "expression", "letters"]  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_planted() -> Iterator[None]:
    yield
    assert not vars(builtins).pop("planted", False)


def work(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.sin(x) * 2 + y, -1).sum(0)


def named(function, name: str):
    """The function under another name, in a file of that name."""
    code = function.__code__.replace(co_filename=name, co_name=name, co_qualname=name)
    result = type(function)(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    result.__name__ = result.__qualname__ = name
    return result


@pytest.mark.sweep(keep=12)
@pytest.mark.parametrize("backend", ["eager", "aten_eager", "inductor"])
@pytest.mark.parametrize("name", NAMES, ids=IDS)
def test_files_and_functions(
    name: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACER_DEBUG", str(tmp_path / "debug"))
    function = named(work, name)
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    fast = tracer_core.compile(function, backend=backend, fullgraph=True)
    torch.testing.assert_close(fast(x, y), work(x, y))
    assert tracer_core.explain(function)(x, y).graph_count == 1 and tracer_core.last_compile(fast)
    written = sorted((tmp_path / "debug").rglob("*.py"))
    assert written
    for path in written:
        compile(path.read_text(encoding="utf-8"), str(path), "exec")


def test_the_debug_folder_runs_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACER_DEBUG", str(tmp_path / "debug"))
    says = "\nprint('planted')\n"
    for name in (f'"""{says}"""', f"'''{says}'''", says):
        tracer_core.compile(named(work, name), fullgraph=True)(torch.randn(3, 4), torch.randn(3, 4))
    modules = [
        path
        for path in sorted((tmp_path / "debug").rglob("*.py"))
        if "__main__" in path.read_text()
    ]
    assert len({path.parent for path in modules}) == 3
    for path in modules:
        done = torch_server.run([str(path)], timeout=120)
        assert done.returncode == 0 and "planted" not in done.stdout + done.stderr, (
            done.stdout + done.stderr
        )


def test_the_script_of_a_bug_report_runs_no_name(tmp_path: Path) -> None:
    fast = tracer_core.compile(named(work, "\nprint('planted')\n"), fullgraph=True)
    path = tracer_core.repro(fast, torch.randn(3, 4), torch.randn(3, 4), path=tmp_path / "a.py")
    done = torch_server.run([str(path)], timeout=120)
    assert done.returncode == 0 and "graph_0" in done.stdout and "planted\n" not in done.stdout


@pytest.mark.sweep(keep=8)
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", NAMES, ids=IDS)
def test_training(name: str, backend: str) -> None:
    function = named(work, name)
    x, y = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4)
    tracer_core.compile(function, backend=backend, fullgraph=True)(x, y)[0].backward()
    got, x.grad = x.grad, None
    work(x, y)[0].backward()
    torch.testing.assert_close(got, x.grad)


def breaks(x: torch.Tensor) -> torch.Tensor:
    for i in range(3):
        tracer_core.graph_break()
        x = torch.cos(x) + i
    return x


@pytest.mark.parametrize("name", NAMES, ids=IDS)
def test_breaks(name: str, caplog: pytest.LogCaptureFixture) -> None:
    function = named(breaks, name)
    x = torch.randn(4)
    fast = tracer_core.compile(function, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(fast(x), breaks(x))
    (said,) = (record.getMessage() for record in caplog.records if record.name == "tracer_core")
    assert name.encode("utf-8", "backslashreplace") in said.encode(
        "utf-8"
    )  # a log file can hold it


def of_named(**tensor: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(3)
    for item in tensor.values():
        total = total + torch.sin(item)
    return total


#: Names that are no identifiers for Python, or are its own words.
WORDS = ["class", "None", "print", "self", "y", "S", "graph", "MISS", "", "1", "__class__",
"torch", "math", "operator", "device",
         "sin", "args", "inf", "forward"]  # fmt: skip


@pytest.mark.parametrize("backend", ["eager", "aten_eager", "inductor", "onnxrt", "tvm"])
@pytest.mark.parametrize("names", [NAMES, WORDS], ids=["texts", "words"])
def test_arguments(names: list[str], backend: str) -> None:
    if backend not in tracer_core.list_backends():
        pytest.skip(f"no {backend}")
    inputs = {name: torch.randn(3) for name in names}
    fast = tracer_core.compile(of_named, backend=backend, fullgraph=True)
    torch.testing.assert_close(fast(**inputs), of_named(**inputs))


class Holder(torch.nn.Module):
    """Everything that it has is called as it is told."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.called = name
        self.table = {name: torch.randn(3), f"{name}2": 2.5}
        setattr(self, name, 1.5)
        eager = name.replace(".", "_") or "none"
        self.plain = eager
        self.add_module(f"{eager}m", torch.nn.Linear(3, 3))
        self.register_parameter(f"{eager}p", torch.nn.Parameter(torch.randn(3)))
        self.register_buffer(f"{eager}b", torch.randn(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = getattr(self, f"{self.plain}m")(x) * getattr(self, f"{self.plain}p") + getattr(
            self, f"{self.plain}b"
        )
        x = x * getattr(self, self.called) + self.table[self.called] * self.table[f"{self.called}2"]
        setattr(self, f"{self.called}3", 4.5)
        self.table[f"{self.called}3"] = x
        return x


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", [*NAMES, *WORDS[:2], "1"])
def test_attributes_and_keys(
    name: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACER_DEBUG", str(tmp_path / "debug"))
    model = Holder(name)
    x = torch.randn(2, 3)
    want = model(x)
    fast = tracer_core.compile(model, backend=backend, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(fast(x), want)
    assert getattr(model, f"{name}3") == 4.5
    model.table[name] = model.table[name] + 1  # guarded
    torch.testing.assert_close(fast(x), model(x))
    for path in (tmp_path / "debug").rglob("*.py"):
        compile(path.read_text(encoding="utf-8"), str(path), "exec")


@pytest.mark.parametrize("name", [*NAMES, *WORDS[:2], "1", "ﬁne"])
def test_slots_under_other_names(name: str) -> None:
    """A descriptor may stand under any name; Python reads ``.ﬁne`` in a text as ``.fine``."""

    class Slotted:
        __slots__ = ("value", "fine")

    setattr(Slotted, name, Slotted.__dict__["value"])
    slotted = Slotted()
    slotted.value, slotted.fine = torch.randn(3), 7.0

    def reads(s, x):
        return x * getattr(s, name)

    x = torch.randn(3)
    fast = tracer_core.compile(reads, backend="eager", fullgraph=True)
    torch.testing.assert_close(fast(slotted, x), x * slotted.value)
    slotted.value = torch.randn(3)
    torch.testing.assert_close(fast(slotted, x), x * slotted.value)


def test_keys_that_look_like_places_of_an_expression() -> None:
    def reads(tables, x):
        return x * (tables["{1}"]["{b}"] * tables["{2}"] + tables["{b}"])

    x = torch.randn(3)
    fast = tracer_core.compile(reads, backend="inductor", dynamic=True)
    for n in range(2, 6):
        tables = {"{1}": {"{b}": n}, "{2}": n + 10, "{b}": n + 100}
        torch.testing.assert_close(fast(tables, x), reads(tables, x))


@tracer_core.allow_in_graph
def in_graph(x: torch.Tensor, **options: float) -> torch.Tensor:
    return x + sum(options.values())


@pytest.mark.parametrize("backend", ["eager", "aten_eager", "inductor"])
@pytest.mark.parametrize("names", [NAMES, WORDS], ids=["texts", "words"])
def test_keywords_of_functions_in_the_graph(names: list[str], backend: str) -> None:
    options = {name: float(i) for i, name in enumerate(names)}

    def calls(x):
        return in_graph(torch.sin(x), **options) * 2

    x = torch.randn(3)
    fast = tracer_core.compile(calls, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(fast(x), calls(x))


def test_keywords_of_calls_at_breaks() -> None:
    def asks(**value):
        return value

    def calls(x):
        tracer_core.graph_break()
        return tracer_core.disable(asks)(word=x)

    # KW_NAMES of a code object may say what no source can.
    code = calls.__code__
    consts = tuple(("class",) if const == ("word",) else const for const in code.co_consts)
    assert consts != code.co_consts and keyword.iskeyword("class")
    calls = type(calls)(
        code.replace(co_consts=consts), calls.__globals__, "calls", None, calls.__closure__
    )
    x = torch.randn(3)
    fast = tracer_core.compile(calls, backend="eager")
    for _ in range(2):
        assert list(fast(x)) == ["class"]


@pytest.mark.parametrize("name", NAMES, ids=IDS)
def test_kernels_for_gpus(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._subclasses import FakeTensorMode

    from inductor_backend.autotune import matmul
    from tests.triton_kernels import offline

    for changed in ("choose", "build_all"):  # by `offline.program`
        monkeypatch.setattr(matmul, changed, getattr(matmul, changed))
    mode = FakeTensorMode()
    text = offline.program(
        mode, named(work, name), *offline.fakes(mode, torch.randn(3, 4), torch.randn(3, 4))
    ).text
    nodes = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    ]
    sources = [
        str(node.value.value) for node in nodes if ast.unparse(node.targets[0]).startswith("SOURCE")
    ]
    assert sources
    for source in (text, *sources):
        imports = [
            ast.unparse(node)
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Import)
        ]
        assert "import builtins" not in imports
