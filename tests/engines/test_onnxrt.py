"""The backend onnxrt: what is its own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tracer_core
from tests.aot.programs import randn
from tests.engines.running import compiled, peak_growth
from tracer_core.dispatch.validation import build_config
from tracer_core.errors import BackendError, OptionError

pytest.importorskip("onnxruntime")


def test_symbolic_sizes_make_one_model(monkeypatch):
    from onnxrt_backend import session

    result = []
    real = session.session
    monkeypatch.setattr(session, "session", lambda *args: result.append(1) or real(*args))
    runner, extra = compiled("onnxrt", lambda x: x.relu() + 1, randn(4, 6), dynamic=True)
    for rows in (4, 2, 7):
        runner([randn(rows, 6), *extra])
    assert len(result) == 1


def test_options():
    runner, _ = compiled(
        "onnxrt", lambda x: x + 1, randn(3), intra_op_threads=1, graph_optimization_level="disable"
    )
    torch.testing.assert_close(runner([torch.ones(3)])[0], torch.full((3,), 2.0))
    with pytest.raises(OptionError, match="intra_op_threads"):
        build_config(backend="onnxrt", options={"threads": 1})
    with pytest.raises(BackendError, match="NoSuchProvider is not in this onnxruntime, which has"):
        build_config(backend="onnxrt", options={"providers": ("NoSuchProvider",)})


def test_an_operator_that_onnx_runtime_lacks_is_named():
    runner, _ = compiled("onnxrt", lambda x: F.gelu(x) + 1, randn(3).double())
    assert "aten.gelu.default (1x: ONNX Runtime refuses it" in runner.fallback.reason
    torch.testing.assert_close(
        runner([torch.ones(3).double()])[0], F.gelu(torch.ones(3).double()) + 1
    )


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3)
        self.norm = torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.head(F.relu(self.norm(self.conv(x))).mean((2, 3)))


@pytest.fixture
def net():
    torch.manual_seed(0)
    model = Net().eval()
    model.norm.running_var.uniform_(0.5, 2)
    return model


def sessions(monkeypatch):
    """Every session that is made from now on."""
    from onnxrt_backend import freezing, session

    result = []
    real = session.session

    def spy(*args):
        result.append(real(*args))
        return result[-1]

    monkeypatch.setattr(freezing, "session", spy)
    return result


@torch.no_grad()
def test_frozen_parameters_are_initialisers_and_changes_are_seen(net, monkeypatch):
    result = sessions(monkeypatch)
    fast = tracer_core.compile(net, backend="onnxrt", options={"freeze": True})
    x = torch.randn(2, 3, 12, 12)
    for _ in range(3):
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)
    assert len(result) == 1 and len(result[0].get_inputs()) == 1  # x: all else is a constant
    net.head.weight.mul_(2)
    net.norm.running_mean.add_(1)
    torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)
    net.load_state_dict({name: value * 0.5 for name, value in net.state_dict().items()})
    torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)
    assert len(result) == 3
    net.head.weight.data.mul_(3)  # leaves no trace
    fast.refresh()
    torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)
    assert fast.release_originals() == 0  # ONNX Runtime reads them still


@torch.no_grad()
def test_frozen_batch_norm_is_folded_into_the_convolution(net, tmp_path):
    import onnx

    path = tmp_path / "optimised.onnx"
    options = {"freeze": True, "session_options": {"session.save_model_format": "ONNX"}}
    config = build_config(backend="onnxrt", options=options)
    assert dict(config.options.session_options) == options["session_options"]

    from onnxrt_backend import freezing
    from onnxrt_backend.export import export
    from tracer_core.plugin_api import lower
    from tracer_core.testing import torch_graph

    captured = torch_graph(net, [torch.randn(1, 3, 8, 8)])
    lowered = lower(captured.gm, captured.real_inputs, "onnxrt", input_specs=captured.inputs)
    result = export(lowered.graph, "net")
    names = {name: captured.real_inputs[i].detach() for i, name, _ in result.graph.inputs if i}
    model = onnx.load_from_string(freezing.with_initializers(result.model, names))
    assert [item.name for item in model.graph.initializer] == list(names) and len(
        model.graph.input
    ) == 1

    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    settings.optimized_model_filepath = str(path)
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    values = {name: freezing._value(value.contiguous()) for name, value in names.items()}
    settings.add_external_initializers(list(values), list(values.values()))
    onnxruntime.InferenceSession(
        model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )
    kinds = [node.op_type for node in onnx.load(str(path)).graph.node]
    assert "BatchNormalization" not in kinds and any("Conv" in kind for kind in kinds), kinds


@torch.no_grad()
def test_one_dynamic_session_serves_batches_from_1_to_32(net, monkeypatch):
    result = sessions(monkeypatch)
    fast = tracer_core.compile(net, backend="onnxrt", dynamic=True, options={"freeze": True})
    for batch in (4, 2, 32, 17, 8):
        x = torch.randn(batch, 3, 12, 12)
        torch.testing.assert_close(fast(x), net(x), rtol=1e-4, atol=1e-5)
    assert len(result) == 1


@torch.no_grad()
def test_a_hundred_megabytes_of_inputs_are_not_copied():
    fast = tracer_core.compile(lambda x: x.sum(-1), backend="onnxrt")
    x = torch.randn(1024, 25600)  # 105 MB
    torch.testing.assert_close(fast(x), x.sum(-1), rtol=1e-3, atol=1e-2)
    if peak_growth(x.clone) < 90:
        pytest.skip("the system does not tell the peak of memory")
    assert peak_growth(lambda: [fast(x) for _ in range(3)]) < 50


def test_wrong_levels_and_threads_are_found_at_compile():
    for options in (
        {"graph_optimization_level": "most"},
        {"intra_op_threads": 0},
        {"session_options": {"a": 1}},
    ):
        with pytest.raises(OptionError, match=next(iter(options))):
            tracer_core.compile(lambda x: x, backend="onnxrt", options=options)


@torch.no_grad()
def test_nan_behind_a_number_and_quotients_that_are_nearly_whole():
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[2.0, inf, nan, 0.0], [1.0, -inf, -0.5, nan], [1.0, 0.3, -0.3, 1e6]])

    def program(x):
        extremes = (
            x.amax(1),
            x.amin(0),
            *x.max(1),
            *x.min(0),
            x.argmax(1),
            x.argmin(0),
            torch.atan2(x, x.flip(1)),
        )
        return *extremes, x % 0.1, x // 0.1, torch.div(x, 0.1, rounding_mode="floor"), x * 2

    fast = tracer_core.compile(program, backend="onnxrt")
    for ours, expected in zip(fast(x), program(x), strict=True):
        torch.testing.assert_close(ours, expected, equal_nan=True)


def models_of(monkeypatch):
    """Every exported model from now on, as ONNX's own objects."""
    import onnx

    from onnxrt_backend import plugin, session

    result = []
    real = session.session

    def spy(model, *rest):
        result.append(onnx.load_from_string(model))
        return real(model, *rest)

    assert plugin.NAME == "onnxrt"
    monkeypatch.setattr(session, "session", spy)
    return result


def test_attention_is_what_onnx_runtime_fuses(monkeypatch):
    """No operator that it knows only as a function, no list of parts."""
    models = models_of(monkeypatch)

    def program(x, y):
        q, k, v = (part.view(2, 5, 2, 4).transpose(1, 2) for part in x.split(8, dim=-1))
        a, b, c = y.view(2, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        both = F.scaled_dot_product_attention(q, k, v) + F.scaled_dot_product_attention(a, b, c)
        first, rest = y.split([4, 20], dim=2)
        return (
            F.gelu(both),
            F.gelu(first, approximate="tanh"),
            rest * 2,
            *[item + 1 for item in x.chunk(5, 1)],
        )

    inputs = randn(2, 5, 24), randn(2, 5, 24)
    runner, extra = compiled("onnxrt", program, *inputs)
    for ours, value in zip(runner([*inputs, *extra]), program(*inputs), strict=True):
        torch.testing.assert_close(ours, value)
    assert runner.fallback is None
    kinds = [node.op_type for node in models[0].graph.node]
    assert not {"CastLike", "SplitToSequence", "SequenceAt", "aten_getitem"} & set(kinds), kinds
    assert kinds.count("Gelu") == 2 and kinds.count("Split") == 3 and kinds.count("Squeeze") >= 3


def test_logits_are_written_where_the_caller_gets_them(monkeypatch):
    """ONNX Runtime would copy them to give them three dimensions."""
    models = models_of(monkeypatch)
    weight = randn(6, 50)
    runner, extra = compiled(
        "onnxrt", lambda x: (x.view(-1, 6) @ weight).view(2, 3, 50), randn(2, 3, 6)
    )
    x = randn(2, 3, 6)
    torch.testing.assert_close(runner([x, *extra])[0], x @ weight)
    (output,) = models[0].graph.output
    assert [node.op_type for node in models[0].graph.node if output.name in node.output] == [
        "MatMul"
    ]


def test_a_part_that_is_returned_keeps_its_name():
    def program(x):
        rows, columns = x.sin().split(2, 0), x.cos().unbind(1)
        return rows[1], columns[0], rows[0] + 1

    runner, extra = compiled("onnxrt", program, randn(4, 6))
    for _ in range(2):
        x = randn(4, 6)
        for ours, expected in zip(runner([x, *extra]), program(x), strict=True):
            torch.testing.assert_close(ours, expected)
    assert runner.fallback is None


def test_parts_of_a_size_known_at_run_time_only():
    program = lambda x: [part * 2 for part in x.split(3, 1)]
    runner, extra = compiled("onnxrt", program, randn(4, 6), dynamic=True)
    for rows in (4, 2, 7):
        x = randn(rows, 6)
        for ours, expected in zip(runner([x, *extra]), program(x), strict=True):
            torch.testing.assert_close(ours, expected)


def test_operators_whose_meaning_depends_on_the_version_of_onnx():
    """GELU makes the model one of version 20, in which the modes of grid_sample have other
    names.
    """
    image, grid = randn(1, 3, 6, 8), torch.rand(1, 4, 4, 2) * 2 - 1

    def program(image, grid):
        sampled = [
            F.grid_sample(image, grid, mode=mode, align_corners=True)
            for mode in ("bilinear", "nearest", "bicubic")
        ]
        pooled = F.avg_pool2d(image, 3, 2, 1, ceil_mode=True)
        return [
            *sampled,
            F.gelu(image),
            pooled,
            F.interpolate(image, scale_factor=2, mode="bilinear"),
        ]

    runner, extra = compiled("onnxrt", program, image, grid)
    assert runner.fallback is None
    for ours, expected in zip(runner([image, grid, *extra]), program(image, grid), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_booleans_and_whole_numbers_are_summed_on_the_engine():
    program = lambda x: (
        (x > 0).cumsum(-1),
        (x > 0).sum(1),
        (x > 0).prod(0),
        x.sum(1, dtype=torch.float64),
        x.int().sum(),
    )
    runner, extra = compiled("onnxrt", program, randn(4, 6))
    assert runner.fallback is None
    x = randn(4, 6)
    for ours, expected in zip(runner([x, *extra]), program(x), strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_sums_and_products_of_large_whole_numbers(dtype):
    most = torch.iinfo(dtype).max
    x = torch.tensor(
        [[most, 3, most - 1], [most - 7, 2**24 + 1, 5], [most // 2 + 1, -most, most]], dtype=dtype
    )
    program = lambda x: (
        x.sum(0), x.sum(1, dtype=dtype), x.prod(1), x.cumsum(1), x @ x, torch.fmod(x, 7),
        torch.div(x, 7, rounding_mode="trunc"),
    )  # fmt: skip
    runner, extra = compiled("onnxrt", program, x)
    for ours, expected in zip(runner([x, *extra]), program(x), strict=True):
        assert ours.dtype == expected.dtype and torch.equal(ours, expected)


def test_what_ends_the_process_is_left_to_pytorch():
    bags, weight = torch.tensor([[0, 2], [1, 1]]), randn(3, 4)
    program = lambda bags, weight: F.embedding_bag(bags, weight, mode="mean") + 1
    runner, extra = compiled("onnxrt", program, bags, weight)
    assert "ends the process" in runner.fallback.reason
    torch.testing.assert_close(runner([bags, weight, *extra])[0], program(bags, weight))


def test_a_dimension_of_a_tensor_that_has_none():
    program = lambda x: ((x > 0).all(0), F.normalize(x, dim=0), x.sum(0))
    runner, extra = compiled("onnxrt", program, torch.tensor(2.0))
    for x in (torch.tensor(2.0), torch.tensor(-3.0)):
        for ours, expected in zip(runner([x, *extra]), program(x), strict=True):
            torch.testing.assert_close(ours, expected)


def test_largest_norms_of_nan_and_the_scaled_erfc_of_large_numbers():
    x = torch.tensor([[1.0, float("nan"), 2.0], [3.0, 9.0, 30.0]])
    program = lambda x: (torch.linalg.vector_norm(x, float("inf"), 1), torch.special.erfcx(x))
    runner, extra = compiled("onnxrt", program, x)
    for ours, expected in zip(runner([x, *extra]), program(x), strict=True):
        torch.testing.assert_close(ours, expected, equal_nan=True)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_images_sampled_at_places_that_are_no_numbers(mode):
    image, grid = randn(2, 3, 5, 6), randn(2, 4, 4, 2)
    program = lambda image, grid: F.grid_sample(image, grid, mode, "border", False)
    runner, extra = compiled("onnxrt", program, image, grid)
    assert runner.fallback is None
    for value in (0.3, float("nan"), float("inf"), -float("inf")):
        places = grid.clone()
        places[0, 1, 1, 0] = value
        torch.testing.assert_close(
            runner([image, places, *extra])[0], program(image, places), equal_nan=True
        )


def test_idle_threads_of_a_session_leave_the_cores_to_others():
    """ONNX Runtime's threads wait 20 ms at full speed after every call, unless they are told
    otherwise.
    """
    import time

    weight = randn(512, 512)
    runner, extra = compiled(
        "onnxrt", lambda x: x @ weight @ weight, randn(256, 512), intra_op_threads=2
    )
    spent = []
    for _ in range(6):
        runner([randn(256, 512), *extra])
        start = time.process_time()
        time.sleep(0.1)
        spent.append(time.process_time() - start)
    assert min(spent) < 0.004, spent


@torch.no_grad()
@pytest.mark.parametrize("heads", [2, 4], ids=["as many heads", "shared heads"])
def test_rows_that_a_mask_forbids_every_key(heads):
    """A batch that is padded on the left; NaN of the inputs stays."""
    allowed = torch.ones(5, 5, dtype=torch.bool).tril().repeat(2, 1, 1, 1)
    allowed[0, ..., :2] = False  # the first two tokens of the first text are padding
    q, k, v = torch.randn(2, heads, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    q[1, 1, 3, 0] = float("nan")

    def program(q, k, v, allowed):
        first = F.scaled_dot_product_attention(q, k, v, allowed, enable_gqa=True)
        bias = torch.zeros(2, 1, 5, 5).masked_fill(~allowed, -float("inf"))
        return first, F.scaled_dot_product_attention(first + 1, k, v, bias, enable_gqa=True)

    fast = tracer_core.compile(program, backend="onnxrt")
    for ours, expected in zip(fast(q, k, v, allowed), program(q, k, v, allowed), strict=True):
        torch.testing.assert_close(ours, expected, equal_nan=True)
    eagerly = [item.text for item in tracer_core.last_compile(fast) if item.name == "fallback"]
    assert bool(eagerly) == (heads > 2) and all("as many heads of keys" in text for text in eagerly)


@torch.no_grad()
def test_attention_in_doubles_has_doubles_precision():
    q, k, v = (torch.randn(2, 3, 5, 8, dtype=torch.float64) for _ in range(3))
    ours = tracer_core.compile(F.scaled_dot_product_attention, backend="onnxrt")(q, k, v)
    torch.testing.assert_close(
        ours, F.scaled_dot_product_attention(q, k, v), rtol=1e-10, atol=1e-12
    )


@torch.no_grad()
def test_small_and_large_values_and_orders_with_nan():
    x = torch.tensor([1e-10, float("nan"), -1e-5, 9.0, 104.0, -3e-4, 0.0, -0.5])

    def program(x):
        y = x.nan_to_num()
        small = torch.log1p(y), torch.expm1(y * 0.1), torch.erfc(y)
        large = (
            torch.logaddexp(y, y.flip(0)),
            torch.logaddexp2(y, y.flip(0)),
            torch.logcumsumexp(y, 0),
        )
        return *small, *large, x.sort(), x.topk(3), x.argsort(), x * 2

    fast = tracer_core.compile(program, backend="onnxrt")
    for ours, expected in zip(fast(x), program(x), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=0, equal_nan=True)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nan_in_logarithms_and_steps(dtype):
    inf, nan = float("inf"), float("nan")
    x = torch.tensor(
        [[1.0, nan, 2.0], [inf, 1.0, 2.0], [-inf, -inf, -inf], [0.5, 0.0, -inf]], dtype=dtype
    )

    def program(x):
        return (
            F.log_softmax(x, 1),
            x.log_softmax(0) * 2,
            torch.xlogy(x * 0, x),
            torch.heaviside(x, x[:1] * 0),
        )

    fast = tracer_core.compile(program, backend="onnxrt")
    for ours, expected in zip(fast(x), program(x), strict=True):
        torch.testing.assert_close(ours, expected, equal_nan=True)


def images():
    """With windows of NaN beside numbers and infinities, of both infinities, and of minus infinity
    alone.
    """
    nan, inf = float("nan"), float("inf")
    x = torch.randn(2, 3, 9, 9)
    x[0, 0, 2, 3], x[1, 1, 4, 4], x[1, 1, 4, 5], x[1, 2, 7, 7], x[1, 2, 7, 8] = (
        nan,
        inf,
        -inf,
        inf,
        nan,
    )
    x[0, 2] = -inf
    x[0, 2, 0, 0] = nan
    return x


POOLS = {
    "three": lambda x: F.max_pool2d(x, 3, 2, 1),
    "rounded up": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "apart": lambda x: F.max_pool2d(x, 3, 2, 1, dilation=2),
    "no image alone": lambda x: F.max_pool2d(x[0], (2, 3), (1, 2), (0, 1)) * 2,
    "one after another": lambda x: torch.cat(
        [x, F.max_pool2d(x, 5, 1, 2), F.max_pool2d(F.max_pool2d(x, 5, 1, 2), 5, 1, 2)]
    ),
    "doubles": lambda x: F.max_pool2d(x.double(), 3, 2, 1),
    "lines": lambda x: F.max_pool1d(x[0], 3, 2, 1),
    "positions": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
}


@torch.no_grad()
@pytest.mark.parametrize("before", [F.relu, lambda x: x - 1], ids=["behind a relu", "of anything"])
@pytest.mark.parametrize("name", POOLS)
def test_max_pooling_has_eagers_nan_and_infinities(name, before):
    program = lambda x: POOLS[name](before(x))
    fast = tracer_core.compile(program, backend="onnxrt")
    x = images()
    ours, expected = fast(x), program(x)
    torch.testing.assert_close(ours, expected, equal_nan=True)
    eagerly = [record for record in tracer_core.last_compile(fast) if record.name == "fallback"]
    assert bool(eagerly) == (name == "positions")


class Table(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = torch.nn.Parameter(
            torch.zeros(700_000, 800)
        )  # 2.24 GB: more than a serialised model may have
        self.head = torch.nn.Linear(800, 4)

    def forward(self, x):
        return self.head(F.embedding(x, self.rows))


@pytest.mark.slow
@torch.no_grad()
def test_frozen_parameters_of_more_than_two_gigabytes(monkeypatch):
    import os

    if os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") < 6e9:
        pytest.skip("6 GB of memory are not free")
    made = sessions(monkeypatch)
    model, x = Table().eval(), torch.tensor([0, 5, 699_999])
    model.rows[x] = torch.randn(3, 800)
    fast = tracer_core.compile(model, backend="onnxrt", options={"freeze": True})
    torch.testing.assert_close(fast(x), model(x))
    assert len(made[0].get_inputs()) == 1


@pytest.mark.parametrize("program", [
    lambda x, y: torch.add(x, y, alpha=0.1),
    lambda x, y: x.clamp(-0.1, 0.3),
    lambda x, y: x.masked_fill(y > 0, 0.1),
    lambda x, y: torch.nn.functional.scaled_dot_product_attention(x, y, y),
    lambda x, y: torch.log10(x.abs()),
])  # fmt: skip
def test_constants_of_float64_programs_are_float64(program):
    for width in (16, 8):  # the scale of attention over 16 is a float32 number, over 8 it is none
        x, y = (torch.randn(2, 3, 5, width, dtype=torch.float64) for _ in range(2))
        fast = tracer_core.compile(program, backend="onnxrt")
        torch.testing.assert_close(fast(x, y), program(x, y), rtol=1e-11, atol=1e-11)


MEANS = {
    "kept": lambda x: x.mean((2, 3), keepdim=True),
    "not kept": lambda x: x.mean((-1, -2)) * 2,
    "of one side": lambda x: x.mean(3),
    "with channels": lambda x: x.mean((1, 2, 3)),
    "doubles": lambda x: x.double().mean((2, 3)),
    "into doubles": lambda x: x.mean((2, 3), dtype=torch.float64),
    "adaptive": lambda x: F.adaptive_avg_pool2d(F.relu(x), 1),
    "and the image": lambda x: (x * x.mean((2, 3), keepdim=True), x + 1),
}


@pytest.mark.parametrize("size", [(3, 7, 5), (2, 40, 40)])
@pytest.mark.parametrize("name", MEANS)
def test_means_of_images(name, size):
    fast = tracer_core.compile(MEANS[name], backend="onnxrt")
    for batch in (2, 2, 5, 3):
        x = torch.randn(batch, *size, generator=torch.Generator().manual_seed(batch)) + 3
        x[0, 0, 1, 1] = float("inf") if batch == 3 else 1.0
        torch.testing.assert_close(fast(x), MEANS[name](x))
