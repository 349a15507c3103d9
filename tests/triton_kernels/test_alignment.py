"""Products whose rows begin anywhere: padded on GPUs, or in classes of rows; run by Triton's
interpreter.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from inductor_backend.ir import target
from inductor_backend.ir.target import interpreted
from inductor_backend.kernels import unaligned_gemm
from inductor_backend.lowering import matmul
from inductor_backend.passes import pad_matmul
from inductor_backend.pipeline import start
from inductor_backend.runtime.cuda.interpreter import interpreting
from inductor_backend.stages import run_stages
from tests.inductor.compiling import clones, compiled, flat, tolerance
from tests.inductor.test_operators import R

pytestmark = pytest.mark.skipif(
    not interpreting(), reason="Triton compiles for a GPU in this process"
)


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch):
    monkeypatch.setattr(pad_matmul, "WORK_OF_A_BYTE", 0)
    monkeypatch.setattr(target, "tf32_allowed", lambda convolution: True)


def run(fn, *inputs, dynamic=False):
    """The sizes of the operands of each product that is run."""
    before = clones(inputs)
    expected = flat(fn(*before))
    with interpreted():
        built = compiled(fn, *inputs, dynamic=dynamic, until="lower")
        gm = pad_matmul.with_padded_matmuls(built.lowered.graph)
        built.compilation = run_stages(start(gm, built.lowered.spec), first="lower")
    for _ in range(2):
        for ours, eager in zip(built(*clones(inputs)), expected, strict=True):
            assert (ours.dtype, ours.shape, ours.stride()) == (
                eager.dtype,
                eager.shape,
                eager.stride(),
            )
            torch.testing.assert_close(ours, eager, **tolerance(eager.dtype), equal_nan=True)
    run.built = built
    products = [
        node for node in built.compilation.program.nodes if "mm" in str(getattr(node, "target", ""))
    ]
    return [tuple(arg.layout.sizes for arg in node.args[-2:]) for node in products]


CASES = {
    "head": (lambda x, w: F.linear(x, w), (R(6, 16), R(13, 16)), [((6, 16), (16, 16))]),
    "head with bias": (
        lambda x, w, b: F.linear(x, w, b).relu(),
        (R(6, 16), R(13, 16), R(13)),
        [((6, 16), (16, 16))],
    ),
    "its gradient": (lambda g, w: g @ w, (R(6, 13), R(13, 16)), [((6, 16), (16, 16))]),
    "its weight's gradient": (lambda g, x: g.t() @ x, (R(6, 13), R(6, 16)), [((16, 6), (6, 16))]),
    "all": (lambda a, b: a @ b, (R(5, 7), R(7, 9)), [((5, 8), (8, 12))]),
    "turned": (lambda a, b: a.t() @ b.t(), (R(7, 5), R(9, 7)), [((8, 8), (8, 12))]),
    "half": (
        lambda x, w: F.linear(x, w),
        (R(6, 16).bfloat16(), R(12, 16).bfloat16()),
        [((6, 16), (16, 16))],
    ),
    "aligned": (lambda x, w: F.linear(x, w), (R(6, 16), R(12, 16)), [((6, 16), (16, 12))]),
}


@pytest.mark.parametrize("name", CASES)
def test_padded_products_give_what_eager_gives(name):
    fn, inputs, sizes = CASES[name]
    assert run(fn, *inputs) == sizes


def test_only_where_it_pays(monkeypatch):
    monkeypatch.setattr(pad_matmul, "WORK_OF_A_BYTE", 200)
    assert run(*CASES["head"][:1], *CASES["head"][1]) == [((6, 16), (16, 13))]
    monkeypatch.setattr(pad_matmul, "WORK_OF_A_BYTE", 0)
    monkeypatch.setattr(target, "tf32_allowed", lambda convolution: False)
    assert run(*CASES["head"][:1], *CASES["head"][1]) == [((6, 16), (16, 13))]


def test_nan_in_the_last_row_stays_where_it_is():
    x, w = R(6, 13), R(13, 16)
    x[2, 12] = float("nan")
    w[12, 3] = float("inf")
    run(lambda a, b: a @ b, x, w)


@pytest.fixture
def classes(monkeypatch):
    """Products in classes of rows, however small."""
    monkeypatch.setattr(pad_matmul, "MIN_ROWS", 1)
    monkeypatch.setattr(pad_matmul, "MIN_WORK", 0)


def in_classes():
    return sum(
        getattr(node, "target", None) is unaligned_gemm.mm
        for node in run.built.compilation.program.nodes
    )


def head(x, w):
    logits = F.linear(x, w)
    return logits, logits.softmax(-1)


RETURNED = {
    "whole": (lambda x, w: F.linear(x, w), (R(9, 16), R(13, 16))),
    "of batches": (lambda x, w: F.linear(x, w), (R(2, 5, 16), R(50, 16))),
    "turned round": (lambda x, w: F.linear(x, w).t(), (R(6, 16), R(11, 16))),
    "and read": (head, (R(9, 16), R(17, 16))),
    "in two classes": (lambda x, w: F.linear(x, w), (R(9, 16), R(14, 16))),
    "half": (lambda x, w: F.linear(x, w), (R(17, 16).bfloat16(), R(33, 16).bfloat16())),
}


@pytest.mark.parametrize("name", RETURNED)
def test_results_that_are_returned_are_written_in_classes_of_rows(name, classes):
    fn, inputs = RETURNED[name]
    run(fn, *inputs)
    assert in_classes() == 1


def test_classes_of_a_symbolic_number_of_rows(classes):
    layer = torch.nn.Linear(16, 13, bias=False).requires_grad_(False)
    run(lambda x: layer(x), R(9, 16), dynamic=True)
    assert in_classes() == 1
    for rows in (4, 5, 23):
        x = R(rows, 16)
        (ours,) = run.built(x)
        assert ours.stride() == layer(x).stride()
        torch.testing.assert_close(ours, layer(x), atol=5e-5, rtol=1e-5)


NOT_RETURNED = {
    "read by kernels": (lambda x, w: F.linear(x, w).relu(), (R(9, 16), R(13, 16))),
    "a part": (lambda x, w: F.linear(x, w)[:, :7], (R(9, 16), R(13, 16))),
    "bias": (lambda x, w, b: F.linear(x, w, b), (R(9, 16), R(13, 16), R(13))),
    "crooked rows": (lambda x, w: x @ w, (R(9, 16), R(16, 13))),
    "crooked terms": (lambda x, w: F.linear(x, w), (R(9, 15), R(13, 15))),
    "aligned": (lambda x, w: F.linear(x, w), (R(9, 16), R(12, 16))),
    "narrow": (lambda x, w: F.linear(x, w), (R(9, 16), R(7, 16))),
}


@pytest.mark.parametrize("name", NOT_RETURNED)
def test_other_products_are_not(name, classes):
    fn, inputs = NOT_RETURNED[name]
    run(fn, *inputs)
    assert in_classes() == 0


def attention(q, k, v):
    """Written out, of images with a class token: rows of 37 scores."""
    scores = (q @ k.transpose(-1, -2)) * 0.25
    return scores.softmax(-1) @ v


def layouts(built):
    """The strides of each product's operands and result."""
    program = built.compilation.program
    return [
        (*(arg.layout.strides for arg in node.args[-2:]), program.buffers[node.writes[0]].layout.strides)
        for node in program.nodes
        if "mm" in str(node.origin.op)
    ]  # fmt: skip


@pytest.fixture
def any_size(monkeypatch):
    """Operands of any size are aligned, and none is padded before."""
    monkeypatch.setattr(matmul, "MIN_COPIED_OPERAND", 64)
    monkeypatch.setattr(pad_matmul, "WORK_OF_A_BYTE", 1e9)


def test_scores_and_weights_of_attention_lie_in_aligned_rows(any_size):
    half = [R(6, 37, 16).half() for _ in range(3)]
    run(attention, *half)
    (_, _, scores), (weights, _, result) = layouts(run.built)
    assert scores == weights == (37 * 40, 40, 1)
    assert result == (37 * 16, 16, 1)
    assert sum(group.extern is None for group in run.built.compilation.plan.groups) == 1


def test_a_matmul_that_the_graph_returns_has_eagers_strides(any_size):
    q, k = R(6, 37, 16).half(), R(6, 37, 16).half()
    run(lambda q, k: (scores := q @ k.transpose(-1, -2), scores.relu()), q, k)
    ((_, _, scores),) = layouts(run.built)
    assert scores == (37 * 37, 37, 1)


def test_a_concatenation_is_written_with_aligned_rows(any_size):
    """557 features of a recommender: each of its products would copy them."""
    a, b, w = R(32, 20), R(32, 17), R(24, 37)
    run(lambda a, b, w: torch.cat([a.relu(), b], 1) @ w.t(), a, b, w)
    operand = layouts(run.built)[0][0]
    assert operand[0] % 4 == 0


def test_float32_without_tf32_stays_as_it_is(any_size, monkeypatch):
    monkeypatch.setattr(target, "tf32_allowed", lambda convolution: False)
    run(attention, *(R(6, 37, 16) for _ in range(3)))
    (_, _, scores), (weights, _, _) = layouts(run.built)
    assert scores == weights == (37 * 37, 37, 1)


def test_the_columns_of_a_gradient_lie_in_aligned_rows(any_size):
    """What a loop computes is the transposed operand of a weight's gradient."""
    g, x = R(32, 37).half(), R(32, 16).half()
    run(lambda g, x: (g * 2).t() @ x, g, x)
    ((operand, _, _),) = layouts(run.built)
    assert operand == (1, 40)


def test_a_weight_is_copied_where_its_matmul_is_large_beside_the_copy(any_size, monkeypatch):
    monkeypatch.setattr(matmul, "WORK_OF_A_BYTE", 8)
    x, weight = R(32, 37).half(), R(16, 37).half()

    def program(x, weight):
        return x.relu() @ weight.t()

    run(program, x, weight)
    ((_, operand, _),) = layouts(run.built)
    assert operand == (1, 40)
    run(program, x[:4], weight)
    ((_, operand, _),) = layouts(run.built)
    assert operand == (1, 37)
