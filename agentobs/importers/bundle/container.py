r"""The file format of bundles, with its writer and its reader: segment files one after the other, then their manifest.

    agentobs bundle 1\n
    <segment file> <segment file> ...
    <manifest: JSON>\n
    <length of the manifest, 16 hex digits> <its digest, 32 hex digits> agentobs\n

Each segment file is in the compressed form of `recording/journal/compression.py`, and contains one side (facts or
content) of one session. Every line has a checksum, which covers the segment ID. For each segment file, the manifest has
an entry with its session, segment and side, its offset, its compressed and uncompressed size, and the digest of its
bytes. The last line contains the digest of the manifest, so that one digest covers every byte of the bundle.

A bundle contains no paths. File names are derived on import, from IDs whose form has been checked.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

from agentobs.errors import DamagedError, ForeignError
from agentobs.recording.journal import compression
from agentobs.recording.journal.segment_blocks import blocks_of
from agentobs.records.labels import is_label

FORMAT = 1
"""The version of the format that is written; newer versions are rejected."""
PLAIN_BYTES_MAX = 2 * 1024**3
"""The maximum size of a bundle after decompression. Our choice: a machine can validate this amount in a minute."""
RATIO_MAX = 200
"""The maximum compression ratio of a complete bundle; the same limit applies to each block of a segment file."""
RATIO_FREE = 64 * 1024**2
"""Up to this decompressed size, any compression ratio is accepted."""
ENTRIES_MAX = 20_000
"""The maximum number of entries. Our choice."""
MANIFEST_BYTES_MAX = 16 * 1024**2
"""The maximum length of the manifest: 20,000 entries take 6 MB."""

Side = Literal["facts", "content"]

_FIRST = b"agentobs bundle "
_LAST = re.compile(rb"([0-9a-f]{16}) ([0-9a-f]{32}) agentobs\n\Z")
_LAST_BYTES = 16 + 1 + 32 + 1 + 9
_SEGMENT = re.compile(r"[0-9a-f]{32}\Z")
_DIGEST = re.compile(r"b2:[0-9a-f]{32}\Z")
_COPY_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Entry:
    """One segment file of a bundle."""

    session_id: str
    segment_id: str
    """A digest of the facts; if the same session is bundled again, it has the same ID."""
    side: Side
    at: int
    """Its offset in the bundle, in bytes."""
    packed: int
    """Its compressed size in bytes."""
    plain: int
    """Its decompressed size in bytes."""
    digest: str
    """The digest of its compressed bytes."""

    def __str__(self) -> str:
        return f"{self.side} of session {self.session_id}"


@dataclass(frozen=True, slots=True)
class Money:
    """The cost of a session on the machine where it was recorded, at the prices in force there."""

    session_id: str
    cost_usd: str | None
    """The exact cost as a decimal string; None if no call has a price."""
    price_version: str | None


@dataclass(frozen=True, slots=True)
class Bundle:
    """An open bundle; its entries have not been validated yet."""

    path: Path
    digest: str
    """The digest of the manifest, which covers every byte of the bundle."""
    entries: tuple[Entry, ...]
    money: tuple[Money, ...]

    def of(self, session_id: str, side: Side) -> Entry | None:
        """Return the entry for one side of a session, or None."""
        found = (e for e in self.entries if e.session_id == session_id and e.side == side)
        return next(found, None)

    @property
    def session_ids(self) -> list[str]:
        """The IDs of the sessions in the bundle."""
        return [entry.session_id for entry in self.entries if entry.side == "facts"]


class _Counted:
    """Writes bytes to a file, and computes their number and digest."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self.size = 0
        self._hashed = hashlib.blake2b(digest_size=16)

    def write(self, data: bytes) -> int:
        self.size += len(data)
        self._hashed.update(data)
        return self._out.write(data)

    def digest(self) -> str:
        return f"b2:{self._hashed.hexdigest()}"


class Writer:
    """Writes a bundle, entry by entry."""

    def __init__(self, out: BinaryIO) -> None:
        """Start a bundle in an empty file."""
        self._out = out
        self._at = out.write(b"%b%d\n" % (_FIRST, FORMAT))
        self._entries: list[Entry] = []

    def add(self, session_id: str, segment_id: str, side: Side, lines: Iterable[bytes]) -> Entry:
        """Add the facts or the content of a session, as lines of a segment."""
        out = _Counted(self._out)
        # `compression.write` only calls the method `write` of the file.
        index = compression.write(out, segment_id, blocks_of(lines, segment_id))  # type: ignore[arg-type]
        entry = Entry(session_id, segment_id, side, self._at, out.size, index.bytes, out.digest())
        self._at += out.size
        self._entries.append(entry)
        return entry

    def close(self, money: Sequence[Money]) -> str:
        """Write the manifest, and return the digest that covers the complete bundle."""
        value = {
            "format": FORMAT,
            "entries": [asdict(entry) for entry in self._entries],
            "money": [asdict(each) for each in money],
        }
        manifest = json.dumps(value, separators=(",", ":"), sort_keys=True).encode() + b"\n"
        digest = hashlib.blake2b(manifest, digest_size=16).hexdigest()
        self._out.write(manifest + b"%016x %b agentobs\n" % (len(manifest), digest.encode()))
        return f"b2:{digest}"


def open_bundle(path: Path) -> Bundle:
    """Read the manifest of a bundle, and check its limits; nothing is decompressed.

    Raises:
        ForeignError: the file is not a bundle, or has a newer version.
        DamagedError: the bundle is truncated, was changed, or has an invalid manifest.
        OSError: it cannot be read.
    """
    with _opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        first = file.readline(len(_FIRST) + 12)
        _check_first(path, first)
        file.seek(max(size - _LAST_BYTES, 0))
        last = _LAST.fullmatch(file.read())
        length = int(last[1], 16) if last else 0
        begins = size - _LAST_BYTES - length
        if last is None or not 0 < length <= MANIFEST_BYTES_MAX or begins < len(first):
            raise _damaged(path, "its end is missing: it was cut off, or data was appended")
        file.seek(begins)
        manifest = file.read(length)
    digest = hashlib.blake2b(manifest, digest_size=16).hexdigest()
    if digest.encode() != last[2]:
        raise _damaged(path, "the manifest does not match its digest")
    try:
        value = strict(manifest)
        entries = tuple(_entry(each) for each in value["entries"])
        money = tuple(_typed(Money, each) for each in value["money"])
        if value["format"] != FORMAT:
            raise ValueError("its version differs from the version in the first line")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(path, f"the manifest is invalid: {error_text(error)}") from error
    bundle = Bundle(path, f"b2:{digest}", entries, money)
    _check_bounds(bundle, len(first), begins)
    return bundle


def extract(bundle: Bundle, entry: Entry, to: Path) -> None:
    """Copy the segment file of an entry to a new file.

    Raises:
        DamagedError: its bytes do not match the manifest.
        OSError: it cannot be read or written.
    """
    hashed = hashlib.blake2b(digest_size=16)
    remaining = entry.packed
    descriptor = os.open(to, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    with _opened(bundle.path) as file, os.fdopen(descriptor, "wb") as out:
        file.seek(entry.at)
        while remaining and (data := file.read(min(remaining, _COPY_BYTES))):
            hashed.update(data)
            out.write(data)
            remaining -= len(data)
    if remaining or f"b2:{hashed.hexdigest()}" != entry.digest:
        raise _damaged(bundle.path, f"{entry}: its bytes do not match the digest in the manifest")


def strict(text: bytes) -> Any:
    """Parse strict JSON: UTF-8, without duplicate keys in an object, and without NaN or infinity.

    Raises:
        ValueError, RecursionError: it is not strict JSON.
    """
    return json.loads(
        text.decode("utf-8", "surrogatepass"), object_pairs_hook=_unique, parse_constant=_refused
    )


def error_text(error: BaseException) -> str:
    """Describe an error in one line. The text contains at most one word of the data."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg}"
    if isinstance(error, KeyError):
        return f"{str(error)[:60]} is missing"
    return str(error).partition("\n")[0][:200]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object with a duplicate key")
    return found


def _refused(word: str) -> Any:
    raise ValueError(f"an invalid number: {word}")


def _opened(path: Path) -> BinaryIO:
    """Open a regular file; other files are refused, because opening a pipe would block."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        found = f"it cannot be opened: {error.strerror}"
        raise ForeignError(found, where=str(path), todo=_MAKE) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ForeignError("not a regular file", where=str(path), todo=_MAKE)
    return os.fdopen(descriptor, "rb")


def _check_first(path: Path, first: bytes) -> None:
    number = first.removeprefix(_FIRST).strip()
    if not first.startswith(_FIRST) or not first.endswith(b"\n") or not number.isdigit():
        raise ForeignError("not an agentobs bundle", where=str(path), todo=_MAKE)
    if int(number) > FORMAT:
        raise ForeignError(
            f"a bundle of version {int(number)}; this version of agentobs reads up to {FORMAT}",
            where=str(path),
            todo="Install the version that wrote it, or a newer one",
        )


def _entry(value: Mapping[str, Any]) -> Entry:
    entry: Entry = _typed(Entry, value)
    if not _SEGMENT.match(entry.segment_id) or not _DIGEST.match(entry.digest):
        raise ValueError("an entry with an invalid ID or digest")
    if not is_label(entry.session_id) or entry.side not in get_args(Side):
        raise ValueError("an entry without a session or without a side")
    return entry


def _typed(kind: type, value: Mapping[str, Any]) -> Any:
    """Convert an object to an instance of a class; it must have exactly the fields of the class, with their types."""
    kinds: dict[str, Any] = {"int": int, "str": str, "Side": str, "str | None": (str, type(None))}
    named = {field.name: kinds[str(field.type)] for field in fields(kind)}
    if not isinstance(value, dict) or value.keys() != named.keys():
        raise ValueError(f"{kind.__name__.lower()} has unexpected fields")
    for name, wanted in named.items():
        found = value[name]
        if not isinstance(found, wanted) or isinstance(found, bool):
            raise ValueError(f"{name} has the wrong type")
        if isinstance(found, int) and not 0 <= found < 2**62:
            raise ValueError(f"{name} is out of bounds")
        if isinstance(found, str) and not (found.isprintable() and len(found) <= 200):
            raise ValueError(f"{name} is not printable text of at most 200 characters")
    return kind(**value)


def _check_bounds(bundle: Bundle, begins: int, ends: int) -> None:
    entries, at = bundle.entries, begins
    for entry in entries:
        if entry.at != at:
            raise _damaged(bundle.path, f"{entry}: it is out of order")
        at += entry.packed
    if at != ends:
        raise _damaged(bundle.path, "its entries do not end at the manifest")
    plain = sum(entry.plain for entry in entries)
    limit = min(PLAIN_BYTES_MAX, max(RATIO_FREE, RATIO_MAX * (ends - begins)))
    if plain > limit:
        raise _damaged(bundle.path, f"it expands to {plain:,} bytes; the limit is {limit:,}")
    if len(entries) > ENTRIES_MAX:
        raise _damaged(
            bundle.path, f"it has {len(entries):,} entries; the limit is {ENTRIES_MAX:,}"
        )
    names = [(entry.session_id, entry.side) for entry in entries]
    files = [(entry.segment_id, entry.side) for entry in entries]
    if len(set(names)) < len(names) or len(set(files)) < len(files):
        raise _damaged(bundle.path, "it contains a session twice")
    segments = {entry.session_id: entry.segment_id for entry in entries if entry.side == "facts"}
    for entry in entries:
        if segments.get(entry.session_id) != entry.segment_id:
            raise _damaged(bundle.path, f"{entry}: its facts are missing")


def _damaged(path: Path, found: str) -> DamagedError:
    return DamagedError(
        found, where=str(path), todo="Nothing was imported; request the bundle again"
    )


_MAKE = "Use a file that `agentobs bundle SESSION -o FILE` wrote; other databases and tables are not opened"


def segment_of(payloads: Iterable[tuple[str, bytes]], with_content: bool) -> str:
    """Return the ID of a segment, 32 hex digits: a digest of its facts, and of whether it has content."""
    hashed = hashlib.blake2b(b"with content" if with_content else b"facts alone", digest_size=16)
    for kind, payload in payloads:
        hashed.update(b"%b %b\n" % (kind.encode(), payload))
    return hashed.hexdigest()
