"""Programs around which capture saves little: a settled call, ours beside eager.

In: `PROGRAMS`, a name and a maker of (function, call): call(f) is one call of the function or of a
compiled form of it. Out: microseconds of a call in eager mode and compiled, their ratio, graphs,
graph breaks, and how many graphs were captured after the calls that should have settled it. No
program should be slower than eager mode by more than 5 %. What always holds: each row is a process
of its own; eager and ours take turns call by call, each with a program of its own, so that state
that grows grows alike; the ratio is that of the medians.
"""

from __future__ import annotations

import dataclasses
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks import models
from benchmarks.harness import Grid

Function = Callable[..., Any]
#: function, call: call(compiled) makes one call
Made = tuple[Any, Callable[[Any], Any]]
PROGRAMS: dict[str, Callable[[], Made]] = {}

#: Calls before the measurement, and seconds that they may take.
BEFORE, PATIENCE = 60, 60.0
#: Measured calls of each, and seconds for them.
CALLS, SECONDS = 400, 10.0


def _program(make: Callable[[], Made]) -> Callable[[], Made]:
    PROGRAMS[make.__name__.strip("_")] = make
    return make


def _with(function: Any, *args: Any, grad: bool = False) -> Made:
    import torch

    def call(compiled: Any) -> Any:
        with torch.set_grad_enabled(grad):
            return compiled(*args)

    return function, call


# Python around small tensors ---------------------------------------------------------------------


@dataclasses.dataclass
class Point:
    x: Any
    y: Any
    n: int = 0


@dataclasses.dataclass
class Changing:
    scale: float = 1.0
    label: str = "a"


@_program
def changing_attributes() -> Made:
    """Reads two attributes of a dataclass that change between calls."""
    import torch

    held, x = Changing(), torch.ones(8)

    def function(x: Any) -> Any:
        return x * held.scale + len(held.label)

    def call(compiled: Any) -> Any:
        held.scale += 0.5
        held.label = "ab" if held.label == "a" else "a"
        return compiled(x)

    return function, call


@_program
def replaced_dataclasses() -> Made:
    """Builds dataclasses and replaces fields."""
    import torch

    def function(x: Any) -> Any:
        point = Point(x, x + 1)
        for _ in range(4):
            point = dataclasses.replace(point, x=point.x + point.y, n=point.n + 1)
        return point

    return _with(function, torch.ones(8))


class Descriptor:
    def __set_name__(self, owner: type, name: str) -> None:
        self.name = "_" + name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else instance.__dict__[self.name]

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self.name] = value


class Described:
    value = Descriptor()

    def __init__(self) -> None:
        self.value = 0


@_program
def descriptor_counter() -> Made:
    """A descriptor that counts."""
    import torch

    held = Described()

    def function(x: Any) -> Any:
        held.value += 1
        return x * held.value + 1

    return _with(function, torch.ones(8))


@_program
def thread_local_history() -> Made:
    """A thread-local list that grows, and a label that is different in each call."""
    import torch

    local = threading.local()
    local.seen, local.label = [], ""

    def function(x: Any) -> Any:
        local.seen.append(len(local.seen))
        local.label = f"call {len(local.seen)}"
        return x + len(local.label)

    return _with(function, torch.ones(8))


@_program
def string_that_changes() -> Made:
    """Meets the recompile limit: its argument is another word in each call."""
    import torch

    x, n = torch.ones(8), iter(range(10**9))

    def function(x: Any, word: str) -> Any:
        return x * len(word) + 1

    return function, lambda compiled: compiled(x, f"word {next(n)}")


@_program
def attrs_objects() -> Made:
    import attr
    import torch

    @attr.s(auto_attribs=True, slots=True)
    class Step:
        value: Any
        count: int = 0

    held = Step(torch.ones(8))

    def function(x: Any) -> Any:
        held.count += 1
        step = attr.evolve(held, value=x + held.value)
        return step.value * step.count

    return _with(function, torch.ones(8))


@_program
def prints_in_a_loop() -> Made:
    """Ten graph breaks, one operator between two of them."""
    import torch

    def function(x: Any) -> Any:
        for _ in range(10):
            x = x * 1.5
            print(end="")
        return x

    return _with(function, torch.ones(8))


@_program
def marks_inside() -> Made:
    import torch

    def function(x: Any) -> Any:
        with torch.profiler.record_function("part"), torch._dynamo.config.patch(cache_size_limit=9):
            torch._dynamo.mark_static(x, 0)
            y = x * 2
        return torch.relu(y) + x

    return _with(function, torch.ones(8))


# Steps -------------------------------------------------------------------------------------------


def _mlp() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def _step(optimizer: str, scheduler: bool, **settings: Any) -> Made:
    import torch

    model, x = _mlp(), torch.randn(8, 16)
    opt = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-3, **settings)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 100_000) if scheduler else None

    def function(x: Any) -> Any:
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        opt.step()
        if sched is not None:
            sched.step()
        return loss

    return _with(function, x, grad=True)


@_program
def adam_scheduler_inside() -> Made:
    """A training step, the scheduler's step inside."""
    return _step("Adam", scheduler=True)


@_program
def sgd_step() -> Made:
    return _step("SGD", scheduler=False, momentum=0.9)


@_program
def optimizer_step_scheduler_outside() -> Made:
    """Only ``optimizer.step`` is compiled; a scheduler changes its rate."""
    import torch

    model = _mlp()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 100_000)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)

    def call(compiled: Any) -> Any:
        compiled()
        sched.step()

    return lambda: opt.step(), call


@_program
def lightning_step() -> Made:
    """Fabric's backward and a LightningModule's training_step, compiled as one function."""
    import lightning
    import torch

    class Plain(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = _mlp()

        def training_step(self, batch: Any, index: int) -> Any:
            loss = self.model(batch).square().mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    module = Plain()
    model, opt = fabric.setup(module, module.configure_optimizers(), _reapply_compile=False)
    model.mark_forward_method("training_step")

    def function(x: Any) -> Any:
        opt.zero_grad()
        loss = model.training_step(x, 0)
        fabric.backward(loss)
        opt.step()
        return loss

    return _with(function, torch.randn(8, 16), grad=True)


@_program
def distributions_loss() -> Made:
    """A VAE's loss with torch.distributions, forward and backward."""
    import torch
    from torch import nn
    from torch.distributions import Bernoulli, Normal, kl_divergence

    encoder, decoder = nn.Linear(16, 8), nn.Linear(4, 16)

    def function(x: Any) -> Any:
        mean, log = encoder(x).chunk(2, -1)
        posterior = Normal(mean, log.exp())
        z = posterior.rsample()
        likelihood = Bernoulli(logits=decoder(z)).log_prob(x).sum(-1)
        kl = kl_divergence(posterior, Normal(torch.zeros_like(mean), torch.ones_like(mean))).sum(-1)
        return (kl - likelihood).mean()

    x = torch.rand(8, 16).round()

    def call(compiled: Any) -> Any:
        loss = compiled(x)
        loss.backward()
        return loss

    return function, call


@_program
def distribution_log_prob() -> Made:
    """log_prob of a distribution that lives on, no gradients."""
    import torch
    from torch.distributions import Categorical, MixtureSameFamily, Normal

    mixture = MixtureSameFamily(Categorical(torch.ones(5)), Normal(torch.randn(5), torch.ones(5)))
    return _with(lambda x: mixture.log_prob(x).mean(), torch.randn(64))


# Libraries ---------------------------------------------------------------------------------------


def _generate(build: Callable[[Any], Any], new: int = 16) -> Made:
    import torch
    import transformers

    model = build(transformers).eval()
    model.generation_config.eos_token_id = None
    prompt = torch.randint(3, 90, (1, 8))

    def call(compiled: Any) -> Any:
        with torch.no_grad():
            return compiled.generate(prompt, max_new_tokens=new, do_sample=False, pad_token_id=0)

    return model, call


_TINY: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip


@_program
def generate_llama() -> Made:
    return _generate(lambda t: t.LlamaForCausalLM(t.LlamaConfig(**_TINY)))


@_program
def generate_gemma3() -> Made:
    return _generate(lambda t: t.Gemma3ForCausalLM(t.Gemma3TextConfig(**_TINY, head_dim=16)))


@_program
def generate_gpt_oss() -> Made:
    return _generate(
        lambda t: t.GptOssForCausalLM(
            t.GptOssConfig(**_TINY, head_dim=16, num_local_experts=4, num_experts_per_tok=2)
        )
    )


@_program
def generate_lfm2() -> Made:
    return _generate(
        lambda t: t.Lfm2ForCausalLM(
            t.Lfm2Config(**_TINY, layer_types=["conv", "full_attention"], block_multiple_of=16)
        )
    )


@_program
def encodec() -> Made:
    import torch
    import transformers

    config = transformers.EncodecConfig(
        num_filters=4, hidden_size=16, codebook_dim=16, codebook_size=32, upsampling_ratios=[4, 2],
        target_bandwidths=[60.0], sampling_rate=24_000,
    )  # fmt: skip
    model = transformers.EncodecModel(config).eval()
    return _with(model, torch.randn(1, 1, 1600))


@_program
def mimi() -> Made:
    import torch
    import transformers

    config = transformers.MimiConfig(
        num_filters=4, hidden_size=32, codebook_dim=16, codebook_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, head_dim=16, intermediate_size=64,
        vector_quantization_hidden_dimension=16, num_quantizers=4, upsampling_ratios=[4, 2],
        num_semantic_quantizers=1, frame_rate=1500.0, upsample_groups=32,
    )  # fmt: skip
    model = transformers.MimiModel(config).eval()
    return _with(model, torch.randn(1, 1, 1600))


@_program
def ode_solver() -> Made:
    import torch
    from torchdiffeq import odeint

    matrix = torch.randn(16, 16) * 0.1
    times = torch.linspace(0.0, 1.0, 8)

    def function(y: Any) -> Any:
        return odeint(lambda t, y: torch.tanh(y @ matrix) - t * y, y, times, rtol=1e-5, atol=1e-6)

    return _with(function, torch.randn(4, 16))


@_program
def fourier_operator() -> Made:
    import torch
    from neuralop.models import FNO

    model = FNO(n_modes=(8, 8), in_channels=1, out_channels=1, hidden_channels=16, n_layers=2)
    return _with(model.eval(), torch.randn(1, 1, 16, 16))


@_program
def acquisition() -> Made:
    import torch
    from botorch.acquisition import qLogExpectedImprovement
    from botorch.models import SingleTaskGP

    x = torch.rand(12, 3, dtype=torch.float64)
    gp = SingleTaskGP(x, x.sum(-1, keepdim=True))
    best = qLogExpectedImprovement(gp, best_f=1.0)
    return _with(lambda q: best(q), torch.rand(5, 2, 3, dtype=torch.float64))


@_program
def async_collectives() -> Made:
    """Two asynchronous all_reduce of small tensors in a world of one process."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def function(x: Any) -> Any:
        a, b = x * 2, x + 1
        waits = [dist.all_reduce(value, async_op=True) for value in (a, b)]
        for wait in waits:
            wait.wait()
        return a + b

    return _with(function, torch.ones(64))


@_program
def resnet18() -> Made:
    """Compute-bound: what the safety net must leave alone."""

    program = models.MODELS["resnet18_64"].program()
    return _with(program.function, *program.args)


# Measurement -------------------------------------------------------------------------------------


def measure(name: str, compiler: str) -> dict[str, Any]:
    """Medians of seconds a call and what was captured."""
    import torch

    models.import_library("transformers")
    torch.set_num_threads(1)
    sides, counts = {}, None
    for side in ("eager", compiler):
        torch.manual_seed(0)
        function, call = PROGRAMS[name]()
        if side != "eager":
            function, counts = _compiled(function, side)
        sides[side] = (function, call)
    assert counts is not None
    end = time.perf_counter() + PATIENCE
    for _ in range(BEFORE):
        for function, call in sides.values():
            call(function)
        if time.perf_counter() > end:
            break
    before, _ = counts()
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    end = time.perf_counter() + SECONDS
    for n in range(CALLS):
        for side in list(sides)[:: 1 - 2 * (n % 2)]:
            function, call = sides[side]
            start = time.perf_counter()
            call(function)
            seconds[side].append(time.perf_counter() - start)
        if time.perf_counter() > end and n > 20:
            break
    after, breaks = counts()
    medians = {side: statistics.median(second) for side, second in seconds.items()}
    return {
        "eager": medians["eager"], "compiled": medians[compiler], "calls": n + 1,
        "ratio": medians[compiler] / medians["eager"], "graphs": after, "late": after - before,
        "breaks": breaks,
    }  # fmt: skip


def _compiled(function: Any, compiler: str) -> tuple[Any, Callable[[], tuple[int, int]]]:
    """The compiled function, and what gives its numbers of graphs and of graph breaks."""
    if compiler == "torch":
        import torch
        from torch._dynamo.utils import counters

        return torch.compile(function), lambda: (
            int(counters["stats"]["unique_graphs"]),
            sum(counters["graph_break"].values()),
        )
    import tracer_core
    from tracer_core.execution.compiled_function import _instances

    before = set(_instances)
    fast = tracer_core.compile(function, backend=compiler.partition(":")[2] or "inductor")

    def counts() -> tuple[int, int]:
        ours = [instance for instance in _instances if instance not in before]
        return sum(len(item.records) for item in ours), sum(len(item.breaks) for item in ours)

    return fast, counts


main = Grid(
    "steady_state",
    __doc__,
    {"programs": list(PROGRAMS), "compilers": ["ours", "torch"]},
    measure,
    ("eager µs", "compiled µs", "ratio", "graphs", "late", "breaks"),
    lambda row: [
        f"{row['eager'] * 1e6:.0f}", f"{row['compiled'] * 1e6:.0f}", f"{row['ratio']:.2f}",
        str(row["graphs"]), str(row["late"]), str(row["breaks"]),
    ],
    limit=400.0,
).main  # fmt: skip
