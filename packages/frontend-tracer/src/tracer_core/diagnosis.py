"""``tracer-core doctor``: what is installed, what works here, and what to do about what does not.

Each backend compiles a small network in a process of its own, so that an engine that crashes costs
its own row only.
"""

from __future__ import annotations

import collections
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from tracer_core import api, torch_private
from tracer_core.contract.version import __version__
from tracer_core.debug.notebook import NotebookText, count
from tracer_core.engine_support.compilers import compilers
from tracer_core.errors import TracerError
from tracer_core.limits import MAX_DOCTOR_SECONDS
from tracer_core.registry import environment
from tracer_core.registry.discovery import BackendRow
from tracer_core.storage import fleet, store

_TOLERANCE = 1e-3
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    #: What was looked at.
    what: str
    #: ``"ok"``, ``"note"`` (absent, which is no problem) or ``"problem"``.
    state: Literal["ok", "note", "problem"]
    #: What was found.
    found: str
    #: What to do, or "".
    advice: str = ""


class Report(NotebookText, tuple[Finding, ...]):
    """The findings; prints as a table below a line that sums them up."""

    __slots__ = ()

    @property
    def healthy(self) -> bool:
        """Whether no finding is a problem."""
        return all(item.state != "problem" for item in self)

    def __repr__(self) -> str:
        width = max((len(item.what) for item in self), default=0)
        states = collections.Counter(item.state for item in self)
        lines = [
            f"{count(states['problem'], 'problem')}, {count(states['note'], 'note')}, {states['ok']} ok"
        ]
        for item in self:
            lines.append(f"{item.state:8}{item.what:{width}}  {item.found}")
            lines += [f"{'':8}{'':{width}}  -> {item.advice}"] if item.advice else []
        return "\n".join(lines)


def doctor(*, smoke: bool = True) -> Report:
    """Checks this machine and installation.

    Args:
        smoke: Whether each backend compiles a small network, which takes some seconds each.

    Returns:
        A `Report`, printed as a table. What fails is a finding, not an exception.

    Examples:
        >>> print(tracer_core.doctor())
    """
    return Report(item for part in _PARTS for item in part(smoke))


def _python(smoke: bool) -> Iterator[Finding]:
    lock = "" if getattr(sys, "_is_gil_enabled", lambda: True)() else ", without the GIL"
    here = f"{platform.python_implementation()} {platform.python_version()}{lock}"
    refusal = torch_private.refusal()
    yield Finding("Python", "ok", f"{here} ({sys.executable})")
    yield Finding("tracer-core", "ok", __version__)
    result = f"{torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"
    if refusal is not None:
        yield Finding("torch", "problem", result, refusal)
    elif lacking := torch_private.not_found():
        text = f"has no {', '.join(lacking)}: what needs them ends the graph or runs eagerly"
        yield Finding("torch", "note", f"{result}; {text}")
    else:
        yield Finding("torch", "ok", result)


def _settings(smoke: bool) -> Iterator[Finding]:
    for mistake in environment.mistakes():
        yield Finding("environment", "problem", mistake, "tracer-core env lists the variables")
    for remark in environment.remarks():
        yield Finding("environment", "note", remark)


_COMPILERS = (
    ("C compiler", "CC", ("cc", "gcc", "clang"), "cc", "guards take longer without one: apt install gcc"),
    ("C++ compiler", "CXX", ("g++", "clang++", "c++"), "c++", "apt install g++, or pip install ziglang"),
)  # fmt: skip


def _compilers(smoke: bool) -> Iterator[Finding]:
    for row in _COMPILERS:
        yield _compiler(*row)


def _compiler(
    what: str, variable: str, candidates: Sequence[str], language: str, advice: str
) -> Finding:
    named = os.environ.get(variable, "")
    for command in compilers(named, candidates, language):
        version = command.version()
        if version is not None:
            return Finding(what, "ok", f"{version} ({' '.join(command.argv)})")
    result = f"{variable}={named!r} does not run" if named else "none"
    return Finding(what, "problem", result, advice)


def _devices(smoke: bool) -> Iterator[Finding]:
    try:
        triton = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        triton = None
    for number in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(number)
        memory = f"{facts.total_memory / _GIB:.0f} GiB"
        yield Finding(f"GPU {number}", "ok", f"{facts.name}, {facts.major}.{facts.minor}, {memory}")
    if not torch.cuda.is_available():
        why = "this torch was built without CUDA" if torch.version.cuda is None else "none found"
        yield Finding("GPU", "note", why)
    needed = torch.cuda.is_available() and triton is None
    advice = "kernels for GPUs need it: pip install triton" if needed else ""
    yield Finding(
        "Triton", "problem" if needed else "ok" if triton else "note", triton or "none", advice
    )


def _cache(smoke: bool) -> Iterator[Finding]:
    try:
        info = store.info()
    except TracerError as error:
        yield Finding("cache", "problem", str(error))
        return
    if info.problem is not None:
        advice = (
            "set TRACER_CACHE_DIR to a folder of your own; until then each process compiles anew"
        )
        yield Finding("cache", "problem", f"{info.folder}: {info.problem}", advice)
        return
    number = sum(count for count, _ in info.entries.values())
    used = f"{info.size / 1e6:.1f} MB of {info.limit / 1e6:.0f} in {number} files"
    owner = f", user id {info.folder.stat().st_uid}" if hasattr(os, "geteuid") else ""
    yield Finding("cache", "ok", f"{info.folder}: {used}{owner}")


def _fleet(smoke: bool) -> Iterator[Finding]:
    what = "fleet's store"
    try:
        result = fleet.fleet()
    except TracerError as error:
        yield Finding(what, "problem", str(error))
        return
    if result is None:
        yield Finding(what, "note", "TRACER_STORE is not set")
        return
    answer = result.look()
    text = f"{fleet.shown(result.url)}: {answer.text}"
    yield Finding(what, "ok" if answer.works else "problem", text, answer.advice)


def _backends(smoke: bool) -> Iterator[Finding]:
    for row in api.backends():
        what = f"backend {row.name}"
        origin = f"{row.distribution} {row.version}" if row.distribution else "registered here"
        if not row.available:
            yield Finding(what, "note", f"{origin}: cannot run here: {row.reason}")
        elif not smoke or row.distribution is None:
            yield Finding(what, "ok", origin)
        else:
            yield _smoke(what, origin, row)


def _smoke(what: str, origin: str, row: BackendRow) -> Finding:
    command = [sys.executable, "-m", __name__, row.name, row.training, *row.devices]
    done = _output(command, MAX_DOCTOR_SECONDS)
    lines = done.stdout.strip().splitlines()
    result = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
    if "seconds" in result:
        text = f"{origin}: compiled and right in {result['seconds']:.1f} s on {result['device']}"
        return Finding(what, "note" if result["why"] else "ok", text, result["why"])
    ended = done.stderr.strip() if done.returncode == 1 else f"it ended with {done.returncode}"
    return Finding(what, "problem", f"{origin}: a small network fails", result.get("error", ended))


def _output(command: Sequence[str], limit: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
            errors="replace", timeout=limit, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"it took over {limit:.0f} s")
    except OSError as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


_PARTS = (_python, _settings, _compilers, _devices, _cache, _fleet, _backends)


# -- in the process of one backend


def _compile_small_network(name: str, training: str, devices: Sequence[str]) -> dict[str, Any]:
    """Compiles a network with a backend, compares it with eager mode, and returns the seconds, the
    device, and why a graph ran without the backend, or ""."""
    on_gpu = "cpu" not in devices or (name != "auto" and torch.cuda.is_available())
    device = "cuda" if on_gpu and "cuda" in devices and torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(), torch.nn.Linear(8, 4), torch.nn.Softmax(-1),
    ).to(device)  # fmt: skip
    x = torch.randn(2, 3, 16, 16, device=device)
    learns = "inference" not in training
    compiled = api.compile(net.train(learns), backend=name)
    begun = time.perf_counter()
    with torch.set_grad_enabled(learns):
        result = compiled(x)
        if learns:
            result.square().sum().backward()
    seconds = time.perf_counter() - begun
    gradients = [parameter.grad for parameter in net.parameters()]
    net.zero_grad()
    with torch.set_grad_enabled(learns):
        expected = net(x)
        if learns:
            expected.square().sum().backward()
    torch.testing.assert_close(result, expected, atol=_TOLERANCE, rtol=_TOLERANCE)
    if learns:
        own = [parameter.grad for parameter in net.parameters()]
        torch.testing.assert_close(gradients, own, atol=_TOLERANCE, rtol=_TOLERANCE)
    records = api.last_compile(compiled)
    why = next((record.text for record in records if record.name == "fallback"), "")
    return {"seconds": seconds, "device": device, "why": why}


if __name__ == "__main__":
    backend, mode, *kinds = sys.argv[1:]
    try:
        outcome = _compile_small_network(backend, mode, kinds)
    except Exception as error:
        outcome = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(outcome))
