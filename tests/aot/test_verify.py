"""The verifier of lowered graphs finds each kind of fault, and shows the nodes around it."""

from __future__ import annotations

import operator

import pytest
import torch

from tests.aot.programs import randn
from tests.aot.test_lower import lowered
from tracer_core.aot.verify import verify_lowered
from tracer_core.errors import VerifyError

aten = torch.ops.aten


def example():
    return lowered(lambda x, y: (x.add_(1).relu() * y, y.exp()), randn(3), randn(3))[1]


def node(low, target):
    return next(n for n in low.graph.graph.nodes if n.target is target)


def a_renaming(low):
    relu = node(low, aten.relu.default)
    with low.graph.graph.inserting_after(relu):
        low.graph.graph.call_function(aten.alias.default, (relu,)).meta["val"] = relu.meta["val"]


def no_operator(low):
    exp = node(low, aten.exp.default)
    exp.target = operator.concat


def no_value(low):
    del node(low, aten.exp.default).meta["val"]


def an_attribute(low):
    low.graph.register_buffer("weight", randn(3))
    with low.graph.graph.inserting_before(node(low, aten.relu.default)):
        low.graph.graph.get_attr("weight").meta["val"] = 1


def a_write_in_the_middle(low):
    add = node(low, aten.add.Tensor)
    with low.graph.graph.inserting_after(add):
        new = low.graph.graph.call_function(aten.add_.Tensor, (add, 1))
    new.meta["val"] = add.meta["val"]


def an_operator_after_the_writes(low):
    copy = node(low, aten.copy_.default)
    with low.graph.graph.inserting_after(copy):
        new = low.graph.graph.call_function(aten.exp.default, (copy,))
    new.meta["val"] = copy.meta["val"]


def a_forgotten_write(low):
    low.graph.graph.erase_node(node(low, aten.copy_.default))


def a_wrong_shape(low):
    relu = node(low, aten.relu.default)
    relu.meta["val"] = relu.meta["val"].new_empty(4)


def outputs_that_share(low):
    output = node(low, "output")
    output.args = ((output.args[0][0], output.args[0][0]),)


FAULTS = {
    a_renaming: "aten.alias.default only renames a value",
    no_operator: "is no operator",
    no_value: r"no meta\['val'\]",
    an_attribute: "a get_attr node",
    a_write_in_the_middle: "aten.add_.Tensor writes to its argument",
    an_operator_after_the_writes: "an operator after the writes",
    a_forgotten_write: r"writes to inputs \[\], but spec.mutations is \(0,\)",
    a_wrong_shape: r"aten.relu.default gives torch.float32 \(3,\)",
    outputs_that_share: "an output shares its storage",
}


def test_a_right_graph_passes():
    verify_lowered(example())


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found(fault):
    low = example()
    fault(low)
    with pytest.raises(VerifyError, match=FAULTS[fault]) as caught:
        verify_lowered(low)
    assert "--> " in str(caught.value)


def test_it_runs_only_when_asked_for(monkeypatch):
    calls = []
    monkeypatch.setattr("tracer_core.aot.verify.verify_lowered", lambda low: calls.append(low))
    example()
    monkeypatch.setenv("TRACER_CHECK", "0")
    example()
    assert len(calls) == 1
