"""Small programs, one for each form of torch's higher-order operators.

Each maker returns (function or module, arguments of the first call, arguments of a call with other
sizes or None).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._higher_order_ops import associative_scan, scan
from torch._higher_order_ops.map import map as torch_map
from torch.utils import checkpoint as checkpointing

Form = tuple[Any, tuple[Any, ...], tuple[Any, ...] | None]
FORMS: dict[str, Callable[[], Form]] = {}


def form(maker: Callable[[], Form]) -> Callable[[], Form]:
    FORMS[maker.__name__.replace("_", "-").strip("-")] = maker
    return maker


def leaf(*sizes: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(sizes))
    return torch.randn(*sizes, generator=generator, requires_grad=True)


# -- scans, maps, branches and loops --


@form
def scan_cumulates() -> Form:
    def program(init, xs):
        return scan(lambda carry, x: (carry * 0.5 + x, (carry * x).sin()), init, xs)

    return program, (leaf(3), leaf(5, 3)), (leaf(3), leaf(7, 3))


@form
def scan_of_pytrees() -> Form:
    def program(h, c, xs, weight):
        def step(carry, x):
            gate = torch.sigmoid(x["x"] @ weight + carry["h"])
            c = carry["c"] * gate + (1 - gate) * x["y"]
            return {"h": c.tanh(), "c": c}, (c * 2, {"gate": gate.sum()})

        return scan(step, {"h": h, "c": c}, {"x": xs, "y": xs * 2})

    return (
        program,
        (leaf(2, 3), leaf(2, 3, seed=1), leaf(4, 2, 3), leaf(3, 3)),
        (leaf(2, 3), leaf(2, 3, seed=1), leaf(6, 2, 3), leaf(3, 3)),
    )


@form
def scan_reversed_along_a_dimension() -> Form:
    def program(init, xs):
        return scan(lambda c, x: (c + x, c * x), init, xs, dim=1, reverse=True)

    return program, (leaf(2, 3), leaf(2, 4, 3)), (leaf(2, 3), leaf(2, 6, 3))


@form
def scan_of_a_module() -> Form:
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.cell = nn.GRUCell(3, 4)

        def forward(self, xs):
            def step(carry, x):
                carry = self.cell(x, carry)
                return carry, carry.clone()

            return scan(step, torch.zeros(xs.shape[1], 4), xs)[1]

    return Cell(), (leaf(5, 2, 3),), (leaf(6, 2, 3),)


@form
def associative_scan_of_a_tuple() -> Form:
    def program(a, b):
        return associative_scan(
            lambda x, y: (x[0] * y[0], x[1] * y[0] + y[1]), (a.sigmoid(), b), 0,
            combine_mode="generic",
        )  # fmt: skip

    return program, (leaf(6, 3), leaf(6, 3, seed=1)), (leaf(9, 3), leaf(9, 3, seed=1))


@form
def associative_scan_with_a_closure() -> Form:
    def program(x, scale):
        return associative_scan(
            lambda a, b: a + b * scale, x, 1, reverse=True, combine_mode="generic"
        )

    return program, (leaf(2, 5), torch.tensor(1.0)), (leaf(2, 8), torch.tensor(1.0))


@form
def map_with_a_closure() -> Form:
    def program(xs, y):
        return torch_map(lambda x, z: (x * y.sum() + z).sin(), xs, y * 2)

    return program, (leaf(4, 3), leaf(3)), (leaf(6, 3), leaf(3))


@form
def map_of_many_rows() -> Form:
    def program(xs, y):
        return torch_map(lambda x: {"a": x @ y, "b": x.sum()}, xs)

    return program, (leaf(100, 3), leaf(3, 2)), (leaf(120, 3), leaf(3, 2))


@form
def cond_with_a_closure() -> Form:
    def program(x, w):
        return torch.cond(x.sum() > 0, lambda v: (v * w, v.sin()), lambda v: (v - w, v.cos()), (x,))

    return program, (leaf(4), leaf(4, seed=1)), (-leaf(6).detach().requires_grad_(), leaf(6))


@form
def cond_of_a_size() -> Form:
    def program(x):
        return torch.cond(x.shape[0] > 5, lambda v: v * 2, lambda v: v * 3, (x,))

    return program, (leaf(4),), (leaf(6),)


@form
def cond_without_operands() -> Form:
    def program(x):
        return torch.cond(x.sum() > 0, lambda: x * 2, lambda: x.cos(), ())

    return program, (leaf(4),), (leaf(6),)


@form
def nested_cond() -> Form:
    def program(x):
        def inner(v):
            return torch.cond(v.mean() > 0.1, lambda u: u * 2, lambda u: u * 3, (v,))

        return torch.cond(x.sum() > 0, inner, lambda v: v.sin(), (x,))

    return program, (leaf(4),), (leaf(6),)


@form
def while_loop_counts() -> Form:
    def program(x):
        return torch.while_loop(
            lambda i, v: i < 4, lambda i, v: (i + 1, v * 1.5 + x), (torch.tensor(0), x)
        )

    return program, (leaf(3).detach(),), (leaf(5).detach(),)


@form
def while_loop_of_a_number() -> Form:
    def program(x):
        return torch.while_loop(lambda i, v: i < 4, lambda i, v: (i + 1, v.sin()), (0, x))

    return program, (leaf(3).detach(),), (leaf(5).detach(),)


# -- torch.func --


@form
def vjp_called_inside() -> Form:
    def program(x, v):
        value, pull = torch.func.vjp(lambda u: (u * u.sum()).sin(), x)
        return value, pull(v)

    return program, (leaf(3), leaf(3, seed=1)), (leaf(5), leaf(5, seed=1))


@form
def vjp_of_pytrees_with_aux() -> Form:
    def program(x, y, v):
        def inner(p, u):
            return {"a": p["w"] * u, "b": u.sum()}, p["w"] * 2

        value, pull, aux = torch.func.vjp(inner, {"w": x}, y, has_aux=True)
        first = pull({"a": v, "b": torch.ones(())})
        second = pull({"a": v * 2, "b": torch.ones(())})
        return value, first, second, aux

    return program, (leaf(3), leaf(3, seed=1), leaf(3, seed=2)), None


@form
def vjp_under_vmap() -> Form:
    def program(x, basis):
        _, pull = torch.func.vjp(lambda u: u.sin() * u.sum(), x)
        return torch.func.vmap(lambda v: pull(v)[0])(basis)

    return program, (leaf(3), torch.eye(3)), None


@form
def linearized() -> Form:
    def program(x, t):
        value, push = torch.func.linearize(lambda u: (u * u.sum()).sin(), x)
        return value, push(t), push(t * 2)

    return program, (leaf(3), leaf(3, seed=1)), None


@form
def jvp_with_aux() -> Form:
    def program(x, t):
        return torch.func.jvp(lambda u: (u.sin() * u.sum(), u * 2), (x,), (t,), has_aux=True)

    return program, (leaf(3), leaf(3, seed=1)), (leaf(5), leaf(5, seed=1))


@form
def jacobians() -> Form:
    def program(x, w):
        def inner(u):
            return (u @ w).tanh()

        return torch.func.jacrev(inner)(x), torch.func.jacfwd(inner)(x)

    return program, (leaf(3), leaf(3, 2)), (leaf(5), leaf(5, 2))


@form
def a_hessian() -> Form:
    def program(x):
        return torch.func.hessian(lambda u: (u.sin() * u).sum())(x)

    return program, (leaf(3),), (leaf(4),)


@form
def per_sample_gradients() -> Form:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.inner = nn.Linear(3, 2)

        def forward(self, x, y):
            params = dict(self.inner.named_parameters())

            def loss(p, row, target):
                out = torch.func.functional_call(self.inner, p, (row.unsqueeze(0),))
                return nn.functional.mse_loss(out, target.unsqueeze(0))

            return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(params, x, y)

    return Net(), (leaf(4, 3), leaf(4, 2)), (leaf(6, 3), leaf(6, 2))


@form
def vmap_with_randomness() -> Form:
    def program(x):
        return torch.func.vmap(
            lambda v: v + torch.rand(3) + nn.functional.dropout(v, 0.5), randomness="different"
        )(x)

    return program, (leaf(4, 3),), None


@form
def vmap_in_chunks() -> Form:
    def program(x):
        return torch.func.vmap(lambda v: v.sin().sum(), chunk_size=2)(x)

    return program, (leaf(5, 3),), None


@form
def vmap_of_vmap() -> Form:
    def program(x, y):
        return torch.vmap(torch.vmap(torch.dot, in_dims=(None, 0)), in_dims=(0, None))(x, y)

    return program, (leaf(3, 4), leaf(2, 4)), (leaf(5, 4), leaf(6, 4))


@form
def stacked_modules() -> Form:
    torch.manual_seed(0)
    models = [nn.Linear(3, 2) for _ in range(3)]
    params, buffers = torch.func.stack_module_state(models)
    base = nn.Linear(3, 2).to("meta")

    def program(x):
        def call(p, b, v):
            return torch.func.functional_call(base, (p, b), (v,))

        return torch.func.vmap(call, in_dims=(0, 0, None))(params, buffers, x)

    return program, (leaf(4, 3),), None


@form
def functionalized() -> Form:
    def inner(x):
        y = x * 2
        y.add_(1)
        return y.sin()

    return (lambda x: torch.func.functionalize(inner)(x)), (leaf(3),), None


# -- autograd.Function --


class Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y.sin()

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * y.sin() * 2, grad * x * y.cos()  # twice, so that a lost rule is seen


class Separate(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, scale):
        return x * scale, x.sum()

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.scale = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx, grad, total):
        (x,) = ctx.saved_tensors
        return grad * ctx.scale * 2 + total + x * 0, None

    @staticmethod
    def jvp(ctx, tangent, _):
        return tangent * ctx.scale * 2, tangent.sum()


class Ruled(torch.autograd.Function):
    @staticmethod
    def forward(x, n):
        return x**n

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.n = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.n * x ** (ctx.n - 1) * 2, None

    @staticmethod
    def vmap(info, in_dims, x, n):
        return Ruled.apply(x, n) * 1.0, in_dims[0]


class Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        index = x.argsort(0)
        ctx.mark_non_differentiable(index)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(index)
        return x.gather(0, index), index

    @staticmethod
    def backward(ctx, grad, _):
        if grad is None:
            return None
        (index,) = ctx.saved_tensors
        return torch.zeros_like(grad).scatter(0, index, grad)


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, by):
        x.mul_(by)
        ctx.mark_dirty(x)
        ctx.by = by
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.by, None


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, options, *rest, mode="a"):
        ctx.factor = options["factor"] + len(rest)
        return x * ctx.factor

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return grad * ctx.factor * 2, None, None, None


@form
def function_plain() -> Form:
    return (lambda x, y: Plain.apply(x * 2, y)), (leaf(3), leaf(3, seed=1)), (leaf(5), leaf(5))


@form
def function_with_setup_context() -> Form:
    return (lambda x: Separate.apply(x, 3.0)), (leaf(3),), (leaf(5),)


@form
def function_marked() -> Form:
    return (lambda x: Marked.apply(x)[0] * 2), (leaf(4),), (leaf(5),)


@form
def function_dirty() -> Form:
    return (lambda x: Dirty.apply(x * 2, 3.0) + 1), (leaf(4),), (leaf(5),)


@form
def function_with_other_arguments() -> Form:
    return (lambda x: Once.apply(x, {"factor": 2.0}, "a", None)), (leaf(4),), (leaf(5),)


@form
def function_under_vmap() -> Form:
    return (lambda x: torch.vmap(lambda v: Separate.apply(v, 2.0)[0])(x)), (leaf(4, 3),), None


@form
def function_with_a_vmap_rule() -> Form:
    return (lambda x: torch.vmap(lambda v: Ruled.apply(v, 3))(x)), (leaf(4, 3),), None


@form
def function_under_grad() -> Form:
    def program(x):
        return torch.func.grad(lambda v: Separate.apply(v, 2.0)[0].sum())(x)

    return program, (leaf(4),), None


@form
def function_under_vmap_and_grad() -> Form:
    def program(x):
        return torch.vmap(torch.func.grad(lambda v: Ruled.apply(v, 3).sum()))(x)

    return program, (leaf(4, 3),), None


@form
def function_under_jvp() -> Form:
    def program(x, t):
        return torch.func.jvp(lambda v: Separate.apply(v, 2.0)[0], (x,), (t,))

    return program, (leaf(4), leaf(4, seed=1)), None


# -- checkpoint --


def _layer(x, w):
    return ((x @ w).sin() @ w).tanh()


@form
def checkpoint_plain() -> Form:
    def program(x, w):
        return checkpointing.checkpoint(_layer, x, w, use_reentrant=False) * 2

    return program, (leaf(2, 3), leaf(3, 3)), (leaf(4, 3), leaf(3, 3))


@form
def checkpoint_reentrant() -> Form:
    def program(x, w):
        return checkpointing.checkpoint(_layer, x * 1.0, w, use_reentrant=True) * 2

    return program, (leaf(2, 3), leaf(3, 3)), (leaf(4, 3), leaf(3, 3))


@form
def checkpoint_with_dropout() -> Form:
    def program(x, w):
        def layer(x):
            return nn.functional.dropout((x @ w).sin(), 0.5)

        return checkpointing.checkpoint(layer, x, use_reentrant=False)

    return program, (leaf(2, 3), leaf(3, 3)), None


def _policy(ctx, op, *args, **kwargs):
    saved = op in (torch.ops.aten.mm.default,)
    policy = checkpointing.CheckpointPolicy
    return policy.MUST_SAVE if saved else policy.PREFER_RECOMPUTE


@form
def checkpoint_with_a_policy() -> Form:
    contexts = functools.partial(checkpointing.create_selective_checkpoint_contexts, _policy)

    def program(x, w):
        return checkpointing.checkpoint(_layer, x, w, use_reentrant=False, context_fn=contexts) * 2

    return program, (leaf(2, 3), leaf(3, 3)), (leaf(4, 3), leaf(3, 3))


@form
def checkpoint_with_a_list() -> Form:
    def contexts():
        return checkpointing.create_selective_checkpoint_contexts([torch.ops.aten.mm.default])

    def program(x, w):
        return checkpointing.checkpoint(_layer, x, w, use_reentrant=False, context_fn=contexts) * 2

    return program, (leaf(2, 3), leaf(3, 3)), None


# -- regions --


@form
def a_nested_region() -> Form:
    @torch.compiler.nested_compile_region
    def layer(x, w):
        return (x @ w).sin()

    def program(x, w):
        for _ in range(3):
            x = layer(x, w)
        return x

    return program, (leaf(2, 3), leaf(3, 3)), (leaf(4, 3), leaf(3, 3))
