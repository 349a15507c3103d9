// The bridge from Python to a kernel, linked into every library: see runtime/cpp/launch.py.
//
// Against functions that CPython exports, declared here, so that no Python headers are needed. Nothing but exported
// functions and the stable PyMethodDef is used.
#include <cstdint>
#include <cstring>
struct PyObject; typedef intptr_t ssize;
typedef PyObject* (*FastCall)(PyObject* self, PyObject* const* args, ssize n);
struct MethodDef { const char* name; FastCall call; int flags; const char* doc; };   // PyMethodDef (stable ABI)
extern "C" {
extern PyObject *PyExc_TypeError, *PyExc_IndexError, *PyExc_RuntimeError, *PyExc_MemoryError;
PyObject* PyCFunction_NewEx(MethodDef*, PyObject*, PyObject*);
PyObject* PyObject_VectorcallMethod(PyObject* name, PyObject* const* args, size_t n, PyObject* names);
PyObject* PyUnicode_InternFromString(const char*);
PyObject* PyTuple_GetItem(PyObject*, ssize); char* PyBytes_AsString(PyObject*);
PyObject* PyErr_Format(PyObject*, const char*, ...); PyObject* PyErr_Occurred();
long long PyLong_AsLongLong(PyObject*); 
PyObject* Py_BuildValue(const char*, ...);
void* PyEval_SaveThread(); void PyEval_RestoreThread(void*); void Py_DecRef(PyObject*);
PyObject* PyObject_Type(PyObject*);
PyObject* PyCapsule_New(void*, const char*, void (*)(PyObject*));
int PyCapsule_SetContext(PyObject*, void*);
void *PyCapsule_GetPointer(PyObject*, const char*), *PyCapsule_GetContext(PyObject*);
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

// how often a kernel of the library has failed; null: this function's kernels never do
static inline int failures(const Launch* launch) {
    return launch->error ? __atomic_load_n(launch->error, __ATOMIC_ACQUIRE) : 0;
}

static PyObject* call(PyObject* self, PyObject* const* args, ssize n) {
    const Launch* launch = (const Launch*)PyBytes_AsString(PyTuple_GetItem(self, 0));
    if (n != launch->nargs)
        return PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, got %zd", launch->name, launch->nargs, n);
    int64_t* a = (int64_t*)__builtin_alloca((n + 1) * sizeof(int64_t));
    for (ssize i = 0; i < n; i++)
        if (!as_int64(args[i], a + i)) return nullptr;
    void* state = PyEval_SaveThread();
    const int before = failures(launch);
    launch->function(a);
    const bool failed = failures(launch) != before;
    PyEval_RestoreThread(state);
    if (__builtin_expect(failed, 0)) {
        int code = __atomic_load_n(launch->error + 1, __ATOMIC_RELAXED);
        if (code == 1) return PyErr_Format(PyExc_IndexError, "index out of range in self");
        if (code == 2) return PyErr_Format(PyExc_RuntimeError, "ZeroDivisionError");
        if (code == 3) return PyErr_Format(PyExc_RuntimeError, "%s was not built for these sizes", launch->name);
        if (code == 4) return PyErr_Format(PyExc_MemoryError, "%s found no memory", launch->name);
        if (code == 2000) return PyErr_Format(PyExc_RuntimeError, "the CUDA driver (libcuda.so.1) was not found");
        if (code >= 1000) return PyErr_Format(PyExc_RuntimeError, "launching a kernel failed: CUDA error %d", code - 1000);
    }
    return Py_BuildValue("");              // None
}

static MethodDef method = {"launch", call, 0x80 /* METH_FASTCALL */, "Runs a compiled kernel."};

// called through ctypes.PYFUNCTYPE
extern "C" __attribute__((visibility("default"))) PyObject* tc_launcher(PyObject* record, PyObject* int_class) {
    data_ptr = PyUnicode_InternFromString("data_ptr");      // the same for every thread, so that none finds half
    type_of_int = int_class;
    return PyCFunction_NewEx(&method, record, nullptr);   // record: (bytes of a Launch, what to keep alive, ...)
}

static void unmap(PyObject* mapping) {
    auto close = (int (*)(void*))PyCapsule_GetContext(mapping);
    close(PyCapsule_GetPointer(mapping, nullptr));
}

// what unmaps another library when it is freed. handle: dlopen's; close: dlclose
extern "C" __attribute__((visibility("default"))) PyObject* tc_mapping(void* handle, void* close) {
    PyObject* mapping = PyCapsule_New(handle, nullptr, unmap);
    if (mapping) PyCapsule_SetContext(mapping, close);
    return mapping;
}
