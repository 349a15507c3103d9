"""Contexts and settings of torch inside and around a compiled function: values, gradients and the
settings afterwards are eager's, and none of them needs a graph break."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import tracer_core
from tests.support.eager_reference import compare_with_eager, same
from tracer_core.testing import CaptureCounter, compare
from tracer_core.torch_private import settings

X, Y = torch.randn(3, 4), torch.randn(3, 4)
W = torch.randn(4, 4)
G, H = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
Q = torch.randn(1, 2, 4, 8)


def autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ W
    return y, y.dtype, x @ W


def autocast_nested(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a = x @ W
        with torch.autocast("cpu", enabled=False):
            b = x @ W
        c = b @ W
    return a, b, c


@torch.autocast("cpu", dtype=torch.bfloat16)
def autocast_decorator(x):
    return x @ W


def autocast_questions(x):
    before = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    with torch.amp.autocast("cpu", dtype=torch.float16, cache_enabled=False):
        inside = (
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.is_autocast_cache_enabled(),
        )
        return x @ W, before, inside


def autocast_mixed(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = F.linear(x, W)
        z = F.softmax(y, -1) + F.layer_norm(y, (4,))
    return z.float()


def autocast_in_loop(x):
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            x = (x @ W).float()
    return x


def autocast_returned_early(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ W
    return x


def autocast_as_argument(x, context=torch.autocast("cpu", dtype=torch.bfloat16)):
    with context:
        return x @ W


def no_grad(x):
    with torch.no_grad():
        y = x * 2
    return y, x * 3


@torch.no_grad()
def no_grad_decorator(x):
    return x * 2


@torch.enable_grad()
def enable_grad_decorator(x):
    return x * 2


def enable_grad_inside(x):
    with torch.no_grad():
        with torch.enable_grad():
            a = x * 2
        b = x * 3
        c = enable_grad_decorator(x)
    return a, b, c, torch.is_grad_enabled()


def set_grad_enabled(x):
    with torch.set_grad_enabled(False):
        a = x * 2
    torch.set_grad_enabled(False)
    b = x * 2
    torch.set_grad_enabled(True)
    return a, b, x * 2


def grad_mode_chosen(x, train):
    with torch.set_grad_enabled(train):
        return x * 2


def inference_mode(x):
    with torch.inference_mode():
        y = x * 2
        inside = torch.is_inference_mode_enabled(), y.is_inference(), torch.is_grad_enabled()
    return inside, torch.is_inference_mode_enabled(), (y + 1).sum(), x * 2


@torch.inference_mode()
def inference_mode_decorator(x):
    return x * 2


def inference_mode_off(x):
    with torch.inference_mode(), torch.inference_mode(False):
        return x * 2, torch.is_inference_mode_enabled()


def device_context(x):
    with torch.device("cpu"):
        return x + torch.ones(4), torch.get_default_device()


def device_context_meta(x):
    with torch.device("meta"):
        y = torch.ones(4)
        z = torch.zeros(2, device="cpu")
    return y.device, z, torch.ones(2), x * 2


def device_contexts_nested(x):
    with torch.device("meta"):
        with torch.device("cpu"):
            y = x + torch.arange(4)
        return y, torch.empty(3).shape


def default_dtype_inside(x):
    torch.set_default_dtype(torch.float64)
    try:
        return x + torch.ones(4), torch.tensor(1.0), torch.get_default_dtype()
    finally:
        torch.set_default_dtype(torch.float32)


def sdpa(q):
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, q, q)


def sdpa_several(q):
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        a = F.scaled_dot_product_attention(q, q, q)
    return a, torch.backends.cuda.math_sdp_enabled(), torch.backends.cuda.flash_sdp_enabled()


def record_function(x):
    with torch.profiler.record_function("a label"):
        y = x * 2
    with torch.autograd.profiler.record_function("another"):
        return y * 2


@torch.profiler.record_function("decorated")
def labelled(x):
    return x + 1


def anomaly(x):
    with torch.autograd.set_detect_anomaly(True):
        y = x * 2
        inside = torch.is_anomaly_enabled()
    return y, inside, torch.is_anomaly_enabled()


def matmul_precision(x):
    torch.set_float32_matmul_precision("high")
    y = x @ W, torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    return y


def deterministic_inside(x):
    torch.use_deterministic_algorithms(True, warn_only=True)
    y = x * 2, torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    return y


def exit_stack(x):
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
        return x @ W


def chosen_context(x):
    with torch.no_grad() if x.shape[0] == 3 else contextlib.nullcontext():
        return x * 2


def raises_inside(x):
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            y = x @ W
            raise ValueError
    except ValueError:
        return y, x @ W, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")


ONE_GRAPH = {f.__name__: (f, (X,), (Y,)) for f in (
    autocast, autocast_nested, autocast_decorator, autocast_questions, autocast_mixed,
    autocast_in_loop,
    autocast_returned_early, autocast_as_argument, device_context, device_context_meta,
    device_contexts_nested,
    default_dtype_inside, record_function, labelled, matmul_precision, deterministic_inside,
    chosen_context,
    inference_mode, inference_mode_decorator, raises_inside,
)}  # fmt: skip
ONE_GRAPH |= {f"{f.__name__} with gradients": (f, (G,), (H,)) for f in (
    autocast, autocast_mixed, no_grad, no_grad_decorator, enable_grad_inside, set_grad_enabled,
    inference_mode,
    inference_mode_off, exit_stack, anomaly, record_function,
)}  # fmt: skip
ONE_GRAPH |= {f.__name__: (f, (Q,), (Q * 2,)) for f in (sdpa, sdpa_several)}


@pytest.mark.parametrize("name", ONE_GRAPH)
def test_one_graph(name):
    function, *calls = ONE_GRAPH[name]
    before = settings.snapshot()
    same(function, *calls, graphs=1)
    assert settings.snapshot() == before


def test_a_graph_for_each_grad_mode():
    same(grad_mode_chosen, (G, True), (G, False), (H, True), graphs=2)


@pytest.mark.parametrize("function", [autocast, autocast_nested, no_grad, exit_stack,
set_grad_enabled, device_context],
                         ids=lambda f: f.__name__)  # fmt: skip
def test_inductor(function):
    same(function, (X,), (Y,), graphs=1, backend="inductor")


AROUND = {
    "default dtype": (lambda _: torch.set_default_dtype(torch.float64),
    lambda _: torch.set_default_dtype(torch.float32)),
    "default device": (lambda _: torch.set_default_device("cpu"),
    lambda _: torch.set_default_device(None)),
    "deterministic": (lambda _: torch.use_deterministic_algorithms(True),
    lambda _: torch.use_deterministic_algorithms(False)),
    "grad mode": (lambda _: torch._C._set_grad_enabled(False),
    lambda _: torch._C._set_grad_enabled(True)),
    "autocast": (lambda _: torch.set_autocast_enabled("cpu", True),
    lambda _: torch.set_autocast_enabled("cpu", False)),
    "autocast dtype": (lambda _: torch.set_autocast_dtype("cpu", torch.float16),
                       lambda _: torch.set_autocast_dtype("cpu", torch.bfloat16)),
    "matmul precision": (lambda _: torch.set_float32_matmul_precision("high"),
                         lambda _: torch.set_float32_matmul_precision("highest")),
}  # fmt: skip


@pytest.mark.parametrize("name", AROUND)
def test_changed_between_calls(name):
    change, back = AROUND[name]

    def f(x):
        messages = (torch.get_default_dtype(), torch.get_default_device(),
        torch.are_deterministic_algorithms_enabled(),
                torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"),
                torch.get_autocast_dtype("cpu"),
                torch.get_float32_matmul_precision())  # fmt: skip
        return x @ W, torch.ones(2), torch.tensor(1.5), messages

    try:
        compare_with_eager(
            lambda: f, (X,), (Y,), change, (X,), (Y,), back, (X,), graphs=2, breaks=0, recompiles=1
        )
    finally:
        back(None)


BROKEN = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "device": lambda: torch.device("cpu"),
    "record_function": lambda: torch.profiler.record_function("label"),
    "sdpa_kernel": lambda: sdpa_kernel(SDPBackend.MATH),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
}
#: Contexts that C++ objects or torch's stack of modes hold: leaving one that was entered before the
#: break is a break.
HELD = {"inference_mode": 3, "device": 4, "record_function": 4, "sdpa_kernel": None}


@pytest.mark.parametrize("name", BROKEN)
def test_break_inside(name):
    """The context is as eager's at the break and in the region after it."""
    make = BROKEN[name]

    def told():
        return (
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.is_inference_mode_enabled(),
        )

    def f(x):
        with make():
            a = x @ W
            tracer_core.graph_break()
            b = a.float() @ W
            inside = told()
        return a, b, x @ W, inside, told()

    before = settings.snapshot()
    same(f, (X,), (Y,), (G,), breaks=HELD.get(name, 2), kinds=None)
    assert settings.snapshot() == before
    assert torch._C._len_torch_function_stack() == 0


def test_a_setting_that_stays():
    def f(x):
        torch.set_float32_matmul_precision("medium")
        return x * 2

    def back(_):
        torch.set_float32_matmul_precision("highest")

    compiled = tracer_core.compile(f, backend="eager")
    with CaptureCounter() as counter:
        for _ in range(3):
            compiled(X)
            assert torch.get_float32_matmul_precision() == "medium"
            back(None)
    assert len(counter.graphs) == 1 and not counter.breaks


@pytest.fixture
def precision_by_backend():
    """As torch's notes advise since 2.9; torch.get_float32_matmul_precision() raises from then
    on.
    """
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.fp32_precision = before


def test_precision_that_was_set_by_backend(precision_by_backend):
    with pytest.raises(RuntimeError, match="legacy and new"):
        torch.get_float32_matmul_precision()
    same(lambda x: x @ W, (X,), (Y,), graphs=1, backend="inductor")
    same(lambda x: (x @ W, torch.get_float32_matmul_precision()), (X,), kinds=None, breaks=None)
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"


def test_precision_that_was_set_by_backend_comes_back(precision_by_backend):
    before = settings.snapshot()
    torch.set_float32_matmul_precision("highest")
    assert torch.backends.cuda.matmul.fp32_precision == "ieee"
    settings.restore(before)
    assert settings.snapshot() == before and torch.backends.cuda.matmul.fp32_precision == "tf32"


def test_an_operator_that_fails_leaves_the_settings():
    def f(x, i):
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            return F.embedding(i, x @ W)

    good, bad = torch.tensor([0, 2]), torch.tensor([0, 9])
    before = settings.snapshot()
    same(f, (X, good), (X, bad), (Y, good), graphs=1)
    assert settings.snapshot() == before


def test_casts_kept_by_autocast_are_forgotten():
    weight = torch.nn.Parameter(torch.ones(4, 4))

    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ weight

    compiled = tracer_core.compile(f, backend="eager")
    compiled(X)
    with torch.no_grad():
        weight.mul_(2)
    assert torch.equal(compiled(X), f(X))


def test_inference_tensors_as_inputs():
    with torch.inference_mode():
        x, y = torch.ones(3, 4), torch.ones(3, 4) * 2

    def f(x):
        return x * 2, x.is_inference()

    compiled = tracer_core.compile(f, backend="eager")
    for value in (x, y, X):
        got, want = compiled(value), f(value)
        assert torch.equal(got[0], want[0]) and got[1] == want[1]


def test_levels_of_autocast():
    """autocast counts how deep it is nested, and forgets its casts at the outermost level only."""

    def level():
        torch.autocast_increment_nesting()
        return torch.autocast_decrement_nesting()

    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ W
            seen = native_level()
            return y @ W, seen

    @tracer_core.disable
    def native_level():
        return level()

    before = level()
    compiled = tracer_core.compile(f, backend="eager")
    for x in (X, Y, X):
        want, got = f(x), compiled(x)
        assert got[1] == want[1] == before + 1 and torch.equal(got[0], want[0])
        assert level() == before


def _autocast_program(lin, end):
    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = lin(x)
            end()
            y = lin(y)
        return y

    return f


def _no_end():
    pass


def _break_inside():
    tracer_core.graph_break()


def _raise_inside():
    raise ValueError("inside")


@pytest.mark.parametrize("end", [_no_end, _break_inside, _raise_inside])
def test_weights_that_change_between_autocast_calls(end):
    x = torch.ones(2, 4)
    results = []
    for backend in (None, "eager"):
        torch.manual_seed(0)
        lin = torch.nn.Linear(4, 4)
        f = _autocast_program(lin, end)
        call = f if backend is None else tracer_core.compile(f, backend=backend)
        actual = []
        for _ in range(3):
            with contextlib.suppress(ValueError):
                actual.append(call(x))
            with torch.autocast("cpu", dtype=torch.bfloat16):
                actual.append(lin(x))
            with torch.no_grad():
                lin.weight.add_(1)
        results.append(actual)
    compare(results[0], results[1])


def test_a_number_of_devices_is_asked_again(monkeypatch):
    """torch counts CUDA's devices in the driver until one is used: more or fewer may be visible."""

    def f(x):
        return x * torch.cuda.device_count() + torch.cuda._device_count_nvml()

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    fast = tracer_core.compile(f, backend="eager", fullgraph=True)
    actual = [(fast(X), f(X))]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    actual += [(fast(X), f(X)), (fast(X), f(X))]
    for ours, eager in actual:
        torch.testing.assert_close(ours, eager, atol=0, rtol=0)
    assert not actual[0][1].equal(actual[1][1])
