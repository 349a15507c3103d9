"""Functions: arguments, closures, globals, defaults, lambdas, recursion, partial."""

from __future__ import annotations

import functools

import pytest
import torch

from tests.support.eager_reference import Kw, compare_with_eager, module, same

X, Y = torch.randn(3, 4), torch.randn(3, 4)
X2 = X * 2


def test_plain_function():
    same(lambda x: x.sin() + 1, (X,), (X2,), graphs=1)


def test_default_arguments():
    def f(x, y=2, *, z=3):
        return x * y + z

    same(f, (X,), (X, 4), (X, Kw(z=5)), (X,), (X, Kw(y=1, z=2)))


def test_star_arguments():
    def f(*args, **kwargs):
        return sum(args) * kwargs["k"], sorted(kwargs)

    same(f, (X, Y, Kw(k=2)), (X, Kw(k=3, j=1)), (X, Y, Kw(k=2)))


def test_star_call():
    def inner(a, b=0, *rest, c, **more):
        return a + b + sum(rest) * c, more

    def f(x, y):
        return inner(*[x, y], *(x, y), c=2, d=x)

    same(f, (X, Y), (Y, X), graphs=1)


def test_positional_only():
    def f(x, /, y, *, z):
        return x - y + z

    same(f, (X, Y, Kw(z=Y)), (X, Kw(y=Y, z=X)))


def test_wrong_arguments_raise_as_eager():
    def inner(a, b):
        return a

    same(lambda x: inner(x), (X,), (X,), breaks=0)


def test_closure_read():
    def make():
        scale = torch.ones(4)

        def f(x):
            return x * scale

        return f, [scale]

    compare_with_eager(make, (X,), lambda w: w[0].mul_(3), (X,), graphs=1, breaks=0, recompiles=0)


def test_nonlocal_counter():
    def make():
        count = 0

        def f(x):
            nonlocal count
            count += 1
            return x + count

        return f

    compare_with_eager(make, (X,), (X,), (X,), (X,), breaks=0)


def test_nonlocal_tensor():
    def make():
        total = torch.zeros(3, 4)

        def f(x):
            nonlocal total
            total = total + x
            return total * 2

        return f

    compare_with_eager(make, (X,), (Y,), (X,), breaks=0, graphs=1)


def test_closure_made_inside():
    def f(x):
        n = 0

        def add(y):
            nonlocal n, x
            n += 1
            x = x + y
            return x

        add(1)
        add(2)
        return add(3), n

    same(f, (X,), (Y,), graphs=1)


def test_returned_closure_works():
    def f(x):
        k = x * 2

        def g(y):
            return y + k

        return g

    compiled = same(f, (X,), aliasing=False).compiled
    assert torch.equal(compiled(X)(Y), Y + X * 2)
    assert torch.equal(compiled(Y)(Y), Y + Y * 2)


def test_returned_closure_with_shared_cell():
    def f(x):
        n = 0

        def up():
            nonlocal n
            n += 1
            return n

        def get():
            return n

        up()
        return x + n, up, get

    compiled = same(f, (X,), aliasing=False).compiled
    _, up, get = compiled(X)
    assert get() == 1 and up() == 2 and get() == 2
    _, _, other = compiled(X)
    assert other() == 1


def test_lambda_defaults_bind_early():
    def f(x):
        fs = [lambda v, i=i: v * i for i in range(3)]
        gs = [lambda v: v * i for i in range(3)]
        return [g(x) for g in fs + gs]

    same(f, (X,), (Y,), graphs=1)


def test_mutable_default_argument():
    def make():
        def f(x, seen=[]):
            seen.append(len(seen))
            return x + len(seen)

        return f, f.__defaults__[0]

    compare_with_eager(make, (X,), (X,), (X,), breaks=0)


def test_mutable_default_of_inlined():
    def make():
        def g(x, cache={}):
            cache["n"] = cache.get("n", 0) + 1
            return x * cache["n"]

        return (lambda x: g(x)), g.__defaults__[0]

    compare_with_eager(make, (X,), (X,), (X,), breaks=0)


def test_keyword_default_replaced_between_calls():
    def make():
        def g(x, *, k=2):
            return x * k

        return (lambda x: g(x)), g

    def change(g):
        g.__kwdefaults__ = {"k": 5}

    compare_with_eager(make, (X,), change, (X,), breaks=0)


def test_defaults_replaced_between_calls():
    def make():
        def g(x, k=2):
            return x * k

        return (lambda x: g(x)), g

    def change(g):
        g.__defaults__ = (7,)

    compare_with_eager(make, (X,), change, (X,), breaks=0)


def test_code_replaced_between_calls():
    def make():
        def g(x):
            return x * 2

        return (lambda x: g(x)), g

    def change(g):
        g.__code__ = (lambda x: x * 11).__code__

    compare_with_eager(make, (X,), change, (X,), breaks=0)


def test_code_of_compiled_function_replaced():
    def make():
        def g(x):
            return x * 2

        return g

    def change(g):
        g.__code__ = (lambda x: x * 11).__code__

    compare_with_eager(make, (X,), change, (X,), breaks=0)


def test_recursion():
    def fib(x, n):
        return x if n < 2 else fib(x, n - 1) + fib(x, n - 2)

    same(fib, (X, 5), (X, 6), (X, 5))


def test_mutual_recursion():
    def even(x, n):
        return x if n == 0 else odd(x + 1, n - 1)

    def odd(x, n):
        return x * 2 if n == 0 else even(x + 1, n - 1)

    same(lambda x: even(x, 5), (X,), (Y,), graphs=1)


def test_deep_recursion_is_an_error():
    def f(x):
        return f(x)

    def g(x):
        try:
            return f(x)
        except RecursionError:
            return x + 1

    same(g, (X,))


def test_partial():
    def g(a, b, *, c):
        return a * b + c

    part = functools.partial(g, 2, c=X)
    same(lambda x: part(x), (X,), (Y,), graphs=1)


def test_partial_made_inside():
    def g(a, b, *, c=1):
        return a * b + c

    def f(x):
        p = functools.partial(g, x, c=4)
        return p(3) + p(2, c=x)

    same(f, (X,), (Y,), graphs=1)


def test_global_read_and_write():
    def make():
        m = module("n = 0\ndef f(x):\n    global n\n    n += 1\n    return x + n\n")
        return m.f, m

    compare_with_eager(make, (X,), (X,), lambda m: setattr(m, "n", 10), (X,), breaks=0)


def test_global_deleted_and_created():
    def make():
        m = module("a = 1\ndef f(x):\n    global a, b\n    b = a\n    del a\n    return x + b\n")
        return m.f, m

    compare_with_eager(make, (X,), lambda m: setattr(m, "a", 3), (X,), (X,), breaks=0)


def test_global_function_replaced():
    def make():
        m = module("def g(x):\n    return x + 1\ndef f(x):\n    return g(x)\n")
        return m.f, m

    compare_with_eager(
        make, (X,), lambda m: setattr(m, "g", lambda x: x - 1), (X,), breaks=0, recompiles=1
    )


def test_builtin_shadowed_between_calls():
    def make():
        m = module("def f(x):\n    return x * len([1, 2])\n")
        return m.f, m

    compare_with_eager(
        make, (X,), lambda m: setattr(m, "len", lambda v: 9), (X,), breaks=0, recompiles=1
    )


def test_global_tensor_replaced():
    def make():
        m = module("w = torch.ones(4)\ndef f(x):\n    return x * w\n")
        return m.f, m

    compare_with_eager(
        make, (X,), lambda m: setattr(m, "w", torch.full((4,), 3.0)), (X,), breaks=0, recompiles=0
    )


def test_global_list_contents_change():
    def make():
        m = module("ks = [1, 2]\ndef f(x):\n    for k in ks:\n        x = x * k\n    return x\n")
        return m.f, m

    compare_with_eager(
        make,
        (X,),
        lambda m: m.ks.append(3),
        (X,),
        lambda m: m.ks.__setitem__(0, 7),
        (X,),
        breaks=0,
        recompiles=2,
    )


def test_global_dict_order_changes():
    def make():
        m = module(
            "d = {'a': 1, 'b': 2}\ndef f(x):\n    return [x * v for v in d.values()], list(d)\n"
        )
        return m.f, m

    def swap(m):
        m.d["a"] = m.d.pop("a")

    compare_with_eager(make, (X,), swap, (X,), breaks=0)


def test_decorated_function():
    def double(fn):
        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            return fn(*args, **kwargs) * 2

        return wrapper

    @double
    def g(x, y=1):
        return x + y

    same(lambda x: g(x, y=3), (X,), (Y,), graphs=1)


def test_lru_cache_pure():
    @functools.lru_cache
    def k(n):
        return n * n

    same(lambda x: x * k(3), (X,), (Y,), graphs=1)


def test_function_attribute_counts():
    def make():
        def f(x):
            f.calls += 1
            return x + f.calls

        f.calls = 0
        return f, f

    compare_with_eager(make, (X,), (X,), lambda f: setattr(f, "calls", 9), (X,))


def test_walrus_and_conditional():
    def f(x, n):
        if (m := n * 2) > 4:
            return x * m
        return x + m if n else x

    same(f, (X, 1), (X, 5), (X, 0), (X, 1))


def test_star_unpacking():
    def f(xs):
        a, *b, c = xs
        (d, e), *_ = [(a, c), 1]
        return [*b, d, e], {"p": a, "q": c}

    same(f, ([X, Y, X2, Y],), ([X, X, Y],), ([X, Y],))


def test_f_strings():
    def f(x, name):
        return x + 1, f"{name!r:>10}|{x.shape[0]:03d}|{x.dtype}|{name + 'b'}|{3.14159:.2f}|{name=}"

    same(f, (X, "a"), (X, "bb"))


def test_chained_comparison_and_boolean_values():
    def f(x, n):
        return x * (1 < n < 5), n and x, n or x, not n

    same(f, (X, 3), (X, 9), (X, 0))


def test_del_local():
    def f(x):
        y = x + 1
        del y
        try:
            return y
        except UnboundLocalError as error:
            return x, str(error)

    same(f, (X,), (Y,))


def test_assert_message():
    # Not written here: pytest rewrites the assertions of test files.
    f = module("def f(x, n):\n    assert n > 1, f'too small: {n}'\n    return x * n\n").f
    same(f, (X, 2), (X, 0), (X, 2))


def test_import_inside():
    def f(x):
        import math
        from collections import OrderedDict as Od

        return x * math.pi, Od(a=x)

    same(f, (X,), (Y,), graphs=1)


def test_annotations_and_nested_def_with_keyword_only():
    def f(x):
        def g(a: int, *, b: float = 2.0) -> torch.Tensor:
            return a * b

        return g(x) + g(x, b=3.0)

    same(f, (X,), (Y,), graphs=1)


def test_args_tuple_is_returned_whole():
    def f(*args):
        return args, args[0] + 1

    same(f, (X, 1, "s"), (Y, 1, "s"))


class Word(str):
    """A text that equals others whatever their case is."""

    def __eq__(self, other):
        return str(self).lower() == str(other).lower()

    def __hash__(self):
        return hash(str(self).lower())


class Hashed(str):
    def __hash__(self):
        return 5


def test_keywords_of_a_subclass_of_str():
    """CPython compares them with the parameters, and does not look them up."""

    def scaled(x, scale, shift=0, **others):
        return x * scale + shift, len(others)

    def f(x, kind):
        return scaled(x, **{kind("scale"): 3, kind("shift"): 2, "other": 1})

    same(lambda x: f(x, Hashed), (X,), (Y,))
    same(lambda x: scaled(x, 3, **{Word("Shift"): 2}), (X,), (Y,), breaks=None)


def test_a_c_function_gets_the_very_tuple_of_its_arguments():
    returns_them = pytest.importorskip("_testcapi").MethodDescriptorNopGet()

    def f(x):
        args = tuple([x + 1, 2])
        return args[0], returns_them(*args) is args, returns_them(*[1, 2])

    same(f, (X,), (Y,), (X,), breaks=2)
