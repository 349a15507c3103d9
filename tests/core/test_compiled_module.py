"""A compiled nn.Module is still the user's module; the tracer is a stand-in that records."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import pickle

import pytest
import torch
from torch import nn

import tracer_core
from tracer_core.errors import OptionError


class Child(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return x * self.weight


class Model(nn.Module):
    """A model with what models have."""

    def __init__(self):
        super().__init__()
        self.child = Child()
        self.child.parent = [self]  # a list, so that it is no submodule
        self.register_buffer("seen", torch.zeros(()))
        self.note = "first"

    def forward(self, x, *, scale=1.0):
        if self.training:
            self.seen += 1
        return self.child(x) * scale

    def generate(self, x, steps):
        for _ in range(steps):
            x = self(x)
        return x

    def who(self):
        return self


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def fast(model, runtime):
    return tracer_core.compile(model, backend="eager")


def test_it_is_the_same_kind_of_thing(model, fast):
    assert type(fast) is fast.__class__ is Model and not Model.__subclasses__()
    assert repr(fast) == repr(model)
    assert list(fast.state_dict()) == list(model.state_dict()) == ["seen", "child.weight"]
    assert next(fast.parameters()) is next(model.parameters())
    assert fast.child is model.child
    assert inspect.signature(fast.forward) == inspect.signature(model.forward)
    assert inspect.signature(type(fast).forward) == inspect.signature(Model.forward)


def test_the_call_is_compiled_and_gets_the_original(model, fast, runtime):
    assert torch.equal(fast(torch.ones(2), scale=3.0), torch.full((2,), 3.0))
    assert runtime.compiled[0].fn is nn.Module._call_impl
    assert [call[0] for call in runtime.calls] == [model]
    assert model.child.parent[0] is runtime.calls[0][0]
    assert torch.equal(model(torch.ones(2)), torch.ones(2))
    assert len(runtime.calls) == 1


def test_changes_through_either_are_seen_by_both(model, fast):
    fast.eval()
    assert not model.training and not model.child.training
    model.note = "second"
    assert fast.note == "second"
    fast.extra = nn.Linear(2, 2)
    assert "extra.weight" in model.state_dict()
    model.load_state_dict({**model.state_dict(), "child.weight": torch.full((2,), 4.0)})
    assert torch.equal(fast(torch.ones(2)), torch.full((2,), 4.0))
    fast.double()
    assert model.child.weight.dtype == torch.float64
    del fast.note
    assert not hasattr(model, "note")


def test_hooks_of_either_run(model, fast, runtime):
    calls = []
    fast.register_forward_pre_hook(lambda module, args: calls.append(("pre", module is model)))
    model.register_forward_hook(
        lambda module, args, output: calls.append(("post", module is model))
    )
    fast(torch.ones(2))
    assert calls == [("pre", True), ("post", True)]


def test_where_only_the_compiled_module_is_left_the_call_gets_it(runtime):
    """``model = compile(model)``: no other object is the program's."""
    fast = tracer_core.compile(nn.Linear(2, 2), backend="eager")
    gc.collect()
    names = {module: name for name, module in fast.named_modules()}
    seen = []
    fast.register_forward_pre_hook(lambda module, args: seen.append(names[module]))
    fast(torch.ones(2))
    assert seen == [""] and runtime.calls[0][0] is fast


def test_methods_reach_the_compiled_call(fast, runtime):
    fast.generate(torch.ones(2), steps=3)
    assert len(runtime.calls) == 3
    assert fast.who() is fast


def test_forward_alone_is_a_plain_call(model, fast, runtime):
    """As in eager PyTorch, where it runs no hooks; and as Module.compile() leaves it."""
    calls = []
    model.register_forward_hook(lambda *args: calls.append("hook"))
    assert torch.equal(fast.forward(torch.ones(2)), torch.ones(2))
    assert calls == runtime.calls == []


def test_a_forward_set_on_the_instance_wins(model, runtime):
    """accelerate and others replace forward on the instance, before or after compile()."""
    fast = tracer_core.compile(model, backend="eager")
    model.forward = lambda x: x + 100
    assert torch.equal(fast(torch.zeros(2)), torch.full((2,), 100.0))
    assert torch.equal(fast.forward(torch.zeros(2)), torch.full((2,), 100.0))


def test_a_wrapper_round_it_reaches_the_compiled_call(fast, runtime):
    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, *args, **kwargs):
            return self.module(*args, **kwargs)

    wrapper = Wrapper(fast)
    wrapper(torch.ones(2))
    assert len(runtime.calls) == 1
    assert list(wrapper.state_dict()) == ["module.seen", "module.child.weight"]
    assert [type(m).__name__ for m in wrapper.modules()] == ["Wrapper", "Model", "Child"]


def test_compiled_child_in_its_parent(model, runtime):
    model.child = tracer_core.compile(model.child, backend="eager")
    assert torch.equal(model(torch.ones(2)), torch.ones(2))
    assert len(runtime.calls) == 1
    assert list(model.state_dict()) == ["seen", "child.weight"]


def test_pickle_and_copies_give_the_original_class(model, fast):
    for other in (pickle.loads(pickle.dumps(fast)), copy.deepcopy(fast), copy.copy(fast)):
        assert type(other) is Model
        assert torch.equal(other(torch.ones(2)), fast(torch.ones(2)))
    assert copy.deepcopy(fast).child.weight is not model.child.weight
    file = io.BytesIO()
    torch.save(fast, file)
    file.seek(0)
    assert type(torch.load(file, weights_only=False)) is Model


def test_deepcopy_of_a_parent_keeps_sharing(fast):
    parent = nn.ModuleList([fast, fast.child])
    other = copy.deepcopy(parent)
    assert type(other[0]) is Model
    assert other[0].child is other[1]


def test_a_replica_is_not_mistaken_for_the_module(fast, runtime):
    """What nn.DataParallel does to put a module on another device."""
    replica = fast._replicate_for_data_parallel()
    replica.child = Child()
    replica.child.weight.data.fill_(9)
    runtime.calls.clear()
    assert torch.equal(replica(torch.ones(2)), torch.full((2,), 9.0))
    assert runtime.calls == []
    assert type(copy.deepcopy(replica)) is Model


def test_compiling_it_again_starts_from_the_original(model, fast, runtime):
    again = tracer_core.compile(fast, backend="eager")
    again(torch.ones(2))
    assert len(runtime.calls) == 1 and runtime.calls[0][0] is model
    assert type(again) is Model


def test_disable_gives_a_module_that_is_never_traced(model, runtime):
    native = tracer_core.disable(model, reason="too dynamic")
    assert isinstance(native, Model) and native.child is model.child
    assert torch.equal(native(torch.ones(2)), torch.ones(2))
    assert tracer_core.compile(native, backend="eager") is native
    from tracer_core import markers

    assert markers.disabled(native) == "too dynamic"
    assert markers.disabled(model) is None


def test_a_subclass_with_its_own_call(runtime):
    class Loud(nn.Linear):
        def __call__(self, x):
            return super().__call__(x) + 1

    loud = Loud(2, 2)
    fast = tracer_core.compile(loud, backend="eager")
    x = torch.ones(1, 2)
    assert torch.equal(fast(x), loud(x))
    assert runtime.compiled[0].fn is Loud.__call__


def test_graph_modules_stay_editable(runtime):
    traced = torch.fx.symbolic_trace(Child())
    fast = tracer_core.compile(traced, backend="eager")
    for node in fast.graph.nodes:
        if node.op == "call_function":
            node.target = torch.add
            fast.recompile()
            break
    assert torch.equal(fast(torch.ones(2)), torch.full((2,), 2.0))


def test_slots_are_refused(runtime):
    class Slotted(nn.Module):
        __slots__ = ("extra",)

    with pytest.raises(OptionError, match="__slots__ \\(extra\\)"):
        tracer_core.compile(Slotted(), backend="eager")


def test_autograd_and_optimizers_see_the_parameters(model, fast):
    optimizer = torch.optim.SGD(fast.parameters(), lr=1.0)
    fast(torch.ones(2)).sum().backward()
    optimizer.step()
    assert torch.equal(model.child.weight.detach(), torch.zeros(2))


class Growing(nn.Module):
    """Becomes a Grown in its first call, as lazy modules become the modules that they stand for."""

    def forward(self, x):
        self.__class__ = Grown
        return x + 1


class Grown(nn.Module):
    def forward(self, x):
        return x * 2


class Other(nn.Module):
    def forward(self, x):
        return x - 1


@pytest.mark.parametrize("kept", [True, False])
def test_a_module_of_another_class(kept, runtime):
    original = Growing()
    fast = tracer_core.compile(original, backend="eager")
    modules = [original, fast] if kept else [fast]
    if not kept:
        del original
    x = torch.ones(2)
    assert torch.equal(fast(x), x + 1)
    assert {type(module) for module in modules} == {Grown}
    assert torch.equal(fast(x), x * 2)
    for module in modules:  # whichever of them the program changes
        module.__class__ = Other
        assert torch.equal(fast(x), x - 1)
        assert {type(module) for module in modules} == {Other}
        module.__class__ = Grown
        assert torch.equal(fast(x), x * 2)
