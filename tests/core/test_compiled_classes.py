"""compile() makes no class where it can: the program's classes, metaclasses and registries do not notice
it, and libraries that look at ``type(module)`` find the program's."""

from __future__ import annotations

import abc
import copy
import dataclasses
import gc
import io
import pickle
import typing
import weakref

import pytest
import torch
import torch.nn.utils.prune
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import tracer_core

X = torch.arange(8.0).reshape(2, 4) / 4


def compiled(module: nn.Module) -> typing.Any:
    fast = tracer_core.compile(module, backend="eager")
    fast(X)
    return fast


def layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 4)


class Registered(nn.Module):
    known: typing.ClassVar[dict[str, type]] = {}

    def __init_subclass__(cls, *, tag: str, **kwargs: typing.Any) -> None:
        Registered.known[cls.__name__] = cls
        cls.tag = tag


class Activation(Registered, nn.Tanh, tag="one"):
    pass


class OnlyOne(type(nn.Module)):  # type: ignore[misc]
    """A metaclass that allows one class."""

    made: typing.ClassVar[list[str]] = []

    def __new__(meta, name: str, *args: typing.Any) -> typing.Any:
        assert not OnlyOne.made, f"{name} is a second class"
        OnlyOne.made.append(name)
        return super().__new__(meta, name, *args)

    def shout(cls) -> str:
        return cls.__name__.upper()


class Single(nn.Linear, metaclass=OnlyOne):
    pass


class Abstract(nn.Module, abc.ABC):
    @abc.abstractmethod
    def forward(self, x: torch.Tensor) -> torch.Tensor: ...


class Concrete(Abstract):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


T = typing.TypeVar("T")


class Generic(nn.Module, typing.Generic[T]):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3


@dataclasses.dataclass
class Scale(nn.Module):
    by: float = 4.0

    def __post_init__(self) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by


class Around(nn.Module):
    """Answers for what it wraps."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = layer()

    def __getattr__(self, name: str) -> typing.Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + self.weight.sum()


class OwnState(nn.Module):
    """Pickles its whole dictionary but for one entry."""

    def __init__(self) -> None:
        super().__init__()
        self.lock: typing.Any = None

    def __getstate__(self) -> dict[str, typing.Any]:
        state = self.__dict__.copy()
        del state["lock"]
        return state

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


MODULES = {
    "registered": Activation,
    "metaclass": lambda: Single(4, 4),
    "abstract": Concrete,
    "generic": lambda: Generic[int](),
    "dataclass": Scale,
    "answers for another": Around,
    "own state": OwnState,
}


@pytest.mark.parametrize("name", MODULES)
def test_the_class_is_the_program_s(name: str) -> None:
    module = MODULES[name]()
    known = dict(Registered.known)
    fast = compiled(module)
    assert type(fast) is type(module) and not type(module).__subclasses__()
    assert Registered.known == known
    torch.testing.assert_close(fast(X), module(X))
    for other in (pickle.loads(pickle.dumps(fast)), copy.deepcopy(fast), copy.copy(fast)):
        assert type(other) is type(module)
        torch.testing.assert_close(other(X), module(X))


def test_each_of_several_has_its_own_settings() -> None:
    module, graphs = layer(), []

    def count(name: str) -> typing.Any:
        def backend(graph: typing.Any, inputs: typing.Any) -> typing.Any:
            graphs.append(name)
            return graph.forward

        return tracer_core.compile(module, backend=backend)

    first, second = count("first"), count("second")
    want = module(X)
    for fast in (first, second, first):
        torch.testing.assert_close(fast(X), want)
    assert graphs == ["first", "second"]
    del first
    gc.collect()
    torch.testing.assert_close(second(X), want)
    assert graphs == ["first", "second"]


def test_a_module_that_knows_its_compiled_form_is_collected() -> None:
    fast = compiled(layer())
    fast.trainer = [fast]
    seen = weakref.ref(fast), weakref.ref(fast.weight)
    del fast
    gc.collect()
    assert [item() for item in seen] == [None, None]


def test_modules_are_stacked() -> None:
    layers = [compiled(layer()) for _ in range(3)]
    params, buffers = torch.func.stack_module_state(layers)
    got = torch.vmap(
        lambda p, b: torch.func.functional_call(layers[0], (p, b), (X,)), in_dims=(0, 0)
    )(params, buffers)
    torch.testing.assert_close(got[2], layers[2](X))


class Symmetric(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + weight.T


CHANGES = {
    "parametrized": lambda m: parametrize.register_parametrization(m, "weight", Symmetric()),
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "pruned": lambda m: torch.nn.utils.prune.l1_unstructured(m, "weight", 0.5),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_compiled_module_is_reparametrized(name: str) -> None:
    eager, fast = layer(), compiled(layer())
    for module in (eager, fast):
        torch.manual_seed(1)
        CHANGES[name](module)
    for _ in range(3):
        torch.testing.assert_close(fast(X), eager(X))
    assert type(fast).__name__ == type(eager).__name__


def test_a_parametrization_is_removed() -> None:
    eager, fast = layer(), compiled(layer())
    for module in (eager, fast):
        parametrize.register_parametrization(module, "weight", Symmetric())
        module(X)
        parametrize.remove_parametrizations(module, "weight")
    torch.testing.assert_close(fast(X), eager(X))
    assert type(fast) is nn.Linear


def test_an_average_of_it_is_an_ordinary_module() -> None:
    fast = compiled(layer())
    average = torch.optim.swa_utils.AveragedModel(fast)
    average.update_parameters(fast)
    assert type(average.module) is nn.Linear
    torch.testing.assert_close(average(X), fast(X))


def test_torch_s_own_module_compile() -> None:
    seen: list[str] = []

    def backend(graph: typing.Any, inputs: typing.Any) -> typing.Any:
        seen.append("torch")
        return graph.forward

    module = Concrete()
    module.compile(backend=backend)
    fast = compiled(module)
    assert not seen
    torch.testing.assert_close(module(X), fast(X))
    assert seen == ["torch"]


TRACERS = {
    "torch.compile": lambda m: torch.compile(m, backend="eager", fullgraph=True),
    "export": lambda m: torch.export.export(m, (X,)).module(),
    "fx": torch.fx.symbolic_trace,
    "jit.trace": lambda m: torch.jit.trace(m, torch.zeros(2, 4)),
    "jit.script": torch.jit.script,
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", TRACERS)
def test_torch_s_tracers_see_the_program(name: str) -> None:
    fast = compiled(nn.Sequential(layer(), nn.ReLU()))
    parent = nn.Sequential(nn.Tanh(), fast)
    torch.testing.assert_close(TRACERS[name](fast)(X), fast(X))
    torch.testing.assert_close(TRACERS[name](parent)(X), parent(X))


# -- classes that replace __call__ --


class Loud(nn.Linear):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return super().__call__(x) + 1

    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return self(self(x))

    @classmethod
    def make(cls) -> Loud:
        return cls(4, 4)


class LoudRegistered(Registered, Loud, tag="two"):
    pass


@pytest.mark.parametrize("cls", [Loud, LoudRegistered])
def test_a_class_with_its_own_call(cls: typing.Any) -> None:
    module, known = cls(4, 4), dict(Registered.known)
    fast = compiled(module)
    assert Registered.known == known
    torch.testing.assert_close(fast.twice(X), module.twice(X))
    assert fast.__class__ is cls and isinstance(fast, cls)
    assert type(fast.make()) is type(type(fast)(4, 4)) is cls
    assert pickle.loads(pickle.dumps(type(fast))) is cls
    for bound in (fast.make, fast.twice):
        pickle.loads(pickle.dumps(bound))
    file = io.BytesIO()
    torch.save(fast, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for other in (loaded, copy.deepcopy(fast), copy.copy(fast)):
        assert type(other) is cls
        torch.testing.assert_close(other(X), module(X))
    assert type(compiled(cls(4, 4))) is type(fast)


def test_its_class_is_changed_with_it() -> None:
    module, fast = Loud(4, 4), compiled(Loud(4, 4))
    fast.load_state_dict(module.state_dict())
    for value in (module, fast):
        parametrize.register_parametrization(value, "weight", Symmetric())
    torch.testing.assert_close(fast(X), module(X))
    parametrize.remove_parametrizations(fast, "weight")
    torch.testing.assert_close(fast(X), module(X))
    assert fast.__class__ is Loud
