"""Generators, yield from, comprehensions, iterators."""

from __future__ import annotations

import pytest
import torch

import tracer_core
from tests.support.eager_reference import compare_with_eager, same
from tracer_core.testing import CaptureCounter, compare

X, Y = torch.randn(3, 4), torch.randn(3, 4)


def test_generator_loop():
    def gen(x):
        for i in range(3):
            yield x + i

    same(lambda x: [v * 2 for v in gen(x)], (X,), (Y,), graphs=1)


def test_generator_expression():
    same(lambda x: sum(x * i for i in range(4) if i % 2), (X,), (Y,), graphs=1)


def test_yield_from():
    def inner(x):
        got = yield x
        yield x * 2
        return got

    def outer(x):
        result = yield from inner(x)
        yield result
        yield from [x, x + 1]

    same(lambda x: list(outer(x)), (X,), (Y,), graphs=1)


def test_send_and_return_value():
    def gen(x):
        total = x
        while True:
            y = yield total
            if y is None:
                return total
            total = total + y

    def f(x):
        g = gen(x)
        next(g)
        g.send(1)
        a = g.send(x)
        try:
            next(g)
        except StopIteration as stop:
            return a, stop.value

    same(f, (X,), (Y,), graphs=1)


def test_throw_into_generator():
    def gen(x):
        try:
            yield x
        except ValueError as error:
            yield x * 10, str(error)

    def f(x):
        g = gen(x)
        next(g)
        return g.throw(ValueError("no"))

    same(f, (X,), (Y,), graphs=1)


def test_close_runs_finally():
    def f(x):
        log = []

        def gen():
            try:
                yield x + 1
                yield x + 2
            finally:
                log.append("closed")

        g = gen()
        v = next(g)
        g.close()
        return v, log

    same(f, (X,), (Y,), graphs=1)


def test_send_through_yield_from():
    def inner(x):
        while True:
            y = yield x
            x = x + y

    def outer(x):
        yield from inner(x)

    def f(x):
        g = outer(x)
        next(g)
        return g.send(2), g.send(x)

    same(f, (X,), (Y,), graphs=1)


def test_generator_consumed_partly():
    def gen(x, log):
        for i in range(10):
            log.append(i)
            yield x * i

    def f(x):
        log = []
        for v in gen(x, log):
            if len(log) == 3:
                break
        return v, log

    same(f, (X,), (Y,), graphs=1)


def test_generator_with_zip_stops_where_python_stops():
    def gen(x, log):
        for i in range(10):
            log.append(i)
            yield x * i

    def f(x):
        log = []
        out = [a + b for a, b in zip(range(2), gen(x, log), strict=False)]
        return out, log

    same(f, (X,), (Y,), graphs=1)


def test_generator_with_any_stops_early():
    def f(x):
        log = []

        def gen():
            for i in range(5):
                log.append(i)
                yield i

        return any(i == 2 for i in gen()), x + 1, log

    same(f, (X,), (Y,), graphs=1)


def test_map_is_lazy():
    def f(x):
        log = []

        def g(i):
            log.append(i)
            return x + i

        m = map(g, range(5))
        first = next(m)
        return first, log

    same(f, (X,), (Y,), graphs=1)


def test_filter_and_enumerate_are_lazy():
    def f(x):
        log = []

        def g(i):
            log.append(i)
            return i % 2

        it = enumerate(filter(g, range(10)))
        return next(it), x * 2, log

    same(f, (X,), (Y,), graphs=1)


def test_infinite_generator():
    def count(x):
        while True:
            x = x + 1
            yield x

    def f(x):
        out = []
        for i, v in enumerate(count(x)):
            if i == 3:
                return out
            out.append(v)

    same(f, (X,), (Y,), graphs=1)


def test_infinite_generator_in_zip():
    def count():
        n = 0
        while True:
            yield n
            n += 1

    same(
        lambda x: [x * a + b for a, b in zip(count(), range(3), strict=False)], (X,), (Y,), graphs=1
    )


def test_generator_raises():
    def gen(x):
        yield x
        raise KeyError("gone")

    def f(x):
        out = []
        try:
            for v in gen(x):
                out.append(v + 1)
        except KeyError as error:
            return out, str(error)

    same(f, (X,), (Y,), graphs=1)


def test_return_in_generator_stops():
    def gen(x, n):
        if n:
            return
        yield x

    same(lambda x, n: list(gen(x + 0, n)), (X, 0), (X, 1), (X, 0))


def test_comprehensions():
    def f(x):
        d = {k: x + v for k, v in {"a": 1, "b": 2}.items()}
        s = {i % 3 for i in range(9)}
        nested = [[x[i, j] for j in range(2)] for i in range(2)]
        return d, s, nested, [y for row in nested for y in row if y is not None]

    same(f, (X,), (Y,), graphs=1)


def test_generator_is_returned():
    def f(x):
        return (x * i for i in range(3))

    seen = compare_with_eager(lambda: lambda x: list(f(x)), (X,), breaks=0)
    assert len(seen.results[0]) == 3


def test_compiled_generator_function():
    def gen(x):
        yield x + 1
        yield x + 2

    compare_with_eager(lambda: lambda x: [v for v in gen(x)], (X,), graphs=1)


def test_user_iterator_class():
    class Count:
        def __init__(self, n):
            self.n, self.i = n, 0

        def __iter__(self):
            return self

        def __next__(self):
            if self.i == self.n:
                raise StopIteration
            self.i += 1
            return self.i

    same(lambda x: [x * i for i in Count(3)], (X,), (Y,), graphs=1)


def test_user_sequence_protocol():
    class Seq:
        def __len__(self):
            return 3

        def __getitem__(self, i):
            if i >= 3:
                raise IndexError
            return i * 10

    same(lambda x: [x + v for v in Seq()], (X,), (Y,), graphs=1)


def test_user_sequence_without_length():
    class Seq:
        def __getitem__(self, i):
            if i >= 3:
                raise IndexError
            return i * 10

    same(lambda x: [x + v for v in Seq()], (X,), (Y,), graphs=1)


def test_iterator_argument_is_advanced():
    def f(x, it):
        return x * next(it), [x + v for v in it]

    compiled = tracer_core.compile(f, backend="eager")
    for numbers in ([1, 2, 3], [4, 5], [6]):
        live = iter(numbers)
        compare(f(X, iter(numbers)), compiled(X, live))
        assert list(live) == []


def test_list_changed_while_iterated():
    def f(x):
        items = [1, 2, 3]
        for i in items:
            if i == 2:
                items.append(9)
            x = x + i
        return x, items

    same(f, (X,), (Y,), graphs=1)


def test_sourced_list_changed_while_iterated():
    def f(x, items):
        for i in items:
            if i == 2:
                items.append(9)
            x = x + i
        return x

    same(f, (X, [1, 2, 3]), (X, [1, 2, 3]), (X, [2]))


def test_dict_changed_while_iterated_is_an_error():
    def f(x, d):
        for k in d:
            d[k + "x"] = x
        return x

    same(f, (X, {"a": 1}), (X, {"a": 1}))


def test_two_loops_share_one_iterator():
    def f(x):
        it = iter([1, 2, 3, 4])
        a = next(it)
        b = [i for i in it if i != 3]
        return x * a, b

    same(f, (X,), (Y,), graphs=1)


def test_for_else():
    def f(x, n):
        for i in range(5):
            if i == n:
                break
        else:
            return x - 1
        return x * i

    same(f, (X, 2), (X, 9), (X, 2))


def test_while_else_continue():
    def f(x):
        i = 0
        while i < 5:
            i += 1
            if i == 2:
                continue
            x = x + i
        else:
            x = x * 2
        return x

    same(f, (X,), (Y,), graphs=1)


def test_generator_reads_changed_closure():
    def f(x):
        k = 1
        g = (x * k for _ in range(2))
        k = 5
        return list(g)

    same(f, (X,), (Y,), graphs=1)


def test_nested_generators():
    def walk(tree):
        for node in tree:
            if isinstance(node, list):
                yield from walk(node)
            else:
                yield node

    same(lambda x: [x * i for i in walk([1, [2, [3, 4]], 5])], (X,), (Y,), graphs=1)


def test_iterate_tensor_rows():
    same(lambda x: [row.sum() for row in x], (X,), (Y,), graphs=1)


def test_unpack_tensor():
    def f(x):
        a, b, c = x
        d, *e = x
        return a + b - c, d, e

    same(f, (X,), (Y,), graphs=1)


def test_unpack_wrong_count():
    def f(x):
        a, b = x
        return a

    same(f, (X,), (X,))


# Iterators from before that next() advances


def _zip():
    pairs = zip(range(100), iter([float(n) for n in range(50)]), strict=False)
    return lambda x: [x * a + b for a, b in [next(pairs)]], lambda: next(pairs)


def _map():
    scale = [2]
    scaled = map(lambda n: n * scale[0], range(100))
    return lambda x: x * next(scaled), lambda: scale.__setitem__(0, scale[0] + 1)


def _enumerate():
    actual = enumerate(iter([torch.ones(4) * k for k in range(20)]), 5)

    def f(x):
        (i, first), (j, second) = next(actual), next(actual)
        return x * i + first - second * j

    return f, lambda: next(actual)


def _filter():
    actual = filter(lambda n: n % 3 == 0, range(8))
    return lambda x: x + next(actual, -1), list


def _uneven():
    actual = zip([1, 2], [3.0, 4.0, 5.0], strict=True)

    def f(x):
        try:
            a, b = next(actual)
        except (ValueError, StopIteration) as error:
            return type(error), str(error)
        return x * a + b

    return f, list


def _nested():
    items = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    rows = map(lambda t: t * 2, [torch.full((4,), float(n)) for n in range(6)])
    actual = zip(rows, enumerate(items), strict=False)

    def f(x):
        row, (i, value) = next(actual)
        return x * row + i * value

    return f, lambda: items.reverse()


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize(
    "make", [_zip, _map, _enumerate, _filter, _uneven, _nested], ids=lambda item: item.__name__[1:]
)
def test_next_of_an_iterator_from_before(make, backend):
    (eager, change), (target, other) = make(), make()
    compiled = tracer_core.compile(target, backend=backend)
    with CaptureCounter() as counter:
        for x in (X, Y, X, Y):
            compare(eager(x), compiled(x))
            compare(change(), other())
    assert not counter.breaks


def test_loops_share_the_region_of_their_body():
    def make():
        numbers = iter(range(50))

        def f(x):
            for n in numbers:
                x = x + n
                tracer_core.graph_break()
                if n % 5 == 4:
                    break
            return x

        return f

    # the loop's number becomes an input, and so does the first one of a call
    compare_with_eager(make, (X,), (Y,), (X,), recompiles=2)


# Generators that outlive the graph


def several(a, *more, k=2, **named):
    try:
        yield a * k
        yield from more
    finally:
        yield named


def test_a_generator_that_leaves():
    class Holder:
        pass

    def run(function):
        holder = Holder()
        holder.found = None

        def f(x):
            def inner(y, scale=3):
                yield y * scale + x

            holder.found = several(x + 1, x + 2, k=x, z=5)
            return inner(x * 2), several(x), (row * 2 for row in x)

        result = function(f)
        for x in (X, Y):
            parts = (*result(x), holder.found)
            yield [
                (type(part), part.__qualname__, part.gi_code.co_name, list(part)) for part in parts
            ]

    with CaptureCounter() as counter:
        compiled = list(run(lambda f: tracer_core.compile(f, backend="eager")))
    compare(list(run(lambda f: f)), compiled)
    assert not counter.breaks and len(counter.graphs) == 1
