r"""Compressed segment files: the bytes of a segment's plain file, unchanged, in blocks that can be read separately.

A file `<segment id>.facts.zst` or `<segment id>.content.zst` is a sequence of zstd frames (RFC 8878), then one
skippable frame with the index:

    <block> <block> ... 5A 2A 4D 18 <size, 4> <index: zstd of JSON> <index size, 4> <index crc32, 4> "agentobs"

A block is one frame and holds complete lines. Each byte is covered by a checksum that also covers the segment ID: the
checksums of blocks are in the index, and the checksum of the index follows it. If a block cannot be read, the index
still names the records that it contained.

Rejected: replacing phrases that a stream repeats in each delta by single bytes before compression, and moving the
arrival times of chunks into a separate frame. This made imported exchanges 0.4 % larger and recorded streams of real
clients 5 % smaller (a synthetic stream of 60,000 tiny deltas: 27 % smaller), at the cost of 150 lines of code and a
second format inside each block (November 2026).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import struct
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from agentobs.errors import DamagedError, ForeignError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

FORMAT = 1
"""The version of this format; a reader rejects newer versions."""
ENDING = ".zst"
"""The suffix that is added to the name of the plain file."""
LEVEL = 6
"""The zstd level. Level 9 needs 2 % less space and 1.4 times the time; level 3 needs 6 % more space and half the time
(November 2026).
"""
BLOCK_BYTES_MAX = 256 * 1024 * 1024
"""Larger blocks are not read. The largest records are responses; at most 32 MB of a response are kept."""
RATIO_MAX = 200
"""The maximum compression ratio. Data that was compressed more is rejected as a decompression bomb; the writer pads its
blocks so that they stay below it.
"""
ANY_RATIO_BYTES = 4 * 1024 * 1024
"""Up to this decompressed size, any ratio is accepted."""

_MAGIC = b"agentobs"
_SKIPPABLE = struct.Struct("<II")
_SKIPPABLE_MAGIC = 0x184D2A5A
_FRAME = b"\x28\xb5\x2f\xfd"
_END = struct.Struct("<II8s")


@dataclass(frozen=True, slots=True)
class Summary:
    """A description of the lines of a block, so that the block does not have to be read."""

    first: int = 0
    """The sequence number of its first record; 0 if it has no records."""
    last: int = 0
    """The sequence number of its last record; 0 if it has no records."""
    kinds: Mapping[str, int] = field(default_factory=dict)
    """The number of its records, by kind."""
    sessions: tuple[str, ...] = ()
    """The sessions that its records belong to."""
    contents: tuple[str, ...] = ()
    """The content ID of each of its lines in order, an empty string for a line without a content ID; no entries for
    facts.
    """


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a compressed file."""

    start: int
    """Offset of its first byte in the plain file."""
    bytes: int
    """Its size in the plain file."""
    at: int
    """Its offset in the compressed file."""
    compressed_bytes: int
    """Its size in the compressed file."""
    checksum: int
    """The CRC-32 of its compressed bytes, seeded with the CRC-32 of the segment ID."""
    summary: Summary


@dataclass(frozen=True, slots=True)
class Index:
    """The index of a compressed file."""

    segment_id: str
    bytes: int
    """The size of the plain file."""
    digest: str
    """The digest of the plain file."""
    torn: int
    """The number of bytes at the end of the plain file that were an incomplete record."""
    blocks: tuple[Block, ...]
    rewritten: bool = False
    """Whether the contents differ from those that the process wrote, because of pruning or a repair."""

    @property
    def last(self) -> int:
        """The sequence number of the last record; 0 if there is none."""
        return max((block.summary.last for block in self.blocks), default=0)

    def sessions(self) -> set[str]:
        """Return the sessions that its records belong to."""
        return {each for block in self.blocks for each in block.summary.sessions}


def compressed_path(path: Path) -> Path:
    """Return the path of the compressed form of a plain segment file."""
    return path.with_name(path.name + ENDING)


def write(
    out: BinaryIO,
    segment_id: str,
    parts: Iterable[tuple[bytes, Summary]],
    *,
    rewritten: bool = False,
) -> Index:
    """Write blocks and their index to a new file, and return the index.

    Args:
        out: the new file.
        segment_id: the segment that the file belongs to.
        parts: the consecutive parts of the plain file, each of complete lines; each becomes a block.
        rewritten: see `Index`.

    Raises:
        OSError: the file could not be written.
    """
    seed = zlib.crc32(segment_id.encode())
    blocks: list[Block] = []
    hashed = hashlib.blake2b(digest_size=16)
    start = at = torn = 0
    for data, summary in parts:
        block = _compressed_block(data)
        out.write(block)
        checksum = zlib.crc32(block, seed)
        blocks.append(Block(start, len(data), at, len(block), checksum, summary))
        hashed.update(data)
        torn = len(data) - (data.rfind(b"\n") + 1)
        start, at = start + len(data), at + len(block)
    digest = f"b2:{hashed.hexdigest()}"
    index = Index(segment_id, start, digest, torn, tuple(blocks), rewritten)
    out.write(_index_frame(index, seed))
    return index


def read_index(path: Path, segment_id: str | None = None) -> tuple[BinaryIO, Index]:
    """Open a compressed file and return it with its index; the caller closes it.

    Args:
        path: the compressed file.
        segment_id: the segment that it belongs to; default the one in its name.

    Raises:
        FileNotFoundError: the file does not exist.
        ForeignError: the file has a newer format.
        DamagedError: the index is damaged.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    file = os.fdopen(descriptor, "rb")
    try:
        return file, _index(file, path, segment_id or segment_of(path))
    except BaseException:
        file.close()
        raise


def read_block(file: BinaryIO, index: Index, block: Block) -> bytes:
    """Return the lines of a block.

    Raises:
        DamagedError: the block has a wrong checksum or size, or cannot be decompressed.
    """
    file.seek(block.at)
    compressed = file.read(block.compressed_bytes)
    if zlib.crc32(compressed, zlib.crc32(index.segment_id.encode())) != block.checksum:
        raise DamagedError("a block with a wrong checksum")
    data, used = _decompressed(compressed, min(block.bytes, BLOCK_BYTES_MAX))
    if len(data) != block.bytes or used != len(compressed):
        raise DamagedError("a block with a wrong size")
    return data


def salvage(data: bytes) -> Iterator[bytes]:
    """Yield the readable part of each block of a damaged file, up to the first byte that cannot be decompressed."""
    at, left = 0, _size_limit(len(data))
    view = memoryview(data)
    while left > 0 and (at := data.find(_FRAME, at)) != -1:
        try:
            block, used = _decompressed(view[at:], BLOCK_BYTES_MAX)
        except DamagedError:
            block, used = _readable_part(view[at:], left), len(_FRAME)
        yield block
        at += used
        left -= len(block)


def _index_frame(index: Index, seed: int) -> bytes:
    value = {
        "format": FORMAT,
        "segment_id": index.segment_id,
        "bytes": index.bytes,
        "digest": index.digest,
        "torn": index.torn,
        "rewritten": index.rewritten,
        "blocks": [
            [
                b.start,
                b.bytes,
                b.at,
                b.compressed_bytes,
                b.checksum,
                *dataclasses.astuple(b.summary),
            ]
            for b in index.blocks
        ],
    }
    text = compressed(json.dumps(value, separators=(",", ":")).encode())
    end = _END.pack(len(text), zlib.crc32(text, seed), _MAGIC)
    return _SKIPPABLE.pack(_SKIPPABLE_MAGIC, len(text) + len(end)) + text + end


def _index(file: BinaryIO, path: Path, segment_id: str) -> Index:
    size = file.seek(0, os.SEEK_END)
    try:
        file.seek(max(0, size - _END.size))
        length, checksum, magic = _END.unpack(file.read(_END.size))
        place = size - _END.size - length - _SKIPPABLE.size
        if magic != _MAGIC or place < 0:
            raise ValueError
        file.seek(place)
        header = _SKIPPABLE.unpack(file.read(_SKIPPABLE.size))
        text = file.read(length)
        seed = zlib.crc32(segment_id.encode())
        if zlib.crc32(text, seed) != checksum or header != (_SKIPPABLE_MAGIC, length + _END.size):
            raise ValueError
        value = json.loads(_decompressed(text, BLOCK_BYTES_MAX)[0])
        if value["format"] > FORMAT:
            raise ForeignError(
                f"a compressed segment of format {value['format']}; this version of agentobs reads up to {FORMAT}",
                where=str(path),
                todo="Install the version that wrote it, or a newer one",
            )
        index = _parsed(value)
        if index.segment_id != segment_id or _blocks_end(index) != place:
            raise ValueError
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        struct.error,
        RecursionError,
        DamagedError,
    ) as error:
        raise DamagedError("its index cannot be read", where=str(path)) from error
    return index


def _parsed(value: dict[str, Any]) -> Index:
    """Return the index in a JSON value.

    Raises:
        ValueError, KeyError, TypeError: it has another form.
    """
    blocks: list[Block] = []
    for row in value["blocks"]:
        *numbers, kinds, sessions, contents = row
        start, size, at, compressed_bytes, checksum, first, last = map(_count, numbers)
        counts = {_text(name): _count(count) for name, count in kinds.items()}
        summary = Summary(first, last, counts, _texts(sessions), _texts(contents))
        blocks.append(Block(start, size, at, compressed_bytes, checksum, summary))
    return Index(
        _text(value["segment_id"]),
        _count(value["bytes"]),
        _text(value["digest"]),
        _count(value["torn"]),
        tuple(blocks),
        bool(value["rewritten"]),
    )


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise TypeError
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _texts(values: object) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise TypeError
    return tuple(map(_text, values))


def _blocks_end(index: Index) -> int:
    """Return the offset after the last block; -1 if there is a gap between blocks, or a block is too large."""
    at = start = 0
    for block in index.blocks:
        if (block.at, block.start) != (at, start) or block.bytes > BLOCK_BYTES_MAX:
            return -1
        at, start = at + block.compressed_bytes, start + block.bytes
    return at if start == index.bytes else -1


def segment_of(path: Path) -> str:
    """Return the ID of the segment that a file belongs to, from the name of the file."""
    return path.name.partition(".")[0]


_OPTIONS: dict[int, int] = {
    zstd.CompressionParameter.compression_level: LEVEL,
    zstd.CompressionParameter.checksum_flag: 1,
}


def _compressed_block(data: bytes) -> bytes:
    """Return a block as a zstd frame, padded if it would otherwise be rejected as a decompression bomb."""
    frame = compressed(data)
    return frame if len(data) <= _size_limit(len(frame)) else _padded_frame(data)


def compressed(data: bytes) -> bytes:
    """Return bytes as a zstd frame, with the compression level of segments."""
    return zstd.compress(data, options=_OPTIONS)


def _padded_frame(data: bytes) -> bytes:
    """Return a zstd frame that is barely large enough not to be rejected: the first part of the data is stored raw.

    Later blocks do not depend on raw blocks, so the blocks of the rest can be copied from a separate frame.
    """
    first = -(-len(data) // RATIO_MAX)
    raw = [data[at : min(first, at + 0x20000)] for at in range(0, first, 0x20000)]
    blocks = [(len(each) << 3).to_bytes(3, "little") + each for each in raw]
    rest = compressed(data[first:])
    flags = rest[4]
    is_single_segment, has_checksum = flags >> 5 & 1, flags >> 2 & 1
    header = len(_FRAME) + 1 + (not is_single_segment) + (is_single_segment, 2, 4, 8)[flags >> 6]
    blocks.append(rest[header : len(rest) - 4 * has_checksum])
    # The header declares an 8-byte content size, no checksum, and a window of 8 MB; level 6 looks back at most 4 MB.
    return _FRAME + b"\xc0\x68" + len(data).to_bytes(8, "little") + b"".join(blocks)


def _size_limit(compressed_bytes: int) -> int:
    """Return the maximum decompressed size of a frame."""
    return max(ANY_RATIO_BYTES, compressed_bytes * RATIO_MAX)


def _decompressed(data: bytes | memoryview, size: int) -> tuple[bytes, int]:
    """Return the decompressed first frame of some bytes, at most `size` bytes, and the length of that frame."""
    decompressor = zstd.ZstdDecompressor()
    limit = min(size, _size_limit(len(data)))
    try:
        found = decompressor.decompress(data, max_length=limit + 1)
    except zstd.ZstdError as error:
        raise DamagedError("a block that does not decompress") from error
    if len(found) > limit:
        raise DamagedError("a block that is larger than its header states")
    if not decompressor.eof:
        raise DamagedError("an incomplete block")
    return found, len(data) - len(decompressor.unused_data)


def _readable_part(data: memoryview, limit: int) -> bytes:
    """Return the start of a frame that can be decompressed, at most about `limit` bytes."""
    decompressor = zstd.ZstdDecompressor()
    found = bytearray()
    try:
        part = decompressor.decompress(data, max_length=65536)
        while part and len(found) < limit:
            found += part
            part = b"" if decompressor.eof else decompressor.decompress(b"", max_length=65536)
    except (zstd.ZstdError, EOFError):
        pass
    return bytes(found)
