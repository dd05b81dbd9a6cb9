"""Serves files of the corpus, sends their requests with the real SDK, and records and ingests one session per file."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import duckdb

import agentobs
from agentobs.recording.journal.home import Home, existing_home, open_home
from agentobs.recording.journal.segments import segment_ids
from agentobs.recording.vault.vault import read_session
from agentobs.recording.wire.exchange_file import read_wire_file
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from agentobs.records.exchanges import ModelExchange, Recording
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from tests.wire.corpus import Exchange, WireFile

SEGMENT_FILES = 12
"""The number of files in a segment. To read one session, all facts of its segment are read."""
KEY = "sk-ant-api03-this-is-the-key-of-the-test-0123456789"
C = TypeVar("C")
R = TypeVar("R")


@dataclass(frozen=True)
class RecordedFile:
    """A file whose requests were sent again, all in one session."""

    file: WireFile
    session_id: str
    responses: list[Any]
    """The response that the client received for each request."""
    segment_ids: list[str]
    """The segments that contain the session."""


@dataclass(frozen=True)
class Batch:
    """Several files that are recorded in one home."""

    home: Home
    files: list[RecordedFile]
    database: duckdb.DuckDBPyConnection

    @functools.cached_property
    def recordings(self) -> dict[str, Recording]:
        """All sessions, read from the segments."""
        return {
            file.session_id: read_session(self.home, file.session_id, file.segment_ids)
            for file in self.files
        }

    @functools.cached_property
    def _rows(self) -> dict[str, dict[str, list[tuple[Any, ...]]]]:
        return {}

    def rows(self, sql: str, recorded: RecordedFile) -> list[tuple[Any, ...]]:
        """Return the rows of the session of a file.

        Each statement runs only once, on all sessions; its first column is the session, which is not returned.
        """
        if sql not in self._rows:
            found = self._rows[sql] = defaultdict[str, list[tuple[Any, ...]]](list)
            for session_id, *row in self.database.execute(sql).fetchall():
                found[session_id].append(tuple(row))
        return self._rows[sql].get(recorded.session_id, [])

    def continued_attempts(self, recorded: RecordedFile) -> list[int | None]:
        """Return, for each attempt of a session, the number of the attempt that it continues; None if there is none."""
        rows = self.rows(
            "SELECT session_id, attempt_id, continues_attempt_id FROM attempts ORDER BY started_ns",
            recorded,
        )
        number = {attempt_id: at for at, (attempt_id, _) in enumerate(rows)}
        return [number[continues] if continues else None for _, continues in rows]


def model_exchanges(recording: Recording) -> list[ModelExchange]:
    """Return the exchanges with the provider."""
    return [e for e in recording.exchanges if isinstance(e, ModelExchange)]


@contextmanager
def served(options: ServeOptions | None = None) -> Iterator[ServedProvider]:
    """Serve a provider without a recording; tests load recordings later."""
    empty = Recording("wire", "nothing", None, None, "completed", None, None, 0, ())
    with ServedProvider(empty, options) as provider:
        yield provider


def record_files(
    files: Sequence[WireFile],
    path: Path,
    open_client: Callable[[str], AbstractContextManager[C]],
    send: Callable[[C, Exchange], R],
) -> list[RecordedFile]:
    """Send every request of the files again, and record all exchanges in a home at `path`."""
    agentobs.stop_recorder()
    recorded: list[RecordedFile] = []
    home = open_home(path)
    with served() as provider, open_client(provider.url) as client:

        def record_file(file: WireFile) -> tuple[str, list[R]]:
            # A session that a nested function opens does not record the arguments of the function.
            provider.load(read_wire_file(file.path))
            with agentobs.session("wire") as session:
                return session.session_id, [send(client, exchange) for exchange in file.exchanges]

        for first in range(0, len(files), SEGMENT_FILES):
            part, earlier = files[first : first + SEGMENT_FILES], segment_ids(home)
            agentobs.record(client, home=str(path))
            results = [record_file(file) for file in part]
            assert agentobs.stop_recorder(), "not all records were written"
            segments = [each for each in segment_ids(home) if each not in earlier]
            recorded += [
                RecordedFile(file, *result, segments)
                for file, result in zip(part, results, strict=True)
            ]
    return recorded


@contextmanager
def ingested(path: Path, files: list[RecordedFile]) -> Iterator[Batch]:
    """Ingest a home and open its store."""
    home = existing_home(path)
    report = ingest(home)
    assert report.damaged_records == report.missing_records == report.misfit_records == 0
    with connect(home) as database:
        yield Batch(home, files, database)
