"""Idioms of transformers, timm and torchvision, each reduced to a few lines."""

from __future__ import annotations

import collections
import collections.abc
from typing import Any

import pytest
import torch

from tests.support.eager_reference import compare_with_eager, same

X = torch.arange(6.0).reshape(2, 3) - 2.0


# -- tables of activations
# ----------------------------------------------------------------------------


class Instantiating(collections.OrderedDict):  # type: ignore[type-arg]
    """transformers.activations.ClassInstantier: looking a class up makes an instance."""

    def __getitem__(self, key: str) -> Any:
        content = super().__getitem__(key)
        cls, arguments = content if isinstance(content, tuple) else (content, {})
        return cls(**arguments)


ACTIVATIONS = Instantiating(
    relu=torch.nn.ReLU, leaky=(torch.nn.LeakyReLU, {"negative_slope": 0.5}), tanh=torch.nn.Tanh
)


@pytest.mark.parametrize("name", ["relu", "leaky", "tanh"])
def test_a_table_whose_subscript_makes_the_activation(name: str) -> None:
    def make() -> Any:
        return lambda x: ACTIVATIONS[name](x) + 1

    compare_with_eager(make, (X,), (X * 2,), graphs=1, breaks=0, recompiles=0)


class Reversed(list):  # type: ignore[type-arg]
    def __getitem__(self, index: int) -> Any:
        return list.__getitem__(self, len(self) - 1 - index)


def test_a_list_with_a_subscript_of_its_own() -> None:
    def make() -> Any:
        scales = Reversed([1.0, 2.0, 3.0])

        def fn(x: torch.Tensor) -> torch.Tensor:
            return x * scales[0] + list.__getitem__(scales, 0)

        return fn, scales

    compare_with_eager(
        make,
        (X,),
        (X,),
        lambda scales: list.__setitem__(scales, 2, 5.0),
        (X,),
        graphs=2,
        breaks=0,
        recompiles=1,
    )


class Filling(dict):  # type: ignore[type-arg]
    def __missing__(self, key: str) -> float:
        self[key] = 10.0
        return 10.0


def test_guards_make_no_missing_entry() -> None:
    def make() -> Any:
        table = Filling(a=2.0)
        other = collections.defaultdict(lambda: 7.0, b=3.0)

        def fn(x: torch.Tensor) -> torch.Tensor:
            return x * table["a"] if "a" in table else x - other.get("b", 0.0)

        return fn, [table, other]

    def forget(world: Any) -> None:
        world[0].clear()

    compare_with_eager(
        make, (X,), (X,), forget, (X,), lambda world: world[1].clear(), (X,), graphs=3, breaks=0
    )


# -- super() below a break
# ----------------------------------------------------------------------------


class Layers:
    def __init__(self, layers: list[float]) -> None:
        self.layers = layers


class Cache(Layers):
    def __init__(self, number: int, x: torch.Tensor) -> None:
        layers = [float(i) for i in range(number)]
        print("", end="", flush=[])
        super().__init__(layers=layers)


def test_the_first_argument_of_super_lives_across_a_break() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        cache = Cache(3, x)
        return y * cache.layers[2]

    same(fn, (X,), (X + 1,), graphs=2, kinds=("side_effect_native",), recompiles=0)


def test_locals_live_across_a_break_when_they_are_asked_for() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        scale = 3.0
        y = x + 1
        print("", end="", flush=[])
        return y * locals()["scale"]

    same(fn, (X,), (X + 1,), kinds=("side_effect_native", "native_python"))


# -- layer drop
# ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operator", "rate", "breaks"),
    [
        ("<", 0.0, 0),
        ("<", 1.0, 0),
        (">=", 0, 0),
        (">", 1.5, 0),
        ("<=", -1, 0),
        ("<", 0.5, 1),
        ("<=", 0.0, 1),
    ],
)
def test_a_random_number_beside_a_bound_of_its_range(
    operator: str, rate: float, breaks: int
) -> None:
    names: dict[str, Any] = {}
    exec(
        "def fn(x):\n"
        "    drop = torch.rand([])\n"
        f"    if drop {operator} {rate}:\n"
        "        return x + drop\n"
        "    return x * 2\n",
        {"torch": torch},
        names,
    )
    same(names["fn"], (X,), (X + 1,), breaks=breaks, recompiles=0)


def test_a_random_number_that_was_changed_has_no_known_range() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        drop = torch.rand([])
        drop.sub_(2.0)
        below = drop < 0.0
        if below:
            return x + 1
        return x - 1

    same(fn, (X,), kinds=("data_dependent_branch",))


def test_a_comparison_that_was_changed_is_asked() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        below = torch.rand([]) < 0.0
        below.logical_not_()
        return x + 1 if below else x - 1

    same(fn, (X,), kinds=("data_dependent_branch",))


def test_layers_that_are_never_dropped_are_one_graph() -> None:
    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(3))
            self.layerdrop = 0.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                skip = self.training and (torch.rand([]) < self.layerdrop)
                if not skip:
                    x = layer(x).relu()
            return x

    def make() -> Any:
        torch.manual_seed(0)
        model = Encoder()
        return model, model

    compare_with_eager(make, (X,), (X * 2,), lambda model: model.eval(), (X,), graphs=2, breaks=0)


# -- checks and leaves
# --------------------------------------------------------------------------------


def test_checks_of_numbers_and_sizes() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[0] * 3 == x.numel(), lambda: f"not {x.shape}")
        torch._check(x.dim() == 2)
        return x + 1

    same(fn, (X,), (torch.ones(4, 3),), (torch.ones(5, 3),), graphs=2)


def test_a_check_that_fails_raises_its_message() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        torch._check(x.dim() == 3, lambda: f"{x.dim()} dimensions")
        return x + 1

    same(fn, (X,), (torch.ones(1, 2, 3),), breaks=None)


def test_an_intermediate_that_is_made_a_leaf() -> None:
    class Extractor(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv1d(1, 2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = x[:, None]
            if self.training:
                hidden.requires_grad = True
            return torch.nn.functional.gelu(self.conv(hidden))

    def make() -> Any:
        torch.manual_seed(0)
        model = Extractor()
        return model, model

    seen = compare_with_eager(make, (X,), (X * 2,), graphs=1, breaks=0)
    seen.results[-1].sum().backward()


def test_a_leaf_outside_of_grad_mode_is_not_recorded() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x * 2
            y.requires_grad = True
        return y * 3

    same(fn, (X,), (X + 1,), kinds=("tensor_metadata_mutation",))


# -- sequences of one's own
# ---------------------------------------------------------------------------


class Configs(collections.abc.Sequence):  # type: ignore[type-arg]
    """transformers' per-layer configurations: read by position, iterated by the base class's
    generator.
    """

    def __init__(self, scales: list[float]) -> None:
        self.scales = scales

    def __len__(self) -> int:
        return len(self.scales)

    def __getitem__(self, index: int) -> float:
        return self.scales[index]


def test_zip_leaves_the_iterator_of_a_sequence_suspended() -> None:
    def make() -> Any:
        configs = Configs([1.0, 2.0, 3.0])

        def fn(x: torch.Tensor) -> torch.Tensor:
            for name, scale in zip(("a", "b"), configs):
                x = x * scale + len(name)
            return x

        return fn

    compare_with_eager(make, (X,), (X + 1,), graphs=1, breaks=0, recompiles=0)


@pytest.mark.parametrize(
    "caught", ["IndexError", "Exception", "BaseException", "GeneratorExit", "ValueError as error"]
)
def test_a_generator_left_in_a_try_whose_clause_may_take_its_end(caught: str) -> None:
    names: dict[str, Any] = {"torch": torch}
    takes = caught in ("BaseException", "GeneratorExit")
    exec(
        "def numbers(log):\n"
        "    try:\n"
        "        for i in range(5):\n"
        "            yield i\n"
        f"    except {caught}:\n"
        "        log.append('closed')\n"
        f"{'        raise' if takes else '        return'}\n"
        "def fn(x, log):\n"
        "    made = numbers(log)\n"
        "    x = x + next(made) + next(made)\n"
        "    del made\n"
        "    return x * 2 + len(log)\n",
        names,
    )
    expected = None if takes else 0
    same(names["fn"], (X, []), (X + 1, []), breaks=expected, recompiles=0)


# -- gradients for frozen embeddings
# ------------------------------------------------------------------


@pytest.mark.parametrize("frozen", [False, True])
def test_a_hook_that_makes_the_embeddings_require_gradients(frozen: bool) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(5, 3)
            self.head = torch.nn.Linear(3, 2)
            self.embed.weight.requires_grad_(not frozen)
            self.embed.register_forward_hook(
                lambda module, args, output: output.requires_grad_(True)
            )

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(ids)).relu()

    def make() -> Any:
        torch.manual_seed(0)
        model = Model()
        return model, model

    compare_with_eager(make, (torch.tensor([0, 3]),), (torch.tensor([4, 3]),), graphs=1, breaks=0)


def test_a_parameter_that_requires_gradients_already() -> None:
    weight = torch.nn.Parameter(torch.ones(3))

    def fn(x: torch.Tensor) -> torch.Tensor:
        weight.requires_grad_()
        return x * weight

    same(fn, (X,), (X + 1,), graphs=1)


def test_an_input_that_must_not_be_made_a_leaf_in_the_trace() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x.requires_grad_()
        return x * 2

    same(fn, (X,), (X + 1,), kinds=("tensor_metadata_mutation",))
