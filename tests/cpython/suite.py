"""Which files of CPython's test suite are run, where they are, and the test methods in them."""

from __future__ import annotations

import ast
import doctest
import functools
import importlib
import importlib.util
import symtable
import sys
import types
import unittest
from collections import Counter
from collections.abc import Iterator
from typing import Any

import tracer_core

#: Files of ``Lib/test``: the language, built-in types, and libraries that are written in terms of
#: them. A name that a Python does not have stands for the name of the file in another one.
FILES = """
test_list test_dict test_set test_tuple test_iter test_generators test_genexps test_listcomps
test_setcomps test_dictcomps test_exceptions test_except_star test_exception_group test_raise
test_baseexception test_exception_variations test_exception_hierarchy test_contextlib test_with
test_compare test_richcmp test_contains test_augassign test_binop test_unary test_pow test_operator
test_opcodes test_functools test_itertools test_collections test_deque test_defaultdict
test_ordered_dict test_userdict test_userlist test_userstring test_dictviews test_iterlen test_int
test_long test_float test_complex test_bool test_range test_slice test_enumerate test_index
test_descr test_descrtut test_class test_super test_property test_metaclass test_subclassinit
test_dynamicclassattribute test_genericclass test_isinstance test_hash test_abc test_typechecks
test_numeric_tower test_abstract_numbers test_unpack test_unpack_ex test_extcall test_call
test_keywordonlyarg test_positional_only_arg test_scope test_global test_dynamic test_decorators
test_named_expressions test_patma test_fstring test_string test_string_literals test_grammar
test_opcache test_yield_from test_generator_stop test_pep646_syntax test_type_annotations
test_type_params test_type_aliases test_annotationlib test_tstring test_builtin test_sort test_heapq
test_bisect test_copy test_math test_cmath test_weakref test_weakset test_types test_type_cache
test_funcattrs test_frame
test_structseq test_reprlib test_numbers test_fractions test_format test_bytes test_unicode test_str
test_struct test_dataclasses test_enum test_json test_pprint test_textwrap test_shlex test_graphlib
test_genericalias test_context test_coroutines test_memoryview test_statistics test_random
test_typing test_decimal
""".split()

MISSING = (
    f"the test suite of Python {sys.version_info[0]}.{sys.version_info[1]} (Lib/test) is not installed."
    f" Debian and Ubuntu: apt-get install libpython{sys.version_info[0]}.{sys.version_info[1]}-testsuite."
    " pyenv and builds from source have it."
)


_EXAMPLE = "_doctest_example"


def is_installed() -> bool:
    """Returns whether this Python has its test suite."""
    return importlib.util.find_spec("test") is not None and has("test_list")


def has(file: str) -> bool:
    """Returns whether this Python's test suite has a file."""
    return importlib.util.find_spec(f"test.{file}") is not None


def cases_of(file: str) -> dict[str, unittest.TestCase]:
    """Imports a file; returns its test methods by name (``ListTest.test_basic``), the doctests
    among them. Methods that are generated under the name of another are numbered."""
    module = importlib.import_module(f"test.{file}")
    actual: dict[str, unittest.TestCase] = {}
    seen: Counter[str] = Counter()
    for case in _flat(unittest.defaultTestLoader.loadTestsFromModule(module)):
        name = case.id().removeprefix("test.").removeprefix(f"{file}.")
        seen[name] += 1
        actual[name if seen[name] == 1 else f"{name}#{seen[name]}"] = case
    return actual


def _flat(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for case in suite:
        if isinstance(case, unittest.TestSuite):
            yield from _flat(case)
        else:
            yield case


def prepare(case: unittest.TestCase, compiled: bool) -> None:
    """Has a test case run its method compiled, or not; of a doctest, each example."""
    if isinstance(case, doctest.DocTestCase):
        names: Any = doctest
        names.compile = _compile_example
        names.exec = functools.partial(_run_example, compiled)
    elif compiled:
        name = case._testMethodName
        setattr(case, name, tracer_core.compile(getattr(case, name), backend="eager"))


def _compile_example(source: str, file: str, mode: str, flags: int, *others: Any) -> types.CodeType:
    """``compile`` as doctest calls it: the code of a module that defines a function `_EXAMPLE`,
    which does what the example does. Its names are global ones, and the values of expressions are
    displayed. Code that no function can hold (``from a import *``) stays as it is."""
    compiled = compile(source, file, mode, flags, *others)
    stored = {symbol.get_name() for symbol in symtable.symtable(source, file, mode).get_symbols()
              if symbol.is_assigned() or symbol.is_imported()}  # fmt: skip
    body = [_Display().visit(statement) for statement in ast.parse(source).body]
    names: list[ast.stmt] = [ast.Global(sorted(stored))] if stored else []
    module = ast.parse(f"def {_EXAMPLE}(): pass")
    module.body[0].body = [*names, *body]  # type: ignore[attr-defined]
    try:
        return compile(ast.fix_missing_locations(module), file, "exec", flags, *others)
    except SyntaxError:
        return compiled


class _Display(ast.NodeTransformer):
    """Displays the values of expression statements outside functions, as interactive code does."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        hook = ast.parse("__import__('sys').displayhook(0)").body[0]
        assert isinstance(hook, ast.Expr) and isinstance(hook.value, ast.Call)
        hook.value.args = [node.value]
        return ast.copy_location(hook, node)

    def _leave(self, node: Any) -> Any:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _leave


def _run_example(compiled: bool, code: types.CodeType, namespace: dict[str, Any]) -> None:
    """``exec`` as doctest calls it."""
    made: dict[str, Any] = {}
    if code.co_names == (_EXAMPLE,):
        exec(code, namespace, made)
        example = made[_EXAMPLE]
        (tracer_core.compile(example, backend="eager") if compiled else example)()
    else:
        exec(code, namespace)
