"""What `benchmarks.gradients` starts: one training step of one model after another, compiled and
judged by float64.

In: settings as JSON on the command line; names of `benchmarks.zoo_models.automatic` as questions.
Out: a row each.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import time
import traceback
from typing import Any
from unittest import mock

from benchmarks import processes

#: Eager steps with nudged parameters beside which a step that did not pass is judged again.
NUDGED = 6
#: Other inputs that tell a wrong program from a decision that fell otherwise once.
SEEDS = (1, 2)


def measure(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The row of one model. settings: backend, device, tf32, options."""
    from benchmarks.zoo_models.automatic import Unbuildable, find

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
        import torch

        twin = self.subject.build().to(self.device)
        with torch.no_grad():
            source = {**dict(self.plain.named_parameters()), **dict(self.plain.named_buffers())}
            for key, value in (*twin.named_parameters(), *twin.named_buffers()):
                if value.shape == source[key].shape:
                    value.copy_(source[key])
        return twin

    def arguments(self, seed: int, dtype: Any = None, device: str | None = None) -> Any:
        """Of a step. Floating inputs take part in the derivative where eager can do that."""
        import torch
        from torch.utils._pytree import tree_map_only

        def placed(value: Any) -> Any:
            if value.is_floating_point():
                value = value.to(dtype or value.dtype)
            value = value.to(device or self.device)
            return value.requires_grad_(self.input_gradients and value.is_floating_point())

        return tree_map_only(torch.Tensor, placed, self.subject.feed(seed))

    def row(self) -> dict[str, Any]:
        """The whole judgement."""
        import torch

        from benchmarks.gradient_errors import STEP_SEED

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
            why = self.eager_told_that_it_is_compiled(loss)
            status = "eager fails" if why else "error"
            return row | {"status": status, "error": f"{_short(error)}{why}"} | self.counted
        return row | self.verdict(truth, eager, loss)

    def eager(self, seed: int, loss: Any = None) -> tuple[Any, Any]:
        """A step of the plain module, with the buffers that it had at first."""
        from benchmarks.gradient_errors import step

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

    def eager_told_that_it_is_compiled(self, loss: Any) -> str:
        """How eager fails where it is told that it is compiled: some models compute in another way
        then (masks that are left out otherwise), which may not fit the inputs. "" where it does not
        fail."""
        import torch

        try:
            with mock.patch.object(torch.compiler, "is_compiling", lambda: True):
                self.eager(0, loss)
        except Exception as error:
            return f"; and eager, told that it is compiled: {_short(error)}"
        return ""

    def _restore(self, module: Any) -> None:
        import torch

        with torch.no_grad():
            for key, value in module.named_buffers():
                if key in self.start and value.shape == self.start[key].shape:
                    value.copy_(self.start[key])

    def truth(self, seed: int, loss: Any, eager: Any) -> tuple[Any, str]:
        """The step in float64, and what it is: eager's own step where float64 does not run or takes
        another way.
        """
        from benchmarks.gradient_errors import InDouble, step

        for device in dict.fromkeys((self.device, "cpu")):
            import torch

            try:
                self._restore(self.plain)
                wide = self._copy().double().to(device)
                if hasattr(wide, "set_experts_implementation"):
                    wide.set_experts_implementation("eager")  # grouped products know no float64
                with InDouble():
                    found, _ = step(wide, wide, self.arguments(seed, torch.float64, device), loss)
            except Exception as error:
                why = _short(error)
                continue
            return found, "float64" if device == self.device else "float64 on the CPU"
        return eager, f"eager ({why[:200]})"

    def compiled(self, seed: int, loss: Any) -> dict[str, Any]:
        """The first step of the compiled module."""
        import tracer_core
        from benchmarks.gradient_errors import step
        from tracer_core.dispatch import compile_graph
        from tracer_core.testing import CaptureCounter

        fallbacks: list[str] = []
        compile_graph.report = lambda fallback: fallbacks.append(
            f"{fallback.kind}: {fallback.reason}"[:200]
        )
        self.counted: dict[str, Any] = {}
        options = self.settings.get("options")
        if options is None and self.settings["backend"] == "inductor":
            options = {}
        if self.settings["backend"] == "inductor":
            options = {"fallback_random": True, **options}
        self._restore(self.twin)
        with CaptureCounter() as counter:
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
                    "fallbacks": fallbacks, "seconds_first": round(time.perf_counter() - start, 2),
                }  # fmt: skip
        return self.counted

    def verdict(self, truth: Any, eager: Any, loss: Any) -> dict[str, Any]:
        """Right, or wrong beside nudged steps of eager too; then whether it is with other
        inputs.
        """
        from benchmarks.gradient_errors import judge, nudged, step

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
        from benchmarks.gradient_errors import judge, step

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
    if settings.get("threads"):
        os.environ["OMP_NUM_THREADS"] = str(settings["threads"])  # before torch is imported
    os.environ["TRACER_STRICT"] = "1"
    from tests.support import torchvision_ops

    torchvision_ops.define()
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    tf32 = bool(settings.get("tf32"))
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32


def main(arguments: list[str]) -> None:
    settings = json.loads(arguments[0])
    import_libraries(settings)
    import torch

    import tracer_core

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

    processes.answers(tell)


if __name__ == "__main__":
    main(sys.argv[1:])
