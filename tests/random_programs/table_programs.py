"""Programs made from the effect table: calls of its rows with arguments of many types.

In: a seed. Out: a `Program` whose function calls a few rows, each in a try block, with arguments that are parameters,
globals or made in place. Rows that break the graph, and those of modules that act on the machine, are called with a
keyword that no function takes: the trace meets the row, the real call raises before it does anything. What always
holds: no row runs that could end the process or touch a file.
"""

from __future__ import annotations

import random
import types
from dataclasses import dataclass
from typing import Any

from tests.random_programs.program import Program
from tracer_core.interpreter import tracer  # noqa: F401  (importing it fills the table)
from tracer_core.natives.effects import EFFECTS, EffectKind, row_name

#: Modules whose rows are called as programs call them.
_CALLED = frozenset(
    {"builtins", "math", "cmath", "_operator", "operator", "itertools", "collections", "_collections", "datetime",
    "re",
     "_functools", "functools", "_heapq", "_bisect", "_struct", "binascii", "unicodedata", "zlib", "_string",
     "_hashlib",
     "copy"}
)  # fmt: skip
#: Their results are addresses, or differ from run to run.
_ONLY_TYPE = (
    "builtins.id",
    "builtins.object.__hash__",
    "builtins.hash",
    "__hash__",
    "__sizeof__",
    "__reduce",
)
#: Calls of these would leave the process in another state.
_LEFT_OUT = (
    "OrderedDict.__iter__",
    "OrderedDict.__reversed__",
    "_nesting",
    "settrace",
    "setprofile",
    "_functorch.vmap.vmap_impl",
)
#: type of a receiver -> expressions that make one.
_RECEIVERS: dict[str, tuple[str, ...]] = {
    "int": ("5", "0", "-7", "2"), "bool": ("True", "False"), "float": ("2.5", "-0.5", "0.0"), "complex": ("(1+2j)",
        "0j"),
    "str": ("'ab c'", "'xyz'", "''", "'a,b'", "'12'"), "bytes": ("b'ab'", "b''", "b'a b'"),
        "bytearray": ("bytearray(b'abc')",),
    "list": ("[3, 1, 2]", "[]", "['b', 'a']"), "tuple": ("(1, 2)", "()", "(2, 1, 2)"), "dict": ("{'a': 1, 'b': 2}",
        "{}", "{1: 'x'}"),
    "set": ("{1, 2}", "set()"), "frozenset": ("frozenset([1, 3])",), "range": ("range(4)", "range(1, 9, 3)"),
    "slice": ("slice(0, 2)", "slice(None, None, -1)"), "deque": ("collections.deque([1, 2])",
        "collections.deque([2], maxlen=2)"),
    "OrderedDict": ("collections.OrderedDict(a=1, b=2)",), "defaultdict": ("collections.defaultdict(int, a=1)",),
    "mappingproxy": ("types.MappingProxyType({'a': 1})",), "NoneType": ("None",), "object": ("Obj(1)", "3", "'s'"),
    "type": ("int", "Obj", "Sub"), "date": ("datetime.date(2020, 1, 2)",),
        "datetime": ("datetime.datetime(2020, 1, 2, 3)",),
    "timedelta": ("datetime.timedelta(1, 2)", "datetime.timedelta(hours=3)"), "time": ("datetime.time(1, 2)",),
    "timezone": ("datetime.timezone.utc", "datetime.timezone(datetime.timedelta(hours=1))"),
        "Pattern": ("re.compile('a(b)?')", "re.compile('[a-c]')"),
    "Match": ("re.match('a(b)?', 'abc')",), "method": ("OBJ.bump",), "function": ("keywords", "fact"),
        "property": ("Obj.__dict__['twice']",),
    "enumerate": ("enumerate([1, 2])",), "zip": ("zip([1, 2], [3, 4])",), "map": ("map(abs, [1, -2])",),
        "filter": ("filter(None, [0, 1])",),
    "reversed": ("reversed((1, 2))",), "list_iterator": ("iter([1, 2])",), "tuple_iterator": ("iter((1, 2))",),
        "str_ascii_iterator": ("iter('ab')",),
    "bytes_iterator": ("iter(b'ab')",), "range_iterator": ("iter(range(3))",), "set_iterator": ("iter({1})",),
    "dict_keyiterator": ("iter({'a': 1})",),
    "dict_valueiterator": ("iter({'a': 1}.values())",), "dict_itemiterator": ("iter({'a': 1}.items())",),
    "list_reverseiterator": ("reversed([1, 2])",),
    "callable_iterator": ("iter(lambda: 1, 1)",), "Struct": ("struct.Struct('<h')",),
    "HASH": ("hashlib.sha256(b'a')",),
    "BaseException": ("ValueError('x')",), "BaseExceptionGroup": ("ExceptionGroup('g', [ValueError('x')])",),
    **{name: (f"itertools.{text}",) for name, text in (
        ("chain", "chain([1], [2])"), ("islice", "islice([1, 2, 3], 2)"), ("count", "count(2)"), ("repeat",
        "repeat(1, 2)"), ("cycle", "cycle([1, 2])"),
        ("accumulate", "accumulate([1, 2])"), ("takewhile", "takewhile(bool, [1, 0])"), ("dropwhile",
        "dropwhile(bool, [1, 0])"), ("filterfalse", "filterfalse(None, [0, 1])"),
        ("starmap", "starmap(pow, [(2, 3)])"), ("compress", "compress([1, 2], [0, 1])"), ("groupby",
        "groupby([1, 1, 2])"), ("zip_longest", "zip_longest([1], [2, 3])"),
        ("pairwise", "pairwise([1, 2, 3])"), ("permutations", "permutations([1, 2])"), ("combinations",
        "combinations([1, 2, 3], 2)"),
        ("combinations_with_replacement", "combinations_with_replacement([1, 2], 2)"), ("product",
        "product([1, 2], [3])"), ("_tee", "tee([1, 2])[0]"),
        ("_grouper", "groupby([1, 1])"))},
}  # fmt: skip
_ARGUMENTS = (
    "0", "1", "2", "-3", "2.5", "'a'", "'ab c'", "''", "b'a'", "[2, 1]", "[]", "(1, 2)", "{'a': 1}", "{1, 2}",
    "range(3)", "None", "slice(0, 2)",
    "iter([1, 2])", "True", "(lambda *a: 1)", "abs", "'utf-8'", "[('a', 1)]", "['x', 'y']", "Obj(1)", "VEC",
    "Color.RED", "Level.HIGH", "1+2j",
    "collections.deque([1])", "frozenset([2])", "int", "datetime.date(2021, 2, 3)", "datetime.timedelta(2)",
    "operator.add", "'<h'", "p1", "OBJ", "G_LIST", "G_DICT", "'b'", "'%d'", "count_up(3)", "bytearray(b'ab')",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """name: as the table names it; callable; receiver: name of the type whose method it is, or an empty string;
    refused: it is called without arguments, or (breaks: the row ends the graph) with a keyword that it does not
    take."""

    name: str
    callable: Any
    receiver: str
    refused: bool
    breaks: bool


def _row(function: Any, kind: EffectKind) -> Row:
    name = row_name(function)
    owner = getattr(function, "__objclass__", None)
    is_method = isinstance(function, (types.MethodDescriptorType, types.WrapperDescriptorType))
    receiver = owner.__name__ if is_method and owner is not None else ""
    refused = (
        kind is EffectKind.BREAKS
        or name.split(".")[0] not in _CALLED
        or (bool(receiver) and receiver not in _RECEIVERS)
    )
    return Row(name, function, receiver, refused, kind is EffectKind.BREAKS)


#: Every row of the table, by name.
ROWS: dict[str, Row] = {
    row.name: row
    for row in sorted(
        (_row(f, e.kind) for f, e in EFFECTS.items() if not row_name(f).endswith(_LEFT_OUT)),
        key=lambda r: r.name,
    )
}


def row(name: str) -> Any:
    """The callable of a row, for programs."""
    return ROWS[name].callable


def generate_calls(seed: int) -> Program:
    rng = random.Random(seed)
    names = list(ROWS)
    chosen = [ROWS[names[rng.randrange(len(names))]] for _ in range(rng.choice((3, 5, 7)))]
    lines = [f"R{i} = row({r.name!r})" for i, r in enumerate(chosen)]
    lines = ["from tests.random_programs.table_programs import row", *lines]
    parameters: list[str] = []
    body = ["found = [p1 + 1]"]
    for i, one in enumerate(chosen):
        body += _call(rng, i, one, parameters)
    signature = ", ".join(["p1", *(f"q{i}" for i in range(len(parameters)))])
    lines += ["", "", f"def f({signature}):", *(f"    {line}" for line in body), "    return found"]
    first = [rng.choice(("torch.ones(2, 3)", "torch.arange(3.)")), *parameters]
    steps = [(True, _arguments(first)), (True, _arguments(first))]
    for _ in range(2):
        changed = [
            rng.choice(_ARGUMENTS) if rng.random() < 0.3 and text != "p1" else text for text in first[1:]
        ]
        steps.append((True, _arguments([first[0], *changed])))
    return Program(seed, "\n".join(lines) + "\n", "f", tuple(steps))


def _arguments(texts: list[str]) -> str:
    return f"(({''.join(text + ', ' for text in texts)}), {{}})".replace("p1, ", "1, ")


def _call(rng: random.Random, i: int, one: Row, parameters: list[str]) -> list[str]:
    """One row called in a try block."""
    texts = []
    if one.receiver and not one.refused:
        texts.append(rng.choice(_RECEIVERS[one.receiver]))
    if not one.refused:
        texts += _likely(rng, one, texts)
    for at, text in enumerate(texts):
        if text not in ("p1",) and rng.random() < 0.5:
            texts[at] = f"q{len(parameters)}"
            parameters.append(text)
    if one.refused and one.breaks:
        texts.append("no_such_argument=1")
    elif one.refused and one.receiver:  # with nothing at all CPython 3.12.1 reads beyond the stack
        texts.append("None")
    result = (
        f"type(R{i}({', '.join(texts)}))" if one.name.endswith(_ONLY_TYPE) else f"R{i}({', '.join(texts)})"
    )
    mutated = [text for text in texts if text.startswith("q")]
    lines = ["try:", f"    found.append({result})"]
    if (
        not one.refused
        and one.receiver in ("list", "dict", "set", "deque", "bytearray")
        and not texts[0].startswith("q")
    ):
        lines = [
            "try:",
            f"    made = {texts[0]}",
            f"    found.append(R{i}({', '.join(['made', *texts[1:]])}))",
            "    found.append(made)",
        ]
    lines += ["except Exception as error:", "    found.append((type(error), str(error)))"]
    return [*lines, *([f"found.append({mutated[0]})"] if mutated else [])]


def _likely(rng: random.Random, one: Row, before: list[str]) -> list[str]:
    """Arguments that the row accepts, where a few tries find some."""
    texts: list[str] = []
    for _ in range(12):
        count = rng.choice((0, 1, 1, 2, 2, 3) if not before else (0, 0, 1, 1, 2))
        texts = [rng.choice(_ARGUMENTS) for _ in range(count)]
        if _accepts(one, before + texts):
            break
    return texts


def _accepts(one: Row, texts: list[str]) -> bool:
    world = _world()
    try:
        one.callable(*(eval(text, world) for text in texts))
    except Exception:
        return False
    return True


def _world() -> dict[str, Any]:
    """A scope in which the argument texts can be evaluated; made anew where they may have been changed."""
    from tests.random_programs.prelude import needed

    world: dict[str, Any] = {"p1": 1}
    if not _COMPILED:
        text = needed("Obj Sub VEC Color Level OBJ G_LIST G_DICT count_up keywords fact")
        _COMPILED.append(compile(text, "<arguments>", "exec"))
    exec(_COMPILED[0], world)
    return world


_COMPILED: list[Any] = []
