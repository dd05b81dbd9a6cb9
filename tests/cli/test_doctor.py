"""`agentobs doctor`: problems of a home, of its recordings, and of the environment."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import agentobs
from agentobs import errors, world
from agentobs.cli.maintenance.doctor import INSTRUMENTATIONS, content, instrumentation
from agentobs.recording.journal.home import Home
from agentobs.records.facts import Event, InteractionEnd, InteractionStart, SpanEnd, SpanStart
from agentobs.records.labels import Label
from agentobs.store.duckdb.checkup import Finding, check_home
from agentobs.store.duckdb.connection import connect, named
from agentobs.store.duckdb.ingest import ingest
from tests.cli.test_commands import Shell
from tests.store.recordings import (
    SECOND,
    a_home,
    attempt,
    end,
    record,
    session_id,
    start,
    write_facts,
)

pytestmark = pytest.mark.xdist_group("doctor")
NOW = world.now()
WEEK = 7 * 86_400 * SECOND


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home without problems, whose session started today."""
    home = a_home(tmp_path)
    at = NOW - 60 * SECOND
    record(home, [start(1, at=at), attempt(1, 1, at=at + SECOND), end(1, at + 9 * SECOND)])
    return home


def checked(home: Home | Path) -> dict[str, Finding]:
    """Return the single finding of each check that is not ok."""
    found = check_home(home.path if isinstance(home, Home) else home, NOW, NOW - WEEK)
    return {each.check: each for each in found if each.level != "ok"}


def test_a_session_without_requests(home: Home) -> None:
    """A session that completed without a recorded request is reported, because its client may not be recorded."""
    record(home, [start(2, at=NOW), end(2, NOW + SECOND)])
    (found,) = checked(home).values()
    assert (found.check, found.level) == ("requests", "note")
    assert found.found == "1 session completed without a recorded request"
    assert session_id(2) in found.where
    assert "agentobs.record_all()" in found.todo


def test_a_home_without_problems(home: Home) -> None:
    """Each check reports that nothing is wrong, and nothing is written."""
    before = sorted(path.name for path in home.path.rglob("*"))
    found = check_home(home.path, NOW, NOW - WEEK)
    assert {each.level for each in found} == {"ok"}
    assert [each.check for each in found] == [
        "home", "permissions", "key", "size", "recorded", "damage", "losses", "orphans", "clock", "prices",
    ]  # fmt: skip
    assert "1 recent session, with content: vault" in [each.found for each in found]
    assert sorted(path.name for path in home.path.rglob("*")) == before


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (None, "it does not exist"),
        ("", "the directory is empty"),
        ("x", "no recordings found"),
    ],
)
def test_a_missing_home(tmp_path: Path, made: str | None, expected: str) -> None:
    """If there is no home, or a file in its place, this is reported and nothing is created."""
    if made is not None:
        (tmp_path / "none").mkdir()
    if made:
        (tmp_path / "none" / made).write_text("else")
    found = checked(tmp_path / "none")
    assert found["home"].level == "wrong"
    assert expected in found["home"].found
    assert "agentobs demo" in found["home"].todo
    assert (tmp_path / "none").exists() is (made is not None)


def test_a_foreign_directory_with_segments(tmp_path: Path) -> None:
    """A directory with a `segments` folder is not necessarily a home, so no change of its permissions is suggested."""
    foreign = tmp_path / "foreign"
    (foreign / "segments").mkdir(parents=True)
    (foreign / "a.txt").write_text("x")
    assert set(checked(foreign)) == {"home"}
    assert "contains other files" in checked(foreign)["home"].found
    (foreign / "segments" / "intro.mp3").write_text("x")
    assert set(checked(foreign)) == {"home"}


@pytest.mark.slow
def test_a_copy_of_the_store_file(home: Home, tmp_path: Path) -> None:
    """A store file that was copied without its recordings is reported as a copy, not as a home that is not writable."""
    ingest(home)
    copy = tmp_path / "copy"
    copy.mkdir(mode=0o700)
    shutil.copy(home.database, copy)
    found = checked(copy)["home"]
    assert (found.level, found.where) == ("note", str(copy))
    assert "a copy of the store file without its recordings" in found.found


@pytest.mark.slow
def test_a_missing_or_short_key(home: Home) -> None:
    """Without the key, equal names get different digests. This is reported, and no new key is created."""
    key = home.path / "key"
    key.write_bytes(b"short")
    found = checked(home)["key"]
    assert (found.level, found.where) == ("wrong", str(key))
    assert "5 bytes, not 32" in found.found
    key.unlink()
    found = checked(home)["key"]
    assert (found.level, found.where) == ("wrong", str(key))
    assert "it is missing, although there are recordings" in found.found
    assert not key.exists()


@pytest.mark.slow
def test_a_store_that_was_overwritten(home: Home) -> None:
    """A published file that does not match its manifest is reported, although segments provide its data."""
    ingest(home)
    home.database.chmod(0o600)
    home.database.write_bytes(b"garbage" * 1000)
    found = checked(home)
    assert set(found) == {"store"}
    assert (found["store"].level, found["store"].where) == ("wrong", str(home.database))
    assert "agentobs ingest" in found["store"].todo
    ingest(home)
    assert checked(home) == {}


def test_permissions(home: Home) -> None:
    """Files that other users can read are listed, with the command that fixes their permissions."""
    home.path.chmod(0o755)
    next(home.segments.glob("*.content")).chmod(0o644)
    found = checked(home)["permissions"]
    assert (found.level, found.found) == ("wrong", "other users can read 2 paths in this home")
    assert ".content" in found.where
    assert f"chmod -R go= {home.path}" in found.todo


def test_a_home_that_is_not_writable(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home without write permission is a problem, even if it can be read."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    assert checked(home)["home"].found == "recordings cannot be written here: it is not writable"


@pytest.mark.slow
def test_an_empty_key_file(home: Home) -> None:
    """An empty key file is reported with advice; no new key is created."""
    (home.path / "key").write_bytes(b"")
    found = checked(home)["key"]
    assert "0 bytes, not 32" in found.found
    assert (found.level, found.where) == ("wrong", str(home.path / "key"))
    assert "delete it" in found.todo
    assert (home.path / "key").read_bytes() == b""


@pytest.mark.slow
def test_a_damaged_segment(home: Home) -> None:
    """A segment with a changed byte is reported."""
    [facts] = home.segments.glob("*.facts")
    lines = facts.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b"1", b"2", 1)
    facts.write_bytes(b"".join(lines))
    found = checked(home)["damage"]
    assert (found.level, found.where) == ("wrong", facts.stem)
    assert found.found == "damaged: 1 segment, with 1 record missing"


def span(session: int, number: int, started: int, ended: int | None = None) -> list[Any]:
    ids = session_id(session), session_id(session), f"{number:016x}", None
    began = SpanStart(*ids, Label("main"), Label("tool"), None, started)
    return [began] if ended is None else [began, SpanEnd(ids[0], ids[2], ended, "ok", None)]


CLOCKS = {
    11: ((0, 10), (5, 20)),
    12: ((10, 20), (9.5, 30)),
    13: ((10, 20), (8.9, 30)),
    14: ((10, 8),),
}
"""The start and end of each span by session, in seconds of the session's clock."""


@pytest.fixture(scope="module")
def trouble(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with many kinds of problems."""
    home = a_home(tmp_path_factory.mktemp("trouble"))
    at = NOW - 3_600 * SECOND
    for session, spans in CLOCKS.items():
        result = [
            span(session, n, at + int(a * SECOND), at + int(b * SECOND))
            for n, (a, b) in enumerate(spans)
        ]
        record(
            home,
            [start(session, at=at), *(each for one in result for each in one), end(session, NOW)],
        )
    numbers = {"count": 7.0}
    lost = Event(
        session_id(1), None, Label("main"), 1, NOW, Label("drop"), Label("events"), numbers
    )
    old = replace(end(2, NOW - WEEK - 1), dropped=5)
    write_facts(home, [lost, old, replace(end(3, NOW), dropped=2), *span(4, 9, NOW - SECOND)])
    record(home, [start(5, at=NOW - SECOND), attempt(5, 1, at=NOW - SECOND, model="in-house-1")])
    record(home, [start(6, at=NOW + 120 * SECOND), end(6, NOW + 121 * SECOND)])
    return home


def test_problems_of_sessions(trouble: Home) -> None:
    """Losses, orphans, clock jumps and models without a price are reported with the affected sessions."""
    found = checked(trouble)
    assert {each.check: (each.level, each.found) for each in found.values()} == {
        "losses": ("wrong", "dropped: 9 records (events, unknown)"),
        "orphans": ("wrong", "never ended: 1 span or call (tool)"),
        "clock": (
            "wrong",
            "the wall clock jumped by up to 120.0 s: future, end_before_start, backwards",
        ),
        "prices": ("wrong", "without a price: 1 call (in-house-1)"),
        "requests": ("note", "5 sessions completed without a recorded request"),
    }
    assert session_id(3) in found["losses"].where
    assert session_id(2) not in found["losses"].where
    assert found["orphans"].where == f"session {session_id(4)}"


def test_clock_jumps(trouble: Home) -> None:
    """A jump is a time more than 1 s before the previous one, an end before its start, or a future time.

    Concurrent work is not a jump.
    """
    with connect(trouble, ingest=False) as connection:
        rows = named(connection, "clock_jumps", now_ns=NOW).fetchall()
    assert [(row[0], row[1], row[4]) for row in rows] == [
        (session_id(6), "future", 120 * SECOND),
        (session_id(14), "end_before_start", 2 * SECOND),
        (session_id(13), "backwards", int(1.1 * SECOND)),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("is_derived", [True, False])
def test_derived_interactions_are_no_evidence_of_a_clock_jump(
    tmp_path: Path, is_derived: bool
) -> None:
    """Only an interaction with its own span was timed by the agent; others may be wrong in older recordings."""
    session, interaction = session_id(2), "7" * 32
    facts: list[Any] = [
        InteractionStart(session, interaction, Label("main"), NOW + 2 * SECOND),
        InteractionEnd(session, interaction, NOW + SECOND, Label("interrupted"), True),
    ]
    if not is_derived:
        name = Label("interaction")
        facts.append(
            SpanStart(session, interaction, "7" * 16, None, Label("main"), name, None, NOW + SECOND)
        )
    home = a_home(tmp_path)
    record(home, [start(2, at=NOW), end(2, NOW + 3 * SECOND)])
    write_facts(home, facts)
    with connect(home) as connection:
        rows = named(connection, "clock_jumps", now_ns=NOW).fetchall()
    assert [row[1] for row in rows] == ([] if is_derived else ["end_before_start"])


def test_no_recent_recordings(home: Home) -> None:
    """A home without recordings in the checked period gets a note."""
    later = NOW + 30 * 86_400 * SECOND
    [found] = [each for each in check_home(home.path, later, later - WEEK) if each.level != "ok"]
    assert (found.check, found.level) == ("recorded", "note")
    assert found.found == "no recent sessions, 1 older; the last one started 30.0 days ago"


def test_a_segment_of_a_newer_version(home: Home) -> None:
    """A segment with a newer format is reported as written by a newer version."""
    [facts] = home.segments.glob("*.facts")
    newer = facts.with_name("f" * 32 + ".facts")
    newer.write_bytes(newer_first_line(facts.read_bytes().splitlines(keepends=True)[0], newer.stem))
    newer.chmod(0o600)
    found = checked(home)["versions"]
    assert found.found == "not included in results: 1 file of a newer version"
    assert newer.name in found.where


def newer_first_line(line: bytes, segment_id: str) -> bytes:
    """Return the first line of a segment in the format of a later version."""
    import zlib

    _, sequence, kind, payload = line.rstrip(b"\n").split(b" ", 3)
    value = {**json.loads(payload), "format": 99, "segment_id": segment_id}
    rest = b" ".join((sequence, kind, json.dumps(value, separators=(",", ":")).encode()))
    return b"%08x %s\n" % (zlib.crc32(rest, zlib.crc32(segment_id.encode())), rest)


def test_a_foreign_file_in_place_of_the_store(home: Home) -> None:
    """An unreadable store file is reported with the error of the store."""
    home.database.write_bytes(b"not a database")
    found = check_home(home.path, NOW, NOW - WEEK)
    assert [each.check for each in found if each.level == "wrong"] == ["store"]


@pytest.mark.parametrize(
    ("value", "level", "expected"),
    [
        (None, "ok", "vault by default: prompts and responses stay in the home"),
        ("off", "ok", "off by default: prompts and responses are not recorded"),
        ("export", "ok", "export by default: prompts and responses go to the home and to the backends"),
    ],
)  # fmt: skip
def test_the_default_content_mode(value: str | None, level: str, expected: str) -> None:
    """The report states where content goes by default, and which setting determines that."""
    variables = {} if value is None else {"AGENTOBS_CONTENT": value}
    [found] = content(variables)
    source = " (AGENTOBS_CONTENT is set)" if value else " (AGENTOBS_CONTENT is not set)"
    assert (found.level, found.found) == (level, expected + source)


def test_an_invalid_content_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the content mode is invalid, `doctor` reports the mode with which sessions start."""
    monkeypatch.setenv("AGENTOBS_CONTENT", "no")
    monkeypatch.setattr(errors, "_reported", set())
    agentobs.stop_recorder()
    opened = agentobs.session("shop", home=str(tmp_path))
    try:
        with pytest.warns(RuntimeWarning, match="content of sessions is not recorded"), opened:
            pass
    finally:
        agentobs.stop_recorder()
    [found] = content(os.environ)
    assert (found.level, opened.content) == ("wrong", "off")
    assert f"sessions start with content {opened.content}" in found.found
    assert "and a warning" in found.found


PROVIDER = {"opentelemetry.trace": SimpleNamespace(_TRACER_PROVIDER=object())}
NO_PROVIDER = {"opentelemetry.trace": SimpleNamespace(_TRACER_PROVIDER=None)}


@pytest.mark.parametrize(
    ("variables", "modules", "wrong"),
    [
        ({}, {}, []),
        ({}, NO_PROVIDER, []),
        ({}, {"logfire": object()}, ["logfire"]),
        ({"ANTHROPIC_OPEN_TELEMETRY": "false"}, {**PROVIDER, "traceloop.sdk": object()}, ["traceloop.sdk"]),
    ],
)  # fmt: skip
def test_double_instrumentation(
    variables: dict[str, str], modules: dict[str, Any], wrong: list[str]
) -> None:
    """Another instrumentation that is loaded creates a second span per call and is reported."""
    found = list(instrumentation(variables, modules))
    assert [each.where for each in found if each.level == "wrong"] == wrong


@pytest.mark.parametrize(
    ("variables", "modules", "notes"),
    [
        ({}, PROVIDER, 1),
        ({"ANTHROPIC_OPEN_TELEMETRY": "False"}, PROVIDER, 0),
        ({"ANTHROPIC_OPEN_TELEMETRY": "true"}, PROVIDER, 1),
        ({"OTEL_PYTHON_CONFIGURATOR": "x"}, {}, 1),
    ],
)
def test_a_global_provider_is_not_a_problem(
    variables: dict[str, str], modules: dict[str, Any], notes: int
) -> None:
    """If a global provider is set, each call of a recorded client has one span, so only a note is reported.

    The note names the copies of the client whose calls have two spans.
    """
    found = list(instrumentation(variables, modules))
    result = [each for each in found if each.where == "ANTHROPIC_OPEN_TELEMETRY"]
    assert [each.level for each in result] == ["note"] * notes
    assert all("the client was copied before record(client)" in each.found for each in result)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory from which modules can be imported; they are unloaded after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_installed_and_loaded_instrumentations(installed: Path) -> None:
    """An instrumentation that is installed without being loaded gets a note."""
    name = "braintrust"
    assert name in INSTRUMENTATIONS
    (installed / f"{name}.py").write_text("")
    [found] = [each for each in instrumentation({}, {}) if each.where == name]
    assert (found.level, found.found) == ("note", "Braintrust is installed, but not loaded here")


@pytest.mark.slow
def test_the_command(
    installed: Path, home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code is 1 if there is a problem, otherwise 0; findings are printed as text or as JSON."""
    for name in ("AGENTOBS_CONTENT", "ANTHROPIC_OPEN_TELEMETRY", "OTEL_PYTHON_CONFIGURATOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", ModuleType("quiet"))
    shell = Shell(home.path, capsys)
    result = shell("doctor")
    assert (result.code, result.out.splitlines()[-1]) == (0, "no problems found")
    (installed / "my_setup.py").write_text(
        "import sys\nsys.modules['opentelemetry.trace']._TRACER_PROVIDER = object()\n"
    )
    result = shell("doctor", "--load", "my_setup")
    assert result.code == 0
    assert "where: ANTHROPIC_OPEN_TELEMETRY" in result.out
    assert "to do: Make copies (with_options) after record(client)" in result.out
    monkeypatch.setitem(sys.modules, "logfire", ModuleType("logfire"))
    result = shell("doctor")
    assert result.code == 1
    assert "to do: Remove one of the two" in result.out
    rows = [json.loads(line) for line in shell("doctor", "--json").out.splitlines()]
    assert list(rows[0]) == ["check", "level", "found", "where", "todo"]
    assert {row["check"] for row in rows if row["level"] == "wrong"} == {"instrumentation"}
    result = shell("doctor", "--load", "no_such_module")
    assert result.err.startswith("error: --load no_such_module: cannot import the module")
