"""The table of operators: its rows name operators that exist, and its traits are read."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
import torch

from tracer_core.ops.table import FAMILIES, overloads_with, spelled_with
from tracer_core.ops.traits import Trait, is_pointwise

PACKAGES = Path(__file__).resolve().parents[2] / "packages"
ROWS = "views.py pointwise.py indexing.py linalg.py nn.py".split()
TEXTS = [path.read_text() for path in PACKAGES.glob("*/src/**/*.py") if path.name not in ROWS]
#: Names of Python's functions, and of our own nodes.
OTHERS = {"_assert", "_check", "__set__", "autograd_grad", "backward", "grad", "read_at",
          "read_element", "swap_tensors", "set_data", "_set_data", "rename_", "requires_grad_",
          "share_memory_", "retain_grad", "dirichlet", "cross_entropy", "setitem"}  # fmt: skip


@pytest.mark.parametrize("trait", Trait, ids=lambda trait: trait.name)
def test_a_trait_has_families_and_readers(trait):
    assert any(trait in family.traits for family in FAMILIES)
    assert any(re.search(rf"Trait\.{trait.name}\b", text) for text in TEXTS)


def test_an_operator_has_a_trait_once():
    for trait in Trait:
        listed = [
            part for family in FAMILIES if trait in family.traits for part in family.names.split()
        ]
        assert len(listed) == len(set(listed))


def exists(name: str) -> bool:
    owners = torch.ops.aten, torch, torch.Tensor, torch.nn.functional, torch.linalg, torch._C._nn
    forms = name, name.strip("_"), f"_{name}", f"__{name}__", f"{name}_forward"
    return any(hasattr(owner, form) for owner, form in itertools.product(owners, forms))


def test_rows_name_operators_that_exist():
    import operator

    entries = {part for family in FAMILIES for part in family.names.split()}
    overloads = {entry for entry in entries if "." in entry}
    assert {overload for overload in overloads if not overload_exists(overload)} == set()
    unknown = {entry for entry in entries - overloads - OTHERS if not exists(entry)}
    assert {item for item in unknown if not hasattr(operator, item.removeprefix("r"))} == set()


def overload_exists(entry: str) -> bool:
    name, _, overload = entry.partition(".")
    return overload in getattr(torch.ops.aten, name).overloads()


def test_what_the_table_calls_cheap_to_compute_is_pointwise_or_moves_nothing():
    """The partitioner recomputes what is cheap: nothing that accumulates may be among it."""
    moving = {"arange", "clone", "_to_copy", "expand", "full", "full_like", "zeros", "zeros_like",
              "ones", "ones_like", "scalar_tensor", "new_zeros", "new_ones", "new_full",
              "empty_like", "where"}  # fmt: skip
    for overload in overloads_with(Trait.CHEAP):
        assert is_pointwise(overload) or overload.overloadpacket.__name__ in moving


def test_lookups_are_sets_without_what_this_torch_lacks():
    assert torch.ops.aten.view.default in overloads_with(Trait.VIEW)
    assert torch.ops.aten.eq.Scalar not in overloads_with(Trait.DECIDES)
    assert "gather" in spelled_with(Trait.CHECKS_INDICES)
