"""Offsets in memory of the CPython and torch state that the guard cache watches.

The offsets are found and confirmed in this process: before an offset is first used, it was seen to
change with every kind of change that is watched through it. `layout()` is None where an assumption
fails (another Python or torch version); then every call runs the full check.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tracer_core import torch_private

#: Flag of classes created at run time (Py_TPFLAGS_HEAPTYPE); the type of other objects cannot
#: change.
HEAP_TYPE = 1 << 9
#: Flag of classes whose attributes nobody can set (Py_TPFLAGS_IMMUTABLETYPE).
IMMUTABLE_TYPE = 1 << 8
#: Flag of classes with abstract methods (Py_TPFLAGS_IS_ABSTRACT).
IS_ABSTRACT = 1 << 20
#: What `type` says of a class; its metaclass may answer otherwise, in the program's code.
flags: Callable[[type], int] = type.__dict__["__flags__"].__get__
mro: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
namespace: Callable[[type], Any] = type.__dict__["__dict__"].__get__
weak_reference_offset: Callable[[type], int] = type.__dict__["__weakrefoffset__"].__get__
_IS_FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
TYPE = 8  # PyObject: ob_refcnt, ob_type
DICT_SIZE = 16  # PyDictObject: PyObject_HEAD, ma_used
_DICT_VERSION = 24  # ma_version_tag, until CPython 3.12
LIST_SIZE, LIST_ITEMS = 16, 24  # PyListObject: PyObject_VAR_HEAD, ob_item
TUPLE_SIZE = 16  # PyTupleObject: PyObject_VAR_HEAD, then from CPython 3.14 a hash, then the items
TUPLE_ITEMS = tuple.__basicsize__
CELL_CONTENTS = 16
MANAGED_DICT = -24  # of objects whose type has the flag Py_TPFLAGS_MANAGED_DICT
_MANAGED_DICT_FLAG = 1 << 4
#: SizesAndStrides keeps this many sizes and strides inside TensorImpl, else a pointer to them.
INLINE_DIMS = 5
#: Words of TensorImpl after SizesAndStrides: storage_offset_, numel_, then dtype + device + flags,
#: key_set_.
KIND_FIELDS = (8 + 80 + 16, 8 + 80 + 24)


@dataclass(frozen=True, slots=True)
class ObjectLayout:
    """Offsets in bytes.

    dict_version: of the number in a dictionary that each change renews (PEP 509); None where
    changes are counted (`dict_counters`). class_mro: in a class. order: of an OrderedDict's count
    of order changes. function: in a function, by attribute. impl: of TensorImpl* in a tensor
    object. sizes: of SizesAndStrides in TensorImpl. autograd: of AutogradMeta* in TensorImpl.
    requires_grad, grad_fn: in AutogradMeta (whole words; the first holds other flags too). storage:
    of StorageImpl* in TensorImpl. data: of the data pointer in StorageImpl. kind_bits: a mask of
    the meaningful bits of the first of `KIND_FIELDS` (the other bits are uninitialized).
    """

    dict_version: int | None
    class_mro: int
    order: int
    function: dict[str, int]
    impl: int
    sizes: int
    autograd: int
    requires_grad: int
    grad_fn: int
    storage: int
    data: int
    kind_bits: int


def word(address: int) -> int:
    """Returns the 8 bytes at an address."""
    return ctypes.c_uint64.from_address(address).value


@functools.cache
def layout() -> ObjectLayout | None:
    """Returns the layout of this process, or None."""
    # Without the GIL, objects have other headers, and change and die while words are compared.
    if sys.implementation.name != "cpython" or sys.maxsize < 2**32 or _IS_FREE_THREADED:
        return None
    version = _DICT_VERSION if sys.version_info < (3, 13) else None
    probe = types.SimpleNamespace()
    if version is not None and not renews(probe, id(probe.__dict__) + version):
        return None
    if not (_dict_sizes() and _tuples() and _lists_and_cells() and _instance_dicts() and _slots()):
        return None
    # The first fast-path guard may be made under any of torch's modes.
    with torch.inference_mode(False), torch.enable_grad():
        mro, order, function = _mro_offset(), _order_offset(), _function_offsets()
        tensors = _tensor_offsets()
        if mro is None or order is None or function is None or tensors is None:
            return None
        object_layout = ObjectLayout(version, mro, order, function, *tensors)
        return object_layout if _metadata_is_seen(object_layout) else None


def _read_memory(address: int, count: int) -> list[int]:
    return list((ctypes.c_uint64 * count).from_address(address))


def _all_different(read: Callable[[], int], changes: Iterator[Callable[[], Any]]) -> bool:
    """Whether every change gives a new value, and reading alone does not."""
    seen = [read()]
    if read() != seen[0]:
        return False
    for change in changes:
        change()
        seen.append(read())
    return len(set(seen)) == len(seen)


def renews(probe: Any, version: int) -> bool:
    """Whether each kind of change of a dictionary gives the word at an address another value. In:
    an object with attributes, and the address for its ``__dict__``."""
    held: dict[str, Any] = probe.__dict__
    attribute: list[Callable[[], Any]] = [
        lambda: setattr(probe, "f", 1), lambda: setattr(probe, "f", 2),
        lambda: object.__setattr__(probe, "g", 1), lambda: delattr(probe, "f"),
    ]  # fmt: skip
    # clear() takes values that CPython keeps beside the object away: 3.13.0 counts no write to them
    if not _all_different(lambda: word(version), iter(attribute)):
        return False
    held.clear()
    changes: list[Callable[[], Any]] = [
        lambda: held.__setitem__("a", 2), lambda: held.__setitem__("b", 3), lambda: held.pop("b"),
        lambda: held.update(c=1), lambda: held.clear(), lambda: held.setdefault("d", 1),
        lambda: held.popitem(), lambda: held.__ior__({"e": 1}), lambda: held.__delitem__("e"),
        lambda: setattr(probe, "f", 1), lambda: setattr(probe, "f", 2),
        lambda: delattr(probe, "f"),
    ]  # fmt: skip
    return _all_different(lambda: word(version), iter(changes))


def _dict_sizes() -> bool:
    return word(id({}) + DICT_SIZE) == 0 and word(id({1: 1, 2: 2}) + DICT_SIZE) == 2


def _tuples() -> bool:
    items = (object(), object(), object())
    return word(id(items) + TUPLE_SIZE) == 3 and (
        _read_memory(id(items) + TUPLE_ITEMS, 3) == list(map(id, items))
    )


def _lists_and_cells() -> bool:
    a, b = object(), object()
    items, cell = [a, b], types.CellType(a)
    if word(id(items) + LIST_SIZE) != 2:
        return False
    if _read_memory(word(id(items) + LIST_ITEMS), 2) != [id(a), id(b)]:
        return False
    if word(id(cell) + CELL_CONTENTS) != id(a) or word(id(types.CellType()) + CELL_CONTENTS) != 0:
        return False
    cell.cell_contents = b
    return word(id(cell) + CELL_CONTENTS) == id(b)


def dict_slot(obj: Any) -> int | None:
    """Returns the address of the word that points to `obj.__dict__`, or None if it is unknown."""
    kind = type(obj)
    offset = MANAGED_DICT if kind.__flags__ & _MANAGED_DICT_FLAG else kind.__dictoffset__
    if offset <= 0 and offset != MANAGED_DICT:
        return None
    own = getattr(obj, "__dict__", None)
    return id(obj) + offset if own is not None and word(id(obj) + offset) == id(own) else None


def _instance_dicts() -> bool:
    class Plain:
        pass

    class Derived(list):  # type: ignore[type-arg]
        pass

    for obj in (Plain(), Derived(), torch.nn.Module(), torch.empty(0), lambda: None):
        obj.tracer_probe = 1  # type: ignore[union-attr]
        slot = dict_slot(obj)
        if slot is None or word(slot) != id(obj.__dict__):
            return False
        if isinstance(obj, torch.Tensor):
            continue
        held, replacement = obj.__dict__, {**obj.__dict__}
        obj.__dict__ = replacement
        if word(slot) != id(replacement) or held is replacement:
            return False
    return True


def member_slot(obj: Any, name: str) -> int | None:
    """Returns the address of the word that holds the value of a ``__slots__`` entry, or None if it
    is unknown.
    """
    for owner in type(obj).__mro__:
        result = owner.__dict__.get(name)
        if result is not None:
            if type(result) is not types.MemberDescriptorType:
                return None
            # PyMemberDescrObject: PyObject_HEAD, d_type, d_name, d_qualname, d_member -> name,
            # type, offset
            return id(obj) + word(word(id(result) + 40) + 16)
    return None


def _slots() -> bool:
    class Slotted:
        __slots__ = ("a", "b")

    obj: Any = Slotted()
    obj.a, obj.b = values = (object(), object())
    result = [word(member_slot(obj, name) or id(obj)) for name in ("a", "b")]
    return result == list(map(id, values))


def _order_offset() -> int | None:
    """Returns the offset at which an OrderedDict counts its changes.

    `move_to_end` changes no dictionary, so no version tag either.
    """
    probe = collections.OrderedDict(a=1, b=2, c=3)
    size = collections.OrderedDict.__basicsize__ // 8
    seen = [_read_memory(id(probe), size)]
    # Each one removes the key from the order and inserts it again: two changes.
    for key, last in (("a", True), ("a", False), ("c", False), ("c", True)):
        probe.move_to_end(key, last)
        seen.append(_read_memory(id(probe), size))
    counting = [i for i in range(size) if [row[i] - seen[0][i] for row in seen] == [0, 2, 4, 6, 8]]
    return counting[0] * 8 if len(counting) == 1 else None


def _mro_offset() -> int | None:
    class A:
        pass

    class B:
        pass

    class C(A):
        pass

    size = int(type.__dict__["__basicsize__"].__get__(type)) // 8
    fields = [i for i, value in enumerate(_read_memory(id(C), size)) if value == id(C.__mro__)]
    if len(fields) != 1:
        return None
    before = C.__mro__
    C.__bases__ = (B,)
    return fields[0] * 8 if word(id(C) + fields[0] * 8) == id(C.__mro__) != id(before) else None


_FUNCTION_SLOTS = (
    "__code__", "__defaults__", "__kwdefaults__", "__closure__", "__name__", "__qualname__"
)  # fmt: skip


def _function_offsets() -> dict[str, int] | None:
    def make() -> Any:
        held = object()

        def probe(a: Any = held, *, b: Any = held) -> Any:
            return held

        return probe

    item, two = make(), make()
    two.__code__ = two.__code__.replace(co_name="other")
    count = types.FunctionType.__basicsize__ // 8
    offsets = {}
    for name in _FUNCTION_SLOTS:
        if name == "__name__":
            item.__name__, item.__qualname__ = "probe one", "qualified one"
            two.__name__, two.__qualname__ = "probe two", "qualified two"
        numbers = [
            i for i in range(count)
            if all(word(id(f) + 8 * i) == id(getattr(f, name)) for f in (item, two))
        ]  # fmt: skip
        if len(numbers) != 1:
            return None
        offsets[name] = numbers[0] * 8
    item.__defaults__ = item.__kwdefaults__ = None
    empty = [word(id(item) + offsets[name]) for name in ("__defaults__", "__kwdefaults__")]
    return offsets if empty == [0, 0] else None


# Tensors


def _looks_like_address(value: int) -> bool:
    return value % 8 == 0 and 1 << 12 < value < 1 << 47


def _tensor_offsets() -> tuple[int, ...] | None:
    """Returns the tensor offsets of `ObjectLayout`, in its order."""
    probe = torch.empty(7, 1000003, device="meta")
    # Right after PyObject_HEAD, or after the flag of a MaybeOwned<Tensor> (a byte, not an address)
    # in older torch.
    impl = next((at for at in (16, 24) if _looks_like_address(word(id(probe) + at))), None)
    if impl is None:
        return None
    fields = _read_memory(word(id(probe) + impl), 24)
    sizes = next((i - 1 for i in range(1, 16) if fields[i - 1 : i + 2] == [2, 7, 1000003]), None)
    if sizes is None:
        return None
    autograd = _autograd_offsets(impl, sizes)
    storage = _storage_offsets(impl, sizes)
    if autograd is None or storage is None:
        return None
    return impl, sizes * 8, *autograd, *storage, _kind_bits(impl, sizes * 8)


def _storage_offsets(impl: int, sizes: int) -> tuple[int, int] | None:
    """Returns (storage, data) of `ObjectLayout`."""
    item, other = torch.zeros(3), torch.zeros(3)
    result = []
    for _ in range(2):
        own = torch_private.storage_id(item)
        held = _read_memory(word(id(item) + impl), sizes)
        at = [i for i, value in enumerate(held) if value == own]
        inside = [i for i in range(8) if word(own + 8 * i) == item.untyped_storage().data_ptr()]
        if len(at) != 1 or not inside:
            return None
        result.append((at[0] * 8, inside[0] * 8))
        item.set_(other.untyped_storage(), 0, (3,), (1,))
    return result[0] if result[0] == result[1] else None


def _autograd_offsets(impl: int, sizes: int) -> tuple[int, int, int] | None:
    """Returns (autograd, requires_grad, grad_fn) of `ObjectLayout`.

    They are the pointer that appears when a tensor gets its AutogradMeta, the byte in AutogradMeta
    that follows requires_grad, and the pointer in it that follows grad_fn.
    """
    items = set()
    for shape in ((3,), (2, 2)):
        leaf = torch.zeros(shape)
        address = word(id(leaf) + impl)
        before = _read_memory(address, sizes)
        leaf.requires_grad_(True)
        after = _read_memory(address, sizes)
        moved = [i for i in range(sizes) if before[i] != after[i]]
        if len(moved) != 1 or before[moved[0]] != 0 or not _looks_like_address(after[moved[0]]):
            return None
        meta = after[moved[0]]
        # The flag lies after grad_, grad_fn_, the accumulator and the hooks: nothing else in
        # between changes.
        on = ctypes.string_at(meta, _META_BYTES)
        leaf.requires_grad_(False)
        off = ctypes.string_at(meta, _META_BYTES)
        flags = [i for i in range(_META_BYTES) if on[i] != off[i]]
        if len(flags) != 1 or (on[flags[0]], off[flags[0]]) != (1, 0):
            return None
        leaf.requires_grad_(True)
        child = torch.zeros(shape)
        child.requires_grad_(False).add_(leaf)
        pointers = _read_memory(word(word(id(child) + impl) + moved[0] * 8), flags[0] // 8)
        simple = _read_memory(meta, flags[0] // 8)
        child.detach_()
        detached = _read_memory(word(word(id(child) + impl) + moved[0] * 8), flags[0] // 8)
        numbers = [
            i for i in range(1, flags[0] // 8)
            if _looks_like_address(pointers[i]) and simple[i] == 0 and detached[i] == 0
        ]  # fmt: skip
        if not numbers:
            return None
        items.add((moved[0] * 8, flags[0] // 8 * 8, numbers[0] * 8))
    return items.pop() if len(items) == 1 else None


def _kind_bits(impl: int, sizes: int) -> int:
    """Returns the mask of initialized bits.

    A constructor leaves the padding between its fields unset; equal tensors in differently filled
    memory show which bits are padding.
    """
    libc: Any = ctypes.CDLL(None)
    for name, result, arguments in _ALLOCATOR:
        function = getattr(libc, name, None)
        if function is None:
            return _WORD  # unknown allocator: all bits count; equal tensors may look different
        function.restype, function.argtypes = result, arguments
    unused = 0
    for value in (0x00, 0xFF, 0x55):
        probe = torch.zeros(3, 4)
        size = libc.malloc_usable_size(word(id(probe) + impl))
        kind = word(word(id(probe) + impl) + sizes + KIND_FIELDS[0])
        # more than an allocator caches of one size: the tensors must lie in the memory filled here
        blocks = [libc.malloc(size) for _ in range(512)]
        for block in blocks:
            ctypes.memset(block, value, size)
        for block in blocks:
            libc.free(block)
        for other in [torch.zeros(3, 4) for _ in range(64)]:
            unused |= kind ^ word(word(id(other) + impl) + sizes + KIND_FIELDS[0])
    return ~unused & _WORD


_WORD = (1 << 64) - 1
_ALLOCATOR: tuple[tuple[str, Any, list[Any]], ...] = (
    ("malloc", ctypes.c_void_p, [ctypes.c_size_t]),
    ("free", None, [ctypes.c_void_p]),
    ("malloc_usable_size", ctypes.c_size_t, [ctypes.c_void_p]),
)

#: How much of AutogradMeta is scanned: less than its size (grad_ to requires_grad_ are about 200
#: bytes).
_META_BYTES = 160


def tensor_fields(tensor: torch.Tensor, layout: ObjectLayout) -> Iterator[tuple[int, int]]:
    """Yields (depth, address) of every word that encodes what a guard checks of a tensor, except
    its Python type.

    Read words of a greater depth only after those of lesser depth were compared: those hold the
    pointers to them.
    """
    yield 0, id(tensor) + layout.impl
    impl = word(id(tensor) + layout.impl)
    sizes, dims = impl + layout.sizes, tensor.dim()
    yield 1, sizes
    if dims <= INLINE_DIMS:
        for dim in range(dims):
            yield 1, sizes + 8 + 8 * dim
            yield 1, sizes + 8 + 8 * (INLINE_DIMS + dim)
    else:
        yield 1, sizes + 8
        for i in range(2 * dims):
            yield 2, word(sizes + 8) + 8 * i
    for offset in KIND_FIELDS:
        yield 1, sizes + offset
    yield 1, impl + layout.autograd
    meta = word(impl + layout.autograd)
    if meta:
        yield 2, meta + layout.requires_grad
        yield 2, meta + layout.grad_fn


def storage_fields(tensor: torch.Tensor, layout: ObjectLayout) -> Iterator[tuple[int, int]]:
    """Yields (depth, address) of the words that identify the memory that a tensor views."""
    address = word(id(tensor) + layout.impl) + layout.storage
    yield 1, address
    yield 2, word(address) + layout.data


def _metadata_is_seen(layout: ObjectLayout) -> bool:
    """Whether each in-place change of metadata changes a word."""

    def seen(tensor: torch.Tensor, change: Callable[[torch.Tensor], Any]) -> bool:
        fields = list(tensor_fields(tensor, layout))
        before = [word(address) for _, address in fields]
        if before != [word(address) for _, address in fields]:
            return False
        change(tensor)
        return any(word(address) != old for (_, address), old in zip(fields, before, strict=True))

    return all(seen(make(), change) for make, change in _CHANGES)


def _set_data(*args: Any, **kwargs: Any) -> Callable[[torch.Tensor], Any]:
    def change(tensor: torch.Tensor) -> None:
        tensor.data = torch.zeros(*args, **kwargs)

    return change


def _write_under_grad(tensor: torch.Tensor) -> None:
    with torch.enable_grad():
        tensor.add_(torch.ones((), requires_grad=True))


_CHANGES: tuple[tuple[Callable[[], torch.Tensor], Callable[[torch.Tensor], Any]], ...] = (
    (lambda: torch.zeros(4, 6), _set_data(4, 6, dtype=torch.float64)),
    (lambda: torch.zeros(4, 6), _set_data(4, 6, dtype=torch.bfloat16)),
    (lambda: torch.zeros(4, 6), _set_data(6, 4)),
    (lambda: torch.zeros(4, 6), _set_data(24)),
    (lambda: torch.zeros(4, 6), lambda t: t.t_()),
    (lambda: torch.zeros(4, 6), lambda t: t.resize_(4, 7)),
    (lambda: torch.zeros(1, 2, 3, 1, 2, 4), lambda t: t.transpose_(4, 5)),
    (lambda: torch.zeros(1, 2, 3, 1, 2, 4), lambda t: t.resize_(1, 2, 3, 1, 2, 5)),
    (lambda: torch.zeros(4), lambda t: t.requires_grad_(True)),
    (lambda: torch.zeros(4, requires_grad=True), lambda t: t.requires_grad_(False)),
    (
        lambda: torch.zeros(4, requires_grad=True).requires_grad_(False),
        lambda t: t.requires_grad_(True),
    ),
    (lambda: torch.zeros(4), _write_under_grad),
    (lambda: torch.zeros(4, requires_grad=True).requires_grad_(False), _write_under_grad),
    (
        lambda: torch.zeros(2, 2, dtype=torch.complex64),
        lambda t: torch.utils.swap_tensors(t, torch.zeros(2, 2, dtype=t.dtype).conj()),
    ),
    (lambda: torch.zeros(2, 2), lambda t: torch.utils.swap_tensors(t, torch.zeros(2, 2))),
)
