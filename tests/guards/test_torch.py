"""One case a fact about torch: properties and aliasing of tensors, modes and settings."""

from __future__ import annotations

import pytest
import torch

import tracer_core
from tests.support.eager_reference import compare_with_eager, same
from tests.support.guard_facts import Box, Facts, X, check

fact = Facts()


# -- a tensor that is not an argument --


def tensor(make, change, program=lambda x, t: (t + 1, x.sum()), **options):
    """A case whose program reads a tensor of an object. change(box): changes the tensor, or
    replaces it.
    """

    def register(name):
        @fact(name, **options)
        def _():
            b = Box(t=make())
            return (lambda x: program(x, b.t)), lambda: change(b)

    return register


def put(make):
    return lambda b: setattr(b, "t", make())


def ones(*shape, **options):
    return torch.ones(*shape, **options)


tensor(lambda: ones(4), put(lambda: ones(4) * 2), seen=False)("tensor: values")
tensor(lambda: ones(4), put(lambda: ones(5)), reason="shape")("tensor: shape")
tensor(lambda: ones(4), put(lambda: ones(4, 1)), reason="shape")("tensor: number of dimensions")
tensor(lambda: ones(4), put(lambda: ones(0)), reason="shape")("tensor: becomes empty")
tensor(lambda: ones(3, 3), put(lambda: ones(3, 3).t() * 2), reason="stride")("tensor: transposed")
tensor(lambda: ones(2, 3), put(lambda: ones(3, 2).t()), reason="stride")("tensor: strides")
tensor(lambda: ones(2, 3), put(lambda: ones(1, 3).expand(2, 3)), reason="stride",
       program=lambda x, t: x * (t.stride()[0] + 1))("tensor: expanded")  # fmt: skip
tensor(lambda: ones(4), put(lambda: ones(4).double()), reason="dtype")("tensor: dtype")
tensor(lambda: ones(4), put(lambda: ones(4).bfloat16()), reason="dtype")(
    "tensor: dtype of another width"
)
tensor(lambda: ones(4), put(lambda: ones(4, device="meta")), reason="device", breaks=None)(
    "tensor: device"
)
tensor(lambda: ones(4), put(lambda: ones(4, requires_grad=True)), reason="requires_grad")(
    "tensor: requires_grad"
)
tensor(lambda: ones(4), lambda b: b.t.requires_grad_(True), reason="requires_grad")(
    "tensor: requires_grad_ in place"
)
tensor(
    lambda: ones(4, requires_grad=True), lambda b: b.t.requires_grad_(False), reason="requires_grad"
)("tensor: requires_grad switched off in place")
tensor(lambda: ones(4), lambda b: b.t.add_(ones(4, requires_grad=True)), reason="requires_grad")(
    "tensor: becomes part of a differentiated computation"
)
tensor(lambda: ones(4).requires_grad_(True).requires_grad_(False), lambda b: b.t.add_(ones(4,
requires_grad=True)),
       reason="requires_grad")("tensor: that once required grad becomes part of a computation")  # fmt: skip
tensor(lambda: ones(4), put(lambda: torch.nn.Parameter(ones(4), requires_grad=False)),
reason="Parameter",
       program=lambda x, t: x * (2 if isinstance(t,
       torch.nn.Parameter) else 3))("tensor: becomes a Parameter")  # fmt: skip
tensor(lambda: ones(2, dtype=torch.complex64) * 1j, put(lambda: (ones(2,
dtype=torch.complex64) * 1j).conj()),
       reason="keys", breaks=None)("tensor: conjugate view")  # fmt: skip
tensor(
    lambda: ones(2), put(lambda: (ones(2, dtype=torch.complex64) * 1j).conj().imag), breaks=None
)("tensor: negative view")
tensor(lambda: ones(4), lambda b: setattr(b.t, "data", ones(5)), reason="shape")(
    "tensor: shape by .data"
)
tensor(lambda: ones(4), lambda b: setattr(b.t, "data", ones(4).double()), reason="dtype")(
    "tensor: dtype by .data"
)
tensor(lambda: ones(4), lambda b: setattr(b.t, "data", ones(4) * 2), seen=False)(
    "tensor: values by .data"
)
tensor(lambda: ones(4), lambda b: b.t.resize_(6).fill_(1), reason="shape")("tensor: resize_")
tensor(lambda: ones(2, 3), lambda b: b.t.t_(), reason="shape")("tensor: t_")
tensor(lambda: ones(2, 2), lambda b: b.t.as_strided_((2, 2), (1, 2)), reason="stride",
       program=lambda x, t: (t * 2).is_contiguous())("tensor: as_strided_")  # fmt: skip
tensor(
    lambda: ones(4), lambda b: b.t.set_(ones(6).untyped_storage(), 0, (6,), (1,)), reason="shape"
)("tensor: set_")
tensor(lambda: ones(1, 2, 1, 2, 1, 2), put(lambda: ones(1, 2, 1, 2, 1, 3)), reason="shape")(
    "tensor: six dimensions"
)
tensor(
    lambda: ones(1, 2, 1, 2, 1, 2), lambda b: b.t.resize_(1, 2, 1, 2, 1, 3).fill_(1), reason="shape"
)("tensor: six dimensions, in place")
tensor(lambda: ones(4), put(lambda: torch.sparse_coo_tensor([[1]], [1.0], (4,))), breaks=None)(
    "tensor: layout"
)
tensor(lambda: ones(4), lambda b: torch.utils.swap_tensors(b.t, ones(5)), reason="shape")(
    "tensor: swap_tensors"
)
tensor(lambda: ones(4), put(lambda: 3.0), reason="t", program=lambda x, t: x * t)(
    "tensor: becomes a number"
)
tensor(
    lambda: ones(4),
    put(lambda: None),
    reason="t",
    program=lambda x, t: x if t is None else x * t + 1,
)("tensor: becomes None")


@fact("tensor: an attribute set on it", reason="tag", breaks=None)
def _():
    t = ones(4)
    t.tag = 2
    b = Box(t=t)
    return (lambda x: x * b.t.tag), lambda: setattr(t, "tag", 3)


@fact("tensor: an attribute appears", breaks=None)
def _():
    b = Box(t=ones(4))
    return (lambda x: x * getattr(b.t, "tag", 2)), lambda: setattr(b.t, "tag", 3)


@fact("tensor: .grad appears", breaks=None)
def _():
    p = torch.nn.Parameter(ones(4))
    return (lambda x: x * 2 if p.grad is None else x * p.grad), lambda: setattr(
        p, "grad", ones(4) * 5
    )


@fact("tensors: two become one", reason="b")
def _():
    b, c = Box(t=ones(4)), Box(t=ones(4))
    return (lambda x: x * (2 if b.t is c.t else 3)), lambda: setattr(c, "t", b.t)


@fact("tensors: one becomes two", reason="t")
def _():
    b = Box(t=ones(4))
    c = Box(t=b.t)
    return (lambda x: x * (2 if b.t is c.t else 3)), lambda: setattr(c, "t", ones(4))


@fact("tensors: written input comes to share memory with another", reason="alias")
def _():
    base = torch.arange(8.0)
    b = Box(t=torch.arange(4.0), u=torch.arange(4.0))

    def program(x):
        b.t.zero_()
        b.t.add_(1)
        return b.u + x

    def change():
        b.t, b.u = base[:4], base[2:6]

    return program, change


@fact("tensors: written input comes to be the other", reason="")
def _():
    b = Box(t=torch.arange(4.0), u=torch.arange(4.0))

    def program(x):
        b.t.zero_()
        b.t.add_(1)  # the same however often it runs
        return b.u + x

    return program, lambda: setattr(b, "u", b.t)


# -- settings --


def setting(change, restore, program, **options):
    def register(name):
        fact(name, **options)(lambda: (program, change, restore))

    return register


setting(lambda: torch.set_grad_enabled(False), lambda: torch.set_grad_enabled(True),
        lambda x, p=torch.nn.Parameter(ones(4)): x * p,
        reason="is_grad_enabled")("grad mode")  # fmt: skip
setting(lambda: torch.set_default_dtype(torch.float64),
lambda: torch.set_default_dtype(torch.float32),
        lambda x: torch.ones(2), reason="default_dtype")("default dtype")  # fmt: skip
setting(lambda: torch.set_default_device("meta"), lambda: torch.set_default_device(None),
        lambda x: torch.ones(2), reason="function_modes")("default device")  # fmt: skip
setting(lambda: torch.use_deterministic_algorithms(True),
lambda: torch.use_deterministic_algorithms(False),
        lambda x: x * (2 if torch.are_deterministic_algorithms_enabled() else 3),
        reason="deterministic")("deterministic mode")  # fmt: skip
setting(lambda: torch.use_deterministic_algorithms(True, warn_only=True),
        lambda: torch.use_deterministic_algorithms(False),
        lambda x: x * (2 if torch.is_deterministic_algorithms_warn_only_enabled() else 3),
        breaks=None)("deterministic mode, warnings only")  # fmt: skip
setting(lambda: torch.set_float32_matmul_precision("medium"),
lambda: torch.set_float32_matmul_precision("highest"),
        lambda x: x * len(torch.get_float32_matmul_precision()),
        breaks=None)("float32 matmul precision")  # fmt: skip
setting(lambda: setattr(torch.backends.cudnn, "benchmark", True),
lambda: setattr(torch.backends.cudnn, "benchmark", False),
        lambda x: x * (2 if torch.backends.cudnn.benchmark else 3),
        breaks=None)("a flag of torch.backends")  # fmt: skip
setting(lambda: setattr(torch.backends.mkldnn, "deterministic", True),
        lambda: setattr(torch.backends.mkldnn, "deterministic", False),
        lambda x: x * (2 if torch.backends.mkldnn.deterministic else 3),
        breaks=None)("a flag of torch.backends.mkldnn")  # fmt: skip
setting(lambda: torch.set_autocast_enabled("cpu", True), lambda: torch.set_autocast_enabled("cpu",
False),
        lambda x, w=ones(4, 4): x @ w, reason="autocast")("autocast")  # fmt: skip
setting(lambda: torch.backends.cuda.enable_math_sdp(False),
lambda: torch.backends.cuda.enable_math_sdp(True),
        lambda x: x * (2 if torch.backends.cuda.math_sdp_enabled() else 3),
        breaks=None)("attention backend flag")  # fmt: skip


@pytest.mark.parametrize("name", fact)
def test_fact(name):
    check(fact[name], lambda program: tracer_core.compile(program, backend="eager"))


# -- contexts round the call --


def affine(x, w=torch.nn.Parameter(torch.eye(4) * 2)):
    return torch.ones(4) + x @ w


class Logged(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Doubling(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return (
            result * 2
            if func is torch.Tensor.matmul or getattr(func, "__name__", "") == "matmul"
            else result
        )


class Counting(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


CONTEXTS = {
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference_mode": torch.inference_mode,
    "autocast bfloat16": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast float16": lambda: torch.autocast("cpu", torch.float16),
    "autocast disabled": lambda: torch.autocast("cpu", enabled=False),
    "device": lambda: torch.device("cpu"),
    "torch-function mode": Logged,
    "torch-function mode that changes results": Doubling,
    "dispatch mode": Counting,
    "deterministic": lambda: torch.backends.mkldnn.flags(deterministic=True),
    "saved tensors": lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
    "set_grad_enabled": lambda: torch.set_grad_enabled(False),
}


@pytest.mark.parametrize("name", CONTEXTS)
def test_context_round_the_call(name):
    fast = tracer_core.compile(affine, backend="eager")

    def look(result):
        return result.dtype, result.device.type, result.requires_grad, result.is_inference()

    def both(context=None):
        with context() if context is not None else torch.enable_grad():
            want = affine(X)
        with context() if context is not None else torch.enable_grad():
            got = fast(X)
        assert look(want) == look(got)
        if want.device.type != "meta":
            torch.testing.assert_close(want.detach(), got.detach())

    for _ in range(2):
        both()
    for _ in range(3):
        both(CONTEXTS[name])
        both()


def test_nested_contexts_of_every_kind():
    fast = tracer_core.compile(affine, backend="eager")
    for outer in CONTEXTS.values():
        with outer():
            fast(X)
    assert fast(X).requires_grad and fast(X).dtype is torch.float32


# -- arguments --


@pytest.mark.parametrize(
    "calls",
    {
        "the same tensor twice": [(X, X), (X, X.clone()), (X, X)],
        "dtypes": [(X, X), (X.double(), X), (X, X.long()), (X.bool(), X)],
        "strides": [(X, X), (X.t().contiguous().t(), X), (X, X)],
        "a number for a tensor": [(X, X), (X, 2), (X, 2.0), (2, X), (True, X)],
        "None for a tensor": [(X, X), (X, None)],
        "requires_grad": [(X, X), (X.clone().requires_grad_(), X), (X, X)],
        "Parameter for a tensor": [(X, X), (torch.nn.Parameter(X.clone()), X)],
        "broadcasting": [(X, X), (X, X[0]), (X[:1], X), (X, torch.tensor(2.0))],
        "list for a tensor": [(X, X), ([1.0], X)],
    }.items(),
    ids=lambda item: item[0],
)
def test_arguments(calls):
    def program(a, b):
        if a is b:
            return a * 3
        if b is None:
            return a
        if isinstance(a, list):
            return b * a[0]
        return a * b + (1 if isinstance(a, torch.nn.Parameter) else 0)

    same(program, *calls[1], breaks=None)


def test_written_arguments_that_share_memory():
    def program(a, b):
        a.add_(1)
        return a * b

    def views(start):
        def call(program):
            base = torch.arange(8.0)
            return program(base[:4], base[start : start + 4]), base

        return call

    fast = tracer_core.compile(program, backend="eager")
    for start in (4, 0, 2, 4, 3):
        want, got = views(start)(program), views(start)(fast)
        torch.testing.assert_close(got, want)


def test_reason_names_the_dimension():
    seen = compare_with_eager(
        lambda: lambda x: x * 2, (X,), (torch.ones(5, 4),), recompiles=1, dynamic=False
    )
    assert "x.shape == (3, 4)" in seen.reasons[0] and "(5, 4)" in seen.reasons[0]


def test_reason_of_a_symbolic_size():
    def program(x):
        return x * 2 if x.shape[0] < 10 else x * 3

    seen = compare_with_eager(
        lambda: program, *((torch.ones(n, 2),) for n in (3, 5, 7, 11, 12)), recompiles=2
    )
    assert "x.shape[0]" in seen.reasons[1], seen.reasons


def test_reason_of_aliasing_names_the_arguments():
    def program(a, b):
        a.add_(1)
        return a * b

    fast = tracer_core.compile(program, backend="eager")
    from tracer_core.testing import CaptureCounter

    with CaptureCounter() as counter:
        fast(torch.ones(4), torch.ones(4))
        base = torch.ones(8)
        fast(base[:4], base[2:6])
    (reason,) = [reason for _, reason in counter.recompiles]
    assert "alias" in reason and "memories((a" in reason


def test_reasons_of_every_kind_of_change_are_told_once():
    b = Box(k=1, items=[1], d={"a": 1}, t=torch.ones(4))
    fast = tracer_core.compile(
        lambda x: x * b.k * len(b.items) * b.d["a"] * b.t.sum() * len(b.d), backend="eager"
    )
    changes = {
        "b.k": lambda: setattr(b, "k", 2),
        "len(b.items) == 1": lambda: b.items.append(1),
        "b.d.a": lambda: b.d.update(a=5),
        "b.t.dtype": lambda: setattr(b, "t", torch.ones(4).double()),
        "b.d": lambda: b.d.update(z=1),
    }
    from tracer_core.testing import CaptureCounter

    with CaptureCounter() as counter:
        fast(X)
        for messages, change in changes.items():
            change()
            fast(X)
            fast(X)
            assert messages in counter.recompiles[-1][1], counter.recompiles[-1]
    assert len(counter.recompiles) == len(changes)
