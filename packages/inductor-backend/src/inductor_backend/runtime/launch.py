"""Calls a C function ``void f(const int64_t* a)`` from Python with as little between as possible.

In: an address. Out: a Python callable taking tensors (their data pointer is passed) and ints. Always
holds: exactly the stated number of arguments, converted without loss, and the GIL released while f runs.

Measured on the 2-core AVX-512 machine (Python 3.11, three tensors and an int, ns a call in all):
    this launcher, tensors passed                                               285
    this launcher, addresses passed as ints                                     110
    ctypes, one address, the array packed by struct.pack_into                   500
    CFUNCTYPE object, the same                                                  510
    ctypes with argtypes (c_void_p, ..., c_int64), data_ptr() called in Python  590
It is built once per Python and compiler, from the text below, against functions that CPython exports
(declared here, so no Python headers are needed).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, Protocol

LAUNCHER_SOURCE = r"""
#include <cstdint>
#include <cstring>
struct PyObject; typedef intptr_t ssize;
typedef PyObject* (*FastCall)(PyObject* self, PyObject* const* args, ssize n);
struct MethodDef { const char* name; FastCall call; int flags; const char* doc; };   // PyMethodDef (stable ABI)
extern "C" {
extern PyObject *PyExc_TypeError, *PyExc_IndexError, *PyExc_RuntimeError;
PyObject* PyCFunction_NewEx(MethodDef*, PyObject*, PyObject*);
PyObject* PyObject_VectorcallMethod(PyObject* name, PyObject* const* args, size_t n, PyObject* names);
PyObject* PyUnicode_InternFromString(const char*);
PyObject* PyTuple_GetItem(PyObject*, ssize); char* PyBytes_AsString(PyObject*);
PyObject* PyErr_Format(PyObject*, const char*, ...); PyObject* PyErr_Occurred();
long long PyLong_AsLongLong(PyObject*); 
PyObject* Py_BuildValue(const char*, ...);
void* PyEval_SaveThread(); void PyEval_RestoreThread(void*); void Py_DecRef(PyObject*);
PyObject* PyObject_Type(PyObject*);
}
struct Launch { void (*function)(const int64_t*); ssize nargs; int* error; char name[64]; };
static PyObject* data_ptr;
static PyObject* type_of_int;

// a machine integer from an int, or from anything with data_ptr()
static inline bool as_int64(PyObject* value, int64_t* out) {
    PyObject* type = PyObject_Type(value);
    Py_DecRef(type);                       // the object keeps its type alive
    PyObject* number = value; bool owned = false;
    if (type != type_of_int) {
        number = PyObject_VectorcallMethod(data_ptr, &value, 1, nullptr);
        if (!number) return false;
        owned = true;
    }
    *out = PyLong_AsLongLong(number);
    if (owned) Py_DecRef(number);
    return !(*out == -1 && PyErr_Occurred());
}

static PyObject* call(PyObject* self, PyObject* const* args, ssize n) {
    const Launch* launch = (const Launch*)PyBytes_AsString(PyTuple_GetItem(self, 0));
    if (n != launch->nargs)
        return PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, got %zd", launch->name, launch->nargs, n);
    int64_t* a = (int64_t*)__builtin_alloca((n + 1) * sizeof(int64_t));
    for (ssize i = 0; i < n; i++)
        if (!as_int64(args[i], a + i)) return nullptr;
    void* state = PyEval_SaveThread();
    launch->function(a);
    PyEval_RestoreThread(state);
    if (launch->error && __builtin_expect(*launch->error, 0)) {
        int code = __atomic_exchange_n(launch->error, 0, __ATOMIC_RELAXED);
        if (code == 1) return PyErr_Format(PyExc_IndexError, "index out of range in self");
        if (code == 2) return PyErr_Format(PyExc_RuntimeError, "ZeroDivisionError");
    }
    return Py_BuildValue("");              // None
}

static MethodDef method = {"launch", call, 0x80 /* METH_FASTCALL */, "Runs a compiled kernel."};

// called once through ctypes.PyDLL
extern "C" __attribute__((visibility("default"))) PyObject* tc_launcher(PyObject* record, PyObject* int_class) {
    if (!data_ptr) { data_ptr = PyUnicode_InternFromString("data_ptr"); type_of_int = int_class; }
    return PyCFunction_NewEx(&method, record, nullptr);   // record: (bytes of a Launch, what to keep alive)
}
"""


class _Record(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p),
        ("nargs", ctypes.c_ssize_t),
        ("error", ctypes.c_void_p),
        ("name", ctypes.c_char * 64),
    )


class _Make(Protocol):
    def __call__(self, record: tuple[Any, ...], int_class: type) -> Callable[..., None]: ...


def launcher(address: int, nargs: int, name: str, error: int, keep_alive: object) -> Callable[..., None]:
    """A callable of exactly `nargs` tensors or ints for the function at `address`.

    It raises TypeError on a wrong number of arguments, AttributeError on an argument that is neither an
    int nor has ``data_ptr()``, OverflowError on an int beyond 64 bits, and what the kernel reported in the
    int at address `error` (see ``tc_fail``). keep_alive: the library.
    """
    record = _Record(address, nargs, error, name.encode()[:63])
    return _make()((bytes(record), keep_alive), int)


@functools.cache
def _make() -> _Make:
    from inductor_backend.runtime.build_cpp import build  # the launcher goes through the same cache

    library = build([LAUNCHER_SOURCE], name="launcher")
    make = ctypes.PyDLL(str(library.path)).tc_launcher
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.py_object, ctypes.py_object)
    return make
