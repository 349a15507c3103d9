"""Triton kernels against eager without a GPU: Triton's interpreter runs them on CPU tensors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from inductor_backend import kernel_stages
from inductor_backend.ir.nodes import loads_of
from inductor_backend.ir.target import interpreted
from inductor_backend.runtime.cuda import build
from inductor_backend.runtime.cuda.interpreter import interpreting
from inductor_backend.schedule import horizontal_fusion
from tests.inductor.compiling import clones, compiled, flat, tolerance
from tests.inductor.test_operators import PROGRAMS, I, R

pytestmark = pytest.mark.skipif(
    not interpreting(), reason="Triton compiles for a GPU in this process"
)

#: The interpreter walks generic reductions element by element, in Python.
SMALLER = {
    "argmax": (lambda x: (x.argmax(-1), x.argmin(0), x.argmax()), R(3, 9)),
    "max with index": (lambda x: (*x.max(1), *x.min(0)), R(3, 7)),
    "softmax": (lambda x: x.softmax(-1), R(5, 77)),
    "one long row": (lambda x: (x.sum(), x.var(), (x > 3).any()), R(200_003)),
}
OWN = {
    "transpose in tiles": (lambda x, y: x.t() + y, R(45, 70), R(70, 45)),
    "transpose in tiles, several loops": (
        lambda x: x.permute(0, 3, 1, 2).contiguous() * 2,
        R(2, 9, 8, 33),
    ),
    "parts of long columns": (lambda x: (x.sum(0), x.var(0), x.amax(0)), R(20_000, 3)),
    "parts of channels": (lambda x: torch.var_mean(x, (0, 2, 3)), R(4, 3, 40, 48)),
    "rows too long for registers": (lambda x: F.layer_norm(x, (9000,)).softmax(-1), R(2, 9000)),
    "argmax of long rows": (lambda x: x.argmax(1), I(0, 50, 1, 8200)),
    "argmax of integers": (lambda x: (x.argmax(1), x.argmin(1)), I(-3, 3, 4, 9)),
    "comparisons of rounded numbers": (
        lambda x: (
            x.bfloat16() >= 0.7,
            x.bfloat16() == 1.3,
            x.half() * x.half() == (x.half() * x.half()).clone(),
        ),
        torch.tensor([0.7, 1.3, 2.0]),
    ),
    "gradient of padding in 16 bits": (
        lambda x: torch.ops.aten.reflection_pad1d_backward(x, x[..., 1:-1], [1, 1]),
        R(1, 1, 26).bfloat16(),
    ),
    "numbers beyond 32 bits": (
        lambda x: (
            x + torch.arange(9) * 1_000_000_007,
            torch.arange(-3_000_000_000, 3_000_000_000, 10**9),
        ),
        I(-3, 3, 9),
    ),
    "bool reductions": (lambda x: ((x > 0).any(1), (x > 0).all(1), (x > 0).sum(1)), R(4, 9)),
    "shifts beyond the width": (
        lambda x, y: (x << y, x >> y),
        I(-50, 50, 40),
        I(0, 70, 40),
    ),
    "remainder of a rounded number": (lambda x: x.bfloat16() % 0.7, R(50)),
    "in place of an operand": (lambda x, w: ((x @ w + 1).relu() @ w) * 2, R(8, 8), R(8, 8)),
    "integer powers": (lambda x: (x**3, x ** x.abs()), I(-4, 5, 40)),
    "float32 sums in float64": (lambda x: x.double().sum(1), R(7, 300)),
    "sums that are ATen's, which sorts": (
        lambda x, i: torch.zeros(5, 6).index_put((i,), x, accumulate=True) + 1,
        R(4, 6),
        I(0, 5, 4),
    ),
    "empty rows": (lambda x: (x.sum(1), x.any(1)), R(3, 0)),
    "no rows": (lambda x: torch.logdet(x) * 2, R(0, 5, 5)),
    "nothing in a row of nothing": (lambda x: x.sum(1).log_softmax(0), R(0, 2, 1)),
    "a slice that is empty is written": (
        lambda x, y: torch.cat(
            [x.slice_scatter(y, 1, 1, 9, 3), x.slice_scatter(y[:, :0] * 2, 1, 2, 9, 3)], 1
        ),
        R(4, 2),
        R(4, 1),
    ),
    "write to an input": (lambda x, y: x.mul_(2).add_(y), R(30, 5), R(30, 5)),
}
CASES = {**PROGRAMS, **SMALLER, **OWN}


def checked(fn, *inputs, dynamic=False):
    before = clones(inputs)
    expected = [x.clone() if isinstance(x, torch.Tensor) else x for x in flat(fn(*before))]
    with interpreted():
        result = compiled(fn, *inputs, dynamic=dynamic)
    args = clones(inputs)
    for ours, eager in zip(result(*args), expected, strict=True):
        assert (ours.dtype, ours.shape, ours.stride()) == (eager.dtype, eager.shape, eager.stride())
        torch.testing.assert_close(ours, eager, equal_nan=True, **tolerance(eager.dtype))
    for ours, eager in zip(args, before, strict=True):
        torch.testing.assert_close(ours, eager, equal_nan=True)
    return result


@pytest.mark.sweep(keep=25)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", CASES)
def test_kernels_give_what_eager_gives(name):
    fn, *inputs = CASES[name]
    checked(fn, *inputs)


def test_halves_of_rows_are_chosen_inside_their_readers():
    """Rotary embeddings are one kernel."""

    def turned(x):
        first, second = x.chunk(2, -1)
        return torch.cat([-second, first], -1)

    def rotary(q, k, c, s):
        q, k = q.transpose(1, 2), k.transpose(1, 2)
        return q * c + turned(q) * s, k * c + turned(k) * s

    result = checked(rotary, R(1, 5, 2, 16), R(1, 5, 2, 16), R(1, 1, 5, 16), R(1, 1, 5, 16))
    assert len(result.compilation.sources) == 1
    checked(
        lambda x, y: (torch.stack([x, y, x * 2], -1), torch.cat([x, y.double()], 1)),
        R(3, 4),
        R(3, 4),
    )


def test_inputs_that_repeat_an_element():
    """Blocks are whole where an address is the same along an axis."""
    x, y = R(8, 1).expand(8, 64), R(1, 64).expand(8, 64)
    with interpreted():
        result = compiled(lambda x, y: (x.sum(1), y.var(0), x.softmax(0) + y, x.amax(1)), x, y)
    for actual, expected in zip(
        result(x, y), (x.sum(1), y.var(0), x.softmax(0) + y, x.amax(1)), strict=True
    ):
        torch.testing.assert_close(actual, expected)


SCATTERS = {
    "rows added": (
        lambda x, i: torch.zeros(5, 6).index_add(0, i, x.sin()) * 2,
        R(40, 6),
        I(0, 5, 40),
    ),
    "rows added to an operand": (
        lambda y, x, i: y.index_add(0, i, x),
        R(5, 6),
        R(40, 6),
        I(0, 5, 40),
    ),
    "added along a dimension": (
        lambda y, x, i: y.scatter_add(1, i, x) + 1,
        R(4, 9),
        R(4, 30),
        I(0, 9, 4, 30),
    ),
    "integers": (lambda y, x, i: y.scatter_add(0, i, x), I(0, 5, 7), I(0, 5, 60), I(0, 7, 60)),
    "set": (lambda y, x: y.index_put((torch.arange(0, 8, 2),), x * 2), R(9, 6), R(4, 6)),
    "set in two dimensions": (
        lambda y, x: y.index_put((torch.arange(4), torch.arange(4) + 1), x),
        R(5, 6),
        R(4),
    ),
    "filled": (lambda y, i: y.index_fill(0, i, 3.0) * 2, R(9, 6), I(-4, 4, 3)),
    "a value": (lambda y, i: y.scatter(1, i, 2.0), R(4, 9), I(0, 9, 4, 3)),
}


@pytest.mark.parametrize("name", SCATTERS)
def test_scatters_are_kernels(name):
    fn, *inputs = SCATTERS[name]
    result = checked(fn, *inputs)
    assert result.compilation.runner.artifact.externs == ()


def test_scatters_are_atens_where_algorithms_must_be_deterministic():
    fn, *inputs = SCATTERS["rows added to an operand"]
    torch.use_deterministic_algorithms(True)
    try:
        result = checked(fn, *inputs)
    finally:
        torch.use_deterministic_algorithms(False)
    assert result.compilation.runner.artifact.externs == ("aten.index_add.default",)


def test_a_weight_that_is_looked_up_and_multiplied_with():
    import tracer_core

    weight, i = R(7, 6).requires_grad_(), I(0, 7, 4, 5)

    def program(w, i):
        return (F.embedding(i, w).tanh() @ w.t()).square().mean()

    with interpreted():
        (actual,) = torch.autograd.grad(tracer_core.compile(program)(weight, i), weight)
    (expected,) = torch.autograd.grad(program(weight, i), weight)
    torch.testing.assert_close(actual, expected)


SYMBOLIC = {
    "pointwise": (lambda x, y: x.t() * 2 + y, R(6, 7), R(7, 6)),
    "rows": (lambda x: F.layer_norm(x, (x.shape[-1],)).softmax(-1), R(5, 33)),
    "columns": (lambda x: x.var(0), R(30, 6)),
    "split and join": (lambda x: torch.cat([x, x + 1], 1).sum(1), R(4, 6)),
    "pool": (lambda x: F.max_pool2d(x, 3, 2, 1), R(2, 3, 9, 8)),
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbolic_sizes(name):
    fn, *inputs = SYMBOLIC[name]
    result = checked(fn, *inputs, dynamic=True)
    for grow in (2, 5):
        larger = [torch.randn([n + grow for n in x.shape]) for x in inputs]
        if name == "pointwise":
            larger[1] = torch.randn(larger[0].shape[::-1])
        torch.testing.assert_close(result(*larger)[0], fn(*larger), atol=2e-5, rtol=1e-5)


def test_an_index_out_of_range_reads_nothing_outside():
    """The interpreter knows no assertions; that the device stops is seen in test_offline.py and on
    a GPU.
    """
    with interpreted():
        created = compiled(lambda x, i: x[i] * 2, R(5, 3), I(0, 5, 4))
    (result,) = created(R(5, 3), torch.tensor([0, 9_000_000_000, 1, -6]))
    torch.testing.assert_close(result[[0, 2]], R(5, 3)[[0, 1]] * 2)
    assert "tl.device_assert(" in created.compilation.sources[0]


def test_layer_norm_gelu_softmax_is_one_kernel_that_reads_each_row_once():
    result = checked(lambda x: F.gelu(F.layer_norm(x, (64,))).softmax(-1), R(6, 64))
    (text,) = result.compilation.sources
    assert result.kernels == 1
    assert text.count("tl.load(") == 1 and text.count("tl.store(") == 1
    assert text.count("sigmoid_exp2(") == 1 and text.count("libdevice.exp(") == 1
    assert "# layer_norm: test_interpreted.py:" in text


@pytest.mark.parametrize("launches, functions", [(1, 2), (2, 1)])
def test_equal_kernels_exist_once(monkeypatch, launches, functions):
    monkeypatch.setattr(horizontal_fusion, "MAX_COMBINED_KERNELS", 3 - launches)
    result = checked(lambda x, y: ((x * 2).sum(), (y * 2).sum()), R(30), R(30))
    assert result.kernels == launches and result.text.count("@triton.jit") == functions


def test_training():
    import tracer_core

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(144, 5),
    )
    import copy

    ours = copy.deepcopy(model)
    x, target = torch.randn(6, 3, 8, 8), torch.randint(0, 5, (6,))
    with interpreted():
        fast = tracer_core.compile(ours)
        for net in (model, fast):
            F.cross_entropy(net(x), target).backward()
    for (name, a), (_, b) in zip(model.named_parameters(), ours.named_parameters(), strict=True):
        torch.testing.assert_close(
            b.grad, a.grad, atol=1e-5, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}"
        )
    torch.testing.assert_close(ours[1].running_var, model[1].running_var)


@pytest.mark.parametrize("foreach", [False, True])
def test_a_whole_step_with_its_optimizer_is_one_graph(foreach):
    """Optimizers of CUDA parameters use foreach kernels unless told not to."""
    import copy

    import tracer_core

    torch.manual_seed(0)
    theirs = torch.nn.Sequential(torch.nn.Linear(9, 8), torch.nn.Tanh(), torch.nn.Linear(8, 5))
    ours = copy.deepcopy(theirs)

    def step(model, optimizer, x, target):
        optimizer.zero_grad(True)
        F.cross_entropy(model(x), target).backward()
        optimizer.step()

    optimizers = [torch.optim.Adam(model.parameters(), foreach=foreach) for model in (theirs, ours)]
    with interpreted():
        fast = tracer_core.compile(step, fullgraph=True)
        for _ in range(3):
            x, target = torch.randn(6, 9), torch.randint(0, 5, (6,))
            step(theirs, optimizers[0], x, target)
            fast(ours, optimizers[1], x, target)
    for a, b in zip(theirs.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(b, a, atol=1e-5, rtol=1e-4)


#: A phase stores a result before a later one reads the product, which dies in this kernel.
LATER_READS = {
    "beside a row's mean": (
        lambda x, w, y: (y + 1, x @ w - y.mean(1, keepdim=True)),
        R(80, 6), R(6, 7), R(80, 7),
    ),
    "residual of a norm": (
        lambda x, w, y: (y.relu(), F.layer_norm(y, (7,)) * (x @ w)),
        R(80, 6), R(6, 7), R(80, 7),
    ),
    "beside a sum of everything": (lambda x, w, y: (y.sin(), y.sum() + x @ w), R(6, 6), R(6, 6),
    R(6, 6)),
    "the same point, but another value": (lambda x, w, y: (y + 1, (x @ w).sin() + y), R(80, 6),
    R(6, 7), R(80, 7)),
}  # fmt: skip


@pytest.mark.parametrize("name", LATER_READS)
def test_nothing_is_written_over_what_is_read_later(name):
    fn, *inputs = LATER_READS[name]
    created = checked(fn, *inputs)
    c = created.compilation
    (kernel,) = (body for body in c.bodies if body is not None)
    for result in c.memory.over:  # written over only by what is computed from the product
        (stored,) = (s for phase in kernel.phases for s in phase.stores if result in s.buffers)
        assert c.memory.over[result] in {load.buffer for load in loads_of([stored.value])}
    assert not (name == "beside a row's mean" and not c.memory.over)


def _halved(x):
    y = x.bfloat16()
    x.zero_()
    return y


def _averaged(x, average):
    centred = (average * 2).half()
    average.lerp_(x.mean(1), 0.5)
    return centred


def test_stores_wait_for_the_loads_of_other_threads():
    """A store of 4 bytes an element has other threads than a load beside a store of 2 bytes."""
    for fn, inputs, waits in (
        (_halved, (R(3000),), True),
        (_averaged, (R(80, 7), R(80)), True),
        (lambda x, y: x.mul_(2).add_(y), (R(3000), R(3000)), False),
        (lambda x, y: y.copy_(x + 1), (R(3000), R(3000)), False),
    ):
        result = checked(fn, *inputs)
        assert ("debug_barrier" in result.source) == waits


@pytest.mark.parametrize("size", [(4, 8), (3, 5), (4, 1)])
def test_sums_of_negative_zeros_are_zeros(size):
    def program(x):
        return x.sum(1), x.sum(), x.double().sum(1), x.sum(1, dtype=torch.float64), x.mean(1)

    x = -torch.zeros(size)
    with interpreted():
        actual = compiled(program, x)(x)
    for ours, eager in zip(actual, program(x), strict=True):
        assert torch.equal(ours.signbit(), eager.signbit())


def test_norms_of_many_tensors_share_their_kernels():
    """clip_grad_norm_ stacks a norm a parameter: one kernel for each shape, not for each place."""

    def norms(*xs):
        actual = torch.stack(torch._foreach_norm(xs))
        return actual, actual.norm(), torch.cat([x.sum().reshape(1, 1) for x in xs], 1).half()

    xs = [R(4, 4) for _ in range(40)] + [R(5) for _ in range(9)]
    result = checked(norms, *xs)
    assert len(result.compilation.sources) <= 12


def test_a_kernel_is_built_once(monkeypatch):
    """What is started while the graph is still compiled is what its module loads."""
    started, loaded = set(), set()
    original = build.load_kernels
    monkeypatch.setattr(
        kernel_stages, "start_early", lambda kernel, device: started.add(kernel.key())
    )

    def load(kernels, device):
        loaded.update(kernel.key() for kernel in kernels)
        return original(kernels, device)

    monkeypatch.setattr(build, "load_kernels", load)
    with interpreted():
        compiled(lambda x: (F.layer_norm(x, (40,)).exp() @ x.t()).sin(), R(30, 40))
    assert len(started) >= 2 and started == loaded
