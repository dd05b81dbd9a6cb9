"""Recordings of other tools: each format gives money, turns, tool calls and a replay, and is imported once."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentobs.recording.journal.home import open_home
from agentobs.records.exchanges import ModelExchange
from agentobs.store.duckdb.retention import prune
from agentobs.store.duckdb.verification import verify
from tests.importers.recorded_agent import (
    SECRET,
    TEXTS,
    WORD,
    Pair,
    cassette,
    har,
    lines,
    orca_events,
    put,
    recorded_pairs,
    recording_of,
    replayed,
    rewind_trace,
    run,
    session_of,
    stored_bytes,
)
from tests.marks import mark_all_but_first

MANIFEST = {"schema_version": "0.1.0", "run_id": "run_9f2c14a03b71"}


def put_vcr(folder: Path, pairs: list[Pair]) -> Path:
    import yaml

    return put(folder / "weather.yaml", yaml.dump(cassette(pairs)))


def put_har(folder: Path, pairs: list[Pair]) -> Path:
    return put(folder / "weather.har", har(pairs))


def put_rewind(folder: Path, pairs: list[Pair]) -> Path:
    return put(folder / "weather.rewind", lines(rewind_trace(pairs)))


def put_orca(folder: Path, pairs: list[Pair]) -> Path:
    run_folder = folder / "run_9f2c14a03b71"
    put(run_folder / "manifest.json", MANIFEST)
    return put(run_folder / "events.jsonl", lines(orca_events(pairs)))


FORMATS: dict[str, Callable[[Path, list[Pair]], Path]] = {
    "vcr": put_vcr,
    "har": put_har,
    "agent-rewind": put_rewind,
    "orca": put_orca,
}
ALL = pytest.mark.parametrize("kind", FORMATS)


@pytest.mark.parametrize("kind", mark_all_but_first(list(FORMATS), pytest.mark.slow))
@pytest.mark.parametrize(
    "stream", mark_all_but_first([False, True], pytest.mark.slow), ids=["whole", "stream"]
)
def test_an_imported_recording_is_priced_and_replayed(
    tmp_path: Path, kind: str, stream: bool
) -> None:
    """A session has its turns, tool calls and cost, and a replay gives the agent the recorded responses."""
    home = open_home(tmp_path / "home")
    path = FORMATS[kind](tmp_path, recorded_pairs(stream=stream))
    result = run(home, "import", kind, path)
    assert result.exit_code == 0, result.output
    assert "2 exchanges, replayable" in result.output
    assert "skipped" in result.output
    session = session_of(home)
    usd = "0.000271800000" if stream else "0.006300000000"
    assert (session["attempts"], session["turns"], session["tool_calls"]) == (2, 2, 1)
    assert (str(session["cost_usd"]), session["cost_status"], session["incomplete"]) == (
        usd,
        "exact",
        False,
    )
    assert session["tags"]["imported"] == kind
    assert replayed(home, tmp_path / "fixture", stream=stream) == TEXTS
    assert verify(home).ok


@pytest.mark.slow
@ALL
def test_importing_again_adds_nothing(tmp_path: Path, kind: str) -> None:
    """A file is imported once: not again from its folder, and not after its session was deleted."""
    home = open_home(tmp_path / "home")
    path = FORMATS[kind](tmp_path / "files", recorded_pairs())
    assert run(home, "import", kind, path).exit_code == 0
    before = stored_bytes(home)
    again = run(home, "import", kind, tmp_path / "files", path)
    assert (again.exit_code, again.output) == (0, "0 sessions imported, 1 already imported\n")
    assert stored_bytes(home) == before
    assert prune(home, sessions=[session_of(home)["session_id"]])
    deleted = run(home, "import", kind, path)
    assert deleted.output == "0 sessions imported, 1 already imported\n"


@pytest.mark.slow
@ALL
def test_secrets_in_headers_are_never_written(tmp_path: Path, kind: str) -> None:
    """Neither the key of the request nor a cookie of the response is in any file, even if a body repeats the key."""
    home = open_home(tmp_path / "home")
    pairs = recorded_pairs()
    pairs[1] = pairs[1]._replace(
        request_body=pairs[1].request_body.replace(b"Rome?", f"Rome {SECRET}?".encode())
    )
    assert run(home, "import", kind, FORMATS[kind](tmp_path, pairs)).exit_code == 0
    assert SECRET.encode() not in stored_bytes(home)
    facts = b"".join(each.read_bytes() for each in home.segments.glob("*.facts"))
    assert WORD.encode() not in facts + home.database.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"), [("vcr", "w.yaml"), ("har", "w.har"), ("agent-rewind", "w.rewind")]
)
def test_compressed_files_are_read(tmp_path: Path, kind: str, name: str) -> None:
    """A file that is compressed with gzip is the same recording."""
    home = open_home(tmp_path / "home")
    path = FORMATS[kind](tmp_path, recorded_pairs())
    put(tmp_path / "packed" / f"{name}.gz", gzip.compress(path.read_bytes()))
    assert "1 session imported" in run(home, "import", kind, tmp_path / "packed").output
    assert run(home, "import", kind, path).output == "0 sessions imported, 1 already imported\n"


@pytest.mark.slow
def test_sessions_without_headers_are_replayed(tmp_path: Path) -> None:
    """If a recording lacks the version or has placeholders instead, a replay accepts any value of these headers."""
    home = open_home(tmp_path / "home")
    pairs = [
        pair._replace(
            request_headers={"anthropic-version": "**REDACTED**", "x-api-key": "X-API-KEY-XXX"},
            response_headers={"content-type": "application/json", "request-id": "<REQUEST_ID>"},
            response_body=pair.response_body.replace(b"msg_", b"msg_REDACTED_"),
        )
        for pair in recorded_pairs()
    ]
    output = run(home, "import", "vcr", put_vcr(tmp_path, pairs)).output
    assert "replayable; the headers of 2 requests are unknown and are not compared" in output
    assert session_of(home)["tags"] == {"imported": "vcr", "missing_headers": "2"}
    assert replayed(home, tmp_path / "fixture", stream=False) == TEXTS


@pytest.mark.slow
def test_other_files_in_a_folder_are_skipped_in_one_line(tmp_path: Path) -> None:
    """Cassettes of other providers and other YAML files in a folder are counted; they are not an error."""
    home = open_home(tmp_path / "home")
    put_vcr(tmp_path / "files", recorded_pairs())
    other: Any = cassette([])
    for number in range(3):
        put(tmp_path / "files" / f"other{number}.json", {**other, "number": number})
    put(tmp_path / "files" / "compose.yaml", "services:\n  web: {}\n")
    result = run(home, "import", "vcr", tmp_path / "files")
    assert result.exit_code == 0
    assert result.output.splitlines()[1:] == [
        "1 session imported, 0 already imported",
        "3 files without a request to the provider skipped (3 requests to other hosts)",
        "1 files with another format skipped",
    ]
    named = run(home, "import", "vcr", tmp_path / "files" / "other0.json")
    assert named.exit_code == 1
    assert "it contains no request to the provider (1 requests to other hosts)" in named.stderr


@ALL
def test_the_help_names_the_format(kind: str, tmp_path: Path) -> None:
    """`agentobs import --help` lists the format."""
    output = run(open_home(tmp_path / "home"), "import", "--help").output
    assert f"\n  {kind} " in output


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vcr", "har", "orca"])
def test_bodies_are_stored_as_they_were_recorded(tmp_path: Path, kind: str) -> None:
    """The bodies of requests and responses are those of the file, byte for byte; times are those of the file."""
    home = open_home(tmp_path / "home")
    pairs = recorded_pairs(stream=True)
    run(home, "import", kind, FORMATS[kind](tmp_path, pairs))
    found = recording_of(home).exchanges
    exchanges = [each for each in found if isinstance(each, ModelExchange)]
    assert [each.question.body for each in exchanges] == [pair.request_body for pair in pairs]
    assert [each.answer.body for each in exchanges] == [pair.response_body for pair in pairs]
    durations = {"vcr": 0, "har": 1_500_500_000, "orca": 1_500_000_000}
    assert [each.ended_ns for each in exchanges] == [durations[kind]] * 2
    headers = [1_000_000_000] * 2 if kind == "har" else [None] * 2
    assert [each.headers_ns for each in exchanges] == headers
    assert session_of(home)["started_at"].startswith("2026-02-04 00:00:0")
