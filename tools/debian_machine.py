"""``python -m tools.debian_machine 3.13 -s tests -- -k arithmetic``: nox in a Debian of another
release, for the Python that it has; ``--architecture arm64`` before the version: of another
processor, which qemu emulates.

In: a version of Python (`RELEASES`) and nox's arguments. Out: nox's exit status. The machine is a
folder that debootstrap makes, kept in ``.nox/machines`` for the next run, with this machine's
certificates and settings of pip. The files of this tree that git knows are copied into it for each
run, and results of tests (`_RESULTS`) back; what nox installs there stays. Needs root, on Debian or
with debootstrap installed, and a mirror of Debian; says what is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MACHINES = ROOT / ".nox" / "machines"
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")

#: Version of Python -> the release of Debian whose python3 it is.
RELEASES = {"3.11": "bookworm", "3.13": "trixie", "3.14": "forky"}


@dataclass(frozen=True)
class Emulated:
    """An architecture that qemu emulates. interpreter: qemu's name for it. model: the processor, of
    those that qemu knows. cpuinfo: what Linux says of that processor; qemu shows the host's. midr:
    the number by which the processor identifies itself."""

    interpreter: str
    model: str
    cpuinfo: str
    midr: int


_GRAVITON2 = """processor\t: {}
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

"""

#: Debian's name of an architecture -> how it runs on another.
EMULATED = {"arm64": Emulated("qemu-aarch64", "neoverse-n1", _GRAVITON2, 0x413FD0C1)}

#: What is installed beside a minimal system.
_DEBIAN = "python3,python3-venv,python3-dev,libpython{}-testsuite,g++,git,ca-certificates"
#: Files of this machine by which pip finds packages and trusts their servers.
_SETTINGS = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pip.conf",
    "/root/.config/pip/pip.conf",
    "/root/.pip/pip.conf",
    "/etc/resolv.conf",
    "/etc/hosts",
)
#: Folder of the tree that is copied back from machines of another architecture, and kept there.
_RESULTS = "benchmarks/results/aarch64"
#: How debootstrap makes each release that it knows.
_SCRIPTS = Path("/usr/share/debootstrap/scripts")
#: Variables of the environment that the commands there see.
_VARIABLES = re.compile(r"PIP_\w+|\w*_CA_\w+|SSL_CERT_\w+|\w+_proxy|CI|LANG", re.IGNORECASE)


class Missing(Exception):
    """The machine cannot be made here."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--architecture", choices=EMULATED, help="another than this machine's")
    parser.add_argument("version", choices=RELEASES)
    parser.add_argument("nox", nargs=argparse.REMAINDER, help="nox's arguments")
    chosen = parser.parse_args(arguments)
    emulated = EMULATED.get(chosen.architecture)
    try:
        machine = made(chosen.version, chosen.architecture)
    except Missing as error:
        print(f"no machine with Python {chosen.version}: {error}", file=sys.stderr)
        return 2
    copy_tree(machine / "work")
    with mounted(machine, emulated):
        try:
            command = "cd /work && exec /venv/bin/python -m nox " + shlex.join(chosen.nox)
            return run(machine, command, emulated)
        finally:
            if emulated and (machine / "work" / _RESULTS).exists():
                shutil.copytree(machine / "work" / _RESULTS, ROOT / _RESULTS, dirs_exist_ok=True)


def made(version: str, architecture: str | None) -> Path:
    """Returns the folder of the machine, which is made if it is not there whole."""
    emulated = EMULATED.get(architecture or "")
    machine = MACHINES / "-".join(filter(None, (RELEASES[version], architecture)))
    done = machine / "venv" / "nox-installed"
    if os.geteuid() != 0:
        raise Missing("debootstrap and chroot need root")
    if emulated:
        register(emulated)
    if done.exists():
        return machine
    if shutil.which("debootstrap") is None:
        if shutil.which("apt-get") is None:
            raise Missing("debootstrap is not installed, and there is no apt-get to install it")
        subprocess.run(["apt-get", "install", "--yes", "--quiet", "debootstrap"], check=True)
    if machine.exists():
        unmount(machine)
        shutil.rmtree(machine)
    machine.mkdir(parents=True)
    command = ["debootstrap", "--variant=minbase", f"--include={_DEBIAN.format(version)}"]
    command += [f"--arch={architecture}"] if architecture else []
    command += [RELEASES[version], str(machine), MIRROR]
    if not (_SCRIPTS / RELEASES[version]).exists():  # a release newer than this debootstrap
        command.append(str(_SCRIPTS / "sid"))
    if subprocess.run(command).returncode:
        raise Missing(f"debootstrap failed; DEBIAN_MIRROR names another mirror than {MIRROR}")
    for name in _SETTINGS:
        if os.path.exists(name):
            target = machine / name.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(name, target)
    with mounted(machine, emulated):
        installs = "python3 -m venv /venv && /venv/bin/pip install --quiet nox"
        if run(machine, f"{installs} && touch /venv/nox-installed", emulated):
            raise Missing("pip could not install nox there")
        test = f'/venv/bin/python -c "import sys; assert sys.version.startswith({version!r})"'
        result = run(machine, test, emulated)
    if result:
        raise Missing(f"Debian's {RELEASES[version]} has another Python: change RELEASES")
    return machine


def register(emulated: Emulated) -> None:
    """Registers qemu with the kernel, which then runs programs of the architecture, and those that
    they start, by it."""
    formats = Path("/proc/sys/fs/binfmt_misc")
    if not (formats / "register").exists():
        mount = ["mount", "-t", "binfmt_misc", "binfmt_misc", str(formats)]
        if subprocess.run(mount).returncode:
            raise Missing("this kernel has no binfmt_misc, by which qemu runs programs")
    if (
        shutil.which("update-binfmts") is None
        or shutil.which(f"{emulated.interpreter}-static") is None
    ):
        raise Missing("apt-get install qemu-user-static binfmt-support")
    if not (formats / emulated.interpreter).exists():
        subprocess.run(["update-binfmts", "--enable", emulated.interpreter], check=True)


def copy_tree(target: Path) -> None:
    """Copies the files that git knows, and git's own, over those of the last run."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True
    ).stdout
    target.mkdir(exist_ok=True)
    for old in target.iterdir():
        if old.name != ".nox":  # what nox has installed
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    subprocess.run(
        ["git", "clone", "--quiet", "--no-checkout", str(ROOT), str(target / "clone")], check=True
    )
    (target / "clone" / ".git").rename(target / ".git")
    (target / "clone").rmdir()
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    # the clone's index is empty: results would say that every file had been changed
    subprocess.run(["git", "reset", "--quiet"], cwd=target, check=True)


@contextlib.contextmanager
def mounted(machine: Path, emulated: Emulated | None) -> Iterator[None]:
    """Mounts what processes need, local folders that pip's settings name, and the emulated
    processor's description."""
    texts = [
        Path(name).read_text()
        for name in _SETTINGS
        if name.endswith(".conf") and os.path.exists(name)
    ]
    texts += [value for name, value in os.environ.items() if name.startswith("PIP_")]
    named = {
        Path(*Path(path).parts[:2])
        for text in texts
        for path in re.findall(r"(?:file://)?(/[\w./-]+)", text)
    }
    local = [path for path in named if path.is_dir() and path.parts[1] not in ("etc", "root")]
    done: list[Path] = []
    try:
        for source in (Path("/proc"), Path("/dev"), *local):
            target = machine / source.relative_to("/")
            target.mkdir(exist_ok=True)
            subprocess.run(
                ["mount", "--rbind", "--make-rslave", str(source), str(target)], check=True
            )
            done.append(target)
        if emulated:
            show_processor(machine, emulated)
        yield
    finally:
        for target in reversed(done):
            subprocess.run(["umount", "--recursive", "--lazy", str(target)], check=False)


def show_processor(machine: Path, emulated: Emulated) -> None:
    """Puts the emulated processor's description where programs read it, in /proc and in /sys."""
    count, system = os.cpu_count() or 1, machine / "sys/devices/system/cpu"
    described = machine / "cpuinfo"
    described.write_text("".join(map(emulated.cpuinfo.format, range(count))))
    subprocess.run(["mount", "--bind", described, machine / "proc/cpuinfo"], check=True)
    for number in range(count):
        identification = system / f"cpu{number}" / "regs" / "identification"
        identification.mkdir(parents=True, exist_ok=True)
        (identification / "midr_el1").write_text(f"0x{emulated.midr:016x}\n")
    for name in ("possible", "present", "online"):
        (system / name).write_text(f"0-{count - 1}\n")


def unmount(machine: Path) -> None:
    """Unmounts what a run that was killed left: nothing of this machine may be deleted with it."""
    under = f"{machine}/"
    for _ in range(2):
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for target in [mount for mount in reversed(mounts) if mount.startswith(under)]:
            subprocess.run(["umount", target], check=False)
    if any(mount.startswith(under) for mount in mounts):
        raise Missing(f"something is still mounted under {machine}")


def run(machine: Path, command: str, emulated: Emulated | None = None) -> int:
    """Returns the exit status of a shell's command in the machine."""
    environment = {name: value for name, value in os.environ.items() if _VARIABLES.fullmatch(name)}
    environment |= {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
    environment |= {"QEMU_CPU": emulated.model} if emulated else {}
    return subprocess.run(
        ["chroot", str(machine), "/bin/sh", "-c", command], env=environment
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
