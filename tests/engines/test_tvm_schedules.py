"""The schedules of the backend tvm: convolutions, matrix products, softmax and elementary functions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tracer_core
from tests.aot.programs import randn
from tests.engines.running import compiled
from tests.support.tvm_builds import builds

pytestmark = pytest.mark.sweep(keep=24)
CONVOLUTIONS = {
    "3x3": ((2, 8, 16, 16), dict(out_channels=16, kernel_size=3, padding=1)),
    "odd sizes": ((1, 3, 15, 9), dict(out_channels=5, kernel_size=3)),
    "stride 2": ((2, 4, 17, 16), dict(out_channels=8, kernel_size=3, stride=2, padding=1)),
    "1x1": ((3, 16, 8, 8), dict(out_channels=24, kernel_size=1)),
    "dilated": ((1, 4, 20, 20), dict(out_channels=8, kernel_size=3, dilation=2, padding=2)),
    "grouped": ((2, 8, 12, 12), dict(out_channels=16, kernel_size=3, groups=4, padding=1)),
    "depthwise": ((2, 8, 12, 12), dict(out_channels=8, kernel_size=3, groups=8, padding=1)),
    "7x7, stride 2": ((1, 3, 32, 32), dict(out_channels=8, kernel_size=7, stride=2, padding=3)),
    "one pixel": ((2, 8, 3, 3), dict(out_channels=8, kernel_size=3)),
    "one pixel, padding cut": (
        (64, 32, 1, 1),
        dict(out_channels=32, kernel_size=3, padding=1, groups=4),
    ),
    "one pixel, stride 2": (
        (8, 32, 2, 2),
        dict(out_channels=64, kernel_size=3, padding=1, stride=2, groups=2),
    ),
    "one pixel, dilated": ((4, 16, 3, 3), dict(out_channels=16, kernel_size=2, dilation=2)),
    "one pixel of padding alone": (
        (2, 4, 1, 1),
        dict(out_channels=4, kernel_size=2, dilation=2, padding=1),
    ),
    "points of narrow images": ((4, 32, 4, 4), dict(out_channels=24, kernel_size=1)),
    "points that nothing divides": ((2, 16, 7, 7), dict(out_channels=32, kernel_size=1)),
    "narrow": ((2, 16, 7, 7), dict(out_channels=32, kernel_size=3, padding=1)),
    "narrow, grouped": ((16, 64, 2, 2), dict(out_channels=64, kernel_size=3, padding=1, groups=4)),
    "depthwise, two for one": (
        (2, 16, 7, 7),
        dict(out_channels=32, kernel_size=5, padding=2, groups=16),
    ),
    "two windows": (
        (1, 4, 11, 20),
        dict(out_channels=8, kernel_size=(3, 5), stride=(2, 1), padding=(1, 2), groups=2),
    ),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@torch.no_grad()
def test_default_schedules_of_convolutions(name):
    shape, settings = CONVOLUTIONS[name]
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(shape[1], **settings), torch.nn.ReLU()).eval()
    x = torch.randn(shape)
    fast = tracer_core.compile(model, backend="tvm")
    for scale in (1, 2):
        torch.testing.assert_close(fast(x * scale), model(x * scale), rtol=1e-4, atol=1e-5)
    exact = model.double()(x.double())
    model.float()
    assert (fast(x) - exact).norm() <= 3 * (model(x) - exact).norm() + 1e-6 * exact.norm()


#: What TVM's own form leaves without vectors.
SCALAR = {
    "one pixel": ((64, 32, 1, 1), dict(out_channels=32, kernel_size=3, padding=1, groups=4)),
    "narrow": ((2, 16, 7, 7), dict(out_channels=32, kernel_size=3, padding=1)),
    "grouped": ((2, 8, 16, 16), dict(out_channels=16, kernel_size=3, padding=1, groups=4)),
    "points": ((2, 8, 6, 6), dict(out_channels=16, kernel_size=1)),
}


@pytest.mark.parametrize("name", SCALAR)
@torch.no_grad()
def test_convolutions_of_every_form_are_tiled(name, monkeypatch):
    texts = scheduled_texts(monkeypatch)
    shape, settings = SCALAR[name]
    torch.manual_seed(0)
    model, x = torch.nn.Conv2d(shape[1], **settings).eval(), torch.randn(shape)
    torch.testing.assert_close(
        tracer_core.compile(model, backend="tvm")(x), model(x), rtol=1e-4, atol=1e-5
    )
    if name == "narrow" and torch.backends.cpu.get_cpu_capability() != "AVX512":
        return  # rows of 7 do not fill vectors of 8
    assert any("T.vectorized" in text and "T.unroll" in text for text in texts)


@torch.no_grad()
def test_convolutions_in_float64_and_of_changing_batches():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(8, 32, 3, padding=1, groups=2), torch.nn.ReLU(), torch.nn.Conv2d(32, 16,
        1), torch.nn.MaxPool2d(7),
        torch.nn.Conv2d(16, 16, 1, groups=2),
    ).eval().double()  # fmt: skip
    fast = tracer_core.compile(model, backend="tvm", dynamic=True)
    for batch in (3, 2, 9):
        x = torch.randn(batch, 8, 7, 7, dtype=torch.float64)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-10, atol=1e-12)


@torch.no_grad()
def test_max_pooling_keeps_nan_and_infinities():
    x = torch.randn(2, 3, 9, 9)
    x[0, 0, 4, 4] = x[1, 2, 0, 0] = x[1, 0, 8, 8] = float("nan")
    x[0, 1], x[1, 1, 8, 8], x[0, 2] = -float("inf"), float("inf"), -1e38

    def program(x):
        eager = (
            F.max_pool2d(x, 3, 2, 1),
            F.max_pool2d(x, 2, ceil_mode=True),
            F.max_pool2d(x, (3, 1), 1, 0, dilation=2),
        )
        return (
            *eager,
            F.max_pool1d(x[0], 3, 2, 1),
            F.max_pool3d(x, 2, padding=1),
            F.max_pool2d(x, 2, return_indices=True),
        )

    fast = tracer_core.compile(program, backend="tvm")
    for scale in (1, 2):
        expected = program(x * scale)
        for ours, eager in zip(
            (*fast(x * scale)[:-1], *fast(x * scale)[-1]),
            (*expected[:-1], *expected[-1]),
            strict=True,
        ):
            torch.testing.assert_close(ours, eager, equal_nan=True, rtol=0, atol=0)


@torch.no_grad()
def test_default_schedules_of_products_softmax_and_norms():
    torch.manual_seed(0)

    def program(x, w, batch):
        y = x @ w
        return (
            y,
            (batch @ batch.transpose(1, 2)).softmax(-1),
            torch.nn.functional.layer_norm(y, (y.shape[-1],)),
            y.sum(0),
        )

    inputs = torch.randn(24, 40), torch.randn(40, 32), torch.randn(3, 16, 8)
    fast = tracer_core.compile(program, backend="tvm")
    for _ in range(2):
        for ours, expected in zip(fast(*inputs), program(*inputs), strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_default_schedules_tile_convolutions_and_can_be_left_out(monkeypatch):
    from tvm_backend import schedules

    scheduled = []
    real = schedules.scheduled
    monkeypatch.setattr(
        schedules, "scheduled", lambda function: scheduled.append(real(function)) or scheduled[-1]
    )
    model = torch.nn.Conv2d(8, 16, 3, padding=1).eval()
    x = torch.randn(1, 8, 16, 16)
    with torch.no_grad():
        plain = tracer_core.compile(model, backend="tvm", options={"default_schedules": False})
        torch.testing.assert_close(plain(x), model(x), rtol=1e-4, atol=1e-5)
        assert not scheduled
        torch.testing.assert_close(
            tracer_core.compile(model, backend="tvm")(x), model(x), rtol=1e-4, atol=1e-5
        )
    texts = [function.script() for function in scheduled if function is not None]
    assert any(
        "T.vectorized" in text and "T.unroll" in text and "T.parallel" in text for text in texts
    )


def scheduled_texts(monkeypatch):
    """What the default schedules make of each function from now on, as text."""
    from tvm_backend import schedules

    texts = []
    real = schedules.scheduled

    def spy(function):
        result = real(function)
        texts.append("refused" if result is None else result.script())
        return result

    monkeypatch.setattr(schedules, "scheduled", spy)
    return texts


#: rows, columns, length of the sums: whole tiles, one row, sizes that nothing divides.
MATMULS = [
    (13, 48, 32),
    (197, 24, 32),
    (64, 257, 40),
    (3, 35, 1024),
    (12, 48, 32),
    (1, 64, 96),
    (16, 7, 64),
    (5, 9, 11),
    (8, 16, 8),
    (3, 1, 16),
    (64, 33, 20),
]


@pytest.mark.parametrize("sizes", MATMULS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@torch.no_grad()
def test_products_with_transposed_weights(sizes, dtype):
    rows, columns, length = sizes
    torch.manual_seed(0)
    x, w, bias = (
        torch.randn(rows, length).to(dtype),
        torch.randn(columns, length).to(dtype),
        torch.randn(columns).to(dtype),
    )

    def program(x, w, bias):
        return (
            F.linear(x, w, bias).relu(),
            x @ w.t(),
            x @ w.permute(1, 0),
            torch.addmm(bias, x, w.T, beta=2, alpha=0.5),
        )

    fast = tracer_core.compile(program, backend="tvm")
    for scale in (1, -2):
        for ours, expected in zip(
            fast(x * scale, w, bias), program(x * scale, w, bias), strict=True
        ):
            assert ours.dtype is dtype
            torch.testing.assert_close(
                ours, expected, rtol=1e-4 if dtype is torch.float32 else 1e-10, atol=1e-4
            )


@torch.no_grad()
def test_transposed_weights_are_read_as_they_lie(monkeypatch):
    texts = scheduled_texts(monkeypatch)
    model = torch.nn.Linear(64, 48).eval()
    x = torch.randn(12, 64)
    torch.testing.assert_close(
        tracer_core.compile(model, backend="tvm")(x), model(x), rtol=1e-4, atol=1e-5
    )
    assert not any("transpose" in text for text in texts)
    (product,) = [text for text in texts if "by_rows" in text]
    assert "T.vectorized" in product
    assert "T.unroll" in product and "T.parallel" in product


@torch.no_grad()
def test_products_of_symbolic_rows_are_tiled(monkeypatch):
    texts = scheduled_texts(monkeypatch)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 16)
    ).eval()
    fast = tracer_core.compile(model, backend="tvm", dynamic=True)
    for rows in (4, 2, 33, 7):
        x = torch.randn(rows, 32)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    products = [text for text in texts if "by_rows" in text]
    assert len(products) == 2 and all(
        "T.vectorized" in text and "T.parallel" in text for text in products
    )


#: left, right: sizes that no tile divides, few columns, batches.
BY_COLUMNS = [
    ((197, 64), (64, 197)), ((3, 13, 20), (3, 20, 21)), ((2, 7, 33), (2, 33, 64)), ((1, 40), (40,
    45)), ((50, 9), (9, 3)),
    ((4, 1, 16), (4, 16, 31)), ((11, 16), (16, 12)),
]  # fmt: skip


@pytest.mark.parametrize("shapes", BY_COLUMNS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@torch.no_grad()
def test_products_of_sizes_that_no_tile_divides(shapes, dtype):
    """Rows and columns beyond the last one are computed with, and must not be seen: neither NaN in
    the last row nor what lies behind it in memory."""
    torch.manual_seed(0)
    a, b = (torch.randn(shape).to(dtype) for shape in shapes)
    program = lambda a, b: (a @ b, (a @ b).relu() + 1)
    fast = tracer_core.compile(program, backend="tvm")
    for last in (1.0, float("nan")):
        a[..., -1, :] *= last
        for ours, expected in zip(fast(a, b), program(a, b), strict=True):
            tolerance = 1e-4 if dtype is torch.float32 else 1e-10
            torch.testing.assert_close(
                ours, expected, rtol=tolerance, atol=tolerance, equal_nan=True
            )


@torch.no_grad()
def test_long_sums_are_as_exact_as_eager():
    torch.manual_seed(0)
    for x, w in (
        (torch.rand(32, 4096), torch.rand(4096, 48)),
        (torch.rand(2, 13, 2048), torch.rand(2, 2048, 40)),
    ):
        exact = x.double() @ w.double()
        ours = tracer_core.compile(lambda x, w: x @ w, backend="tvm")(x, w)
        assert (ours - exact).norm() <= 2.5 * (x @ w - exact).norm()


@torch.no_grad()
def test_frozen_weights_are_tiles_when_the_module_is_made(monkeypatch):
    torch.manual_seed(0)
    model = torch.nn.Linear(96, 50).eval()
    x = torch.randn(40, 96)
    for frozen in (False, True):
        texts = scheduled_texts(monkeypatch)
        fast = tracer_core.compile(model, backend="tvm", options={"freeze": frozen})
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
        (product,) = [text for text in texts if "by_columns" in text]
        assert ('T.sblock("tiles")' in product) is not frozen
        assert not any("tiles" in text for text in texts if text is not product)


ELEMENTARY = {
    "exp": torch.exp, "erf": torch.erf, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
    "silu": F.silu, "gelu": F.gelu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
}  # fmt: skip


@pytest.mark.parametrize("name", ELEMENTARY)
@torch.no_grad()
def test_elementary_functions(name):
    function = ELEMENTARY[name]
    fast = tracer_core.compile(function, backend="tvm")
    fine = torch.logspace(-38, 1, 3000)
    x = torch.cat(
        [
            torch.linspace(-110, 88, 20_001),
            torch.linspace(-6, 6, 20_001),
            fine,
            -fine,
            torch.zeros(1),
            -torch.zeros(1),
        ]
    )
    ours, eager, exact = fast(x), function(x), function(x.double())
    fits = exact.abs() > 1e-36  # beside numbers with all their bits
    off, eagers_off = (
        ((value.double() - exact) / exact)[fits].abs().max() for value in (ours, eager)
    )
    absolute = (ours.double() - exact).abs().nan_to_num(0).masked_fill(exact.abs() > 1, 0).max()
    assert absolute < 3e-7
    assert off < max(4e-7, 1.01 * eagers_off)
    special = torch.tensor(
        [float("nan"), float("inf"), float("-inf"), 0.0, 1e38, -1e38, 89.0, -120.0]
    )
    if name == "gelu":  # of infinity, oneDNN's is NaN
        special = special[special != torch.inf]
    torch.testing.assert_close(
        fast(special), function(special), equal_nan=True, rtol=1e-6, atol=1e-37
    )
    torch.testing.assert_close(fast(x.double()), exact, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "shape", [(3, 197), (2, 4, 64), (5, 12), (7, 33), (1, 1), (2, 3, 5, 1000)], ids=str
)
@torch.no_grad()
def test_softmax_along_rows(shape):
    torch.manual_seed(0)
    program = lambda x: (x.softmax(-1), x.softmax(0), (x * 3).softmax(-1) + 1)
    fast = tracer_core.compile(program, backend="tvm")
    x = torch.randn(shape) * 4
    some, every, wrong = x.clone(), x.clone(), x.clone()
    some[..., ::2] = float("-inf")
    every[0] = float("-inf")
    wrong[..., -1] = float("nan")
    for value in (x, x * 40, some, every, wrong):
        for ours, expected in zip(fast(value), program(value), strict=True):
            torch.testing.assert_close(ours, expected, rtol=2e-6, atol=1e-7, equal_nan=True)


@torch.no_grad()
def test_softmax_of_any_length_in_one_build(monkeypatch):
    result = builds(monkeypatch)
    fast = tracer_core.compile(lambda x: (x * 2).softmax(-1), backend="tvm", dynamic=True)
    for shape in ((3, 40), (2, 7), (5, 64), (9, 197), (40, 17)):
        x = torch.randn(shape)
        torch.testing.assert_close(fast(x), (x * 2).softmax(-1), rtol=1e-5, atol=1e-7)
    assert len(result) == 1


@torch.no_grad()
def test_elementary_functions_and_rows_are_vectors(monkeypatch):
    """No call of the C library for each number."""
    texts = scheduled_texts(monkeypatch)
    fast = tracer_core.compile(lambda x: F.gelu(x).softmax(-1).tanh(), backend="tvm")
    x = torch.randn(40, 64)
    torch.testing.assert_close(fast(x), F.gelu(x).softmax(-1).tanh(), rtol=1e-5, atol=1e-6)
    assert "refused" not in texts
    assert not any(call in text for text in texts for call in ("T.exp(", "T.erf(", "T.tanh("))
    (softmax,) = [text for text in texts if "largest_partial" in text]
    assert softmax.count("T.vectorized") >= 4


@torch.no_grad()
def test_products_of_any_sizes_in_one_build(monkeypatch):
    result = builds(monkeypatch)
    fast = tracer_core.compile(lambda a, b: a @ b, backend="tvm", dynamic=True)
    for batch, rows, length, columns in (
        (2, 9, 6, 5),
        (3, 4, 8, 33),
        (2, 17, 5, 64),
        (5, 33, 70, 47),
    ):
        a, b = torch.randn(batch, rows, length), torch.randn(batch, length, columns)
        torch.testing.assert_close(fast(a, b), a @ b, rtol=1e-4, atol=1e-4)
    assert len(result) == 1


def test_pooling_of_one_image_and_of_changing_sizes():
    forms = (
        (F.avg_pool2d, randn(3, 7, 11)),
        (F.avg_pool3d, randn(3, 7, 5, 6)),
        (F.max_pool2d, randn(3, 7, 11)),
    )
    for pool, x in forms:
        runner, extra = compiled("tvm", lambda x, pool=pool: pool(x, 2, ceil_mode=True) + 1, x)
        assert runner.fallback is None
        torch.testing.assert_close(runner([x, *extra])[0], pool(x, 2, ceil_mode=True) + 1)
    program = lambda x: F.avg_pool2d(x, 2, ceil_mode=True) + 1
    runner, extra = compiled("tvm", program, randn(3, 2, 7, 11), dynamic=True)
    assert "ceil_mode" in runner.fallback.reason
    for x in (randn(3, 2, 7, 11), randn(2, 4, 8, 5)):
        torch.testing.assert_close(runner([x, *extra])[0], program(x))


def test_any_of_bytes_is_one():
    x = torch.tensor([[0, 3, 255], [0, 0, 0]], dtype=torch.uint8)
    program = lambda x: (x.any(1), x.any())
    runner, extra = compiled("tvm", program, x)
    for ours, expected in zip(runner([x, *extra]), program(x), strict=True):
        assert ours.dtype == expected.dtype and torch.equal(ours, expected)


def test_elementary_functions_of_elementary_functions(monkeypatch):
    """Their forms are not put into one another: TVM's compiler would go through every way through
    all of them.
    """
    program = lambda x: F.gelu(F.silu(F.gelu(F.mish(F.silu(F.relu(x)))))) + x.tanh().sigmoid()
    texts = scheduled_texts(monkeypatch)
    fast = tracer_core.compile(program, backend="tvm")
    x = torch.randn(5, 33, generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        torch.testing.assert_close(fast(x), program(x))
    assert texts and "refused" not in texts
