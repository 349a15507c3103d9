"""Nested tensors of jagged layout: in the graph, with eager's values, gradients and errors."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import tracer_core
from tracer_core.ops.higher_order.jagged_attention import attend
from tracer_core.testing import CaptureCounter

BACKENDS = ["eager", "inductor"]


def packed(seed: int, *lengths: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns values and offsets of sequences of these lengths."""
    draws = torch.Generator().manual_seed(seed)
    ends = torch.tensor([0, *lengths]).cumsum(0)
    return torch.randn(sum(lengths), 8, generator=draws), ends


class Model(nn.Module):
    """Runs a function of packed values and offsets with a linear layer and a norm."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.norm, self.function = nn.Linear(8, 4), nn.LayerNorm(4), function

    def forward(self, values, offsets):
        return self.function(self, values, offsets)


def nested(values, offsets, **bounds):
    return torch.nested.nested_tensor_from_jagged(values, offsets, **bounds)


def of_a_list(model, values, offsets):
    parts = [values[:3], values[3:]]
    ragged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    return torch.nested.to_padded_tensor(model.layer(ragged).relu(), 0.0)


def as_nested(model, values, offsets):
    ragged = torch.nested.as_nested_tensor([values[:2], values[2:]], layout=torch.jagged)
    return model.layer(ragged).values()


def layers(model, values, offsets):
    return model.norm(model.layer(nested(values, offsets))).sin().values()


def padded(model, values, offsets):
    ragged = model.layer(nested(values, offsets, min_seqlen=1, max_seqlen=16))
    return torch.nested.to_padded_tensor(ragged, -1.0)


def arithmetic(model, values, offsets):
    ragged = nested(values, offsets)
    return (ragged * 2 + ragged.cos()).values(), ragged.offsets() + 1


def heads(model, values, offsets):
    ragged = nested(values, offsets).unflatten(-1, [2, 4]).transpose(1, 2)
    return (ragged * 2).transpose(1, 2).flatten(-2).values()


def attention(model, values, offsets):
    ragged = nested(values, offsets).unflatten(-1, [2, 4]).transpose(1, 2)
    out = nn.functional.scaled_dot_product_attention(ragged, ragged * 2, ragged.cos())
    return out.transpose(1, 2).flatten(-2).values()


def attention_between(model, values, offsets):
    mine = nested(values, offsets).unflatten(-1, [2, 4]).transpose(1, 2)
    its = nested(values.flip(0), offsets.flip(0)[0] - offsets.flip(0))
    its = its.unflatten(-1, [2, 4]).transpose(1, 2)
    out = nn.functional.scaled_dot_product_attention(mine, its, its, scale=0.3)
    return out.transpose(1, 2).values()


def returned(model, values, offsets):
    return model.layer(nested(values, offsets))


def facts_of(model, values, offsets):
    ragged = nested(values, offsets)
    return ragged.dim(), ragged.size(0), ragged.shape[2], ragged.dtype, ragged.is_nested


PROGRAMS = [
    of_a_list, as_nested, layers, padded, arithmetic, heads, attention, attention_between, returned,
    facts_of,
]  # fmt: skip


def plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_nested:
        return [type(value), plain(value.values()), plain(value.offsets()), value.dim()]
    return value


def near(want: Any, got: Any) -> None:
    want, got = plain(want), plain(got)
    assert type(want) is type(got)
    if isinstance(want, torch.Tensor):
        assert want.dtype is got.dtype
        assert want.stride() == got.stride()
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    elif isinstance(want, (list, tuple)):
        assert len(want) == len(got)
        for item, other in zip(want, got, strict=True):
            near(item, other)
    else:
        assert want == got


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda value: value.__name__)
@pytest.mark.sweep(keep=8)
def test_inference(program, backend):
    """One graph, and a second one once lengths have changed; a list's lengths are compared, and
    their order is guarded."""
    model = Model(program)
    compiled = tracer_core.compile(model, backend=backend, fullgraph=True)
    with torch.no_grad(), CaptureCounter() as counter:
        for seed, lengths in enumerate([(3, 5), (3, 5), (4, 7), (2, 9), (6, 6)]):
            near(model(*packed(seed, *lengths)), compiled(*packed(seed, *lengths)))
    assert len(counter.graphs) <= (4 if program in (of_a_list, as_nested) else 2)


def differentiated(model, values, offsets) -> list[Any]:
    """Gradients of a weighted sum of what a model returns."""
    model.zero_grad()
    values = values.detach().clone().requires_grad_()
    results = model(values, offsets)
    results = results if isinstance(results, tuple) else (results,)
    flat = [result.values() if result.is_nested else result for result in results]
    draws = torch.Generator().manual_seed(7)
    total = sum(
        (leaf * torch.randn(leaf.shape, generator=draws).to(leaf.dtype)).sum()
        for leaf in flat
        if leaf.is_floating_point()
    )
    total.backward()
    return [values.grad, *(item.grad for item in model.parameters() if item.grad is not None)]


@pytest.mark.sweep(keep=8)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "program", [item for item in PROGRAMS if item is not facts_of], ids=lambda value: value.__name__
)
def test_gradients(program, backend):
    """Against eager's in float64, for lengths that change."""
    model, exact = Model(program), Model(program).double()
    other = copy.deepcopy(model)
    compiled = tracer_core.compile(other, backend=backend, fullgraph=True)
    for seed, lengths in enumerate([(3, 5), (4, 7), (2, 9)]):
        values, offsets = packed(seed, *lengths)
        exact_values = differentiated(exact, values.double(), offsets)
        for got, in_float64 in zip(
            differentiated(compiled, values, offsets), exact_values, strict=True
        ):
            if in_float64 is None:  # nested_tensor() takes no gradients back to its list
                assert got is None
            else:
                torch.testing.assert_close(got.double(), in_float64, rtol=1e-4, atol=1e-4)


# -- as inputs --


def ragged_input(seed: int, *lengths: int, grad: bool = False) -> torch.Tensor:
    draws = torch.Generator().manual_seed(seed)
    parts = [torch.randn(length, 8, generator=draws) for length in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=grad)


def with_its_own_offsets(x):
    other = torch.nested.nested_tensor_from_jagged(x.values() * 2, x.offsets())
    return x * other


ON_INPUTS = {
    "pointwise": lambda x: (x * 2).relu(),
    "padded": lambda x: torch.nested.to_padded_tensor(x.sin(), 0.0),
    "parts": lambda x: ((x + x.cos()).values(), x.offsets() * 2),
    "sizes": lambda x: (x.shape[0], x.size(2), x.dim(), x.sin()),
    "made of its parts": with_its_own_offsets,
    "the input itself": lambda x: (x, x * 2),
}


@pytest.mark.sweep(keep=10)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ON_INPUTS)
def test_inputs(name, backend, grad):
    function = ON_INPUTS[name]
    compiled = tracer_core.compile(function, backend=backend, fullgraph=True)
    with torch.set_grad_enabled(grad), CaptureCounter() as counter:
        for seed, lengths in enumerate([(3, 5, 2), (3, 5, 2), (4, 7, 3), (2, 9, 4), (4, 6)]):
            x, other = (ragged_input(seed, *lengths, grad=grad) for _ in range(2))
            want, got = function(x), compiled(other)
            near(want, got)
            if grad:
                near(gradient(x, want), gradient(other, got))
    assert len(counter.graphs) <= 3  # the first, other lengths, another number of sequences


def gradient(x, results):
    results = results if isinstance(results, tuple) else (results,)
    tensors = [item for item in results if isinstance(item, torch.Tensor) and item.requires_grad]
    sum((item.values() if item.is_nested else item).square().sum() for item in tensors).backward()
    return x.grad


@pytest.mark.parametrize("backend", BACKENDS)
def test_guards_of_an_input(backend):
    """The ragged dimension, lengths beside offsets, cached bounds, and plain tensors."""

    def function(x):
        return x * 2 + 1

    compiled = tracer_core.compile(function, backend=backend)
    values, offsets = packed(1, 3, 5)
    bounds = {"min_seqlen": 3, "max_seqlen": 5}
    calls = [
        ragged_input(1, 3, 5),
        nested(values, offsets),
        nested(values, offsets, **bounds),
        ragged_input(1, 3, 5).transpose(1, 2),
        ragged_input(1, 3, 5).double(),
        values,
        ragged_input(2, 3, 5),
    ]
    with torch.no_grad():
        for x in calls:
            near(function(x), compiled(x))


@pytest.mark.parametrize(
    "program", [layers, padded, attention, returned], ids=lambda value: value.__name__
)
def test_they_are_lowered(program):
    compiled = tracer_core.compile(Model(program), backend="inductor", fullgraph=True)
    compiled(*packed(1, 3, 5))
    eagerly = [item.text for item in tracer_core.last_compile(compiled) if item.name == "fallback"]
    assert not any(text.startswith("lowering") for text in eagerly)


def test_derivatives_of_the_operator():
    """Of both orders; an empty sequence has no part in it."""
    offsets, others = torch.tensor([0, 2, 2, 5]), torch.tensor([0, 3, 3, 4])
    query = packed(1, 5)[0].double().unflatten(-1, [2, 4]).requires_grad_()
    key, value = (packed(s, 4)[0].double().unflatten(-1, [2, 4]).requires_grad_() for s in (2, 3))

    def function(*value):
        return attend(None, *value, offsets, others)

    assert torch.autograd.gradcheck(function, (query, key, value))
    assert torch.autograd.gradgradcheck(function, (query, key, value))


def test_attention_with_dropout_is_eager():
    def function(values, offsets):
        ragged = nested(values, offsets).unflatten(-1, [2, 4]).transpose(1, 2)
        out = nn.functional.scaled_dot_product_attention(ragged, ragged, ragged, dropout_p=0.5)
        return out.transpose(1, 2).values()

    compiled = tracer_core.compile(function, backend="eager")
    with torch.no_grad(), CaptureCounter() as counter:
        for run in (function, compiled):
            torch.manual_seed(1)
            assert run(*packed(1, 3, 5)).shape == (8, 2, 4)
    assert counter.breaks


def test_a_write_is_eager():
    def function(values, offsets):
        ragged = nested(values, offsets)
        ragged.mul_(2)
        return ragged.values() + 1

    compiled = tracer_core.compile(function, backend="eager")
    with torch.no_grad(), CaptureCounter() as counter:
        for seed in (1, 2):
            args, others = packed(seed, 3, 5), packed(seed, 3, 5)
            near(function(*args), compiled(*others))
            near(args, others)
    assert {kind for kind, _, _ in counter.breaks} == {"tensor_subclass"}


def test_an_operator_that_eager_cannot_differentiate():
    """Eager's backward of a mean raises; so does ours."""

    def function(values, offsets):
        return nested(values, offsets).mean(dim=1)

    for run in (function, tracer_core.compile(function, backend="inductor")):
        values, offsets = packed(1, 3, 5)
        result = run(values.requires_grad_(), offsets)
        with pytest.raises((RuntimeError, NotImplementedError)):
            result.sum().backward()
