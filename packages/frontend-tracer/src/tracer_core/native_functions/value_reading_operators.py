"""Operators whose kernels look at values of tensors: polyfills whose checks the graph makes.

torch.istft raises where the windows leave a place without weight, torch.cov warns where a row has
too few observations. The polyfills run the kernels' own operators; a call that they do not cover is
the operator's, which breaks the graph.
"""

from __future__ import annotations

from typing import Any

import torch

from tracer_core.native_effects import polyfills
from tracer_core.native_effects.effects import special
from tracer_core.torch_private.names import names
from tracer_core.trace.tracer import Tracer


@special(*names("istft Tensor.istft"))
def istft(
    tracer: Tracer,
    input: Any,
    n_fft: Any,
    hop_length: Any = None,
    win_length: Any = None,
    window: Any = None,
    center: Any = True,
    normalized: Any = False,
    onesided: Any = None,
    length: Any = None,
    return_complex: Any = False,
) -> Any:
    """Interprets the polyfill for the spectrum of a real signal as torch.stft gives it."""
    hop = n_fft // 4 if hop_length is None and type(n_fft) is int else hop_length
    width = n_fft if win_length is None else win_length
    if _is_one_sided(tracer, input, n_fft, onesided, return_complex) and _fits(
        tracer, input, window, n_fft, hop, width, bool(center), length
    ):
        inputs = [input, n_fft, hop, width, window, bool(center), bool(normalized), length]
        return tracer.calls.prepare(polyfills.istft, inputs, {})
    inputs = [input, n_fft, hop_length, win_length, window, center, normalized, onesided, length]
    return tracer.native_calls.call_torch(torch.istft, inputs, {"return_complex": return_complex})


def _is_one_sided(
    tracer: Tracer, input: Any, n_fft: Any, onesided: Any, return_complex: Any
) -> bool:
    if not isinstance(input, torch.Tensor) or type(n_fft) is not int or return_complex:
        return False
    spectrum = tracer.recorder.as_fake(input)
    simple = spectrum.is_complex() and spectrum.dim() in (2, 3) and spectrum.numel() > 0
    may_be = onesided is True or (onesided is None and spectrum.shape[-2] != n_fft)
    return bool(simple and may_be and spectrum.shape[-2] == n_fft // 2 + 1)


def _fits(
    tracer: Tracer, input: Any, window: Any, n_fft: int, hop: Any, width: Any, center: bool,
    length: Any,
) -> bool:  # fmt: skip
    """Returns whether there is a window, and all sizes are ones that the kernel takes without a word."""
    if not (type(hop) is type(width) is int and 0 < hop <= width <= n_fft):
        return False
    if not isinstance(window, torch.Tensor):
        return False
    inputs, spectrum = tracer.recorder.as_fake(window), tracer.recorder.as_fake(input)
    alike = inputs.device == spectrum.device and inputs.dtype is spectrum.dtype.to_real()
    if not (alike and tuple(inputs.shape) == (width,)):
        return False
    full = n_fft + hop * (spectrum.shape[-1] - 1)
    start = n_fft // 2 if center else 0
    end = full - start if length is None else start + length
    return bool(0 <= start < end <= full)


@special(*names("cov Tensor.cov"))
def cov(
    tracer: Tracer, input: Any, *, correction: Any = 1, fweights: Any = None, aweights: Any = None
) -> Any:
    """Interprets the polyfill for plain observations; weights are checked by the operator."""
    if fweights is None and aweights is None and _has_covariance(tracer, input, correction):
        return tracer.calls.prepare(polyfills.cov, [input, correction], {})
    named = {"correction": correction, "fweights": fweights, "aweights": aweights}
    return tracer.native_calls.call_torch(torch.cov, [input], named)


@special(*names("corrcoef Tensor.corrcoef"))
def corrcoef(tracer: Tracer, input: Any) -> Any:
    if _has_covariance(tracer, input, 1):
        return tracer.calls.prepare(polyfills.corrcoef, [input], {})
    return tracer.native_calls.call_torch(torch.corrcoef, [input], {})


def _has_covariance(tracer: Tracer, input: Any, correction: Any) -> bool:
    """Returns whether there are more observations than the correction takes off."""
    if not isinstance(input, torch.Tensor) or type(correction) is not int:
        return False
    inputs = tracer.recorder.as_fake(input)
    if inputs.dim() > 2 or inputs.dtype is torch.bool:
        return False
    return bool((inputs.shape[-1] if inputs.dim() else 1) > correction)
