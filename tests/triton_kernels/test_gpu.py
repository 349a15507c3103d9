"""On a real GPU: operators and models against eager, values and gradients. ``python -m pytest -m
gpu``.
"""

from __future__ import annotations

import copy
import math
import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import tracer_core
from inductor_backend.pipeline import compile_graph
from inductor_backend.plugin import BACKEND
from tests.inductor.test_operators import PROGRAMS
from tests.triton_kernels.test_interpreted import OWN

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]

CASES = {**PROGRAMS, **OWN}


def on_gpu(inputs, dtype=torch.float32, grad=False):
    result = []
    for x in inputs:
        if not isinstance(x, torch.Tensor):
            result.append(x)
            continue
        kind = dtype if x.dtype == torch.float32 else x.dtype
        y = torch.empty_strided(x.shape, x.stride(), dtype=kind, device="cuda").copy_(x)
        result.append(y.requires_grad_(grad and y.is_floating_point()))
    return result


def flat(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


def tolerance(dtype, name=""):
    """Convolutions of float32 round their operands to TF32 (torch's default), ours and eager's in
    other algorithms.
    """
    if dtype in (torch.bfloat16, torch.float16):
        return {"atol": 3e-2, "rtol": 3e-2}
    if "convolution" in name:
        return {"atol": 5e-3, "rtol": 2e-3}
    return {"atol": 1e-4, "rtol": 1e-4}


def run(fn, inputs, grad):
    results = flat(fn(*inputs))
    grads = []
    if grad:
        losses = [
            r.float().square().mean() for r in results if r.is_floating_point() and r.requires_grad
        ]
        if losses:
            sum(losses).backward()
        grads = [x.grad for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    return results, grads


@pytest.fixture(autouse=True)
def _no_tf32(monkeypatch):
    """cuDNN's algorithms for one convolution, and ours, differ by 1e-3 with it."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float32 gradients"])
@pytest.mark.parametrize("name", CASES)
def test_operators(name, kind):
    fn, *inputs = CASES[name]
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    grad = kind.endswith("gradients")
    mine = on_gpu(inputs, dtype, grad)
    theirs = on_gpu(inputs, dtype, grad)
    try:
        expected, expected_grads = run(fn, theirs, grad)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        pytest.skip(f"eager: {str(error)[:80]}")
    fast = tracer_core.compile(fn)
    for again in range(2):
        mine = on_gpu(inputs, dtype, grad)
        results, grads = run(fast, mine, grad)
        for ours, eager in zip(results, expected, strict=True):
            assert (ours.dtype, ours.shape, ours.stride(), ours.device) == (
                eager.dtype,
                eager.shape,
                eager.stride(),
                eager.device,
            )
            torch.testing.assert_close(ours, eager, equal_nan=True, **tolerance(eager.dtype, name))
        for ours, eager in zip(grads, expected_grads, strict=True):
            assert (ours is None) == (eager is None)
            if eager is not None:
                torch.testing.assert_close(
                    ours, eager, equal_nan=True, **tolerance(eager.dtype, name)
                )
    for ours, eager in zip(mine, theirs, strict=True):
        if isinstance(ours, torch.Tensor):
            torch.testing.assert_close(
                ours.detach(), eager.detach(), equal_nan=True, **tolerance(eager.dtype)
            )


def test_quotients_by_zero_that_triton_could_know():
    """Remainders are undefined: those of one kernel with a quotient follow from it."""

    def program(i):
        zero = i ^ i
        return 7 // zero, i // zero, torch.div(i, zero, rounding_mode="trunc")

    for dtype in (torch.int32, torch.int64, torch.bool):
        i = torch.arange(-5, 5, device="cuda").to(dtype)
        fast = tracer_core.compile(program if dtype is not torch.bool else lambda i: 7 // (i ^ i))
        eager = program(i) if dtype is not torch.bool else [7 // (i ^ i)]
        for ours, theirs in zip(flat(fast(i)), eager, strict=True):
            assert torch.equal(ours, theirs)


DIVISORS = [
    3.0,
    58.0,
    -7.0,
    0.1,
    1e20,
    1e-20,
    1.9999999,
    1e38,
    3e38,
    1e-38,
    2e-39,
    1e-45,
    0.0,
    -0.0,
]
DIVISORS += [math.inf, -math.inf, math.nan]


def dividends(device="cuda"):
    torch.manual_seed(0)
    powers = torch.arange(-126, 128, device=device, dtype=torch.float32).exp2()[:, None]
    numbers = (powers * (1 + torch.rand(254, 64, device=device))).flatten()
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45], device=device)
    return torch.cat([numbers, -numbers, special])


def same_quotients(ours, eager, x):
    """All bits, but for the last one of small dividends and of denormals."""
    large = x.abs() >= 2.0**-100
    torch.testing.assert_close(ours[large], eager[large], rtol=0, atol=2e-45, equal_nan=True)
    torch.testing.assert_close(ours, eager, rtol=1.3e-7, atol=2e-45, equal_nan=True)


def test_quotients_by_a_rows_number_are_exact():
    """They are products with its reciprocal, and corrected."""

    def fn(x, d):
        quotient = x / d[:, None]
        return quotient, quotient.clamp(-1, 1).sum(1)

    d = torch.tensor(DIVISORS, device="cuda")
    x = dividends().expand(len(DIVISORS), -1).contiguous()
    ours, eager = tracer_core.compile(fn, backend="inductor")(x, d), fn(x, d)
    same_quotients(ours[0], eager[0], x)


@pytest.mark.parametrize("number", DIVISORS)
def test_quotients_by_a_number_are_exact(number):
    x = dividends()
    ours = tracer_core.compile(lambda x: x / number, backend="inductor")(x)
    same_quotients(ours, x / torch.full_like(x, number), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_bounds_that_are_nan(dtype):
    nan = float("nan")

    def program(x):
        item = x.clamp(max=nan), x.clamp(min=nan), x.clamp_max(nan), x.clamp_min(nan)
        return *item, x.clamp(nan, 1), x.clamp(0, nan), x.clamp(max=torch.tensor(nan).to(x))

    x = torch.tensor([-1.0, 0.0, 2.0, nan], dtype=dtype, device="cuda")
    for ours, theirs in zip(tracer_core.compile(program)(x), program(x), strict=True):
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_of_negative_zeros_are_zeros(dtype):
    def program(x):
        return x.sum(1), x.sum(), x.double().sum(1), x[:, :1].sum(1), x.nanmean(1), x.mean(1)

    for size in ((4, 8), (3, 5), (2, 4096), (2, 70_000)):
        x = -torch.zeros(size, dtype=dtype, device="cuda")
        for ours, eager in zip(tracer_core.compile(program)(x), program(x), strict=True):
            assert torch.equal(ours.signbit(), eager.signbit())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_scaled_terms_overflow_as_in_eager(dtype):
    """ATen multiplies by `value` last on GPUs, and first on the CPU."""
    large = torch.finfo(dtype).max

    def program(x, a, b):
        terms = torch.addcmul(x, a, b, value=large), torch.addcdiv(x, a, b, value=large)
        lists = torch._foreach_addcdiv([x], [a], [b], value=large)
        return *terms, *lists, torch.addcmul(x, a, b), torch.addcdiv(x, a, b, value=0.1)

    x = torch.tensor([0.0, 1.0, -1.0, 0.0, 2.0], dtype=dtype, device="cuda")
    a = torch.tensor([4.0, 0.25, 3.0, 1e-3, 8.0], dtype=dtype, device="cuda")
    b = torch.tensor([0.125, 4.0, 3.0, 1e-3, 8.0], dtype=dtype, device="cuda")
    for ours, theirs in zip(tracer_core.compile(program)(x, a, b), program(x, a, b), strict=True):
        torch.testing.assert_close(ours, theirs)


def _resnet():
    import torchvision

    return torchvision.models.resnet18(), (torch.randn(4, 3, 64, 64),)


def _bert():
    from transformers import BertConfig, BertModel

    config = BertConfig(num_hidden_layers=2, attn_implementation="sdpa", return_dict=False)
    return BertModel(config, add_pooling_layer=True), (torch.randint(0, 30000, (2, 32)),)


def _gpt2():
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(n_layer=2, return_dict=False, use_cache=False)
    return GPT2Model(config), (torch.randint(0, 50000, (2, 32)),)


def _vit():
    import timm

    return timm.create_model("vit_tiny_patch16_224"), (torch.randn(2, 3, 224, 224),)


MODELS = {"resnet18": _resnet, "bert": _bert, "gpt2": _gpt2, "vit": _vit}


def first(result):
    return result[0] if isinstance(result, (tuple, list)) else result


@pytest.mark.parametrize("phase", ["eval", "train"])
@pytest.mark.parametrize("name", MODELS)
def test_models(name, phase):
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model = model.cuda().double().float()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.train(phase == "train")
    inputs = [x.cuda() for x in inputs]
    exact = copy.deepcopy(model).double()
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    ours = copy.deepcopy(model)
    fast = tracer_core.compile(ours)
    error = {}
    for _ in range(2):
        for label, net, args in (
            ("eager", model, inputs),
            ("ours", fast, inputs),
            ("exact", exact, wide),
        ):
            net.zero_grad()
            with torch.set_grad_enabled(phase == "train"):
                result = first(net(*args))
                if phase == "train":
                    result.float().square().mean().backward()
            error[label] = result.detach().double()
    scale = error["exact"].abs().max()
    eager = ((error["eager"] - error["exact"]).abs().max() / scale).item()
    mine = ((error["ours"] - error["exact"]).abs().max() / scale).item()
    assert mine <= max(3 * eager, 2e-5), (mine, eager)
    if phase == "train":
        for (where, a), (_, b), (_, t) in zip(
            model.named_parameters(), ours.named_parameters(), exact.named_parameters(), strict=True
        ):
            assert (a.grad is None) == (b.grad is None), where
            if a.grad is None:
                continue
            size = t.grad.abs().max().item() + 1e-12
            eager = (a.grad.double() - t.grad).abs().max().item() / size
            mine = (b.grad.double() - t.grad).abs().max().item() / size
            assert mine <= max(4 * eager, 1e-3), (where, mine, eager)


def kept(fn):
    """The compiled function, and a list that gets what is made of each of its graphs."""
    result = []

    def compile_and_keep(gm, spec):
        result.append(compile_graph(gm, spec))
        return result[-1]

    return tracer_core.compile(fn, backend=replace(BACKEND, compile=compile_and_keep)), result


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_causal_mask_of_the_programs_own_is_a_flag(dtype):
    def program(q):
        places = torch.arange(q.shape[2], device=q.device)
        mask = places[None, :] <= places[:, None]
        return F.scaled_dot_product_attention(q, q * 2, q + 1, attn_mask=mask[None, None])

    q = torch.randn(2, 256, 4, 64, device="cuda", dtype=dtype).transpose(1, 2)
    fast, result = kept(program)
    with torch.no_grad():
        expected = program(q)
        actual = fast(q)
    torch.testing.assert_close(actual, expected, **tolerance(dtype))
    flash = dtype == torch.bfloat16
    (extern,) = result[0].artifact.externs
    assert ("flash" if flash else "efficient") in extern and "tl.where" not in result[
        0
    ].artifact.text


def test_inputs_that_repeat_an_element():
    x, y = (
        torch.randn(1, 70, device="cuda").expand(50, 70),
        torch.randn(50, 1, device="cuda").expand(50, 70),
    )
    fns = (
        lambda x, y: x.sin() * 2 + y,
        lambda x, y: (x.sum(1), y.sum(1), y.softmax(1), x.softmax(0), y.cumsum(1)),
    )
    for fn in fns:
        torch.testing.assert_close(tracer_core.compile(fn)(x, y), fn(x, y), atol=1e-5, rtol=1e-5)


def test_inputs_that_are_not_aligned():
    base = torch.randn(1001, device="cuda")
    fast = tracer_core.compile(lambda x: x.sin() * 2)
    for start in (0, 1, 2, 1):
        x = base[start : start + 1000]
        torch.testing.assert_close(fast(x), x.sin() * 2)


def test_other_streams():
    fast = tracer_core.compile(lambda x: (x @ x).relu() + 1)
    x = torch.randn(256, 256, device="cuda")
    expected = fast(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        results = [fast(x) for _ in range(20)]
    torch.cuda.synchronize()
    for result in results:
        torch.testing.assert_close(result, expected)


def launched(fn, *inputs):
    """Names of the kernels that the device runs in a call (copies are none)."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        fn(*inputs)
        torch.cuda.synchronize()
    names = [
        event.name for event in seen.events() if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    return [name for name in names if not name.startswith(("Memcpy", "Memset"))]


def trig(x, y):
    return torch.cos(x.cuda()) + torch.sin(y.cuda())


@pytest.mark.parametrize("places", ["cpu cpu", "cuda cuda", "cpu cuda"])
def test_trigonometry_with_cuda_inside_is_one_kernel(places):
    """Wherever the inputs are: one kernel, one load per input, one store; inputs on the CPU are
    copied before it.
    """
    fast, result = kept(trig)
    inputs = [torch.randn(10_000, device=device) for device in places.split()]
    for _ in range(3):
        assert torch.equal(fast(*inputs), trig(*inputs))
    (graph,) = result
    text = graph.artifact.text
    assert text.count("@triton.jit") == 1 and graph.artifact.kernels == 1
    assert text.count("tl.load(") == 2 and text.count("tl.store(") == 1
    assert len(graph.artifact.externs) == places.count("cpu")
    assert len(launched(trig, *inputs)) == 3  # cos, sin, add
    (kernel,) = launched(fast, *inputs)
    assert "cos_sin_add" in kernel


def test_shapes_that_change():
    fast = tracer_core.compile(lambda x, w: F.layer_norm(x @ w, (64,)).softmax(-1))
    w = torch.randn(32, 64, device="cuda")
    for rows in (3, 5, 17, 3):
        x = torch.randn(rows, 32, device="cuda")
        torch.testing.assert_close(
            fast(x, w), F.layer_norm(x @ w, (64,)).softmax(-1), atol=1e-4, rtol=1e-4
        )


def test_questions_about_the_device_are_no_breaks():
    """Programs choose dtypes and grids by them, torch.autocast whether bfloat16 is there."""

    def program(x, w):
        major, _ = torch.cuda.get_device_capability()
        properties = torch.cuda.get_device_properties(x.device)
        with torch.autocast(
            "cuda", torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
        ):
            y = x @ w
        return y * major + properties.multi_processor_count, (
            torch.cuda.current_device(),
            properties.name,
        )

    x, w = torch.randn(8, 16, device="cuda"), torch.randn(16, 4, device="cuda")
    fast = tracer_core.compile(program, fullgraph=True)
    for _ in range(3):
        (actual, messages), (expected, facts) = fast(x, w), program(x, w)
        torch.testing.assert_close(actual, expected)
        assert messages == facts


def _as_eager(fn, *inputs):
    try:
        expected = fn(*inputs)
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=re.escape(str(error).splitlines()[0])):
            tracer_core.compile(fn)(*inputs)
        return
    actual = tracer_core.compile(fn)(*inputs)
    torch.testing.assert_close(actual, expected, atol=1e-3, rtol=1e-3)
    assert actual.stride() == expected.stride()


def test_operators_that_differ_from_their_fakes_on_this_device():
    """What the operator sweep found: kernels of CUDA devices that refuse, or lay results out
    otherwise.
    """
    images = torch.randn(7, 5, 9, 2, device="cuda").permute(3, 2, 1, 0)
    _as_eager(lambda x: F.channel_shuffle(x, 3), images)
    _as_eager(lambda x: F.channel_shuffle(x, 3), images.contiguous())
    result = torch.randn(5, 5, device="cuda").softmax(0)
    for dtype in (torch.float32, torch.float16):
        backward = lambda g, y: torch.ops.aten._softmax_backward_data(g, y, 0, y.dtype)
        _as_eager(backward, torch.randn(5, 5, device="cuda"), result.to(dtype))
    pairs = torch.randn(2, 8, 4, dtype=torch.complex64, device="cuda").transpose(1, 2)
    for dims in ((1, 2), (2, 1), (0, 1, 2)):
        _as_eager(lambda x, dims=dims: torch.fft.fftn(x, dim=dims), pairs)
    rows = torch.randn(1, 5, 5, device="cuda").expand(5, 5, 5)
    _as_eager(
        lambda x, y: torch.select_scatter(x, y, 0, 1) * 2, rows, torch.randn(5, 5, device="cuda")
    )
    _as_eager(
        lambda x, y: torch.slice_scatter(x, y, 0, 1, 2), rows, torch.randn(1, 5, 5, device="cuda")
    )
    _as_eager(lambda x, y: torch.diagonal_scatter(x, y), rows[:, 0], torch.randn(5, device="cuda"))
    mean = torch.zeros(2, 4, 3, device="cuda").permute(2, 1, 0)
    _as_eager(lambda x: torch.normal(x, torch.zeros(3, 4, 2, device="cuda")) + 1, mean)
    q = torch.randn(2, 16, 2, 8, device="cuda")
    _as_eager(
        lambda q: torch.ops.aten._efficient_attention_forward(
            q, q, q, None, None, None, None, None, 0.0, 0
        )[0],
        q,
    )
