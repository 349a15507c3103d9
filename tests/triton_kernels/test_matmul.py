"""Products and convolutions as kernels of ours (max-autotune), run by Triton's interpreter;
measurement is replaced.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

import tracer_core
from inductor_backend.autotune import choices, matmul, tiles
from inductor_backend.autotune.matmul_configs import Device, Work
from inductor_backend.autotune.matmul_configs import candidates as real_candidates
from inductor_backend.codegen.triton.matmul import Blocks
from inductor_backend.ir.target import interpreted
from inductor_backend.pipeline import start
from inductor_backend.runtime.cuda import measurement, tf32
from inductor_backend.runtime.cuda.build import load_kernels
from inductor_backend.runtime.cuda.interpreter import interpreting
from inductor_backend.runtime.module_runner import ModuleRunner
from inductor_backend.stages import run_stages
from tests.inductor.compiling import clones, flat, tolerance
from tests.inductor.compiling import compiled as compiled_plainly
from tests.inductor.test_operators import R

pytestmark = pytest.mark.skipif(
    not interpreting(), reason="Triton compiles for a GPU in this process"
)

aten = torch.ops.aten
SMALL = (32, 32, 32, 4, 2)


@pytest.fixture(autouse=True)
def ours(monkeypatch):
    """Our kernel wins with small blocks, and TF32 is allowed (the interpreter multiplies in
    float32).
    """
    monkeypatch.setattr(matmul, "choose", lambda c, choice: next(iter(choice.kernels)))
    monkeypatch.setattr(matmul, "candidates", lambda work, device: [Blocks(*SMALL)])
    monkeypatch.setattr(matmul, "tf32_allowed", lambda convolution: True)


def checked(fn, *inputs, dynamic=False):
    before = clones(inputs)
    expected = [x.clone() for x in flat(fn(*before))]
    with interpreted():
        result = compiled_plainly(fn, *inputs, dynamic=dynamic, until="lower")
        spec = dataclasses.replace(result.lowered.spec, mode="max-autotune")
        result.compilation = run_stages(start(result.lowered.graph, spec), first="lower")
    args = clones(inputs)
    for ours, eager in zip(result(*args), expected, strict=True):
        assert (ours.dtype, ours.shape, ours.stride()) == (eager.dtype, eager.shape, eager.stride())
        torch.testing.assert_close(ours, eager, **tolerance(eager.dtype))
    for ours, eager in zip(args, before, strict=True):
        torch.testing.assert_close(ours, eager)
    return result


def half(*sizes):
    return R(*sizes).half()


def residual(x, w, b, y):
    return F.gelu(F.linear(x, w, b)) + y


def twice(x, w):
    y = x @ w
    return y.relu(), y.sum(1)


def overwritten(x, w, y):
    y.copy_(x @ w + y)
    return y * 2


def channels_last(*sizes):
    return R(*sizes).contiguous(memory_format=torch.channels_last)


def _parts_of_what_is_computed(x, w):
    y = x.softmax(1)
    return y, y[:, ::2] @ w, y[:, 32:] @ w


def _squeezed(x, down, up):
    return x * F.conv2d(F.conv2d(x.mean((2, 3), keepdim=True), down).relu(), up).sigmoid()


#: name -> (function, inputs, launches: kernels, operator calls)
CASES = {
    "product": (lambda a, b: a @ b, (R(40, 33), R(33, 50)), (1, 0)),
    "exact blocks": (lambda a, b: a @ b, (R(64, 32), R(32, 64)), (1, 0)),
    "weights as linear has them": (lambda x, w: F.linear(x, w), (R(40, 33), R(50, 33)), (1, 0)),
    "bias, activation, residual": (
        residual,
        (R(2, 20, 40), R(48, 40), R(48), R(2, 20, 48)),
        (1, 0),
    ),
    "computed factor": (
        lambda x, w: F.linear(x.relu() * 0.5, w),
        (R(3, 20, 40), R(48, 40)),
        (1, 0),
    ),
    "both factors computed": (lambda x, w: x.neg() @ w.abs(), (R(40, 40), R(40, 40)), (1, 0)),
    "batches": (lambda a, b: torch.bmm(a, b) * 2, (R(3, 20, 33), R(3, 33, 24)), (1, 0)),
    "transposed batches": (
        lambda a, b: (a.transpose(1, 2) @ b.transpose(1, 2)).relu(),
        (R(3, 33, 20), R(3, 24, 33)),
        (1, 0),
    ),
    "float16": (
        lambda x, w, b: F.relu(F.linear(x, w, b)),
        (half(40, 64), half(48, 64), half(48)),
        (1, 0),
    ),
    "widened afterwards": (
        lambda x, w: F.linear(x, w).float().tanh().half(),
        (half(40, 64), half(48, 64)),
        (1, 0),
    ),
    "narrowed before": (lambda x, w: x.half() @ w, (R(40, 64), half(64, 48)), (1, 0)),
    "read by others too": (twice, (R(40, 32), R(32, 50)), (2, 0)),
    "normalised afterwards": (
        lambda x, w: F.layer_norm(F.linear(x, w), (48,)),
        (R(40, 32), R(48, 32)),
        (2, 0),
    ),
    "a slice": (lambda a, b: a[:, 3:36] @ b[::2], (R(40, 50), R(66, 50)), None),
    "an input that is overwritten": (overwritten, (R(32, 32), R(32, 32), R(32, 32)), None),
    "one after another": (
        lambda x, a, b: (x @ a).relu() @ b,
        (R(40, 32), R(32, 48), R(48, 32)),
        (2, 0),
    ),
    "two with shared rows": (
        lambda x, a, b: (x @ a) * (x @ b),
        (R(40, 32), R(32, 48), R(32, 48)),
        (2, 0),
    ),
    "convolution": (
        lambda x, w, b: F.conv2d(x, w, b, padding=1).relu(),
        (R(2, 16, 9, 8), R(24, 16, 3, 3), R(24)),
        (2, 0),  # one makes its images channels-last
    ),
    "channels last, strides": (
        lambda x, w: F.conv2d(x, w, stride=2, padding=1) + 1,
        (channels_last(2, 16, 9, 9), channels_last(24, 16, 3, 3)),
        (1, 0),
    ),
    "a part of what is computed": (_parts_of_what_is_computed, (R(40, 64), R(32, 48)), None),
    "pixels of computed images": (
        _squeezed,
        (R(2, 20, 5, 5), R(24, 20, 1, 1), R(20, 24, 1, 1)),
        None,
    ),
    "convolution of points": (
        lambda x, w, y: F.conv2d(x, w) + y,
        (R(2, 16, 5, 5), R(24, 16, 1, 1), R(2, 24, 5, 5)),
        (1, 0),
    ),
    "dilated": (lambda x, w: F.conv2d(x, w, dilation=2), (R(1, 16, 9, 9), R(16, 16, 3, 3)), (1, 0)),
    "normalised images": (
        lambda x, w, m, v: F.batch_norm(F.conv2d(x, w, padding=1), m, v).relu(),
        (R(2, 16, 6, 6), R(16, 16, 3, 3), R(16), R(16).abs()),
        (2, 0),
    ),
}


@pytest.mark.sweep(keep=12)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", CASES)
def test_products_give_what_eager_gives(name):
    fn, inputs, launches = CASES[name]
    result = checked(fn, *inputs)
    artifact = result.compilation.runner.artifact
    if launches is not None:
        assert (artifact.kernels, len(artifact.externs)) == launches
    assert "tl.dot(" in result.source


def test_a_number_that_is_not_there_does_not_spread():
    """What lies beyond the last term, row or column is not read as a factor."""
    x, w = R(20, 33), R(33, 18)
    full = torch.full((40, 40), float("nan"))
    full[:20, :33] = x
    created = checked(lambda a, b: a.relu() @ b, full[:20, :33], w)
    (result,) = created(full[:20, :33], w)
    assert not result.isnan().any()


def test_symbolic_sizes():
    def program(x, w):
        return F.gelu(F.linear(x, w)) * 2

    result = checked(program, R(2, 20, 40), R(48, 40), dynamic=True)
    assert "tl.dot(" in result.source
    for rows in (1, 7, 33):
        x, w = R(2, rows, 24), R(30, 24)
        torch.testing.assert_close(result(x, w)[0], program(x, w), atol=5e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("fn", "inputs"),
    [
        (lambda a, b: a @ b, (R(1, 33), R(33, 50))),
        (lambda a, b: a @ b, (R(40, 33).double(), R(33, 50).double())),
        (lambda x, w: F.conv2d(x, w, groups=2), (R(1, 32, 5, 5), R(32, 16, 3, 3))),
        (lambda x, w: F.conv2d(x, w), (R(1, 3, 9, 9), R(16, 3, 3, 3))),
        (lambda b, x, w: torch.addmm(b, x, w, beta=0.5), (R(50), R(40, 33), R(33, 50))),
    ],
)
def test_what_stays_an_operator(fn, inputs):
    assert len(checked(fn, *inputs).compilation.runner.artifact.externs) == 1


def test_float32_is_left_alone_where_tf32_is_not_allowed(monkeypatch):
    monkeypatch.setattr(matmul, "tf32_allowed", lambda convolution: False)
    result = checked(lambda a, b: a @ b, R(40, 32), R(32, 40))
    assert "tl.dot(" not in result.source
    assert "tl.dot(" in checked(lambda a, b: a @ b, half(40, 32), half(32, 40)).source


def test_products_of_float32_follow_the_setting(monkeypatch):
    allowed = True
    monkeypatch.setattr(matmul, "tf32_allowed", lambda convolution: allowed)
    result = []

    def again():
        result.append(allowed)
        return ModuleRunner(lambda inputs: ["again", *inputs])

    runner = matmul.by_settings(ModuleRunner(lambda inputs: ["first", *inputs]), again)
    assert runner([1]) == ["first", 1]
    allowed = False
    assert runner([2]) == ["again", 2] and runner([3]) == ["again", 3]
    allowed = True
    assert runner([4]) == ["first", 4]
    assert result == [False]


@pytest.mark.parametrize(
    "name", ["bias, activation, residual", "a slice", "batches", "convolution", "rows"]
)
def test_what_is_measured_can_run(name, monkeypatch):
    """Every way that would be measured runs on memory of its own: the operator, the kernel beside
    it, our kernels.
    """
    seen = []

    def loaded(kernels, device):
        return dict(
            zip(
                kernels,
                load_kernels([kernel for kernel, _ in kernels.values()], device),
                strict=True,
            )
        )

    def choose(c, choice):
        ways = choices.runs_of(c, choice)
        assert list(ways) == ([choices.ATEN] if choice.instead else []) + list(choice.kernels)
        for run in ways.values():
            run()
        seen.append(len(ways))
        return next(iter(choice.kernels))

    monkeypatch.setattr(measurement, "loaded", loaded)
    monkeypatch.setattr(matmul, "choose", choose)
    monkeypatch.setattr(tiles, "choose", choose)
    monkeypatch.setattr(tiles, "MIN_SEARCHED_BYTES", 0)
    fn, inputs, _ = CASES.get(name, (lambda x: (x.sin() + 1).softmax(1), (R(8, 100),), None))
    result = checked(fn, *inputs)
    assert seen and ("tl.dot(" in result.source or name == "rows")


def test_an_operator_that_is_quicker_stays(monkeypatch):
    monkeypatch.setattr(matmul, "choose", lambda c, choice: choices.ATEN)
    result = checked(residual, R(2, 20, 40), R(48, 40), R(48), R(2, 20, 48))
    assert len(result.compilation.runner.artifact.externs) == 1 and "tl.dot(" not in result.source


def test_the_modes_on_the_cpu_are_the_default_one():
    x, w = R(40, 32), R(32, 40)
    for mode in ("max-autotune", "max-autotune-no-cudagraphs"):
        fast = tracer_core.compile(lambda x, w: (x @ w).relu(), mode=mode)
        torch.testing.assert_close(fast(x, w), (x @ w).relu())


def test_images_that_stay_in_planes(monkeypatch):
    """What squeezes them has one pixel: its strides of dimensions of size 1 say nothing."""
    monkeypatch.setattr(tf32, "loses_precision", lambda node: True)
    fn, inputs, _ = CASES["pixels of computed images"]
    result = checked(fn, *inputs)
    assert len(result.compilation.blocks) == 2
    assert not result.compilation.program.extends


@pytest.mark.parametrize("rows", [2, 5, 16])
def test_few_rows(monkeypatch, rows):
    """A batch of texts that are written: narrow blocks are tried, padded to 16 rows."""
    tried = real_candidates(Work(rows, 2048, 2048, 1, 2, 0), Device(90, 132))
    narrow = [blocks for blocks in tried if blocks.columns <= 32]
    assert len(narrow) == 4
    for blocks in narrow:
        monkeypatch.setattr(matmul, "candidates", lambda work, device, blocks=blocks: [blocks])
        inputs = half(rows, 520), half(40, 520), half(40)
        result = checked(lambda x, w, b: F.silu(F.linear(x, w, b)), *inputs)
        assert list(result.compilation.blocks.values()) == [blocks] and result.kernels == 1


def test_more_rows_have_no_narrow_blocks():
    tried = real_candidates(Work(64, 2048, 2048, 1, 2, 0), Device(90, 132))
    assert all(blocks.rows * blocks.columns >= 1024 for blocks in tried)


def test_a_product_for_which_no_block_is_small_enough(monkeypatch):
    monkeypatch.setattr(matmul, "candidates", real_candidates)
    result = checked(
        lambda x, w: F.conv2d(x.mean((2, 3), keepdim=True), w).relu(),
        R(2, 40, 5, 5),
        R(16, 40, 1, 1),
    )
    assert not result.compilation.blocks
