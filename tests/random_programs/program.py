"""Random programs: functions, classes, calls and changes between calls, as source text.

In: a seed. Out: a `Program`. What always holds: every loop is bounded, recursion ends, and the same
seed gives the same program; a program may raise anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.random_programs.expressions import VARIABLE_TYPES, Expressions, Scope
from tests.random_programs.grammar import LITERALS
from tests.random_programs.prelude import needed

_PARAMETERS = (
    "T",
    "T",
    "I",
    "L",
    "S",
    "D",
    "B",
    "F",
    "LT",
    "DT",
    "O",
    "N",
    "U",
    "FN",
    "FT",
    "V",
    "ST",
    "P",
    "C",
    "G",
    "Q",
)
_TENSOR_ARGUMENTS = (
    "torch.ones(2, 3)", "torch.arange(6.).reshape(2, 3) - 2", "torch.full((2, 3), 0.5)",
    "torch.ones(2, 3)",
    "torch.arange(6.).reshape(2, 3) - 2", "torch.ones(2, 3, dtype=torch.float64)",
    "torch.tensor([1.0, -2.0, 3.0])",
    "torch.ones(2, 1)",
    "torch.arange(6.).reshape(3, 2).t()", "torch.ones(2, 3, requires_grad=True)",
    "torch.tensor(-1.5)",
    "torch.arange(6).reshape(2, 3)",
    "torch.arange(12.).reshape(2, 6)[:, ::2]", "torch.ones(3)[None].expand(2, 3)",
    "torch.zeros(2, 3, dtype=torch.bfloat16)", "nn.Parameter(torch.ones(2, 3))",
)  # fmt: skip
_WORLD_CHANGES = (
    "G_INT = {I}", "G_FLAG = not G_FLAG", "G_STR = {S}", "G_LIST.append({I})", "G_LIST[:] = {L}",
    "G_DICT[{K}] = {I}", "G_DICT.clear()", "G_TENSOR = torch.ones(2, 3)",
    "G_TENSOR.add_(1)", "OBJ.a = {I}", "OBJ.t = torch.ones(3)", "OBJ = Sub({I})", "Obj.count += 1",
    "OBJ.extra = 1",
    "NET.eval()", "NET.scale = {I}", "NET.lin.weight.data.mul_(2)", "NET.parts[1] = nn.Tanh()",
    "POINT.n = {I}", "SLOTS.a = {I}", "G_SET.add(9)", "G_TUPLE = {U}", "G_FLOAT = {F}",
    "Obj.bump = lambda self, by=1: by", "counter()", "mutable_default.__defaults__ = ([1, 2],)",
    "keywords.__kwdefaults__ = {'c': 9}", "VEC.v.append(3)", "G_TDICT['a'] = torch.zeros(3)",
    "G_TENSORS.append(torch.ones(3))", "G_NESTED['a'][1].append(7)", "NET.requires_grad_(False)",
    "torch.set_grad_enabled(False)",
    "NET.lin.register_forward_hook(lambda m, i, o: o + 1)", "ATTRS['k'] = 5", "G_DEQUE.append(7)",
    "G_TENSORS[0] = G_TENSORS[-1]", "del OBJ.a", "torch.set_grad_enabled(True)",
    "G_DICT = {'b': 7, 'a': 1}",
    "PAIR = Pair(5, torch.zeros(2, 3))",
    "NET.parts.append(nn.Linear(3, 3, bias=False))", "Sub.bump = Obj.bump", "memo.cache_clear()",
    "decorated.calls = 2", "OBJ.items = G_LIST", "globals().pop('G_INT', None)", "NET.half()" ,
    "NET.double()",
    "G_LIST = tuple(G_LIST)",
)  # fmt: skip


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


Lines = list[str]


def _indent(lines: Lines) -> Lines:
    return [f"    {line}" for line in lines]


class _Generator(Expressions):
    """Mutable, used once. loops: how many loops enclose the current statement. functions: name ->
    (parameter types, kind) of the module's functions made so far."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.seed = seed
        self.loops = 0
        self.level = 0
        self.in_finally = False
        self.functions: list[tuple[str, list[str], str]] = []
        self.classes: list[str] = []

    # -- whole programs --

    def program(self) -> Program:
        parts = []
        for _ in range(self.rng.choice((0, 0, 1, 1, 2))):
            parts.append(self.helper())
        if self.rng.random() < 0.25:
            parts.append(self.class_())
        shape = self.rng.choice(("function",) * 5 + ("method", "module", "closure"))
        parameters = ["T"] + [
            self.rng.choice(_PARAMETERS) for _ in range(self.rng.choice((1, 2, 2, 3, 4)))
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
        lines = ["def make():", *_indent([*start, *inner, "return f"])]
        return "\n".join(lines) + "\n\nmade = make()", "made", parameters

    def _main_method(self, parameters: list[str]) -> tuple[str, str, list[str]]:
        lines = [f"class Main({self.rng.choice(('Obj', 'Sub', 'Desc', 'Point'))}):"]
        lines += _indent(self.function("run", ["O", *parameters], first="self"))
        return "\n".join(lines) + "\n\nMAIN = Main(2)", "MAIN.run", parameters

    def _main_module(self, parameters: list[str]) -> tuple[str, str, list[str]]:
        lines = ["class Main(Net):", "    a = 4", ""]
        lines += _indent(self.function("forward", ["M", *parameters], first="self"))
        return "\n".join(lines) + "\n\nMAIN = Main()", "MAIN", parameters

    def steps(self, parameters: list[str]) -> tuple[tuple[bool, str], ...]:
        first = self.arguments(parameters)
        steps = [(True, first), (True, first)]
        for _ in range(self.rng.choice((1, 2, 2, 3))):
            if self.rng.random() < 0.5:
                self.scope = Scope()
                steps.append((False, self.fill(self.rng.choice(_WORLD_CHANGES), 0)))
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
                text = self.rng.choice(_TENSOR_ARGUMENTS)
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
        base = self.rng.choice(_TENSOR_ARGUMENTS[:9])
        return f"(lambda A: (({''.join(t + ', ' for t in texts)}), {{{keyword}}}))({base})"

    # -- functions and classes --

    def helper(self) -> str:
        name = f"h{len(self.functions)}"
        parameters = [self.rng.choice(_PARAMETERS) for _ in range(self.rng.choice((1, 2, 2, 3)))]
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
            lines += [*_indent(_METHODS[method](self)), ""]
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
        return [f"def {name}({', '.join(signature)}):", *_indent(body)]

    def last_statement(self) -> str:
        """Returns nearly everything in scope: what is not returned is not compared."""
        names = [n for n, t in self.scope.all().items() if self.rng.random() < 0.7]
        if self.rng.random() < 0.1:
            return f"return {self.expression('X')}"
        return f"return {', '.join(names) or 'None'}{',' if len(names) == 1 else ''}"

    # -- statements --

    def block(self, size: int) -> Lines:
        """Some statements; never empty."""
        lines: Lines = []
        self.level += 1
        while size > 0:
            result = self.statement()
            lines += result
            size -= max(1, len(result) // 3)
            if result and result[-1].split()[0] in ("return", "break", "continue", "raise"):
                break
        self.level -= 1
        return lines or ["pass"]

    def nested(self, size: int) -> Lines:
        """A block that may not be executed: what it binds is not certain afterwards."""
        before = dict(self.scope.own)
        lines = self.block(size)
        if self.rng.random() < 0.97:  # otherwise: a name that may be unbound
            self.scope.own = before
        return _indent(lines)

    def statement(self) -> Lines:
        if self.level < 4 and self.rng.random() < (0.34 if self.level < 3 else 0.2):
            name = self.pick(_COMPOUND)
            return getattr(self, f"_{name}")()  # type: ignore[no-any-return]
        if self.rng.random() < 0.4:
            return [self.assignment()]
        if self.loops and self.rng.random() < 0.08 and not self.in_finally:
            return [self.rng.choice(("break", "continue"))]
        if self.scope.kind == "generator" and self.rng.random() < 0.3:
            return [self._yield()]
        line = self.simple_statement()
        return [line] if line is not None else [self.assignment()]

    def _yield(self) -> str:
        if self.rng.random() < 0.3:
            return f"yield from {self.expression('G', 1)}"
        if self.rng.random() < 0.2:
            return f"got = yield {self.expression('I')}"
        return f"yield {self.expression(self.rng.choice(('I', 'I', 'T')))}"

    def assignment(self, kind: str | None = None) -> str:
        kind = kind or self.pick(tuple((w, t) for t, w in VARIABLE_TYPES.items()))
        text = self.expression(kind, 3)
        if self.functions and self.rng.random() < 0.15:
            return self._call_of_helper()
        if self.rng.random() < 0.3:
            known = self.variable(kind, assignable=True)
            if known is not None:
                return f"{known} = {text}"
        name = self.fresh(kind)
        self.scope.own[name] = kind
        return f"{name} = {text}"

    def _call_of_helper(self) -> str:
        name, parameters, kind = self.rng.choice(self.functions)
        arguments = ", ".join(self.expression(t, 1) for t in parameters)
        call = f"{name}({arguments})"
        target = self.fresh("r")
        return f"{target} = list({call})" if kind == "generator" else f"{target} = {call}"

    def condition(self) -> str:
        at = self.rng.random()
        if at < 0.12:
            return self.fill("({T}).sum() > {F}")
        if at < 0.16:
            return self.fill("({T}).mean().item() > {F}")
        if at < 0.22:
            name = self.fresh("w")
            text = self.fill(f"({name} := {{I}}) > 1")
            return text
        return self.expression("B")

    # -- compound statements --

    def _if(self) -> Lines:
        lines = [f"if {self.condition()}:", *self.nested(3)]
        if self.rng.random() < 0.3:
            lines += [f"elif {self.condition()}:", *self.nested(2)]
        if self.rng.random() < 0.5:
            lines += ["else:", *self.nested(3)]
        return lines

    def _for(self) -> Lines:
        name = self.fresh("i")
        target, iterable, bound = self.rng.choice(_LOOPS)
        lines = [f"for {target.replace('NAME', name)} in {self.fill(iterable, 1)}:"]
        before = dict(self.scope.own)
        for suffix, t in bound.items():
            self.scope.own[name + suffix] = t
        self.loops += 1
        lines += self.nested(3)
        self.loops -= 1
        self.scope.own = before
        if self.rng.random() < 0.2:
            lines += ["else:", *self.nested(2)]
        return lines

    def _while(self) -> Lines:
        name = self.fresh("w")
        condition = f"{name} < {self.rng.choice((2, 3, 4))}"
        if self.rng.random() < 0.3:
            condition += f" and {self.expression('B')}"
        self.loops += 1
        lines = [f"{name} = 0", f"while {condition}:", f"    {name} += 1", *self.nested(3)]
        self.loops -= 1
        if self.rng.random() < 0.2:
            lines += ["else:", *self.nested(1)]
        return lines

    def _try(self) -> Lines:
        lines = ["try:", *self.nested(3)]
        shape = self.rng.random()
        if shape < 0.85:
            lines += self._except()
            if self.rng.random() < 0.2:
                lines += ["except Exception as error:", "    print(type(error).__name__)"]
            if self.rng.random() < 0.25:
                lines += ["else:", *self.nested(2)]
        if shape > 0.7:
            kept, self.in_finally = self.in_finally, True
            lines += ["finally:", *self.nested(2)]
            self.in_finally = kept
        return lines

    def _except(self) -> Lines:
        name = self.fresh("e")
        kinds = self.expression("XC")
        if self.rng.random() < 0.4:
            return [f"except {kinds}:", *self.nested(2)]
        after = self.rng.choice((
            f"s_{name} = str({name})", f"s_{name} = type({name}).__name__",
            f"s_{name} = {name}.args", "raise",
            "pass",
            f"raise RuntimeError('again') from {name}",
            "raise TypeError('other')", f"raise {name}", f"s_{name} = {name}",
            f"s_{name} = type({name}.__context__)", f"raise KeyError({name}.args) from None",
        ))  # fmt: skip
        return [f"except {kinds} as {name}:", *self.nested(2), f"    {after}"]

    def _except_star(self) -> Lines:
        name = self.fresh("e")
        kinds = self.rng.choice(("ValueError", "KeyError", "(ValueError, TypeError)"))
        result = self.fill("ExceptionGroup('g', [ValueError({S}), KeyError({I})])", 1)
        lines = [
            "try:",
            *self.nested(2),
            f"    if {self.expression('B', 1)}:",
            f"        raise {result}",
        ]
        return [
            *lines,
            f"except* {kinds} as {name}:",
            f"    s_{name} = [str(one) for one in {name}.exceptions]",
            *self.nested(1),
        ]

    def _while_none(self) -> Lines:
        name, count = self.fresh("n"), self.fresh("w")
        test = self.rng.choice(("is None", "is not None"))
        start, end = ("None", "1") if test == "is None" else ("1", "None")
        self.loops += 1
        inside = self.nested(2)
        self.loops -= 1
        return [
            f"{name}, {count} = {start}, 0",
            f"while {name} {test}:",
            f"    {count} += 1",
            f"    if {count} > 2:",
            f"        {name} = {end}",
            *inside,
        ]

    def _delete_global(self) -> Lines:
        name = self.rng.choice(("G_INT", "G_STR", "G_FLAG"))
        if self.scope.outer is not None or name in self.scope.own:
            return [self.assignment()]
        inner = self.fresh("drop")
        return [
            f"def {inner}():",
            f"    global {name}",
            f"    kept = {name}",
            f"    del {name}",
            f"    {name} = kept",
            f"    return {name}",
            f"{inner}()",
        ]

    def _class_body(self) -> Lines:
        name, target = self.fresh("K").upper(), self.fresh("l")
        value = self.expression("I", 1)
        self.scope.own[target] = "L"
        return [f"class {name}:", f"    first: int = {value}", "    second = first",
        "    del first",
        "    for third in (1, 2):", "        pass",
                f"{target} = [{name}.second, {name}.third, len({name}.__annotations__)]"]  # fmt: skip

    def _raise(self) -> Lines:
        condition = self.expression("B")
        error = self.fill(self.rng.choice(("ValueError({S})", "KeyError({K})", "Broken({I})",
        "IndexError",
        "TypeError({I}, {S})",
                                           "ZeroDivisionError('z')", "RuntimeError({S})",
                                           "StopIteration({I})",
                                           "Exception()")))  # fmt: skip
        return [f"if {condition}:", f"    raise {error}"]

    def _with(self) -> Lines:
        manager = self.expression("CM")
        line = self.rng.choice(
            (
                f"with {manager}:",
                f"with {manager} as {self.fresh('c')}:",
                f"with {manager}, {self.expression('CM')}:",
            )
        )
        return [line, *self.nested(3)]

    def _def(self) -> Lines:
        kind = "generator" if self.rng.random() < 0.25 else "function"
        parameters = [
            self.rng.choice(("I", "T", "L", "S")) for _ in range(self.rng.choice((0, 1, 1, 2)))
        ]
        name = self.fresh("inner")
        lines = self.function(name, parameters, outer=self.scope, kind=kind, size=3)
        self._shift(lines, len(parameters))
        arguments = ", ".join(self.expression(t, 1) for t in parameters)
        call = f"{name}({arguments})"
        lines.append(f"{self.fresh('r')} = {f'list({call})' if kind == 'generator' else call}")
        if self.rng.random() < 0.3:
            lines.append(
                f"{lines[-1].split(' = ')[0]}b = {call if kind == 'function' else f'sum(1 for _ in {call})'}"
            )
        return lines

    def _shift(self, lines: Lines, count: int) -> None:
        """An inner function's parameters get names of their own, so that they hide nothing."""
        suffix = f"_{self.counter}"
        for i in range(1, count + 1):
            for at, line in enumerate(lines):
                lines[at] = _rename(line, f"p{i}", f"p{i}{suffix}") if f"p{i}" in line else line

    def _comprehension_sum(self) -> Lines:
        name, target = self.fresh("i"), self.fresh("l")
        before = dict(self.scope.own)
        self.scope.own[name] = "I"
        element, test = self.expression("I", 2), self.expression("B", 1)
        self.scope.own = before
        iterable = self.expression(self.rng.choice(("L", "U", "G")), 1)
        shape = self.rng.choice(("[{}]", "list({})", "sorted({{{}}})", "sum({})", "[*({})]"))
        text = shape.format(
            f"{element} for {name} in {iterable}"
            + (f" if {test}" if self.rng.random() < 0.4 else "")
        )
        if ":=" in text:
            return [self.assignment()]
        self.scope.own[target] = "I" if shape.startswith("sum") else "L"
        return [f"{target} = {text}"]

    def _match(self) -> Lines:
        subject, cases = self.rng.choice(_MATCHES)
        lines = [f"match {self.fill(subject, 1)}:"]
        for case in self.rng.sample(cases, 2):
            guard = f" if {self.expression('B', 1)}" if self.rng.random() < 0.2 else ""
            lines += [f"    case {case}{guard}:", *_indent(self.nested(2))]
        return [*lines, "    case _:", *_indent(self.nested(1))]

    def _unpack(self) -> Lines:
        a, b = self.fresh("i"), self.fresh("l")
        template = self.rng.choice((
            f"{a}, *{b} = [{{I}}, *{{L}}]", f"*{b}, {a} = ({{I}}, {{I}})",
            f"({a}, _), {b} = (1, {{I}}), {{L}}",
            f"{a} = {a}b = {{I}}; {b} = []",
            f"{b} = [{{I}}]; {a} = {b}[0]", f"{a}, {b} = {{I}}, {{L}}",
            f"[{a}, *_], {b} = [{{I}}], [{{I}}]",
            f"{a}: int = {{I}}; {b}: list = {{L}}",
        ))  # fmt: skip
        text = self.fill(template, 1)
        self.scope.own[a], self.scope.own[b] = "I", "L"
        return text.split("; ")

    def _early_return(self) -> Lines:
        value = "" if self.scope.kind == "generator" else f" {self.expression('X')}"
        return [f"if {self.expression('B')}:", f"    return{value}"]

    def _delete(self) -> Lines:
        own = [n for n in self.scope.own if n[-1].isdigit() and not n.startswith("p")]
        if not own or self.loops:
            return [self.assignment()]
        name = self.rng.choice(own)
        del self.scope.own[name]
        return [f"del {name}"]

    def _class_inside(self) -> Lines:
        name = self.fresh("K")
        base = self.rng.choice(("Obj", "Sub", "Vec"))
        value = self.expression("I", 1)
        lines = [
            f"class {name.upper()}({base}):",
            f"    level = {value}",
            "    def bump(self, by=1):",
            "        return super().bump(by) + self.level"
            if base != "Vec"
            else "        return self.level",
        ]
        target = self.fresh("o")
        if base == "Vec":
            return [*lines, f"{target} = {name.upper()}(1, 2).bump()"]
        self.scope.own[target] = "O"
        return [*lines, f"{target} = {name.upper()}({self.expression('I', 1)})"]

    def _import(self) -> Lines:
        return [
            self.rng.choice(
                (
                    "import math as m",
                    "from math import floor",
                    "import os.path",
                    "from collections import OrderedDict as OD",
                    "import torch.nn.functional as FF",
                )
            )
        ]

    def _gradient(self) -> Lines:
        name, target = self.variable("T"), self.fresh("g")
        if name is None:
            return [self.assignment("T")]
        return [
            f"{target} = ({name} * {self.expression('T', 1)}).sum()",
            f"if {target}.requires_grad:",
            f"    {target}.backward()",
        ]

    def _iterate_by_hand(self) -> Lines:
        name = self.fresh("g")
        lines = [f"{name} = {self.expression('G', 2)}", f"{name}a = next({name}, None)"]
        lines += [self.assignment()]
        lines += [
            self.rng.choice(
                (
                    f"{name}b = list({name})",
                    f"{name}b = [next({name}, 0), next({name}, 1)]",
                    f"{name}b = sum({name})",
                    f"for {name}c in {name}: print({name}c)",
                )
            )
        ]
        return lines

    def _send(self) -> Lines:
        name = self.fresh("g")
        return [f"{name} = count_up({self.expression('I', 1)} % 4)", f"{name}a = [next({name}, 0)]",
        "try:", f"    {name}a.append({name}.send({self.expression('I', 1)}))",
                "    " + self.simple(), f"    {name}a.append({name}.send(2))",
                self.rng.choice(("    pass",
                f"    {name}.close()", f"    {name}.throw(KeyError('k'))")),
                "except (StopIteration, KeyError) as stop:",
                f"    {name}a.append(stop.args)"]  # fmt: skip

    def simple(self) -> str:
        return self.simple_statement() or self.assignment()


def _rename(line: str, old: str, new: str) -> str:
    import re

    return re.sub(rf"\b{old}\b", new, line)


_COMPOUND = (
    (5, "if"), (4, "for"), (1.5, "while"), (3, "try"), (1.2, "raise"), (2, "with"), (2, "def"),
    (1.5,
    "comprehension_sum"), (1, "match"), (1, "unpack"), (0.7, "early_return"), (0.6, "delete"),
    (0.6, "class_inside"), (0.4, "except_star"), (0.5, "while_none"), (0.2, "delete_global"), (0.3,
    "class_body"),
    (0.3, "import"), (0.5, "gradient"), (0.9, "iterate_by_hand"), (0.5, "send"),
)  # fmt: skip
#: (target, iterable, what is bound: suffix of the name -> type).
_LOOPS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("NAME", "range(3)", {"": "I"}), ("NAME", "range({I} % 4)", {"": "I"}), ("NAME", "{L}",
    {"": "I"}),
    ("NAMEa, NAMEb", "enumerate({L})", {"a": "I", "b": "I"}),
    ("NAMEa, NAMEb", "{D}.items()", {"a": "S", "b": "I"}), ("NAME", "{D}", {"": "S"}),
    ("NAMEa, NAMEb",
    "zip({L}, {U})", {"a": "I", "b": "I"}), ("NAME", "{G}", {"": "I"}), ("NAME", "{LT}", {"": "T"}),
    ("NAMEa, NAMEb", "{DT}.items()", {"a": "S", "b": "T"}), ("NAME", "tensors({T}, 2)", {"": "T"}),
    ("NAME",
    "{Q}.copy()", {"": "I"}), ("NAME", "{V}", {"": "I"}), ("NAME", "({T}).expand(2, 3)", {"": "T"}),
    ("NAME", "sorted({ST})", {"": "I"}), ("NAME", "list({L})", {"": "I"}), ("NAME",
    "NET.parameters()", {"": "T"}),
    ("NAMEa, NAMEb", "zip({LT}, {L})", {"a": "T", "b": "I"}), ("NAMEa, NAMEb",
    "itertools.product({U}, [1, 2])", {"a": "I", "b": "I"}),
    ("NAMEa, (NAMEb, NAMEc)", "enumerate(zip({L}, {U}))", {"a": "I", "b": "I", "c": "I"}), ("NAME",
    "count_up(3)", {"": "I"}), ("NAME", "Color", {"": "C"}), ("NAME", "reversed({U})", {"": "I"}),
    ("NAME",
    "{S}", {"": "S"}),
)  # fmt: skip
_MATCHES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("{I}", ("0", "1 | 2", "int(m_n)", "-1", "bool()", "3 as m_k")),
    ("{L}", ("[]", "[m_a]", "[m_a, *m_rest]", "[1, m_b, *_]", "[_, _]", "(m_p, m_q, m_r)")),
    ("{D}", ("{'a': m_v}", "{'b': 1 | 2}", "{'a': m_v, **m_more}", "{}", "{'z': _}")),
    ("{O}", ("Sub(a=m_a)", "Obj(a=1)", "Obj(a=m_b, items=[m_i, *_])", "Slots()")),
    ("{P}", ("Point(m_n, m_t)", "Point(1)", "Point(tag='p')")),
    ("{X}", ("None", "str(m_s)", "float()", "[*_]", "{'a': _}", "torch.Tensor()", "Color.RED",
    "Pair(m_p, m_q)")),
    ("({I}, {S})", ("(0, _)", "(m_n, 'a' | 'b')", "(int(), str(m_s))", "[m_x, m_y]")),
)  # fmt: skip


def _method(signature: str, *templates: str) -> Callable[[_Generator], Lines]:
    def make(generator: _Generator) -> Lines:
        generator.scope = Scope()
        return [
            f"def {generator.fill(signature, 0)}:",
            *_indent([generator.fill(t, 1) for t in templates]),
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
