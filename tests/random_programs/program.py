"""Random programs: functions, classes, calls and changes between calls, as source text.

In: a seed. Out: a `Program`. What always holds: every loop is bounded, recursion ends, and the same
seed gives the same program; a program may raise anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.random_programs.expressions import Scope
from tests.random_programs.grammar import LITERALS
from tests.random_programs.prelude import needed
from tests.random_programs.program_tables import (
    PARAMETERS,
    TENSOR_ARGUMENTS,
    WORLD_CHANGES,
)
from tests.random_programs.statements import Lines, Statements, indent


@dataclass(frozen=True, slots=True)
class Program:
    """seed; source: the generated part; target: an expression of what is compiled; steps: (is a
    call, text); a call's text is an expression of ``(args, kwargs)``, another step's text is
    statements for the module."""

    seed: int
    source: str
    target: str
    steps: tuple[tuple[bool, str], ...]

    @property
    def text(self) -> str:
        """The whole module: what the generated part needs, and that part."""
        everything = "\n".join([self.source, self.target, *(text for _, text in self.steps)])
        return f"{needed(everything)}\n\n{self.source}"

    def with_source(self, source: str) -> Program:
        return replace(self, source=source)

    def __str__(self) -> str:
        lines = [f"# seed {self.seed}; compiled: {self.target}", self.text.rstrip(), ""]
        lines += [f"# {'call' if is_call else 'do'}: {text}" for is_call, text in self.steps]
        return "\n".join(lines) + "\n"


def generate_program(seed: int) -> Program:
    return _Generator(seed).program()


class _Generator(Statements):
    """Mutable, used once. Makes functions, classes and whole programs."""

    # -- whole programs --

    def program(self) -> Program:
        parts = []
        for _ in range(self.rng.choice((0, 0, 1, 1, 2))):
            parts.append(self.helper())
        if self.rng.random() < 0.25:
            parts.append(self.class_())
        shape = self.rng.choice(("function",) * 5 + ("method", "module", "closure"))
        parameters = ["T"] + [
            self.rng.choice(PARAMETERS) for _ in range(self.rng.choice((1, 2, 2, 3, 4)))
        ]
        source, target, parameters = getattr(self, f"_main_{shape}")(parameters)
        parts.append(source)
        return Program(self.seed, "\n\n".join(parts) + "\n", target, self.steps(parameters))

    def _main_function(self, parameters: list[str]) -> tuple[str, str, list[str]]:
        return "\n".join(self.function("f", parameters)), "f", parameters

    def _main_closure(self, parameters: list[str]) -> tuple[str, str, list[str]]:
        self.scope = Scope()
        start = [self.assignment(t) for t in self.rng.sample(("I", "L", "T", "D", "S", "O"), 3)]
        outer = self.scope
        inner = self.function("f", parameters, outer=outer)
        lines = ["def make():", *indent([*start, *inner, "return f"])]
        return "\n".join(lines) + "\n\nmade = make()", "made", parameters

    def _main_method(self, parameters: list[str]) -> tuple[str, str, list[str]]:
        lines = [f"class Main({self.rng.choice(('Obj', 'Sub', 'Desc', 'Point'))}):"]
        lines += indent(self.function("run", ["O", *parameters], first="self"))
        return "\n".join(lines) + "\n\nMAIN = Main(2)", "MAIN.run", parameters

    def _main_module(self, parameters: list[str]) -> tuple[str, str, list[str]]:
        lines = ["class Main(Net):", "    a = 4", ""]
        lines += indent(self.function("forward", ["M", *parameters], first="self"))
        return "\n".join(lines) + "\n\nMAIN = Main()", "MAIN", parameters

    def steps(self, parameters: list[str]) -> tuple[tuple[bool, str], ...]:
        first = self.arguments(parameters)
        steps = [(True, first), (True, first)]
        for _ in range(self.rng.choice((1, 2, 2, 3))):
            if self.rng.random() < 0.5:
                self.scope = Scope()
                steps.append((False, self.fill(self.rng.choice(WORLD_CHANGES), 0)))
                steps.append((True, first))
            else:
                steps.append((True, self.arguments(parameters)))
        return tuple(steps)

    def arguments(self, parameters: list[str]) -> str:
        """Text of ``(args, kwargs)``; sometimes two arguments are the same object or share
        memory.
        """
        self.scope = Scope()
        texts = []
        for kind in parameters:
            if kind == "T":
                text = self.rng.choice(TENSOR_ARGUMENTS)
                if self.rng.random() < 0.15:
                    text = self.rng.choice(
                        ("A", "A", "A[:1]", "A.t().t()", "A[..., :1]", "A.detach()")
                    )
            elif kind in ("L", "D", "O") and self.rng.random() < 0.1:
                text = {"L": "G_LIST", "D": "G_DICT", "O": "OBJ"}[kind]
            elif self.rng.random() < 0.05:
                text = self.rng.choice(LITERALS[self.rng.choice(("I", "S", "N", "T", "L"))])
            else:
                text = self.rng.choice(LITERALS[kind])
            texts.append(text)
        keyword = ""
        if texts and self.rng.random() < 0.1:
            keyword = f"'p{len(texts)}': {texts.pop()}"
        base = self.rng.choice(TENSOR_ARGUMENTS[:9])
        return f"(lambda A: (({''.join(t + ', ' for t in texts)}), {{{keyword}}}))({base})"

    # -- functions and classes --

    def helper(self) -> str:
        name = f"h{len(self.functions)}"
        parameters = [self.rng.choice(PARAMETERS) for _ in range(self.rng.choice((1, 2, 2, 3)))]
        kind = "generator" if self.rng.random() < 0.25 else "function"
        lines = self.function(name, parameters, kind=kind, size=self.rng.choice((2, 3, 5)))
        self.functions.append((name, parameters, kind))
        return "\n".join(lines)

    def class_(self) -> str:
        name = f"K{len(self.classes)}"
        base = self.rng.choice(("Obj", "Sub", "Point", "Vec", "object", "dict", "list", "Attrs"))
        lines = [f"class {name}({base}):", f"    flag = {self.rng.choice(LITERALS['I'])}", ""]
        names = self.rng.sample(
            (
                "bump",
                "__len__",
                "__call__",
                "__eq__",
                "__getattr__",
                "extra",
                "__contains__",
                "__setattr__",
                "__iter__",
                "__enter__",
            ),
            2,
        )
        for method in names:
            lines += [*indent(_METHODS[method](self)), ""]
        self.classes.append(name)
        return "\n".join(lines)

    def function(
        self,
        name: str,
        parameters: list[str],
        *,
        first: str = "",
        outer: Scope | None = None,
        kind: str = "function",
        size: int = 0,
    ) -> Lines:
        """A function definition. first: the name of its first parameter. outer: scope of the
        enclosing function.
        """
        kept = self.scope, self.loops, self.level, self.in_finally
        self.scope, self.loops, self.in_finally = Scope(outer, kind), 0, False
        signature = []
        for i, t in enumerate(parameters, 0 if first else 1):
            parameter = first if first and i == 0 else f"p{i}"
            self.scope.own[parameter] = t
            signature.append(parameter)
        body: Lines = []
        if outer is not None:
            borrowed = [
                n
                for n, t in outer.assignable().items()
                if self.rng.random() < 0.5 and n not in self.scope.own and n[-1].isdigit()
            ]
            if borrowed:
                self.scope.borrowed = set(borrowed)
                body.append(f"nonlocal {', '.join(borrowed)}")
        if first == "" and self.rng.random() < 0.2 and outer is None:
            names = self.rng.sample(("G_INT", "G_STR", "G_LIST", "G_TENSOR", "G_FLAG"), 2)
            body.append(f"global {', '.join(names)}")
            for n in names:
                self.scope.own[n] = {
                    "G_INT": "I",
                    "G_STR": "S",
                    "G_LIST": "L",
                    "G_TENSOR": "T",
                    "G_FLAG": "B",
                }[n]
        extra = self.rng.random()
        if extra < 0.08:
            signature.append(f"extra={self.rng.choice(LITERALS['I'])}")
            self.scope.own["extra"] = "I"
        elif extra < 0.14:
            signature.append("*rest, key=2")
            self.scope.own["key"] = "I"
        elif extra < 0.18:
            signature.append("**kw")
        body += self.block(size or self.rng.choice((4, 6, 8, 10, 12)))
        body += [self.last_statement()] if kind == "function" else [f"yield {self.expression('I')}"]
        self.scope, self.loops, self.level, self.in_finally = kept
        return [f"def {name}({', '.join(signature)}):", *indent(body)]

    def last_statement(self) -> str:
        """Returns nearly everything in scope: what is not returned is not compared."""
        names = [n for n, t in self.scope.all().items() if self.rng.random() < 0.7]
        if self.rng.random() < 0.1:
            return f"return {self.expression('X')}"
        return f"return {', '.join(names) or 'None'}{',' if len(names) == 1 else ''}"


def _method(signature: str, *templates: str) -> Callable[[_Generator], Lines]:
    def make(generator: _Generator) -> Lines:
        generator.scope = Scope()
        return [
            f"def {generator.fill(signature, 0)}:",
            *indent([generator.fill(t, 1) for t in templates]),
        ]

    return make


_METHODS: dict[str, Callable[[_Generator], Lines]] = {
    "bump": _method("bump(self, by=1)", "self.flag = self.flag + {I}", "return by + self.flag"),
    "__len__": _method("__len__(self)", "return abs({I})"),
    "__call__": _method("__call__(self, x, *args)", "return x + {I}"),
    "__eq__": _method("__eq__(self, other)", "return {B}"),
    "__getattr__": _method("__getattr__(self, name)",
    "if name.startswith('__') or name in ('v', 'a'):",
    "    raise AttributeError(name)", "return {I}"),
    "extra": _method("extra(self, x={T})", "return x * {I}"),
    "__contains__": _method("__contains__(self, item)", "return {B}"),
    "__setattr__": _method("__setattr__(self, name, value)", "super().__setattr__(name, value)",
    "G_LIST.append(len(name))"),
    "__iter__": _method("__iter__(self)", "yield {I}", "yield from {L}"),
    "__enter__": _method("__enter__(self)", "return {I}"),
}  # fmt: skip
