"""What fusion must achieve, counted in the generated code."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

from inductor_backend.options import InductorOptions
from tests.inductor.compiling import compiled


def kernel_body(c) -> str:
    """The text of the only kernel's row function."""
    (body,) = re.findall(r"void fused_\w+_range\(.*?\n}", c.source, re.S)
    return body


def loads(body: str, pointer: str) -> int:
    return len(re.findall(rf"(?:= (?:tc_to_float\()?|tc_take\(lanes, &){pointer}\[", body))


def test_cos_plus_sin_is_one_kernel_one_load_per_input_one_store_and_no_buffer():
    x, y = torch.randn(10_000), torch.randn(10_000)
    c = compiled(lambda x, y: torch.cos(x) + torch.sin(y), x, y)
    body = kernel_body(c)
    assert c.kernels == 1
    pointers = re.findall(r"(const )?float\* __restrict (p\d)", body)
    assert sorted(const for const, _ in pointers) == ["", "const ", "const "]
    for const, name in pointers:
        if const:
            assert loads(body, name) == 1
        else:
            assert (
                len(re.findall(rf"^\s*(?:{name}\[.*\] = |tc_put\(lanes, &{name}\[)", body, re.M))
                == 1
            )
    assert c.compilation.memory.size == 0
    torch.testing.assert_close(c(x, y)[0], x.cos() + y.sin())


def test_softmax_is_one_kernel():
    x = torch.randn(64, 100)
    c = compiled(lambda x: x.softmax(-1), x)
    assert c.kernels == 1 and c.compilation.memory.size == 0
    assert (
        kernel_body(c).count("tc_exp") == 1
    )  # kept in a row buffer, not computed again for the quotient


def test_layer_norm_gelu_softmax_is_one_kernel_that_computes_each_step_once():
    x, w, b = torch.randn(256, 512), torch.randn(512), torch.randn(512)
    c = compiled(lambda x, w, b: F.gelu(F.layer_norm(x, (512,), w, b)).softmax(-1), x, w, b)
    body = kernel_body(c)
    assert c.kernels == 1 and c.compilation.memory.size == 0
    assert body.count("tc_gelu_erf") == 1 and body.count("tc_exp") == 1
    torch.testing.assert_close(c(x, w, b)[0], F.gelu(F.layer_norm(x, (512,), w, b)).softmax(-1))


def test_batch_norm_relu_and_residual_add_are_one_kernel():
    x, r = torch.randn(2, 8, 6, 6), torch.randn(2, 8, 6, 6)
    m, v, w, b = torch.randn(8), torch.rand(8), torch.randn(8), torch.randn(8)
    c = compiled(
        lambda x, r, m, v, w, b: (F.batch_norm(x, m, v, w, b) + r).relu(), x, r, m, v, w, b
    )
    assert c.kernels == 1 and c.compilation.memory.size == 0
    inner = re.split("#pragma omp simd|const auto step_", kernel_body(c))[1]
    assert "tc_sqrt" not in inner  # scale and shift are formed once a channel


def test_horizontal_fusion_reads_the_shared_input_once():
    x = torch.randn(1000)
    c = compiled(lambda x: (x.sin(), x.cos()), x)
    assert c.kernels == 1
    assert sum(loads(kernel_body(c), f"p{k}") for k in range(3)) == 1


def test_a_long_chain_of_views_and_pointwise_is_one_kernel():
    x = torch.randn(4, 6, 10)
    c = compiled(
        lambda x: (x.transpose(1, 2).reshape(4, 60) + 1).view(4, 10, 6).permute(0, 2, 1) * x, x
    )
    assert c.kernels == 1
    torch.testing.assert_close(
        c(x)[0], (x.transpose(1, 2).reshape(4, 60) + 1).view(4, 10, 6).permute(0, 2, 1) * x
    )


def test_dead_results_are_not_computed():
    x = torch.randn(100)
    c = compiled(lambda x: (x.exp().sum(), x + 1)[1], x)
    assert "tc_exp" not in c.source


def test_equal_kernels_are_compiled_once():
    def blocks(x, ws):
        for w in ws.unbind(0):
            x = torch.relu(x @ w) + 1
        return x

    c = compiled(blocks, torch.randn(5, 16), torch.randn(4, 16, 16))
    artifact = c.compilation.runner.artifact
    assert artifact.kernels == 4 and artifact.different_kernels == 1


def test_kernels_of_other_sizes_share_their_text():
    args = torch.randn(30, 20), torch.randn(20), torch.randn(50, 17), torch.randn(17)
    c = compiled(lambda x, a, y, b: ((x * a + 1).sin(), (y * b + 1).sin()), *args)
    artifact = c.compilation.runner.artifact
    assert artifact.kernels == 2 and artifact.different_kernels == 1


@pytest.mark.parametrize("act", [F.gelu, torch.relu, F.silu, torch.tanh])
def test_our_products_apply_the_activation_themselves(act):
    x, w, b = torch.randn(3, 4, 256), torch.randn(128, 256), torch.randn(128)
    v = torch.randn(256, 128)

    def block(x, w, b, v):
        return F.linear(act(F.linear(x, w, b)), v)

    c = compiled(block, x, w, b, v)
    assert c.kernels == 0 and c.text.count("run_linear(") == 2
    torch.testing.assert_close(c(x, w, b, v)[0], block(x, w, b, v), atol=2e-4, rtol=1e-4)


def test_an_activation_whose_input_is_read_elsewhere_stays_a_kernel():
    x, w = torch.randn(12, 256), torch.randn(128, 256)
    c = compiled(lambda x, w: (F.gelu(F.linear(x, w)) @ w, F.linear(x, w).sum()), x, w)
    y = compiled(lambda x, w: (lambda h: (F.gelu(h) @ w, h.sum()))(F.linear(x, w)), x, w)
    h = F.linear(x, w)
    for got in (c(x, w), y(x, w)):
        torch.testing.assert_close(got[0], F.gelu(h) @ w, atol=2e-3, rtol=1e-4)
        torch.testing.assert_close(got[1], h.sum(), atol=2e-2, rtol=1e-4)
    assert y.kernels == 1


def test_every_refusal_has_a_reason():
    c = compiled(lambda x: x.sum(0) + x.sum(1), torch.randn(20, 20))
    assert c.refused() and all(isinstance(reason, str) and reason for reason in c.refused())


def test_without_fusion_there_is_a_kernel_an_operation():
    options = InductorOptions(fuse=False, inline=False)
    x = torch.randn(33, 7)
    c = compiled(lambda x: x.softmax(-1).sin(), x, options=options)
    assert c.kernels > 3
    torch.testing.assert_close(c(x)[0], x.softmax(-1).sin())


def test_kernels_are_named_and_carry_the_users_line():
    c = compiled(lambda x: x.softmax(-1) * 2, torch.randn(5, 6))
    assert re.search(r"fused_\w*softmax\w*mul\w*_0", c.source)
    assert "test_kernels.py:" in c.source


PROGRAMS = {
    "pointwise": lambda x: (x * 2 + 1).sin(),
    "softmax": lambda x: x.softmax(-1),
    "matmul": lambda x: torch.relu(x @ W) + 1,
    "rows": lambda x: F.gelu(F.layer_norm(x, (64,))).softmax(-1),
    "columns": lambda x: (x.sum(0), x.amax(0)),
    "cat": lambda x: torch.cat([x, x * 2], 0),
}
W = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_kernel_serves_three_batch_sizes(name):
    fn = PROGRAMS[name]
    c = compiled(fn, torch.randn(11, 64), dynamic=True)
    assert c.kernels <= 2
    for batch in (3, 11, 200):
        x = torch.randn(batch, 64)
        expected = fn(x)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for ours, eager in zip(c(x), expected, strict=True):
            assert ours.stride() == eager.stride()
            torch.testing.assert_close(ours, eager, atol=3e-5, rtol=1e-5)


def test_our_product_serves_every_batch_size():
    w, b = torch.randn(128, 256), torch.randn(128)

    def block(x):
        return F.layer_norm(F.gelu(F.linear(x, w, b)), (128,))

    c = compiled(block, torch.randn(12, 256), dynamic=True)
    assert c.text.count("run_linear(") == 1
    for rows in (3, 12, 100):
        x = torch.randn(rows, 256)
        torch.testing.assert_close(c(x)[0], block(x), atol=1e-4, rtol=1e-4)
