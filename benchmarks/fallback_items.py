"""The programs of `benchmarks.fallbacks`, by section, and how one of them runs.

An item is a text: ``program:SEED`` (`tests.operator_programs`), ``opinfo:OPERATOR:DTYPE`` (PyTorch's
own samples, one program each), ``zoo:MODEL:WAY`` (forward, train: forward and backward, step: with an
optimizer, all in one function), ``steps:MODEL:OPTIMIZER`` (`benchmarks.whole_steps`),
``energy:NAME`` (gradients inside of what is trained), ``capture:NAME``
(`benchmarks.capture_programs`).
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch._dynamo

import tracer_core
from benchmarks import fallback_notes
from benchmarks.fallback_notes import noting

SECTIONS = ("zoo", "steps", "energy", "capture", "opinfo", "program")
#: Seconds that an item of a section may take.
LIMITS = {"zoo": 150.0, "steps": 200.0, "energy": 60.0, "capture": 60.0, "opinfo": 90.0, "program": 30.0}  # fmt: skip
#: Samples of an operator in a kind of call; dtypes of its rows; operators whose samples are endless.
_SAMPLES = 2
_DTYPES = ("float32", "bfloat16", "int64", "complex64")
_ZOO_WAYS = ("forward", "train", "step")
#: Models of whole_steps and optimizers; all optimizers with one small model.
_STEP_MODELS = ("policy", "layers_30", "qwen3", "gemma3", "gpt", "clip", "convnext")
_STEP_OPTIMIZERS = ("adamw", "fused", "capturable", "sgd", "scheduled")
_CALLS = 2
_SEED = 43


def items(section: str, programs: range, device: str) -> list[str]:
    """Returns all items of a section; of programs, those of these seeds."""
    if section == "program":
        return [f"program:{seed}" for seed in programs]
    if section == "zoo":
        from benchmarks.zoo_models import ZOO

        return [f"zoo:{name}:{way}" for name, item in ZOO.items() for way in _ZOO_WAYS
                if item.train or way == "forward"]  # fmt: skip
    if section == "steps":
        from benchmarks.whole_steps import OPTIMIZERS

        pairs = [(m, o) for m in _STEP_MODELS for o in _STEP_OPTIMIZERS]
        more = [("layers_1", optimizer) for optimizer in OPTIMIZERS]
        return [f"steps:{model}:{optimizer}" for model, optimizer in pairs + more]
    if section == "energy":
        return [f"energy:{name}" for name in _energies()]
    if section == "capture":
        from benchmarks.capture_programs import PROGRAMS

        return [f"capture:{name}" for name in PROGRAMS] if device == "cpu" else []
    from tests.opinfo.row import rows

    return [f"opinfo:{name}:{dtype}" for name, dtype in rows("cpu") if dtype in _DTYPES]


def prepare(sections: Sequence[str], device: str) -> None:
    """Imports what the items of sections need, once for all processes that are forked from this. On a
    GPU without the samples of operators: to import them begins CUDA, which does not survive a
    fork."""
    torch.set_num_threads(1)
    if "zoo" in sections or "steps" in sections:
        from benchmarks import models

        for library in ("torchvision", "timm", "transformers"):
            with contextlib.suppress(ImportError):
                models.import_library(library)
    if "opinfo" in sections and device == "cpu":
        from tests.opinfo.row import operators

        operators()
    from tests.operator_programs import run as _run  # noqa: F401

    # Without gradients: threads of autograd do not survive a fork.
    tracer_core.compile(lambda x: x * 2 + 1, backend="aten_eager")(torch.ones(3))
    tracer_core.reset()
    fallback_notes.install()


def run(item: str, backend: str, device: str) -> dict[str, Any]:
    """Runs an item; returns what came of it: its status, graphs and counts."""
    section, _, rest = item.partition(":")
    tracer_core.reset()
    torch.manual_seed(_SEED)
    with noting() as notes, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            status = _RUNS[section](rest, backend, device, notes)
        except _Refused as error:
            return {"status": "invalid", "why": repr(error)[:200], "graphs": 0, "counts": {}}
    counts = {category: dict(counted) for category, counted in notes.counts.items()}
    return {"status": status, "graphs": notes.graphs, "counts": counts}


class _Refused(Exception):
    """Eager refuses the item, or this machine has not what it needs."""


@contextlib.contextmanager
def _eagerly() -> Iterator[None]:
    """Context of eager's own run."""
    try:
        yield
    except Exception as error:
        raise _Refused(repr(error)) from error


def _chosen(backend: str, notes: Any) -> Any:
    """The backend; inductor's counts the operators that run as ATen's."""
    if backend != "inductor":
        return backend
    from dataclasses import replace

    from inductor_backend.pipeline import compile_graph
    from inductor_backend.plugin import BACKEND

    def compile_(gm: Any, spec: Any) -> Any:
        runner = compile_graph(gm, spec)
        if runner.artifact is not None:  # not of one that has several
            for operator in runner.artifact.externs:
                notes.counts["extern"][operator] += 1
        return runner

    return replace(BACKEND, compile=compile_)


def _compared(
    function: Callable[[int], Any], compiled: Callable[[int], Any], notes: Any, tolerance: float
) -> str:
    """Calls both in turns; returns the status, with the error or the difference counted."""
    from tracer_core.testing import Mismatch, Tolerance, compare

    for number in range(_CALLS):
        with _eagerly():
            want = function(number)
        try:
            got = compiled(number)
        except Exception as error:
            notes.add("error of ours", _told(error))
            return "crash"
        try:
            compare(want, got, Tolerance(rtol=tolerance, atol=tolerance), "result")
        except Mismatch as error:
            notes.add("differs", str(error))
            return "mismatch"
    return "same"


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


# -- sections --


def _program(rest: str, backend: str, device: str, notes: Any) -> str:
    from tests.operator_programs.program import changed, generate
    from tests.operator_programs.run import run as run_program

    result = run_program(changed(generate(int(rest)), backend, device), LIMITS["program"])
    if result.status == "crash":
        notes.add("error of ours", result.where.partition(": ")[2])
    elif result.status == "mismatch":
        raised = "; ours None" not in result.where and "raised: eager" in result.where
        notes.add("error of ours" if raised else "differs", result.where)
    elif result.status == "late":
        notes.add("hung", "the program's time limit")
    return result.status


def _opinfo(rest: str, backend: str, device: str, notes: Any) -> str:
    from tests.opinfo.cases import KINDS
    from tests.opinfo.row import DTYPES, Row, _quietly, out_of_range

    name, _, dtype = rest.rpartition(":")
    row = Row(name, DTYPES[dtype], _SAMPLES, lambda at: None, device)
    chosen, status = _chosen(backend, notes), "same"
    with _quietly():
        for kind in ("forward", "in-place", "out", "backward"):
            with _eagerly():
                cases = list(KINDS[kind](row.op, row.dtype, _SAMPLES, device))
            for case in cases:
                if device != "cpu" and out_of_range(case):
                    continue
                if row.eager([case])[0].error is not None:
                    continue
                tracer_core.reset()
                compiled = tracer_core.compile(_call_of(case.function), backend=chosen)
                (result,) = row.outcomes(compiled, [case])
                if result.error is not None:
                    notes.add("error of ours", f"{row.op.name}: {_told(result.error)}")
                    status = "crash"
    return status


def _call_of(function: Callable[..., Any]) -> Callable[[Any], list[Any]]:
    """What is compiled: one call of an operator."""

    def call(inputs: Any) -> list[Any]:
        args, kwargs = inputs[0]
        return [function(*args, **kwargs)]

    return call


def _moved(value: Any, device: str) -> Any:
    """A value whose tensors lie on the device."""
    from torch.utils import _pytree as pytree

    if device == "cpu":
        return value
    return pytree.tree_map(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, value)


def _floats(result: Any) -> list[Any]:
    """The tensors of a result that can be differentiated."""
    if isinstance(result, torch.Tensor):
        return [result] if result.is_floating_point() and result.requires_grad else []
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, (list, tuple)):
        return [leaf for item in result for leaf in _floats(item)]
    return []


def _loss(result: Any) -> Any:
    return torch.stack([item.float().pow(2).mean() for item in _floats(result)]).sum()


def _zoo(rest: str, backend: str, device: str, notes: Any) -> str:
    from benchmarks.zoo_models import ZOO

    name, _, way = rest.rpartition(":")
    animal, train = ZOO[name], way != "forward"
    with _eagerly():
        simple, target = (animal.module(train).to(device) for _ in range(2))

    def call(function: Callable[..., Any], module: Any, number: int) -> Any:
        args, kwargs = _moved(animal.inputs(number), device)
        torch.manual_seed(_SEED)
        if way == "step":
            return function(*args, **kwargs)
        module.zero_grad()
        with torch.set_grad_enabled(train):
            result = function(*args, **kwargs)
        if train:
            _loss(result).backward()
        return result, [p.grad for p in module.parameters()] if train else []

    chosen = _chosen(backend, notes)
    if way == "step":
        functions = _whole_step(simple), tracer_core.compile(_whole_step(target), backend=chosen)
    else:
        functions = simple, tracer_core.compile(target, backend=chosen)
    return _compared(
        lambda number: call(functions[0], simple, number),
        lambda number: call(functions[1], target, number),
        notes, 2e-2 if train else 1e-3,
    )  # fmt: skip


def _whole_step(module: Any) -> Callable[..., Any]:
    """A training step of a model as one function."""
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)

    def step(*args: Any, **kwargs: Any) -> Any:
        optimizer.zero_grad()
        loss = _loss(module(*args, **kwargs))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _steps(rest: str, backend: str, device: str, notes: Any) -> str:
    from benchmarks import whole_steps
    from benchmarks.models import import_library

    name, optimizer = rest.split(":")
    library, build = whole_steps.MODELS[name]

    def made(compile_: Callable[[Any], Any]) -> Callable[[int], Any]:
        torch.manual_seed(_SEED)
        if library:
            import_library(library)
        module, batches, loss_of = build(device)
        kind, arguments, scheduled = whole_steps.OPTIMIZERS[optimizer]
        parameters = whole_steps._parameters(module, kind)
        update = getattr(torch.optim, kind)(parameters, lr=1e-4, **arguments)
        rate = torch.optim.lr_scheduler.CosineAnnealingLR(update, 1000) if scheduled else None

        def step(*batch: Any) -> Any:
            update.zero_grad()
            loss = loss_of(module.train(), *batch)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            update.step()
            return loss.detach()

        function = compile_(step)

        def call(number: int) -> Any:
            torch.manual_seed(number)
            loss = function(*batches[number % len(batches)])
            if rate is not None:
                rate.step()
            return loss

        return call

    with _eagerly():
        simple = made(lambda step: step)
    chosen = _chosen(backend, notes)
    compiled = made(lambda step: tracer_core.compile(step, backend=chosen))
    return _compared(simple, compiled, notes, 2e-2)


def _energies() -> dict[str, Callable[..., Any]]:
    def forces(net: Any, x: Any) -> Any:
        x = x.detach().requires_grad_(True)
        energy = net(x).sum()
        (slope,) = torch.autograd.grad(energy, x, create_graph=True)
        return energy, -slope

    def penalty(net: Any, x: Any) -> Any:
        x = x.detach().requires_grad_(True)
        value = net(x)
        (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        return value.mean() + (slope.norm(2, -1) - 1).square().mean()

    def only_forces(net: Any, x: Any) -> Any:
        return forces(net, x)[1]

    def hessian(net: Any, x: Any) -> Any:
        return torch.func.hessian(lambda y: net(y).sum())(x[:1])

    def per_sample(net: Any, x: Any) -> Any:
        parameters = dict(net.named_parameters())
        loss = lambda p, y: torch.func.functional_call(net, p, (y[None],)).square().sum()
        return list(torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x).values())

    return {f"{value.__name__}_{kind}": functools.partial(_energy, value, kind)
            for value in (forces, penalty, only_forces, hessian, per_sample)
            for kind in ("mlp", "conv", "norm", "batch_norm", "attention")}  # fmt: skip


class _Attention(torch.nn.Module):
    """Attention among the features of each row, written out: that of torch has no second derivative
    everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.keys, self.head = (torch.nn.Linear(1, n) for n in (4, 4, 1))

    def forward(self, x: Any) -> Any:
        x = x.unsqueeze(-1)
        weights = torch.softmax(self.queries(x) @ self.keys(x).mT / 2, -1)
        return self.head(weights @ x).sum(-2)


def _energy_net(kind: str) -> Any:
    from torch import nn

    if kind == "batch_norm":
        return nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1)
        ).eval()
    if kind == "conv":
        return nn.Sequential(nn.Unflatten(-1, (1, 8)), nn.Conv1d(1, 4, 3), nn.GroupNorm(2, 4),
                             nn.Tanh(), nn.Flatten(-2), nn.Linear(24, 1))  # fmt: skip
    if kind == "norm":
        return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.SiLU(), nn.Linear(16, 1))
    if kind == "attention":
        return _Attention()
    return nn.Sequential(
        nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)
    )


def _energy(function: Callable[..., Any], kind: str, backend: Any, device: str, notes: Any) -> str:
    torch.manual_seed(_SEED)
    net = _energy_net(kind).to(device)
    batches = [torch.randn(5, 8, device=device) for _ in range(_CALLS)]

    def call(run: Callable[..., Any], number: int) -> Any:
        net.zero_grad()
        match = run(net, batches[number])
        if any(t.requires_grad for t in (match if isinstance(match, (tuple, list)) else [match])):
            _loss(match).backward()
        return match, [p.grad for p in net.parameters()]

    def detached(run: Callable[..., Any]) -> Callable[[int], Any]:
        from torch.utils import _pytree as pytree

        copied = lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x
        return lambda number: pytree.tree_map(copied, call(run, number))

    compiled = tracer_core.compile(function, backend=_chosen(backend, notes))
    return _compared(detached(function), detached(compiled), notes, 1e-3)


def _named_energy(rest: str, backend: str, device: str, notes: Any) -> str:
    return _energies()[rest](backend, device, notes)  # type: ignore[no-any-return]


def _capture(rest: str, backend: str, device: str, notes: Any) -> str:
    from benchmarks.capture import _call, _made
    from benchmarks.capture_programs import PROGRAMS

    maker = PROGRAMS[rest][1]
    simple, world = _made(maker)
    target, other = _made(maker)
    compiled = tracer_core.compile(target, backend=_chosen(backend, notes))
    for number in range(_CALLS):
        (want, *_), (got, *_) = _call(simple, world, number), _call(compiled, other, number)
        if want[0] == "returned" and got[0] == "raised":
            notes.add("error of ours", f"{got[1].__name__}: {got[2]}")
            return "crash"
    return "same"


_RUNS: dict[str, Callable[[str, str, str, Any], str]] = {
    "program": _program, "opinfo": _opinfo, "zoo": _zoo, "steps": _steps, "energy": _named_energy,
    "capture": _capture,
}  # fmt: skip


def is_spoiled(result: dict[str, Any]) -> bool:
    """Whether the process cannot go on: a device assertion ends all of CUDA in it."""
    texts = [*result["counts"].get("error of ours", ()), result.get("why", "")]
    return any("CUDA error" in text or "AcceleratorError" in text for text in texts)
