"""Programs at the edges of capture, about three of each kind: what `benchmarks.capture` runs.

`PROGRAMS` maps a name to its kind and its maker. maker() returns a function, and what else the
program changes (`world`), made anew for each compiler. What always holds: a function takes one
float tensor of 3 by 4 and gives the same result for it each time it is made anew.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import random
import threading
import typing
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch._higher_order_ops.map import map as torch_map
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

Maker = Callable[[], Any]
PROGRAMS: dict[str, tuple[str, Maker]] = {}


def program(kind: str) -> Callable[[Maker], Maker]:
    """Adds a maker of a program of this kind."""

    def add(maker: Maker) -> Maker:
        PROGRAMS[f"{kind}: {maker.__name__.strip('_')}"] = kind, maker
        return maker

    return add


def plain(kind: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds a function that is a program of this kind by itself."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[f"{kind}: {function.__name__.strip('_')}"] = kind, lambda: function
        return function

    return add


# NumPy in the trace -------------------------------------------------------------------------------


@plain("numpy")
def operators_on_an_array(x: Any) -> Any:
    array = x.detach().numpy()
    return torch.from_numpy((array + 1) * array.T.sum() / 2 - array[::2, 1:3].mean()) + x


@plain("numpy")
def functions_of_arrays(x: Any) -> Any:
    a, b = x.numpy(), (x + 1).numpy()
    joined = np.concatenate([np.maximum(a, b), np.where(a > 0, np.exp(-a), b)], axis=1)
    return torch.from_numpy(joined), np.clip(joined, -1, 1).reshape(-1).sum()


@plain("numpy")
def promotion(x: Any) -> Any:
    a = x.numpy()
    counts = (a * 3).astype(np.int32)
    return counts / 2, a + np.float64(2), counts + 1, counts * np.int64(3), a * np.arange(4), a > 0


@plain("numpy")
def an_array_is_written(x: Any) -> Any:
    y = x + 0
    a = y.numpy()
    a[0] = 7
    a += 1
    return y * 2, a


@plain("numpy")
def properties_of_an_array(x: Any) -> Any:
    a = x.numpy()
    if a.ndim == 2 and a.dtype == np.float32 and a.shape[0] > 1:
        return x * a.size * a.itemsize, a.shape, a.flatten().tolist()[0] is None
    return x


# Values that depend on data -----------------------------------------------------------------------


@plain("data")
def item_as_a_factor(x: Any) -> Any:
    return x * x.sum().item() + 1


@plain("data")
def list_of_sizes(x: Any) -> Any:
    lengths = (x > 5).sum(1) + 1
    return x * sum(lengths.tolist())


@plain("data")
def nonzero_rows(x: Any) -> Any:
    rows = torch.nonzero(x.sum(1) > -100).squeeze(1)
    return x[rows].sum(0) + rows.shape[0]


@plain("data")
def boolean_mask(x: Any) -> Any:
    return x[x > 0].sum() * 2


@plain("data")
def range_of_an_item(x: Any) -> Any:
    n = (x > -100).sum().item()
    return torch.arange(n).sum() + x.new_zeros(n).sum()


@plain("data")
def longformer_global_attention(x: Any) -> Any:
    mask = x > 0.5
    most = mask.long().sum(dim=1).max()
    where = mask.nonzero(as_tuple=True)
    is_global = mask.flatten().any().item()
    out = x.cumsum(1)
    if is_global:
        out[where] = most.item()
    return out


# Hooks on tensors that existed before -------------------------------------------------------------


@program("hooks")
def a_hook_on_an_input() -> Any:
    weight = torch.ones(4, requires_grad=True)
    seen: list[Any] = []

    def run(x: Any) -> Any:
        handle = weight.register_hook(lambda grad: grad * 2)
        (x * weight).sum().backward()
        handle.remove()
        seen.append(len(seen))
        return weight.grad.clone()

    return run, seen


@program("hooks")
def a_hook_from_before() -> Any:
    weight = torch.ones(4, requires_grad=True)
    weight.register_hook(lambda grad: grad * 3)

    def run(x: Any) -> Any:
        (x * weight).sum().backward()
        return weight.grad.clone()

    return run


@program("hooks")
def a_hook_that_stays() -> Any:
    weight = torch.ones(4, requires_grad=True)
    handles: list[Any] = []

    def run(x: Any) -> Any:
        y = x * weight
        if not handles:
            handles.append(weight.register_hook(lambda grad: grad.clamp(max=1)))
        return y.sum()

    def whole(x: Any) -> Any:
        return run(x)

    return whole, weight


# cond and map -------------------------------------------------------------------------------------


@program("cond")
def cond_with_a_closure() -> Any:
    scale = torch.full((4,), 2.0)
    return lambda x: torch.cond(x.sum() > 0, lambda v: v * scale, lambda v: v - scale, (x,))


@plain("cond")
def cond_with_a_pytree(x: Any) -> Any:
    def yes(part: Any) -> Any:
        return {"a": part["x"] + 1, "b": (part["y"][0] * 4,)}

    def no(part: Any) -> Any:
        return {"a": part["x"] - 1, "b": (part["y"][0] * 2,)}

    return torch.cond(x.sum() > 0, yes, no, ({"x": x, "y": [x * 3]},))


@program("cond")
def cond_with_modules() -> Any:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    for item, value in ((first, 0.5), (second, -0.25)):
        nn.init.constant_(item.weight, value)
        nn.init.constant_(item.bias, value / 2)
    return lambda x: torch.cond(x.mean() > 0, first, second, (x,))


@program("map")
def map_with_a_closure() -> Any:
    bias = torch.arange(4.0)
    return lambda x: torch_map(lambda row: row * 2 + bias, x)


@plain("map")
def map_with_a_pytree(x: Any) -> Any:
    return torch_map(lambda part, y: (part[0] + y, {"d": part[1] * y}), (x, x + 1), x[0] * 1)


@plain("map")
def map_with_an_argument(x: Any) -> Any:
    return torch_map(lambda row, n: row.sum() * n, x, 3)


# Predicates ---------------------------------------------------------------------------------------


@plain("predicates")
def is_tracing(x: Any) -> Any:
    tracing = torch.fx._symbolic_trace.is_fx_tracing()
    if torch.jit.is_tracing() or torch.jit.is_scripting() or tracing:
        return x
    return x * 2


@plain("predicates")
def is_in_onnx_export(x: Any) -> Any:
    return x if torch.onnx.is_in_onnx_export() else x + 1


@plain("predicates")
def functorch(x: Any) -> Any:
    functorch = torch._C._functorch
    if functorch.is_batchedtensor(x) or functorch.is_gradtrackingtensor(x):
        return x
    if functorch.maybe_get_level(x) >= 0 or torch.overrides.is_tensor_method_or_property(torch.add):
        return x + 3
    return x + 2


@plain("predicates")
def several_of_torch(x: Any) -> Any:
    if torch.overrides.has_torch_function((x,)) or torch.is_inference_mode_enabled():
        return x
    if torch.compiler.is_exporting() or torch._C._get_tracing_state() is not None:
        return x
    return x * 3 if torch.is_tensor(x) and torch.is_floating_point(x) else x


# Iterators that outlive a region or lived before it -----------------------------------------------


@program("iterators")
def zip_from_before() -> Any:
    pairs = zip(range(100), iter([float(n) for n in range(100)]), strict=False)

    def run(x: Any) -> Any:
        a, b = next(pairs)
        return x * a + b

    return run, pairs


@program("iterators")
def map_from_before() -> Any:
    scaled = map(lambda n: n * 2, range(100))  # noqa: C417
    return lambda x: x * next(scaled)


@plain("iterators")
def a_map_is_returned(x: Any) -> Any:
    result = map(lambda row: row * 2, x)  # noqa: C417
    first = next(result)
    return first, list(zip(range(2), (lambda: result)(), strict=False))


@plain("iterators")
def a_zip_leaves(x: Any) -> Any:
    return zip([x + 1, x + 2], [1, 2], strict=True)


@plain("iterators")
def a_filter_leaves(x: Any) -> Any:
    return filter(lambda part: part.dim() == 1, [x[0] * 2, x, x[1]])


@plain("iterators")
def a_generator_leaves(x: Any) -> Any:
    return (row * 2 for row in x)


@program("iterators")
def a_generator_from_before() -> Any:
    def numbers() -> Any:
        total = 1
        while True:
            total += yield total

    source = numbers()
    next(source)
    return lambda x: x * source.send(1)


# autograd.Function --------------------------------------------------------------------------------


class Kind(enum.Enum):
    DOUBLE = 2
    TRIPLE = 3


class ByKind(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, kind: Kind) -> Any:
        ctx.kind = kind
        return x * kind.value

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * (10 if ctx.kind is Kind.DOUBLE else 20), None


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * x.exp() * 2


class WithConstants(torch.autograd.Function):
    FACTOR = 4

    @staticmethod
    def forward(ctx: Any, x: Any, words: Any, scale: Any, dtype: Any) -> Any:
        ctx.scale, ctx.words = scale, words
        return (x * scale).to(dtype), len(words), None

    @staticmethod
    def backward(ctx: Any, grad: Any, *rest: Any) -> Any:
        return (grad * ctx.scale * WithConstants.FACTOR * len(ctx.words)).float(), None, None, None


@program("autograd function")
def of_an_enum() -> Any:
    return lambda x: ByKind.apply(x.detach().requires_grad_(), Kind.DOUBLE)


@program("autograd function")
def once_differentiable() -> Any:
    return lambda x: Once.apply(x.detach().requires_grad_())


@program("autograd function")
def of_constants() -> Any:
    return lambda x: WithConstants.apply(x.detach().requires_grad_(), ("a", "b"), 3, torch.float64)


# Warnings -----------------------------------------------------------------------------------------


@plain("warnings")
def a_warning(x: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("not to be seen", UserWarning, stacklevel=2)
        return x * 2


@plain("warnings")
def recorded(x: Any) -> Any:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.warn(f"shape {tuple(x.shape)}", stacklevel=1)
        y = x + 1
    return y, [(str(item.message), item.category) for item in seen]


@plain("warnings")
def in_a_branch(x: Any) -> Any:
    y = x * 2
    if x.shape[0] != 3:
        warnings.warn("another size", stacklevel=2)
    else:
        warnings.warn("the usual size", DeprecationWarning, stacklevel=2)
    return y + 1


@plain("warnings")
def as_an_error(x: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            warnings.warn("raised", RuntimeWarning, stacklevel=1)
        except RuntimeWarning as error:
            return x + len(str(error))
    return x


# Named tuples of torch ----------------------------------------------------------------------------


@plain("return types")
def through_pytree(x: Any) -> Any:
    largest = x.max(dim=1)
    leaves, spec = pytree.tree_flatten(largest)
    return pytree.tree_unflatten([leaf * 2 for leaf in leaves], spec), largest.values


@plain("return types")
def mapped(x: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf + 1, {"s": torch.sort(x, dim=0), "k": x.topk(2)})


@plain("return types")
def made_by_hand(x: Any) -> Any:
    largest = torch.return_types.max((x * 2, x > 0))
    values, indices = largest
    return type(largest)([values + 1, indices]), largest.indices, isinstance(largest, tuple)


# Identity of modules ------------------------------------------------------------------------------


@program("identity")
def id_of_modules() -> Any:
    first, second = nn.ReLU(), nn.Tanh()
    names = {id(first): 2, id(second): 3}

    def run(x: Any) -> Any:
        for layer in (first, second):
            x = layer(x) * names[id(layer)]
        return x

    return run


@program("identity")
def a_set_of_modules() -> Any:
    layers = [nn.ReLU(), nn.Tanh()]
    chosen = {layers[0]}

    def run(x: Any) -> Any:
        seen = set()
        for layer in [*layers, *layers]:
            if layer not in seen:
                seen.add(layer)
                x = layer(x) + (layer in chosen)
        return x * len(seen)

    return run


@program("identity")
def modules_are_keys() -> Any:
    model = nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh(), nn.Sigmoid()))

    def run(x: Any) -> Any:
        depth = {model: 0}
        for module in model.modules():
            for child in module.children():
                depth[child] = depth[module] + 1
        memo: set[Any] = set()
        for _ in model.named_modules(memo=memo):
            pass
        return model(x) * sum(depth.values()) + len(memo)

    return run


@plain("identity")
def id_of_tensors(x: Any) -> Any:
    y = x + 1
    seen = {id(y)}
    return y * 2 if id(y) in seen and id(x) not in seen else y


# Scripted functions and GraphModules --------------------------------------------------------------


def _scripted_source(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * 2


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) + self.bias


@program("scripted")
def a_scripted_function() -> Any:
    scripted = torch.jit.script(_scripted_source)
    return lambda x: scripted(x + 1) - 1


@program("scripted")
def a_scripted_module() -> Any:
    scripted = torch.jit.script(Small())
    return lambda x: scripted(x).detach() - 1


@program("scripted")
def a_graph_module() -> Any:
    traced = torch.fx.symbolic_trace(Small())
    return lambda x: traced(x * 2).detach() + 1


@program("scripted")
def a_traced_function() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(lambda v: v.cos() + 1, torch.ones(3, 4))
    return lambda x: traced(x) * 2


# Classes made inside ------------------------------------------------------------------------------


@plain("classes")
def a_named_tuple_made_inside(x: Any) -> Any:
    Point = collections.namedtuple("Point", "x y", defaults=(2,))
    point = Point(x * 2)
    return point.x + point.y, point._replace(y=3).y, Point._fields, tuple(point)


@plain("classes")
def a_typed_named_tuple(x: Any) -> Any:
    class Pair(NamedTuple):
        left: Any
        right: Any = 5

        def both(self) -> Any:
            return self.left * self.right

    return Pair(x).both(), Pair(x, 2)._asdict()


@plain("classes")
def a_dataclass_made_inside(x: Any) -> Any:
    @dataclasses.dataclass
    class State:
        value: Any
        steps: int = 0

        def step(self) -> Any:
            self.steps += 1
            self.value = self.value * 2
            return self

    return State(x).step().step().value, State(x, 3) == State(x, 3) if x is None else 1


@plain("classes")
def made_and_used_across_a_break(x: Any) -> Any:
    class Scale:
        factor = 3

        def __call__(self, v: Any) -> Any:
            return v * self.factor

    scale = Scale()
    y = scale(x)
    print(end="")
    return scale(y), type(scale) is Scale


# Frozen dataclasses -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: Any
    name: str = "n"


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    value: Any
    more: Any = None


@dataclasses.dataclass(frozen=True)
class Checked:
    value: Any
    doubled: Any = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "doubled", self.value * 2)


@plain("frozen")
def a_frozen_dataclass(x: Any) -> Any:
    state = Frozen(x + 1)
    return dataclasses.replace(state, value=state.value * 2), state


@plain("frozen")
def with_slots(x: Any) -> Any:
    slots = FrozenSlots(x * 2, [x])
    try:
        slots.value = x  # type: ignore[misc]
    except dataclasses.FrozenInstanceError:
        return slots, dataclasses.replace(slots, more=None)
    return None


@plain("frozen")
def with_post_init(x: Any) -> Any:
    checked = Checked(x + 1)
    return checked.doubled, dataclasses.asdict(Frozen(1)), dataclasses.fields(checked)[1].name


@program("frozen")
def from_before() -> Any:
    state = Frozen(torch.arange(4.0))
    return lambda x: (x + state.value, state, len(state.name))


# Random numbers of Python -------------------------------------------------------------------------


@plain("random")
def an_object_of_random(x: Any) -> Any:
    generator = random.Random(7)
    return x * generator.random() + generator.randint(1, 5), generator.choice([1, 2, 3])


@program("random")
def an_object_from_before() -> Any:
    generator = random.Random(3)
    return (lambda x: x * generator.random() + generator.uniform(1, 2)), generator


@program("random")
def the_module() -> Any:
    random.seed(5)

    def run(x: Any) -> Any:
        random.seed(11)
        values = [1, 2, 3, 4]
        random.shuffle(values)
        return x * random.random() + values[0]

    return run


# Legacy tensor types ------------------------------------------------------------------------------


@plain("legacy types")
def isinstance_of_a_legacy_type(x: Any) -> Any:
    return x + (1 if isinstance(x, torch.FloatTensor) else 2), isinstance(x, torch.LongTensor)


@plain("legacy types")
def made_by_a_legacy_type(x: Any) -> Any:
    return torch.FloatTensor([1, 2, 3, 4]) + x, torch.LongTensor(2, 3).zero_()


@plain("legacy types")
def type_as_text(x: Any) -> Any:
    return x.type("torch.DoubleTensor"), x.type(), x.type(torch.IntTensor), x.new([1.0, 2.0])


# lru_cache ----------------------------------------------------------------------------------------


class Key:
    def __init__(self, factor: int) -> None:
        self.factor = factor


@program("lru_cache")
def of_an_object() -> Any:
    key = Key(3)

    @functools.lru_cache(None)
    def factor(one: Any) -> Any:
        return one.factor * 2

    return lambda x: x * factor(key) + factor(key)


@program("lru_cache")
def of_a_module() -> Any:
    layer = nn.Linear(4, 2)

    @functools.cache
    def width(one: Any) -> Any:
        return one.out_features

    return lambda x: x * width(layer)


@program("lru_cache")
def of_a_method() -> Any:
    class Table:
        @functools.lru_cache(maxsize=8)  # noqa: B019
        def entry(self, n: int) -> Any:
            return torch.full((4,), float(n))

    table = Table()
    return lambda x: x + table.entry(2) * table.entry(2)


# Torch-function modes -----------------------------------------------------------------------------


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.add:
            func = torch.mul
        return func(*args, **(kwargs or {}))


class Counting(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += 1
        return func(*args, **(kwargs or {}))


@plain("modes")
def a_mode_that_rewrites(x: Any) -> Any:
    with Doubling():
        y = torch.add(x, 3)
    return torch.add(y, 1)


@plain("modes")
def a_mode_that_counts(x: Any) -> Any:
    with Counting() as counting:
        y = torch.sin(x).abs()
    return y * counting.seen


@plain("modes")
def a_default_device(x: Any) -> Any:
    with torch.device("cpu"):
        return x + torch.ones(4)


# Thread locals ------------------------------------------------------------------------------------


@program("thread local")
def an_attribute_is_read() -> Any:
    state = threading.local()
    state.scale = 2
    return lambda x: x * state.scale


@program("thread local")
def an_attribute_is_set() -> Any:
    state = threading.local()

    def run(x: Any) -> Any:
        state.calls = getattr(state, "calls", 0) + 1
        return x + state.calls

    return run, state


@program("thread local")
def a_stack_of_scales() -> Any:
    class Scope(threading.local):
        def __init__(self) -> None:
            self.stack = [1]

    scope = Scope()

    @contextlib.contextmanager
    def scaled(n: int) -> typing.Iterator[None]:
        scope.stack.append(n)
        try:
            yield
        finally:
            scope.stack.pop()

    def run(x: Any) -> Any:
        with scaled(3):
            y = x * scope.stack[-1]
        return y + scope.stack[-1]

    return run


# Seeds --------------------------------------------------------------------------------------------


@plain("seeds")
def manual_seed(x: Any) -> Any:
    torch.manual_seed(4)
    return x + torch.rand(4), torch.randn(2)


@plain("seeds")
def a_generator(x: Any) -> Any:
    generator = torch.Generator().manual_seed(6)
    return x + torch.rand(4, generator=generator), torch.randperm(5, generator=generator)


@program("seeds")
def a_generator_from_before() -> Any:  # noqa: F811
    generator = torch.Generator().manual_seed(8)
    return lambda x: x + torch.randn(4, generator=generator)


@plain("seeds")
def the_state_is_kept(x: Any) -> Any:
    before = torch.get_rng_state()
    noise = torch.rand(4)
    torch.set_rng_state(before)
    return x + noise - torch.rand(4), torch.initial_seed() >= 0


@plain("seeds")
def fork_rng(x: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        noise = torch.rand(4)
    return x + noise


# Modules and C++ callables as arguments -----------------------------------------------------------


class Ratio(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layer: Any, x: Any) -> Any:
        ctx.scale = layer.bias.shape[0]
        return x * ctx.scale

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return None, grad * ctx.scale


@program("module argument")
def to_an_autograd_function() -> Any:
    layer = Small()
    return lambda x: Ratio.apply(layer, x.detach().requires_grad_())


@program("module argument")
def to_functional_call() -> Any:
    layer = Small()
    return lambda x: torch.func.functional_call(layer, {"bias": x[0]}, (x,))


@program("module argument")
def to_checkpoint() -> Any:
    layer = Small()

    def run(x: Any) -> Any:
        leaf = x.detach().requires_grad_()
        return torch.utils.checkpoint.checkpoint(layer, leaf, use_reentrant=False).sin()

    return run


@plain("pybind11")
def a_pybind11_function(x: Any) -> Any:
    y = torch._C._nn.gelu(x)
    return y + 1 if torch._C._get_cudnn_enabled() or torch._C._is_torch_function_enabled() else y


@program("pybind11")
def a_scripted_helper_of_deberta() -> Any:
    @torch.jit.script
    def scaled_size(query: torch.Tensor, factor: int) -> torch.Tensor:
        return torch.sqrt(torch.tensor(query.size(-1), dtype=torch.float) * factor)

    return lambda x: x / scaled_size(x, 3).to(dtype=x.dtype)


@plain("pybind11")
def a_dispatch_key_set(x: Any) -> Any:
    keys = torch._C._dispatch_keys(x)
    return x * 2 if keys.has(torch._C.DispatchKey.CPU) else x
