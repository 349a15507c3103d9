"""Matmuls of few rows with weights of 8 and 4 bits: integers are read once and converted in registers, and
results are as accurate as eager's, which converts a copy."""

from __future__ import annotations

import platform
import subprocess

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tracer_core
from inductor_backend.kernels import native, quantized, selection
from inductor_backend.options import InductorOptions
from inductor_backend.passes import float32_compute
from inductor_backend.runtime.cpp.objects import INCLUDE_DIR
from inductor_backend.runtime.cpp.toolchain import find_compiler
from tests.inductor.compiling import compiled
from tests.support.comparison import assert_as_accurate, assert_as_accurate_as_eager
from tests.support.native_libraries import like_eager
from tests.support.quantized_weights import Quantized, ScaledAfter, ScaledGroups

pytestmark = pytest.mark.skipif(
    native.lanes() < 8, reason="the kernel is for processors with AVX2 or AVX-512"
)

DTYPES = pytest.mark.parametrize("dtype", list(quantized.ELEMENTS), ids=str)
INTEGERS = pytest.mark.parametrize("integer", list(quantized.INTEGERS), ids=str)
ROWS = (1, 2, 3, 4, 7, 17)


@pytest.fixture(autouse=True)
def without_16_bit_instructions(monkeypatch):
    torch.manual_seed(0)
    for module in (float32_compute, selection):
        monkeypatch.setattr(module, "multiplies_16_bits", lambda dtype: False)


def converted(x, q):
    """As gpt-fast computes it."""
    return x @ q.t().to(x.dtype)


def converted_columns(x, q):
    """Weights [K, N]."""
    return x @ q.to(x.dtype)


def scaled_after(x, q, scale, bias):
    return F.silu(x @ q.t().to(x.dtype) * scale + bias)


def grouped(x, q, scale, zero, bias=None):
    weight = Quantized(q, scale, zero, q.shape[1] // scale.shape[1]).weight(x.dtype)
    return F.linear(x, weight, bias)


def integers(rows, columns, integer=torch.int8):
    limits = torch.iinfo(integer)
    return torch.randint(limits.min, limits.max + 1, (rows, columns), dtype=integer)


def check(fast, function, *inputs):
    doubled = (value.double() if value.is_floating_point() else value for value in inputs)
    assert_as_accurate(fast(*inputs), function(*inputs), function(*doubled))


def text_of(function, *inputs, **options):
    """Returns the generated module of a program with all rewrites of its graph."""
    options = InductorOptions(**options)
    return compiled(function, *inputs, first="constant_folding", options=options).text


def reads_integers(text):
    return "int8(" in text


def parts_of(quantized):
    return quantized.integers, quantized.scale, quantized.zero


@DTYPES
@INTEGERS
@pytest.mark.parametrize("function", [converted, converted_columns])
def test_conversions_of_odd_sizes(dtype, integer, function):
    fast = tracer_core.compile(function, dynamic=True)
    for k, n in ((1, 5), (31, 3), (33, 1), (100, 37), (257, 70), (1000, 130)):
        q = integers(n, k, integer) if function is converted else integers(k, n, integer)
        for rows in ROWS:
            check(fast, function, torch.randn(rows, k).to(dtype), q)


@DTYPES
@INTEGERS
@pytest.mark.parametrize("zeros", [True, False])
def test_groups(dtype, integer, zeros):
    fast = tracer_core.compile(grouped, dynamic=True)
    for k, n, group in (
        (32, 5, 32),
        (96, 3, 32),
        (192, 70, 96),
        (256, 130, 64),
        (33, 9, 33),
        (70, 6, 70),
    ):
        weight = Quantized.random(n, k, group, dtype, integer, zeros)
        for rows in (*ROWS, 33):
            x, bias = torch.randn(rows, k).to(dtype), torch.randn(n).to(dtype)
            check(fast, grouped, x, *parts_of(weight))
            check(fast, grouped, x, *parts_of(weight), bias)


@DTYPES
def test_every_number_of_rows(dtype):
    fast = tracer_core.compile(grouped, dynamic=True)
    weight = Quantized.random(80, 96, 32, dtype)
    for rows in [*range(18), 47, 48, 49, 110, 200]:
        x = torch.randn(rows, 96).to(dtype)
        if rows:
            check(fast, grouped, x, *parts_of(weight))
        else:
            assert fast(x, *parts_of(weight)).shape == (0, 80)


@DTYPES
def test_both_sides_of_the_limit_of_rows(dtype):
    weight = Quantized.random(80, 96, 32, dtype)
    for rows, few in ((1, True), (selection.FEW_ROWS, True), (selection.FEW_ROWS + 1, False)):
        x = torch.randn(rows, 96).to(dtype)
        assert reads_integers(text_of(grouped, x, *parts_of(weight))) == few
        assert reads_integers(text_of(converted, x, weight.integers)) == few


@DTYPES
@pytest.mark.parametrize(
    ("group", "supported"), [(96, True), (32, True), (16, False), (24, False), (48, False)]
)
def test_groups_are_whole_steps_or_rows(dtype, group, supported):
    weight = Quantized.random(40, 96, group, dtype)
    x = torch.randn(3, 96).to(dtype)
    assert reads_integers(text_of(grouped, x, *parts_of(weight))) == supported
    check(tracer_core.compile(grouped), grouped, x, *parts_of(weight))


@DTYPES
def test_results_do_not_depend_on_the_number_of_threads(dtype):
    fast = tracer_core.compile(grouped)
    weight = Quantized.random(900, 704, 64, dtype)
    before = torch.get_num_threads()
    try:
        for rows in (1, 5, 20):
            x, results = torch.randn(rows, 704).to(dtype), []
            for threads in (1, 2, 5):
                torch.set_num_threads(threads)
                results.append(fast(x, *parts_of(weight)))
                check(fast, grouped, x, *parts_of(weight))
            assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    finally:
        torch.set_num_threads(before)


def test_other_forms_of_the_same_arithmetic():
    q, scale = integers(24, 64), torch.rand(24, 2)
    columns = integers(64, 24).t().contiguous().t()
    zero, floats = torch.randint(-9, 9, (24, 2)), torch.rand(24, 2)
    forms = {
        "numbers": lambda x: x @ ((q.to(x.dtype) - 8) * 0.25).t(),
        "scale first": lambda x: x @ (scale[:, :1].to(x.dtype) * (q.to(x.dtype) - 3)).t(),
        "32-bit integers": lambda x: F.linear(
            x, ((q.view(24, 2, 32).to(torch.int32) - zero[..., None].int()) * scale[..., None].to(x.dtype)).view(24, 64)
        ),
        "zeros that are fractions": lambda x: F.linear(
            x, ((q.to(x.dtype).view(48, 32) - floats.view(48, 1).to(x.dtype)) * scale.view(48, 1).to(x.dtype)).view(24, 64)
        ),
        "columns": lambda x: x @ (columns.to(x.dtype) * scale[:, 0].to(x.dtype)),
        "a scale alone, of one number": lambda x: x @ (q.t().to(x.dtype) * scale[0, 0].to(x.dtype)),
    }  # fmt: skip
    for name, form in forms.items():
        x = torch.randn(3, 64)
        assert reads_integers(text_of(form, x)), name
        assert_as_accurate(tracer_core.compile(form)(x), form(x), form(x.double()))


@pytest.mark.parametrize(("zero", "read"), [(256, True), (257, False), (-256, True), (0.5, False)])
def test_a_number_that_bfloat16_rounds_is_no_zero(zero, read):
    """Up to 256 every integer is a bfloat16; eager subtracts the rounded one beyond. At the size of a
    projection of a real model."""
    torch.manual_seed(0)
    q, scale = integers(2048, 1024), torch.rand(2048, 1).bfloat16() / 64
    x = torch.randn(2, 1024).bfloat16()

    def project(x):
        return F.linear(x, (q.to(x.dtype) - zero) * scale.to(x.dtype))

    assert reads_integers(text_of(project, x)) == read
    assert_as_accurate(tracer_core.compile(project)(x), project(x), project(x.double()))


@pytest.mark.parametrize(("zero", "read"), [(128, True), (129, False), (0, True), (-1, False)])
def test_a_number_that_wraps_signed_bytes_is_no_zero(zero, read):
    """Differences of integers of 4 bits and up to 128 are integers of 8 bits. At the size of a projection
    of a real model."""
    torch.manual_seed(0)
    packed, scale = integers(2048, 512, torch.uint8), torch.rand(2048, 1) / 64
    x = torch.randn(2, 1024)

    def project(x, packed):
        pairs = torch.stack((packed & 15, packed >> 4), -1).view(2048, 1024)
        return F.linear(x, (pairs.to(torch.int8) - zero).to(x.dtype) * scale)

    assert ("nibbles(" in text_of(project, x, packed)) == read
    check(tracer_core.compile(project), project, x, packed)


def test_other_arithmetic():
    """Differences of integers of 8 bits are integers of 8 bits; the rest stays as it is."""
    q, zero, terms = integers(24, 64), integers(24, 1), torch.rand(64)
    forms = {
        "8-bit integers wrap around": lambda x: x @ ((q - zero).to(x.dtype) * 0.5).t(),
        "truncated": lambda x: x @ ((q.to(x.dtype) - 0.5).to(torch.int32).to(x.dtype) * 0.5).t(),
        "scaled before the zero": lambda x: x @ (q.to(x.dtype) * 0.5 - zero.to(x.dtype)).t(),
        "a scale for each term": lambda x: x @ (q.to(x.dtype) * terms.to(x.dtype)).t(),
    }
    for name, form in forms.items():
        x = torch.randn(3, 64)
        assert reads_integers(text_of(form, x)) == (name == "8-bit integers wrap around"), name
        assert_as_accurate(tracer_core.compile(form)(x), form(x), form(x.double()))


@DTYPES
@pytest.mark.parametrize("rows", [6, 20])
def test_special_values(dtype, rows):
    fast = tracer_core.compile(grouped)
    weight = Quantized.random(45, 70, 70, dtype)
    weight.scale[7], weight.scale[8], weight.scale[9] = 0, float("inf"), float("nan")
    weight.integers[5], weight.zero[5] = 3, 3
    weight.integers[8], weight.zero[8] = 9, 3  # the last, part of a vector, is infinite, not NaN
    x = torch.randn(rows, 70).to(dtype)
    x[0] = x[0].abs() + 1
    # with AMX, eager multiplies the first 26 values of the next row by zero: none of these
    x[1, 5], x[2, 38], x[3, 69], x[4, 30] = 0, float("inf"), float("nan"), -float("inf")
    ours, eager = fast(x, *parts_of(weight)), grouped(x, *parts_of(weight))
    assert eager[0, 8].isinf()
    assert torch.equal(ours.isnan(), eager.isnan())
    assert torch.equal(ours[ours.isinf()], eager[eager.isinf()])


def of_nibbles(x, packed, scale, zero, high_first=False):
    """Weights of 4 bits, two a byte."""
    parts = [packed & 0xF, packed >> 4]
    q = torch.stack(parts[::-1] if high_first else parts, -1).view(len(packed), -1)
    return grouped(x, q, scale, zero)


@DTYPES
@pytest.mark.parametrize("high_first", [False, True])
def test_two_weights_a_byte(dtype, high_first):
    program = lambda *values: of_nibbles(*values, high_first=high_first)
    fast = tracer_core.compile(program, dynamic=True)
    sizes = (
        (32, 5, 32),
        (96, 3, 32),
        (192, 70, 96),
        (256, 130, 64),
        (34, 9, 34),
        (2, 7, 2),
        (70, 6, 70),
    )
    for k, n, group in sizes:
        packed = integers(n, k // 2, torch.uint8)
        scale = (torch.rand(n, k // group) / 10).to(dtype)
        zero = torch.randint(0, 16, scale.shape, dtype=torch.uint8)
        for rows in (*ROWS, 33, 60):
            x = torch.randn(rows, k).to(dtype)
            check(fast, program, x, packed, scale, zero)
    assert "nibbles(" in text_of(program, x[:3], packed, scale, zero)
    assert "nibbles(" not in text_of(program, x[:3], packed, scale, zero, numerics="eager") or (
        dtype == torch.float32
    )


@DTYPES
def test_other_forms_of_two_weights_a_byte(dtype):
    packed, scale = integers(24, 32, torch.uint8), (torch.rand(24, 2, 1) / 10).to(dtype)

    def stacked(first, second):
        return torch.stack((first, second), -1).view(24, 2, 32)

    low, high = packed & 15, packed >> 4
    forms = {
        "a number is the zero": lambda x: (stacked(low, high).to(x.dtype) - 8) * scale,
        "masked twice": lambda x: (stacked(low, high & 15).to(x.dtype) - 8) * scale,
        "the zero of signed bytes": lambda x: (stacked(low, high).to(torch.int8) - 8).to(x.dtype) * scale,
        "halves as 32-bit integers": lambda x: (stacked(low.int(), high.int()) - 8).to(x.dtype) * scale,
        "halves as floats": lambda x: (stacked(low.to(x.dtype), high.to(x.dtype)) - 8) * scale,
        "no scale": lambda x: stacked(high, low).to(x.dtype),
        "unsigned bytes wrap around": lambda x: (stacked(low, high) - 8).to(x.dtype) * scale,
        "signed differences as unsigned bytes": lambda x: (
            (stacked(low, high).to(torch.int8) - 8).to(torch.uint8).to(x.dtype) * scale
        ),
        "one half twice": lambda x: (stacked(low, low).to(x.dtype) - 8) * scale,
        "halves of other bytes": lambda x: (stacked(low, packed.flip(0) >> 4).to(x.dtype) - 8) * scale,
        "three bits": lambda x: (stacked(packed & 7, high).to(x.dtype) - 8) * scale,
        "halves of rows": lambda x: (torch.cat((low, high), -1).view(24, 2, 32).to(x.dtype) - 8) * scale,
    }  # fmt: skip
    read = [*forms][:6]
    for name, form in forms.items():
        # the bytes are an input, so that halves are computed in the program
        def program(x, held, form=form):
            nonlocal packed, low, high
            packed, low, high = held, held & 15, held >> 4
            return F.linear(x, form(x).view(24, 64))

        x, held = torch.randn(3, 64).to(dtype), integers(24, 32, torch.uint8)
        text = text_of(program, x, held)
        assert ("nibbles(" in text) == (name in read), name
        check(tracer_core.compile(program), program, x, held)


@DTYPES
def test_special_values_of_two_weights_a_byte(dtype):
    fast = tracer_core.compile(of_nibbles)
    packed, scale = integers(45, 35, torch.uint8), (torch.rand(45, 1) / 10).to(dtype)
    zero = torch.full((45, 1), 16, dtype=torch.uint8)  # no weight is 0
    scale[7], scale[8], scale[9] = 0, float("inf"), float("nan")
    x = torch.randn(6, 70).to(dtype)
    x[0] = x[0].abs() + 1
    x[2, 38], x[3, 69], x[4, 30] = float("inf"), float("nan"), -float("inf")
    ours, eager = fast(x, packed, scale, zero), of_nibbles(x, packed, scale, zero)
    assert eager[0, 8].isinf()
    assert torch.equal(ours.isnan(), eager.isnan())
    assert torch.equal(ours[ours.isinf()], eager[eager.isinf()])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_fewer_rows_beside_processors_that_multiply_16_bits(dtype, monkeypatch):
    for module in (float32_compute, selection):
        monkeypatch.setattr(module, "multiplies_16_bits", lambda dtype: True)
    weight = Quantized.random(80, 96, 32, dtype)
    alone, groups = selection.FEW_ROWS_OF_INTEGERS, selection.FEW_ROWS_OF_GROUPS
    for rows in (1, groups, groups + 1, alone, alone + 1):
        x = torch.randn(rows, 96).to(dtype)
        assert reads_integers(text_of(grouped, x, *parts_of(weight))) == (rows <= groups)
        assert reads_integers(text_of(converted, x, weight.integers)) == (rows <= alone)


def test_weights_beyond_float16_are_infinite():
    fast, x = tracer_core.compile(grouped), torch.ones(2, 64, dtype=torch.float16)
    weight = Quantized.random(11, 64, 32, torch.float16)
    weight.scale[3, 1] = 1000
    ours, eager = fast(x, *parts_of(weight)), grouped(x, *parts_of(weight))
    assert eager[:, 3].isinf().all() or eager[:, 3].isnan().all()
    torch.testing.assert_close(ours, eager, equal_nan=True, rtol=2e-3, atol=2e-3)


@DTYPES
def test_scale_bias_and_activation_are_in_the_call(dtype):
    q, scale, bias = integers(40, 64), torch.rand(40).to(dtype), torch.randn(40).to(dtype)
    fast, v = tracer_core.compile(scaled_after), torch.randn(40, 20).to(dtype)
    for rows in ROWS:
        check(fast, scaled_after, torch.randn(rows, 64).to(dtype), q, scale, bias)
    program = lambda x, *a: scaled_after(x, *a) @ v
    if dtype != torch.float32:
        layers = compiled(
            program, torch.randn(4, 64).to(dtype), q, scale, bias, first="constant_folding"
        )
        assert reads_integers(layers.text) and layers.kernels == 0


@DTYPES
def test_a_factor_after_a_view_is_in_the_call(dtype):
    """As gpt-fast has it."""
    q, scale = integers(40, 64), torch.rand(40).to(dtype)
    program = lambda x, q, scale: F.linear(x, q.to(x.dtype)) * scale
    fast = tracer_core.compile(program, dynamic=True)
    for shape in ((1, 1, 64), (2, 3, 64), (1, 7, 64)):
        x = torch.randn(shape).to(dtype)
        check(fast, program, x, q, scale)
    layer = compiled(program, x, q, scale, first="constant_folding")
    assert reads_integers(layer.text) and layer.kernels == 0


@DTYPES
@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("layer", [ScaledAfter, lambda linear: ScaledGroups(linear, 32)])
def test_layers_of_a_model(dtype, freeze, layer):
    linears = nn.Linear(64, 96), nn.Linear(96, 64, bias=False)
    first, last = (layer(linear.to(dtype)) for linear in linears)
    net = nn.Sequential(first, nn.GELU(), last).eval()
    fast = tracer_core.compile(net, options={"freeze": freeze})
    with torch.no_grad():
        for shape in ((1, 1, 64), (2, 3, 64), (1, 1, 64), (4, 20, 64)):
            x = torch.randn(shape).to(dtype)
            floor = 1e-6 if dtype == torch.float32 else 4e-3
            assert_as_accurate_as_eager(fast(x), net, x, floor=floor)


@DTYPES
def test_a_layer_of_inputs_that_are_not_contiguous(dtype):
    """The projection after attention: torch computes it as a batch of matmuls with one weight."""
    weight = Quantized.random(20, 64, 32, dtype)

    def project(heads, q, scale, zero):
        return grouped(heads.transpose(1, 2).flatten(2)[:, :, :64], q, scale, zero)

    fast = tracer_core.compile(project)
    for batch, length in ((1, 1), (2, 1), (2, 3), (20, 9)):
        check(fast, project, torch.randn(batch, 5, length, 16).to(dtype), *parts_of(weight))
    heads = torch.randn(3, 5, 1, 16).to(dtype)
    text = text_of(project, heads, *parts_of(weight))
    assert reads_integers(text) and "bmm" not in text


@DTYPES
def test_gradients(dtype):
    """The gradient of the input multiplies by the integers transposed."""
    q, results = integers(40, 60), []
    x, scale = torch.randn(4, 60).to(dtype), torch.rand(40).to(dtype)
    for function, precise in (
        (tracer_core.compile(scaled_after), False),
        (scaled_after, False),
        (scaled_after, True),
    ):
        leaves = [value.double() if precise else value.clone() for value in (x, scale, scale)]
        leaves = [leaf.requires_grad_() for leaf in leaves]
        loss = function(leaves[0], q, *leaves[1:]).square().mean()
        results.append(torch.autograd.grad(loss, leaves))
    assert_as_accurate(*results, floor=1e-5 if dtype == torch.float32 else 4e-3)


@DTYPES
def test_weight_int8pack(dtype):
    def program(x, q, scale):
        return torch._weight_int8pack_mm(x, q, scale)

    def exact(x, q, scale):
        return x.double() @ q.t().double() * scale.double()

    fast, q, scale = tracer_core.compile(program), integers(70, 96), torch.rand(70).to(dtype)
    for rows in ROWS:
        inputs = torch.randn(rows, 96).to(dtype), q, scale
        assert_as_accurate(fast(*inputs), program(*inputs), exact(*inputs))
    if dtype != torch.float32:  # sums are rounded once, after the scale
        assert (fast(*inputs) == exact(*inputs).to(dtype)).double().mean() > 0.98
    assert reads_integers(text_of(program, *inputs))


def test_eager_numerics_round_the_weights():
    weight, x = Quantized.random(40, 64, 32, torch.bfloat16), torch.randn(3, 64)
    parts = parts_of(weight)
    assert not reads_integers(text_of(grouped, x.bfloat16(), *parts, numerics="eager"))
    assert reads_integers(text_of(converted, x.bfloat16(), parts[0], numerics="eager"))
    assert reads_integers(
        text_of(grouped, x, parts[0], parts[1].float(), parts[2], numerics="eager")
    )


@DTYPES
def test_operator_as_python_function(dtype):
    weight, x = Quantized.random(7, 64, 32, dtype), torch.randn(3, 64).to(dtype)
    bias, factor = torch.randn(7).to(dtype), torch.rand(7).to(dtype)
    result = quantized.quantized_mm(
        x, weight.integers.t(), bias, None, weight.scale, weight.zero, 32, False
    )
    torch.testing.assert_close(result, grouped(x, *parts_of(weight), bias), rtol=1e-2, atol=1e-2)
    result = quantized.quantized_mm(x, weight.integers.t(), bias, factor, 0.5, 1.0, 64, False)
    expected = x @ ((weight.integers.to(dtype) - 1) * 0.5).t() * factor + bias
    torch.testing.assert_close(result, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="these flags are of x86-64")
@pytest.mark.parametrize(("march", "lanes"), [("x86-64-v4", 16), ("x86-64", 4)])
@pytest.mark.parametrize("element", ["float", "half"])
def test_it_compiles_for_other_processors(march, lanes, element, tmp_path):
    file, *defined = native.FAMILIES[f"few_rows_{element}_int8"][0][0].split()
    flags = ["-std=c++17", "-O2", "-fopenmp", f"-march={march}", f"-DLANES={lanes}"]
    command = [*find_compiler().command.argv, *flags, *(f"-D{name}" for name in defined)]
    command += [f"-I{native.FOLDER}", f"-I{INCLUDE_DIR}", "-c", str(native.FOLDER / f"{file}.cpp")]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "unit.o")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_in_a_library_without_python(tmp_path):
    def program(x, q, scale):
        return torch.relu(x @ q.t().to(x.dtype) * scale)

    like_eager(program, torch.randn(3, 64), integers(40, 64), torch.rand(40), folder=tmp_path)


def test_integers_that_are_multiplied_stay_integers():
    """Matmuls of integers beside int8 values are no matmuls of quantized weights."""
    torch.manual_seed(0)

    def program(x, q):
        return x.long() @ q.long(), x.double() @ q.double(), q.int() @ q.int()

    x, q = torch.randn(4, 6) * 9, torch.randint(-9, 9, (6, 6), dtype=torch.int8)
    fast = tracer_core.compile(program, fullgraph=True)
    for _ in range(2):
        for ours, eager in zip(fast(x, q), program(x, q), strict=True):
            torch.testing.assert_close(ours, eager)
