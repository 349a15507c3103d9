"""One training step on a GPU at the sizes that people use, judged by float64, parameter by
parameter: run with ``-m gpu``.

`benchmarks.gradients` does the same for every architecture, at small sizes.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import tracer_core
from tests.support.torchvision_ops import define

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]


@pytest.fixture(autouse=True)
def full_precision():
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def gradients(model, inputs):
    model.zero_grad()
    result = model(inputs)
    result = getattr(result, "last_hidden_state", result)
    weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(1)).to(result)
    (result * weights).sum().backward()
    return {
        name: parameter.grad.double().cpu()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def judged(model, inputs, floor=1e-5, **settings):
    """Each gradient's error is at most four times eager's, or below the floor."""
    exact = gradients(
        copy.deepcopy(model).double(), inputs.double() if inputs.is_floating_point() else inputs
    )
    model, inputs = model.cuda(), inputs.cuda()
    eager = gradients(copy.deepcopy(model), inputs)
    fast = tracer_core.compile(copy.deepcopy(model), **settings)
    largest = max(item.norm() for item in exact.values())
    for _ in range(2):
        ours = gradients(fast, inputs)
        assert ours.keys() == exact.keys()
        wrong = []
        for name, right in exact.items():
            size = (
                right.norm() + 1e-6 * largest
            )  # what is zero in theory, as biases before a batch norm
            errors = [float((value[name] - right).norm() / size) for value in (ours, eager)]
            if not errors[0] <= max(4 * errors[1], floor):
                wrong.append((name, *errors))
        assert not wrong, (
            f"{len(wrong)} of {len(exact)}: {sorted(wrong, key=lambda row: -row[1])[:5]}"
        )


def stem(*activation):
    norm = nn.BatchNorm2d(64)
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), norm, *activation, nn.MaxPool2d(3, 2, 1)
    )


@pytest.mark.parametrize(
    "activation", [(), (nn.ReLU(),), (nn.GELU(),)], ids=["none", "relu", "gelu"]
)
def test_normalised_images_are_pooled(activation):
    judged(stem(*activation), torch.randn(4, 3, 224, 224), fullgraph=True)


def smooth(model):
    """Puts SiLU where the model has ReLU."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.ReLU):
                setattr(parent, name, nn.SiLU())
    return model


# A ReLU whose input is within rounding of zero lets the gradient through or not: of eight seeds of
# resnet18, eager in channels_last has up to 45 of 62 gradients more than four times as far from
# float64 as eager in the default format, by up to 1.5e-2. Without ReLU errors are below 1e-5 and
# equal to a few per cent.
@pytest.mark.parametrize(
    ("change", "floor"), [(smooth, 1e-5), (lambda model: model, 3e-2)], ids=["silu", "relu"]
)
@pytest.mark.parametrize("name", ["resnet18", "resnet50", "shufflenet_v2_x1_0"])
def test_image_models(name, change, floor):
    define()
    import torchvision

    torch.manual_seed(0)
    model = change(getattr(torchvision.models, name)(weights=None))
    judged(model, torch.randn(4, 3, 224, 224), floor)


def test_shifted_windows():
    """Blocks that are equal but for the shift of their windows, and so for their masks."""
    define()
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.swin_t(weights=None)
    for module in model.modules():
        if isinstance(module, (nn.Dropout, torchvision.ops.StochasticDepth)):
            module.p = 0.0
    judged(model, torch.randn(2, 3, 224, 224))


@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
def test_a_state_space_model(backend):
    define()
    from transformers import MambaConfig, MambaModel

    torch.manual_seed(0)
    model = MambaModel(
        MambaConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2, state_size=8)
    )
    judged(model, torch.randint(0, 99, (4, 12)), backend=backend, fullgraph=True)


@pytest.mark.parametrize("mode", ["default", "max-autotune"])
@pytest.mark.parametrize("name", ["regnety_002", "resnet18", "repghostnet_050"])
def test_no_convolution_rounds_that_eager_computes_exactly(name, mode):
    """TF32 allowed: cuDNN takes it for some convolutions only, by shape and by layout."""
    import timm

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(0)
    judged(timm.create_model(name, num_classes=10), torch.randn(4, 3, 64, 64), mode=mode)
