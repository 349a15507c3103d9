"""Operators whose kernels look at values (istft, cov, corrcoef): one graph, with eager's results and
gradients, and eager's exceptions and warnings where the values are not good."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tracer_core
from tests.support.eager_reference import same
from tracer_core.testing import CaptureCounter

BACKENDS = ("eager", "inductor")


def restored(audio: torch.Tensor, window: torch.Tensor, **settings: Any) -> torch.Tensor:
    sizes = {"n_fft": 16, "hop_length": 4, "window": window} | settings
    inputs = {k: v for k, v in sizes.items() if k != "length"}
    spectrum = torch.stft(audio, **inputs, return_complex=True)
    return torch.istft(spectrum * 2, **sizes)


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize(("settings", "backend"), [
    ({}, "eager"), ({"length": 50}, "inductor"), ({"center": False}, "eager"),
    ({"normalized": True}, "eager"), ({"win_length": 12}, "aten_eager"),
    ({"hop_length": None}, "eager"), ({"onesided": True}, "eager"),
])  # fmt: skip
def test_signals_are_restored(settings: dict[str, Any], backend: str) -> None:
    def program(audio: torch.Tensor) -> torch.Tensor:
        window = torch.linspace(1, 2, settings.get("win_length", 16), dtype=audio.dtype)
        return restored(audio, window, **settings)

    calls = [(torch.randn(*size),) for size in ((3, 64), (3, 64), (2, 80))]
    same(program, *calls, backend=backend)
    same(program, (torch.randn(64),), (torch.randn(64, dtype=torch.float64),), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_window_without_weight_raises_as_in_eager(backend: str) -> None:
    def program(audio: torch.Tensor, window: torch.Tensor, seen: list[str]) -> torch.Tensor:
        seen.append("before")
        result = restored(audio, window)
        seen.append("after")
        return result

    audio, good, bad = torch.randn(2, 64), torch.hann_window(16), torch.zeros(16)
    same(program, (audio, good, []), (audio, bad, []), (audio, good, []), backend=backend)


def gradients(function: Callable[..., Any], x: torch.Tensor) -> Any:
    leaf = x.clone().requires_grad_()
    result = function(leaf)
    weights = torch.linspace(0, 1, result.numel(), dtype=result.dtype).reshape(result.shape)
    (result * weights).sum().abs().backward()
    return result.detach(), leaf.grad


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "program",
    [
        lambda x: restored(x, torch.hann_window(16, dtype=x.dtype)),
        torch.cov,
        lambda x: x.cov(correction=0),
        torch.corrcoef,
    ],
    ids=["istft", "cov", "Tensor.cov", "corrcoef"],
)
def test_gradients(program: Any, backend: str) -> None:
    with CaptureCounter() as counter:
        fast = tracer_core.compile(lambda x: program(x), backend=backend)
        for _ in range(2):
            x = torch.randn(3, 64)
            actual, wanted = gradients(fast, x), gradients(program, x.double())
            torch.testing.assert_close(actual, wanted, check_dtype=False, rtol=2e-4, atol=2e-4)
    assert not counter.breaks


@pytest.mark.parametrize("x", [
    torch.randn(3, 7), torch.randn(7), torch.randn(1, 7), torch.randint(9, (3, 7)), torch.randn(0, 4),
    torch.randn(3, 7, dtype=torch.complex64), torch.randn(3, 4, dtype=torch.float64).t(),
], ids=lambda x: f"{str(x.dtype)[6:]} {list(x.shape)}")  # fmt: skip
@pytest.mark.sweep(keep=4)
def test_covariances_of_all_kinds(x: torch.Tensor) -> None:
    same(lambda x: (torch.cov(x), x.cov(correction=-1), torch.corrcoef(x)), (x,), (x + 1,))


@pytest.mark.parametrize("program", [
    lambda x: torch.cov(x, correction=8),
    lambda x: torch.cov(torch.tensor(3.0)) + x.sum(),
    lambda x: torch.cov(x, fweights=torch.arange(7)),
    lambda x: torch.cov(x, aweights=torch.rand(7) * 0 - 1),
    lambda x: torch.cov(x[None]),
    lambda x: torch.istft(x, 4, window=torch.ones(4)),
    lambda x: torch.istft(torch.complex(x, x), 4, window=torch.ones(3)),
])  # fmt: skip
def test_what_the_operator_has_to_say_is_said(program: Any) -> None:
    """Warnings of too few observations, errors of weights, windows, ranks and dtypes."""
    said = []
    for function in (program, tracer_core.compile(program, backend="eager")):
        for _ in range(2):
            with warnings.catch_warnings(record=True) as inputs:
                warnings.simplefilter("always")
                try:
                    result: Any = function(torch.ones(3, 7))
                except Exception as error:
                    result = type(error), str(error)
            texts = [str(item.message).partition(" (Triggered")[0] for item in inputs]
            said.append((repr(result), texts))
    assert said[0] == said[2] and said[1] == said[3]
