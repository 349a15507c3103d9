"""Tensors of dtypes that no loop computes with: views of complex numbers and of 8-bit floats are part
of the graph, and Triton kernels read 8-bit floats.
"""

from __future__ import annotations

import re

import pytest
import torch

import tracer_core
from inductor_backend.ir.target import interpreted

Z = torch.randn(4, 6, dtype=torch.complex64)
F8 = torch.randn(8, 16).to(torch.float8_e4m3fn)
E5 = torch.randn(8, 16).to(torch.float8_e5m2)
X, SCALE = torch.randn(3, 16), torch.rand(8, 1)

#: name -> (function, arguments).
PROGRAMS = {
    "complex, turned": (lambda z: (z * 2).t(), Z),
    "complex, turned and copied": (lambda z: (z * 2).t().contiguous(), Z),
    "complex, parts": (lambda z: ((z * 2)[1:, ::2] + 1, (z * 2)[0].unsqueeze(1)), Z),
    "complex, expanded": (lambda z: (z * 2)[:, :1].expand(4, 5).clone(), Z),
    "complex argument, turned": (lambda z: z.t() * z.permute(1, 0), Z),
    "complex, a row of a made one": (lambda x: torch.complex(x, x)[0], X),
    "complex, parts of a made one": (
        lambda x: (
            torch.complex(x, x)[1:, ::2], torch.complex(x, x)[1:, ::2], torch.complex(x, x).t(),
        ), X,
    ),
    "complex, of twice the bytes": (lambda x: torch.polar(x, x)[1, ..., None], X.double()),
    "frequencies": (lambda x: (torch.fft.rfft(x)[:, 1:4], torch.fft.rfft(x)[0]), X),
    "weights, turned and converted": (lambda w: w.t().to(torch.float32), F8),
    "weights, turned and copied": (lambda w: w.t().contiguous(), F8),
    "weights with scales": (lambda x, w, s: x @ (w.to(torch.float32) * s).t(), X, F8, SCALE),
    "weights in 16 bits": (
        lambda x, w, s: x.bfloat16() @ (w.t().to(torch.bfloat16) * s.t().bfloat16()), X, F8, SCALE,
    ),
    "padded": (lambda w: torch.nn.functional.pad(w.to(torch.float32), [1, 2]) + 1, F8),
    "of five exponent bits": (lambda w: w[2:5].to(torch.float16) + 1, E5),
    "results": (lambda x: (x * 300).to(torch.float8_e4m3fn).t(), X),
    "there and back": (lambda x: (x * 3).to(torch.float8_e5m2).float()[:, 3] * 2, X),
}  # fmt: skip
#: Programs whose conversions are part of Triton kernels -> the operators that are not.
READ_BY_KERNELS = {
    "weights, turned and converted": 0, "padded": 0, "weights with scales": 1, "of five exponent bits": 0,
}  # fmt: skip


def _tensors(result):
    return result if isinstance(result, tuple) else (result,)


def _bits(item):
    return item.view(torch.uint8) if item.dtype.itemsize == 1 else item


def _compare(name):
    function, *inputs = PROGRAMS[name]
    compiled = tracer_core.compile(function, backend="inductor", fullgraph=True)
    for _ in range(3):
        results = (_tensors(value(*(g.clone() for g in inputs))) for value in (compiled, function))
        for result, wanted in zip(*results, strict=True):
            assert (result.dtype, result.stride()) == (wanted.dtype, wanted.stride())
            torch.testing.assert_close(_bits(result), _bits(wanted), rtol=1e-6, atol=1e-6)
    return tracer_core.last_compile(compiled)


def _only_arithmetic_is_left_to_eager(records):
    """Products of complex numbers run eagerly, their views do not."""
    for record in records:
        if record.name == "fallback":
            assert {"aten.mul.Tensor", "aten.add.Tensor"} >= set(
                re.findall(r"aten\.\w+\.\w+", record.text)
            ), record.text


@pytest.mark.sweep(keep=8)
@pytest.mark.parametrize("name", PROGRAMS)
def test_in_cpp(name):
    _only_arithmetic_is_left_to_eager(_compare(name))


def _same_bits(function, compiled, x, flushed):
    """Compares the two. flushed: while denormals of float32 are made 0."""
    torch.set_flush_denormal(flushed)
    try:
        actual, wanted = compiled(x), function(x)
    finally:
        torch.set_flush_denormal(False)
    torch.testing.assert_close(actual, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.sweep(keep=4)
@pytest.mark.parametrize(
    "to", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.bool]
)
@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_every_8_bit_float_is_read_by_a_loop(kind, to):
    every = torch.arange(256, dtype=torch.uint8).view(kind)

    def function(x):
        return x.to(to)

    compiled = tracer_core.compile(function, backend="inductor", fullgraph=True)
    for x in (every, every.view(16, 16).t(), every[3:40]):
        for flushed in (False, True):  # subnormal numbers of 8 bits are none of float32
            _same_bits(function, compiled, x, flushed)
    (text,) = (r.text for r in tracer_core.last_compile(compiled) if r.name == "inductor_module")
    assert "0 operator calls" in text, text


def test_subnormal_halves_where_denormals_are_flushed():
    """They are normal float32 numbers, and eager keeps them."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16)
    functions = (lambda x: x.to(torch.float32), lambda x: x.to(torch.float32).to(torch.float16) * 1)
    for function in functions:
        compiled = tracer_core.compile(function, backend="inductor", fullgraph=True)
        for x in (every, every[1:8], every[::3]):
            _same_bits(function, compiled, x, flushed=True)


@pytest.mark.sweep(keep=8)
@pytest.mark.parametrize("name", PROGRAMS)
def test_in_triton(name):
    pytest.importorskip("triton")
    from inductor_backend.runtime.cuda.interpreter import interpreting

    if not interpreting():
        pytest.skip("Triton compiles for a GPU in this process")
    with interpreted():
        records = _compare(name)
    _only_arithmetic_is_left_to_eager(records)
    if name in READ_BY_KERNELS:
        (text,) = (record.text for record in records if record.name == "inductor_module")
        assert f"{READ_BY_KERNELS[name]} operator call" in text, text


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("rows", [1, 3, 5, 20])
def test_integer_products_of_few_rows(rows, dynamic):
    """cuBLAS takes 17 rows and more."""
    pytest.importorskip("triton")
    from inductor_backend.runtime.cuda.interpreter import interpreting

    if not interpreting():
        pytest.skip("Triton compiles for a GPU in this process")

    def function(a, b, scale):
        return torch._int_mm(a, b.t()) * scale

    weights = torch.randint(-128, 128, (32, 64), dtype=torch.int8)
    by_kernels = rows == 1 or (rows == 3 and dynamic is None)
    with interpreted():
        compiled = tracer_core.compile(
            function, backend="inductor", fullgraph=True, dynamic=dynamic
        )
        for _ in range(2):
            a = torch.randint(-128, 128, (rows, 64), dtype=torch.int8)
            scale = torch.rand(rows, 1)
            wanted = function(a, weights, scale)
            if by_kernels:  # ATen's products saturate on processors without VNNI
                wanted = (a.int() @ weights.int().t()) * scale
            assert torch.equal(compiled(a, weights, scale), wanted)
    (text,) = (r.text for r in tracer_core.last_compile(compiled) if r.name == "inductor_module")
    assert ("0 operator calls" in text) == by_kernels, text


def test_sizes_that_change():
    def frequencies(x):
        result = torch.fft.rfft(x)
        return result[:, 1:4], result[1], result.t()

    compiled = tracer_core.compile(frequencies, backend="inductor", fullgraph=True, dynamic=True)
    for rows in (2, 5, 9):
        x = torch.randn(rows, 16)
        for actual, wanted in zip(compiled(x), frequencies(x), strict=True):
            assert actual.stride() == wanted.stride()
            torch.testing.assert_close(actual, wanted)
