"""zero_grad, forward, loss, backward and the optimizer's step in one graph, with every kind of
optimizer.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.eager_training import Side, X, Y, mlp, trained

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


_ADAM = {
    "plain": {},
    "amsgrad": {"amsgrad": True},
    "weight_decay": {"weight_decay": 0.01},
    "maximize": {"maximize": True},
    "betas_eps": {"betas": (0.8, 0.95), "eps": 1e-6},
    "foreach": {"foreach": True},
    "foreach_amsgrad_decay": {"foreach": True, "amsgrad": True, "weight_decay": 0.01},
    "fused": {"fused": True},
    "fused_amsgrad_decay": {"fused": True, "amsgrad": True, "weight_decay": 0.01, "maximize": True},
    "tensor_lr": {"lr": torch.tensor(0.05), "foreach": False},
}
OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    **{f"SGD-{name}": (torch.optim.SGD, options) for name, options in {
        "plain": {},
        "momentum": {"momentum": 0.9},
        "dampening": {"momentum": 0.9, "dampening": 0.5},
        "nesterov": {"momentum": 0.9, "nesterov": True},
        "weight_decay": {"weight_decay": 0.01},
        "maximize": {"maximize": True},
        "foreach": {"momentum": 0.9, "foreach": True},
        "foreach_nesterov_decay": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1,
        "foreach": True},
        "fused": {"momentum": 0.9, "fused": True},
        "tensor_lr": {"lr": torch.tensor(0.05)},
    }.items()},
    **{f"Adam-{name}": (torch.optim.Adam, options) for name, options in _ADAM.items()},
    **{f"AdamW-{name}": (torch.optim.AdamW, options) for name, options in _ADAM.items()},
    "RMSprop-plain": (torch.optim.RMSprop, {}),
    "RMSprop-centered_momentum": (torch.optim.RMSprop, {"centered": True, "momentum": 0.9}),
    "RMSprop-foreach": (torch.optim.RMSprop, {"foreach": True, "weight_decay": 0.01}),
    "Adagrad-plain": (torch.optim.Adagrad, {}),
    "Adagrad-decay": (torch.optim.Adagrad, {"lr_decay": 0.1, "weight_decay": 0.01}),
    "Adagrad-foreach": (torch.optim.Adagrad, {"foreach": True, "lr_decay": 0.1}),
    "Adagrad-fused": (torch.optim.Adagrad, {"fused": True}),
    "Adadelta-plain": (torch.optim.Adadelta, {}),
    "Adadelta-foreach": (torch.optim.Adadelta, {"foreach": True}),
    "Adamax-plain": (torch.optim.Adamax, {}),
    "Adamax-foreach": (torch.optim.Adamax, {"foreach": True}),
    "NAdam-plain": (torch.optim.NAdam, {}),
    "NAdam-foreach": (torch.optim.NAdam, {"foreach": True}),
    "RAdam-plain": (torch.optim.RAdam, {}),
    "RAdam-foreach": (torch.optim.RAdam, {"foreach": True}),
    "ASGD-plain": (torch.optim.ASGD, {}),
    "ASGD-foreach": (torch.optim.ASGD, {"foreach": True}),
    "Rprop-plain": (torch.optim.Rprop, {}),
    "Rprop-foreach": (torch.optim.Rprop, {"foreach": True}),
}  # fmt: skip


@pytest.mark.sweep(keep=14)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(name: str) -> None:
    """The first call makes the state and the gradients, the second finds them, the others compile
    nothing.
    """
    optimizer, options = OPTIMIZERS[name]
    make = _whole_step(lambda p: optimizer(p, **{"lr": 0.1, **options}))
    trained(make, *((X, Y),) * 5, recompiles=1, graphs=2)


ATEN = ["SGD-plain", "SGD-nesterov", "SGD-tensor_lr", "Adam-plain", "Adam-amsgrad",
"Adam-tensor_lr", "AdamW-weight_decay",
        "AdamW-foreach", "RMSprop-centered_momentum", "Adagrad-decay", "Adadelta-plain",
        "Adamax-plain", "NAdam-plain",
        "RAdam-plain", "Rprop-plain"]  # fmt: skip


@pytest.mark.sweep(keep=8)
@pytest.mark.parametrize("name", ATEN)
def test_optimizer_at_aten_level(name: str) -> None:
    """The counters and rates are inputs of the lowered graph, whose results have the same bits."""
    optimizer, options = OPTIMIZERS[name]
    make = _whole_step(lambda p: optimizer(p, **{"lr": 0.1, **options}))
    trained(make, *((X, Y),) * 5, recompiles=1, graphs=2, backend="aten_eager")
