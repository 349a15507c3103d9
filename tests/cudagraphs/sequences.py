"""Random sequences of what programs do with recorded calls: ``python -m tests.cudagraphs.sequences
--count 1000``.

In: a seed. Out: `Sequence_`, a list of steps over a few small models, and what became of it
(`run`). What always holds: every step is done by eager and by recorded models alike, with the same
random numbers; after each step all that the program holds (results of earlier calls too,
parameters, gradients, buffers) is compared; a sequence that fails is made smaller by leaving steps
out.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import gc
import logging
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import cudagraphs_backend
import tracer_core
from cudagraphs_backend import runner
from cudagraphs_backend.plugin import BACKEND
from cudagraphs_backend.state import states
from tests.cudagraphs.sequence_models import WIDTH, ZOO, scaled, value_of
from tests.cudagraphs.simulated import HAZARDS, SimulatedDevice


@dataclasses.dataclass(frozen=True)
class Sequence_:
    """options: of the backend. kept_from: the bytes of a result, for each operator, from which it
    stays in a recording. steps: the action's name and the seed of its choices."""

    seed: int
    models: tuple[str, ...]
    options: dict[str, Any]
    kept_from: int
    steps: tuple[tuple[str, int], ...]


def generate(seed: int, length: int = 40) -> Sequence_:
    r = random.Random(seed)
    options = r.choice([{}, {}, {"copies": r.choice([0, 1, 3])}, {"recordings": r.choice([1, 2,
    3])}, {"outputs": "copy"},
                        {"outputs": "saved"}, {"outputs": "saved", "measured": True}])  # fmt: skip
    models = tuple(r.sample(sorted(ZOO), r.choice([1, 2])))
    names, weights = list(ACTIONS), [ACTIONS[name][0] for name in ACTIONS]
    steps = tuple((name, r.randrange(1 << 30)) for name in r.choices(names, weights, k=length))
    return Sequence_(seed, models, options, r.choice([0, 32, 32, 1 << 18]), steps)


class Recorder:
    """Mutable: the device that records, simulated or not. The next `failures` captures run out of
    memory, in the middle.
    """

    def __init__(self, where: torch.device, device: Any) -> None:
        self.where, self.device, self.failures = where, device, 0
        self._capture = device.capture
        device.capture = self.capture
        if where.type == "cuda":
            self._streams = [torch.cuda.Stream(where) for _ in range(3)]

    def capture(self, body: Callable[[], Any], *args: Any) -> Any:
        if not self.failures:
            return self._capture(body, *args)
        self.failures -= 1

        def failing() -> None:
            body()
            raise torch.OutOfMemoryError("CUDA out of memory")

        return self._capture(failing, *args)

    @contextlib.contextmanager
    def stream(self, number: int) -> Iterator[None]:
        """Runs the block on another stream, in its turn."""
        if isinstance(self.device, SimulatedDevice):
            with self.device.stream(number):
                yield
            return
        side, here = self._streams[number], torch.cuda.current_stream(self.where)
        side.wait_stream(here)
        with torch.cuda.stream(side):
            yield
        here.wait_stream(side)

    def undo(self) -> None:
        del self.device.capture


class Side:
    """Mutable: what a program has: models, optimizers, what it keeps (a function that gives a
    tensor, each), its last input.
    """

    def __init__(self, sequence: Sequence_, recorder: Recorder, compiles: bool) -> None:
        torch.manual_seed(sequence.seed)
        self.recorder, self.compiles, self.options, self.where = (
            recorder,
            compiles,
            sequence.options,
            recorder.where,
        )
        self.models = [ZOO[name]() for name in sequence.models]
        for model in self.modules:
            model.to(self.where)
        self.called = [self.compiled(model) for model in self.models]
        self.kept: list[torch.Tensor] = []
        self.storages: list[Any] = []
        self.x = self.randn(4, WIDTH)
        self.reported: list[Any] = []

    def compiled(self, model: Any) -> Any:
        if not self.compiles:
            return model
        backend = dataclasses.replace(BACKEND, available=None, devices=frozenset({self.where.type}))
        return tracer_core.compile(model, backend=backend, options=self.options or None)

    def randn(self, *sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, device=self.where)

    @property
    def modules(self) -> list[nn.Module]:
        return [model for model in self.models if isinstance(model, nn.Module)]

    def keep(self, r: random.Random, results: Any) -> None:
        for result in results if isinstance(results, tuple) else (results,):
            if not isinstance(result, torch.Tensor):
                self.reported.append(result)
            elif r.random() < 0.7:
                self.kept.append(
                    r.choice(
                        [lambda t: t, lambda t: t, lambda t: t.detach(), lambda t: t[..., None]]
                    )(result)
                )
            elif not result.requires_grad and r.random() < 0.3:
                self.storages.append(
                    (
                        result.untyped_storage(),
                        result.storage_offset(),
                        result.shape,
                        result.stride(),
                        result.dtype,
                    )
                )
        while len(self.kept) > 10:
            del self.kept[r.randrange(len(self.kept))]

    def without_history(self) -> None:
        """After a backward that frees what was saved. Eager can go back again where an operator
        saved nothing; a graph cannot.
        """
        self.kept = [item for item in self.kept if item.grad_fn is None]

    def keeping(self, gradient: torch.Tensor | None) -> None:
        if gradient is not None:
            self.kept.append(gradient)

    def observed(self) -> list[Any]:
        """All that the program can see, as values of its own."""
        actual: list[Any] = [*self.reported]
        for item in [*self.kept, self.x]:
            actual += [
                value_of(item),
                value_of(item.grad) if item.is_leaf else None,
                item.requires_grad,
                item.shape,
                item.is_leaf,
            ]
        for storage, offset, shape, stride, dtype in self.storages:
            actual.append(
                torch.empty(0, dtype=dtype, device=self.where)
                .set_(storage, offset, shape, stride)
                .clone()
            )
        for module in self.modules:
            for parameter in module.parameters():
                actual += [value_of(parameter), value_of(parameter.grad)]
            actual += [value_of(buffer) for buffer in module.buffers()]
        return actual


# what a program may do: (side, choices) -> None
# -----------------------------------------------------------------------------


def _input(side: Side, r: random.Random) -> torch.Tensor:
    """An input of a call: the one before, a new one (of other sizes and strides), what a call gave,
    or a part of that.
    """
    usable = [
        item
        for item in side.kept
        if item.dim() == 2 and item.shape[1] == WIDTH and item.dtype is torch.float32
    ]
    kind = r.choice([*["same"] * 3, *["new"] * 5, "rows", "odd", "none", *["result"] * 3, "part"])
    result = {"new": lambda: side.randn(4, WIDTH), "rows": lambda: side.randn(r.choice([3, 5]),
    WIDTH),
            "odd": lambda: side.randn(WIDTH, 4).t(), "none": lambda: side.randn(0,
            WIDTH)}  # fmt: skip
    if kind in result:
        side.x = result[kind]().requires_grad_(r.random() < 0.4)
    elif kind == "result" and usable:
        return r.choice(usable)
    elif kind == "part" and usable:
        return r.choice(usable)[1:]
    return side.x


@contextlib.contextmanager
def _modes(side: Side, r: random.Random) -> Iterator[None]:
    """How grad mode, autocast and streams stand for a call."""
    with contextlib.ExitStack() as stack:
        mode = r.random()
        if mode < 0.15:
            stack.enter_context(torch.no_grad())
        elif mode < 0.2:
            stack.enter_context(torch.inference_mode())
        if r.random() < 0.1:
            stack.enter_context(torch.autocast(side.where.type, dtype=torch.bfloat16))
        if r.random() < 0.15:
            stack.enter_context(side.recorder.stream(r.choice([1, 2])))
        yield


def _call(side: Side, r: random.Random) -> None:
    index = r.randrange(len(side.called))
    x = _input(side, r)
    inputs = (x, r.choice([1, 2, 2.5])) if side.models[index] is scaled else (x,)
    with _modes(side, r):
        results = side.called[index](*inputs)
    del x, inputs
    side.keep(r, results)


def _calls(side: Side, r: random.Random) -> None:
    """A loop that rebinds its result, or hands it on, in one mode."""
    called, fed, known = (
        side.called[r.randrange(len(side.called))],
        r.random() < 0.5,
        r.random() < 0.5,
    )
    x, y = side.x.detach(), None
    for _ in range(5):
        x = x if known else side.randn(4, WIDTH).requires_grad_(side.x.requires_grad)
        y = called(x)
        first = y[0] if isinstance(y, tuple) else y
        if fed and first.shape == x.shape and first.dtype is x.dtype:
            x = first
    side.keep(r, y)


def _in_a_thread(side: Side, r: random.Random) -> None:
    raised: list[Exception] = []

    def body() -> None:
        try:
            _call(side, r)
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def _with_history(side: Side, r: random.Random) -> torch.Tensor | None:
    actual = [item for item in side.kept if item.grad_fn is not None]
    return r.choice(actual) if actual else None


def _backward(side: Side, r: random.Random) -> None:
    item = _with_history(side, r)
    if item is not None:
        retain = r.random() < 0.4
        item.float().square().sum().backward(retain_graph=retain)
        if retain:
            item.float().sum().backward(retain_graph=True)
        else:
            side.without_history()


def _gradients(side: Side, r: random.Random) -> None:
    """Gradients that the program keeps, and hands on."""
    item = _with_history(side, r)
    wanted = [p for module in side.modules for p in module.parameters() if p.requires_grad]
    wanted += [side.x] if side.x.requires_grad else []
    if item is not None and wanted:
        retain = r.random() < 0.5
        actual = torch.autograd.grad(
            item.float().sum(), wanted, allow_unused=True, retain_graph=retain
        )
        if not retain:
            side.without_history()
        side.keep(r, tuple(actual))


def _train(side: Side, r: random.Random) -> None:
    """A few steps of training, by an optimizer of its own."""
    index = r.randrange(len(side.models))
    model = side.models[index]
    if not isinstance(model, nn.Module):
        return
    make = r.choice(
        [
            lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
            lambda p: torch.optim.AdamW(p, lr=0.01),
        ]
    )
    optimizer, to_none = make(model.parameters()), r.random() < 0.7
    for _ in range(3):
        optimizer.zero_grad(set_to_none=to_none)
        result = side.called[index](side.randn(4, WIDTH))
        loss = (result[0] if isinstance(result, tuple) else result).float().square().mean()
        loss.backward()
        optimizer.step()
    side.keep(r, loss)


def _doubled(gradient: torch.Tensor | None) -> torch.Tensor | None:
    """None: no gradient reached this result of its graph (as of one part of `split` in eager)."""
    return None if gradient is None else gradient * 2


def _hook(side: Side, r: random.Random) -> None:
    item = _with_history(side, r)
    if item is not None:
        item.register_hook(r.choice([_doubled, lambda grad: None, side.keeping]))


def _drop(side: Side, r: random.Random) -> None:
    for _ in range(r.choice([1, 1, 2, 10])):
        if side.kept:
            del side.kept[r.randrange(len(side.kept))]
    if side.storages and r.random() < 0.5:
        side.storages.pop()


def _write(side: Side, r: random.Random) -> None:
    """To a result, or to the input, in place."""
    item = r.choice([*side.kept, side.x])
    with torch.no_grad():
        if item.is_floating_point():
            r.choice(
                [lambda: item.mul_(0.5), lambda: item.fill_(0.25), lambda: item.data.add_(1)]
            )()
    side.without_history()


def _replace(side: Side, r: random.Random) -> None:
    """Parameters that come to lie elsewhere, or have other values, or none of their own
    gradients.
    """
    for module in side.modules:
        state = {
            name: value.clone() * 0.9 if value.is_floating_point() else value
            for name, value in module.state_dict().items()
        }
        kind = r.choice(["load", "assign", "data", "frozen", "mode", "zeros"])
        if kind in ("load", "assign"):
            module.load_state_dict(state, assign=kind == "assign")
        for parameter in module.parameters():
            if kind == "data":
                parameter.data = parameter.data.clone() * 0.9
            elif kind == "frozen" and r.random() < 0.5:
                parameter.requires_grad_(not parameter.requires_grad)
        if kind == "mode":
            module.train(not module.training)
        elif kind == "zeros":
            module.zero_grad(set_to_none=r.random() < 0.5)
    # eager's backward reads what `.data =` put into a parameter after the forward
    side.without_history()


def _reset(side: Side, r: random.Random) -> None:
    if side.compiles:
        cudagraphs_backend.reset()
    gc.collect()


def _fail(side: Side, r: random.Random) -> None:
    if side.compiles:
        side.recorder.failures += r.choice([1, 1, 3])


def _another(side: Side, r: random.Random) -> None:
    """A copy of a model takes its place; what it was may be gone."""
    index = r.randrange(len(side.models))
    side.models[index] = copy.deepcopy(side.models[index])
    side.called[index] = side.compiled(side.models[index])


ACTIONS: dict[str, tuple[float, Callable[[Side, random.Random], None]]] = {
    "call": (14, _call), "calls": (12, _calls), "in a thread": (1, _in_a_thread), "backward": (5,
    _backward),
    "gradients": (3, _gradients), "train": (3, _train), "hook": (2, _hook), "drop": (4, _drop),
    "write": (4, _write),
    "replace": (1.5, _replace), "reset": (0.6, _reset), "fail": (0.6, _fail), "another": (0.3,
    _another),
}  # fmt: skip


@contextlib.contextmanager
def recording(sequence: Sequence_, where: torch.device) -> Iterator[Recorder]:
    """Inside, results of that size stay in recordings, and CPU tensors are on a device that
    records.
    """
    tracer_core.reset()
    cudagraphs_backend.reset()
    undo = states.install(where, SimulatedDevice()) if where.type == "cpu" else lambda: None
    state = states.of(where)
    assert state is not None
    recorder = Recorder(where, state.device)
    before = runner.MAX_COPIED_BYTES_PER_OPERATOR
    runner.MAX_COPIED_BYTES_PER_OPERATOR = sequence.kept_from
    HAZARDS.clear()
    try:
        yield recorder
    finally:
        runner.MAX_COPIED_BYTES_PER_OPERATOR = before
        recorder.undo()
        tracer_core.reset()
        cudagraphs_backend.reset()
        undo()


def run(sequence: Sequence_, where: torch.device) -> tuple[str, int]:
    """What went wrong, or "", and how many replays there were."""
    replays = 0
    with recording(sequence, where) as recorder:
        sides = [Side(sequence, recorder, compiles) for compiles in (False, True)]
        for number, (name, seed) in enumerate(sequence.steps):
            raised = []
            if name == "reset":
                replays += _replays()
            for side in sides:
                torch.manual_seed(seed)
                raised.append("")
                try:
                    ACTIONS[name][1](side, random.Random(seed))
                except Exception as error:
                    raised[-1] = f"{type(error).__name__}: {error}"
            if any("modified by an inplace operation" in item for item in raised) and not all(
                raised
            ):
                # what a graph saves for its backward is not what eager saves: both are right to
                # complain
                break
            actual = _difference(sides, raised)
            if actual or HAZARDS:
                return f"step {number} ({name}): {'; '.join([actual, *HAZARDS])}", 0
        return "", replays + _replays()


def _replays() -> int:
    return sum(row.replays for row in cudagraphs_backend.report())


def _difference(sides: list[Side], raised: list[str]) -> str:
    if raised[0].split(":")[0] != raised[1].split(":")[0]:
        return f"raised {raised[1] or 'nothing'!r}, eager {raised[0] or 'nothing'!r}"
    eager, ours = (side.observed() for side in sides)
    try:
        torch.testing.assert_close(ours, eager, rtol=2e-2, atol=1e-3, equal_nan=True)
    except AssertionError as error:
        return str(error)
    return ""


def smaller(sequence: Sequence_, where: torch.device) -> Sequence_:
    """Leaves out steps as long as it fails."""
    size = len(sequence.steps) // 2
    while size:
        at = 0
        while at < len(sequence.steps):
            less = dataclasses.replace(
                sequence, steps=sequence.steps[:at] + sequence.steps[at + size :]
            )
            if run(less, where)[0]:
                sequence = less
            else:
                at += size
        size //= 2
    return sequence


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cudagraphs.sequences")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--start-seed", type=int, default=0)
    parser.add_argument("--length", type=int, default=40)
    parser.add_argument(
        "--device", default="cpu", type=torch.device, help="cpu: a simulated device"
    )
    options = parser.parse_args()
    logging.getLogger("tracer_core").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    failed = replays = 0
    for seed in range(options.start_seed, options.start_seed + options.count):
        sequence = generate(seed, options.length)
        wrong, replayed = run(sequence, options.device)
        replays += replayed
        if seed % 25 == 24:
            print(
                f"up to seed {seed}: {replays} replays, {failed} failed",
                file=sys.stderr,
                flush=True,
            )
        if wrong:
            failed += 1
            sequence = smaller(sequence, options.device)
            print(
                f"seed {seed}: {run(sequence, options.device)[0] or wrong}\n  {sequence}",
                flush=True,
            )
    print(
        f"{options.count} sequences of {options.length} steps, {replays} replays, {failed} failed"
    )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
