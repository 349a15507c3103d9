"""Sizes that change, and what the program computes from them in Python: exact, and one graph for
all of them.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
import string
import types

import pytest
import torch

import tracer_core
from tests.fx_capture.test_profiled_branches import captures
from tests.support.eager_reference import outcome, same
from tracer_core.testing import compare

Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass(frozen=True)
class Box:
    size: int


def rows(*sizes: int) -> list[tuple[torch.Tensor]]:
    torch.manual_seed(0)
    return [(torch.randn(n, 8),) for n in sizes]


#: name -> program whose Python needs no more of the size than its value: two graphs serve every
#: size from 2 on.
ONE_GRAPH = {
    "true_division": lambda x: (x.shape[0] / 3, x * (1.0 / x.shape[0])),
    "floor_and_remainder": lambda x: (x.shape[0] // 3, x.shape[0] % 3, x + 1),
    "divmod": lambda x: (divmod(x.shape[0], 3), x + 1),
    "powers": lambda x: (x.shape[0] ** 2, x * x.shape[0] ** -0.5),
    "square_root": lambda x: x / math.sqrt(x.shape[0]),
    "logarithm": lambda x: (math.log2(x.shape[0]), x * math.log(x.shape[0])),
    "rounding": lambda x: (round(x.shape[0] / 3), round(x.shape[0] / 3, 2), x + 1),
    "floor_ceil_trunc": lambda x: (math.floor(x.shape[0] / 3), math.ceil(x.shape[0] / 3),
    math.trunc(x.shape[0] / 3), x + 1),
    "int_of_a_product": lambda x: (int(x.shape[0] * 0.7), x + 1),
    "float": lambda x: (float(x.shape[0]), x + 1),
    "bits": lambda x: (x.shape[0] & 1, x.shape[0] | 8, x.shape[0] ^ 1, x.shape[0] << 1,
    x.shape[0] >> 1, x + 1),
    "unary": lambda x: (~x.shape[0], -x.shape[0], +x.shape[0], abs(-x.shape[0]), x + 1),
    "sum_of_sizes": lambda x: (sum(x.shape), math.prod(x.shape), x + 1),
    "a_comparison_returned": lambda x: (x.shape[0] < 1000, x.shape[0] == 1000, x + 1),
    "a_dataclass_of_sizes": lambda x: (Box(x.shape[0]).size, x + 1),
    "a_named_tuple_of_sizes": lambda x: (Pair(x.shape[0], 2).a, x + 1),
    "sizes_in_lists": lambda x: ([s + 1 for s in x.shape], list(zip(x.shape, (1, 2), strict=True)),
    x + 1),
    "a_float_computed_from_two_sizes": lambda x: x * (x.shape[0] / (x.shape[1] + x.shape[0])),
    "rows_up_to_a_fraction": lambda x: x[: 1 + int(x.shape[0] * 0.5)] + 1,
    "an_element_by_its_size": lambda x: (x[x.shape[0] - 1] * 2, x[-x.shape[0]] + 1),
    "tensors_made_of_sizes": lambda x: (torch.tensor(x.shape[0]), torch.as_tensor(x.shape[0] / 2),
    x + 1),
    "clamped_by_a_fraction_of_the_size": lambda x: x.clamp(max=x.shape[0] / 10),
    "number_of_elements": lambda x: (x.shape.numel(), x * x.shape[:1].numel()),
    "factories": lambda x: (torch.linspace(-1, 1, x.shape[0], dtype=torch.float64),
    torch.linspace(0.5, 3, steps=x.shape[0] + 1)[1:, None] * x, torch.hann_window(x.shape[0]),
    torch.logspace(0, 1, x.shape[0]), torch.linspace(0, 9, x.shape[0], dtype=torch.int64)),
    "frequencies": lambda x: (torch.fft.fftfreq(x.shape[0], 0.5), torch.fft.rfftfreq(x.shape[0])),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_GRAPH)
def test_python_arithmetic_on_sizes_is_exact_in_one_graph(name):
    same(ONE_GRAPH[name], *rows(4, 6, 9, 17, 6, 33, 5), graphs=2)


#: name -> program that shows the number itself: a graph for each size.
BY_VALUE = {
    "text": lambda x: (str(x.shape[0]), x + 1),
    "text_of_all_sizes": lambda x: (str(x.shape), repr(x.shape), f"{x.shape} {x.shape!r:>30}",
    x + 1),
    "percent": lambda x: ("%s %d %s" % (x.shape, x.shape[0], [x.shape[0]]), x + 1),
    "format_method": lambda x: ("{} {a}".format(x.shape, a={"n": x.shape[0]}), x + 1),
    "repr_of_containers": lambda x: (repr(Pair(x.shape[0], 2)), repr(Box(x.shape[0])),
    repr([(x.shape[0],)]), x + 1),
    "methods_that_print": lambda x: (x.shape.__str__(), x.shape[0].__repr__(),
    x.shape[0].__format__("d"), x + 1),
    "hash": lambda x: (hash(x.shape[0]), hash((x.shape[0], 1)), hash(x.shape),
    hash(Box(x.shape[0])), x + 1),
    "keys": lambda x: ({x.shape[0]: 1, x.shape: 2, (x.shape[0], 3): 4}, dict([(x.shape[0], 1)]),
    x + 1),
    "sets": lambda x: ({x.shape[0], 3}, frozenset(x.shape), set().union([x.shape[0]]), x + 1),
    "lookup": lambda x: ({4: "a", 6: "b"}.get(x.shape[0]), x.shape[0] in {4, 9}, x + 1),
    "attributes_of_ints": lambda x: (x.shape[0].numerator, x.shape[0].real, x.shape[0].__add__(1),
    x + 1),
    "repetition": lambda x: ([0] * x.shape[0], "a" * x.shape[0], x + 1),
    "hexadecimal": lambda x: (hex(x.shape[0]), bin(x.shape[0]), chr(x.shape[0] + 60), x + 1),
    "complex": lambda x: (complex(x.shape[0]), x + 1),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_VALUE)
def test_a_size_that_is_shown_is_the_size_of_the_call(name):
    same(BY_VALUE[name], *rows(4, 6, 9, 6, 9), graphs=3)


def test_arithmetic_that_fails_for_one_size_fails_for_that_size_only():
    def program(x):
        try:
            return x + 1 / (x.shape[0] - 6)
        except ZeroDivisionError:
            return x - 1

    same(program, *rows(4, 5, 6, 9, 6, 17))


def test_the_root_of_a_negative_number_computed_from_a_size():
    def program(x):
        return x + 1, (x.shape[0] - 10) ** 0.5, abs((x.shape[0] - 10) ** 0.5)

    same(program, *rows(4, 5, 6, 16, 17, 4))


def test_sizes_of_two_tensors_in_one_number():
    def program(x, y):
        return x.sum() * (x.shape[0] / y.shape[0]) + y.sum()

    calls = [
        (torch.randn(n, 2), torch.randn(m, 2)) for n, m in ((4, 5), (6, 7), (9, 3), (3, 9), (17, 5))
    ]
    same(program, *calls, graphs=2)


def test_a_number_of_a_module_and_a_size_in_one_number():
    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = 0.5

        def forward(self, x):
            return x * (self.scale / x.shape[0])

    from tests.support.eager_reference import compare_with_eager

    def change(module):
        module.scale += 0.25

    def make():
        module = Scale()
        return module, module

    calls = rows(4, 6, 9, 17, 5)
    compare_with_eager(
        make,
        calls[0],
        change,
        calls[1],
        change,
        calls[2],
        change,
        calls[3],
        calls[4],
        graphs=2,
        breaks=0,
    )


def test_dropout_that_does_nothing_gives_the_tensor_itself_at_every_size():
    def program(x):
        y = torch.nn.functional.dropout(x, 0.5, False)
        y.add_(1)
        return y is x, x * 2

    same(program, *rows(4, 6, 9, 5), graphs=2)


EXTREMES = {
    "max": lambda x, n: (max(n - 5, 0), x * max(n - 5, 0)),
    "min": lambda x, n: (min(7, n, n * 2), x + min(7, n)),
    "of both kinds": lambda x, n: (max(n, 6.5), x * max(n, 6.5)),
    "of a size": lambda x, n: (min(n, x.shape[0]), x * max(n, x.shape[0])),
    "a ramp": lambda x, n: x * max(0.0, min(1.0, n / 8)),
}


@pytest.mark.parametrize("name", EXTREMES)
def test_the_larger_of_a_counter_and_a_limit_needs_no_graph_for_each_side(name):
    calls = [(torch.randn(4, 2), n) for n in (3, 4, 5, 6, 7, 9, 2)]
    same(EXTREMES[name], *calls, graphs=3 if name == "of both kinds" else 2)


BESIDE_TRUTH_VALUES = {
    "less": lambda x: (x.shape[0] < True, True < x.shape[0], x.shape[0] >= True),
    "equal": lambda x: (x.shape[0] == True, x.shape[0] != False),  # noqa: E712
    "shapes": lambda x: (
        x.shape < (True,),
        x.shape == (True, True),
        (x.shape[1], True) > (3, False),
    ),
    "nested": lambda x: [[x.shape[0], True]] == [[4, True]],
    "arithmetic": lambda x: (x.shape[0] // True, x.shape[0] % True, divmod(x.shape[0], True)),
    "extremes": lambda x: (
        max(x.shape[0], True),
        min(True, x.shape[0]),
        sorted([x.shape[0], True, 3]),
    ),
    "sizes": lambda x: torch.full((x.shape[0] - True,), x.shape[0] * True).tolist(),
}


@pytest.mark.parametrize("name", BESIDE_TRUTH_VALUES)
def test_a_size_beside_a_truth_value(name):
    program = BESIDE_TRUTH_VALUES[name]
    compiled = tracer_core.compile(program, backend="eager", dynamic=True)
    for sizes in ((4, 3), (5, 2), (7, 6)):
        x = torch.ones(sizes)
        actual, expected = compiled(x), program(x)
        assert actual == expected and type(actual) is type(expected)


GIVEN_TO_C_CODE = {
    "methods of int": lambda s: ((1).__add__(s), int.__lt__(5, s), True.__and__(s), s.__add__(s)),
    "methods of float": lambda s: ((1.5).__radd__(s), float.__eq__(5.0, s), (1j).__mul__(s)),
    "methods that C code calls": lambda s: (
        list(map((1).__add__, [s, s])),
        functools.reduce(int.__add__, [s, 1, s]),
        sorted([3, 1, s], key=(3).__sub__),
    ),
    "held by a library's function": lambda s: string.Template("$a").substitute(a=s),
    "text of a slice": lambda s: (repr(slice(s)), f"{slice(1, s)}", "%s" % (slice(s),)),
    "text of a view": lambda s: (repr({"a": s}.items()), str({"a": [s]}.values())),
    "text of a proxy": lambda s: repr(types.MappingProxyType({"a": s})),
}


@pytest.mark.parametrize("name", GIVEN_TO_C_CODE)
def test_a_size_that_c_code_is_given(name):
    def program(x):
        return GIVEN_TO_C_CODE[name](x.numel()), x + 1

    same(program, *[(torch.ones(n),) for n in (2, 5, 7, 8)], breaks=None)


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_number_that_a_branch_compared_with_two_sizes(dynamic):
    """A static cache's length beside those of the text and of its mask."""
    cache = types.SimpleNamespace(length=4)

    def program(x, mask):
        if cache.length == mask.shape[0] and mask.shape[0] == x.shape[0]:
            return x * cache.length
        return x - 1

    compiled = tracer_core.compile(program, backend="eager", dynamic=dynamic)
    for size, other, cache.length in (
        (4, 4, 4), (5, 5, 5), (6, 7, 6), (7, 7, 6), (6, 6, 7), (7, 6, 7), (3, 3, 3), (9, 9, 9),
    ):  # fmt: skip
        x, mask = torch.randn(size), torch.ones(other)
        assert torch.equal(compiled(x, mask), program(x, mask))


def test_numbers_and_sizes_that_equal_one_another_in_a_row():
    limits = types.SimpleNamespace(text=4, mask=4)

    def program(x, y, mask):
        if limits.mask == mask.shape[0] and mask.shape[0] == y.shape[0]:
            x = x + 1
        if y.shape[0] == x.shape[0]:
            x = x * limits.mask
        return x * limits.text

    compiled = tracer_core.compile(program, backend="eager", dynamic=True)
    for sizes in itertools.product((5, 6), repeat=3):
        for limits.text, limits.mask in ((7, 5), (5, 6), (8, 8)):
            args = [torch.randn(size) for size in sizes]
            assert compiled(*args).equal(program(*args))


def test_a_message_that_is_not_read_has_no_guard():
    """`generate` prepares the message of an error with the text's length."""
    settings = types.SimpleNamespace(length=20)

    def program(x, name):
        message = f"{name} {{b}} {settings.length:>6}, " + f"x has {x.shape[0]}"
        if settings.length > 1_000:
            raise ValueError(message)
        message += f"; at most {settings.length}."
        if settings.length > 900:
            raise ValueError(f"{message}!")
        return x * settings.length

    compiled = tracer_core.compile(program, backend="eager", recompile_limit=4)
    for size, settings.length in zip(range(3, 13), range(20, 30), strict=True):
        x = torch.randn(size)
        assert compiled(x, "x").equal(program(x, "x"))
    assert captures(compiled) == 2
    for settings.length in (950, 1_950, 960, 25):
        compare(outcome(program, (x, "x")), outcome(compiled, (x, "x")), path="a message")


@pytest.mark.parametrize(
    "read",
    [
        lambda x, text: (x + len(text), text),
        lambda x, text: {text: x}["4 of " + text[5:]] if text[0] == "4" else text + "!",
        lambda x, text: (text + "|" if x.sum() < 1e9 else None, [text] * 2),
        lambda x, text: types.SimpleNamespace(text=text).text.split(),
        lambda x, text: f"{text:>12}{text!r}",
    ],
    ids=["returned", "key", "break", "attribute", "formatted"],
)
def test_a_text_of_numbers_that_is_read(read):
    def program(x):
        return read(x, f"{x.shape[0]} of {x.shape[1]:03d}" + ".")

    same(program, *[(torch.ones(n, n + 1),) for n in (4, 5, 4, 7, 9, 4)], breaks=None)


def test_a_text_that_cannot_be_made():
    def program(x):
        try:
            return f"{x.shape[0]:s}"
        except ValueError as error:
            return str(error)

    same(program, *[(torch.ones(n),) for n in (4, 5, 6)], breaks=None)


@pytest.mark.parametrize("left", [lambda x: x.shape[0], lambda x: (x.shape[0],), lambda x: None])
def test_a_text_of_a_number_is_added_to_texts_only(left):
    def program(x):
        try:
            return left(x) + f"{x.shape[0]}"
        except TypeError as error:
            return str(error)

    same(program, *[(torch.ones(n),) for n in (4, 5, 6)], breaks=None)
