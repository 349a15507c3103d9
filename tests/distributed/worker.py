"""One rank of a `Pair`: reads orders from stdin, runs them, writes answers to the file descriptor
in argv.
"""

from __future__ import annotations

import datetime
import faulthandler
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from typing import Any

import torch
import torch.distributed as dist

import tracer_core
from tests.support import torchvision_ops


def main(reply: int) -> None:
    _show_crashes()
    torch.set_num_threads(1)
    torchvision_ops.define()
    if "RANK" in os.environ:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    for line in sys.stdin:
        answer = _carry_out(json.loads(line))
        os.write(reply, (json.dumps(answer) + "\n").encode())


def _show_crashes() -> None:
    """A rank that crashes shows where: Python's stacks, then the native ones of all threads, as
    gloo's run no Python.
    """
    torch._C._set_print_stack_traces_on_fatal_signal(True)
    # torch's handler allocates: in an abort of malloc's own it would wait for ever.
    signal.signal(signal.SIGABRT, signal.SIG_DFL)
    faulthandler.enable()  # needs no memory, and goes on to the handlers above


def _carry_out(order: dict[str, Any]) -> dict[str, Any]:
    module, _, name = order["function"].partition(":")
    faulthandler.dump_traceback_later(max(order["limit"] - 3, 1))  # a rank that hangs shows where
    try:
        function = getattr(importlib.import_module(f"tests.distributed.{module}"), name)
        torch.manual_seed(0)
        result = function(**order["arguments"])
        gc.collect()
        if dist.is_initialized():
            dist.barrier()
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        return {"error": f"{type(error).__name__}: {str(error)[:500]}"}
    finally:
        faulthandler.cancel_dump_traceback_later()
        tracer_core.reset()
    return {"result": result}


if __name__ == "__main__":
    main(int(sys.argv[1]))
