"""What `benchmarks.zoo` starts: several models in one process, each in a fork of its own.

In: ``check | ours | torch`` and names of the zoo. Out: `answer` of a dict by name. What always
holds: each model meets a process in which one other program has been compiled (so that imports are
paid) and none of the zoo; a model that crashes, hangs or leaks takes only its own row with it.

check: eval and train mode, two calls each, compared with eager bit by bit: outputs, loss gradients,
buffers, the random generator's state. ours, torch: seconds of the first call of a compiled model.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from benchmarks import processes

#: Seconds for one model and task.
LIMIT = 150.0
_CALL_SEED = 7


# One model
# -------------------------------------------------------------------------------------------


def check(name: str) -> dict[str, Any]:
    """{"eval": facts, "train": facts} of one model."""
    from benchmarks.zoo_models import ZOO

    modes = [False, True] if ZOO[name].train else [False]
    return {"train" if train else "eval": check_mode(name, train) for train in modes}


def trained(name: str) -> dict[str, Any]:
    """{"train": facts} of one model whose forward and backward are lowered graphs, run by PyTorch's
    operators.
    """
    from benchmarks.zoo_models import ZOO
    from tracer_core.dispatch import compile_graph

    if not ZOO[name].train:
        return {}
    fallbacks: list[str] = []
    compile_graph.report = lambda fallback: fallbacks.append(f"{fallback.kind}: {fallback.reason}")
    facts = check_mode(name, True, "aten_eager")
    return {"train": facts | {"fallbacks": fallbacks}}


def check_mode(name: str, train: bool, backend: str = "eager") -> dict[str, Any]:
    """What `check` says of one mode. Some models ask torch.compiler.is_compiling() and compute in
    another way (transformers 5.17 builds masks that it leaves out otherwise): where eager's bits
    are not met, eager is told so too and must be met then.
    """
    facts = _checked(name, train, backend, contextlib.nullcontext)
    if facts["equal"]:
        return facts
    told = _checked(name, train, backend, _told_that_it_is_compiled)
    return told | {"asks": "is_compiling"} if told["equal"] else facts


def _told_that_it_is_compiled() -> contextlib.AbstractContextManager[Any]:
    import torch

    return mock.patch.object(torch.compiler, "is_compiling", lambda: True)


def _checked(
    name: str,
    train: bool,
    backend: str,
    reference: Callable[[], contextlib.AbstractContextManager[Any]],
) -> dict[str, Any]:
    """reference: a context for eager's calls."""
    import tracer_core
    from benchmarks.zoo_models import ZOO
    from tracer_core.explanation import explanation
    from tracer_core.testing import CaptureCounter

    animal = ZOO[name]
    plain, target = animal.module(train), animal.module(train)
    facts: dict[str, Any] = {"equal": True}
    with CaptureCounter() as counter:
        compiled = tracer_core.compile(target, backend=backend)
        for number in range(2):
            try:
                with reference():
                    want = _run(animal, number, plain, plain, train)
                _compare_call(animal, number, want, plain, target, compiled, train)
            except Exception as error:
                facts.update(equal=False, call=number, error=_short(error))
                break
            if number == 0:
                facts.update(
                    graphs=len(counter.graphs), breaks=[list(one) for one in counter.breaks]
                )
    facts.setdefault("graphs", len(counter.graphs))
    facts.setdefault("breaks", [list(one) for one in counter.breaks])
    facts["recompiles"] = [reason for _, reason in counter.recompiles]
    facts["graphs_later"] = len(counter.graphs) - facts["graphs"]
    with contextlib.suppress(Exception):
        facts["guards"] = len(explanation(compiled.__tracer__).guards)
    return facts


def _compare_call(
    animal: Any, number: int, wanted: Any, plain: Any, target: Any, compiled: Any, train: bool
) -> None:
    import torch

    from tracer_core.testing import Tolerance, compare, compare_aliasing

    exact = Tolerance(rtol=0.0, atol=0.0)
    want, want_args, want_state = wanted
    got, got_args, got_state = _run(animal, number, compiled, target, train)
    compare(want, got, exact, f"call {number}: result")
    compare(want_args, got_args, exact, f"call {number}: arguments")
    compare_aliasing([want_args, want], [got_args, got], f"call {number}: aliasing")
    if not torch.equal(want_state, got_state):
        raise AssertionError(f"call {number}: another state of the random generator")
    compare(dict(plain.state_dict()), dict(target.state_dict()), exact, f"call {number}: state")
    if train:
        gradients = [{n: p.grad for n, p in m.named_parameters()} for m in (plain, target)]
        compare(*gradients, exact, f"call {number}: gradient")


def _run(animal: Any, number: int, function: Any, module: Any, train: bool) -> tuple[Any, Any, Any]:
    """(result, arguments afterwards, state of the random generator afterwards) of one call."""
    import torch

    from tracer_core.testing import tensors_in

    args, kwargs = animal.inputs(number)
    module.zero_grad()
    torch.manual_seed(_CALL_SEED)
    with torch.set_grad_enabled(train):
        result = function(*args, **kwargs)
    state = torch.get_rng_state()
    if train:
        parts = [
            t.float().pow(2).mean()
            for t in tensors_in(result)
            if t.is_floating_point() and t.requires_grad
        ]
        torch.stack(parts).sum().backward()
    return result, (args, kwargs), state


def ours(name: str) -> dict[str, Any]:
    """Seconds of tracer_core's first call, backend eager."""
    import tracer_core

    return _first_call(name, lambda module: tracer_core.compile(module, backend="eager"))


def torch_compile(name: str) -> dict[str, Any]:
    """Seconds of torch.compile's first call, backend eager."""
    import torch

    return _first_call(name, lambda module: torch.compile(module, backend="eager"))


def _first_call(name: str, make: Callable[[Any], Any]) -> dict[str, Any]:
    """wall and cpu: of compile() and the first call. run: the smallest of three eager calls."""
    import torch

    from benchmarks.zoo_models import ZOO

    animal = ZOO[name]
    module = animal.module(train=False)
    args, kwargs = animal.inputs(0)
    with torch.no_grad():
        run = min(_seconds(lambda: module(*args, **kwargs))[0] for _ in range(3))
        gc.collect()
        wall, cpu = _seconds(lambda: make(module)(*args, **kwargs))
    return {"wall": wall, "cpu": cpu, "run": run}


def _seconds(function: Callable[[], Any]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - wall, time.process_time() - cpu


def _short(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-2:]
    where = " < ".join(f"{os.path.basename(f.filename)}:{f.lineno}" for f in reversed(frames))
    return f"{type(error).__name__}: {str(error)[:600]} ({where})"


# The process
# -----------------------------------------------------------------------------------------

TASKS: dict[str, Callable[[str], dict[str, Any]]] = {
    "check": check,
    "trained": trained,
    "ours": ours,
    "torch": torch_compile,
}


def import_libraries() -> None:
    """Imports the model libraries."""
    from tests.support import torchvision_ops

    torchvision_ops.define()
    import timm
    import torchvision
    import transformers

    transformers.logging.set_verbosity_error()
    assert timm.__version__ and torchvision.__version__


def warm_up(task: str) -> None:
    """Imports everything and compiles one program that is not in the zoo."""
    import_libraries()
    import torch

    class Other(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image = torch.nn.Sequential(
                torch.nn.Conv2d(3, 8, 3),
                torch.nn.BatchNorm2d(8),
                torch.nn.ReLU(),
                torch.nn.MaxPool2d(2),
            )
            self.layers = torch.nn.ModuleList(
                torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2)
            )
            self.head = torch.nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.image(x).flatten(2).transpose(1, 2)
            for layer in self.layers:
                x = layer(x)
            return torch.softmax(self.head(x.mean(1)), dim=-1)

    import tracer_core

    for train in (False, True):
        model = Other().train(train)
        with torch.set_grad_enabled(train):
            if task == "torch":
                torch.compile(model, backend="eager")(torch.randn(2, 3, 16, 16))
            else:
                tracer_core.compile(model, backend="eager")(torch.randn(2, 3, 16, 16))
    tracer_core.reset()


def forked(task: str, name: str) -> dict[str, Any]:
    """Runs a task in a fork of this process."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _child(task, name, writer)
    os.close(writer)
    start = time.monotonic()
    text = b"".join(_read(reader, start + LIMIT))
    os.close(reader)
    late = time.monotonic() - start >= LIMIT
    if late:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if late:
        return {"failed": f"no answer after {LIMIT:.0f} s"}
    if not text:
        return {"failed": f"ended with status {status}"}
    found: dict[str, Any] = json.loads(text)
    return found


def _read(reader: int, end: float) -> Iterator[bytes]:
    """What the child writes, until it closes the pipe or `end`."""
    while (left := end - time.monotonic()) > 0:
        ready, _, _ = select.select([reader], [], [], left)
        if ready:
            part = os.read(reader, 1 << 16)
            if not part:
                return
            yield part


def _child(task: str, name: str, writer: int) -> None:
    try:
        found = TASKS[task](name)
    except BaseException as error:
        if os.environ.get("ZOO_TRACEBACK"):
            traceback.print_exc()
        found = {"failed": _short(error)}
    with os.fdopen(writer, "w") as file:
        json.dump(found, file)
    os._exit(0)


def main(arguments: list[str]) -> None:
    os.environ["TRACER_STRICT"] = "1"
    # Threads of an OpenMP pool do not survive the fork, and its child would wait for them. Before
    # torch is imported.
    os.environ["OMP_NUM_THREADS"] = "1"
    task, *names = arguments
    warm_up(task)
    processes.answer({name: forked(task, name) for name in names})


if __name__ == "__main__":
    main(sys.argv[1:])
