"""Objects that entries refer to by identity: another process finds them, and captures nothing again."""

from __future__ import annotations

import textwrap

import pytest

#: Name -> a program: `call(x, eager)` is called four times, `run` is compiled.
PROGRAMS = {
    "an integer that the program reads and returns": """
        class Config:
            def __init__(self):
                self.limit = 4096
        config = Config()
        def run(x):
            y = x + 1
            tracer_core.graph_break()
            return y, {"limit": config.limit}
    """,
    "texts made in the trace": """
        class Table:
            name = "a name with spaces"
        def run(x):
            names = [f"{Table.name}: {i}" for i in range(3)]
            tracer_core.graph_break()
            return x * 2, names
    """,
    "item() in a loop": """
        def run(x):
            total = 0.0
            for i in range(2):
                total += (x * i).sum().item()
            return x * 2, total
    """,
    "a context manager across a graph break": """
        @contextlib.contextmanager
        def scope(x):
            yield x * 2
        def run(x):
            with scope(x) as y:
                tracer_core.graph_break()
                return y + 1
    """,
    "a method behind a decorator": """
        def checked(function):
            @functools.wraps(function)
            def wrapper(*args):
                return function(*args) + 1
            return wrapper
        class Net:
            @checked
            def forward(self, x):
                tracer_core.graph_break()
                return x * 2
        net = Net()
        def run(x):
            return net.forward(x)
    """,
    "code that is read and not run": """
        def helper(x, y):
            return x * y
        def run(x):
            return x * helper.__code__.co_argcount
    """,
    "the hash of a text in an object that is copied": """
        class Config:
            def __init__(self):
                self.scale, self.fingerprint = 2, hash("text")
        config = Config()
        def run(x):
            own = copy.deepcopy(config)
            return x * own.scale, own.fingerprint
    """,
}

FRAME = """
import contextlib, copy, functools
import torch
import tracer_core
{program}
fast = tracer_core.compile(run)
with torch.no_grad():
    for i in range(4):
        x = torch.ones(3) + i
        actual, expected = fast(x), run(x)
        assert str(actual) == str(expected), (actual, expected)
rows = tracer_core.last_compile(fast)
print(rows[0].text, "| traces:", sum(row.name == "trace" for row in rows))
"""


@pytest.mark.parametrize("name", PROGRAMS)
def test_another_process_captures_nothing(name, start):
    text = FRAME.format(program=textwrap.dedent(PROGRAMS[name]))
    first, second = (
        start("here", text, PYTHONHASHSEED=seed, TRACER_ALWAYS_COMPILED="1") for seed in "12"
    )
    assert first[0].startswith("miss") and second[0].startswith("hit"), (first, second)
    assert "do not fit" not in "".join(second) and second[-1].endswith("traces: 0"), second
