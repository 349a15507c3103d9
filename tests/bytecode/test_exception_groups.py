"""Exception groups and ``except*``: how they are split, wrapped and raised again."""

from __future__ import annotations

from tests.support.eager_reference import compare_with_eager
from tests.support.named_programs import Programs, X, Y

program = Programs()


@program
def groups_split_by_kind(x):
    log = []
    try:
        raise ExceptionGroup(
            "g",
            [
                ValueError("a"),
                TypeError("b"),
                ExceptionGroup("inner", [ValueError("c"), KeyError("d")]),
            ],
        )
    except* ValueError as group:
        log.append(("value", group.message, [type(e).__name__ for e in group.exceptions]))
        x = x + 1
    except* (TypeError, KeyError) as group:
        log.append(("rest", len(group.exceptions)))
        x = x * 2
    return x, log


@program
def except_star_wraps_a_naked_exception(x):
    try:
        raise ValueError("a")
    except* ValueError as group:
        return_value = type(group).__name__, group.exceptions[0].args, group.message
    return x + 1, return_value


@program
def except_star_lets_the_rest_out(x):
    try:
        try:
            raise ExceptionGroup(
                "g", [ValueError("a"), TypeError("b"), ExceptionGroup("h", [TypeError("c")])]
            )
        except* ValueError:
            x = x + 1
    except ExceptionGroup as rest:
        return x, rest.message, [repr(e) for e in rest.exceptions]


@program
def except_star_nothing_matches(x):
    try:
        try:
            raise ExceptionGroup("g", [ValueError("a")])
        except* TypeError:
            x = x + 100
    except ExceptionGroup as rest:
        return x + 1, repr(rest)


@program
def except_star_without_exception(x):
    try:
        x = x + 1
    except* ValueError:
        x = x * 100
    else:
        x = x + 2
    finally:
        x = x + 3
    return x


@program
def except_star_handler_raises(x):
    try:
        try:
            raise ExceptionGroup("g", [ValueError("a"), TypeError("b"), KeyError("k")])
        except* ValueError:
            raise RuntimeError("new")
        except* TypeError:
            raise
    except ExceptionGroup as group:
        kinds = sorted(type(e).__name__ for e in group.exceptions)
        return x + 1, kinds, group.message


@program
def except_star_raises_what_it_caught(x):
    actual = []
    for again in (True, False):
        try:
            try:
                raise ExceptionGroup("g", [ValueError("a"), TypeError("b"), KeyError("k")])
            except* ValueError as group:
                if again:
                    raise group
                raise
        except ExceptionGroup as caught:
            actual.append((caught.message, [repr(error) for error in caught.exceptions]))
    return x + 1, actual


@program
def except_star_naked_and_unmatched(x):
    try:
        try:
            raise ValueError("a")
        except* TypeError:
            pass
    except ValueError as error:
        return x + 1, str(error)


@program
def except_star_of_a_group_kind_is_refused(x):
    try:
        try:
            raise ExceptionGroup("g", [ValueError()])
        except* ExceptionGroup:
            pass
    except TypeError as error:
        return x + 1, str(error)


@program
def group_methods(x):
    group = ExceptionGroup("g", [ValueError("a"), TypeError("b")])
    match, rest = group.split(ValueError)
    picked = group.subgroup(lambda e: isinstance(e, TypeError))
    return (
        x + 1,
        match.exceptions[0].args,
        rest.exceptions[0].args,
        picked.message,
        group.subgroup(KeyError),
    )


@program(kinds=("unknown_native",))
def group_with_its_own_derive(x):
    class Mine(ExceptionGroup):
        def derive(self, exceptions):
            return Mine("derived", exceptions)

    group = Mine("g", [ValueError("a"), TypeError("b")])
    return x + 1, group.split(ValueError)[0].message


def test_a_break_inside_except_star():
    def f(x):
        try:
            raise ExceptionGroup("g", [ValueError("a"), TypeError("b")])
        except* ValueError as group:
            print(end="", flush=[])
            x = x * len(group.exceptions)
        except* TypeError:
            x = x + 1
        return x

    compare_with_eager(lambda: f, (X,), (Y,), kinds=("side_effect_native", "unsupported_value"))


class Coded(ExceptionGroup):
    def __new__(cls, message, errors, code):
        group = super().__new__(cls, message, errors)
        group.code = code
        return group

    def derive(self, errors):
        return Coded(self.message, errors, self.code)


def test_a_group_with_a_constructor_of_its_own_lives_across_a_break():
    def f(x):
        try:
            raise Coded("m", [ValueError("a"), TypeError("b")], 42)
        except* ValueError as group:
            actual = group
            print(end="")
        except* TypeError as group:
            other = group
        return x + actual.code, actual.exceptions[0].args, other.code, type(other).__name__

    compare_with_eager(lambda: f, (X,), (Y,), breaks=None)


@program.cases()
def test_exception(name):
    program.run(name)
