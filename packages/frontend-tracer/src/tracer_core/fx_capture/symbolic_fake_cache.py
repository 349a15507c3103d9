"""Fake-tensor cache for symbolic sizes: the results of ATen operators, by the expressions of their
arguments' sizes.

The results belong to one ShapeEnv, which drops them when it replaces a symbol. They are made of
SymInts that are shared, so that a new fake costs none of sympy's simplification
(`torch_private.size_nodes`). FakeTensorMode's own cache makes SymInts anew for each fake.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tracer_core import torch_private
from tracer_core.torch_private.names import operators

_aten = operators("aten")

#: These check their sizes against the memory that a view shares, which no key contains.
_CHECKING_MEMORY = frozenset({_aten.as_strided.default})


class Unknown(Exception):
    """Raised for an argument that no cache key can describe."""


class SymbolicFakeCache:
    """constants, sequences, dtypes: types of arguments, and the dtypes of tensors, that a key can
    describe. missing: returned where FakeTensorMode has to answer."""

    def __init__(self, constants: Any, sequences: Any, dtypes: Any, missing: Any) -> None:
        self.constants, self.sequences, self.dtypes = constants, sequences, dtypes
        self.missing = missing

    def run(
        self, mode: Any, func: Any, view: bool, args: Any, kwargs: Any, slow: Callable[[], Any]
    ) -> Any:
        """Returns the operator's result, or `missing`. view: the result shares the memory of the
        first argument. slow(): computes the result with FakeTensorMode."""
        results = torch_private.known_fakes(mode.shape_env)
        if results is None or func in _CHECKING_MEMORY or torch.is_inference_mode_enabled():
            return self.missing
        tensors: list[Any] = []
        try:
            named = self._key(mode, tuple(kwargs.items()), tensors) if kwargs else None
            choices = torch.get_default_dtype(), *torch_private.kernel_choices()
            key = (func, self._key(mode, args, tensors), named, *choices)
        except Unknown:
            return self.missing
        if view and len(tensors) != 1:
            return self.missing
        known = results.get(key, self.missing)
        if known is None:
            return self.missing
        if known is not self.missing:
            return _made(mode, known, tensors)
        before = [tensor._version for tensor in tensors]
        with torch_private.without_cache(mode):  # FakeTensorMode's own would store it again
            result = slow()
        # facts that are learned in the call may replace a symbol, and drop what is known
        results = torch_private.known_fakes(mode.shape_env)
        if results is not None:
            unchanged = before == [tensor._version for tensor in tensors]
            results[key] = self._facts(mode, result, tensors, view) if unchanged else None
        return result

    def _key(self, mode: Any, value: Any, tensors: list[Any]) -> Any:
        kind = type(value)
        if kind in self.constants:
            return value if kind is str or value is None else (kind, value)
        if kind in self.sequences:
            return tuple([self._key(mode, item, tensors) for item in value])
        if kind is torch.SymInt:
            return kind, _number(value)
        if kind is torch.device:
            return value
        if not torch_private.is_simple_fake(value, mode) or value.dtype not in self.dtypes:
            raise Unknown
        if value.is_inference():
            raise Unknown  # without a version, a write is not seen
        tensors.append(value)
        sizes = (*value.shape, *value.stride(), value.storage_offset())
        return tuple(map(_number, sizes)), value.dtype, value.fake_device

    def _facts(self, mode: Any, result: Any, inputs: list[Any], view: bool) -> Any:
        """Returns the cacheable facts of a result; None unless its tensors are new and dense, or
        views of the one input."""
        kinds = (torch.Tensor, list, tuple)
        kind = next((kind for kind in kinds if isinstance(result, kind)), None)
        if kind is None:
            return None
        seen = {torch_private.storage_id(value) for value in inputs}
        facts = []
        for part in [result] if kind is torch.Tensor else result:
            simple = torch_private.is_simple_fake(part, mode) and part.dtype in self.dtypes
            if not simple or (torch_private.storage_id(part) in seen) is not view:
                return None
            offset = part.storage_offset()
            if view:
                if part.dtype is not inputs[0].dtype:
                    return None
            else:
                if isinstance(offset, torch.SymInt) or offset:
                    return None
                seen.add(torch_private.storage_id(part))
            memoizing = torch_private.memoizing_size
            shape, stride = (tuple(map(memoizing, n)) for n in (part.shape, part.stride()))
            facts.append((shape, stride, memoizing(offset), part.dtype, part.fake_device))
        return kind, view, tuple(facts)


def _number(size: Any) -> Any:
    """Returns a size in a key. A SymInt has its expression, which is equal to an int where it is
    that number."""
    if type(size) is int:
        return size
    expr = getattr(size.node, "expr", None)
    if expr is None:  # the ragged size of a nested tensor
        raise Unknown
    return expr


def _made(mode: Any, known: Any, inputs: list[Any]) -> Any:
    """Makes new fakes from cached facts."""
    kind, view, facts = known
    metas: list[Any] = []
    with torch_private.KernelInvocation(mode), mode.shape_env.suppress_guards():
        for shape, stride, offset, dtype, _ in facts:
            if view:
                metas.append(_aten.as_strided.default(inputs[0], shape, stride, offset))
            else:
                metas.append(torch.empty_strided(shape, stride, dtype=dtype, device="meta"))
    pairs = zip(metas, facts, strict=True)
    fakes = [torch_private.wrap_meta(mode, meta, fact[-1]) for meta, fact in pairs]
    return fakes[0] if kind is torch.Tensor else kind(fakes)
