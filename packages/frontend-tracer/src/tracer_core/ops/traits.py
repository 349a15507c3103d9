"""Traits of operators: which there are, and whether a call's target has one.

`table` lists the families. What torch itself declares (tags, schemas) is read from the operator and
stands in no table.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core.torch_private.distributed import communicates


class Trait(enum.Flag):
    """A property of every operator of a family."""

    #: Each element of the result depends on the operands' elements at its place; torch has no tag.
    POINTWISE = enum.auto()
    #: A kernel that reads the result computes it again at next to no cost.
    CHEAP = enum.auto()
    #: Compares its two operands, element by element.
    COMPARES = enum.auto()
    #: An in-place operator of Python (``a += b``), as `operator` names it.
    AUGMENTS = enum.auto()
    #: The result has the same bits wherever a compiler computes it.
    EXACT = enum.auto()
    #: Compares computed values: both passes must compare the same bits (``x == x.amax()`` is false
    #: everywhere in a row whose x is recomputed with another rounding).
    DECIDES = enum.auto()
    #: The result depends on no tensor's values; an operand has the result's sizes.
    FILLS = enum.auto()
    #: The result's elements are whatever the memory holds.
    UNINITIALIZED = enum.auto()

    #: The result is a view of the first argument (of `reshape`: where there can be one).
    VIEW = enum.auto()
    #: A view whose arguments are a tensor and a shape.
    RESHAPES = enum.auto()
    #: A view that has every element of the first argument once, in the order of its indices.
    KEEPS_ORDER = enum.auto()
    #: A view that has every element of the first argument once.
    KEEPS_ELEMENTS = enum.auto()
    #: A view for any strides of the operand: never a copy, so the elements may have any dtype.
    STRIDED_VIEW = enum.auto()
    #: A view whose C++ kernel gives the full answer for a fake whose sizes are ints.
    VIEW_KERNEL = enum.auto()
    #: The whole result depends on every element of the operands, though no tag says pointwise.
    READS_ALL = enum.auto()
    #: Moves elements and adds none up, though neither pointwise nor a view.
    MOVES = enum.auto()
    MATMUL = enum.auto()
    #: A matmul or a convolution: reads dense operands whole, and returns memory of its own.
    PRODUCT = enum.auto()

    #: A method that changes sizes or strides of its first argument.
    RESHAPES_IN_PLACE = enum.auto()
    #: A method that changes a tensor's metadata: breaks a graph.
    SETS_METADATA = enum.auto()
    #: Such a method that a graph can hold if the tensor is an intermediate.
    SETS_METADATA_OF_INTERMEDIATES = enum.auto()

    #: Raises for some values of its operands, which fakes do not show.
    RAISES_BY_VALUE = enum.auto()
    #: A function of linear algebra that raises for no matrix.
    TAKES_ANY_MATRIX = enum.auto()
    #: Its check of values is a device assertion on GPUs, which does not raise.
    ASSERTS_ON_GPU = enum.auto()
    #: Writes values, or adds them, at positions of a copy of its first operand.
    SCATTERS = enum.auto()
    #: Reads or writes memory at positions that are data.
    CHECKS_INDICES = enum.auto()
    #: Returns elements of its first operand at positions that are data.
    GATHERS = enum.auto()
    #: Raises for a divisor of zero where its operands are integers.
    DIVIDES = enum.auto()
    #: Raises for other values where its operands are integers.
    RAISES_FOR_INTEGERS = enum.auto()

    #: Counts the elements of an index that is a mask on the host.
    COUNTS_MASKS = enum.auto()
    #: The result has the dtype of the first operand, whatever the others' dtypes are.
    DTYPE_OF_FIRST = enum.auto()

    #: Reads a value back, or waits for the device, which no tag says (`OpFamily.why`).
    BLOCKS = enum.auto()


@dataclass(frozen=True, slots=True)
class OpFamily:
    """One row of a table."""

    #: The operators, as torch spells them, split at spaces: an overload (``add.Tensor``), or what
    #: every function, method and overload of that name is (``gather``).
    names: str
    traits: Trait
    #: The reason, for messages.
    why: str = ""


def is_pointwise(target: Any) -> bool:
    """Returns whether torch tags an operator as pointwise.

    Args:
        target: The target of a call node.
    """
    return torch.Tag.pointwise in getattr(target, "tags", ())


def is_random(target: Any) -> bool:
    """Returns whether an operator of ATen uses rng.

    Args:
        target: The target of a call node.
    """
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def runs_once(target: Any) -> bool:
    """Returns whether an operator must run exactly once, in the order of the other such operators:
    it uses rng or communicates.

    Args:
        target: The target of a call node.
    """
    return is_random(target) or communicates(target)


def writes(target: Any) -> bool:
    """Returns whether an operator's schema declares a write to an operand."""
    schema = getattr(target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def has_effect(target: Any) -> bool:
    """Returns whether an operator does more than to compute its result from its operands.

    Args:
        target: The target of a call node.
    """
    return writes(target) or runs_once(target)
