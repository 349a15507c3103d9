"""The limits of tracer_core: each number at which a program is captured, guarded, kept or compiled in
another way, with what happens beyond it.

`tracer_core.limit_table` says how a row is registered and changed. A number stands here if a program
may reach it; sizes of layouts, tolerances and costs stay where they are used
(``tests/limits/constants.txt`` lists them).
"""

from __future__ import annotations

from tracer_core.limit_table import SHOWN, LimitTable

LIMITS = LimitTable("tracer_core")

_BREAK = f"{SHOWN}, `TRACER_LOGS=graph_breaks`"
_RECOMPILES = f"{SHOWN}, `TRACER_LOGS=recompiles`"
_WARNING = f"a warning in the log, {SHOWN}"
_CACHE_LOG = "`TRACER_LOGS=cache`"
#: What a program cannot notice.
_TIME = "nothing: microseconds or memory change, and nothing else"

# Capture

MAX_TRACED_INSTRUCTIONS = LIMITS.add(
    "MAX_TRACED_INSTRUCTIONS",
    3_000_000,
    unit="bytecode instructions of one trace",
    beyond="The graph ends; the next one begins after the instruction.",
    seen=f"{_BREAK} (`step_limit`)",
)
MAX_INSTRUCTIONS_WITHOUT_OPERATOR = LIMITS.add(
    "MAX_INSTRUCTIONS_WITHOUT_OPERATOR",
    100_000,
    unit="bytecode instructions between two operators",
    beyond="The graph ends before the loop, whose function runs in eager mode.",
    seen=f"{_BREAK} (`long_loop`)",
    changed="TRACER_LIMITS; `fullgraph=True` has no such limit",
)
MAX_INLINED_CALLS = LIMITS.add(
    "MAX_INLINED_CALLS",
    900,
    unit="nested calls",
    beyond="The activation runs in eager mode.",
    fixed="the trace uses CPython's stack",
)
MAX_INLINED_NATIVE_CALLS = LIMITS.add(
    "MAX_INLINED_NATIVE_CALLS",
    60,
    unit="nested calls below C code",
    beyond="The activation runs in eager mode.",
    fixed="the trace uses the C stack",
)
MAX_CAPTURE_RESTARTS = LIMITS.add(
    "MAX_CAPTURE_RESTARTS",
    64,
    unit="restarts of one trace",
    beyond="The code region runs in eager mode from then on.",
    seen=_WARNING,
)
MAX_TRACEBACK_CALLERS = LIMITS.add(
    "MAX_TRACEBACK_CALLERS",
    32,
    unit="frames below a callee",
    beyond="A traceback of an error in a graph shows the innermost frames only.",
    seen="the traceback",
)
MAX_GUARDED_ITEMS = LIMITS.add(
    "MAX_GUARDED_ITEMS",
    10_000,
    unit="items of a container from before the call",
    beyond="Reading the container ends the graph.",
    seen=f"{_BREAK} (`unsupported_value`)",
)
MAX_GUARDED_BUFFER = LIMITS.add(
    "MAX_GUARDED_BUFFER",
    4096,
    unit="elements of a bytearray or array from before the call",
    beyond="Reading the buffer ends the graph.",
    seen=f"{_BREAK} (`unsupported_value`)",
)
MAX_ITEMS_AHEAD = LIMITS.add(
    "MAX_ITEMS_AHEAD",
    64,
    unit="items that a loop takes of an iterator from before the call",
    beyond="The loop ends the graph at each item.",
    seen=_BREAK,
)
MAX_ITERATOR_DEPTH = LIMITS.add(
    "MAX_ITERATOR_DEPTH",
    8,
    unit="iterators inside one another",
    beyond="The iterator is advanced item by item in the trace.",
)
MAX_DATA_DEPTH = LIMITS.add(
    "MAX_DATA_DEPTH",
    6,
    unit="levels of values that library code gets",
    beyond="The library's function is inlined, or ends the graph.",
    seen=_BREAK,
)
MAX_READ_DEPTH = LIMITS.add(
    "MAX_READ_DEPTH",
    8,
    unit="levels of values that C code reads",
    beyond="The call of C code ends the graph.",
    seen=_BREAK,
)
MAX_SEARCHED_ITEMS = LIMITS.add(
    "MAX_SEARCHED_ITEMS",
    1000,
    unit="items of a container in an exception's arguments",
    beyond="The rest is not searched for objects of the tracer, which a message might name.",
)
MAX_HELD_ITEMS = LIMITS.add(
    "MAX_HELD_ITEMS",
    64,
    unit="items of a container",
    beyond="The rest is not searched for objects whose end the program can observe.",
)
MAX_FINALIZATION_OBJECTS = LIMITS.add(
    "MAX_FINALIZATION_OBJECTS",
    2000,
    unit="objects of one search for finalizers",
    beyond="What lies behind them is not searched: its finalizer may run later than in eager mode.",
)
MAX_OVERWRITTEN_OBJECTS = LIMITS.add(
    "MAX_OVERWRITTEN_OBJECTS",
    64,
    unit="objects behind an overwritten value",
    beyond="What lies behind them is not searched: its finalizer may run later than in eager mode.",
)
MAX_FINALIZATION_VISITS = LIMITS.add(
    "MAX_FINALIZATION_VISITS",
    500_000,
    unit="objects of all searches for finalizers of one trace",
    beyond="The trace searches no further: finalizers may run later than in eager mode.",
)
MAX_SET_ORDERS = LIMITS.add(
    "MAX_SET_ORDERS",
    256,
    unit="orders of insertion that are tried for a set",
    beyond="A set that the call leaves behind may be iterated in another order than in eager mode.",
)
MAX_SPECIALIZED_OBJECTS = LIMITS.add(
    "MAX_SPECIALIZED_OBJECTS",
    256,
    unit="objects in one argument of a cached or higher-order function",
    beyond="The call of a cached function ends the graph; other values are made anew by each call.",
    seen=f"{_BREAK} (`native_python`)",
)
MAX_BACKWARD_DEPTH = LIMITS.add(
    "MAX_BACKWARD_DEPTH",
    6,
    unit="objects in one another, from the backward of an autograd.Function",
    beyond="What the backward reads there is not guarded; what it changes is changed once, not in"
    " each call.",
    seen=SHOWN,
)
MAX_BACKWARD_OBJECTS = LIMITS.add(
    "MAX_BACKWARD_OBJECTS",
    2_000,
    unit="objects that the backward of an autograd.Function reaches",
    beyond="What the backward reads there is not guarded; what it changes is changed once, not in"
    " each call.",
    seen=SHOWN,
)
MAX_EAGER_ERROR_ELEMENTS = LIMITS.add(
    "MAX_EAGER_ERROR_ELEMENTS",
    1 << 16,
    unit="elements of a tensor",
    beyond="An operator that fails on fake tensors ends the graph; its error is not looked up.",
    seen=f"{_BREAK} (`operator_failed`)",
)
MAX_UNROLLED_MAP = LIMITS.add(
    "MAX_UNROLLED_MAP",
    64,
    unit="slices of an input of `map`",
    beyond="The map is one operator with a loop in place of unrolled steps.",
    seen=SHOWN,
)
MAX_UNROLLED_SCAN = LIMITS.add(
    "MAX_UNROLLED_SCAN",
    256,
    unit="steps of a scan that the backend cannot keep",
    beyond="The captured graph runs in eager mode.",
    seen=_WARNING,
)
MAX_SHORT_SCAN = LIMITS.add(
    "MAX_SHORT_SCAN",
    4,
    unit="steps of a scan that the backend can keep",
    beyond="The scan stays one operator in place of unrolled steps.",
    seen="the graph",
)
MAX_LISTED_ELEMENTS = LIMITS.add(
    "MAX_LISTED_ELEMENTS",
    64,
    unit="elements of an integer tensor whose `tolist()` is captured",
    beyond="`tolist()` ends the graph.",
    seen=_BREAK,
)
MAX_ARRAY_ELEMENTS = LIMITS.add(
    "MAX_ARRAY_ELEMENTS",
    1 << 26,
    unit="elements of a NumPy array in a trace",
    beyond="The operation on the array ends the graph.",
    seen=_BREAK,
)
MAX_CONSTANT_ARRAY_ELEMENTS = LIMITS.add(
    "MAX_CONSTANT_ARRAY_ELEMENTS",
    1 << 12,
    unit="elements of an array that the program makes of numbers",
    beyond="The operation on the array ends the graph.",
    seen=_BREAK,
)

# Numbers

MAX_RANDOM_DRAWS = LIMITS.add(
    "MAX_RANDOM_DRAWS",
    256,
    unit="numbers that a trace draws from one `random.Random`",
    beyond="The next draw ends the graph.",
    seen=f"{_BREAK} (`side_effect_native`)",
)
MAX_RANDOM_BITS = LIMITS.add(
    "MAX_RANDOM_BITS",
    31,
    unit="bits of a drawn integer",
    beyond="The draw ends the graph.",
    seen=f"{_BREAK} (`side_effect_native`)",
    fixed="symbolic scalars are 64-bit integers with room for arithmetic",
)
MAX_TRIED_SIZES = LIMITS.add(
    "MAX_TRIED_SIZES",
    8192,
    unit="sizes in the range of a size that is marked dynamic",
    beyond="A condition that no proof covers is tried for so many sizes of the range. MarkedSizeError"
    " for another size, for which it does not hold, is raised when that size comes.",
)
MAX_TUPLE_PARTS = LIMITS.add(
    "MAX_TUPLE_PARTS",
    64,
    unit="items of a tuple of numbers",
    beyond="Numbers behind them are guarded by value; each new value is a recompile.",
    seen=_RECOMPILES,
)
MAX_STATE_VALUES = LIMITS.add(
    "MAX_STATE_VALUES",
    4,
    unit="values of a condition on a state tensor",
    beyond="The branch on it ends the graph in place of a guard.",
    seen=f"{_BREAK} (`data_dependent_branch`)",
)
MAX_STATE_ELEMENTS = LIMITS.add(
    "MAX_STATE_ELEMENTS",
    64,
    unit="elements of a state tensor that a guard reads",
    beyond="A branch on the tensor ends the graph in place of a guard.",
    seen=f"{_BREAK} (`data_dependent_branch`)",
)
MAX_STATE_OPERATORS = LIMITS.add(
    "MAX_STATE_OPERATORS",
    24,
    unit="operators between a state tensor and a branch",
    beyond="The branch ends the graph in place of a guard.",
    seen=f"{_BREAK} (`data_dependent_branch`)",
)

MAX_GRAPH_NUMBERS = LIMITS.add(
    "MAX_GRAPH_NUMBERS",
    16_384,
    unit="symbolic numbers of one graph",
    beyond="Numbers that the program computes beyond them are guarded by value; each new value is a recompile.",
    seen=_RECOMPILES,
)
MAX_SCALAR_OPERATIONS = LIMITS.add(
    "MAX_SCALAR_OPERATIONS",
    4096,
    unit="operations in the expression of one number",
    beyond="Numbers computed from it are guarded by value; each new value is a recompile.",
    seen=_RECOMPILES,
)
MAX_SYMBOLIC_INT = LIMITS.add(
    "MAX_SYMBOLIC_INT",
    2**31,
    unit="magnitude of an integer (exclusive)",
    beyond="The integer is guarded by value; each new value is a recompile.",
    seen=_RECOMPILES,
    fixed="arithmetic of graphs has 64 bits",
)

# Speculation on data

MAX_SPECULATED_BRANCHES = LIMITS.add(
    "MAX_SPECULATED_BRANCHES",
    32,
    unit="branches on tensors in one trace",
    beyond="The trace restarts with graph breaks at such branches.",
    seen=f"{_BREAK} (`data_dependent_branch`)",
)
MAX_SPECULATIONS_OF_BRANCH = LIMITS.add(
    "MAX_SPECULATIONS_OF_BRANCH",
    8,
    unit="executions of one branch on tensors in one trace",
    beyond="The trace restarts with graph breaks at such branches: a loop follows data.",
    seen=f"{_BREAK} (`data_dependent_branch`)",
)
MAX_SPECULATED_LOOP_NODES = LIMITS.add(
    "MAX_SPECULATED_LOOP_NODES",
    128,
    unit="nodes of the graph for one iteration of a ``while`` loop with a branch on a tensor",
    beyond="This trace restarts, and later ones of the function begin, with graph breaks at such branches.",
    seen=f"{_BREAK} (`data_dependent_branch`)",
)
MAX_SPECULATED_NUMBERS = LIMITS.add(
    "MAX_SPECULATED_NUMBERS",
    256,
    unit="numbers read from tensors in one trace",
    beyond="The trace restarts with graph breaks where numbers are read.",
    seen=f"{_BREAK} (`data_dependent_value`)",
)
MAX_SPECULATION_BYTES = LIMITS.add(
    "MAX_SPECULATION_BYTES",
    1 << 28,
    unit="bytes of intermediate results held while a trace looks at data",
    beyond="The branch ends the graph.",
    seen=f"{_BREAK} (`data_dependent_branch`)",
)
MAX_PROFILED_OUTCOMES = LIMITS.add(
    "MAX_PROFILED_OUTCOMES",
    64,
    unit="branches on data in one call",
    beyond="The call does not count in the branch profile: it is a loop.",
)
MIN_EQUAL_OUTCOMES = LIMITS.add(
    "MIN_EQUAL_OUTCOMES",
    4,
    unit="executions in a row of a branch on a GPU's tensor that went one way",
    beyond="With fewer, the host waits for the tensor before it prepares what follows.",
    seen="a profile: the wait stands before the next graph's preparation",
)
MIN_EQUAL_PROFILES = LIMITS.add(
    "MIN_EQUAL_PROFILES",
    6,
    unit="calls in a row whose branches went one way",
    beyond="With fewer, branches on data stay graph breaks.",
    seen="`explain` and `TRACER_LOGS=graph_breaks` name the breaks",
)
MAX_PROFILED_CALLS = LIMITS.add(
    "MAX_PROFILED_CALLS",
    32,
    unit="calls of a code region",
    beyond="Its branches are profiled no more and stay graph breaks.",
    seen=_BREAK,
)

# Guards

MAX_COMPARED_BYTES = LIMITS.add(
    "MAX_COMPARED_BYTES",
    16384,
    unit="bytes of a constant tensor",
    beyond="A check for writes through other views samples the tensor in place of comparing it whole.",
)
MAX_LEARNED_TENSORS = LIMITS.add(
    "MAX_LEARNED_TENSORS",
    8,
    unit="layouts of tensors that a fast-path check learned",
    beyond="The guards are checked one by one.",
    seen=_TIME,
)
MAX_WRAPPERS = LIMITS.add(
    "MAX_WRAPPERS",
    8,
    unit="decorators around one function",
    beyond="The function is not found by its import path: entries that name it are not persisted.",
    seen=_CACHE_LOG,
)

# The in-memory cache

MAX_RECOMPILES = LIMITS.add(
    "MAX_RECOMPILES",
    8,
    unit="cache entries of one code region and object",
    beyond="The code region keeps its entries; calls that fit none run in eager mode.",
    seen=f"a logged RecompileLimitWarning, {SHOWN}; RecompileLimitError under `fullgraph=True`",
)

MAX_CACHE_ENTRIES = LIMITS.add(
    "MAX_CACHE_ENTRIES",
    2048,
    unit="cache entries of one code region, over all objects",
    beyond="The code region keeps its entries; calls that fit none run in eager mode.",
    seen=f"a logged RecompileLimitWarning, {SHOWN}",
)
MAX_RECENT_ENTRIES = LIMITS.add(
    "MAX_RECENT_ENTRIES",
    16,
    unit="cache entries of other objects that a call tries",
    beyond="An entry that is not among them is captured again for the object.",
    seen=_RECOMPILES,
)
MAX_SINGLE_USES = LIMITS.add(
    "MAX_SINGLE_USES",
    32,
    unit="captures in a row, each the first of an object or code region, whose entries one call used",
    beyond="Further objects and code regions get no entry, except one in 64, then in 128, to 4,096: calls that"
    " nothing fits run in eager mode until an entry is used again.",
    seen=_WARNING,
    changed="TRACER_LIMITS; `fullgraph=True` has no such limit",
)
MAX_COMPILED_FIRST_STEP = LIMITS.add(
    "MAX_COMPILED_FIRST_STEP",
    64,
    unit="operators of a graph whose first call makes what its guards demand to be missing: state of an"
    " optimizer, first gradients",
    beyond="The first call runs the captured graph in eager mode; a second one that fits compiles it.",
    seen="`last_compile` (a trace without `compile`)",
)
MAX_SHORT_LIVED_OBJECTS = LIMITS.add(
    "MAX_SHORT_LIVED_OBJECTS",
    8,
    unit="objects in a row that died before their second call",
    beyond="One object in 64 gets entries of its own; the others use those of earlier objects.",
    seen=_TIME,
)
MAX_FAILED_LOOKUPS = LIMITS.add(
    "MAX_FAILED_LOOKUPS",
    8,
    unit="failed lookups in a row of a code region at its limit",
    beyond="Each further one lets no more than 254 calls skip the lookup.",
    seen="a logged RecompileLimitWarning, which came before",
)
MAX_CUTS = LIMITS.add(
    "MAX_CUTS",
    8,
    unit="operators without a functional form in one captured graph",
    beyond="The part behind the last cut runs in eager mode.",
    seen="a warning in the log, `explain`: what failed, and why",
)
MAX_FIRST_CALL_COPIES = LIMITS.add(
    "MAX_FIRST_CALL_COPIES",
    1 << 28,
    unit="bytes of inputs that a graph writes to",
    beyond="They are not copied before a graph's first call; a result that is not what the graph promises"
    " then raises BackendError instead of leaving the graph to eager mode.",
    seen="BackendError",
)
MAX_FAILED_CAPTURES = LIMITS.add(
    "MAX_FAILED_CAPTURES",
    8,
    unit="captures in a row of a code region that gave no cache entry",
    beyond="After n of them the next 2**n - 2 calls that nothing fits run in eager mode without a capture;"
    " after each further one no more than 254 do.",
    seen=_WARNING,
)
MAX_SILENT_FAILED_CAPTURES = LIMITS.add(
    "MAX_SILENT_FAILED_CAPTURES",
    4,
    unit="captures in a row of a code region that gave no cache entry",
    beyond="One line is logged.",
    seen="a warning in the log",
)

# The persistent cache

MAX_PERSISTED_ENTRIES = LIMITS.add(
    "MAX_PERSISTED_ENTRIES",
    64,
    unit="cache entries of one function on disk",
    beyond="The oldest entries are left out.",
    seen=_CACHE_LOG,
)
MAX_PERSISTED_BYTES = LIMITS.add(
    "MAX_PERSISTED_BYTES",
    128 << 20,
    unit="bytes of one function's entries on disk",
    beyond="Nothing of the function is written; each process captures it.",
    seen=_CACHE_LOG,
)
MAX_PERSISTED_TENSOR_BYTES = LIMITS.add(
    "MAX_PERSISTED_TENSOR_BYTES",
    1 << 12,
    unit="bytes of a constant tensor in an entry",
    beyond="The entry is not written; each process captures it.",
    seen=_CACHE_LOG,
)
MAX_PERSISTED_INT_BITS = LIMITS.add(
    "MAX_PERSISTED_INT_BITS",
    1024,
    unit="bits of an integer in an entry",
    beyond="The entry is not written; each process captures it.",
    seen=_CACHE_LOG,
    fixed="JSON readers limit the digits of an integer",
)
MAX_UNKNOWN_BACKWARDS = LIMITS.add(
    "MAX_UNKNOWN_BACKWARDS",
    2,
    unit="backwards that a loaded entry has no graph for",
    beyond="The forward is captured again; until then eager autograd computes them.",
    seen=_CACHE_LOG,
)
MAX_LOCK_SECONDS = LIMITS.add(
    "MAX_LOCK_SECONDS",
    60.0,
    unit="seconds that a process waits for another one's compilation",
    beyond="The process compiles the entry itself.",
    seen=_CACHE_LOG,
)
MAX_WRONG_ENTRIES = LIMITS.add(
    "MAX_WRONG_ENTRIES",
    3,
    unit="entries of a fleet's store that another key sealed",
    beyond="The process does not ask the store again.",
    seen="a warning in the log",
)
MAX_WAITING_BYTES = LIMITS.add(
    "MAX_WAITING_BYTES",
    256 << 20,
    unit="bytes that wait to be written to a fleet's store",
    beyond="Further entries are not shared.",
    seen=_CACHE_LOG,
)
MAX_FLEET_WRITE_SECONDS = LIMITS.add(
    "MAX_FLEET_WRITE_SECONDS",
    5.0,
    unit="seconds of one write to a fleet's store",
    beyond="The write is dropped, and the store rests.",
    seen=_CACHE_LOG,
)
MAX_FLEET_EXIT_SECONDS = LIMITS.add(
    "MAX_FLEET_EXIT_SECONDS",
    10.0,
    unit="seconds that an ending process waits for its writes to a fleet's store",
    beyond="The process ends; entries that are not written are lost.",
    seen=_CACHE_LOG,
)
MIN_KEY_BYTES = LIMITS.add(
    "MIN_KEY_BYTES",
    16,
    unit="bytes of TRACER_STORE_KEY",
    beyond="A shorter key raises OptionError.",
    seen="the error",
    fixed="a shorter key can be guessed",
)

# Execution

MAX_REGIONS = LIMITS.add(
    "MAX_REGIONS",
    256,
    unit="code regions of one function",
    beyond="The whole function runs in eager mode from then on.",
    seen=_WARNING,
)
MAX_DATA_VIOLATIONS = LIMITS.add(
    "MAX_DATA_VIOLATIONS",
    4,
    unit="calls whose data violate what a graph assumes",
    beyond="The code region is captured again, with a graph break where the assumption was made.",
    seen=_BREAK,
)
MAX_REGIONS_WITHOUT_GRAPH = LIMITS.add(
    "MAX_REGIONS_WITHOUT_GRAPH",
    500,
    unit="code regions in a row without a graph, and as many more",
    beyond="The loop that they are in runs in eager mode for this call.",
)

MAX_SNAPSHOT_BYTES = LIMITS.add(
    "MAX_SNAPSHOT_BYTES",
    1 << 26,
    unit="bytes of inputs copied before the first run of a graph",
    beyond="Nothing is copied: an error of the first run leaves inputs as it found them written.",
)
MAX_SNAPSHOT_BYTES_ALWAYS = LIMITS.add(
    "MAX_SNAPSHOT_BYTES_ALWAYS",
    1 << 20,
    unit="bytes of inputs copied before each run of a graph that may raise",
    beyond="Nothing is copied: an error leaves inputs as it found them written.",
)
MAX_RESUMED_INSTRUCTIONS = LIMITS.add(
    "MAX_RESUMED_INSTRUCTIONS",
    48,
    unit="bytecode instructions of one generated resume function",
    beyond="The interpreter runs the rest.",
    seen=_TIME,
)
MAX_VERDICT_USES = LIMITS.add(
    "MAX_VERDICT_USES",
    8,
    unit="processes that follow a stored verdict (compiled or eager)",
    beyond="The next process measures again.",
    seen=_TIME,
)
MAX_RECAPTURES = LIMITS.add(
    "MAX_RECAPTURES",
    16,
    unit="calls that capture again, of a function that had settled",
    beyond="Their cost is weighed: the function runs in eager mode for a while if captures cost more.",
    seen="`explain`",
    changed="TRACER_LIMITS; TRACER_ALWAYS_COMPILED=1 turns it off",
)
MIN_RECAPTURES = LIMITS.add(
    "MIN_RECAPTURES",
    4,
    unit="calls that capture again, once a function was found not to settle",
    beyond="Their cost is weighed again.",
    seen="`explain`",
)
MAX_FROZEN_STATES = LIMITS.add(
    "MAX_FROZEN_STATES",
    16,
    unit="sets of frozen parameters that one graph keeps prepared",
    beyond="The oldest set is dropped and prepared again when it is used.",
    changed="TRACER_LIMITS; `freeze=False`",
)
MAX_OVERLAP_STEPS = LIMITS.add(
    "MAX_OVERLAP_STEPS",
    2000,
    unit="steps of a search for an element that two views share",
    beyond="An overlap is assumed: the graph is lowered for views that overlap.",
)
MAX_COMPARISONS = LIMITS.add(
    "MAX_COMPARISONS",
    5,
    unit="comparisons of a candidate while weights change",
    beyond='`backend="auto"` drops the candidate.',
    seen="`explain`, `choices()`",
)
MAX_TURN_SECONDS = LIMITS.add(
    "MAX_TURN_SECONDS",
    2.0,
    unit="seconds that a call waits for timed calls of other threads",
    beyond="The call runs at once; the timing may be off.",
    seen=_TIME,
)
MAX_WARMUP_ROUNDS = LIMITS.add(
    "MAX_WARMUP_ROUNDS",
    6,
    unit="rounds of `warmup` that still compile",
    beyond="`warmup` raises TracerError.",
    seen="the error",
)
MAX_CHECKED_ELEMENTS = LIMITS.add(
    "MAX_CHECKED_ELEMENTS",
    1 << 25,
    unit="input elements of an operator that an engine is asked about",
    beyond="The engine builds the operator; its values are not compared with eager mode's.",
)
MAX_DOCTOR_SECONDS = LIMITS.add(
    "MAX_DOCTOR_SECONDS",
    180.0,
    unit="seconds of a backend in `tracer-core doctor`",
    beyond="The backend's row is a problem.",
    seen="the report",
)

# Reports

MAX_HISTORY = LIMITS.add(
    "MAX_HISTORY",
    4096,
    unit="stages, and recompiles, of a compiled function in `tracer_core.report`",
    beyond="The oldest are left out.",
    seen="the report",
)

# Packages

MAX_SIZES_OF_ONE = LIMITS.add(
    "MAX_SIZES_OF_ONE",
    3,
    unit="dynamic sizes that `package` tries for 1 in all combinations",
    beyond="Size 1 of the others is not captured: loading code raises for it.",
    seen="the error",
)
MAX_PACKAGE_TEXT_BYTES = LIMITS.add(
    "MAX_PACKAGE_TEXT_BYTES",
    1 << 28,
    unit="bytes of a text in a package file",
    beyond="`load_package` raises: the file is damaged.",
    seen="the error",
)
MAX_PACKAGE_MEMBERS = LIMITS.add(
    "MAX_PACKAGE_MEMBERS",
    64,
    unit="members of a package file",
    beyond="`load_package` raises: the file is damaged.",
    seen="the error",
)
