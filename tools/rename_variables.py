"""Renames variables that say nothing (``one``, ``found``, ...) to the noun of what they hold.

A variable is renamed in the scope that binds it: a comprehension, a lambda, a loop whose variable is
read nowhere else, or a function. Its new name comes from the iterable (``for one in nodes`` -> node),
the annotation, the constructor or function that makes it, or a table (`[variables]` of
``rename_words.toml``). A name that is used in the scope already is not taken; what has no free name
stays. Parameters that calls pass by name, of tests, fixtures and decorated functions stay, too.
"""

from __future__ import annotations

import ast
import builtins
import fnmatch
import keyword
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

WORDS = {"one", "found", "made", "plain", "whole", "told", "given"}
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
SCOPES = (*COMPREHENSIONS, *FUNCTIONS, ast.ClassDef, ast.Module)
BUILTINS = set(dir(builtins))
ROOT = Path(__file__).resolve().parents[1]

Edit = tuple[tuple[int, int], tuple[int, int], str]


def apply(text: str, edits: Iterable[Edit]) -> str:
    """Text with edits at (line from 1, column in characters)."""
    lines = text.splitlines(keepends=True)
    for (row, begin), (_, end), new in sorted(set(edits), reverse=True):
        line = lines[row - 1]
        lines[row - 1] = line[:begin] + new + line[end:]
    return "".join(lines)


def rename_all(texts: dict[str, str], table: dict[str, Any]) -> None:
    """Renames in all Python files, until nothing changes."""
    keywords: set[tuple[str, str]] = set()
    protected = [value for value in _fault_texts(texts) if len(value) > 12]
    trees = {path: ast.parse(text) for path, text in texts.items() if path.endswith(".py")}
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                callee = _last(node.func)
                keywords |= {(callee, each.arg) for each in node.keywords if each.arg}
    for path in trees:
        for _ in range(6):
            renamed = File(texts[path], path, table, keywords, protected).renamed()
            if renamed == texts[path]:
                break
            texts[path] = renamed


def _fault_texts(texts: dict[str, str]) -> Iterator[str]:
    for path, text in texts.items():
        if path.startswith("tests/planted_faults/") and path.endswith(".py"):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def _last(node: ast.AST | None) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Name):
        return node.id
    return ""


class File:
    def __init__(
        self,
        text: str,
        path: str,
        table: dict[str, Any],
        keywords: set[tuple[str, str]],
        protected: list[str],
    ) -> None:
        self.text, self.path, self.table, self.keywords = text, path, table, keywords
        self.tree = ast.parse(text)
        self.scoped: dict[str, list[str]] = {}
        for rule in table.get("scoped", []):
            if fnmatch.fnmatch(path, rule["glob"]):
                self.scoped |= {word: names for word, names in rule["names"].items()}
        self.parents: dict[ast.AST, ast.AST] = {}
        for node in ast.walk(self.tree):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
        self.lines = text.splitlines(keepends=True)
        self.imported = {
            (each.asname or each.name).partition(".")[0]
            for node in self.tree.body
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for each in node.names
        }
        self.protected: list[tuple[int, int]] = []
        if path.startswith("packages/frontend-tracer"):
            for value in protected:
                at = text.find(value)
                if at >= 0:
                    first = text.count("\n", 0, at) + 1
                    self.protected.append((first, first + value.count("\n")))

    # -- scopes

    def _binds(self, scope: ast.AST, word: str) -> bool:
        if isinstance(scope, COMPREHENSIONS):
            return any(word in _stored(each.target) for each in scope.generators)
        if isinstance(scope, FUNCTIONS) and word in {arg.arg for arg in _args(scope)}:
            return True
        if isinstance(scope, ast.Lambda):
            return False
        return any(
            (isinstance(node, ast.Name) and node.id == word and isinstance(node.ctx, ast.Store))
            or (isinstance(node, ast.ExceptHandler) and node.name == word)
            or (isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == word)
            or (isinstance(node, ast.alias) and (node.asname or node.name) == word)
            for node in _own(scope)
        )

    def scope(self, node: ast.AST, word: str) -> ast.AST | None:
        """The scope that binds what a node names."""
        inner, at = node, self.parents.get(node)
        is_class_visible = True
        while at is not None:
            if isinstance(at, SCOPES):
                outside = False
                if isinstance(at, COMPREHENSIONS):
                    outside = isinstance(inner, ast.comprehension) and (
                        inner is at.generators[0] and self._inside(node, inner.iter)
                    )
                elif isinstance(at, FUNCTIONS):  # defaults, decorators and annotations are outside
                    body = at.body if isinstance(at.body, list) else [at.body]
                    outside = inner not in body and not (
                        isinstance(node, ast.arg) and inner is at.args
                    )
                elif isinstance(at, ast.ClassDef):
                    outside = inner not in at.body or not is_class_visible
                if not outside:
                    if self._binds(at, word):
                        return at
                    if not isinstance(at, COMPREHENSIONS):
                        is_class_visible = False
            inner, at = at, self.parents.get(at)
        return None

    def _inside(self, node: ast.AST, other: ast.AST) -> bool:
        at: ast.AST | None = node
        while at is not None and at is not other:
            at = self.parents.get(at)
        return at is other

    # -- renaming

    def renamed(self) -> str:
        groups: dict[tuple[ast.AST, str], list[ast.AST]] = {}
        for node in ast.walk(self.tree):
            word = (
                node.id
                if isinstance(node, ast.Name)
                else node.arg
                if isinstance(node, ast.arg)
                else ""
            )
            if word in WORDS or word in self.scoped:
                scope = self.scope(node, word)
                if scope is not None:
                    groups.setdefault((scope, word), []).append(node)
        edits: list[Edit] = []
        taken: dict[ast.AST, set[str]] = {}
        for (scope, word), nodes in groups.items():
            if isinstance(scope, (ast.ClassDef, ast.Module)) or not self._may(scope, word):
                continue
            for place, part in self._parts(scope, word, nodes):
                names = self._names(scope, place, word, part)
                used = _used(place if place is not scope else scope)
                if place is not scope:
                    used = _used(scope)
                used |= taken.get(scope, set())
                lines = {node.lineno for node in part}  # type: ignore[attr-defined]
                if any(a <= line <= b for a, b in self.protected for line in lines):
                    continue
                new = self._chosen(names, word, part, used | self.imported)
                if new is None:
                    continue
                for node in part:  # no scope that sees the variable takes the name in this pass
                    at: ast.AST | None = node
                    while at is not None:
                        taken.setdefault(at, set()).add(new)
                        at = self.parents.get(at)
                edits += [self.edit(node, word, new) for node in part]
                if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    edits += self._in_docstring(scope, word, new)
        return apply(self.text, edits)

    def _chosen(self, names: list[str], word: str, nodes: list[Any], used: set[str]) -> str | None:
        """The first free name with which no line becomes too long, else the first or shortest."""
        free = [name for name in names if _is_free(name, used)]
        rows = [node.lineno for node in nodes]
        longest = {row: len(self.lines[row - 1].rstrip()) for row in rows}
        for name in free[:4]:
            grown = len(name) - len(word)
            if all(
                length > 100 or length + grown * rows.count(row) <= 100
                for row, length in longest.items()
            ):
                return name
        return free[0] if free else None

    def _may(self, scope: ast.AST, word: str) -> bool:
        for node in ast.walk(scope):
            if isinstance(node, (ast.Global, ast.Nonlocal)) and word in node.names:
                return False
            if isinstance(node, (ast.MatchAs, ast.ExceptHandler)) and node.name == word:
                return False
            if isinstance(node, ast.Call) and _last(node.func) in ("locals", "exec", "eval"):
                return False
        for node in _own(scope):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == word:
                return False
            if isinstance(node, ast.alias) and (node.asname or node.name) == word:
                return False
        if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if word in {arg.arg for arg in _args(scope)} and (
                (
                    scope.decorator_list
                    and not {_last(each) for each in scope.decorator_list}
                    <= {
                        "staticmethod",
                        "classmethod",
                        "property",
                        "contextmanager",
                        "cached_property",
                    }
                )
                or scope.name.startswith("test_")
                or (scope.name, word) in self.keywords
                or (scope.name.startswith("__") and any(each == word for _, each in self.keywords))
            ):
                return False
        return True

    def _parts(
        self, scope: ast.AST, word: str, nodes: list[ast.AST]
    ) -> list[tuple[ast.AST, list[ast.AST]]]:
        """Loops of a function, where each read is inside the loop that binds the variable."""
        loops: dict[ast.AST, list[ast.AST]] = {}
        for node in nodes:
            if isinstance(scope, COMPREHENSIONS) or isinstance(node, ast.arg):
                return [(scope, nodes)]
            outermost, at = None, self.parents.get(node)
            while at is not None and at is not scope:
                if (
                    isinstance(at, ast.For)
                    and word in _stored(at.target)
                    and not self._inside(node, at.iter)
                ):
                    outermost = at
                at = self.parents.get(at)
            if outermost is None:
                return [(scope, nodes)]
            loops.setdefault(outermost, []).append(node)
        return list(loops.items())

    def edit(self, node: Any, word: str, new: str) -> Edit:
        line = self.lines[node.lineno - 1].encode()
        begin = len(line[: node.col_offset].decode())
        assert self.lines[node.lineno - 1][begin : begin + len(word)] == word, (
            self.path,
            node.lineno,
        )
        return ((node.lineno, begin), (node.lineno, begin + len(word)), new)

    def _in_docstring(self, scope: Any, word: str, new: str) -> list[Edit]:
        first = scope.body[0]
        if not (isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)):
            return []
        edits: list[Edit] = []
        for number in range(first.lineno, first.end_lineno + 1):
            for match in re.finditer(
                rf"(?<![\w`]){word}(?=(?:, \w+)*:\s)|(?<=`){word}(?=`)", self.lines[number - 1]
            ):
                edits.append(((number, match.start()), (number, match.end()), new))
        return edits

    # -- names

    def _names(self, scope: ast.AST, place: ast.AST, word: str, nodes: list[ast.AST]) -> list[str]:
        if word in self.scoped:
            return self.scoped[word]
        names: list[str] = []
        for node in nodes:
            if isinstance(node, ast.arg):
                if isinstance(scope, ast.Lambda):
                    names += self._of_lambda(scope, node)
                else:
                    names += self.of_annotation(node.annotation)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names += self._of_store(node)
        for rule in self.table.get("fallback", []):
            if word == rule["word"] and fnmatch.fnmatch(self.path, rule.get("glob", "*")):
                kind = rule.get("kind")
                if kind is None or kind == _kind(scope, nodes):
                    names += rule["names"]
        return [name for name in names if name not in WORDS]

    def _of_lambda(self, scope: ast.Lambda, node: ast.arg) -> list[str]:
        call = self.parents.get(scope)
        if isinstance(call, ast.keyword):
            call = self.parents.get(call)
        if not isinstance(call, ast.Call):
            return []
        if isinstance(call.func, ast.Attribute) and call.func.attr == "sort":
            return self.singular(self.of(call.func.value))
        others = [each for each in call.args if each is not scope]
        if _last(call.func) in ("sorted", "max", "min", "map", "filter", "groupby") and others:
            return self.singular(self.of(others[0]))
        if "tree_map" in _last(call.func) or "map_arg" in _last(call.func):
            return ["leaf"]
        return []

    def _of_store(self, node: ast.Name) -> list[str]:
        parent = self.parents[node]
        if isinstance(parent, (ast.For, ast.comprehension)):
            return self.singular(self.of(parent.iter))
        if isinstance(parent, ast.Tuple):
            return self._of_tuple(node, parent)
        if isinstance(parent, ast.AnnAssign):
            return [*self.of_annotation(parent.annotation), *self._of_value(parent.value)]
        if isinstance(parent, (ast.Assign, ast.NamedExpr)):
            return self._of_value(parent.value)
        return []

    def _of_tuple(self, node: ast.Name, target: ast.Tuple) -> list[str]:
        parent, index = self.parents[target], target.elts.index(node)
        if isinstance(parent, ast.Tuple):
            outer, at = self.parents[parent], parent.elts.index(target)
            if isinstance(outer, (ast.For, ast.comprehension)) and isinstance(outer.iter, ast.Call):
                call = outer.iter
                if _last(call.func) == "enumerate" and at == 1:
                    return self._of_pair(call.args[0], index, len(target.elts))
            return []
        if isinstance(parent, (ast.For, ast.comprehension)):
            return self._of_pair(parent.iter, index, len(target.elts))
        if isinstance(parent, ast.Assign) and isinstance(parent.value, ast.Tuple):
            if len(parent.value.elts) == len(target.elts):
                return self._of_value(parent.value.elts[index])
        return []

    def _of_pair(self, iterable: ast.AST, index: int, size: int) -> list[str]:
        if isinstance(iterable, ast.Call):
            name = _last(iterable.func)
            if name == "zip" and index < len(iterable.args):
                return self.singular(self.of(iterable.args[index]))
            if name == "enumerate" and index == 1:
                return self.singular(self.of(iterable.args[0]))
            if name == "items" and index == 1 and isinstance(iterable.func, ast.Attribute):
                return self.singular(self.of(iterable.func.value))
            if name in ("sorted", "list", "reversed", "tuple") and iterable.args:
                return self._of_pair(iterable.args[0], index, size)
            if name in ("named_parameters", "named_buffers", "named_modules") and index == 1:
                return [name[6:-1]]
        return []

    def of(self, node: ast.AST | None) -> str:
        """A plural noun for an expression that is iterated, or ''."""
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, ast.Attribute):
            return node.attr
        if isinstance(node, ast.Subscript):
            return (
                self.of(node.value)
                if isinstance(node.slice, ast.Slice)
                else self.of(node.value)[:-1]
            )
        if isinstance(node, ast.Starred):
            return self.of(node.value)
        if isinstance(node, ast.IfExp):
            return self.of(node.body) or self.of(node.orelse)
        if isinstance(node, ast.BoolOp):
            return self.of(node.values[0])
        if isinstance(node, ast.BinOp):
            return self.of(node.left) or self.of(node.right)
        if isinstance(node, (ast.Tuple, ast.List)):
            starred = [each for each in node.elts if isinstance(each, ast.Starred)]
            return self.of(starred[0]) if starred else self.table.get("of_tuple", "")
        if isinstance(node, COMPREHENSIONS) and not isinstance(node, ast.DictComp):
            noun = self.of(node.elt)
            if noun in _stored(node.generators[-1].target):
                return self.of(node.generators[-1].iter)
            return self.plural(noun)
        if isinstance(node, ast.Call):
            return self._of_call(node)
        return ""

    def _of_call(self, node: ast.Call) -> str:
        name = _last(node.func)
        if name in ("list", "sorted", "reversed", "set", "tuple", "frozenset", "iter", "islice",
                    "enumerate", "filter", "unique", "cycle", "chain", "dict", "from_iterable") and node.args:  # fmt: skip
            return self.of(node.args[0])
        if name in ("values", "keys", "items", "copy") and isinstance(node.func, ast.Attribute):
            return self.of(node.func.value)
        calls: dict[str, str] = self.table.get("calls", {})
        if name in calls:
            return calls[name]
        name = re.sub(r"_(of|from|in|by|to|with|for|at|on)(_\w+)?$", "", name.strip("_"))
        return name

    def plural(self, noun: str) -> str:
        if not noun or noun.endswith("s"):
            return noun
        if re.search(r"[^aeiou]y$", noun):
            return noun[:-1] + "ies"
        return noun + ("es" if re.search(r"(s|x|ch|sh|z)$", noun) else "s")

    def singular(self, noun: str) -> list[str]:
        nouns: dict[str, str] = self.table.get("nouns", {})
        noun = noun.strip("_").lower()
        if noun in nouns:
            return [nouns[noun]] if nouns[noun] else []
        tail = noun.rpartition("_")[2]
        if tail in nouns:
            return [nouns[tail]] if nouns[tail] else []
        for end, new in (
            ("ies", "y"),
            ("sses", "ss"),
            ("shes", "sh"),
            ("ches", "ch"),
            ("xes", "x"),
        ):
            if tail.endswith(end) and len(tail) > len(end) + 1:
                tail = tail[: -len(end)] + new
                break
        else:
            if not tail.endswith("s") or tail.endswith(("ss", "us", "is")) or len(tail) < 4:
                return []
            tail = tail[:-1]
        full = noun[: noun.rfind("_") + 1] + tail
        return [tail, full] if len(tail) > 2 else [full]

    def of_annotation(self, node: ast.AST | None) -> list[str]:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node = ast.parse(node.value, mode="eval").body
        if isinstance(node, ast.BinOp):
            return self.of_annotation(node.left) or self.of_annotation(node.right)
        types: dict[str, str] = self.table.get("types", {})
        if isinstance(node, ast.Subscript):
            outer = _last(node.value)
            if types.get(outer):
                return [types[outer]]
            inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if outer in ("list", "List", "Sequence", "set", "frozenset", "tuple", "Iterable", "Collection",
                         "Iterator", "deque", "OrderedSet", "AbstractSet", "Set"):  # fmt: skip
                return [self.plural(name) for name in self.of_annotation(inner[0])]
            if outer in ("dict", "Mapping", "defaultdict", "MutableMapping", "OrderedDict"):
                return []
            return self.of_annotation(node.value)
        name = _last(node)
        if name in types:
            return [types[name]] if types[name] else []
        if name[:1].isupper() and name not in ("Any", "None", "TypeVar", "T", "Self"):
            return [snake(name).rpartition("_")[2], snake(name)]
        return []

    def _of_value(self, node: ast.AST | None) -> list[str]:
        if isinstance(node, ast.Await):
            node = node.value
        if isinstance(node, ast.IfExp):
            return self._of_value(node.body) or self._of_value(node.orelse)
        if isinstance(node, COMPREHENSIONS) and not isinstance(node, ast.DictComp):
            if not isinstance(node.elt, (ast.Name, ast.Attribute)):
                return []
            noun = self.of(node)
            return [noun] if noun.endswith("s") and noun.isidentifier() and len(noun) > 3 else []
        if isinstance(node, ast.Call):
            name = _last(node.func)
            if name in ("get", "pop", "setdefault") and isinstance(node.func, ast.Attribute):
                return self.singular(self.of(node.func.value))
            if name in ("next",) and node.args:
                return self._of_value(node.args[0]) and self.singular(self.of(node.args[0]))
            calls: dict[str, str] = self.table.get("made_by", {})
            if name in calls:
                return [calls[name]] if calls[name] else []
            if name[:1].isupper():
                return self.of_annotation(ast.Name(name))
            if match := re.match(
                r"_*(?:find|get|make|load|read|new|build|create|parse|fetch)_(\w+)$", name
            ):
                return [match[1]] if "_of" not in match[1] and "from" not in match[1] else []
            if match := re.match(r"_*(\w+?)_(?:of|from|for|in)(?:_\w+)?$", name):
                return [match[1]]
            return []
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
            return self.singular(self.of(node.value))
        if isinstance(node, ast.Attribute):
            return [node.attr.strip("_")] if len(node.attr) > 2 else []
        return []


def _kind(scope: ast.AST, nodes: list[ast.AST]) -> str:
    if isinstance(scope, ast.Lambda):
        return "lambda"
    if any(isinstance(node, ast.arg) for node in nodes):
        return "parameter"
    return "loop" if isinstance(scope, COMPREHENSIONS) else "variable"


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip("_")).lower()


def _is_free(name: str, used: set[str]) -> bool:
    return (
        name.isidentifier()
        and not keyword.iskeyword(name)
        and name not in BUILTINS
        and name not in WORDS
        and name not in used
    )


def _args(scope: Any) -> list[ast.arg]:
    args = scope.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    return [arg for arg in every if arg is not None]


def _stored(target: ast.AST) -> set[str]:
    return {
        node.id
        for node in ast.walk(target)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _own(scope: Any) -> Iterator[ast.AST]:
    """The nodes of a function or class without those of the scopes inside it."""
    body = getattr(scope, "body", [])
    waiting: list[ast.AST] = list(body) if isinstance(body, list) else [body]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, COMPREHENSIONS):  # a walrus inside binds here
            waiting += [each for each in ast.walk(node) if isinstance(each, ast.NamedExpr)]
            continue
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            waiting += ast.iter_child_nodes(node)


def _used(scope: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(scope):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            names |= set(node.names)
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs)) and node.name:
            names.add(node.name)
    return names
