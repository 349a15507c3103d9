"""Special methods of user classes: each one against CPython, inside one graph."""

from __future__ import annotations

import functools
import math
import operator

from tests.support.named_programs import Programs, texts_of

program = Programs()


class Num:
    """A number that says which of its methods ran."""

    def __init__(self, n):
        self.n = n

    def __abs__(self):
        return Num(abs(self.n) + 100)

    def __round__(self, digits=None):
        return ("round", self.n, digits)

    def __divmod__(self, other):
        return ("divmod", self.n, other)

    def __rdivmod__(self, other):
        return ("rdivmod", self.n, other)

    def __pow__(self, other, mod=None):
        return ("pow", self.n, other, mod)

    def __rpow__(self, other):
        return ("rpow", self.n, other)

    def __ipow__(self, other):
        self.n = self.n**other
        return self

    def __matmul__(self, other):
        return ("matmul", other)

    def __rmatmul__(self, other):
        return ("rmatmul", other)

    def __imatmul__(self, other):
        return ("imatmul", other)

    def __lshift__(self, other):
        return ("lshift", other)

    def __rrshift__(self, other):
        return ("rrshift", other)

    def __and__(self, other):
        return ("and", other)

    def __ror__(self, other):
        return ("ror", other)

    def __xor__(self, other):
        return ("xor", other)

    def __invert__(self):
        return ("invert", self.n)

    def __pos__(self):
        return ("pos", self.n)

    def __neg__(self):
        return ("neg", self.n)

    def __floordiv__(self, other):
        return ("floordiv", other)

    def __mod__(self, other):
        return ("mod", other)

    def __int__(self):
        return self.n + 1

    def __float__(self):
        return self.n + 0.5

    def __complex__(self):
        return complex(self.n, 1)

    def __index__(self):
        return self.n

    def __trunc__(self):
        return ("trunc", self.n)

    def __floor__(self):
        return ("floor", self.n)

    def __ceil__(self):
        return ("ceil", self.n)

    def __bytes__(self):
        return b"num"

    def __sizeof__(self):
        return 7

    def __dir__(self):
        return ["b", "a"]


@program
def abs_calls_the_class(x):
    return x * abs(Num(-2)).n


@program
def round_with_and_without_digits(x):
    return x + 1, round(Num(2)), round(Num(2), 1)


@program
def divmod_and_reflected(x):
    return x + 1, divmod(Num(7), 2), divmod(7, Num(2))


@program
def pow_with_modulus_and_reflected(x):
    return x + 1, pow(Num(2), 3), pow(Num(2), 3, 5), Num(2) ** 4, 2 ** Num(3)


@program
def inplace_power(x):
    n = Num(3)
    m = n
    n **= 2
    return x * m.n


@program
def rare_operators(x):
    n = Num(1)
    return (x + 1, n @ 2, 2 @ n, n << 1, 1 >> n, n & 3, 3 | n, n ^ 1, ~n, +n, -n, n // 2, n % 3)


@program
def inplace_matmul(x):
    n = Num(1)
    n @= 4
    return x + 1, n


@program
def number_conversions(x):
    n = Num(2)
    return x * int(n), float(n), complex(n), bytes(n), operator.index(n)


@program
def index_in_subscripts_ranges_and_text(x):
    n = Num(2)
    return (
        x[n],
        [10, 20, 30][n],
        (1, 2, 3, 4)[: Num(3)],
        list(range(n)),
        "ab" * n,
        hex(n),
        bin(n),
        [0] * n,
    )


@program
def index_of_tensors_by_slices_of_objects(x):
    return x[:, Num(1) : Num(3)] * 2


@program
def math_functions_ask_the_class(x):
    return x + 1, math.trunc(Num(1)), math.floor(Num(1)), math.ceil(Num(1)), math.sqrt(Num(3))


@program
def int_without_int_takes_index_or_trunc(x):
    class OnlyIndex:
        def __index__(self):
            return 4

    return x * int(OnlyIndex()), float(OnlyIndex())


@program
def dir_asks_the_class(x):
    return x + 1, dir(Num(1))


class Ordered:
    def __init__(self, n):
        self.n = n

    def __lt__(self, other):
        return self.n < other.n


@program
def sorted_uses_lt(x):
    items = [Ordered(3), Ordered(1), Ordered(2), Ordered(1)]
    return [x * o.n for o in sorted(items)], [o.n for o in sorted(items, reverse=True)]


@program
def sort_method_uses_lt(x):
    items = [Ordered(3), Ordered(1), Ordered(2)]
    items.sort()
    return [x * o.n for o in items]


@program
def sorted_with_key_objects(x):
    order = sorted([3, 1, 2], key=lambda v: Ordered(-v))
    return [x * v for v in order]


@program
def cmp_to_key(x):
    return [x * v for v in sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a))]


@program
def min_max_use_lt_and_reflected_gt(x):
    items = [Ordered(3), Ordered(1), Ordered(2)]
    return x * min(items).n + max(items).n, max(items, key=lambda o: -o.n).n


@program
def comparisons_chain_on_objects(x):
    return x + 1, Ordered(1) < Ordered(2) < Ordered(3), Ordered(3) > Ordered(1)


@program
def comparison_without_method_is_a_type_error(x):
    try:
        return Ordered(1) <= Ordered(2)
    except TypeError as error:
        return x + 1, str(error)


class EqOnly:
    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return isinstance(other, EqOnly) and self.n == other.n


@program
def ne_is_the_opposite_of_eq(x):
    return x + 1, EqOnly(1) != EqOnly(1), EqOnly(1) != EqOnly(2), EqOnly(1) == 1, 1 != EqOnly(1)


@program
def eq_without_hash_is_unhashable(x):
    try:
        {EqOnly(1): 2}
    except TypeError as error:
        return x + 1, str(error)


@program
def list_methods_call_eq(x):
    items = [EqOnly(1), EqOnly(2), EqOnly(1)]
    actual = items.index(EqOnly(2)), items.count(EqOnly(1)), EqOnly(2) in items
    items.remove(EqOnly(1))
    return x * len(items), actual, [e.n for e in items]


class EqShown(EqOnly):
    def __repr__(self):
        return f"<{self.n}>"


@program
def list_index_misses(x):
    try:
        [EqOnly(1)].index(EqShown(5))
    except ValueError as error:
        return x + 1, str(error)


@program
def containers_of_objects_compare(x):
    a, b = [EqOnly(1), EqOnly(2)], [EqOnly(1), EqOnly(2)]
    return x + 1, a == b, a != b, (EqOnly(1),) == (EqOnly(2),), {"k": EqOnly(1)} == {"k": EqOnly(1)}


@program
def nested_containers_of_objects_compare(x):
    return (
        x + 1,
        [(EqOnly(1), [EqOnly(2)])] == [(EqOnly(1), [EqOnly(2)])],
        {1: [EqOnly(1)]} != {1: [EqOnly(2)]},
    )


@program
def tuples_of_objects_are_ordered(x):
    class V(EqOnly):
        def __lt__(self, other):
            return self.n < other.n

    return x + 1, (V(1), V(2)) < (V(1), V(3)), [V(2)] < [V(1)], (V(1),) < (V(1), V(0))


class Bag:
    def __init__(self, *items):
        self.items = list(items)

    def __len__(self):
        return len(self.items)

    def __contains__(self, item):
        return any(item is other for other in self.items)

    def __reversed__(self):
        return iter(["r", *self.items[::-1]])

    def __iter__(self):
        return iter(self.items)

    def __getitem__(self, key):
        return ("item", key)

    def __setitem__(self, key, value):
        self.items.append((key, value))

    def __delitem__(self, key):
        self.items.clear()

    def __length_hint__(self):
        return 3


@program
def container_protocol(x):
    bag = Bag(1, 2)
    bag["a"] = x
    bag[1:2] = 3
    before = len(bag), list(reversed(bag))[0], bag[..., 1], bag["k"], 2 in bag
    del bag["z"]
    return x + 1, before, len(bag), bool(bag), not bag


@program
def star_and_unpack_ask_iter(x):
    a, *b = Bag(x, 2, 3)
    return (
        a + 1,
        b,
        [*Bag(1, 2)],
        {*Bag(1, 2)},
        max(*Bag(4, 9)),
        tuple(Bag(1)),
        list(Bag(5)),
        sum(Bag(1, 2)),
    )


@program
def zip_enumerate_map_over_objects(x):
    return (
        x + 1,
        list(zip(Bag(1, 2), Bag(3, 4), strict=True)),
        list(enumerate(Bag("a"))),
        list(map(str, Bag(1))),
    )


@program
def len_must_be_an_integer(x):
    class Bad:
        def __len__(self):
            return -1

    try:
        len(Bad())
    except ValueError as error:
        return x + 1, str(error)


@program
def bool_must_be_a_bool(x):
    class Bad:
        def __bool__(self):
            return 1

    try:
        if Bad():
            return x
    except TypeError as error:
        return x + 1, str(error)


@program
def iter_must_be_an_iterator(x):
    class Bad:
        def __iter__(self):
            return 5

    try:
        list(Bad())
    except TypeError as error:
        return x + 1, str(error)


@program
def not_iterable_not_callable_not_subscriptable(x):
    class Bare:
        pass

    return x + 1, texts_of(
        lambda o: list(o), lambda o: o(), lambda o: o[0], lambda o: len(o), lambda o: o + 1,
        lambda o: -o,
        lambda o: o < o, lambda o: 1 in o, lambda o: iter(o), lambda o: next(o),
        argument=Bare,
    )  # fmt: skip


@program
def item_assignment_without_methods(x):
    class Bare:
        pass

    texts = []
    try:
        Bare()[0] = 1
    except TypeError as error:
        texts.append(str(error))
    try:
        del Bare()[0]
    except TypeError as error:
        texts.append(str(error))
    return x + 1, texts


@program
def iter_with_a_sentinel(x):
    values = [3, 2, 1, 0, 5]
    return x + 1, list(iter(lambda: values.pop(0), 0)), values


@program
def callable_objects(x):
    class Adder:
        def __init__(self, n):
            self.n = n

        def __call__(self, x, *, k=1):
            return x + self.n * k

    add = Adder(2)
    return add(x), add(x, k=3), callable(add), callable(3), list(map(add, [1]))


@program
def reflected_operators_and_subclass_priority(x):
    class A:
        def __add__(self, other):
            return "A+"

        def __radd__(self, other):
            return "A r+"

        def __sub__(self, other):
            return NotImplemented

    class B(A):
        def __radd__(self, other):
            return "B r+"

        def __rsub__(self, other):
            return "B r-"

    return x + 1, A() + B(), B() + A(), 1 + A(), A() - B(), A() + A()


@program
def subclass_that_inherits_the_reflected_operator_has_no_priority(x):
    class A:
        def __add__(self, other):
            return "A+"

        def __radd__(self, other):
            return "A r+"

    class B(A):
        pass

    return x + 1, A() + B(), B() + A()


@program
def unsupported_operands(x):
    class A:
        def __add__(self, other):
            return NotImplemented

    class B:
        def __radd__(self, other):
            return NotImplemented

    return x + 1, texts_of(
        lambda: A() + B(), lambda: A() + 1, lambda: 1 + B(), lambda: A() - 1, lambda: A() @ B(),
        lambda: 2 ** A(), lambda: A() < B(), lambda: divmod(A(), 1), lambda: ~A(), lambda: abs(A()),
        lambda: round(A()),
    )  # fmt: skip


@program
def inplace_unsupported(x):
    class A:
        pass

    a = A()
    try:
        a += 1
    except TypeError as error:
        return x + 1, str(error)


@program
def hash_of_objects(x):
    class A:
        def __hash__(self):
            return 17

    return x + hash(A()), hash((A(), 1)) == hash((17, 1)), hash(frozenset([3]))


@program.cases()
def test_protocol(name):
    program.run(name)
