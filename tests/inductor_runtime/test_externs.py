"""Our products and convolutions against float64 and against ATen's own error; and what the table
chooses.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from inductor_backend.kernels import (
    collectives,
    linear_algebra,
    native,
    rng,
    small_gemm,
    strided_copy,
)
from inductor_backend.kernels.packed_ops import OPERATORS
from inductor_backend.kernels.selection import FALLBACKS, RULES, Operand, best
from tests.support import torch_server
from tests.support.comparison import assert_as_accurate

aten = torch.ops.aten
ACTIVATIONS = {
    "none": lambda x: x, "relu": torch.relu, "gelu_erf": F.gelu, "silu": F.silu, "tanh": torch.tanh,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "sigmoid": torch.sigmoid,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _same_numbers_in_every_run() -> None:
    torch.manual_seed(0)


def operand(value: Any) -> Any:
    return (
        Operand(tuple(value.shape), value.stride(), value.dtype)
        if isinstance(value, torch.Tensor)
        else value
    )


def check(got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> None:
    # of few values, eager may get all right by luck
    assert_as_accurate(got, eager, exact, floor=1e-6 if exact.numel() < 500 else 2e-7)


@pytest.mark.parametrize("layout", ["nk", "kn"])
@pytest.mark.parametrize("k", [1, 15, 64, 769, 3072])
@pytest.mark.parametrize("n", [1, 3, 16, 65, 770])
def test_addmm_of_any_size(layout: str, n: int, k: int) -> None:
    weight = torch.randn(n, k).t() if layout == "nk" else torch.randn(k, n)
    bias = torch.randn(n)
    for m in (1, 5, 7, 12, 36, 37, 130):
        a = torch.randn(m, k)
        check(small_gemm.addmm(bias, a, weight), torch.addmm(bias, a, weight),
              torch.addmm(bias.double(), a.double(), weight.double()))  # fmt: skip


def test_rows_of_a_wider_tensor_and_no_rows() -> None:
    wide, weight = torch.randn(9, 200), torch.randn(96, 64).t()
    a = wide[:, 10:74]
    check(small_gemm.mm(a, weight), a @ weight, a.double() @ weight.double())
    assert small_gemm.mm(torch.empty(0, 64), weight).shape == (0, 96)


@pytest.mark.parametrize("epilogue", ACTIVATIONS)
@pytest.mark.parametrize("with_residual", [False, True])
def test_epilogues(epilogue: str, with_residual: bool) -> None:
    bias, a, weight = torch.randn(300), torch.randn(12, 128) / 8, torch.randn(300, 128).t()
    residual = torch.randn(12, 300) if with_residual else None

    def eager(dtype: torch.dtype) -> torch.Tensor:
        y = ACTIVATIONS[epilogue](torch.addmm(bias.to(dtype), a.to(dtype), weight.to(dtype)))
        return y if residual is None else y + residual.to(dtype)

    got = small_gemm.addmm(bias, a, weight, epilogue=epilogue, residual=residual)
    check(got, eager(torch.float32), eager(torch.float64))


def test_nan_and_infinity_pass_through() -> None:
    a, weight = torch.randn(12, 64), torch.randn(80, 64)
    a[3, 5], weight[7, 2] = float("nan"), float("inf")
    got, eager = small_gemm.addmm(None, a, weight.t(), epilogue="relu"), torch.relu(a @ weight.t())
    assert torch.equal(got.isnan(), eager.isnan()) and torch.equal(got.isinf(), eager.isinf())


CONVOLUTIONS = [
    ((1, 3, 8, 8), (5, 3, 3, 3), (1, 1), (1, 1), (1, 1)),
    ((2, 16, 7, 5), (40, 16, 3, 3), (2, 1), (1, 0), (1, 1)),
    ((1, 64, 4, 4), (128, 64, 3, 3), (1, 1), (2, 2), (2, 2)),
    ((3, 32, 4, 4), (70, 32, 1, 1), (1, 1), (0, 0), (1, 1)),
    ((3, 32, 4, 4), (70, 32, 1, 1), (2, 2), (0, 0), (1, 1)),
    ((4, 128, 1, 1), (64, 128, 3, 3), (1, 1), (1, 1), (1, 1)),
    ((1, 1, 9, 9), (4, 1, 5, 2), (1, 3), (2, 1), (1, 1)),
]


@pytest.mark.parametrize(("x_last", "w_last"), list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution(case: tuple[Any, ...], x_last: bool, w_last: bool) -> None:
    shape, weight_shape, stride, padding, dilation = case
    forms = {False: torch.contiguous_format, True: torch.channels_last}
    x = torch.randn(shape).contiguous(memory_format=forms[x_last])
    weight = torch.randn(weight_shape).contiguous(memory_format=forms[w_last])
    bias = torch.randn(weight_shape[0])
    rest = (stride, padding, dilation, False, (0, 0), 1)
    eager = aten.convolution.default(x, weight, bias, *rest)
    exact = aten.convolution.default(x.double(), weight.double(), bias.double(), *rest)
    chosen = best(aten.convolution.default, [operand(v) for v in (x, weight, bias, *rest)])
    check(chosen.function(x, weight, bias, *rest), eager, exact)
    last = eager.is_contiguous(memory_format=torch.channels_last) and not eager.is_contiguous()
    got = small_gemm.convolution(x, weight, bias, *rest, channels_last=last)
    assert torch.allclose(got, eager, rtol=1e-4, atol=1e-4)
    residual = torch.randn_like(eager)
    fused = small_gemm.convolution(
        x, weight, bias, *rest, epilogue="relu", residual=residual, channels_last=last
    )
    assert torch.allclose(fused, torch.relu(eager) + residual, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "weight_shape", "stride", "padding", "dilation"),
    [
        *(case for case in CONVOLUTIONS),
        ((1, 20, 17, 33), (600, 20, 3, 3), (1, 1), (1, 1), (1, 1)),
        ((2, 9, 20, 20), (64, 9, 3, 5), (2, 3), (3, 4), (2, 1)),
        ((2, 300, 9, 9), (70, 300, 1, 1), (1, 1), (0, 0), (1, 1)),
    ],
)
@pytest.mark.parametrize("epilogue", ["none", "relu"])
def test_direct_convolution(
    shape: Any, weight_shape: Any, stride: Any, padding: Any, dilation: Any, epilogue: str
) -> None:
    x, weight, bias = torch.randn(shape), torch.randn(weight_shape), torch.randn(weight_shape[0])
    rest = (stride, padding, dilation, False, (0, 0), 1)
    act = ACTIVATIONS[epilogue]
    eager = act(aten.convolution.default(x, weight, bias, *rest))
    residual = torch.randn_like(eager)
    exact = (
        act(aten.convolution.default(x.double(), weight.double(), bias.double(), *rest))
        + residual.double()
    )
    got = small_gemm.convolution(
        x, weight, bias, *rest, epilogue=epilogue, residual=residual, direct=True
    )
    check(got, eager + residual, exact)


@pytest.mark.parametrize(
    ("kind", "reason", "shape", "weight_shape", "last"),
    [
        ("native", "unfolded", (1, 512, 2, 2), (512, 512, 3, 3), False),
        ("native", "direct", (1, 256, 16, 16), (128, 256, 1, 1), False),
        ("native", "direct", (1, 64, 16, 16), (64, 64, 3, 3), False),
        ("aten", "oneDNN", (1, 64, 16, 16), (64, 64, 3, 3), True),
        ("aten", "oneDNN", (1, 128, 16, 16), (32, 128, 3, 3), False),
        ("native", "Winograd", (1, 128, 32, 32), (32, 128, 3, 3), False),
        ("native", "Winograd", (4, 64, 56, 56), (64, 64, 3, 3), False),
    ],
)
def test_table_chooses_convolutions(
    kind: str, reason: str, shape: Any, weight_shape: Any, last: bool
) -> None:
    form = torch.channels_last if last else torch.contiguous_format
    pad = weight_shape[-1] // 2
    args = (torch.randn(shape).contiguous(memory_format=form), torch.randn(weight_shape), None,
            [1, 1], [pad, pad], [1, 1], False, [0, 0], 1)  # fmt: skip
    chosen = best(aten.convolution.default, [operand(a) for a in args])
    assert chosen.kind.text == kind and reason in chosen.reason
    exact = aten.convolution.default(args[0].double(), args[1].double(), *args[2:])
    check(chosen.function(*args), aten.convolution.default(*args), exact)


MATMULS = [
    ("native", torch.float32, 12, 768, 768), ("native", torch.float32, 1024, 256, 256),
    ("native", torch.float32, 1100, 256, 256), ("aten", torch.float32, 2, 8, 8),
    ("native", torch.float32, 130, 48, 200), ("aten", torch.float32, 1100, 256, 10),
    ("aten", torch.float64, 12, 768, 768), ("aten", torch.bfloat16, 120, 768, 768),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "dtype", "m", "k", "n"), MATMULS)
def test_table_chooses(kind: str, dtype: torch.dtype, m: int, k: int, n: int) -> None:
    args = (
        torch.randn(n, dtype=dtype),
        torch.randn(m, k, dtype=dtype),
        torch.randn(n, k, dtype=dtype).t(),
    )
    chosen = best(aten.addmm.default, [operand(a) for a in args])
    assert chosen.kind.text == kind, chosen.reason
    exact = torch.addmm(*(a.double() for a in args))
    check(chosen.function(*args), torch.addmm(*args), exact)


SIDES = (
    (64, 16, 200),
    (70, 333, 129),
    (394, 768, 60),
    (1030, 320, 64),
    (2100, 700, 70),
    (513, 4100, 130),
    (6, 9000, 65),
)


@pytest.mark.parametrize(("m", "k", "n"), SIDES)
@pytest.mark.parametrize("a_turned", (False, True))
@pytest.mark.parametrize("b_turned", (False, True))
def test_products_of_many_rows(m: int, k: int, n: int, a_turned: bool, b_turned: bool) -> None:
    """Operands either way round, with gaps between their rows; sizes that leave rests of rows,
    columns and depth.
    """
    a = torch.randn(k, m + 3)[:, :m].t() if a_turned else torch.randn(m, k + 3)[:, :k]
    b = torch.randn(n, k + 5)[:, :k].t() if b_turned else torch.randn(k, n + 5)[:, :n]
    bias, residual = torch.randn(n), torch.randn(m, n + 1)[:, :n]
    exact = a.double() @ b.double()
    check(small_gemm.blocked_mm(a, b), a @ b, exact)
    check(small_gemm.blocked_addmm(bias, a, b), torch.addmm(bias, a, b), exact + bias.double())
    got = small_gemm.blocked_addmm(bias, a, b, epilogue="relu", residual=residual)
    eager = torch.relu(torch.addmm(bias, a, b)) + residual
    check(got, eager, torch.relu(exact + bias.double()) + residual.double())


def test_one_row_against_weights_of_either_layout() -> None:
    row, weight = torch.randn(1, 768), torch.randn(768, 768)
    assert best(aten.mm.default, [operand(row), operand(weight.t())]).kind.text == "native"
    assert best(aten.mm.default, [operand(row), operand(weight)]).kind.text == "aten"


def test_what_the_alternatives_do_not_take_stays_with_aten() -> None:
    a, b = torch.randn(12, 768), torch.randn(768, 768)
    kinds = [
        best(aten.mm.default, [operand(a.t().contiguous().t()), operand(b)]),  # rows not dense
        # weight not dense
        best(aten.mm.default, [operand(a), operand(torch.randn(768, 1536)[:, ::2])]),
        # a matrix added
        best(aten.addmm.default, [operand(torch.randn(12, 768)), operand(a), operand(b)]),
        best(aten.addmm.default, [operand(b[0]), operand(a), operand(b), 2, 1]),  # scaled
        best(aten.convolution.default, [operand(torch.randn(1, 512, 2, 2)),
        operand(torch.randn(512, 8, 3, 3)), None,
                                        [1, 1], [1, 1], [1, 1], False, [0, 0], 64]),  # grouped
        best(aten.bmm.default, []),
    ]  # fmt: skip
    assert [choice.kind.text for choice in kinds] == ["aten"] * len(kinds), [
        choice.reason for choice in kinds
    ]


def test_symbolic_sizes_ask_for_hints() -> None:
    class Symbol:
        pass

    rows = Symbol()
    chosen = best(
        aten.mm.default,
        [Operand((rows, 768), (768, 1), torch.float32), operand(torch.randn(768, 768).t())],
        hint=lambda size: 12 if size is rows else int(size),
    )
    assert chosen.kind.text == "native"


def test_fallbacks_write_to_nothing_and_are_not_also_chosen() -> None:
    assert len(FALLBACKS) > 250
    assert not [op for op in FALLBACKS if op._schema.is_mutable]
    # without a faster kernel, ATen's; what our own rewrites put into a graph is always ours
    assert {op for op in RULES if isinstance(op, torch._ops.OpOverload)} <= FALLBACKS.keys()
    assert {op for op in RULES if not isinstance(op, torch._ops.OpOverload)} == {
        *OPERATORS,
        rng.bernoulli,
        collectives.wait,
        linear_algebra.checked,
        strided_copy.copy,
    }


def test_stored_kernels_are_used_without_a_compiler(tmp_path: Any) -> None:
    (tmp_path / "kernels").write_bytes(native.library("linear").read_binary())
    program = (
        "import sys, torch\nfrom inductor_backend.kernels import native, small_gemm\n"
        "native.restore({'linear': open(sys.argv[1], 'rb').read()})\n"
        "print(small_gemm.mm(torch.ones(2, 64), torch.ones(64, 32)).sum().item())\n"
    )
    done = torch_server.run(
        ["-c", program, str(tmp_path / "kernels")],
        timeout=60,
        env={**os.environ, "PATH": str(tmp_path), "TRACER_CACHE_DIR": str(tmp_path / "cache")},
    )
    assert done.stdout.strip() == str(2.0 * 32 * 64), done.stderr
