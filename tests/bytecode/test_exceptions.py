"""Exceptions that stay inside: raising, catching, chaining, groups, finally, with."""

from __future__ import annotations

import operator
import struct
import sys

import pytest
import torch

import tracer_core
from tests.support.eager_reference import compare_with_eager
from tests.support.exception_chains import chain_of
from tests.support.named_programs import Programs, X, Y

program = Programs()


@program
def context_of_an_exception_in_a_handler(x):
    try:
        try:
            raise ValueError("a")
        except ValueError:
            raise KeyError("b")
    except KeyError as error:
        return x + 1, chain_of(error), error.__cause__ is None


@program
def cause_and_suppressed_context(x):
    actual = []
    for cause in (None, TypeError("c"), TypeError):
        try:
            try:
                raise ValueError("a")
            except ValueError:
                raise KeyError("b") from cause
        except KeyError as error:
            actual.append(
                (chain_of(error), type(error.__cause__).__name__, type(error.__context__).__name__)
            )
    return x + 1, actual


@program
def raise_from_something_else(x):
    try:
        raise ValueError from 3
    except TypeError as error:
        return x + 1, str(error)


@program
def raise_what_is_no_exception(x):
    texts = []
    for bad in (3, int, None, "text"):
        try:
            raise bad
        except TypeError as error:
            texts.append(str(error))
    return x + 1, texts


@program
def raise_class_that_makes_something_else(x):
    class Odd(Exception):
        def __new__(cls):
            return 3

    try:
        raise Odd
    except TypeError as error:
        return x + 1, "should have returned an instance of BaseException" in str(error)


@program
def catch_what_is_no_exception(x):
    try:
        try:
            raise ValueError
        except 3:
            pass
    except TypeError as error:
        return x + 1, str(error), type(error.__context__).__name__


@program
def bare_raise_in_a_called_function(x):
    def again():
        raise

    try:
        try:
            raise ValueError("a")
        except ValueError:
            again()
    except ValueError as error:
        return x + 1, str(error), error.__context__ is None


@program
def bare_raise_without_anything(x):
    try:
        raise
    except RuntimeError as error:
        return x + 1, str(error)


@program
def exc_info_follows_the_handlers(x):
    seen = [sys.exc_info()[0]]
    try:
        raise ValueError("a")
    except ValueError:
        seen.append(sys.exc_info()[0].__name__)
        try:
            raise KeyError("b")
        except KeyError:
            seen.append(sys.exc_info()[0].__name__)
        seen.append(str(sys.exc_info()[1]))
    seen.append(sys.exc_info())
    return x + 1, seen


@program
def the_name_is_unbound_after_the_handler(x):
    error = 1
    try:
        raise ValueError
    except ValueError as error:
        kind = type(error).__name__
    try:
        error
    except UnboundLocalError as unbound:
        return x + 1, kind, str(unbound)


@program
def finally_order_with_return(x):
    log = []

    def f():
        try:
            log.append("body")
            return len(log)
        finally:
            log.append("finally")

    return x * f(), log


@program
def finally_overrides_and_swallows(x):
    def f():
        for i in range(3):
            try:
                if i == 1:
                    raise ValueError
                if i == 2:
                    return "unreached"
            finally:
                if i == 1:
                    break
        return i

    def g():
        try:
            raise ValueError
        finally:
            return 5

    return x * f() + g()


@program
def nested_finally_with_break_and_continue(x):
    log = []
    for i in range(4):
        try:
            try:
                if i == 1:
                    continue
                if i == 3:
                    break
                log.append(i)
            finally:
                log.append(f"inner {i}")
        finally:
            log.append(f"outer {i}")
    else:
        log.append("else")
    return x + 1, log


@program
def exception_in_finally_has_context(x):
    try:
        try:
            raise ValueError("a")
        finally:
            raise KeyError("b")
    except KeyError as error:
        return x + 1, chain_of(error)


@program
def else_runs_only_without_exception(x):
    log = []
    for fail in (False, True):
        try:
            if fail:
                raise ValueError
        except ValueError:
            log.append("except")
        else:
            log.append("else")
        finally:
            log.append("finally")
    return x + 1, log


@program
def custom_exception_with_state(x):
    class Failed(Exception):
        def __init__(self, code, *, value):
            super().__init__(f"code {code}")
            self.code, self.value = code, value

        def __str__(self):
            return f"<{self.args[0]}>"

    try:
        raise Failed(3, value=x * 2)
    except Failed as error:
        return error.value + error.code, str(error), error.args, repr(error)


@program
def exception_hierarchy_and_order_of_clauses(x):
    class A(Exception):
        pass

    class B(A, KeyError):
        pass

    actual = []
    for kind in (A, B, KeyError, IndexError):
        try:
            raise kind("k")
        except B:
            actual.append("B")
        except (A, IndexError) as error:
            actual.append(type(error).__name__)
        except LookupError:
            actual.append("lookup")
    return x + 1, actual


@program
def notes(x):
    error = ValueError("a")
    error.add_note("first")
    try:
        raise error
    except ValueError as caught:
        caught.add_note("second")
        return x + 1, caught.__notes__, caught is error


@program
def same_exception_raised_twice(x):
    error = ValueError("a")
    count = 0
    for _ in range(2):
        try:
            raise error
        except ValueError as caught:
            count += caught is error
    return x * count, error.__context__ is None


@program
def system_exit_and_base_exceptions(x):
    actual = []
    for kind in (SystemExit, GeneratorExit, StopIteration, StopAsyncIteration, BaseException):
        try:
            raise kind(2)
        except Exception as error:
            actual.append(("Exception", type(error).__name__))
        except BaseException as error:
            actual.append(("BaseException", type(error).__name__, error.args))
    return x + 1, actual


@program(graphs=None, breaks=None)
def keys_without_a_hash(x):
    class Plain:
        def __hash__(self):
            raise TypeError("no hash of mine")

    class Fails:
        def __hash__(self):
            raise ValueError("not a TypeError")

    class Derived(TypeError):
        pass

    class FailsOtherwise:
        def __hash__(self):
            raise Derived("of a derived class")

    class NoNumber:
        def __hash__(self):
            return "a"

    actual = []
    for key in (
        [],
        {},
        [1],
        (1, []),
        bytearray(),
        Plain(),
        (1, Plain()),
        Fails(),
        FailsOtherwise(),
        (NoNumber()),
    ):
        held, kept = {1: 2}, {1, 2}
        for step in (
            lambda: {key: 1}, lambda: {key}, lambda: held[key], lambda: held.get(key),
            lambda: key in held, lambda: key in kept, lambda: key in held.keys(),
            lambda: held.setdefault(key), lambda: operator.setitem(held, key, 1),
            lambda: held.update([(key, 1)]), lambda: kept.add(key),
            lambda: kept.update([key]), lambda: kept.remove(key), lambda: kept.discard(key),
            lambda: set([key]), lambda: frozenset([key]), lambda: dict([(key, 1)]),
            lambda: {value: 1 for value in [key]}, lambda: {value for value in [key]},
            lambda: dict.fromkeys([key]), lambda: held.pop(key), lambda: operator.delitem(held, key),
            lambda: hash(key), lambda: kept | {key}, lambda: kept.union([key]),
            lambda: kept.intersection([key]), lambda: held | {key: 1},
        ):  # fmt: skip
            try:
                step()
            except Exception as error:
                actual.append((chain_of(error), len(held), len(kept)))
    return x + 1, actual


@program
def errors_of_python_itself(x):
    texts = []
    for step in (lambda: 1 // 0, lambda: [][1], lambda: {}["k"], lambda: int("a"), lambda: "a" + 1,
    lambda: None.a,
                 lambda: [1, 2].remove(5), lambda: (1).real(), lambda: len(3), lambda: {}.pop("q"),
                 lambda: next(iter(())),
                 lambda: [*3], lambda: chr(-1), lambda: "abc".index("z"), lambda: float("x"),
                 lambda: {[]: 1}):  # fmt: skip
        try:
            step()
        except Exception as error:
            texts.append((type(error).__name__, str(error)))
    return x + 1, texts


@program
def unbound_names(x):
    texts = []
    try:
        print(undefined_name)
    except NameError as error:
        texts.append((str(error), error.name))

    def inner():
        return later

    try:
        inner()
    except NameError as error:
        texts.append(str(error))
    later = 1
    try:
        del gone
    except UnboundLocalError as error:
        texts.append(str(error))
    gone = later
    return x + gone, texts


@program
def exception_as_a_value(x):
    error = ValueError("a", 3)
    other = error.with_traceback(None)
    return x + error.args[1], str(error), repr(error), other is error, error.__traceback__


@program
def loop_until_it_stops_raising(x):
    attempts = 0

    def flaky():
        if attempts < 3:
            raise OSError(attempts, "busy")
        return attempts

    while True:
        try:
            value = flaky()
            break
        except OSError as error:
            attempts = error.errno + 1
            continue
    return x * value


@program
def generator_handles_and_reraises(x):
    def gen():
        try:
            yield 1
            raise ValueError("inside")
        except ValueError as error:
            yield str(error)
            raise KeyError("second") from error

    actual = []
    it = gen()
    try:
        while True:
            actual.append(next(it))
    except KeyError as error:
        actual.append(chain_of(error))
    return x + 1, actual


def test_state_is_changed_once_before_a_caught_exception():
    def make():
        log = []

        def f(x):
            try:
                log.append(len(log))
                raise ValueError("a")
            except ValueError:
                log.append("caught")
            return x * len(log)

        return f, log

    compare_with_eager(make, (X,), (Y,), (X,), breaks=0)


def ambiguous_truth(form):
    """Asks for the truth of a tensor of two elements in a part of a try statement."""
    texts = {
        "comprehension": "[n for n in numbers if t]",
        "comparison in a comprehension": "[n for n in numbers if t > n]",
        "generator": "list(n for n in numbers if t)",
        "dictionary": "{n: n for n in numbers if not t}",
        "chain": "[n for n in numbers if n or t or n > 5]",
        "condition": "1 if t else 2",
        "comparison": "0 < t < 3",
        "and": "t and numbers",
        "assert": "None\n        assert t",
        "while": "None\n        while t == 3: pass",
        "nested": "[[n for n in numbers if t] for m in numbers if m]",
    }
    source = f"""
def f(t, numbers, log):
    try:
        found = {texts[form]}
    except RuntimeError as error:
        log.append(str(error))
        return t + 1
    finally:
        log.append("finally")
    return t * 2, found
"""
    namespace = {}
    exec(source, namespace)
    return namespace["f"]


AMBIGUOUS = ("comprehension", "comparison in a comprehension", "generator", "dictionary", "chain",
             "condition", "comparison", "and", "assert", "while", "nested")  # fmt: skip


@pytest.mark.parametrize("form", AMBIGUOUS)
def test_the_truth_of_a_tensor_raises_inside_try(form):
    eager, logs = ambiguous_truth(form), ([], [])
    fast = tracer_core.compile(eager, backend="eager")
    for t in (torch.ones(2), torch.ones(2), torch.ones(1), 2 * torch.ones(2)):
        want, got = eager(t, [0, 1, 2], logs[0]), fast(t, [0, 1, 2], logs[1])
        torch.testing.assert_close(got, want)
        assert logs[0] == logs[1]


def test_a_break_inside_a_handler_keeps_the_handled_exception():
    def f(x):
        try:
            raise ValueError("a")
        except ValueError:
            print(end="", flush=[])
            kind = sys.exc_info()[0].__name__
            try:
                raise KeyError("b")
            except KeyError as error:
                return x + 1, kind, chain_of(error)

    compare_with_eager(lambda: f, (X,), (Y,), breaks=1, kinds=("side_effect_native",))


@program(breaks=None)
def a_class_of_c_code_that_takes_no_attributes(x):
    try:
        struct.Struct.size = 4
    except TypeError as error:
        return x + 1, str(error)


@program.cases()
def test_exception(name):
    program.run(name)
