"""A graph that raises half-way, after it has written to its inputs: the program's effects up to
there are eager's.
"""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tracer_core
from tests.support.copied_tensors import copied_tensors
from tests.support.eager_reference import compare_with_eager, same
from tracer_core.execution.entry.snapshot import InputSnapshot
from tracer_core.plugin_api import Backend
from tracer_core.testing import CaptureCounter, compare

X = torch.randn(3, 4)
IN, OUT = torch.tensor([0, 2]), torch.tensor([1, 9])
NAN = torch.full((2, 2), float("nan"))


def logs(body):
    """The program log.append, body(x, other, log), log.append with its log as the world."""

    def make():
        log = []

        def fn(x, other):
            log.append(tuple(x.shape))
            result = body(x, other, log)
            log.append("end")
            return result

        return fn, log

    return make


def write_then(check):
    def body(x, other, log):
        x.add_(1)
        log.append("written")
        y = check(x, other)
        log.append("checked")
        return y * 2

    return body


RAISES = {
    "index": (lambda x, i: x[i], IN, OUT),
    "embedding": (lambda x, i: F.embedding(i, x), IN, OUT),
    "index_select": (lambda x, i: x.index_select(0, i), IN, OUT),
    "gather": (lambda x, i: x.gather(0, i[:, None]), IN, OUT),
    "scatter": (lambda x, i: x.scatter(0, i[:, None], 1.0), IN, OUT),
    "take": (lambda x, i: x.take(i), IN, torch.tensor([1, 90])),
    "cross_entropy": (lambda x, i: F.cross_entropy(x[:2], i), IN, OUT),
    "one_hot": (lambda x, i: F.one_hot(i, 4), IN, OUT),
    "inverse": (lambda x, m: torch.linalg.inv(m), torch.eye(2), torch.zeros(2, 2)),
    "cholesky": (lambda x, m: torch.linalg.cholesky(m), torch.eye(2), -torch.eye(2)),
    "floor_divide": (lambda x, n: torch.tensor([4, 5]) // n, torch.tensor([1, 2]), torch.tensor([1,
    0])),
    "bernoulli": (lambda x, p: torch.bernoulli(p), torch.zeros(2), torch.full((2,), 2.0)),
    "binary_cross_entropy": (lambda x, p: F.binary_cross_entropy(p, p), torch.rand(2),
    torch.full((2,), 2.0)),
    "masked_scatter": (lambda x, m: x.masked_scatter(m, torch.ones(2)), torch.zeros(3, 4) > 1,
    torch.ones(3, 4) > 0),
    "multinomial": (lambda x, p: torch.multinomial(p, 1) * 0, torch.ones(2), torch.full((2,),
    -1.0)),
    "nuclear_norm": (lambda x, m: torch.norm(m, p="nuc"), torch.eye(2), NAN),
    "nuclear_linalg_norm": (lambda x, m: torch.linalg.norm(m, ord="nuc"), torch.eye(2), NAN),
    "spectral_norm": (lambda x, m: torch.linalg.norm(m, 2), torch.eye(2), NAN),
    "fake_quantize": (lambda x, z: torch.fake_quantize_per_channel_affine(
        x, torch.full((3,), 0.1), z, 0, 0, 255), torch.zeros(3).int(), torch.tensor([0, -1, 300]).int()),
}  # fmt: skip


@pytest.mark.parametrize("name", RAISES)
def test_after_a_write(name):
    check, right, wrong = RAISES[name]
    compare_with_eager(
        logs(write_then(check)), (X, right), (X, wrong), (X, right), (X, wrong), graphs=1, breaks=0
    )


UNREAD = ("index", "embedding", "gather", "take", "cross_entropy", "floor_divide", "masked_scatter")


@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
@pytest.mark.parametrize("name", UNREAD)
def test_nobody_reads_the_result(name, backend):
    check, right, wrong = RAISES[name]

    def unread(x, other, log):
        y = check(x, other)
        y = y + 1
        return x * 2

    steps = [(X, value) for value in (right, wrong, right)]
    compare_with_eager(logs(unread), *steps, graphs=1, breaks=0, backend=backend)


@pytest.mark.parametrize("backend", ["eager", "aten_eager", "inductor"])
def test_nobody_reads_what_is_indexed(backend):
    def body(x, other, log):
        x[other]
        return x * 2

    steps = [(X, torch.tensor(value)) for value in ([0, 1], [0, 7], [-1, -1], [-9, 0])]
    compare_with_eager(logs(body), *steps, graphs=1, breaks=0, backend=backend)


WRITES = {
    "a division in place": lambda t, n: t.clone().floor_divide_(n),
    "an assignment": lambda t, n: operator.setitem(t.clone(), n * 5, 1),
    "a division of its own": lambda t, n: (t // n).add_(1),
    "numbers that kernels do not take": lambda t, n: torch.atan2(t.to(torch.uint16), n > 0),
}


@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
@pytest.mark.parametrize("name", WRITES)
def test_nobody_reads_what_is_written(name, backend):
    def body(x, other, log):
        WRITES[name](torch.tensor([4, 5]), other)
        return x * 2

    steps = [(X, torch.tensor(value)) for value in ([0, 0], [0, 1], [1, 2], [0, 1])]
    compare_with_eager(logs(body), *steps, graphs=1, breaks=0, backend=backend)


@pytest.mark.parametrize("backend", ["aten_eager", "inductor"])
def test_nobody_reads_a_loss(backend):
    """Its gradient is not computed: only its labels are checked."""
    weight = nn.Parameter(torch.randn(4, 3))

    def step(x, target):
        y = x @ weight
        F.nll_loss(y.log_softmax(1), target)
        y.sum().backward()
        return y

    compiled = tracer_core.compile(step, backend=backend)
    for target in (torch.tensor([0, 2]), torch.tensor([0, 9]), torch.tensor([1, 2])):
        outcomes = []
        for run in (step, compiled):
            weight.grad = None
            try:
                result = run(X[:2], target)
            except IndexError as error:
                result = str(error)
            outcomes.append((result, weight.grad))
        compare(*outcomes)


@pytest.mark.parametrize(
    "values",
    [
        lambda x: x.max(1).values,
        lambda x: x.min(0)[0] + 1,
        lambda x: x.sort(1).values,
        lambda x: x.topk(2).values * 2,
        lambda x: x.median(1).values,
        lambda x: x.cummax(0).values,
    ],
)
def test_places_that_nobody_reads_are_no_outputs(values):
    """Values and places have different dtypes, but no kernel takes both."""
    counts = []

    def compile_graph(graph, spec):
        def run(inputs):
            outputs = graph.forward(*inputs)
            counts.append(len(outputs))
            return outputs

        return run

    backend = Backend(name="counting", compile=compile_graph, ir="torch", shapes="symbolic")
    assert torch.equal(tracer_core.compile(values, backend=backend)(X), values(X))
    assert counts == [1]


def test_on_the_first_call():
    compare_with_eager(
        logs(write_then(lambda x, i: x[i])), (X, OUT), (X, IN), (X, OUT), graphs=1, breaks=0
    )


def test_types_that_only_the_real_operator_refuses():
    def body(x, other, log):
        x.add_(1)
        log.append(1)
        x.mul_(other)
        return x

    numbers = torch.arange(6).reshape(2, 3)
    compare_with_eager(
        logs(body), (numbers, torch.ones(2, 3)), (numbers, torch.ones(2, 3)), (numbers, numbers)
    )


def test_the_program_catches_the_error():
    def body(x, other, log):
        x.add_(1)
        try:
            y = x[other]
        except IndexError as error:
            log.append(str(error))
            x.mul_(2)
            y = x + 1
        return y

    compare_with_eager(logs(body), (X, OUT), (X, IN), (X, OUT), graphs=1, breaks=0)


def test_writes_through_a_view():
    def body(x, other, log):
        row = x[0]
        row.zero_()
        log.append(tuple(row.shape))
        return x[other]

    compare_with_eager(logs(body), (X, IN), (X, OUT), (X, IN))


def test_an_operator_that_writes_and_raises():
    def body(x, other, log):
        x.index_add_(0, other, torch.ones(2, 4))
        log.append("added")
        return x

    compare_with_eager(logs(body), (X, IN), (X, OUT), (X, IN), (X, OUT))


def test_a_buffer_and_a_loss():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.norm, self.lin, self.seen = nn.BatchNorm1d(4), nn.Linear(4, 5), []

        def forward(self, x, target):
            self.seen.append(1)
            return F.cross_entropy(self.lin(self.norm(x)), target)

    def make():
        net = Net()
        return net, net

    right, wrong = torch.tensor([0, 1, 4]), torch.tensor([0, 1, 7])
    compare_with_eager(make, (X, right), (X, wrong), (X, right), graphs=1, breaks=0)


def test_under_inference_mode():
    def fn(x, index):
        with torch.inference_mode():
            y = x.clone()
        x.add_(1)
        return y, x[index]

    same(fn, (X, IN), (X, OUT))
    with torch.inference_mode():
        kept = X.clone()
        compare_with_eager(logs(write_then(lambda x, i: x[i])), (kept, IN), (kept, OUT), (kept, IN))


def test_a_buffer_that_a_write_ties_to_a_parameter():
    weight = nn.Parameter(torch.ones(4))

    def body(x, other, log):
        x.mul_(weight)
        log.append("tied")
        return x[other]

    compare_with_eager(logs(body), (X, IN), (X, OUT), (X, IN))


def test_a_custom_function_raises():
    class Checked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    @tracer_core.allow_in_graph
    def checked(x):
        if not torch.is_grad_enabled() and x.sum() > 1e6:
            raise ValueError("too large")
        return x * 1

    def body(x, other, log):
        x.add_(1)
        log.append("before")
        return Checked.apply(checked(x * other))

    with torch.no_grad():
        compare_with_eager(
            logs(body),
            (X.abs(), torch.ones(4)),
            (X.abs(), torch.full((4,), 1e8)),
            (X.abs(), torch.ones(4)),
        )


def test_no_copies_where_nothing_can_raise(monkeypatch):
    """After the first run, a graph of plain operators copies nothing; nor one whose only check
    comes first.
    """
    result = copied_tensors(monkeypatch)

    def plain(x, index):
        y = x[index]
        x.add_(1)
        x.div_(2)
        return y.relu() @ x.t()

    def checked(x, index):
        x.add_(1)
        return x[index]

    for fn, copies in ((plain, [1, 0, 0]), (checked, [1, 1, 1])):
        result.clear()
        compiled = tracer_core.compile(fn, backend="eager")
        for _ in range(3):
            compiled(X.clone(), IN)
        assert [item for _, item in result] == copies


def test_an_index_that_was_checked_is_not_checked_again(monkeypatch):
    """The caches of a decoder: each layer writes at the same place, which is checked before the
    first write ends.
    """
    spares = []
    original = InputSnapshot.__init__

    def noted(self, always, is_new):
        original(self, always, is_new)
        spares.append(self)

    monkeypatch.setattr(InputSnapshot, "__init__", noted)

    def step(caches, position, x):
        for cache in caches:
            cache.index_copy_(0, position, x)
            x = x + cache.sum(0)
        return x

    def make():
        caches = [torch.zeros(8, 4) for _ in range(6)]
        return (lambda position, x: step(caches, position, x)), caches

    compare_with_eager(
        make, (torch.tensor([0]), torch.ones(1, 4)), (torch.tensor([9]), torch.ones(1, 4)), graphs=1
    )
    assert [len(spare.always) for spare in spares] == [1]


def test_an_interrupted_loop_goes_on_after_the_error():
    """The graph that raises belongs to the second half of a program with a break."""

    def body(x, other, log):
        x.add_(1)
        log.append(x.sum().item())
        x.mul_(2)
        log.append("again")
        return x[other]

    compare_with_eager(logs(body), (X, IN), (X, OUT), (X, IN), kinds=("data_dependent_value",))


def test_kernels_that_write_before_they_check():
    def fn(x, index):
        x.add_(1)
        log.append(1)
        return x[index] * 2

    log = []
    compiled = tracer_core.compile(fn, backend="inductor")
    with CaptureCounter() as counter:
        for index in (IN, OUT, IN):
            eager, mine, before = X.clone(), X.clone(), len(log)
            outcomes = []
            for run, x in ((fn, eager), (compiled, mine)):
                try:
                    outcomes.append(run(x, index))
                except Exception as error:
                    outcomes.append(type(error))
            compare(*outcomes)
            compare(eager, mine)
            assert len(log) == before + 2
    assert len(counter.graphs) == 1


def test_a_training_step_copies_no_parameters(monkeypatch):
    """What follows from the gradients is written to when nothing can raise any more."""
    result = copied_tensors(monkeypatch)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 5))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step(x, target):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled = tracer_core.compile(step, backend="eager")
    for _ in range(5):
        compiled(X, torch.tensor([0, 1, 4]))
    tensors, copies = result[-1]
    assert tensors > 10 and copies == 3, result  # the statistics of the batch norm


def test_kernels_may_write_before_checks_unless_gradients_come_between():
    from tracer_core.fx_capture.may_raise import may_raise_of

    graph = torch.fx.Graph()
    weight, state, cache, index = (
        graph.placeholder(name) for name in ("weight", "state", "cache", "index")
    )
    value = torch.ones(3, 4)
    for node in (weight, state, cache):
        node.meta["val"] = value
    index.meta["val"] = IN
    graph.call_method("add_", (cache, 1)).meta.update(val=value, writes=[3])
    picked = graph.call_method("index_select", (weight, 0, index))
    gradient = graph.call_function(torch.autograd.grad, ([picked], [weight]))
    first = graph.call_function(torch.add, (gradient, 0))
    graph.call_method("mul_", (state, 0.9)).meta.update(writes=[2])
    graph.call_method("add_", (state, first)).meta.update(writes=[2])
    graph.call_method("sub_", (weight, first)).meta.update(writes=[1])
    assert may_raise_of(graph).in_order == {3}
    assert may_raise_of(graph).lowered == {3}
    graph.call_method("index_select", (weight, 0, state))
    assert may_raise_of(graph).in_order == may_raise_of(graph).lowered == {1, 2, 3}


def test_on_a_gpu_indices_are_checked_by_the_device_and_nothing_is_raised():
    """Copies of what is written to beforehand (running statistics) would cost hundreds of launches
    a step.
    """
    from tracer_core import torch_private
    from tracer_core.fx_capture.may_raise import may_raise_of

    def graph_on(device):
        graph, mode = torch.fx.Graph(), torch_private.fake_tensor_mode(None)
        x, target = graph.placeholder("x"), graph.placeholder("target")
        with mode:
            x.meta["val"] = torch.empty(3, 5, device=device)
            target.meta["val"] = torch.empty(3, dtype=torch.int64, device=device)
        written = graph.call_method("add_", (x, 1))
        written.meta.update(val=x.meta["val"], writes=[1])
        loss = graph.call_function(torch.nn.functional.cross_entropy, (x, target))
        loss.meta["val"] = x.meta["val"]
        gradient = graph.call_function(torch.autograd.grad, (loss, [x]))
        gradient.meta["val"] = (x.meta["val"],)
        graph.output(gradient)
        return graph

    assert may_raise_of(graph_on("cpu")).in_order == {1}
    assert may_raise_of(graph_on("cuda:0")).in_order == frozenset()


@pytest.mark.parametrize("error", [NameError, AssertionError, KeyError])
def test_writes_of_a_backend_at_fault_are_undone(error):
    """A kernel writes without a version bump before the fault."""

    def backend(gm, example_inputs):
        def run(*inputs):
            for value in inputs:
                value.data.add_(1)
            raise error("of the backend")

        return run

    def add(x):
        x.add_(1)
        return x * 2

    same(add, (torch.zeros(3),), (torch.ones(3),), backend=backend)


def test_what_was_not_copied_is_undone_after_errors_of_operators_only():
    x = torch.zeros(3)
    for error, undone in ((RuntimeError(), True), (IndexError(), True), (NameError(), False)):
        snapshot = InputSnapshot(frozenset(), is_new=False)
        assert snapshot.undo(snapshot.save((x,)), error) is undone
        assert snapshot.undo(snapshot.save((x,)), error), "copied after a run that raised"


def test_concatenating_nothing_but_empty_tensors():
    def join(x, a, b):
        y = torch.acosh(x)
        x.view(-1).add_(1)
        return y, torch.cat([a * 2, b.float()])

    compiled = tracer_core.compile(join, backend="inductor", fullgraph=True)
    ours, eager = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[1.0, 2.0, 3.0]])
    empty, other = torch.zeros(0, 9), torch.zeros(0, 9, dtype=torch.bool)
    for _ in range(3):
        compare(join(eager, empty, other), compiled(ours, empty, other))
        assert torch.equal(ours, eager)


def _subscripted_for_the_error(x):
    try:
        x[[0, 9]]
    except IndexError:
        return x - 1
    return x * 2


def _summed_and_dropped(x):
    try:
        x[[9, 1]].sum()
    finally:
        x.add_(1)
    return x * 2


def _rows_and_columns(x):
    x[:, [0, -4]]
    return x * 2


@pytest.mark.parametrize("backend", ["eager", "aten_eager", "inductor"])
@pytest.mark.parametrize("f", [_subscripted_for_the_error, _summed_and_dropped, _rows_and_columns])
def test_a_list_of_indices_beyond_the_tensor_raises_though_nobody_reads_the_result(f, backend):
    fast = tracer_core.compile(f, backend=backend)
    for shape in ((3, 3), (3, 3), (10, 4), (3, 3)):
        outcomes = []
        for function in (f, fast):
            x = torch.ones(shape)
            try:
                result = function(x).tolist()
            except IndexError as error:
                result = str(error)
            outcomes.append((result, x.tolist()))
        assert outcomes[0] == outcomes[1]
