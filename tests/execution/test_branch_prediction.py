"""Loops that ask a tensor of a device whether to go on: the next step is prepared while the host
waits for the answer, and nothing of it is seen where the answer is another one than predicted.

Here the CPU stands in for a device that the host waits for.
"""

from __future__ import annotations

import threading

import pytest
import torch

import tracer_core
from tests.aot.test_size_split import Writes
from tests.cudagraphs import conftest as cudagraphs
from tests.support.comparison import assert_equal
from tracer_core import errors
from tracer_core.contract import branch_prediction
from tracer_core.execution import activation
from tracer_core.execution.entry import resume_hot_codegen
from tracer_core.limits import MIN_EQUAL_OUTCOMES
from tracer_core.plugin_api import Backend, commit

world = cudagraphs.world


class Predictions:
    """How many branches were predicted rightly, and how many regions were left again."""

    def __init__(self) -> None:
        self.right = self.wrong = 0


@pytest.fixture(autouse=True)
def predictions(monkeypatch):
    counts, run, resolve = (
        Predictions(),
        activation.run_predicted,
        branch_prediction.Prediction.resolve,
    )

    def counted(continuation):
        result = run(continuation)
        counts.right += result is not None
        return result

    def resolved(prediction):
        try:
            resolve(prediction)
        except branch_prediction.Mispredicted:
            counts.wrong += 1
            raise

    monkeypatch.setattr(activation, "run_predicted", counted)
    monkeypatch.setattr(branch_prediction.Prediction, "resolve", resolved)
    monkeypatch.setattr(resume_hot_codegen, "is_awaited", lambda value: type(value) is torch.Tensor)
    return counts


def until_close(x, target):
    """Counts the steps of Newton's method."""
    steps = 0
    while bool((x * x - target).abs().max() > 1e-6):
        x = x - 0.3 * (x * x - target) / (2 * x)
        steps += 1
    return x, steps


def in_place(x, target):
    """Each step writes to its argument: one step too many would be seen."""
    while x.max() < target:
        x.add_(1).mul_(1.1)
    return x


def both_branches(x, target):
    """A condition in the loop's body that changes now and then."""
    for _ in range(30):
        if x.sum() > target:
            x = x - 2.5
        else:
            x = x + 0.5
    return x


def with_random_numbers(x, target):
    while not bool((x > target).any()):
        x = x + torch.rand_like(x)
    return x, torch.rand(2)


LOOPS = (until_close, in_place, both_branches, with_random_numbers)


@pytest.mark.parametrize("loop", LOOPS)
def test_loops_are_as_in_eager_mode(loop, predictions):
    compiled = tracer_core.compile(loop)
    for call in range(6):
        x = torch.rand(5, dtype=torch.float64) + call + 1
        own, target = x.clone(), 9.0 + 3 * call
        torch.manual_seed(call)
        expected, after = loop(x, target), torch.get_rng_state()
        torch.manual_seed(call)
        assert_equal(compiled(own, target), expected)
        assert_equal(own, x)
        assert torch.equal(torch.get_rng_state(), after)
    assert predictions.right > 5
    assert predictions.wrong >= 3  # each loop ends, or turns, otherwise than its last steps


def test_side_effects_of_a_step_that_does_not_happen(predictions):
    def run(x, log, seen):
        done = False
        while not done:
            x = x * 1.5
            log.append(x.shape)
            seen["last"] = x.sum()
            done = (x > 50).all()
        log.append("end")
        return x

    compiled = tracer_core.compile(run)
    for call in range(4):
        x, logs, seen = torch.rand(3) + 0.5 + call, ([], []), ({}, {})
        expected = run(x, logs[0], seen[0])
        assert_equal(compiled(x, logs[1], seen[1]), expected)
        assert logs[0] == logs[1]
        assert_equal(seen[1], seen[0])
    assert predictions.right and predictions.wrong


def test_gradients_through_a_loop(predictions):
    def run(x, w):
        while x.norm() < 30:
            x = torch.tanh(x @ w) + x * 1.3
        return x.sum()

    compiled = tracer_core.compile(run)
    for call in range(4):
        torch.manual_seed(call)
        x, w = torch.rand(2, 4, dtype=torch.float64), torch.rand(4, 4, dtype=torch.float64)
        pairs = [(x.clone().requires_grad_(), w.clone().requires_grad_()) for _ in range(2)]
        for function, inputs in zip((run, compiled), pairs, strict=True):
            function(*inputs).backward()
        for ours, eager in zip(pairs[1], pairs[0], strict=True):
            torch.testing.assert_close(ours.grad, eager.grad, rtol=1e-10, atol=1e-12)
    assert predictions.right


def test_a_condition_that_raises(predictions):
    """After many single elements a tensor of two: the branch itself raises, with its own message."""

    def run(xs):
        total = torch.zeros(1)
        for x in xs:
            if bool(x > 0):
                total = total + x.sum()
        return total

    compiled = tracer_core.compile(run)
    good = [torch.tensor([float(i)]) for i in range(1, 12)]
    for _ in range(3):
        assert_equal(compiled(good), run(good))
    for xs in (good, [*good, torch.ones(2)]):
        for function in (run, compiled):
            if len(xs) == len(good):
                assert_equal(function(xs), torch.tensor([66.0]))
                continue
            with pytest.raises(
                RuntimeError, match="Boolean value of Tensor with more than one value"
            ):
                function(xs)


def test_a_step_that_raises(predictions):
    """The graph behind the right outcome raises: the program's own exception, at its own step."""

    def run(x, table, limit):
        n = 0
        while x.sum() < limit:
            x = x + 1
            n += 1
            x = x + table.index_select(0, torch.full((1,), n)).sum() * 0
        return x, n

    compiled, table = tracer_core.compile(run), torch.zeros(12)
    for limit in (20.0, 30.0, 25.0):
        assert_equal(compiled(torch.ones(3), table, limit), run(torch.ones(3), table, limit))
    for function in (run, compiled):
        with pytest.raises(IndexError, match="out of range"):
            function(torch.ones(3), table, 1e9)
    assert predictions.right


def test_too_few_outcomes_are_not_predicted(predictions):
    compiled = tracer_core.compile(in_place)
    for call in range(6 * MIN_EQUAL_OUTCOMES):  # no way is often enough in a row
        x = torch.full((3,), 1.0 if call % 2 else 9.0)
        assert_equal(compiled(x.clone(), 4.0), in_place(x.clone(), 4.0))
    assert not predictions.right and not predictions.wrong


def test_threads_predict_apart(predictions):
    compiled, results = tracer_core.compile(until_close), {}
    compiled(torch.rand(4, dtype=torch.float64) + 1, 2.0)

    def work(number):
        torch.manual_seed(number)
        x = torch.rand(4, dtype=torch.float64) + 1
        results[number] = [(compiled(x, t), until_close(x, t)) for t in (2.0, 5.0, 3.0)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(results) == 4
    for pairs in results.values():
        for actual, expected in pairs:
            assert_equal(actual, expected)
    assert predictions.right


class Text(Writes):
    def write(self, ids, end):
        while not bool((ids[:, -1] == end) | torch.full_like(ids[:, 0], ids.shape[1] >= 30).bool()):
            ids = self(ids)
        return ids


@torch.no_grad()
def test_operators_of_sizes_run_before_the_branch_is_known(predictions):
    """The graph of static sizes writes to a buffer: once too often would be seen in the next text."""
    order = []

    def build(graph, spec):
        def run(inputs):
            order.append(branch_prediction.is_predicted())
            return graph.forward(*inputs)

        return run

    backend = Backend(name="static", compile=build, ir="torch", shapes="static")
    eager, model = Text(), Text()
    compiled = tracer_core.compile(model.write, backend=backend, dynamic=True)
    for call in range(5):
        ids = torch.arange(3 + call % 2)[None] + call
        for end in (999, 17):
            expected = eager.write(ids, end)
            assert_equal(compiled(ids, end), expected)
            assert_equal(model.memory, eager.memory)
    assert predictions.right > 20 and predictions.wrong
    assert order and not any(order)  # the backend's own work waits for the branch


def test_cuda_graphs_are_loaded_before_the_branch_is_known(world, predictions):
    def run(x, target):
        steps = 0
        while bool(x.max() < target):
            x = (x + 1).mul(1.1).sin() + x.add(1.5)
            steps += 1
        return x, steps

    compiled = world.compile(run)
    for call in range(6):
        x = world.randn(64)
        assert_equal(compiled(x, 6.0 + call), run(x, 6.0 + call))
    assert world.replays and predictions.right and predictions.wrong


def test_an_error_of_the_backend_is_no_misprediction(predictions):
    """The backend of the region behind the branch breaks: its error reaches the user."""
    broken = []

    def build(graph, spec):
        def run(inputs):
            if broken:
                raise errors.BackendError("static", "run", "broken")
            return graph.forward(*inputs)

        return run

    compiled = tracer_core.compile(in_place, backend=Backend(name="breaks", compile=build))
    for _ in range(3):
        x = torch.rand(4) + 1
        assert_equal(compiled(x.clone(), 20.0), in_place(x.clone(), 20.0))
    assert predictions.right
    broken.append(True)
    with pytest.raises(errors.BackendError, match="broken"):
        compiled(torch.rand(4) + 1, 20.0)


def test_a_finalizer_that_predicts_while_a_branch_is_awaited(predictions):
    """An object that dies while a region is prepared runs a compiled loop of its own."""
    inner = tracer_core.compile(in_place)
    results = []

    class Ends:
        def __del__(self):
            results.append(inner(torch.ones(3), 40.0))

    def run(x, target):
        while x.max() < target:
            x.add_(1)
            Ends()
        return x

    compiled = tracer_core.compile(run)
    for _ in range(4):
        assert_equal(compiled(torch.zeros(3), 9.0), torch.full((3,), 9.0))
    assert len(results) == 36
    for result in results:
        assert_equal(result, in_place(torch.ones(3), 40.0))


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@torch.no_grad()
def test_texts_on_a_gpu(mode, predictions):
    """Sizes that grow, a CUDA graph that writes to a buffer, and ends that differ from text to text."""
    eager, model = Text().cuda(), Text().cuda()
    compiled = tracer_core.compile(model.write, mode=mode)
    for call in range(8):
        ids = (torch.arange(3 + call % 3)[None] + call).cuda()
        for end in (999, 17, 40):
            expected = eager.write(ids, end)
            assert_equal(compiled(ids, end), expected)
            torch.testing.assert_close(model.memory, eager.memory)
    assert predictions.right > 40 and predictions.wrong


@pytest.mark.gpu
@pytest.mark.parametrize("loop", LOOPS)
def test_loops_on_a_gpu(loop, predictions):
    compiled = tracer_core.compile(loop)
    side = torch.cuda.Stream()
    for call in range(6):
        x = torch.rand(5, dtype=torch.float64, device="cuda") + call + 1
        own, target = x.clone(), 9.0 + 3 * call
        torch.cuda.manual_seed(call)
        expected = loop(x, target)
        torch.cuda.manual_seed(call)
        stream = side if call % 2 else torch.cuda.current_stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            actual = compiled(own, target)
        torch.cuda.current_stream().wait_stream(stream)
        if loop is with_random_numbers:  # the compiled loop's own numbers
            assert (actual[0] > target).any()
            continue
        assert_equal(actual, expected)
        assert_equal(own, x)
    assert predictions.right > 5


class Runs:
    """A backend's runner that may be called before the branch is known. calls_commit: it keeps the
    contract."""

    commits = True

    def __init__(self, graph, calls_commit):
        self.graph, self.calls_commit = graph, calls_commit

    def __call__(self, inputs):
        if self.calls_commit:
            commit()
        return self.graph.forward(*inputs)


def calls_of(compiled):
    for call in range(8):
        x = torch.rand(3) + call
        assert_equal(compiled(x.clone(), 40.0), in_place(x.clone(), 40.0))


def test_backends_whose_runners_commit(predictions):
    build = lambda graph, spec: Runs(graph, calls_commit=True)
    calls_of(tracer_core.compile(in_place, backend=Backend("commits", build, ir="torch")))
    assert predictions.right and predictions.wrong


def test_a_runner_that_does_not_commit_is_an_error():
    build = lambda graph, spec: Runs(graph, calls_commit=False)
    compiled = tracer_core.compile(in_place, backend=Backend("breaks", build, ir="torch"))
    with pytest.raises(errors.TracerError, match="without a call of `commit`"):
        calls_of(compiled)


def test_a_runner_that_is_replaced_commits(predictions, monkeypatch):
    """The first result has another dtype than the graph's: the graph runs in eager mode from then on."""
    monkeypatch.setenv("TRACER_STRICT", "0")

    def build(graph, spec):
        run = Runs(graph, calls_commit=True)

        class Wrong(Runs):
            def __call__(self, inputs):
                return [value.double() for value in run(inputs)]

        return Wrong(graph, calls_commit=True)

    calls_of(tracer_core.compile(in_place, backend=Backend("wrong", build)))
    assert predictions.right and predictions.wrong


def test_a_device_that_fails_fails_in_the_branch(predictions, monkeypatch):
    """Where the condition cannot be copied, the branch reads it: in the program's own ``try``."""

    def fails(condition):
        raise RuntimeError("the device failed")

    monkeypatch.setattr(branch_prediction, "read_ahead", fails)
    calls_of(tracer_core.compile(in_place))
    assert not predictions.right and not predictions.wrong
