"""Ingest: every record is counted once, even if the ingesting process is killed."""

from __future__ import annotations

import dataclasses
import json
import signal
import zlib
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentobs.errors import HomeError
from agentobs.recording.journal import segments
from agentobs.recording.journal.home import Home, open_home
from agentobs.recording.journal.segments import Segment, facts_path, segment_ids
from agentobs.recording.vault.vault import read_session
from agentobs.records.exchanges import (
    ModelExchange,
    Place,
    QuerySource,
    Recording,
    ToolExchange,
    WorldExchange,
)
from agentobs.records.facts import TABLES
from agentobs.records.labels import Label
from agentobs.sink import Record
from agentobs.store.duckdb import generations
from agentobs.store.duckdb import journal_tail as tail_module
from agentobs.store.duckdb.connection import connect, named
from agentobs.store.duckdb.ingest import ingest
from tests.marks import mark_all_but_first
from tests.store.recordings import (
    SECOND,
    T0,
    a_home,
    attempt,
    consent,
    conversation,
    counts,
    end,
    everything,
    finish,
    permission,
    plain,
    python,
    record,
    session_id,
    start,
    tool,
    usage_row,
    write_facts,
)


def test_repeated_ingests_count_once(tmp_path: Path) -> None:
    """A second ingest finds no new records, publishes no file, and changes no rows."""
    home = a_home(tmp_path)
    record(home, [*conversation(1), *conversation(2)])
    first, second = ingest(home), ingest(home)
    assert (first.published, first.generation, first.segments) == (True, 1, 1)
    assert (second.published, second.generation, second.records) == (False, 1, 0)
    with plain(home) as connection:
        assert counts(connection) == {
            "session_starts": 2,
            "session_ends": 2,
            "interaction_starts": 6,
            "interaction_ends": 6,
            "attempts": 6,
            "usage": 6,
            "prefixes": 0,
            "zones": 6,
            "tool_uses": 0,
            "tool_results": 0,
            "provider_tool_uses": 0,
            "provider_tool_results": 0,
            "permissions": 0,
            "world_answers": 0,
            "events": 0,
            "span_starts": 6,
            "span_ends": 6,
            "gaps": 0,
            "session_titles": 0,
            "git_states": 0,
            "scores": 0,
            "workspace_states": 0,
            "file_changes": 0,
            "command_runs": 0,
            "mcp_requests": 0,
            "effect_links": 0,
            "prunings": 0,
            "exports": 0,
        }
        assert first.records == sum(counts(connection).values())


@pytest.mark.slow
@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cuts=st.lists(st.sampled_from(["ingest", "new segment", "go on"]), min_size=4, max_size=4))
def test_ingest_in_steps_or_all_at_once(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[str]
) -> None:
    """However records are divided into ingests and segments, the final rows are the same."""
    home = open_home(tmp_path_factory.mktemp("steps") / "home")
    segment = Segment(home)
    for number, cut in enumerate(cuts):
        segment.facts.append("usage", {"attempt_id": f"{number}", "input_tokens": number})
        if cut == "ingest":
            ingest(home)
        elif cut == "new segment":
            segment.close()
            segment = Segment(home)
    segment.close()
    ingest(home)
    with plain(home) as connection:
        rows = connection.execute("SELECT attempt_id, input_tokens FROM usage").fetchall()
        unique = connection.execute("SELECT count(DISTINCT (segment_id, sequence)) FROM usage")
        assert sorted(rows) == [(f"{n}", n) for n in range(len(cuts))]
        assert unique.fetchone() == (len(cuts),)


KILLED_AT = """
import os, signal, sys
from pathlib import Path
from typing import get_args
from agentobs.recording.journal.home import Home
from agentobs.store.duckdb import generations, ingest, schema

def die(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

module, name = sys.argv[2].split(".")
setattr({"ingest": ingest, "generations": generations, "Path": Path}[module], name, die)
ingest.ingest(Home(Path(sys.argv[1])))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    mark_all_but_first(
        [
            "ingest.save_marks",  # the rows are inserted, the watermark is not
            "generations.publish",  # the draft is committed and closed, not published
            "Path.replace",  # the new manifest is written as a draft
            "generations.sync_directory",  # renamed, not synced
        ],
        pytest.mark.crash,
    ),
)
def test_a_killed_ingest_loses_and_duplicates_nothing(tmp_path: Path, place: str) -> None:
    """If an ingest is killed at any step, the store can be opened, and the next ingest completes the work."""
    home = a_home(tmp_path)
    record(home, conversation(1))
    ingest(home)
    record(home, conversation(2))
    process = python(KILLED_AT, home.path, place)
    assert process.wait(60) == -signal.SIGKILL
    process.communicate()
    with plain(home) as connection:
        assert counts(connection)["session_starts"] in (1, 2)
    report = ingest(home)
    assert report.damaged_moved_to is None
    with plain(home) as connection:
        assert counts(connection)["session_starts"] == 2
        assert counts(connection)["attempts"] == 6
    assert list(home.path.glob(f"{generations.DRAFT}*")) == []


@pytest.mark.slow
def test_a_kill_between_manifest_and_rename(tmp_path: Path) -> None:
    """After a kill between the writing of the manifest and the rename, the manifest lists both the next file and the
    current file.
    """
    home = a_home(tmp_path)
    record(home, conversation(1))
    ingest(home)
    record(home, conversation(2))
    code = KILLED_AT.replace('setattr({"', 'real = Path.replace\nsetattr({"').replace(
        "    os.kill(",
        '    if str(arguments[1]).endswith(".json"):\n        return real(*arguments)\n    os.kill(',
    )
    process = python(code, home.path, "Path.replace")
    assert process.wait(60) == -signal.SIGKILL
    process.communicate()
    assert [g.number for g in generations.generations(home)] == [2, 1]
    in_place = generations.quick_current(home)
    assert in_place is not None
    assert in_place.number == 1
    assert ingest(home).damaged_moved_to is None
    with plain(home) as connection:
        assert counts(connection)["session_starts"] == 2


def test_an_ingest_during_another_ingest(tmp_path: Path) -> None:
    """While another process ingests, an ingest reports this and does nothing, and a reader still has all records."""
    home = a_home(tmp_path)
    record(home, conversation(1))
    with generations.locked(home, 0) as held:
        assert held
        report = ingest(home, wait_seconds=0.1)
        assert (report.busy, report.published) == (True, False)
        assert report.lines() == ["another process is ingesting; nothing was done"]
        with connect(home) as connection:
            assert counts(connection)["attempts"] == 3
    assert ingest(home).published


def test_ended_segments_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that is sealed and completely ingested is not read again; its size and time are enough."""
    home = a_home(tmp_path)
    record(home, conversation(1))
    ingest(home)
    record(home, conversation(2))
    opened: list[str] = []

    def read(path: Path, *arguments: Any) -> object:
        opened.append(path.stem)
        return segments.read_runs(path, *arguments)

    monkeypatch.setattr(tail_module, "read_runs", read)
    ingest(home)
    assert opened == [segment_ids(home)[-1]]


def append(home: Home, segment_id: str, line: bytes) -> None:
    with facts_path(home, segment_id).open("ab") as file:
        file.write(line)


def a_line(segment_id: str, sequence: int, kind: str, text: bytes) -> bytes:
    rest = b"%d %s %s" % (sequence, kind.encode(), text)
    return b"%08x %s\n" % (zlib.crc32(rest, zlib.crc32(segment_id.encode())), rest)


def test_invalid_values_do_not_block_other_records(tmp_path: Path) -> None:
    """Numbers beyond the range of their column, lone surrogates and records that are not objects do not affect other
    records.
    """
    home = a_home(tmp_path)
    segment = Segment(home)
    huge = {"attempt_id": "huge", "input_tokens": 2**70, "output_tokens": 1, "new_field": [1]}
    segment.facts.append("usage", huge)
    segment.facts.append("session_starts", {"session_id": "s", "tags": {"a": "\ud800", "b": "é\0"}})
    for text in (b"[]", b"7", b'{"attempt_id":', b'"x"', b"{}"):
        append(
            home,
            segment.segment_id,
            a_line(segment.segment_id, segment.facts.sequence + 1, "usage", text),
        )
        segment.facts.sequence += 1
        segment.facts.size = facts_path(home, segment.segment_id).stat().st_size
    segment.facts.append("novelty", {"attempt_id": "of a later version"})
    segment.facts.append("usage", {"attempt_id": "last", "input_tokens": 1})
    segment.close()
    report = ingest(home)
    assert (report.records, report.misfit_records, report.unknown_records) == (3, 5, 1)
    assert (report.damaged_records, report.missing_records) == (0, 0)
    with plain(home) as connection:
        rows = connection.execute("SELECT attempt_id, input_tokens FROM usage ORDER BY sequence")
        assert rows.fetchall() == [("huge", None), ("last", 1)]
        tags = connection.execute("SELECT tags FROM session_starts").fetchone()
        assert tags == ({"a": "\ufffd\ufffd\ufffd", "b": "é\0"},)


def test_counts_of_a_hostile_provider_break_no_query(tmp_path: Path) -> None:
    """Token counts up to the largest BIGINT do not overflow sums; a prompt whose size exceeds BIGINT has no price."""
    home = a_home(tmp_path)
    most = 2**63 - 1
    write_facts(home, [usage_row(n, input_tokens=2**62) for n in range(3)])
    write_facts(home, [usage_row(4, input_tokens=most, cache_write_1h_tokens=most)])
    ingest(home)
    with connect(home) as connection:
        rows = connection.execute(
            "SELECT sum(input_tokens), sum(cost_usd) > 0, cost_status FROM costs GROUP BY ALL ORDER BY 1"
        )
        assert rows.fetchall() == [(most, None, "unpriced"), (3 * 2**62, True, "exact")]
        assert connection.execute("FROM sessions").fetchall() == []


def test_a_duplicated_record_counts_once(tmp_path: Path) -> None:
    """A line that was copied within its segment is not counted as a second record, although its checksum is valid."""
    home = a_home(tmp_path)
    segment = write_facts(home, [usage_row(1), usage_row(2)], close=False)
    lines = segment.facts.path.read_bytes().splitlines(keepends=True)
    append(home, segment.segment_id, lines[1])
    report = ingest(home)
    assert (report.records, report.damaged_records) == (2, 1)
    segment.abandon()


def test_damage_is_counted_and_other_lines_are_ingested(tmp_path: Path) -> None:
    """A damaged and a missing line are counted in the report and in `segments`; all other lines are ingested."""
    home = a_home(tmp_path)
    segment = write_facts(home, [usage_row(n) for n in range(6)])
    path = segment.facts.path
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b"tokens", b"takens", 1)
    del lines[4:6]
    path.write_bytes(b"".join(lines))
    report = ingest(home)
    assert (report.records, report.damaged_records, report.missing_records) == (3, 1, 3)
    assert report.lines()[1:3] == [
        "1 parts of segments cannot be read",
        "3 records are missing",
    ]
    with plain(home) as connection:
        columns = "state, damaged_records, missing_records, sequence"
        assert connection.execute(f"SELECT {columns} FROM segments").fetchall() == [
            ("sealed", 1, 3, 8)
        ]


@pytest.mark.slow
def test_a_torn_tail_is_not_ingested(tmp_path: Path) -> None:
    """An incomplete line at the end of a segment is not ingested until it is completed."""
    home = a_home(tmp_path)
    segment = write_facts(home, [usage_row(1)], close=False)
    whole = a_line(segment.segment_id, 3, "usage", b'{"attempt_id":"late"}')
    append(home, segment.segment_id, whole[:20])
    report = ingest(home)
    assert (report.records, report.damaged_records) == (1, 0)
    assert ingest(home).published is False
    append(home, segment.segment_id, whole[20:])
    assert ingest(home).records == 1
    segment.abandon()
    ingest(home)
    with plain(home) as connection:
        assert connection.execute("SELECT state, sequence FROM segments").fetchall() == [
            ("dead", 3)
        ]


def test_a_segment_of_a_newer_format_is_skipped(tmp_path: Path) -> None:
    """A segment of a newer format is skipped and named in the report; all other segments are ingested."""
    home = a_home(tmp_path)
    write_facts(home, [usage_row(1)])
    newer = "f" * 32
    text = json.dumps({"format": 99, "segment_id": newer}).encode()
    facts_path(home, newer).write_bytes(a_line(newer, 1, "segment", text))
    report = ingest(home)
    assert (report.records, report.refused) == (1, [facts_path(home, newer)])
    with pytest.warns(RuntimeWarning, match="newer version"):
        connect(home, ingest=False).close()


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from typing import get_args
from agentobs.errors import HomeError
from agentobs.recording.journal.home import Home
from agentobs.store.duckdb.ingest import ingest

home = Home(Path(sys.argv[1]))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limit = home.database.stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    ingest(home)
except (HomeError, OSError) as error:
    print(type(error).__name__, error)
"""


@pytest.mark.slow
def test_a_full_disk(tmp_path: Path) -> None:
    """If the disk is full, an ingest reports an error, the current file stays published, and a later ingest completes
    the work.
    """
    home = a_home(tmp_path)
    record(home, conversation(1))
    ingest(home)
    write_facts(home, [usage_row(n * 7919, input_tokens=n * n) for n in range(2_000)])
    out = finish(python(FULL_DISK, home.path))
    assert out.startswith("HomeError")
    assert "All recordings are safe in the segments" in out
    assert list(home.path.glob(f"{generations.DRAFT}*")) == []
    with plain(home) as connection:
        assert counts(connection)["usage"] == 3
    assert ingest(home).records == 2_000


@pytest.mark.slow
def test_the_tail_and_the_published_file_have_the_same_rows(tmp_path: Path) -> None:
    """A recording has the same rows in every table and view, whether it is ingested or read from the tail."""
    home = a_home(tmp_path)
    record(home, [*conversation(1, git="4f2a91c"), *conversation(2)])
    record(home, [start(3, at=T0 + 5)])
    with connect(home, ingest=False) as connection:
        live = everything(connection)
    assert not home.database.exists()
    ingest(home)
    with plain(home) as connection:
        assert everything(connection) == live
    record(home, conversation(4))
    with connect(home, ingest=False) as connection:
        live = everything(connection)
    ingest(home)
    with connect(home, ingest=False) as connection:
        assert everything(connection) == live
    assert len(live["sessions"]) == 4
    assert set(live) >= set(TABLES.values())


def test_a_lock_that_is_a_link(tmp_path: Path) -> None:
    """A lock file that is a symbolic link is not followed."""
    home = a_home(tmp_path)
    home.lock.symlink_to(tmp_path / "elsewhere")
    with pytest.raises((OSError, HomeError)):
        ingest(home)
    assert not (tmp_path / "elsewhere").exists()


CALL = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bern"}}


def with_a_tool(home: Home) -> None:
    """Record a session in which a tool runs after a person allowed the call."""
    parts: list[Record] = [
        start(1),
        attempt(1, 1, content=[CALL]),
        consent(1, "toolu_1", at=T0 + 2 * SECOND),
        permission(1, "toolu_1", at=T0 + 3 * SECOND),
        tool(1, "toolu_1", "weather", at=T0 + 3 * SECOND),
        end(1),
    ]
    record(home, parts)


def _read(home: Home) -> Recording:
    return read_session(home, session_id(1), segment_ids(home))


def test_world_questions_are_stored(tmp_path: Path) -> None:
    """An approval, its decision and the tool attempts are stored as rows without content and exchanges with content."""
    home = a_home(tmp_path)
    with_a_tool(home)
    with connect(home) as connection:
        [row] = connection.execute(
            "SELECT tool, behavior, resolver, approval_requested, approval_wait_ms, outcome FROM permission_decisions"
        ).fetchall()
        assert row == ("weather", "allow", "person", True, 1000.0, "executed")
        [row] = connection.execute(
            "SELECT kind, key, turn, duration_ms FROM world_questions"
        ).fetchall()
        assert row == ("consent", "toolu_1", 1, 1000.0)
        [row] = connection.execute("SELECT permission, approval_wait_ns FROM tool_calls").fetchall()
        assert row == ("allow", SECOND)
        timeline = named(connection, "session_timeline", session_id=session_id(1)).fetchall()
        assert [(r[0], r[4], r[5]) for r in timeline if r[0] in ("permission", "world")] == [
            ("permission", "weather", "person"),
            ("world", "consent", "toolu_1"),
        ]
    kinds = [type(exchange) for exchange in _read(home).exchanges]
    assert kinds == [ModelExchange, WorldExchange, ToolExchange]
    [asked] = [e for e in _read(home).exchanges if isinstance(e, WorldExchange)]
    assert asked == consent(1, "toolu_1", at=T0 + 2 * SECOND)


def test_query_source_and_chain(tmp_path: Path) -> None:
    """Each request has its source, its chain and its depth in the chain; for other clients, these columns are NULL."""
    home, chain = a_home(tmp_path), "c" * 32
    places = [
        Place(session_id(1), query_source=source, chain_id=chain, depth=depth)
        for depth, source in enumerate(get_args(QuerySource), 1)
    ]
    asked = [attempt(1, turn) for turn in range(1, len(places) + 2)]
    attempts = [dataclasses.replace(a, place=p) for a, p in zip(asked, places, strict=False)]
    record(home, [start(1), *attempts, asked[-1], end(1)])
    with connect(home) as connection:
        rows = connection.execute(
            "SELECT query_source, chain_id, depth FROM attempts ORDER BY started_ns"
        ).fetchall()
    assert rows == [*((p.query_source, chain, p.depth) for p in places), ("main", None, None)]


def test_names_in_decisions_are_labels(tmp_path: Path) -> None:
    """A rule that is not a label is stored as a keyed digest; its text is not in the facts."""
    home = a_home(tmp_path)
    written = "Bash(git commit -m 'our secret plan')"
    record(
        home,
        [start(1), permission(1, "toolu_1", at=T0, rule=written, source=Label("project")), end(1)],
    )
    [name] = segment_ids(home)
    assert b"secret plan" not in facts_path(home, name).read_bytes()
    with connect(home) as connection:
        [(rule, source)] = connection.execute("SELECT rule, source FROM permissions").fetchall()
    assert (rule.split(":")[0], source) == ("digest", "project")
