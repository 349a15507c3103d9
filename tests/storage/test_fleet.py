"""A fleet's store: the same entries on many machines, and a server that is gone, slow or lies costs
next to nothing."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import socket
import subprocess
import threading
import time

import pytest

import tracer_core
from tests.support import torch_server
from tracer_core.errors import OptionError
from tracer_core.storage import fleet as module
from tracer_core.storage.fleet import Fleet, fleet
from tracer_core.storage.store import Store

KEY = "a key that the operator has set for the fleet"
MACHINE = "one of sixteen.."


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Redis:
    """Debian's redis-server on a port of the loopback device."""

    def __init__(self, folder):
        self.port, self.folder = free_port(), folder
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
             "--appendonly", "no", "--dir", str(self.folder)],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError("redis-server does not listen")

    def client(self):
        import redis

        return redis.Redis(port=self.port)

    def values(self):
        client = self.client()
        return {name.decode(): client.get(name) for name in client.keys("*")}

    def put(self, name, data):
        self.client().set(name, data)

    def stop(self):
        self.process.kill()
        self.process.wait()


class Shared:
    """A folder that machines share."""

    def __init__(self, folder):
        self.folder, self.url = folder, f"file://{folder}"

    def values(self):
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in paths}

    def put(self, name, data):
        with open(name, "wb") as file:
            file.write(data)

    def stop(self):
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def redis_server(tmp_path):
    pytest.importorskip("redis", reason="needs redis-py (pip install redis)")
    if shutil.which("redis-server") is None:
        pytest.skip("needs redis-server (apt install redis-server)")
    server = Redis(tmp_path)
    yield server
    server.stop()


@pytest.fixture(params=["redis", "file"])
def server(request, tmp_path):
    if request.param == "redis":
        yield request.getfixturevalue("redis_server")
        return
    pytest.importorskip("fsspec", reason="needs fsspec (pip install fsspec)")
    folder = tmp_path / "shared"
    folder.mkdir()
    yield Shared(folder)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Makes this process one of the fleet's machines: with an empty cache folder of its own."""

    def become(name, url, key=KEY, timeout="10"):
        monkeypatch.setenv("TRACER_CACHE_DIR", str(tmp_path / f"cache-{name}"))
        monkeypatch.setenv("TRACER_STORE", url)
        monkeypatch.setenv("TRACER_STORE_KEY", key)
        monkeypatch.setenv("TRACER_STORE_TIMEOUT", timeout)
        module._known.clear()
        return Store("things", MACHINE)

    yield become
    module._known.clear()


def test_what_one_machine_wrote_another_one_reads(server, machine):
    item = machine("one", server.url)
    item.write("tanh", b"code of tanh")
    item.write("empty", b"")
    assert tracer_core.cache.wait(30)
    assert tracer_core.cache.fleet().written == 2
    other = machine("other", server.url)
    assert other.read("tanh") == b"code of tanh" and other.read("empty") == b""
    assert other.read("sigmoid") is None
    actual = tracer_core.cache.fleet()
    assert (actual.hits, actual.misses, actual.state) == (2, 1, "serving")
    server.stop()
    assert other.read("tanh") == b"code of tanh"  # it is here now
    path, problem = other.inside(lambda folder: folder.find("tanh"))
    assert problem is None and path.read_bytes().startswith(b"code of tanh")


def test_entries_count_under_their_name_and_key_only(server, machine):
    item = machine("one", server.url)
    item.write("tanh", b"code of tanh")
    item.write("sigmoid", b"code of sigmoid")
    assert tracer_core.cache.wait(30)
    stranger = machine("stranger", server.url, key="another key than that of the fleet")
    assert stranger.read("tanh") is None and tracer_core.cache.fleet().wrong == 1
    (a, b) = [name for name in server.values() if name.endswith(("tanh", "sigmoid"))]
    values = server.values()
    server.put(a, values[b])
    server.put(b, values[a])
    other = machine("other", server.url)
    assert other.read("tanh") is None and other.read("sigmoid") is None
    other.write("tanh", b"made here")
    assert tracer_core.cache.wait(30) and other.read("tanh") == b"made here"
    assert machine("third", server.url).read("tanh") == b"made here"
    assert Store("others", MACHINE).read("tanh") is None
    assert Store("things", "another machine.").read("tanh") is None


def test_damaged_entries_are_not_used(redis_server, machine):
    machine("one", redis_server.url).write("tanh", b"code of tanh" * 20)
    assert tracer_core.cache.wait(30)
    ((name, full),) = redis_server.values().items()
    rng = random.Random(0)
    reader = Fleet(redis_server.url, KEY.encode(), 10, module._client)
    head = len(name.rpartition("/")[0]) and full
    for _ in range(300):
        data = bytearray(head)
        match rng.randrange(4):
            case 0:
                del data[rng.randrange(len(data)) :]
            case 1:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            case 2:
                data += rng.randbytes(rng.randrange(1, 9))
            case 3:
                data = bytearray(rng.randbytes(rng.randrange(500)))
        assert reader._opened(bytes(data), "things", MACHINE, "tanh") is None
    assert reader._opened(full, "things", MACHINE, "tanh") == b"code of tanh" * 20


def test_noise_is_not_asked_for_again(redis_server, machine, caplog):
    item = machine("one", redis_server.url)
    for number in range(20):
        item.write(f"entry{number}", b"right")
    assert tracer_core.cache.wait(30)
    for name in redis_server.values():
        redis_server.put(name, os.urandom(1000))
    other = machine("other", redis_server.url)
    with caplog.at_level(logging.WARNING, "tracer_core"):
        assert all(other.read(f"entry{number}") is None for number in range(20))
    actual = tracer_core.cache.fleet()
    assert (actual.wrong, actual.state) == (3, "off") and "not made with this key" in actual.reason
    assert len(caplog.records) == 1
    other.write("entry0", b"made here")
    assert other.read("entry0") == b"made here"


def test_a_server_that_is_gone_costs_a_refused_connection(redis_server, machine):
    item = machine("one", redis_server.url, timeout="0.2")
    item.write("tanh", b"code of tanh")
    assert tracer_core.cache.wait(30)
    redis_server.stop()
    begin = time.monotonic()
    for number in range(100):
        assert item.read(f"other{number}") is None
    item.write("sigmoid", b"code of sigmoid")
    assert time.monotonic() - begin < 5 and item.read("sigmoid") == b"code of sigmoid"
    actual = tracer_core.cache.fleet()
    assert actual.state == "resting" and actual.seconds <= 0.3 and actual.misses == 0


class Mute:
    """A server that takes connections and says nothing, or so many bytes a second."""

    def __init__(self, drip=b""):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self.socket.getsockname()[1]}/0"
        self.drip, self.open = drip, True
        self.connections = []
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        while self.open:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection):
        while self.open and self.drip:
            time.sleep(0.02)
            try:
                connection.send(self.drip)
            except OSError:
                return

    def stop(self):
        self.open = False
        self.socket.close()
        for connection in self.connections:
            connection.close()


@pytest.mark.parametrize("drip", [b"", b"$"], ids=["says nothing", "says it slowly"])
def test_a_server_that_hangs_costs_the_time_limit_once(machine, drip):
    pytest.importorskip("redis", reason="needs redis-py (pip install redis)")
    server = Mute(drip)
    try:
        kept = machine("one", server.url, timeout="0.2")
        begin = time.monotonic()
        for number in range(100):
            assert kept.read(f"entry{number}") is None
            kept.write(f"entry{number}", b"made here")
        assert time.monotonic() - begin < 10  # 100 files on a busy machine
        assert tracer_core.cache.fleet().seconds <= 0.3
        assert all(kept.read(f"entry{number}") == b"made here" for number in range(100))
    finally:
        server.stop()


class Slow:
    """A client whose answers take a while. Counts its reads."""

    def __init__(self, seconds, answers=()):
        self.seconds, self.reads, self.kept = list(seconds), 0, dict(answers)

    def get(self, name):
        if name != module._PROBE:
            self.reads += 1
            time.sleep(self.seconds.pop(0) if self.seconds else 0)
        return self.kept.get(name)

    def put(self, name, data):
        self.kept[name] = data


def connected(client, limit=0.4):
    result = Fleet("redis://server", KEY.encode(), limit, lambda url, timeout: client)
    assert result._connected.wait(10)
    return result


def test_misses_may_wait_for_the_limit_in_total():
    client = Slow([0.15] * 20)
    result = connected(client)
    begin = time.monotonic()
    for number in range(20):
        assert result.fetch("things", MACHINE, f"entry{number}") is None
    assert 0.3 < time.monotonic() - begin < 2.0
    assert client.reads <= 4 and result.info().state == "resting"


def test_an_entry_that_was_found_is_worth_the_wait():
    client = Slow([0.15] * 8)
    result = connected(client)
    result.share("things", MACHINE, "entry", b"right")
    assert result.wait(10)
    for _ in range(4):
        assert result.fetch("things", MACHINE, "entry") == b"right"
        assert result.fetch("things", MACHINE, "other") is None
    assert result.info().state == "serving"


def test_a_server_that_is_back_is_found_beside_the_program(redis_server, machine, monkeypatch):
    item = machine("one", redis_server.url)
    item.write("tanh", b"code of tanh")
    assert tracer_core.cache.wait(30)
    ((name, data),) = redis_server.values().items()
    redis_server.stop()
    assert item.read("sigmoid") is None
    assert tracer_core.cache.fleet().state == "resting"
    redis_server.start()
    redis_server.put(name, data)
    assert item.read("sigmoid") is None and tracer_core.cache.fleet().misses == 0
    monkeypatch.setattr(module, "REST", 0.0)
    for _ in range(200):
        item.read("sigmoid")
        if tracer_core.cache.fleet().state == "serving":
            break
        time.sleep(0.05)
    assert tracer_core.cache.fleet().state == "serving"
    monkeypatch.setattr(module, "REST", 30.0)
    shutil.rmtree(item.inside(lambda folder: folder.path))
    assert item.read("tanh") == b"code of tanh"


def test_writes_do_not_wait():
    release = threading.Event()

    class Stuck(Slow):
        def put(self, name, data):
            release.wait(30)
            super().put(name, data)

    result = connected(Stuck([]))
    begin = time.monotonic()
    for number in range(50):
        result.share("things", MACHINE, f"entry{number}", bytes(1000))
    assert time.monotonic() - begin < 1 and not result.wait(0.05)
    begin = time.monotonic()
    result.finish(10)
    assert time.monotonic() - begin < 5  # none was written within the limit
    release.set()
    assert result.wait(30) and result.info().written == 50


@pytest.mark.parametrize(("setting", "said"), [
    ({"TRACER_STORE_KEY": ""}, "no key by which its entries are authenticated"),
    ({"TRACER_STORE_KEY": "short"}, "fewer than 16"),
    ({"TRACER_STORE": "/no/url"}, "a URL"),
    ({"TRACER_STORE_TIMEOUT": "soon"}, "seconds, such as 0.2"),
    ({"TRACER_STORE_KEY_FILE": "/no/such/file"}, "TRACER_STORE_KEY_FILE"),
])  # fmt: skip
def test_wrong_settings_are_errors_of_compile(machine, monkeypatch, tmp_path, setting, said):
    pytest.importorskip("fsspec")
    machine("one", f"file://{tmp_path}/shared")
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(OptionError, match=said):
        tracer_core.compile(lambda x: x)


def test_a_client_that_is_missing_is_named(machine, monkeypatch):
    machine("one", "redis://localhost")
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OptionError, match="python -m pip install redis"):
        tracer_core.compile(lambda x: x)


def test_a_key_file_that_others_may_write_to_is_refused(machine, monkeypatch, tmp_path):
    pytest.importorskip("fsspec")
    machine("one", f"file://{tmp_path}/shared", key="")
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    monkeypatch.setenv("TRACER_STORE_KEY_FILE", str(file))
    file.chmod(0o666)
    with pytest.raises(OptionError, match="other users may write to it"):
        fleet()
    file.chmod(0o600)
    by_file = fleet()
    monkeypatch.delenv("TRACER_STORE_KEY_FILE")
    monkeypatch.setenv("TRACER_STORE_KEY", KEY)
    assert fleet() is by_file


def test_passwords_are_not_shown(machine, caplog):
    pytest.importorskip("redis", reason="needs redis-py (pip install redis)")
    url = f"redis://user:secret-word@127.0.0.1:{free_port()}/0"
    kept = machine("one", url, timeout="0.2")
    with caplog.at_level(logging.DEBUG, "tracer_core"):
        kept.read("tanh")
        time.sleep(0.5)
    messages = f"{caplog.text} {tracer_core.cache.fleet()} {tracer_core.doctor(smoke=False)}"
    assert "127.0.0.1" in messages and "secret-word" not in messages and KEY not in messages


def test_doctor_says_whether_it_works(server, machine):
    machine("one", server.url)
    (actual,) = [
        check for check in tracer_core.doctor(smoke=False) if check.what == "fleet's store"
    ]
    assert actual.state == "ok" and "written and read" in actual.found
    server.stop()
    if isinstance(server, Shared):
        server.folder.touch()  # a file where the folder was
    (actual,) = [
        check for check in tracer_core.doctor(smoke=False) if check.what == "fleet's store"
    ]
    assert actual.state == "problem" and actual.advice


PROGRAM = """
import json, os, time, torch, tracer_core
torch.manual_seed(0)
def program(x):
    return torch.softmax(torch.sin(x) * 2, -1).sum(0)
x = torch.randn(5, 7)
begin = time.perf_counter()
fast = tracer_core.compile(program)
right = torch.allclose(fast(x), program(x))
seconds = time.perf_counter() - begin
assert tracer_core.cache.wait(60)
found = tracer_core.cache.fleet()
print(json.dumps({"right": right, "hits": found.hits, "written": found.written, "state": found.state,
                  "seconds": seconds}))
"""


def test_the_second_machine_compiles_nothing(redis_server, tmp_path):
    calls = tmp_path / "calls"
    for name in ("gcc", "g++"):
        compiler = tmp_path / name
        real = shutil.which(name)
        compiler.write_text(
            f'#!/bin/sh\ncase "$*" in *-o*) echo "$*" >> {calls};; esac\nexec {real} "$@"\n'
        )
        compiler.chmod(0o755)

    def run(machine):
        calls.write_text("")
        environment = {
            **os.environ, "CXX": str(tmp_path / "g++"), "CC": str(tmp_path / "gcc"),
            "TRACER_CACHE_DIR": str(tmp_path / machine), "TRACER_STORE": redis_server.url,
            "TRACER_STORE_KEY": KEY, "TRACER_STORE_TIMEOUT": "10",
        }  # fmt: skip
        done = torch_server.run(["-c", PROGRAM], env=environment, timeout=200)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), calls.read_text().splitlines()

    first, compiled = run("first")
    assert first["right"] and first["written"] and compiled
    second, compiled = run("second")
    assert second["right"] and second["hits"] >= 1 and compiled == []


def test_a_forked_child_has_a_connection_of_its_own(server, machine):
    item = machine("one", server.url)
    item.write("tanh", b"code of tanh")
    assert tracer_core.cache.wait(30)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            shutil.rmtree(item.inside(lambda folder: folder.path))
            status = 0 if item.read("tanh") == b"code of tanh" else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert item.read("tanh") is not None
