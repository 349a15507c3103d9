"""Attributes of objects and classes that change: inside, and between the calls."""

from __future__ import annotations

import torch

from tests.support.eager_reference import compare_with_eager, same

X, Y = torch.randn(3, 4), torch.randn(3, 4)


def test_object_returned_keeps_identity_and_aliasing():
    class Node:
        pass

    def f(x):
        a, b = Node(), Node()
        a.next, b.next = b, a
        a.value = b.value = x + 1
        return a

    seen = same(f, (X,), (Y,), aliasing=False, graphs=1)
    for node in seen.results:
        assert (
            node.next.next is node
            and node.value is node.next.value
            and type(node) is type(node.next)
        )


def test_object_attribute_mutated():
    class State:
        def __init__(self):
            self.n, self.log, self.last = 0, [], None

    def make():
        state = State()

        def f(x):
            state.n += 1
            state.log.append(state.n)
            state.last = x * 2
            state.new = "made"
            return x + state.n

        return f, state

    compare_with_eager(make, (X,), (Y,), (X,), lambda s: setattr(s, "n", 7), (X,), breaks=0)


def test_object_attribute_deleted():
    class State:
        pass

    def make():
        state = State()
        state.a = 1

        def f(x):
            if hasattr(state, "a"):
                del state.a
                return x
            state.a = 2
            return x * 2

        return f, state

    compare_with_eager(make, (X,), (X,), (X,), (X,), breaks=0)


def test_instance_dict_access():
    class State:
        pass

    def make():
        state = State()
        state.a = 1

        def f(x):
            state.__dict__["b"] = state.__dict__["a"] + 1
            vars_ = dict(state.__dict__)
            return x * state.b, vars_

        return f, state

    compare_with_eager(make, (X,), lambda s: setattr(s, "a", 4), (X,))


def test_class_attribute_changed():
    class Cfg:
        k = 2

    def make():
        cls = type("Cfg2", (Cfg,), {})
        return (lambda x: x * cls.k), cls

    compare_with_eager(
        make, (X,), lambda c: setattr(c, "k", 5), (X,), lambda c: delattr(c, "k"), (X,), breaks=0
    )


def test_class_attribute_of_base_changed():
    def make():
        base = type("Base", (), {"k": 2})
        obj = type("Sub", (base,), {})()
        return (lambda x: x * obj.k), (base, obj)

    compare_with_eager(
        make,
        (X,),
        lambda w: setattr(w[0], "k", 5),
        (X,),
        lambda w: setattr(w[1], "k", 7),
        (X,),
        breaks=0,
    )


def test_method_monkeypatched():
    def make():
        class A:
            def go(self, x):
                return x + 1

        a = A()
        return (lambda x: a.go(x)), (A, a)

    def patch(w):
        w[0].go = lambda self, x: x - 1

    def own(w):
        w[1].go = lambda x: x * 9

    compare_with_eager(make, (X,), patch, (X,), own, (X,), breaks=0, recompiles=2)


def test_class_of_object_changed():
    def make():
        class A:
            def go(self, x):
                return x + 1

        class B:
            def go(self, x):
                return x * 2

        a = A()
        return (lambda x: a.go(x)), (a, B)

    def change(w):
        w[0].__class__ = w[1]

    compare_with_eager(make, (X,), change, (X,), breaks=0, recompiles=1)


def test_property_replaced_on_class():
    def make():
        class A:
            @property
            def k(self):
                return 2

        a = A()
        return (lambda x: x * a.k), A

    compare_with_eager(
        make, (X,), lambda c: setattr(c, "k", property(lambda self: 8)), (X,), breaks=0
    )


def test_class_level_list_contents_change():
    def make():
        class A:
            ks = [1, 2]

        a = A()
        return (lambda x: [x * k for k in a.ks]), A

    compare_with_eager(
        make, (X,), lambda c: c.ks.append(3), (X,), lambda c: c.ks.__setitem__(0, 5), (X,), breaks=0
    )


def test_class_level_dict_contents_change():
    def make():
        class A:
            table = {"a": 1}

        return (lambda x: x * A.table["a"] + A.table.get("b", 0)), A

    compare_with_eager(
        make,
        (X,),
        lambda c: c.table.update(a=4),
        (X,),
        lambda c: c.table.update(b=4),
        (X,),
        breaks=0,
    )


def test_class_level_list_mutated():
    def make():
        class A:
            log = []

        def f(x):
            A.log.append(len(A.log))
            return x + len(A.log)

        return f, A.log

    compare_with_eager(make, (X,), (X,), (X,), breaks=0)


def test_class_level_tuple_of_lists():
    def make():
        class A:
            ks = ([1], [2])

        return (lambda x: x * A.ks[0][0]), A

    compare_with_eager(make, (X,), lambda c: c.ks[0].__setitem__(0, 6), (X,), breaks=0)


def test_class_attribute_set():
    def make():
        class A:
            n = 0

        def f(x):
            A.n += 1
            return x + A.n

        return f, A

    compare_with_eager(make, (X,), (X,), (X,), breaks=0)
