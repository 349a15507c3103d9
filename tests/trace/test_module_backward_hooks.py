"""Backward hooks and backward pre-hooks of modules: of the compiled one, of its parts, of all."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_full_backward_hook,
    register_module_full_backward_pre_hook,
)

import tracer_core


class Net(nn.Module):
    """The second result and the second argument are used or not, by `both`."""

    def __init__(self, both: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.both = nn.Linear(8, 16), nn.Linear(16, 4), both

    def forward(self, x: torch.Tensor, scale: Any = 2.0) -> Any:
        hidden = self.first(x).relu()
        out = self.last(hidden) * scale
        return (out, hidden.sum(-1)) if self.both else out


def _copies(gradients: Any) -> list[Any]:
    return [None if gradient is None else gradient.clone() for gradient in gradients]


Comparison = list[Any]


def _full(module: nn.Module, seen: Comparison) -> Any:
    return module.register_full_backward_hook(
        lambda m, gi, go: seen.append((m is module, _copies(gi), _copies(go)))
    )


def _pre(module: nn.Module, seen: Comparison) -> Any:
    return module.register_full_backward_pre_hook(
        lambda m, go: seen.append((m is module, _copies(go)))
    )


def _halves(module: nn.Module, seen: Comparison) -> Any:
    return module.register_full_backward_hook(lambda m, gi, go: (gi[0] / 2, *gi[1:]))


def _replaces(module: nn.Module, seen: Comparison) -> Any:
    return module.register_full_backward_pre_hook(lambda m, go: tuple(g * 3 for g in go))


def _grad_cam(module: nn.Module, seen: Comparison) -> Any:
    kept: dict[str, Any] = {}
    module.register_forward_hook(lambda m, args, out: kept.update(out=out))

    def backward(m: nn.Module, gi: Any, go: Any) -> None:
        out = kept["out"][0] if isinstance(kept["out"], tuple) else kept["out"]
        seen.append((out.detach() * go[0]).sum().clone())

    return module.register_full_backward_hook(backward)


def _with_kwargs(module: nn.Module, seen: Comparison) -> Any:
    module.register_forward_pre_hook(
        lambda m, args, kwargs: ((args[0] * 2, *args[1:]), kwargs), with_kwargs=True
    )
    return _full(module, seen)


HOOKS: dict[str, Callable[[nn.Module, Comparison], Any]] = {
    "full": _full,
    "pre": _pre,
    "both": lambda m, seen: (_pre(m, seen), _full(m, seen))[1],
    "halves": _halves,
    "replaces": _replaces,
    "grad cam": _grad_cam,
    "forward pre-hook": _with_kwargs,
}

PLACES: dict[str, Callable[[Any], nn.Module]] = {
    "root": lambda net: net,
    "child": lambda net: net.first,
}


def _run(compile: Callable[[Any], Any], hook: Any, at: Any, both: bool, leaf: bool) -> Any:
    net = compile(Net(both))
    seen: Comparison = []
    results = []
    handle = hook(at(net), seen)
    for step in range(4):
        if step == 3:
            handle.remove()
        x = torch.linspace(-1, 1, 24).reshape(3, 8) + step
        x.requires_grad_(leaf)
        net.zero_grad()
        out = net(x)
        total = sum(item.square().sum() for item in out) if both else out.square().sum()
        total.backward()
        results.append((out, x.grad, [p.grad.clone() for p in net.parameters()]))
        with torch.no_grad():
            results.append(net(x))
    return seen, results


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("leaf", [True, False], ids=["input gradient", "no input gradient"])
@pytest.mark.parametrize("both", [True, False], ids=["tuple", "tensor"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.sweep(keep=8)
def test_hooks(name: str, place: str, both: bool, leaf: bool, backend: str) -> None:
    if name == "halves" and not leaf and place in ("root", "child"):
        pytest.skip("eager refuses to change the gradient of an input that has none")
    hook, at = HOOKS[name], PLACES[place]
    want = _run(lambda net: net, hook, at, both, leaf)
    got = _run(lambda net: tracer_core.compile(net, backend=backend), hook, at, both, leaf)
    assert len(got[0]) == len(want[0])
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    "register", [register_module_full_backward_hook, register_module_full_backward_pre_hook]
)
def test_hooks_of_all_modules(register: Any) -> None:
    def run(compile: Callable[[Any], Any]) -> Any:
        net, seen = compile(Net(False)), []
        handle = register(lambda m, *grads: seen.append((type(m).__name__, _copies(grads[-1]))))
        try:
            for _ in range(3):
                x = torch.linspace(-1, 1, 24).reshape(3, 8).requires_grad_()
                net(x).square().sum().backward()
        finally:
            handle.remove()
        return seen

    want = run(lambda net: net)
    assert len(want) == 9
    got = run(tracer_core.compile)
    assert [name for name, _ in got] == [name for name, _ in want]
    torch.testing.assert_close([grads for _, grads in got], [grads for _, grads in want])


def test_a_hook_of_register_backward_hook() -> None:
    """It sees the gradients of the last operator's inputs, which are the operator's."""

    def run(compile: Callable[[Any], Any]) -> Any:
        net, seen = compile(Net(False)), []
        handle = net.register_backward_hook(lambda m, gi, go: seen.append(_copies((*gi, *go))))
        for step in range(4):
            if step == 3:
                handle.remove()
            x = torch.linspace(-1, 1, 24).reshape(3, 8).requires_grad_()
            net(x).square().sum().backward()
        return seen, x.grad

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        torch.testing.assert_close(run(tracer_core.compile), run(lambda net: net))


def test_the_forward_stays_compiled() -> None:
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    net = tracer_core.compile(Net(False), backend=backend)
    net.register_full_backward_hook(lambda m, gi, go: None)
    for _ in range(3):
        net(torch.ones(3, 8, requires_grad=True)).sum().backward()
    assert len(graphs) == 1
