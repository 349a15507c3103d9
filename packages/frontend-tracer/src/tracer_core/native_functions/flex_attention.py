"""flex_attention: its functions (score_mod, mask_mod) become scalar programs, and the call one node.

torch's own Python around the operator (argument checks, BlockMask, kernel_options) is interpreted.
"""

from __future__ import annotations

import json
import types
from typing import Any, cast

import torch

from tracer_core import torch_private
from tracer_core.contract.lowering_errors import LoweringUnsupported
from tracer_core.fx_capture.higher_order_calls import FlexAttentionCall, MaskCall
from tracer_core.native_effects import polyfills
from tracer_core.native_effects.effects import CALLED_TYPES, interpreted_as, special, special_each
from tracer_core.ops.higher_order.flex_attention import PAIRS, WHOLE, Flex
from tracer_core.ops.higher_order.scalar_program import ScalarProgram
from tracer_core.torch_private.names import classes, name, names
from tracer_core.trace.subgraph_regions import Region
from tracer_core.trace.tracer import Tracer

_FLEX = "nn.attention.flex_attention"
#: Functions that leave scores, or positions, as they are.
_IDENTITY, _NO_MASK = name(f"{_FLEX}._identity"), name(f"{_FLEX}.noop_mask")
_BLOCK_MASKS = classes("BlockMask", of=_FLEX)
_MEANT_FOR_COMPILERS = frozenset(names("flex_attention create_block_mask", of=_FLEX))
#: The position of create_block_mask's argument `_compile`.
_COMPILE = 7
#: Options of the call that say what its results are used for.
_NOT_OPTIONS = frozenset({"OUTPUT_LOGSUMEXP", "OUTPUT_MAX", "WRITE_DQ"})


@special_each(*names(f"{_FLEX}.flex_attention"))
def flex_attention(tracer: Tracer, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Interprets the call. A mask_mod in a BlockMask from outside is only called: its code and what
    it reads are guarded, not its identity, which may be another in each call."""
    block_mask = kwargs.get("block_mask", args[4] if len(args) > 4 else None)
    source = tracer.provenance.source_of(block_mask)
    mask_mod = getattr(block_mask, "__dict__", {}).get("mask_mod")
    if type(block_mask) in _BLOCK_MASKS and source is not None:
        at = tracer.provenance.sources.attribute(source, "mask_mod")
        if type(mask_mod) is types.FunctionType and tracer.calls.read_by_code(mask_mod, at):
            tracer.provenance.note_read(mask_mod, at)
    return tracer.calls.frame_of(function, [*args], kwargs)


@special_each(*names(f"{_FLEX}.create_block_mask"))
def create_block_mask(tracer: Tracer, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Interprets the call, without its own use of torch.compile."""
    inputs = [*args]
    if len(inputs) > _COMPILE:
        inputs[_COMPILE] = False
    return tracer.calls.frame_of(
        function, inputs, {k: v for k, v in kwargs.items() if k != "_compile"}
    )


@special_each(*names("compile"))
def compile_by_torch(tracer: Tracer, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Captures functions that are only fast if compiled; others run as torch compiles them."""
    model = args[0] if args else kwargs.get("model")
    if type(model) is types.FunctionType and model in _MEANT_FOR_COMPILERS:
        return model
    return tracer.calls.frame_of(function, [*args], kwargs)


class _Function:
    """A captured function of scores. buffers, numbers: what it reads, as the call's arguments."""

    def __init__(self, buffers: list[torch.Tensor], numbers: list[Any]) -> None:
        self.buffers, self.numbers = buffers, numbers
        self.graph: torch.fx.GraphModule | None = None
        self.program: ScalarProgram | None = None
        self.gradient: ScalarProgram | None = None

    def trace(
        self, tracer: Tracer, what: str, function: Any, score: torch.Tensor | None, like: Any
    ) -> torch.Tensor:
        """Traces the function on 0-d tensors and returns its result. score: its first argument; None
        for a function of positions only."""
        recorder = tracer.recorder
        region = Region(recorder, tracer.effects, tracer.outer_step, what)
        with recorder.fakes.mode, torch.no_grad():
            positions = [torch.zeros((), dtype=torch.int64, device=like.device) for _ in range(4)]
        scalars = positions if score is None else [score, *positions]
        for value in scalars:
            region.operand(value)
        before, recorder.reads_elements = recorder.reads_elements, True
        try:
            result = tracer.calls.call_value(function, scalars, {})
        finally:
            recorder.reads_elements = before
        if region.changed() is not None:
            tracer.break_graph("higher_order", f"{what} changes a {region.changed()}")
        if not isinstance(result, torch.Tensor):
            tracer.break_graph("higher_order", f"{what} returns what is no tensor")
        result = recorder.as_fake(result)
        if result.dim():
            tracer.break_graph("higher_order", f"{what} returns more than one element")
        self.graph, outer = region.take([result], of_operands=True)
        outer = self._with_tensors(tracer, outer, like)
        roles = [self._role(tracer, what, value, like) for value in outer]
        roles += (["score"] if score is not None else []) + ["b", "h", "q", "kv"]
        try:
            self.program, self.gradient = tracer.lower_scalars(
                self.graph, roles, result.requires_grad
            )
        except LoweringUnsupported as error:
            tracer.break_graph("higher_order", f"{what}: {error}")
        return cast(torch.Tensor, result)

    def _with_tensors(self, tracer: Tracer, outer: list[Any], like: Any) -> list[Any]:
        """Replaces floats that change from call to call by 0-d tensors, which the operator takes."""
        assert self.graph is not None
        dtype = torch.float64 if like.dtype is torch.float64 else torch.float32
        result = []
        for value, node in zip(outer, self.graph.graph.find_nodes(op="placeholder"), strict=False):
            if isinstance(value, torch.SymFloat):
                options = {"dtype": dtype, "device": like.device}
                value = tracer.recorder.call(torch.scalar_tensor, (value,), options)
                node.meta["val"] = value
            result.append(value)
        return result

    def _role(self, tracer: Tracer, what: str, value: Any, like: Any) -> str:
        """Returns the name in the program of an outer value that the function reads."""
        known = self.buffers if isinstance(value, torch.Tensor) else self.numbers
        if isinstance(value, torch.Tensor) and value.device != like.device:
            tracer.break_graph("higher_order", f"{what} reads a tensor on {value.device}")
        letter = "t" if known is self.buffers else "n"
        for k, item in enumerate(known):
            if item is value:
                return f"{letter}{k}"
        known.append(value)
        return f"{letter}{len(known) - 1}"


def _flex_attention(tracer: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Calls torch's higher-order operator, whose results are (out, lse, largest score), the last two
    over ln 2."""
    query, key, value, score_mod, block_mask, scale, options, *more = args
    if kwargs or any(map(tracer.containers.spread, more)):
        tracer.break_graph("higher_order", "flex_attention's operator with buffers")
    if torch_private.transforms_active():
        tracer.break_graph("higher_order", "flex_attention under a transform of torch.func")
    _, _, *rest = tracer.containers.spread(block_mask)
    listed, (rows, columns, mask_mod) = rest[: 2 * len(PAIRS)], rest[-3:]
    blocks = dict(zip(PAIRS, zip(listed[::2], listed[1::2], strict=True), strict=True))
    blocks = {kind: pair for kind, pair in blocks.items() if pair[0] is not None}
    fakes = [tracer.recorder.as_fake(item) for item in (query, key, value)]
    _require_static(tracer, fakes)
    scale, rows, columns = (tracer.scalars.concrete(value) for value in (scale, rows, columns))
    options = {
        option: tracer.scalars.concrete(item)
        for option, item in tracer.containers.mapping(options).items()
        if option not in _NOT_OPTIONS
    }
    buffers: list[torch.Tensor] = []
    numbers: list[Any] = []
    score, mask = _Function(buffers, numbers), _Function(buffers, numbers)
    like = fakes[0]
    if score_mod is not _IDENTITY:
        scores = torch.float64 if like.dtype is torch.float64 else torch.float32
        with tracer.recorder.fakes.mode, torch.no_grad():
            inputs = torch.zeros((), dtype=scores, device=like.device)
        inputs.requires_grad_(torch.is_grad_enabled() and any(fake.requires_grad for fake in fakes))
        result = score.trace(tracer, "score_mod", score_mod, inputs, like)
        if not result.is_floating_point():
            tracer.break_graph("higher_order", "score_mod returns no floating-point number")
    if mask_mod is not _NO_MASK:
        result = mask.trace(tracer, "mask_mod", mask_mod, None, like)
        if result.dtype is not torch.bool or result.requires_grad:
            tracer.break_graph("higher_order", "mask_mod returns no bool")
    differentiates = torch.is_grad_enabled() and any(
        fake.requires_grad for fake in (*fakes, *map(tracer.recorder.as_fake, buffers))
    )
    if differentiates and "q" not in blocks:
        tracer.break_graph("higher_order", "a BlockMask without blocks of queries, and gradients")
    if mask_mod is _NO_MASK and rows == columns == WHOLE:
        blocks = {}
    flex = Flex(
        score.program, mask.program, score.gradient, tuple(blocks), (rows, columns), options
    )
    target = FlexAttentionCall(flex.text(), float(scale), score.graph, mask.graph)
    tensors = [item for pair in blocks.values() for item in pair]
    return tracer.recorder.call(target, (query, key, value, tensors, buffers, numbers), {})


def _require_static(tracer: Tracer, fakes: list[Any]) -> None:
    """Guards the numbers of heads and their widths, which kernels are made for."""
    for fake in fakes:
        for dim in (1, 3):
            tracer.scalars.concrete(fake.shape[dim])


for _type in {type(item) for item in names("ops.higher_order.flex_attention")}:
    CALLED_TYPES[_type] = _flex_attention


@special(*names(f"{_FLEX}.create_mask"), atomic=True)
def create_mask(
    tracer: Tracer, mod_fn: Any, B: Any, H: Any, Q_LEN: Any, KV_LEN: Any, device: Any = None
) -> Any:
    """Evaluates a mask_mod, or where a score_mod leaves a score of zero finite, at all positions."""
    if device is None:
        device = torch.accelerator.current_accelerator() or "cpu"
    kind = tracer.calls.call_value(name(f"{_FLEX}._get_mod_type"), [mod_fn], {})
    of_scores = kind is name(f"{_FLEX}._ModificationType.SCORE_MOD")
    recorder = tracer.recorder
    with recorder.fakes.mode, torch.no_grad():
        like = torch.zeros((), device=device)
    function = _Function([], [])
    with torch.no_grad():
        function.trace(
            tracer,
            "score_mod" if of_scores else "mask_mod",
            mod_fn,
            like if of_scores else None,
            like,
        )
    assert function.program is not None and function.graph is not None
    sizes = [1 if B is None else B, 1 if H is None else H, Q_LEN, KV_LEN]
    target = MaskCall(json.dumps(function.program.as_json()), like.device, function.graph)
    result = recorder.call(target, (sizes, function.buffers, function.numbers), {})
    return tracer.calls.call_value(polyfills.is_finite, [result], {}) if of_scores else result


# Eager has no gradients on the CPU: a compiled call has.
interpreted_as(
    polyfills.attention_device, *names(f"{_FLEX}._validate_device", in_every_build=False)
)
for _polyfill in (polyfills.ordered_to_dense, polyfills.dense_to_ordered):
    interpreted_as(_polyfill, *names(f"{_FLEX}._{_polyfill.__name__}", in_every_build=False))
