"""What launch.cpp hands to the driver, seen by a driver that only takes notes: no GPU is needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import textwrap

import pytest

from tests.support.processes import reported_by

pytest.importorskip("triton")

#: `note_sizes`: bytes of each parameter of the launches to come; `notes`: of each launch its
#: function, grid, threads, shared memory and parameters. A matrix's description starts with what it
#: was made from.
DRIVER = r"""
#include <cstdint>
#include <cstring>
#define OUT extern "C" __attribute__((visibility("default")))
OUT int64_t note_sizes[64], note_count, notes[4096], noted, refuse;
int64_t note_sizes[64], note_count, notes[4096], noted, refuse;
OUT int cuCtxGetCurrent(void** c) { *c = (void*)0x77; return 0; }
OUT int cuCtxSetCurrent(void*) { return 0; }
OUT int cuDevicePrimaryCtxRetain(void** c, int device) { *c = (void*)(0x77 + (intptr_t)device); return 0; }
OUT int cuTensorMapEncodeTiled(void* map, int type, uint32_t rank, void* base, const uint64_t* sizes, const uint64_t* strides,
                               const uint32_t* box, const uint32_t* steps, int interleave, int swizzle, int l2, int fill) {
    if (((uintptr_t)map & 63) || rank != 2 || steps[0] != 1 || steps[1] != 1 || refuse) return 1;
    const uint64_t words[] = {(uint64_t)type, (uint64_t)base, sizes[0], sizes[1], strides[0], box[0], box[1],
                              (uint64_t)interleave, (uint64_t)swizzle, (uint64_t)l2, (uint64_t)fill};
    memcpy(map, words, sizeof words);
    return 0;
}
OUT int cuLaunchKernel(void* f, unsigned x, unsigned, unsigned, unsigned threads, unsigned, unsigned, unsigned shared, void*,
                       void** parameters, void**) {
    const int64_t head[] = {(int64_t)f, x, threads, shared};
    for (int64_t n : head) notes[noted++] = n;
    for (int64_t i = 0; i < note_count; i++)
        for (int64_t at = 0; at < note_sizes[i]; at += 8) {
            int64_t word = 0;
            memcpy(&word, (char*)parameters[i] + at, note_sizes[i] < 8 ? note_sizes[i] : 8);
            notes[noted++] = word;
        }
    return 0;
}
struct Config {
    unsigned grid[3], block[3], shared;
    void* stream;
    const int* attributes;
    unsigned count;
};
OUT int64_t version;
int64_t version = 12040;
OUT int cuDriverGetVersion(int* v) { *v = (int)version; return 0; }
OUT int cuLaunchKernelEx(const Config* c, void* f, void** parameters, void** extra) {
    if (c->count != 1 || c->attributes[0] != 6 || c->attributes[2] != 1) return 1;
    notes[noted++] = -1;
    return cuLaunchKernel(f, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared, c->stream,
                          parameters, extra);
}
"""

SCRIPT = """
import ctypes, json, sys
import torch
from inductor_backend.runtime.cuda.launch import launches, slot
from inductor_backend.runtime.cuda.build import LoadedKernel
from inductor_backend.runtime.cuda.triton_compile import Kernel

driver = ctypes.CDLL("libcuda.so.1")
word = lambda name: ctypes.c_int64.in_dll(driver, name)
word("version").value = int(sys.argv[1])
kernel = Kernel("k", "", ["*bf16", "*fp32"], 1, {}, 4, 3, [("bf16", 64, 64), ("fp32", 32, 64)])
plain = LoadedKernel(kernel, torch.device("cuda", 0), 222, 128, 30)
copies = [{"block_size": [64, 64], "swizzle": 3}, {"block_size": [32, 32], "swizzle": 2}]
loaded = LoadedKernel(kernel, torch.device("cuda", 0), 111, 384, 20, copies, _unaligned=plain)
matrices = [(0, 32, 500, slot(3), 2048), (1, 0, slot(2), 256, 1024)]
run, description = launches(4, [(loaded, slot(2), [(0, 16), (1, 0), (2, 0)], matrices)])

def noted(sizes, *slots):
    word("note_count").value, word("noted").value = len(sizes), 0
    (ctypes.c_int64 * 64).in_dll(driver, "note_sizes")[: len(sizes)] = sizes
    run(description, 5, *slots)
    return list((ctypes.c_int64 * 4096).in_dll(driver, "notes")[: word("noted").value])

bulk, without = [8, 8, 8, 128, 4, 4, 8, 8, 128, 4, 4, 8, 8, 8, 8], [8, 8, 8, 8, 8]
found = {
    "bulk": noted(bulk, 4096, 8192, 7, 1000),
    "memory elsewhere": noted(without, 4096, 8194, 7, 1000),
    "first memory elsewhere": noted(without, 4098, 8192, 7, 1000),
    "bulk again": noted(bulk, 4096, 8192, 7, 1000),
    "rows that overlap": noted(without, 4096, 8192, 7, 1025),
    "no columns": noted(without, 4096, 8192, 7, 0),
    "too many rows": noted(without, 4096, 8192, 2**31, 1000)[4:],
    "nothing to do": noted(bulk, 4096, 8192, 0, 1000),
}
word("refuse").value = 1
found["refused"] = noted(without, 4096, 8192, 7, 1000)

simple = Kernel("s", "", ["*fp32"], 0, {}, 4)
waits = LoadedKernel(simple, torch.device("cuda", 0), 333, 128, 0, overlaps=True)
does_not = LoadedKernel(simple, torch.device("cuda", 0), 444, 128, 0)
several = [(waits, slot(1), [(0, 0)]), (waits, 1, [(0, 0)]), (does_not, 1, [(0, 0)]), (waits, 1, [(0, 0)])]
run, description = launches(2, several)
found["overlaps"] = noted([8], 4096, 1)
found["after an empty grid"] = noted([8], 4096, 0)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.cpp").write_text(DRIVER)
    library = str(folder / "libcuda.so.1")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, str(folder / "driver.cpp")], check=True
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}

    def run(version):
        return reported_by(
            "-c", textwrap.dedent(SCRIPT), str(version), environment=environment, timeout=200
        )

    return run


@pytest.fixture(scope="module")
def noted(driver):
    return driver(12040)


def test_matrices_come_after_the_other_parameters(noted):
    head, values, rest = noted["bulk"][:4], noted["bulk"][4:7], noted["bulk"][7:]
    assert head == [111, 7, 384, 20] and values == [4096 + 16, 8192, 7]
    first, second, scratch = rest[:20], rest[20:40], rest[40:]
    # element type, address, columns, rows, bytes a row, columns and rows of a copy, -, swizzle, L2,
    # zeros beyond the ends
    assert first[:11] == [9, 4096 + 16 + 32, 1000, 500, 2048, 64, 64, 0, 3, 2, 0]
    assert first[16:] == [500, 1000, 1024, 1]
    assert second[:11] == [11, 8192, 256, 7, 1024, 32, 32, 0, 2, 2, 0]
    assert second[16:] == [7, 256, 256, 1] and scratch == [0, 0]
    assert noted["bulk again"][:23] == noted["bulk"][:23]


@pytest.mark.parametrize(
    ("why", "slots"),
    [
        ("memory elsewhere", [4096, 8194, 7]),
        ("first memory elsewhere", [4098, 8192, 7]),
        ("rows that overlap", [4096, 8192, 7]),
        ("no columns", [4096, 8192, 7]),
        ("refused", [4096, 8192, 7]),
    ],
)
def test_the_kernel_without_bulk_copies(noted, why, slots):
    assert noted[why] == [222, 7, 128, 30, slots[0] + 16, *slots[1:], 0, 0]


def test_sizes_beyond_coordinates_and_empty_grids(noted):
    assert noted["too many rows"] == [4096 + 16, 8192, 2**31, 0, 0]
    assert noted["nothing to do"] == []


def test_kernels_that_wait_by_themselves_overlap_the_one_before(noted, driver):
    first, later, other = [333, 1, 128, 0, 4096], [-1, 333, 1, 128, 0, 4096], [444, 1, 128, 0, 4096]
    # the first of a run comes after somebody else's work, which it must wait for as a whole
    assert noted["overlaps"] == [*first, *later, *other, *later]
    assert noted["after an empty grid"] == [*first, *other, *later]
    assert driver(12030)["overlaps"] == [*first, *first, *other, *first]  # an old driver
