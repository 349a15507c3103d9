"""DistributedDataParallel: losses, gradients, parameters and buffers are eager's, on every rank."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.sweep(keep=4)

MODELS = ("mlp", "convnet", "bert")
#: Each end of DistributedDataParallel's own forward.
AROUND = ["processes", "processes"]

SETTINGS = {
    "plain": {},
    "views": {"gradient_as_bucket_view": True},
    "static": {"static_graph": True},
    "unused": {"find_unused_parameters": True},
    "no_buffers": {"broadcast_buffers": False},
}


#: In CI each setting is tried with the smallest model, and with others where their buffers, layers
#: or loops matter to it.
TRIED = {
    "mlp": set(SETTINGS),
    "convnet": {"plain", "views", "no_buffers"},
    "bert": {"plain", "unused"},
}
CASES = [
    pytest.param(model, setting, marks=[] if setting in TRIED[model] else [pytest.mark.slow])
    for model in MODELS
    for setting in SETTINGS
    if model != "bert" or setting in TRIED["bert"]
]
ORDERS = {"inside": [], "outside": AROUND}


@pytest.mark.parametrize(("model", "settings"), CASES)
@pytest.mark.parametrize("order", ORDERS)
def test_settings(pair, order, model, settings):
    """order: DistributedDataParallel is around the compiled model, or what is compiled is
    DistributedDataParallel.
    """
    for seen in pair.run("ddp:trained", name=model, order=order, **SETTINGS[settings]):
        assert seen == {"graphs": 1, "breaks": ORDERS[order], "recompiles": 0}


@pytest.mark.parametrize("order", ORDERS)
def test_inductor(pair, order):
    for seen in pair.run("ddp:trained", name="convnet", order=order, backend="inductor"):
        assert seen == {"graphs": 1, "breaks": ORDERS[order], "recompiles": 0}


@pytest.mark.parametrize(("model", "settings"), CASES)
def test_compiled_backward(pair, model, settings):
    """The backend compiles the backward too, which runs in as many parts as there are buckets."""
    for seen in pair.run(
        "ddp:trained", name=model, order="inside", backend="aten_eager", **SETTINGS[settings]
    ):
        assert seen == {"graphs": 1, "breaks": [], "recompiles": 0}


#: model -> parts of the backward, and buckets, in which its gradients are sent.
BUCKETS = {"mlp": (2, 2), "convnet": (2, 3), "penalty": (7, 7), "bert": (15, 16)}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("model", BUCKETS)
def test_buckets_are_sent_while_the_backward_runs(pair, model, order):
    parts, buckets = BUCKETS[model]
    for first, *others in pair.run("ddp:overlap", order=order, name=model):
        # DistributedDataParallel has one bucket until it knows the order of the gradients, in eager
        # too.
        assert first == ["part"] * parts + ["bucket"]
        for step in others:
            assert step == ["part", "bucket"] * parts + ["bucket"] * (buckets - parts)


def test_one_bucket_is_one_part(pair):
    for steps in pair.run("ddp:overlap", order="inside", name="mlp", cap=25):
        assert steps == [["part", "bucket"]] * 4


def test_what_autograd_asks_of_a_backward_in_parts(pair):
    pair.run("ddp:through_parts")


@pytest.mark.parametrize("order", ORDERS)
def test_no_sync(pair, order):
    """The second size is a second graph; outside, also of the part before it."""
    outer = len(ORDERS[order]) // 2
    for seen in pair.run("ddp:accumulated", order=order):
        assert seen == {"graphs": 2, "breaks": ORDERS[order] * 2, "recompiles": 1 + outer}


@pytest.mark.parametrize(
    "settings", [{}, {"gradient_as_bucket_view": True}], ids=["plain", "views"]
)
@pytest.mark.parametrize("order", ORDERS)
def test_unused_parameters(pair, order, settings):
    pair.run("ddp:unused", order=order, **settings)


@pytest.mark.parametrize("order", ORDERS)
def test_join(pair, order):
    pair.run("ddp:joined", order=order)


@pytest.mark.parametrize("optimizer_inside", [False, True])
@pytest.mark.parametrize("order", ["eager", *ORDERS])
def test_compiled_step(pair, order, optimizer_inside):
    """What is compiled calls an eager, or a compiled, model and backward(), and perhaps the
    optimizer.
    """
    pair.run("ddp:whole_step", order=order, optimizer_inside=optimizer_inside)


@pytest.mark.parametrize("way", ["hook", "accumulated", "loop"])
def test_data_parallelism_by_hand(pair, way):
    pair.run("ddp:by_hand", way=way)


@pytest.mark.parametrize("order", ORDERS)
def test_exception(pair, order):
    pair.run("ddp:failing", order=order)


def test_questions(pair):
    for seen in pair.run("ddp:queried"):
        assert seen == {"graphs": 1, "breaks": [], "recompiles": 0}


def test_synchronised_batch_norm(pair):
    """torch has no kernel for CPU tensors: the error is eager's."""
    for eager, compiled in pair.run("ddp:synchronised_norm"):
        assert eager == compiled and "GPU" in eager
