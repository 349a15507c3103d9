"""Two processes that run the same function at the same time, joined by torch.distributed with gloo.

In: the name of a function of this package (``"ddp:several_buckets"``) and its arguments. Out: what
it returned on each rank. What always holds: each call has a time limit; where one rank fails, hangs
or dies, both processes are ended and the error holds what both have printed, with the stack of a
rank that hung; the next call starts a new pair.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore

ROOT = Path(__file__).resolve().parents[2]
RANKS = 2
#: How glibc allocates in the ranks: blocks that were freed are overwritten, and no thread keeps a
#: list of its own of them, which is the one place where malloc checks nothing. What writes to freed
#: memory, or frees twice, ends there, with a message, and not minutes later in another thread
#: (docs/lab/distributed.md).
STRICT_MALLOC = {"MALLOC_PERTURB_": "165", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
#: Characters of a rank's output that an error shows; of one that died, with the stacks of all its
#: threads.
SHOWN, SHOWN_OF_DEAD = 6000, 40000
#: Seconds for a call that meets no trouble takes a fraction of this; the first one imports torch as
#: well.
LIMIT = 120.0


class RankFailed(AssertionError):
    """A function failed, hung or died on a rank. The text shows the output of all ranks."""


class Pair:
    """The processes (mutable: they are started at the first call, and anew after a failure)."""

    def __init__(self, ranks: int = RANKS) -> None:
        self.ranks = ranks
        self._processes: list[subprocess.Popen[bytes]] = []
        self._replies: list[int] = []
        self._logs: list[Any] = []
        self._store: TCPStore | None = None

    def run(self, function: str, /, limit: float = LIMIT, **arguments: Any) -> list[Any]:
        """Calls ``tests.distributed.<module>.<function>(**arguments)`` on every rank. Arguments and
        results are JSON.
        """
        if not self._processes:
            self._start()
        for log in self._logs:
            log.truncate(0)  # written in append mode: the next byte goes to the start
        order = json.dumps({"function": function, "arguments": arguments, "limit": limit}) + "\n"
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(order.encode())
            process.stdin.flush()
        answers = self._answers(time.monotonic() + limit)
        failed = [
            rank for rank, answer in enumerate(answers) if answer is None or "error" in answer
        ]
        if failed:
            text = self._told(function, answers)
            self.close()
            raise RankFailed(text)
        return [answer["result"] for answer in answers if answer is not None]

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
        for reply in self._replies:
            os.close(reply)
        for log in self._logs:
            log.close()
        self._processes, self._replies, self._logs, self._store = [], [], [], None

    def _start(self) -> None:
        # The store lives in this process, so its port is free when it is chosen and taken from then
        # on.
        self._store = TCPStore("127.0.0.1", 0, self.ranks, is_master=True, wait_for_workers=False)
        for rank in range(self.ranks):
            reading, writing = os.pipe()
            with tempfile.NamedTemporaryFile() as named:
                log = open(named.name, "a+b")  # appending, so that `run` can empty it
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.distributed.worker", str(writing)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "CUDA_VISIBLE_DEVICES": "",  # gloo, on any machine
                    **STRICT_MALLOC,
                    **self._environment(rank),
                },
                pass_fds=[writing],
            )
            os.close(writing)
            self._processes.append(process)
            self._replies.append(reading)
            self._logs.append(log)

    def _environment(self, rank: int) -> dict[str, str]:
        """What torchrun would set; nothing for a process alone."""
        if self.ranks == 1 or self._store is None:
            return {}
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.ranks),
            "LOCAL_WORLD_SIZE": str(self.ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "GLOO_SOCKET_IFNAME": "lo",
        }

    def _answers(self, deadline: float) -> list[dict[str, Any] | None]:
        """What each rank answered; None: nothing in time, or it died."""
        texts = [b""] * self.ranks
        waiting = dict(zip(self._replies, range(self.ranks), strict=True))
        while waiting:
            ready, _, _ = select.select(list(waiting), [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                break
            for reply in ready:
                part = os.read(reply, 1 << 16)
                texts[waiting[reply]] += part
                if not part or part.endswith(b"\n"):
                    rank = waiting.pop(reply)
                    if not texts[rank] or b'"error"' in texts[rank]:
                        # The other rank may wait for this one for ever: it gets a moment to fail by
                        # itself.
                        deadline = min(deadline, time.monotonic() + 5)
        return [json.loads(text) if text.endswith(b"\n") else None for text in texts]

    def _told(self, function: str, answers: list[dict[str, Any] | None]) -> str:
        lines = [f"{function} failed"]
        for rank, (answer, log, process) in enumerate(
            zip(answers, self._logs, self._processes, strict=True)
        ):
            state = "no answer in time" if answer is None else answer.get("error", "returned")
            shown = SHOWN
            if answer is None and _has_ended(process):
                state, shown = f"died with exit status {process.returncode}", SHOWN_OF_DEAD
            log.seek(0)
            lines += [f"-- rank {rank}: {state}", log.read().decode(errors="replace")[-shown:]]
        return "\n".join(lines)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process that gave no answer has died: its pipe is closed a moment before it can be
    waited for.
    """
    try:
        process.wait(1)
    except subprocess.TimeoutExpired:
        return False
    return True
