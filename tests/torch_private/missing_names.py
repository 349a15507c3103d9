"""A process in which tracer_core does not find names of torch: ``python -m
tests.torch_private.missing_names`` with JSON on stdin.

In: ``hidden``, lists of names as ``torch.a.b``, one a child process; ``how`` they are missing:
``gone``, or ``other``: there is something else under the name. Out, as JSON, for each list: what
`last_compile` names, and which programs gave something else than eager. torch itself, which needs
the names, keeps them; the one place that looks them up does not find them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

NAMES = "tracer_core.torch_private.names"
FILE = Path(__file__).parents[2] / "packages/frontend-tracer/src/tracer_core/torch_private/names.py"


class Other:
    """What a later torch may have under a name: no key of a table, no function."""

    __hash__ = None  # type: ignore[assignment]


def hide(hidden: list[str], how: str) -> None:
    """tracer_core, which is imported after this, does not find these names."""
    spec = importlib.util.spec_from_file_location(NAMES, FILE)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[NAMES] = module
    spec.loader.exec_module(module)
    look_up, paths = module._look_up, {item.removeprefix("torch.") for item in hidden}
    instead = Other() if how == "other" else module._NOWHERE
    module._look_up = lambda path: instead if path in paths else look_up(path)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * 3 * x**2


def differentiated(x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    loss = (Cube.apply(x).sin() + checkpoint(torch.tanh, x, use_reentrant=False)).sum()
    loss.backward()
    return x.grad + torch.autograd.grad((x * x).sum(), x)[0]


def transformed(x: torch.Tensor) -> Any:
    doubled = torch.func.vmap(lambda row: row * 2)(x)
    slope = torch.func.grad(lambda v: (v**2).sum())(x)
    value, tangent = torch.func.jvp(torch.sin, (x,), (x,))
    return doubled, slope, value, tangent, torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


def under_settings(x: torch.Tensor) -> Any:
    with torch.no_grad():
        a = x @ x.T
    with torch.autocast("cpu", dtype=torch.bfloat16):
        b = x @ x.T
    with torch.inference_mode():
        c = x * 2
    with torch.set_grad_enabled(False), torch.profiler.record_function("label"):
        d = x.sin()
    with torch.device("cpu"):
        e = torch.zeros(3)
    asked = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_default_dtype()
    return (
        a,
        b.dtype,
        b.float(),
        c.tolist(),
        d,
        e,
        asked,
        torch.get_num_threads() > 0,
        torch.is_anomaly_enabled(),
    )


def attended(x: torch.Tensor) -> torch.Tensor:
    q = x.reshape(1, 1, *x.shape)
    with sdpa_kernel(SDPBackend.MATH):
        return nn.functional.scaled_dot_product_attention(q, q, q)


def written(x: torch.Tensor) -> Any:
    y = x.clone()
    y[0] = 1.0
    y.mul_(2).add_(x)
    y.t_()
    z = torch.as_strided(y, (2, 2), (1, 1), 1).clone()
    w = x.unfold(1, 2, 1).squeeze(0).sum(-1)
    return y, z, w, y.shape, torch.tensor([1.0, 2.0]) + 1, torch.as_tensor([3])


def branched(x: torch.Tensor) -> Any:
    if x.sum() > 0:  # a graph break
        x = x * 2
    torch.manual_seed(3)
    drawn = torch.rand(3) + torch.bernoulli(torch.full((3,), 0.5)) + torch.empty(3).normal_()
    return x.nonzero(), x[x > 0], x.max().item(), drawn


def trained(x: torch.Tensor) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.LayerNorm(6), nn.Linear(6, 2)
    ).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.double()), torch.tensor([0, 1, 0])).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return [*model.state_dict().values()]


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.GELU(), nn.MaxPool2d(2)
        )
        self.head, self.rows = nn.Linear(8, 5), nn.Embedding(6, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x).flatten(2).mean(-1) + self.rows(torch.tensor([0, 3])).softmax(-1)
        return self.head(torch.cat((x, x.sin()), 0)).log_softmax(-1)


def steps(compile: Callable[..., Any]) -> Any:
    """Training steps of a compiled module, the last with another size of images."""
    torch.manual_seed(0)
    module = Images()
    run, actual = compile(module), []
    for size in (8, 12):
        images = torch.randn(2, 3, size, size, requires_grad=True)
        run(images).square().sum().backward()
        actual += [images.grad, *[parameter.grad.clone() for parameter in module.parameters()]]
    return actual + [*module.state_dict().values()]


PROGRAMS = (differentiated, transformed, under_settings, attended, written, branched, trained)


def answers(compile: Callable[..., Any]) -> dict[str, Any]:
    """What each program gives, or raises."""
    actual: dict[str, Any] = {}
    for program in PROGRAMS:
        torch.manual_seed(1)
        run = compile(program)
        try:
            actual[program.__name__] = [run(torch.randn(rows, 4)) for rows in (3, 3)]
        except Exception:
            actual[program.__name__] = traceback.format_exc(limit=-3)
    try:
        actual["steps"] = steps(compile)
    except Exception:
        actual["steps"] = traceback.format_exc(limit=-3)
    return actual


def is_same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return (
            isinstance(right, torch.Tensor)
            and left.shape == right.shape
            and torch.allclose(left, right, 1e-4, 1e-4)
        )
    if isinstance(left, (list, tuple)):
        return (
            isinstance(right, (list, tuple))
            and len(left) == len(right)
            and all(map(is_same, left, right))
        )
    return bool(left == right)


def report(hidden: list[str], how: str, backend: str) -> dict[str, Any]:
    hide(hidden, how)
    import tracer_core

    compiled: list[Any] = []

    def compile(program: Any) -> Any:
        compiled.append(tracer_core.compile(program, backend=backend))
        return compiled[-1]

    wanted, actual = answers(lambda program: program), answers(compile)
    wrong = {
        name: str(actual[name])[-1500:]
        for name in wanted
        if not is_same(wanted[name], actual[name])
    }
    try:
        records = tracer_core.last_compile(compiled[0])
    except tracer_core.errors.OptionError:
        records = ()
    texts = [record.text for record in records if record.name == "missing_in_torch"]
    return {"wrong": wrong, "told": texts, "asked": sys.modules[NAMES].asked()}


def in_child(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of a process that starts where this one is: torch is imported, tracer_core is
    not.
    """
    reads, writes = os.pipe()
    if (child := os.fork()) == 0:
        try:
            answer = json.dumps(work())
        except BaseException:
            answer = json.dumps(
                {"wrong": {"import": traceback.format_exc()}, "told": [], "asked": []}
            )
        with os.fdopen(writes, "w") as end:
            end.write(answer)
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as end:
        answer = end.read()
    os.waitpid(child, 0)
    return (
        json.loads(answer) if answer else {"wrong": {"process": "it died"}, "told": [], "asked": []}
    )


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    torch.set_num_threads(1)
    for hidden in asked["hidden"]:
        print(
            json.dumps(in_child(lambda: report(hidden, asked["how"], asked["backend"]))), flush=True
        )
