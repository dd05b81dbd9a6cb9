"""The journal: written segments can be read back, and damage is detected."""

from __future__ import annotations

import json
import os
import stat
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentobs.errors import ForeignError, HomeError
from agentobs.recording.journal.home import open_home
from agentobs.recording.journal.segment_import import ImportedLine, import_segment
from agentobs.recording.journal.segments import (
    Damage,
    Line,
    Segment,
    content_path,
    facts_path,
    is_alive,
    read,
)

VALUES: list[dict[str, Any]] = [
    {"text": "x"},
    {"text": "new\nline \u2028 é \ud800"},
    {"n": 2**70},
    {"deep": [[[]]]},
]


def write_segment(path: Path) -> tuple[Path, list[bytes]]:
    """Write a small segment; return its facts file and its lines."""
    home = open_home(path)
    segment = Segment(home)
    for value in VALUES:
        segment.facts.append("fact", value)
    segment.close()
    file = facts_path(home, segment.segment_id)
    return file, file.read_bytes().splitlines(keepends=True)


def values(file: Path) -> list[object]:
    return [line.value() for line in read(file) if isinstance(line, Line) and line.kind == "fact"]


def test_lines_can_be_read(tmp_path: Path) -> None:
    """Any JSON value is read back unchanged, including control characters and lone surrogates."""
    file, lines = write_segment(tmp_path / "home")
    assert values(file) == VALUES
    assert len(lines) == len(VALUES) + 2


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    """Directories have mode 0700 and files 0600, even with a umask of 0."""
    before = os.umask(0)
    try:
        file, _ = write_segment(tmp_path / "home")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "home").rglob("*") if p.is_file()}
    assert modes == {0o600}
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


@pytest.mark.slow
def test_every_flipped_bit_is_detected(tmp_path: Path) -> None:
    """If any bit of a segment is flipped, the reader reports damage or a gap, and yields no wrong value."""
    file, _ = write_segment(tmp_path / "home")
    content = file.read_bytes()
    for at in range(len(content)):
        for bit in range(8):
            file.write_bytes(content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :])
            found = list(read(file))
            noticed = any(isinstance(each, Damage) for each in found)
            cut_tail = at == len(content) - 1
            assert noticed or cut_tail, (at, bit)
            assert all(value in VALUES for value in values(file))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_truncated_file_loses_only_its_last_record(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """From a file that is truncated at any byte, the reader yields the records before that byte, and reports no
    damage.
    """
    file, lines = write_segment(tmp_path_factory.mktemp("torn") / "home")
    content = b"".join(lines)
    cut = data.draw(st.integers(0, len(content)))
    file.write_bytes(content[:cut])
    kept = content[:cut].count(b"\n")
    found = list(read(file))
    assert [each for each in found if isinstance(each, Damage)] == []
    assert len(found) == kept


def test_a_line_of_another_segment_is_detected(tmp_path: Path) -> None:
    """A line that was moved from another file is damage, because its checksum covers the segment ID."""
    file, lines = write_segment(tmp_path / "home")
    _, other = write_segment(tmp_path / "home")
    file.write_bytes(b"".join([*lines[:2], other[2], *lines[3:]]))
    damage = [each for each in read(file) if isinstance(each, Damage)]
    assert [d.reason for d in damage] == [
        "its checksum does not match",
        "1 record missing before record 4",
    ]


def test_missing_and_repeated_lines_are_detected(tmp_path: Path) -> None:
    """Missing and repeated lines are detected by their sequence numbers."""
    file, lines = write_segment(tmp_path / "home")
    file.write_bytes(b"".join([*lines[:2], *lines[3:]]))
    assert [d.reason for d in read(file) if isinstance(d, Damage)] == [
        "1 record missing before record 4"
    ]
    file.write_bytes(b"".join([*lines[:3], lines[2], *lines[3:]]))
    reasons = [d.reason for d in read(file) if isinstance(d, Damage)]
    assert "record 3 follows record 3" in reasons


def test_a_newer_format_is_rejected(tmp_path: Path) -> None:
    """A segment of a newer format is not read, and the error names the format."""
    file, lines = write_segment(tmp_path / "home")
    header = json.loads(lines[0].split(b" ", 3)[3])
    newer = json.dumps({**header, "format": 2}, separators=(",", ":")).encode()
    rest = b"1 segment " + newer
    check = zlib.crc32(rest, zlib.crc32(file.stem.encode()))
    file.write_bytes(b"%08x %s\n" % (check, rest) + b"".join(lines[1:]))
    with pytest.raises(
        ForeignError, match="a segment of format 2; this version of agentobs reads up to 1"
    ):
        list(read(file))


def test_a_failed_write_leaves_complete_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the disk is full in the middle of a line, the file is cut back to the end of the previous line."""
    home = open_home(tmp_path / "home")
    segment = Segment(home)
    real, calls = os.write, []

    def half(descriptor: int, data: bytes) -> int:
        calls.append(data)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return real(descriptor, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(OSError, match="No space left"):
        segment.facts.append("fact", {"text": "lost"})
    monkeypatch.undo()
    segment.facts.append("fact", {"text": "kept"})
    segment.close()
    assert values(facts_path(home, segment.segment_id)) == [{"text": "kept"}]
    assert not [d for d in read(facts_path(home, segment.segment_id)) if isinstance(d, Damage)]


def test_the_lock_shows_whether_the_process_is_alive(tmp_path: Path) -> None:
    """A segment counts as alive as long as its process holds the lock."""
    home = open_home(tmp_path / "home")
    segment = Segment(home)
    file = facts_path(home, segment.segment_id)
    child = os.fork()
    if child == 0:
        segment.abandon()
        os._exit(0 if is_alive(file) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    segment.close()
    assert not is_alive(file)
    assert not content_path(home, segment.segment_id).exists()


@pytest.mark.parametrize("kind", ["file", "link", "read_only"])
def test_a_home_that_cannot_be_used(tmp_path: Path, kind: str) -> None:
    """If the home is a file or a link, or cannot be created, one error names the directory and what to do."""
    home = tmp_path / "home"
    if kind == "file":
        home.write_text("mine")
    elif kind == "link":
        (tmp_path / "real").mkdir()
        home.symlink_to(tmp_path / "real")
    else:
        home.mkdir()
        (home / "segments").write_text("mine")
    with pytest.raises(HomeError, match=r"cannot record here: .*Choose a directory of your own"):
        open_home(home)


def test_an_import_into_a_new_home_survives_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import syncs the data of a segment before it gets its name, and all directories up to the home's name after
    that.
    """
    home, segment_id = open_home(tmp_path / "home"), "5" * 32
    synced: list[tuple[str, bool]] = []

    def noted(name: str) -> None:
        real = getattr(os, name)

        def call(descriptor: int) -> None:
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            place = path.name if path.is_file() else str(path.relative_to(tmp_path))
            synced.append((place, facts_path(home, segment_id).exists()))
            real(descriptor)

        monkeypatch.setattr(os, name, call)

    for name in ("fsync", "fdatasync"):
        noted(name)
    lines = [ImportedLine(side, {}, is_content=side == "content") for side in ("content", "facts")]
    import_segment(home, segment_id, lines)
    data = {(f"{segment_id}.{side}", False) for side in ("content", "facts")}
    names = {(place, True) for place in ("home/segments", "home", ".")}
    assert data | names <= set(synced)
    assert not {place for place, _ in data} & {place for place, is_named in synced if is_named}
