"""Hostile names, generated from a seed: what ends strings, comments and lines, and runs a marker."""

from __future__ import annotations

import ast
import builtins
import keyword
import random
import string
from collections.abc import Callable
from typing import Any

SAYS = "import builtins; builtins.planted = True"
ASKS = "__import__('builtins').__setattr__('planted', True)"

PIECES = (
    '"""', "'''", '"', "'", "\\", "\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028",
    "\u2029", "\x00", "\x1b[2J", "\udcff", "\ud800", "\U0001f600", "\u202e", "*/", "/*", "//", "#",
    "??/", "??/\n", "?>", "%s", "%n", "{", "}", "{0}", "{x}", "{{", "\\N{BULLET}", "\\u0041", "\\x00",
    "$(id)", "`id`", ";", ")", "]", "(", "[", ",", ":", "=", "\t", " ", "../", "/", "|", "<", ">", "&",
    "\n#error planted\n", '"\n#include "/etc/passwd"\n', "))) or ", "\nimport os\n", "_", "a", "Z9",
    "name", "self", "é", "名前", "²", "ﬁ", "e\u0301", "\ufeff", "\u200b",
    SAYS, f"\n{SAYS}\n", f'"""\n{SAYS}\n"""', f"'''\n{SAYS}\n'''", f"{{{ASKS}}}", f"+{ASKS}+",
    f"] if {ASKS} else [", f"\" + str({ASKS}) + \"",
    "class", "None", "__class__", "__dict__", "lambda", "x" * 300, "\\" * 65, "'" * 65,
)  # fmt: skip


def names(seed: int, count: int) -> list[str]:
    """Returns `count` different names."""
    rng, actual = random.Random(seed), dict[str, None]()
    while len(actual) < count:
        name = "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 5)))
        if rng.random() < 0.05:
            name *= rng.choice((7, 40))  # very long
        actual[name] = None
    return list(actual)


def identifier(name: str) -> str:
    """Returns a parameter's name as near to `name` as Python's grammar lets it be."""
    text = "".join(c for c in name if ("a" + c).isidentifier() and c not in string.whitespace)
    text = "p" + text[:200]
    return text if not keyword.iskeyword(text) else text + "_"


def named(function: Callable[..., Any], name: str) -> Any:
    """Returns the function under another name, in a file of that name."""
    code = function.__code__.replace(co_filename=name, co_name=name, co_qualname=name)
    result = type(function)(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    result.__name__ = result.__qualname__ = name
    return result


def check(name: str, backend: str) -> None:
    """Compiles functions whose file, function, parameter, module, attribute, key and global have the
    name. Raises AssertionError where a result is wrong or the name has run."""
    import torch

    import tracer_core
    from tests.support.comparison import assert_same

    x = torch.randn(3, 4)

    def check_calls(function: Any, *args: Any, **kwargs: Any) -> None:
        fast = tracer_core.compile(function, backend=backend)
        for _ in range(2):
            assert_same(fast(*args, **kwargs), function(*args, **kwargs))

    def work(x: Any) -> Any:
        return torch.sin(x) * 2

    check_calls(named(work, name), x)  # file and function

    def breaks(x: Any) -> Any:
        y = torch.cos(x)
        tracer_core.graph_break()
        return y + 1

    check_calls(named(breaks, name), x)

    def keywords(**argument: Any) -> Any:
        return sum(value * 2 for value in argument.values())

    check_calls(keywords, **{name: x, "other": x})
    check_calls(lambda table: table[name] + table.get(name), {name: x, 1: x})  # keys

    parameter = identifier(name)
    space: dict[str, Any] = {"torch": torch}
    exec(f"def f({parameter}, *, k{parameter}=2):\n    return {parameter} * k{parameter}", space)
    check_calls(space["f"], x)
    check_calls(space["f"], x, **{ast.parse(f"k{parameter}").body[0].value.id: 3})  # type: ignore[attr-defined]

    attribute = name.replace(".", "") or "a"
    module = torch.nn.Module()
    while hasattr(module, attribute) or hasattr(module, attribute + "n"):
        attribute += "_"
    module.forward = lambda x: module._modules[attribute](x) * getattr(module, attribute + "n")  # type: ignore[method-assign]
    module.add_module(attribute, torch.nn.Linear(4, 4))
    module.register_buffer(attribute + "n", torch.randn(4))
    with torch.no_grad():
        check_calls(module.forward, x)

    def reads(x: Any) -> Any:
        return torch.relu(x) + THING  # type: ignore[name-defined]

    asked = tuple(name if item == "THING" else item for item in reads.__code__.co_names)
    made = type(reads)(
        reads.__code__.replace(co_names=asked), {"torch": torch, name: x * 2}, name, None,
        reads.__closure__,
    )  # fmt: skip
    made.__module__ = name
    check_calls(made, x)
    assert not vars(builtins).pop("planted", False), f"{name!r} ran"
