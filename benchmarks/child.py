"""The process that `benchmarks.harness` starts: ``python -m benchmarks.child NAME ARGUMENTS``.

In: the name of a function as ``module:function``, and its arguments as a JSON list. Out: for
`harness.fresh` the function's result as JSON; for `harness.worker` the function returns what
answers questions, one line of JSON each. What always holds: only the standard library is imported
before the function's own module.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Environment variables that `benchmarks.harness` sets.
RESULT = "BENCHMARK_RESULT"
QUESTIONS = "BENCHMARK_QUESTIONS"
STARTED = "BENCHMARK_STARTED"


def started() -> int:
    """When this process was started, in `time.perf_counter_ns()`."""
    return int(os.environ[STARTED])


def answer_questions(tell: Callable[[Any], Any]) -> None:
    """Passes each question to `tell` and sends back what it returns."""
    hear, say = map(int, os.environ[QUESTIONS].split())
    with (
        os.fdopen(hear, encoding="utf-8") as questions,
        os.fdopen(say, "w", encoding="utf-8") as answers,
    ):
        for line in questions:
            answers.write(json.dumps(tell(json.loads(line))) + "\n")
            answers.flush()


def main(target: str, arguments: str) -> None:
    """Calls the target and passes on what it returns."""
    module, _, name = target.partition(":")
    result = getattr(importlib.import_module(module), name)(*json.loads(arguments))
    if QUESTIONS in os.environ:
        answer_questions(result)
    else:
        Path(os.environ[RESULT]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
