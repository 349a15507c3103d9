"""Contexts of exceptions, groups of own classes and interrupts, against CPython."""

from __future__ import annotations

import sys

import torch

from tests.support.named_programs import Programs

program = Programs()


def chain_of(error, depth=5):
    """Names of an exception and of what it was raised in."""
    names = []
    while error is not None and len(names) < depth:
        names.append((type(error).__name__, error.args, error.__suppress_context__))
        error = error.__context__
    return names


@program
def context_that_is_the_error_itself(x):
    try:
        try:
            raise ValueError("a")
        except ValueError as error:
            error.__context__ = error
            raise
    except ValueError as error:
        return x + 1, error.__context__ is error


@program
def context_that_is_a_circle(x):
    try:
        try:
            raise ValueError("a")
        except ValueError as error:
            other = KeyError("b")
            other.__context__ = error
            error.__context__ = other
            raise TypeError("c")
    except TypeError as error:
        return x + 1, chain_of(error, 6)


@program
def context_of_a_raise_again(x):
    try:
        try:
            raise ValueError("a")
        except ValueError as first:
            try:
                raise KeyError("b")
            except KeyError:
                raise first
    except ValueError as error:
        return x + 1, chain_of(error)


@program
def context_when_the_same_error_comes_back(x):
    first = ValueError("a")
    try:
        try:
            raise first
        except ValueError:
            try:
                raise KeyError("b")
            except KeyError as second:
                second.__context__ = None
                raise first
    except ValueError as error:
        return x + 1, chain_of(error), chain_of(first)


@program
def context_of_an_error_in_finally(x):
    notes = []
    try:
        try:
            raise ValueError("a")
        finally:
            try:
                raise KeyError("b")
            except KeyError as error:
                notes.append(chain_of(error))
    except ValueError as error:
        notes.append(chain_of(error))
    try:
        try:
            raise ValueError("c")
        except ValueError:
            raise KeyError("d") from None
    except KeyError as error:
        notes.append(chain_of(error))
        notes.append(error.__cause__)
    return x + 1, notes


@program
def context_across_functions_and_generators(x):
    def inner():
        raise KeyError("inner")

    def generate():
        try:
            yield 1
        except ValueError:
            inner()

    notes = []
    try:
        raise ValueError("outer")
    except ValueError:
        try:
            inner()
        except KeyError as error:
            notes.append(chain_of(error))
    generator = generate()
    next(generator)
    try:
        generator.throw(ValueError("thrown"))
    except KeyError as error:
        notes.append(chain_of(error))
    return x + 1, notes


class Group(ExceptionGroup):
    def derive(self, errors):
        return Group(self.message, errors)


class PlainGroup(ExceptionGroup):
    pass


@program(graphs=None, breaks=None)
def groups_of_own_classes(x):
    notes = []
    for kind in (Group, PlainGroup, ExceptionGroup):
        try:
            try:
                raise kind("g", [ValueError(1), KeyError(2), TypeError(3)])
            except* ValueError as group:
                notes.append((type(group).__name__, group.message, len(group.exceptions)))
            except* KeyError as group:
                notes.append((type(group).__name__, group.exceptions[0].args))
        except ExceptionGroup as rest:
            notes.append((type(rest).__name__, [type(e).__name__ for e in rest.exceptions]))
    return x + 1, notes


@program(graphs=None, breaks=None)
def groups_nested_and_naked(x):
    notes = []
    try:
        raise ValueError("naked")
    except* ValueError as group:
        notes.append((type(group).__name__, group.message, group.exceptions[0].args))
    try:
        try:
            raise Group("outer", [Group("inner", [ValueError(1), OSError(2)]), KeyError(3)])
        except* (ValueError, KeyError) as group:
            notes.append(repr(group))
    except Group as rest:
        notes.append(repr(rest))
    try:
        try:
            raise Group("g", [ValueError(1)])
        except* ValueError:
            raise KeyError("new") from None
    except ExceptionGroup as group:
        notes.append((type(group).__name__, group.message, repr(group.exceptions)))
    except KeyError as error:
        notes.append(repr(error))
    return x + 1, notes


@program(graphs=None, breaks=None)
def interrupts_of_the_program(x):
    notes = []
    for kind in (KeyboardInterrupt, SystemExit, GeneratorExit, BaseException):
        try:
            raise kind("own")
        except kind as error:
            notes.append((type(error).__name__, error.args))
    try:
        try:
            raise KeyboardInterrupt
        finally:
            notes.append("finally")
    except BaseException as error:
        notes.append(type(error).__name__)
    return x + 1, notes


def interrupting():
    raise KeyboardInterrupt("inner")


@program(graphs=None, breaks=None)
def interrupts_across_functions(x):
    y = x + 1
    try:
        interrupting()
    except KeyboardInterrupt as error:
        return y * 2, str(error)


@program(graphs=None, breaks=None)
def frames_after_a_break(x):
    y = x + 1
    torch._C._log_api_usage_once("a") if y.sum() > 1e9 else None
    frame = sys._getframe()
    return y, frame.f_code.co_name, sorted(frame.f_locals)[:2], frame.f_back is not None


@program.cases()
def test_edges_equal_cpython(name):
    program.run(name)
