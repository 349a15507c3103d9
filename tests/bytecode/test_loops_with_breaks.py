"""Loops with a graph break in them: one region for the body, whatever the item; numbers that
change are inputs.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import pytest
import torch

import tracer_core
from tests.support.eager_reference import compare_with_eager, same
from tracer_core.testing import CaptureCounter

X, Y = torch.randn(3, 4), torch.randn(3, 4)


def loop(body):
    """A function that runs `body(x, i)` for each i."""

    def f(x, items):
        for i in items:
            x = body(x, i)
        return x

    return f


def test_a_thousand_iterations_are_two_graphs():
    def f(x, n):
        total = 0.0
        for i in range(n):
            x = torch.tanh(x * 0.9 + i * 1e-3)
            total += x[0, 0].item()
        return x, total

    seen = same(f, (X, 1000), (Y, 1000), (X, 1001), kinds=("data_dependent_value",))
    assert len(seen.counter.graphs) <= 4


@pytest.mark.parametrize("items", [range(12), list(range(12)), tuple(range(12)),
dict.fromkeys(range(12)), "abcdefghijkl"],
                         ids=["range", "list", "tuple", "dict", "str"])  # fmt: skip
def test_loops_over_every_kind_of_container(items):
    def f(x, items):
        for i in items:
            x = x + 1
            print(end="", flush=[])
        return x, i

    seen = same(f, (X, items), (Y, items), breaks=None)
    assert len(seen.counter.graphs) == 2


def test_enumerate_and_zip():
    def f(x, items):
        for n, (i, j) in enumerate(zip(items, items, strict=True)):
            x = x * i + j - n
            print(end="", flush=[])
        return x

    seen = same(
        f, (X, [1.5, 2.5, 3.5, 4.5, 5.5, 6.5]), (Y, [2.0, 1.0, 0.5, 3.5, 9.5, 7.0]), breaks=None
    )
    assert len(seen.counter.graphs) <= 4


def test_dict_items():
    def f(x, items):
        out = {}
        for key, value in items.items():
            out[key] = x * value
            print(end="", flush=[])
        return out

    same(f, (X, {"a": 1.0, "b": 2.0, "c": 3.0}), (X, {"a": 3.0, "b": 2.5, "c": 1.0}), breaks=None)


def test_while_loop_on_a_tensor():
    def f(x):
        n = 0
        while x.abs().max() > 0.1:
            x = x * 0.5
            n += 1
        return x, n

    seen = same(f, (X,), (Y * 100,), (X * 1e-3,), kinds=("data_dependent_branch",))
    assert len(seen.counter.graphs) <= 3


def test_else_break_and_continue():
    def f(x, items):
        for i in items:
            if x.sum().item() > 1e6:
                break
            if i % 2:
                continue
            x = x + i
        else:
            x = x * 2
        return x

    same(f, (X, range(9)), (X + 1e6, range(9)), (Y, range(4)), (Y, range(0)), breaks=None)


def test_nested_loops():
    def f(x, n):
        for i in range(n):
            for j in range(i):
                x = x + torch.sin(x * j)
                print(end="", flush=[])
            x = x - i
        return x

    seen = same(f, (X, 6), (Y, 6), (X, 7), breaks=None)
    assert len(seen.counter.graphs) <= 12


def test_break_in_a_nested_call_of_the_body():
    def inner(x, i):
        y = x * 2
        print(end="", flush=[])
        return y - x + i

    seen = same(loop(inner), (X, range(20)), (Y, range(20)), breaks=None)
    assert len(seen.counter.graphs) <= 6


def test_break_inside_with_and_try_in_the_body():
    def body(x, i):
        with torch.no_grad():
            try:
                y = x + i
                if y.sum().item() > 1e9:
                    raise ValueError
            finally:
                y = y * 1
        return y

    same(loop(body), (X, range(10)), (Y, range(10)), breaks=None)


def test_exception_in_an_iteration():
    def body(x, i):
        y = x + 1
        print(end="", flush=[])
        if i == 7:
            raise KeyError(i)
        return y

    same(loop(body), (X, range(5)), (X, range(9)), (Y, range(9)), (Y, range(6)), breaks=None)


def test_the_break_raises_in_the_middle_of_a_loop():
    def f(x, items):
        done = []
        for i in items:
            x = x + 1
            try:
                done.append(10 // int(i.item()))
            except ZeroDivisionError:
                done.append(None)
        return x, done

    items = [torch.tensor(v) for v in (1, 2, 0, 3, 0, 4)]
    same(f, (X, items), (Y, items), breaks=None)


def test_list_grows_while_it_is_looped_over():
    def f(x, items):
        for i in items:
            x = x + 1
            if x.sum().item() > -1e9 and len(items) < 8:
                items.append(i)
        return x

    same(f, (X, [1, 2]), (Y, [3]), breaks=None)


def test_dict_changed_size_after_a_break():
    def f(x, d):
        for k in d:
            x = x + 1
            print(end="", flush=[])
            d[k + "!"] = 1
        return x

    same(f, (X, {"a": 1}), (X, {"a": 1}), breaks=None)


def test_loop_variable_after_the_loop_and_iterator_shared():
    def f(x, n):
        it = iter(range(n))
        for i in it:
            x = x + 1
            print(end="", flush=[])
            next(it, None)
        return x, i

    same(f, (X, 9), (Y, 8), breaks=None)


# -- numbers that change --


def test_an_int_argument_becomes_an_input():
    seen = same(
        lambda x, n: x * n, (X, 2), (X, 3), (Y, 4), (X, 0), (X, 1), (X, -7), (X, 10**6), graphs=2
    )
    assert len(seen.counter.recompiles) == 1


def test_a_float_argument_becomes_an_input():
    same(
        lambda x, n: x * n + 1,
        (X, 0.1),
        (X, 0.3),
        (Y, 1e-30),
        (X, -0.0),
        (X, 1e300),
        (X, 2.0),
        graphs=2,
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2**40, True, -(2**63)])
def test_numbers_that_are_no_inputs(value):
    same(lambda x, n: x.float() * n, (X, 2), (X, 3), (X, value), (X, 5), (X, value), graphs=None)


def test_arithmetic_on_floats_is_pythons():
    def f(x, a):
        b = a + 0.1 + 0.2
        c = b * 3 / 7 - a**2
        return x * c, c

    values = [0.1, 0.7, 1e-8, 123456.789, -3.3]
    same(f, *[(X, v) for v in values], *[(Y, v) for v in values], graphs=2)


def test_arithmetic_on_ints_is_pythons():
    def f(x, n):
        m = n // 3 - n % 5 + (n << 2) ^ 7
        return x + m, m, -n, ~n, n / 7

    same(f, *[(X, n) for n in (3, 8, -9, 100, 0, 1, 12345)], graphs=2)


def test_comparison_is_guarded_by_its_outcome():
    def f(x, n):
        if n % 3 == 0:
            return x + n
        if n > 10:
            return x - n
        return x * n

    seen = same(f, *[(X, n) for n in (3, 4, 6, 7, 9, 11, 13, 14, 12, 5, 300, 17)], graphs=4)
    assert len(seen.counter.recompiles) == 3


def test_two_numbers_together():
    def f(x, a, b):
        return x * (a + b) + (a - 2 * b), a * b, a < b

    same(f, (X, 1, 2.5), (X, 2, 3.5), (Y, 3, 4.5), (X, 9, 10.5), (X, 4, 1.5), graphs=None)


def test_a_counter_of_a_module():
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.steps = 0
            self.rate = 1.0

        def forward(self, x):
            self.steps += 1
            self.rate *= 0.5
            return x * self.steps + self.rate

    compare_with_eager(lambda: (m := Counting(), m), *[(X,)] * 6, (Y,), graphs=2, recompiles=1)


def test_a_counter_in_a_cell_and_a_global():
    def make():
        n = 0

        def f(x):
            nonlocal n
            n += 2
            return x + n

        return f, None

    compare_with_eager(make, *[(X,)] * 5, graphs=2)


def test_a_number_as_size_index_and_key():
    def f(x, n):
        table = {k: k * 2 for k in range(20)}
        return (
            x[: n % 3],
            x.repeat(n, 1),
            [10, 20, 30, 40, 50, 60][n],
            table[n],
            f"{n}:{n:03d}",
            str(n),
            {n: x},
        )

    same(f, *[(X, n) for n in (1, 2, 3, 4, 5, 2)], graphs=None)


def test_type_identity_and_hash_of_a_number():
    def f(x, n):
        return (
            x + n,
            type(n) is int,
            isinstance(n, (int, str)),
            hash(n) == n,
            {n, 3},
            n in (4, 5),
            bool(n),
            n is None,
        )

    same(f, *[(X, n) for n in (1, 2, 3, 4, 0)], graphs=None)


def test_a_number_in_containers_that_come_back():
    def f(x, n):
        return {"n": n, "next": n + 1, "list": [n, (n, x * n)]}

    same(f, *[(X, n) for n in (1, 2, 3, 4)], graphs=2)


def test_a_number_meets_a_size():
    def f(x, n):
        return x.reshape(-1)[: x.shape[0] + n], x.shape[0] * n, x.shape[1] > n

    same(f, *[(torch.randn(s, 4), n) for s, n in ((3, 1), (5, 2), (6, 3), (7, 4))], graphs=None)


def test_item_decides_a_branch_without_a_guard():
    def f(x):
        if x.mean().item() > 0.5:
            return x * 2
        return x - 1

    seen = same(
        f,
        *[(torch.randn(3, 4) + v,) for v in (0.0, 3.0, -1.0, 5.0, 0.1, 7.0)],
        kinds=("data_dependent_value",),
    )
    assert len(seen.counter.graphs) == 3 and not seen.counter.recompiles


def test_item_used_in_the_next_graph():
    def f(x):
        scale = x.abs().max().item()
        return x / scale, scale * 2

    seen = same(
        f,
        *[(torch.randn(3, 4) * v,) for v in (1.0, 3.0, 10.0, 5.0)],
        kinds=("data_dependent_value",),
    )
    assert len(seen.counter.graphs) == 3


def test_inductor_gets_changing_numbers():
    compiled = tracer_core.compile(lambda x, n: torch.relu(x * n) + n, backend="inductor")
    with CaptureCounter():
        for n in (1, 2, 3, 0.5, 0.25):
            torch.testing.assert_close(compiled(X, n), torch.relu(X * n) + n)


def test_dynamic_false_guards_numbers():
    same(lambda x, n: x * n, (X, 2), (X, 3), (X, 4), graphs=3, dynamic=False)


def test_eval_in_an_expression_of_a_loop_sees_the_variables():
    def f(x, items):
        found = []
        for i in items:
            for j in items:
                found.append(eval("i + j") == eval("j + i"))
        return x + 1, found

    same(f, (X, [1, 2]), (X, [2, 3]), (X, [1, 2]), breaks=None)


def ordered_items(x, d):
    actual = []
    for key, value in d.items():
        tracer_core.graph_break()
        actual.append((key, x * value))
    return actual


def ordered_values_backwards(x, d):
    for value in reversed(d.values()):
        x = x + value
        tracer_core.graph_break()
        x = x * 2
    return x


def ordered_made_here(x, d):
    ordered_dict = OrderedDict((key + "2", value + 1) for key, value in d.items())
    actual = []
    for key, value in ordered_dict.items():
        x = x * value
        tracer_core.graph_break()
        actual.append((key, x))
    return actual


def ordered_halfway(x, d):
    items, keys, back = iter(d.items()), iter(d), reversed(d.items())
    first = next(items), next(keys), next(back)
    tracer_core.graph_break()
    return x * 2, first, list(items), list(keys), list(back), type(items).__name__


def ordered_at_its_end(x, d):
    inputs, spent = iter(d.values()), iter(d)
    first = [next(inputs) for _ in range(len(d))], list(spent)
    tracer_core.graph_break()
    return x * 2, first, next(inputs, "end"), next(spent, "end"), list(inputs)


def ordered_replaced_behind_a_break(x, d):
    values = iter(d.values())
    first = next(values)
    tracer_core.graph_break()
    last = next(reversed(d))
    d[last] = 9
    return x * first, list(values)


def ordered_grown_behind_a_break(x, d):
    keys = iter(d)
    first = next(keys)
    tracer_core.graph_break()
    d["new"] = 1
    try:
        second = next(keys)
    except RuntimeError as error:
        second = str(error)
    return x * 2, first, second


def ordered_with_the_same_values(x, d):
    item = [1]
    ordered_dict = OrderedDict(a=item, b=item, c=item)
    values = iter(ordered_dict.values())
    next(values)
    tracer_core.graph_break()
    ordered_dict["c"] = [5]
    return x * len(d), list(values)


@pytest.mark.parametrize(
    "f",
    [ordered_items, ordered_values_backwards, ordered_made_here, ordered_halfway,
     ordered_at_its_end, ordered_replaced_behind_a_break, ordered_grown_behind_a_break,
     ordered_with_the_same_values],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 3])
def test_iterators_over_an_ordered_dictionary_live_across_breaks(f, size):
    calls = [
        (x, OrderedDict((f"k{k}", k + n) for k in range(1, size + 1)))
        for n, x in enumerate((X, Y, X))
    ]
    seen = same(f, *calls, breaks=None)
    if f is not ordered_with_the_same_values:
        assert not any("outlives" in reason for _, reason, _ in seen.counter.breaks)
