"""Compiled functions inside of the program's saved-tensor hooks: checkpoints round a compiled block,
`save_on_cpu`, hooks that raise."""

import functools

import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

import tracer_core

BACKENDS = pytest.mark.parametrize("backend", ["eager", "aten_eager", "inductor"])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.first, self.second = nn.BatchNorm1d(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.second(torch.nn.functional.gelu(self.first(self.norm(x))))


class Broken(Block):
    def forward(self, x):
        x = self.first(self.norm(x)).tanh()
        print(end="", flush=[])
        return self.second(x.sigmoid() * x)


class Dropping(Block):
    def forward(self, x):
        return nn.functional.dropout(self.second(self.first(self.norm(x)).relu()), 0.5)


def whole(f, x):
    return checkpoint(f, x, use_reentrant=False)


def to_the_end(f, x):
    with set_checkpoint_early_stop(False):
        return checkpoint(f, x, use_reentrant=False)


def unchecked(f, x):
    return checkpoint(f, x, use_reentrant=False, determinism_check="none")


def nested(f, x):
    def outer(x):
        return checkpoint(f, x, use_reentrant=False).sin()

    return checkpoint(outer, x, use_reentrant=False)


def reentrant(f, x):
    return checkpoint(f, x, use_reentrant=True)


def selective(f, x):
    def policy(ctx, op, *args, **kwargs):
        is_product = op is torch.ops.aten.addmm.default
        return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    return checkpoint(f, x, use_reentrant=False, context_fn=contexts)


def sequential(f, x):
    return checkpoint_sequential([f, torch.sin, f], 2, x, use_reentrant=False)


def offloaded(f, x):
    with save_on_cpu():
        return f(x)


def halved(f, x):
    with saved_tensors_hooks(lambda t: t / 2, lambda t: t * 2):
        return f(x)


def inside_of_others(f, x):
    with saved_tensors_hooks(lambda t: t * 4, lambda t: t / 4):
        return checkpoint(f, x, use_reentrant=False) * f(x)


WAYS = (whole, to_the_end, unchecked, nested, reentrant, selective, sequential, offloaded, halved,
        inside_of_others)  # fmt: skip


def steps(make, way, compile, warm):
    torch.manual_seed(0)
    model = compile(make())
    if warm:
        model(torch.randn(5, 8)).sum().backward()
    actual = []
    for n in (5, 5, 3, 4, 5):
        x = torch.randn(n, 8, requires_grad=True)
        y = way(model, x)
        y.square().sum().backward()
        actual += [
            y.detach(),
            x.grad,
            *(parameter.grad.clone() for parameter in model.parameters()),
        ]
        actual += [buffer.clone() for buffer in model.buffers()]
    return [*actual, torch.rand(2)]


@BACKENDS
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.sweep(keep=20)
def test_a_block_inside_of_hooks(way, warm, backend):
    compile = functools.partial(tracer_core.compile, backend=backend)
    for make in (Block, Broken):
        wanted = steps(make, way, lambda model: model, warm)
        torch.testing.assert_close(steps(make, way, compile, warm), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", [whole, nested, offloaded], ids=lambda way: way.__name__)
def test_a_block_that_draws_random_numbers(way):
    compile = functools.partial(tracer_core.compile, backend="aten_eager")
    wanted = steps(Dropping, way, lambda model: model, True)
    torch.testing.assert_close(steps(Dropping, way, compile, True), wanted)


@BACKENDS
def test_each_saved_tensor_is_packed_once_in_each_call(backend):
    fast = tracer_core.compile(lambda x: (x.sin() * x).exp(), backend=backend)
    counts = []
    for _ in range(3):
        x, packed, unpacked = torch.ones(3, requires_grad=True), [], []
        with saved_tensors_hooks(
            lambda t, packed=packed: packed.append(t) or t,
            lambda t, unpacked=unpacked: unpacked.append(t) or t,
        ):
            y = fast(x)
        y.sum().backward()
        assert len(packed) == len(unpacked) > 0
        assert all(type(t) in (torch.Tensor, nn.Parameter) and t.device == x.device for t in packed)
        counts.append(len(packed))
    assert len(set(counts)) == 1


class Refused(Exception):
    pass


def refuses(calls, t):
    calls.append(t)
    raise Refused("no memory for this")


class Refusing:
    def __init__(self, calls):
        self.calls = calls

    def __call__(self, t):
        refuses(self.calls, t)

    def pack(self, t):
        refuses(self.calls, t)


KINDS = {
    "function": lambda calls: lambda t: refuses(calls, t),
    "partial": lambda calls: functools.partial(refuses, calls),
    "object": Refusing,
    "method": lambda calls: Refusing(calls).pack,
}


@pytest.mark.sweep(keep=6)
@pytest.mark.parametrize("backend", ["eager", "aten_eager"])
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_hook_raises_reaches_the_program(kind, warm, backend):
    def writes(x, seen):
        seen.add_(1)
        return x.sin() * 2

    def run(f):
        actual = []
        if warm:
            f(torch.ones(3, requires_grad=True), torch.zeros(1))
        for _ in range(3):
            calls, seen = [], torch.zeros(1)
            with pytest.raises(Refused), saved_tensors_hooks(KINDS[kind](calls), lambda t: t):
                f(torch.ones(3, requires_grad=True), seen)
            actual.append((len(calls), seen.tolist()))
        return actual

    assert run(tracer_core.compile(writes, backend=backend)) == run(writes) == [(1, [1.0])] * 3


def test_an_operator_that_fails_inside_of_hooks_still_runs_in_eager_mode():
    def looks_up(x, at):
        try:
            return x.sin()[at]
        except IndexError:
            return x

    fast = tracer_core.compile(looks_up, backend="eager")
    x = torch.ones(3, requires_grad=True)
    for at in (1, 7, 2, 9):
        at = torch.tensor(at)
        with saved_tensors_hooks(lambda t: t, lambda t: t):
            torch.testing.assert_close(fast(x, at), looks_up(x, at))


def catches(x, hook, log):
    try:
        y = x.sin() * 2
    except Refused as error:
        log.append(str(error))
        y = x.detach() + 1
    finally:
        log.append("tried")
    return y


def catches_inside_of_contexts(x, hook, log):
    try:
        with torch.autocast("cpu", enabled=False), torch.enable_grad():
            y = x.sin() * 2
    except Refused:
        y = x.detach() + 1
    return y, torch.is_grad_enabled()


def does_not_catch_it(x, hook, log):
    try:
        return x.sin() * 2
    except ZeroDivisionError:
        return x


def sets_hooks(x, hook, log):
    with saved_tensors_hooks(hook, lambda t: t):
        return x.sin() * 2


def sets_hooks_and_catches(x, hook, log):
    y = x.detach()
    try:
        with saved_tensors_hooks(hook, lambda t: t):
            y = y * x.sin() * 2
    except Refused:
        log.append("caught")
    finally:
        log.append("left")
    return y + x


def catches_after_a_break(x, hook, log):
    print(end="", flush=[])
    try:
        y = x.sin() * 2
    except Refused:
        y = x.detach()
    return y


HANDLERS = (catches, catches_inside_of_contexts, does_not_catch_it, sets_hooks,
            sets_hooks_and_catches, catches_after_a_break)  # fmt: skip


def shown(result):
    tensors = result if isinstance(result, tuple) else (result,)
    return [(repr(item.detach()), item.requires_grad) for item in map(torch.as_tensor, tensors)]


@pytest.mark.parametrize("backend", ["eager", "aten_eager"])
@pytest.mark.parametrize("function", HANDLERS, ids=lambda function: function.__name__)
@pytest.mark.sweep(keep=5)
def test_the_programs_own_handlers_see_what_a_hook_raises(function, backend):
    def run(f):
        actual = []
        for outside in (False, True, True, False, True):
            log, x = [], torch.ones(3, requires_grad=True)
            hook = functools.partial(refuses, [])
            try:
                with saved_tensors_hooks(hook if outside else lambda t: t, lambda t: t):
                    actual.append(shown(f(x, hook, log)))
            except Refused as error:
                actual.append(str(error))
            y = (x.sin() * 2).sum()
            y.backward()  # no hook of the function is left
            actual += [log, x.grad, torch.is_grad_enabled()]
        return actual

    wanted = run(function)
    assert repr(run(tracer_core.compile(function, backend=backend))) == repr(wanted)


def finds(x, table):
    try:
        y = table["no"]
    except KeyError:
        y = x.sin()
    try:
        return y * x.exp()
    finally:
        table["calls"] = "some"


@pytest.mark.parametrize("way", [whole, to_the_end, nested], ids=lambda way: way.__name__)
@pytest.mark.parametrize("backend", ["eager", "aten_eager"])
def test_a_checkpoint_round_a_function_with_handlers(way, backend):
    def run(f):
        actual = []
        for _ in range(3):
            table, x = {}, torch.ones(3, requires_grad=True)
            way(lambda x, table=table: f(x, table), x).sum().backward()
            actual += [x.grad, table]
        return actual

    compiled = tracer_core.compile(finds, backend=backend)
    assert repr(run(compiled)) == repr(run(finds))
