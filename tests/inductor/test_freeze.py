"""freeze=True: parameters as constants, and who notices that one of them changed."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tracer_core
from inductor_backend.kernels import native, packed_weights
from inductor_backend.kernels.packed_weights import Geometry, kernel_of
from tests.support.comparison import assert_as_accurate_as_eager
from tracer_core.aot import frozen_parameters as core_frozen
from tracer_core.errors import BackendError, OptionError

FREEZE = {"freeze": True}


def compiled(model):
    return tracer_core.compile(model, backend="inductor", options=FREEZE, fullgraph=True)


def prepared_counts(monkeypatch) -> list[int]:
    """A list that grows by one with each preparation."""
    seen: list[int] = []
    original = core_frozen.Frozen._prepared

    def counted(self, tensors):
        seen.append(len(tensors))
        return original(self, tensors)

    monkeypatch.setattr(core_frozen.Frozen, "_prepared", counted)
    return seen


class Block(nn.Module):
    """What image models are made of: convolutions with batch norm, activations, a residual, a
    pool.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 7, 2, 3, bias=False)
        self.norm = nn.BatchNorm2d(32)
        self.a, self.na = nn.Conv2d(32, 32, 3, padding=1, groups=8), nn.BatchNorm2d(32)
        self.b, self.nb = nn.Conv2d(32, 48, 1, bias=False), nn.BatchNorm2d(48, affine=False)
        self.down = nn.Conv2d(32, 48, 1)
        self.depth = nn.Conv2d(48, 48, 5, 2, 2, groups=48)
        self.last = nn.Linear(48, 10)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.2)
                module.running_var.uniform_(0.5, 2)

    def forward(self, x):
        x = F.max_pool2d(self.norm(self.stem(x)).relu(), 3, 2, 1)
        y = F.hardswish(self.na(self.a(x)))
        x = (self.nb(self.b(y)) + self.down(x)).relu()
        x = F.silu(self.depth(x))
        return self.last(x.mean((2, 3)))


@pytest.mark.full
@pytest.mark.parametrize("options", [FREEZE, None], ids=["frozen", "default"])
@pytest.mark.parametrize("sizes", [((1, 32), (1, 32)), ((2, 70), (3, 70))], ids=str)
def test_an_image_model_is_eager_s_within_rounding(options, sizes) -> None:
    torch.manual_seed(0)
    model = Block().eval()
    fast = tracer_core.compile(model, options=options, fullgraph=True)
    with torch.no_grad():
        for batch, size in sizes:
            x = torch.randn(batch, 3, size, size)
            assert_as_accurate_as_eager(fast(x), model, x)
            assert_as_accurate_as_eager(fast(x), model, x)


@pytest.mark.parametrize("options", [FREEZE, None], ids=["frozen", "default"])
def test_images_leave_the_graph_with_eager_s_strides(options) -> None:
    model = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 16, 3)).eval()
    fast = tracer_core.compile(model, options=options, fullgraph=True)
    with torch.no_grad():
        for layout in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(2, 16, 19, 21).to(memory_format=layout)
            assert_as_accurate_as_eager(fast(x), model, x)


GEOMETRIES = [
    Geometry(3, 20, (7, 7), (2, 2), (3, 3), (1, 1), 1),
    Geometry(3, 20, (3, 3), (1, 2), (0, 1), (2, 1), 1),
    Geometry(3, 96, (4, 4), (4, 4), (0, 0), (1, 1), 1),
    Geometry(1, 48, (3, 5), (1, 1), (3, 4), (1, 1), 1),
    Geometry(2, 24, (3, 3), (2, 3), (1, 1), (1, 1), 1),
    Geometry(40, 70, (3, 3), (1, 1), (2, 2), (2, 2), 1),
    Geometry(24, 130, (1, 1), (2, 2), (0, 0), (1, 1), 1),
    Geometry(16, 48, (1, 5), (1, 2), (0, 2), (1, 1), 1),
    Geometry(40, 40, (5, 5), (2, 2), (2, 2), (1, 1), 40),
    Geometry(33, 33, (3, 3), (1, 1), (1, 1), (1, 1), 33),
    Geometry(24, 24, (5, 5), (1, 1), (2, 0), (1, 1), 24),
    Geometry(48, 48, (7, 7), (1, 1), (3, 3), (1, 1), 48),
    Geometry(64, 64, (3, 3), (2, 2), (1, 1), (1, 1), 16),
    Geometry(64, 64, (3, 3), (1, 1), (1, 1), (1, 1), 8),
    Geometry(64, 32, (3, 3), (1, 1), (1, 1), (1, 1), 4),
    Geometry(144, 144, (3, 3), (2, 2), (1, 1), (1, 1), 9),
    Geometry(96, 96, (3, 5), (1, 1), (1, 2), (2, 1), 3),
    Geometry(48, 48, (3, 3), (2, 1), (0, 3), (1, 2), 6),
    Geometry(32, 32, (3, 3), (4, 4), (1, 1), (1, 1), 4),
]


@pytest.mark.parametrize("g", GEOMETRIES, ids=str)
@pytest.mark.sweep(keep=6)
@pytest.mark.parametrize(
    "layout", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"]
)
def test_packed_convolutions(g: Geometry, layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    assert kernel_of(g) is not None
    x = torch.randn(2, g.channels, 13, 11).to(memory_format=torch.channels_last)
    weight = torch.randn(g.count, g.channels // g.groups, *g.kernel_size).to(memory_format=layout)
    bias = torch.randn(g.count)
    rest = (g.stride, g.padding, g.dilation, g.groups)
    eager = F.conv2d(x, weight, bias, *rest)
    exact = F.conv2d(x.double(), weight.double(), bias.double(), *rest)
    residual = torch.randn_like(eager, memory_format=torch.channels_last)
    ready = packed_weights.pack(weight, g)
    allowed = 3 * (eager - exact).abs().max().item() + 1e-6
    reference = packed_weights.convolution(x, ready, bias, g)
    assert (reference - exact).abs().max().item() <= allowed
    full = packed_weights.convolution(
        x, ready, None, g, before="gelu_tanh", residual=residual, after="relu6"
    )
    wanted = F.relu6(
        F.gelu(exact - bias.double()[:, None, None], approximate="tanh") + residual.double()
    )
    assert (full - wanted).abs().max().item() <= allowed
    factor = torch.rand(g.count)
    scaled = packed_weights.convolution(
        x, ready, bias, g, scale=factor, before="hardswish", residual=residual
    )
    wanted = (
        F.hardswish((exact - per_channel(bias)) * per_channel(factor) + per_channel(bias))
        + residual.double()
    )
    assert (scaled - wanted).abs().max().item() <= allowed


def per_channel(values: torch.Tensor) -> torch.Tensor:
    return values.double()[:, None, None]


def test_kernels_refuse_sizes_that_they_were_not_built_for() -> None:
    x, weight, out = torch.randn(4, 32), torch.randn(32 * 32), torch.empty(4, 24)
    numbers = packed_weights.linear_call(
        4, 32, 24, 32, 24, 0, "none", "none"
    )  # 24 columns are no whole panel
    with pytest.raises(RuntimeError, match="run_packed was not built for these sizes"):
        native.function("run_packed")(x, weight, 0, 0, out, *numbers, 0)
    g = packed_weights.Geometry(32, 32, (3, 3), (1, 1), (1, 1), (1, 1), 32)
    _, values = packed_weights.call(g, (1, 4, 4, 4, 4), "none", "none")
    with pytest.raises(RuntimeError, match="run_depthwise_5 was not built"):
        native.function("run_depthwise_5")(x, weight, 0, 0, out, *values, 0)


class Attention(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("places", torch.randn(128, width))

    def forward(self, x):
        x = x + self.places[: x.shape[1]].tanh()
        b, t, c = x.shape
        q, k, v = (m(x).view(b, t, 4, c // 4).transpose(1, 2) for m in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(x)))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_transformer(dynamic: bool) -> None:
    torch.manual_seed(0)
    model = Attention().eval()
    fast = tracer_core.compile(model, options=FREEZE, dynamic=dynamic)
    with torch.no_grad():
        for batch, tokens in ((2, 40), (2, 41), (1, 100)):
            x = torch.randn(batch, tokens, 64)
            assert_as_accurate_as_eager(fast(x), model, x)


def test_products_of_one_input_are_one_product(texts) -> None:
    model = Attention().eval()
    fast = compiled(model)
    x = torch.randn(2, 40, 64)
    with torch.no_grad():
        assert_as_accurate_as_eager(fast(x), model, x)
    (text,) = texts
    assert text.count(" run_packed(") == 4  # queries, keys and values; then o, up and down


class Heads(nn.Module):
    """Two heads on one vector, as a distilled image model has them: nothing stands between their matmuls."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.head, self.teacher = nn.Linear(64, 64), nn.Linear(64, 40), nn.Linear(64, 40)

    def forward(self, x):
        x = self.up(x).relu()
        return (self.head(x) + self.teacher(x)) / 2


@pytest.mark.parametrize("rows", [2, 100])
def test_two_heads_are_one_product(rows, texts) -> None:
    model, x = Heads().eval(), torch.randn(rows, 64)
    fast = compiled(model)
    with torch.no_grad():
        assert_as_accurate_as_eager(fast(x), model, x)
    assert texts  # nothing fell back to eager mode


def test_nothing_is_prepared_twice_without_a_change(monkeypatch) -> None:
    seen = prepared_counts(monkeypatch)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval()
    fast = compiled(model)
    x = torch.randn(64, 64)
    with torch.no_grad():
        for _ in range(4):
            assert_as_accurate_as_eager(fast(x), model, x)
    assert seen == [4]


CHANGES = {
    "in place": lambda m: m.weight.mul_(2),
    "copy_": lambda m: m.weight.copy_(torch.randn(64, 64)),
    "load_state_dict": lambda m: m.load_state_dict(nn.Linear(64, 64).state_dict()),
    "another parameter": lambda m: setattr(m, "weight", nn.Parameter(torch.randn(64, 64))),
    "another memory": lambda m: setattr(m.weight, "data", torch.randn(64, 64)),
    "bias": lambda m: m.bias.add_(1),
    "swapped": lambda m: torch.utils.swap_tensors(m.weight, nn.Parameter(torch.randn(64, 64))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_parameter_is_seen(change: str, monkeypatch) -> None:
    seen = prepared_counts(monkeypatch)
    model = nn.Linear(64, 64).eval()
    fast = compiled(model)
    x = torch.randn(64, 64)
    with torch.no_grad():
        assert_as_accurate_as_eager(fast(x), model, x)
        CHANGES[change](model)
        assert_as_accurate_as_eager(fast(x), model, x)
        assert_as_accurate_as_eager(fast(x), model, x)
    assert len(seen) == 2


def test_writes_that_leave_no_trace_need_refresh() -> None:
    model = nn.Linear(64, 64).eval()
    fast = compiled(model)
    x = torch.randn(64, 64)
    with torch.no_grad():
        before = fast(x)
        model.weight.data[7, 5] = 3.0
        assert torch.equal(fast(x), before)  # as documented
        fast.refresh()
        assert_as_accurate_as_eager(fast(x), model, x)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_steps_of_fused_optimizers_are_seen(kind) -> None:
    """They do not count up the versions of what they write to."""
    model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.ReLU(), nn.Linear(64, 64, bias=False))
    fast, x = compiled(model), torch.randn(64, 64)
    optimizer = kind(model.parameters(), lr=0.05, fused=True)
    for _ in range(3):
        with torch.no_grad():
            assert_as_accurate_as_eager(fast(x), model, x)
            assert_as_accurate_as_eager(fast(x), model, x)
        model(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("channels", [7, 64])
def test_statistics_that_batch_norm_gathers_are_seen(channels) -> None:
    """Its kernel does not count them as written to."""
    model = nn.Sequential(nn.Conv2d(3, channels, 3), nn.BatchNorm2d(channels)).eval()
    fast, x = compiled(model), torch.randn(2, 3, 8, 8)
    for _ in range(3):
        with torch.no_grad():
            assert_as_accurate_as_eager(fast(x), model, x)
            model.train()(x + 1)
            model.eval()
            assert_as_accurate_as_eager(fast(x), model, x)
    with torch.no_grad():
        model[1].running_mean.numpy()[-1] = 5
        assert_as_accurate_as_eager(fast(x), model, x)


def test_refresh_of_a_function_and_a_method() -> None:
    model = nn.Linear(64, 64).eval()

    def f(x):
        return model(x) + 1

    x = torch.randn(64, 64)
    for fast in (compiled(f), compiled(model.forward)):
        with torch.no_grad():
            fast(x)
            model.weight.data.mul_(2)
            fast.refresh()
            torch.testing.assert_close(fast(x) - (1 if fast.__name__ == "f" else 0), model(x))
    assert not hasattr(tracer_core.compile(f), "refresh")


def test_a_module_that_has_something_called_refresh() -> None:
    class Taken(nn.Linear):
        def refresh(self):
            return 1

    with pytest.raises(OptionError, match="refresh"):
        compiled(Taken(4, 4))
    assert tracer_core.compile(Taken(4, 4)).refresh() == 1


def test_several_modules_share_a_graph_but_not_their_weights() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64).eval() for _ in range(3)]

    @tracer_core.compile(options=FREEZE)
    def run(layer, x):
        return layer(x).relu()

    x = torch.randn(64, 64)
    with torch.no_grad():
        for _ in range(3):
            for layer in layers:
                torch.testing.assert_close(run(layer, x), layer(x).relu())


def test_what_was_prepared_dies_with_the_parameters() -> None:
    """At the next call that sees other ones."""
    model = nn.Linear(64, 64).eval()
    fast = compiled(model)
    x = torch.randn(64, 64)
    made = []
    with torch.no_grad():
        for _ in range(2):
            fast(x)
            made += [
                weakref.ref(state.run)
                for instance in core_frozen._instances
                for state in instance._states.values()
                if id(model.weight) in state.ids
            ]
            model.weight = nn.Parameter(torch.randn(64, 64))
    gc.collect()
    assert len(made) == 2 and made[0]() is None and made[1]() is not None


def test_training_is_not_frozen() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    other = copy.deepcopy(model)
    fast = tracer_core.compile(model, options=FREEZE)
    for step in range(3):
        x = torch.randn(2, 3, 12, 12)
        for item, call in ((model, fast), (other, other)):
            item.train(step < 2)
            call(x).square().mean().backward()
            with torch.no_grad():
                for p in item.parameters():
                    p.sub_(0.1 * p.grad)
                    p.grad = None
    for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), other(x), atol=1e-5, rtol=1e-4)


def test_results_made_of_parameters_alone_belong_to_the_caller() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 8))

        def forward(self, x):
            return x + 1, self.weight.exp()

    model = Table().eval()
    fast = compiled(model)
    with torch.no_grad():
        first = fast(torch.zeros(3))[1]
        first.zero_()
        torch.testing.assert_close(fast(torch.zeros(3))[1], model.weight.exp())


def test_a_buffer_that_the_model_writes_to_is_no_constant() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
            self.weight = nn.Parameter(torch.randn(64, 64))

        def forward(self, x):
            self.calls.add_(1)
            return x @ self.weight * self.calls

    model = Counter().eval()
    fast = compiled(model)
    x = torch.randn(64, 64)
    with torch.no_grad():
        for k in range(1, 4):
            torch.testing.assert_close(fast(x), x @ model.weight * k, atol=1e-4, rtol=1e-4)
    assert model.calls == 3


def test_random_numbers_stay_random() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64))

        def forward(self, x):
            return x + F.dropout(self.weight, 0.5, training=True)

    fast = compiled(Noisy().eval())
    with torch.no_grad():
        assert not torch.equal(fast(torch.zeros(64)), fast(torch.zeros(64)))


def test_parameters_made_under_inference_mode_are_refused_by_name() -> None:
    with torch.inference_mode():
        model = nn.Linear(64, 64).eval()
        fast = compiled(model)
        with pytest.raises(BackendError, match="inference_mode"):
            fast(torch.randn(64, 64))


def test_frozen_graphs_are_left_out_of_what_is_stored(tmp_path) -> None:
    fast = compiled(nn.Linear(64, 64).eval())
    with torch.no_grad():
        fast(torch.randn(64, 64))
    report = tracer_core.save(fast, tmp_path / "stored")
    assert not report.stored
    assert "freeze" in report.left_out[0][1]


class Projected(nn.Module):
    """A layer whose weight is [inputs, outputs], as GPT-2's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(256, 512)), nn.Parameter(torch.randn(512))
        self.last = nn.Linear(512, 256)

    def forward(self, x):
        return self.last(F.gelu(torch.addmm(self.bias, x, self.weight)))


@pytest.mark.parametrize("rows", [2, 8, 63, 64])
def test_weights_of_few_rows_are_not_packed(rows, texts) -> None:
    """They are read once and in order; a packed copy takes longer."""
    torch.manual_seed(0)
    model, x = Projected().eval(), torch.randn(rows, 256)
    fast = compiled(model)
    with torch.no_grad():
        for _ in range(2):
            assert_as_accurate_as_eager(fast(x), model, x)
        model.weight.mul_(2)
        assert_as_accurate_as_eager(fast(x), model, x)
        assert fast.release_originals() == (256 * 512 * 4 if rows < 64 else 2 * 256 * 512 * 4)
        fast(x)
    (text,) = texts
    assert text.count(" run_packed(") == (0 if rows < 64 else 2)


def test_release_originals_gives_the_memory_back_and_says_so_to_readers() -> None:
    model = nn.Sequential(
        nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.LayerNorm(256)
    ).eval()
    fast = compiled(model)
    x = torch.randn(64, 256)
    with torch.no_grad():
        before = fast(x)
        assert fast.release_originals() == 2 * 256 * 256 * 4
        assert torch.equal(fast(x), before)
        assert torch.equal(fast(x + 0), before)
        assert model[0].weight.shape == (256, 256)
        for read in (
            lambda: model(x),
            lambda: model[0].weight + 1,
            lambda: model[0].weight.data,
            lambda: model.state_dict(),
            lambda: copy.deepcopy(model),
            lambda: model[0].weight.copy_(torch.zeros(256, 256)),
            lambda: tracer_core.compile(model)(x),
            lambda: model.load_state_dict({"0.weight": torch.zeros(256, 256)}, strict=False),
            lambda: model.double(),
        ):
            with pytest.raises(RuntimeError, match=r"weight.*given back"):
                read()
        with pytest.raises(BackendError, match="given back"):
            fast.refresh()
        assert torch.equal(fast(x), before)
        assert "whose memory was given back" in repr(model[0].weight)
        model[0].weight = nn.Parameter(
            torch.eye(256)
        )  # both again: the other one has no values to prepare from
        model[2].weight = nn.Parameter(torch.eye(256))
        assert_as_accurate_as_eager(fast(x), model, x)


def test_what_the_graph_reads_itself_is_not_released() -> None:
    table = nn.Embedding(1000, 64)
    head = nn.Linear(64, 1000, bias=False)
    head.weight = table.weight
    model = nn.Sequential(table, head).eval()
    fast = compiled(model)
    places = torch.randint(0, 1000, (40,))
    with torch.no_grad():
        assert_as_accurate_as_eager(fast(places), model, places)
        assert fast.release_originals() == 0
        assert_as_accurate_as_eager(fast(places), model, places)


MEMORY = """
import torch
from torch import nn
import tracer_core

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

def make():
    return nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(8))).eval()

x = torch.randn(64, 2048)
with torch.no_grad():
    small = tracer_core.compile(nn.Linear(64, 64, bias=False).eval(), options={"freeze": True})
    small(torch.randn(64, 64))  # compilers and libraries are loaded
    model = make()
    model(x)
    eager = resident()
    fast = tracer_core.compile(model, options={"freeze": True})
    for _ in range(3):
        fast(x)
    frozen = resident()
    given = fast.release_originals() / 2**20
    fast(x)
    print(eager, frozen, given, resident())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_eager_s_and_the_packed_copies() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    eager, frozen, inputs, released = map(float, done.stdout.split())
    weights = 8 * 2048 * 2048 * 4 / 2**20
    assert inputs == weights
    assert frozen - eager <= weights * 1.1 + 16
    assert released <= frozen - 0.95 * weights


@pytest.mark.parametrize("freeze", [False, True])
def test_a_tensor_of_numbers_in_the_forward_under_inference_mode(freeze) -> None:
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x):
            return self.linear(x) * torch.tensor([1.5, 2.0])

    model = Scaled().eval()
    fast = tracer_core.compile(model, options={"freeze": freeze})
    x = torch.randn(3, 2)
    for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode):
        with mode():
            result, expected = fast(x), model(x)
        assert torch.allclose(result, expected)
        assert result.is_inference() == expected.is_inference()
