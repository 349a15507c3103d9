"""What ATen operators return is looked at once, before kernels read it."""

from __future__ import annotations

import pytest
import torch

import tracer_core
from inductor_backend.runtime import generated_support
from inductor_backend.runtime.generated_support import expect
from tracer_core.plugin_api import BackendError

X = torch.randn(4, 6)


@pytest.mark.parametrize(
    ("sizes", "strides", "dtype"),
    [
        ((4, 6), (6, 1), torch.bfloat16),
        ((6, 4), (4, 1), torch.float32),
        ((4, 6), (1, 4), torch.float32),
    ],
)
def test_another_dtype_size_or_stride_is_an_error_that_names_the_operator(sizes, strides, dtype):
    with pytest.raises(BackendError, match="aten.sort.default returned torch.float32 of sizes"):
        expect("aten.sort.default", (X, sizes, strides, dtype))


def test_strides_of_dimensions_of_size_one_and_of_nothing_do_not_matter():
    expect(
        "aten.sort.default",
        (X[:1], (1, 6), (99, 1), torch.float32),
        (X[:0], (0, 6), (1, 1), torch.float32),
    )


def test_a_part_looks_at_what_an_operator_between_parts_gives():
    """A kernel that does what its fake says in its first call alone, which is the one that the tracer
    compares."""
    kinds = iter([torch.float32])
    library = torch.library.Library("inductor_expect", "DEF")
    library.define("wrong(Tensor x) -> Tensor")
    library.impl("wrong", lambda x: x.to(next(kinds, torch.float64), copy=True), "CPU")
    torch.library.register_fake(
        "inductor_expect::wrong", lambda x: x.new_empty(x.shape), lib=library
    )
    compiled = tracer_core.compile(lambda x: torch.ops.inductor_expect.wrong(x + 1) * 2)
    torch.testing.assert_close(compiled(X), (X + 1) * 2)
    with pytest.raises(
        BackendError,
        match="wrong_default, made by an operator that runs eagerly, has dtype torch.float64",
    ):
        compiled(X)


def test_a_module_looks_at_its_first_run(monkeypatch):
    seen = []
    monkeypatch.setattr(
        generated_support, "expect", lambda operator, *results: seen.append(operator)
    )
    compiled = tracer_core.compile(lambda x: (x + 1).sort().values * 2)
    for _ in range(3):
        torch.testing.assert_close(compiled(X), (X + 1).sort().values * 2)
    assert seen == ["aten.sort.default"]


BAD = torch.tensor([2])
ONE_ELEMENT = {
    "index_select": lambda x: x.index_select(0, BAD),
    "gather": lambda x: x.gather(0, torch.tensor([[2, 0]])),
    "index": lambda x: x[BAD],
    "embedding": lambda x: torch.nn.functional.embedding(BAD, x),
    "expanded": lambda x: x.expand(2, -1).index_select(0, BAD),
    "nll_loss": lambda x: torch.nn.functional.nll_loss(x[:, :1], BAD),
}


@pytest.mark.parametrize("name", ONE_ELEMENT)
def test_a_position_outside_a_dimension_of_one_element_is_an_error(name):
    """No loop needs an index there; the check stays."""
    function = ONE_ELEMENT[name]
    compiled = tracer_core.compile(lambda x: function(x) * 2)
    for call in (lambda: function(X[:1]), lambda: compiled(X[:1])):
        with pytest.raises((IndexError, RuntimeError), match="out of"):
            call()
