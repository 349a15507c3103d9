"""Writes the graphs of one call as a script; see `tracer_core.repro`."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tracer_core.aot.bug_report import versions
from tracer_core.api import list_backends, original
from tracer_core.contract.backend import wants_constants
from tracer_core.contract.runner import RunFunction
from tracer_core.contract.specs import CompileSpec, Role
from tracer_core.debug.graph_script import graph_code, script
from tracer_core.errors import OptionError, TracerError
from tracer_core.execution.call import name_of
from tracer_core.execution.compiled_function import CompiledFunction
from tracer_core.markers import traced_function
from tracer_core.options import CompileConfig
from tracer_core.registry.eager import EAGER, graph_function
from tracer_core.verification.reduce import Part, smallest
from tracer_core.verification.state import ProgramState, copied

#: What the script does with a graph.
_MAIN = Path(__file__).with_name("repro.template")


def recorded(program: Any, args: Any, kwargs: Any, dynamic: bool | None) -> list[Part]:
    """Returns the graphs that a call of a program runs, in order."""
    result: dict[str, Part] = {}

    def compile_graph(gm: torch.fx.GraphModule, spec: CompileSpec) -> RunFunction:
        run_graph = graph_function(gm)

        def run(inputs: list[Any]) -> Sequence[Any]:
            if spec.name not in result:
                roles = [item.role in (Role.PARAMETER, Role.BUFFER) for item in spec.inputs]
                own = [at for at, is_own in enumerate(roles) if is_own]
                result[spec.name] = (gm, copied(inputs), own)
            return run_graph(inputs)

        return run

    followed, first = traced_function(program)
    state = ProgramState(program, (args, kwargs))
    config = CompileConfig(dataclasses.replace(EAGER, compile=compile_graph), dynamic=dynamic)
    own_args, own_kwargs = copied((args, kwargs))
    try:
        CompiledFunction(followed, config)(*first, *own_args, **own_kwargs)
    finally:
        state.restore()
    return list(result.values())


def write_script(
    fast: Any, config: CompileConfig, args: Any, kwargs: Any,
    path: str | os.PathLike[str] | None, store_inputs: bool, seconds: float,
) -> Path:  # fmt: skip
    """Does `repro`. config: of `fast`."""
    settings, program = _settings(config), original(fast)
    parts = recorded(program, args, kwargs, config.dynamic)
    small = [smallest(part, config, seconds) for part in parts]
    if wrong := [part for part, full in zip(small, parts, strict=True) if part is not full]:
        small = wrong  # the others are right
    graphs = [
        (graph_code(gm, f"graph_{number}", inputs, ranges=True), inputs, own)
        for number, (gm, inputs, own) in enumerate(small)
    ]
    lost = [item for code, _, _ in graphs for item in code.lost]
    if lost or not graphs:
        why = f"a graph names what no script can make: {'; '.join(lost)}"
        raise TracerError(
            f"repro: {why if lost else 'nothing was captured; tracer_core.explain says why'}"
        )
    name = name_of(program) if hasattr(program, "__name__") else type(program).__name__
    file = Path(
        f"repro_{re.sub(r'[^A-Za-z0-9]+', '_', name).strip('_')}.py" if path is None else path
    )
    main = [_MAIN.read_text("utf-8"), 'if __name__ == "__main__":']
    for code, _, own in graphs:
        inputs = f"lambda: stored({code.name!r})" if store_inputs else f"{code.name}_inputs"
        parameters = own if wants_constants(config.backend, config.options) else []
        main.append(f"    with {_modes()}:")
        main.append(f"        check({code.name}, {inputs}, {parameters}, {settings})")
    comment = [
        f"the graphs of a call of {name}, compiled again and compared with eager mode",
        versions(),
    ]
    try:
        file.write_text(script([code for code, _, _ in graphs], comment, main), encoding="utf-8")
        if store_inputs:
            torch.save({code.name: inputs for code, inputs, _ in graphs}, file.with_suffix(".pt"))
    except OSError as error:
        raise TracerError(f"repro: {file} cannot be written: {error.strerror or error}") from error
    return file


def _settings(config: CompileConfig) -> str:
    """Returns the arguments of `compile` as code. Raises OptionError."""
    name = config.backend.name
    if name not in list_backends() or name == "auto":
        what = f"repro: a script cannot compile with {name!r}"
        raise OptionError(
            f"{what}; name one installed backend (a callable: give it an entry point; a list: choices() shows which serves)"
        )
    fields = dataclasses.fields(config.options) if dataclasses.is_dataclass(config.options) else ()
    values = {item.name: getattr(config.options, item.name) for item in fields}
    options = {item.name: values[item.name] for item in fields if values[item.name] != item.default}
    result = {
        "backend": name,
        "mode": config.mode,
        "options": options or None,
        "dynamic": config.dynamic,
    }
    return ", ".join(f"{key}={value!r}" for key, value in result.items() if value is not None)


def _modes() -> str:
    """Returns contexts with the caller's modes as code."""
    modes = [f"torch.set_grad_enabled({torch.is_grad_enabled()})"]
    modes += ["torch.inference_mode()"] * torch.is_inference_mode_enabled()
    for device in filter(torch.is_autocast_enabled, ("cpu", "cuda")):
        modes.append(f"torch.autocast({device!r}, dtype={torch.get_autocast_dtype(device)})")
    return ", ".join(modes)
