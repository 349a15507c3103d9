"""Every architecture trained for one step, judged by float64 parameter by parameter.

In: models of `benchmarks.zoo_models.automatic` (every architecture of transformers that builds from
a small random configuration, every family of timm and torchvision), a backend, a device. Out: a
state file with one JSON line a model, a short table (counts, then what is not right), and with
``--page`` the committed table in ``results/gradients``.

What always holds: forward, a loss that depends on each element of each output, backward; dropout
zero, TF32 off unless ``--tf32``; outputs, gradients of parameters and inputs, and buffers are
judged each alone (`benchmarks.gradient_errors` says how). Several processes take models in turn;
one that dies or does not answer in ``--limit`` seconds loses its model's row only. Rows that the
state file has are not run again; ``--time-budget`` ends the run cleanly, for a lease of a GPU:

    python -m benchmarks gradients --device cuda --workers 12 --time-budget 540 --out
    $OUT/gradients.jsonl python -m benchmarks gradients --models swin --backend aten_eager python -m
    benchmarks gradients --models transformers/swin --options '{"fuse": false}' --out /tmp/a.jsonl
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

import tracer_core
from benchmarks import harness
from benchmarks.gradient_errors import STEP_SEED, InDouble, judge, nudged, step
from benchmarks.timing import table
from benchmarks.zoo_models.automatic import Unbuildable, find, names
from tests.support import torchvision_ops
from tracer_core.testing import CaptureCounter

RESULTS = harness.RESULTS / "gradients"
#: What a child runs; tests put another one in.
CHILD = "benchmarks.gradients:serve"
#: A process is replaced after so many models: what they leave behind adds up.
_MODELS = 25
#: Seconds that importing the model libraries may take.
_IMPORTS = 90.0
_BAD = ("wrong", "error", "crashed", "broken")


class Sweep:
    """Models to run, and the processes that run them (mutable: threads take models from it)."""

    def __init__(
        self, waiting: list[str], chosen: argparse.Namespace, out: Path, end: float
    ) -> None:
        self.waiting, self.chosen, self.out, self.end = waiting[::-1], chosen, out, end
        self.lock = threading.Lock()
        self.settings = {
            "backend": chosen.backend, "device": chosen.device, "tf32": chosen.tf32,
            "options": json.loads(chosen.options) if chosen.options else None,
        }  # fmt: skip
        self.environment = {"TRACER_STRICT": "1", "OMP_NUM_THREADS": str(chosen.threads)}

    def run(self) -> None:
        threads = [
            threading.Thread(target=self._work)
            for _ in range(min(self.chosen.workers, len(self.waiting)))
        ]
        for thread in threads:
            thread.start()
        for item in threads:
            item.join()

    def _take(self) -> str | None:
        with self.lock:
            return self.waiting.pop() if self.waiting and time.monotonic() < self.end else None

    def _work(self) -> None:
        name = self._take()
        while name is not None:
            with harness.worker(CHILD, self.settings, environment=self.environment) as child:
                for number in range(_MODELS):
                    left = self.end - time.monotonic()
                    # the first answer of a process waits for its imports
                    limit = self.chosen.limit + (_IMPORTS if number == 0 else 0)
                    try:
                        row = child.ask(name, limit=max(1.0, min(limit, left)))
                    except harness.Failed as error:
                        if (
                            time.monotonic() < self.end
                        ):  # else the budget ended it: it runs the next time
                            self._put(name, {"status": "crashed", "error": str(error)[-700:]})
                        name = self._take()
                        break
                    self._put(name, row)
                    spoilt = "CUDA error" in str(row.get("error"))
                    name = self._take()
                    if name is None or spoilt:
                        break

    def _put(self, name: str, row: dict[str, Any]) -> None:
        row = key(self.chosen) | {"model": name} | row
        with self.lock:
            with self.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            if row["status"] in _BAD or self.chosen.verbose:
                print("  ".join(line(row)), flush=True)


def key(chosen: argparse.Namespace) -> dict[str, Any]:
    """What a row belongs to beside its model."""
    return {
        "backend": chosen.backend,
        "device": chosen.device,
        "tf32": chosen.tf32,
        "options": chosen.options or "",
    }


HEAD = [
    "model",
    "status",
    "parameters",
    "wrong",
    "worst",
    "ours",
    "eager",
    "graphs",
    "breaks",
    "first s",
    "why",
]


def line(row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    worst = row.get("worst") or ["", None, None]
    why = row.get("error") or "; ".join(row.get("problems") or ())
    if row["status"] == "wrong":
        others = row.get("wrong_with_other_inputs")
        why = f"{why}; with other inputs {others}".lstrip("; ")
    return [
        row["model"], row["status"], str(row.get("parameters", "")), str(row.get("number_wrong",
        "")), worst[0],
        *("" if item is None else f"{item:.1e}" for item in worst[1:]), str(row.get("graphs", "")),
        str(len(row["breaks"])) if "breaks" in row else "", str(row.get("seconds_first", "")),
        " ".join(why.split())[:200],
    ]  # fmt: skip


def report(rows: Sequence[dict[str, Any]]) -> str:
    """Counts by library, then the rows that are not right, the worst first; at the end those that
    eager cannot run."""
    text = []
    for library in dict.fromkeys(row["model"].partition("/")[0] for row in rows):
        mine = [row for row in rows if row["model"].startswith(f"{library}/")]
        counts = Counter(row["status"] for row in mine)
        messages = ", ".join(
            f"{counts[status]} {status}" for status in sorted(counts, key=lambda s: (s != "ok", s))
        )
        text.append(f"{library}: {len(mine)} models: {messages}")
    bad = sorted(
        (row for row in rows if row["status"] in _BAD),
        key=lambda r: (_BAD.index(r["status"]), r["model"]),
    )
    if bad:
        text += ["", table(HEAD, [line(row) for row in bad])]
    judged = [row for row in rows if row["status"] in ("ok", "wrong")]
    if judged:
        worst = max(judged, key=lambda row: row.get("largest", 0.0))
        broken = sum(bool(row.get("breaks")) for row in judged)
        text += ["", f"{len(judged)} trained, {sum(r.get('compared', 0) for r in judged)} tensors compared; largest error of a "
                 f"gradient {worst.get('largest', 0.0):.1e} ({worst['model']}); {broken} with graph breaks"]  # fmt: skip
    return "\n".join(text)


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a state file, the last of each model; a line that a killed run cut off is left
    out."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            row = json.loads(text)
        except json.JSONDecodeError:
            continue
        rows[row["model"], row["backend"], row["device"], row["tf32"], row["options"]] = row
    return list(rows.values())


def write_page(rows: Sequence[dict[str, Any]], chosen: argparse.Namespace) -> Path:
    """The committed table: JSON with all rows, and the same as text."""
    name = f"{chosen.backend}-{chosen.device}{'-tf32' if chosen.tf32 else ''}"
    rows = sorted(rows, key=lambda row: row["model"])
    document = {
        "commit": harness.commit(),
        "machine": harness.machine(),
        **key(chosen),
        "rows": rows,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    page = RESULTS / f"{name}.md"
    lines = [
        f"# One training step, {chosen.backend} on {chosen.device}{', TF32' if chosen.tf32 else ''}",
        "", "Made by `python -m benchmarks gradients --page`; `benchmarks/gradient_errors.py` says how errors are judged.",
        "", "```", report(rows), "```", "", "| " + " | ".join(HEAD) + " |",
        "|---" * len(HEAD) + "|",
        *("| " + " | ".join(cell.replace("|", "\\|") for cell in line(row)) + " |" for row in rows),
    ]  # fmt: skip
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return page


def listed(chosen: argparse.Namespace) -> list[str]:
    """The models to run, by part of their names and by shard."""
    torchvision_ops.define()
    if chosen.exactly:
        return list(chosen.exactly)
    result = [n for n in names() if not chosen.models or any(part in n for part in chosen.models)]
    number, count = map(int, chosen.shard.split("/"))
    return result[number::count]


def main(arguments: Sequence[str]) -> int:
    """Runs what is not there yet and prints what is not right; 1 if there is any such row."""
    begun = time.monotonic()
    parser = harness.options("gradients", __doc__, limit=300.0, again=False)
    parser.add_argument(
        "--models",
        nargs="*",
        default=[],
        metavar="PART",
        help="those with one of these in their names",
    )
    parser.add_argument(
        "--exactly", nargs="*", default=[], metavar="NAME", help="these, in this order"
    )
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--options", default="", help="of the backend, as JSON")
    parser.add_argument(
        "--tf32", action="store_true", help="allow TF32, for eager and compiled alike"
    )
    parser.add_argument("--out", type=Path, default=None, help="the state file (JSON lines)")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--threads",
        type=int,
        default=None,
        help="of each process (all for one worker, 1 for several)",
    )
    parser.add_argument(
        "--time-budget",
        type=float,
        default=float("inf"),
        help="seconds after which it stops, with what is done",
    )
    parser.add_argument("--shard", default="0/1", help="this one of so many")
    parser.add_argument(
        "--again",
        nargs="*",
        default=[],
        metavar="STATUS",
        help="run rows with these statuses again",
    )
    parser.add_argument("--page", action="store_true", help="write the committed table")
    parser.add_argument(
        "--verbose", action="store_true", help="print each row, not only those that are not right"
    )
    chosen = parser.parse_args(arguments)
    if chosen.device == "cuda":
        harness.require_gpu()
    chosen.threads = chosen.threads or (1 if chosen.workers > 1 else os.cpu_count())
    default = f"gradients-{chosen.backend}-{chosen.device}{'-tf32' if chosen.tf32 else ''}.jsonl"
    out = chosen.out or Path(os.environ.get("OUT", harness.ROOT / ".nox")) / default
    out.parent.mkdir(parents=True, exist_ok=True)

    def mine() -> list[dict[str, Any]]:
        return [row for row in read(out) if key(chosen).items() <= row.items()]

    done = {row["model"] for row in mine() if row["status"] not in chosen.again}
    waiting = [name for name in listed(chosen) if name not in done]
    print(f"{len(waiting)} models to run, {len(done)} done; {out}", flush=True)
    harness.warm_up_files()
    sweep = Sweep(waiting, chosen, out, begun + chosen.time_budget)
    sweep.run()
    rows = mine()
    print(f"\n{report(rows)}\n{len(sweep.waiting)} not run; {time.monotonic() - begun:.0f} s")
    if chosen.page:
        print(write_page(rows, chosen))
    return 1 if any(row["status"] in _BAD for row in rows) else 0


# The process that trains --------------------------------------------------------------------------

#: Eager steps with nudged parameters beside which a step that did not pass is judged again.
NUDGED = 6
#: Other inputs that tell a wrong program from a decision that fell otherwise once.
SEEDS = (1, 2)


def measure(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The row of one model. settings: backend, device, tf32, options."""
    start = time.perf_counter()
    try:
        subject = find(name)
    except Unbuildable as error:
        return {"status": "not built", "error": str(error)[-1200:]}
    row: dict[str, Any] = {"chosen": subject.note, "seconds_build": time.perf_counter() - start}
    return row | Trial(subject, settings).row()


class Trial:
    """One model (mutable): its module in eager mode, compiled, and in float64."""

    def __init__(self, subject: Any, settings: dict[str, Any]) -> None:
        self.subject, self.settings, self.device = subject, settings, settings["device"]
        self.plain = subject.build().to(self.device)
        self.twin = self._copy()
        self.input_gradients = True

    def _copy(self) -> Any:
        """A module of its own with the same parameters and buffers."""
        twin = self.subject.build().to(self.device)
        with torch.no_grad():
            source = {**dict(self.plain.named_parameters()), **dict(self.plain.named_buffers())}
            for key, value in (*twin.named_parameters(), *twin.named_buffers()):
                if value.shape == source[key].shape:
                    value.copy_(source[key])
        return twin

    def arguments(self, seed: int, dtype: Any = None, device: str | None = None) -> Any:
        """Of a step. Floating inputs take part in the derivative where eager can do that."""

        def placed(value: Any) -> Any:
            if value.is_floating_point():
                value = value.to(dtype or value.dtype)
            value = value.to(device or self.device)
            return value.requires_grad_(self.input_gradients and value.is_floating_point())

        return tree_map_only(torch.Tensor, placed, self.subject.feed(seed))

    def row(self) -> dict[str, Any]:
        """The whole judgement."""
        count = sum(1 for _ in self.plain.parameters())
        row: dict[str, Any] = {
            "parameters": count,
            "elements": sum(p.numel() for p in self.plain.parameters()),
        }
        start = dict(self.plain.named_buffers())
        self.start = {key: value.detach().clone() for key, value in start.items()}
        try:
            eager, loss = self.eager(0)
            after = torch.get_rng_state()
            torch.manual_seed(STEP_SEED)
            row["draws"] = not torch.equal(after, torch.get_rng_state())
        except Exception as error:
            return row | {"status": "eager fails", "error": _short(error)}
        truth, reference = self.truth(0, loss, eager)
        row |= {
            "reference": reference,
            "gradients": sum(g is not None for g in eager.gradients.values()),
        }
        try:
            row |= self.compiled(0, loss)
        except Exception as error:
            return row | {"status": "error", "error": _short(error)} | self.counted
        return row | self.verdict(truth, eager, loss)

    def eager(self, seed: int, loss: Any = None) -> tuple[Any, Any]:
        """A step of the plain module, with the buffers that it had at first."""
        self._restore(self.plain)
        try:
            return step(self.plain, self.plain, self.arguments(seed), loss)
        except RuntimeError:
            if not self.input_gradients:
                raise
            self.input_gradients = (
                False  # it writes into its inputs, or takes no derivative by them
            )
            self._restore(self.plain)
            return step(self.plain, self.plain, self.arguments(seed), loss)

    def _restore(self, module: Any) -> None:
        with torch.no_grad():
            for key, value in module.named_buffers():
                if key in self.start and value.shape == self.start[key].shape:
                    value.copy_(self.start[key])

    def truth(self, seed: int, loss: Any, eager: Any) -> tuple[Any, str]:
        """The step in float64, and what it is: eager's own step where float64 does not run or takes
        another way."""
        for device in dict.fromkeys((self.device, "cpu")):
            try:
                self._restore(self.plain)
                wide = self._copy().double().to(device)
                if hasattr(wide, "set_experts_implementation"):
                    wide.set_experts_implementation("eager")  # grouped products know no float64
                with InDouble():
                    result, _ = step(wide, wide, self.arguments(seed, torch.float64, device), loss)
            except Exception as error:
                why = _short(error)
                continue
            return result, "float64" if device == self.device else "float64 on the CPU"
        return eager, f"eager ({why[:200]})"

    def compiled(self, seed: int, loss: Any) -> dict[str, Any]:
        """The first step of the compiled module."""
        self.counted: dict[str, Any] = {}
        options = self.settings.get("options")
        if options is None and self.settings["backend"] == "inductor":
            options = {}
        if self.settings["backend"] == "inductor":
            options = {"fallback_random": True, **options}
        self._restore(self.twin)
        with harness.noted_fallbacks() as fallbacks, CaptureCounter() as counter:
            self.function = tracer_core.compile(
                self.twin, backend=self.settings["backend"], options=options
            )
            start = time.perf_counter()
            try:
                self.ours, _ = step(self.function, self.twin, self.arguments(seed), loss)
            finally:
                self.counted = {
                    "graphs": len(counter.graphs), "breaks": [f"{kind}: {why}"[:160] for kind, why,
                    _ in counter.breaks],
                    "fallbacks": [why[:200] for why in fallbacks], "seconds_first": round(time.perf_counter() - start, 2),
                }  # fmt: skip
        return self.counted

    def verdict(self, truth: Any, eager: Any, loss: Any) -> dict[str, Any]:
        """Right, or wrong beside nudged steps of eager too; then whether it is with other
        inputs."""
        judged = judge(truth, [eager], self.ours)
        row: dict[str, Any] = {"compared": len(judged.errors)}
        if not judged.right:
            beside = [eager]
            for number in range(NUDGED):
                self._restore(self.plain)
                with (
                    nudged(self.plain, number),
                    contextlib.suppress(AssertionError),
                ):  # a decision changed a shape
                    beside.append(step(self.plain, self.plain, self.arguments(0), loss)[0])
            again = judge(truth, beside, self.ours)
            row["wrong_before_nudging"] = len(judged.wrong)
            judged = again
        if not judged.right:
            row["wrong_with_other_inputs"] = [self._again(seed) for seed in SEEDS]
        worst = judged.worst
        return row | {
            "status": "ok" if judged.right else "wrong",
            "worst": [worst.name, worst.ours, worst.eager] if worst else None,
            "largest": max(
                (e.ours for e in judged.errors if e.name.startswith("gradient")), default=0.0
            ),
            "number_wrong": len(judged.wrong) + len(judged.problems),
            "wrong": [[e.name, e.ours, e.eager] for e in judged.wrong[:12]],
            "problems": judged.problems[:12],
        }

    def _again(self, seed: int) -> int | str:
        """How many are wrong with other inputs."""
        try:
            eager, loss = self.eager(seed)
            truth, _ = self.truth(seed, loss, eager)
            self._restore(self.twin)
            ours, _ = step(self.function, self.twin, self.arguments(seed), loss)
        except Exception as error:
            return _short(error)[:300]
        judged = judge(truth, [eager], ours)
        return len(judged.wrong) + len(judged.problems)


def _short(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    where = " < ".join(f"{os.path.basename(f.filename)}:{f.lineno}" for f in reversed(frames))
    return f"{type(error).__name__}: {str(error)[:700]} ({where})"


def import_libraries(settings: dict[str, Any]) -> None:
    """The model libraries, quietly, with the settings of this run."""
    torchvision_ops.define()
    import transformers

    transformers.logging.set_verbosity_error()
    tf32 = bool(settings.get("tf32"))
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32


def serve(settings: dict[str, Any]) -> Callable[[str], dict[str, Any]]:
    """In a child: what answers a model's name with its row. settings: backend, device, tf32,
    options."""
    import_libraries(settings)

    def tell(name: str) -> dict[str, Any]:
        start = time.perf_counter()
        try:
            row = measure(name, settings)
        except Exception as error:
            row = {"status": "broken", "error": _short(error)}
        tracer_core.reset()
        gc.collect()
        if settings["device"] == "cuda":
            torch.cuda.empty_cache()
        return row | {"seconds": round(time.perf_counter() - start, 2)}

    return tell
