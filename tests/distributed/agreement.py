"""What the ranks run for test_agreement.py."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import tracer_core
from tests.distributed.models import MODELS, batches
from tests.distributed.training import CLOSE, EXACT, counts_of, same_on_all_ranks, train, whole
from tracer_core.registry.eager import ATEN_EAGER
from tracer_core.testing import CaptureCounter, compare


def _keeping_keys(keys: list[str]) -> Any:
    """A backend that notes the cache key of each graph that it is given."""

    def compile_noted(graph: torch.fx.GraphModule, spec: Any) -> Any:
        keys.append(f"{spec.name} {spec.phase.value} {spec.cache_key}")
        return lambda inputs: graph.forward(*inputs)

    return replace(ATEN_EAGER, name="noted", compile=compile_noted)


def cache_keys(name: str) -> int:
    """Forward, backward and its parts have the same names and keys on all ranks. Returns how many
    there are.
    """
    keys: list[str] = []
    model = DistributedDataParallel(
        tracer_core.compile(MODELS[name][0](), backend=_keeping_keys(keys)), bucket_cap_mb=0.001
    )
    train(name, model, list(batches(name, 2)))
    assert len(set(keys)) == len(keys), keys
    numbers = sorted({int(key.split()[0].split("_")[1]) for key in keys})
    # Graphs are numbered through the process, which may have captured different numbers of them
    # before.
    same_on_all_ranks(
        [key.replace(f"graph_{n}", f"graph {i}") for key in keys for i, n in enumerate(numbers)]
    )
    return len(keys)


def own_sizes(backend: str, sizes: list[list[int]], dynamic: bool | None = None) -> dict[str, Any]:
    """sizes: of the batches of each rank. One rank captures again where the other does not."""
    mine = sizes[dist.get_rank()]
    data = [next(iter(batches("convnet", 1, size, seed))) for seed, size in enumerate(mine)]

    def wrap(model: Any) -> Any:
        return DistributedDataParallel(model, bucket_cap_mb=0.001)

    want = train("convnet", wrap(MODELS["convnet"][0]()), data)
    with CaptureCounter() as counter:
        model = wrap(tracer_core.compile(MODELS["convnet"][0](), backend=backend, dynamic=dynamic))
        got = train("convnet", model, data)
    compare(want, got, EXACT if backend == "eager" else CLOSE)
    same_on_all_ranks([whole(parameter) for parameter in model.parameters()])
    return counts_of(counter)


def own_python(backend: str) -> dict[str, Any]:
    """A program that does something else on each rank, with a graph break on one of them."""

    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = MODELS["mlp"][0]()

        def forward(self, x: Any) -> Any:
            if dist.get_rank() == 1:
                tracer_core.graph_break()
                x = x * 2
            return self.model(x)

    data = list(batches("mlp", 3))
    want = train("mlp", DistributedDataParallel(Odd()), data)
    with CaptureCounter() as counter:
        got = train(
            "mlp", DistributedDataParallel(tracer_core.compile(Odd(), backend=backend)), data
        )
    compare(want, got, EXACT if backend == "eager" else CLOSE)
    return counts_of(counter)


def shared_cache(rounds: int) -> list[float]:
    """Both ranks build the same kernels at the same moment, in one empty folder."""
    folders: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folders)
    before = os.environ["TRACER_CACHE_DIR"]
    os.environ["TRACER_CACHE_DIR"] = folders[0]
    seconds = []
    try:
        for number in range(rounds):
            model = torch.nn.Sequential(*MODELS["mlp"][0](), torch.nn.Softmax(1)).eval()
            x = torch.randn(3 + number, 8, generator=torch.Generator().manual_seed(number))
            with torch.no_grad():
                want = model(x)
                dist.barrier()
                start = time.perf_counter()
                tracer_core.reset()
                fast = tracer_core.compile(model, dynamic=False)
                compare(want, fast(x), CLOSE)
                seconds.append(time.perf_counter() - start)
    finally:
        os.environ["TRACER_CACHE_DIR"] = before
    return seconds
