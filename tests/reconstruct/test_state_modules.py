"""nn.Modules that change themselves while they run: parameters, buffers, submodules, hooks, flags,
caches.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support.eager_reference import View, compare_with_eager

X, Y = torch.randn(3, 4), torch.randn(3, 4)


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lin = nn.Linear(4, 4)


def look_at(m):
    return View(
        lambda: (
            m.state_dict(), list(m._modules), list(m._buffers), list(m._parameters),
            [c.training for c in m.modules()], [len(c._forward_hooks) for c in m.modules()],
            [c._non_persistent_buffers_set for c in m.modules()], getattr(m, "cache", None),
        ),
        m,
    )  # fmt: skip


def ran(cls, *steps, **expected):
    def make():
        m = cls()
        return m, look_at(m)

    return compare_with_eager(make, *(steps or ((X,), (X,), (Y,))), **expected)


def test_running_statistics():
    class M(Base):
        def __init__(self):
            super().__init__()
            self.bn = nn.BatchNorm1d(4)
            self.register_buffer("steps", torch.zeros((), dtype=torch.long))
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x):
            self.steps += 1
            self.mean = self.mean * 0.9 + x.mean(0).detach() * 0.1
            self.mean.copy_(self.mean + 1)
            return self.bn(x)

    ran(M, graphs=1, breaks=0)


def test_activation_kept():
    class M(Base):
        def forward(self, x):
            self.cache = self.lin(x)
            return self.cache * 2

    ran(M, graphs=1, breaks=0)


def test_buffer_made_on_the_first_call():
    class M(Base):
        def forward(self, x):
            if not hasattr(self, "scale"):
                self.register_buffer("scale", x.detach().abs().mean(), persistent=False)
            return self.lin(x) * self.scale

    ran(M, breaks=0, recompiles=1)


def test_buffer_made_and_deleted():
    class M(Base):
        def forward(self, x):
            self.register_buffer("tmp", x.detach() * 2)
            y = self.lin(x) + self.tmp
            del self.tmp
            return y

    ran(M, graphs=1, breaks=0)


def test_buffer_set_to_none_and_back():
    class M(Base):
        def __init__(self):
            super().__init__()
            self.register_buffer("kept", None)

        def forward(self, x):
            if self.kept is None:
                self.kept = x.detach() + 1
            else:
                self.kept = None
            return self.lin(x)

    ran(M, breaks=0, recompiles=1)


def test_parameter_made_on_the_first_call():
    class M(Base):
        def forward(self, x):
            if "extra" not in self._parameters:
                self.register_parameter("extra", nn.Parameter(torch.full((4,), 2.0)))
            return self.lin(x) * self.extra

    ran(M)


def test_parameter_replaced():
    class M(Base):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))

        def forward(self, x):
            self.w = nn.Parameter(torch.full((4,), 3.0))
            return x * self.w

    ran(M)


def test_parameter_deleted():
    class M(Base):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))

        def forward(self, x):
            if hasattr(self, "w"):
                del self.w
                return x
            return self.lin(x)

    ran(M, breaks=0, recompiles=1)


def test_parameters_shared_between_calls():
    class M(Base):
        def __init__(self):
            super().__init__()
            self.other = nn.Linear(4, 4)

        def forward(self, x):
            self.other.weight = self.lin.weight
            return self.other(x) + self.lin(x)

    ran(M, breaks=0)


def test_submodules_come_and_go():
    class M(Base):
        def forward(self, x):
            if not hasattr(self, "act"):
                self.act = nn.ReLU()
                self.add_module("sub", nn.Identity())
            else:
                del self.sub
                del self.act
                return self.lin(x)
            return self.act(self.lin(x))

    ran(M, breaks=0, recompiles=1)


def test_submodule_replaced():
    class M(Base):
        def forward(self, x):
            self.act = nn.Tanh() if isinstance(getattr(self, "act", None), nn.ReLU) else nn.ReLU()
            return self.act(self.lin(x))

    ran(M, breaks=0)


def test_module_list_grows():
    class M(Base):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList()

        def forward(self, x):
            if len(self.layers) < 2:
                self.layers.append(nn.Identity())
            for layer in self.layers:
                x = layer(x) + 1
            return x

    ran(M, breaks=0, recompiles=2)


def test_module_dict_changes():
    class M(Base):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()})

        def forward(self, x):
            first = self.parts.pop("a") if "a" in self.parts else None
            self.parts["c"] = nn.Sigmoid()
            for part in self.parts.values():
                x = part(x)
            return x if first is None else first(x)

    ran(M, breaks=0)


def test_train_and_eval_inside():
    class M(Base):
        def __init__(self):
            super().__init__()
            self.drop, self.bn = nn.Dropout(0.5), nn.BatchNorm1d(4)

        def forward(self, x):
            self.eval()
            y = self.drop(self.bn(self.lin(x)))
            self.train()
            return y + self.drop(self.bn(x))

    ran(M, (X,), lambda m: m.eval(), (X,), (Y,), breaks=0)


def test_training_flag_toggled():
    class M(Base):
        def forward(self, x):
            self.training = not self.training
            return self.lin(x) * (2 if self.training else 3)

    ran(M, (X,), (X,), (X,), (Y,), breaks=0, recompiles=1)


def test_hook_for_one_call():
    class M(Base):
        def forward(self, x):
            handle = self.lin.register_forward_hook(lambda m, args, out: out * 2)
            y = self.lin(x)
            handle.remove()
            return y + self.lin(x)

    ran(M, breaks=0)


def test_hook_as_context():
    class M(Base):
        def forward(self, x):
            with self.lin.register_forward_pre_hook(lambda m, args: (args[0] + 1,)):
                y = self.lin(x)
            return y + self.lin(x)

    ran(M, breaks=0)


def test_hook_that_stays():
    class M(Base):
        def forward(self, x):
            if not self.lin._forward_hooks:
                self.handle = self.lin.register_forward_hook(lambda m, args, out: out * 2)
            else:
                self.handle.remove()
            return self.lin(x)

    ran(M, breaks=0)


def test_hook_that_removes_itself():
    class M(Base):
        def __init__(self):
            super().__init__()
            self.seen = []
            self.handle = self.lin.register_forward_hook(self.once)

        def once(self, m, args, out):
            self.seen.append(out.detach())
            self.handle.remove()
            return out + 1

        def forward(self, x):
            return self.lin(x)

    ran(M, breaks=0, recompiles=1)


def test_hook_writes_what_it_sees():
    class M(Base):
        def __init__(self):
            super().__init__()
            self.cache = {}
            self.lin.register_forward_hook(lambda m, args, out: self.cache.update(out=out.detach()))

        def forward(self, x):
            return self.lin(x)

    ran(M, breaks=0)


def test_parameters_frozen_inside():
    class M(Base):
        def forward(self, x):
            for p in self.parameters():
                p.requires_grad_(False)
            return self.lin(x)

    ran(M, kinds=None)


def test_gradients_cleared_inside():
    class M(Base):
        def forward(self, x):
            for p in self.parameters():
                p.grad = None
            return self.lin(x)

    ran(M, (X,), lambda m: setattr(m.lin.weight, "grad", torch.ones(4, 4)), (X,), kinds=None)


@pytest.mark.parametrize("how", ["copy_", "add_", "data", "setitem", "fill_"])
def test_weights_changed_inside(how):
    change = {
        "copy_": lambda w: w.copy_(w * 2), "add_": lambda w: w.add_(1),
        "data": lambda w: w.data.mul_(0.5),
        "setitem": lambda w: w.__setitem__(0, 1.0), "fill_": lambda w: w.fill_(0.5),
    }[how]  # fmt: skip

    class M(Base):
        def forward(self, x):
            with torch.no_grad():
                change(self.lin.weight)
            return self.lin(x)

    ran(M, graphs=1, breaks=0)


def test_exponential_moving_average():
    class M(Base):
        def __init__(self):
            super().__init__()
            self.shadow = {n: p.detach().clone() for n, p in self.named_parameters()}

        def forward(self, x):
            with torch.no_grad():
                for name, p in self.named_parameters():
                    self.shadow[name].mul_(0.9).add_(p, alpha=0.1)
            self.cache = self.shadow
            return self.lin(x)

    ran(M, graphs=1, breaks=0)


def test_key_value_cache_in_lists():
    class M(Base):
        def __init__(self):
            super().__init__()
            self.cache = [None, None]

        def forward(self, x):
            for i in range(2):
                self.cache[i] = x if self.cache[i] is None else torch.cat([self.cache[i], x])
            return self.cache[0] + self.cache[1]

    ran(M, (X,), (X,), (Y,), breaks=0)


def test_key_value_cache_of_fixed_size():
    class M(Base):
        def __init__(self):
            super().__init__()
            self.cache = [torch.zeros(8, 4), torch.zeros(8, 4)]
            self.at = torch.zeros((), dtype=torch.long)

        def forward(self, x):
            place = self.at + torch.arange(2)
            for held in self.cache:
                held.index_copy_(0, place, x[:2])
            self.at += 2
            return self.cache[0].sum(0) + self.cache[1]

    ran(M, graphs=1, breaks=0)


def test_cache_object_that_is_handed_in():
    class Cache:
        def __init__(self):
            self.keys, self.seen = [], 0

        def update(self, k, layer):
            if len(self.keys) <= layer:
                self.keys.append(k)
            else:
                self.keys[layer] = torch.cat([self.keys[layer], k])
            self.seen += k.shape[0]
            return self.keys[layer]

    class M(Base):
        def __init__(self):
            super().__init__()
            self.held = Cache()

        def forward(self, x):
            self.cache = self.held.seen
            return self.held.update(self.lin(x).detach(), 0).sum(0) + self.held.update(x, 1).sum(0)

    ran(M, (X,), (X,), (Y,), breaks=0)


def test_counters_as_python_numbers():
    class M(Base):
        def __init__(self):
            super().__init__()
            self.calls, self.history = 0, []

        def forward(self, x):
            self.calls += 1
            self.history.append(float(self.calls))
            return self.lin(x) * self.calls

    ran(M, (X,), (X,), (Y,), breaks=0)


def test_user_setattr_of_a_module():
    class M(Base):
        def __setattr__(self, name, value):
            if name.startswith("log_"):
                self.__dict__.setdefault("logged", []).append(name)
            super().__setattr__(name, value)

        def forward(self, x):
            self.log_x = x.detach()
            self.cache = list(self.logged)
            return self.lin(x)

    ran(M, breaks=0)
