"""docs/diagnose.md: what each signature means, and what it says of recorded traffic and of logs of people at work."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb

from agentobs.importers.claude_code.transcript_import import import_logs, logs_in
from agentobs.recording.journal.home import Home, create, open_home
from agentobs.recording.wire.exchange_file import read_wire_file
from agentobs.records.exchanges import ModelExchange, Place
from agentobs.sink import Record
from agentobs.store.analysis.diagnosis import SIGNATURES
from agentobs.store.duckdb.connection import connect, named
from tests.store.making import SECOND, T0, end, record, session_id, start
from tests.wire import corpus

TRANSCRIPTS = Path(
    os.environ.get("AGENTOBS_TRANSCRIPTS")
    or Path(__file__).parents[1].parent / "shared" / "transcripts"
)


@dataclass(frozen=True)
class Tried:
    """What the signatures say of one corpus."""

    sessions: int
    answers: int
    calls: int
    told: Counter[str]
    """In how many sessions a signature had something to look at."""
    alarms: list[tuple[str, str, str, str, str]]
    """Signature, session, what it is about, the detail, and how often in that session."""


def has_corpora() -> bool:
    """Return whether both corpora are there."""
    return (corpus.folder() / "manifest.json").is_file() and TRANSCRIPTS.is_dir()


def diagnose() -> str:
    """Return the document."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # models of then without a price
        wire = _tried(*_wire(Path(folder) / "wire"))
        logs = _tried(*_logs(Path(folder) / "logs"))
    parts = [_HEAD, _meanings(), _TELLS, _table(wire, logs), _LOOKED_AT]
    parts += [_alarms("Recorded traffic", wire), _alarms("Logs", logs), _UNTRIED]
    return "".join(parts)


def _home(path: Path) -> Home:
    """Open a home whose key is always the same: how far two inputs are apart depends on it a little."""
    home = open_home(path)
    create(path / "key", bytes(range(32)))
    return home


def _wire(path: Path) -> tuple[Home, dict[str, str]]:
    """Record every file of the corpus as a session of its own, an exchange a second."""
    home, names = _home(path), corpus.files()
    records = (each for number, name in enumerate(names, 1) for each in _session(number, name))
    record(home, records)
    return home, {session_id(number): name for number, name in enumerate(names, 1)}


def _session(number: int, name: str) -> Iterator[Record]:
    begun = T0 + number * 1_000 * SECOND
    yield start(number, at=begun)
    place = Place(session_id(number))
    for at, exchange in enumerate(read_wire_file(corpus.folder() / name).exchanges, 1):
        assert isinstance(exchange, ModelExchange)
        yield replace(
            exchange,
            place=place,
            attempt_id=f"{number:08x}{at:024x}",
            started_ns=begun + at * SECOND,
            headers_ns=SECOND // 4,
            ended_ns=SECOND // 2,
        )
    yield end(number, at=begun + 999 * SECOND)


def _logs(path: Path) -> tuple[Home, dict[str, str]]:
    """Import every log."""
    home = _home(path)
    paths = logs_in([TRANSCRIPTS])
    report = import_logs(home, paths, take_out=lambda *_: None)
    texts = {path: path.read_text("utf-8") for path in paths}
    names = {
        done.session_id: next(
            f"{path.parent.name}/{path.name}"
            for path, text in texts.items()
            if done.client_id in text
        )
        for done in report.sessions
    }
    return home, names


_COULD = {
    "repeated_calls": """
        SELECT DISTINCT session_id FROM (
            SELECT session_id, lane FROM attempts WHERE tool_use_count > 0 GROUP BY ALL HAVING count(*) >= 3
        )
    """,
    "rising_costs": """
        SELECT DISTINCT session_id FROM (
            SELECT session_id, lane FROM attempts WHERE outcome = 'ok' GROUP BY ALL HAVING count(*) >= 6
        )
    """,
    "full_contexts": "SELECT DISTINCT session_id FROM costs",
    "large_results": """
        SELECT DISTINCT session_id FROM attempts WHERE message_count >= 30
    """,
    "long_waits": "SELECT DISTINCT session_id FROM permissions",
    "repeated_denials": "SELECT DISTINCT session_id FROM tool_results WHERE is_error",
    "silent_hook_cancels": "SELECT DISTINCT session_id FROM events WHERE kind = 'hook'",
    "broken_caches": "SELECT DISTINCT session_id FROM cached_calls WHERE previous_cached_tokens > 0",
    "repeated_tool_errors": "SELECT DISTINCT session_id FROM tool_results WHERE is_error",
    "contradictions": "SELECT DISTINCT session_id FROM attempts WHERE claims_success IS NOT NULL",
}
"""Sessions in which a signature has something to look at."""


def _tried(home: Home, names: dict[str, str]) -> Tried:
    with connect(home, ingest=False) as connection:
        told = Counter(
            {name: len(connection.execute(sql).fetchall()) for name, sql in _COULD.items()}
        )
        rows = _rows(connection, "diagnoses_by_session")
        return Tried(
            sessions=_count(connection, "sessions"),
            answers=_count(connection, "turns"),
            calls=_count(connection, "tool_calls"),
            told=told,
            alarms=sorted(
                (
                    row["signature"],
                    names[row["session_id"]],
                    row["about"],
                    row["detail"],
                    str(row["times"]),
                )
                for row in rows
            ),
        )


def _count(connection: duckdb.DuckDBPyConnection, table: str) -> int:
    row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(row[0]) if row else 0


def _rows(connection: duckdb.DuckDBPyConnection, query: str) -> list[dict[str, Any]]:
    answered = named(connection, query)
    columns = [str(column[0]) for column in answered.description or []]
    return [dict(zip(columns, row, strict=True)) for row in answered.fetchall()]


def _meanings() -> str:
    lines = ["| signature | fires on | what to do |", "| --- | --- | --- |"]
    lines += [f"| `{each.name}` | {each.fires} | {each.todo} |" for each in SIGNATURES]
    return "\n".join(lines) + "\n"


def _table(wire: Tried, logs: Tried) -> str:
    head = (
        f"\nRecorded traffic: {wire.sessions:,} sessions, {wire.answers:,} answers, {wire.calls:,} tool calls. "
        f"Logs: {logs.sessions:,} sessions, {logs.answers:,} answers, {logs.calls:,} tool calls. *Could* counts the "
        "sessions in which there is something to look at.\n\n"
    )
    lines = [
        "| signature | traffic: could | fires | logs: could | fires |",
        "| --- | --- | --- | --- | --- |",
    ]
    for each in SIGNATURES:
        cells = []
        for tried in (wire, logs):
            fired = {alarm[1] for alarm in tried.alarms if alarm[0] == each.name}
            cells += [str(tried.told[each.name]), str(len(fired))]
        lines.append(f"| `{each.name}` | {' | '.join(cells)} |")
    return head + "\n".join(lines) + "\n"


JUDGED = {
    (
        "rising_costs",
        "crewAIInc__crewAI/utilities_TestAnthropicStructuredPlanning.test_anthropic_research_workflow_generates_steps.e9e08914.jsonl",
    ): "True. A research agent sends its whole history each turn and caches none of it: 753 tokens at first, 2,610 "
    "at last.",
    (
        "repeated_denials",
        "entireio__cli/37-995ebed6e4-3.jsonl",
    ): "True. A person sent the plan back four times, at last since it rested on something that the agent had made up.",
    (
        "large_results",
        "entireio__cli/55-04c1f4266f-0.jsonl",
    ): "True. A web page of 73,469 characters went into a conversation of 133 messages.",
    (
        "repeated_tool_errors",
        "entireio__cli/37-995ebed6e4-3.jsonl",
    ): "True, and the same four denials again.",
}
"""What was found when each alarm was looked at beside its session."""


def _alarms(title: str, tried: Tried) -> str:
    lines = [f"\n### {title}\n", "| signature | session | about | detail | times | looked at |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for signature, name, about, detail, times in tried.alarms:
        judged = JUDGED.get((signature, name), "NOT LOOKED AT")
        lines.append(f"| `{signature}` | {name} | {about} | {detail} | {times} | {judged} |")
    return "\n".join(lines) + "\n"


_HEAD = """\
# Failure signatures

<!-- Generated by `make docs` from agentobs/store/analysis/diagnosis.py and two corpora.
Change those, not this file. -->

`agentobs diagnose SESSION` tells which ways to fail a session shows: each with its evidence, how far that is beyond
the threshold, and what to do. `agentobs diagnose --all --since 7d` is a table over sessions, and `--fail` makes either
an exit code for CI. No word of content is needed, so all of it works with content off. Over millions of calls `--since`
keeps it to a second.

Each signature is a view of the store with a row for each place where it fires, and a named query of the same name;
`FROM diagnoses` has them all. For a session
without rows nothing was found, or it could not be checked: the command reports which, and why.

"""

_TELLS = """
## How they tell without content

- *Like arguments* is a keyed number of 64 bits that is noted with each call, `tool_uses.input_similarity`: a simhash
  in which each argument counts the same. Inputs are like each other at 6 bits of difference or fewer; unrelated ones
  are about 32 apart. Equal inputs are always found, whatever their case, blanks and punctuation. Of an argument of
  more than 16 words most are found that differ in a word; a shorter one, such as a path, has to be the same. The
  number is keyed with the home's own key: nobody without it can try inputs until one fits, and it cannot be turned
  back.
- *Claims success* is a flag, `attempts.claims_success`, noted while the text passes by, and only for an answer without
  calls to a result that is an error: words of success, and not one that owns up to a failure. It is English only.
  Reading the content later was the alternative; it would tell nothing with content off, and nothing over many sessions
  in a second.
- *The kind of an error* is noted of results that are read off the wire, `tool_results.error_kind`, by the words that
  clients say it with; our own loop says it itself. What none of the patterns fits is `semantic`.
- *Windows* are those that the loop compacts by. Where our loop says what it takes for the window, that counts. The
  beta for a window of a million is not noted: a `claude-sonnet-4` or `-4-5` that has it fires between 160,000 and
  200,000 tokens, until a prompt has been longer than that. A model that nobody knows counts as one of 200,000.
- *A large result* is one text of more than 10,000 characters, not bytes; recordings from before characters were
  counted go by bytes. *30 messages* are those of the request that carries it.
- *A wait* below a second never fires, whatever its share; nor does one that a classifier answered. The share is that
  of a whole interaction, concurrent waits added up.
- *A broken cache* leaves out what expired, and what a compaction of our loop was meant to break.

`--judge MODEL` asks a model whether the final answers contradict the results since the last prompt, at most 20 answers
and 50 results of 4,000 characters each. Its calls go through the SDK, are recorded as a session `agentobs-judge` of
the source `classifier`, and send content to the provider. With content off this is not possible.

## False alarms

All signatures are tried on recorded provider traffic of other projects' tests, and on logs of people at work with
Claude Code.
"""

_LOOKED_AT = """
Each alarm was compared with its session; whether it is correct is noted.
"""

_UNTRIED = """
What these corpora cannot show: traffic of tests is short, so that little can repeat or rise; neither tells who
was asked and how long that took (`long_waits`); logs hold no requests, so that no changed prefix is seen in
them (`broken_caches`), and their times are those at which lines were written. Of the hooks in the logs none was
cancelled. These signatures are tested on sessions that show them and on sessions that nearly do, in
tests/store/test_diagnosis.py.
"""
