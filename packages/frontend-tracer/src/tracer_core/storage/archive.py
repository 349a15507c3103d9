"""Files of `save` and `package`: zip archives of one possible layout, so that every byte is accounted
for.

In: members, by name. Out: a file that any zip program reads, with the same bytes for the same
members: stored uncompressed, each aligned to 64 bytes, without times. The last member, the seal, has
the SHA-256 of the manifest (and its HMAC, by a key), and the manifest that of every other member.

`Archive` reads such files only: what is between the members must be what `write_archive` writes. So
there are no names that lead elsewhere, no duplicates, nothing that grows when it is read, and no
byte that nobody checks.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from tracer_core.errors import StoredError
from tracer_core.limits import MAX_PACKAGE_MEMBERS, MAX_PACKAGE_TEXT_BYTES
from tracer_core.storage.private_file import open_private, replace_file

Data = bytes | bytearray | memoryview

#: Names of the members of every archive: what is said of the others, and its proof.
MANIFEST, SEAL = "manifest.json", "seal.json"
_NAME = re.compile(r"[a-z][a-z0-9_]*\.[a-z]+")
#: Bytes that members are aligned to.
_ALIGNED = 64

# The records of a zip file. Sizes and offsets stand in the "zip64" fields always.
_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_END = struct.Struct("<4s4H2LH")
_SIZES, _PLACE = struct.Struct("<2H2Q"), struct.Struct("<2H3Q")
_VERSION, _FLAGS, _DATE, _FULL16, _FULL32 = 45, 0x0800, 0x0021, 0xFFFF, 0xFFFFFFFF
_TAIL = _END64.size + _LOCATOR.size + _END.size


@dataclass(frozen=True, slots=True)
class ArchiveRow:
    """One member: its size and CRC-32, as a zip file lists them."""

    name: str
    size: int
    crc: int


def _layout(rows: Sequence[ArchiveRow]) -> tuple[list[bytes], list[int], bytes]:
    """Returns (what stands before each member, the members' offsets, what follows the last one)."""
    heads, offsets, central, position = [], [], b"", 0
    for row in rows:
        name = row.name.encode()
        start = position + _LOCAL.size + len(name) + _SIZES.size
        padding = -start % _ALIGNED
        if 0 < padding < 4:  # an extra field has 4 bytes at least
            padding += _ALIGNED
        filler = struct.pack("<2H", 0x7463, padding - 4).ljust(padding, b"\0") if padding else b""
        extra = _SIZES.pack(1, 16, row.size, row.size) + filler
        facts = _VERSION, _FLAGS, 0, 0, _DATE, row.crc, _FULL32, _FULL32, len(name)
        head = _LOCAL.pack(b"PK\3\4", *facts, len(extra)) + name + extra
        place = _PLACE.pack(1, 24, row.size, row.size, position)
        central += _CENTRAL.pack(
            b"PK\1\2", _VERSION, *facts, len(place), 0, 0, 0, 0, _FULL32
        )  # fmt: skip
        central += name + place
        heads.append(head)
        offsets.append(position + len(head))
        position = offsets[-1] + row.size
    count = len(rows)
    end64 = _END64.pack(
        b"PK\6\6", _END64.size - 12, _VERSION, _VERSION, 0, 0, count, count, len(central), position
    )
    locator = _LOCATOR.pack(b"PK\6\7", 0, position + len(central), 1)
    end = _END.pack(b"PK\5\6", 0, 0, _FULL16, _FULL16, _FULL32, _FULL32, 0)
    return heads, offsets, central + end64 + locator + end


def write_archive(
    path: str | os.PathLike[str],
    manifest: dict[str, Any],
    members: Mapping[str, Sequence[Data]],
    key: bytes | None = None,
) -> dict[str, Any]:
    """Writes an archive. members: the parts of each. key: of the signature. Returns the manifest with
    the facts of the members."""
    rows, facts = [], {}
    for name, parts in members.items():
        digest, crc, size = hashlib.sha256(), 0, 0
        for part in parts:
            digest.update(part)
            crc = zlib.crc32(part, crc)
            size += memoryview(part).nbytes
        rows.append(ArchiveRow(name, size, crc))
        facts[name] = {"size": size, "crc": crc, "sha256": digest.hexdigest()}
    manifest = {**manifest, "members": facts}
    text = json.dumps(manifest, indent=1).encode()
    sealed = json.dumps(_seal(text, key)).encode()
    rows = [_row(MANIFEST, text), *rows, _row(SEAL, sealed)]
    heads, _, tail = _layout(rows)
    every: list[Sequence[Data]] = [[text], *members.values(), [sealed]]

    def pieces() -> Iterator[Data]:
        for head, data in zip(heads, every, strict=True):
            yield head
            yield from data
        yield tail

    replace_file(path, pieces())
    return manifest


def _row(name: str, data: bytes) -> ArchiveRow:
    return ArchiveRow(name, len(data), zlib.crc32(data))


def _seal(manifest: bytes, key: bytes | None) -> dict[str, str]:
    seal = {"sha256": hashlib.sha256(manifest).hexdigest()}
    if key is not None:
        seal["hmac_sha256"] = hmac.new(key, manifest, hashlib.sha256).hexdigest()
    return seal


@contextlib.contextmanager
def opened_archive(
    path: str | os.PathLike[str], function: str, form: str, trust: bool, key: bytes | None = None
) -> Iterator[Archive]:
    """Opens a file that holds code.

    Args:
        path: The file.
        function: The caller's name, for messages.
        form: The ``"format"`` that the manifest must have.
        trust: Opens a file that another user owns or may write to.
        key: The key that the file must be signed with.

    Raises:
        StoredError: The file is refused, damaged, or of another format; also if what reads its
            manifest finds other entries than it needs.
    """
    try:
        with open_private(path, trust, function) as file:
            archive = Archive(path, file, key)
            result = archive.manifest.get("format")
            if result != form:
                raise StoredError(f"{path} has format {result}, this version reads {form}")
            yield archive
    except OSError as error:
        raise StoredError(f"{path} cannot be read: {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise StoredError(f"{path}: its manifest is of another file: {error!r}") from error


class Archive:
    """An open archive whose layout and manifest are verified. manifest: its manifest.

    Raises StoredError where the file is damaged, is no archive, or does not bear the signature that
    `key` makes.
    """

    def __init__(self, path: str | os.PathLike[str], file: BinaryIO, key: bytes | None) -> None:
        self._path, self._file = path, file
        rows = self._rows()
        names = [row.name for row in rows]
        if len(rows) < 2 or (names[0], names[-1]) != (MANIFEST, SEAL):
            raise self._damaged("it has no manifest or no seal")
        heads, offsets, tail = _layout(rows)
        self._places = dict(zip(names, zip(offsets, rows, strict=True), strict=True))
        pairs = zip(heads, offsets, strict=True)
        between = [*((offset - len(head), head) for head, offset in pairs)]
        for position, expected in [*between, (offsets[-1] + rows[-1].size, tail)]:
            if self._read(position, len(expected)) != expected:
                raise self._damaged("what stands between its members is not what belongs there")
        text, seal = self._text(rows[0]), self._text(rows[-1])
        self._verify_seal(text, seal, key)
        self.manifest = self._parsed(text)
        listed = {
            name: ArchiveRow(name, item.get("size"), item.get("crc"))
            for name, item in self.manifest.get("members", {}).items()
        }
        if listed != {row.name: row for row in rows[1:-1]}:
            raise self._damaged("its members are not those that its manifest lists")

    def _damaged(self, why: str) -> StoredError:
        return StoredError(f"{self._path} is damaged, or is no file of tracer_core: {why}")

    def _read(self, position: int, size: int) -> bytes:
        self._file.seek(position)
        return self._file.read(size)

    def _rows(self) -> list[ArchiveRow]:
        """Returns the members as the end of the file lists them; nothing of it is trusted yet."""
        length = self._file.seek(0, os.SEEK_END)
        if length < _TAIL:
            raise self._damaged(f"it has {length} bytes")
        last = self._read(length - _TAIL, _TAIL)
        sign, *_, count, _, size, position = _END64.unpack_from(last)
        if sign != b"PK\6\6" or count > MAX_PACKAGE_MEMBERS or position + size + _TAIL != length:
            raise self._damaged("it ends where no archive ends (was it cut short?)")
        central, at = self._read(position, size), 0
        rows: list[ArchiveRow] = []
        while at < len(central):
            if len(rows) == count or len(central) - at < _CENTRAL.size:
                raise self._damaged("its list of members is wrong")
            fields = _CENTRAL.unpack_from(central, at)
            crc, name_size = fields[7], fields[10]
            at += _CENTRAL.size
            name = central[at : at + name_size].decode("ascii", "replace")
            at += name_size
            if not _NAME.fullmatch(name) or len(central) - at < _PLACE.size:
                raise self._damaged(f"{name[:80]!r} is no name of a member")
            _, _, member_size, _, offset = _PLACE.unpack_from(central, at)
            at += _PLACE.size
            if member_size > length or offset > length:
                raise self._damaged(f"{name} would be longer than the file")
            rows.append(ArchiveRow(name, member_size, crc))
        if len({row.name for row in rows}) != len(rows):
            raise self._damaged("two of its members have one name")
        return rows

    def _text(self, row: ArchiveRow) -> bytes:
        if row.size > MAX_PACKAGE_TEXT_BYTES:
            raise self._damaged(f"{row.name} has {row.size} bytes")
        data = self._read(self._places[row.name][0], row.size)
        if zlib.crc32(data) != row.crc or len(data) != row.size:
            raise self._damaged(f"the checksum of {row.name} is wrong")
        return data

    def _parsed(self, text: bytes) -> dict[str, Any]:
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._damaged(str(error)) from error
        if not isinstance(parsed, dict):
            raise self._damaged("its manifest is no JSON object")
        return parsed

    def _verify_seal(self, manifest: bytes, seal: bytes, key: bytes | None) -> None:
        result, expected = self._parsed(seal), _seal(manifest, key)
        if seal != json.dumps({name: result.get(name) for name in result}).encode():
            raise self._damaged("its seal is wrong")
        if result.get("sha256") != expected["sha256"]:
            raise self._damaged("the hash of its manifest is wrong")
        if not set(result) <= {"sha256", "hmac_sha256"}:
            raise self._damaged("its seal is wrong")
        if key is None:
            return
        signature = result.get("hmac_sha256")
        if not isinstance(signature, str) or not signature.isascii():
            raise StoredError(f"{self._path} is not signed, and a key was given")
        if not hmac.compare_digest(signature, expected["hmac_sha256"]):
            raise StoredError(
                f"{self._path} was signed with another key than the one that was given"
            )

    def __iter__(self) -> Iterator[str]:
        """Yields the names of the members that the manifest lists."""
        return iter(self.manifest["members"])

    def read(self, name: str) -> bytes:
        """Returns a member whose hash is right."""
        data = bytearray(self.size(name))
        self.read_into(name, [memoryview(data)])
        return bytes(data)

    def read_into(self, name: str, parts: Sequence[memoryview]) -> None:
        """Reads a member into memory, part after part. Raises StoredError if its hash is wrong, after
        which the memory holds what nobody vouches for."""
        if sum(part.nbytes for part in parts) != self.size(name):
            raise self._damaged(f"{name} has another size than its manifest says")
        offset, _ = self._places[name]
        digest = hashlib.sha256()
        self._file.seek(offset)
        for part in parts:
            view = part.cast("B")
            if view.nbytes and self._file.readinto(view) != view.nbytes:  # type: ignore[attr-defined]
                raise self._damaged(f"{name} is cut short")
            digest.update(view)
        if digest.hexdigest() != self.manifest["members"][name].get("sha256"):
            raise self._damaged(f"the hash of {name} is wrong")

    def size(self, name: str) -> int:
        """Returns the bytes of a member."""
        if name not in self._places:
            raise self._damaged(f"it has no member {name}")
        return self._places[name][1].size
