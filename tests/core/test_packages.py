"""Packages: one file with a compiled program, which runs as the program does without its source."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
import os
import random
import struct
import subprocess
import sys
import textwrap
import zipfile

import pytest
import torch
from torch import nn

import tracer_core
from inductor_backend.plugin import BACKEND
from tracer_core.errors import (
    BackendError,
    InputMismatchError,
    MarkedSizeError,
    OptionError,
    PackageError,
    StoredError,
)
from tracer_core.export import requirements
from tracer_core.storage import archive

Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Scores:
    best: torch.Tensor
    size: int
    note: str | None = None


@dataclasses.dataclass
class Request:
    rows: torch.Tensor
    others: list
    factor: int = 2


class Mixer(nn.Module):
    """A few layers with tied weights, and an input of each kind."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.tensor(2.0))
        self.register_buffer("offset", torch.tensor(0.5), persistent=False)

    def forward(self, batch, factor=3, mode="plain"):
        x = self.norm(self.embed(batch["ids"])) * self.scale + self.offset
        x = x * batch["weights"].unsqueeze(-1) * factor
        if mode == "relu":
            x = x.relu()
        return Scores(self.head(x), x.shape[0], mode)


def mixer_inputs(n_rows, n_columns=5):
    return {
        "ids": torch.randint(0, 20, (n_rows, n_columns)),
        "weights": torch.rand(n_rows, n_columns),
    }


def eager(fn, *args, **kwargs):
    with torch.no_grad():
        return fn(*args, **kwargs)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """(model, path of its package): rows are dynamic."""
    torch.manual_seed(0)
    model = Mixer().eval()
    path = tmp_path_factory.mktemp("packages") / "mixer.tracer"
    rows = {0: (1, 64)}
    tracer_core.package(
        model,
        (mixer_inputs(4),),
        path,
        kwargs={"mode": "relu"},
        dynamic={"batch['ids']": rows, "batch['weights']": rows},
    )
    return model, path


# what it computes
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_rows", [1, 2, 4, 64])
def test_it_gives_what_the_program_gives_for_every_size_of_its_range(mixed, n_rows):
    model, path = mixed
    loaded = tracer_core.load_package(path)
    for _ in range(2):
        batch = mixer_inputs(n_rows)
        got, want = loaded(batch, mode="relu"), eager(model, batch, mode="relu")
        assert type(got) is Scores
        assert (got.size, got.note) == (n_rows, "relu")
        torch.testing.assert_close(got.best, want.best)
        assert got.best.stride() == want.best.stride()
        assert not got.best.requires_grad


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda a: {**a, "batch": mixer_inputs(65)}, r"batch\['ids'\].shape\[0\].*1 to 64.*65"),
        (lambda a: {**a, "batch": mixer_inputs(4, 6)}, r"batch\['ids'\].*5\).*\(4, 6\)"),
        (lambda a: {"batch": {**a["batch"], "ids": a["batch"]["ids"].int()}, "mode": "relu"},
         r"batch\['ids'\].*int64 tensor.*int32 tensor"),
        (lambda a: {"batch": {**a["batch"], "weights": torch.rand(3, 5)}, "mode": "relu"},
         r"batch\['weights'\].shape\[0\] == batch\['ids'\].shape\[0\]"),
        (lambda a: {**a, "batch": [1]}, r"batch: .*a dict with the keys \['ids', 'weights'\].*list"),
        (lambda a: {**a, "batch": {"ids": a["batch"]["ids"]}}, r"batch: .*keys"),
        (lambda a: {"batch": {**a["batch"], "ids": 3}, "mode": "relu"}, r"batch\['ids'\].*tensor.*3"),
        (lambda a: {**a, "mode": "plain"}, r"mode: .*constant 'relu'.*'plain'"),
        (lambda a: {"batch": a["batch"]}, r"mode: .*'relu'.*nothing"),
        (lambda a: {**a, "factor": 4}, r"factor: .*calls without it, not for 4"),
        (lambda a: {**a, "factor": 3.0}, r"factor: .*calls without it, not for 3.0"),
    ],
)  # fmt: skip
def test_other_inputs_are_refused_by_name(mixed, change, says):
    _, path = mixed
    loaded = tracer_core.load_package(path)
    with pytest.raises(InputMismatchError, match=says):
        loaded(**change({"batch": mixer_inputs(4), "mode": "relu"}))


def test_arguments_bind_as_those_of_the_program(mixed):
    model, path = mixed
    loaded = tracer_core.load_package(path)
    batch = mixer_inputs(3)
    torch.testing.assert_close(loaded(batch, 3, "relu").best, eager(model, batch, mode="relu").best)
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        loaded(batch, other=1)
    assert str(loaded) == "<package Mixer(batch, factor=3, mode='plain')>"


def test_buffers_that_are_written_are_state_of_the_package(tmp_path):
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.register_buffer("cache", torch.zeros(6, 4))

        def forward(self, x, place):
            self.cache.index_copy_(0, place, self.norm(x))
            return self.cache.sum(0), self.norm.running_mean

    model = Counter().train()
    path = tmp_path / "counter.tracer"
    tracer_core.package(model, (torch.randn(2, 4), torch.tensor([0, 1])), path)
    assert model.norm.num_batches_tracked == 0
    assert not model.cache.any()
    loaded, other = tracer_core.load_package(path), tracer_core.load_package(path)
    for places in ([0, 1], [3, 2], [1, 5]):
        x = torch.randn(2, 4)
        got, want = loaded(x, torch.tensor(places)), eager(model, x, torch.tensor(places))
        torch.testing.assert_close(got, want)
    other(torch.randn(2, 4), torch.tensor([0, 1]))
    torch.testing.assert_close(loaded._states["norm.running_var"], model.norm.running_var)
    assert loaded._states["norm.num_batches_tracked"] == model.norm.num_batches_tracked == 3


def test_inputs_that_are_written_are_written(tmp_path):
    def step(state, gradient):
        state.mul_(0.5).add_(gradient)
        return state, state[0], gradient.t()

    path = tmp_path / "step.tracer"
    tracer_core.package(step, (torch.randn(3, 4), torch.randn(3, 4)), path)
    loaded = tracer_core.load_package(path)
    state, gradient = torch.randn(3, 4), torch.randn(3, 4)
    mine, version = state.clone(), state._version
    got, want = loaded(state, gradient), step(mine, gradient)
    torch.testing.assert_close(got, want)
    assert got[0] is state
    assert got[1].data_ptr() == state.data_ptr()
    assert got[2].data_ptr() == gradient.data_ptr()
    assert got[2].stride() == want[2].stride()
    assert state._version > version
    with pytest.raises(InputMismatchError, match="state and gradient.*memory of their own"):
        loaded(state, state)
    with pytest.raises(InputMismatchError, match=r"state: .*strides \(4, 1\), not for strides"):
        loaded(torch.randn(4, 3).t(), gradient)


def test_inputs_that_lie_otherwise_are_copied_into_place(tmp_path):
    path = tmp_path / "sum.tracer"
    tracer_core.package(lambda x: x.cumsum(0) * 2, (torch.randn(3, 4),), path)
    loaded = tracer_core.load_package(path)
    for x in (torch.randn(4, 3).t(), torch.randn(3, 8)[:, ::2], torch.randn(4).expand(3, 4)):
        torch.testing.assert_close(loaded(x), x.cumsum(0) * 2)


def test_tensors_whose_memory_does_not_hold_their_values_are_refused(tmp_path):
    path = tmp_path / "twice.tracer"
    tracer_core.package(lambda x: x * 2, (torch.ones(3),), path)
    loaded = tracer_core.load_package(path)
    negated = torch.complex(torch.ones(3), torch.ones(3)).conj().imag
    assert negated.is_neg()
    with pytest.raises(InputMismatchError, match="x: .*negated"):
        loaded(negated)
    with pytest.raises(PackageError, match="x is no plain tensor"):
        tracer_core.package(lambda x: x * 2, (negated,), path)
    with pytest.raises(InputMismatchError, match=r"outside of torch\.func"):
        torch.vmap(loaded)(torch.ones(2, 3))
    with pytest.raises(InputMismatchError, match="plain tensor, not for a Sub"):
        loaded(torch.ones(3).as_subclass(type("Sub", (torch.Tensor,), {})))
    for x in (torch.ones(3), nn.Parameter(torch.ones(3)), torch.ones(3, requires_grad=True)):
        torch.testing.assert_close(loaded(x), torch.full((3,), 2.0))
    with torch.inference_mode():
        torch.testing.assert_close(loaded(torch.ones(3)), torch.full((3,), 2.0))


def test_an_assertion_of_the_program(tmp_path):
    def logarithm(x):
        assert (x > 0).all(), "positive"
        return x.log()

    path = tmp_path / "log.tracer"
    tracer_core.package(logarithm, (torch.ones(3),), path)
    loaded = tracer_core.load_package(path)
    torch.testing.assert_close(loaded(torch.full((3,), 2.0)), torch.full((3,), 2.0).log())
    with pytest.raises(AssertionError, match="what the program asserts"):
        loaded(torch.zeros(3))


def test_sizes_that_mark_dynamic_marks(tmp_path):
    x = torch.randn(4, 3)
    tracer_core.mark_dynamic(x, 0, min=2, max=9)
    tracer_core.package(lambda x: (x.sum(0), x.shape[0] * 2), (x,), tmp_path / "a.tracer")
    loaded = tracer_core.load_package(tmp_path / "a.tracer")
    for n_rows in (2, 9):
        x = torch.randn(n_rows, 3)
        got = loaded(x)
        torch.testing.assert_close(got[0], x.sum(0))
        assert got[1] == 2 * n_rows
    with pytest.raises(InputMismatchError, match=r"x.shape\[0\]: .*from 2 to 9, not for 10"):
        loaded(torch.randn(10, 3))


def test_sizes_inside_of_a_dataclass(tmp_path):
    def scaled(request):
        return request.rows * request.factor + request.others[0]

    path = tmp_path / "scaled.tracer"
    example = Request(torch.ones(4, 3), [torch.ones(3)])
    tracer_core.package(scaled, (example,), path, dynamic={"request.rows": {0: (1, 8)}})
    loaded = tracer_core.load_package(path)
    for n_rows in (1, 8):
        request = Request(torch.randn(n_rows, 3), [torch.randn(3)])
        torch.testing.assert_close(loaded(request), scaled(request))
    with pytest.raises(InputMismatchError, match="request.factor: .*constant 2, not for 3"):
        loaded(Request(torch.ones(2, 3), [torch.ones(3)], 3))
    with pytest.raises(PackageError, match=r"request.rows.shape\[0\] is to be dynamic, but is 1"):
        tracer_core.package(
            scaled, (Request(torch.ones(1, 3), [torch.ones(3)]),), path,
            dynamic={"request.rows": {0: (1, 8)}},
        )  # fmt: skip


def test_random_operators_draw_from_torchs_generator(tmp_path):
    def noisy(x):
        return nn.functional.dropout(x, 0.5) + torch.rand_like(x)

    path = tmp_path / "noisy.tracer"
    tracer_core.package(noisy, (torch.ones(50),), path)
    loaded = tracer_core.load_package(path)
    for seed in (1, 2):
        torch.manual_seed(seed)
        want = [noisy(torch.ones(50)), noisy(torch.ones(50)), torch.rand(3)]
        torch.manual_seed(seed)
        got = [loaded(torch.ones(50)), loaded(torch.ones(50)), torch.rand(3)]
        torch.testing.assert_close(got, want)


def test_results_of_every_structure(tmp_path):
    constant = torch.arange(3.0)

    def many(x, *rest, **named):
        y = x + rest[0] * named["scale"]
        ordered = collections.OrderedDict(b=y, a=None)
        return {
            "pair": Pair(y, [y, x]), "max": torch.max(y, 1), "ordered": ordered, 7: (),
            "numbers": (1, 2.5, True, float("inf"), 3j, "text"), "size": y.size(),
            "dtype": y.dtype, "device": x.device, "constant": constant,
        }  # fmt: skip

    path = tmp_path / "many.tracer"
    inputs = torch.randn(2, 3), torch.randn(2, 3)
    tracer_core.package(many, inputs, path, kwargs={"scale": torch.tensor(2.0)})
    loaded = tracer_core.load_package(path)
    got, want = loaded(*inputs, scale=torch.tensor(2.0)), many(*inputs, scale=torch.tensor(2.0))
    assert list(got) == list(want)
    assert {key: type(item) for key, item in got.items()} == {
        key: type(item) for key, item in want.items()
    }
    assert got["pair"].first is got["pair"].second[0]
    assert got["pair"].second[1] is inputs[0]
    assert got["numbers"] == want["numbers"]
    assert (got["size"], got["dtype"], got["device"]) == (
        want["size"],
        want["dtype"],
        want["device"],
    )
    torch.testing.assert_close(got["pair"].first, want["pair"].first)
    torch.testing.assert_close(tuple(got["max"]), tuple(want["max"]))
    torch.testing.assert_close(got["constant"], constant)
    with pytest.raises(InputMismatchError, match="rest: .*tuple of 1, not for one of 2"):
        loaded(*inputs, inputs[0], scale=torch.tensor(2.0))
    with pytest.raises(InputMismatchError, match="named: .*'scale'"):
        loaded(*inputs)


def test_constants_of_every_kind(tmp_path):
    def scaled(x, key, steps, factor=complex("nan")):
        return x * len(key) + sum(steps), key, steps, factor

    path, x = tmp_path / "scaled.tracer", torch.ones(2)
    tracer_core.package(scaled, (x, b"key", range(1, 9, 3)), path)
    loaded = tracer_core.load_package(path)
    got, want = loaded(x, b"key", range(1, 9, 3)), scaled(x, b"key", range(1, 9, 3))
    assert torch.equal(got[0], want[0])
    assert repr(got[1:]) == repr(want[1:])
    assert loaded(x, b"key", range(1, 9, 3), complex("nan"))[1] == b"key"
    with pytest.raises(InputMismatchError, match="key: .*constant b'key', not for 'key'"):
        loaded(x, "key", range(1, 9, 3))
    with pytest.raises(
        InputMismatchError, match=r"steps: .*range\(1, 9, 3\), not for range\(1, 9\)"
    ):
        loaded(x, b"key", range(1, 9))


class Counted(Pair):
    pass


def test_named_tuples_are_returned_as_they_were(tmp_path):
    def pairs(x):
        return Counted(x + 1, Pair(x * 2, 3))

    path, x = tmp_path / "pairs.tracer", torch.ones(2)
    tracer_core.package(pairs, (x,), path)
    got = tracer_core.load_package(path)(x)
    assert (type(got), type(got.second)) == (Counted, Pair)
    torch.testing.assert_close(got, pairs(x))
    labelled = Counted(x, 3)
    labelled.label = "lost"
    with pytest.raises(PackageError, match=r"pair is a .*Counted; a package takes"):
        tracer_core.package(lambda pair: pair.first + 1, (labelled,), path)


def test_a_program_without_operators(tmp_path):
    path = tmp_path / "nothing.tracer"
    tracer_core.package(lambda x, n: (x, n), (torch.ones(2), 3), path)
    x = torch.zeros(2)
    got = tracer_core.load_package(path)(x, 3)
    assert got[0] is x
    assert got[1] == 3


def test_a_program_that_only_takes_views(tmp_path):
    path = tmp_path / "views.tracer"
    tracer_core.package(lambda x, sizes: x.reshape(sizes), (torch.ones(6), [2, 3]), path)
    x = torch.randn(6)
    got = tracer_core.load_package(path)(x, [2, 3])
    assert torch.equal(got, x.view(2, 3))
    assert got.data_ptr() == x.data_ptr()


def test_which_inputs_are_one_tensor_is_asked_where_the_program_asks(tmp_path):
    def compare(x, y):
        return x + y if x is y else x - y

    item, other = torch.randn(3), torch.randn(3)
    tracer_core.package(compare, (item, item), tmp_path / "same.tracer")
    tracer_core.package(compare, (item, other), tmp_path / "two.tracer")
    same = tracer_core.load_package(tmp_path / "same.tracer")
    two = tracer_core.load_package(tmp_path / "two.tracer")
    torch.testing.assert_close(same(other, other), other + other)
    torch.testing.assert_close(two(item, other), item - other)
    with pytest.raises(InputMismatchError, match="x and y.*one tensor for both, not for two"):
        same(item, other)
    with pytest.raises(InputMismatchError, match="x and y.*two tensors, not for one"):
        two(item, item)


def test_the_callers_modes_do_not_reach_the_graph(tmp_path):
    class Distances(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x):
            return torch.cdist(self.layer(x), x)

    model = Distances().eval()
    x = torch.randn(64, 64, requires_grad=True)
    tracer_core.package(model, (x,), tmp_path / "plain.tracer")
    with torch.autocast("cpu", torch.bfloat16):
        tracer_core.package(model.layer, (x,), tmp_path / "cast.tracer")
        want_cast = eager(model.layer, x)
    plain = tracer_core.load_package(tmp_path / "plain.tracer")
    cast = tracer_core.load_package(tmp_path / "cast.tracer")
    want = eager(model, x)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(plain(x), want)
        torch.testing.assert_close(cast(x), want_cast)
    torch.testing.assert_close(cast(x), want_cast)
    assert not plain(x).requires_grad
    with torch.inference_mode():
        torch.testing.assert_close(plain(x), want)


# weights
# ---------------------------------------------------------------------------------------------


def test_weights_have_the_names_of_the_state_dict_and_tied_ones_are_stored_once(mixed):
    model, path = mixed
    loaded = tracer_core.load_package(path)
    assert set(loaded.weights()) == set(model.state_dict())
    with zipfile.ZipFile(path) as file:
        table = file.read("weights.safetensors")
    (length,) = struct.unpack("<Q", table[:8])
    head = json.loads(table[8 : 8 + length])
    assert set(head) == {"embed.weight", "norm.weight", "norm.bias", "scale"}
    assert len(table) == 8 + length + 4 * (20 * 8 + 8 + 8 + 1)


def test_weights_are_what_safetensors_reads(mixed, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    model, path = mixed
    with zipfile.ZipFile(path) as file:
        actual = safetensors.load(file.read("weights.safetensors"))
    for name, tensor in actual.items():
        assert torch.equal(tensor, model.state_dict()[name])


def test_weights_that_are_left_out_are_given_when_it_is_loaded(mixed, tmp_path):
    model, _ = mixed
    path = tmp_path / "bare.tracer"
    tracer_core.package(model, (mixer_inputs(4),), path, weights=False)
    with pytest.raises(StoredError, match=r"made without weights.*embed\.weight, "):
        tracer_core.load_package(path)
    other = Mixer().eval()
    state = {**other.state_dict(), "more": torch.ones(1)}
    del state["head.weight"]  # tied
    loaded = tracer_core.load_package(path, weights=state)
    batch = mixer_inputs(4)
    torch.testing.assert_close(loaded(batch).best, eager(other, batch).best)
    before = loaded(batch).best
    with torch.no_grad():
        other.norm.bias.add_(1)
    assert torch.equal(loaded(batch).best, before)  # it has its own
    loaded.update_weights(other.state_dict())
    torch.testing.assert_close(loaded(batch).best, eager(other, batch).best)
    with pytest.raises(StoredError, match=r"norm\.bias is float32 of sizes \(8,\), not"):
        loaded.update_weights({"scale": torch.tensor(9.0), "norm.bias": torch.ones(7)})
    torch.testing.assert_close(loaded(batch).best, eager(other, batch).best)
    with pytest.raises(StoredError, match="one tensor, and the state_dict has different values"):
        loaded.update_weights(
            {"embed.weight": torch.ones(20, 8), "head.weight": torch.zeros(20, 8)}
        )


def test_images_last_weights_keep_their_strides(tmp_path):
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last).eval()
    x = torch.randn(1, 3, 8, 8).to(memory_format=torch.channels_last)
    tracer_core.package(model, (x,), tmp_path / "conv.tracer")
    loaded = tracer_core.load_package(tmp_path / "conv.tracer")
    assert loaded._states["weight"].stride() == model.weight.stride()
    got, want = loaded(x), eager(model, x)
    torch.testing.assert_close(got, want)
    assert got.stride() == want.stride()
    torch.testing.assert_close(loaded(x.contiguous()), want)


# what cannot be packaged
# ---------------------------------------------------------------------------------------------

CALLS = []


def remembers(x):
    CALLS.append(x.shape)
    return x + 1


class Flagged(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("flag", torch.tensor(True))

    def forward(self, x):
        return x + 1 if self.flag else x - 1


class Sets(nn.Module):
    def forward(self, x):
        self.last = x * 2
        return self.last


@pytest.mark.parametrize(
    ("fn", "args", "says"),
    [
        (lambda x, names: (x + 1, names), (torch.ones(2), ["a"]),
         r"the result\[1\] is names, a list that existed before the call"),
        (lambda x: x + 1 if bool((x * 2).sum() > 0) else x, (torch.ones(300),),
         r"(?s)is not one graph: it breaks at .*test_packages.py:\d+ in .*What would remove it"),
        (remembers, (torch.ones(2),), r"remembers changes .*CALLS"),
        (Flagged(), (torch.ones(2),), r"depends on a value of self\.flag, which may be another"),
        (Sets(), (torch.ones(2),), r"Sets changes self \('last'\)"),
        (lambda x: x * random.random(), (torch.ones(2),), "Python's random numbers"),
        (lambda x: x if x.grad is None else x + 1, (torch.ones(2),), r"x\.grad"),
        (lambda x: torch.nonzero(x), (torch.ones(2),), "sizes that depend on data"),
        (lambda x: x + 1, (object(),), "x is a builtins.object; a package takes tensors"),
        (lambda x: {x: object}, (torch.ones(2),), "the result has a Tensor as a key"),
        (lambda x: [x, slice(2)], (torch.ones(2),), r"the result\[1\] is a builtins.slice"),
        (lambda x, y: x.add_(y), (torch.ones(4).view(2, 2),) * 2, None),
        (lambda x: x + 1, (torch.ones(2).expand(3, 2),), r"x has elements that share memory"),
        (lambda x: x + 1, (torch.ones(2).to_sparse(),), "x is no plain tensor"),
        (lambda x: x + 1, (), "the arguments do not fit"),
    ],
)  # fmt: skip
def test_what_no_package_can_hold_is_named(fn, args, says, tmp_path):
    path = tmp_path / "no.tracer"
    if says is None:  # it can
        tracer_core.package(fn, args, path)
        return
    with pytest.raises(PackageError, match=says):
        tracer_core.package(fn, args, path)
    assert not path.exists()
    assert not os.listdir(tmp_path)


def test_an_input_that_is_also_a_weight_or_shares_its_memory_is_refused(tmp_path):
    model = nn.Linear(4, 4)
    with pytest.raises(PackageError, match=r"an argument is also model\.weight"):
        tracer_core.package(lambda x: model(x) + x, (model.weight,), tmp_path / "a.tracer")

    def write(x, y):
        return x.add_(1) + y

    memory = torch.zeros(8)
    with pytest.raises(PackageError, match="writes to its input x, which shares memory"):
        tracer_core.package(write, (memory[:4], memory[4:]), tmp_path / "b.tracer")


def test_settings_that_do_not_fit_are_refused(tmp_path):
    model, x, path = nn.Linear(2, 2), torch.ones(1, 2), tmp_path / "a.tracer"
    with pytest.raises(PackageError, match="'eager' does not offer serialize"):
        tracer_core.package(model, (x,), path, backend="eager")
    with pytest.raises(PackageError, match="freeze=True"):
        tracer_core.package(model, (x,), path, options={"freeze": True})
    with pytest.raises(PackageError, match="no input 'y'; the tensors are input"):
        tracer_core.package(model, (x,), path, dynamic={"y": {0: None}})
    for wrong in ([0], {0: 5}, {0: [1, 2]}, {7: None}, {0: (9, 2)}, {0: (8, 64)}):
        with pytest.raises(OptionError):
            tracer_core.package(model, (torch.ones(4, 2),), path, dynamic={"input": wrong})
    with pytest.raises(OptionError, match="key must be bytes"):
        tracer_core.package(model, (x,), path, key="text")
    with pytest.raises(MarkedSizeError, match="multiple"):
        tracer_core.package(
            lambda multiple: multiple.view(-1, 2), (torch.ones(6),), path,
            dynamic={"multiple": {0: (2, 64)}},
        )  # fmt: skip
    with pytest.raises(PackageError, match=r"raises at .*py:\d+ .*ZeroDivisionError: division"):
        tracer_core.package(lambda x: x * (1 / 0), (x,), path)
    assert not hasattr(x, "_tracer_dynamic_dims")


# refusals
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda needs: needs.update(torch="2.0"), r"torch was 2\.0 and is 2\.\d+ since it was made; make"),
        (lambda needs: needs.update(tracer_core="0.0"), r"tracer_core was 0\.0 and is"),
        (lambda needs: needs["backend"].update(name="none", distribution="none-backend"),
         "needs the backend 'none'.*python -m pip install none-backend"),
        (lambda needs: needs["backend"].update(version="0"), "inductor's version was 0 and is"),
        (lambda needs: needs["processor"]["features"].append("avx999"),
         "a processor with avx999 .*lacks"),
        (lambda needs: needs["processor"].update(machine="Plan9 vax"), "the system was Plan9 vax and is"),
        (lambda needs: needs.update(device="cuda:0", gpu={"name": "Z", "architecture": "sm_1"}),
         "(made for cuda:0.*no CUDA)|(the GPU)"),
        (lambda needs: needs["settings"].update(deterministic="'other'"), "deterministic was 'other'"),
    ],
)  # fmt: skip
def test_a_package_made_for_something_else_says_what_differs(tmp_path, monkeypatch, change, says):
    here = requirements.here

    def elsewhere(*args):
        needs = here(*args)
        change(needs)
        return needs

    monkeypatch.setattr("tracer_core.export.save.here", elsewhere)
    tracer_core.package(lambda x, n: (x, n), (torch.ones(2), 3), tmp_path / "other.tracer")
    with pytest.raises(StoredError, match=says):
        tracer_core.load_package(tmp_path / "other.tracer")


def test_the_number_of_threads_may_differ(tmp_path):
    x = torch.rand(300, 500)
    tracer_core.package(lambda x: x.softmax(1), (x,), tmp_path / "rows.tracer")
    before = torch.get_num_threads()
    try:
        for threads in (1, before + 1):
            torch.set_num_threads(threads)
            loaded = tracer_core.load_package(tmp_path / "rows.tracer")
            torch.testing.assert_close(loaded(x), x.softmax(1))
    finally:
        torch.set_num_threads(before)


def test_a_signature(tmp_path, mixed):
    path = tmp_path / "signed.tracer"
    tracer_core.package(lambda x: (x,), (torch.ones(2),), path, key=b"secret")
    assert tracer_core.load_package(path, key=b"secret")(torch.ones(2))
    assert tracer_core.load_package(path)(torch.ones(2))  # by its hashes alone
    with pytest.raises(StoredError, match="signed with another key"):
        tracer_core.load_package(path, key=b"other")
    with pytest.raises(StoredError, match="is not signed"):
        tracer_core.load_package(mixed[1], key=b"secret")


def test_files_of_others_are_refused(tmp_path):
    path = tmp_path / "open.tracer"
    tracer_core.package(lambda x: (x,), (torch.ones(2),), path)
    assert path.stat().st_mode & 0o077 == 0
    path.chmod(0o666)
    with pytest.raises(
        StoredError, match=r"other users may write to it.*load_package\(.*trust=True"
    ):
        tracer_core.load_package(path)
    assert tracer_core.load_package(path, trust=True)(torch.ones(2))
    if os.geteuid() == 0:
        path.chmod(0o600)
        os.chown(path, 65534, 65534)
        with pytest.raises(StoredError, match="belongs to user id 65534"):
            tracer_core.load_package(path)


def test_the_same_program_makes_the_same_bytes(mixed, tmp_path):
    model, _ = mixed
    digests = []
    for number in range(2):
        path = tmp_path / f"{number}.tracer"
        tracer_core.package(model, (mixer_inputs(4),), path, kwargs={"mode": "relu"})
        digests.append(hashlib.sha256(path.read_bytes()).hexdigest())
    assert digests[0] == digests[1]


# damage
# ---------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.tracer"
    model = nn.Linear(3, 2)
    tracer_core.package(model, (torch.ones(1, 3),), path)
    return path


def test_every_changed_byte_is_found(small):
    """One byte of sixty, and each of the first and the last three hundred."""
    data = small.read_bytes()
    positions = {*range(0, len(data), 61), *range(300), *range(len(data) - 300, len(data))}
    for position in sorted(positions):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        small.write_bytes(damaged)
        with pytest.raises(StoredError, match="small.tracer"):
            _read_all(small)
    small.write_bytes(data)
    _read_all(small)


def _read_all(path):
    """Reads all members as loading does, without what a right file would be loaded for."""
    with open(path, "rb") as file:
        actual = archive.Archive(path, file, None)
        for name in actual:
            actual.read(name)


@pytest.mark.parametrize("size", [0, 1, 50, 97, 98, 500, 5000, -1, -22, -98, -500])
def test_a_file_that_was_cut_short(small, size):
    data = small.read_bytes()
    small.write_bytes(data[:size])
    with pytest.raises(StoredError, match="is damaged, or is no file"):
        tracer_core.load_package(small)


def _zipped(path, members):
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members:
            file.writestr(name, data)


def test_archives_of_other_layouts_are_refused(small):
    with zipfile.ZipFile(small) as file:
        members = [(name, file.read(name)) for name in file.namelist()]
    data = small.read_bytes()

    def refused(says="is damaged, or is no file"):
        with pytest.raises(StoredError, match=says):
            tracer_core.load_package(small)

    _zipped(small, members)  # of another writer
    refused()
    _zipped(small, [("../../evil.py", b"1"), *members])
    refused()
    small.write_bytes(b"text " + data)
    refused()
    small.write_bytes(data + b"\0")
    refused()
    small.write_bytes(b"")
    refused()
    small.unlink()
    refused("cannot be read")
    small.mkdir()
    refused("cannot be read")


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([("../evil.json", b"{}")], "no name of a member"),
        ([("/etc/passwd.json", b"{}")], "no name of a member"),
        ([("manifest.json", b"{}"), ("manifest.json", b"{}")], "two of its members have one name"),
        ([("manifest.json", b"{}"), ("a.bin", b"")], "no manifest or no seal"),
        ([("manifest.json", b"[" * 100_000), "seal"], "damaged"),
        ([("manifest.json", b"[1]"), "seal"], "no JSON object"),
        ([("manifest.json", b"{}"), ("seal.json", b"{}")], "seal is wrong|hash of its manifest"),
        ([("manifest.json", b'{"members": {}}'), ("a.bin", b"x"), "seal"], "not those that its"),
        ([("manifest.json", b'{"format": "package 2", "members": {}}'), "seal"], "manifest is of another file"),
        ([("manifest.json", b'{"format": 99, "members": {}}'), "seal"], "format 99, this version"),
    ],
)  # fmt: skip
def test_archives_with_hostile_members_are_refused(tmp_path, rows, says):
    path = tmp_path / "hostile.tracer"
    text = rows[0][1]
    seal = ("seal.json", json.dumps(archive._seal(text, None)).encode())
    parts = [seal if row == "seal" else row for row in rows]
    heads, _, tail = archive._layout([archive._row(name, data) for name, data in parts])
    body = b"".join(head + data for head, (_, data) in zip(heads, parts, strict=True))
    path.write_bytes(body + tail)
    path.chmod(0o600)
    with pytest.raises(StoredError, match=says):
        tracer_core.load_package(path)


# another process
# ---------------------------------------------------------------------------------------------

WITHOUT_SOURCE = """
import sys
import torch
import tracer_core

loaded = tracer_core.load_package(sys.argv[1])
inputs = torch.load(sys.argv[2])
result = loaded(**inputs)
torch.save(dict(result), sys.argv[3])
banned = ("sympy", "transformers", "torchvision", "tests", "tracer_core.trace", "tracer_core.bytecode",
          "tracer_core.fx_capture", "tracer_core.execution.capture.trace", "tracer_core.export.save",
          "tracer_core.natives.tables", "torch._inductor")
found = sorted(n for n in sys.modules if any(n == b or n.startswith(b + ".") for b in banned))
print(type(result).__name__, "found:", found)
"""


def in_another_process(path, inputs, folder):
    torch.save(inputs, folder / "inputs.pt")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WITHOUT_SOURCE), path, folder / "inputs.pt",
         folder / "result.pt"],
        capture_output=True, text=True, cwd=folder, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(folder / "result.pt"), done.stdout


def test_bert_runs_in_a_process_without_transformers_the_tracer_and_sympy(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=32,
    )  # fmt: skip
    model = transformers.BertModel(config).eval()
    path = tmp_path / "bert.tracer"
    ids = torch.randint(0, 50, (3, 7))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    sizes = {0: (2, 16), 1: (2, 32)}
    dynamic = {"input_ids": sizes, "attention_mask": sizes}
    tracer_core.package(model, (), path, kwargs=inputs, dynamic=dynamic)
    ids = torch.randint(0, 50, (5, 9))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    got, said = in_another_process(path, inputs, tmp_path)
    assert said.split() == ["Fields", "found:", "[]"]
    want = eager(model, **inputs)
    torch.testing.assert_close(got["last_hidden_state"], want.last_hidden_state)
    torch.testing.assert_close(got["pooler_output"], want.pooler_output)
    here = tracer_core.load_package(path)(**inputs)
    assert type(here) is type(want)
    torch.testing.assert_close(here.last_hidden_state, want.last_hidden_state)


def test_llama_with_tied_weights_and_any_length(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, intermediate_size=32, tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    path = tmp_path / "llama.tracer"
    ids = torch.randint(0, 50, (2, 7))
    tracer_core.package(
        model, (), path, kwargs={"input_ids": ids, "use_cache": False},
        dynamic={"input_ids": {1: (2, 64)}},
    )  # fmt: skip
    loaded = tracer_core.load_package(path)
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= set(loaded.weights())
    tied = [row for row in loaded.manifest["states"] if len(row["names"]) == 2]
    assert len(tied) == 1
    for length in (2, 7, 64):
        ids = torch.randint(0, 50, (2, length))
        want = eager(model, input_ids=ids, use_cache=False)
        got = loaded(input_ids=ids, use_cache=False)
        torch.testing.assert_close(got.logits, want.logits)
    with pytest.raises(InputMismatchError, match=r"input_ids.shape\[1\]: .*2 to 64, not for 65"):
        loaded(input_ids=torch.zeros(2, 65, dtype=torch.int64), use_cache=False)


def test_a_residual_net(tmp_path):
    class Block(nn.Module):
        def __init__(self, n_in, n_out, stride):
            super().__init__()
            self.first = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
            self.second = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
            self.norms = nn.ModuleList([nn.BatchNorm2d(n_out), nn.BatchNorm2d(n_out)])
            self.shortcut = nn.Conv2d(n_in, n_out, 1, stride, bias=False)

        def forward(self, x):
            y = self.norms[0](self.first(x)).relu()
            return (self.norms[1](self.second(y)) + self.shortcut(x)).relu()

    model = nn.Sequential(
        nn.Conv2d(3, 8, 7, 2, 3), nn.MaxPool2d(3, 2, 1), Block(8, 8, 1), Block(8, 16, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    ).eval()  # fmt: skip
    path = tmp_path / "net.tracer"
    tracer_core.package(model, (torch.randn(2, 3, 32, 32),), path)
    loaded = tracer_core.load_package(path)
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(loaded(x), eager(model, x), rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_a_package_for_a_gpu(tmp_path):
    model = Mixer().eval().cuda()
    path = tmp_path / "gpu.tracer"
    rows = {0: (1, 64)}
    batch = {name: value.cuda() for name, value in mixer_inputs(4).items()}
    dynamic = {"batch['ids']": rows, "batch['weights']": rows}
    tracer_core.package(model, (batch,), path, dynamic=dynamic)
    loaded = tracer_core.load_package(path)
    assert loaded.manifest["needs"]["gpu"]["architecture"].startswith("sm_")
    for n_rows in (1, 3, 64, 64, 64):
        batch = {name: value.cuda() for name, value in mixer_inputs(n_rows).items()}
        torch.testing.assert_close(loaded(batch).best, eager(model, batch).best)
    with pytest.raises(InputMismatchError, match="on cuda:0, not for .*on cpu"):
        loaded(mixer_inputs(4))


@pytest.mark.gpu
def test_a_package_for_a_gpu_needs_neither_triton_nor_a_compiler(tmp_path):
    major, minor = torch.cuda.get_device_capability()
    x, path = torch.rand(300, 500, device="cuda"), tmp_path / "gpu.tracer"
    for architectures in ((), ("sm_80", f"sm_{major}{minor}")):
        tracer_core.package(
            lambda x: (x.softmax(1) + 1).sum(0), (x,), path, architectures=architectures
        )
        done = subprocess.run(
            [sys.executable, "-c", _ELSEWHERE, path], capture_output=True, text=True, timeout=120,
            env={**os.environ, "TRACER_CACHE_DIR": str(tmp_path / f"cache {len(architectures)}"),
                 "CXX": "/nowhere/c++", "CC": "/nowhere/cc"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
    other = "sm_80" if major != 8 else "sm_90"
    tracer_core.package(lambda x: x.softmax(1), (x,), path, architectures=(other,))
    with pytest.raises(StoredError, match=f"machine code for {other}, and .* is sm_{major}{minor}"):
        tracer_core.load_package(path)


_ELSEWHERE = """
import sys
sys.modules["triton"] = None
import torch, tracer_core
loaded = tracer_core.load_package(sys.argv[1])
for rows in (torch.rand(300, 500, device="cuda"), torch.rand(301 * 500, device="cuda")[500:].view(300, 500)[:],
             torch.rand(300 * 500 + 1, device="cuda")[1:].view(300, 500)):
    torch.testing.assert_close(loaded(rows), (rows.softmax(1) + 1).sum(0))
"""


# libraries
# ---------------------------------------------------------------------------------------------


def test_a_library_is_written_by_a_backend_that_can(tmp_path):
    written = []
    backend = dataclasses.replace(
        BACKEND, name="writes", write_library=lambda *arguments: written.append(arguments)
    )
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU()).eval()
    x = torch.randn(3, 4)
    tracer_core.package_library(model, (x,), tmp_path, backend=backend)
    ((gm, spec, directory),) = written
    assert directory == tmp_path
    assert [value.source for value in spec.inputs] == ["input"]
    assert len(gm.graph.find_nodes(op="placeholder")) == 1
    torch.testing.assert_close(gm(x)[0], eager(model, x))
    with pytest.raises(PackageError, match="returns a view of an input"):
        tracer_core.package_library(lambda x: (x.t(), x + 1), (x,), tmp_path, backend=backend)
    with pytest.raises(PackageError, match="'eager' does not offer write_library"):
        tracer_core.package_library(model, (x,), tmp_path, backend="eager")
    with pytest.raises(PackageError, match="sizes that depend on data"):
        tracer_core.package_library(lambda x: x.nonzero(), (x,), tmp_path, backend=backend)


def test_inductor_writes_a_library(tmp_path):
    folder = tmp_path / "norm"
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8)).eval()
    tracer_core.package_library(model, (torch.randn(3, 4),), folder)
    assert {"norm.so", "norm.h", "norm.json"} <= set(os.listdir(folder))
    described = json.loads((folder / "norm.json").read_text())
    assert [item["sizes"] for item in described["inputs"]] == [[3, 4]]
    assert [item["sizes"] for item in described["outputs"]] == [[3, 8]]
    with pytest.raises(BackendError, match="sort"):
        tracer_core.package_library(lambda x: x.sort().values, (torch.randn(9),), folder)
