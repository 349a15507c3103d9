"""Hooks that see gradients: on tensors of the graph, on parameters, on modules, on optimizers, on
their nodes.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tracer_core
from tests.support.eager_training import Side, X, Y, mlp, trained
from tracer_core.testing import CaptureCounter

CALLS = ((X, Y),) * 3


def _trained(forward: Any, **expected: Any) -> Any:
    """forward(model, x) -> logits, inside a whole step."""

    def make() -> Side:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(forward(model, x), y)
            loss.backward()
            optimizer.step()
            return loss

        return Side(step, [model, optimizer])

    return trained(make, *CALLS, **expected)


def _hooked(hook: Any) -> Any:
    def forward(model: Any, x: Any) -> Any:
        hidden = model[0](x)
        hidden.register_hook(hook)
        return model[2](hidden.tanh())

    return forward


def _two_hooks(model: Any, x: Any) -> Any:
    hidden = model[0](x)
    hidden.register_hook(lambda g: g * 2)
    hidden.register_hook(lambda g: g + 0.01)
    return model[2](hidden.tanh())


def _of_activation(model: Any, x: Any) -> Any:
    hidden = model[0](x)
    mask = (hidden > 0).float()
    hidden.register_hook(lambda g: g * mask)
    return model[2](hidden)


def _of_parameter_values(model: Any, x: Any) -> Any:
    hidden = model[0](x)
    hidden.register_hook(lambda g: g + model[0].bias.detach() * 0.1)
    return model[2](hidden)


CAPTURED = {
    "scaled": _hooked(lambda g: g * 0.5),
    "reversed_gradient": _hooked(lambda g: -g),
    "clamped": _hooked(lambda g: g.clamp(-0.01, 0.01)),
    "normalised": _hooked(lambda g: g / (g.norm() + 1e-6)),
    "nothing": _hooked(lambda g: None),
    "two_hooks": _two_hooks,
    "with_an_activation": _of_activation,
    "with_a_parameter": _of_parameter_values,
}


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize("name", CAPTURED)
def test_hook_on_an_intermediate(name: str) -> None:
    _trained(CAPTURED[name], graphs=2)


def test_hook_that_keeps_the_gradient() -> None:
    kept: list[Any] = []
    _trained(_hooked(lambda g: kept.append(g.clone())), breaks=None)
    assert len(kept) == 6
    assert torch.equal(kept[0], kept[1])


def test_hook_that_writes_to_a_tensor() -> None:
    total = torch.zeros(8)
    _trained(_hooked(lambda g: total.add_(g.sum(0)) and None), breaks=None)


def test_handle_removed() -> None:
    def forward(model: Any, x: Any) -> Any:
        hidden = model[0](x)
        handle = hidden.register_hook(lambda g: g * 100)
        handle.remove()
        return model[2](hidden)

    _trained(forward, breaks=None)


def test_handle_returned() -> None:
    def make() -> Side:
        model = mlp()

        def step(x: Any, y: Any) -> Any:
            hidden = model[0](x)
            handle = hidden.register_hook(lambda g: g * 2)
            F.cross_entropy(model[2](hidden), y).backward()
            return type(handle).__name__

        return Side(step, model)

    trained(make, *CALLS, breaks=None)


def test_hook_runs_when_backward_is_called_outside() -> None:
    def make() -> Side:
        model = mlp()
        forward = _hooked(lambda g: g * 3)

        def step(x: Any, y: Any) -> Any:
            return F.cross_entropy(forward(model, x), y)

        return Side(step, model)

    def use(side: Side) -> Any:
        step = side.step
        side.step = lambda x, y: step(x, y)
        return side

    eager, target = make(), use(make())
    compiled = tracer_core.compile(target.step, backend="eager")
    for _ in range(2):
        eager.step(X, Y).backward()
        compiled(X, Y).backward()
        for parameter, other in zip(
            eager.watched.parameters(), target.watched.parameters(), strict=True
        ):
            assert torch.equal(parameter.grad, other.grad)


def _set_up(prepare: Any) -> Any:
    """prepare(model, optimizer, log) once, before anything is compiled."""

    def make() -> Side:
        model, log = mlp(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kept = prepare(model, optimizer, log)

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        side = Side(step, [model, optimizer, log])
        side.kept = kept  # type: ignore[attr-defined]
        return side

    return make


def _node_hook(model: Any, optimizer: Any, log: list[Any]) -> Any:
    weight = model[0].weight
    node = weight.expand_as(weight).grad_fn.next_functions[0][0]
    node.register_hook(lambda *grads: log.append(weight.grad.sum().item()))
    return node


def _doubled(p: Any) -> None:
    p.grad.mul_(2)


PREPARED = {
    "tensor_hook": lambda m, o, log: m[0].weight.register_hook(lambda g: g * 2),
    "tensor_hook_that_logs": lambda m, o,
    log: m[0].weight.register_hook(lambda g: log.append(g.norm().item())),
    "post_accumulate": lambda m, o, log: m[0].weight.register_post_accumulate_grad_hook(_doubled),
    "gradient_accumulator_held": _node_hook,
    "full_backward_hook": lambda m, o, log: m[0].register_full_backward_hook(lambda mod, gi,
    go: (gi[0],)),
    "full_backward_pre_hook": lambda m, o, log: m[2].register_full_backward_pre_hook(lambda mod,
    go: (go[0] * 2,)),
}  # fmt: skip


#: Why the graph breaks; other hooks are in it.
BREAKS = {
    "tensor_hook_that_logs": "data_dependent_value",
    **dict.fromkeys(
        ("gradient_accumulator_held", "full_backward_hook", "full_backward_pre_hook"),
        "autograd_in_graph",
    ),
}


@pytest.mark.sweep(keep=5)
@pytest.mark.parametrize("backend", ["eager", "aten_eager"])
@pytest.mark.parametrize("name", PREPARED)
def test_hook_from_before(name: str, backend: str) -> None:
    kinds = {BREAKS[name]} if name in BREAKS else set()
    counter = trained(_set_up(PREPARED[name]), *CALLS, breaks=None, backend=backend)
    assert {kind for kind, _, _ in counter.breaks} >= kinds
    assert kinds or not counter.breaks


def test_step_in_backward() -> None:
    """Each parameter has an optimizer of its own, which steps as soon as its gradient is there."""

    def prepare(model: Any, optimizer: Any, log: list[Any]) -> Any:
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

        def hook(p: Any) -> None:
            optimizers[p].step()
            optimizers[p].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(hook)
        return optimizers

    trained(_set_up(prepare), *CALLS, breaks=0)


# Hooks that the program puts on tensors from before


def _leaf() -> Any:
    return torch.ones(4, requires_grad=True)


def _for_one_backward() -> Side:
    weight, seen = _leaf(), []

    def step(x: Any, y: Any) -> Any:
        handle = weight.register_hook(lambda g: g * 2)
        (x * weight).sum().backward()
        handle.remove()
        seen.append(isinstance(handle, torch.utils.hooks.RemovableHandle))
        return weight.grad.clone()

    return Side(step, [weight, seen])


def _order() -> Side:
    first, second, log = _leaf(), _leaf(), []
    first.register_hook(lambda g: log.append(("first", g * 1)))
    first.register_hook(lambda g: g + 1)
    second.register_post_accumulate_grad_hook(lambda p: log.append(("second", p.grad * 1)))

    def step(x: Any, y: Any) -> Any:
        second.register_hook(lambda g: log.append(("inside", len(log)))).remove()
        ((x * first).exp() * second).mean().backward()
        return log[-1][0]

    return Side(step, [first, second, log])


def _kept_gradient() -> Side:
    weight, kept = _leaf(), []
    weight.register_hook(kept.append)

    def step(x: Any, y: Any) -> Any:
        (x * weight).sum().backward()
        return kept[-1].mul_(2)

    return Side(step, [weight, kept])


def _of_grad() -> Side:
    weight = _leaf()
    weight.register_hook(lambda g: g + 1)

    def step(x: Any, y: Any) -> Any:
        with weight.register_hook(lambda g: g * 7):
            (actual,) = torch.autograd.grad((x * weight).sum(), weight)
        return actual

    return Side(step, weight)


def _differentiable() -> Side:
    weight = _leaf()
    weight.register_hook(lambda g: g * weight)

    def step(x: Any, y: Any) -> Any:
        loss = (x * weight).pow(2).sum()
        (actual,) = torch.autograd.grad(loss, weight, create_graph=True)
        (again,) = torch.autograd.grad(actual.sum(), weight)
        return actual.detach(), again

    return Side(step, weight)


INSIDE = (_for_one_backward, _order, _kept_gradient, _of_grad, _differentiable)


@pytest.mark.parametrize("backend", ["eager", "aten_eager"])
@pytest.mark.parametrize("make", INSIDE, ids=lambda value: value.__name__.strip("_"))
@pytest.mark.sweep(keep=5)
def test_hooks_of_leaves_inside(make: Any, backend: str) -> None:
    trained(make, *CALLS, backend=backend)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("leaf", [True, False])
def test_hooks_that_stay(leaf: bool, backend: str) -> None:
    """A hook is put on the tensor once, whoever calls backward later; its handle is the program's."""

    def make() -> Any:
        base = _leaf()
        weight = base if leaf else base * 3
        handles: list[Any] = []

        def step(x: Any) -> Any:
            y = (x * weight).sum()
            if len(handles) < 2:
                scale = len(handles) + 2
                handles.append(weight.register_hook(lambda g: (g * scale).clamp(max=x.sum())))
                weight.register_hook(print).remove()
            return y

        return step, base, handles

    (eager, item, handles), (target, other, others) = make(), make()
    compiled = tracer_core.compile(target, backend=backend)
    with CaptureCounter() as counter:
        for number in range(4):
            for step in (eager, compiled):
                step(X[number]).backward(retain_graph=True)
            torch.testing.assert_close(item.grad, other.grad)
            if number == 2:
                for handle in (handles[0], others[0]):
                    handle.remove()
    assert not counter.breaks and type(others[0]) is torch.utils.hooks.RemovableHandle


def test_hook_registered_after_the_first_call() -> None:
    def make() -> Side:
        side = _set_up(lambda m, o, log: None)()
        model = side.watched[0]
        side.changes = {2: lambda: model[0].weight.register_hook(lambda g: g * 2)}
        return side

    trained(make, *CALLS, (X, Y), breaks=None)


def test_accumulator_of_an_earlier_loss_is_not_held() -> None:
    """A loss that still lives keeps the accumulators too; that must not end the graph."""

    def make() -> Side:
        side = _set_up(lambda m, o, log: None)()
        losses: list[Any] = []
        step = side.step

        def keeping(x: Any, y: Any) -> Any:
            loss = step(x, y)
            losses.append(loss)
            return loss

        side.step = keeping
        return side

    trained(make, *CALLS, graphs=2)


OPTIMIZER_HOOKS = {
    "step_pre_hook": lambda o, log: o.register_step_pre_hook(lambda opt, args,
    kwargs: log.append("pre")),
    "step_post_hook": lambda o, log: o.register_step_post_hook(lambda opt, args,
    kwargs: log.append(len(opt.state))),
    "pre_hook_that_changes_gradients": lambda o, log: o.register_step_pre_hook(
        lambda opt, args, kwargs: [p.grad.mul_(2) for g in opt.param_groups for p in g["params"]] and None),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZER_HOOKS)
def test_optimizer_hook(name: str) -> None:
    trained(_set_up(lambda m, o, log: OPTIMIZER_HOOKS[name](o, log)), *CALLS, graphs=2)


def test_module_forward_hook_that_puts_a_hook_on_its_output() -> None:
    def prepare(model: Any, optimizer: Any, log: list[Any]) -> Any:
        return model[0].register_forward_hook(
            lambda mod, args, out: out.register_hook(lambda g: g * 0.5) and None
        )

    trained(_set_up(prepare), *CALLS, breaks=None)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return -g


class KeptOperand(torch.autograd.Function):
    """Its gradient is a tensor that it keeps: an accumulator must copy it."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        ctx.kept = x * 2
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return None, ctx.kept


def test_function_of_the_programs_own() -> None:
    _trained(lambda model, x: model[2](Reverse.apply(model[0](x)).tanh()), graphs=2)


def test_function_whose_gradient_is_a_tensor_that_it_keeps() -> None:
    def make() -> Side:
        weight = nn.Parameter(torch.ones(6, 4))

        def step(x: Any) -> Any:
            loss = KeptOperand.apply(x, weight).sum()
            for _ in range(3):
                loss.backward(retain_graph=True)
            return x * 1

        return Side(step, [weight])

    trained(make, (X,), (X,), (X,), graphs=2)


def test_checkpoint_inside_a_step() -> None:
    from torch.utils.checkpoint import checkpoint

    _trained(
        lambda model, x: model[2](checkpoint(lambda v: model[0](v).tanh(), x, use_reentrant=False)),
        graphs=2,
    )


def test_hooks_on_saved_tensors_around_the_call() -> None:
    """They see each saved tensor once, also on the calls that capture."""

    def make() -> Side:
        side = _set_up(lambda m, o, log: None)()
        step, seen = side.step, []
        side.watched.append(seen)

        def counted(x: Any, y: Any) -> Any:
            return step(x, y)

        def pack(tensor: Any) -> Any:
            seen.append(tuple(tensor.shape))
            return tensor * 1.5 if tensor.is_floating_point() else tensor

        side.step = counted
        side.around = lambda: torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t)  # type: ignore[attr-defined]
        return side

    eager, target = make(), make()
    compiled = tracer_core.compile(target.step, backend="eager")
    for _ in range(3):
        with eager.around():
            want = eager.step(X, Y)
        with target.around():
            got = compiled(X, Y)
        assert torch.equal(want, got)
        assert eager.watched[-1] == target.watched[-1]
        for parameter, other in zip(
            eager.watched[0].parameters(), target.watched[0].parameters(), strict=True
        ):
            assert torch.equal(parameter, other)
