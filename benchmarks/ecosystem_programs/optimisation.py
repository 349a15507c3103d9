"""Training: optimizers with schedulers, averages, lightning, accelerate, several objectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.ecosystem_programs.program import Family

FAMILY = Family()


def _net() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(16, 16), torch.randn(16, 4)


def _step(net: Any, optimizer: Any, after: Callable[[], Any] = lambda: None) -> Any:
    """A training step, and what is called after it."""

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        after()
        return loss.detach()

    return step


@FAMILY.step("torch.optim")
def adamw_with_one_cycle() -> Any:
    net = _net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=1_000_000)
    return _step(net, optimizer, scheduler.step), _data, (net, optimizer)


@FAMILY.step("torch.optim")
def momentum_with_cosine_restarts() -> Any:
    net = _net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=5)
    return _step(net, optimizer, scheduler.step), _data, (net, optimizer)


@FAMILY.step("torch.optim")
def parameter_groups_clipped_and_warmed_up() -> Any:
    net = _net()
    optimizer = torch.optim.Adam(
        [
            {"params": net[0].parameters(), "lr": 1e-3},
            {"params": net[2].parameters(), "lr": 1e-2, "weight_decay": 0.01},
        ]
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 10))

    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(net(x), y)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        return loss.detach(), norm

    return step, _data, (net, optimizer)


@FAMILY.step("torch.optim")
def rmsprop_adagrad_and_adadelta_together() -> Any:
    nets = [_net(), _net(), _net()]
    optimizers = [
        torch.optim.RMSprop(nets[0].parameters(), lr=1e-3, momentum=0.9),
        torch.optim.Adagrad(nets[1].parameters(), lr=1e-2),
        torch.optim.Adadelta(nets[2].parameters()),
    ]
    steps = [_step(net, optimizer) for net, optimizer in zip(nets, optimizers, strict=True)]
    return lambda x, y: [step(x, y) for step in steps], _data, (*nets, *optimizers)


@FAMILY.step("torch.optim", atol=2e-3)  # Muon computes in bfloat16
def muon_and_gradient_accumulation() -> Any:
    net = torch.nn.Sequential(
        torch.nn.Linear(16, 32, bias=False), torch.nn.GELU(), torch.nn.Linear(32, 4, bias=False)
    )
    optimizer = torch.optim.Muon(net.parameters(), lr=1e-2)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for part, target in zip(x.chunk(2), y.chunk(2), strict=True):
            loss = torch.nn.functional.mse_loss(net(part), target) / 2
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        return total

    return step, _data, (net,)


@FAMILY.step("torch.optim")
def weight_averaging_after_each_step() -> Any:
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    net = _net()
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step = _step(net, optimizer, lambda: average.update_parameters(net))
    return step, _data, (net, average)


@FAMILY.step("torch.optim", atol=2e-3)  # a step of Adam is as long whatever the gradient
def mixed_precision() -> Any:
    net = _net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = torch.nn.functional.mse_loss(net(x).float(), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, _data, (net,)


@FAMILY.step("lion-pytorch")
def lion_steps() -> Any:
    from lion_pytorch import Lion

    net = _net()
    optimizer = Lion(net.parameters(), lr=1e-3, weight_decay=1e-2)
    return _step(net, optimizer), _data, (net, optimizer)


@FAMILY.step("ema-pytorch")
def average_follows_the_online_model() -> Any:
    from ema_pytorch import EMA

    net = _net()
    average = EMA(net, beta=0.9, update_after_step=0, update_every=1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return _step(net, optimizer, average.update), _data, (net, average)


@FAMILY.inference("ema-pytorch")
def average_predicts() -> Any:
    from ema_pytorch import EMA

    net = _net()
    average = EMA(net, beta=0.9)
    return lambda x: average(x) - net(x), lambda: (torch.randn(8, 16),)


@FAMILY.step("torch-ema")
def parameters_swapped_for_their_average() -> Any:
    from torch_ema import ExponentialMovingAverage

    net = _net()
    average = ExponentialMovingAverage(net.parameters(), decay=0.9)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    train = _step(net, optimizer, average.update)

    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = train(x, y)
        with average.average_parameters(), torch.no_grad():
            return loss, net(x)

    return step, _data, (net,)


@FAMILY.training("lightning")
def training_step_of_a_module() -> Any:
    import lightning

    class Classifier(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.save_hyperparameters({"width": 32})
            self.net = _net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            x, y = batch
            loss = torch.nn.functional.mse_loss(self(x), y)
            return loss * (self.hparams.width / 32)

    module = Classifier().train()
    return lambda x, y: module.training_step((x, y), 0), _data, (module,)


@FAMILY.inference("lightning")
def module_predicts() -> Any:
    import lightning

    class Regressor(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = _net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x.to(self.device, self.dtype))

    return Regressor().eval(), lambda: (torch.randn(8, 16),)


@FAMILY.step("lightning")
def fabric_step() -> Any:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    net, optimizer = _net(), None
    net, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(x), y)
        fabric.backward(loss)
        optimizer.step()
        return loss.detach()

    return step, _data, (net,)


@FAMILY.step("accelerate")
def prepared_model_and_accumulation() -> Any:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    net = _net()
    net, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=1e-3))

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with accelerator.accumulate(net):
            loss = torch.nn.functional.mse_loss(net(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return step, _data, (net,)


@FAMILY.step("higher")
def inner_loop_of_meta_learning() -> Any:
    import higher

    net = _net()
    inner = torch.optim.SGD(net.parameters(), lr=0.1)

    def outer(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        net.zero_grad()
        with higher.innerloop_ctx(net, inner) as (fast, optimizer):
            for _ in range(2):
                optimizer.step(torch.nn.functional.mse_loss(fast(x[:8]), y[:8]))
            loss = torch.nn.functional.mse_loss(fast(x[8:]), y[8:])
            loss.backward()
        return loss.detach()

    return outer, _data, (net,)


@FAMILY.step("torchjd")
def gradients_of_two_losses_are_aggregated() -> Any:
    from torchjd.aggregation import PCGrad
    from torchjd.autojac import backward, jac_to_grad

    net = _net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    aggregator = PCGrad()

    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        optimizer.zero_grad()
        out = net(x)
        losses = [(out - y).pow(2).mean(), (out + y).abs().mean()]
        backward(losses)
        jac_to_grad(net.parameters(), aggregator)
        optimizer.step()
        return [loss.detach() for loss in losses]

    return step, _data, (net,)


@FAMILY.training("torch")
def checkpointed_blocks() -> Any:
    from torch.utils.checkpoint import checkpoint

    blocks = torch.nn.ModuleList(
        torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.1), torch.nn.SiLU())
        for _ in range(3)
    ).train()

    def run(x: torch.Tensor) -> torch.Tensor:
        for block in blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x

    return run, lambda: (torch.randn(8, 16),), (blocks,)


@FAMILY.training("torch")
def straight_through_function() -> Any:
    class Round(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, levels: int) -> torch.Tensor:
            ctx.save_for_backward(x)
            return (x * levels).round() / levels

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return grad * (x.abs() <= 1), None

    net = _net()
    return lambda x: Round.apply(net(x).tanh(), 8), lambda: (torch.randn(8, 16),), (net,)


@FAMILY.training("torch")
def spectral_norm_and_weight_norm() -> Any:
    from torch.nn.utils.parametrizations import spectral_norm, weight_norm

    net = torch.nn.Sequential(
        spectral_norm(torch.nn.Linear(16, 16)), torch.nn.ReLU(), weight_norm(torch.nn.Linear(16, 4))
    )
    return net.train(), lambda: (torch.randn(8, 16),)


@FAMILY.training("torch")
def gradient_penalty_of_a_critic() -> Any:
    critic = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

    def loss(real: torch.Tensor, fake: torch.Tensor, mix: torch.Tensor) -> torch.Tensor:
        middle = (mix * real + (1 - mix) * fake).requires_grad_()
        (grad,) = torch.autograd.grad(critic(middle).sum(), middle, create_graph=True)
        penalty = (grad.norm(dim=1) - 1).pow(2).mean()
        return critic(fake).mean() - critic(real).mean() + 10 * penalty

    return loss, lambda: (torch.randn(12, 8), torch.randn(12, 8), torch.rand(12, 1)), (critic,)


@FAMILY.training("torch")
def recurrent_network_over_packed_sequences() -> Any:
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    lstm = torch.nn.LSTM(8, 16, batch_first=True, bidirectional=True)
    lengths = torch.tensor([9, 7, 4])

    def run(x: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        return pad_packed_sequence(lstm(packed)[0], batch_first=True)[0]

    return run, lambda: (torch.randn(3, 9, 8),), (lstm,)
