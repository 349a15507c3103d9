"""Products whose factors come in by bulk copies (TMA), and programs that walk over blocks. Run by
Triton's interpreter.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from inductor_backend.autotune import matmul
from inductor_backend.autotune.matmul_configs import Device, Work, candidates
from inductor_backend.codegen.triton.matmul import Blocks
from inductor_backend.runtime.cuda.interpreter import interpreting
from tests.inductor.test_operators import R
from tests.triton_kernels.test_matmul import checked, half, residual

pytestmark = pytest.mark.skipif(
    not interpreting(), reason="Triton compiles for a GPU in this process"
)

SMALL = (32, 32, 32, 4, 2)
WAYS = {
    "bulk": Blocks(*SMALL, bulk=True),
    "walking": Blocks(*SMALL, bulk=True, programs=3),
    "walking, plain loads": Blocks(*SMALL, programs=3),
}


@pytest.fixture(autouse=True)
def ours(monkeypatch):
    use(monkeypatch, WAYS["walking"])
    monkeypatch.setattr(matmul, "tf32_allowed", lambda convolution: True)


def use(monkeypatch, blocks):
    monkeypatch.setattr(matmul, "choose", lambda c, choice: next(iter(choice.kernels)))
    monkeypatch.setattr(matmul, "candidates", lambda work, device: [blocks])


def copies(result):
    return result.source.count(".load([")


def overwritten(x, w):
    x.copy_((x @ w).relu())
    w.copy_(w + 1)
    return x * 2


#: name -> (function, inputs, factors that bulk copies bring in)
CASES = {
    "rows, columns and terms beyond the blocks": (lambda a, b: a @ b, (R(40, 36), R(36, 52)), 2),
    "weights as linear has them": (residual, (R(2, 20, 40), R(48, 40), R(48), R(2, 20, 48)), 2),
    "transposed": (lambda a, b: (a.t() @ b.t()).relu(), (R(36, 40), R(52, 36)), 2),
    "float16": (
        lambda x, w, b: F.relu(F.linear(x, w, b)),
        (half(40, 72), half(48, 72), half(48)),
        2,
    ),
    "computed factor": (lambda x, w: F.linear(x.relu() * 0.5, w), (R(3, 20, 40), R(48, 40)), 1),
    "batches": (lambda a, b: torch.bmm(a, b) * 2, (R(3, 20, 64), R(3, 64, 24)), 2),
    "batches whose terms end within a block": (
        lambda a, b: torch.bmm(a, b),
        (R(3, 20, 36), R(3, 36, 24)),
        1,
    ),
    "heads of a projection": (
        lambda q, k: (
            q.view(2, 20, 3, 16).transpose(1, 2) @ k.view(2, 20, 3, 16).permute(0, 2, 3, 1)
        ),
        (R(2, 20, 48), R(2, 20, 48)),
        None,  # the operator sees copies
    ),
    "a slice at a multiple of 16 bytes": (lambda a, b: a[:, 4:36] @ b, (R(40, 48), R(32, 48)), 2),
    "a slice elsewhere": (lambda a, b: a[:, 3:35] @ b, (R(40, 48), R(32, 48)), 1),
    "rows that do not begin at multiples of 16 bytes": (
        lambda a, b: a @ b,
        (R(40, 33), R(33, 50)),
        0,
    ),
    "points of images": (
        lambda x, w, y: F.conv2d(x, w) + y,
        (
            R(2, 16, 6, 6).contiguous(memory_format=torch.channels_last),
            R(24, 16, 1, 1),
            R(2, 24, 6, 6),
        ),
        2,
    ),
    "a factor that is overwritten": (overwritten, (R(80, 80) / 8, R(80, 80) / 8), 2),
    "padded images": (
        lambda x, w: F.conv2d(x, w, padding=1),
        (R(1, 16, 8, 8), R(16, 16, 3, 3)),
        None,
    ),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", CASES)
def test_products_give_what_eager_gives(name):
    fn, inputs, copied = CASES[name]
    result = checked(fn, *inputs)
    assert "tl.dot(" in result.source and "tl.num_programs(0)" in result.source
    if copied is not None:
        assert copies(result) == copied


@pytest.mark.parametrize("way", WAYS)
def test_each_way(way, monkeypatch):
    use(monkeypatch, WAYS[way])
    result = checked(residual, R(2, 40, 40), R(72, 40), R(72), R(2, 40, 72))
    assert copies(result) == (2 if WAYS[way].bulk else 0)
    assert ("tl.num_programs(0)" in result.source) == bool(WAYS[way].programs)


def test_memory_that_begins_elsewhere():
    """The same kernel, compiled for memory at multiples of 16 bytes, meets other memory."""
    result = checked(lambda a, b: a @ b, R(40, 32), R(32, 48))
    assert copies(result) == 2
    r = R(40 * 32 + 1)
    a, b = r[1:].view(40, 32), R(32, 48)
    torch.testing.assert_close(result(a, b)[0], a @ b, atol=5e-5, rtol=1e-5)


def test_a_number_that_is_not_there_does_not_spread():
    full = torch.full((40, 64), float("nan"))
    full[:20, :36] = R(20, 36)
    weights = torch.full((40, 48), float("nan"))
    weights[:36, :20] = R(36, 20)
    for fn in (lambda a, b: a @ b, lambda a, b: (b.t() @ a.t()).t() * 1):
        result = checked(fn, full[:20, :36], weights[:36, :20])
        assert copies(result) == 2
        assert not result(full[:20, :36], weights[:36, :20])[0].isnan().any()


def test_symbolic_sizes():
    def program(x, w, b):
        return F.gelu(F.linear(x, w, b)) * 2

    result = checked(program, R(2, 20, 40), R(48, 40), R(48), dynamic=True)
    assert "tl.dot(" in result.source
    for rows in (1, 7, 33, 90):
        x, w, b = R(2, rows, 24), R(30, 24), R(30)
        torch.testing.assert_close(result(x, w, b)[0], program(x, w, b), atol=5e-5, rtol=1e-5)


def test_rows_that_change_over_fixed_widths(monkeypatch):
    """Strides are known, the number of rows is not: the matrix gets it at each call."""
    import tracer_core
    from inductor_backend.ir.target import interpreted
    from inductor_backend.runtime.cuda import launch

    sizes, descriptor = [], launch._descriptor

    def noted(memory, start, size, stride, form):
        sizes.append(size)
        return descriptor(memory, start, size, stride, form)

    monkeypatch.setattr(launch, "_descriptor", noted)
    w = R(48, 40)

    def program(x):
        return F.linear(x, w).relu()

    with interpreted():
        fast = tracer_core.compile(program, mode="max-autotune")
        for rows in (33, 64, 17, 100):
            x = R(rows, 40)
            torch.testing.assert_close(fast(x), program(x), atol=5e-5, rtol=1e-5)
    assert [size for size in sizes if size[0] != 48] == [(rows, 40) for rows in (33, 64, 17, 100)]


def test_what_is_tried():
    hopper, ampere, work = Device(90, 132), Device(80, 108), Work(2048, 5632, 2048, 1, 2, 2)
    actual = candidates(work, hopper)
    assert (
        any(b.bulk for b in actual)
        and any(b.bulk and b.programs for b in actual)
        and not actual[0].bulk
    )
    assert len(actual) == len(set(actual)) <= 13
    assert not any(b.bulk for b in candidates(work, ampere))
    assert any(b.programs for b in candidates(work, ampere))
    assert not any(b.bulk for b in candidates(Work(2048, 5632, 2048, 1, 2, 0), hopper))
    small = candidates(Work(16, 64, 768, 1, 4, 2), hopper)
    assert small and not any(b.programs for b in small)  # as many programs as blocks
    assert all(b.rows <= 32 for b in small if not b.bulk)


@pytest.mark.parametrize(
    "fn",
    [
        lambda a, b: a.expand(40, 32) @ b,
        lambda a, b: torch.ones(40, 32, device=a.device) @ b + a.sum(),
        lambda a, b: (
            torch.ones(40, 32, device=a.device) @ torch.full((32, 48), 2.0, device=a.device)
            + a.sum()
        ),
        lambda a, b: (b.t() @ a.t().expand(32, 40)).relu(),
    ],
)
def test_factors_that_are_the_same_in_all_rows(fn):
    assert len(checked(fn, R(1, 32), R(32, 48)).compilation.runner.artifact.externs) == 1


def test_logits_of_any_width(monkeypatch):
    """Where the operator would write classes of rows (`kernels.unaligned_gemm`), a kernel of ours
    may write all.
    """
    from inductor_backend import pipeline
    from inductor_backend.kernels import unaligned_gemm
    from inductor_backend.passes import pad_matmul
    from tests.triton_kernels import test_matmul

    def start(gm, spec):
        return pipeline.start(pad_matmul.with_padded_matmuls(gm), spec)

    monkeypatch.setattr(test_matmul, "start", start)
    monkeypatch.setattr(pad_matmul, "MIN_WORK", 0)
    monkeypatch.setattr(pad_matmul, "MIN_ROWS", 1)
    monkeypatch.setattr(pad_matmul, "in_tensor_cores", lambda dtype, convolution: True)
    result = checked(lambda x, w: F.linear(x, w), R(40, 32), R(67, 32))
    assert any(node.target is unaligned_gemm.mm for node in result.compilation.gm.graph.nodes)
    assert copies(result) == 2 and not result.compilation.runner.artifact.externs


def tuned(monkeypatch, spoil):
    """What could be chosen for a product, its kernels run on the CPU. spoil: changes a kernel with
    bulk copies.
    """
    from inductor_backend.autotune import choices
    from inductor_backend.runtime.cuda import measurement
    from inductor_backend.runtime.cuda.build import load_kernels

    left = []

    def loaded(kernels, device):
        return dict(
            zip(
                kernels,
                load_kernels([kernel for kernel, _ in kernels.values()], device),
                strict=True,
            )
        )

    def choose(c, choice):
        kernels = {
            name: (lambda kernel=spoil(choice.kernels[name]): kernel) for name in choice.kernels
        }
        left.extend(choices.runs_of(c, replace(choice, kernels=choices.Kernels(kernels))))
        return next(iter(choice.kernels))

    monkeypatch.setattr(measurement, "loaded", loaded)
    monkeypatch.setattr(matmul, "candidates", lambda work, device: [Blocks(*SMALL), *WAYS.values()])
    monkeypatch.setattr(matmul, "choose", choose)
    checked(overwritten, R(80, 80) / 8, R(80, 80) / 8)
    return [name.partition(", ")[2] for name in left]


def test_kernels_that_are_right_are_measured(monkeypatch):
    ways = [str(blocks).partition(", ")[2] for blocks in WAYS.values()]
    assert tuned(monkeypatch, lambda kernel: kernel) == ["", "", *ways]


def test_kernels_that_are_wrong_are_left_out(monkeypatch, caplog):
    def spoil(kernel):
        return replace(
            kernel, matrices=tuple(replace(matrix, start=16) for matrix in kernel.matrices)
        )

    assert tuned(monkeypatch, spoil) == ["", "", "3 programs"]
    assert caplog.text.count("is left out") == 2
