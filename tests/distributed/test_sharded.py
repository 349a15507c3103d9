"""fully_shard (FSDP2): results are eager's; layers are captured, one graph for all equal ones."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.sweep(keep=4)

LAYERS = {"blocks": 3, "bert": 2}
#: A compiled root, whose own hooks run around it: what comes before the first layer, the layer (one
#: graph for all of them), what comes after the last. Each end of a layer is a break; so is their
#: loop.
ROOT = {
    "graphs": 3,
    "breaks": ["processes"] * 2 + ["live_iterator"] + ["processes"],
    "recompiles": 0,
}


def expected(model: str, order: str) -> dict:
    if order.startswith("root"):
        return ROOT
    return {"graphs": LAYERS[model], "breaks": [], "recompiles": 0}


ORDERS = ("root_after", "root_before", "layers_before", "layers_after")
#: The others are in CI for one model and the usual settings.
FEW_ORDERS = [
    pytest.param(
        order, marks=[] if order in ("root_after", "layers_before") else [pytest.mark.slow]
    )
    for order in ORDERS
]


@pytest.mark.parametrize(
    ("model", "order"),
    [
        *(("blocks", order) for order in ORDERS),
        *(pytest.param("bert", *order.values, marks=order.marks) for order in FEW_ORDERS),
    ],
)
def test_order(pair, model, order):
    """The root, or each layer, is compiled before or after fully_shard."""
    for seen in pair.run("sharded:trained", name=model, order=order):
        assert seen == expected(model, order)


@pytest.mark.parametrize("order", FEW_ORDERS)
def test_mixed_precision(pair, order):
    for seen in pair.run("sharded:trained", name="blocks", order=order, dtype="bfloat16"):
        assert seen == expected("blocks", order)


@pytest.mark.parametrize("order", FEW_ORDERS)
def test_no_reshard_after_forward(pair, order):
    for seen in pair.run(
        "sharded:trained", name="blocks", order=order, reshard_after_forward=False
    ):
        assert seen == expected("blocks", order)


@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
@pytest.mark.parametrize("order", ["root_after", "layers_before"])
def test_backends(pair, order, backend):
    for seen in pair.run("sharded:trained", name="blocks", order=order, backend=backend):
        assert seen == expected("blocks", order)


@pytest.mark.parametrize("order", ["root_after", "layers_before"])
def test_accumulated_gradients(pair, order):
    for seen in pair.run("sharded:accumulated", order=order):
        assert seen["recompiles"] > 0  # the second size


def test_without_gradients_and_with_more_hooks(pair):
    pair.run("sharded:evaluated")


def test_checkpointed_layers(pair):
    pair.run("sharded:checkpointed")


def test_state_dictionaries(pair):
    pair.run("sharded:stored")


@pytest.mark.parametrize(("optimizer", "clip", "more"), [("SGD", False, 0), ("AdamW", True, 1)])
def test_compiled_step(pair, optimizer, clip, more):
    """zero_grad(), scaling by clipping and step() over DTensors run for real, each as a whole."""
    for seen in pair.run("sharded:whole_step", optimizer=optimizer, clip=clip):
        kinds = seen.pop("breaks")
        assert seen == {"graphs": 4, "recompiles": 0}
        assert kinds.count("processes") == 5 and kinds.count("tensor_subclass") == 2 + more
