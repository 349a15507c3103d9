"""``python -m tracer_core.verification.trial SETTINGS RECORDS SCRIPT ...``: a trial of `bisect`.

Runs a script whose calls of `tracer_core.compile` get other settings. SETTINGS: the fields of `Trial`
as JSON. RECORDS: a file to which each compiled graph adds lines of JSON. Ends in an error if the
script does, or if a backend failed and its graph ran in eager mode.
"""

from __future__ import annotations

import dataclasses
import json
import runpy
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tracer_core.contract.backend import resolve
from tracer_core.contract.runner import RunFunction
from tracer_core.contract.specs import CompileSpec
from tracer_core.debug import stages
from tracer_core.debug.graph_names import is_part_of
from tracer_core.dispatch import validation
from tracer_core.options import CompileConfig
from tracer_core.registry.eager import compile_eager
from tracer_core.registry.torch_style import TorchStyle


@dataclass(frozen=True, slots=True)
class Trial:
    """The settings of one run of the script."""

    #: The backend in place of the script's.
    backend: str | None = None
    #: Options of the script's backend if it has them all; with any, its mode is the default one.
    options: Mapping[str, Any] = field(default_factory=dict)
    #: The graphs that are compiled; the others run eagerly. None: all.
    graphs: Collection[str] | None = None
    #: The operators that are compiled; the others run eagerly. None: all.
    operators: Collection[str] | None = None
    #: Environment variables.
    variables: Mapping[str, str] = field(default_factory=dict)

    def changed(self, config: CompileConfig, record: Callable[[Any], None]) -> CompileConfig:
        """Returns the configuration of a `compile()` of the script with these settings.

        record: is given each graph that is compiled.
        """
        config = dataclasses.replace(config, native_if_faster=False, when="now")
        if self.backend is not None:
            config = validation.build_config(backend=self.backend, dynamic=config.dynamic)
        elif all(hasattr(config.options, name) for name in self.options):
            options = (
                dataclasses.replace(config.options, **self.options)
                if self.options
                else config.options
            )
            mode = "default" if self.options else config.mode
            config = dataclasses.replace(config, options=options, mode=mode)
        else:
            record({"unchanged": config.backend.name})
        if isinstance(config.backend.compile, TorchStyle):
            return config
        compile_all, supports = resolve(config.backend.compile), resolve(config.backend.supports)

        def compile_graph(gm: torch.fx.GraphModule, spec: CompileSpec) -> RunFunction:
            if self.graphs is not None and not is_part_of(spec.name, self.graphs):
                return compile_eager(gm, spec)
            calls = [node for node in gm.graph.nodes if node.op == "call_function"]
            operators = [(str(node.target), node.meta.get("user_frame")) for node in calls]
            record({"graph": spec.name, "operators": operators})
            result: RunFunction = compile_all(gm, spec)
            return result

        def supported(node: torch.fx.Node) -> str | None:
            if self.operators is not None and str(node.target) not in self.operators:
                return "left out by tracer-core bisect"
            return None if supports is None else supports(node)

        backend = dataclasses.replace(config.backend, compile=compile_graph, supports=supported)
        return dataclasses.replace(config, backend=backend)


def main() -> None:
    """Runs the trial."""
    _, settings, path, *sys.argv = sys.argv
    trial = Trial(**json.loads(settings))
    failures: list[str] = []

    def record(row: Any) -> None:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def notice(stage: stages.StageRecord) -> None:
        if stage.name == "fallback" and stage.text.startswith("backend_failed"):
            failures.append(stage.text)
        for kernel in (stage.data or {}).get("kernels", ()):
            record({"graph": stage.graph, "kernel": kernel["name"], "frames": kernel["frames"]})

    stages.observe(notice)
    validation.changed = lambda config: trial.changed(config, record)
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.exit(f"the backend failed: {failures[0]}" if failures else 0)


if __name__ == "__main__":
    main()
