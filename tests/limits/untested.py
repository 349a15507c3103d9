"""The limits that no test goes beyond, with the reason."""

from __future__ import annotations

_GPU = "needs a GPU"
_DEVICE = "needs a GPU, or a program of its own on the simulated device of tests/cudagraphs"
_SECONDS = "a time limit: the test would have to wait for it"
_SIZE = "needs gigabytes"
_SEARCH = "needs a GPU; by the interpreter in tests/triton_kernels/test_tile_search.py"
_REACHED = "no small program was found that reaches it"

UNTESTED: dict[str, str] = {
    # tracer_core
    "MAX_OVERLAP_STEPS": _REACHED,
    "MAX_PERSISTED_INT_BITS": _REACHED,
    "MAX_COMPARED_BYTES": "how closely a frozen constant is looked at: nothing else is done beyond it",
    "MAX_CHECKED_ELEMENTS": _SIZE,
    "MIN_RECAPTURES": "MAX_RECAPTURES after the first time: the same code",
    "MAX_WAITING_BYTES": _SIZE,
    "MAX_FLEET_WRITE_SECONDS": _SECONDS,
    "MAX_FLEET_EXIT_SECONDS": _SECONDS,
    "MAX_DOCTOR_SECONDS": _SECONDS,
    "MAX_SIZES_OF_ONE": "a package takes seconds for each combination of sizes",
    # inductor_backend
    "MAX_UPDATE_POINTERS": _GPU,
    "MAX_FUSED_UPDATE": _GPU,
    "MAX_FUSED_COPY": _GPU,
    "MAX_MASK_ELEMENTS": _GPU,
    "MAX_MATMUL_CANDIDATES": _GPU,
    "MAX_TMA_CANDIDATES": _GPU,
    "MAX_COMPILE_WORKERS": _GPU,
    "MAX_LAUNCH_PARAMETERS": _GPU,
    "MIN_GRAPH_LAUNCHES": _GPU,
    "MIN_SEARCHED_BYTES": _SEARCH,
    "MAX_SEARCHED_KERNELS": _SEARCH,
    "MAX_SEARCH_SECONDS": _SEARCH,
    "MAX_SEARCH_MEMORY": _SEARCH,
    "MAX_WORKER_START_SECONDS": _SECONDS,
    "MAX_COMPILE_SECONDS": _SECONDS,
    "MAX_GATHERED_WINDOWS": _REACHED,
    "MAX_WINOGRAD_WEIGHTS": _REACHED,
    "MAX_LIBRARY_BYTES": _SIZE,
    "MAX_CONTEXT_BYTES": _SIZE,
    # cudagraphs_backend
    "MAX_COPIED_PART": _DEVICE,
    "MAX_ADDRESSES": _DEVICE,
    "MIN_REPLAYS_OF_CAPTURE": _DEVICE,
    "MAX_CAPTURE_FAILURES": _DEVICE,
    # onnxrt_backend
    "MAX_POOLED_ELEMENTS": "needs ONNX Runtime; both forms of the mean are in tests/engines",
}
