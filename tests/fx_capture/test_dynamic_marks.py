"""Which sizes are symbolic, and what mark_dynamic's ranges promise."""

from __future__ import annotations

import pytest
import torch

import tracer_core
from tests.support.eager_reference import compare_with_eager, same
from tracer_core.errors import MarkedSizeError
from tracer_core.plugin_api import Backend
from tracer_core.testing import CaptureCounter


def graphs_of(program, tensors, **arguments):
    """How many graphs it takes to run on these tensors, with eager's results."""
    arguments.setdefault("backend", "eager")
    fast = tracer_core.compile(program, **arguments)
    with CaptureCounter() as counter:
        for tensor in tensors:
            torch.testing.assert_close(fast(tensor), program(tensor), rtol=0, atol=0)
    assert not counter.breaks
    return len(counter.graphs)


def sized(*sizes):
    return [torch.randn(n, 8) for n in sizes]


def marked(size, **bounds):
    tensor = torch.randn(size, 8)
    tracer_core.mark_dynamic(tensor, 0, **bounds)
    return tensor


def double(x):
    return x.view(x.shape[0], 2, 4).sum(1) * 2


def test_a_size_is_static_until_it_changes():
    assert graphs_of(double, sized(4, 4)) == 1
    assert graphs_of(double, sized(4, 6, 9, 4, 64)) == 2


def test_dynamic_true_makes_one_graph_from_the_start():
    assert graphs_of(double, sized(4, 6, 9, 2, 64), dynamic=True) == 1


def test_dynamic_false_never_does():
    assert graphs_of(double, sized(4, 6, 9, 4), dynamic=False) == 3


def test_dynamic_false_is_stronger_than_a_mark():
    assert graphs_of(double, [marked(4), marked(6), marked(4)], dynamic=False) == 2


def test_zero_and_one_have_graphs_of_their_own():
    assert graphs_of(double, sized(4, 1, 0, 6, 1, 0, 9), dynamic=True) == 3


def test_equal_sizes_of_the_first_call_are_not_taken_for_one():
    def program(x):
        return x.sum(0), x.sum(1)

    same(program, *[(torch.randn(n, m),) for n, m in ((4, 4), (5, 5), (6, 7), (7, 3))], graphs=2)


def test_sizes_that_an_operator_needs_equal_are_guarded():
    def program(x, y):
        return x + y if x.shape[0] < 100 else x - y

    calls = [
        (torch.randn(n, 2), torch.randn(m, 2))
        for n, m in ((4, 4), (6, 6), (9, 9), (9, 1), (1, 9), (9, 9))
    ]
    same(program, *calls, graphs=4)


def test_dynamic_true_reaches_tensors_in_containers():
    def program(batch):
        return batch["x"] * 2, [t + 1 for t in batch["more"]]

    calls = [({"x": torch.randn(n, 2), "more": (torch.randn(n + 1),)},) for n in (4, 6, 9)]
    same(program, *calls, graphs=1, dynamic=True)


def test_a_mark_makes_the_first_graph_serve_all():
    assert graphs_of(double, [marked(4), *sized(6, 9, 64)]) == 1


def test_a_marked_tensor_inside_a_container():
    def program(batch):
        return batch["x"].sum(1) * 2

    fast = tracer_core.compile(program, backend="eager")
    with CaptureCounter() as counter:
        for tensor in (marked(4), *sized(6, 9)):
            torch.testing.assert_close(fast({"x": tensor}), program({"x": tensor}))
    assert len(counter.graphs) == 1


def test_within_its_range_a_marked_size_never_recompiles():
    assert graphs_of(double, [marked(4, min=2, max=64), *sized(2, 3, 64, 33)]) == 1


def test_outside_its_range_it_does():
    assert graphs_of(double, [marked(4, min=2, max=64), *sized(64, 65, 100, 5)]) == 2


def test_one_is_within_a_range_and_zero_has_a_graph_of_its_own():
    assert graphs_of(double, [marked(4, min=0, max=64), *sized(2, 1, 0, 64, 1)]) == 2


def test_mark_static_wins_over_change():
    def kept(size):
        tensor = torch.randn(size, 8)
        tracer_core.mark_static(tensor, 0)
        return tensor

    assert graphs_of(double, [kept(4), kept(6), kept(9), kept(4)]) == 3


def test_torchs_own_mark_counts():
    tensor = torch.randn(4, 8)
    tensor._dynamo_dynamic_indices = {0}
    assert graphs_of(double, [tensor, *sized(6, 9)]) == 1


# -- constraints that the program violates
# ----------------------------------------------------------


def clash_of(program, tensor, *others, **arguments):
    arguments.setdefault("backend", "eager")
    with pytest.raises(MarkedSizeError) as caught:
        tracer_core.compile(program, **arguments)(tensor, *others)
    return caught.value


def test_a_size_that_is_forced_to_a_constant_is_an_error_that_names_the_line():
    def program(x):
        y = x * 2
        rows = [0] * x.shape[0]  # this forces it
        return y + len(rows)

    error = clash_of(program, marked(6))
    assert "x.shape[0] was marked dynamic (any size)" in str(error)
    assert "it is 6" in error.found
    assert "rows = [0] * x.shape[0]  # this forces it" in str(error)
    assert error.location.startswith(__file__) and error.location.endswith("in program")


def test_an_operator_that_forces_it_is_named():
    def program(x, y):
        z = x.sin()
        return z + y  # eight rows

    error = clash_of(program, marked(8), torch.randn(8, 8))
    assert "return z + y  # eight rows" in str(error) and "it is 8" in error.found


def test_a_branch_that_narrows_a_given_range_is_named():
    def program(x):
        if x.shape[0] > 5:  # narrows
            return x + 1
        return x - 1

    error = clash_of(program, marked(8, min=2, max=64))
    assert "(2..64)" in str(error) and "x.shape[0]" in error.found
    assert "if x.shape[0] > 5:  # narrows" in str(error)


def test_a_branch_that_the_range_decides_is_none():
    def program(x):
        return x + 1 if x.shape[0] < 100 else x - 1

    assert graphs_of(program, [marked(8, min=2, max=64), *sized(2, 64)]) == 1


@pytest.mark.parametrize("highest", [64, None])
def test_a_condition_that_holds_for_every_size_of_the_range_is_none(highest):
    def program(x):
        pairs = x @ x.t()
        return pairs * 2 if pairs.numel() >= x.shape[0] else pairs  # n * n >= n

    tensors = [marked(n, min=2, max=highest) for n in (5, 2, 64)]
    assert graphs_of(program, tensors) == 1


@pytest.mark.parametrize("highest", [64, None])
def test_a_condition_that_fails_for_one_size_of_the_range_is_named(highest):
    def program(x):
        pairs = x @ x.t()
        return pairs * 2 if pairs.numel() >= 3 * x.shape[0] else pairs  # not for 2

    fast = tracer_core.compile(program, backend="eager")
    with pytest.raises(MarkedSizeError, match="3"):
        fast(marked(5, min=2, max=highest))


def test_without_a_range_a_branch_may_narrow():
    def program(x):
        return x + 1 if x.shape[0] > 5 else x - 1

    assert graphs_of(program, [marked(8), *sized(9, 6, 3, 5)]) == 2


def test_a_divisibility_that_is_asked_for_is_named():
    def program(x):
        return x.view(x.shape[0] // 2, 2, 8)  # in pairs

    error = clash_of(program, marked(8, min=2, max=64))
    assert "in pairs" in str(error)


def test_a_backend_that_forces_it_names_the_line_too():
    def compile_it(graph, spec):
        for node in graph.graph.find_nodes(op="placeholder"):
            int(node.meta["val"].shape[0])
        return lambda inputs: graph(*inputs)

    forcing = Backend(name="forcing", compile=compile_it, shapes="symbolic")
    assert "it is 4" in clash_of(double, marked(4), backend=forcing).found


def test_with_another_backend_too():
    def program(x):
        return x.sum(1) + torch.ones(36)  # a constant

    with torch.no_grad():
        assert "a constant" in str(clash_of(program, marked(36), backend="inductor"))


def test_a_clash_leaves_nothing_behind():
    def make():
        log = []

        def program(x):
            log.append(x.shape[1])
            return x + len([0] * x.shape[0])

        return program, log

    program, log = make()
    fast = tracer_core.compile(program, backend="eager")
    with pytest.raises(MarkedSizeError):
        fast(marked(6))
    assert log == []
    torch.testing.assert_close(fast(torch.ones(3, 8)), torch.ones(3, 8) + 3)
    assert log == [8]


# -- ranges reach the backend
# --------------------------------------------------------------------------


def test_ranges_reach_the_backends_specification():
    specs = []

    def compile_it(graph, spec):
        specs.append(spec)
        return lambda inputs: graph(*inputs)

    looking = Backend(name="looking", compile=compile_it, shapes="symbolic")
    with torch.no_grad():
        tracer_core.compile(double, backend=looking)(marked(4, min=3, max=64))
        tracer_core.compile(double, backend=looking)(marked(4))
    (bounded,), (free,) = specs[0].sizes, specs[1].sizes
    assert (bounded.lower, bounded.upper, bounded.dim) == (3, 64, 0)
    assert free.lower == 2 and free.upper is None


def test_a_static_backend_gets_static_graphs():
    sizes = []

    def compile_it(graph, spec):
        sizes.append(spec.sizes)
        return lambda inputs: graph(*inputs)

    fixed = Backend(name="fixed", compile=compile_it, shapes="static")
    with torch.no_grad():
        assert graphs_of(double, sized(4, 6, 9, 4), backend=fixed, dynamic=True) == 3
    assert sizes == [()] * 3


def test_gradients_with_symbolic_sizes():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.inner = torch.nn.Linear(8, 8)

        def forward(self, x):
            hidden = torch.nn.functional.pad(self.inner(x).relu(), (1, 1)).unfold(0, 2, 1)
            return (hidden.sum() / x.shape[0], x.reshape(-1)[: x.shape[0]].sum())

    layer, fast = Layer(), tracer_core.compile(Layer(), backend="eager")
    with CaptureCounter() as counter:
        for n in (4, 6, 9, 17, 5):
            x, y = torch.randn(n, 8, requires_grad=True), None
            y = x.detach().clone().requires_grad_()
            (sum(layer(x))).backward()
            (sum(fast(y))).backward()
            torch.testing.assert_close(y.grad, x.grad, rtol=0, atol=0)
            for parameter, other in zip(layer.parameters(), fast.parameters(), strict=True):
                torch.testing.assert_close(other.grad, parameter.grad, rtol=0, atol=0)
    assert len(counter.graphs) == 2 and not counter.breaks


def test_a_number_of_an_object_that_changes_beside_a_size():
    def make():
        class Schedule:
            rate = 0.5

        schedule = Schedule()
        schedule.rate = 0.5

        def program(x):
            return x * schedule.rate / x.shape[0]

        return program, schedule

    def faster(schedule):
        schedule.rate *= 1.5

    steps = []
    for n in (4, 6, 9, 17):
        steps += [(torch.ones(n, 2),), faster]
    compare_with_eager(make, *steps, graphs=2, breaks=0)


def test_a_batch_of_tokens_that_changes_in_one_size_is_taken_to_change_in_both():
    table = torch.linspace(-1, 1, 60).reshape(20, 3)
    calls = [
        (torch.arange(n * m).reshape(n, m) % 20,)
        for n, m in [(2, 6), (3, 6), (3, 9), (5, 4), (2, 2)]
    ]
    same(
        lambda tokens: torch.nn.functional.embedding(tokens, table).tanh().sum(1), *calls, graphs=2
    )


def halves_are_smaller(x):
    return x * 2 if x.shape[0] // 2 < x.shape[0] else x - 1


def one_size_is_special(x):
    return x * 2 if (x.shape[0] - 77_778) ** 2 > 0 else x - 1


def hundreds_are_special(x):
    return x * 2 if x.shape[0] % 100 > 0 else x - 1


def within_a_long_range(size):
    x = torch.ones(size)
    tracer_core.mark_dynamic(x, 0, min=2, max=100_000)
    return x


def test_a_condition_that_holds_for_a_long_range():
    calls = [within_a_long_range(size) for size in (5, 9, 99_999)]
    assert graphs_of(halves_are_smaller, calls) == 1


def test_a_condition_that_fails_for_some_sizes_of_a_long_range():
    fast = tracer_core.compile(hundreds_are_special, backend="eager")
    with pytest.raises(MarkedSizeError, match="% 100"):
        fast(within_a_long_range(5))


def test_a_size_of_a_long_range_that_was_not_tried():
    calls = [within_a_long_range(size) for size in (5, 9, 99_999)]
    assert graphs_of(one_size_is_special, calls) == 1
    clash_of(one_size_is_special, within_a_long_range(77_778), backend="eager")
    messages = tracer_core.explain(one_size_is_special)(within_a_long_range(5))
    assert messages.limits[0].startswith("MAX_TRIED_SIZES at ")
