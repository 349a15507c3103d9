"""PyTorch's own parts that libraries stand on: torch.func, flex_attention, nested and sparse tensors,
modes, hooks, complex numbers, control flow."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.ecosystem_programs.program import Family

FAMILY = Family()


@FAMILY.inference("torch.func")
def per_sample_gradients() -> Any:
    from torch.func import functional_call, grad, vmap

    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    parameters = {name: p.detach() for name, p in net.named_parameters()}

    def loss(parameters: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (functional_call(net, parameters, (x,)) - y).pow(2).mean()

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))
    return lambda x, y: gradients(parameters, x, y), lambda: (torch.randn(6, 8), torch.randn(6, 1))


@FAMILY.inference("torch.func")
def ensemble_of_stacked_models() -> Any:
    from torch.func import functional_call, stack_module_state, vmap

    nets = [nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)) for _ in range(4)]
    parameters, buffers = stack_module_state(nets)

    def one(parameters: Any, buffers: Any, x: torch.Tensor) -> torch.Tensor:
        return functional_call(nets[0], (parameters, buffers), (x,))

    return lambda x: vmap(one, in_dims=(0, 0, None))(parameters, buffers, x).mean(0), lambda: (
        torch.randn(6, 8),
    )


@FAMILY.inference("torch.func")
def jacobians_and_hessians() -> Any:
    from torch.func import hessian, jacfwd, jacrev, vmap

    def energy(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x.roll(1)).sum()

    def run(x: torch.Tensor) -> Any:
        return vmap(hessian(energy))(x), vmap(jacrev(torch.sin))(x), vmap(jacfwd(torch.exp))(x)

    return run, lambda: (torch.randn(3, 5),)


@FAMILY.inference("torch.func")
def products_with_jacobians() -> Any:
    from torch.func import jvp, vjp

    weight = torch.randn(5, 5)

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x @ weight).tanh()

    def run(x: torch.Tensor, v: torch.Tensor) -> Any:
        value, forward = jvp(function, (x,), (v,))
        _, pull = vjp(function, x)
        return value, forward, pull(v)[0]

    return run, lambda: (torch.randn(4, 5), torch.randn(4, 5))


@FAMILY.step("torch.func")
def inner_gradient_steps_of_maml() -> Any:
    from torch.func import functional_call, grad, vmap

    net = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1))

    def loss(parameters: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (functional_call(net, parameters, (x,)) - y).pow(2).mean()

    def task(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        parameters = dict(net.named_parameters())
        gradients = grad(loss)(parameters, x[:5], y[:5])
        fast = {name: p - 0.1 * gradients[name] for name, p in parameters.items()}
        return loss(fast, x[5:], y[5:])

    def outer(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        net.zero_grad()
        total = vmap(task)(x, y).mean()
        total.backward()
        return total.detach()

    return outer, lambda: (torch.randn(4, 10, 1), torch.randn(4, 10, 1)), (net,)


def _heads(count: int = 3, length: int = 64) -> Any:
    return lambda: tuple(torch.randn(1, 2, length, 16) for _ in range(count))


@FAMILY.inference("flex_attention")
def relative_positions_as_a_score() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    def score(value: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return value + 0.1 * (q - k)

    return lambda q, k, v: flex_attention(q, k, v, score_mod=score), _heads()


@FAMILY.inference("flex_attention")
def sliding_window_as_a_block_mask() -> Any:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def window(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q >= k) & (q - k < 16)

    mask = create_block_mask(window, None, None, 128, 128, device="cpu")
    return lambda q, k, v: flex_attention(q, k, v, block_mask=mask), _heads(length=128)


@FAMILY.inference("flex_attention")
def soft_capping_with_a_captured_bias() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    bias = torch.randn(2)

    def score(value: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return 20.0 * torch.tanh((value + bias[h]) / 20.0)

    return lambda q, k, v: flex_attention(q, k, v, score_mod=score), _heads()


@FAMILY.inference("NestedTensor")
def ragged_batch_through_a_layer() -> Any:
    layer = nn.Linear(8, 4)

    def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        nested = torch.nested.nested_tensor([a, b], layout=torch.jagged)
        return torch.nested.to_padded_tensor(layer(nested).relu(), 0.0)

    return run, lambda: (torch.randn(3, 8), torch.randn(5, 8))


@FAMILY.inference("NestedTensor")
def attention_over_sequences_of_different_lengths() -> Any:
    def run(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        nested = torch.nested.nested_tensor_from_jagged(values, offsets)
        heads = nested.unflatten(-1, [2, 8]).transpose(1, 2)
        out = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
        return out.transpose(1, 2).flatten(-2).values()

    return run, lambda: (torch.randn(12, 16), torch.tensor([0, 5, 12]))


@FAMILY.inference("torch.sparse")
def adjacency_times_features() -> Any:
    def run(indices: torch.Tensor, values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        adjacency = torch.sparse_coo_tensor(indices, values, (20, 20)).coalesce()
        return torch.sparse.mm(adjacency, x)

    return run, lambda: (torch.randint(0, 20, (2, 60)), torch.rand(60), torch.randn(20, 8))


@FAMILY.inference("torch.sparse")
def compressed_rows_as_a_weight() -> Any:
    weight = (torch.randn(16, 32) * (torch.rand(16, 32) > 0.8)).to_sparse_csr()
    return lambda x: (weight @ x.T).T.relu(), lambda: (torch.randn(8, 32),)


@FAMILY.inference("torch")
def encoder_layers_with_padding() -> Any:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()

    def inputs() -> Any:
        padding = torch.zeros(2, 10, dtype=torch.bool)
        padding[1, 7:] = True
        return torch.randn(2, 10, 32), padding

    return lambda x, padding: encoder(x, src_key_padding_mask=padding), inputs


@FAMILY.inference("torch")
def features_gathered_by_hooks() -> Any:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU())
    features: dict[str, torch.Tensor] = {}
    for name, module in net.named_children():
        module.register_forward_hook(
            lambda module, args, out, name=name: features.__setitem__(name, out.mean())
        )

    def run(x: torch.Tensor) -> Any:
        net(x)
        return dict(features)

    return run, lambda: (torch.randn(2, 3, 16, 16),)


@FAMILY.inference("torch")
def mode_that_counts_functions() -> Any:
    from torch.overrides import TorchFunctionMode

    class Counter(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            self.count += 1
            return function(*args, **(kwargs or {}))

    def run(x: torch.Tensor) -> Any:
        with Counter() as counter:
            y = torch.relu(torch.sin(x) + 1)
        return y, counter.count

    return run, lambda: (torch.randn(4, 8),)


@FAMILY.inference("torch")
def subclass_with_units() -> Any:
    class Metres(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            return super().__torch_function__(function, types, args, kwargs or {})

    def run(x: torch.Tensor) -> Any:
        length = x.as_subclass(Metres)
        total = (length * 2 + 1).sum(-1)
        return type(total).__name__, total.as_subclass(torch.Tensor)

    return run, lambda: (torch.randn(4, 8),)


@FAMILY.inference("torch")
def complex_signals() -> Any:
    def run(x: torch.Tensor) -> Any:
        spectrum = torch.fft.rfft(x)
        filtered = spectrum * torch.polar(torch.ones(33), torch.linspace(0, 1, 33))
        return torch.fft.irfft(filtered, n=64), spectrum.abs(), torch.view_as_real(filtered)

    return run, lambda: (torch.randn(4, 64),)


@FAMILY.inference("torch")
def linear_algebra_of_a_covariance() -> Any:
    def run(x: torch.Tensor) -> Any:
        covariance = torch.cov(x.T) + 0.1 * torch.eye(6)
        root = torch.linalg.cholesky(covariance)
        whitened = torch.linalg.solve_triangular(root, (x - x.mean(0)).T, upper=False)
        return whitened, torch.linalg.eigvalsh(covariance), torch.logdet(covariance)

    return run, lambda: (torch.randn(40, 6),)


@FAMILY.inference("torch")
def data_dependent_selection() -> Any:
    def run(scores: torch.Tensor, boxes: torch.Tensor) -> Any:
        keep = scores > 0.5
        chosen = boxes[keep]
        order = scores[keep].argsort(descending=True)
        return chosen[order], keep.nonzero().squeeze(1), torch.unique((scores * 4).int())

    return run, lambda: (torch.rand(30), torch.randn(30, 4))


@FAMILY.inference("torch")
def control_flow_operators() -> Any:
    def run(x: torch.Tensor) -> Any:
        y = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
        return y.cumsum(0), torch.where(y > 0, y, -y)

    return run, lambda: (torch.randn(6, 4),)


@FAMILY.inference("torch")
def custom_operator_with_a_fake() -> Any:
    @torch.library.custom_op("ecosystem::scaled_sum", mutates_args=())
    def scaled_sum(x: torch.Tensor, scale: float) -> torch.Tensor:
        return (x * scale).sum(-1)

    @scaled_sum.register_fake
    def _(x: torch.Tensor, scale: float) -> torch.Tensor:
        return x.new_empty(x.shape[:-1])

    return lambda x: scaled_sum(x.exp(), 0.5) + 1, lambda: (torch.randn(4, 8),)


@FAMILY.inference("torch")
def scripted_part_inside() -> Any:
    @torch.jit.script
    def rounded(x: torch.Tensor, steps: int) -> torch.Tensor:
        for _ in range(steps):
            x = (x * 2).round() / 2
        return x

    return lambda x: rounded(x.sin(), 2) + 1, lambda: (torch.randn(4, 8),)


@FAMILY.inference("torch")
def changing_lengths() -> Any:
    net = nn.GRU(8, 16, batch_first=True)

    def inputs() -> Any:
        length = 6 + int(torch.randint(0, 3, ()))
        return (torch.randn(2, length, 8),)

    return lambda x: net(x)[0][:, -1].softmax(-1), inputs
