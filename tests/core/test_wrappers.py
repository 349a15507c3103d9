"""What other libraries do with a compiled module: they must not notice, and must reach what is
compiled.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tracer_core


@pytest.fixture
def graphs():
    seen = []

    def backend(gm, example_inputs):
        seen.append(gm)
        return gm.forward

    backend.seen = seen
    yield backend
    tracer_core.reset()


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


@pytest.fixture
def process_group(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def test_distributed_data_parallel(graphs, model, process_group):
    wrapped = nn.parallel.DistributedDataParallel(tracer_core.compile(model, backend=graphs))
    x = torch.randn(3, 4)
    wrapped(x).sum().backward()
    ours = [parameter.grad.clone() for parameter in model.parameters()]
    assert len(graphs.seen) == 1
    assert list(wrapped.state_dict())[0] == "module.0.weight"
    model.zero_grad()
    model(x).sum().backward()
    torch.testing.assert_close(ours, [parameter.grad for parameter in model.parameters()])


def test_generate_of_a_language_model(graphs):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=100, bos_token_id=0, eos_token_id=99
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    fast = tracer_core.compile(model, backend=graphs)
    ids = torch.randint(1, 99, (1, 5))
    settings = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        expected = model.generate(ids, **settings)
        assert torch.equal(fast.generate(ids, **settings), expected)
        assert type(fast(ids)) is type(model(ids)), "the model's output class is kept"
    assert graphs.seen, "generate() did not reach the compiled forward"
    assert len(graphs.seen) <= 6, (
        "a graph for every token: the cache's length does not become symbolic"
    )


def test_averaging_and_functional_calls(graphs, model):
    fast = tracer_core.compile(model, backend=graphs)
    x = torch.randn(3, 4)
    with torch.no_grad():
        averaged = torch.optim.swa_utils.AveragedModel(fast)
        averaged.update_parameters(fast)
        torch.testing.assert_close(averaged(x), model(x))
        doubled = {name: value * 2 for name, value in model.state_dict().items()}
        ours = torch.func.functional_call(fast, doubled, (x,))
        torch.testing.assert_close(ours, torch.func.functional_call(model, doubled, (x,)))
        torch.testing.assert_close(fast(x), model(x))


@pytest.mark.parametrize("warm", [False, True])
def test_other_tracers_see_the_original(model, warm):
    """They record operators, so they must never be given a compiled graph's kernels."""

    def backend(gm, example_inputs):
        def run(*inputs):
            result = torch.empty(3, 2)
            result.numpy()[:] = gm(*inputs)[0].numpy()  # as a kernel does: no operator to record
            return (result,)

        return run

    fast = tracer_core.compile(model, backend=backend)
    x = torch.randn(3, 4)
    with torch.no_grad():
        if warm:
            torch.testing.assert_close(fast(x), model(x))
        y = x + 1
        torch.testing.assert_close(torch.jit.trace(fast, x, check_trace=False)(y), model(y))
        torch.testing.assert_close(torch.fx.symbolic_trace(fast)(y), model(y))
        torch.testing.assert_close(torch.export.export(fast, (x,)).module()(y), model(y))


def test_summary_of_parameters_and_devices(graphs, model):
    fast = tracer_core.compile(model, backend=graphs)
    assert sum(p.numel() for p in fast.parameters()) == sum(p.numel() for p in model.parameters())
    assert [name for name, _ in fast.named_modules()] == [name for name, _ in model.named_modules()]
    assert fast[0] is model[0] and len(fast) == 3
    assert fast.to(torch.float64) is fast and model[0].weight.dtype == torch.float64
