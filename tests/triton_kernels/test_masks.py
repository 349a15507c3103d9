"""Attention masks that are known when a graph is compiled become flags: graphs of fake CUDA
tensors.
"""

from __future__ import annotations

import operator
from types import SimpleNamespace

import pytest
import torch

from inductor_backend.passes import causal_mask
from inductor_backend.passes.causal_mask import with_causal_masks
from tracer_core import torch_private
from tracer_core.plugin_api import Phase

aten = torch.ops.aten
SIZE = 16


class Maker:
    """Adds nodes with fake values."""

    def __init__(self):
        self.mode, self.graph = torch_private.fake_tensor_mode(None), torch.fx.Graph()

    def input(self, *sizes, dtype=torch.bfloat16):
        node = self.graph.placeholder(f"in{len(self.graph.nodes)}")
        with self.mode:
            node.meta["val"] = torch.empty(*sizes, dtype=dtype, device="cuda:0")
        return node

    def __call__(self, target, *args, **kwargs):
        node = self.graph.call_function(target, args, kwargs)
        args, kwargs = torch.fx.map_arg((args, kwargs), lambda source: source.meta["val"])
        with self.mode:
            node.meta["val"] = target(*args, **kwargs)
        return node


EFFICIENT = aten._scaled_dot_product_efficient_attention.default
CUDNN = aten._scaled_dot_product_cudnn_attention.default


def attentions(mask_of, phase=Phase.INFERENCE, dropout=0.0, reader=EFFICIENT):
    """The attention nodes of a graph with this mask, after the pass."""
    make = Maker()
    query = make.input(2, 4, SIZE, 64)
    mask = mask_of(make)
    called = make(reader, query, query, query, mask, False, dropout, scale=0.5)
    make.graph.output((make(operator.getitem, called, 0),))
    gm = torch.fx.GraphModule(torch.nn.Module(), make.graph)
    after = with_causal_masks(gm, SimpleNamespace(phase=phase))
    (actual,) = (node for node in after.graph.nodes if "attention" in str(node.target))
    return actual.args[3:], actual.kwargs


def positions(make):
    rows = make(
        aten.unsqueeze.default, make(aten.arange.default, SIZE, device=torch.device("cuda:0")), 1
    )
    columns = make(
        aten.unsqueeze.default, make(aten.arange.default, SIZE, device=torch.device("cuda:0")), 0
    )
    return rows, columns


def as_numbers(make, seen, hidden=-torch.inf):
    options = {"dtype": torch.bfloat16, "device": torch.device("cuda:0")}
    numbers = make(
        aten.where.self, seen, make(aten.scalar_tensor.default, 0.0, **options),
        make(aten.scalar_tensor.default, hidden, **options),
    )  # fmt: skip
    return make(aten.expand.default, numbers, [2, 4, SIZE, SIZE])


def causal(make):
    rows, columns = positions(make)
    return as_numbers(make, make(aten.le.Tensor, columns, rows))


def everything(make):
    rows, columns = positions(make)
    return as_numbers(make, make(aten.ge.Scalar, make(aten.add.Tensor, rows, columns), 0))


def window(make):
    rows, columns = positions(make)
    near = make(aten.ge.Tensor, columns, make(aten.sub.Tensor, rows, 3))
    return as_numbers(
        make, make(aten.bitwise_and.Tensor, make(aten.le.Tensor, columns, rows), near)
    )


def strict(make):
    rows, columns = positions(make)
    return as_numbers(make, make(aten.lt.Tensor, columns, rows))


def finite(make):
    rows, columns = positions(make)
    return as_numbers(make, make(aten.le.Tensor, columns, rows), -100.0)


def of_an_input(make):
    rows, columns = positions(make)
    inputs = make.input(SIZE, SIZE, dtype=torch.bool)
    return as_numbers(
        make, make(aten.bitwise_and.Tensor, make(aten.le.Tensor, columns, rows), inputs)
    )


def for_cudnn(make):
    rows, columns = positions(make)
    return as_numbers(make, make(aten.le.Tensor, columns, rows), -65504.0)


@pytest.fixture
def no_flash(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: False)


@pytest.mark.usefixtures("no_flash")
def test_what_is_known_becomes_a_flag():
    assert attentions(causal) == ((None, False, 0.0, True), {"scale": 0.5})
    assert attentions(everything) == ((None, False, 0.0, False), {"scale": 0.5})


@pytest.mark.usefixtures("no_flash")
def test_what_torch_writes_for_cudnn_hides_too():
    """-65504 for what a mask of booleans hides; no other operator is given that number by torch
    itself.
    """
    assert attentions(for_cudnn, reader=CUDNN) == ((None, False, 0.0, True), {"scale": 0.5})
    assert attentions(causal, reader=CUDNN) == ((None, False, 0.0, True), {"scale": 0.5})
    assert attentions(everything, reader=CUDNN) == ((None, False, 0.0, False), {"scale": 0.5})
    assert isinstance(attentions(finite, reader=CUDNN)[0][0], torch.fx.Node)
    assert isinstance(attentions(for_cudnn)[0][0], torch.fx.Node)


def test_a_gpu_that_is_not_there_is_of_no_generation(monkeypatch):
    """Graphs are compiled for GPUs where there is none: torch is not asked what it cannot know."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert causal_mask.generation(torch.device("cuda:0")) == 0


@pytest.mark.parametrize("mask", [window, strict, finite, of_an_input])
def test_other_masks_stay(mask):
    rest, _ = attentions(mask)
    assert isinstance(rest[0], torch.fx.Node)


def test_training_and_dropout_stay():
    assert isinstance(attentions(causal, phase=Phase.FORWARD)[0][0], torch.fx.Node)
    assert isinstance(attentions(causal, dropout=0.1)[0][0], torch.fx.Node)


def test_flash_attention_is_called_where_torch_has_it(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    monkeypatch.setattr(causal_mask, "generation", lambda device: 9)
    assert attentions(causal) == ((0.0, True, False), {"scale": 0.5})
