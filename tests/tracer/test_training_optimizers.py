"""zero_grad, forward, loss, backward and the optimizer's step in one graph, with every kind of optimizer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.tracer.training import Side, X, Y, mlp, trained

cross_entropy = torch.nn.functional.cross_entropy


def _whole_step(make_optimizer: Any, **zero: Any) -> Any:
    def make() -> Side:
        model = mlp()
        optimizer = make_optimizer(model.parameters())

        def train(x: Any, y: Any) -> Any:
            optimizer.zero_grad(**zero)
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        return Side(train, [model, optimizer])

    return make


SGD = {
    "plain": {"lr": 0.1},
    "momentum": {"lr": 0.1, "momentum": 0.9},
    "dampening": {"lr": 0.1, "momentum": 0.9, "dampening": 0.5},
    "nesterov": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "weight_decay": {"lr": 0.1, "weight_decay": 0.01},
    "maximize": {"lr": 0.1, "maximize": True},
    "foreach": {"lr": 0.1, "momentum": 0.9, "foreach": True},
    "fused": {"lr": 0.1, "momentum": 0.9, "fused": True},
    "differentiable_off_foreach_off": {"lr": 0.1, "foreach": False},
}


@pytest.mark.parametrize("options", SGD.values(), ids=SGD)
def test_sgd(options: dict[str, Any]) -> None:
    """The first call makes the state and the gradients, the second finds them, the others compile nothing."""
    trained(_whole_step(lambda p: torch.optim.SGD(p, **options)), *((X, Y),) * 4, recompiles=1, graphs=2)
