"""On a real GPU: whole models over many calls, recorded, kept, interleaved, of several sizes,
against eager and float64.
"""

from __future__ import annotations

import copy

import pytest
import torch

import cudagraphs_backend
import tracer_core

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]

DEVICE = "cuda"


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Without TF32: cuDNN's algorithms differ by 1e-3 with it."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    tracer_core.reset()
    yield
    tracer_core.reset()


def images(count):
    return torch.randn(count, 3, 64, 64, device=DEVICE)


def tokens(count):
    return torch.randint(0, 30000, (count, 32), device=DEVICE)


def _torchvision(name):
    def build():
        import torchvision

        return getattr(torchvision.models, name)(), images

    return build


def _bert(layers):
    def build():
        from transformers import BertConfig, BertModel

        config = BertConfig(num_hidden_layers=layers, return_dict=False, attn_implementation="sdpa")
        return BertModel(config), tokens

    return build


MODELS = {
    "resnet18": _torchvision("resnet18"),
    "densenet121": _torchvision("densenet121"),
    "BERT": _bert(12),
    "BERT, three layers": _bert(3),
}
TRAINED = [
    ("resnet18", "default"),
    ("resnet18", "reduce-overhead"),
    ("densenet121", "reduce-overhead"),
    ("BERT", "reduce-overhead"),
]
TOGETHER = ("resnet18", "BERT, three layers")


def built(name, training):
    """The model, and what makes its inputs. Without dropout: it would draw other numbers than
    eager's.
    """
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model.to(DEVICE).train(training), batch


def first(result):
    return result[0] if isinstance(result, (tuple, list)) else result


def near(name, eager, ours, exact):
    """Ours is about as far from float64 as eager is."""
    off, theirs, size = (
        (x.double() - y).norm() for x, y in ((ours, exact), (eager, exact), (exact, 0))
    )
    assert off <= max(4 * theirs, 1e-5 * size), (name, off.item(), theirs.item(), size.item())


class Compared:
    """A compiled model beside an eager one and one in float64, which get the same parameters before
    each step.
    """

    def __init__(self, name, mode):
        self.name = name
        self.eager, self.batch = built(name, True)
        self.ours, self.exact = copy.deepcopy(self.eager), copy.deepcopy(self.eager).double()
        self.fast = tracer_core.compile(self.ours, mode=mode)
        self.optimizer = torch.optim.SGD(self.eager.parameters(), lr=0.02, momentum=0.9)

    def forward(self, count):
        state = self.eager.state_dict()
        self.ours.load_state_dict(state)
        self.exact.load_state_dict(state)
        x = self.batch(count)
        wide = x.double() if x.is_floating_point() else x
        self.results = []
        for net, inputs in ((self.eager, x), (self.fast, x), (self.exact, wide)):
            net.zero_grad()
            self.results.append(first(net(inputs)))

    def backward(self):
        for result in self.results:
            result.square().mean().backward()
        self.compare()
        self.optimizer.step()

    def compare(self):
        """A ReLU near zero that changes sides moves a gradient by some thousandths, in eager too (3
        % with four images, where a channel of the last layers has 16 places); a value that was
        overwritten moves it by much more."""
        near(self.name, *(result.detach() for result in self.results))
        triples = [
            (where, a.grad, b.grad, t.grad)
            for (where, a), b, t in zip(
                self.eager.named_parameters(),
                self.ours.parameters(),
                self.exact.parameters(),
                strict=True,
            )
        ]
        full = sum(t.square().sum() for *_, t in triples if t is not None).sqrt()
        for where, a, b, t in triples:
            assert (a is None) == (b is None), where
            if a is not None:
                size = max(t.norm(), 1e-3 * full)
                off, theirs = (b - t).norm() / size, (a - t).norm() / size
                assert off <= max(6 * theirs, 5e-2), (self.name, where, off.item(), theirs.item())
        for (where, a), b in zip(self.eager.named_buffers(), self.ours.buffers(), strict=True):
            torch.testing.assert_close(
                b, a, atol=1e-4, rtol=1e-3, msg=lambda m, where=where: f"{where}: {m}"
            )


@pytest.mark.parametrize(("name", "mode"), TRAINED)
def test_training(name, mode):
    """Steps of an optimizer, other inputs each time, results kept to the end."""
    compared = Compared(name, mode)
    # BERT's result is saved for its backward, too: its address changes, and after some steps it is
    # copied
    kept = []
    for _ in range(12):
        compared.forward(4 if name == "BERT" else 16)
        compared.backward()
        kept.append([result.detach() for result in compared.results])
    for results in kept:
        near(name, *results)
    if mode == "reduce-overhead":
        replays = {row.phase: row.replays for row in cudagraphs_backend.report()}
        assert replays["forward"] >= 4 and replays["backward"] >= 4, cudagraphs_backend.report()


def test_two_models_in_training_take_turns():
    """Both forwards before both backwards, in either order, of two sizes."""
    pair = [Compared(name, "reduce-overhead") for name in TOGETHER]
    for turn in range(7):
        for result in pair:
            result.forward(12 if turn in (3, 4) else 16)
        for created in pair[:: 1 if turn % 2 else -1]:
            created.backward()


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_results_are_kept_while_models_take_turns_and_sizes_change(mode):
    models = [built(name, False) for name in TOGETHER]
    fast = [tracer_core.compile(model, mode=mode) for model, _ in models]
    kept = []
    with torch.no_grad():
        for number in range(12):
            for (model, batch), ours in zip(models, fast, strict=True):
                x = batch((4, 4, 4, 2, 4, 3)[number % 6])
                kept.append((first(ours(x)), first(model(x))))
    assert len({actual.data_ptr() for actual, _ in kept}) == len(kept)
    if mode != "default":
        assert sum(row.replays for row in cudagraphs_backend.report()) >= 8
    for actual, expected in kept:
        torch.testing.assert_close(actual, expected, atol=2e-4, rtol=2e-4)
