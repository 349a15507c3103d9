"""The limits of the backend `inductor`: each number at which a graph becomes other kernels, or none.

Sizes of blocks and costs, which choose between kernels of one kind, stay where they are used.
"""

from __future__ import annotations

from tracer_core.plugin_api import LimitTable

LIMITS = LimitTable("inductor_backend")

_DEBUG = "the generated code (`TRACER_DEBUG`)"

# Fusion and inlining

MAX_BODY_VALUES = LIMITS.add(
    "MAX_BODY_VALUES",
    256,
    unit="values in the body of a loop",
    beyond="The producer is not inlined: its result is stored and loaded.",
    seen=_DEBUG,
)
MAX_KERNEL_INSTRUCTIONS = LIMITS.add(
    "MAX_KERNEL_INSTRUCTIONS",
    2400,
    unit="instructions of one kernel",
    beyond="The loops become two kernels.",
    seen=_DEBUG,
)
MAX_KERNEL_POINTERS = LIMITS.add(
    "MAX_KERNEL_POINTERS",
    60,
    unit="buffers of one kernel",
    beyond="The loops become two kernels.",
    seen=_DEBUG,
)
MAX_UPDATE_POINTERS = LIMITS.add(
    "MAX_UPDATE_POINTERS",
    240,
    unit="buffers of a kernel of several updates",
    beyond="The updates become two kernels.",
    seen=_DEBUG,
    fixed="the launcher has room for 256 parameters",
)
MAX_FUSED_UPDATE = LIMITS.add(
    "MAX_FUSED_UPDATE",
    1 << 20,
    unit="elements of an update that shares a kernel with updates of other sizes",
    beyond="The update is a kernel of its own.",
    seen=_DEBUG,
)
MAX_FUSED_COPY = LIMITS.add(
    "MAX_FUSED_COPY",
    1 << 18,
    unit="elements of a copy that shares a kernel with copies",
    beyond="The copy is a kernel of its own.",
    seen=_DEBUG,
)
MAX_COMBINED_KERNELS = LIMITS.add(
    "MAX_COMBINED_KERNELS",
    4,
    unit="independent kernels in one launch on a GPU",
    beyond="Further kernels are launched by themselves.",
    seen=_DEBUG,
)
MAX_COMBINED_BYTES = LIMITS.add(
    "MAX_COMBINED_BYTES",
    64 << 20,
    unit="bytes that independent reductions in one launch on a GPU move",
    beyond="Each is a launch of its own.",
    seen=_DEBUG,
)
MAX_LOCAL_ROW = LIMITS.add(
    "MAX_LOCAL_ROW",
    16384,
    unit="elements of a row that a kernel holds in a local buffer",
    beyond="The kernel reads the row from memory again.",
    seen=_DEBUG,
)
MAX_MIXED_CHANNELS = LIMITS.add(
    "MAX_MIXED_CHANNELS",
    16,
    unit="terms, and columns, of a CPU matmul over a strided dimension",
    beyond="The operand is copied and multiplied by BLAS.",
    seen=_DEBUG,
)
# Rewrites of the graph

MAX_MASK_ELEMENTS = LIMITS.add(
    "MAX_MASK_ELEMENTS",
    1 << 24,
    unit="elements of an attention mask",
    beyond="The mask is not evaluated: attention reads it in place of the causal flag.",
    seen=_DEBUG,
)
MAX_FOLDED_ELEMENTS = LIMITS.add(
    "MAX_FOLDED_ELEMENTS",
    1 << 18,
    unit="elements of one constant result",
    beyond="The result is computed by each call.",
    seen=_DEBUG,
)
MAX_FOLDED_ELEMENTS_OF_GRAPH = LIMITS.add(
    "MAX_FOLDED_ELEMENTS_OF_GRAPH",
    1 << 20,
    unit="elements of all constant results of a graph",
    beyond="Each call computes the constant results.",
    seen=_DEBUG,
)
# Lowering

MAX_POOL_REGIONS = LIMITS.add(
    "MAX_POOL_REGIONS",
    12,
    unit="regions (interior and borders) of one pool",
    beyond="Each element of a window is tested against the borders.",
    seen=_DEBUG,
)
MAX_UNROLLED_WINDOW = LIMITS.add(
    "MAX_UNROLLED_WINDOW",
    64,
    unit="elements of a pooling window",
    beyond="The pool is a call of ATen.",
    seen=_DEBUG,
)
MAX_GATHERED_WINDOWS = LIMITS.add(
    "MAX_GATHERED_WINDOWS",
    9,
    unit="windows that read one element",
    beyond="The gradient of the pool is a call of ATen.",
    seen=_DEBUG,
)
MAX_UNROLLED_RESIZE = LIMITS.add(
    "MAX_UNROLLED_RESIZE",
    4,
    unit="factors of a nearest-neighbour resize",
    beyond="The resize computes its indices in floating point.",
    seen=_DEBUG,
)
MAX_WINOGRAD_WEIGHTS = LIMITS.add(
    "MAX_WINOGRAD_WEIGHTS",
    1 << 17,
    unit="weights of a convolution",
    beyond="The convolution is not computed by Winograd's algorithm.",
    seen=_DEBUG,
)
MAX_HEAD_WIDTH = LIMITS.add(
    "MAX_HEAD_WIDTH",
    256,
    unit="elements of an attention head",
    beyond="`flex_attention` has no kernel of its own: it is computed by matmuls. Attention of few queries stays ATen's.",
    seen=_DEBUG,
    fixed="tiles of wider heads do not fit into shared memory",
)
MAX_DECODED_QUERIES = LIMITS.add(
    "MAX_DECODED_QUERIES",
    16,
    unit="queries of an attention that reads each key once",
    beyond="On a GPU the attention is a call of ATen; on a CPU keys are transposed first.",
    seen=_DEBUG,
)
MAX_MATMUL_CANDIDATES = LIMITS.add(
    "MAX_MATMUL_CANDIDATES",
    6,
    unit="tiles of a matmul with plain loads that max-autotune measures",
    beyond="Further tiles are not measured.",
    seen="`TRACER_LOGS=stages`",
)
MAX_TMA_CANDIDATES = LIMITS.add(
    "MAX_TMA_CANDIDATES",
    4,
    unit="tiles of a matmul with TMA that max-autotune measures",
    beyond="Further tiles are not measured.",
    seen="`TRACER_LOGS=stages`",
)
# Generated code and its compilers

MAX_SINGLE_SOURCE = LIMITS.add(
    "MAX_SINGLE_SOURCE",
    12000,
    unit="characters of the kernels in one C++ file",
    beyond="The kernels become two files, which are compiled side by side.",
    seen=_DEBUG,
)
MAX_COMPILE_SECONDS = LIMITS.add(
    "MAX_COMPILE_SECONDS",
    600,
    unit="seconds of the C++ compiler for one file",
    beyond="The compiler is ended, and BackendError says so.",
    seen="the error",
)
MAX_COMPILE_WORKERS = LIMITS.add(
    "MAX_COMPILE_WORKERS",
    16,
    unit="processes that compile Triton kernels",
    beyond="Further kernels wait.",
    seen="`progress`",
)
MAX_WORKER_START_SECONDS = LIMITS.add(
    "MAX_WORKER_START_SECONDS",
    60,
    unit="seconds in which a compile process starts",
    beyond="This process compiles the kernels itself.",
    seen="a warning in the log",
)
MAX_KERNEL_COMPILE_SECONDS = LIMITS.add(
    "MAX_KERNEL_COMPILE_SECONDS",
    300,
    unit="seconds of a Triton kernel in a compile process",
    beyond="The process is ended; this one compiles the kernel.",
    seen="a warning in the log",
)
MIN_SEARCHED_BYTES = LIMITS.add(
    "MIN_SEARCHED_BYTES",
    4 * 2**20,
    unit="bytes moved by a kernel whose block sizes are measured",
    beyond="Below it, a rule chooses the block sizes, in all modes.",
    seen=_DEBUG,
)
MAX_SEARCHED_KERNELS = LIMITS.add(
    "MAX_SEARCHED_KERNELS",
    64,
    unit="kernels of a graph whose block sizes are measured while the program runs",
    beyond="Of the others, which move fewer bytes, the block sizes are not measured.",
    seen="the log, at level INFO",
)
MAX_SEARCH_SECONDS = LIMITS.add(
    "MAX_SEARCH_SECONDS",
    2.0,
    unit="seconds for which the calls of a graph measure block sizes",
    beyond="Kernels that are not measured by then keep their block sizes.",
    seen="the log, at level INFO",
)
MAX_SEARCH_MEMORY = LIMITS.add(
    "MAX_SEARCH_MEMORY",
    0.25,
    unit="part of the free device memory that one kernel is measured on",
    beyond="The kernel keeps its block sizes.",
    seen="the log, at level INFO",
)
MAX_LAUNCH_PARAMETERS = LIMITS.add(
    "MAX_LAUNCH_PARAMETERS",
    256,
    unit="parameters of one kernel",
    beyond="The build raises BackendError.",
    seen="the error",
    fixed="launch.cpp has room for so many",
)
MAX_LIBRARY_BYTES = LIMITS.add(
    "MAX_LIBRARY_BYTES",
    2_000_000_000,
    unit="bytes of the weights of a native library",
    beyond="`package_library` raises BackendError.",
    seen="the error",
    fixed="code reads them at distances of 31 bits",
)
MAX_CONTEXT_BYTES = LIMITS.add(
    "MAX_CONTEXT_BYTES",
    1 << 46,
    unit="bytes of a tensor or context of a native library",
    beyond="The library refuses the sizes.",
    seen="the library's return code",
    fixed="larger sizes overflow its arithmetic",
)
# Execution

MAX_FREE_ARENAS = LIMITS.add(
    "MAX_FREE_ARENAS",
    8,
    unit="memory blocks of arenas kept between calls",
    beyond="Further blocks go back to the allocator.",
    seen="nothing: the next call allocates them",
)
