"""Packages: one file with a compiled program, which runs as the program does without its source."""

from __future__ import annotations

import collections
import dataclasses
import json
import struct
import zipfile

import pytest
import torch
from torch import nn

import tracer_core
from tests.support.packaged_programs import Mixer, Scores, eager, mixer_inputs
from tracer_core.errors import (
    InputMismatchError,
    PackageError,
    StoredError,
)

Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Request:
    rows: torch.Tensor
    others: list
    factor: int = 2


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
    with pytest.raises(InputMismatchError, match=r"x.shape\[0\]: .*made for 2 to 9, not for 10"):
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
