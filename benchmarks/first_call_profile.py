"""Where the processor's time goes in our first call of one model, function by function.

In: a model's name. Out: CPU seconds of the main thread (so that a busy machine does not change them
much), of the child processes (the C++ compiler), and the functions with the most. What always
holds: a profiled function looks about twice as dear as it is; `benchmarks.first_call` has the
seconds without a profiler.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import pstats
import resource
import sys
import time
from collections.abc import Sequence

from benchmarks import compilers, models, processes


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the profile of a fresh process with an empty cache."""
    parser = argparse.ArgumentParser(prog="benchmarks.first_call_profile", description=__doc__)
    parser.add_argument("model", choices=list(models.MODELS))
    parser.add_argument("--compiler", default="ours")
    parser.add_argument("--lines", type=int, default=30)
    parser.add_argument("--in-this-process", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.in_this_process:
        processes.answer(profile(models.MODELS[chosen.model], chosen.compiler, chosen.lines))
        return 0
    child = [
        chosen.model,
        "--in-this-process",
        "--compiler",
        chosen.compiler,
        "--lines",
        str(chosen.lines),
    ]
    print(processes.fresh("benchmarks.first_call_profile", child, limit=600))
    return 0


def profile(model: models.Model, compiler: str, lines: int) -> str:
    """The report of this process."""
    program = model.program()
    compiled = compilers.compiler(compiler)(program.function)
    profiler = cProfile.Profile(time.thread_time)
    before = _children()
    with model.mode():
        profiler.enable()
        program.call(compiled)
        profiler.disable()
    stream = io.StringIO()
    print(f"{_children() - before:.2f} CPU seconds in child processes", file=stream)
    statistics = pstats.Stats(profiler, stream=stream)
    for order in ("cumulative", "tottime"):
        statistics.sort_stats(order).print_stats(lines)
    return stream.getvalue()


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
