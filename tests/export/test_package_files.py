"""What no package can hold, what a package requires, and files that are damaged or hostile."""

from __future__ import annotations

import hashlib
import json
import os
import random
import zipfile

import pytest
import torch
from torch import nn

import tracer_core
from tests.support.packaged_programs import mixer_inputs
from tracer_core.errors import (
    MarkedSizeError,
    OptionError,
    PackageError,
    StoredError,
)
from tracer_core.export import requirements
from tracer_core.storage import archive

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
         r"(?s)is not one graph: it breaks at .*test_package_files.py:\d+ in .*What would remove it"),
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
         "needs the backend of none-backend .*: no backend named 'none'; installed: "),
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
        ([("manifest.json", b'{"format": "package 3", "members": {}}'), "seal"], "manifest is of another file"),
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
