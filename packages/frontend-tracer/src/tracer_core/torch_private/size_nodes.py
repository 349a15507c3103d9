"""SymNodes that compute each result once.

C++ computes the number of elements, the strides and the contiguity of every new fake from its
sizes: about 20 operations on SymNodes, each of which makes and simplifies a sympy expression. The
tensors of a model have few different shapes, so almost all of these operations were done before.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

#: Operations whose result depends only on the operands and the ShapeEnv's replacements. "mod" also
#: reads the ranges of the symbols, which may become narrower.
_OPERATIONS = (
    "add", "sub", "mul", "int_floordiv", "eq", "ne", "lt", "le", "gt", "ge", "sym_min", "sym_max",
    "and_", "or_", "sym_and", "sym_or", "sym_not", "neg",
)  # fmt: skip
#: Questions that may add a guard. The first one does; the answer is the same as long as the guards
#: hold. Whether guards are suppressed is part of the question.
_QUERIES = ("evaluate", "expect_true", "guard_or_false", "guard_or_true", "guard_size_oblivious")


def memoizing_size(size: Any) -> Any:
    """Makes the SymNode of a SymInt of a `SizeEnv` memoize its results; returns the SymInt.

    Other values are returned as they are. So is a SymInt where torch records the operations of its
    ShapeEnv (validation, replay), or treats sizes as unknown (backed_size_oblivious).
    """
    if isinstance(size, torch.SymInt) and _is_supported(getattr(size.node, "shape_env", None)):
        _adopt(size.node)
    return size


def _is_supported(env: Any) -> bool:
    if not hasattr(env, "constant_nodes") or not hasattr(env, "_replacements_version_counter"):
        return False  # another kind of ShapeEnv, or of a torch that does not count
    from torch.fx.experimental import _config

    recorded = env._translation_validation_enabled or env.should_record_events
    return not (recorded or _config.backed_size_oblivious)


def _adopt(node: Any) -> Any:
    """Turns a new SymNode into one that memoizes its results."""
    torchs, memoizing = _classes()
    if type(node) is torchs:
        node.__class__ = memoizing
    return node


@functools.cache
def _classes() -> tuple[Any, Any]:
    """Returns SymNode and the class of nodes that memoize their results; made late, because the
    module of SymNode is imported only with symbols."""
    from torch.fx.experimental import sym_node

    SymNode: Any = sym_node.SymNode
    proxy, pre_dispatch = torch._C._TorchDispatchModeKey.PROXY, torch._C.DispatchKey.PreDispatch
    proxy_mode = torch._C._get_dispatch_mode
    includes = torch._C._dispatch_tls_is_dispatch_key_included
    expression = SymNode.expr.fget

    class SizeNode(SymNode):
        """A SymNode whose results are dropped when the ShapeEnv replaces a symbol. Their key is the
        identity of the other operand, which is itself mostly a memoized result."""

        _results: dict[Any, Any]
        #: SymNode's own: `expr`'s result, and the count of replacements at which it was computed.
        _expr_cache: Any
        _expr_ver: int
        #: The count of replacements at which `_results` were computed, and `maybe_as_int`'s result.
        _results_version, _int_version, _int = -1, -1, None

        @property
        def expr(self) -> Any:
            version = self.shape_env._replacements_version_counter
            if version != self._expr_ver:
                self._expr_cache, self._expr_ver = expression(self), version
            return self._expr_cache

        def maybe_as_int(self) -> int | None:
            version = self.shape_env._replacements_version_counter
            if version != self._int_version:
                self._int, self._int_version = SymNode.maybe_as_int(self), version
            number: int | None = self._int
            return number

        def wrap_int(self, num: int) -> Any:
            return self._constant(SymNode.wrap_int, num)

        def wrap_bool(self, num: bool) -> Any:
            return self._constant(SymNode.wrap_bool, num)

        def _constant(self, wrap: Any, number: Any) -> Any:
            constants, key = self.shape_env.constant_nodes, (type(number), number)
            node = constants.get(key)
            if node is None:
                node = constants[key] = _adopt(wrap(self, number))
            return node

    def memoized(name: str) -> Any:
        compute = getattr(SymNode, name)

        def operation(self: Any, *operands: Any) -> Any:
            if proxy_mode(proxy) is not None or includes(pre_dispatch):
                return compute(self, *operands)  # traces the operation
            version = self.shape_env._replacements_version_counter
            if version != self._results_version:
                self._results, self._results_version = {}, version
            key = (name, *operands)
            result = self._results.get(key)
            if result is None:
                for node in operands:
                    if type(node) is not SizeNode or node.shape_env is not self.shape_env:
                        return compute(self, *operands)
                result = self._results[key] = _adopt(compute(self, *operands))
            return result

        return operation

    def memoized_query(name: str) -> Any:
        compute = getattr(SymNode, name)

        def query(self: Any, *args: Any, **kwargs: Any) -> Any:
            env = self.shape_env
            if env.answers is None or env.from_one:
                return compute(self, *args, **kwargs)
            version = env._replacements_version_counter
            if version != self._results_version:
                self._results, self._results_version = {}, version
            key = (name, env._suppress_guards_tls(), *args[:1], *kwargs.values())
            if key not in self._results:
                self._results[key] = compute(self, *args, **kwargs)
            return self._results[key]

        return query

    for name in _OPERATIONS:
        setattr(SizeNode, name, memoized(name))
    for name in _QUERIES:
        setattr(SizeNode, name, memoized_query(name))
    return SymNode, SizeNode
