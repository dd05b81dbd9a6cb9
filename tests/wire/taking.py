"""Files of the corpus, served, asked by the real SDK, recorded and ingested: a session for each file."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import duckdb

import agentobs
from agentobs.recording.journal.home import Home, existing_home
from agentobs.recording.journal.segments import segment_ids
from agentobs.recording.vault.vault import read_session
from agentobs.recording.wire.exchange_file import read_wire_file
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from agentobs.records.exchanges import ModelExchange, Recording
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from tests.wire.corpus import Exchange, WireFile

KEY = "sk-ant-api03-this-is-the-key-of-the-test-0123456789"
C = TypeVar("C")
H = TypeVar("H")


@dataclass(frozen=True)
class Taken:
    """A file whose exchanges were asked again in one session."""

    file: WireFile
    session_id: str
    heard: list[Any]
    """What the client got for each question."""


@dataclass(frozen=True)
class Batch:
    """Some files, recorded in one home."""

    home: Home
    taken: list[Taken]
    database: duckdb.DuckDBPyConnection

    @functools.cached_property
    def recordings(self) -> dict[str, Recording]:
        """All sessions, read back from the segments."""
        segments = segment_ids(self.home)
        ids = [taken.session_id for taken in self.taken]
        return {session_id: read_session(self.home, session_id, segments) for session_id in ids}

    def rows(self, sql: str, taken: Taken) -> list[tuple[Any, ...]]:
        """Ask the store about a session: `$session` in the statement."""
        return self.database.execute(sql, {"session": taken.session_id}).fetchall()

    def chain(self, taken: Taken) -> list[int | None]:
        """Ask of each question of a session which one's answer it goes on from; both are numbers."""
        rows = self.rows(
            "SELECT attempt_id, continues_attempt_id FROM attempts WHERE session_id = $session ORDER BY started_ns",
            taken,
        )
        number = {attempt_id: at for at, (attempt_id, _) in enumerate(rows)}
        return [number[continues] if continues else None for _, continues in rows]


def questions(recording: Recording) -> list[ModelExchange]:
    """Return the exchanges with the provider."""
    return [e for e in recording.exchanges if isinstance(e, ModelExchange)]


@contextmanager
def served(options: ServeOptions | None = None) -> Iterator[ServedProvider]:
    """A provider without a recording yet."""
    nothing = Recording("wire", "nothing", None, None, "completed", None, None, 0, ())
    with ServedProvider(nothing, options) as provider:
        yield provider


def take(
    files: Sequence[WireFile],
    path: Path,
    open_client: Callable[[str], AbstractContextManager[C]],
    ask: Callable[[C, Exchange], H],
) -> list[Taken]:
    """Ask every question of the files again and record it into a home at `path`."""
    agentobs.stop_recorder()
    taken: list[Taken] = []
    with served() as provider, open_client(provider.url) as client:
        agentobs.record(client, home=str(path))
        for file in files:
            provider.load(read_wire_file(file.path))
            with agentobs.session("wire") as session:
                heard = [ask(client, exchange) for exchange in file.exchanges]
            taken.append(Taken(file, session.session_id, heard))
    assert agentobs.stop_recorder(), "not everything was written"
    return taken


@contextmanager
def stored(path: Path, taken: list[Taken]) -> Iterator[Batch]:
    """Ingest a home, and ask its store."""
    home = existing_home(path)
    report = ingest(home)
    assert report.damaged_records == report.missing_records == report.misfit_records == 0
    with connect(home, ingest=False) as database:
        yield Batch(home, taken, database)
