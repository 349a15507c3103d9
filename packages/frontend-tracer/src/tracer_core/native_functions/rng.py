"""Torch's random number generators: seeds, states and ``torch.Generator`` objects.

Calls that seed or read a generator become nodes of the graph, in their order among the operators
that draw. A generator from before the trace is an input of the graph; no trace advances one.
"""

from __future__ import annotations

from typing import Any

import torch

from tracer_core.guards.source import SourceKind
from tracer_core.guards.value_kinds import is_constant
from tracer_core.native_effects.effects import breaks, special, special_each
from tracer_core.torch_private.names import names
from tracer_core.trace.tracer import Tracer

_KIND = "side_effect_native"
_CUDA = "cuda.manual_seed cuda.manual_seed_all"
breaks(
    _KIND,
    "a seed is drawn, which nothing repeats",
    names("seed Generator.seed cuda.seed cuda.seed_all"),
)


def _state_like(tracer: Tracer, state: torch.Tensor) -> Any:
    """Returns a fake of a state."""
    with tracer.recorder.fakes.mode:
        return torch.empty(state.shape, dtype=state.dtype)


def _number(tracer: Tracer, seed: Any) -> Any:
    """Returns a seed as a graph holds it."""
    if type(seed) is not torch.SymInt:
        result = tracer.operators.index(seed)
        if not isinstance(result, int):  # torch calls int(), which may run code of the program
            tracer.break_graph(_KIND, "a seed that is no integer")
        return result
    symbolic = tracer.recorder.concrete is None
    return tracer.recorder.argument(seed if symbolic else tracer.scalars.concrete(seed))


#: Factory -> what fills an empty tensor with the same samples.
_FILLS = {
    factory: fill
    for factories, fills in (
        (names("rand"), names("Tensor.uniform_")),
        (names("randn"), names("Tensor.normal_")),
        (names("randint"), names("Tensor.random_")),
    )
    for factory, fill in zip(factories, fills, strict=False)
}


@special_each(*_FILLS)
def sampled(tracer: Tracer, function: Any, *args: Any, **kwargs: Any) -> Any:
    """With a generator, fills an empty tensor as the kernel does, which takes no symbolic sizes."""
    call, options, limits = tracer.native_calls.call_torch, dict(kwargs), []
    generator = options.pop("generator", None)
    if generator is None or not args or options.keys() - {"dtype", "device"}:
        return call(function, [*args], kwargs)
    if function.__name__ == "randint":
        options, limits = {"dtype": torch.int64, **options}, [0, *args[:-1]][-2:]
    empty = call(torch.empty, [*args[len(args) - 1 if limits else 0 :]], options)
    return call(_FILLS[function], [empty, *limits], {"generator": generator})


# -- the default generators --


@special_each(*names(f"manual_seed random.manual_seed {_CUDA}"))
def manual_seed(tracer: Tracer, function: Any, seed: Any) -> Any:
    tracer.recorder.rng_node("call_function", function, (_number(tracer, seed),), None)
    tracer.recorder.seeded = True
    if function in names(_CUDA):
        return None
    tracer.provenance.constant(torch.default_generator)
    return torch.default_generator


@special_each(*names("get_rng_state cuda.get_rng_state"))
def get_rng_state(tracer: Tracer, function: Any, *device: Any) -> Any:
    if not all(map(is_constant, device)):
        tracer.break_graph(_KIND, f"{function.__name__}: of which device?")
    fake = _state_like(tracer, function(*device))
    tracer.recorder.bind(fake, tracer.recorder.rng_node("call_function", function, device, fake))
    if not tracer.recorder.seeded:
        tracer.recorder.first_states[id(fake)] = fake, fake._version
    return fake


@special_each(*names("set_rng_state cuda.set_rng_state"))
def set_rng_state(tracer: Tracer, function: Any, state: Any, *device: Any) -> None:
    if not isinstance(state, torch.Tensor) or not all(map(is_constant, device)):
        tracer.break_graph(_KIND, f"{function.__name__} of these arguments")
    fake = tracer.recorder.as_fake(state)
    node = tracer.recorder.argument(fake)
    tracer.recorder.rng_node("call_function", function, (node, *device), None)
    tracer.recorder.seeded = tracer.recorder.first_states.get(id(fake)) != (fake, fake._version)


@special(*names("initial_seed"))
def initial_seed(tracer: Tracer) -> Any:
    if tracer.recorder.seeded:
        tracer.break_graph(_KIND, "the seed is read after it was set")
    source = tracer.provenance.sources.make(
        tracer.provenance.constant(torch.initial_seed), SourceKind.CALLED
    )
    return tracer.provenance.read_varying(torch.initial_seed(), source)


# -- generator objects --


@special(*names("Generator"))
def new_generator(tracer: Tracer, *args: Any, **kwargs: Any) -> Any:
    device = [*args, *kwargs.values()]
    if not all(map(is_constant, device)) or kwargs.keys() - {"device"}:
        tracer.break_graph(_KIND, "a generator is made of these arguments")
    generator = torch.Generator(*args, **kwargs)
    node = tracer.recorder.rng_node("call_function", torch.Generator, tuple(device), generator)
    tracer.recorder.bind(generator, node)
    return tracer.native_calls.note_allocation(generator)


@special(*names("Generator.manual_seed"))
def seed_generator(tracer: Tracer, generator: Any, seed: Any) -> Any:
    node = tracer.recorder.generator(generator)
    args = node, _number(tracer, seed)
    tracer.recorder.rng_node("call_method", "manual_seed", args, None)
    return generator


@special(*names("Generator.get_state"))
def generator_state(tracer: Tracer, generator: Any) -> Any:
    node = tracer.recorder.generator(generator)
    fake = _state_like(tracer, generator.get_state())
    result = tracer.recorder.rng_node("call_method", "get_state", (node,), fake)
    tracer.recorder.bind(fake, result)
    return fake


@special(*names("Generator.set_state"))
def set_generator_state(tracer: Tracer, generator: Any, state: Any) -> Any:
    if not isinstance(state, torch.Tensor):
        tracer.break_graph(_KIND, "the state of a generator is set to no tensor")
    recorder = tracer.recorder
    args = recorder.generator(generator), recorder.argument(recorder.as_fake(state))
    recorder.rng_node("call_method", "set_state", args, None)
    return generator
