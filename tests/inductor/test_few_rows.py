"""Matmuls of few rows with bfloat16 and float16 weights on processors that multiply none: weights are
widened as they are read, and results are as accurate as eager's."""

from __future__ import annotations

import platform
import subprocess

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tracer_core
from inductor_backend.kernels import native, selection
from inductor_backend.passes import float32_compute
from inductor_backend.runtime.cpp.objects import INCLUDE_DIR
from inductor_backend.runtime.cpp.toolchain import find_compiler
from tests.inductor.compiling import compiled
from tests.support.comparison import assert_as_accurate, assert_as_accurate_as_eager

pytestmark = pytest.mark.skipif(
    native.lanes() < 8, reason="the kernel is for processors with AVX2 or AVX-512"
)

DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


@pytest.fixture(autouse=True)
def without_16_bit_instructions(monkeypatch):
    torch.manual_seed(0)
    for module in (float32_compute, selection):
        monkeypatch.setattr(module, "multiplies_16_bits", lambda dtype: False)


def linear(x, w, bias=None):
    """As nn.Linear computes it."""
    return F.linear(x, w, bias)


def conv1d(x, w, bias=None):
    """As GPT-2's Conv1D computes it, whose weight is [K,N]."""
    return x @ w if bias is None else torch.addmm(bias, x, w)


LAYERS = pytest.mark.parametrize("layer", [linear, conv1d])


def weight_of(layer, k, n, dtype):
    return torch.randn((n, k) if layer is linear else (k, n)).to(dtype)


def check(fast, function, *inputs):
    exact = function(*(value.double() for value in inputs))
    assert_as_accurate(fast(*inputs), function(*inputs), exact)


@DTYPES
@LAYERS
@pytest.mark.parametrize("bias", [True, False])
def test_few_rows_of_odd_sizes(dtype, layer, bias):
    fast = tracer_core.compile(layer, dynamic=True)
    for k, n in ((1, 5), (31, 3), (33, 1), (100, 37), (257, 70), (1000, 130)):
        arguments = [weight_of(layer, k, n, dtype), *([torch.randn(n).to(dtype)] if bias else [])]
        for rows in (1, 2, 3, 4, 7, 17):
            check(fast, layer, torch.randn(rows, k).to(dtype), *arguments)


@DTYPES
@LAYERS
def test_every_number_of_rows(dtype, layer):
    fast, w = tracer_core.compile(layer, dynamic=True), weight_of(layer, 96, 80, dtype)
    for rows in [*range(18), 47, 48, 49, 110, 200]:
        x = torch.randn(rows, 96).to(dtype)
        if rows:
            check(fast, layer, x, w)
        else:
            assert fast(x, w).shape == (0, 80)


@DTYPES
@LAYERS
def test_no_terms_and_no_columns(dtype, layer):
    fast = tracer_core.compile(layer)
    for k, n in ((0, 5), (7, 0)):
        x, w, bias = (
            torch.ones(3, k).to(dtype),
            weight_of(layer, k, n, dtype),
            torch.ones(n).to(dtype),
        )
        torch.testing.assert_close(fast(x, w, bias), layer(x, w, bias))


@DTYPES
@LAYERS
def test_results_do_not_depend_on_the_number_of_threads(dtype, layer):
    fast, w = tracer_core.compile(layer), weight_of(layer, 700, 900, dtype)
    before = torch.get_num_threads()
    try:
        for rows in (1, 5):
            x, results = torch.randn(rows, 700).to(dtype), []
            for threads in (1, 2, 5):
                torch.set_num_threads(threads)
                results.append(fast(x, w))
                check(fast, layer, x, w)
            assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    finally:
        torch.set_num_threads(before)


@DTYPES
@LAYERS
def test_operands_that_are_parts_of_others(dtype, layer):
    fast = tracer_core.compile(layer)
    wide = torch.randn(9, 300).to(dtype)
    w, big = weight_of(layer, 130, 66, dtype), weight_of(layer, 150, 90, dtype)
    part = big[5:71, 3:133] if layer is linear else big[3:133, 5:71]
    columns = torch.randn(130, 9).to(dtype).t()
    for x in (wide[:, 7:137], wide[::2, :130], wide[:, ::2][:, :130], columns, columns[:4]):
        check(fast, layer, x, w)
        check(fast, layer, x, part)


@DTYPES
def test_a_weight_without_dense_rows(dtype):
    fast, w = tracer_core.compile(conv1d), torch.randn(64, 96).to(dtype)[:, ::2]
    check(fast, conv1d, torch.randn(3, 64).to(dtype), w)


@DTYPES
@LAYERS
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_of_rounded_values(dtype, layer, name):
    """Between two matmuls they belong to the first."""

    def program(x, w, bias, v):
        return ACTIVATIONS[name](layer(x, w, bias)) @ v

    fast, w, bias = tracer_core.compile(program), weight_of(layer, 64, 50, dtype), torch.randn(50)
    identity = torch.eye(50).to(dtype)
    with torch.no_grad():
        for rows in (1, 4, 9):
            check(fast, program, torch.randn(rows, 64).to(dtype), w, bias.to(dtype), identity)


@DTYPES
@LAYERS
def test_special_values(dtype, layer):
    fast = tracer_core.compile(layer)
    smallest = torch.finfo(dtype).smallest_normal
    w = weight_of(layer, 70, 45, dtype)
    of_column = w if layer is linear else w.t()
    of_column[2, 5], of_column[3, 69], of_column[4, 64] = float("inf"), float("nan"), -float("inf")
    x = torch.randn(5, 70).to(dtype)
    x[1, 5], x[2, 8], x[3, 69] = 0, float("inf"), float("nan")
    ours, eager = fast(x, w), layer(x, w)
    assert torch.equal(ours.isnan(), eager.isnan()) and torch.equal(ours.isinf(), eager.isinf())
    assert torch.equal(ours[ours.isinf()], eager[eager.isinf()])
    # denormals, which eager's bfloat16 instructions take for zero, and a sum beyond the largest
    tiny = torch.full((3, 70), smallest / 4).to(dtype)
    ones = torch.ones_like(weight_of(layer, 70, 45, dtype))
    exact = layer(tiny.double(), ones.double()).to(dtype)
    torch.testing.assert_close(fast(tiny, ones), exact, rtol=0, atol=0)
    assert (fast(tiny, ones) > 0).all()
    large = torch.full((3, 70), torch.finfo(dtype).max).to(dtype)
    assert fast(large, ones).isinf().all()


@DTYPES
@LAYERS
def test_gradients(dtype, layer):
    """The gradient of the input multiplies by the weight transposed."""
    w, bias = weight_of(layer, 60, 40, dtype), torch.randn(40).to(dtype)
    x, results = torch.randn(4, 60).to(dtype), []
    for function, precise in ((tracer_core.compile(layer), False), (layer, False), (layer, True)):
        leaves = [value.double() if precise else value.clone() for value in (x, w, bias)]
        leaves = [leaf.requires_grad_() for leaf in leaves]
        results.append(torch.autograd.grad(function(*leaves).square().mean(), leaves))
    assert_as_accurate(*results, floor=2e-3)


@DTYPES
@pytest.mark.parametrize("freeze", [False, True])
def test_layers_of_a_model(dtype, freeze):
    class Conv1D(nn.Module):
        def __init__(self, k, n):
            super().__init__()
            self.weight, self.bias = (
                nn.Parameter(torch.randn(k, n) / k**0.5),
                nn.Parameter(torch.randn(n)),
            )

        def forward(self, x):
            return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(
                *x.shape[:-1], -1
            )

    layers = nn.Linear(48, 96), nn.GELU(), Conv1D(96, 64), nn.SiLU(), nn.Linear(64, 10, bias=False)
    net = nn.Sequential(*layers).to(dtype).eval()
    fast = tracer_core.compile(net, options={"freeze": freeze})
    with torch.no_grad():
        for shape in ((1, 1, 48), (2, 3, 48), (1, 1, 48), (4, 20, 48)):
            x = torch.randn(shape).to(dtype)
            assert_as_accurate_as_eager(fast(x), net, x, floor=4e-3)


@DTYPES
@pytest.mark.parametrize("freeze", [False, True])
def test_a_layer_of_inputs_that_are_not_contiguous(dtype, freeze):
    """The projection after attention: torch computes it as a batch of matmuls with one weight."""
    net = nn.Linear(48, 20, bias=False).to(dtype).eval()

    def project(heads):
        return net(heads.transpose(1, 2).flatten(2)[:, :, :48])

    def precise(heads):
        return F.linear(heads.transpose(1, 2).flatten(2)[:, :, :48], net.weight.double())

    fast = tracer_core.compile(project, options={"freeze": freeze})
    with torch.no_grad():
        for batch, length in ((1, 1), (2, 1), (5, 1), (2, 3), (3, 4), (0, 1), (20, 9)):
            heads = torch.randn(batch, 4, length, 16).to(dtype)
            if batch:
                assert_as_accurate(fast(heads), project(heads), precise(heads.double()))
            else:
                assert fast(heads).shape == (0, length, 20)
    graph = compiled(project, torch.randn(3, 4, 1, 16).to(dtype))
    assert "run_few_rows" in graph.text and "bmm" not in graph.text


@DTYPES
@LAYERS
def test_which_kernel_computes_it(dtype, layer):
    """Few rows and their activation are one call; for more rows the weights are widened once."""

    def layers(rows, bias):
        x, w = torch.randn(rows, 64).to(dtype), weight_of(layer, 64, 48, dtype)
        v = weight_of(layer, 48, 20, dtype)
        arguments = [x, w, *([torch.randn(48).to(dtype)] if bias else [])]
        return compiled(lambda v, *a: layer(F.silu(layer(*a)), v), v, *arguments)

    for rows in (1, 4, 16, selection.FEW_ROWS):
        for bias in (False, True):
            few = layers(rows, bias)
            assert "run_few_rows" in few.text and few.kernels == 0
    assert "run_few_rows" not in layers(selection.FEW_ROWS + 1, False).text


@DTYPES
def test_more_rows_stay_where_the_processor_multiplies_them(dtype, monkeypatch):
    for module in (float32_compute, selection):
        monkeypatch.setattr(module, "multiplies_16_bits", lambda dtype: True)
    most, w = selection.FEW_ROWS_BESIDE_ATEN[dtype], torch.randn(48, 64).to(dtype)
    for rows, few in ((1, True), (most, True), (most + 1, False)):
        x = torch.randn(rows, 64).to(dtype)
        assert ("run_few_rows" in compiled(linear, x, w).text) == few
        ours = tracer_core.compile(linear)(x, w)
        assert_as_accurate(ours, linear(x, w), linear(x.double(), w.double()))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="AVX-512 is of x86-64")
@pytest.mark.parametrize(
    "unit", native.FAMILIES["few_rows_bf16"][0] + native.FAMILIES["few_rows_half"][0]
)
def test_it_compiles_for_avx512(unit, tmp_path):
    file, *defined = unit.split()
    flags = ["-std=c++17", "-O2", "-fopenmp", "-march=x86-64-v4", "-mprefer-vector-width=512"]
    flags += ["-DLANES=16", *(f"-D{name}" for name in defined)]
    command = [*find_compiler().command.argv, *flags, f"-I{native.FOLDER}", f"-I{INCLUDE_DIR}"]
    command += ["-c", str(native.FOLDER / f"{file}.cpp"), "-o", str(tmp_path / "unit.o")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
