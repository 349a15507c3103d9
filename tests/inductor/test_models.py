"""Whole models, with parameters as inputs: error against float64 at most three times eager's."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.inductor.compiling import compiled, flat

pytestmark = pytest.mark.sweep(keep=2)


def resnet18():
    import torchvision

    return torchvision.models.resnet18(), (torch.randn(2, 3, 64, 64),)


def densenet():
    import torchvision

    model = torchvision.models.DenseNet(8, (2, 3), 16)
    return model, (torch.randn(2, 3, 64, 64),)


def bert():
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        vocab_size=100,
    )
    return BertModel(config), (torch.randint(0, 100, (2, 9)),)


def lstm():
    return torch.nn.LSTM(32, 32, 2, batch_first=True), (torch.randn(3, 7, 32),)


def transformer():
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (
        torch.randn(2, 9, 64),
    )


MODELS = {
    "resnet18": resnet18,
    "densenet": densenet,
    "bert": bert,
    "lstm": lstm,
    "transformer": transformer,
}


def tensors(result):
    values = list(result.values()) if isinstance(result, dict) else flat(result)
    return tuple(v for value in values for v in flat(value) if isinstance(v, torch.Tensor))


@pytest.mark.parametrize("name", MODELS)
def test_inference(name):
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model = model.eval()
    with torch.no_grad():
        c = compiled(lambda *x: tensors(model(*x)), *inputs)
        ours = c(*inputs)
        eager = tensors(model(*inputs))
        doubles = [x.double() if x.is_floating_point() else x for x in inputs]
        exact = tensors(copy.deepcopy(model).double()(*doubles))
    for o, e, t in zip(ours, eager, exact, strict=True):
        assert o.stride() == e.stride() and o.dtype == e.dtype
        assert (o - t).abs().max() <= 3 * (e - t).abs().max() + 1e-6 * t.abs().max()


def test_training_mode_updates_the_statistics_of_batch_norm():
    torch.manual_seed(0)
    model, inputs = resnet18()
    reference = copy.deepcopy(model)
    with torch.no_grad():
        c = compiled(lambda *x: (model(*x),), *inputs)
        model.load_state_dict(reference.state_dict())
        (ours,) = c(*inputs)
        eager = reference(*inputs)
    torch.testing.assert_close(ours, eager, atol=1e-4, rtol=1e-4)
    for (name, mine), theirs in zip(model.named_buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(
            mine, theirs, atol=1e-4, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}"
        )
    assert model.bn1.num_batches_tracked.item() == 1


def test_resnet18_is_compiled_from_few_kernels():
    model, inputs = resnet18()
    with torch.no_grad():
        c = compiled(lambda *x: tensors(model.eval()(*x)), *inputs)
    artifact = c.compilation.runner.artifact
    assert artifact.different_kernels <= 10 and artifact.fallbacks == ()
