"""Programs whose size goes through a limit, by the limit's name."""

from __future__ import annotations

import functools
import heapq
import itertools
import json
import random
import statistics
from typing import Any

import numpy
import torch

import tracer_core
from tests.limits.registered import RARELY, X, case

# -- the length and the depth of a trace


@case("MAX_TRACED_INSTRUCTIONS", limit=500, under=20, over=100, says="[step_limit]")
def layers_in_a_loop(n):
    def f(x):
        for _ in range(n):
            x = x * 0.9 + 1
        return x

    return f


@case("MAX_INSTRUCTIONS_WITHOUT_OPERATOR", limit=500, under=20, over=400, says="runs eagerly")
def statistics_in_python(n):
    def f(x):
        total = 0
        for i in range(n):
            total += i * i
        return x + total

    return f


@case("MAX_INLINED_CALLS", limit=20, under=10, over=30, says="captures in a row", **RARELY)
def recursion(n):
    def tree(x, depth):
        return x + 1 if depth == 0 else tree(x, depth - 1) * 0.5

    return lambda x: tree(x, n)


@case("MAX_INLINED_NATIVE_CALLS", limit=5, under=3, over=9, says="captures in a row", **RARELY)
def recursion_through_c(n):
    def depth(tree):
        return 1 + max(map(depth, tree), default=0)

    tree: list[Any] = []
    for _ in range(n):
        tree = [tree]
    return lambda x: x * depth(tree)


@case("MAX_CAPTURE_RESTARTS", is_compared=False, limits=(64, 1), says="restarted too often")
def sizes_that_depend_on_data(n):
    def f(x):
        return x[x > 1].sum() + x.nonzero().shape[0]

    return f


@case("MAX_TRACEBACK_CALLERS", is_compared=False, limits=(32, 2))
def an_error_far_down(n):
    def down(x, depth):
        return x[torch.tensor(9)] if depth == 0 else down(x, depth - 1)

    def f(x):
        return down(x, 8)

    return f


# -- containers


@case("MAX_GUARDED_ITEMS", limit=50, under=50, over=51, says="[unsupported_value]")
def a_table_of_numbers(n):
    table = [float(i) for i in range(n)]
    return lambda x: x * sum(table)


@case("MAX_GUARDED_BUFFER", under=4096, over=4097, says="[unsupported_value]")
def a_buffer(n):
    data = bytearray(range(256)) * 17
    return lambda x, part=data[:n]: x * sum(part)


@case(
    "MAX_ITEMS_AHEAD", under=64, over=65, says="[",
    calls=lambda n: [(X, iter([0.5] * n))] * 6,
)  # fmt: skip
def an_iterator_of_the_caller(n):
    def f(x, steps):
        for step in steps:
            x = x + step
        return x

    return f


@case("MAX_ITERATOR_DEPTH", under=7, over=8)
def iterators_in_iterators(n):
    def f(x):
        items = iter((1.0, 2.0))
        for _ in range(n):
            items = itertools.islice(items, 2)
        return x * sum(items)

    return f


def nested(depth):
    actual: Any = [1]
    for _ in range(depth):
        actual = [actual, 2]
    return actual


@case("MAX_DATA_DEPTH", under=3, over=9, says="[")
def deep_data_for_a_library(n):
    def f(x, data):
        return x + len(json.dumps(data))

    return functools.partial(f, data=nested(n))


@case(
    "MAX_READ_DEPTH", is_compared=False, under=3, over=9, says="[",
    calls=lambda n: [(X, nested(n))] * 6,
)  # fmt: skip
def a_queue_of_deep_data(n):
    def f(x, data):
        queue = [(2, [0])]
        heapq.heappush(queue, (1, data))
        return x * heapq.heappop(queue)[0]

    return f


@case("MAX_SEARCHED_ITEMS", limit=10, under=10, over=11)
def an_exception_about_data(n):
    def f(x):
        data = [*[0.5] * (n - 1), "a"]
        try:
            return x * statistics.fmean(data)
        except TypeError as error:
            return x * len(str(error))

    return f


@case(
    "MAX_HELD_ITEMS", is_compared=False, under=64, over=70,
    calls=lambda n: [(X, iter([0.5] * n)) for _ in range(6)],
)  # fmt: skip
def another_iterator_of_the_caller(n):
    def f(x, steps):
        for step in steps:
            x = x + step
        return x

    return f


class Session:
    """An object whose end the program can observe."""

    ended = 0

    def __del__(self):
        type(self).ended += 1


@case(
    "MAX_FINALIZATION_OBJECTS",
    is_compared=False,
    under=10,
    over=3000,
    calls=lambda n: [(X, State(n))] * 6,
)
def a_session_among_records(n):
    def f(x, state):
        x = x + 1
        print(end="", flush=[])
        return x * len(state.rows)

    return f


class State:
    def __init__(self, n):
        self.rows: Any = [*([i] for i in range(n)), Session()]


@case("MAX_OVERWRITTEN_OBJECTS", under=30, over=100, calls=lambda n: [(X, State(n))] * 6)
def overwritten_records(n):
    def f(x, state):
        state.rows = []
        return x * 2

    return f


@case(
    "MAX_FINALIZATION_VISITS",
    is_compared=False,
    limits=(500_000, 20),
    calls=lambda n: [(X, State(30))] * 6,
)
def records_overwritten_in_steps(n):
    def f(x, state):
        for i in range(5):
            state.rows = [*state.rows[1:], [i]]
        return x * len(state.rows)

    return f


@case("MAX_SET_ORDERS", limits=(256, 1))
def a_set_with_collisions(n):
    def f(x):
        chosen = {53, 5, 33}
        return x * len(chosen), chosen

    return f


@case("MAX_SPECIALIZED_OBJECTS", limit=10, under=5, over=20, says="[native_python]")
def a_cached_function_of_functions(n):
    @functools.lru_cache
    def cost(steps):
        return len(steps)

    return lambda x: x * cost(tuple((torch.sin, i) for i in range(n)))


@case("MAX_WRAPPERS", is_compared=False, under=8, over=9)
def decorated(n):
    def f(x):
        return x * 2

    for _ in range(n):
        f = _decorated(f)
    return lambda x, g=f: g(x) + 1


def _decorated(f):
    @functools.wraps(f)
    def wrapped(*args):
        return f(*args)

    return wrapped


# -- operators and arrays


@case(
    "MAX_EAGER_ERROR_ELEMENTS", limit=100, under=99, over=150,
    calls=lambda n: [(torch.ones(n), torch.ones(n + 1))] * 6,
)  # fmt: skip
def an_error_that_is_caught(n):
    def f(x, y):
        try:
            return x + y
        except RuntimeError as error:
            return x * len(str(error))

    return f


@case("MAX_UNROLLED_MAP", under=64, over=65, calls=lambda n: [(torch.arange(float(n)),)] * 6)
def mapped_rows(n):
    def f(x):
        return torch._higher_order_ops.map(lambda row, k: row * 2 + k, x.reshape(-1, 1), X[:1])

    return f


def _scanned(x):
    def step(carry, row):
        carry = carry * 0.5 + row
        return carry, carry.clone()

    return torch._higher_order_ops.scan(step, torch.zeros(2), x)


def _rows(n):
    return [(torch.arange(2.0 * n).reshape(n, 2),)] * 6


@case(
    "MAX_UNROLLED_SCAN",
    limit=8,
    under=8,
    over=9,
    calls=_rows,
    options={"backend": "aten_eager"},
    release="2.13",
)
def a_recurrence(n):
    return lambda x: _scanned(x)


@case(
    "MAX_SHORT_SCAN", under=4, over=5, calls=_rows, options={"backend": "inductor"}, release="2.13"
)
def a_short_recurrence(n):
    return lambda x: _scanned(x)


@case("MAX_LISTED_ELEMENTS", under=64, over=65, says="[", calls=lambda n: [(torch.arange(n),)] * 6)
def lengths_as_a_list(n):
    def f(x):
        return x * sum(x.tolist())

    return f


@case(
    "MAX_ARRAY_ELEMENTS", limit=100, under=100, over=101, says="[",
    calls=lambda n: [(torch.arange(float(n)),)] * 6,
)  # fmt: skip
def an_array(n):
    return lambda x: torch.from_numpy(numpy.sqrt(x.numpy()) + 1) * 2


@case(
    "MAX_CONSTANT_ARRAY_ELEMENTS", under=4096, over=4097, says="[",
    calls=lambda n: [(torch.arange(float(n)),)] * 6,
)  # fmt: skip
def a_window(n):
    def f(x):
        window = numpy.hanning(n).astype(numpy.float32)
        return torch.as_tensor(x.numpy() * window) + 1

    return f


# -- numbers


@case("MAX_RANDOM_DRAWS", limit=8, under=8, over=9, says="[side_effect_native]")
def augmentation(n):
    rng = random.Random(3)

    def f(x):
        for _ in range(n):
            x = x * rng.random()
        return x

    return f


@case("MAX_RANDOM_BITS", under=31, over=40, says="[side_effect_native]")
def random_bits(n):
    rng = random.Random(3)
    return lambda x: x * (rng.getrandbits(n) % 7)


@case(
    "MAX_TUPLE_PARTS", is_compared=False, under=64, over=65, settles=9, says="",
    calls=lambda n: [(X, (*[1] * (n - 1), i)) for i in range(14)],
)  # fmt: skip
def a_schedule_in_a_tuple(n):
    return lambda x, schedule: x * schedule[-1]


@case(
    "MAX_GRAPH_NUMBERS", limit=20, under=10, over=40, settles=9,
    calls=lambda n: [(X, i + 2) for i in range(14)],
)  # fmt: skip
def many_numbers(n):
    def f(x, k):
        for i in range(n):
            x = x * (k + i)
        return x

    return f


@case(
    "MAX_SCALAR_OPERATIONS", limit=20, under=10, over=40, settles=9,
    calls=lambda n: [(X, i + 0.5) for i in range(14)],
)  # fmt: skip
def a_long_formula(n):
    def f(x, k):
        rate = k
        for _ in range(n):
            rate = rate * 0.5 + 1
        return x * rate

    return f


@case(
    "MAX_SYMBOLIC_INT", is_compared=False, under=2**31 - 100, over=2**31 + 100, settles=9,
    says="kept changing", calls=lambda n: [(X, n + i) for i in range(14)],
)  # fmt: skip
def a_large_counter(n):
    return lambda x, k: x * (k % 1000)


@case(
    "MAX_TRIED_SIZES", limits=(8192, 2), calls=lambda n: [(_marked(4 + i % 3),) for i in range(8)],
)  # fmt: skip
def a_condition_on_a_marked_size(n):
    def f(x):
        size = x.shape[0]
        return x * 2 if size * (9 - size) > 7 else x

    return f


def _marked(size):
    x = torch.ones(size)
    tracer_core.mark_dynamic(x, 0, min=4, max=7)
    return x


def _scaled(reach):
    """A function whose backward multiplies by a number, which reach() returns."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * reach()

    def f(x):
        x = x.detach().requires_grad_()
        Scaled.apply(x).sum().backward()
        return x.grad

    return f


@case("MAX_BACKWARD_DEPTH", under=1, over=8)
def a_backward_that_reads_a_number_in_nested_lists(n):
    nested = 3.0
    for _ in range(n):
        nested = [nested]

    def reach():
        value = nested
        while type(value) is list:
            (value,) = value
        return value

    return _scaled(reach)


@case("MAX_BACKWARD_OBJECTS", under=100, over=2_100)
def a_backward_that_reads_the_first_of_many_lists(n):
    rows = [[float(number)] for number in range(3, n)]
    return _scaled(lambda: rows[0][0])
