"""One case a fact about nn.Module: structure, parameters, buffers, hooks, flags, forward."""

from __future__ import annotations

import collections

import pytest
import torch
from torch import nn

import tracer_core
from tests.support.guard_facts import Facts, X, check
from tracer_core.testing import CaptureCounter

fact = Facts()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(4, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("shift", torch.zeros(4))
        self.register_buffer("nothing", None)
        self.k = 2
        self.eval()

    def forward(self, x):
        x = self.first(x) * self.scale + self.shift
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
        if self.nothing is not None:
            x = x + self.nothing
        return self.drop(self.norm(x)) * self.k


def changed(change, **options):
    """A case whose program is a `Net`; change(net)."""

    def register(name):
        @fact(name, **options)
        def _():
            net = Net()
            return net, lambda: change(net)

    return register


def ones(*shape):
    return torch.ones(*shape)


def replace_parameter(net):
    net.first.weight = nn.Parameter(ones(4, 4))


def set_item(net):
    net.layers[1] = nn.Linear(4, 4)


def delete_bias(net):
    net.first.bias = None


changed(lambda net: setattr(net, "first", nn.Linear(4, 4)), seen=False)(
    "submodule replaced by one of its kind"
)
changed(lambda net: setattr(net, "first", nn.Identity()), reason="first")(
    "submodule replaced by one of another kind"
)
changed(lambda net: setattr(net, "first", nn.Linear(4, 4, bias=False)), reason="first")(
    "submodule with another signature"
)
changed(lambda net: net.layers.append(nn.Linear(4, 4)), reason="layers")(
    "submodule appended to a list"
)
changed(lambda net: net.layers.insert(0, nn.Tanh()), reason="layers")("submodule inserted")
changed(lambda net: net.layers.__delitem__(1), reason="layers")("submodule removed")
changed(set_item, seen=False)("submodule of a list replaced by one of its kind")
changed(lambda net: net.layers.__setitem__(1, nn.Tanh()), reason="layers.1")(
    "submodule of a list replaced"
)
changed(lambda net: net.add_module("first", nn.ReLU()), reason="first")(
    "add_module over an old one"
)
changed(lambda net: net._modules.update(first=nn.ReLU()), reason="first")(
    "_modules written directly"
)
changed(replace_parameter, seen=False)("parameter replaced")
changed(lambda net: net.first._parameters.update(weight=nn.Parameter(ones(4, 4))), seen=False)(
    "_parameters written directly"
)
changed(delete_bias, reason="bias")("parameter set to None")
changed(lambda net: setattr(net, "scale", nn.Parameter(ones(3, 1) * 2)), reason="scale")(
    "parameter of another shape"
)
changed(lambda net: net.double(), breaks=None, reason="dtype")("module turned to float64")
changed(lambda net: net.first.weight.data.mul_(3), seen=False)("parameter's values written")
changed(lambda net: setattr(net.first.weight, "data", ones(4, 4)), seen=False)(
    "parameter's data replaced"
)
changed(lambda net: setattr(net.scale, "data", ones(4).double() * 2), reason="scale", breaks=None)(
    "parameter's dtype by .data"
)
changed(lambda net: setattr(net, "shift", ones(4)), seen=False)("buffer replaced")
changed(lambda net: setattr(net, "shift", None), breaks=None)("buffer set to None")
changed(lambda net: setattr(net, "nothing", ones(4)), reason="nothing")(
    "None buffer becomes a tensor"
)
changed(lambda net: net.register_buffer("nothing", ones(4)), reason="nothing")(
    "None buffer registered"
)
changed(lambda net: net.shift.add_(1), seen=False)("buffer written in place")
changed(lambda net: net.train(), reason="training", breaks=None)("training flag of the whole")
changed(lambda net: net.drop.train(), reason="training", breaks=None)("training flag of a leaf")
changed(lambda net: setattr(net.norm, "training", True), reason="training", breaks=None)(
    "training flag set by hand"
)
changed(
    lambda net: (net.drop.train(), setattr(net.drop, "p", 0.9)), reason="training", breaks=None
)("dropout's probability")
changed(lambda net: setattr(net.norm, "eps", 0.5), reason="eps")("batch norm's eps")
changed(lambda net: setattr(net, "k", 3), reason="k")("attribute")
changed(lambda net: net.__dict__.update(k=5), reason="k")("attribute by __dict__")
changed(lambda net: setattr(net, "forward", lambda x: x * 7), reason="forward")(
    "forward of the instance"
)
changed(lambda net: setattr(net.first, "forward", lambda x: x * 7), reason="forward")(
    "forward of a submodule"
)
changed(lambda net: setattr(net.first, "__class__", nn.Bilinear), breaks=None)(
    "__class__ of a submodule"
)
changed(lambda net: setattr(net.layers[1], "__class__", Doubled), reason="layers.1")(
    "__class__ of a list's submodule"
)
changed(
    lambda net: net.first.register_forward_hook(lambda m, a, y: y + 1), reason="_forward_hooks"
)("forward hook")
changed(lambda net: net.register_forward_hook(lambda m, a, y: y + 1), reason="_forward_hooks")(
    "forward hook of the root"
)
changed(
    lambda net: net.first.register_forward_pre_hook(lambda m, a: (a[0] + 1,)),
    reason="_forward_pre_hooks",
)("forward pre-hook")
changed(
    lambda net: net.first.register_forward_hook(lambda m, a, kw, y: y + 1, with_kwargs=True),
    reason="_forward_hooks",
)("forward hook with keyword arguments")
changed(
    lambda net: net.first.register_forward_hook(lambda m, a, y: y * 2, always_call=True),
    reason="_forward_hooks",
)("forward hook that is always called")


class Doubled(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


@fact("hook removed", reason="_forward_hooks")
def _():
    net = Net()
    handle = net.first.register_forward_hook(lambda m, a, y: y + 1)
    return net, handle.remove


@fact("hook replaced by another", reason="")
def _():
    net = Net()
    handle = net.first.register_forward_hook(lambda m, a, y: y + 1)

    def change():
        handle.remove()
        net.first.register_forward_hook(lambda m, a, y: y - 1)

    return net, change


@fact("hooks in another order")
def _():
    net = Net()
    net.first.register_forward_hook(lambda m, a, y: y + 1)
    second = net.first.register_forward_hook(lambda m, a, y: y * 2)
    return net, lambda: net.first._forward_hooks.move_to_end(second.id, last=False)


@fact("hook's own state", reason="gain")
def _():
    net = Net()

    class Hook:
        gain = 2

        def __call__(self, module, args, y):
            return y * self.gain

    hook = Hook()
    net.first.register_forward_hook(hook)
    return net, lambda: setattr(hook, "gain", 3)


def global_hook(register):
    def make():
        net, handles = Net(), []
        return (
            net,
            lambda: handles.append(register()),
            lambda: [handle.remove() for handle in handles],
        )

    return make


fact("global forward hook")(global_hook(
    lambda: nn.modules.module.register_module_forward_hook(lambda m, a, y: y + 1)))  # fmt: skip
fact("global forward pre-hook")(global_hook(
    lambda: nn.modules.module.register_module_forward_pre_hook(lambda m,
    a: (a[0] + 1,))))  # fmt: skip


@fact("global forward hook removed")
def _():
    net = Net()
    handle = nn.modules.module.register_module_forward_hook(lambda m, a, y: y + 1)
    return net, handle.remove, handle.remove


@fact("forward of a class", reason="forward")
def _():
    class Own(nn.Module):
        def forward(self, x):
            return x + 1

    net = nn.Sequential(Own())
    return net, lambda: setattr(Own, "forward", lambda self, x: x - 1)


@fact("__call__ of a class")
def _():
    class Own(nn.Module):
        def forward(self, x):
            return x + 1

    net = nn.Sequential(Own())
    return net, lambda: setattr(Own, "__call__", lambda self, x: x - 1)


@fact("__getattr__ of a class")
def _():
    class Own(nn.Module):
        def forward(self, x):
            return x * getattr(self, "missing", 3)

    def gain():
        Own.__getattr__ = lambda self, name: (
            5 if name == "missing" else nn.Module.__getattr__(self, name)
        )

    return nn.Sequential(Own()), gain


@fact("class attribute of a module", reason="k")
def _():
    class Own(nn.Module):
        k = 2

        def forward(self, x):
            return x * self.k

    return nn.Sequential(Own()), lambda: setattr(Own, "k", 3)


@fact("class attribute shadowed by a buffer")
def _():
    class Own(nn.Module):
        def forward(self, x):
            return x * getattr(self, "scale", 2)

    own = Own()
    return nn.Sequential(own), lambda: own.register_buffer("scale", torch.ones(4) * 3)


@fact("F.linear replaced", reason="linear")
def _():
    net, original = Net(), nn.functional.linear
    return (
        net,
        (lambda: setattr(nn.functional, "linear", lambda x, w, b=None: original(x, w, b) * 2)),
        (lambda: setattr(nn.functional, "linear", original)),
    )


@fact("Linear.forward replaced", reason="forward")
def _():
    net, original = Net(), nn.Linear.forward
    return (
        net,
        (lambda: setattr(nn.Linear, "forward", lambda self, x: original(self, x) * 2)),
        (lambda: setattr(nn.Linear, "forward", original)),
    )


@fact("Module.__call__ replaced")
def _():
    net, original = nn.Sequential(Net()), nn.Module.__call__
    return (
        net,
        (lambda: setattr(nn.Module, "__call__", lambda self, *a, **k: original(self, *a, **k) * 2)),
        (lambda: setattr(nn.Module, "__call__", original)),
    )


@fact("Sequential: order of submodules")
def _():
    net = nn.Sequential(collections.OrderedDict(a=nn.Tanh(), b=nn.Softmax(-1)))
    return net, lambda: net._modules.update(a=net._modules.pop("a"))


@fact("Sequential: submodule deleted")
def _():
    net = nn.Sequential(nn.Tanh(), nn.ReLU())
    return net, lambda: net.__delitem__(0)


@fact("ModuleDict: key replaced", reason="act")
def _():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.ModuleDict({"act": nn.ReLU()})

        def forward(self, x):
            return self.table["act"](x)

    net = Own()
    return net, lambda: net.table.update({"act": nn.Tanh()})


@fact("ModuleDict: another key chosen", reason="name")
def _():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()})
            self.name = "a"

        def forward(self, x):
            return self.table[self.name](x)

    net = Own()
    return net, lambda: setattr(net, "name", "b")


@fact("ParameterList: appended", reason="")
def _():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterList([nn.Parameter(torch.ones(4))])

        def forward(self, x):
            for w in self.weights:
                x = x * w + 1
            return x

    net = Own()
    return net, lambda: net.weights.append(nn.Parameter(torch.ones(4) * 2))


@fact("one parameter shared by two modules", seen=False)
def _():
    net = Net()

    def share():
        net.layers[1].weight = net.layers[0].weight

    return net, share


@fact("shared parameter no longer shared", reason="weight")
def _():
    net = Net()
    net.layers[1].weight = net.layers[0].weight

    def part():
        net.layers[1].weight = nn.Parameter(torch.ones(4, 4))

    return net, part


@fact("one module used twice", reason="layers.1")
def _():
    net = Net()
    net.layers[0] = net.layers[1] = nn.Linear(4, 4)

    def part():
        net.layers[1] = nn.Linear(4, 4)

    return net, part


@fact("weight loaded", seen=False)
def _():
    net, other = Net(), Net()
    for parameter in other.parameters():
        parameter.data.add_(1)
    return net, lambda: net.load_state_dict(other.state_dict())


@fact("weight loaded with assign=True", seen=False)
def _():
    net, other = Net(), Net()
    for parameter in other.parameters():
        parameter.data.add_(1)
    return net, lambda: net.load_state_dict(other.state_dict(), assign=True)


@fact("parametrization registered", breaks=None)
def _():
    net = Net()

    class Twice(nn.Module):
        def forward(self, w):
            return w * 2

    return net, lambda: nn.utils.parametrize.register_parametrization(net.first, "weight", Twice())


@fact("weight norm applied", breaks=None, seen=False)
def _():
    net = Net()

    def change():
        nn.utils.parametrizations.weight_norm(net.first)
        with torch.no_grad():
            net.first.parametrizations.weight.original0.mul_(2)

    return net, change


@fact("a module's plain list of numbers", reason="factors")
def _():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.factors = [1, 2]

        def forward(self, x):
            return x * sum(self.factors)

    net = Own()
    return net, lambda: net.factors.append(3)


@fact("a module's plain dict of tensors", seen=False)
def _():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.cache = {"a": torch.ones(4)}

        def forward(self, x):
            return x * self.cache["a"]

    net = Own()
    return net, lambda: net.cache.update(a=torch.ones(4) * 3)


@fact("a config object of a module", reason="eps")
def _():
    class Config:
        eps = 0.1

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.config = Config()

        def forward(self, x):
            return x * self.config.eps

    net = Own()
    return net, lambda: setattr(net.config, "eps", 0.2)


@pytest.mark.sweep(keep=35)
@pytest.mark.parametrize("name", fact)
def test_fact(name):
    check(fact[name], lambda program: tracer_core.compile(program, backend="eager"))


def test_a_parameter_that_is_frozen_changes_requires_grad():
    net = nn.Linear(4, 4)
    fast = tracer_core.compile(net, backend="eager")
    assert fast(X).requires_grad and fast(X).requires_grad
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    assert not fast(X).requires_grad and not fast(X).requires_grad
    net.weight.requires_grad_(True)
    assert fast(X).requires_grad


class Writing(nn.Module):
    """Writes the same into a buffer however often it runs, then reads another."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.register_buffer("total", torch.zeros(4))
        self.register_buffer("other", torch.ones(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        self.total.copy_(x.detach().sum(0))
        return x + self.other


def sharing(change):
    @torch.no_grad()
    def run():
        net, writing = Writing(), Writing()
        fast = tracer_core.compile(net, backend="eager")
        for value in (net, writing):
            (fast if value is net else writing)(X), (fast if value is net else writing)(X)
        xs = [change(value, X.clone()) for value in (net, writing)]
        with CaptureCounter() as counter:
            for _ in range(3):
                torch.testing.assert_close(fast(xs[0]), writing(xs[1]))
                torch.testing.assert_close(net.total, writing.total)
        assert len(counter.recompiles) == 1, "a backend may rely on what shares memory"

    return run


def same_object(net, x):
    net.other = net.total
    return x


def views_of_one(net, x):
    base = torch.zeros(6)
    net.total, net.other = base[:4], base[2:]
    return x


def data_of_one(net, x):
    net.other.data = net.total.data
    return x


def set_to_one(net, x):
    net.other.set_(net.total.untyped_storage(), 0, (4,), (1,))
    return x


def storage_of_one(net, x):
    """The tensors and their storages stay: only the memory behind one moves."""
    array = net.total.numpy()
    net.other.set_(torch.from_numpy(array).untyped_storage(), 0, (4,), (1,))
    return x


def argument(net, x):
    net.total = x.view(-1)[4:8]
    return x


def parameter(net, x):
    net.total = net.layers[0].weight.detach()[1]
    return x


@pytest.mark.parametrize(
    "change",
    [same_object, views_of_one, data_of_one, set_to_one, storage_of_one, argument, parameter],
)
@pytest.mark.parametrize("form", ["native", "python"])
def test_a_written_buffer_comes_to_share_memory(change, form, monkeypatch):
    monkeypatch.setenv("TRACER_PYTHON_GUARDS", str(int(form == "python")))
    sharing(change)()


def test_a_training_module_writes_its_statistics():
    net = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(6)))
    eager = type(net)(*(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(6)))
    eager.load_state_dict(net.state_dict())
    fast = tracer_core.compile(net, backend="eager")
    for i in range(4):
        x = X + i
        torch.testing.assert_close(fast(x), eager(x))
    for (name, item), other in zip(net.named_buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(item, other, msg=name)
