"""Planted defects: changes of the code that break an invariant, to show that the simulation detects them."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

from agentobs.recording.journal import segments
from agentobs.recording.journal.home import sync_directory
from agentobs.recording.journal.segments import Segment, SegmentFile
from agentobs.recording.record_accounts import Accounts
from agentobs.recording.recorder import Recorder
from agentobs.recording.segment_writer import Writer, _line
from agentobs.store.duckdb import (
    generations,
    ingest,
    journal_tail,
    segment_compression,
    segment_rewrite,
    verification,
)

Patch = Callable[[], contextlib.AbstractContextManager[Any]]


def _replaced(place: Any, name: str, value: Any) -> Patch:
    return lambda: mock.patch.object(place, name, value)


def _nothing(*arguments: Any, **options: Any) -> None:
    pass


def _sync_without_names(self: Segment) -> None:
    for each in self._all():
        each.sync()


def _write_facts_first(self: Writer, interpretation: Any) -> None:
    segment = self._segment
    assert segment is not None
    if interpretation.facts:
        segment.facts.append_all(_line(fact) for fact in interpretation.facts)
    if interpretation.contents:
        segment.content.append_all(interpretation.contents)
    self.writes += 1


def _dropped_only(self: Recorder) -> int:
    return sum(self._queue.accounts.dropped.values())


def _count_some(self: Accounts, session_id: str, kind: str, reason: str) -> None:
    if reason != "stopped":
        _count_dropped(self, session_id, kind, reason)


_count_dropped = Accounts.count_dropped


def _flush_without_losses(self: Recorder, seconds: float = 5.0) -> bool:
    return self._queue.progress.wait(seconds)


def _parse_unchecked(line: bytes, seed: int, start: int, end: int) -> Any:
    fields = line.split(b" ", 3)
    if len(fields) == 4:
        rest = line[len(fields[0]) + 1 :]
        line = b"%08x %s" % (zlib.crc32(rest, seed), rest)
    return _parse(line, seed, start, end)


_parse = segments._parse


@contextlib.contextmanager
def _manifest_last() -> Iterator[None]:
    """Write the manifest after the rename of the published file."""
    written: list[tuple[Any, ...]] = []
    write, sync = generations._write_manifest, sync_directory

    def sync_and_write(path: Any) -> None:
        sync(path)
        while written:
            write(*written.pop())

    with (
        mock.patch.object(generations, "_write_manifest", lambda *found: written.append(found)),
        mock.patch.object(generations, "sync_directory", sync_and_write),
    ):
        yield


@contextlib.contextmanager
def _all_dead() -> Iterator[None]:
    """Let an ingest consider all processes dead."""
    with (
        mock.patch.object(segment_compression, "is_alive", return_value=False),
        mock.patch.object(journal_tail, "is_alive", return_value=False),
    ):
        yield


DEFECTS: Mapping[str, Patch] = {
    "records are acknowledged without a sync": _replaced(Segment, "sync", _nothing),
    "new files are synced without their directory": _replaced(Segment, "sync", _sync_without_names),
    "a flush ignores failed syncs": _replaced(Recorder, "_losses", _dropped_only),
    "an incomplete line is not cut off": _replaced(SegmentFile, "_cut", _nothing),
    "facts are written before their content": _replaced(Writer, "write", _write_facts_first),
    "some dropped records are not counted": _replaced(Accounts, "count_dropped", _count_some),
    "a flush ignores dropped records": _replaced(Recorder, "flush", _flush_without_losses),
    "checksums are not checked": _replaced(segments, "_parse", _parse_unchecked),
    "torn files are not reported": _replaced(verification, "tail", lambda path: 0),
    "records are ingested twice": _replaced(ingest, "save_marks", _nothing),
    "segments of running processes are compressed": _all_dead,
    "a generation is published without a sync": _replaced(generations, "_sync", _nothing),
    "the plain file is deleted before the directory is synced": _replaced(
        segment_compression, "sync_directory", _nothing
    ),
    "the manifest is written after the published file": _manifest_last,
    "a prune forgets the rows of the store": _replaced(
        segment_rewrite, "_delete_rows", lambda *arguments: 0
    ),
}
"""Each defect with a context manager that plants it."""
