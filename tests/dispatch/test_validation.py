"""Options of a backend: a dataclass, or a dict with its field names; never changed, types
checked.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest

import tracer_core
from tracer_core.dispatch import validation
from tracer_core.errors import OptionError
from tracer_core.plugin_api import Backend


class Level(enum.Enum):
    LOW = 1


@dataclass(frozen=True, slots=True)
class Options:
    """What the test's backend can be told."""

    threads: int | None = None
    ratio: float = 1.0
    freeze: bool = False
    providers: tuple[str, ...] = ()
    layout: Literal["nchw", "nhwc"] = "nchw"
    level: Level = Level.LOW
    extra: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be positive, not {self.threads}")


@dataclass
class Loose:
    """Not frozen, as a plug-in's author may write it."""

    names: list[str]
    pair: tuple[int, str] = (1, "a")


BACKEND = Backend(name="mine", compile=lambda graph, spec: None, options=Options)


def build(options):
    return validation.build_config(backend=BACKEND, options=options).options


def test_none_means_the_defaults():
    assert build(None) == Options()


def test_a_dict_is_accepted_and_not_changed():
    inputs = {"threads": 2, "providers": ("cpu",), "extra": {"a": 1}}
    before = dict(inputs)
    assert build(inputs) == Options(threads=2, providers=("cpu",), extra={"a": 1})
    assert inputs == before


def test_an_instance_is_accepted():
    assert build(Options(ratio=2)) == Options(ratio=2)


def test_a_mutable_instance_is_copied():
    backend = Backend(name="loose", compile=lambda graph, spec: None, options=Loose)
    loose = Loose(["a"])
    config = validation.build_config(backend=backend, options=loose)
    loose.names = ["b"]
    assert config.options == Loose(["a"])


def test_options_are_imported_when_they_are_needed():
    backend = Backend(name="lazy", compile="no:engine", options=f"{__name__}:Options")
    assert validation.build_options(backend, {"freeze": True}) == Options(freeze=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"threds": 2},
            "no option 'threds' \\(did you mean 'threads'\\?\\); valid: threads, ratio, freeze",
        ),
        ({"threads": "2"}, "'threads' of backend 'mine' must be int or None, not '2'"),
        ({"threads": True}, "'threads' .* must be int or None, not True"),
        ({"freeze": 1}, "'freeze' .* must be bool, not 1"),
        ({"ratio": "x"}, "'ratio' .* must be float, not 'x'"),
        ({"providers": (1,)}, "'providers' .* must be tuple"),
        ({"layout": "chwn"}, "'layout' .* must be one of 'nchw', 'nhwc'"),
        ({"level": 1}, "'level' .* must be Level"),
        ({"extra": {"a": "b"}}, "'extra' .* must be"),
        ({"threads": 0}, "threads must be positive, not 0"),
        ("threads=2", "must be a Options or a dict, not str"),
        (Loose([]), "must be a Options or a dict, not Loose"),
    ],
)
def test_mistakes_name_the_field_and_what_is_valid(options, message):
    with pytest.raises(OptionError, match=message):
        build(options)


@pytest.mark.parametrize(
    ("value", "expected", "answer"),
    [
        (1, float, True),
        (True, float, False),
        (True, bool, True),
        ((1, "a"), tuple[int, str], True),
        ((1, 2), tuple[int, str], False),
        ((1,), tuple[int, str], False),
        (["a"], Sequence[str], True),
        ("a", Sequence[str], False),
        ([1], list[str], False),
        ({"a": None}, dict[str, int | None], True),
        ({1: None}, dict[str, int | None], False),
        (1, Literal[True], False),
        (object(), Any, True),
        (None, None, True),
    ],
)
def test_matches(value, expected, answer):
    assert validation.matches(value, expected) is answer


def test_compile_passes_the_built_options_on(runtime):
    tracer_core.compile(lambda x: x, backend=BACKEND, options={"ratio": 3})
    assert runtime.compiled[0].config.options == Options(ratio=3)
