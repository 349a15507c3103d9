"""``with``: exits that swallow, raise and return, and context managers of contextlib."""

from __future__ import annotations

import contextlib

from tests.support.exception_chains import chain_of
from tests.support.named_programs import Programs

program = Programs()


@program
def with_swallows_by_kind(x):
    class Ignore:
        def __init__(self, *kinds):
            self.kinds = kinds

        def __enter__(self):
            return self

        def __exit__(self, kind, error, trace):
            return kind is not None and issubclass(kind, self.kinds)

    log = []
    with Ignore(ValueError):
        log.append(1)
        raise ValueError
    try:
        with Ignore(ValueError):
            raise KeyError("k")
    except KeyError as error:
        log.append(str(error))
    return x + 1, log


@program
def exit_that_raises(x):
    class Bad:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            raise KeyError("exit")

    try:
        with Bad():
            raise ValueError("body")
    except KeyError as error:
        return x + 1, chain_of(error)


@program
def context_managers_of_contextlib(x):
    log = []

    @contextlib.contextmanager
    def tag(name):
        log.append(f"enter {name}")
        try:
            yield name
        except ValueError as error:
            log.append(f"{name} saw {error}")
        finally:
            log.append(f"exit {name}")

    with contextlib.ExitStack() as stack:
        names = [stack.enter_context(tag(n)) for n in "ab"]
        stack.callback(log.append, "callback")
        raise ValueError("body")
    with tag("c") as c, contextlib.suppress(KeyError):
        raise KeyError
    return x + 1, log, names, c


@program
def with_return_inside(x):
    log = []

    class Manager:
        def __enter__(self):
            return 2

        def __exit__(self, *args):
            log.append(args)

    def f():
        with Manager() as m:
            return x * m

    return f(), log


@program.cases()
def test_exception(name):
    program.run(name)
