"""What the ranks run for test_ddp.py."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import tracer_core
from tests.distributed.models import MODELS, batches, loss_of
from tests.distributed.training import (
    CLOSE,
    EXACT,
    compare_training,
    counts_of,
    same_on_all_ranks,
    state_of,
    train,
    whole,
)
from tracer_core.plugin_api import Phase
from tracer_core.registry.eager import ATEN_EAGER
from tracer_core.testing import CaptureCounter, compare


def _settings(model: Any, settings: dict[str, Any]) -> dict[str, Any]:
    return {
        "bucket_cap_mb": 0.001,
        **settings,
    }  # one kilobyte: every model here has several buckets


ORDERS = {
    "inside": lambda model, backend="eager", **settings: DistributedDataParallel(
        tracer_core.compile(model, backend=backend), **_settings(model, settings)
    ),
    "outside": lambda model, backend="eager", **settings: tracer_core.compile(
        DistributedDataParallel(model, **_settings(model, settings)), backend=backend
    ),
    "eager": lambda model, **settings: DistributedDataParallel(model, **_settings(model, settings)),
}


def trained(name: str, order: str, backend: str = "eager", **settings: Any) -> dict[str, Any]:
    return compare_training(
        name,
        lambda model: ORDERS["eager"](model, **settings),
        lambda model: ORDERS[order](model, backend, **settings),
        tolerance=EXACT if backend == "eager" else CLOSE,
    )


def accumulated(order: str, name: str = "mlp") -> dict[str, Any]:
    """no_sync(): gradients of two batches, synchronised once; the batches have different sizes."""

    def step(model: Any, optimizer: Any, loss: Any, x: Any, y: Any) -> list[Any]:
        optimizer.zero_grad()
        with model.no_sync():
            first = loss(x, y)
            first.backward()
        apart = [whole(parameter.grad) for parameter in model.parameters()]
        second = loss(x[:3], y[:3])
        second.backward()
        optimizer.step()
        return [whole(first), whole(second), apart]

    return compare_training(name, ORDERS["eager"], ORDERS[order], step=step, steps=4)


def unused(order: str, **settings: Any) -> dict[str, Any]:
    """A layer that a call does not use gets no gradient, and the ranks agree about it."""
    settings = {"find_unused_parameters": True, **settings}
    return compare_training(
        "branches",
        lambda model: ORDERS["eager"](model, **settings),
        lambda model: ORDERS[order](model, **settings),
        steps=4,
    )


def joined(order: str) -> dict[str, Any]:
    """Ranks with different numbers of batches, of different sizes."""

    def run(make: Any) -> tuple[Any, list[Any]]:
        model = make(MODELS["mlp"][0]())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen = []
        with model.join():
            for x, y in batches("mlp", 3 + 2 * dist.get_rank(), size=4 + dist.get_rank()):
                optimizer.zero_grad()
                loss = loss_of("mlp", model, x, y)
                loss.backward()
                optimizer.step()
                seen.append(whole(loss))
        return model, [seen, state_of(model)]

    _, want = run(ORDERS["eager"])
    with CaptureCounter() as counter:
        model, got = run(ORDERS[order])
    compare(want, got, EXACT)
    same_on_all_ranks([whole(parameter) for parameter in model.parameters()])
    return counts_of(counter)


def whole_step(order: str, name: str = "mlp", optimizer_inside: bool = False) -> dict[str, Any]:
    """The function that is compiled calls the model, the loss and backward."""

    def train(make: Any, compiled: bool) -> list[Any]:
        model = make(MODELS[name][0]())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = loss_of(name, model, x, y)
            loss.backward()
            if optimizer_inside:
                optimizer.step()
            return loss

        if compiled:
            step = tracer_core.compile(step, backend="eager")
        seen: list[Any] = []
        for x, y in batches(name, 3):
            seen.append(whole(step(x, y)))
            seen += [whole(parameter.grad) for parameter in model.parameters()]
            if not optimizer_inside:
                optimizer.step()
        return [*seen, state_of(model)]

    want = train(ORDERS["eager"], False)
    with CaptureCounter() as counter:
        got = train(ORDERS[order], True)
    compare(want, got, EXACT)
    same_on_all_ranks([value for key, value in got[-1].items() if "running" not in key])
    return counts_of(counter)


def failing(order: str) -> None:
    """A forward that raises: the same exception, and the model trains on."""
    model = ORDERS[order](MODELS["mlp"][0]())
    (x, y), *_ = batches("mlp", 1)
    for _ in range(2):
        try:
            model(x[:, :5])
        except RuntimeError as error:
            assert "shapes cannot be multiplied" in str(error), error
        else:
            raise AssertionError("it did not raise")
        assert DistributedDataParallel._get_active_ddp_module() is None
        loss_of("mlp", model, x, y).backward()
    same_on_all_ranks([parameter.grad for parameter in model.parameters()])


def queried() -> dict[str, Any]:
    """What a program asks about its processes is a constant."""

    def f(x: Any) -> Any:
        if dist.is_available() and dist.is_initialized():
            x = x * (dist.get_rank() + 1) / dist.get_world_size()
        return x

    x = torch.ones(3)
    with CaptureCounter() as counter:
        compare(f(x), tracer_core.compile(f, backend="eager")(x), EXACT)
    return counts_of(counter)


def overlap(
    order: str, name: str, steps: int = 4, cap: float = 0.001, **settings: Any
) -> list[list[str]]:
    """When each bucket is sent, and when each part of the compiled backward starts, in each
    step.
    """
    log: list[str] = []

    def compile_marked(graph: torch.fx.GraphModule, spec: Any) -> Any:
        def run(inputs: list[Any]) -> Any:
            if spec.phase is Phase.BACKWARD:
                log.append("part")
            return graph.forward(*inputs)

        return run

    def send(_: Any, bucket: Any) -> Any:
        log.append("bucket")
        sent = dist.all_reduce(
            bucket.buffer().div_(dist.get_world_size()), async_op=True
        ).get_future()
        return sent.then(lambda value: value.value()[0])

    send.__annotations__.clear()  # they are texts here, which DistributedDataParallel does not take

    def make(order: str) -> Any:
        def wrap(model: Any) -> Any:
            result = ORDERS[order](model, **more[order], bucket_cap_mb=cap, **settings)
            result.register_comm_hook(None, send)
            return result

        return wrap

    def step(model: Any, optimizer: Any, loss: Any, x: Any, y: Any) -> list[Any]:
        log.append("step")
        optimizer.zero_grad()
        loss(x, y).backward()
        seen = [whole(parameter.grad) for parameter in model.parameters()]
        optimizer.step()
        return seen

    marked = replace(ATEN_EAGER, name="marked", compile=compile_marked)
    more: dict[str, Any] = {"eager": {}, order: {"backend": marked}}
    data = list(batches(name, steps))
    eager = train(name, make("eager")(MODELS[name][0]()), data, step)
    log.clear()
    model = make(order)(MODELS[name][0]())
    got = train(name, model, data, step)
    compare(eager, got, CLOSE)
    same_on_all_ranks([whole(parameter) for parameter in model.parameters()])
    texts: list[list[str]] = []
    for mark in log:
        texts.append([]) if mark == "step" else texts[-1].append(mark)
    return texts


def through_parts() -> None:
    """What autograd can ask of a backward that runs in parts: some gradients, twice,
    differentiable, on two threads.
    """

    def ask(model: Any) -> list[Any]:
        x = torch.arange(40.0).reshape(5, 8).div(40).requires_grad_()
        parameters = list(model.parameters())
        with model.no_sync():
            loss = model(x).square().mean()
            seen = [
                torch.autograd.grad(loss, [parameter], retain_graph=True)
                for parameter in (*parameters, x)
            ]
            seen.append(
                torch.autograd.grad(loss, [parameters[0], x, parameters[-1]], retain_graph=True)
            )
            with ThreadPoolExecutor(2) as pool:
                both = [
                    pool.submit(torch.autograd.grad, loss, parameters, retain_graph=True)
                    for _ in range(8)
                ]
            seen += [item.result() for item in both]
            loss.backward(retain_graph=True)
            loss.backward()
            seen.append([parameter.grad.clone() for parameter in parameters])
            try:
                loss.backward()
            except RuntimeError as error:
                seen.append("second time" in str(error))
            loss = model(x).square().mean()
            (slope,) = torch.autograd.grad(loss, [x], create_graph=True)
            seen.append(
                torch.autograd.grad(slope.square().sum(), parameters[:3], allow_unused=True)
            )
            model.zero_grad()
            loss = model(x).square().mean()
            (slope,) = torch.autograd.grad(loss, [x], create_graph=True)
            (slope.square().sum() + loss).backward()
            seen.append([parameter.grad.clone() for parameter in parameters])
        return seen

    result = ORDERS["inside"](MODELS["mlp"][0](), backend="aten_eager")
    compare(ask(ORDERS["eager"](MODELS["mlp"][0]())), ask(result), CLOSE)


def by_hand(way: str, optimizer_inside: bool = True) -> dict[str, Any]:
    """Data parallelism that the program writes itself, in one compiled step: hooks on parameters
    that send their gradients, or a loop over the gradients after backward()."""

    def train_by_hand(compiled: bool) -> list[Any]:
        model = MODELS["mlp"][0]()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def send(gradient: Any) -> Any:
            dist.all_reduce(gradient)
            return gradient / dist.get_world_size()

        def send_accumulated(parameter: Any) -> None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

        for parameter in model.parameters():
            if way == "hook":
                parameter.register_hook(send)
            if way == "accumulated":
                parameter.register_post_accumulate_grad_hook(send_accumulated)

        def step(x: Any, y: Any) -> Any:
            optimizer.zero_grad()
            loss = loss_of("mlp", model, x, y)
            loss.backward()
            if way == "loop":
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()
            if optimizer_inside:
                optimizer.step()
            return loss

        fast = tracer_core.compile(step, backend="eager") if compiled else step
        seen: list[Any] = []
        for x, y in batches("mlp", 4):
            seen.append(whole(fast(x, y)))
            seen += [whole(parameter.grad) for parameter in model.parameters()]
            if not optimizer_inside:
                optimizer.step()
        return [*seen, state_of(model)]

    want = train_by_hand(False)
    with CaptureCounter() as counter:
        got = train_by_hand(True)
    compare(want, got, EXACT)
    same_on_all_ranks(list(got[-1].values()))
    return counts_of(counter)


def synchronised_norm() -> list[str]:
    """SyncBatchNorm: in eval mode, and what eager says of CPU tensors in train mode."""
    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(MODELS["convnet"][0]())
    fast = tracer_core.compile(model, backend="eager")
    (x, _), *_ = batches("convnet", 1)
    said = []
    for one in (model, fast):
        try:
            compare(one.eval()(x), model.eval()(x), EXACT)
            said.append(str(one.train()(x).sum().detach() * 0))
        except ValueError as error:
            said.append(str(error))
    return said
