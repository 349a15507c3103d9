"""Matmuls of few rows whose weights are converted from narrower elements, on GPUs: a generated kernel
converts what it reads. Run by Triton's interpreter, and on a GPU if there is one.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

import tracer_core
from inductor_backend.ir.nodes import LoopNode
from inductor_backend.runtime.cuda.interpreter import interpreting
from tests.inductor.test_operators import I, R
from tests.triton_kernels.test_interpreted import checked

interpreted = pytest.mark.skipif(
    not interpreting(), reason="Triton compiles for a GPU in this process"
)

#: Columns, terms, and terms of a group.
N, K, GROUP = 272, 256, 32


def scaled_before(x, w, scale):
    return F.linear(x, w.to(x.dtype) * scale[:, None])


def scaled_afterwards(x, w, scale):
    return F.linear(x, w.to(x.dtype)) * scale


def with_bias_and_activation(x, w, scale):
    return F.gelu(F.linear(x, w.to(x.dtype) * scale[:, None], scale))


def as_rows(x, w, scale):
    return x @ (w.t().to(x.dtype) * scale)


def of_groups(x, w, scale, zero):
    groups = w.view(-1, K // GROUP, GROUP)
    return F.linear(x, ((groups - zero).to(x.dtype) * scale).view(-1, K))


def of_nibbles(x, w, scale):
    pairs = torch.stack((w & 15, w >> 4), -1).view(-1, K // GROUP, GROUP)
    return F.linear(x, ((pairs.to(x.dtype) - 8) * scale).view(-1, K))


def int8(*sizes):
    return I(-128, 128, *sizes).to(torch.int8)


#: name -> (program, weight, other operands in 16 bits, in 8 bits)
FORMS = {
    "scaled before": (scaled_before, int8(N, K), [R(N)], []),
    "scaled afterwards": (scaled_afterwards, int8(N, K), [R(N)], []),
    "bias and activation": (with_bias_and_activation, int8(N, K), [R(N)], []),
    "integers as [N, K], transposed": (as_rows, int8(N, K), [R(N)], []),
    "unsigned": (scaled_before, int8(N, K).view(torch.uint8), [R(N)], []),
    "float8": (scaled_before, R(N, K).to(torch.float8_e4m3fn), [R(N)], []),
    "groups": (of_groups, int8(N, K) // 2, [R(N, K // GROUP, 1)], [int8(N, K // GROUP, 1) // 2]),
    "nibbles": (of_nibbles, I(0, 256, N, K // 2).to(torch.uint8), [R(N, K // GROUP, 1)], []),
}


def operands(name, dtype, rows):
    program, weight, scales, zeros = FORMS[name]
    return program, (R(rows, K).to(dtype), weight, *(s.to(dtype) for s in scales), *zeros)


def matmuls(result):
    """The matmuls that generated kernels compute, and the buffers that kernels store."""
    program = result.compilation.program
    loops = [node for node in program.nodes if isinstance(node, LoopNode)]
    return [node for node in loops if node.is_matmul], {n for node in loops for n in node.writes}


@interpreted
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [2, 17, 32])
@pytest.mark.parametrize("name", [name for name in FORMS if name not in ("groups", "nibbles")])
def test_the_kernel_converts_the_weight(name, rows, dtype):
    program, inputs = operands(name, dtype, rows)
    result = checked(program, *inputs)
    buffers = result.compilation.program.buffers
    loops, stored = matmuls(result)
    assert len(loops) == 1
    assert not any(buffers[name].layout.numel == N * K for name in stored)
    artifact = result.compilation.runner.artifact
    assert (artifact.kernels, len(artifact.externs)) == (1, 0)


@interpreted
def test_what_stays_with_the_library():
    """Many rows, a weight that others read too, one that is no narrower, a small one, and float32."""
    _, (x, w, scale) = operands("scaled before", torch.bfloat16, 33)

    def read_twice(x, w, scale):
        weight = w.to(x.dtype) * scale[:, None]
        return F.linear(x, weight), weight.amax(0)

    others = {
        "33 rows": (scaled_before, x, w, scale),
        "read twice": (read_twice, x[:4], w, scale),
        "no narrower": (scaled_before, x[:4], w.to(torch.int16), scale),
        "255 x 256 elements": (scaled_before, x[:4], w[:255], scale[:255]),
        "float32": (scaled_before, x[:4].float(), w, scale.float()),
    }
    for name, (program, *inputs) in others.items():
        result = checked(program, *inputs)
        assert not matmuls(result)[0], name
        assert len(result.compilation.runner.artifact.externs) == 1, name


@interpreted
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["groups", "nibbles"])
def test_a_scale_for_each_group_is_multiplied_in_a_kernel_before(name, dtype):
    program, inputs = operands(name, dtype, 5)
    result = checked(program, *inputs)
    artifact = result.compilation.runner.artifact
    assert (artifact.kernels, len(artifact.externs)) == (1, 1)


@interpreted
@pytest.mark.parametrize(("rows", "converts"), [(32, True), (33, False)])
def test_a_projection_of_a_real_model(rows, converts):
    """2,048 to 1,024 features, with as many rows as a block has, and one more."""
    x, w, scale = R(rows, 2048).bfloat16(), int8(1024, 2048), R(1024).bfloat16()
    result = checked(scaled_before, x, w, scale)
    assert len(matmuls(result)[0]) == converts


@interpreted
@pytest.mark.parametrize(("columns", "converts"), [(256, True), (255, False)])
def test_a_weight_of_65_536_elements(columns, converts):
    x, w, scale = R(4, K).bfloat16(), int8(columns, K), R(columns).bfloat16()
    result = checked(scaled_before, x, w, scale)
    assert len(matmuls(result)[0]) == converts


def expanded(x, w, scale):
    return scaled_before(x[:1].expand(4, K), w, scale)


def afterwards_a_sum(x, w, scale):
    y = scaled_before(x, w, scale)
    return y.softmax(-1), y.float().cumsum(0), y.argmax(-1)


@interpreted
@pytest.mark.parametrize("program", [expanded, afterwards_a_sum])
def test_what_surrounds_it(program):
    """Equal rows stay with the library: their matmul has no rows of its own."""
    _, (x, w, scale) = operands("scaled before", torch.bfloat16, 4)
    result = checked(program, x, w, scale)
    assert len(matmuls(result)[0]) == (program is not expanded)


@interpreted
def test_a_new_number_of_rows():
    _, (x, w, scale) = operands("scaled afterwards", torch.bfloat16, 7)
    result = checked(scaled_afterwards, x, w, scale, dynamic=True)
    assert len(matmuls(result)[0]) == 1
    for rows in (3, 32, 40):
        x = R(rows, K).bfloat16()
        torch.testing.assert_close(
            result(x, w, scale)[0], scaled_afterwards(x, w, scale), rtol=2e-2, atol=2e-2
        )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FORMS)
def test_on_a_gpu(name, dtype):
    program = FORMS[name][0]
    fast = tracer_core.compile(program)
    for rows in (1, 2, 5, 16, 32, 33):
        inputs = [item.cuda() for item in operands(name, dtype, rows)[1]]
        wide = [x.double() if x.dtype == dtype else x for x in inputs]
        exact = program(*wide)
        for _ in range(4):
            ours, eager = fast(*inputs), program(*inputs)
            errors = [float((y.double() - exact).norm() / exact.norm()) for y in (ours, eager)]
            assert errors[0] <= 2 * errors[1] + 1e-3, (rows, errors)
