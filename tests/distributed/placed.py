"""What the ranks run for test_placed.py: DTensors as parameters, inputs, intermediates and
results.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, parallel
from torch.utils.checkpoint import checkpoint

import tracer_core
from tests.distributed.training import CLOSE, counts_of, no_fallbacks
from tracer_core.testing import CaptureCounter, compare

#: The mesh of all ranks; made by `_mesh`.
_MESHES: list[Any] = []


def mesh() -> Any:
    if not _MESHES:
        _MESHES.append(init_device_mesh("cpu", (dist.get_world_size(),)))
    return _MESHES[0]


def _drawn(*sizes: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def placed(value: torch.Tensor, *placements: Any) -> Any:
    return distribute_tensor(value, mesh(), placements).requires_grad_()


class Weights(torch.nn.Module):
    """A linear layer without bias whose columns are split."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(placed(_drawn(8, 6, seed=1).double(), Shard(1)))

    def forward(self, x: Any) -> Any:
        return torch.tanh(x @ self.weight) * 2


class Summed(Weights):
    """The result is a sum over the ranks that is still to be made."""

    def forward(self, x: Any) -> Any:
        return x.t() @ x * 0.5


class Between(Weights):
    """Plain in and out."""

    def forward(self, x: Any) -> Any:
        full = DTensor.from_local(x, mesh(), [Replicate()])
        return (full @ self.weight).redistribute(placements=[Replicate()]).to_local().exp()


class Asked(Weights):
    """Asks what it gets for its placements."""

    def forward(self, x: Any) -> Any:
        y = x @ self.weight
        for placement in y.placements:
            if isinstance(placement, Shard) and placement.is_shard(1):
                y = y + placement.dim
        if y.placements == (Shard(1),) and x.device_mesh.ndim == 1:
            y = y.redistribute(y.device_mesh, [Replicate()])
        return y.full_tensor() + x.to_local().sum()


class Gathered(Weights):
    def forward(self, x: Any) -> Any:
        local = (x @ self.weight).to_local() * (dist.get_rank() + 1)
        parts = DTensor.from_local(local, mesh(), [Shard(1)])
        return parts.full_tensor().sin()


class Exchanged(Weights):
    """From rows that are split to columns that are."""

    def forward(self, x: Any) -> Any:
        return x.redistribute(placements=[Shard(1)]).sin()


class Reduced(Weights):
    """A loss."""

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.layer_norm(x, (8,)).pow(2).mean().full_tensor()


class PartOfPlain(Weights):
    """Each rank's plain tensor is a part of a sum."""

    def forward(self, x: Any) -> Any:
        parts = DTensor.from_local(x.to_local().sum(0, keepdim=True), mesh(), [Partial()])
        return parts.redistribute(placements=[Replicate()]) @ self.weight


class Recomputed(Weights):
    """Computed again in the backward."""

    def forward(self, x: Any) -> Any:
        return checkpoint(super().forward, x, use_reentrant=False)


class Broken(Weights):
    """A DTensor is live across a graph break."""

    def forward(self, x: Any) -> Any:
        y = x @ self.weight
        tracer_core.graph_break()
        return y.sin().redistribute(placements=[Replicate()])


class Distributed(Weights):
    """Each rank takes its part of a plain tensor that all have."""

    def forward(self, x: Any) -> Any:
        table = torch.arange(48.0, dtype=torch.float64).reshape(8, 6) / 48
        parts = distribute_tensor(table, mesh(), [Shard(1)], src_data_rank=None)
        return x @ (self.weight * parts)


#: rows, uneven and fewer than the ranks among them.
ROWS = {"even": 4, "uneven": 5, "one": 1}
MODULES = {
    value.__name__: value
    for value in (
        Weights,
        Summed,
        Between,
        Asked,
        Gathered,
        Exchanged,
        Reduced,
        PartOfPlain,
        Recomputed,
        Distributed,
    )
}


def given(kind: type, rows: int) -> Any:
    value = _drawn(rows, 8, seed=2).double()
    return value.requires_grad_() if kind is Between else placed(value, Shard(0))


def spread(value: Any) -> Any:
    """What is compared of a tensor: its local values, their strides, and how they are placed."""
    if not isinstance(value, DTensor):
        return None if value is None else (value * 1).detach()
    local = value.to_local() * 1
    place = [str(value.placements), list(value.shape), list(value.stride()), str(value.dtype)]
    return [local.detach(), *place]


def trained(module: Any, call: Any, value: Any) -> list[Any]:
    """What a call returns, and the gradients of its argument and parameters."""
    module.zero_grad()
    value = value.detach().requires_grad_()
    result = call(value)
    full = result.full_tensor() if isinstance(result, DTensor) else result * 1
    full.cos().sum().backward()
    return [spread(grad) for grad in (result, value.grad, *(p.grad for p in module.parameters()))]


def called(names: list[str], backend: str, rows: str) -> dict[str, Any]:
    """Calls of modules, whose results and gradients are eager's."""
    return {name: _called(MODULES[name], backend, rows) for name in names}


def _called(kind: type, backend: str, rows: str) -> dict[str, Any]:
    eager, module = kind(), kind()
    with CaptureCounter() as counter, no_fallbacks():
        compiled = tracer_core.compile(module, backend=backend)
        for _ in range(3):
            value = given(kind, ROWS[rows])
            compare(trained(eager, eager, value), trained(module, compiled, value), CLOSE)
        with torch.no_grad():
            value = given(kind, ROWS[rows])
            compare(spread(eager(value)), spread(compiled(value)), CLOSE)
    seen = counts_of(counter)
    del seen["recompiles"]  # for another grad mode, and nothing else
    assert all("is_grad_enabled" in why for _, why in counter.recompiles), counter.recompiles
    return seen


def true_gradients() -> None:
    """Gradients are those of the same program on whole tensors in float64."""
    module = tracer_core.compile(Weights(), backend="inductor")
    x, weight = placed(_drawn(5, 8, seed=2).double(), Shard(0)), module.weight.full_tensor()
    full = x.detach().full_tensor().requires_grad_()
    weight = weight.detach().requires_grad_()
    module(x).full_tensor().cos().sum().backward()
    (torch.tanh(full @ weight) * 2).cos().sum().backward()
    compare(weight.grad, module.weight.grad.full_tensor(), CLOSE)
    compare(full.grad, x.grad.full_tensor(), CLOSE)


def placements_change(backend: str) -> dict[str, Any]:
    """The same function with DTensors that are placed otherwise, on another mesh, of other sizes,
    and with plain tensors: each gets a graph of its own, and none the graph of another.
    """

    def double(x: Any) -> Any:
        return (x * 2).sum(0)

    backwards = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("other",))
    inputs = [
        placed(_drawn(4, 6), Shard(0)),
        placed(_drawn(4, 6), Shard(1)),
        placed(_drawn(4, 6), Replicate()),
        distribute_tensor(_drawn(4, 6), backwards, [Shard(0)]),
        placed(_drawn(6, 6), Shard(0)),
        # of the sizes, everywhere, of the third
        DTensor.from_local(_drawn(4, 6), mesh(), [Partial()]),
        DTensor.from_local(_drawn(4, 6), mesh(), [Partial("max")]),
        _drawn(4, 6),
    ]
    with CaptureCounter() as counter:
        compiled = tracer_core.compile(double, backend=backend, dynamic=False)
        for _ in range(2):
            for value in inputs:
                want, got = double(value), compiled(value)
                assert type(want) is type(got)
                compare(spread(want), spread(got), CLOSE)
                if isinstance(want, DTensor):
                    assert got.device_mesh == value.device_mesh
    return counts_of(counter)


def sizes_change(backend: str) -> None:
    """Rows of another number at each call."""
    eager, module = Between(), Between()
    compiled = tracer_core.compile(module, backend=backend)
    for rows in (4, 6, 7, 6, 9):
        value = _drawn(rows, 8, seed=rows).double().requires_grad_()
        compare(trained(eager, eager, value), trained(module, compiled, value), CLOSE)


def other_gradients(backend: str) -> None:
    """The gradient of a result is placed otherwise than the result: eager code after the graph
    redistributes it.
    """
    for change in ([Replicate()], [Shard(1)]):
        eager, module = Weights(), Weights()
        compiled = tracer_core.compile(module, backend=backend)
        for _ in range(2):
            grads = []
            for model, call in ((eager, eager), (module, compiled)):
                model.zero_grad()
                x = placed(_drawn(4, 8, seed=3).double(), Shard(0))
                result = call(x)
                result.backward(placed(_drawn(4, 6, seed=4).double(), *change))
                grads.append([x.grad.full_tensor(), model.weight.grad.full_tensor()])
            compare(*grads, CLOSE)


def written() -> None:
    """What writes to a DTensor, in place or by an optimizer, does so once."""

    def write(x: Any) -> Any:
        y = x * 2
        y.add_(1)
        x.mul_(3)
        return y + x

    compiled = tracer_core.compile(write, backend="aten_eager")
    item, other = (distribute_tensor(_drawn(4, 6), mesh(), [Shard(0)]) for _ in range(2))
    for _ in range(3):
        compare(spread(write(item)), spread(compiled(other)), CLOSE)
        compare(spread(item), spread(other), CLOSE)


def dropped(backend: str) -> dict[str, Any]:
    """Random numbers for a DTensor on the CPU are each rank's own."""

    def drop(x: Any) -> Any:
        return torch.nn.functional.dropout(x * 2, 0.5) + 1

    value = distribute_tensor(_drawn(4, 6), mesh(), [Shard(0)])
    compiled = tracer_core.compile(drop, backend="eager")
    with CaptureCounter() as counter:
        for seed in range(3):
            results = []
            for call in (drop, compiled):
                torch.manual_seed(seed + dist.get_rank())
                results.append([spread(call(value)), torch.rand(3)])
            compare(*results, CLOSE)
    return counts_of(counter)


def interrupted(backend: str) -> dict[str, Any]:
    return _called(Broken, backend, "uneven")


def mixed_with_plain() -> None:
    """Where eager raises, so does the compiled function, and goes on working."""

    def add(x: Any, y: Any) -> Any:
        return x * 2 + y

    compiled = tracer_core.compile(add, backend="aten_eager")
    value = placed(_drawn(4, 6), Shard(0))
    for _ in range(2):
        for call in (add, compiled):
            try:
                call(value, torch.ones(4, 6))
            except RuntimeError as error:
                assert "mixed torch.Tensor and DTensor" in str(error)
            else:
                raise AssertionError("no error")
        compare(spread(add(value, value)), spread(compiled(value, value)), CLOSE)


def failing() -> None:
    """A graph that raises is not run again in eager mode, which would communicate on this rank
    alone.
    """
    runs: list[int] = []

    def backend(gm: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            runs.append(1)
            raise ValueError("of the backend")

        return run

    compiled = tracer_core.compile(lambda x: (x * 2).sum().full_tensor(), backend=backend)
    value = placed(_drawn(4, 6), Shard(0)).detach()
    for number in range(2):
        try:
            compiled(value)
        except ValueError:
            assert len(runs) == number + 1
        else:
            raise AssertionError("no error")


class Tokens(torch.nn.Module):
    """An embedding whose rows are split: its result keeps a mask until it is summed up."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(9, 6), torch.nn.Linear(6, 4)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.embed(tokens)).exp()


def tokens(backend: str) -> dict[str, Any]:
    """Eager and compiled calls in turn: neither sees the other's masks."""
    torch.manual_seed(0)
    eager = Tokens()
    module = copy.deepcopy(eager)
    for value in (eager, module):
        rows = parallel.RowwiseParallel(input_layouts=Replicate())
        _with_plan(value, {"embed": rows, "head": parallel.ColwiseParallel()})
    with CaptureCounter() as counter, no_fallbacks():
        compiled = tracer_core.compile(module, backend=backend)
        for step in range(3):
            inputs = torch.randint(0, 9, (2, 5), generator=torch.Generator().manual_seed(step))
            seen = []
            for model, call in ((eager, eager), (module, compiled)):
                model.zero_grad()
                result = call(inputs)
                (result * 1).cos().sum().backward()
                seen.append(
                    [spread(grad) for grad in (result, *(p.grad for p in model.parameters()))]
                )
            compare(*seen, CLOSE)
    return counts_of(counter)


# -- parallelize_module --


class Perceptron(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x: Any) -> Any:
        return self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def _split() -> dict[str, Any]:
    return {"up": parallel.ColwiseParallel(), "down": parallel.RowwiseParallel()}


def _split_placed() -> dict[str, Any]:
    """What is between the layers stays a DTensor, and so does the result."""
    return {
        "up": parallel.ColwiseParallel(use_local_output=False),
        "down": parallel.RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
    }


def _sequence() -> dict[str, Any]:
    return {
        "norm": parallel.SequenceParallel(sequence_dim=0),
        "up": parallel.ColwiseParallel(input_layouts=Shard(0)),
        "down": parallel.RowwiseParallel(output_layouts=Shard(0)),
    }


def _prepared() -> dict[str, Any]:
    return {
        "": parallel.PrepareModuleInput(
            input_layouts=Shard(0), desired_input_layouts=Replicate(), use_local_output=True
        ),
        "up": parallel.ColwiseParallel(),
        "down": parallel.RowwiseParallel(),
    }


PLANS: dict[str, Callable[[], dict[str, Any]]] = {
    value.__name__.strip("_"): value for value in (_split, _split_placed, _sequence, _prepared)
}


def _with_plan(module: torch.nn.Module, plan: dict[str, Any]) -> torch.nn.Module:
    for path, style in plan.items():
        parallel.parallelize_module(module.get_submodule(path), mesh(), style)
    return module


def parallelized(plan: str, backend: str) -> dict[str, Any]:
    """A perceptron whose layers are split, trained."""
    torch.manual_seed(0)
    eager = Perceptron()
    module = copy.deepcopy(eager)
    for item in (eager, module):
        _with_plan(item, PLANS[plan]())
    with CaptureCounter() as counter, no_fallbacks():
        compiled = tracer_core.compile(module, backend=backend)
        for step in range(3):
            value = _drawn(4, 8, seed=step)
            compare(trained(eager, eager, value), trained(module, compiled, value), CLOSE)
    return counts_of(counter)


_LLAMA = {
    "self_attn.q_proj": "columns", "self_attn.k_proj": "columns", "self_attn.v_proj": "columns",
    "self_attn.o_proj": "rows", "mlp.gate_proj": "columns", "mlp.up_proj": "columns",
    "mlp.down_proj": "rows",
}  # fmt: skip
_BERT = {
    "attention.self.query": "columns", "attention.self.key": "columns",
    "attention.self.value": "columns", "attention.output.dense": "rows",
    "intermediate.dense": "columns", "output.dense": "rows",
}  # fmt: skip


def _llama() -> tuple[Any, Any, dict[str, str]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=2, hidden_size=16, intermediate_size=32, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=32, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    return model, model.model.layers, _LLAMA


def _bert() -> tuple[Any, Any, dict[str, str]]:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        num_hidden_layers=2, hidden_size=16, intermediate_size=32, num_attention_heads=4,
        vocab_size=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = BertForMaskedLM(config)
    return model, model.bert.encoder.layer, _BERT


class SequenceBlock(torch.nn.Module):
    """A layer of Llama between whose matmuls each rank has a part of the sequence."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

        config = LlamaConfig(
            hidden_size=16,
            intermediate_size=32,
            num_attention_heads=4,
            num_key_value_heads=2,
            attn_implementation="sdpa",
        )
        self.layer, self.rotary = LlamaDecoderLayer(config, 0), LlamaRotaryEmbedding(config)

    def forward(self, x: Any) -> Any:
        positions = self.rotary(x, torch.arange(2 * x.shape[1])[None])
        return self.layer(x, position_embeddings=positions)


def sequence_block(backend: str) -> dict[str, Any]:
    full, parts = Replicate(), Shard(1)
    hidden = {"hidden_states": parts}, {"hidden_states": full}
    plan = {
        "input_layernorm": parallel.SequenceParallel(),
        "post_attention_layernorm": parallel.SequenceParallel(),
        "self_attn": parallel.PrepareModuleInput(
            input_kwarg_layouts=hidden[0], desired_input_kwarg_layouts=hidden[1]
        ),
        "mlp": parallel.PrepareModuleInput(input_layouts=(parts,), desired_input_layouts=(full,)),
    }
    for path, kind in _LLAMA.items():
        rows = kind == "rows"
        plan[path] = (
            parallel.RowwiseParallel(output_layouts=parts) if rows else parallel.ColwiseParallel()
        )
    torch.manual_seed(0)
    eager = SequenceBlock()
    module = copy.deepcopy(eager)
    for item in (eager, module):
        _with_plan(item.layer, plan)
    with CaptureCounter() as counter, no_fallbacks():
        compiled = tracer_core.compile(module, backend=backend)
        for step in range(3):
            value = _drawn(2, 4, 16, seed=step + 10 * dist.get_rank())
            compare(trained(eager, eager, value), trained(module, compiled, value), CLOSE)
    return counts_of(counter)


def transformer(name: str, backend: str) -> dict[str, Any]:
    """A transformer with tensor parallelism, trained with an optimizer."""

    def made() -> Any:
        torch.manual_seed(0)
        model, layers, plan = {"llama": _llama, "bert": _bert}[name]()
        styles = {"columns": parallel.ColwiseParallel, "rows": parallel.RowwiseParallel}
        for layer in layers:
            _with_plan(layer, {path: styles[kind]() for path, kind in plan.items()})
        return model

    def train(model: Any, call: Any) -> Sequence[Any]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        seen = []
        for step in range(3):
            tokens = torch.randint(0, 32, (2, 8), generator=torch.Generator().manual_seed(step))
            loss = call(input_ids=tokens, labels=tokens).loss
            loss.backward()
            seen.append(loss.detach())
            seen.append([spread(p.grad) for p in model.parameters()])
            optimizer.step()
            optimizer.zero_grad()
        return seen

    eager, model = made(), made()
    want = train(eager, eager)
    with CaptureCounter() as counter, no_fallbacks():
        got = train(model, tracer_core.compile(model, backend=backend))
    compare(want, got, CLOSE)
    return counts_of(counter)
