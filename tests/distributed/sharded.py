"""What the ranks run for test_sharded.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import tracer_core
from tests.distributed.training import CLOSE, EXACT, compare_training, counts_of, whole
from tracer_core.testing import CaptureCounter, compare

Compile = Callable[[Any], Any]


def shard(model: Any, **settings: Any) -> Any:
    """fully_shard of every layer and of the model."""
    settings.setdefault("mesh", init_device_mesh("cpu", (dist.get_world_size(),)))
    for layer in _layers(model):
        fully_shard(layer, **settings)
    if "mp_policy" in settings:  # the loss is computed in float32
        settings["mp_policy"] = replace(settings["mp_policy"], output_dtype=torch.float32)
    return fully_shard(model, **settings)


def _layers(model: Any) -> Any:
    encoder = getattr(model, "bert", None)
    return encoder.encoder.layer if encoder is not None else model.blocks


def _each_layer(model: Any, compiled: Compile) -> None:
    layers = _layers(model)
    for i in range(len(layers)):
        layers[i] = compiled(layers[i])


def root_after(model: Any, compiled: Compile, **settings: Any) -> Any:
    return compiled(shard(model, **settings))


def root_before(model: Any, compiled: Compile, **settings: Any) -> Any:
    return shard(compiled(model), **settings)


def layers_before(model: Any, compiled: Compile, **settings: Any) -> Any:
    _each_layer(model, compiled)
    return shard(model, **settings)


def layers_after(model: Any, compiled: Compile, **settings: Any) -> Any:
    model = shard(model, **settings)
    _each_layer(model, compiled)
    return model


ORDERS = {value.__name__: value for value in (root_after, root_before, layers_before, layers_after)}


def _policy(dtype: str | None) -> dict[str, Any]:
    if dtype is None:
        return {}
    return {
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=getattr(torch, dtype), reduce_dtype=torch.float32
        )
    }


def trained(
    name: str, order: str, backend: str = "eager", dtype: str | None = None, **settings: Any
) -> dict[str, Any]:
    return compare_training(
        name,
        lambda model: shard(model, **_policy(dtype), **settings),
        lambda model: ORDERS[order](
            model,
            lambda part: tracer_core.compile(part, backend=backend),
            **_policy(dtype),
            **settings,
        ),
        tolerance=EXACT if backend == "eager" else CLOSE,
    )


def accumulated(order: str) -> dict[str, Any]:
    """Gradients of two batches, synchronised once; the batches have different sizes."""

    def step(model: Any, optimizer: Any, loss: Any, x: Any, y: Any) -> list[Any]:
        optimizer.zero_grad()
        model.set_requires_gradient_sync(False)
        first = loss(x, y)
        first.backward()
        model.set_requires_gradient_sync(True)
        second = loss(x[:3], y[:3])
        second.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return [whole(first), whole(second)]

    return compare_training(
        "blocks",
        shard,
        lambda model: ORDERS[order](model, lambda part: tracer_core.compile(part, backend="eager")),
        step=step,
        steps=4,
    )


def evaluated() -> dict[str, Any]:
    """Without gradients, under inference mode, and after training again: with hooks of the user
    among fully_shard's.
    """
    from tests.distributed.models import blocks

    seen: list[int] = []

    def count(module: Any, args: Any, result: Any) -> Any:
        seen.append(1)
        return result * 2

    def run(model: Any) -> list[Any]:
        x = torch.arange(40.0).reshape(5, 8) / 40
        results = []
        for context in (torch.no_grad, torch.inference_mode, torch.enable_grad):
            with context():
                results.append(model(x).detach().clone())
        handle = model.blocks[1].register_forward_hook(count)
        results.append(model(x).detach().clone())
        handle.remove()
        results.append(model(x).detach().clone())
        return results

    want = run(shard(blocks()))
    times = len(seen)
    with CaptureCounter() as counter:
        got = run(tracer_core.compile(shard(blocks()), backend="eager"))
    compare(want, got, EXACT)
    assert len(seen) == 2 * times == 2, seen
    return counts_of(counter)


def checkpointed() -> dict[str, Any]:
    """Every layer is computed again in backward."""
    from torch.utils.checkpoint import checkpoint

    def wrap(model: Any) -> Any:
        for block in model.blocks:
            inner = block.forward
            block.forward = lambda x, inner=inner: checkpoint(inner, x, use_reentrant=False)
        return shard(model)

    return compare_training(
        "blocks", wrap, lambda model: tracer_core.compile(wrap(model), backend="eager")
    )


def stored() -> None:
    """State dictionaries go from a sharded model to a compiled one and back."""
    from tests.distributed.models import blocks

    source, target = shard(blocks()), tracer_core.compile(shard(blocks()), backend="eager")
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.mul_(1.5)
    x = torch.ones(5, 8)
    target(x)
    target.load_state_dict(source.state_dict())
    compare(source(x), target(x), EXACT)
    assert list(source.state_dict()) == list(target.state_dict())


def whole_step(optimizer: str, clip: bool) -> dict[str, Any]:
    """One compiled function: the sharded model, the loss, backward(), clipping, the optimizer over
    DTensors.
    """
    from tests.distributed.models import MODELS, batches, loss_of
    from tests.distributed.training import same_on_all_ranks, state_of

    def train(compiled: bool) -> list[Any]:
        model = shard(MODELS["blocks"][0]())
        result = getattr(torch.optim, optimizer)(model.parameters(), lr=0.01)
        norms: list[Any] = []

        def step(x: Any, y: Any) -> Any:
            result.zero_grad()
            loss = loss_of("blocks", model, x, y)
            loss.backward()
            if clip:
                norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1))
            result.step()
            return loss

        fast = tracer_core.compile(step, backend="eager") if compiled else step
        seen: list[Any] = [whole(fast(x, y)) for x, y in batches("blocks", 4)]
        return [*seen, [whole(norm) for norm in norms], state_of(model)]

    want = train(False)
    with CaptureCounter() as counter:
        got = train(True)
    compare(want, got, EXACT)
    same_on_all_ranks([value for value in got[-1].values()])
    return counts_of(counter)
