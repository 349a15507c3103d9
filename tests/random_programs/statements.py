"""The statements of random programs, as source text."""

from __future__ import annotations

from tests.random_programs.expressions import VARIABLE_TYPES, Expressions
from tests.random_programs.program_tables import COMPOUND, LOOPS, MATCHES

Lines = list[str]


def indent(lines: Lines) -> Lines:
    return [f"    {line}" for line in lines]


class Statements(Expressions):
    """Mutable, used once. loops: how many loops enclose the current statement. functions: name ->
    (parameter types, kind) of the module's functions so far. A subclass has `function`, which makes
    the functions of programs."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.seed = seed
        self.loops = 0
        self.level = 0
        self.in_finally = False
        self.functions: list[tuple[str, list[str], str]] = []
        self.classes: list[str] = []

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
        return indent(lines)

    def statement(self) -> Lines:
        if self.level < 4 and self.rng.random() < (0.34 if self.level < 3 else 0.2):
            name = self.pick(COMPOUND)
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
        target, iterable, bound = self.rng.choice(LOOPS)
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
        subject, cases = self.rng.choice(MATCHES)
        lines = [f"match {self.fill(subject, 1)}:"]
        for case in self.rng.sample(cases, 2):
            guard = f" if {self.expression('B', 1)}" if self.rng.random() < 0.2 else ""
            lines += [f"    case {case}{guard}:", *indent(self.nested(2))]
        return [*lines, "    case _:", *indent(self.nested(1))]

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
